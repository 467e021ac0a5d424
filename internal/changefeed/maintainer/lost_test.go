package maintainer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/node"
)

// answering are nodes that answer orders about each table as they are told, and record them.
type answering struct {
	Nodes
	answer func(do wire.Do, table string) *wire.TableResult
	orders []string
	reply  *wire.BootstrapReply
}

func (n *answering) Order(_ context.Context, _ *v1alpha1.Node, req *wire.OrderRequest) (*wire.OrderReply, error) {
	reply := &wire.OrderReply{}
	for _, o := range req.Tables {
		n.orders = append(n.orders, req.Do.String()+" "+o.Table)
		result := n.answer(req.Do, o.Table)
		result.Table = o.Table
		reply.Results = append(reply.Results, result)
	}
	return reply, nil
}

func (n *answering) Bootstrap(context.Context, *v1alpha1.Node, *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	return n.reply, nil
}

// silent are reports that never come.
type silent struct{ Reports }

func (silent) Round() uint64 { return 1 }

func newLosingMaintainer(t *testing.T, nodes *answering) *Maintainer {
	sink, err := sqlsink.Open(sqlsink.Options{Address: "127.0.0.1:1", User: "u", Changefeed: "default/copy/1"}) // it does not connect
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sink.Close() })
	m := New(Options{Log: slog.New(slog.DiscardHandler), Cluster: unchanging{}, Epoch: &node.Epoch{Node: "n1", Number: 1}, Nodes: nodes, Reports: silent{}, Paused: func(time.Duration) {}}, &v1alpha1.Changefeed{})
	m.saver.sink, m.saver.saved = sink, 5
	m.bootstrapped, m.hopeless = map[string]int64{}, map[string]hopelessSince{}
	m.tables = map[stream.Table]*table{
		{Schema: "d", Name: "lost"}: {phase: TableRunning, node: "n1", floor: 7},
		{Schema: "d", Name: "kept"}: {phase: TableRunning, node: "n1", floor: 7},
	}
	return m
}

// A table whose last write found that the sink went back, while a move stopped it, must not be started where it seemed to be.
func TestATableThatIsLostWhenItMovesIsNotStarted(t *testing.T) {
	nodes := &answering{answer: func(do wire.Do, table string) *wire.TableResult {
		switch {
		case do == wire.Do_DO_STOP && table == wire.TableName(stream.Table{Schema: "d", Name: "lost"}.Since(0)):
			return &wire.TableResult{Error: dispatch.ErrLost.Error(), Lost: true}
		case do == wire.Do_DO_STOP:
			return &wire.TableResult{Found: true, Position: 9}
		}
		return &wire.TableResult{}
	}}
	m := newLosingMaintainer(t, nodes)
	lost, kept := m.tables[stream.Table{Schema: "d", Name: "lost"}], m.tables[stream.Table{Schema: "d", Name: "kept"}]
	list := m.begin([]stream.Table{{Schema: "d", Name: "lost"}, {Schema: "d", Name: "kept"}}, "n1", "n2")
	m.move(t.Context(), View{}, "n1", "n2", list)
	if lost.phase != TableAbsent || lost.floor != 5 || !m.suspicious() {
		t.Errorf("the lost table is %v at %d, and the sink suspect %v", lost.phase, lost.floor, m.suspicious())
	}
	if kept.phase != TableRunning || kept.node != "n2" || kept.floor != 9 {
		t.Errorf("the other is %v on %s at %d", kept.phase, kept.node, kept.floor)
	}
	if slices.Contains(nodes.orders, "DO_START "+wire.TableName(stream.Table{Schema: "d", Name: "lost"}.Since(0))) {
		t.Errorf("orders were %v", nodes.orders)
	}
}

func TestATableThatTheSinkRefusesBecauseItWentBackMakesItSuspect(t *testing.T) {
	nodes := &answering{answer: func(wire.Do, string) *wire.TableResult {
		return &wire.TableResult{Error: stream.ErrWentBack.Error(), Lost: true}
	}}
	m := newLosingMaintainer(t, nodes)
	m.move(t.Context(), View{}, "", "n2", m.begin([]stream.Table{{Schema: "d", Name: "lost"}}, "", "n2"))
	if !m.suspicious() || m.failed() != nil || len(m.hopeless) != 0 {
		t.Errorf("suspect %v, failed %v, hopeless %v", m.suspicious(), m.failed(), m.hopeless)
	}
}

func TestALostDispatcherThatABootstrapFindsMakesTheSinkSuspect(t *testing.T) {
	name := wire.TableName(stream.Table{Schema: "d", Name: "lost"}.Since(0))
	nodes := &answering{
		answer: func(wire.Do, string) *wire.TableResult { return &wire.TableResult{} },
		reply:  &wire.BootstrapReply{NodeEpoch: 1, Layout: wire.Layout, Dispatchers: []*wire.Dispatcher{{Table: name, State: int32(dispatch.Lost), Checkpoint: 9}}},
	}
	m := newLosingMaintainer(t, nodes)
	if err := m.bootstrapNode(t.Context(), View{}, "n1", 1); err != nil {
		t.Fatal(err)
	}
	if lost := m.tables[stream.Table{Schema: "d", Name: "lost"}]; lost.phase != TableAbsent || lost.floor != 5 || !m.suspicious() {
		t.Errorf("it is %v at %d, and the sink suspect %v", lost.phase, lost.floor, m.suspicious())
	}
}

// The table trigger does not retry DDL that a sink refuses because it went back: the maintainer begins again.
func TestErrWentBackIsNotHopeless(t *testing.T) {
	if dispatch.Hopeless(errors.Join(stream.ErrWentBack)) {
		t.Error("a changefeed whose sink went back would fail")
	}
}
