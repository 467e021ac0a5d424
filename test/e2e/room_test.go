package e2e

import (
	"context"
	"flag"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sync/semaphore"
)

// How much of a small machine a test needs. All of them wait for leases, drains and restarts more than they compute, so several share
// it.
const (
	light = 1 // a cluster that mostly waits
	heavy = 2 // one with a load, or with so many processes that it keeps a core busy for half of the time
	rooms = 5
)

var room = semaphore.NewWeighted(rooms)

// beside lets a test run beside others, as many as there is room for.
func beside(t *testing.T, need int64) {
	t.Helper()
	t.Parallel()
	if err := room.Acquire(context.Background(), need); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { room.Release(need) }) // the last of all: the processes have ended
}

// The number of processors bounds how many tests go test lets run at once. Here room does.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(4*rooms)); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
