package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

const (
	chaosTables = 20 // of each of the two changefeeds with a fixed set of tables
	// stalled is how long a checkpoint may stand still, whatever is broken. It is written every ten seconds.
	stalled = 3 * time.Minute
	// catchUpLimit is how long it may take to carry what was left when the load ended.
	catchUpLimit = 5 * time.Minute
	// apiServer, sourceServer and sinkServer are what breaks besides nodes.
	apiServer, sourceServer, sinkServer = "apiserver", "source", "sink"
)

// breakage is a way in which something breaks.
type breakage struct {
	name string
	// what breaks if it is not a node.
	what string
	// shortest and longest are for how long it stays broken.
	shortest, longest time.Duration
	// weight is how often it is drawn.
	weight int
	run    func(*chaos, event) error
}

var breakages = []breakage{
	{name: "kill node", longest: 14 * time.Second, weight: 4, run: (*chaos).killNode},
	{name: "freeze node", shortest: 300 * time.Millisecond, longest: 16 * time.Second, weight: 4, run: (*chaos).freeze},
	{name: "drain node", longest: 5 * time.Second, weight: 4, run: (*chaos).drain},
	{name: "kill coordinator", longest: 14 * time.Second, weight: 2, run: (*chaos).killNode},
	{name: "freeze coordinator", shortest: 300 * time.Millisecond, longest: 16 * time.Second, weight: 1, run: (*chaos).freeze},
	{name: "resign", weight: 2, run: (*chaos).resign},
	{name: "kill API server", what: apiServer, shortest: time.Second, longest: 15 * time.Second, weight: 3, run: (*chaos).killServer},
	{name: "freeze API server", what: apiServer, shortest: time.Second, longest: 15 * time.Second, weight: 1, run: (*chaos).freeze},
	{name: "kill source", what: sourceServer, longest: 8 * time.Second, weight: 2, run: (*chaos).killDatabase},
	{name: "kill sink", what: sinkServer, longest: 8 * time.Second, weight: 2, run: (*chaos).killDatabase},
	{name: "kill machine", longest: 14 * time.Second, weight: 3, run: (*chaos).killMachine},
	{name: "move node", longest: 8 * time.Second, weight: 2, run: (*chaos).moveNode},
	{name: "kill shims", weight: 2, run: (*chaos).killShims},
	{name: "kill members", weight: 2, run: (*chaos).killMembers},
	{name: "freeze members", shortest: 300 * time.Millisecond, longest: 16 * time.Second, weight: 2, run: (*chaos).freezeMembers},
	{name: "cancel drain of node", longest: 3 * time.Second, weight: 3, run: (*chaos).cancelDrain},
	{name: "fill disk", what: smallNode, shortest: time.Second, longest: 20 * time.Second, weight: 2, run: (*chaos).fillDisk},
	{name: "attach volume elsewhere", what: chaosVolume, weight: 3, run: (*chaos).attachElsewhere},
	{name: "change the volume policy", what: "settings", weight: 1, run: (*chaos).changePolicy},
	{name: "resize etcd", what: chaosEtcd, longest: 10 * time.Second, weight: 3, run: (*chaos).resizeEtcd},
	{name: "stop and start etcd", what: chaosEtcd, longest: 10 * time.Second, weight: 2, run: (*chaos).stopEtcd},
}

// event is one thing that breaks, as drawn from the seed. Which node a number means depends on who leads.
type event struct {
	breakage
	number int
	pick   int           // a number that the node is chosen by
	hold   time.Duration // how long it stays broken
	pause  time.Duration // afterwards
	pair   bool          // the next event begins at the same time
	alone  bool          // nothing else is broken meanwhile
	target string        // what it breaks, once that is known
}

// events draws events from a seed, always the same.
type events struct {
	r *rand.Rand
	n int
}

func (s *events) next() event {
	total := 0
	for _, b := range breakages {
		total += b.weight
	}
	s.n++
	e := event{number: s.n}
	at := s.r.IntN(total)
	for _, b := range breakages {
		if at -= b.weight; at < 0 {
			e.breakage = b
			break
		}
	}
	e.pick = s.r.IntN(1 << 16)
	e.hold = e.shortest + time.Duration(s.r.Int64N(int64(e.longest-e.shortest)+1)).Round(time.Millisecond)
	e.pause = time.Duration(s.r.Int64N(int64(4 * time.Second))).Round(time.Millisecond)
	e.pair = s.r.IntN(4) == 0
	return e
}

// chaos is a cluster in which things break.
type chaos struct {
	*cluster
	test         *testing.T
	began        time.Time
	source, sink *testenv.MariaDB
	nodes        []string
	listen       sync.Map        // where a node listens that got another address, by name
	broken       map[string]bool // of the loop alone
	work         *chaosWork

	service sync.Mutex // held while a node that killed itself is started again
	over    bool       // no node is started again
}

// TestChaos breaks nodes, programs, members, disks, the coordinator, the API server, the source and the sink at random, while one cluster
// carries every kind of work under load. Each kind has a referee: in the end every table is the same on both sides, row by row and by
// SHOW CREATE TABLE; every acknowledged key is in the etcd cluster at its value and revision; no program ran twice at once; every
// acknowledged block is in the volume. EBB_CHAOS_FOR is for how long, and EBB_CHAOS_SEED repeats the events of an earlier run.
func TestChaos(t *testing.T) {
	beside(t, heavy)
	seed, length := chaosSettings(t)
	t.Logf("seed %d for %s; the same events again: EBB_CHAOS_SEED=%d EBB_CHAOS_FOR=%s make chaos", seed, length, seed, length)
	c := &chaos{test: t, broken: map[string]bool{}, source: testenv.StartMariaDB(t), sink: testenv.StartMariaDB(t, "--server-id=2")}
	c.cluster = newCluster(t, testenv.Ebb(t))
	if length > shortChaos {
		c.timing = lease.DefaultTiming()
	}
	c.launchNode = c.serve
	defer c.endService()
	c.startAll()
	defer c.dump()
	c.begin()
	l := startLoad(t, c.source, workload{seed: seed, tables: chaosTables, rest: 10 * time.Millisecond, ddlEvery: 2 * time.Second})
	c.work = c.beginWork(seed)
	watch := c.watch()
	c.began = time.Now()
	c.breakThings(&events{r: rand.New(rand.NewPCG(seed, 0))}, length, watch)

	// Once more with nothing else broken, so that every run has had a drain.
	c.settle()
	clear(c.broken)
	last := event{breakage: breakage{name: "drain node"}, alone: true}
	last.target = c.choose(last)
	if err := c.drain(last); err != nil {
		t.Fatal(err)
	}
	c.settle()
	l.end()
	t.Logf("%d transactions and %d rounds of DDL", l.done.Load(), l.extra.Load())
	c.work.endHistories()
	c.catchUp()
	watch.end()
	t.Logf("a checkpoint stood still for %s at most", watch.longest.Round(time.Second))
	wantSame(t, c.cluster, c.source, c.sink)
	c.work.check()
	c.remove()
}

// The short form is the same every time, and has the leases of tests.
const (
	shortChaos     = 45 * time.Second
	shortChaosSeed = 1
	longChaos      = 10 * time.Minute
)

// chaosSettings are the seed and the length of a run.
func chaosSettings(t *testing.T) (seed uint64, length time.Duration) {
	t.Helper()
	seed, length = shortChaosSeed, testlength.Pick(shortChaos, longChaos)
	var err error
	if text := os.Getenv("EBB_CHAOS_FOR"); text != "" {
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	if length != shortChaos {
		seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	if text := os.Getenv("EBB_CHAOS_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return seed, length
}

// begin makes the changefeeds and the tables of the load.
func (c *chaos) begin() {
	c.t.Helper()
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		c.t.Fatal(err)
	}
	for name, m := range map[string]*testenv.MariaDB{"source": c.source, "sink": c.sink} {
		if err := os.WriteFile(filepath.Join(c.dir.Credentials(), name), []byte(m.Password+"\n"), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	c.must("changefeed", "create", "app", "--source", "mysql://"+c.source.User+"@"+c.source.Address, "--source-password-file", "source",
		"--sink", "mysql://"+c.sink.User+"@"+c.sink.Address, "--sink-password-file", "sink", "--filter", "app.*")
	c.must("changefeed", "create", "made", "--source", fmt.Sprintf("datagen://?tables=%d&rate=100&seed=1", chaosTables), "--sink", "blackhole://")
	for _, name := range []string{"app", "made"} {
		until(c.t, "changefeed "+name+" to run", func() bool { return feedState(c.cluster, name) == v1alpha1.ChangefeedRunning })
	}
	c.source.Exec("CREATE DATABASE app")
	for i := range chaosTables {
		c.source.Exec(fmt.Sprintf("CREATE TABLE app.%s (id INT PRIMARY KEY, n INT, s VARCHAR(40))", loadTable(i)))
	}
}

// logf tells what happens, and when.
func (c *chaos) logf(format string, args ...any) {
	c.test.Helper()
	c.test.Logf("%6.1fs  %s", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// breakThings goes on until the time is over. What an event broke is whole again when the next one begins, except that
// sometimes two come at once.
func (c *chaos) breakThings(s *events, length time.Duration, watch *feedWatch) {
	c.t.Helper()
	for time.Since(c.began) < length {
		both := []event{s.next()}
		if both[0].pair {
			both = append(both, s.next())
		}
		clear(c.broken)
		var wg sync.WaitGroup
		failed := make([]error, len(both))
		for i, e := range both {
			e.alone = len(both) == 1
			// They were chosen for leases as they are by default.
			e.hold = time.Duration(float64(e.hold) * c.timing.Lost.Seconds() / lease.DefaultTiming().Lost.Seconds()).Round(time.Millisecond)
			e.target = c.choose(e)
			if c.broken[e.target] {
				c.logf("%3d %s: broken already", e.number, e.name)
				continue
			}
			if e.name == "move node" {
				if c.broken[chaosEtcd] {
					c.logf("%3d %s: the etcd cluster is being changed", e.number, e.name)
					continue
				}
				c.broken[chaosEtcd] = true
			}
			c.broken[e.target] = true
			c.logf("%3d %s: %s for %s", e.number, e.name, e.target, e.hold)
			wg.Go(func() { failed[i] = e.run(c, e) })
		}
		wg.Wait()
		for i, err := range failed {
			if err != nil {
				c.t.Errorf("event %d, %s: %v", both[i].number, both[i].name, err)
			}
		}
		c.settle()
		if name, since := watch.still(); since > stalled {
			c.t.Errorf("the checkpoint of %s has stood still for %s", name, since.Round(time.Second))
		}
		for _, fault := range c.work.faults() {
			c.t.Error(fault)
		}
		if c.t.Failed() {
			c.t.Fatalf("after %s", time.Since(c.began).Round(time.Second))
		}
		time.Sleep(both[len(both)-1].pause) // for how long nothing is broken
	}
}

// choose says what an event breaks.
func (c *chaos) choose(e event) string {
	if e.what != "" {
		return e.what
	}
	leader := ""
	c.await("a coordinator", func(ctx context.Context) bool { leader = c.leads(ctx); return leader != "" })
	if strings.HasSuffix(e.name, "coordinator") || e.name == "resign" {
		return leader
	}
	nodes := c.nodes
	if strings.HasSuffix(e.name, "drain node") || strings.HasSuffix(e.name, "drain of node") {
		nodes = others(c.nodes, leader)
	}
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(name string) bool { return c.broken[name] })
	return nodes[e.pick%len(nodes)]
}

// await is until, for questions that the API server may not answer just now. It gives up without an end to the test, since
// events run beside it.
func (c *chaos) await(what string, holds func(context.Context) bool) bool {
	deadline := time.Now().Add(patience)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		ok := holds(ctx)
		cancel()
		if ok {
			return true
		}
		if time.Now().After(deadline) {
			c.test.Errorf("waited %s for %s", patience, what)
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// leads is who leads and says so, or nothing.
func (c *chaos) leads(ctx context.Context) string {
	n := &v1alpha1.Node{}
	name, err := coordinator.Locate(ctx, c.client)
	if err != nil || c.client.Get(ctx, types.NamespacedName{Name: name}, n) != nil || !n.Status.Coordinator || !n.IsReady() {
		return ""
	}
	return name
}

// epochOf is the epoch in a node's lease, and whether it is held.
func (c *chaos) epochOf(ctx context.Context, name string) (epoch int64, held, ok bool) {
	l := &coordinationv1.Lease{}
	if c.client.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(name)}, l) != nil {
		return 0, false, false
	}
	r, err := lease.Read(l)
	return r.Epoch, r.Held(), err == nil
}

// ready says whether a node is in service in an epoch after another.
func (c *chaos) ready(ctx context.Context, name string, after int64) bool {
	n := &v1alpha1.Node{}
	epoch, held, ok := c.epochOf(ctx, name)
	return ok && held && epoch > after && c.client.Get(ctx, types.NamespacedName{Name: name}, n) == nil &&
		n.IsReady() && n.Status.Liveness == v1alpha1.Alive && n.Status.Epoch == epoch
}

// settle waits until nothing is broken any more.
func (c *chaos) settle() {
	c.t.Helper()
	for _, name := range c.nodes {
		if !c.await("node "+name+" to be in service", func(ctx context.Context) bool { return c.ready(ctx, name, 0) }) {
			return
		}
	}
	c.await("a coordinator, and no drain", func(ctx context.Context) bool { return c.leads(ctx) != "" && c.noDrain(ctx) })
}

// noDrain says that none runs or waits.
func (c *chaos) noDrain(ctx context.Context) bool {
	settings, drains := &v1alpha1.Settings{}, &v1alpha1.DrainList{}
	if c.client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings) != nil || settings.Status.ActiveDrain != nil || c.client.List(ctx, drains) != nil {
		return false
	}
	return !slices.ContainsFunc(drains.Items, func(d v1alpha1.Drain) bool { return !d.Status.Phase.Final() })
}

// process finds one of the cluster's processes; alive says whether it runs.
func (c *chaos) process(name string) (pid int, alive bool, err error) {
	data, err := os.ReadFile(c.dir.PIDFile(name))
	if err != nil {
		if os.IsNotExist(err) {
			err = nil // it ended in order
		}
		return 0, false, err
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(string(data))); err != nil {
		return 0, false, err
	}
	return pid, syscall.Kill(pid, 0) == nil, nil
}

// kill ends a process at once.
func (c *chaos) kill(name string) error {
	pid, alive, err := c.process(name)
	if err != nil || !alive {
		return fmt.Errorf("%s does not run: %w", name, err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	c.await(name+" to be gone", func(context.Context) bool { return syscall.Kill(pid, 0) != nil })
	return nil
}

// restart starts a node and waits until it is in service in a new epoch.
func (c *chaos) restart(name string, after int64) {
	var args []string
	if listen, ok := c.listen.Load(name); ok {
		args = []string{"--listen", listen.(string)}
	}
	c.startNode(name, args...)
	if c.await("node "+name+" to be back", func(ctx context.Context) bool { return c.ready(ctx, name, after) }) {
		c.logf("    %s is back", name)
	}
}

// killedItself is the exit status of a node whose work did not stop before its lease expired.
const killedItself = 3

// serve runs a node as a service manager does: it is started again if it killed itself.
func (c *chaos) serve(name string, args ...string) *process {
	p := c.start(append([]string{"node", "--name", name, "--data-dir", string(c.dir)}, args...)...)
	go func() {
		<-p.done
		if p.cmd.ProcessState.ExitCode() != killedItself {
			return
		}
		c.service.Lock()
		defer c.service.Unlock()
		if !c.over {
			c.logf("    %s killed itself and is started again: %s", name, lastLine(p.out.String()))
			c.serve(name, args...)
		}
	}()
	return p
}

func (c *chaos) endService() {
	c.service.Lock()
	defer c.service.Unlock()
	c.over = true
}

func (c *chaos) killNode(e event) error {
	var epoch int64
	c.await("the lease of "+e.target, func(ctx context.Context) (ok bool) { epoch, _, ok = c.epochOf(ctx, e.target); return ok })
	if err := c.kill(e.target); err != nil {
		return err
	}
	time.Sleep(e.hold) // for how long it is down
	c.restart(e.target, epoch)
	return nil
}

func (c *chaos) freeze(e event) error {
	pid, alive, err := c.process(e.target)
	if err != nil || !alive {
		return fmt.Errorf("%s does not run: %w", e.target, err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(e.hold) // for how long it is frozen
	return syscall.Kill(pid, syscall.SIGCONT)
}

func (c *chaos) killServer(e event) error {
	if err := c.kill(apiServer); err != nil {
		return err
	}
	time.Sleep(e.hold) // for how long it is down
	c.startServer()
	c.await("the API server", func(ctx context.Context) bool {
		return c.client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, &v1alpha1.Settings{}) == nil
	})
	return nil
}

func (c *chaos) killDatabase(e event) error {
	m := c.source
	if e.target == sinkServer {
		m = c.sink
	}
	address := m.Address
	m.Kill()
	time.Sleep(e.hold) // for how long it is down
	m.Start()
	if m.Address != address {
		return fmt.Errorf("the %s came back at %s, not at %s", e.target, m.Address, address)
	}
	return nil
}

func (c *chaos) resign(e event) error {
	out, errs, code := c.cluster.run("resign")
	c.logf("    %s", strings.TrimSpace(out+errs))
	if code != 0 && e.alone {
		return fmt.Errorf("exit %d", code)
	}
	return nil
}

// drain empties a node, looks at what is left there, and starts it again.
func (c *chaos) drain(e event) error {
	var epoch int64
	c.await("the lease of "+e.target, func(ctx context.Context) (ok bool) { epoch, _, ok = c.epochOf(ctx, e.target); return ok })
	began := time.Now()
	out, errs, code := c.cluster.run("drain", e.target, "--wait")
	c.logf("    drain of %s: exit %d after %s: %s", e.target, code, time.Since(began).Round(time.Millisecond), lastLine(out+errs))
	// With something else broken the command may have lost sight of it, and the node may have come to lead.
	refused := strings.Contains(errs, v1alpha1.ReasonTargetIsCoordinator)
	if code != 0 && e.alone && !refused {
		return fmt.Errorf("exit %d: %s%s", code, out, errs)
	}
	c.await("the drain to end", c.noDrain)
	if code == 0 {
		if err := c.wantEmpty(e.target, epoch); err != nil {
			return err
		}
	}
	// A node that was drained exits; one whose drain was refused or cancelled does not.
	over := func(ctx context.Context) bool {
		_, alive, err := c.process(e.target)
		return err == nil && !alive || code != 0 && c.ready(ctx, e.target, 0)
	}
	if !c.await("the end of "+e.target, over) {
		return nil
	}
	if _, alive, _ := c.process(e.target); alive {
		return nil
	}
	time.Sleep(e.hold) // for how long it is down
	c.restart(e.target, epoch)
	return nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// wantEmpty looks at a node that was drained.
func (c *chaos) wantEmpty(name string, epoch int64) error {
	var feeds v1alpha1.ChangefeedList
	n := &v1alpha1.Node{}
	c.await("the objects", func(ctx context.Context) bool {
		return c.client.List(ctx, &feeds) == nil && c.client.Get(ctx, types.NamespacedName{Name: name}, n) == nil
	})
	for kind, count := range n.Status.Held {
		// A replica stays on the disk of a node that goes, if the policy lets it.
		if n.Status.Epoch == epoch && count != 0 && kind != "replicas" {
			return fmt.Errorf("the drained node %s holds %d %s", name, count, kind)
		}
	}
	if err := c.work.wantNothingOn(name); err != nil {
		return err
	}
	for _, cf := range feeds.Items {
		if p := cf.Placement(); p.Node == name {
			return fmt.Errorf("the maintainer of %s is on the drained node: %+v", cf.Name, p)
		}
		for _, on := range cf.Status.Nodes {
			if on.Node == name && on.Dispatchers > 0 {
				return fmt.Errorf("%s has %d dispatchers on the drained node %s", cf.Name, on.Dispatchers, name)
			}
		}
	}
	return nil
}

// feedWatch looks at the changefeeds while things break.
type feedWatch struct {
	stop    context.CancelFunc
	done    sync.WaitGroup
	longest time.Duration // that a checkpoint stood still; after the end

	mu    sync.Mutex
	moved map[string]time.Time // when the checkpoint was last seen to go on
}

// watch sees that no changefeed fails, and that epochs and checkpoints only grow.
func (c *chaos) watch() *feedWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &feedWatch{stop: cancel, moved: map[string]time.Time{"app": time.Now(), "made": time.Now()}}
	last := map[string]v1alpha1.Changefeed{}
	w.done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(250 * time.Millisecond) {
			var list v1alpha1.ChangefeedList
			call, cancel := context.WithTimeout(ctx, 5*time.Second)
			err := c.client.List(call, &list, client.InNamespace("default"))
			cancel()
			if err != nil {
				continue // the server is away
			}
			for _, cf := range list.Items {
				if _, ours := w.moved[cf.Name]; !ours {
					continue // a history has its own referee
				}
				before, known := last[cf.Name]
				last[cf.Name] = cf
				if cf.Status.State == v1alpha1.ChangefeedFailed && before.Status.State != v1alpha1.ChangefeedFailed {
					c.test.Errorf("changefeed %s failed: %s", cf.Name, cf.Status.Error)
				}
				if known && (cf.Placement().Epoch < before.Placement().Epoch || cf.Status.Checkpoint < before.Status.Checkpoint) {
					c.test.Errorf("changefeed %s went back:\n%+v\n%+v", cf.Name, before.Status, cf.Status)
				}
				if known && cf.Status.Checkpoint > before.Status.Checkpoint {
					w.mu.Lock()
					w.longest = max(w.longest, time.Since(w.moved[cf.Name]))
					w.moved[cf.Name] = time.Now()
					w.mu.Unlock()
				}
				if known && cf.Status.Slowest != before.Status.Slowest && cf.Status.Checkpoint == before.Status.Checkpoint {
					c.logf("     %s is held at %d: %s", cf.Name, cf.Status.Checkpoint, cf.Status.Slowest)
				}
			}
		}
	})
	c.test.Cleanup(w.end)
	return w
}

func (w *feedWatch) end() {
	w.stop()
	w.done.Wait()
}

// still is the changefeed whose checkpoint has stood still for longest.
func (w *feedWatch) still() (name string, since time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for feed, at := range w.moved {
		if d := time.Since(at); d > since {
			name, since = feed, d
		}
	}
	return name, since
}

// catchUp sees that checkpoints go on: one up to the end of the source's log, the other without end.
func (c *chaos) catchUp() {
	c.t.Helper()
	head, made := c.source.Value("SELECT @@gtid_binlog_pos"), checkpointOf(c.cluster, "made")
	end, err := strconv.ParseInt(head[strings.LastIndexByte(head, '-')+1:], 10, 64)
	if err != nil {
		c.t.Fatal(err)
	}
	began, at := time.Now(), int64(0)
	for at < end || checkpointOf(c.cluster, "made") <= made {
		if time.Since(began) > catchUpLimit {
			c.t.Fatalf("the checkpoint is at %d of %d after %s:\n%s", at, end, catchUpLimit, c.must("status", "changefeeds", "-o", "json"))
		}
		time.Sleep(100 * time.Millisecond)
		at = checkpointOf(c.cluster, "app")
	}
	c.logf("the checkpoint has come to %d, the end, within %s", end, time.Since(began).Round(time.Second))
}

// remove takes the changefeeds away: nothing is left of them anywhere.
func (c *chaos) remove() {
	c.t.Helper()
	for _, name := range []string{"app", "made"} {
		c.must("changefeed", "remove", name)
	}
	until(c.t, "all changefeeds to be gone", func() bool {
		var list v1alpha1.ChangefeedList
		return c.client.List(context.Background(), &list) == nil && len(list.Items) == 0
	})
	for _, name := range c.nodes {
		until(c.t, "the counts of "+name+" to be zero", func() bool {
			held := c.node(name).Status.Held
			return held["maintainers"] == 0 && held["dispatchers"] == 0
		})
	}
}

// dump lets the processes of a run that failed print what they are doing, and end.
func (c *chaos) dump() {
	if !c.test.Failed() {
		return
	}
	c.work.tell()
	for _, name := range c.nodes {
		if pid, alive, _ := c.process(name); alive {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
			c.await(name+" to have ended", func(context.Context) bool { return syscall.Kill(pid, 0) != nil })
		}
	}
}
