// Package logfile writes logs that are rotated into numbered files.
//
//	Path ──rotate──▶ Path.1 ──▶ Path.2 ──▶ … ──▶ Path.N ──▶ (gone)
//
// Only Path is ever written to, so a file that has a number is complete, and files only move to higher numbers. Readers that follow
// a log rely on both.
package logfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// Name returns the name of the i-th older file; 0 is the log itself.
func Name(path string, i int) string {
	if i == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, i)
}

// File is a log. It is used by one goroutine at a time.
type File struct {
	path   string
	older  int
	opened func(*os.File) error
	file   *os.File // nil while it cannot be opened
	size   int64
}

// Open opens a log to append to it, and keeps so many older files, at least one. opened is called with every file that is opened,
// before anything else is written to it, and may write to it itself; it may be nil. A file that it complains of is used all the same.
func Open(path string, older int, opened func(*os.File) error) (*File, error) {
	f := &File{path: path, older: max(older, 1), opened: opened}
	return f, f.Ensure()
}

// Size returns how long the current file is.
func (f *File) Size() int64 { return f.size }

// Ensure opens the file if that failed before.
func (f *File) Ensure() error {
	if f.file != nil {
		return nil
	}
	file, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	var complaint error
	if f.opened != nil {
		complaint = f.opened(file)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	f.file, f.size = file, info.Size()
	return complaint
}

// Write appends to the current file, whatever its size.
func (f *File) Write(p []byte) (int, error) {
	if err := f.Ensure(); err != nil {
		return 0, err
	}
	n, err := f.file.Write(p)
	f.size += int64(n)
	return n, err
}

// Rotate gives every file the next number and opens a new one. If the current file cannot be moved it stays the current one.
func (f *File) Rotate() error {
	for i := f.older; i > 1; i-- {
		_ = os.Rename(Name(f.path, i-1), Name(f.path, i)) // often not there yet
	}
	if err := os.Rename(f.path, Name(f.path, 1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f.file != nil {
		f.file.Close()
	}
	f.file, f.size = nil, 0
	return f.Ensure()
}

// Sync makes what was written survive a crash.
func (f *File) Sync() error {
	if f.file == nil {
		return nil
	}
	return f.file.Sync()
}

// Close closes the current file.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}
