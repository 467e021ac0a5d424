package dispatch_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// traffic moves tables between two machines, as maintainers do, while they flow.
type traffic struct {
	t        *testing.T
	sink     *ledger
	machines [2]*machine
	counter  atomic.Int64
	moves    atomic.Int64
	stopped  atomic.Int64 // bad positions are told once
}

// fewestMoves are how many moves show something. On a busy machine they take longer.
const fewestMoves = 20

// drive moves some tables to and fro until the time is over and there were enough moves. Nobody else moves them.
func (f *traffic) drive(chance *rand.Rand, tables []stream.Table, start stream.Position, end time.Time) {
	at, floor, epoch := map[stream.Table]int{}, map[stream.Table]stream.Position{}, map[stream.Table]stream.Epoch{}
	begin := func(where int, list []stream.Table, e stream.Epoch) {
		var orders []dispatch.Order
		for _, table := range list {
			orders = append(orders, dispatch.Order{Table: table, Epoch: e, Position: floor[table]})
			at[table], epoch[table] = where, e
		}
		f.machines[where].mustStart(orders)
	}
	for _, table := range tables {
		floor[table] = start
	}
	begin(chance.IntN(2), tables, ep(f.counter.Add(1)))
	for time.Now().Before(end) || f.moves.Load() < fewestMoves && time.Now().Before(end.Add(patience)) {
		pause(chance, 10*time.Millisecond)
		from := chance.IntN(2)
		var list []stream.Table
		for _, table := range tables {
			if at[table] == from && chance.IntN(2) == 0 {
				list = append(list, table)
			}
		}
		if len(list) == 0 {
			continue
		}
		next := ep(f.counter.Add(1))
		if chance.IntN(4) > 0 {
			var ahead []dispatch.Order
			for _, table := range list {
				ahead = append(ahead, dispatch.Order{Table: table, Epoch: next, Position: floor[table]})
			}
			f.machines[1-from].mustPrepare(ahead)
			pause(chance, 5*time.Millisecond)
			if chance.IntN(5) == 0 { // the move is given up
				f.machines[1-from].mustStop(ahead)
				continue
			}
		}
		var stops []dispatch.Order
		for _, table := range list {
			stops = append(stops, dispatch.Order{Table: table, Epoch: epoch[table]})
		}
		stopped := f.machines[from].mustStop(stops)
		for _, table := range list {
			p, ok := stopped[table]
			if next := f.sink.next(table); (!ok || p >= next || p < floor[table]) && f.stopped.Add(1) == 1 {
				f.t.Errorf("%s stopped at %d (%v) after %d; the sink waits for %d", table, p, ok, floor[table], next)
			}
			if chance.IntN(4) > 0 { // sometimes the maintainer died before it took note
				floor[table] = max(floor[table], p)
			}
		}
		pause(chance, 3*time.Millisecond)
		begin(1-from, list, next)
		f.moves.Add(int64(len(list)))
	}
}

func pause(chance *rand.Rand, most time.Duration) {
	time.Sleep(time.Duration(chance.Int64N(int64(most))))
}

// watch looks at what machines say, all the time: a checkpoint is never above what the sink has, and that of a dispatcher
// never falls.
func (f *traffic) watch(m *machine, stop <-chan struct{}) {
	type who struct {
		table stream.Table
		epoch stream.Epoch
	}
	last := map[who]stream.Position{}
	told := false
	for !told {
		select {
		case <-stop:
			return
		case <-time.After(time.Millisecond):
		}
		before := map[who]bool{}
		for _, s := range m.Dispatchers(key) {
			before[who{s.Table, s.Epoch}] = s.State == dispatch.Running
		}
		report := m.Report(key)
		for _, s := range m.Dispatchers(key) {
			if s.State != dispatch.Running {
				continue
			}
			id := who{s.Table, s.Epoch}
			if next := f.sink.next(s.Table); before[id] && report.Checkpoint >= next {
				f.t.Errorf("the report says %d while %s runs in %v, and the sink waits for %d", report.Checkpoint, s.Table, s.Epoch, next)
				told = true
			}
			if next := f.sink.next(s.Table); s.Checkpoint >= next {
				f.t.Errorf("%s in %v says %d, and the sink waits for %d", s.Table, s.Epoch, s.Checkpoint, next)
				told = true
			}
			if s.Checkpoint < last[id] {
				f.t.Errorf("%s in %v fell from %d to %d", s.Table, s.Epoch, last[id], s.Checkpoint)
				told = true
			}
			last[id] = s.Checkpoint
			if told {
				break
			}
		}
	}
}

func TestTablesMoveBetweenMachinesUnderLoad(t *testing.T) {
	for name, c := range map[string]struct {
		query  string
		memory int64
		slow   time.Duration
	}{
		"a fast sink":                     {"tables=24&rate=10000", plenty, 0},
		"a slow sink":                     {"tables=24&rate=5000&seed=2", plenty, 5 * time.Millisecond},
		"a slow sink and little memory":   {"tables=24&rate=5000&seed=3", 64 << 10, 5 * time.Millisecond},
		"many tables that are often idle": {"tables=1000&rate=2000&seed=4", plenty, 0},
	} {
		t.Run(name, func(t *testing.T) {
			noGoroutines(t)
			source := newFlow(t, c.query)
			sink := newLedger(t, source)
			f := &traffic{t: t, sink: sink}
			f.machines[0], f.machines[1] = newMachine(t, source, sink, c.memory), newMachine(t, source, sink, c.memory)
			if c.slow > 0 {
				sink.hinder(func(context.Context, stream.Table) error {
					time.Sleep(rand.N(c.slow))
					return nil
				})
			}
			tables := source.tables(t)
			head, err := source.Head(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			start := head - 1000
			stop := make(chan struct{})
			var watching, driving sync.WaitGroup
			for _, m := range f.machines {
				watching.Go(func() { f.watch(m, stop) })
			}
			end := time.Now().Add(1500 * time.Millisecond)
			for i := range 4 {
				chance := rand.New(rand.NewPCG(uint64(i), 1))
				driving.Go(func() { f.drive(chance, tables[i*len(tables)/4:(i+1)*len(tables)/4], start, end) })
			}
			driving.Wait()
			if head, err = source.Head(context.Background()); err != nil {
				t.Fatal(err)
			}
			until(t, "everything is at the sink", func() bool { return sink.has(tables, head) })
			close(stop)
			watching.Wait()
			t.Logf("%d moves, %d rows", f.moves.Load(), sink.rows())
			if f.moves.Load() < fewestMoves {
				t.Errorf("only %d moves: this shows nothing", f.moves.Load())
			}
			for i, m := range f.machines {
				running := m.Report(key).Running
				m.finish()
				t.Logf("machine %d had %d", i, running)
			}
		})
	}
}

// The referee of the load test must see what it is there for.
func TestTheLedgerSeesWhatIsWrong(t *testing.T) {
	source := newTape(t, "tables=3")
	table := source.tables(t)[0]
	rows := func(positions ...stream.Position) (list []*stream.Rows) {
		for _, p := range positions {
			list = append(list, source.Transaction(p).Rows...)
		}
		return list
	}
	changed := source.Transaction(4).Rows[0]
	changed.Changes = source.Transaction(7).Rows[0].Changes
	for _, c := range []struct {
		name  string
		first []*stream.Rows
		rows  []*stream.Rows
		to    stream.Position
		want  string
	}{
		{"all is well", rows(1), rows(4, 7), 9, ""},
		{"a gap", rows(1), rows(7), 7, "datagen." + table.Name + ": 1.1 left out 4, it wrote 7 after 1"},
		{"a repetition", rows(1), rows(1, 4), 4, "datagen." + table.Name + ": 1.1 wrote 1 again, it had come to 1"},
		{"another order", rows(1), rows(7, 4), 7, "datagen." + table.Name + ": 1.1 left out 4, it wrote 7 after 1"},
		{"another row", rows(1), []*stream.Rows{changed}, 4, "datagen." + table.Name + ": 4 is not what the source has there"},
		{"another table's row", rows(1), rows(2), 2, "datagen." + table.Name + ": got rows of " + source.tables(t)[1].String()},
		{"a position that is too high", rows(1), nil, 4, "datagen." + table.Name + ": 1.1 says it has come to 4, after 1 and before 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(&quiet{T: t}, source)
			w, at, err := l.Acquire(context.Background(), table.Since(0), ep(1), 0)
			if err != nil || at != 0 {
				t.Fatal(at, err)
			}
			if err := w.Write(context.Background(), c.first, 1); err != nil {
				t.Fatal(err)
			}
			if err := w.Write(context.Background(), c.rows, c.to); err != nil {
				t.Fatal(err)
			}
			if c.want == "" && len(l.wrong) > 0 || c.want != "" && (len(l.wrong) == 0 || l.wrong[0] != c.want) {
				t.Errorf("it said %q\nwant %q", l.wrong, c.want)
			}
		})
	}
}

// quiet is a test whose cleanups are of no interest.
type quiet struct{ *testing.T }

// Cleanup implements testing.TB.
func (*quiet) Cleanup(func()) {}

func TestAnIdleTableTakesLittleMemory(t *testing.T) {
	const tables, most = 10_000, 8 << 10
	noGoroutines(t)
	source := newTape(t, "tables="+strconv.Itoa(tables))
	sink := newLedger(t, source)
	m := newMachine(t, source, sink, plenty)
	names := source.tables(t)
	for _, name := range names { // what the sink itself keeps is not the engine's
		w, _, err := sink.Acquire(context.Background(), name.Since(0), ep(1), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	list := orders(ep(1), 0, names...)
	before := heap()
	m.mustStart(list)
	source.wind(2 * tables) // each has had something to do
	until(t, "everything is at the sink", func() bool { return sink.has(names, 2*tables) })
	each := (heap() - before) / tables
	t.Logf("%d bytes for an idle table, %d goroutines", each, runtime.NumGoroutine())
	if each > most {
		t.Errorf("an idle table takes %d bytes, more than %d", each, most)
	}
	if n := runtime.NumGoroutine(); n > 50 {
		t.Errorf("%d goroutines", n)
	}
	runtime.KeepAlive(list)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}
