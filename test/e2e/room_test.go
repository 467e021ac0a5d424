package e2e

import (
	"cmp"
	"flag"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// How much of a small machine a test needs. All of them wait for leases, drains and restarts more than they compute, so several share
// it.
const (
	light = 1 // a cluster that mostly waits
	heavy = 2 // one with a load, or with so many processes that it keeps a core busy for half of the time
	rooms = 8
)

// longest are the tests that take minutes, longest first. They begin first, so that none of them is left alone at the end.
var longest = []string{
	"TestADrainSurvivesItsNodeAndTheAPIAtEveryStep", "TestAnEtcdClusterGoesOnWhenTheCoordinatorDiesAtAnyStep", "TestProgramsNeverRunTwiceAtOnce", "TestPodsAreEvicted",
	"TestSeedDocument", "TestKubectlDrain", "TestChaos", "TestHealthEventsOnKubernetes", "TestFixedHistoriesEndEqual", "TestMachinesComeAndGo",
	"TestADrainSurvivesItsCoordinatorAtEveryStep", "TestStopsOfEtcdClustersKeepWhatTheyShould", "TestAnEtcdClusterUnderLoadLosesNoWriteAndNoQuorum",
	"TestAMemberKeepsItsPlaceWhenItsNodeGetsAnotherAddress", "TestVolumesOutliveCrashes", "TestLastReplicasAreEvicted", "TestVolumesAreEvicted",
	"TestVolumesAreRepairedByHand",
}

// visitor is a test that waits for room.
type visitor struct {
	need, turn int64
}

// place is the room for tests that run beside each other.
type place struct {
	mu      sync.Mutex
	changed sync.Cond
	waiting []*visitor
	free    int64

	entry sync.Mutex   // held by the one test that looks whether the machine is calm enough for it
	begun atomic.Int64 // how much of the room is taken by tests that have begun
}

func newPlace() *place {
	p := &place{free: rooms}
	p.changed.L = &p.mu
	return p
}

var machine = newPlace()

// beside lets a test run beside others, as many as there is room for. All tests have said so before the first of them begins.
func beside(t *testing.T, need int64) {
	t.Helper()
	v := machine.announce(t.Name(), need)
	t.Parallel()
	machine.enter(v)
	machine.awaitCalm(v)
	t.Cleanup(func() { machine.leave(v) }) // the last of all: the processes have ended
}

// announce adds a test to those that wait for room.
func (p *place) announce(name string, need int64) *visitor {
	p.mu.Lock()
	defer p.mu.Unlock()
	turn := slices.Index(longest, name)
	if turn < 0 {
		turn = len(longest) + len(p.waiting)
	}
	v := &visitor{need: need, turn: int64(turn)}
	p.waiting = append(p.waiting, v)
	return v
}

// enter waits until it is the test's turn and there is room for it.
func (p *place) enter(v *visitor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.next() != v || p.free < v.need {
		p.changed.Wait()
	}
	p.free -= v.need
	p.waiting = slices.DeleteFunc(p.waiting, func(w *visitor) bool { return w == v })
	p.changed.Broadcast()
}

// next is the test whose turn it is.
func (p *place) next() *visitor {
	return slices.MinFunc(p.waiting, func(a, b *visitor) int { return cmp.Compare(a.turn, b.turn) })
}

// leave gives the room of a test back.
func (p *place) leave(v *visitor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += v.need
	p.begun.Add(-v.need)
	p.changed.Broadcast()
}

// awaitCalm lets one test after another begin, each when the processors have time for it. What a test computes most of is its beginning, when
// its processes start: on a machine that is busy already they would take so long that the leases of other tests expire.
func (p *place) awaitCalm(v *visitor) {
	const always, perProcessor = 3, 4
	p.entry.Lock()
	defer p.entry.Unlock()
	for p.begun.Load() >= always && runnable(2*time.Second) > float64(perProcessor*runtime.NumCPU()) {
	}
	p.begun.Add(v.need)
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
