package shim

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestHowAProgramEndedIsReported(t *testing.T) {
	cases := map[string]struct {
		script string
		want   Exit
	}{
		"with code 0":    {"exit 0", Exit{ReasonExited, 0, 0, "the main process exited with code 0"}},
		"with code 42":   {"exit 42", Exit{ReasonExited, 42, 0, "the main process exited with code 42"}},
		"by signal":      {"kill -USR1 $$", Exit{ReasonExited, -1, syscall.SIGUSR1, "the main process was killed by signal 10 (user defined signal 1)"}},
		"by its SIGKILL": {"kill -KILL $$", Exit{ReasonExited, -1, syscall.SIGKILL, "the main process was killed by signal 9 (killed)"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			h := f.start(f.shell(c.script))
			if got := f.wait(h); got != c.want {
				t.Errorf("Wait = %+v, want %+v", got, c.want)
			}
			st, err := ReadState(f.dir)
			if err != nil || st.Phase != Exited || *st.Exit != c.want || st.Instance != h.Instance() {
				t.Errorf("state = %+v, %v", st, err)
			}
			if st.BootID != bootID() || st.StartedBoot == 0 || st.FinishedBoot < st.StartedBoot || st.StartedAt.IsZero() {
				t.Errorf("times in %+v", st)
			}
			if _, err := os.Stat(filepath.Join(f.dir, socketName)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the socket is left: %v", err)
			}
		})
	}
}

func TestStopIsReportedWithTheProgramsOwnCode(t *testing.T) {
	f := newFixture(t)
	h := f.start(f.shell(`trap 'exit 7' TERM; echo x > ` + f.beats + `; while :; do sleep 0.01; done`))
	f.eventually("the trap is set", func() bool { _, err := os.Stat(f.beats); return err == nil })
	if err := h.Stop(f.ctx(), -1); err != nil {
		t.Fatal(err)
	}
	want := Exit{ReasonStopped, 7, 0, "stopped: the main process exited with code 7"}
	if got := f.wait(h); got != want {
		t.Errorf("Wait = %+v, want %+v", got, want)
	}
}

func TestWhatCannotBeStartedSaysWhyAndWhatToDo(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "#!/bin/sh\n", 0o600)
	binary := write("binary", "\x01\x02\x03", 0o700)
	script := write("script", "#!/no/such/interpreter\n", 0o700)
	cases := map[string]struct {
		change func(*Spec)
		want   string
	}{
		"not in PATH":      {func(s *Spec) { s.Command = "no-such-program" }, `command "no-such-program" not found in PATH "` + DefaultPath + `": install it on this node or give its full path`},
		"no such file":     {func(s *Spec) { s.Command = "/no/such" }, `command "/no/such" not found: install it on this node or correct the path`},
		"not executable":   {func(s *Spec) { s.Command = plain }, `command "` + plain + `" is not executable: chmod +x it`},
		"a directory":      {func(s *Spec) { s.Command = dir }, `command "` + dir + `" is a directory: name an executable file in it`},
		"not a program":    {func(s *Spec) { s.Command = binary }, `command "` + binary + `" is neither a binary of this machine nor a script with a #! line`},
		"no interpreter":   {func(s *Spec) { s.Command = script }, `command "` + script + `" needs an interpreter or loader that is missing: check its #! line`},
		"no workingDir":    {func(s *Spec) { s.WorkingDir = "/no/such" }, `workingDir "/no/such" is not a directory on this node: create it or change workingDir`},
		"no log directory": {func(s *Spec) { s.Log.Path = "/no/such/log" }, `log file "/no/such/log": create its directory, free space or change log.path`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shell("exit 0")
			c.change(&s)
			_, err := Start(f.ctx(), f.exe, f.dir, s)
			if !errors.Is(err, ErrStartFailed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Start: %v\nwant %s", err, c.want)
			}
			st, err := ReadState(f.dir)
			if err != nil || st.Phase != Exited || st.Exit.Reason != ReasonStartFailed || !strings.Contains(st.Exit.Message, c.want) {
				t.Errorf("state = %+v, %v", st, err)
			}
			f.start(f.shell("exec sleep 1000")) // a failure leaves the directory free
		})
	}
}

func TestShimThatIsNoShimIsReported(t *testing.T) {
	f := newFixture(t)
	if _, err := Start(f.ctx(), "/bin/false", f.dir, f.shell("exit 0")); !errors.Is(err, ErrStartFailed) {
		t.Errorf("Start: %v, want ErrStartFailed", err)
	}
	if _, err := Start(f.ctx(), "/no/such/ebb", f.dir, f.shell("exit 0")); !errors.Is(err, ErrStartFailed) {
		t.Errorf("Start: %v, want ErrStartFailed", err)
	}
	f.start(f.shell("exec sleep 1000"))
}

func TestFailedStartLeavesTheDirectoryFreeAtOnceWhileTheNodeForks(t *testing.T) {
	f := newFixture(t)
	over := make(chan struct{})
	var forks sync.WaitGroup
	for range 3 {
		forks.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	defer forks.Wait()
	defer close(over)
	for range 100 {
		if _, err := Start(f.ctx(), "/bin/false", f.dir, f.shell("exit 0")); !errors.Is(err, ErrStartFailed) {
			t.Fatalf("Start: %v, want ErrStartFailed", err)
		}
	}
}

func TestInvalidSpecsAreRefused(t *testing.T) {
	good := Spec{Command: "true", Deadline: Deadline{TermAt: 1, KillAt: 1}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		change func(*Spec)
		want   string
	}{
		"empty command":    {func(s *Spec) { s.Command = " " }, "command is empty: set the program to run"},
		"instance":         {func(s *Spec) { s.Instance = "a b" }, `instance "a b": use up to 128 letters, digits, '.', '_' and '-'`},
		"grace":            {func(s *Spec) { s.Grace = -time.Second }, "grace -1s is negative: omit it for the default of 10s"},
		"workingDir":       {func(s *Spec) { s.WorkingDir = "a" }, `workingDir "a" is relative: use an absolute path`},
		"log.maxBytes":     {func(s *Spec) { s.Log.MaxBytes = 1 }, "log.maxBytes 1: use at least 4096"},
		"log.maxFiles":     {func(s *Spec) { s.Log.MaxFiles = -1 }, "log.maxFiles -1: use at least 1"},
		"no deadline":      {func(s *Spec) { s.Deadline = Deadline{} }, "set termAt, and killAt not before it"},
		"deadline order":   {func(s *Spec) { s.Deadline.TermAt = 2 }, "set termAt, and killAt not before it"},
		"NUL in args":      {func(s *Spec) { s.Args = []string{"a\x00"} }, `"a\x00" contains a NUL byte: remove it`},
		"env without name": {func(s *Spec) { s.Env = []string{"A=1", "=secret"} }, "env entry 1 must be KEY=value and contain no NUL byte"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := good
			c.change(&s)
			err := s.Validate()
			if !errors.Is(err, ErrInvalidSpec) || !strings.HasSuffix(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("Validate: %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestProgramSeesNothingOfTheNode(t *testing.T) {
	f := newFixture(t)
	// A node with a secret in its environment and a file open that it forgot to close on exec.
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	leak, err := syscall.Dup(int(write.Fd())) // dup clears close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	write.Close()
	s := f.shell(`env > "$0.env"; for d in /proc/self/fd/*; do readlink $d; done > "$0.fds"; pwd > "$0.pwd"; mv "$0.env" "$0"; exec sleep 1000`)
	s.Args = append(s.Args, f.beats)
	s.Env = append(s.Env, "GREETING=hello world", MarkerEnv+"=of-an-outer-shim")
	h := f.start(s)
	syscall.Close(leak)
	f.eventually("the program looked around", func() bool { _, err := os.Stat(f.beats); return err == nil })
	env, _ := os.ReadFile(f.beats)
	got := slices.DeleteFunc(strings.Split(strings.TrimSpace(string(env)), "\n"), func(kv string) bool {
		return strings.HasPrefix(kv, "PWD=") || strings.HasPrefix(kv, "_=") || strings.HasPrefix(kv, "SHLVL=") || strings.HasPrefix(kv, "OLDPWD=") // the shell's own
	})
	slices.Sort(got)
	want := []string{marker(s.Instance), "GREETING=hello world", "PATH=" + DefaultPath}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("environment = %q\nwant %q", got, want)
	}
	if pwd, _ := os.ReadFile(f.beats + ".pwd"); string(pwd) != "/\n" {
		t.Errorf("working directory = %q", pwd)
	}
	shimEnv, err := os.ReadFile(procPath(f.status(h).Shim.PID, "environ"))
	if err != nil || strings.TrimRight(string(shimEnv), "\x00") != "GOMAXPROCS=2" {
		t.Errorf("the shim's environment = %q, %v", shimEnv, err)
	}
	// Nobody holds the leaked file any more, so it is at its end while the program runs.
	_ = read.SetReadDeadline(time.Now().Add(bound))
	if n, err := read.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the node's file is open in the shim or the program: %d, %v", n, err)
	}
	fds, _ := os.ReadFile(f.beats + ".fds")
	for _, target := range strings.Fields(string(fds)) {
		if strings.Contains(target, "lock") || strings.Contains(target, "socket:") || strings.Contains(target, "timerfd") {
			t.Errorf("the program holds %s", target)
		}
	}
}

func TestShimIsNobodysChildAndHasASessionOfItsOwn(t *testing.T) {
	f := newFixture(t)
	st := f.status(f.start(f.shell("exec sleep 1000")))
	shim, err := inspect(st.Shim.PID, nil)
	if err != nil || shim.ppid == os.Getpid() {
		t.Errorf("the shim is a child of its node: %v, %v", shim, err)
	}
	parent := shim.PID
	if inNamespaces {
		parent = st.Init.PID
	}
	program, err := inspect(st.Program.PID, nil)
	if err != nil || program.group != program.PID || program.ppid != parent || shim.group != shim.PID {
		t.Errorf("shim %+v, program %+v, %v", shim, program, err)
	}
}

func TestUsage(t *testing.T) {
	f := newFixture(t)
	out, err := exec.Command(f.exe, "shim", "a", "b").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.HasPrefix(string(out), "usage: ebb shim DIRECTORY\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// What the machine cannot do before a shim is spawned says so: nothing runs then.
func TestAMachineThatCannotSpawnAShimSaysWhy(t *testing.T) {
	for name, full := range map[string]func(dir string) error{
		"the directory cannot be made": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"the spec cannot be written":   func(dir string) error { return os.MkdirAll(filepath.Join(dir, specName, "in the way"), 0o700) },
		"the log cannot be opened":     func(dir string) error { return os.MkdirAll(filepath.Join(dir, shimLogName), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if err := os.RemoveAll(f.dir); err != nil {
				t.Fatal(err)
			}
			if err := full(f.dir); err != nil {
				t.Fatal(err)
			}
			if _, err := Start(f.ctx(), f.exe, f.dir, f.shell("exit 0")); !errors.Is(err, ErrNotSpawned) {
				t.Errorf("Start: %v", err)
			}
			if err := os.RemoveAll(f.dir); err != nil {
				t.Fatal(err)
			}
			f.start(f.shell("exec sleep 1000"))
		})
	}
}
