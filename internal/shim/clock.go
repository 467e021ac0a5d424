package shim

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

const (
	clockBoottime   = 7
	timerfdAbsolute = 1
)

// BootTime is a reading of CLOCK_BOOTTIME in nanoseconds. It goes on while the machine is suspended, no one can set
// it, and it means nothing on another machine or after a reboot.
type BootTime int64

// Now reads CLOCK_BOOTTIME.
func Now() BootTime {
	var ts syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		// Without this clock no deadline can be kept, and it has been in every kernel since 2.6.39.
		panic(fmt.Sprintf("shim: CLOCK_BOOTTIME: %v", errno))
	}
	return BootTime(ts.Nano())
}

// Add returns t+d.
func (t BootTime) Add(d time.Duration) BootTime { return t + BootTime(d) }

// Sub returns t-u.
func (t BootTime) Sub(u BootTime) time.Duration { return time.Duration(t - u) }

// Deadline is when a program must end if its node says nothing more.
type Deadline struct {
	// TermAt is when the program is asked to end with SIGTERM. From then on it is doomed.
	TermAt BootTime `json:"termAt"`
	// KillAt is when everything the program started is killed.
	KillAt BootTime `json:"killAt"`
}

// Valid says whether the deadline is set and in order.
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

// run passes on that the alarm fired. One pending notice is enough: the receiver reads the clock itself.
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
