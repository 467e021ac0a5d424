package maintainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// A simulation of one maintainer after the other, and of nodes that carry out orders as package dispatch does. A table is renamed and created
// again under the same name all the time. Nodes lose their leases and come back with their dispatchers still running, answers to orders are
// lost, and orders are carried out late, some so late that their name is that of another table. The sink keeps of each name what the newest
// table of it needs, as package sqlsink does. In the end every row must have been written once, and each table must have one dispatcher.

// simEntry is a transaction of the log: a row of a table, or DDL.
type simEntry struct {
	table stream.Table
	ddl   *stream.DDL
}

type simDispatcher struct {
	stream.Identity
	epoch  stream.Epoch
	begins stream.Position
	state  dispatch.State
	at     stream.Position
}

type simNode struct {
	epoch int64
	held  bool
	has   map[stream.Table]*simDispatcher
}

type simCluster struct {
	mu      sync.Mutex
	chance  *rand.Rand
	calm    bool
	log     []simEntry // of position i+1
	nodes   map[string]*simNode
	reports map[string]Report
	round   uint64
	late    sync.WaitGroup // orders that are carried out late

	exists   map[stream.Table]bool // at the sink
	held     map[stream.Table]stream.Holder
	rows     map[stream.Identity]stream.Position
	owners   map[stream.Identity]stream.Epoch
	executed map[stream.Position]bool
	written  map[stream.Position]int

	published stream.Position
	counts    map[string]int
}

var logTable = stream.Table{Schema: "s", Name: "log"}

func newSimCluster(seed uint64) *simCluster {
	c := &simCluster{
		chance: rand.New(rand.NewPCG(seed, 3)), nodes: map[string]*simNode{}, reports: map[string]Report{}, counts: map[string]int{},
		exists: map[stream.Table]bool{logTable: true, {Schema: "s", Name: "quiet"}: true}, held: map[stream.Table]stream.Holder{},
		rows: map[stream.Identity]stream.Position{}, owners: map[stream.Identity]stream.Epoch{},
		executed: map[stream.Position]bool{}, written: map[stream.Position]int{},
	}
	for i := range 3 {
		c.nodes[fmt.Sprintf("n%d", i+1)] = &simNode{epoch: 1, held: true, has: map[stream.Table]*simDispatcher{}}
	}
	return c
}

// write adds transactions to the log: a row, or a rename and the next table of the same name.
func (c *simCluster) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.chance.IntN(4) > 0 {
		c.log = append(c.log, simEntry{table: logTable})
		return
	}
	old := stream.Table{Schema: "s", Name: fmt.Sprintf("log_%d", len(c.log))}
	c.log = append(c.log,
		simEntry{ddl: &stream.DDL{Kind: stream.RenameTable, Tables: []stream.Table{logTable}, Becomes: []stream.Table{old}}},
		simEntry{ddl: &stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{logTable}}})
	if c.chance.IntN(2) == 0 {
		c.log = append(c.log, simEntry{ddl: &stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{old}}})
	}
}

// run makes a dispatcher write up to the next DDL that concerns it. The caller holds the lock.
func (c *simCluster) run(t stream.Table, d *simDispatcher) (blocked stream.Position) {
	for d.state == dispatch.Running && int(d.at) < len(c.log) {
		next, e := d.at+1, c.log[d.at]
		if e.ddl != nil && e.ddl.Concerns(t) && next != d.begins {
			return next
		}
		if e.ddl == nil && e.table == t {
			if c.held[t].Past(d.Since) || c.owners[d.Identity] != d.epoch {
				d.state = dispatch.Lost
				return 0
			}
			c.written[next]++
			c.rows[d.Identity] = next
		}
		d.at = next
	}
	return 0
}

// execute is what DDL does to the sink. The caller holds the lock.
func (c *simCluster) execute(at stream.Position) {
	d := c.log[at-1].ddl
	c.executed[at] = true
	for _, t := range d.Takes() {
		delete(c.exists, t)
		c.held[t] = stream.Holder{Since: at, Over: true}
	}
	for _, t := range d.Gives() {
		earlier := func(id stream.Identity, _ stream.Position) bool { return id.Table == t }
		maps.DeleteFunc(c.rows, earlier)
		maps.DeleteFunc(c.owners, func(id stream.Identity, _ stream.Epoch) bool { return earlier(id, 0) })
		c.exists[t], c.held[t], c.rows[t.Since(at)] = true, stream.Holder{Since: at}, at
		if d.Kind == stream.CreateTable {
			c.rows[t.Since(at)]--
		}
	}
}

// HoldersOf is what the sink knows of some names.
func (c *simCluster) HoldersOf(names []stream.Table) map[stream.Table]stream.Holder {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := map[stream.Table]stream.Holder{}
	for _, t := range names {
		held[t] = c.held[t]
	}
	return held
}

// fault is whether something goes wrong, with a chance of one in n. The caller holds the lock.
func (c *simCluster) fault(what string, n int) bool {
	if c.calm || c.chance.IntN(n) > 0 {
		return false
	}
	c.counts[what]++
	return true
}

var errUnreachable = errors.New("unreachable")

// Bootstrap implements Nodes.
func (c *simCluster) Bootstrap(ctx context.Context, n *v1alpha1.Node, _ *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	c.mu.Lock()
	slow := c.fault("bootstrap slow", 10)
	c.mu.Unlock()
	if slow {
		sleep(ctx, 3*time.Second)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	on := c.nodes[n.Name]
	if !on.held || c.fault("bootstrap failed", 20) {
		return nil, errUnreachable
	}
	reply := &wire.BootstrapReply{NodeEpoch: on.epoch, Layout: wire.Layout}
	for t, d := range on.has {
		c.run(t, d)
		begins := uint64(d.begins)
		reply.Dispatchers = append(reply.Dispatchers, &wire.Dispatcher{Table: wire.TableName(d.Identity), Epoch: wire.NewEpoch(d.epoch), State: int32(d.state), Checkpoint: uint64(d.at), Begins: &begins})
	}
	return reply, nil
}

// Order implements Nodes.
func (c *simCluster) Order(ctx context.Context, n *v1alpha1.Node, req *wire.OrderRequest) (*wire.OrderReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	on := c.nodes[n.Name]
	if !on.held || c.fault("order failed", 20) {
		return nil, errUnreachable
	}
	if c.fault("order late", 20) {
		late := time.Second
		if c.chance.IntN(2) == 0 { // long after the maintainer has given up
			late = time.Duration(1+c.chance.IntN(60)) * time.Second
		}
		c.late.Go(func() {
			time.Sleep(late)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.carryOut(on, req)
		})
		return nil, context.DeadlineExceeded
	}
	reply := c.carryOut(on, req)
	if c.fault("answer lost", 10) {
		return nil, context.DeadlineExceeded
	}
	return reply, nil
}

// carryOut carries out orders as dispatch.Engine does. The caller holds the lock.
func (c *simCluster) carryOut(on *simNode, req *wire.OrderRequest) *wire.OrderReply {
	reply := &wire.OrderReply{NodeEpoch: on.epoch}
	for _, o := range req.Tables {
		r := &wire.TableResult{Table: o.Table}
		reply.Results = append(reply.Results, r)
		id, _ := wire.ParseTable(o.Table)
		t := id.Table
		epoch, d := wire.ParseEpoch(o.Epoch), on.has[t]
		if d != nil && epoch.Compare(d.epoch) < 0 {
			r.Error = "a newer one is here"
			continue
		}
		if req.Do == wire.Do_DO_STOP {
			if d != nil && d.Identity == id {
				c.run(t, d)
				r.Found, r.Position = true, uint64(d.at)
				delete(on.has, t)
			}
			continue
		}
		if d == nil || d.epoch != epoch || d.state == dispatch.Lost {
			d = &simDispatcher{Identity: id, epoch: epoch, begins: stream.Position(o.Begins), state: dispatch.Prepared}
			on.has[t] = d
		}
		if req.Do == wire.Do_DO_START && d.state == dispatch.Prepared {
			past := c.held[t].Past(id.Since)
			if past {
				c.counts["order about an earlier table"]++
			}
			if past || !c.exists[t] || c.owners[id].Compare(epoch) > 0 {
				r.Error = "the sink refuses it"
				delete(on.has, t)
				continue
			}
			c.owners[id] = epoch
			d.state, d.at = dispatch.Running, max(c.rows[id], stream.Position(o.Position))
		}
	}
	return reply
}

// Of implements Reports.
func (c *simCluster) Of(dispatch.FeedKey) map[string]Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.reports)
}

// Round implements Reports.
func (c *simCluster) Round() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.round
}

// Request implements Reports.
func (c *simCluster) Request(_ context.Context, _ View, name string, _ []*wire.Feed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	on := c.nodes[name]
	if on == nil || !on.held {
		return
	}
	c.round++
	digest := uint64(0)
	r := &wire.FeedReport{Dispatchers: int64(len(on.has)), Digest: &digest}
	for t, d := range on.has {
		blocked := c.run(t, d)
		switch d.state {
		case dispatch.Lost:
			r.Lost = append(r.Lost, wire.TableName(d.Identity))
		case dispatch.Running:
			if r.Running == 0 || uint64(d.at) < r.Checkpoint {
				r.Checkpoint = uint64(d.at)
			}
			r.Running++
			digest ^= d.Identity.Digest(d.epoch)
			if blocked > 0 {
				r.Blocked, r.BlockedAt = append(r.Blocked, wire.TableName(d.Identity)), append(r.BlockedAt, uint64(blocked))
			}
		}
	}
	c.reports[name] = Report{Round: c.round, FeedReport: r}
}

// View implements Cluster.
func (c *simCluster) View() (View, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := View{Fleet: fleet.New(), Settling: fleet.Began(time.Now())}
	for name, on := range c.nodes {
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Liveness, n.Status.Epoch = v1alpha1.Alive, on.epoch
		n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}}
		rec := lease.Record{Node: name, Epoch: on.epoch, Holder: name, Fenced: on.epoch - 1}
		if !on.held {
			rec.Holder, rec.Fenced = "", on.epoch
		}
		v.Nodes[name], v.Leases[name] = n, rec
	}
	return v, nil
}

// simMaintainer is a maintainer at work.
type simMaintainer struct {
	*Maintainer
	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// begin starts the maintainer of a placement, from a checkpoint that may be older than what its predecessor has done.
func (c *simCluster) begin(epoch int64) *simMaintainer {
	cf := &v1alpha1.Changefeed{}
	cf.Status.Placement = &v1alpha1.ChangefeedPlacement{Epoch: epoch, Node: "m", NodeEpoch: 1}
	m := &simMaintainer{Maintainer: New(Options{
		Log: slog.New(slog.DiscardHandler), Cluster: c, Nodes: c, Reports: c, Paused: func(time.Duration) {}, Epoch: &node.Epoch{Node: "m", Number: 1},
	}, cf)}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.reset(epoch)
	m.missing = map[stream.Table]bool{}
	c.mu.Lock()
	m.checkpoint = c.published
	for t := range c.exists {
		m.tables[t] = newTable(c.held[t].Since, m.checkpoint)
	}
	c.mu.Unlock()
	after := m.checkpoint
	m.ddlDone = &after
	return m
}

// trigger is the table trigger.
func (m *simMaintainer) trigger(c *simCluster) {
	for at := *m.ddlDone + 1; m.ctx.Err() == nil; {
		c.mu.Lock()
		read := int(at) <= len(c.log)
		var e simEntry
		if read {
			e = c.log[at-1]
		}
		executed := c.executed[at]
		c.mu.Unlock()
		if !read || e.ddl != nil && m.handle(c, at, e.ddl, executed) != nil {
			sleep(m.ctx, retryDelay)
			continue
		}
		m.mu.Lock()
		*m.ddlDone = at
		m.mu.Unlock()
		at++
	}
}

// handle is handleDDL, with the sink of the simulation.
func (m *simMaintainer) handle(c *simCluster, at stream.Position, d *stream.DDL, executed bool) error {
	before := m.tablesBefore(&stream.Transaction{Position: at, DDL: d})
	if !executed {
		if err := m.awaitBlocked(m.ctx, nil, before, at); err != nil {
			return err
		}
		c.mu.Lock()
		c.execute(at)
		c.mu.Unlock()
	}
	held := c.HoldersOf(d.After())
	if err := m.removeTables(m.ctx, before); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.enterAfter(at, d, nil, held, nil, nil)
}

// step is a round of the maintainer's loop.
func (m *simMaintainer) step(c *simCluster) {
	w, _ := m.opts.Cluster.View()
	m.bootstrapRound(m.ctx, w)
	m.place(m.ctx, w)
	time.Sleep(200 * time.Millisecond)
	for name := range w.Nodes {
		m.opts.Reports.Request(m.ctx, w, name, nil)
	}
	m.advance()
}

// end ends the maintainer, and publishes its checkpoint or not.
func (m *simMaintainer) end(c *simCluster) {
	m.cancel()
	m.done.Wait()
	m.busy.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.chance.IntN(2) == 0 {
		c.published = max(c.published, m.checkpoint)
	}
}

// disturb makes nodes lose and regain their leases, with or without their dispatchers.
func (c *simCluster) disturb() {
	c.mu.Lock()
	defer c.mu.Unlock()
	on := c.nodes[fmt.Sprintf("n%d", 1+c.chance.IntN(3))]
	if !on.held && len(on.has) > 0 && c.fault("ran without a lease", 2) { // only the sink keeps it from writing
		for t, d := range on.has {
			c.run(t, d)
		}
	}
	switch {
	case !on.held && c.chance.IntN(10) == 0:
		on.held = true
		on.epoch++
		c.counts["rejoined"]++
	case on.held && c.fault("lapsed", 12):
		on.held = false
		if c.fault("died", 3) {
			on.has = map[stream.Table]*simDispatcher{}
		}
	}
}

// wrong is what is not as it must be in the end.
func (c *simCluster) wrong(m *simMaintainer) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []string
	if int(m.checkpoint) != len(c.log) {
		list = append(list, fmt.Sprintf("the checkpoint is %d of %d: %s; %s", m.checkpoint, len(c.log), m.slowest, m.wait))
	}
	for i, e := range c.log {
		if n := c.written[stream.Position(i+1)]; e.ddl == nil && n != 1 {
			list = append(list, fmt.Sprintf("row %d was written %d times", i+1, n))
		}
	}
	for name, on := range c.nodes {
		for t, d := range on.has {
			if e := m.tables[t]; e == nil || !e.is(d.Identity) || e.phase != TableRunning || e.node != name || e.epoch != d.epoch || d.state != dispatch.Running {
				list = append(list, fmt.Sprintf("%s has a dispatcher of %s of epoch %v since %d in state %d that is not known: %+v", name, t, d.epoch, d.Since, d.state, e))
			}
		}
	}
	for t, e := range m.tables {
		if on := c.nodes[e.node]; e.phase != TableRunning || on == nil || on.has[t] == nil {
			list = append(list, fmt.Sprintf("%s has no dispatcher: %+v", t, e))
		}
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// playTables runs one simulation. It returns what is wrong in the end.
func playTables(t *testing.T, seed uint64) (wrong string, counts map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		c := newSimCluster(seed)
		var m *simMaintainer
		work := func(epoch int64) {
			if m != nil {
				m.end(c)
			}
			m = c.begin(epoch)
			limit, cancel := context.WithTimeout(m.ctx, time.Minute)
			defer cancel()
			if err := m.bootstrapNodes(limit); err != nil {
				t.Fatalf("run %d: bootstrap: %v", seed, err)
			}
			m.done.Go(func() { m.trigger(c) })
		}
		work(1)
		pace := rand.New(rand.NewPCG(seed, 4)) // the cluster's own is used by others at the same time
		for epoch := int64(1); epoch < 5; {
			c.write()
			for range pace.IntN(8) {
				c.disturb()
				m.step(c)
			}
			if pace.IntN(12) == 0 {
				epoch++
				c.mu.Lock()
				c.counts["failover"]++
				c.mu.Unlock()
				work(epoch)
			}
		}
		c.mu.Lock()
		c.calm = true // from here on no order is late
		for _, on := range c.nodes {
			if !on.held {
				on.held = true
				on.epoch++
			}
		}
		c.mu.Unlock()
		c.late.Wait()
		for range 300 { // a minute
			m.step(c)
		}
		wrong, counts = c.wrong(m), c.counts
		m.end(c)
	})
	return wrong, counts
}

func TestEveryTableHasOneDispatcherAfterNodesAndAnswersWereLost(t *testing.T) {
	census := simtest.Census{}
	for seed := range testlength.Seeds(200, 5000) {
		wrong, counts := playTables(t, seed)
		if wrong != "" {
			t.Fatalf("run %d:\n%s", seed, wrong)
		}
		census.Add(counts)
	}
	census.Require(t, 20, "lapsed", "rejoined", "died", "failover", "order failed", "order late", "answer lost", "bootstrap failed", "bootstrap slow", "ran without a lease", "order about an earlier table")
}

func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s is not a seed: %v", text, err)
		}
		if wrong, _ := playTables(t, seed); wrong != "" {
			t.Error(wrong)
		}
	})
}
