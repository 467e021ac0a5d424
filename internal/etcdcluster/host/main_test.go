package host_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

// TestMain lets the test's own program be a member's process, as the ebb program is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == member.Command {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := member.Main(ctx, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // or every member takes a second longer to end
	code := m.Run()
	for _, f := range slices.Backward(all.cleanups) {
		f()
	}
	if all.failed.Load() {
		code = 1
	}
	os.Exit(code)
}

// everyTest stands for all tests of the package: what is bound to it ends after the last.
type everyTest struct {
	testing.TB
	cleanups []func()
	failed   atomic.Bool
}

var all everyTest

func (e *everyTest) Helper()          {}
func (e *everyTest) Cleanup(f func()) { e.cleanups = append(e.cleanups, f) }

func (e *everyTest) TempDir() string {
	dir, err := os.MkdirTemp("", "ebb-etcdcluster-")
	if err != nil {
		panic(err)
	}
	e.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (e *everyTest) Fatal(args ...any)            { panic(fmt.Sprint(args...)) }
func (e *everyTest) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
func (e *everyTest) Errorf(f string, args ...any) {
	e.failed.Store(true)
	fmt.Fprintf(os.Stderr, f+"\n", args...)
}
