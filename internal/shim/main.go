package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"
)

const prSetChildSubreaper = 36

// detachFlag makes a shim start the real one and exit, so that the real one is not a child of the node, which would have to wait for it.
const detachFlag = "--detach"

// Main is the shim process: "ebb shim DIR". It returns the exit code when the program has ended.
func Main(args []string) int {
	if len(args) == 1 {
		switch args[0] {
		case initFlag:
			return initMain()
		case probeFlag:
			return probe()
		}
	}
	detached := len(args) == 2 && args[0] == detachFlag
	if !detached && len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: ebb shim DIRECTORY")
		return 2
	}
	dir, err := filepath.Abs(args[len(args)-1])
	if err == nil {
		closeInherited(dir)
		if detached {
			err = detach(dir)
		} else {
			err = supervise(dir)
		}
	}
	if err != nil {
		complain(fmt.Sprintf("ebb shim %s: %v", dir, err))
		_ = writeLine(os.Stdout, refusal(err))
		return 1
	}
	return 0
}

// logFormatEnv sets the format of a shim's log. It is not passed to the program.
const logFormatEnv = "EBB_LOG_FORMAT"

// complain writes to the shim's log.
func complain(message string) {
	if os.Getenv(logFormatEnv) == "json" {
		_ = json.NewEncoder(os.Stderr).Encode(map[string]string{"time": time.Now().Format(time.RFC3339Nano), "level": "ERROR", "msg": message})
		return
	}
	fmt.Fprintln(os.Stderr, message)
}

// closeInherited closes what the node left open without close-on-exec, which everything opened in this process has.
// The three standard files and the lock stay.
func closeInherited(dir string) {
	keepLock := lockInherited(dir)
	names, _ := os.ReadDir("/proc/self/fd")
	for _, name := range names {
		fd, err := strconv.Atoi(name.Name())
		if err != nil || fd < inheritedLockFD || fd == inheritedLockFD && keepLock {
			continue
		}
		flags, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0)
		if errno == 0 && flags&syscall.FD_CLOEXEC == 0 {
			syscall.Close(fd)
		}
	}
}

// detach starts the shim in a new session and leaves it to init.
func detach(dir string) error {
	if !lockInherited(dir) {
		return fmt.Errorf("%s is internal: only a node starts a shim with it, and passes it the lock", detachFlag)
	}
	_, err := syscall.ForkExec("/proc/self/exe", []string{os.Args[0], "shim", dir}, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2, inheritedLockFD},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	return err
}

// supervise runs the program of dir from beginning to end. An error means that it never ran.
func supervise(dir string) error {
	runtime.LockOSThread() // for good: see supervisor
	debug.SetGCPercent(20)
	if err := os.Chdir(dir); err != nil {
		return err
	}
	lock, err := adoptLock(".")
	if err != nil {
		return err
	}
	s, err := load()
	if err == nil {
		err = s.start()
	}
	if err != nil {
		_ = os.Remove(socketName)
		releaseLock(lock)
		return err
	}
	s.reportReady()
	s.run()
	s.finish(lock)
	return nil
}

// load reads what to run.
func load() (*supervisor, error) {
	spec, err := readSpec(".")
	if err != nil {
		return nil, err
	}
	self, err := inspect(os.Getpid(), nil)
	if err != nil {
		return nil, err
	}
	return &supervisor{
		spec:     spec,
		deadline: spec.Deadline,
		ahead:    wallAhead, agreed: wallAhead(),
		state:    State{Instance: spec.Instance, Phase: Starting, BootID: bootID(), Shim: self.Process},
		journal:  newJournal("."),
		children: make(chan os.Signal, 1),
		signals:  make(chan os.Signal, 8),
	}, nil
}

// prepare creates everything that the supervisor needs while the program runs, so that none of it can fail later.
func (s *supervisor) prepare() (err error) {
	if s.alarm, err = newAlarm(); err != nil {
		return err
	}
	if s.jumps, err = newJumpNotice(); err != nil {
		return err
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	// SIGHUP, and SIGPIPE from a Start that died, are caught and dropped: if they were ignored, the program would
	// inherit that.
	signal.Notify(s.children, syscall.SIGCHLD)
	signal.Notify(s.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	if s.server, err = listen(s.spec.Instance); err != nil {
		return fmt.Errorf("%s: %w", socketName, err)
	}
	go s.server.serve()
	return nil
}

// start records the intent and starts the program, or records why it could not.
func (s *supervisor) start() error {
	err := s.launch()
	if err == nil {
		s.state.Phase = Running
		_ = s.journal.save(s.state, min(persistLimit, s.deadline.TermAt.Sub(Now())))
		return nil
	}
	s.state.Phase = Exited
	s.state.Exit = &Exit{Reason: ReasonStartFailed, Code: -1, Message: err.Error()}
	if errors.Is(err, ErrDeadlinePassed) {
		s.state.Exit.Reason = ReasonDeadlinePassed
	}
	s.state.FinishedBoot, s.state.FinishedAt = Now(), time.Now().UTC()
	_ = s.journal.save(s.state, finalLimit)
	return err
}

func (s *supervisor) launch() error {
	if err := s.prepare(); err != nil {
		return fmt.Errorf("%w: %w", ErrStartFailed, err)
	}
	path, err := s.spec.resolve()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStartFailed, err)
	}
	output, input, err := newPump(s.spec.Log)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStartFailed, err)
	}
	defer syscall.Close(input)
	s.output = output
	if err := s.journal.save(s.state, finalLimit); err != nil {
		return fmt.Errorf("%w: could not write its state file: %w", ErrStartFailed, err)
	}
	if Now() >= s.deadline.TermAt {
		return fmt.Errorf("%w: the program was not started", ErrDeadlinePassed)
	}
	pid, err := s.fork(path, input)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStartFailed, s.spec.explainExec(path, err))
	}
	if program, err := inspect(pid, nil); err == nil { // an init may have reaped it by now
		s.state.Program = program.Process
	}
	s.state.StartedBoot, s.state.StartedAt = Now(), time.Now().UTC()
	return nil
}

// fork starts the program in a session of its own, to be killed by the kernel when this thread ends.
func (s *supervisor) fork(path string, output int) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	if err := s.alarm.set(s.deadline.KillAt); err != nil {
		return 0, err
	}
	release := s.guard()
	defer release()
	o := order{Path: path, Argv: append([]string{s.spec.Command}, s.spec.Args...), Env: s.spec.environ(), Dir: s.spec.WorkingDir, User: s.spec.User}
	if s.spec.Home != "" {
		if o.Home, err = makeHome(s.spec.Home, *s.spec.User); err != nil {
			return 0, fmt.Errorf("its home directory: %w", err)
		}
	}
	if s.spec.Namespace {
		return s.forkNamespaced(o, null.Fd(), uintptr(output))
	}
	return o.fork([]uintptr{null.Fd(), uintptr(output), uintptr(output)}, &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL})
}

// guard keeps the deadline while the supervisor's thread waits in exec, which may take long on a dead file server: the program must not
// start after the deadline.
func (s *supervisor) guard() (release func()) {
	started, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-started:
				return
			case <-s.alarm.C:
				if Now() >= s.deadline.KillAt {
					killAll(s.descendants)
				}
			}
		}
	}()
	return func() { close(started); <-ended }
}

// reportReady reports the result to Start and closes the pipe.
func (s *supervisor) reportReady() {
	_ = writeLine(os.Stdout, response{Status: s.describe()})
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		_ = syscall.Dup3(int(null.Fd()), 1, 0)
		null.Close()
	}
}

// finish records the exit and releases the directory. The lock is released after the state file and the socket are in order for the next
// owner, and before waiting callers are answered, so that they can start again at once.
func (s *supervisor) finish(lock *os.File) {
	s.output.close()
	s.state.Phase = Exited
	s.state.LogDropped = s.output.dropped.Load()
	s.state.FinishedBoot, s.state.FinishedAt = Now(), time.Now().UTC()
	if s.status == nil && s.killing { // its init was killed before it could report
		killed := syscall.WaitStatus(syscall.SIGKILL)
		s.status = &killed
	}
	s.state.Exit = s.state.Exit.with(s.status)
	if err := s.journal.save(s.state, finalLimit); err != nil {
		complain(fmt.Sprintf("ebb shim: could not record the exit of instance %s (%s): %v", s.spec.Instance, s.state.Exit.Message, err))
	}
	s.server.listener.Close() // unlinks the socket
	releaseLock(lock)
	s.server.close(Status{State: s.state, Deadline: s.deadline})
}

// with returns the exit with how the main process ended.
func (e Exit) with(status *syscall.WaitStatus) *Exit {
	outcome := "the exit status of the main process is unknown"
	switch {
	case status == nil:
	case status.Signaled():
		e.Signal = status.Signal()
		outcome = fmt.Sprintf("the main process was killed by signal %d (%v)", e.Signal, e.Signal)
	default:
		e.Code = status.ExitStatus()
		outcome = fmt.Sprintf("the main process exited with code %d", e.Code)
	}
	e.Message = whyEnded[e.Reason] + outcome
	return &e
}

var whyEnded = map[Reason]string{
	ReasonStopped:        "stopped: ",
	ReasonDeadlinePassed: "the node did not renew the deadline: ",
}
