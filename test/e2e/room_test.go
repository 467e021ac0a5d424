package e2e

import (
	"context"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
)

// How much of a small machine a test needs. All of them wait for leases, drains and restarts more than they compute, so several share
// it.
const (
	light = 1 // a cluster that mostly waits
	heavy = 2 // one with a load, or with so many processes that it keeps a core busy for half of the time
	rooms = 8
)

// place is the room for tests that run beside each other.
type place struct {
	room  *semaphore.Weighted
	entry sync.Mutex   // held by the one test that looks whether the machine is calm enough for it
	used  atomic.Int64 // how much of the room is taken
}

var machine = place{room: semaphore.NewWeighted(rooms)}

// beside lets a test run beside others, as many as there is room for.
func beside(t *testing.T, need int64) {
	t.Helper()
	t.Parallel()
	if err := machine.room.Acquire(context.Background(), need); err != nil {
		t.Fatal(err)
	}
	machine.awaitCalm()
	machine.used.Add(need)
	t.Cleanup(func() { // the last of all: the processes have ended
		machine.used.Add(-need)
		machine.room.Release(need)
	})
}

// awaitCalm lets one test after another begin, each when the processors have time for it. What a test computes most of is its beginning, when
// its processes start: on a machine that is busy already they would take so long that the leases of other tests expire.
func (p *place) awaitCalm() {
	const always, perProcessor = 3, 4
	p.entry.Lock()
	defer p.entry.Unlock()
	for p.used.Load() >= always && runnable(2*time.Second) > float64(perProcessor*runtime.NumCPU()) {
	}
}

// runnable is how many threads of the machine had something to compute, on average for a time; zero where the machine does not tell.
func runnable(during time.Duration) float64 {
	const every = 50 * time.Millisecond
	sum, times := 0, 0
	for began := time.Now(); time.Since(began) < during; times++ {
		time.Sleep(every)
		text, err := os.ReadFile("/proc/loadavg")
		if err != nil {
			return 0
		}
		now, _, _ := strings.Cut(strings.Fields(string(text))[3], "/")
		n, err := strconv.Atoi(now)
		if err != nil {
			return 0
		}
		sum += n - 1 // without the one that looks
	}
	return float64(sum) / float64(times)
}

// The number of processors bounds how many tests go test lets run at once. Here room does: a test that waits for room counts for go test, so
// that a small bound would keep the parallel steps of tests that have room waiting for those that have none.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(200*rooms)); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
