// Package lease decides which nodes are alive and which may write. It does no I/O.
//
// A node holds a Lease for one epoch at a time. Its holder and its observers never compare clocks:
//
//   - the holder counts from before it sent its last successful renewal (HeldEpoch): at Fence it begins to stop its
//     work, and by Dead the work has stopped;
//   - other nodes count from when they saw the Lease last change (LossDetector): when it stayed unchanged for Lost, on their own clock
//     and while their own renewals succeeded, the epoch is lost and may be fenced.
//
// A renewal is sent before it is stored and stored before it is seen. So if Dead < Lost, the holder's work has stopped before another
// node may fence the epoch. Fencing is one write (Fence) that the resourceVersion guards.
package lease

import (
	"fmt"
	"time"
)

// Instant is a reading of this machine's CLOCK_BOOTTIME, which continues while the machine is suspended and cannot be set. Instants of
// two machines, or of two boots, cannot be compared.
type Instant time.Duration

// Add returns the instant d later.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from o to i.
func (i Instant) Sub(o Instant) time.Duration { return time.Duration(i - o) }

// Timing has the durations of a lease. They depend on each other: see Validate.
type Timing struct {
	// Renew is the time between two renewals.
	Renew time.Duration
	// Timeout bounds one renewal.
	Timeout time.Duration
	// Fence is when, counted from before the last successful renewal was sent, the holder begins to fence itself.
	Fence time.Duration
	// Dead is when, counted in the same way, all work that must not outlive the lease has stopped.
	Dead time.Duration
	// Lost is how long other nodes must see the lease unchanged before it may be fenced.
	Lost time.Duration
}

// Outage is how long the API may be away without any node fencing itself, whenever it began.
func (t Timing) Outage() time.Duration { return t.Fence - t.Renew - t.Timeout }

// NextRenewal is when the next renewal is sent after one that was sent at sentAt and ended at now. Renewals are paced from when they are
// sent, so that a slow answer does not make the next one late. One that failed is repeated soon, and at once if it took longer than
// that: a server that is restarted refuses connections for a moment, and every pause is time that the lease loses.
func (t Timing) NextRenewal(sentAt, now Instant, renewed bool) Instant {
	if renewed {
		return sentAt.Add(t.Renew)
	}
	return max(now, sentAt.Add(t.Renew/10))
}

// maxLost bounds Lost: the work of a dead node waits that long.
const maxLost = 10 * time.Minute

// DefaultTiming is the timing of a cluster that sets none.
func DefaultTiming() Timing {
	return Timing{
		Renew:   2 * time.Second,
		Timeout: 1500 * time.Millisecond,
		Fence:   6 * time.Second,
		Dead:    8 * time.Second,
		Lost:    10 * time.Second,
	}
}

// seconds is how a Lease shows after what time others may call its holder lost.
func (t Timing) seconds() *int32 { return new(int32(t.Lost / time.Second)) }

// Validate reports what is wrong with a timing and how to correct it.
func (t Timing) Validate() error {
	switch {
	case t.Renew <= 0 || t.Timeout <= 0:
		return fmt.Errorf("lease timing: renew (%s) and timeout (%s) must be positive", t.Renew, t.Timeout)
	case t.Timeout > t.Renew:
		return fmt.Errorf("lease timing: timeout (%s) must not exceed renew (%s), or renewals overlap", t.Timeout, t.Renew)
	case t.Fence < t.Renew+t.Timeout:
		return fmt.Errorf("lease timing: fence (%s) must be at least renew + timeout (%s), or one slow renewal would fence a healthy node", t.Fence, t.Renew+t.Timeout)
	case t.Dead <= t.Fence:
		return fmt.Errorf("lease timing: dead (%s) must be after fence (%s): programs have the time between to stop", t.Dead, t.Fence)
	case t.Lost <= t.Dead:
		return fmt.Errorf("lease timing: lost (%s) must be after dead (%s), or other nodes would take over work that still runs", t.Lost, t.Dead)
	case t.Lost > maxLost:
		return fmt.Errorf("lease timing: lost (%s) must be at most %s: the work of a dead node waits that long", t.Lost, maxLost)
	case t.Lost%time.Second != 0:
		return fmt.Errorf("lease timing: lost (%s) must be whole seconds: it is stored as leaseDurationSeconds", t.Lost)
	}
	return nil
}
