package node

import (
	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/lease"
)

// Clock reads this machine's CLOCK_BOOTTIME.
type Clock func() lease.Instant

// BootTime is the clock of every node that is not under test. It goes on while the machine sleeps, and setting the wall
// clock does not move it.
func BootTime() lease.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// The kernel has had this clock since 2.6.39. Without it nothing here may decide anything.
		panic("CLOCK_BOOTTIME: " + err.Error())
	}
	return lease.Instant(ts.Nano())
}
