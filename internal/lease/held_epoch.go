package lease

import "sync"

// Standing is the state of an epoch as its holder counts it.
//
//	Holding ──Fence passed, or superseded──▶ Fencing ──Dead passed──▶ Expired
//
// There is no way back: a holder that began to fence itself never renews that epoch again.
type Standing int

// The standings of an epoch.
const (
	// Holding: the lease is renewed in time; work may start and move.
	Holding Standing = iota
	// Fencing: the lease is in doubt; nothing starts, and work that no other component fences is being stopped.
	Fencing
	// Expired: Dead has passed; what must not outlive the lease has stopped.
	Expired
)

func (s Standing) String() string {
	return [...]string{"Holding", "Fencing", "Expired"}[s]
}

// HeldEpoch is an epoch of this node, counted from the node's own renewals. It is safe for concurrent use.
type HeldEpoch struct {
	number int64
	timing Timing

	mu       sync.Mutex
	sentAt   Instant // when the last successful renewal was sent
	standing Standing
	revoked  *Instant // when the holder learned that the epoch was fenced, released or superseded; nil if it did not
}

// NewHeldEpoch begins an epoch whose Lease was taken by a request sent at sentAt.
func NewHeldEpoch(number int64, timing Timing, sentAt Instant) *HeldEpoch {
	return &HeldEpoch{number: number, timing: timing, sentAt: sentAt}
}

// Number of the epoch.
func (h *HeldEpoch) Number() int64 { return h.number }

// Renewed records that a renewal sent at sentAt was stored, and reports whether the epoch continues. A renewal
// whose answer arrives after the deadline does not revive the epoch.
func (h *HeldEpoch) Renewed(sentAt, now Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lockedStandingAt(now) != Holding {
		return false
	}
	h.sentAt = max(h.sentAt, sentAt)
	return true
}

// MarkInDoubt moves the epoch to Fencing: the node leaves, begins anew, or could not renew in time. What must not outlive the
// lease has until Dead to stop.
func (h *HeldEpoch) MarkInDoubt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing = max(h.standing, Fencing)
}

// Revoke moves the epoch to Fencing without grace: its Lease is fenced, released or held by another process, or the clock that
// the deadline is counted on cannot be trusted. Other nodes may already run the work of this epoch.
func (h *HeldEpoch) Revoke(now Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing = max(h.standing, Fencing)
	if h.revoked == nil {
		h.revoked = &now
	}
}

// Revoked reports whether Revoke was called.
func (h *HeldEpoch) Revoked() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revoked != nil
}

// StandingAt returns the epoch's standing at now. A standing past Holding is kept: an earlier now does not undo it.
func (h *HeldEpoch) StandingAt(now Instant) Standing {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lockedStandingAt(now)
}

func (h *HeldEpoch) lockedStandingAt(now Instant) Standing {
	switch age := now.Sub(h.sentAt); {
	case age >= h.timing.Dead:
		h.standing = Expired
	case age >= h.timing.Fence:
		h.standing = max(h.standing, Fencing)
	}
	return h.standing
}

// Deadline is when the holder begins to fence itself and when all that must not outlive the lease has stopped, unless
// the lease is renewed before.
func (h *HeldEpoch) Deadline() (fence, dead Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fence, dead = h.sentAt.Add(h.timing.Fence), h.sentAt.Add(h.timing.Dead)
	if h.revoked != nil {
		fence, dead = min(fence, *h.revoked), min(dead, *h.revoked)
	}
	return fence, dead
}

// SentAt is when the last successful renewal was sent.
func (h *HeldEpoch) SentAt() Instant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sentAt
}
