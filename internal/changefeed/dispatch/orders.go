package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Order is what a maintainer wants of one table.
type Order struct {
	Table stream.Table
	Epoch stream.Epoch
	// Position to start after.
	Position stream.Position
}

// Prepare lets dispatchers read ahead, so that they are ready when others stop. It returns what could not be prepared.
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

// Start lets dispatchers run: those that were prepared, and new ones.
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
				f.discard(ctx, d) // it is made anew when it is tried again
			} else if d.activate() {
				late = append(late, d.dispatcher)
			}
		}
		f.hub.join(late)
		return failed
	})
}

// discard removes a dispatcher that could not be started, unless another order has started it meanwhile.
func (f *Feed) discard(ctx context.Context, d *placed) {
	d.mu.Lock()
	started := d.writer != nil || d.state != Prepared
	d.mu.Unlock()
	if !started {
		_, _ = f.remove(ctx, d) // it has nothing under way
	}
}

// begin makes the dispatchers that orders are about, if they are not there, and refuses what is older than what is there.
func (e *Engine) begin(key FeedKey, maintainer int64, c Config, orders []Order, do func(*Feed, []*placed) map[stream.Table]error) map[stream.Table]error {
	failed := map[stream.Table]error{}
	all := func(err error) map[stream.Table]error {
		for _, o := range orders {
			failed[o.Table] = err
		}
		return failed
	}
	if err := e.Hear(key, maintainer); err != nil {
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

// place finds or makes the dispatcher of a table. One of an older epoch that does not run makes way.
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
		case c == 0 && state != Lost && state != Stopped:
			return d, nil
		case c < 0:
			return nil, fmt.Errorf("table %s: %w: a dispatcher of epoch %v is here", o.Table, ErrOldMaintainer, d.epoch)
		case state == Running:
			return nil, fmt.Errorf("table %s: a dispatcher of epoch %v still runs here: stop it first", o.Table, d.epoch)
		}
		if _, err := f.remove(f.ctx, d); err != nil {
			return nil, err
		}
	}
}

// find returns the dispatcher of a table, and makes it if there is none.
func (f *Feed) find(o Order) (d *placed, made bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, false, fmt.Errorf("changefeed %s: %w", f.key, ErrRefused)
	}
	if d := f.tables[o.Table]; d != nil {
		return d, false, nil
	}
	leave, err := f.engine.opts.Enter()
	if err != nil {
		return nil, false, fmt.Errorf("table %s: %w", o.Table, err)
	}
	d = &placed{leave: leave, dispatcher: &dispatcher{
		feed: f, table: o.Table, epoch: o.Epoch, state: Prepared, from: o.Position, flushed: o.Position,
	}}
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

// own makes the dispatcher the owner of its table and finds out where to go on. The sink knows up to which row it has the
// table; the order, up to where there was nothing more.
func (d *dispatcher) own(ctx context.Context, start stream.Position) error {
	d.mu.Lock()
	has := d.writer != nil
	d.mu.Unlock()
	if has {
		return nil
	}
	w, at, err := d.feed.sink.Acquire(ctx, d.table, d.epoch, start)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != Prepared || d.writer != nil { // it was stopped meanwhile, or another order was quicker
		return errors.Join(fmt.Errorf("table %s: stopped while it was being started", d.table), w.Close())
	}
	d.writer, d.flushed = w, max(at, start)
	return nil
}

// activate lets an owner run. It says whether it has to join the hub or catch up first, because what it read ahead does not
// reach back to where it goes on.
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
			d.feed.engine.budget.give(rows.Bytes)
		}
		d.queue = kept
		d.from = max(d.from, d.flushed)
		ready := d.ready()
		d.mu.Unlock()
		if ready {
			d.feed.enqueue(d)
		}
		return false
	}
	d.listens, d.group = false, nil // nothing that the hub still delivers is taken
	d.drop()
	d.from = d.flushed
	d.mu.Unlock()
	d.feed.hub.unsubscribe(d)
	return true
}

// Stop ends dispatchers and says up to where everything of each is at the sink. A table that is not here is not in the
// answer; one of a newer epoch is an error.
func (e *Engine) Stop(ctx context.Context, key FeedKey, maintainer int64, orders []Order) (map[stream.Table]stream.Position, map[stream.Table]error) {
	stopped, failed := map[stream.Table]stream.Position{}, map[stream.Table]error{}
	if err := e.Hear(key, maintainer); err != nil {
		for _, o := range orders {
			failed[o.Table] = err
		}
		return stopped, failed
	}
	f := e.known(key)
	if f == nil {
		return stopped, failed // it was closed just now
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, o := range orders {
		f.mu.Lock()
		d := f.tables[o.Table]
		f.mu.Unlock()
		if d == nil {
			continue
		}
		if o.Epoch.Compare(d.epoch) < 0 {
			mu.Lock()
			failed[o.Table] = fmt.Errorf("table %s: %w: a dispatcher of epoch %v is here", o.Table, ErrOldMaintainer, d.epoch)
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

// remove stops a dispatcher and gives its place back.
func (f *Feed) remove(ctx context.Context, d *placed) (stream.Position, error) {
	at, err := d.stop(ctx)
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	if f.tables[d.table] == d {
		delete(f.tables, d.table)
		d.leave()
	}
	f.mu.Unlock()
	return at, nil
}
