package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/datadir"
)

// ErrRunning: another process on this machine runs the node.
var ErrRunning = errors.New("the node is already running on this machine")

// dirLock is this process's lock on a node's directory. The kernel releases it when the process ends, so whoever gets it
// knows that every earlier holder of the same boot is dead.
type dirLock struct {
	unlock func()
	path   string

	// holder is this process's identity on the Lease, never used by another.
	holder string
	// dead are the identities of earlier processes with this directory in this boot of the machine.
	dead []string
	// epoch is the highest that the node had, as far as its directory knows; reserved is the highest written there.
	epoch, reserved int64
}

// holders records in a node's directory who held its Lease. After a reboot the identities prove nothing: the directory may be a copy
// whose original still runs on another machine. The epoch is valid in any case: a node never begins an epoch that it had before, even
// if the API server lost its data.
type holders struct {
	BootID  string   `json:"bootID"`
	Holders []string `json:"holders"`
	Epoch   int64    `json:"epoch,omitempty"`
}

// takeDirLock locks a node's directory, or fails with ErrRunning. The new identity is remembered before it is used.
func takeDirLock(dir datadir.NodeDir, node string) (*dirLock, error) {
	unlock, err := datadir.Lock(dir.Lock())
	if errors.Is(err, datadir.ErrLocked) {
		return nil, fmt.Errorf("node %s: %w: %s is locked; stop that process first, or start this one under another --name", node, ErrRunning, dir.Lock())
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	l := &dirLock{unlock: unlock, path: dir.Holder(), holder: node + "/" + uuid.NewString()}
	if err := l.remember(); err != nil {
		unlock()
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	return l, nil
}

func (l *dirLock) remember() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	known, err := readHolders(l.path)
	if err != nil {
		return err
	}
	if known.BootID == boot {
		l.dead = known.Holders
	}
	l.epoch = known.Epoch
	return l.write(append(slices.Clone(l.dead), l.holder), l.epoch)
}

// reserve records the epoch before the node takes it: a node that cannot write to its directory must not take its Lease.
func (l *dirLock) reserve(epoch int64) error {
	if epoch <= l.reserved {
		return nil
	}
	if err := l.write(append(slices.Clone(l.dead), l.holder), epoch); err != nil {
		return fmt.Errorf("the epoch was not taken because it could not be recorded: %w; free disk space or make %s writable", err, l.path)
	}
	l.reserved = epoch
	return nil
}

// took records that the Lease is ours: the earlier identities are not needed any more.
func (l *dirLock) took(epoch int64) error {
	l.epoch, l.dead = epoch, nil
	return l.write([]string{l.holder}, epoch)
}

func (l *dirLock) write(who []string, epoch int64) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	data, err := json.Marshal(holders{BootID: boot, Holders: who, Epoch: epoch})
	if err != nil {
		return err
	}
	return atomicfile.WriteSecret(l.path, data)
}

func (l *dirLock) release() { l.unlock() }

func readHolders(path string) (holders, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return holders{}, nil
	}
	if err != nil {
		return holders{}, err
	}
	var h holders
	if err := json.Unmarshal(data, &h); err != nil {
		return holders{}, fmt.Errorf("%s: %w; remove the file: the node then waits until its last epoch is released or has expired", path, err)
	}
	return h, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("identify this boot of the machine: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
