package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Order is an order of a maintainer about one table.
type Order struct {
	Table stream.Table
	// Since when the table has that name. One that is dropped and created again is another one, and what was ordered of the first does not
	// concern it.
	Since stream.Position
	// Members are the tables that one dispatcher writes in the order of the source, if there are several or if changes of the table
	// cascade within it. Table is one of them, and stands for all.
	Members []stream.Identity
	// Watches are other tables. DDL of theirs that the maintainer executes concerns this dispatcher, too: it may decide which tables are
	// written together.
	Watches []stream.Table
	Epoch   stream.Epoch
	// Position to start after.
	Position stream.Position
	// Begins is the position of the DDL that the dispatcher begins with, and that does not concern it: the one that made the table, or after which
	// others are written together with it. It is 0 if that was before the changefeed or is not known.
	Begins stream.Position
}

// Identity is the table that the order is about.
func (o *Order) Identity() stream.Identity { return o.Table.Since(o.Since) }

// Prepare makes dispatchers that read ahead, so that they can start as soon as those on another node have stopped. It returns an
// error for each that could not be prepared.
func (e *Engine) Prepare(key FeedKey, maintainer int64, c Config, orders []Order) map[stream.Table]error {
	return e.begin(key, maintainer, c, orders, func(f *Feed, list []*placed) map[stream.Table]error {
		for _, d := range list {
			d.mu.Lock()
			ahead := d.state == Prepared && !d.listens
			d.mu.Unlock()
			if ahead {
				f.hub.subscribe(d.dispatcher)
			}
		}
		return nil
	})
}

// Start starts dispatchers: those that were prepared, and new ones. It returns an error for each that could not be started.
func (e *Engine) Start(ctx context.Context, key FeedKey, maintainer int64, c Config, orders []Order) map[stream.Table]error {
	position := map[stream.Table]stream.Position{}
	for _, o := range orders {
		position[o.Table] = o.Position
	}
	return e.begin(key, maintainer, c, orders, func(f *Feed, list []*placed) map[stream.Table]error {
		failed := f.acquire(ctx, list, position)
		var late []*dispatcher
		for _, d := range list {
			if failed[d.table] != nil {
				f.discard(ctx, d) // a later order makes another
			} else if d.activate() {
				late = append(late, d.dispatcher)
			}
		}
		f.hub.join(late)
		for _, d := range list {
			if failed[d.table] == nil {
				f.startCopy(d.dispatcher)
			}
		}
		return failed
	})
}

// Positions are the positions up to which everything is at the sink, of dispatchers that run by the given orders.
func (e *Engine) Positions(key FeedKey, orders []Order) map[stream.Table]stream.Position {
	at := map[stream.Table]stream.Position{}
	f := e.known(key)
	if f == nil {
		return at
	}
	for _, o := range orders {
		f.mu.Lock()
		d := f.tables[o.Table]
		f.mu.Unlock()
		if d == nil || d.epoch != o.Epoch || !d.is(o.Identity()) {
			continue
		}
		d.mu.Lock()
		if d.state == Running {
			at[o.Table] = d.flushed
		}
		d.mu.Unlock()
	}
	return at
}

// discard removes a dispatcher that could not be started, unless another order has started it meanwhile.
func (f *Feed) discard(ctx context.Context, d *placed) {
	d.mu.Lock()
	started := d.writer != nil || d.state != Prepared
	d.mu.Unlock()
	if !started {
		_, _ = f.remove(ctx, d) // it is not being written
	}
}

// begin finds or makes the dispatchers that orders are about, and calls do with them. Orders that are older than what is there fail.
func (e *Engine) begin(key FeedKey, maintainer int64, c Config, orders []Order, do func(*Feed, []*placed) map[stream.Table]error) map[stream.Table]error {
	failed := map[stream.Table]error{}
	all := func(err error) map[stream.Table]error {
		for _, o := range orders {
			failed[o.Table] = err
		}
		return failed
	}
	if err := e.Accept(key, maintainer); err != nil {
		return all(err)
	}
	f, err := e.feed(key, c)
	if err != nil {
		return all(err)
	}
	var list []*placed
	for _, o := range orders {
		d, err := f.place(o)
		if err != nil {
			failed[o.Table] = err
			continue
		}
		list = append(list, d)
	}
	for table, err := range do(f, list) {
		failed[table] = err
	}
	return failed
}

// replaceLimit bounds how long an order waits for the write of a dispatcher that it replaces.
const replaceLimit = 5 * time.Second

// place finds or makes the dispatcher of a table. It stops and replaces one of an older epoch: its maintainer does not know of it, or has
// started it with an order whose answer was lost.
func (f *Feed) place(o Order) (*placed, error) {
	for {
		d, made, err := f.find(o)
		if err != nil || made {
			return d, err
		}
		d.mu.Lock()
		state := d.state
		d.mu.Unlock()
		switch c := o.Epoch.Compare(d.epoch); {
		case c == 0 && state != Lost && state != Stopped && d.is(o.Identity()):
			return d, nil
		case c < 0:
			return nil, fmt.Errorf("table %s: %w: this node has its dispatcher of epoch %v, which is newer than %v", o.Table, ErrOldMaintainer, d.epoch, o.Epoch)
		}
		ctx, cancel := context.WithTimeout(f.ctx, replaceLimit)
		_, err = f.remove(ctx, d)
		cancel()
		if err != nil && !errors.Is(err, ErrLost) {
			return nil, fmt.Errorf("table %s: its dispatcher of epoch %v on this node has not stopped yet: %w", o.Table, d.epoch, err)
		}
	}
}

// find returns the dispatcher of a table, or makes it if there is none.
func (f *Feed) find(o Order) (d *placed, made bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false, fmt.Errorf("changefeed %s is being closed on this node", f.key)
	}
	if d := f.tables[o.Table]; d != nil {
		return d, false, nil
	}
	leave, err := f.engine.opts.Enter()
	if err != nil {
		return nil, false, fmt.Errorf("table %s: %w", o.Table, err)
	}
	d = &placed{leave: leave, dispatcher: &dispatcher{
		feed: f, table: o.Table, since: o.Since, members: o.Members, watches: o.Watches, epoch: o.Epoch, begins: o.Begins, state: Prepared, from: o.Position, flushed: o.Position,
	}}
	for _, t := range o.Members {
		d.tables = append(d.tables, t.Table)
	}
	f.tables[o.Table] = d
	return d, true, nil
}

// acquire makes dispatchers the owners of their tables at the sink, several at a time.
func (f *Feed) acquire(ctx context.Context, list []*placed, start map[stream.Table]stream.Position) map[stream.Table]error {
	failed := map[stream.Table]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, max(f.config.Workers, 1))
	for _, d := range list {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := d.own(ctx, start[d.table]); err != nil {
				mu.Lock()
				failed[d.table] = err
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}

// own makes the dispatcher the owner of its table and finds the position to continue at. The sink knows the position of the last
// write; the order has a later one if nothing had to be written after that.
func (d *dispatcher) own(ctx context.Context, start stream.Position) error {
	d.mu.Lock()
	has := d.writer != nil
	d.mu.Unlock()
	if has {
		return nil
	}
	w, at, err := d.acquire(ctx, start)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != Prepared || d.writer != nil { // it was stopped meanwhile, or started by another order
		return errors.Join(fmt.Errorf("table %s was stopped while it was being started", d.table), w.Close())
	}
	d.writer, d.flushed, d.written = w, max(at, start), at
	return nil
}

// acquire makes the dispatcher the owner of its table, or of all tables of its group.
func (d *dispatcher) acquire(ctx context.Context, start stream.Position) (stream.Writer, stream.Position, error) {
	if len(d.members) == 0 {
		return d.feed.sink.Acquire(ctx, d.identity(), d.epoch, start)
	}
	sink, ok := d.feed.sink.(stream.GroupSink)
	if !ok {
		return nil, 0, fmt.Errorf("table %s: the sink cannot write several tables together: %w", d.table, stream.ErrUnusable)
	}
	return sink.AcquireGroup(ctx, d.members, d.epoch, start)
}

// activate makes an owner run. It returns whether it has to join the hub or to catch up, because what it has read ahead begins after
// the position that it continues at.
func (d *dispatcher) activate() (late bool) {
	d.mu.Lock()
	if d.state != Prepared || d.writer == nil {
		d.mu.Unlock()
		return false
	}
	d.state = Running
	if d.listens && d.covers <= d.flushed {
		kept := d.queue[:0]
		for _, rows := range d.queue {
			if rows.Position > d.flushed {
				kept = append(kept, rows)
				continue
			}
			d.bytes -= rows.Bytes
			d.changes -= len(rows.Changes)
			d.feed.engine.budget.give(rows.Bytes)
		}
		d.queue = kept
		d.from = max(d.from, d.flushed)
		ready := d.lineUp()
		d.mu.Unlock()
		if ready {
			d.feed.enqueue(d)
		}
		return false
	}
	d.listens, d.group = false, nil // what the hub still delivers is ignored
	d.drop()
	d.from = d.flushed
	d.mu.Unlock()
	d.feed.hub.unsubscribe(d)
	return true
}

// Stop stops dispatchers and returns the position up to which everything of each is at the sink. A table without a dispatcher is in
// neither result; a dispatcher of a newer epoch is an error. A Lost dispatcher is an error, too, ErrLost, although it has ended.
func (e *Engine) Stop(ctx context.Context, key FeedKey, maintainer int64, orders []Order) (map[stream.Table]stream.Position, map[stream.Table]error) {
	stopped, failed := map[stream.Table]stream.Position{}, map[stream.Table]error{}
	if err := e.Accept(key, maintainer); err != nil {
		for _, o := range orders {
			failed[o.Table] = err
		}
		return stopped, failed
	}
	f := e.known(key)
	if f == nil {
		return stopped, failed // it was closed meanwhile
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, o := range orders {
		f.mu.Lock()
		d := f.tables[o.Table]
		f.mu.Unlock()
		if d == nil || !d.is(o.Identity()) { // another table of the same name is not meant
			continue
		}
		if o.Epoch.Compare(d.epoch) < 0 {
			mu.Lock()
			failed[o.Table] = fmt.Errorf("table %s: %w: this node has its dispatcher of epoch %v, which is newer than %v", o.Table, ErrOldMaintainer, d.epoch, o.Epoch)
			mu.Unlock()
			continue
		}
		wg.Go(func() {
			at, err := f.remove(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed[o.Table] = err
				return
			}
			stopped[o.Table] = at
		})
	}
	wg.Wait()
	return stopped, failed
}

// remove stops a dispatcher and removes it from the node. It returns ErrLost of one that was Lost and is removed.
func (f *Feed) remove(ctx context.Context, d *placed) (stream.Position, error) {
	at, err := d.stop(ctx)
	if err != nil && !errors.Is(err, ErrLost) {
		return 0, err
	}
	f.mu.Lock()
	if f.tables[d.table] == d {
		delete(f.tables, d.table)
		d.leave()
	}
	f.mu.Unlock()
	return at, err
}
