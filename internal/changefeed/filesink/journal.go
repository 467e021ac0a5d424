package filesink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

const extension = ".jsonl"

// journal is the files of one directory, for one owner.
type journal struct {
	sink  *Sink
	root  *os.Root
	dir   string
	epoch stream.Epoch

	// position of the last complete transaction, if one was found.
	position stream.Position
	found    bool
	// part is how many changes of a large transaction just after the position this journal has written. They are in one file, and the
	// next owner cuts them off if the transaction is not complete.
	part int
	// last is the number of the last file, and made whether this journal created it. size is the length of what was written to it
	// completely.
	last int
	made bool
	size int64
}

// journal makes an epoch the owner of a directory and finds the last complete transaction.
func (s *Sink) journal(dir string, o owner) (*journal, error) {
	root, err := s.directory()
	if err != nil {
		return nil, err
	}
	if err := s.may(); err != nil {
		return nil, err
	}
	j := &journal{sink: s, root: root, dir: dir, epoch: o.Epoch}
	if err := j.begin(o); err != nil {
		return nil, s.wrap(err)
	}
	return j, nil
}

func (j *journal) begin(o owner) error {
	switch err := j.root.Mkdir(j.dir, dirMode); {
	case err == nil:
		if err := syncDir(j.root, "."); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	if err := own(j.root, j.dir, o); err != nil {
		return err
	}
	return j.find(cut)
}

// find finds the last complete transaction, with a function that does so in one file.
func (j *journal) find(last func(*os.Root, string) (*line, error)) error {
	numbers, err := j.files()
	if err != nil {
		return err
	}
	for i := len(numbers) - 1; i >= 0; i-- {
		j.last = max(j.last, numbers[i])
		t, err := last(j.root, j.name(numbers[i]))
		if err != nil {
			return err
		}
		if t != nil {
			j.position, j.found = t.Position, true
			return nil
		}
	}
	return nil
}

// files are the numbers of the files, in order.
func (j *journal) files() ([]int, error) {
	entries, err := fs.ReadDir(j.root.FS(), j.dir)
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, e := range entries {
		text, ok := strings.CutSuffix(e.Name(), extension)
		if n, err := strconv.Atoi(text); ok && err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

func (j *journal) name(number int) string {
	return filepath.Join(j.dir, fmt.Sprintf("%06d%s", number, extension))
}

// append makes transactions durable, up to a position, and so many changes of the one just after it.
func (j *journal) append(data []byte, to stream.Position, part int) error {
	if err := j.sink.may(); err != nil {
		return err
	}
	if err := check(j.root, j.dir, j.epoch); err != nil {
		return j.sink.wrap(err)
	}
	if err := j.write(data); err != nil {
		return j.sink.wrap(err)
	}
	j.size += int64(len(data))
	j.position, j.part, j.found = to, part, true
	return nil
}

func (j *journal) write(data []byte) error {
	if !j.made || j.part == 0 && j.size > 0 && j.size+int64(len(data)) > j.sink.options.MaxBytes {
		if err := j.next(); err != nil {
			return err
		}
	}
	if err := j.trim(); err != nil {
		return err
	}
	return appendTo(j.root, j.name(j.last), 0, data)
}

// next begins another file. If it exists already, another owner has created it.
func (j *journal) next() error {
	f, err := j.root.OpenFile(j.name(j.last+1), os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("file %s was created by another owner: %w", j.name(j.last+1), stream.ErrNotOwner)
	}
	if err != nil {
		return err
	}
	j.last++
	j.made, j.size = true, 0
	return errors.Join(f.Close(), syncDir(j.root, j.dir))
}

// trim cuts off what a failed attempt may have written.
func (j *journal) trim() error {
	f, err := j.root.OpenFile(j.name(j.last), os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	switch {
	case info.Size() < j.size:
		return fmt.Errorf("file %s was truncated by another owner: %w", j.name(j.last), stream.ErrNotOwner)
	case info.Size() > j.size:
		return f.Truncate(j.size)
	}
	return nil
}
