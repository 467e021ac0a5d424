package node

import (
	"context"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// Epoch is one incarnation of the node while it lasts: what residents and runtimes know of it.
type Epoch struct {
	// Node is the node's name.
	Node string
	// Number of the epoch.
	Number int64
	// Held is the epoch as counted from the node's own renewals: whether the lease is still held, and until when.
	Held *lease.HeldEpoch
	// LossDetector counts how long the leases of all nodes have stayed unchanged.
	LossDetector *lease.LossDetector
	// Cache holds the objects that the node watches. Every epoch has a new cache, so that nothing read before an outage is taken for
	// current.
	Cache cache.Cache
	// Client reads and writes live, as the node.
	Client client.Client
	// History tells whether the store went back, and Generation is that of the store when the epoch began: its caches are of that generation.
	History    *History
	Generation int64

	clock Clock
	pause *pauseDetector

	mu            sync.Mutex
	liveness      v1alpha1.Liveness
	observedDrain string
	parked        *v1alpha1.Parked // set when the node leaves this epoch to be parked
	unparked      *v1alpha1.Parked // what the Node said when this epoch began, uncordoned: it is removed
	ready         readiness
	changed       chan struct{} // closed and replaced at every change
	leave         chan struct{} // closed when the coordinator wants the node to leave
	leaveOnce     sync.Once
	anew          chan string   // gets why the epoch must be followed by a new one
	over          chan error    // gets why the epoch no longer holds its Lease: fenced, released or superseded
	recheck       chan struct{} // asks for a look at the drain slot
	deleted       chan struct{} // signals that the Node object was deleted
}

// readiness is the node's Ready condition.
type readiness struct {
	ready           bool
	reason, message string
}

// Holding reports whether the lease is held and not in doubt: whether work may start and move.
func (e *Epoch) Holding() bool { return e.Held.StandingAt(e.clock()) == lease.Holding && !e.paused() }

// Check fails unless the lease is held and not in doubt.
func (e *Epoch) Check() error {
	if !e.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	return nil
}

// paused reports whether the machine was paused since the last renewal, so that the lease may have expired without its clock
// showing it.
func (e *Epoch) paused() bool { return e.pause != nil && e.pause.paused() }

// learn records that the Lease shows the epoch as fenced, released or superseded.
func (e *Epoch) learn(how error) {
	select {
	case e.over <- how:
	default: // it is known already
	}
}

// checkSlot requests a check of the drain slot: whether a drain still wants this node drained.
func (e *Epoch) checkSlot() {
	select {
	case e.recheck <- struct{}{}:
	default: // one look is due already
	}
}

// Now is the node's clock.
func (e *Epoch) Now() lease.Instant { return e.clock() }

// Liveness of the node, and a channel that is closed when anything about the epoch changes.
func (e *Epoch) Liveness() (v1alpha1.Liveness, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.liveness, e.changed
}

// set changes the epoch's state and wakes whoever watches it. Liveness only moves forward.
func (e *Epoch) set(change func(*Epoch)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.liveness
	change(e)
	if e.liveness.Rank() < before.Rank() {
		e.liveness = before
	}
	close(e.changed)
	e.changed = make(chan struct{})
}

// obey does what the coordinator wants of this epoch; what it wants of another epoch is ignored.
func (e *Epoch) obey(want *v1alpha1.DesiredLiveness, gate *Gate) {
	if want == nil || want.Epoch != e.Number {
		return
	}
	switch want.Liveness {
	case v1alpha1.Draining:
		liveness, drain, _ := e.state()
		if liveness == v1alpha1.Stopping || liveness == v1alpha1.Draining && drain == want.DrainUID {
			return
		}
		// The gate first: once the node reports that it observed the drain, its counts can only fall.
		gate.Close(e.Number, RefusedDraining)
		e.set(func(e *Epoch) { e.liveness, e.observedDrain = v1alpha1.Draining, want.DrainUID })
	case v1alpha1.Stopping:
		e.leaveOnce.Do(func() {
			if want.Park {
				e.set(func(e *Epoch) { e.parked = &v1alpha1.Parked{DrainUID: want.DrainUID, Epoch: e.Number} })
			}
			close(e.leave)
		})
	}
}

func (e *Epoch) state() (v1alpha1.Liveness, string, readiness) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.liveness, e.observedDrain, e.ready
}

// parks returns what the node records when it leaves this epoch to be parked, or nil if it leaves for good.
func (e *Epoch) parks() *v1alpha1.Parked {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.parked
}

// BeginAnew ends the epoch and lets the node rejoin with the next, Alive unless a drain still wants it drained. Within an
// epoch there is no way back from Draining.
func (e *Epoch) BeginAnew(why string) {
	select {
	case e.anew <- why:
	default: // it is on its way already
	}
}

// A Resident runs in every epoch while the node is Alive or Draining, and ends with it. It is not counted.
type Resident interface {
	// Name for logs.
	Name() string
	// Run returns when ctx ends, with everything it started stopped.
	Run(ctx context.Context, e *Epoch) error
}
