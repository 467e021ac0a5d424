package shim

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

const (
	persistLimit = time.Second     // how long an intent may take to reach the disk
	finalLimit   = 5 * time.Second // how long the record of the end may take
	strayLimit   = 3 * time.Second
	pauseNoticed = 100 * time.Millisecond
	reapBatch    = 512
)

// A supervisor owns the program. All of it runs on one goroutine, locked to the thread that forked the program: the
// kernel kills the program when that thread ends.
type supervisor struct {
	spec     Spec
	state    State
	deadline Deadline
	server   *server
	alarm    *alarm
	jumps    *jumpNotice
	ahead    func() time.Duration // wallAhead
	agreed   time.Duration        // how far the wall clock was ahead when the deadline was last extended
	journal  *journal
	output   *pump
	ended    <-chan syscall.WaitStatus // how the main process ended, from the init of its namespace; nil when that is known
	children chan os.Signal            // apart from the others, which a flood of these must not push out
	signals  chan os.Signal

	doomed  bool     // TermAt has come
	killAt  BootTime // in Stopping, when grace or deadline run out, whichever is first; it only comes nearer
	killing bool
	status  *syscall.WaitStatus // of the main process, once reaped
	passes  int64               // of killing
	flooded bool                // more children died than one batch
}

// run supervises the program until nothing of it is left.
func (s *supervisor) run() {
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for !s.tick() {
		if err := s.alarm.set(s.nextInstant()); err != nil {
			panic(err) // no deadline can be kept; the kernel kills the program with the shim
		}
		retry.Reset(s.pause())
		select {
		case <-s.alarm.C:
		case <-s.jumps.C:
		case <-s.children:
		case status, known := <-s.ended:
			s.learn(status, known)
		case <-retry.C:
		case sig := <-s.signals:
			s.handleSignal(sig)
		case c := <-s.server.calls:
			c.reply <- s.handle(c.request)
		}
	}
}

// tick does what is due and reports whether the program has ended.
func (s *supervisor) tick() bool {
	left := s.reap()
	if !left && s.ended != nil {
		status, known := <-s.ended // closed at the latest when the init has ended
		s.learn(status, known)
	}
	if (s.status != nil || !left) && s.state.Phase == Running {
		s.end(ReasonExited, Now().Add(s.spec.Grace))
	}
	now := Now()
	s.checkDeadline(now + s.missed())
	if s.state.Phase == Stopping && (now >= s.killAt || s.doomed && now+s.missed() >= s.deadline.KillAt) {
		s.kill()
		left = s.reap()
	}
	return !left && s.noStrays()
}

// learn takes the init's report, which comes once or not at all.
func (s *supervisor) learn(status syscall.WaitStatus, known bool) {
	s.ended = nil
	if known {
		s.status = &status
	}
}

func (s *supervisor) checkDeadline(now BootTime) {
	if s.doomed || now < s.deadline.TermAt {
		return
	}
	s.doomed = true
	s.end(ReasonDeadlinePassed, s.deadline.KillAt)
}

// missed is how much time CLOCK_BOOTTIME has missed since the deadline was last extended, as far as the wall clock tells: the
// machine was paused. Deadlines count it, because those who wait for them do.
// Less than a person could tell is what reading two clocks one after the other may cost.
func (s *supervisor) missed() BootTime {
	if missed := s.ahead() - s.agreed; missed >= pauseNoticed {
		return BootTime(missed)
	}
	return 0
}

// nextInstant is when tick has something to do even if nothing happens.
func (s *supervisor) nextInstant() BootTime {
	switch {
	case s.killing:
		return s.deadline.KillAt // retried by pause
	case s.state.Phase == Stopping && s.doomed:
		return min(s.deadline.KillAt-s.missed(), s.killAt)
	case s.state.Phase == Stopping:
		return min(s.deadline.TermAt-s.missed(), s.killAt)
	}
	return s.deadline.TermAt - s.missed()
}

// pause is how long to wait before the next check. Signals report almost every change; polling finds the rest.
func (s *supervisor) pause() time.Duration {
	switch {
	case s.flooded:
		return minKillPause
	case s.killing:
		return killPauses.After(s.passes)
	case s.state.Phase == Stopping:
		return maxKillPause
	}
	return time.Hour
}

// end takes the program from Running to Stopping, or, when it is ending already, only brings the kill nearer. The
// first reason stays. The deadline, which comes by TermAt, brings it to KillAt at the latest.
func (s *supervisor) end(reason Reason, killAt BootTime) {
	if s.state.Phase == Stopping {
		s.killAt = min(s.killAt, killAt)
		return
	}
	s.state.Phase = Stopping
	s.killAt = killAt
	s.state.Exit = &Exit{Reason: reason, Code: -1}
	_ = s.journal.save(s.state, s.patience(reason))
	s.terminate()
}

// patience is how long the record of why a program ends may take before it is told. A stop is an intent, and comes
// before the act; the other reasons are facts, and a deadline waits for no disk.
func (s *supervisor) patience(reason Reason) time.Duration {
	if reason != ReasonStopped {
		return 0
	}
	return min(persistLimit, s.deadline.TermAt.Sub(Now()))
}

// terminate sends SIGTERM to the program's group at once and to its other processes one by one; SIGCONT after it, so
// that a stopped process hears it.
func (s *supervisor) terminate() {
	group := 0
	if s.signalGroup(syscall.SIGTERM) {
		group = s.state.Program.PID
		s.signalGroup(syscall.SIGCONT)
	}
	for _, p := range s.descendants() {
		if p.group != group && p.Process != s.state.Init {
			p.signal(syscall.SIGTERM)
			p.signal(syscall.SIGCONT)
		}
	}
}

// signalGroup signals the program's process group, if it is certain that the id is still the program's: its main process has not been
// reaped, or was there an instant ago in a namespace, whose init reaps it.
func (s *supervisor) signalGroup(sig syscall.Signal) bool {
	if s.status != nil || s.state.Program.PID <= 0 || s.state.Init.PID != 0 && !s.state.Program.same() {
		return false
	}
	_ = syscall.Kill(-s.state.Program.PID, sig)
	return true
}

// kill does one pass; run repeats it until nothing is left. The group goes first and whole, which no fork escapes.
func (s *supervisor) kill() {
	s.killing = true
	s.passes++
	s.signalGroup(syscall.SIGKILL)
	killAll(func() []procInfo {
		// The first pass spares the init, which then reports how the program ended, and ends by itself.
		return slices.DeleteFunc(s.descendants(), func(p procInfo) bool { return p.Process == s.state.Init && s.passes == 1 })
	})
}

func (s *supervisor) descendants() []procInfo { return descendantsOf(os.Getpid()) }

// reap collects the dead and says whether the shim has any child. That it has none means that the program has no
// process at all, for orphans become the shim's children before their parent can be reaped.
func (s *supervisor) reap() (left bool) {
	s.flooded = false
	for range reapBatch {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return false
		case pid == 0:
			return true
		case pid == s.state.Program.PID && s.status == nil:
			s.status = &status
		}
	}
	s.flooded = true // deadlines come between its waves
	return true
}

// noStrays looks, when no descendant is left, for processes that carry the marker all the same: some other daemon
// started them for the program. The look is bounded, because reading the environment of a process that hangs in the
// kernel may hang too.
func (s *supervisor) noStrays() bool {
	find := func() []procInfo { return strays(s.spec.Instance) }
	result := make(chan bool, 1)
	go func() {
		if len(find()) == 0 {
			result <- true
			return
		}
		killAll(find)
		result <- false
	}()
	select {
	case gone := <-result:
		return gone
	case <-time.After(strayLimit):
		return true
	}
}

// strays are the marked processes other than the caller.
func strays(instance string) []procInfo {
	var found []procInfo
	for _, p := range marked(processes(), instance) {
		if p.PID != os.Getpid() {
			found = append(found, p)
		}
	}
	return found
}

func (s *supervisor) handleSignal(sig os.Signal) {
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT:
		s.end(ReasonStopped, Now().Add(s.spec.Grace))
	}
}

func (s *supervisor) handle(req request) response {
	var err error
	switch req.Op {
	case opStatus, opWait:
	case opExtend:
		err = s.extend(req.Deadline)
	case opStop:
		s.stop(req.Grace)
	default:
		err = fmt.Errorf("unknown request %q: the shim is an older version than its node", req.Op)
	}
	if err != nil {
		return refusal(err)
	}
	return response{Status: s.describe()}
}

func (s *supervisor) extend(d *Deadline) error {
	switch {
	case d == nil || !d.Valid():
		return errors.New("extend needs a deadline with termAt, and killAt not before it")
	case s.doomed || Now()+s.missed() >= s.deadline.TermAt: // come, even if its alarm is still on the way
		return fmt.Errorf("%w: instance %s is already stopping", ErrDeadlinePassed, s.spec.Instance)
	}
	s.deadline, s.agreed = s.deadline.extended(*d), s.ahead()
	return nil
}

func (s *supervisor) stop(grace *time.Duration) {
	g := s.spec.Grace
	if grace != nil && *grace >= 0 {
		g = *grace
	}
	s.end(ReasonStopped, Now().Add(g))
}

func (s *supervisor) describe() *Status {
	st := &Status{State: s.state, Deadline: s.deadline}
	st.LogDropped = s.output.dropped.Load()
	if s.state.Phase == Stopping {
		st.Waiting = describe(slices.DeleteFunc(s.descendants(), func(p procInfo) bool { return p.Process == s.state.Init }))
	}
	return st
}
