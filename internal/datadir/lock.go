package datadir

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrLocked: another process holds the lock.
var ErrLocked = errors.New("another process holds the lock")

// Lock takes the lock kept in the file at path, or fails with ErrLocked at once. The kernel ends the lock with the
// process, however that ends, so no lock is ever left behind; the file stays.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() {
		// Unlocked before it is closed: a process being forked at this moment has a copy of the descriptor.
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN)
		f.Close()
	}, nil
}
