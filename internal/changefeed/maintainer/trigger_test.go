package maintainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

// reported are the reports of nodes.
type reported map[string]Report

func (r reported) Of(dispatch.FeedKey) map[string]Report               { return r }
func (r reported) Round() uint64                                       { return 0 }
func (r reported) Request(context.Context, View, string, []*wire.Feed) {}
func blockedAt(round uint64, table string, at ...uint64) Report {
	r := Report{Round: round, FeedReport: &wire.FeedReport{BlockedAt: at}}
	for range at {
		r.Blocked = append(r.Blocked, table)
	}
	return r
}

// A table that was renamed, and created again under the same name, is another table: what was reported of the first is not about it.
func TestATableStandsBeforeADDLOnlyByAReportOfThatDDL(t *testing.T) {
	log := stream.Table{Schema: "s", Name: "log"}
	running := table{phase: TableRunning, node: "n1", since: 5}
	for name, c := range map[string]struct {
		report Report
		table  table
		stands bool
	}{
		"it stands there":                       {blockedAt(6, wire.TableName(log.Since(0)), 9), running, true},
		"it stands before an earlier DDL":       {blockedAt(6, wire.TableName(log.Since(0)), 6), running, false},
		"the report is of an earlier table":     {blockedAt(5, wire.TableName(log.Since(0)), 9), running, false},
		"it does not stand":                     {blockedAt(6, wire.TableName(log.Since(0))), running, false},
		"another table stands":                  {blockedAt(6, "s\x00other\x000", 9), running, false},
		"another table of the name stands":      {blockedAt(6, wire.TableName(log.Since(4)), 9), running, false},
		"it is another table of the name":       {blockedAt(6, wire.TableName(log.Since(0)), 9), table{phase: TableRunning, node: "n1", since: 5, has: 4}, false},
		"it is moving":                          {blockedAt(6, wire.TableName(log.Since(0)), 9), table{phase: TableBusy, node: "n1"}, false},
		"it runs on another node":               {blockedAt(6, wire.TableName(log.Since(0)), 9), table{phase: TableRunning, node: "n2"}, false},
		"a node of an older version reports it": {Report{Round: 6, FeedReport: &wire.FeedReport{Blocked: []string{wire.TableName(log.Since(0))}}}, running, false},
	} {
		m := New(Options{Log: slog.New(slog.DiscardHandler), Reports: reported{"n1": c.report}}, &v1alpha1.Changefeed{})
		m.tables = map[stream.Table]*table{log: &c.table}
		if waiting, _ := m.unblocked([]stream.Table{log, {Schema: "s", Name: "unknown"}}, 9); (waiting == "") != c.stands {
			t.Errorf("%s: waiting for %q", name, waiting)
		}
	}
}

func TestADDLWaitsForTheTablesThatItConcerns(t *testing.T) {
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	name := func(text string) stream.Table {
		schema, name, _ := strings.Cut(text, ".")
		return stream.Table{Schema: schema, Name: name}
	}
	m.tables = map[stream.Table]*table{name("s.a"): {}, name("s.b"): {from: 9}, name("s.later"): {from: 20}, name("x.c"): {}}
	for _, c := range []struct {
		ddl  stream.DDL
		want string
	}{
		{stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{name("s.a"), name("s.none")}}, "[s.a]"},
		{stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{name("s.a")}, Reads: []stream.Table{name("s.b")}}, "[s.a s.b]"},
		{stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{name("s.a")}, Removes: []stream.Table{name("x.c")}}, "[s.a x.c]"},
		{stream.DDL{Kind: stream.DropSchema, Schema: "s"}, "[s.a s.b]"},
		{stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{name("s.later")}}, "[]"},
		{stream.DDL{Kind: stream.SetSchema, Schema: "s"}, "[]"},
	} {
		if got := fmt.Sprint(m.tablesBefore(&stream.Transaction{Position: 10, DDL: &c.ddl})); got != c.want {
			t.Errorf("%s: %s, want %s", c.ddl.Kind, got, c.want)
		}
	}
}

// Tables that the source had renamed before its tables were listed existed at the checkpoint. The DDL itself stays as it is.
func TestTablesThatWereRenamedBeforeTheyWereListedAreFound(t *testing.T) {
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	name := func(text string) stream.Table { return stream.Table{Schema: "s", Name: text} }
	m.tables, m.missingUntil = map[stream.Table]*table{name("known"): {}}, 10
	for _, c := range []struct {
		at   stream.Position
		ddl  stream.DDL
		want string
	}{
		{5, stream.DDL{Kind: stream.RenameTable, Tables: []stream.Table{name("known"), name("old"), name("hidden")}, Becomes: []stream.Table{name("a"), name("b"), name("c")}}, "[s.old]"},
		{5, stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{name("new")}, Reads: []stream.Table{name("known"), name("old")}}, "[s.old]"},
		{5, stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{name("new")}, Reads: []stream.Table{name("known")}}, "[]"},
		{5, stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{name("known")}, Removes: []stream.Table{name("old")}}, "[s.old]"},
		{5, stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{name("old")}}, "[]"},
		{11, stream.DDL{Kind: stream.RenameTable, Tables: []stream.Table{name("old")}, Becomes: []stream.Table{name("b")}}, "[]"},
	} {
		was := fmt.Sprint(c.ddl)
		if got := fmt.Sprint(m.renamedSince(stream.Filter{"!s.hidden"}, &stream.Transaction{Position: c.at, DDL: &c.ddl})); got != c.want {
			t.Errorf("%s: %s, want %s", c.ddl.Kind, got, c.want)
		}
		if fmt.Sprint(c.ddl) != was {
			t.Errorf("%s: the DDL was changed to %v", c.ddl.Kind, c.ddl)
		}
	}
}

// RENAME IF EXISTS gone TO kept, kept TO new renames kept if gone is missing.
func TestARenameThroughATableThatExistsIsFound(t *testing.T) {
	name := func(text string) stream.Table { return stream.Table{Schema: "s", Name: text} }
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	m.tables = map[stream.Table]*table{name("kept"): {}, name("later"): {from: 20}, name("outside"): {}}
	for text, want := range map[string]bool{"kept": true, "later": false, "none": false, "outside": false} {
		d := &stream.DDL{Kind: stream.RenameTable, IfExists: true, Tables: []stream.Table{name("gone")}, Becomes: []stream.Table{name("new")}, Through: []stream.Table{name("free"), name(text)}}
		if found, ok := m.existsBetween(stream.Filter{"!s.outside"}, &stream.Transaction{Position: 10, DDL: d}); ok != want || ok && found != name(text) {
			t.Errorf("%s: %s, %t", text, found, ok)
		}
	}
}

// named is a source or a sink with rules for names.
type named struct {
	stream.Source
	stream.Sink
	rule string
}

func (n named) Check(context.Context) error                         { return nil }
func (n named) Close() error                                        { return nil }
func (n named) LowerCaseTableNames(context.Context) (string, error) { return n.rule, nil }

func TestOtherRulesForNamesAreRefused(t *testing.T) {
	for _, c := range []struct{ filter, rule, want string }{{"shop.*", "1", ""}, {"Shop.*", "0", ""}, {"Shop.*", "1", `filter "Shop.*" has upper case, and the servers have names of tables in lower case`}} {
		err := sameNames(t.Context(), named{rule: c.rule}, named{rule: c.rule}, stream.Filter{c.filter})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, stream.ErrUnusable) || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	err := sameNames(t.Context(), named{rule: "1"}, named{rule: "0"}, nil)
	if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "lower_case_table_names is 1 at the source and 0 at the sink; set up the sink anew with lower_case_table_names=1") {
		t.Error(err)
	}
}

// asked counts how often nodes are asked for a report.
type asked struct {
	reported
	times *int
}

func (a asked) Request(context.Context, View, string, []*wire.Feed) { *a.times++ }

// held is a cluster with one node.
type held struct{}

func (held) View() (View, <-chan struct{}) {
	w := View{Fleet: fleet.New()}
	w.Leases["n1"] = lease.Record{Node: "n1", Epoch: 1, Holder: "n1"}
	return w, nil
}

// Very many changefeeds may wait for DDL of others, or of a table that takes hours.
func TestALongWaitForATableAsksItsNodeLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		times := 0
		m := New(Options{Log: slog.New(slog.DiscardHandler), Reports: asked{reported{}, &times}, Cluster: held{}}, &v1alpha1.Changefeed{})
		m.tables = map[stream.Table]*table{logTable: {phase: TableRunning, node: "n1"}}
		ctx, cancel := context.WithTimeout(t.Context(), 11*time.Second)
		defer cancel()
		if err := m.awaitBlocked(ctx, nil, []stream.Table{logTable}, 9); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if times < 100 || times > 160 {
			t.Errorf("in 11s it was asked %d times", times)
		}
	})
}

// A maintainer that was frozen comes to the end of DDL that its successor waits to execute. Then tables are past it, or over.
func TestADDLThatSomebodyElseExecutesIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Options{Log: slog.New(slog.DiscardHandler), Reports: reported{}, Cluster: held{}, Epoch: &node.Epoch{Node: "n2", Number: 1}}, &v1alpha1.Changefeed{})
		m.tables[logTable] = &table{floor: 5}
		began := time.Now()
		sink := recording{done: func(at stream.Position) bool { return at == 10 && time.Since(began) > time.Minute }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := m.awaitBlocked(ctx, sink, []stream.Table{logTable}, 10); err != nil || time.Since(began) < time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if err := m.awaitBlocked(ctx, sink, []stream.Table{logTable}, 11); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the next one: %v", err)
		}
	})
}

// recording is a sink that records which DDL is executed.
type recording struct {
	stream.Sink
	done func(stream.Position) bool
}

func (r recording) DDLExecuted(_ context.Context, at stream.Position) (bool, error) {
	return r.done(at), nil
}

// DDL that is not executed at the sink is not recorded there. A maintainer that begins at an older checkpoint reads it again, and the sink lets
// the table begin after it.
func TestADDLThatIsNotExecutedDoesNotWaitForATableThatBeganAfterIt(t *testing.T) {
	for name, c := range map[string]struct {
		began uint64
		err   error
	}{"after it": {12, nil}, "at it": {10, nil}, "before it": {9, context.DeadlineExceeded}, "a node of an earlier version": {0, context.DeadlineExceeded}} {
		synctest.Test(t, func(t *testing.T) {
			nodes := oneNode{nil, func(req *wire.OrderRequest) (*wire.OrderReply, error) {
				return &wire.OrderReply{Results: []*wire.TableResult{{Table: req.Tables[0].Table, Position: c.began}}}, nil
			}}
			m := New(Options{Log: slog.New(slog.DiscardHandler), Nodes: nodes, Reports: reported{}, Cluster: held{}, Epoch: &node.Epoch{Node: "n2", Number: 1}}, &v1alpha1.Changefeed{})
			m.tables[logTable] = &table{floor: 5}
			w, _ := held{}.View()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() {
				time.Sleep(time.Second) // while the DDL waits
				m.move(ctx, w, "", "n1", m.begin([]stream.Table{logTable}, "", "n1"))
			}()
			if err := m.awaitPassed(ctx, []stream.Table{logTable}, 10); !errors.Is(err, c.err) {
				t.Errorf("%s: %v", name, err)
			}
			if floor := m.tables[logTable].floor; floor != 5 {
				t.Errorf("%s: the next dispatcher would begin at %d", name, floor)
			}
		})
	}
}

// Rows of a table that nobody replicates are lost: its changefeed stops. Before all DDL is read that the list of tables includes, a name may be
// that of a table that was renamed or dropped since.
func TestRowsOfATableThatIsNotKnownStopTheChangefeed(t *testing.T) {
	name := func(text string) stream.Table { return stream.Table{Schema: "s", Name: text} }
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	m.tables = map[stream.Table]*table{name("known"): {}, name("parent"): {members: []stream.Table{name("parent"), name("child")}}}
	m.grouped = map[stream.Table]stream.Table{name("parent"): name("parent"), name("child"): name("parent")}
	m.missing, m.missingUntil = map[stream.Table]bool{name("missing"): true}, 10
	for _, c := range []struct {
		tx   stream.Transaction
		want string
	}{
		{stream.Transaction{Position: 11, Skipped: []stream.Table{name("known"), name("child"), name("missing"), name("hidden")}}, ""},
		{stream.Transaction{Position: 11, Skipped: []stream.Table{name("known"), name("new")}}, "position 11: the log has changes of table s.new, which is not known"},
		{stream.Transaction{Position: 12, Rows: []*stream.Rows{{Table: name("new")}}}, "position 12: the log has changes of table s.new, which is not known"},
		{stream.Transaction{Position: 10, Skipped: []stream.Table{name("new")}}, ""},
		{stream.Transaction{Position: 13, DDL: &stream.DDL{Kind: stream.TruncateTable, Tables: []stream.Table{name("child")}}}, ""},
		{stream.Transaction{Position: 13, DDL: &stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{name("hidden")}}}, ""},
		{stream.Transaction{Position: 13, DDL: &stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{name("new")}}}, "position 13: the log has changes of table s.new, which is not known"},
	} {
		err := m.checkRows(stream.Filter{"!s.hidden"}, &c.tx)
		var refused *refusedError
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &refused) || !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, stream.ErrUnusable)) {
			t.Errorf("%+v: %v", c.tx, err)
		}
	}
}
