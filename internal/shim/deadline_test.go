package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// startNode runs a node of its own that starts spec and renews it, and returns when the program runs.
func (f *fixture) startNode(s Spec, term, kill time.Duration) *exec.Cmd {
	f.Helper()
	order, _ := json.Marshal(nodeOrder{Dir: f.dir, Spec: s, Term: term, Kill: kill})
	cmd := exec.Command(f.exe, "helper", "node", string(order))
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "started\n" {
		f.Fatalf("node: %q", line)
	}
	return cmd
}

func (f *fixture) attach() *Handle {
	f.Helper()
	h, err := Attach(f.ctx(), f.dir)
	if err != nil {
		f.Fatal(err)
	}
	f.endWithTest(h)
	return h
}

func TestProgramDiesByItsDeadlineWhenItsNodeIs(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "frozen": syscall.SIGSTOP} {
		for _, manner := range []string{"polite", "stubborn"} {
			t.Run(name+" and the program is "+manner, func(t *testing.T) {
				f := newFixture(t)
				s := f.helper("beat", f.beats, manner)
				node := f.startNode(s, 4*time.Second, 5*time.Second)
				f.beating(f.beats)
				h := f.attach()
				if err := node.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
				if sig == syscall.SIGKILL {
					_ = node.Wait()
				} else {
					f.eventually("the node is frozen", func() bool {
						p, _ := inspect(node.Process.Pid, nil)
						return p.state == 'T'
					})
				}
				st := f.status(h)
				exit := f.wait(h)
				if exit.Reason != ReasonDeadlinePassed {
					t.Errorf("exit = %+v", exit)
				}
				f.diedBy(f.beats, st.Deadline)
				if last := readBeats(f.beats); manner == "stubborn" && last[len(last)-1].at < st.Deadline.TermAt {
					t.Error("killed before TermAt")
				}
				f.gone(s.Instance)
				f.pidGone(st.Program)
			})
		}
	}
}

func TestLateExtendIsRefused(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "stubborn")
	s.Deadline = within(4*time.Second, 6*time.Second)
	h := f.start(s)
	f.eventually("TermAt", func() bool { return Now() >= s.Deadline.TermAt })
	if err := h.Extend(f.ctx(), within(time.Hour, time.Hour)); !errors.Is(err, ErrDeadlinePassed) {
		t.Fatalf("Extend after TermAt: %v, want ErrDeadlinePassed", err)
	}
	if got := f.status(h); got.Deadline != s.Deadline || got.Phase != Stopping {
		t.Errorf("after a refused Extend: %v, %v", got.Phase, got.Deadline)
	}
	if exit := f.wait(h); exit.Reason != ReasonDeadlinePassed || exit.Signal != syscall.SIGKILL {
		t.Errorf("exit = %+v", exit)
	}
	f.diedBy(f.beats, s.Deadline)
}

func TestExtendIsRefusedFromTermAtOnEvenBeforeTheAlarmIsHeard(t *testing.T) {
	d := within(-time.Millisecond, time.Hour)
	s := &supervisor{deadline: d, ahead: wallAhead, agreed: wallAhead()}
	later := within(time.Hour, time.Hour)
	if err := s.extend(&later); !errors.Is(err, ErrDeadlinePassed) || s.deadline != d {
		t.Errorf("extend: %v, deadline %+v", err, s.deadline)
	}
}

// A virtual machine that is paused does not count the time on CLOCK_BOOTTIME; its wall clock is set right when it goes on.
func TestTimeThatAPausedMachineMissedCountsTowardsTheDeadline(t *testing.T) {
	ahead := time.Hour
	d := within(6*time.Second, 8*time.Second)
	paused := func(by time.Duration) *supervisor {
		ahead = time.Hour + by
		return &supervisor{deadline: d, ahead: func() time.Duration { return ahead }, agreed: time.Hour, state: State{Phase: Running}}
	}
	for _, c := range []struct {
		missed time.Duration
		next   BootTime
	}{
		{0, d.TermAt},
		{50 * time.Millisecond, d.TermAt}, // two clocks are not read at once
		{-time.Minute, d.TermAt},          // somebody set the clock back
		{4 * time.Second, d.TermAt - BootTime(4*time.Second)},
		{time.Hour, d.TermAt - BootTime(time.Hour)},
	} {
		if got := paused(c.missed).nextInstant(); got != c.next {
			t.Errorf("missed %s: it looks %s before TermAt, want %s", c.missed, d.TermAt.Sub(got), d.TermAt.Sub(c.next))
		}
	}
	later := within(time.Minute, time.Minute)
	if s := paused(7 * time.Second); !errors.Is(s.extend(&later), ErrDeadlinePassed) {
		t.Error("a program whose deadline passed while the machine was paused was kept")
	}
	s := paused(3 * time.Second)
	if err := s.extend(&later); err != nil || s.missed() != 0 {
		t.Errorf("extended after a short pause: %v, missed %d", err, s.missed())
	}
	s = paused(7 * time.Second)
	s.doomed, s.state.Phase, s.killAt = true, Stopping, d.KillAt
	if got := s.nextInstant(); got != d.KillAt-BootTime(7*time.Second) {
		t.Errorf("it looks %s before KillAt", d.KillAt.Sub(got))
	}
}

func TestAWallClockThatIsSetWakesNobodyOtherwise(t *testing.T) {
	n, err := newJumpNotice()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.C:
		t.Error("a notice without a jump")
	default:
	}
	n.file.Close()
}

func TestOldExtendIsIgnored(t *testing.T) {
	f := newFixture(t)
	s := f.shell("exec sleep 1000")
	h := f.start(s)
	later := within(2*time.Hour, 3*time.Hour)
	for _, d := range []Deadline{later, s.Deadline, {TermAt: 1, KillAt: 2}} {
		if err := h.Extend(f.ctx(), d); err != nil {
			t.Fatal(err)
		}
	}
	if st := f.status(h); st.Deadline != later || st.Phase != Running {
		t.Errorf("%v with deadline %+v, want Running with %+v", st.Phase, st.Deadline, later)
	}
	if err := h.Extend(f.ctx(), Deadline{}); err == nil {
		t.Error("a deadline that is not set was accepted")
	}
}

func TestProgramWhoseDeadlineHasPassedIsNotStarted(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "polite")
	s.Deadline = within(-time.Second, time.Hour)
	if _, err := Start(f.ctx(), f.exe, f.dir, s); !errors.Is(err, ErrDeadlinePassed) {
		t.Errorf("Start: %v, want ErrDeadlinePassed", err)
	}
	// The shim decides for itself, whatever its starter thought.
	if err := writeSpec(f.dir, s); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(f.exe, "shim", f.dir).CombinedOutput(); err == nil {
		t.Errorf("the shim ran: %s", out)
	}
	st, err := ReadState(f.dir)
	if err != nil || st.Phase != Exited || st.Exit.Reason != ReasonDeadlinePassed || st.Program.PID != 0 {
		t.Errorf("state = %+v, %v", st, err)
	}
	if len(readBeats(f.beats)) > 0 {
		t.Error("the program ran")
	}
}

func TestProgramThatIgnoresSIGTERMIsKilledAfterItsGrace(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "stubborn")
	h := f.start(s)
	f.beating(f.beats)
	before := Now()
	const grace = 300 * time.Millisecond
	if err := h.Stop(f.ctx(), grace); err != nil {
		t.Fatal(err)
	}
	told := Now()
	exit := f.wait(h)
	if exit.Reason != ReasonStopped || exit.Signal != syscall.SIGKILL {
		t.Errorf("exit = %+v", exit)
	}
	f.diedBy(f.beats, Deadline{TermAt: before, KillAt: told.Add(grace)})
	f.gone(s.Instance)
}

func TestStopCannotOutlastTheDeadline(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "stubborn")
	s.Deadline = within(4*time.Second, 4500*time.Millisecond)
	h := f.start(s)
	f.beating(f.beats)
	if err := h.Stop(f.ctx(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if exit := f.wait(h); exit.Reason != ReasonStopped || exit.Signal != syscall.SIGKILL {
		t.Errorf("exit = %+v", exit)
	}
	f.diedBy(f.beats, Deadline{KillAt: s.Deadline.KillAt})
}

func TestSecondStopShortensTheGrace(t *testing.T) {
	f := newFixture(t)
	h := f.start(f.helper("beat", f.beats, "stubborn"))
	f.beating(f.beats)
	for _, grace := range []time.Duration{time.Hour, 0} {
		if err := h.Stop(f.ctx(), grace); err != nil {
			t.Fatal(err)
		}
	}
	if exit := f.wait(h); exit.Reason != ReasonStopped {
		t.Errorf("exit = %+v", exit)
	}
}

func TestSignalsToTheShim(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "polite")
	h := f.start(s)
	f.beating(f.beats)
	shim := f.status(h).Shim
	shim.signal(syscall.SIGHUP)
	f.beating(f.beats)
	if st := f.status(h); st.Phase != Running {
		t.Fatalf("phase after SIGHUP = %v", st.Phase)
	}
	shim.signal(syscall.SIGTERM)
	if exit := f.wait(h); exit.Reason != ReasonStopped || exit.Code != 0 {
		t.Errorf("exit after SIGTERM = %+v", exit)
	}
	f.gone(s.Instance)
}
