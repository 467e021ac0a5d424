package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/changefeed/datagen"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// patience bounds every wait for something that should come.
const patience = 4 * time.Minute

// until waits for something that other goroutines bring about in their own time.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// generator is a datagen source.
func generator(t testing.TB, query string) *datagen.Source {
	t.Helper()
	u, err := url.Parse("datagen://?" + query)
	if err != nil {
		t.Fatal(err)
	}
	s, err := datagen.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// tape is a log that the test winds on: transactions are datagen's, the head is where the test says. It counts its
// readers and can fail them.
type tape struct {
	*datagen.Source
	flows bool // the head is datagen's own, which follows the clock

	mu      sync.Mutex
	head    stream.Position
	changed chan struct{}
	reads   []stream.Position // where each reader began
	active  int
	fail    func(p stream.Position) error
	closed  int
}

func newTape(t testing.TB, query string) *tape {
	return &tape{Source: generator(t, query+"&rate=0"), changed: make(chan struct{})}
}

// newFlow is a tape that winds itself.
func newFlow(t testing.TB, query string) *tape {
	return &tape{Source: generator(t, query), flows: true, changed: make(chan struct{})}
}

// wind moves the head on.
func (s *tape) wind(to stream.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.head = max(s.head, to)
	close(s.changed)
	s.changed = make(chan struct{})
}

// failing makes readers fail at positions.
func (s *tape) failing(fail func(stream.Position) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

func (s *tape) readers() (active int, began []stream.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active, append([]stream.Position(nil), s.reads...)
}

// Read implements stream.Source.
func (s *tape) Read(ctx context.Context, after stream.Position, visit func(*stream.Transaction) error) error {
	return s.ReadOf(ctx, after, func(stream.Table) bool { return true }, visit)
}

// ReadOf implements stream.Selective.
func (s *tape) ReadOf(ctx context.Context, after stream.Position, wants func(stream.Table) bool, all func(*stream.Transaction) error) error {
	visit := func(t *stream.Transaction) error {
		some := *t
		some.Rows = nil
		for _, rows := range t.Rows {
			if wants(rows.Table) {
				some.Rows = append(some.Rows, rows)
			} else {
				some.Skipped = append(some.Skipped, rows.Table)
			}
		}
		return all(&some)
	}
	s.mu.Lock()
	s.reads = append(s.reads, after)
	s.active++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.active--
		s.mu.Unlock()
	}()
	if s.flows {
		return s.Source.Read(ctx, after, func(t *stream.Transaction) error { return s.visit(t, visit) })
	}
	for p := after; ; {
		s.mu.Lock()
		head, changed := s.head, s.changed
		s.mu.Unlock()
		for ; p < head; p++ {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := s.visit(s.Transaction(p+1), visit); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (s *tape) visit(t *stream.Transaction, visit func(*stream.Transaction) error) error {
	s.mu.Lock()
	fail := s.fail
	s.mu.Unlock()
	if fail != nil {
		if err := fail(t.Position); err != nil {
			return err
		}
	}
	return visit(t)
}

// Close implements stream.Source.
func (s *tape) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

// tables are the tables of a source, in the order in which transactions come to them.
func (s *tape) tables(t testing.TB) []stream.Table {
	t.Helper()
	names, _, err := s.Tables(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	list := make([]stream.Table, len(names))
	for i := range list {
		list[i] = s.Transaction(stream.Position(i + 1)).Rows[0].Table
	}
	return list
}

// ledger is a sink that believes nobody. It keeps owners as a real one does, and it knows from datagen what must have been
// written: a gap, a repetition or a row that is not what it should be is written down.
type ledger struct {
	source *tape
	every  stream.Position                  // transactions from one of a table to its next
	first  map[stream.Table]stream.Position // each table's first

	mu       sync.Mutex
	accounts map[stream.Table]*account
	wrong    []string
	open     int // writers
	closed   int
	// What the test puts in the way: called before anything is looked at, without the ledger's lock.
	onAcquire, onWrite func(context.Context, stream.Table) error
}

// account is one table. Its lock is held for as long as something is being written, so that a new owner waits.
type account struct {
	mu       sync.Mutex
	epoch    stream.Epoch
	position stream.Position
	rows     int64
}

func newLedger(t testing.TB, source *tape) *ledger {
	l := &ledger{source: source, first: map[stream.Table]stream.Position{}, accounts: map[stream.Table]*account{}}
	for i, table := range source.tables(t) {
		l.first[table] = stream.Position(i + 1)
	}
	l.every = stream.Position(len(l.first))
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, text := range l.wrong[:min(len(l.wrong), 5)] {
			t.Error(text)
		}
		if l.open != 0 {
			t.Errorf("%d writers were not closed", l.open)
		}
	})
	return l
}

// hinder puts something in the way of writers.
func (l *ledger) hinder(onWrite func(context.Context, stream.Table) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onWrite = onWrite
}

func (l *ledger) hinderOwners(onAcquire func(context.Context, stream.Table) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onAcquire = onAcquire
}

func (l *ledger) object(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// after is the first transaction of a table after a position.
func (l *ledger) after(table stream.Table, p stream.Position) stream.Position {
	first := l.first[table]
	if p < first {
		return first
	}
	return p + l.every - (p-first)%l.every
}

// next is the first transaction of a table that is not there yet.
func (l *ledger) next(table stream.Table) stream.Position {
	a := l.account(table)
	a.mu.Lock()
	defer a.mu.Unlock()
	return l.after(table, a.position)
}

// has says whether everything up to a position is there, of all of some tables.
func (l *ledger) has(tables []stream.Table, p stream.Position) bool {
	for _, table := range tables {
		if l.next(table) <= p {
			return false
		}
	}
	return true
}

func (l *ledger) writers() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// rows is how many row changes are there.
func (l *ledger) rows() (n int64) {
	l.mu.Lock()
	accounts := slices.Collect(maps.Values(l.accounts))
	l.mu.Unlock()
	for _, a := range accounts {
		a.mu.Lock()
		n += a.rows
		a.mu.Unlock()
	}
	return n
}

func (l *ledger) account(table stream.Table) *account {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accounts[table]
	if a == nil {
		a = &account{}
		l.accounts[table] = a
	}
	return a
}

// Check implements stream.Sink.
func (l *ledger) Check(context.Context) error { return nil }

// ExecuteDDL implements stream.Sink.
func (l *ledger) ExecuteDDL(context.Context, stream.Position, *stream.DDL, stream.Epoch) error {
	return errors.New("this sink executes no DDL")
}

// Close implements stream.Sink.
func (l *ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed++
	return nil
}

// Acquire implements stream.Sink.
func (l *ledger) Acquire(ctx context.Context, id stream.Identity, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	table := id.Table
	l.mu.Lock()
	hinder := l.onAcquire
	l.mu.Unlock()
	if hinder != nil {
		if err := hinder(ctx, table); err != nil {
			return nil, 0, err
		}
	}
	a := l.account(table)
	a.mu.Lock()
	defer a.mu.Unlock()
	if epoch.Compare(a.epoch) < 0 {
		return nil, 0, fmt.Errorf("%w: %v has %s", stream.ErrNotOwner, a.epoch, table)
	}
	if a.epoch == (stream.Epoch{}) {
		a.position = start
	}
	a.epoch = epoch
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
	return &entry{ledger: l, account: a, table: table, epoch: epoch}, a.position, nil
}

// steal makes another the owner of a table.
func (l *ledger) steal(table stream.Table, epoch stream.Epoch) {
	a := l.account(table)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch = epoch
}

// entry is a Writer of a ledger.
type entry struct {
	ledger  *ledger
	account *account
	table   stream.Table
	epoch   stream.Epoch
	busy    atomic.Bool
	closed  atomic.Bool
}

// Write implements stream.Writer.
func (w *entry) Write(ctx context.Context, rows []*stream.Rows, to stream.Position) error {
	l := w.ledger
	if w.busy.Swap(true) {
		l.object("%s: two write at the same time with one writer", w.table)
	}
	defer w.busy.Store(false)
	if w.closed.Load() {
		l.object("%s: written by %v after it was closed", w.table, w.epoch)
	}
	w.account.mu.Lock()
	defer w.account.mu.Unlock()
	l.mu.Lock()
	hinder := l.onWrite
	l.mu.Unlock()
	if hinder != nil {
		if err := hinder(ctx, w.table); err != nil {
			return err
		}
	}
	if w.epoch != w.account.epoch {
		return fmt.Errorf("%w: %v has %s", stream.ErrNotOwner, w.account.epoch, w.table)
	}
	at := w.account.position
	for _, r := range rows {
		want := l.after(w.table, at)
		switch {
		case r.Table != w.table:
			l.object("%s: got rows of %s", w.table, r.Table)
		case r.Position < want:
			l.object("%s: %v wrote %d again, it had come to %d", w.table, w.epoch, r.Position, at)
		case r.Position > want:
			l.object("%s: %v left out %d, it wrote %d after %d", w.table, w.epoch, want, r.Position, at)
		case !reflect.DeepEqual(r.Changes, l.source.Transaction(want).Rows[0].Changes):
			l.object("%s: %d is not what the source has there", w.table, want)
		}
		at = r.Position
		w.account.rows += int64(len(r.Changes))
	}
	if want := l.after(w.table, at); to < at || to >= want {
		l.object("%s: %v says it has come to %d, after %d and before %d", w.table, w.epoch, to, at, want)
	}
	w.account.position = to
	return nil
}

// Close implements stream.Writer.
func (w *entry) Close() error {
	if w.closed.Swap(true) {
		w.ledger.object("%s: closed twice", w.table)
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	w.ledger.open--
	return nil
}

// machine is a node: an engine, and how many dispatchers it admitted.
type machine struct {
	*dispatch.Engine
	t      testing.TB
	places atomic.Int64
	refuse atomic.Bool
	sinks  map[string]stream.Sink // by the sink that a Config names; of no lock, since tests fill it first
	source stream.Source
	opened func(dispatch.Config) // is told what a sink is opened with; may be nil
}

// key and config of the changefeed that most tests need no other of.
var (
	key    = dispatch.FeedKey{Namespace: "default", Name: "cf", UID: "1"}
	config = dispatch.Config{Source: "tape", Sink: "ledger", Workers: 4, BatchRows: 50}
)

var errFull = errors.New("the gate is closed")

// newMachine makes a node. When the test ends everything of it must be gone.
func newMachine(t testing.TB, source stream.Source, sink stream.Sink, memory int64) *machine {
	m := &machine{t: t, source: source, sinks: map[string]stream.Sink{"ledger": sink}}
	m.Engine = dispatch.New(dispatch.Options{
		OpenSource: func(dispatch.Config) (stream.Source, error) { return m.source, nil },
		OpenSink: func(_ dispatch.FeedKey, c dispatch.Config) (stream.Sink, error) {
			if m.opened != nil {
				m.opened(c)
			}
			return m.sinks[c.Sink], nil
		},
		Memory: memory,
		Enter: func() (func(), error) {
			if m.refuse.Load() {
				return nil, errFull
			}
			m.places.Add(1)
			return func() { m.places.Add(-1) }, nil
		},
	})
	t.Cleanup(m.finish)
	return m
}

// finish closes everything and checks that nothing is left.
func (m *machine) finish() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, key := range m.Keys() {
		if err := m.Close(ctx, key); err != nil {
			m.t.Errorf("close: %v", err)
		}
	}
	if n := m.places.Load(); n != 0 {
		m.t.Errorf("%d places were not given back", n)
	}
	if n := m.Memory(); n != 0 {
		m.t.Errorf("%d bytes were not given back", n)
	}
}

// noGoroutines wants none left that the test started. Call it before anything is made: it looks when all else is over.
func noGoroutines(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(before); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
}

// orders are orders about tables in one epoch.
func orders(epoch stream.Epoch, p stream.Position, tables ...stream.Table) []dispatch.Order {
	var list []dispatch.Order
	for _, table := range tables {
		list = append(list, dispatch.Order{Table: table, Epoch: epoch, Position: p})
	}
	return list
}

// ep is an epoch within placement 1.
func ep(counter int64) stream.Epoch { return stream.Epoch{Placement: 1, Counter: counter} }

func (m *machine) mustStart(list []dispatch.Order) {
	m.t.Helper()
	if failed := m.Start(context.Background(), key, 1, config, list); len(failed) > 0 {
		m.t.Fatalf("not started: %v", failed)
	}
}

func (m *machine) mustPrepare(list []dispatch.Order) {
	m.t.Helper()
	if failed := m.Prepare(key, 1, config, list); len(failed) > 0 {
		m.t.Fatalf("not prepared: %v", failed)
	}
}

func (m *machine) mustStop(list []dispatch.Order) map[stream.Table]stream.Position {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stopped, failed := m.Stop(ctx, key, 1, list)
	if len(failed) > 0 {
		m.t.Fatalf("not stopped: %v", failed)
	}
	return stopped
}

// status is how one dispatcher is.
func (m *machine) status(table stream.Table) dispatch.Status {
	for _, s := range m.Dispatchers(key) {
		if s.Table == table {
			return s
		}
	}
	return dispatch.Status{}
}

// hang is a sink that does not answer until it is let go, which it is in the end.
type hang struct {
	once    sync.Once
	gone    chan struct{}
	waiting atomic.Int64
}

func newHang(t testing.TB) *hang {
	h := &hang{gone: make(chan struct{})}
	t.Cleanup(h.release)
	return h
}

func (h *hang) release() { h.once.Do(func() { close(h.gone) }) }

// wait is what hinders.
func (h *hang) wait(ctx context.Context, _ stream.Table) error {
	h.waiting.Add(1)
	defer h.waiting.Add(-1)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-h.gone:
		return nil
	}
}
