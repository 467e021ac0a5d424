package dispatch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// preparing is a ledger whose writers prepare writes. It counts the writes of rows that were prepared before, and those that were forgotten.
type preparing struct {
	*ledger
	prepared, used, forgotten atomic.Int64
}

func (p *preparing) Acquire(ctx context.Context, table stream.Identity, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	w, at, err := p.ledger.Acquire(ctx, table, epoch, start)
	if err != nil {
		return nil, 0, err
	}
	return &aheadEntry{Writer: w, sink: p, table: table.Table, next: map[stream.Position][]*stream.Rows{}}, at, nil
}

type aheadEntry struct {
	stream.Writer
	sink  *preparing
	table stream.Table

	busy atomic.Bool
	mu   sync.Mutex
	next map[stream.Position][]*stream.Rows // what is prepared, by the first position
}

// Prepare implements stream.AheadWriter.
func (e *aheadEntry) Prepare(rows []*stream.Rows) {
	if e.busy.Swap(true) {
		e.sink.object("%s: two prepare at the same time with one writer", e.table)
	}
	defer e.busy.Store(false)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next[rows[0].Position] = rows
	e.sink.prepared.Add(1)
}

// Forget implements stream.AheadWriter.
func (e *aheadEntry) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sink.forgotten.Add(int64(len(e.next)))
	clear(e.next)
}

// Write may run while the next write is prepared.
func (e *aheadEntry) Write(ctx context.Context, rows []*stream.Rows, to stream.Position) error {
	if len(rows) > 0 {
		e.use(rows)
	}
	return e.Writer.Write(ctx, rows, to)
}

// use counts a write that was prepared.
func (e *aheadEntry) use(rows []*stream.Rows) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Equal(e.next[rows[0].Position], rows) {
		e.sink.used.Add(1)
	}
	delete(e.next, rows[0].Position)
}

// While a batch of the only table with changes is written, the next one is prepared.
func TestTheNextBatchIsPreparedWhileOneIsWritten(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := &preparing{ledger: newLedger(t, source)}
	names := source.tables(t)
	var writes atomic.Int64
	slow := newHang(t)
	sink.hinder(func(ctx context.Context, table stream.Table) error {
		if n := writes.Add(1); n%7 == 0 {
			return errors.New("the sink is away for a moment")
		}
		return slow.wait(ctx, table)
	})
	m := newMachine(t, source, sink, plenty)
	m.mustStart(orders(ep(1), 0, names...))
	var read atomic.Uint64
	source.failing(func(at stream.Position) error { read.Store(uint64(at)); return nil })
	source.wind(2000)
	until(t, "the first write hangs", func() bool { return slow.waiting.Load() == 1 })
	until(t, "the rest is read", func() bool { return read.Load() == 2000 })
	slow.release()
	until(t, "everything is at the sink", func() bool { return sink.has(names, 2000) })
	// Of forty batches some follow one that failed.
	if prepared, used := sink.prepared.Load(), sink.used.Load(); used < 20 || prepared > writes.Load() {
		t.Errorf("%d writes were prepared, and %d of those happened", prepared, used)
	}
}
