// Package testenv brings the real parts that tests run against: the ebb program, stock kubectl, an embedded API.
package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ebb-dev/ebb/internal/testlength"
)

// Ebb is the path of the ebb program, built with the race detector.
func Ebb(t testing.TB) string {
	t.Helper()
	path, err := ebb()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// EbbFailpoints is the path of the ebb program with the points at which a test can end or hold it.
func EbbFailpoints(t testing.TB) string {
	t.Helper()
	path, err := ebbFailpoints()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// EbbPlain is the path of the ebb program as people run it, for benchmarks.
func EbbPlain(t testing.TB) string {
	t.Helper()
	path, err := ebbPlain()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Kubectl is the path of stock kubectl, built from the version pinned in test/tools.
func Kubectl(t testing.TB) string {
	t.Helper()
	path, err := kubectl()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	ebb           = sync.OnceValues(func() (string, error) { return buildRace("ebb") })
	ebbPlain      = sync.OnceValues(func() (string, error) { return buildPlain("ebb-plain", ".", "./cmd/ebb") })
	ebbFailpoints = sync.OnceValues(func() (string, error) {
		return buildRace("ebb-failpoints", "-tags", "failpoints")
	})
	kubectl = sync.OnceValues(func() (string, error) { return buildPlain("kubectl", "test/tools", "./kubectl") })
)

// root of the checkout, found from where this file was compiled.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// buildRace makes an ebb program with the race detector. Such a program rests for a second when it ends, unless it is told not to.
func buildRace(name string, args ...string) (string, error) {
	const variable, option = "GORACE", "atexit_sleep_ms="
	if now := os.Getenv(variable); !strings.Contains(now, option) {
		if err := os.Setenv(variable, strings.TrimSpace(now+" "+option+"0")); err != nil {
			return "", err
		}
	}
	flags := []string{"-race"}
	if !testlength.Long() {
		text, err := os.ReadFile(filepath.Join(root(), "test", "race.flags"))
		if err != nil {
			return "", err
		}
		flags = strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	return build(name, ".", nil, append(append(append(flags, "-ldflags=-w"), args...), "./cmd/ebb")...)
}

// PlainBuild is the environment in which test/run builds whatever does not have the race detector. Programs that are built in it share
// what was compiled before. It keeps the flags that somebody has set for all builds.
func PlainBuild() []string {
	return append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+strings.TrimSpace(goflags()+" -trimpath"))
}

var goflags = sync.OnceValue(func() string {
	out, err := exec.Command("go", "env", "GOFLAGS").Output()
	if err != nil {
		return os.Getenv("GOFLAGS")
	}
	return strings.TrimSpace(string(out))
})

func buildPlain(name, module, main string) (string, error) {
	return build(name, module, PlainBuild(), main)
}

// build makes one program below bin/test. The tests of several packages run at once and want the same one, so a lock
// lets one of them do it; the go command does nothing when the program is up to date.
func build(name, module string, env []string, args ...string) (string, error) {
	dir := filepath.Join(root(), "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", append([]string{"build", "-o", path}, args...)...)
	cmd.Dir, cmd.Env = filepath.Join(root(), module), env
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return path, nil
}
