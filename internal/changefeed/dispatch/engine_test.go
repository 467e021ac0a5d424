package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// plenty is more memory than a test needs.
const plenty = 64 << 20

func TestTablesFlowFromTheirStartPosition(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=7")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(1000)
	m.mustStart(orders(ep(1), 21, tables...))
	until(t, "everything is at the sink", func() bool { return sink.has(tables, 1000) })
	until(t, "the report says so", func() bool { return m.Report(key).Checkpoint == 1000 })
	r := m.Report(key)
	if r.Maintainer != 1 || r.Dispatchers != 7 || r.Running != 7 || r.Rows != 979 || r.Bytes == 0 || r.Err != nil || len(r.Lost) != 0 {
		t.Errorf("reported %+v", r)
	}
	if want := source.Transaction(1000).At; want.Sub(r.CheckpointAt).Abs() > time.Minute { // without a rate it is now
		t.Errorf("the checkpoint was at %v, not at %v", r.CheckpointAt, want)
	}
	if n := sink.rows(); n != 979 {
		t.Errorf("%d rows at the sink", n)
	}
}

func TestAMachineWithoutAMaintainerReportsNothing(t *testing.T) {
	source := newTape(t, "tables=1")
	m := newMachine(t, source, newLedger(t, source), plenty)
	if r := m.Report(key); r.Dispatchers != 0 || r.Checkpoint != 0 || r.Err != nil {
		t.Errorf("reported %+v", r)
	}
	if err := m.Accept(key, 3); err != nil {
		t.Fatal(err)
	}
	if r := m.Report(key); r.Maintainer != 3 || r.Dispatchers != 0 {
		t.Errorf("reported %+v", r)
	}
	if list := m.Dispatchers(key); len(list) != 0 {
		t.Errorf("it has %v", list)
	}
}

func TestAStartedTableContinuesAtThePositionOfTheSink(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=3")
	sink := newLedger(t, source)
	tables := source.tables(t)
	source.wind(300)
	first := newMachine(t, source, sink, plenty)
	first.mustStart(orders(ep(1), 0, tables...))
	until(t, "everything is at the sink", func() bool { return sink.has(tables, 300) })
	first.finish()
	source.wind(600)
	second := newMachine(t, source, sink, plenty)
	second.mustStart(orders(ep(2), 10, tables...)) // a hint that is far too low
	until(t, "the rest is at the sink", func() bool { return sink.has(tables, 600) })
}

func TestAPreparedTableReadsAheadAndOwnsNothing(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink := newLedger(t, source)
	a, b := newMachine(t, source, sink, plenty), newMachine(t, source, sink, plenty)
	table := source.tables(t)[0]
	source.wind(100)
	a.mustStart(orders(ep(1), 0, table))
	until(t, "it flows", func() bool { return sink.has([]stream.Table{table}, 100) })
	b.mustPrepare(orders(ep(2), 100, table))
	source.wind(200)
	until(t, "it still flows", func() bool { return sink.has([]stream.Table{table}, 200) })
	until(t, "the other reads ahead", func() bool { return b.Memory() > 0 })
	if s := b.status(table); s.State != dispatch.Prepared || s.Epoch != ep(2) {
		t.Errorf("the other is %+v", s)
	}
	if r := b.Report(key); r.Dispatchers != 1 || r.Running != 0 || r.Checkpoint != 0 {
		t.Errorf("the other reports %+v", r)
	}
}

// What was read ahead is used: the destination reads nothing a second time.
func TestAMoveReadsNothingAgain(t *testing.T) {
	noGoroutines(t)
	there, here := newTape(t, "tables=2"), newTape(t, "tables=2")
	sink := newLedger(t, there)
	a, b := newMachine(t, here, sink, plenty), newMachine(t, there, sink, plenty)
	table := here.tables(t)[0]
	here.wind(100)
	there.wind(100)
	a.mustStart(orders(ep(1), 0, table))
	until(t, "it flows", func() bool { return a.status(table).Checkpoint == 100 })
	b.mustPrepare(orders(ep(2), 50, table))
	until(t, "the other has read on", func() bool { return b.Memory() > 0 })
	stopped := a.mustStop(orders(ep(1), 0, table))
	if stopped[table] != 100 {
		t.Errorf("it stopped at %d", stopped[table])
	}
	b.mustStart(orders(ep(2), stopped[table], table))
	there.wind(200)
	until(t, "it flows there", func() bool { return sink.has([]stream.Table{table}, 200) })
	if _, began := there.readers(); !slices.Equal(began, []stream.Position{50}) {
		t.Errorf("it was read from %v", began)
	}
}

// A table that is idle is at the position of the hub, though the sink's last row of it is far behind. Its move must not read
// everything since that row again: it may be hours, or no longer in the source's log.
func TestAnIdleTablesMoveDoesNotGoBackToItsLastRow(t *testing.T) {
	noGoroutines(t)
	here, there := newTape(t, "tables=1000"), newTape(t, "tables=1000")
	sink := newLedger(t, here)
	a, b := newMachine(t, here, sink, plenty), newMachine(t, there, sink, plenty)
	tables := here.tables(t)
	idle := tables[4]
	here.wind(900)
	there.wind(900)
	a.mustStart(orders(ep(1), 0, idle))
	until(t, "it has come to the head", func() bool { return a.status(idle).Checkpoint == 900 })
	b.mustPrepare(orders(ep(2), 800, idle))
	until(t, "the other has read ahead", func() bool { _, began := there.readers(); return len(began) == 1 })
	stopped := a.mustStop(orders(ep(1), 0, idle))
	if stopped[idle] != 900 {
		t.Errorf("it stopped at %d", stopped[idle])
	}
	b.mustStart(orders(ep(2), stopped[idle], idle))
	there.wind(2010)
	until(t, "it flows there", func() bool { return sink.has([]stream.Table{idle}, 2010) })
	if _, began := there.readers(); slices.Min(began) < 800 {
		t.Errorf("it was read from %v, though it had come to 900", began)
	}
}

func TestACheckpointDoesNotGoBackWhenAnIdleTableGetsARow(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1000")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	idle := source.tables(t)[4]
	source.wind(1000)
	m.mustStart(orders(ep(1), 0, idle))
	until(t, "it has come to the head", func() bool { return m.status(idle).Checkpoint == 1000 })
	hung := newHang(t)
	sink.hinder(hung.wait)
	source.wind(1005) // a row of the table
	until(t, "it is being written", func() bool { return hung.waiting.Load() == 1 })
	for range 10 {
		if p := m.Report(key).Checkpoint; p < 1000 || p >= 1005 {
			t.Errorf("the report fell from 1000 to %d, and 1005 is not at the sink", p)
			break
		}
	}
	if p := m.status(idle).Checkpoint; p < 1000 || p >= 1005 {
		t.Errorf("the table fell from 1000 to %d, and 1005 is not at the sink", p)
	}
}

// While a sink hangs the checkpoint does not advance: what is queued or being written does not count.
func TestACheckpointWaitsForTheSink(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=4")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(40)
	m.mustStart(orders(ep(1), 0, tables...))
	until(t, "it flows", func() bool { return m.Report(key).Checkpoint == 40 })
	hung := newHang(t)
	sink.hinder(func(ctx context.Context, table stream.Table) error {
		if table == tables[2] {
			return hung.wait(ctx, table)
		}
		return nil
	})
	source.wind(400)
	rest := slices.DeleteFunc(slices.Clone(tables), func(table stream.Table) bool { return table == tables[2] })
	until(t, "the others flow", func() bool { return sink.has(rest, 400) })
	until(t, "the one hangs", func() bool { return hung.waiting.Load() == 1 })
	if p := m.Report(key).Checkpoint; p < 40 || p >= 43 {
		t.Errorf("the checkpoint is %d: 43 is not at the sink", p)
	}
	hung.release()
	until(t, "it goes on", func() bool { return m.Report(key).Checkpoint == 400 })
}

func TestATableThatIsFarBehindCatchesUpAndJoins(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=10")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(20_000)
	m.mustStart(orders(ep(1), 19_000, tables[:2]...))
	until(t, "the hub is at the head", func() bool { return m.Report(key).Checkpoint == 20_000 })
	var late []dispatch.Order
	for i, table := range tables[2:] { // each somewhere else
		late = append(late, dispatch.Order{Table: table, Epoch: ep(1), Position: stream.Position(i * 1000)})
	}
	m.mustStart(late)
	until(t, "all have come to the head", func() bool { return sink.has(tables, 20_000) })
	source.wind(20_500)
	until(t, "all have gone on", func() bool { return sink.has(tables, 20_500) && m.Report(key).Checkpoint == 20_500 })
	active, began := source.readers()
	// On a busy machine the first reader for those behind may have gone on before all have joined it.
	if active != 1 || len(began) > 1+4 || began[0] != 19_000 || began[1] != 0 {
		t.Errorf("%d readers, they began at %v: one for the hub, and few for the eight that were behind", active, began)
	}
}

// The cost of catching up must not grow with the number of tables: they are many just when the load is high.
func TestALargeBatchCatchesUpAsFastAsASmallOne(t *testing.T) {
	noGoroutines(t)
	const tables, behind = 2000, 40_000
	source := newTape(t, fmt.Sprintf("tables=%d", tables))
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	names := source.tables(t)
	source.wind(behind)
	m.mustStart(orders(ep(1), behind, names[0]))
	m.mustStart(orders(ep(1), 0, names[1:]...))
	began := time.Now()
	until(t, "everything is at the sink", func() bool { return sink.has(names[1:], behind) })
	t.Logf("%d transactions for %d tables in %v", behind, tables-1, time.Since(began).Round(time.Millisecond))
}

// Orders may come twice: a request that was not answered in time is still being carried out.
func TestAnOrderThatComesTwiceAtOnceIsCarriedOutOnce(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	table := source.tables(t)[0]
	for i := range 30 {
		sink := newLedger(t, source)
		m := newMachine(t, source, sink, plenty)
		var wg sync.WaitGroup
		twice := func(do func()) {
			wg.Go(do)
			wg.Go(do)
			wg.Wait()
		}
		twice(func() { m.mustPrepare(orders(ep(1), 0, table)) })
		sink.hinderOwners(func(context.Context, stream.Table) error { time.Sleep(time.Millisecond); return nil })
		twice(func() { m.Start(context.Background(), key, 1, config, orders(ep(1), 0, table)) })
		if s := m.status(table); s.State != dispatch.Running {
			t.Fatalf("run %d: started twice it is %+v", i, s)
		}
		m.mustStop(orders(ep(1), 0, table))
		until(t, "nobody reads for nobody", func() bool { active, _ := source.readers(); return active == 0 })
		m.finish()
	}
}

func TestATableThatCatchesUpIsReportedAtItsPosition(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(10_000)
	m.mustStart(orders(ep(1), 10_000, tables[0]))
	hung := newHang(t)
	sink.hinder(hung.wait)
	m.mustStart(orders(ep(1), 100, tables[1]))
	until(t, "it catches up", func() bool { return hung.waiting.Load() == 1 })
	if p := m.Report(key).Checkpoint; p < 100 || p > 101 {
		t.Errorf("the checkpoint is %d, and nothing after 101 is at the sink", p)
	}
	if p := m.mustStopLater(tables[1], hung); p < 100 || p >= sink.next(tables[1]) {
		t.Errorf("it stopped at %d, and %d is not at the sink", p, sink.next(tables[1]))
	}
}

// mustStopLater stops a table whose sink hangs, and lets the sink go meanwhile.
func (m *machine) mustStopLater(table stream.Table, hung *hang) stream.Position {
	m.t.Helper()
	time.AfterFunc(10*time.Millisecond, hung.release)
	return m.mustStop(orders(ep(1), 0, table))[table]
}

// Once a table has been stopped nothing may deliver to it or read for it, however far its catching up was.
func TestNothingIsReadForATableStoppedWhileItCatchesUp(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(10_000)
	m.mustStart(orders(ep(1), 10_000, tables[0]))
	until(t, "the hub is there", func() bool { return m.Report(key).Checkpoint == 10_000 })
	reached, goOn := make(chan struct{}), make(chan struct{})
	source.failing(func(p stream.Position) error {
		if p == 5000 {
			close(reached)
			<-goOn
		}
		return nil
	})
	m.mustStart(orders(ep(1), 0, tables[1]))
	<-reached
	m.mustStop(orders(ep(1), 0, tables[1]))
	close(goOn)
	until(t, "the reader of its own has ended", func() bool { active, _ := source.readers(); return active == 1 })
	m.mustStop(orders(ep(1), 0, tables[0]))
	until(t, "nobody reads for nobody", func() bool { active, _ := source.readers(); return active == 0 })
}

func TestAChangefeedClosedWhileItCatchesUpLeavesNothingBehind(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(10_000)
	m.mustStart(orders(ep(1), 10_000, tables[0]))
	reached, goOn := make(chan struct{}), make(chan struct{})
	source.failing(func(p stream.Position) error {
		if p == 5000 {
			close(reached)
			<-goOn
		}
		return nil
	})
	m.mustStart(orders(ep(1), 0, tables[1]))
	<-reached
	closed := make(chan error)
	go func() { closed <- m.Close(context.Background(), key) }()
	until(t, "it closes", func() bool { return m.Report(key).Dispatchers == 0 })
	time.Sleep(20 * time.Millisecond) // it may wait for the reader, or not; the reader may not begin anything new
	close(goOn)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	until(t, "nobody reads", func() bool { active, _ := source.readers(); return active == 0 })
	source.mu.Lock()
	defer source.mu.Unlock()
	if source.closed != 1 {
		t.Errorf("the source was closed %d times", source.closed)
	}
}

func TestChangefeedsOfOneSourceShareOneReader(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=5")
	first, second := newLedger(t, source), newLedger(t, source)
	m := newMachine(t, source, first, plenty)
	m.sinks["other"] = second
	tables := source.tables(t)
	source.wind(100)
	m.mustStart(orders(ep(1), 0, tables...))
	until(t, "the first flows", func() bool { return first.has(tables, 100) })
	other := dispatch.FeedKey{Namespace: "default", Name: "other", UID: "2"}
	c := config
	c.Sink = "other"
	if failed := m.Start(context.Background(), other, 1, c, orders(ep(1), 100, tables[1:4]...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	source.wind(1000)
	until(t, "both flow", func() bool { return first.has(tables, 1000) && second.has(tables[1:4], 1000) })
	if active, began := source.readers(); active != 1 || len(began) != 1 {
		t.Errorf("%d readers, they began at %v", active, began)
	}
	if err := m.Close(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	source.wind(2000)
	until(t, "the second flows on", func() bool { return second.has(tables[1:4], 2000) })
	if first.has(tables, 1001) {
		t.Error("the first was written after it was closed")
	}
	if first.closed != 1 || second.closed != 0 {
		t.Errorf("sinks closed %d and %d times", first.closed, second.closed)
	}
	if err := m.Close(context.Background(), other); err != nil {
		t.Fatal(err)
	}
	if active, _ := source.readers(); active != 0 || source.closed != 1 || len(m.Keys()) != 0 {
		t.Errorf("%d readers, source closed %d times, %v left", active, source.closed, m.Keys())
	}
}

func TestASlowSinkSlowsReadingWithinTheMemoryThatWasGiven(t *testing.T) {
	noGoroutines(t)
	const memory = 64 << 10
	source := newTape(t, "tables=8")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, memory)
	tables := source.tables(t)
	hung := newHang(t)
	sink.hinder(hung.wait)
	source.wind(10_000) // about 2.5 MB
	m.mustStart(orders(ep(1), 5000, tables[:4]...))
	until(t, "the memory is used up", func() bool { return m.Memory() >= memory })
	m.mustStart(orders(ep(1), 0, tables[4:]...)) // and a reader of their own
	// One transaction of each reader may be over.
	limit := int64(memory + 2*source.Transaction(1).Rows[0].Bytes)
	for range 100 {
		if n := m.Memory(); n > limit {
			t.Fatalf("%d bytes are on their way, of %d", n, memory)
		}
		time.Sleep(time.Millisecond)
	}
	hung.release()
	var most atomic.Int64
	sink.hinder(func(context.Context, stream.Table) error {
		most.Store(max(most.Load(), m.Memory()))
		return nil
	})
	until(t, "reading has gone on to the end", func() bool { return sink.has(tables, 10_000) })
	if most.Load() > limit {
		t.Errorf("%d bytes were on their way, of %d", most.Load(), memory)
	}
	until(t, "all memory is given back", func() bool { return m.Memory() == 0 })
}

// What is read ahead for a move may not take the memory that running tables need: the move may wait for long.
func TestPreparedTablesDoNotStarveRunningOnes(t *testing.T) {
	noGoroutines(t)
	const memory = 256 << 10
	source := newTape(t, "tables=8")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, memory)
	tables := source.tables(t)
	m.mustStart(orders(ep(1), 0, tables[:4]...))
	m.mustPrepare(orders(ep(2), 0, tables[4:]...))
	source.wind(10_000)
	end := time.Now().Add(3 * time.Second)
	for !sink.has(tables[:4], 10_000) && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	if !sink.has(tables[:4], 10_000) {
		t.Errorf("running tables stand still at %d: %d of %d bytes are taken by tables that only read ahead", sink.next(tables[0]), m.Memory(), memory)
	}
}

func TestATableThatReadTooFarAheadCatchesUpWhenItStarts(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	table := source.tables(t)[0]
	m.mustPrepare(orders(ep(1), 0, table))
	source.wind(10_000)
	until(t, "it has let go of some", func() bool {
		_, began := source.readers()
		return len(began) == 1 && m.Memory() < 2<<20 && m.Memory() > 0
	})
	m.mustStart(orders(ep(1), 0, table))
	until(t, "everything is at the sink", func() bool { return sink.has([]stream.Table{table}, 10_000) })
	source.wind(11_000)
	until(t, "it goes on", func() bool { return sink.has([]stream.Table{table}, 11_000) })
	if active, _ := source.readers(); active != 1 {
		t.Errorf("%d readers", active)
	}
}

// A table whose destination is ahead of its origin drops what it has read ahead and catches up. What the hub delivers in
// that moment must wait for what comes before it.
func TestWhatTheHubDeliversWhileATableStartsLateIsNotWrittenFirst(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink, busy := newLedger(t, source), newLedger(t, source)
	held, goOn := make(chan struct{}), make(chan struct{})
	var block atomic.Bool
	m := newMachine(t, source, sink, plenty)
	m.sinks["busy"] = busy
	// A changefeed whose gate is slow holds the reader up between two tables of the same transaction's delivery.
	slow := dispatch.FeedKey{Namespace: "default", Name: "slow", UID: "2"}
	e := dispatch.New(dispatch.Options{
		OpenSource: func(dispatch.Config) (stream.Source, error) { return pairs{source}, nil },
		OpenSink:   func(_ dispatch.FeedKey, c dispatch.Config) (stream.Sink, error) { return m.sinks[c.Sink], nil },
		Memory:     plenty,
		Enter: func() (func(), error) {
			if block.CompareAndSwap(true, false) {
				close(held)
				<-goOn
			}
			return func() {}, nil
		},
	})
	m.Engine = e
	tables := source.tables(t)
	c := config
	c.Sink = "busy"
	if failed := m.Start(context.Background(), slow, 1, c, orders(ep(1), 0, tables[0])); len(failed) > 0 {
		t.Fatal(failed)
	}
	source.wind(100)
	until(t, "the hub is ahead", func() bool { return busy.has(tables[:1], 100) })
	m.mustPrepare(orders(ep(1), 10, tables[1]))

	block.Store(true)
	entered := make(chan struct{})
	go func() {
		defer close(entered)
		m.Prepare(slow, 1, c, orders(ep(2), 0, tables[1]))
	}()
	<-held
	source.wind(102) // delivered to the first table, which waits for its changefeed, and then to the second
	time.Sleep(20 * time.Millisecond)
	started := make(chan map[stream.Table]error)
	go func() { started <- m.Start(context.Background(), key, 1, config, orders(ep(1), 10, tables[1])) }()
	time.Sleep(20 * time.Millisecond)
	close(goOn)
	<-entered
	if failed := <-started; len(failed) > 0 {
		t.Fatal(failed)
	}
	source.wind(200)
	until(t, "it flows", func() bool { return sink.has(tables[1:], 200) })
}

// pairs is a tape of two tables whose transactions come in pairs: one of each table, in one transaction.
type pairs struct{ *tape }

// Read implements stream.Source.
func (p pairs) Read(ctx context.Context, after stream.Position, visit func(*stream.Transaction) error) error {
	var first *stream.Transaction
	return p.tape.Read(ctx, after-after%2, func(t *stream.Transaction) error {
		if t.Position%2 == 1 {
			first = t
			return nil
		}
		both := *t
		both.Rows = append(slices.Clone(first.Rows), t.Rows...)
		return visit(&both)
	})
}

func TestSinkErrorsAreRetriedAndReported(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=3")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	var fails atomic.Bool
	fails.Store(true)
	sink.hinder(func(context.Context, stream.Table) error {
		if fails.Load() {
			return errors.New("the disk is full")
		}
		return nil
	})
	source.wind(300)
	m.mustStart(orders(ep(1), 0, tables...))
	until(t, "the report says what is wrong", func() bool { err := m.Report(key).Err; return err != nil && err.Error() == "the disk is full" })
	if r := m.Report(key); r.Checkpoint != 0 || r.Running != 3 || r.Rows != 0 {
		t.Errorf("reported %+v", r)
	}
	fails.Store(false)
	until(t, "everything is at the sink", func() bool { return sink.has(tables, 300) })
	until(t, "nothing is wrong any more", func() bool { return m.Report(key).Err == nil })
}

func TestSourceErrorsAreRetriedWithoutAGap(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=3")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	left := atomic.Int64{}
	left.Store(5)
	source.failing(func(p stream.Position) error {
		if p%97 == 0 && left.Add(-1) >= 0 {
			return errors.New("connection lost")
		}
		return nil
	})
	source.wind(1000)
	m.mustStart(orders(ep(1), 0, tables...))
	until(t, "the report says what is wrong", func() bool { err := m.Report(key).Err; return err != nil && err.Error() == "connection lost" })
	until(t, "everything is at the sink", func() bool { return sink.has(tables, 1000) })
	until(t, "nothing is wrong any more", func() bool { return m.Report(key).Err == nil })
}

func TestATableThatAnotherOwnsIsLost(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=3")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(30)
	m.mustStart(orders(ep(1), 0, tables...))
	until(t, "they flow", func() bool { return sink.has(tables, 30) })
	sink.steal(tables[1], ep(2))
	source.wind(60)
	until(t, "it is lost", func() bool { return slices.Equal(m.Report(key).Lost, []stream.Identity{tables[1].Since(0)}) })
	until(t, "the others flow", func() bool { return sink.has(tables[:1], 60) && sink.has(tables[2:], 60) })
	if s := m.status(tables[1]); s.State != dispatch.Lost || !errors.Is(s.Err, stream.ErrNotOwner) || s.Checkpoint > 31 {
		t.Errorf("it is %+v", s)
	}
	if r := m.Report(key); r.Running != 2 || r.Dispatchers != 3 {
		t.Errorf("reported %+v", r)
	}
	if sink.next(tables[1]) != 32 {
		t.Errorf("it wrote up to %d though it was another's", sink.next(tables[1]))
	}
	// The maintainer places it again, perhaps here, with a newer epoch.
	if failed := m.Start(context.Background(), key, 1, config, orders(ep(3), 30, tables[1])); len(failed) > 0 {
		t.Fatalf("it cannot be placed here again: %v", failed)
	}
	until(t, "it flows again", func() bool { return sink.has(tables, 60) })
}

// A maintainer tries again what failed, with a newer epoch, and perhaps on the same node.
func TestAStartThatFailedAtTheSinkCanBeTriedAgain(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=3")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	source.wind(30)
	sink.hinderOwners(func(_ context.Context, table stream.Table) error {
		if table == tables[1] {
			return errors.New("no route to host")
		}
		return nil
	})
	failed := m.Start(context.Background(), key, 1, config, orders(ep(1), 0, tables...))
	if len(failed) != 1 || failed[tables[1]] == nil || failed[tables[1]].Error() != "no route to host" {
		t.Fatalf("failed: %v", failed)
	}
	until(t, "the others flow", func() bool { return sink.has(tables[:1], 30) && sink.has(tables[2:], 30) })
	sink.hinderOwners(nil)
	if failed := m.Start(context.Background(), key, 1, config, orders(ep(2), 0, tables[1])); len(failed) > 0 {
		t.Fatalf("it cannot be tried again: %v", failed)
	}
	until(t, "it flows", func() bool { return sink.has(tables, 30) })
}

func TestOlderMaintainersAreRefused(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	newer := stream.Epoch{Placement: 7, Counter: 1}
	if failed := m.Start(context.Background(), key, 7, config, orders(newer, 0, tables[0])); len(failed) > 0 {
		t.Fatal(failed)
	}
	want := "changefeed default/cf: the maintainer has been superseded: its placement is 6, and this node has accepted placement 7"
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, dispatch.ErrOldMaintainer) || err.Error() != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("accept", m.Accept(key, 6))
	refused("prepare", m.Prepare(key, 6, config, orders(newer, 0, tables[1]))[tables[1]])
	refused("start", m.Start(context.Background(), key, 6, config, orders(newer, 0, tables[1]))[tables[1]])
	stopped, failed := m.Stop(context.Background(), key, 6, orders(newer, 0, tables[0]))
	refused("stop", failed[tables[0]])
	if len(stopped) != 0 || m.Report(key).Running != 1 || m.Report(key).Dispatchers != 1 || m.Report(key).Maintainer != 7 {
		t.Errorf("stopped %v, left %+v", stopped, m.Report(key))
	}
	if err := m.Accept(key, 8); err != nil {
		t.Errorf("a newer one: %v", err)
	}
	if m.Report(key).Running != 1 {
		t.Error("tables stop while their maintainer moves")
	}
}

// A table that was dropped and created again is another one: what was ordered of the first, and comes late, does not concern it.
func TestOrdersAboutAnEarlierTableOfTheNameDoNotConcernTheLaterOne(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	table := source.tables(t)[0]
	since := func(at stream.Position, epoch stream.Epoch) []dispatch.Order {
		return []dispatch.Order{{Table: table, Since: at, Epoch: epoch}}
	}
	m.mustStart(since(7, ep(5)))
	if s := m.status(table); s.Identity != table.Since(7) || s.State != dispatch.Running {
		t.Errorf("it is %+v", s)
	}
	for _, earlier := range []stream.Position{0, 6, 8} {
		for _, epoch := range []stream.Epoch{ep(4), ep(5), ep(6)} {
			if stopped := m.mustStop(since(earlier, epoch)); len(stopped) != 0 {
				t.Errorf("the one since %d was stopped at %v", earlier, stopped)
			}
		}
		if at := m.Positions(key, since(earlier, ep(5))); len(at) != 0 {
			t.Errorf("the one since %d is at %v", earlier, at)
		}
	}
	if failed := m.Start(context.Background(), key, 1, config, since(0, ep(4))); !errors.Is(failed[table], dispatch.ErrOldMaintainer) {
		t.Errorf("the one before was started: %v", failed)
	}
	if s := m.status(table); s.Identity != table.Since(7) || s.State != dispatch.Running || len(m.Positions(key, since(7, ep(5)))) != 1 {
		t.Errorf("it is %+v", s)
	}
	m.mustStart(since(9, ep(6))) // the next one of the name, before the maintainer has stopped this
	if s := m.status(table); s.Identity != table.Since(9) || m.Report(key).Dispatchers != 1 {
		t.Errorf("it is %+v", s)
	}
	// A maintainer of an earlier version knows only the name.
	if stopped := m.mustStop(since(stream.AnySince, ep(6))); len(stopped) != 1 {
		t.Error("it was not stopped")
	}
	m.mustStart(since(stream.AnySince, ep(7)))
	if stopped := m.mustStop(since(stream.AnySince, ep(7))); len(stopped) != 1 {
		t.Error("it was not stopped")
	}
}

func TestOrdersOfAnotherDispatchersEpochAreRefused(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	table := source.tables(t)[0]
	m.mustStart(orders(ep(5), 0, table))
	for _, c := range []struct {
		name string
		err  error
		old  bool
		want string
	}{
		{"an older one is prepared", m.Prepare(key, 1, config, orders(ep(4), 0, table))[table], true, "table datagen.t0: the maintainer has been superseded: this node has its dispatcher of epoch 1.5, which is newer than 1.4"},
		{"an older one is started", m.Start(context.Background(), key, 1, config, orders(ep(4), 0, table))[table], true, "table datagen.t0: the maintainer has been superseded: this node has its dispatcher of epoch 1.5, which is newer than 1.4"},
		{"the same one again", m.Start(context.Background(), key, 1, config, orders(ep(5), 0, table))[table], false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if errors.Is(c.err, dispatch.ErrOldMaintainer) != c.old || message(c.err) != c.want {
				t.Errorf("got  %q\nwant %q", message(c.err), c.want)
			}
		})
	}
	if _, failed := m.Stop(context.Background(), key, 1, orders(ep(4), 0, table)); !errors.Is(failed[table], dispatch.ErrOldMaintainer) {
		t.Errorf("an older one stops it: %v", failed)
	}
	if stopped, failed := m.Stop(context.Background(), key, 1, orders(ep(6), 0, table)); len(failed) != 0 || len(stopped) != 1 {
		t.Errorf("a newer one does not stop it: %v", failed)
	}
	if stopped, failed := m.Stop(context.Background(), key, 1, orders(ep(6), 0, table)); len(failed) != 0 || len(stopped) != 0 {
		t.Errorf("one that is not here: %v, %v", stopped, failed)
	}
}

// A node that was away may have a dispatcher that its maintainer does not know of. It must not refuse the table for that.
func TestANewerOrderReplacesARunningDispatcher(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	m.mustStart(orders(ep(5), 0, tables...))
	source.wind(20)
	until(t, "the first writes", func() bool { return sink.has(tables, 20) })
	if failed := m.Prepare(key, 1, config, orders(ep(6), 20, tables...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	if failed := m.Start(context.Background(), key, 1, config, orders(ep(6), 20, tables...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	if at := m.Positions(key, orders(ep(6), 0, tables...)); at[tables[0]] != 20 || len(m.Positions(key, orders(ep(5), 0, tables...))) != 0 {
		t.Errorf("it began at %v", at)
	}
	source.wind(40)
	until(t, "the second writes", func() bool { return sink.has(tables, 40) })
	if list := m.Dispatchers(key); len(list) != 1 || list[0].Epoch != ep(6) || list[0].State != dispatch.Running {
		t.Errorf("the node has %+v", list)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestAClosedGateRefusesNewTablesAndKeepsTheOthers(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	m.mustStart(orders(ep(1), 0, tables[0]))
	m.refuse.Store(true)
	failed := m.Start(context.Background(), key, 1, config, orders(ep(2), 0, tables[1]))
	if !errors.Is(failed[tables[1]], errFull) || message(failed[tables[1]]) != "table datagen.t0: the gate is closed" && message(failed[tables[1]]) != "table datagen.t1: the gate is closed" {
		t.Errorf("failed: %v", failed)
	}
	if failed := m.Prepare(key, 1, config, orders(ep(2), 0, tables[1])); !errors.Is(failed[tables[1]], errFull) {
		t.Errorf("prepared: %v", failed)
	}
	source.wind(10)
	until(t, "the other flows", func() bool { return sink.has(tables[:1], 10) })
	if n := m.places.Load(); n != 1 {
		t.Errorf("%d are counted", n)
	}
}

func TestAStopWaitsForWhatIsBeingWritten(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	table := source.tables(t)[0]
	hung := newHang(t)
	sink.hinder(hung.wait)
	source.wind(10)
	m.mustStart(orders(ep(1), 0, table))
	until(t, "it writes", func() bool { return hung.waiting.Load() == 1 })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, failed := m.Stop(ctx, key, 1, orders(ep(1), 0, table)); !errors.Is(failed[table], context.DeadlineExceeded) {
		t.Errorf("it stopped while something was under way: %v", failed)
	}
	if m.places.Load() != 1 {
		t.Error("its place was given away while something was under way")
	}
	p := m.mustStopLater(table, hung)
	if next := sink.next(table); p >= next || next == 1 {
		t.Errorf("it stopped at %d, %d is next at the sink", p, next)
	}
	if m.places.Load() != 0 {
		t.Error("its place was not given back")
	}
}

// A move that stops a dispatcher whose write finds that the table has another owner, or that the sink has lost writes, must not go on as
// if all of it was written.
func TestAStopSaysThatTheTableIsLost(t *testing.T) {
	for name, lost := range map[string]error{"another owner": stream.ErrNotOwner, "a sink that went back": stream.ErrWentBack} {
		for when, waits := range map[string]bool{"while it is written": true, "before": false} {
			t.Run(name+" "+when, func(t *testing.T) {
				noGoroutines(t)
				source := newTape(t, "tables=1")
				sink := newLedger(t, source)
				m := newMachine(t, source, sink, plenty)
				table := source.tables(t)[0]
				var writes atomic.Int64
				end := make(chan struct{})
				sink.hinder(func(context.Context, stream.Table) error {
					writes.Add(1)
					<-end
					return lost
				})
				source.wind(10)
				m.mustStart(orders(ep(1), 0, table))
				until(t, "it writes", func() bool { return writes.Load() == 1 })
				if waits {
					time.AfterFunc(20*time.Millisecond, func() { close(end) })
				} else {
					close(end)
					until(t, "it is lost", func() bool { return len(m.Report(key).Lost) == 1 })
				}
				stopped, failed := m.Stop(context.Background(), key, 1, orders(ep(1), 0, table))
				if !errors.Is(failed[table], dispatch.ErrLost) || len(stopped) != 0 {
					t.Errorf("stopped %v, failed %v", stopped, failed)
				}
				if m.places.Load() != 0 {
					t.Error("its place was not given back")
				}
			})
		}
	}
}

// A table that waits for the next attempt to write is not being written: a move need not wait for that attempt.
func TestAStopDoesNotWaitForTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newTape(t, "tables=1")
		sink := newLedger(t, source)
		m := newMachine(t, source, sink, plenty)
		table := source.tables(t)[0]
		sink.hinder(func(context.Context, stream.Table) error { return errors.New("the sink is away") })
		source.wind(10)
		m.mustStart(orders(ep(1), 0, table))
		time.Sleep(7 * time.Second) // of a pause that ends at 12.7 s
		synctest.Wait()
		began := time.Now()
		if p := m.mustStop(orders(ep(1), 0, table))[table]; p != 0 {
			t.Errorf("it stopped at %d", p)
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("it took %v to stop a table that does nothing", took)
		}
	})
}

func TestAStopWhileTheTableIsBeingAcquiredClosesItsWriter(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	table := source.tables(t)[0]
	hung := newHang(t)
	sink.hinderOwners(hung.wait)
	started := make(chan map[stream.Table]error)
	go func() { started <- m.Start(context.Background(), key, 1, config, orders(ep(1), 0, table)) }()
	until(t, "it is being acquired", func() bool { return hung.waiting.Load() == 1 })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		m.mustStop(orders(ep(1), 0, table))
	}()
	time.Sleep(20 * time.Millisecond)
	hung.release()
	<-stopped
	<-started
	source.wind(10)
	if n := sink.writers(); n != 0 {
		t.Errorf("%d writers of a table that was stopped are open", n)
	}
	if m.Report(key).Running != 0 {
		t.Error("it runs though it was stopped")
	}
}

func TestStoppingAndClosingAtTheSameTime(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	m := newMachine(t, source, newLedger(t, source), plenty)
	table := source.tables(t)[0]
	var panicked atomic.Value
	var wg sync.WaitGroup
	end := time.Now().Add(300 * time.Millisecond)
	for range 2 {
		wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					panicked.Store(fmt.Sprint(r))
				}
			}()
			for time.Now().Before(end) {
				m.Stop(context.Background(), key, 1, orders(ep(1), 0, table))
			}
		})
		wg.Go(func() {
			for time.Now().Before(end) {
				if err := m.Close(context.Background(), key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if text := panicked.Load(); text != nil {
		t.Errorf("a stop that met a close panicked: %v", text)
	}
}

// For the race detector: results of several tables arrive at the same time.
func TestStopsThatFailInDifferentWaysAreReportedTogether(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=50")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	hung := newHang(t)
	sink.hinder(hung.wait)
	source.wind(50)
	c := config
	c.Workers = len(tables)
	if failed := m.Start(context.Background(), key, 1, c, orders(ep(5), 0, tables...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	until(t, "all are being written", func() bool { return hung.waiting.Load() == 50 })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var list []dispatch.Order
	for i, table := range tables {
		list = append(list, orders(ep(int64(4+i%2)), 0, table)...)
	}
	for range 20 {
		stopped, failed := m.Stop(ctx, key, 1, list)
		if len(stopped) != 0 || len(failed) != 50 {
			t.Errorf("%d stopped, %d failed", len(stopped), len(failed))
		}
	}
}

// For the race detector: reports may be requested while the first order opens the changefeed.
func TestReportsAndStartsAtOnce(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=4")
	source.wind(40)
	tables := source.tables(t)
	for range 50 {
		sink := newLedger(t, source)
		m := newMachine(t, source, sink, plenty)
		if err := m.Accept(key, 1); err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for _, ask := range []func(){func() { m.Report(key) }, func() { m.Dispatchers(key) }, func() { m.Keys() }} {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						ask()
					}
				}
			})
		}
		for i, table := range tables {
			wg.Go(func() { m.Start(context.Background(), key, 1, config, orders(ep(int64(i+1)), 0, table)) })
		}
		until(t, "everything is at the sink", func() bool { return sink.has(tables, 40) })
		close(stop)
		wg.Wait()
		m.finish()
	}
}

func TestAClosedChangefeedCanComeBack(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=2")
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	tables := source.tables(t)
	for i := range 5 {
		head := stream.Position(100 * (i + 1))
		source.wind(head)
		m.mustStart(orders(ep(int64(i+1)), 0, tables...))
		until(t, "it flows", func() bool { return sink.has(tables, head) })
		m.finish()
	}
	if sink.closed != 5 || source.closed != 5 {
		t.Errorf("sink closed %d times, source %d times", sink.closed, source.closed)
	}
}

func TestASinkOrSourceThatCannotBeOpenedIsReported(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	table := source.tables(t)[0]
	var badSource, badSink error
	e := dispatch.New(dispatch.Options{
		OpenSource: func(dispatch.Config) (stream.Source, error) { return source, badSource },
		OpenSink:   func(dispatch.FeedKey, dispatch.Config) (stream.Sink, error) { return sink, badSink },
		Enter:      func() (func(), error) { return func() {}, nil },
		Memory:     plenty,
	})
	start := func() string {
		return message(e.Start(context.Background(), key, 1, config, orders(ep(1), 0, table))[table])
	}
	badSink = errors.New("no such host")
	if got, want := start(), "open the sink of changefeed default/cf: no such host"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	badSource, badSink = badSink, nil
	if got, want := start(), "open the source of changefeed default/cf: no such host"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if sink.closed != 1 {
		t.Errorf("the sink was opened in vain and closed %d times", sink.closed)
	}
	badSource = nil
	if got := start(); got != "" {
		t.Errorf("afterwards: %s", strings.TrimSpace(got))
	}
	if err := e.Close(context.Background(), key); err != nil {
		t.Error(err)
	}
}
