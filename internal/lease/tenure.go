package lease

import "sync"

// Standing is how a holder's epoch stands in its own eyes.
//
//	Holding ──Fence passed, or superseded──▶ Fencing ──Dead passed──▶ Over
//
// There is no way back: a holder that began to fence itself never renews that epoch again.
type Standing int

// The standings of an epoch.
const (
	// Holding: the lease is renewed in time; work may start and move.
	Holding Standing = iota
	// Fencing: the lease is in doubt; nothing starts, and what nobody else checks is being stopped.
	Fencing
	// Over: what must be dead is dead.
	Over
)

func (s Standing) String() string {
	return [...]string{"Holding", "Fencing", "Over"}[s]
}

// Tenure is one epoch of this node as the node itself counts it. It is safe for concurrent use.
type Tenure struct {
	epoch  int64
	timing Timing

	mu       sync.Mutex
	sentAt   Instant // when the last successful renewal was sent
	standing Standing
	revoked  *Instant // when it became known that the epoch is over, if it did
}

// NewTenure begins an epoch whose Lease was taken by a request sent at sentAt.
func NewTenure(epoch int64, timing Timing, sentAt Instant) *Tenure {
	return &Tenure{epoch: epoch, timing: timing, sentAt: sentAt}
}

// Epoch of the tenure.
func (t *Tenure) Epoch() int64 { return t.epoch }

// Renewed records that a renewal sent at sentAt was stored, and says whether the epoch goes on. A renewal whose answer
// arrives when the deadline has already passed does not bring the epoch back.
func (t *Tenure) Renewed(sentAt, now Instant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lockedAt(now) != Holding {
		return false
	}
	t.sentAt = max(t.sentAt, sentAt)
	return true
}

// Doubt ends the epoch: the node leaves, begins anew, or could not renew in time. What must be dead has until Dead.
func (t *Tenure) Doubt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.standing = max(t.standing, Fencing)
}

// Revoke ends the epoch without any grace: the Lease says that it is marked, released or taken by another, or the clock that
// the deadline is counted on cannot be trusted. Others may run the work of this epoch already.
func (t *Tenure) Revoke(now Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.standing = max(t.standing, Fencing)
	if t.revoked == nil {
		t.revoked = &now
	}
}

// Revoked says whether the epoch ended without grace.
func (t *Tenure) Revoked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.revoked != nil
}

// At says how the epoch stands now. Every answer but Holding is kept.
func (t *Tenure) At(now Instant) Standing {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lockedAt(now)
}

func (t *Tenure) lockedAt(now Instant) Standing {
	switch age := now.Sub(t.sentAt); {
	case age >= t.timing.Dead:
		t.standing = Over
	case age >= t.timing.Fence:
		t.standing = max(t.standing, Fencing)
	}
	return t.standing
}

// Deadline is when the holder begins to fence itself and when all that must not outlive the lease is dead, unless it
// is renewed before.
func (t *Tenure) Deadline() (fence, dead Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fence, dead = t.sentAt.Add(t.timing.Fence), t.sentAt.Add(t.timing.Dead)
	if t.revoked != nil {
		fence, dead = min(fence, *t.revoked), min(dead, *t.revoked)
	}
	return fence, dead
}

// SentAt is when the last successful renewal was sent.
func (t *Tenure) SentAt() Instant {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sentAt
}
