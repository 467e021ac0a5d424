package maintainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
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
)

// reportedBy is a dispatcher as a node reports it.
func reportedBy(counter int64, state dispatch.State, at, begins uint64) *wire.Dispatcher {
	return &wire.Dispatcher{Table: wire.TableName(logTable.Since(0)), Epoch: &wire.Epoch{Placement: 1, Counter: counter}, State: int32(state), Checkpoint: at, Begins: &begins}
}

// named60 is the same of the table that was given the name at position 60.
func named60(d *wire.Dispatcher) *wire.Dispatcher {
	d.Table = wire.TableName(logTable.Since(60))
	return d
}

// Dispatchers outlive the lease of their node. One that comes back with them may have that of an earlier table of the same name, which waits
// for DDL that was executed without it.
func TestWhichDispatchersOfANodeAreTakenOver(t *testing.T) {
	nameless := reportedBy(3, dispatch.Running, 70, 60)
	nameless.Table = wire.Name(logTable)
	epoch := func(n int64) stream.Epoch { return stream.Epoch{Placement: 1, Counter: n} }
	for _, c := range []struct {
		name  string
		table *table // nil if it is not known
		first bool
		has   *wire.Dispatcher
		want  string
	}{
		{"it runs nowhere", &table{}, false, reportedBy(3, dispatch.Running, 70, 9), "taken over"},
		{"it runs nowhere, and is the same table", newTable(60, 0), false, named60(reportedBy(3, dispatch.Running, 70, 60)), "taken over"},
		{"it begins after later DDL", newTable(60, 0), false, named60(reportedBy(3, dispatch.Running, 70, 65)), "taken over"},
		{"it runs nowhere, and began before DDL after which it begins again", &table{from: 60}, false, reportedBy(3, dispatch.Running, 70, 9), "stopped"},
		{"it was started before this attempt", &table{}, false, reportedBy(1, dispatch.Running, 70, 9), "stopped"},
		{"it was started before this attempt, which begins", &table{}, true, reportedBy(1, dispatch.Running, 70, 9), "taken over"},
		{"the node has a newer one by now", &table{phase: TableRunning, node: "n1", epoch: epoch(4)}, false, reportedBy(3, dispatch.Running, 70, 9), "undecided"},
		{"it was created again", newTable(60, 0), false, reportedBy(3, dispatch.Running, 70, 60), "stopped"},
		{"it was created again, and the maintainer begins", newTable(60, 0), true, reportedBy(3, dispatch.Running, 70, 60), "stopped"},
		{"the sink has an earlier table of the name", &table{}, true, named60(reportedBy(3, dispatch.Running, 70, 60)), "stopped"},
		{"it is not known which table of the name it is", newTable(60, 0), true, nameless, "stopped"},
		{"it is behind the checkpoint", &table{}, false, reportedBy(3, dispatch.Running, 49, 9), "stopped"},
		{"it is behind the checkpoint and known to run", &table{phase: TableRunning, node: "n1", epoch: epoch(3)}, false, reportedBy(3, dispatch.Running, 49, 9), "taken over"},
		{"a newer one runs elsewhere", &table{phase: TableRunning, node: "n2", epoch: epoch(4)}, false, reportedBy(3, dispatch.Running, 70, 0), "stopped"},
		{"one of the same epoch runs elsewhere", &table{phase: TableRunning, node: "n2", epoch: epoch(3)}, false, reportedBy(3, dispatch.Running, 70, 0), "stopped"},
		{"an older one runs elsewhere", &table{phase: TableRunning, node: "n2", epoch: epoch(2)}, false, reportedBy(3, dispatch.Running, 70, 0), "taken over, n2 is doubted"},
		{"an order is unanswered", &table{phase: TableBusy, node: "n2", to: "n3"}, false, reportedBy(3, dispatch.Running, 70, 0), "undecided"},
		{"it is not known", nil, false, reportedBy(3, dispatch.Running, 70, 0), "stopped"},
		{"it is not known when the maintainer begins", nil, true, reportedBy(3, dispatch.Running, 70, 0), "taken over"},
		{"it is not known when the maintainer begins, and behind the checkpoint", nil, true, reportedBy(3, dispatch.Running, 49, 0), "stopped"},
		{"it was prepared for a move", &table{}, false, reportedBy(3, dispatch.Prepared, 70, 0), "stopped"},
		{"it was started after the reply", &table{phase: TableRunning, node: "n1", epoch: epoch(3)}, false, reportedBy(3, dispatch.Prepared, 0, 0), "taken over"},
	} {
		m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
		done := stream.Position(50)
		m.checkpoint, m.ddlDone, m.first, m.tables = 50, &done, c.first, map[stream.Table]*table{}
		m.epoch, m.countedFrom = 1, 1
		if c.table != nil {
			m.tables[logTable] = c.table
		}
		stray, busy := m.takeOver("n1", []*wire.Dispatcher{c.has}, 0)
		got := "stopped"
		switch now := m.tables[logTable]; {
		case busy:
			got = "undecided"
		case len(stray) == 0 && now.phase == TableRunning && now.node == "n1" && now.epoch == epoch(c.has.Epoch.Counter):
			got = "taken over"
		case len(stray) != 1 || stray[0].Epoch.Counter != c.has.Epoch.Counter:
			got = fmt.Sprint(stray)
		}
		if m.doubts["n2"] > 0 {
			got += ", n2 is doubted"
		}
		if got != c.want {
			t.Errorf("%s: it is %s, want %s", c.name, got, c.want)
		}
	}
}

// oneNode answers with one dispatcher, and carries out orders as the test says.
type oneNode struct {
	has   *wire.Dispatcher
	order func(*wire.OrderRequest) (*wire.OrderReply, error)
}

func (n oneNode) Bootstrap(context.Context, *v1alpha1.Node, *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	reply := &wire.BootstrapReply{NodeEpoch: 2, Layout: wire.Layout}
	if n.has != nil {
		reply.Dispatchers = append(reply.Dispatchers, n.has)
	}
	return reply, nil
}

func (n oneNode) Order(_ context.Context, _ *v1alpha1.Node, req *wire.OrderRequest) (*wire.OrderReply, error) {
	return n.order(req)
}

// A dispatcher that could not be stopped must not be forgotten.
func TestANodeIsBootstrappedOnceNothingElseRunsThere(t *testing.T) {
	for name, c := range map[string]struct {
		table  *table
		reply  *wire.OrderReply
		err    error
		doubts bool // while the node is asked, an answer of it is lost
		want   int64
	}{
		"its stray dispatcher has stopped":           {nil, &wire.OrderReply{Results: []*wire.TableResult{{Table: wire.TableName(logTable.Since(0)), Found: true}}}, nil, false, 2},
		"its stray dispatcher has not stopped":       {nil, &wire.OrderReply{Results: []*wire.TableResult{{Table: wire.TableName(logTable.Since(0)), Error: "context deadline exceeded"}}}, nil, false, 0},
		"the order to stop it is not answered":       {nil, nil, errUnreachable, false, 0},
		"an order about its table is not answered":   {&table{phase: TableBusy}, nil, nil, false, 0},
		"the answer to another order is lost":        {nil, &wire.OrderReply{}, nil, true, 0},
		"it was bootstrapped in another epoch of it": {&table{}, nil, nil, false, 2},
	} {
		w := View{Fleet: fleet.New()}
		w.Leases["n1"] = lease.Record{Node: "n1", Epoch: 2, Holder: "n1"}
		var m *Maintainer
		node1 := oneNode{reportedBy(3, dispatch.Running, 70, 0), func(*wire.OrderRequest) (*wire.OrderReply, error) {
			if c.doubts {
				m.mu.Lock()
				m.doubt("n1")
				m.mu.Unlock()
			}
			return c.reply, c.err
		}}
		m = New(Options{Log: slog.New(slog.DiscardHandler), Nodes: node1, Reports: reported{}, Epoch: &node.Epoch{Node: "n2", Number: 1}}, &v1alpha1.Changefeed{})
		m.tables, m.epoch = map[stream.Table]*table{}, 1
		if c.table != nil {
			m.tables[logTable] = c.table
		}
		m.bootstrapped["n1"] = 1
		if got := m.bootstrappedOf(w, []string{"n1"}); len(got) != 0 {
			t.Errorf("%s: tables are placed on a node that was bootstrapped in an earlier epoch", name)
		}
		m.bootstrapNewNodes(t.Context(), w)
		if m.bootstrapped["n1"] != c.want && !(c.want == 0 && m.bootstrapped["n1"] != 2) {
			t.Errorf("%s: it is bootstrapped in epoch %d, want %d", name, m.bootstrapped["n1"], c.want)
		}
	}
}

// A node of an earlier version can neither write the sink nor say which table of a name it has.
func TestANodeOfAnEarlierVersionGetsNoTables(t *testing.T) {
	var stopped []string
	former := formerNode{oneNode{&wire.Dispatcher{Table: wire.Name(logTable), Epoch: &wire.Epoch{Placement: 1, Counter: 3}, State: int32(dispatch.Running), Checkpoint: 70}, func(req *wire.OrderRequest) (*wire.OrderReply, error) {
		for _, o := range req.Tables {
			stopped = append(stopped, req.Do.String()+" "+o.Table)
		}
		return &wire.OrderReply{}, nil
	}}}
	m := New(Options{Log: slog.New(slog.DiscardHandler), Nodes: former, Reports: reported{}, Epoch: &node.Epoch{Node: "n2", Number: 1}}, &v1alpha1.Changefeed{})
	m.epoch, m.first, m.tables = 1, true, map[stream.Table]*table{logTable: {}}
	w := View{Fleet: fleet.New()}
	w.Leases["n1"] = lease.Record{Node: "n1", Epoch: 2, Holder: "n1"}
	if missing := m.bootstrapNewNodes(t.Context(), w); missing != "" {
		t.Errorf("waiting for node %s", missing)
	}
	if got := m.bootstrappedOf(w, []string{"n1"}); len(got) != 0 || !strings.HasPrefix(m.problem, "node n1 runs an earlier version") {
		t.Errorf("it gets tables: %s", m.problem)
	}
	if want := []string{"DO_STOP " + wire.Name(logTable)}; !slices.Equal(stopped, want) || m.tables[logTable].phase != TableAbsent {
		t.Errorf("orders were %q, and the table is %+v", stopped, m.tables[logTable])
	}
	w.Leases["n1"] = lease.Record{Node: "n1", Epoch: 3, Holder: "n1"}
	m.opts.Nodes = upgraded(former)
	m.bootstrapNewNodes(t.Context(), w)
	if got := m.bootstrappedOf(w, []string{"n1"}); len(got) != 1 {
		t.Error("it gets no tables after it was upgraded")
	}
}

// formerNode is a node of an earlier version.
type formerNode struct{ oneNode }

func (n formerNode) Bootstrap(context.Context, *v1alpha1.Node, *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	return &wire.BootstrapReply{NodeEpoch: 2, Dispatchers: []*wire.Dispatcher{n.has}}, nil
}

// upgraded is the node afterwards.
type upgraded struct{ oneNode }

func (upgraded) Bootstrap(context.Context, *v1alpha1.Node, *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	return &wire.BootstrapReply{NodeEpoch: 3, Layout: wire.Layout}, nil
}

// The node may have started the table before its answer was lost.
func TestANodeWhoseAnswerIsLostIsBootstrappedAgain(t *testing.T) {
	nodes := oneNode{nil, func(*wire.OrderRequest) (*wire.OrderReply, error) { return nil, errors.New("the answer is lost") }}
	m := New(Options{Log: slog.New(slog.DiscardHandler), Nodes: nodes, Reports: reported{}, Epoch: &node.Epoch{Node: "n2", Number: 1}}, &v1alpha1.Changefeed{})
	m.tables = map[stream.Table]*table{logTable: {}}
	m.bootstrapped["n1"] = 2
	w := View{Fleet: fleet.New()}
	m.move(t.Context(), w, "", "n1", m.begin([]stream.Table{logTable}, "", "n1"))
	if m.bootstrapped["n1"] != 0 || m.tables[logTable].phase != TableAbsent {
		t.Errorf("it is bootstrapped in epoch %d, and the table is %+v", m.bootstrapped["n1"], m.tables[logTable])
	}
}

// A dispatcher that nobody knows of keeps the checkpoint of its node from advancing.
func TestANodeThatReportsMoreDispatchersThanItCanHaveIsBootstrappedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		dispatchers int64
		tables      map[stream.Table]*table
		want        bool
	}{
		"one":                         {1, map[stream.Table]*table{logTable: {phase: TableRunning, node: "n1"}}, false},
		"one too many":                {2, map[stream.Table]*table{logTable: {phase: TableRunning, node: "n1"}}, true},
		"one of a table elsewhere":    {1, map[stream.Table]*table{logTable: {phase: TableRunning, node: "n2"}}, true},
		"one of a table nowhere":      {1, map[stream.Table]*table{logTable: {node: "n1"}}, true},
		"one of a table that leaves":  {1, map[stream.Table]*table{logTable: {phase: TableBusy, node: "n1", to: "n2"}}, false},
		"one of a table that arrives": {1, map[stream.Table]*table{logTable: {phase: TableBusy, node: "n2", to: "n1"}}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
			m.tables, m.bootstrapped["n1"] = c.tables, 2
			reports := reported{"n1": Report{Round: 1, FeedReport: &wire.FeedReport{Dispatchers: c.dispatchers}}}
			m.noteSurplus(reports)
			time.Sleep(problemExpiry)
			if m.noteSurplus(reports); m.bootstrapped["n1"] != 2 {
				t.Errorf("%s: at once", name)
			}
			time.Sleep(time.Second)
			if m.noteSurplus(reports); (m.bootstrapped["n1"] == 0) != c.want {
				t.Errorf("%s: it is bootstrapped in epoch %d", name, m.bootstrapped["n1"])
			}
		})
	}
}

// oneSilent is a cluster in which one node does not answer.
type oneSilent struct {
	oneNode
	asked *atomic.Int64
}

func (s oneSilent) Bootstrap(ctx context.Context, n *v1alpha1.Node, req *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	if n.Name == "n2" {
		s.asked.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.oneNode.Bootstrap(ctx, n, req)
}

// A node that is doubted, or comes back, and does not answer holds up neither the checkpoint nor the tables on other nodes.
func TestANodeThatDoesNotAnswerDoesNotHoldUpTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		m := New(Options{Log: slog.New(slog.DiscardHandler), Nodes: oneSilent{oneNode{}, &asked}, Reports: reported{}, Epoch: &node.Epoch{Node: "n1", Number: 1}}, &v1alpha1.Changefeed{})
		w := View{Fleet: fleet.New()}
		for _, name := range []string{"n1", "n2"} {
			w.Nodes[name] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			w.Leases[name] = lease.Record{Node: name, Epoch: 2, Holder: name}
		}
		began := time.Now()
		for range 10 {
			m.bootstrapRound(t.Context(), w)
		}
		if took := time.Since(began); took > time.Second || asked.Load() != 1 {
			t.Errorf("ten rounds took %s, and it was asked %d times", took, asked.Load())
		}
		if m.bootstrapped["n1"] != 2 {
			t.Error("the other node is not bootstrapped")
		}
		time.Sleep(callLimit)
		if m.bootstrapRound(t.Context(), w); asked.Load() != 2 {
			t.Errorf("it was asked %d times", asked.Load())
		}
		m.busy.Wait()
	})
}

// As many dispatchers as were started may be other ones: one table is lost, and another is written that should run elsewhere.
func TestANodeThatRunsOtherDispatchersIsBootstrappedAgain(t *testing.T) {
	second := stream.Epoch{Placement: 1, Counter: 2}
	right := logTable.Since(0).Digest(second)
	for name, c := range map[string]struct {
		digest *uint64
		want   bool
	}{
		"those that were started":             {&right, false},
		"one of another epoch":                {new(logTable.Since(0).Digest(stream.Epoch{Placement: 1, Counter: 3})), true},
		"one of an earlier table of the name": {new(logTable.Since(60).Digest(second)), true},
		"one of another table":                {new(stream.Table{Schema: logTable.Schema, Name: logTable.Name + "2"}.Since(0).Digest(second)), true},
		"a node of an earlier version":        {nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			reports := reported{"n1": Report{Round: 2, FeedReport: &wire.FeedReport{Dispatchers: 1, Running: 1, Checkpoint: 70, Digest: c.digest}}}
			m := New(Options{Log: slog.New(slog.DiscardHandler), Reports: reports}, &v1alpha1.Changefeed{})
			m.tables, m.bootstrapped["n1"], m.checkpoint = map[stream.Table]*table{logTable: {phase: TableRunning, node: "n1", epoch: second, since: 1, floor: 50}}, 2, 50
			want := stream.Position(70)
			if c.want {
				want = 50
			}
			for range 3 {
				if m.advance(); m.checkpoint != want {
					t.Errorf("%s: the checkpoint is %d, want %d", name, m.checkpoint, want)
				}
				time.Sleep(problemExpiry/2 + time.Second)
			}
			if (m.bootstrapped["n1"] == 0) != c.want {
				t.Errorf("%s: it is bootstrapped in epoch %d", name, m.bootstrapped["n1"])
			}
		})
	}
}
