package shim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// A program runs in a PID namespace of its own, whose first process is an init of ours: "ebb shim --init". The kernel kills the init when
// the shim dies, and every process of the namespace when the init dies, whatever session, group or environment it has given itself.

// initFlag makes a process the init of a namespace, and probeFlag one that only finds out whether it could be.
const (
	initFlag  = "--init"
	probeFlag = "--probe"
)

const (
	probeLimit      = 10 * time.Second
	initReportFD    = 3 // where the init writes its reports
	initOrderFD     = 4 // where the init reads what to run
	prCapAmbient    = 47
	capAmbientClear = 4
	capSysAdmin     = 21
)

// mountsEnv tells a process that begins namespaces the mount namespace of whoever started it, which it must not change.
const mountsEnv = "EBB_SHIM_OUTER_MOUNTS"

func mountNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/mnt")
	return name
}

// report is what an init tells its shim, one JSON line each: first that the program runs or why it does not, later how its main process ended.
type report struct {
	PID    int                 `json:"pid,omitempty"` // in the namespace
	Error  string              `json:"error,omitempty"`
	Errno  syscall.Errno       `json:"errno,omitempty"`
	Status *syscall.WaitStatus `json:"status,omitempty"`
}

// namespaced are the attributes of a process that begins a PID namespace, with a mount namespace for its /proc. A user that is not root
// gets a user namespace in which it is itself; only the init has the right to mount there.
func namespaced() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attr.AmbientCaps = []uintptr{capSysAdmin}
	}
	return attr
}

func initEnv() []string { return []string{"GOMAXPROCS=1", mountsEnv + "=" + mountNamespace()} }

// ProbeNamespaces reports why programs cannot have PID namespaces of their own on this machine; nil if they can. exe is the ebb executable.
func ProbeNamespaces(ctx context.Context, exe string) error {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	runtime.LockOSThread() // the kernel ends the child with the thread that started it
	defer runtime.UnlockOSThread()
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, exe, "shim", probeFlag)
	cmd.Env, cmd.Dir, cmd.Stderr = initEnv(), "/", &complaint
	cmd.SysProcAttr = namespaced()
	err := cmd.Run()
	if err != nil && complaint.Len() > 0 {
		return errors.New(string(bytes.TrimSpace(complaint.Bytes())))
	}
	return err
}

// probe is the process that ProbeNamespaces starts.
func probe() int {
	if err := enterNamespace(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// enterNamespace gives the namespace a /proc of its own. Mounts of the machine still come in, and none goes out.
func enterNamespace() error {
	if pid := os.Getpid(); pid != 1 {
		return fmt.Errorf("process %d is not the first of a PID namespace: only a shim starts an init", pid)
	}
	if mine, outer := mountNamespace(), os.Getenv(mountsEnv); mine == "" || outer == "" || mine == outer {
		return errors.New("the process has no mount namespace of its own: only a shim starts an init")
	}
	if err := syscall.Mount("", "/", "", syscall.MS_SLAVE|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// initMain is the init of a namespace: it starts the program, passes signals on to it, and reaps everything until nothing is left.
func initMain() int {
	runtime.LockOSThread() // for good: what the kernel keeps for a thread is passed on by this one
	reports := os.NewFile(initReportFD, "reports")
	syscall.CloseOnExec(initReportFD)
	tell := func(r report) { _ = writeLine(reports, r) }
	forwarded := make(chan os.Signal, 8)
	signal.Notify(forwarded, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE)
	pid, err := startOrdered()
	if err != nil {
		r := report{Error: err.Error()}
		_ = errors.As(err, &r.Errno)
		tell(r)
		return 1
	}
	tell(report{PID: pid})
	go func() {
		for sig := range forwarded {
			_ = syscall.Kill(pid, sig.(syscall.Signal)) // it may have ended
		}
	}()
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // nothing is left; the shim waits for the end of this process, and os.Exit sleeps for a second in a race build
			syscall.Exit(0)
		case ended == pid:
			tell(report{Status: &status})
			pid = 0 // the id may be given to another process; 0 would be the init's own group, which has only the init
			signal.Stop(forwarded)
		}
	}
}

// startOrdered starts what the order says.
func startOrdered() (int, error) {
	f := os.NewFile(initOrderFD, "order")
	syscall.CloseOnExec(initOrderFD)
	var o order
	if err := json.NewDecoder(f).Decode(&o); err != nil {
		return 0, fmt.Errorf("read what to run: %w", err)
	}
	f.Close()
	if err := enterNamespace(); err != nil {
		return 0, err
	}
	// Rights that a user namespace gave to the init are not the program's.
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, prCapAmbient, capAmbientClear, 0, 0, 0, 0)
	o.moveHome()
	return o.fork([]uintptr{0, 1, 2}, &syscall.SysProcAttr{Setsid: true})
}

// forkNamespaced starts the program below an init, and returns both process ids as this process sees them.
func (s *supervisor) forkNamespaced(o order, null, output uintptr) (program int, err error) {
	reports, reportsIn, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	orders, ordersIn, err := os.Pipe()
	if err != nil {
		reports.Close()
		reportsIn.Close()
		return 0, err
	}
	pid, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], "shim", initFlag}, &syscall.ProcAttr{
		Env: append(initEnv(), marker(s.spec.Instance)), Dir: "/", Sys: namespaced(),
		Files: []uintptr{null, output, output, reportsIn.Fd(), orders.Fd()},
	})
	reportsIn.Close()
	orders.Close()
	if err != nil {
		reports.Close()
		ordersIn.Close()
		return 0, fmt.Errorf("begin a PID namespace: %w", err)
	}
	init, _ := inspect(pid, nil) // not reaped, so it is there
	s.state.Init = init.Process
	go func() {
		defer ordersIn.Close()
		_ = json.NewEncoder(ordersIn).Encode(o) // the report says if it could not be read
	}()
	lines := bufio.NewReader(reports)
	first, err := nextReport(lines)
	switch {
	case err != nil:
		reports.Close()
		return 0, errors.New("the init of its PID namespace ended before the program ran")
	case first.Errno != 0:
		reports.Close()
		return 0, first.Errno
	case first.PID == 0:
		reports.Close()
		return 0, errors.New(first.Error)
	}
	ended := make(chan syscall.WaitStatus, 1)
	s.ended = ended
	go func() {
		defer reports.Close()
		defer close(ended)
		if r, err := nextReport(lines); err == nil && r.Status != nil {
			ended <- *r.Status
		}
	}()
	return outside(pid, first.PID), nil
}

func nextReport(r *bufio.Reader) (report, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return report{}, err
	}
	var rep report
	err = json.Unmarshal(line, &rep)
	return rep, err
}

// outside is the process id here of a child of an init that has the id inside the namespace; 0 if the child has ended and was reaped.
func outside(init, inside int) int {
	children, err := childrenOf(init)
	if err != nil {
		for _, p := range descendants(processes(), init) {
			children = append(children, p.PID)
		}
	}
	for _, pid := range children {
		if innermost(pid) == inside {
			return pid
		}
	}
	return 0
}

// innermost is the id of a process in its own PID namespace.
func innermost(pid int) int {
	data, err := readProc(procPath(pid, "status"), nil)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		if ids, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			if f := bytes.Fields(ids); len(f) > 0 {
				n, _ := strconv.Atoi(string(f[len(f)-1]))
				return n
			}
		}
	}
	return 0
}
