package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// FS is what a store needs of a file system. [OS] is the real one; package lossy has one that loses what was not synced.
type FS interface {
	// OpenFile opens or, with os.O_CREATE, makes a file.
	OpenFile(path string, flag int, perm fs.FileMode) (File, error)
	// Mkdir makes a directory.
	Mkdir(path string, perm fs.FileMode) error
	// Rename gives a file or a directory another name in the same directory.
	Rename(from, to string) error
	// RemoveAll removes a file or a directory with everything in it. It is no error if there is none.
	RemoveAll(path string) error
	// Stat fails with fs.ErrNotExist if there is nothing under the path.
	Stat(path string) (fs.FileInfo, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(path string) error
	// Lock takes an exclusive lock on a file, which it makes if need be, until it is closed or the process ends. It does not wait: it fails
	// with ErrLocked.
	Lock(path string) (io.Closer, error)
}

// File is an open file. Its methods may be called from many goroutines at once.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Datasync makes the content durable, and the size.
	Datasync() error
	// Size in bytes.
	Size() (int64, error)
	// Truncate changes the size.
	Truncate(size int64) error
	// Allocate is fallocate(2).
	Allocate(mode uint32, off, length int64) error
	// Seek is lseek(2) with SEEK_DATA or SEEK_HOLE.
	Seek(off int64, whence int) (int64, error)
}

// ErrLocked: the replica is open already, in this process or another.
var ErrLocked = errors.New("the replica is open already")

// OS is the file system of the machine.
type OS struct{}

// OpenFile implements FS.
func (OS) OpenFile(path string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// Mkdir implements FS.
func (OS) Mkdir(path string, perm fs.FileMode) error { return os.Mkdir(path, perm) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// RemoveAll implements FS.
func (OS) RemoveAll(path string) error { return os.RemoveAll(path) }

// Stat implements FS.
func (OS) Stat(path string) (fs.FileInfo, error) { return os.Lstat(path) }

// SyncDir implements FS.
func (OS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Lock implements FS.
func (OS) Lock(path string) (io.Closer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

type osFile struct{ *os.File }

func (f osFile) Datasync() error {
	return f.control("fdatasync", func(fd int) error { return unix.Fdatasync(fd) })
}

func (f osFile) Allocate(mode uint32, off, length int64) error {
	return f.control("fallocate", func(fd int) error { return unix.Fallocate(fd, mode, off, length) })
}

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// control runs a system call that a signal may interrupt.
func (f osFile) control(name string, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if failed = call(int(fd)); !errors.Is(failed, unix.EINTR) {
				return
			}
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return &fs.PathError{Op: name, Path: f.Name(), Err: err}
	}
	return nil
}
