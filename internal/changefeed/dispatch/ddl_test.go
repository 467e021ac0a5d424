package dispatch

import (
	"errors"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// standing makes a running dispatcher that a hub delivers to.
func standing(table stream.Table, since, from stream.Position, ddl bool) *dispatcher {
	e := New(Options{Memory: 1 << 20})
	f := &Feed{engine: e, config: Config{DDL: ddl}, batch: 10, work: make(chan struct{}, 1)}
	return &dispatcher{feed: f, table: table, begins: since, from: from, state: Running, listens: true}
}

func TestADispatcherWaitsAtDDLThatItsMaintainerExecutes(t *testing.T) {
	a, b := stream.Table{Schema: "s", Name: "a"}, stream.Table{Schema: "s", Name: "b"}
	rows := []*stream.Rows{{Position: 9, Table: a, Changes: make([]stream.Change, 1)}}
	for _, c := range []struct {
		name        string
		ddl         stream.DDL
		since, from stream.Position
		carries     bool
		waits       bool
		queued      int
	}{
		{"dropped", stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{a}}, 0, 5, true, true, 1},
		{"replaced: the rows are of the new table", stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{a}}, 0, 5, true, true, 1},
		{"made by it: the rows are its own", stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{a}}, 9, 8, true, false, 1},
		{"read by it", stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{b}, Reads: []stream.Table{a}}, 0, 5, true, true, 1},
		{"becomes a partition", stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{b}, Removes: []stream.Table{a}}, 0, 5, true, true, 1},
		{"its schema is dropped", stream.DDL{Kind: stream.DropSchema, Schema: "s"}, 0, 5, true, true, 1},
		{"another schema is dropped", stream.DDL{Kind: stream.DropSchema, Schema: "x"}, 0, 5, true, false, 1},
		{"not known", stream.DDL{Kind: stream.UnknownDDL}, 0, 5, true, true, 1},
		{"not known, and DDL is not replicated", stream.DDL{Kind: stream.UnknownDDL}, 0, 5, false, false, 1},
		{"rows that cannot be read", stream.DDL{Kind: stream.UnreadableRows, Tables: []stream.Table{a}}, 0, 5, false, true, 1},
		{"rows of any table that cannot be read", stream.DDL{Kind: stream.UnreadableRows}, 0, 5, false, true, 1},
		{"it alone is altered", stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{a}}, 0, 5, true, false, 1},
		{"it has it", stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{a}}, 0, 9, true, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := standing(a, c.since, c.from, c.carries)
			to := map[stream.Table][]*dispatcher{a: {d}}
			if err := spread(&stream.Transaction{Position: 9, DDL: &c.ddl, Rows: rows}, to, nil, nil); err != nil {
				t.Fatal(err)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			if unreadable := c.ddl.Kind == stream.UnreadableRows; errors.Is(d.problem(), stream.ErrUnusable) != unreadable {
				t.Errorf("it reports %v", d.problem())
			}
			if d.blocked() != c.waits || len(d.queue) != c.queued {
				t.Errorf("waits %v, %d queued", d.blocked(), len(d.queue))
			}
		})
	}
}

func TestADispatcherExecutesDDLOnlyWithTheLease(t *testing.T) {
	d := standing(stream.Table{Schema: "s", Name: "a"}, 0, 5, true)
	d.feed.engine.opts.May = func() bool { return false }
	if err := d.executeDDL(t.Context(), &stream.Rows{Position: 9, DDL: &stream.DDL{Kind: stream.AlterTable}}); !errors.Is(err, fleet.ErrLeaseInDoubt) {
		t.Error(err)
	}
}

// Of a transaction that is skipped, rows and what cannot be executed are passed; other DDL is waited at, or executed without its statement, so
// that positions move.
func TestASkippedTransactionIsPassed(t *testing.T) {
	a, b := stream.Table{Schema: "s", Name: "a"}, stream.Table{Schema: "s", Name: "b"}
	for _, c := range []struct {
		name   string
		tx     stream.Transaction
		waits  bool
		queued int
	}{
		{"rows", stream.Transaction{Rows: []*stream.Rows{{Position: 9, Table: a, Changes: make([]stream.Change, 1)}}}, false, 0},
		{"a part of a large transaction", stream.Transaction{Rows: []*stream.Rows{{Position: 9, Table: a, Changes: make([]stream.Change, 1), Before: 7, Total: 20, More: true}}}, false, 0},
		{"rows that cannot be read", stream.Transaction{Rows: []*stream.Rows{{Position: 9, Table: a, DDL: &stream.DDL{Kind: stream.UnreadableRows, Tables: []stream.Table{a}}}}}, false, 0},
		{"a statement that is not known", stream.Transaction{DDL: &stream.DDL{Kind: stream.UnknownDDL}}, false, 0},
		{"DDL of several tables", stream.Transaction{DDL: &stream.DDL{Kind: stream.RenameTable, Tables: []stream.Table{a}, Becomes: []stream.Table{b}}}, true, 1},
		{"DDL of the table alone", stream.Transaction{DDL: &stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{a}}}, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := standing(a, 0, 5, true)
			d.feed.config.Skips = []stream.Position{7, 9}
			c.tx.Position = 9
			if err := spread(&c.tx, map[stream.Table][]*dispatcher{a: {d}}, nil, nil); err != nil {
				t.Fatal(err)
			}
			if err := spread(&stream.Transaction{Position: 10, Rows: []*stream.Rows{{Position: 10, Table: a, Changes: make([]stream.Change, 1)}}}, map[stream.Table][]*dispatcher{a: {d}}, nil, nil); err != nil {
				t.Fatal(err)
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.problem() != nil || d.blocked() != c.waits || len(d.queue) != c.queued+1 {
				t.Errorf("%v, waits %v, %d queued", d.problem(), d.blocked(), len(d.queue))
			}
		})
	}
}
