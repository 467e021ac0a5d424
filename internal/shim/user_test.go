package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// A program of another user has its own home and nothing of the shim's user, and cannot become anybody else.
func TestAProgramRunsAsAnotherUser(t *testing.T) {
	need.Root(t, "run programs as other users")
	f := newFixture(t) // its directories are open to nobody else
	spec := f.shell(`
{
  id -u; id -g; id -G; echo "$HOME"; pwd -P; sed -n 's/^NoNewPrivs:[[:space:]]*//p' /proc/self/status; sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status
  cat "$SPEC" 2>&1 >/dev/null && echo "read its spec"
  touch /run/ebb/there 2>/dev/null && echo "wrote beside its home"
} > "$HOME/seen" 2>&1
echo done > relative`)
	spec.Env = append(spec.Env, "SPEC="+filepath.Join(f.dir, specName))
	const uid = 2_000_001_234
	spec.User, spec.Home = &User{UID: uid, GID: uid}, "home"
	spec.WorkingDir = ""
	if exit := f.wait(f.start(spec)); exit.Code != 0 {
		log, _ := os.ReadFile(filepath.Join(f.dir, DefaultLogPath))
		t.Fatalf("%+v\n%s", exit, log)
	}
	if !inNamespaces { // the way there is closed to its user, so that only relative paths work
		if data, err := os.ReadFile(filepath.Join(f.dir, "home", "relative")); err != nil || string(data) != "done\n" {
			t.Errorf("written relative to the working directory: %q, %v", data, err)
		}
		return
	}
	data, err := os.ReadFile(filepath.Join(f.dir, "home", "seen"))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(data)), "\n")
	want := []string{"2000001234", "2000001234", "2000001234", HomePath, HomePath, "1", "0000000000000000", "cat: " + filepath.Join(f.dir, specName) + ": Permission denied"}
	if !slices.Equal(got, want) {
		t.Errorf("it saw %q, want %q", got, want)
	}
}

func TestAHomeNeedsAUserAndStaysInItsDirectory(t *testing.T) {
	for name, s := range map[string]Spec{
		"no user":  {Command: "true", Home: "home"},
		"outside":  {Command: "true", Home: "../home", User: &User{UID: 1, GID: 1}},
		"absolute": {Command: "true", Home: "/home", User: &User{UID: 1, GID: 1}},
	} {
		s.Deadline = Never
		if err := s.Validate(); err == nil {
			t.Errorf("%s: %+v is accepted", name, s)
		}
	}
}

func TestAProgramThatItsUserMayNotReachSaysWhere(t *testing.T) {
	need.Root(t, "run programs as other users")
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(dir, "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	program, private := filepath.Join(closed, "program"), filepath.Join(dir, "private")
	for path, mode := range map[string]os.FileMode{program: 0o755, private: 0o700} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 0\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(*Spec)
		want   string
	}{
		"the directory of the program": {func(s *Spec) { s.Command = program }, fmt.Sprintf("command %q: user 65534 may not enter or execute %q: open it to that user", program, closed)},
		"the program":                  {func(s *Spec) { s.Command = private }, fmt.Sprintf("command %q: user 65534 may not enter or execute %q: open it to that user", private, private)},
		"the working directory":        {func(s *Spec) { s.WorkingDir = closed }, fmt.Sprintf("workingDir %q: user 65534 may not enter %q: open it to that user", closed, closed)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.shell("exit 0")
			s.User, s.Home = &User{UID: 65534, GID: 65534}, "home"
			c.change(&s)
			if _, err := Start(f.ctx(), f.exe, f.dir, s); !errors.Is(err, ErrStartFailed) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Start: %v\nwant %s", err, c.want)
			}
		})
	}
}
