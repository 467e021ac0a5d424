package node

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/lease"
)

// Clock reads this machine's CLOCK_BOOTTIME.
type Clock func() lease.Instant

// BootTime is the clock of every node that is not under test. It continues while the machine is suspended, and setting the wall clock
// does not change it.
func BootTime() lease.Instant { return lease.Instant(read(unix.CLOCK_BOOTTIME)) }

// WallAhead is how far CLOCK_REALTIME is ahead of CLOCK_BOOTTIME. It changes when somebody sets the wall clock. It also grows
// when a virtual machine was paused and resumed: CLOCK_BOOTTIME stood still meanwhile, and the wall clock is set right after.
func WallAhead() time.Duration {
	for {
		before, wall := read(unix.CLOCK_BOOTTIME), read(unix.CLOCK_REALTIME)
		if read(unix.CLOCK_BOOTTIME)-before < atOnce { // this thread was not held up in between
			return wall - before
		}
	}
}

// atOnce bounds the time between two readings that are compared.
const atOnce = 10 * time.Millisecond

func read(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		// The kernel has had these clocks since 2.6.39. Without them nothing here may decide anything.
		panic("clock_gettime: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// pauseDetector notices that CLOCK_BOOTTIME missed time since the last renewal of the lease: the machine was paused, and the
// deadline counted on that clock comes too late. It is safe for concurrent use.
type pauseDetector struct {
	ahead func() time.Duration
	limit time.Duration

	mu   sync.Mutex
	base time.Duration // how far the wall clock was ahead when the last successful renewal was sent
}

// newPauseDetector tolerates half of what lies between a dead holder and a lost one: a deadline that comes late by that much
// still comes in time.
func newPauseDetector(ahead func() time.Duration, t lease.Timing) *pauseDetector {
	return &pauseDetector{ahead: ahead, limit: (t.Lost - t.Dead) / 2, base: ahead()}
}

// renewed takes note of how far ahead the wall clock was before the renewal that has just succeeded was sent.
func (d *pauseDetector) renewed(ahead time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.base = ahead
}

// paused reports whether time was missed. A wall clock that was set back does not show that.
func (d *pauseDetector) paused() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ahead()-d.base > d.limit
}
