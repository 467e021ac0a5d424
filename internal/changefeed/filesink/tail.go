package filesink

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
)

// tailBytes is how much of a file is read at first to find its last complete transaction.
const tailBytes = 64 << 10

// cut cuts off what comes after the last complete transaction of a file, and returns that one's last line; nil if there is none.
func cut(root *os.Root, name string) (*line, error) {
	f, err := root.OpenFile(name, os.O_RDWR, fileMode)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	l, end, err := lastComplete(f, info.Size())
	if err != nil || end == info.Size() {
		return l, err
	}
	return l, errors.Join(f.Truncate(end), f.Sync())
}

// look returns the line that completes the last transaction of a file, and changes nothing.
func look(root *os.Root, name string) (*line, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	l, _, err := lastComplete(f, info.Size())
	return l, err
}

// lastComplete finds the last line that completes a transaction, and where it ends. It reads a growing part of the end of the file.
func lastComplete(r io.ReaderAt, size int64) (*line, int64, error) {
	for n := int64(tailBytes); ; n *= 2 {
		n = min(n, size)
		data := make([]byte, n)
		if _, err := r.ReadAt(data, size-n); err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		l, end := lastOf(data, n == size)
		if l != nil || n == size {
			return l, size - n + int64(end), nil
		}
	}
}

// lastOf finds the last line that completes a transaction in a file or, unless whole, in its end, whose first line may be incomplete.
func lastOf(data []byte, whole bool) (*line, int) {
	for end := bytes.LastIndexByte(data, '\n') + 1; end > 0; {
		start := bytes.LastIndexByte(data[:end-1], '\n') + 1
		if start == 0 && !whole {
			return nil, 0
		}
		l := &line{}
		if json.Unmarshal(data[start:end], l) == nil && l.Change == l.Changes && l.Changes > 0 {
			return l, end
		}
		end = start
	}
	return nil, 0
}
