package shim

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

func TestRestartedNodeReattachesAndTheProgramNeverNotices(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "polite")
	node := f.startNode(s, 5*time.Second, 6*time.Second)
	f.beating(f.beats)
	_ = node.Process.Kill()
	_ = node.Wait()
	h := f.attach()
	old := f.status(h)
	if h.Instance() != s.Instance || old.Phase != Running {
		t.Fatalf("attached to %s in phase %s", h.Instance(), old.Phase)
	}
	if err := h.Extend(f.ctx(), within(time.Hour, time.Hour)); err != nil {
		t.Fatal(err)
	}
	f.eventually("the old deadline passes", func() bool { return Now() > old.Deadline.KillAt })
	f.beating(f.beats)
	if st := f.status(h); st.Program != old.Program || st.Phase != Running {
		t.Errorf("program %+v in phase %v, was %+v", st.Program, st.Phase, old.Program)
	}
	for _, b := range readBeats(f.beats) {
		if b.kind == "term" {
			t.Error("the program was told to end")
		}
	}
}

func TestProgramWhoseSocketIsLostLivesUntilItsDeadlineAndHasNoDouble(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "stubborn")
	s.Deadline = within(6*time.Second, 7*time.Second)
	h := f.start(s)
	st := f.status(h)
	if err := os.Remove(filepath.Join(f.dir, socketName)); err != nil {
		t.Fatal(err)
	}
	if err := h.Extend(f.ctx(), within(time.Hour, time.Hour)); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Extend: %v, want ErrUnreachable", err)
	}
	if _, err := Attach(f.ctx(), f.dir); !errors.Is(err, ErrUnreachable) {
		t.Errorf("Attach: %v, want ErrUnreachable", err)
	}
	again := f.helper("beat", f.beats+".double", "polite")
	if _, err := Start(f.ctx(), f.exe, f.dir, again); !errors.Is(err, ErrRunning) {
		t.Errorf("Start: %v, want ErrRunning", err)
	}
	if _, err := Sweep(f.ctx(), f.dir); !errors.Is(err, ErrRunning) {
		t.Errorf("Sweep: %v, want ErrRunning", err)
	}
	if exit := f.wait(h); exit.Reason != ReasonDeadlinePassed {
		t.Errorf("exit = %+v", exit)
	}
	f.diedBy(f.beats, s.Deadline)
	if last := readBeats(f.beats); last[len(last)-1].at < s.Deadline.TermAt {
		t.Error("died before its deadline")
	}
	if len(readBeats(f.beats+".double")) > 0 {
		t.Error("a double ran")
	}
	f.pidGone(st.Program)
	f.gone(s.Instance)
}

func TestConnectionCutInTheMiddleOfARequestHarmsNothing(t *testing.T) {
	f := newFixture(t)
	h := f.start(f.helper("beat", f.beats, "polite"))
	for _, text := range []string{"", "{", `{"op":"status"`, "nonsense\n", strings.Repeat("x", 2*maxLine), `{"op":"wait"}` + "\n"} {
		conn, err := h.dial(f.ctx())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(text))
		conn.Close()
	}
	f.beating(f.beats)
	if st := f.status(h); st.Phase != Running {
		t.Errorf("phase = %v", st.Phase)
	}
}

func TestLostLockFileStillAllowsNoDouble(t *testing.T) {
	f := newFixture(t)
	f.start(f.shell("exec sleep 1000"))
	if err := os.Remove(filepath.Join(f.dir, lockName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(f.ctx(), f.exe, f.dir, f.shell("exec sleep 1000")); !errors.Is(err, ErrRunning) {
		t.Errorf("Start: %v, want ErrRunning", err)
	}
}

func TestOfTwentyConcurrentStartsExactlyOneWins(t *testing.T) {
	f := newFixture(t)
	var won, refused atomic.Int32
	var racers sync.WaitGroup
	gate := make(chan struct{})
	var mu sync.Mutex
	var winner *Handle
	for range 20 {
		racers.Go(func() {
			s := f.shell("echo run >> " + f.beats + "; exec sleep 1000")
			<-gate
			h, err := Start(f.ctx(), f.exe, f.dir, s)
			switch {
			case err == nil:
				won.Add(1)
				mu.Lock()
				winner = h
				mu.Unlock()
			case errors.Is(err, ErrRunning):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	close(gate)
	racers.Wait()
	if won.Load() != 1 || refused.Load() != 19 {
		t.Fatalf("%d won, %d were refused", won.Load(), refused.Load())
	}
	f.endWithTest(winner)
	f.eventually("the program ran", func() bool { data, err := os.ReadFile(f.beats); return err == nil && len(data) > 0 }) // the shell makes the file first
	if data, _ := os.ReadFile(f.beats); string(data) != "run\n" {
		t.Errorf("the program ran %q", data)
	}
}

func TestHandleOfAnEarlierInstanceCannotSteerALaterOne(t *testing.T) {
	f := newFixture(t)
	old := f.start(f.shell("exit 0"))
	f.wait(old)
	h := f.start(f.shell("exec sleep 1000")) // at once: Wait returns when the directory is free
	if err := old.Stop(f.ctx(), 0); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Stop: %v, want ErrNotRunning", err)
	}
	if err := old.Extend(f.ctx(), within(time.Hour, time.Hour)); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Extend: %v, want ErrNotRunning", err)
	}
	if _, err := old.Wait(f.ctx()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Wait: %v, want ErrNotRunning", err)
	}
	if st := f.status(h); st.Phase != Running {
		t.Errorf("phase = %v", st.Phase)
	}
}

func TestAttachWhereNothingRuns(t *testing.T) {
	f := newFixture(t)
	if _, err := Attach(f.ctx(), f.dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no directory: %v, want ErrNotRunning", err)
	}
	h := f.start(f.shell("exit 3"))
	f.wait(h)
	if _, err := Attach(f.ctx(), f.dir); !errors.Is(err, ErrNotRunning) {
		t.Errorf("program over: %v, want ErrNotRunning", err)
	}
	st, err := ReadState(f.dir)
	if err != nil || st.Exit.Reason != ReasonExited || st.Exit.Code != 3 {
		t.Errorf("state = %+v, %v", st, err)
	}
}

func TestInstanceDirectoryMayHaveALongPath(t *testing.T) {
	f := newFixture(t)
	f.dir = filepath.Join(f.dir, strings.Repeat("long/", 40))
	h := f.start(f.shell("exec sleep 1000"))
	if st := f.status(f.attach()); st.Phase != Running {
		t.Errorf("phase = %v", st.Phase)
	}
	f.status(h)
}

func TestOthersCannotReadTheDirectory(t *testing.T) {
	f := newFixture(t)
	h := f.start(f.shell("echo hello; exec sleep 1000"))
	f.status(h)
	want := map[string]os.FileMode{
		".": 0o700, specName: 0o600, stateName: 0o600, lockName: 0o600, socketName: 0o600, shimLogName: 0o600, DefaultLogPath: 0o600,
	}
	for name, mode := range want {
		info, err := os.Stat(filepath.Join(f.dir, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %v", name, info.Mode(), err, mode)
		}
	}
}

func TestOtherUsersAreNotAnsweredEvenIfTheyReachTheSocket(t *testing.T) {
	need.Root(t, "become another user")
	f := newFixture(t)
	f.start(f.shell("exec sleep 1000"))
	socket := filepath.Join(f.dir, socketName)
	for _, path := range []string{socket, f.dir, filepath.Dir(f.dir), filepath.Dir(filepath.Dir(f.dir))} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	ask := func() error {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Error(err)
			return nil
		}
		defer conn.Close()
		_ = writeLine(conn, request{Op: opStatus})
		return readLine(conn, &response{})
	}
	if err := ask(); err != nil {
		t.Errorf("the owner is not answered: %v", err)
	}
	answered := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: only this thread becomes nobody, and it ends with the goroutine
		const nobody = 65534
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			t.Error(errno)
		}
		answered <- ask()
	}()
	if err := <-answered; err == nil {
		t.Error("another user is answered")
	}
}

func TestWaitEndsWithItsContextOrHandle(t *testing.T) {
	f := newFixture(t)
	h := f.start(f.shell("exec sleep 1000"))
	other := f.attach()
	ended := make(chan error, 1)
	ctx := f.ctx()
	go func() { _, err := other.Wait(ctx); ended <- err }()
	other.Close()
	if err := h.Stop(ctx, 0); err != nil {
		t.Fatal(err)
	}
	f.wait(h)
	if err := <-ended; err != nil && !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait on a closed handle: %v", err)
	}
	if _, err := other.Status(ctx); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Status on a closed handle: %v, want os.ErrClosed", err)
	}
}

func TestFrozenShimIsUnreachableAndKillsWhenItThaws(t *testing.T) {
	f := newFixture(t)
	s := f.helper("beat", f.beats, "stubborn")
	s.Deadline = within(4*time.Second, 4500*time.Millisecond)
	h := f.start(s)
	shim := f.status(h).Shim
	shim.signal(syscall.SIGSTOP)
	f.eventually("the deadline passes", func() bool { return Now() > s.Deadline.KillAt })
	if _, err := Start(f.ctx(), f.exe, f.dir, f.shell("exit 0")); !errors.Is(err, ErrRunning) {
		t.Errorf("Start: %v, want ErrRunning", err)
	}
	thawed := Now()
	shim.signal(syscall.SIGCONT)
	if exit := f.wait(h); exit.Reason != ReasonDeadlinePassed {
		t.Errorf("exit = %+v", exit)
	}
	f.diedBy(f.beats, Deadline{TermAt: s.Deadline.TermAt, KillAt: thawed})
}
