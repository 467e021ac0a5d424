package dispatch

import (
	"sync"
	"time"
)

// A write costs a sink about the same, however many rows it has. If there are so many writes, each of many rows, that this cost dominates,
// tables wait a moment so that a write has more rows. If writes are few, or have few rows each, no table waits.

const (
	// lingerAbove is the number of writes per second up to which nothing waits, and lingerRows the average number of rows of a write
	// from which waiting pays.
	lingerAbove = 200
	lingerRows  = 32
	// lingerFirst and lingerMost bound the pause.
	lingerFirst = 20 * time.Millisecond
	lingerMost  = 300 * time.Millisecond
	// lingerEvery is how often the pause is adapted.
	lingerEvery = 100 * time.Millisecond
	// lingerSlice is how long a worker sleeps before it checks again: memory may have become scarce meanwhile.
	lingerSlice = 20 * time.Millisecond
)

// linger computes how long the tables of a changefeed wait for more rows before they are written.
type linger struct {
	mu           sync.Mutex
	since        time.Time
	writes, rows int
	pause        time.Duration
}

// wrote counts a write.
func (l *linger) wrote(rows int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes++
	l.rows += rows
	l.settle(now)
}

// settle adapts the pause if it is time to. The caller holds the lock.
func (l *linger) settle(now time.Time) {
	elapsed := now.Sub(l.since)
	if elapsed < lingerEvery {
		return
	}
	rate := float64(l.writes) / elapsed.Seconds()
	switch {
	case elapsed > 10*lingerEvery || l.rows < lingerRows*l.writes || l.writes == 0:
		l.pause = 0
	case rate > lingerAbove:
		l.pause = min(max(lingerFirst, 2*l.pause), lingerMost)
	case rate < lingerAbove*3/4:
		if l.pause = l.pause / 2; l.pause < lingerFirst {
			l.pause = 0
		}
	}
	l.since, l.writes, l.rows = now, 0, 0
}

// now is the current pause.
func (l *linger) now(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(now)
	return l.pause
}
