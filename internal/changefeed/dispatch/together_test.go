package dispatch_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// sharing is a ledger that writes several tables together, and counts how often and how many tables it did.
type sharing struct {
	*ledger
	shared, tables atomic.Int64
}

func (s *sharing) WriteTogether(ctx context.Context, parts []stream.Part) {
	s.shared.Add(1)
	s.tables.Add(int64(len(parts)))
	var wg sync.WaitGroup
	for _, p := range parts {
		wg.Go(func() { p.Done(p.Writer.Write(ctx, p.Rows, p.To)) })
	}
	wg.Wait()
}

// While two writes are under way, what comes for other tables is written together.
func TestManyTablesWithLittleEachAreWrittenTogether(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=40")
	sink := &sharing{ledger: newLedger(t, source)}
	m := newMachine(t, source, sink, 64<<20)
	names := source.tables(t)
	slow := newHang(t)
	sink.hinder(slow.wait)
	c := config
	c.Workers, c.BatchRows = 2, 1000
	if failed := m.Start(context.Background(), key, 1, c, orders(ep(1), 0, names...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	source.wind(1)
	until(t, "the first write hangs", func() bool { return slow.waiting.Load() == 1 })
	source.wind(2)
	until(t, "the second write hangs", func() bool { return slow.waiting.Load() == 2 })
	source.wind(400)
	until(t, "everything is read", func() bool { return m.Memory() > 0 && m.Report(key).Running == len(names) })
	slow.release()
	until(t, "everything is at the sink", func() bool { return sink.has(names, 400) })
	if sink.shared.Load() == 0 || sink.tables.Load() < 2*sink.shared.Load() {
		t.Errorf("%d tables were written in %d shared writes", sink.tables.Load(), sink.shared.Load())
	}
}

// Writes that hang hold up no other table for long.
func TestWritesThatHangHoldUpNoOtherTable(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=10")
	sink := &sharing{ledger: newLedger(t, source)}
	m := newMachine(t, source, sink, 64<<20)
	names := source.tables(t)
	stuck := newHang(t)
	sink.hinder(func(ctx context.Context, table stream.Table) error {
		if table == names[0] || table == names[1] {
			return stuck.wait(ctx, table)
		}
		return nil
	})
	m.mustStart(orders(ep(1), 0, names...))
	for p := stream.Position(10); p <= 200; p += 10 {
		source.wind(p)
		until(t, "the other tables are written", func() bool { return sink.has(names[2:], p) })
	}
	stuck.release()
	until(t, "all tables are written", func() bool { return sink.has(names, 200) })
}

// Tables that are written together move, and one that is lost to another owner ends alone.
func TestTablesThatAreWrittenTogetherMoveAndAreLostOneByOne(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=30")
	sink := &sharing{ledger: newLedger(t, source)}
	machines := [2]*machine{newMachine(t, source, sink, 64<<20), newMachine(t, source, sink, 64<<20)}
	names := source.tables(t)
	machines[0].mustStart(orders(ep(1), 0, names...))
	at := stream.Position(0)
	for round := range int64(8) {
		from, to := machines[round%2], machines[(round+1)%2]
		at += 3000
		source.wind(at)
		to.mustPrepare(orders(ep(round+2), at-3000, names...))
		stopped := from.mustStop(orders(ep(round+1), 0, names...))
		var list []dispatch.Order
		for _, name := range names {
			list = append(list, dispatch.Order{Table: name, Epoch: ep(round + 2), Position: stopped[name]})
		}
		to.mustStart(list)
	}
	until(t, "everything is at the sink", func() bool { return sink.has(names, at) })
	sink.steal(names[7], ep(100))
	source.wind(at + 3000)
	until(t, "one table is lost", func() bool { return machines[0].status(names[7]).State == dispatch.Lost })
	rest := append(append([]stream.Table{}, names[:7]...), names[8:]...)
	until(t, "the others are written", func() bool { return sink.has(rest, at+3000) })
}
