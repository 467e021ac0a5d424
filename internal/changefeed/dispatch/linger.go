package dispatch

import (
	"sync"
	"time"
)

// A write costs a sink about the same, however many rows it has. If there are so many writes, each of many rows, that this cost dominates,
// tables wait a moment so that a write has more rows. If writes are few, or have few rows each, no table waits.
//
// Where tables share writes, each table of a write costs about as much as some dozen rows. So if the sink is busy all the time, and most of
// its work is tables with a few rows each, tables wait a moment, too. While the sink has time left, none does.

const (
	// lingerAbove is the number of writes per second up to which nothing waits, and lingerRows the average number of rows of a write
	// from which waiting pays.
	lingerAbove = 200
	lingerRows  = 32
	// sharedAbove is the number of tables per second, in writes that several share, up to which nothing waits, and sharedRows the average
	// number of rows of a table from which waiting does not pay any more.
	sharedAbove = 1000
	sharedRows  = 64
	// busyWrites is how many writes are under way on average while the sink is busy, and idleWrites while it has time left.
	busyWrites = 1.5
	idleWrites = 1
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
	// shared: tables share writes.
	shared bool

	mu           sync.Mutex
	since        time.Time
	writes, rows int // tables that were written, or writes if tables do not share them
	took         time.Duration
	pause        time.Duration
}

// wrote counts a write of some tables.
func (l *linger) wrote(tables, rows int, took time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shared {
		l.writes += tables
	} else {
		l.writes++
	}
	l.rows += rows
	l.took += took
	l.settle(now)
}

// settle adapts the pause if it is time to. The caller holds the lock.
func (l *linger) settle(now time.Time) {
	elapsed := now.Sub(l.since)
	if elapsed < lingerEvery {
		return
	}
	pays, paysNot := l.pays(elapsed)
	switch {
	case elapsed > 10*lingerEvery || l.writes == 0 || !l.shared && l.rows < lingerRows*l.writes:
		l.pause = 0
	case pays:
		l.pause = min(max(lingerFirst, 2*l.pause), lingerMost)
	case paysNot:
		if l.pause = l.pause / 2; l.pause < lingerFirst {
			l.pause = 0
		}
	}
	l.since, l.writes, l.rows, l.took = now, 0, 0, 0
}

// pays reports whether waiting longer pays, and whether waiting as long as now does not. The caller holds the lock.
func (l *linger) pays(elapsed time.Duration) (more, less bool) {
	rate := float64(l.writes) / elapsed.Seconds()
	if !l.shared {
		return rate > lingerAbove, rate < lingerAbove*3/4
	}
	underWay := l.took.Seconds() / elapsed.Seconds()
	return rate > sharedAbove && l.rows < sharedRows*l.writes && underWay >= busyWrites, rate < sharedAbove*3/4 || underWay < idleWrites
}

// now is the current pause.
func (l *linger) now(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(now)
	return l.pause
}
