// Package backoff spaces attempts out: the first delay, twice as long after every further failure, up to the longest.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy says how delays grow.
type Policy struct {
	First, Longest time.Duration
}

// After returns the delay after so many failures in a row: none after none.
func (p Policy) After(failures int64) time.Duration {
	if failures <= 0 {
		return 0
	}
	d := min(p.First, p.Longest)
	for ; failures > 1 && d > 0 && d < p.Longest; failures-- {
		d = p.grow(d)
	}
	return d
}

// grow doubles a delay without overflow.
func (p Policy) grow(d time.Duration) time.Duration {
	if d > p.Longest/2 {
		return p.Longest
	}
	return 2 * d
}

// Backoff counts through the delays of one thing that fails. It is used by one goroutine at a time.
type Backoff struct {
	policy Policy
	next   time.Duration
}

// New returns a Backoff that begins with the first delay.
func New(p Policy) Backoff { return Backoff{policy: p, next: p.After(1)} }

// Peek returns the delay that Next will return.
func (b *Backoff) Peek() time.Duration { return b.next }

// Next returns the delay before the next attempt, and doubles the one after it.
func (b *Backoff) Next() time.Duration {
	d := b.next
	b.next = b.policy.grow(d)
	return d
}

// Reset begins with the first delay again, after a success.
func (b *Backoff) Reset() { b.next = b.policy.After(1) }

// Exhaust goes straight to the longest delay, after a failure that will last.
func (b *Backoff) Exhaust() { b.next = b.policy.Longest }

// Jitter spreads a delay evenly over ± a fraction of it, so that those who failed together do not return together.
func Jitter(d time.Duration, fraction float64) time.Duration {
	spread := time.Duration(float64(d) * fraction)
	if spread <= 0 {
		return d
	}
	return d - spread + rand.N(2*spread+1)
}

// Sleep waits, and returns why ctx ended if it ended first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
