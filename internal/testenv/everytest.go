package testenv

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
)

// EveryTest is the testing.TB of what all tests of a package share: its cleanups run after the last test. The zero value is ready for use.
type EveryTest struct {
	testing.TB
	cleanups []func()
	failed   atomic.Bool
}

// Run runs the tests of a package and then the cleanups, and returns the exit code. TestMain calls it.
func (e *EveryTest) Run(m *testing.M) int {
	code := m.Run()
	for _, f := range slices.Backward(e.cleanups) {
		f()
	}
	if e.failed.Load() {
		return 1
	}
	return code
}

// Helper implements testing.TB.
func (e *EveryTest) Helper() {}

// Cleanup implements testing.TB.
func (e *EveryTest) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

// TempDir implements testing.TB.
func (e *EveryTest) TempDir() string {
	dir, err := os.MkdirTemp("", "ebb-tests-")
	if err != nil {
		panic(err)
	}
	e.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Fatal implements testing.TB. It panics, because there is no test to end.
func (e *EveryTest) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// Fatalf implements testing.TB. It panics, because there is no test to end.
func (e *EveryTest) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// Errorf implements testing.TB. The package fails after its last test.
func (e *EveryTest) Errorf(format string, args ...any) {
	e.failed.Store(true)
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

// ServeAsChild lets a test's own executable be a child process of the tests, as the ebb executable is one of a node. If the process was
// started as "EXECUTABLE command", it runs serve until SIGTERM and exits. Otherwise it returns, and the caller runs the tests.
func ServeAsChild(command string, serve func(ctx context.Context, in io.Reader, out io.Writer) error) {
	if len(os.Args) != 2 || os.Args[1] != command {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise every child takes a second longer to end
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
