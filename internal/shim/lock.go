package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Locks are those of an open file description (fcntl F_OFD_*) rather than flock(2): they too pass to a child with the
// descriptor and end with its last copy, and besides they can be looked at without being taken for an instant, which
// would make a concurrent Start believe that someone runs.
const (
	ofdGetLock = 36
	ofdSetLock = 37
)

// inheritedLockFD is the descriptor on which a starter passes its lock, so that the lock is held all the time.
const inheritedLockFD = 3

// acquireLock takes the directory's lock, or returns ErrRunning.
func acquireLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := setLock(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func setLock(f *os.File) error {
	l := syscall.Flock_t{Type: syscall.F_WRLCK}
	err := syscall.FcntlFlock(f.Fd(), ofdSetLock, &l)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return ErrRunning
	}
	return os.NewSyscallError("fcntl lock", err)
}

// releaseLock unlocks before closing, because a process being forked just now may hold a copy for an instant.
func releaseLock(f *os.File) {
	l := syscall.Flock_t{Type: syscall.F_UNLCK}
	_ = syscall.FcntlFlock(f.Fd(), ofdSetLock, &l)
	f.Close()
}

// Held reports whether a shim has a directory, or is being started there. A shim that has only begun to start has written no state yet.
func Held(dir string) (bool, error) { return lockHeld(dir) }

// lockHeld reports whether anyone holds the directory's lock, without taking it.
func lockHeld(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, lockName))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	l := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(f.Fd(), ofdGetLock, &l); err != nil {
		return false, os.NewSyscallError("fcntl getlock", err)
	}
	return l.Type != syscall.F_UNLCK, nil
}

// lockInherited reports whether the starter passed the lock of dir. It makes no os.File of it, which would close the
// descriptor, and so end the lock, when collected.
func lockInherited(dir string) bool {
	var want, have syscall.Stat_t
	if syscall.Stat(filepath.Join(dir, lockName), &want) != nil || syscall.Fstat(inheritedLockFD, &have) != nil {
		return false
	}
	return want.Dev == have.Dev && want.Ino == have.Ino
}

// adoptLock takes over the starter's lock, or takes the lock itself when the shim was run by hand.
func adoptLock(dir string) (*os.File, error) {
	if !lockInherited(dir) {
		return acquireLock(dir)
	}
	syscall.CloseOnExec(inheritedLockFD)
	f := os.NewFile(inheritedLockFD, lockName)
	if err := setLock(f); err != nil {
		return nil, fmt.Errorf("lock passed by the starter: %w", err)
	}
	return f, nil
}
