package dispatch

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// The initial copy of a table is made by its dispatcher, beside the changes:
//
//	take a snapshot at G ─▶ hold: nothing after G is written ─▶ all up to G is written ─▶ write chunks of the snapshot ─▶ release
//
// A snapshot is used for a short time only, because changes wait meanwhile.

const (
	// copiesAtOnce bounds how many tables of a changefeed a node copies at the same time.
	copiesAtOnce = 4
	// snapshotAge is how long chunks are read from one snapshot.
	snapshotAge = 1500 * time.Millisecond
	// holdLimit is how long a dispatcher may take to reach the position of a snapshot.
	holdLimit = 10 * time.Second
	// A chunk has about so many bytes, and at most so many rows.
	chunkBytes = 2 << 20
	chunkRows  = 20_000
	// firstRows is how many the first chunk of a snapshot has, before it is known how long rows are.
	firstRows = 1000
	// copyPoll is how often the progress of a dispatcher is looked at.
	copyPoll = 2 * time.Millisecond
	// behindMost is how many snapshots in a row may be behind the table before it waits for the next one.
	behindMost = 2
)

// errAgain: a snapshot could not be used, so another one is taken.
var errAgain = errors.New("the snapshot could not be used")

// startCopy starts to copy the table of a running dispatcher, if the sink has recorded that it is not copied yet.
func (f *Feed) startCopy(d *dispatcher) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, ok := d.writer.(snapshot.Writer)
	if d.state != Running || d.copying != nil || !ok || w.Snapshot() == nil {
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	d.copying = cancel
	f.wg.Go(func() {
		defer cancel()
		d.copyTable(ctx)
	})
}

// copyTable copies the table until it is whole or the dispatcher stops.
func (d *dispatcher) copyTable(ctx context.Context) {
	source, ok := d.feed.hub.source.(snapshot.Source)
	if !ok {
		d.trouble(fmt.Errorf("table %s is to be copied, and its source cannot be: %w", d.table, stream.ErrUnusable))
		return
	}
	pauses := backoff.New(retries)
	behind := 0            // so many snapshots in a row; once that is most, the table always waits
	for d.awaitNear(ctx) { // before it takes a place: tables that are behind must not keep others from being copied
		select {
		case d.feed.copies <- struct{}{}:
		case <-ctx.Done():
			return
		}
		rows, done, err := d.copySome(ctx, source, behind >= behindMost)
		<-d.feed.copies
		_ = d.feed.pacer.wait(ctx, rows)
		switch {
		case errors.Is(err, snapshot.ErrBehind):
			behind++
		case behind < behindMost:
			behind = 0
		}
		switch {
		case ctx.Err() != nil:
			return
		case done:
			d.trouble(nil)
			return
		case err == nil:
			pauses.Reset()
			d.trouble(nil)
		case errors.Is(err, errAgain), errors.Is(err, snapshot.ErrChanged), errors.Is(err, snapshot.ErrBehind):
			_ = backoff.Sleep(ctx, 50*time.Millisecond)
		default:
			d.trouble(fmt.Errorf("copy table %s: %w", d.table, err))
			if Hopeless(err) {
				pauses.Exhaust()
			}
			_ = backoff.Sleep(ctx, pauses.Next())
		}
	}
}

// copySome copies chunks of one snapshot. It returns how many rows it has copied, and whether the table is whole. A busy source may take
// long to report the position of a snapshot, and the table may have passed that position by then. If the table waits, it does not pass it.
func (d *dispatcher) copySome(ctx context.Context, source snapshot.Source, waits bool) (rows int, done bool, err error) {
	if near, _ := d.near(); !near { // it has waited for its place meanwhile
		return 0, false, errAgain
	}
	if waits {
		d.holdHere()
		defer d.release()
	}
	session, err := source.OpenSnapshot(ctx)
	if err != nil {
		return 0, false, err
	}
	reads, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	end := sync.OnceFunc(session.Close)
	defer func() {
		cancel()
		reading.Wait()
		end()
	}()
	at := session.Position()
	if !d.holdAt(at) {
		return 0, false, snapshot.ErrBehind
	}
	defer d.release()
	layout, head, err := session.Describe(ctx, d.table)
	if err != nil {
		return 0, false, err
	}
	state := d.copyState()
	if state == nil {
		return 0, true, nil
	}
	if layout, err = d.copies(layout); err != nil {
		return 0, false, err
	}
	after, _ := state.Next(layout)
	chunks := make(chan *snapshot.Chunk, 1)
	var failed error
	reading.Go(func() {
		defer close(chunks)
		defer end() // as long as it is open, DDL of the table waits at the source, and everybody else for the DDL
		failed = readChunks(reads, session, layout, after, d.feed.pacer.most(), chunks)
	})
	if err := d.awaitReached(ctx, at, head); err != nil {
		return 0, false, err
	}
	return d.writeChunks(ctx, at, len(layout.Key) > 0, chunks, &failed)
}

// readChunks reads chunks of at most so many rows until the snapshot is old, or the table ends.
func readChunks(ctx context.Context, session snapshot.Session, l *snapshot.Layout, after *snapshot.Cursor, most int, to chan<- *snapshot.Chunk) error {
	began, rows := time.Now(), min(firstRows, most)
	if l.RowBytes > 0 { // what is read beyond a chunk is read for nothing
		rows = max(1, min(rows, int(chunkBytes/l.RowBytes)))
	}
	for last := false; !last && time.Since(began) < snapshotAge; {
		err := session.Read(ctx, l, after, rows, chunkBytes, func(c *snapshot.Chunk) error {
			if after, last = c.Cursor, c.Last; c.Rows > 0 && len(c.Blocks) > 0 {
				bytes := 0
				for i := range c.Blocks {
					bytes += len(c.Blocks[i].Values)
				}
				rows = min(most, max(1, chunkBytes*c.Rows/max(bytes, 1)))
			}
			var late <-chan time.Time
			if len(l.Key) > 0 { // the next snapshot continues after what is written
				late = time.After(snapshotAge)
			}
			select {
			case to <- c:
				return nil
			case <-late:
				return fmt.Errorf("%w: the sink takes long to write a part of it", errAgain)
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeChunks writes chunks, each in a transaction, or all in one if the table has no key. If the rate is limited it writes one: changes do
// not wait for the rate.
func (d *dispatcher) writeChunks(ctx context.Context, at stream.Position, keyed bool, chunks <-chan *snapshot.Chunk, failed *error) (rows int, done bool, err error) {
	for chunk := range chunks {
		copied, bytes := 0, 0
		parts := func(yield func(*snapshot.Chunk, error) bool) {
			for c, more := chunk, true; more; {
				copied += c.Rows
				for i := range c.Blocks {
					bytes += len(c.Blocks[i].Values)
				}
				if !yield(c, nil) || keyed || c.Last {
					return
				}
				if c, more = <-chunks; !more {
					yield(nil, errors.Join(errAgain, *failed))
				}
			}
		}
		if done, err = d.writeChunk(ctx, parts, at); err != nil {
			return rows, false, err
		}
		rows += copied
		d.feed.rows.Add(int64(copied))
		d.feed.bytes.Add(int64(bytes))
		if done || d.feed.pacer.rate > 0 || d.feed.engine.budget.scarce() && d.waits() {
			return rows, done, nil
		}
	}
	return rows, false, *failed
}

// writeChunk writes one chunk. If that fails, the table is acquired again, because it is not known how far it is.
func (d *dispatcher) writeChunk(ctx context.Context, parts iter.Seq2[*snapshot.Chunk, error], at stream.Position) (done bool, err error) {
	d.mu.Lock()
	if d.state != Running || d.flushing || !d.holding || d.hold != at {
		d.mu.Unlock()
		return false, errAgain
	}
	w, ok := d.writer.(snapshot.Writer)
	if !ok {
		d.mu.Unlock()
		return false, errAgain
	}
	d.flushing, d.sent, d.sentMore = true, at, false
	d.mu.Unlock()
	began := time.Now()
	d.feed.begins(began)
	err = w.WriteChunk(ctx, parts, at)
	d.feed.ends(err == nil)
	if flushed := d.feed.engine.opts.Flushed; flushed != nil && err == nil {
		flushed(time.Since(began))
	}
	var fresh stream.Writer
	var found stream.Position
	if err != nil && !lost(err) && ctx.Err() == nil {
		var again error
		if fresh, found, again = d.feed.sink.Acquire(ctx, d.identity(), d.epoch, at); again != nil {
			err = errors.Join(err, again)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushing = false
	if fresh != nil && found < d.written {
		err = errors.Join(err, fmt.Errorf("table %s was at position %d and is at %d: %w", d.table, d.written, found, stream.ErrWentBack), fresh.Close())
		fresh = nil
	}
	switch {
	case err == nil:
		d.flushed, d.written, d.tries = max(d.flushed, at), max(d.written, at), 0
		done = w.Snapshot() == nil
	case fresh != nil:
		_ = d.writer.Close() // it is not writing
		d.writer = fresh
	case lost(err), d.state == Running && ctx.Err() == nil:
		// Without a fresh writer it is not known how far the table is copied, and whether its changes may be dropped: it is placed again.
		d.state, d.err = Lost, err
		d.listens, d.group = false, nil
		d.drop()
	}
	if d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
	return done, err
}

// copyState is how far the table is copied; nil if it is whole.
func (d *dispatcher) copyState() *snapshot.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w, ok := d.writer.(snapshot.Writer); ok {
		return w.Snapshot()
	}
	return nil
}

// copies is what is copied of the table.
func (d *dispatcher) copies(l *snapshot.Layout) (*snapshot.Layout, error) {
	d.mu.Lock()
	w, ok := d.writer.(snapshot.Writer)
	d.mu.Unlock()
	if !ok {
		return nil, errAgain
	}
	return w.Copies(l)
}

// awaitNear waits until the dispatcher follows the log closely: a snapshot is of the newest position. It returns false if the dispatcher
// does not run any more.
func (d *dispatcher) awaitNear(ctx context.Context) bool {
	for ctx.Err() == nil {
		near, runs := d.near()
		if near || !runs {
			return near
		}
		_ = backoff.Sleep(ctx, 10*copyPoll)
	}
	return false
}

// near reports whether the dispatcher follows the log closely, and whether it runs.
func (d *dispatcher) near() (near, runs bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	runs = d.state == Running
	return runs && d.listens && len(d.queue) < 1000 && !d.blocked() && !d.feed.engine.budget.scarce(), runs
}

// holdAt makes the dispatcher write nothing after a position. It returns false if it may have.
func (d *dispatcher) holdAt(at stream.Position) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != Running || max(d.sent, d.flushed) > at || d.sent == at && d.sentMore {
		return false
	}
	d.hold, d.holding = at, true
	return true
}

// holdHere makes the dispatcher write nothing after what it writes now.
func (d *dispatcher) holdHere() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold, d.holding = max(d.sent, d.flushed), true
}

// release lets the dispatcher continue.
func (d *dispatcher) release() {
	d.mu.Lock()
	d.holding = false
	ready := d.lineUp()
	d.mu.Unlock()
	if ready {
		d.feed.enqueue(d)
	}
}

// awaitReached waits until everything up to a position is written, and the log is read up to head without DDL of the table in between.
func (d *dispatcher) awaitReached(ctx context.Context, at, head stream.Position) error {
	for began := time.Now(); ; {
		reached, err := d.reached(at, head)
		switch {
		case reached || err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(began) > holdLimit, d.feed.engine.budget.scarce() && d.waits():
			return fmt.Errorf("%w: the table did not reach its position in time", errAgain)
		}
		_ = backoff.Sleep(ctx, copyPoll)
	}
}

// reached reports whether everything up to a position is written, and the log is read up to head.
func (d *dispatcher) reached(at, head stream.Position) (bool, error) {
	read, _ := d.feed.hub.where()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state != Running || !d.listens {
		return false, fmt.Errorf("%w: the dispatcher does not follow the log any more", errAgain)
	}
	for _, rows := range d.queue {
		if rows.DDL != nil && rows.Position > at && rows.Position <= head {
			return false, snapshot.ErrChanged
		}
	}
	written := !d.flushing && !d.resting && (len(d.queue) == 0 || d.queue[0].Position > at)
	return written && read >= head, nil
}

// held reports whether what comes next must not be written yet. The caller holds the lock.
func (d *dispatcher) held() bool {
	return d.holding && len(d.queue) > 0 && d.queue[0].Position > d.hold
}

// waits reports whether there are changes that wait for the snapshot.
func (d *dispatcher) waits() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue) > 0
}

// pacer limits how many rows are copied per second.
type pacer struct {
	rate int // 0 for any number
	mu   sync.Mutex
	next time.Time
}

// most is how many rows a chunk may have.
func (p *pacer) most() int {
	if p.rate <= 0 {
		return chunkRows
	}
	return min(chunkRows, max(1, p.rate/4))
}

// wait waits until that many more rows may be copied.
func (p *pacer) wait(ctx context.Context, rows int) error {
	if p.rate <= 0 || rows == 0 {
		return nil
	}
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(rows) / float64(p.rate) * float64(time.Second)))
	until := p.next
	p.mu.Unlock()
	return backoff.Sleep(ctx, time.Until(until))
}
