package dispatch_test

import (
	"sync"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// gate holds readers up at a position until it is opened.
func (s *tape) gate(t testing.TB, at stream.Position) (open func()) {
	gone := make(chan struct{})
	open = sync.OnceFunc(func() { close(gone) })
	t.Cleanup(open)
	s.failing(func(p stream.Position) error {
		if p == at {
			<-gone
		}
		return nil
	})
	return open
}

// Each reader decodes the whole log. With one for every table that comes from the past, none would ever get to the end.
func TestTablesThatAreBehindShareFewReaders(t *testing.T) {
	noGoroutines(t)
	const head = 45_000
	source := newTape(t, "tables=41")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(head)
	m.mustStart(orders(ep(1), head-1, tables[0]))
	until(t, "the hub is ahead", func() bool { return sink.has(tables[:1], head) })
	open := source.gate(t, head-1)
	for i, table := range tables[1:] {
		m.mustStart(orders(ep(int64(i)+2), stream.Position(i*997%40*1050), table))
		if active, began := source.readers(); active > 1+4 {
			t.Fatalf("%d readers at once, which began at %v", active, began)
		}
	}
	open()
	source.wind(head + 500)
	until(t, "all flow", func() bool { return sink.has(tables, head+500) })
	until(t, "one reader is left", func() bool { active, _ := source.readers(); return active == 1 })
}

// catchingUp is a machine whose hub is at 5000, with the second table on its way there, held up at 3000.
func catchingUp(t *testing.T) (m *machine, source *tape, sink *ledger, open func()) {
	t.Helper()
	noGoroutines(t)
	source = newTape(t, "tables=50")
	sink = newLedger(t, source)
	m = newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(5000)
	m.mustStart(orders(ep(1), 4999, tables[0]))
	until(t, "the hub is ahead", func() bool { return sink.has(tables[:1], 5000) })
	open = source.gate(t, 3000)
	m.mustStart(orders(ep(2), 1000, tables[1]))
	until(t, "it has everything before", func() bool { return m.status(tables[1]).Checkpoint == 2999 })
	return m, source, sink, open
}

// A table without changes must not keep the checkpoint at the position at which it joined.
func TestATableThatCatchesUpIsWhereItsReaderIs(t *testing.T) {
	m, source, sink, open := catchingUp(t)
	tables := source.tables(t)

	// For one that is further behind the reader goes back: nobody loses ground, and nobody gets anything twice.
	m.mustStart(orders(ep(3), 500, tables[2]))
	if at := m.status(tables[1]).Checkpoint; at != 2999 {
		t.Errorf("the first is at %d now", at)
	}
	open()
	until(t, "both have everything", func() bool { return sink.has(tables[:3], 5000) })
	if _, began := source.readers(); len(began) != 3 || began[2] != 500 {
		t.Errorf("readers began at %v", began)
	}
}

// A table that is stopped while it catches up returns its position, and its reader ends with it.
func TestATableThatStopsWhileItCatchesUpReturnsItsPosition(t *testing.T) {
	m, source, sink, open := catchingUp(t)
	tables := source.tables(t)
	if at := m.mustStop(orders(ep(2), 0, tables[1])); at[tables[1]] != 2999 {
		t.Errorf("it stopped at %v", at)
	}
	open()
	until(t, "its reader has ended", func() bool { active, _ := source.readers(); return active == 1 })
	m.mustStart(orders(ep(3), 2999, tables[1]))
	until(t, "it goes on", func() bool { return sink.has(tables[:2], 5000) })
}
