package shim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A program of another user has its own home and nothing of the shim's user, and cannot become anybody else.
func TestAProgramRunsAsAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run programs as other users")
	}
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
