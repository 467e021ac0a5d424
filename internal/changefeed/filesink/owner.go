package filesink

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
	Epoch      stream.Epoch `json:"epoch"`
}

// readOwner returns the owner of a directory; nil if it has none.
func readOwner(root *os.Root, dir string) (*owner, error) {
	return atomicfile.ReadJSON[owner](root.ReadFile, filepath.Join(dir, ownerFile))
}

// own makes an epoch the owner of a directory, unless a newer epoch or another changefeed owns it.
func own(root *os.Root, dir string, want owner) error {
	is, err := readOwner(root, dir)
	if err != nil {
		return err
	}
	if is != nil {
		if is.Changefeed != want.Changefeed {
			return fmt.Errorf("directory %s belongs to changefeed %s: use another directory for each changefeed: %w", dir, is.Changefeed, stream.ErrUnusable)
		}
		switch is.Epoch.Compare(want.Epoch) {
		case 1:
			return notOwner(dir, want.Epoch, is)
		case 0:
			return nil
		}
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
