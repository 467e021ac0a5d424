package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Errors for which an election is not released.
var (
	// errNotHeld: a term tried to release an election that belongs to another.
	errNotHeld = errors.New("another term holds the election")
	// errStillWorking: the elector gave up, and its term has not stopped yet.
	errStillWorking = errors.New("the term has not stopped yet")
)

// lock is the election's Lease for an elector, with three more checks.
//
//   - An elector that gives up reads the Lease again and clears the holder it finds, even if it was frozen and another holder has been
//     elected since: it would end its successor's term. Here only its own identity can be cleared.
//   - An elector that could not renew in time releases the election at once, and only then reports that it is lost. Here
//     the election is released when the term has stopped, and otherwise expires.
//   - An election that this process could not release, because the API did not answer, is free for this process: the terms of its
//     former identities have stopped.
type lock struct {
	*resourcelock.LeaseLock
	former  func(identity string) bool
	stopped func() bool

	mu     sync.Mutex
	holder string // as last read or written
}

// Get implements resourcelock.Interface.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.LeaseLock.Get(ctx)
	if err != nil {
		return record, raw, err
	}
	l.saw(record.HolderIdentity)
	if l.former(record.HolderIdentity) {
		record.HolderIdentity = ""
		raw, err = json.Marshal(record)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if err := l.LeaseLock.Create(ctx, record); err != nil {
		return err
	}
	l.saw(record.HolderIdentity)
	return nil
}

// Update implements resourcelock.Interface.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		if l.seen() != l.Identity() {
			return errNotHeld
		}
		if !l.stopped() {
			return errStillWorking
		}
	}
	if err := l.LeaseLock.Update(ctx, record); err != nil {
		return err
	}
	l.saw(record.HolderIdentity)
	return nil
}

func (l *lock) saw(holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = holder
}

func (l *lock) seen() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}
