package shim

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

func TestDaemonsOfTheProgramAreKilledToo(t *testing.T) {
	t.Run("when the program is stopped", func(t *testing.T) {
		f := newFixture(t)
		h := f.start(f.helper("daemonize", f.beats, "again"))
		f.beating(f.beats)
		if err := h.Stop(f.ctx(), 200*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		told := Now()
		f.wait(h)
		f.diedBy(f.beats, Deadline{KillAt: told.Add(200 * time.Millisecond)})
		f.noneBeats()
	})
	t.Run("when the program ends by itself", func(t *testing.T) {
		f := newFixture(t)
		s := f.helper("daemonize", f.beats, "go")
		s.Grace = 300 * time.Millisecond
		h := f.start(s)
		exit := f.wait(h)
		st, _ := ReadState(f.dir)
		if exit.Reason != ReasonExited || exit.Code != 0 || st.Phase != Exited {
			t.Errorf("exit = %+v", exit)
		}
		beats := readBeats(f.beats)
		if !slices.ContainsFunc(beats, func(b beatLine) bool { return b.kind == "term" }) {
			t.Error("the daemon was not asked to end first")
		}
		if last := beats[len(beats)-1].at; last > st.FinishedBoot {
			t.Errorf("the daemon ran %v after Exited was recorded", last.Sub(st.FinishedBoot))
		}
		f.noneBeats()
	})
	t.Run("when the deadline passes", func(t *testing.T) {
		f := newFixture(t)
		s := f.helper("daemonize", f.beats, "again")
		s.Deadline = within(5*time.Second, 6*time.Second)
		h := f.start(s)
		f.beating(f.beats)
		f.wait(h)
		f.diedBy(f.beats, s.Deadline)
		f.noneBeats()
	})
}

// noneBeats asserts that no process runs that has the test's file in its command line: the daemons have no marker.
func (f *fixture) noneBeats() {
	f.Helper()
	for _, p := range processes() {
		cmdline, _ := os.ReadFile(procPath(p.PID, "cmdline"))
		if p.PID != os.Getpid() && slices.Contains(splitNUL(cmdline), f.beats) {
			f.Errorf("%v is left: %q", p, cmdline)
		}
	}
}

func splitNUL(b []byte) (out []string) {
	start := 0
	for i, c := range b {
		if c == 0 {
			out, start = append(out, string(b[start:i])), i+1
		}
	}
	return out
}

func TestProgramThatKeepsSpawningIsKilled(t *testing.T) {
	scripts := map[string]string{
		// Many children, each in a session of its own, and more all the time.
		"bomb": `trap '' TERM; i=0; while [ $i -lt 1500 ]; do setsid sleep 1000 & i=$((i+1)); [ $i -eq 50 ] && echo x > "$1"; done; sleep 1000`,
		// A process that forks its successor into a new session and ends, over and over; its parent is gone.
		"runner": `trap '' TERM; echo x > "$1"; n=${2:-0}; [ "$n" -ge 3000 ] || setsid sh "$0" "$1" $((n+1)) & [ "$n" -gt 0 ] || sleep 1000`,
		// Two that start each other again.
		"pair": `trap '' TERM; echo x > "$1"; n=${2:-0}; while [ "$n" -lt 300 ]; do setsid sh -c 'sleep 0.02'; n=$((n+1)); setsid sh "$0" "$1" $((n+250)) & done; sleep 1000`,
	}
	for name, script := range scripts {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			file := filepath.Join(t.TempDir(), name+".sh")
			if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
				t.Fatal(err)
			}
			s := f.shell("")
			s.Args = []string{file, f.beats}
			h := f.start(s)
			f.eventually("it spawns", func() bool { _, err := os.Stat(f.beats); return err == nil })
			if err := h.Stop(f.ctx(), 0); err != nil {
				t.Fatal(err)
			}
			told := Now()
			f.wait(h)
			t.Logf("gone after %v", Now().Sub(told))
			f.gone(s.Instance)
		})
	}
}

func TestShimKilledThenSwept(t *testing.T) {
	sweepers := map[string]func(f *fixture, h *Handle){
		"by Sweep": func(f *fixture, _ *Handle) {
			killed, err := Sweep(f.ctx(), f.dir)
			if err != nil || killed < 1 && !inNamespaces { // the kernel has killed everything in a namespace
				f.Errorf("Sweep killed %d, %v", killed, err)
			}
		},
		"by Attach": func(f *fixture, _ *Handle) {
			if _, err := Attach(f.ctx(), f.dir); !errors.Is(err, ErrNotRunning) {
				f.Errorf("Attach: %v, want ErrNotRunning", err)
			}
		},
		"by Wait": func(f *fixture, h *Handle) {
			if exit := f.wait(h); exit.Reason != ReasonShimLost {
				f.Errorf("exit = %+v", exit)
			}
		},
	}
	for name, sweep := range sweepers {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shell(`setsid "$0" helper beat "$1" stubborn & exec "$0" helper beat "$1.main" stubborn`)
			s.Args = append(s.Args, f.exe, f.beats)
			h := f.start(s)
			f.beating(f.beats)
			f.beating(f.beats + ".main")
			st := f.status(h)
			f.killShim(st)
			f.eventually("the kernel kills the main process", func() bool { return !st.Program.same() })
			sweep(f, h)
			got, err := ReadState(f.dir)
			if err != nil || got.Phase != Exited || got.Exit.Reason != ReasonShimLost || got.Exit.Message == "" {
				t.Errorf("state = %+v, %v", got, err)
			}
			f.gone(s.Instance)
			f.start(f.shell("exec sleep 1000"))
		})
	}
	t.Run("by Start", func(t *testing.T) {
		f := newFixture(t)
		s := f.shell("setsid sleep 1000 & exec sleep 1000")
		h := f.start(s)
		f.killShim(f.status(h))
		f.start(f.shell("exec sleep 1000"))
		f.gone(s.Instance)
	})
}

func (f *fixture) killShim(st Status) {
	f.Helper()
	st.Shim.signal(syscall.SIGKILL)
	f.eventually("the shim is dead", func() bool { held, err := lockHeld(f.dir); return err == nil && !held })
}

func TestNothingIsKilledByABarePID(t *testing.T) {
	f := newFixture(t)
	bystander := f.start(f.shell("exec sleep 1000"))
	victim := f.status(bystander).Program
	for name, st := range map[string]State{
		"another boot":            {Instance: "x1", Phase: Running, BootID: "another", Program: victim},
		"another process":         {Instance: "x2", Phase: Running, BootID: bootID(), Program: Process{PID: victim.PID, StartTicks: 1}},
		"a marker that is longer": {Instance: f.status(bystander).Instance[:5], Phase: Running, BootID: bootID()},
	} {
		dir := t.TempDir()
		if err := writeState(dir, st); err != nil {
			t.Fatal(err)
		}
		killed, err := Sweep(f.ctx(), dir)
		if err != nil || killed != 0 {
			t.Errorf("%s: Sweep killed %d, %v", name, killed, err)
		}
		if got, _ := ReadState(dir); got.Phase != Exited || got.Exit.Reason != ReasonShimLost {
			t.Errorf("%s: state = %+v", name, got)
		}
	}
	if !victim.same() {
		t.Error("the bystander was killed")
	}
}

func TestBothWaysToFindDescendantsAgree(t *testing.T) {
	f := newFixture(t)
	h := f.start(f.shell("sh -c 'sleep 1000 & sleep 1000' & (setsid sleep 1000 &) ; exec sleep 1000"))
	shim := f.status(h).Shim.PID
	pids := func(procs []procInfo) (out []int) {
		for _, p := range procs {
			out = append(out, p.PID)
		}
		slices.Sort(out)
		return out
	}
	want := 5
	if inNamespaces {
		want++ // the init
	}
	f.eventually("all processes by either way", func() bool {
		fast, slow := pids(descendantsOf(shim)), pids(descendants(processes(), shim))
		return len(fast) == want && slices.Equal(fast, slow)
	})
}

func TestParseStatOfAnAwkwardName(t *testing.T) {
	p, err := parseStat([]byte("12 (a) b) (c) Z 7 12 3 0 -1 4 0 0 0 0 0 0 0 0 20 0 5 0 4242 0 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	if p.PID != 12 || p.name != "a) b) (c" || p.state != 'Z' || p.ppid != 7 || p.group != 12 || p.threads != 5 || p.StartTicks != 4242 {
		t.Errorf("parsed %+v", p)
	}
	if !p.alive() {
		t.Error("a main thread that ended before the others counts as dead")
	}
	for _, bad := range []string{"", "12", "12 (a", "12 (a) S 1"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
