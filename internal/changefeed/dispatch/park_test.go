package dispatch_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Two changefeeds read through one hub and share the node's memory. The one whose sink hangs gets what it missed when it goes on.
func TestASinkThatHangsDoesNotHoldUpOtherChangefeeds(t *testing.T) {
	noGoroutines(t)
	const memory, head = 256 << 10, 60_000
	source := newTape(t, "tables=10")
	sink, other := newLedger(t, source), newLedger(t, source)
	m := newMachine(t, source, sink, memory)
	m.sinks["other"] = other
	tables := source.tables(t)
	hung := newHang(t)
	sink.hinder(hung.wait)
	m.mustStart(orders(ep(1), 0, tables...))
	c := config
	c.Sink = "other"
	if failed := m.Start(context.Background(), dispatch.FeedKey{Namespace: "default", Name: "other", UID: "2"}, 1, c, orders(ep(1), 0, tables...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	source.wind(head)
	until(t, "the other has everything", func() bool { return other.has(tables, head) })
	if used := m.Memory(); used > 2*memory {
		t.Errorf("%d bytes are in use, of %d", used, memory)
	}
	hung.release()
	until(t, "the one has everything", func() bool { return sink.has(tables, head) })
}

// A table that cannot be written keeps neither the workers nor the memory that the others of its changefeed need.
func TestATableThatCannotBeWrittenDoesNotHoldUpOthers(t *testing.T) {
	noGoroutines(t)
	const memory, head = 256 << 10, 60_000
	source := newTape(t, "tables=20")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, memory)
	tables := source.tables(t)
	bad := tables[:config.Workers+1]
	isBad := map[stream.Table]bool{}
	for _, table := range bad {
		isBad[table] = true
	}
	var mended atomic.Bool
	sink.hinder(func(_ context.Context, table stream.Table) error {
		if isBad[table] && !mended.Load() {
			return errors.New("no such table")
		}
		return nil
	})
	m.mustStart(orders(ep(1), 0, tables...))
	source.wind(head)
	until(t, "the others have everything", func() bool { return sink.has(tables[len(bad):], head) })
	r := m.Report(key)
	if r.Err == nil || r.Slowest == "" || r.Checkpoint >= head {
		t.Errorf("the report is %+v", r)
	}
	mended.Store(true)
	until(t, "all have everything", func() bool { return sink.has(tables, head) })
}

// What a writer has prepared is in no budget.
func TestWhatIsPreparedForASinkThatHangsIsForgotten(t *testing.T) {
	noGoroutines(t)
	const memory, few, head = 256 << 10, 500, 60_000
	source := newTape(t, "tables=1")
	sink := &preparing{ledger: newLedger(t, source)}
	other := newLedger(t, source)
	m := newMachine(t, source, sink, memory)
	m.sinks["other"] = other
	tables := source.tables(t)
	var writes atomic.Int64
	first, later := newHang(t), newHang(t)
	sink.hinder(func(ctx context.Context, table stream.Table) error {
		if writes.Add(1) == 1 {
			return first.wait(ctx, table)
		}
		return later.wait(ctx, table)
	})
	m.mustStart(orders(ep(1), 0, tables...))
	c := config
	c.Sink = "other"
	if failed := m.Start(context.Background(), dispatch.FeedKey{Namespace: "default", Name: "other", UID: "2"}, 1, c, orders(ep(1), 0, tables...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	source.wind(few)
	until(t, "the first write hangs", func() bool { return first.waiting.Load() == 1 })
	until(t, "more than two batches are read", func() bool { return other.has(tables, few) })
	first.release()
	until(t, "a write is prepared while another one hangs", func() bool { return later.waiting.Load() == 1 && sink.prepared.Load() > 0 })
	source.wind(head)
	until(t, "it is forgotten", func() bool { return sink.forgotten.Load() > 0 })
	later.release()
	until(t, "everything is at the sink", func() bool { return sink.has(tables, head) })
}
