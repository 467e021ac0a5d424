package shim

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

const (
	clockRealtime      = 0
	clockBoottime      = 7
	timerfdAbsolute    = 1
	timerfdCancelOnSet = 2
)

// BootTime is a reading of CLOCK_BOOTTIME in nanoseconds. It goes on while the machine is suspended, no one can set
// it, and it means nothing on another machine or after a reboot.
type BootTime int64

// Now reads CLOCK_BOOTTIME.
func Now() BootTime { return BootTime(readClock(clockBoottime)) }

func readClock(clock uintptr) int64 {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		// Without these clocks no deadline can be kept, and they have been in every kernel since 2.6.39.
		panic(fmt.Sprintf("shim: clock %d: %v", clock, errno))
	}
	return ts.Nano()
}

// wallAhead is how far CLOCK_REALTIME is ahead of CLOCK_BOOTTIME. It grows when a virtual machine was paused: CLOCK_BOOTTIME
// stood still meanwhile, and the wall clock is set right after.
func wallAhead() time.Duration {
	const atOnce = 10 * time.Millisecond
	for {
		before, wall := Now(), readClock(clockRealtime)
		if Now().Sub(before) < atOnce { // this thread was not held up in between
			return time.Duration(wall - int64(before))
		}
	}
}

// Add returns t+d.
func (t BootTime) Add(d time.Duration) BootTime { return t + BootTime(d) }

// Sub returns t-u.
func (t BootTime) Sub(u BootTime) time.Duration { return time.Duration(t - u) }

// Deadline is when a program must end if its node does not extend it.
type Deadline struct {
	// TermAt is when the program gets SIGTERM. After that its deadline cannot be extended any more.
	TermAt BootTime `json:"termAt"`
	// KillAt is when everything the program started is killed.
	KillAt BootTime `json:"killAt"`
}

// Never is the deadline of a program that needs nobody's leave to go on.
var Never = Deadline{TermAt: never, KillAt: never}

const never = BootTime(1 << 61) // 73 years after the machine started

// Never reports whether the deadline never comes.
func (d Deadline) Never() bool { return d.TermAt >= never }

// Valid reports whether the deadline is set and in order.
func (d Deadline) Valid() bool { return d.TermAt > 0 && d.KillAt >= d.TermAt }

// extended returns the later of both, part by part, so that the order in which deadlines arrive does not matter.
func (d Deadline) extended(by Deadline) Deadline {
	return Deadline{TermAt: max(d.TermAt, by.TermAt), KillAt: max(d.KillAt, by.KillAt)}
}

// An alarm is a timer on CLOCK_BOOTTIME: unlike Go's timers it counts the time a machine was suspended, so that a
// deadline that passed meanwhile fires at wake-up.
type alarm struct {
	C    chan struct{}
	fd   int // kept apart: os.File.Fd would make the descriptor block
	file *os.File
	at   BootTime
}

func newAlarm() (*alarm, error) {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockBoottime, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("timerfd_create", errno)
	}
	a := &alarm{C: make(chan struct{}, 1), fd: int(fd), file: os.NewFile(fd, "alarm")}
	go a.run()
	return a, nil
}

// set arms the alarm for an instant; one in the past fires at once.
func (a *alarm) set(at BootTime) error {
	if at == a.at {
		return nil
	}
	// interval, then value
	spec := [2]syscall.Timespec{1: syscall.NsecToTimespec(int64(max(at, 1)))}
	_, _, errno := syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(a.fd), timerfdAbsolute,
		uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("timerfd_settime", errno)
	}
	a.at = at
	return nil
}

// A jumpNotice reports that the wall clock was set: without it the supervisor would not check before the next deadline.
type jumpNotice struct {
	C    chan struct{}
	file *os.File
}

func newJumpNotice() (*jumpNotice, error) {
	fd, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_CREATE, clockRealtime, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if errno != 0 {
		return nil, os.NewSyscallError("timerfd_create", errno)
	}
	never := [2]syscall.Timespec{1: {Sec: 1 << 33}} // a timer that is only used to be cancelled
	_, _, errno = syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, fd, timerfdAbsolute|timerfdCancelOnSet, uintptr(unsafe.Pointer(&never)), 0, 0, 0)
	if errno != 0 {
		syscall.Close(int(fd))
		return nil, os.NewSyscallError("timerfd_settime", errno)
	}
	n := &jumpNotice{C: make(chan struct{}, 1), file: os.NewFile(fd, "jumps")}
	go n.run()
	return n, nil
}

func (n *jumpNotice) run() {
	var count [8]byte
	for {
		if _, err := n.file.Read(count[:]); err != nil && !errors.Is(err, syscall.ECANCELED) {
			return
		}
		select {
		case n.C <- struct{}{}:
		default:
		}
	}
}

// run reports that the alarm fired. One pending report is enough: the receiver reads the clock itself.
func (a *alarm) run() {
	var count [8]byte
	for {
		if _, err := a.file.Read(count[:]); err != nil {
			return
		}
		select {
		case a.C <- struct{}{}:
		default:
		}
	}
}
