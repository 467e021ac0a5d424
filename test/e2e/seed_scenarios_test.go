package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

const (
	seedTables = 120
	// seedBatchSize is for the steps that are not about it: they take long enough.
	seedBatchSize = 3
	// shiftingFeed is the changefeed of the tables that the load makes, renames and drops.
	shiftingFeed = "extras"
	// resumeLimit is within what time a drain that had nowhere to go must go on when there is a node again. A second is meant, and
	// the test tells how long it took; a busy machine takes longer.
	resumeLimit = time.Minute
)

// seedFeeds are the changefeeds and what each carries. Together they carry every table once.
var seedFeeds = map[string][]string{
	"zeros": {"app.t*0", "app.t*3", "app.t*6", "app.t*9"}, "ones": {"app.t*1", "app.t*4", "app.t*7"}, "twos": {"app.t*2", "app.t*5", "app.t*8"},
	shiftingFeed: {"app.extra*"},
}

// seedRun is a cluster with changefeeds from one server to another under load, and the chronicle of all that happens.
type seedRun struct {
	*cluster
	source, sink *testenv.MariaDB
	load         *load
	told         *chronicle
}

// What the seed document asks of drains, with real nodes and a real MariaDB pair under load. After every step the load rests for a
// moment, every table is compared row by row, and a referee goes through every version of every object so far.
func TestSeedDocument(t *testing.T) {
	beside(t, heavy)
	s := &seedRun{source: testenv.StartMariaDB(t), sink: testenv.StartMariaDB(t, "--server-id=2")}
	s.cluster = newCluster(t, testenv.Ebb(t))
	// Steps freeze a node and have work placed on it before its lease expires.
	s.timing = lease.Timing{Renew: 2 * time.Second, Timeout: 2 * time.Second, Fence: 14 * time.Second, Dead: 15 * time.Second, Lost: 16 * time.Second}
	startNodes(t, s.cluster, 0)
	s.told = keepChronicle(t, s.client)
	s.begin(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *seedRun)
	}{
		{"scenario 7: of two nodes the coordinator dies, and the draining one goes back to work", seedTwoNodes},
		{"test 2: two maintainers at once leave a node, to where the fewest are", seedBatch},
		{"test 1: maintainers leave first, their dispatchers follow, the node stops, and data flows on", seedEndToEnd},
		{"scenario 5, property 2: with nowhere to go a drain waits, others are refused or wait, and it goes on when a node comes", seedNowhere},
		{"test 3, scenario 1: the next coordinator goes on with a drain", seedCoordinatorDies},
		{"test 4, scenarios 2 and 3: a maintainer whose destination dies goes elsewhere, not back", seedDestinationDies},
		{"property 10, scenario 4: the draining node dies", seedTargetDies},
		{"property 11: the destination dies before the origin has stopped", seedDestinationDiesEarly},
		{"scenario 6: a maintainer that cannot bootstrap is placed elsewhere", seedBootstrapFails},
		{"scenario 8: only the draining node is left", seedLastNode},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			s.t = t
			began := time.Now()
			step.run(t, s)
			t.Logf("after %s", time.Since(began).Round(time.Millisecond))
			s.check(t)
		}) {
			break
		}
	}
	s.t = t
	if t.Failed() {
		for _, e := range s.told.sorted() {
			if _, renewal := e.object.(*coordinationv1.Lease); !renewal {
				t.Log(e)
			}
		}
	}
	t.Logf("%d transactions and %d rounds of DDL", s.load.done.Load(), s.load.extra.Load())
}

// begin makes tables and changefeeds, and starts the load.
func (s *seedRun) begin(t *testing.T) {
	t.Helper()
	for _, m := range []*testenv.MariaDB{s.source, s.sink} {
		statements := []string{"CREATE DATABASE app"}
		for i := range seedTables {
			statements = append(statements, fmt.Sprintf("CREATE TABLE app.%s (id INT PRIMARY KEY, n INT, s VARCHAR(40))", loadTable(i)))
		}
		m.Exec(statements...)
	}
	s.credentials(t, s.dir.Credentials())
	s.revive(trio[:2]...)
	// What is balanced later would be moved beside what the steps move.
	s.set(`{"balanceAfter":"1h"}`)
	s.batchSize(seedBatchSize)
	for _, name := range slices.Sorted(maps.Keys(seedFeeds)) {
		cf := &v1alpha1.Changefeed{Spec: v1alpha1.ChangefeedSpec{
			Source: "mysql://" + s.source.User + "@" + s.source.Address, SourcePasswordFile: "source",
			Sink: "mysql://" + s.sink.User + "@" + s.sink.Address, SinkPasswordFile: "sink", Filter: seedFeeds[name],
		}}
		cf.Namespace, cf.Name = "default", name
		if err := s.client.Create(context.Background(), cf); err != nil {
			t.Fatal(err)
		}
	}
	for name := range seedFeeds {
		until(t, "changefeed "+name+" to run", func() bool { return feedState(s.cluster, name) == v1alpha1.ChangefeedRunning })
	}
	s.load = startLoad(t, s.source, workload{seed: 7, tables: seedTables, rest: 20 * time.Millisecond, ddlEvery: 4 * time.Second})
}

// credentials writes the password files of both servers.
func (s *seedRun) credentials(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*testenv.MariaDB{"source": s.source, "sink": s.sink} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(m.Password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// check compares the servers, and lets the referee see all that has happened.
func (s *seedRun) check(t *testing.T) {
	t.Helper()
	began := time.Now()
	s.load.pause()
	defer s.load.resume()
	wantSame(t, s.cluster, s.source, s.sink)
	t.Logf("both sides were the same %s after the load paused", time.Since(began).Round(time.Millisecond))
	for _, text := range s.judge().breaches {
		t.Error(text)
	}
}

// judge goes through everything up to now.
func (s *seedRun) judge() *referee {
	s.t.Helper()
	var feeds v1alpha1.ChangefeedList
	if err := s.client.List(context.Background(), &feeds); err != nil {
		s.t.Fatal(err)
	}
	for _, cf := range feeds.Items {
		s.told.await(s.t, &cf)
	}
	var drains v1alpha1.DrainList
	if err := s.client.List(context.Background(), &drains); err != nil {
		s.t.Fatal(err)
	}
	for _, d := range drains.Items {
		s.told.await(s.t, &d)
	}
	return s.told.judge(shiftingFeed)
}

// tale is what happened in a drain.
func (s *seedRun) tale(drain string) *story {
	s.t.Helper()
	tale := s.judge().stories[drain]
	if tale == nil {
		s.t.Fatalf("drain %s never had the slot", drain)
	}
	return tale
}

func (s *seedRun) feeds() []*v1alpha1.Changefeed { return latest[*v1alpha1.Changefeed](s.told) }

func (s *seedRun) feed(name string) *v1alpha1.Changefeed {
	s.t.Helper()
	for _, cf := range s.feeds() {
		if cf.Name == name {
			return cf
		}
	}
	s.t.Fatalf("there is no changefeed %s", name)
	return nil
}

// maintained are the changefeeds whose maintainers are on a node.
func (s *seedRun) maintained(node string) []string {
	s.t.Helper()
	var names []string
	for _, cf := range s.feeds() {
		if cf.Placement().Node == node {
			names = append(names, cf.Name)
		}
	}
	return names
}

// settled says whether everything runs where it should, on these nodes.
func (s *seedRun) settled(nodes []string) bool {
	for _, cf := range s.feeds() {
		p := cf.Placement()
		if p.Phase != v1alpha1.PlacementRunning || cf.Status.ObservedEpoch != p.Epoch || !slices.Contains(nodes, p.Node) {
			return false
		}
		total := int64(0)
		for _, on := range cf.Status.Nodes {
			if !slices.Contains(nodes, on.Node) {
				return false
			}
			total += on.Dispatchers
		}
		if total != cf.Status.Tables+1 {
			return false
		}
	}
	return true
}

// allOn waits until everything runs on these nodes.
func (s *seedRun) allOn(nodes ...string) {
	s.t.Helper()
	until(s.t, fmt.Sprintf("all changefeeds to run on %v", nodes), func() bool { return s.settled(nodes) })
}

// inService says whether a node is there for work.
func (s *seedRun) inService(name string) bool {
	for _, n := range latest[*v1alpha1.Node](s.told) {
		if n.Name == name {
			rec := s.lease(name)
			return n.IsReady() && n.Status.Liveness == v1alpha1.Alive && rec.Held() && rec.Epoch == n.Status.Epoch
		}
	}
	return false
}

// lease is who holds a node's lease.
func (s *seedRun) lease(name string) lease.Record {
	for _, l := range latest[*coordinationv1.Lease](s.told) {
		if rec, err := lease.Read(l); err == nil && rec.Node == name {
			return rec
		}
	}
	return lease.Record{}
}

// revive starts nodes that have left or were killed, and waits until they are in service.
func (s *seedRun) revive(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.startNode(name)
	}
	s.awaitService(names...)
}

func (s *seedRun) awaitService(names ...string) {
	s.t.Helper()
	for _, name := range names {
		until(s.t, "node "+name+" to be in service", func() bool { return s.inService(name) })
	}
}

// parts brings all three nodes into service and gives out the parts: the wanted target, or else the node with the most
// maintainers, is to be drained, and does not lead; of the others one leads, and the other is where maintainers go.
func (s *seedRun) parts(wanted string) (leader, target, dest string) {
	s.t.Helper()
	s.revive(slices.DeleteFunc(slices.Clone(trio), s.inService)...)
	for _, name := range trio {
		s.cordon(name, false)
	}
	s.allOn(trio...)
	target = wanted
	for _, name := range trio {
		if wanted == "" && (target == "" || len(s.maintained(name)) > len(s.maintained(target))) {
			target = name
		}
	}
	leader = s.awaitLeader("")
	if leader == target {
		s.must("resign")
		leader = s.awaitLeader(target)
	}
	dest = others(others(trio, target), leader)[0]
	s.t.Logf("%s leads, %s is drained with %v, %s takes over", leader, target, s.maintained(target), dest)
	if len(s.maintained(target)) == 0 {
		s.t.Fatalf("%s has no maintainers", target)
	}
	return leader, target, dest
}

// set changes how drains behave.
func (s *seedRun) set(drain string) {
	s.t.Helper()
	settings := &v1alpha1.Settings{}
	settings.Name = v1alpha1.SettingsName
	if err := s.client.Patch(context.Background(), settings, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"drain":%s}}`, drain))); err != nil {
		s.t.Fatal(err)
	}
}

func (s *seedRun) batchSize(n int) {
	s.t.Helper()
	s.set(fmt.Sprintf(`{"maintainerBatchSize":%d}`, n))
}

func (s *seedRun) cordon(name string, wish bool) {
	s.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"cordoned":%t}}`, wish))
	n := &v1alpha1.Node{}
	n.Name = name
	if err := s.client.Patch(context.Background(), n, patch); err != nil {
		s.t.Fatal(err)
	}
}

// freeze stops a node's process where it is; thaw lets it go on.
func (s *seedRun) freeze(name string) (thaw func()) {
	s.t.Helper()
	pid := s.pid(name)
	s.signal(name, syscall.SIGSTOP)
	thaw = func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // it may have been killed
	s.whole.Cleanup(thaw)
	return thaw
}

// midway has a node drained and returns when a maintainer is on its way to dest, which is frozen before: it cannot arrive until
// dest thaws.
func (s *seedRun) midway(name, leader, target, dest string) (feed *v1alpha1.Changefeed, thaw func()) {
	s.t.Helper()
	s.cordon(leader, true)
	thaw = s.freeze(dest)
	s.ask(name, target)
	until(s.t, "a maintainer to be on its way", func() bool {
		for _, cf := range s.feeds() {
			if p := cf.Placement(); p.Node == dest && p.Phase == v1alpha1.PlacementPlacing && p.From != nil && p.From.Node == target {
				feed = cf
				return true
			}
		}
		return false
	})
	s.cordon(leader, false)
	return feed, thaw
}

// blocked has a node drained that has nowhere to go.
func (s *seedRun) blocked(name, target string, rest ...string) {
	s.t.Helper()
	for _, other := range rest {
		s.cordon(other, true)
	}
	stuck := s.maintained(target)
	s.ask(name, target)
	until(s.t, "the drain to say that there is no node to go to", func() bool {
		left := slices.Clone(stuck)
		for _, d := range latest[*v1alpha1.Drain](s.told) {
			for _, b := range d.Status.Blockers {
				if d.Name == name && b.Kind == "Changefeed" && b.Reason == v1alpha1.ReasonNoSchedulableNode {
					left = others(left, b.Name)
				}
			}
		}
		return len(left) == 0
	})
}

// exits waits until a process is gone.
func (s *seedRun) exits(pid int) {
	s.t.Helper()
	until(s.t, "the process to be gone", func() bool { return syscall.Kill(pid, 0) != nil })
}

func (s *seedRun) kill(name string) {
	s.t.Helper()
	pid := s.pid(name)
	s.signal(name, syscall.SIGKILL)
	s.exits(pid)
}

// survives: with every other node killed, a draining node is Alive and leads again in a new epoch, and its drain is cancelled.
func (s *seedRun) survives(t *testing.T, drain, target string, rest ...string) {
	t.Helper()
	s.blocked(drain, target, rest...)
	epoch := s.lease(target).Epoch
	for _, other := range rest {
		s.kill(other)
	}
	s.awaitEnd(drain, v1alpha1.DrainCancelled, v1alpha1.ReasonLoneSurvivor)
	until(t, target+" to lead", func() bool { return s.leader() == target && s.node(target).Status.Coordinator })
	if n := s.node(target); n.Status.Epoch <= epoch || n.Status.Liveness != v1alpha1.Alive {
		t.Errorf("%s is %s in epoch %d, and was drained in epoch %d", target, n.Status.Liveness, n.Status.Epoch, epoch)
	}
	s.allOn(target)
}

func seedTwoNodes(t *testing.T, s *seedRun) {
	leader := s.awaitLeader("")
	target := others([]string{"n1", "n2"}, leader)[0]
	if len(s.maintained(target)) != len(seedFeeds)/2 || len(s.maintained(leader)) != len(seedFeeds)/2 {
		t.Errorf("maintainers: %v on %s, %v on %s", s.maintained(target), target, s.maintained(leader), leader)
	}
	s.survives(t, "two-nodes", target, leader)
}

func seedLastNode(t *testing.T, s *seedRun) {
	leader, target, dest := s.parts("")
	s.survives(t, "last-node", target, leader, dest)
}

func seedBatch(t *testing.T, s *seedRun) {
	leader, target, dest := s.parts("")
	leaving := s.maintained(target)
	s.must("settings", "set", "drain-maintainer-batch-size=2")
	s.ask("batch", target)
	s.awaitEnd("batch", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.batchSize(seedBatchSize)
	tale := s.tale("batch")
	if tale.inFlight != 2 || len(tale.departed) < len(leaving) {
		t.Errorf("%d were on their way at once, %v left of %v", tale.inFlight, tale.departed, leaving)
	}
	if n := tale.destinations[leader] - tale.destinations[dest]; len(leaving) == len(seedFeeds) && n != 0 {
		t.Errorf("they went to %v", tale.destinations)
	}
	s.allOn(leader, dest)
}

func seedEndToEnd(t *testing.T, s *seedRun) {
	leader, target, dest := s.parts("")
	leaving, pid := s.maintained(target), s.pid(target)
	s.batchSize(1)
	began := time.Now()
	said := s.must("drain", target, "--wait")
	t.Logf("drained under load in %s:\n%s", time.Since(began).Round(time.Millisecond), said)
	s.exits(pid)
	tale := s.tale(s.lastDrain(target))
	if !slices.Equal(tale.liveness, []v1alpha1.Liveness{v1alpha1.Draining, v1alpha1.Stopping}) {
		t.Errorf("%s was %v", target, tale.liveness)
	}
	if len(tale.stages) == 0 || tale.stages[0] != "MigratingMaintainers" {
		t.Errorf("stages: %v", tale.stages)
	}
	for _, name := range leaving {
		if !tale.departed[name] {
			t.Errorf("%s did not leave: %v", name, tale.departed)
		}
	}
	if tale.gone == 0 || tale.inFlight != 1 {
		t.Errorf("%d dispatchers were seen to leave, and %d maintainers at once", tale.gone, tale.inFlight)
	}
	for name, at := range tale.from {
		if tale.to[name] <= at {
			t.Errorf("the checkpoint of %s was %d when the drain began and %d when it ended", name, at, tale.to[name])
		}
	}
	s.batchSize(seedBatchSize)
	s.allOn(leader, dest)
}

// lastDrain is the newest drain of a node.
func (s *seedRun) lastDrain(node string) string {
	s.t.Helper()
	var drains v1alpha1.DrainList
	if err := s.client.List(context.Background(), &drains); err != nil {
		s.t.Fatal(err)
	}
	var last v1alpha1.Drain
	for _, d := range drains.Items {
		if d.Spec.NodeName == node && d.CreationTimestamp.After(last.CreationTimestamp.Time) {
			last = d
		}
	}
	return last.Name
}

func seedNowhere(t *testing.T, s *seedRun) {
	leader, target, third := s.parts("")
	stuck := s.maintained(target)
	s.blocked("nowhere", target, leader, third)
	s.wantWarnings(t, stuck, s.tale("nowhere").began)
	s.wantRemaining(t, leader, target)
	s.wantBusy(t, leader, target, third)

	pid := s.pid(third)
	s.signal(third, syscall.SIGTERM)
	s.exits(pid)
	s.cordon(third, false)
	s.revive(third)
	s.awaitEnd("nowhere", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.wantResumed(t, "nowhere", third)
	for _, name := range stuck {
		if p := s.feed(name).Placement(); p.Node != third {
			t.Errorf("%s is %+v", name, p)
		}
	}
	s.allOn(leader, third)
}

// wantBusy: while a drain runs, another is refused, and one that may wait does.
func (s *seedRun) wantBusy(t *testing.T, leader, target, third string) {
	t.Helper()
	s.expect(t, third, http.MethodPut, drainPath(third), inProgress)
	s.expect(t, leader, http.MethodPut, drainPath(target), inProgress)
	s.kubectlRefused(t, third, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain nowhere of node "+target)
	waits := s.ask("second", third, func(d *v1alpha1.Drain) { d.Spec.WhenBusy = v1alpha1.Queue })
	until(t, "the second drain to wait", func() bool {
		return s.client.Get(context.Background(), types.NamespacedName{Name: waits.Name}, waits) == nil && waits.Status.Phase == v1alpha1.DrainPending
	})
	if err := s.client.Delete(context.Background(), waits); err != nil {
		t.Fatal(err)
	}
}

// wantWarnings waits for an event about each changefeed that has nowhere to go.
func (s *seedRun) wantWarnings(t *testing.T, stuck []string, since time.Time) {
	t.Helper()
	until(t, "a warning about each changefeed", func() bool {
		var list eventsv1.EventList
		if s.client.List(context.Background(), &list, client.InNamespace("default")) != nil {
			return false
		}
		left := slices.Clone(stuck)
		for _, e := range list.Items {
			if e.Type == corev1.EventTypeWarning && e.Reason == v1alpha1.ReasonNoSchedulableNode && e.Regarding.Kind == "Changefeed" && e.EventTime.After(since) {
				left = others(left, e.Regarding.Name)
			}
		}
		return len(left) == 0
	})
}

// wantRemaining compares what the HTTP API tells of a drain that stands still with the objects. A table trigger counts as a
// dispatcher, on its maintainer's node.
func (s *seedRun) wantRemaining(t *testing.T, via, target string) {
	t.Helper()
	token, err := datadir.ReadToken(s.dir.Token())
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	defer func() {
		if t.Failed() {
			t.Log(last)
		}
	}()
	until(t, "the HTTP API to tell what is left", func() bool {
		want := map[string]int64{}
		for _, cf := range s.feeds() {
			if cf.Status.ObservedDrain == "" {
				return false
			}
			if n := dispatchersOn(cf, target); n > 0 {
				want[cf.Name] = n
			}
		}
		code, body := s.request(t, via, http.MethodGet, drainPath(target), token)
		got := decode[struct {
			IsDraining  bool             `json:"is_draining"`
			Maintainers int              `json:"remaining_maintainer_count"`
			Dispatchers map[string]int64 `json:"remaining_dispatcher_count"`
		}](t, body)
		last = fmt.Sprintf("%d %s, want %v of %v", code, body, want, s.maintained(target))
		for _, name := range s.maintained(target) {
			if want[name] == 0 {
				return false // its table trigger is there
			}
		}
		return code == http.StatusOK && got.IsDraining && got.Maintainers == len(s.maintained(target)) && maps.Equal(got.Dispatchers, want)
	})
}

func seedCoordinatorDies(t *testing.T, s *seedRun) {
	leader, target, dest := s.parts("")
	_, thaw := s.midway("coordinator-dies", leader, target, dest)
	s.kill(leader)
	thaw()
	if next := s.awaitLeader(leader); next != dest {
		t.Errorf("%s leads while %s drains", next, target)
	}
	s.awaitEnd("coordinator-dies", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.allOn(dest)
}

func seedDestinationDies(t *testing.T, s *seedRun) {
	leader, target, dest := s.parts("")
	feed, _ := s.midway("destination-dies", leader, target, dest)
	until(t, "the origin to have stopped", func() bool {
		from := s.feed(feed.Name).Placement().From
		return from != nil && from.Stopped
	})
	s.kill(dest)
	s.awaitEnd("destination-dies", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.wantRoute(t, feed, leader)
	s.allOn(leader)
	s.startNode(target, longLeases...) // for the next but one
	s.awaitService(target)
}

// wantRoute wants that the maintainer which was on its way has gone to a node instead, in the next epoch.
func (s *seedRun) wantRoute(t *testing.T, feed *v1alpha1.Changefeed, node string) {
	t.Helper()
	if p := s.feed(feed.Name).Placement(); p.Node != node || p.Epoch != feed.Placement().Epoch+1 {
		t.Errorf("%s was sent with %+v and is %+v, want on %s in the next epoch", feed.Name, feed.Placement(), p, node)
	}
}

func seedTargetDies(t *testing.T, s *seedRun) {
	leader, target, dest := s.parts("")
	_, thaw := s.midway("target-dies", leader, target, dest)
	s.kill(target)
	thaw()
	s.awaitEnd("target-dies", v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone)
	s.allOn(leader, dest)
}

func seedDestinationDiesEarly(t *testing.T, s *seedRun) {
	patient := ""
	for _, name := range trio {
		if s.inService(name) && s.lease(name).Duration > time.Minute {
			patient = name
		}
	}
	if patient == "" {
		t.Fatal("no node has a lease that outlasts a freeze: test 4 starts one and leaves it; run both")
	}
	leader, target, dest := s.parts(patient)
	thaw := s.freeze(target) // it cannot say that its maintainer has stopped
	feed, _ := s.midway("destination-dies-early", leader, target, dest)
	s.kill(dest)
	until(t, "the maintainer to be sent elsewhere", func() bool { return s.feed(feed.Name).Placement().Epoch > feed.Placement().Epoch })
	p := s.feed(feed.Name).Placement()
	if p.Node != leader || p.Phase != v1alpha1.PlacementPlacing || p.From == nil || *p.From != *feed.Placement().From {
		t.Errorf("%s was sent with %+v and then with %+v from %+v", feed.Name, feed.Placement(), p, p.From)
	}
	thaw()
	s.awaitEnd("destination-dies-early", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.wantRoute(t, feed, leader)
	s.allOn(leader)
}

// wantResumed wants that maintainers or dispatchers left soon after there was a node to go to.
func (s *seedRun) wantResumed(t *testing.T, drain, node string) {
	t.Helper()
	tale, before := s.tale(drain), map[string]*v1alpha1.Changefeed{}
	var came, moved, sent time.Time
	for _, e := range s.told.sorted() {
		switch o := e.object.(type) {
		case *v1alpha1.Node:
			switch {
			case o.Name != node || e.seen.Before(tale.began) || !moved.IsZero():
			case !o.Schedulable():
				came = time.Time{}
			case came.IsZero():
				came = e.seen
			}
		case *v1alpha1.Changefeed:
			old := before[o.Name]
			before[o.Name] = o
			if came.IsZero() || old == nil {
				continue
			}
			left := old.Placement().Node == tale.node && o.Placement().Node != tale.node
			if left && sent.IsZero() {
				sent = e.seen
			}
			if moved.IsZero() && (left || dispatchersOn(o, tale.node) < dispatchersOn(old, tale.node)) {
				moved = e.seen
			}
		}
	}
	t.Logf("something moved %s after the node was there, and a maintainer after %s", moved.Sub(came).Round(time.Millisecond), sent.Sub(came).Round(time.Millisecond))
	if came.IsZero() || moved.IsZero() || moved.Sub(came) > resumeLimit {
		t.Errorf("the node was there at %s and something moved at %s", came, moved)
	}
}

func seedBootstrapFails(t *testing.T, s *seedRun) {
	leader, target, dest := s.parts("")
	// A node without the password of the source cannot begin to maintain anything.
	epoch, passwords := s.lease(dest).Epoch, filepath.Join(s.whole.TempDir(), "credentials")
	if err := os.Mkdir(passwords, 0o700); err != nil {
		t.Fatal(err)
	}
	pid := s.pid(dest)
	s.signal(dest, syscall.SIGTERM)
	s.exits(pid)
	s.allOn(leader, target)
	s.startNode(dest, "--credentials-dir", passwords)
	s.awaitService(dest)
	if got := s.lease(dest).Epoch; got <= epoch {
		t.Fatalf("%s is in epoch %d", dest, got)
	}
	s.set(`{"bootstrapTimeout":"15s"}`)
	s.cordon(leader, true)
	s.ask("bootstrap-fails", target)
	var feed *v1alpha1.Changefeed
	until(t, "a maintainer that cannot begin", func() bool {
		for _, cf := range s.feeds() {
			if p := cf.Placement(); p.Node == dest && strings.Contains(cf.Status.Error, "password file") {
				feed = cf
				return true
			}
		}
		return false
	})
	s.cordon(leader, false)
	began := time.Now()
	until(t, "it to be placed elsewhere", func() bool { return s.feed(feed.Name).Placement().Epoch > feed.Placement().Epoch })
	t.Logf("%s was placed elsewhere after another %s", feed.Name, time.Since(began).Round(time.Millisecond))
	s.set(`{"bootstrapTimeout":"30s"}`)
	s.credentials(t, passwords) // others are on their way to it, and so are tables
	until(t, "it to run elsewhere", func() bool { return s.feed(feed.Name).Placement().Phase == v1alpha1.PlacementRunning })
	s.wantRoute(t, feed, leader)
	s.awaitEnd("bootstrap-fails", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.allOn(leader, dest)
}
