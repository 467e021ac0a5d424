package dispatch

import (
	"sync"
	"time"
)

// Every write costs a sink much the same whatever it holds. Where tables are written so often, with many rows each time, that this
// is most of what the sink does, they wait a moment so that more comes together. Where writes are few, or each is a transaction or
// two of a table of its own, nothing waits.

const (
	// lingerAbove is how many writes a second are few, and lingerRows how many rows a write has to hold on average for a pause to bring
	// more of them.
	lingerAbove = 200
	lingerRows  = 32
	// lingerFirst and lingerMost bound the pause.
	lingerFirst = 20 * time.Millisecond
	lingerMost  = 300 * time.Millisecond
	// lingerEvery is how often it is worked out anew.
	lingerEvery = 100 * time.Millisecond
	// lingerSlice is how long a worker sleeps before it looks again: memory may have become scarce meanwhile.
	lingerSlice = 20 * time.Millisecond
)

// linger is how long the tables of a changefeed wait for more before they are written.
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

// settle works the pause out anew when it is time to. The caller holds the lock.
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

// now is how long to wait at present.
func (l *linger) now(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(now)
	return l.pause
}
