package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

const (
	manyFeeds  = 6
	feedTables = 40
)

// feeds is a cluster with changefeeds, every state of which is recorded.
type feeds struct {
	*cluster
	mu     sync.Mutex
	states map[string][]v1alpha1.ChangefeedStatus
}

// One cluster carries changefeeds through what befalls nodes. Data is made up and thrown away here: this is about who
// maintains what, where dispatchers are, and that checkpoints go on.
func TestChangefeedsFlowOn(t *testing.T) {
	beside(t, heavy)
	f := &feeds{cluster: startNodes(t, newCluster(t, testenv.Ebb(t)), 3), states: map[string][]v1alpha1.ChangefeedStatus{}}
	f.recordAll()
	for _, step := range []struct {
		name string
		run  func(*testing.T, *feeds)
	}{
		{"placed evenly and flowing", feedsPlaced},
		{"a drain moves maintainers first, then dispatchers", feedsDrained},
		{"a killed node's changefeeds flow on elsewhere", feedsOfKilledNode},
		{"an API server that is away stops no dispatcher", feedsWithoutServer},
		{"paused, resumed and removed", feedsPaused},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			f.t = t
			step.run(t, f)
		}) {
			break
		}
	}
	f.t = t
}

// recordAll keeps every status that the API tells of, in order.
func (f *feeds) recordAll() {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	f.t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		for ctx.Err() == nil {
			w, err := f.client.Watch(ctx, &v1alpha1.ChangefeedList{})
			if err != nil {
				continue // the server is away
			}
			for event := range w.ResultChan() {
				if cf, ok := event.Object.(*v1alpha1.Changefeed); ok {
					f.mu.Lock()
					f.states[cf.Name] = append(f.states[cf.Name], cf.Status)
					f.mu.Unlock()
				}
			}
		}
	})
}

func (f *feeds) feed(name string) *v1alpha1.Changefeed {
	f.t.Helper()
	cf := &v1alpha1.Changefeed{}
	if err := f.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, cf); err != nil {
		f.t.Fatal(err)
	}
	return cf
}

func (f *feeds) all() []v1alpha1.Changefeed {
	f.t.Helper()
	var list v1alpha1.ChangefeedList
	if err := f.client.List(context.Background(), &list); err != nil {
		f.t.Fatal(err)
	}
	return list.Items
}

// allFlow waits until every changefeed has a maintainer on one of the nodes, all its dispatchers there, and a checkpoint
// that has gone on since.
func (f *feeds) allFlow(nodes ...string) {
	f.t.Helper()
	before := map[string]int64{}
	for _, cf := range f.all() {
		before[cf.Name] = cf.Status.Checkpoint
	}
	until(f.t, fmt.Sprintf("all changefeeds to flow on %v", nodes), func() bool {
		for _, cf := range f.all() {
			p := cf.Placement()
			if p.Phase != v1alpha1.PlacementRunning || !slices.Contains(nodes, p.Node) || cf.Status.Checkpoint <= before[cf.Name] {
				return false
			}
			total := int64(0)
			for _, n := range cf.Status.Nodes {
				if !slices.Contains(nodes, n.Node) {
					return false
				}
				total += n.Dispatchers
			}
			if total != feedTables+1 {
				return false
			}
		}
		return true
	})
}

func feedsPlaced(t *testing.T, f *feeds) {
	for i := range manyFeeds {
		f.must("changefeed", "create", fmt.Sprintf("cf%d", i), "--source", fmt.Sprintf("datagen://?tables=%d&rate=400&seed=%d", feedTables, i), "--sink", "blackhole://")
	}
	f.allFlow(trio...)
	load := map[string]int{}
	for _, cf := range f.all() {
		load[cf.Placement().Node]++
	}
	for _, name := range trio {
		if load[name] != manyFeeds/3 {
			t.Errorf("maintainers: %v", load)
		}
		until(t, "the counts of "+name, func() bool {
			held := f.node(name).Status.Held
			return held["maintainers"] == manyFeeds/3 && held["dispatchers"] >= feedTables
		})
	}
}

func feedsDrained(t *testing.T, f *feeds) {
	target := others(trio, f.awaitLeader(""))[0]
	stay := others(trio, target)
	epoch, moved := f.record(target).Epoch, f.dispatchersOn(t, target)
	before, began := f.pauses(t, stay), time.Now()
	f.must("drain", target, "--wait")
	t.Logf("drained in %s", time.Since(began).Round(time.Millisecond))
	if told := f.pauses(t, stay) - before; told < moved {
		t.Errorf("the pauses of %d tables are told, %d dispatchers were moved", told, moved)
	}
	if held := f.node(target).Status.Held; held["maintainers"] != 0 || held["dispatchers"] != 0 {
		t.Errorf("the drained node held %v", held)
	}
	f.allFlow(stay...)
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, states := range f.states {
		f.wantOrder(name, states, target)
	}
	f.startNode(target)
	f.awaitReady(target, epoch+1)
}

// dispatchersOn is how many dispatchers of tables a node says that it has.
func (f *feeds) dispatchersOn(t *testing.T, node string) int {
	return f.sum(t, []string{node}, `^ebb_changefeed_dispatchers\{.*\} (\d+)$`)
}

// pauses is how many tables some nodes' maintainers have moved.
func (f *feeds) pauses(t *testing.T, nodes []string) int {
	return f.sum(t, nodes, `^ebb_changefeed_table_pause_seconds_count\{.*\} (\d+)$`)
}

// sum adds up what lines among the metrics of nodes tell.
func (f *feeds) sum(t *testing.T, nodes []string, line string) int {
	t.Helper()
	total, pattern := 0, regexp.MustCompile("(?m)"+line)
	for _, node := range nodes {
		_, body := f.request(t, node, "GET", "/metrics", "")
		found := pattern.FindAllStringSubmatch(body, -1)
		if len(found) == 0 {
			t.Fatalf("%s tells nothing like %s", node, line)
		}
		for _, m := range found {
			n, _ := strconv.Atoi(m[1])
			total += n
		}
	}
	return total
}

// wantOrder: while the maintainer is on the draining node no dispatcher leaves it, and epochs only grow.
func (f *feeds) wantOrder(name string, states []v1alpha1.ChangefeedStatus, target string) {
	f.t.Helper()
	most, last := int64(0), int64(0)
	for _, s := range states {
		if s.Placement == nil {
			continue
		}
		if s.Placement.Epoch < last {
			f.t.Errorf("%s: epoch %d after %d", name, s.Placement.Epoch, last)
		}
		last = s.Placement.Epoch
		here := int64(0)
		for _, n := range s.Nodes {
			if n.Node == target {
				here = n.Dispatchers
			}
		}
		if s.Placement.Node == target && here < most {
			f.t.Errorf("%s: dispatchers left %s (%d, were %d) while its maintainer was there", name, target, here, most)
		}
		most = max(most, here)
	}
}

func feedsOfKilledNode(t *testing.T, f *feeds) {
	var victim string
	for _, cf := range f.all() {
		if node := cf.Placement().Node; node != f.awaitLeader("") {
			victim = node
		}
	}
	if victim == "" {
		victim = others(trio, f.awaitLeader(""))[0]
	}
	epoch := f.record(victim).Epoch
	f.signal(victim, syscall.SIGKILL)
	died := time.Now()
	f.allFlow(others(trio, victim)...)
	t.Logf("all flow on %s after %s was killed", time.Since(died).Round(time.Millisecond), victim)
	f.startNode(victim)
	f.awaitReady(victim, epoch+1)
}

func feedsWithoutServer(t *testing.T, f *feeds) {
	epochs := map[string]int64{}
	for _, name := range trio {
		epochs[name] = f.record(name).Epoch
	}
	f.signal("apiserver", syscall.SIGKILL)
	time.Sleep(f.outage()) // the outage itself: longer than every lease
	f.startServer()
	for _, name := range trio {
		f.awaitReady(name, epochs[name]+1)
	}
	f.allFlow(trio...)
}

func feedsPaused(t *testing.T, f *feeds) {
	f.must("changefeed", "pause", "cf0")
	until(t, "cf0 to be paused", func() bool {
		cf := f.feed("cf0")
		return cf.Status.State == v1alpha1.ChangefeedPaused && cf.Placement().From != nil && cf.Placement().From.Stopped
	})
	at := f.feed("cf0").Status.Checkpoint
	f.must("changefeed", "resume", "cf0")
	f.allFlow(trio...)
	if got := f.feed("cf0").Status.Checkpoint; got <= at {
		t.Errorf("checkpoint %d after the pause, %d before", got, at)
	}
	for i := range manyFeeds {
		f.must("changefeed", "remove", fmt.Sprintf("cf%d", i))
	}
	until(t, "all to be gone", func() bool { return len(f.all()) == 0 })
	for _, name := range trio {
		until(t, "the counts of "+name+" to be zero", func() bool {
			held := f.node(name).Status.Held
			return held["maintainers"] == 0 && held["dispatchers"] == 0
		})
	}
}
