package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// hub is the reader of a source that all dispatchers on this node share. Dispatchers that are at its position subscribe; those that
// are behind catch up through a group, and join when they have reached the hub's position.
type hub struct {
	source stream.Source
	budget *budget

	mu       sync.Mutex
	subs     map[stream.Table][]*dispatcher
	watchers map[stream.Table][]*dispatcher
	count    int
	position stream.Position // everything up to here was delivered
	at       time.Time       // when the source committed it
	stop     context.CancelFunc
	done     chan struct{} // of the reader, nil while none runs
	groups   []*group      // readers beside it
	taps     []*Tap        // table triggers that follow it
	err      error         // the last error of the reader, until it reads again
	closed   bool

	ctx     context.Context // of the groups
	cancel  context.CancelFunc
	readers sync.WaitGroup
	reached atomic.Uint64 // position, to be read without the lock; 0 while there is no subscriber
}

func newHub(s stream.Source, b *budget) *hub {
	h := &hub{source: s, budget: b, subs: map[stream.Table][]*dispatcher{}, watchers: map[stream.Table][]*dispatcher{}}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	return h
}

// where returns the hub's position, and when the source committed it.
func (h *hub) where() (stream.Position, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.position, h.at
}

// trouble returns why nothing is being read, or nil.
func (h *hub) trouble() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// subscribe delivers a table's changes from now on. A hub without subscribers begins at the dispatcher's position.
func (h *hub) subscribe(d *dispatcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.position
	if h.count == 0 {
		at = d.position()
	}
	h.add(d, at)
}

// add subscribes a dispatcher that is at the hub's position or ahead of it. The caller holds the lock.
func (h *hub) add(d *dispatcher, at stream.Position) {
	if h.closed || !d.listen(at) {
		return
	}
	if h.count == 0 {
		h.restart(at)
	}
	for _, name := range d.names() {
		h.subs[name] = append(h.subs[name], d)
	}
	for _, name := range d.watches {
		h.watchers[name] = append(h.watchers[name], d)
	}
	h.count++
}

// restart begins to read at a position. The caller holds the lock, and there is no subscriber.
func (h *hub) restart(start stream.Position) {
	if h.stop != nil {
		h.stop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	before, done := h.done, make(chan struct{})
	h.stop, h.done, h.position, h.err = cancel, done, start, nil
	h.reached.Store(uint64(start))
	go func() {
		defer close(done)
		if before != nil {
			<-before
		}
		h.read(ctx, start)
	}()
}

// read delivers until ctx is cancelled. After an error it reads again from the last position.
func (h *hub) read(ctx context.Context, after stream.Position) {
	pauses := backoff.New(retries)
	for ctx.Err() == nil {
		err := stream.ReadOf(ctx, h.source, after, h.wants, func(t *stream.Transaction) error {
			if !h.budget.wait(ctx) {
				return ctx.Err()
			}
			if err := h.deliver(ctx, t); err != nil {
				return err
			}
			pauses.Reset()
			if !t.More {
				after = t.Position
			}
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errWanted) {
			continue
		}
		h.mu.Lock()
		h.err = err
		h.endTaps()
		h.mu.Unlock()
		if Hopeless(err) {
			pauses.Exhaust()
		}
		_ = backoff.Sleep(ctx, pauses.Next()) // the loop ends with ctx
	}
}

// Hopeless reports whether retrying will not resolve an error.
func Hopeless(err error) bool {
	return errors.Is(err, stream.ErrPurged) || errors.Is(err, stream.ErrUnusable)
}

// retries are the delays before failed reads are repeated.
var retries = backoff.Policy{First: 100 * time.Millisecond, Longest: 10 * time.Second}

// wants reports whether a table has a subscriber.
func (h *hub) wants(t stream.Table) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs[t]) > 0
}

// errWanted: rows were skipped, or parts of a transaction delivered, before a dispatcher has subscribed to them. They are read again.
var errWanted = errors.New("skipped rows have a subscriber now")

// deliver delivers a transaction to the subscribers of its tables.
func (h *hub) deliver(ctx context.Context, t *stream.Transaction) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return ctx.Err() // the hub was restarted
	}
	if t.Idle {
		h.err = nil
		if t.Position == h.position {
			h.at = t.At
			h.passTaps(t)
		}
		return nil
	}
	if err := spread(t, h.subs, h.watchers, nil); err != nil {
		return err
	}
	h.err = nil
	if t.More {
		return nil
	}
	h.position, h.at = t.Position, t.At
	h.reached.Store(uint64(t.Position))
	h.passTaps(t)
	return nil
}

// spread delivers a transaction to the dispatchers of its tables, from the hub or from a group.
func spread(t *stream.Transaction, to, watchers map[stream.Table][]*dispatcher, from *group) error {
	for _, table := range t.Skipped {
		if len(to[table]) > 0 {
			return errWanted
		}
	}
	// DDL comes before rows of the same position: those of CREATE TABLE ... SELECT are of the new table.
	for table := range concerned(t.DDL, to) {
		mark := &stream.Rows{Position: t.Position, At: t.At, Table: table, DDL: t.DDL}
		for _, d := range to[table] {
			d.push(mark, from)
		}
	}
	if t.DDL != nil && !t.DDL.Alone() && t.DDL.Kind != stream.UnreadableRows {
		for table := range concerned(t.DDL, watchers) {
			for _, d := range watchers[table] {
				d.push(&stream.Rows{Position: t.Position, At: t.At, Table: d.table, DDL: t.DDL}, from)
			}
		}
	}
	var merged map[*dispatcher]bool
	for _, rows := range t.Rows {
		for _, d := range to[rows.Table] {
			all := rows
			if len(d.members) > 0 {
				if merged[d] {
					continue
				}
				if merged == nil {
					merged = map[*dispatcher]bool{}
				}
				merged[d], all = true, t.Merge(d.table, d.tables)
			}
			if !d.push(all, from) {
				return errWanted
			}
		}
	}
	return nil
}

// concerned are the tables with dispatchers that a DDL concerns. The DDL is queued among the changes of each of them.
func concerned(d *stream.DDL, to map[stream.Table][]*dispatcher) map[stream.Table]bool {
	if d == nil {
		return nil
	}
	tables := map[stream.Table]bool{}
	switch {
	case d.Kind == stream.UnknownDDL, d.Kind == stream.DropSchema, d.Kind == stream.UnreadableRows && len(d.Tables) == 0:
		for table := range to {
			if d.Concerns(table) {
				tables[table] = true
			}
		}
	default:
		for _, table := range d.Names() {
			if d.Concerns(table) {
				tables[table] = true
			}
		}
	}
	return tables
}

// unsubscribe ends the delivery. The reader ends with its last subscriber.
func (h *hub) unsubscribe(d *dispatcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := false
	for _, name := range d.names() {
		found = leave(h.subs, name, d) || found
	}
	for _, name := range d.watches {
		leave(h.watchers, name, d)
	}
	if found {
		h.count--
	}
	if h.count == 0 && h.stop != nil {
		h.stop()
		h.stop = nil
		h.reached.Store(0)
		h.endTaps()
	}
}

// leave removes a dispatcher from those of a table, and reports whether it was among them. The old list stays as it is: it may be in use.
func leave(lists map[stream.Table][]*dispatcher, name stream.Table, d *dispatcher) bool {
	list := lists[name]
	i := slices.Index(list, d)
	if i < 0 {
		return false
	}
	if list = slices.Delete(slices.Clone(list), i, i+1); len(list) == 0 {
		delete(lists, name)
	} else {
		lists[name] = list
	}
	return true
}

// close ends the reader.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	h.endTaps()
	done := h.done
	if h.stop != nil {
		h.stop()
	}
	h.mu.Unlock()
	h.cancel()
	h.readers.Wait()
	if done != nil {
		<-done
	}
}
