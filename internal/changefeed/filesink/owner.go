package filesink

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

const (
	ownerFile = "owner.json"
	goneFile  = "gone"
)

// owner is who may write a directory.
type owner struct {
	Changefeed string       `json:"changefeed"`
	Table      stream.Table `json:"table"`
	// Since when the table has its name.
	Since stream.Position `json:"since,omitempty"`
	Epoch stream.Epoch    `json:"epoch"`
}

// holder is which table has the name that a directory is of. The file that says that it is gone has the position of the DDL that took the name
// away; in that of an earlier version there is nothing.
func (o *owner) holder(root *os.Root, dir string) (stream.Holder, error) {
	text, err := root.ReadFile(filepath.Join(dir, goneFile))
	if errors.Is(err, fs.ErrNotExist) {
		return stream.Holder{Since: o.Since}, nil
	}
	if err != nil {
		return stream.Holder{}, err
	}
	at, err := strconv.ParseUint(string(text), 10, 64)
	switch {
	case err != nil:
		return stream.Holder{Since: o.Since, Over: true}, nil
	case stream.Position(at) < o.Since:
		return stream.Holder{Since: o.Since}, nil
	}
	return stream.Holder{Since: stream.Position(at), Over: true}, nil
}

// readOwner returns the owner of a directory; nil if it has none.
func readOwner(root *os.Root, dir string) (*owner, error) {
	return atomicfile.ReadJSON[owner](root.ReadFile, filepath.Join(dir, ownerFile))
}

// own makes an epoch the owner of a directory, unless a newer epoch or another changefeed owns it, or another table has the name.
func own(root *os.Root, dir string, want owner) error {
	is, err := readOwner(root, dir)
	if err != nil {
		return err
	}
	if is != nil {
		if is.Changefeed != want.Changefeed {
			return fmt.Errorf("directory %s belongs to changefeed %s: use another directory for each changefeed: %w", dir, is.Changefeed, stream.ErrUnusable)
		}
		held, err := is.holder(root, dir)
		if err != nil {
			return err
		}
		if want.Since == stream.AnySince {
			want.Since = held.Since
		}
		if held.Past(want.Since) {
			return fmt.Errorf("directory %s: the table that had its name since position %d was dropped or renamed: %w", dir, want.Since, stream.ErrNotOwner)
		}
		switch c := is.Epoch.Compare(want.Epoch); {
		case c > 0:
			return notOwner(dir, want.Epoch, is)
		case c == 0 && is.Since == want.Since:
			return nil
		}
	}
	if want.Since == stream.AnySince {
		want.Since = 0
	}
	if err := writeOwner(root, dir, want); err != nil {
		return err
	}
	return check(root, dir, want.Epoch) // another epoch may have done the same concurrently
}

// check fails unless an epoch owns a directory.
func check(root *os.Root, dir string, epoch stream.Epoch) error {
	is, err := readOwner(root, dir)
	if err == nil && (is == nil || is.Epoch != epoch) {
		err = notOwner(dir, epoch, is)
	}
	return err
}

func notOwner(dir string, mine stream.Epoch, is *owner) error {
	if is == nil {
		return fmt.Errorf("directory %s has no owner any more, epoch %s was its owner: %w", dir, mine, stream.ErrNotOwner)
	}
	return fmt.Errorf("directory %s belongs to epoch %s, not to epoch %s: %w", dir, is.Epoch, mine, stream.ErrNotOwner)
}

// writeOwner replaces the file atomically.
func writeOwner(root *os.Root, dir string, o owner) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return atomicfile.WriteIn(root, filepath.Join(dir, ownerFile), append(data, '\n'), fileMode)
}

// appendTo makes bytes at the end of a file durable.
func appendTo(root *os.Root, name string, flags int, data []byte) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_APPEND|flags, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes the names in a directory durable.
func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
