// Package atomicfile replaces files so that a reader, or the next boot, sees the old content or the new one, never a
// part of it.
package atomicfile

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteSecret writes a file that only its owner may read, as [Write] does.
func WriteSecret(path string, data []byte) error { return Write(path, data, 0o600) }

// Write replaces a file as a whole and makes the new content survive a crash. The file gets exactly this mode, whatever
// the umask and whatever mode it had. Of several writers at once one wins.
func Write(path string, data []byte, mode fs.FileMode) error {
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer dir.Close()
	if err := write(dir, filepath.Base(path), data, mode, true); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// ReadJSON reads a file with read, such as os.ReadFile, and decodes its JSON. It returns nil if there is no such file.
func ReadJSON[T any](read func(name string) ([]byte, error), name string) (*T, error) {
	data, err := read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value := new(T)
	if err := json.Unmarshal(data, value); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return value, nil
}

// WriteIn is [Write] for a name below an open directory that it cannot leave, with what the umask leaves of the mode.
func WriteIn(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	return write(root, name, data, mode, false)
}

func write(root *os.Root, name string, data []byte, mode fs.FileMode, exact bool) error {
	dir, base := filepath.Split(name)
	temp := filepath.Join(dir, "."+base+"."+rand.Text())
	f, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if exact {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, fill(f, data)); err == nil {
		err = root.Rename(temp, name)
	}
	if err != nil {
		_ = root.Remove(temp) // the error that is returned matters more
		return err
	}
	d, err := root.Open(filepath.Clean(dir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// fill writes and closes a file.
func fill(f *os.File, data []byte) error {
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// Rename gives a file or a directory its final name and makes the name survive a crash. Both names are in one directory;
// the content has been synced by the caller.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Sync(filepath.Dir(to))
}

// Sync makes the content of a file, or the names in a directory, survive a crash.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
