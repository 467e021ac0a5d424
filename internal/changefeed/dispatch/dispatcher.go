package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// State of a dispatcher.
type State int32

// The states.
const (
	// Prepared: it reads ahead and writes nothing, to continue at the position at which another stops.
	Prepared State = iota + 1
	// Running: it reads and writes.
	Running
	// Stopped: it does nothing more, and everything up to its checkpoint is at the sink.
	Stopped
	// Lost: another owner has the table at the sink, or the sink may have lost what was written to it.
	Lost
)

// ErrLost: a dispatcher was stopped that was Lost.
var ErrLost = errors.New("another owner has the table at the sink, or the sink has lost what was written")

// lost reports whether an error of the sink means that the dispatcher is Lost.
func lost(err error) bool {
	return errors.Is(err, stream.ErrNotOwner) || errors.Is(err, stream.ErrWentBack)
}

// readAhead bounds what a prepared dispatcher keeps. Beyond that it drops everything, and catches up when it is started.
const readAhead = 1 << 20

// dispatcher replicates one table, or a group of tables that are written in the order of the source. It has no goroutine of its own: the hub pushes, the feed's workers write.
type dispatcher struct {
	feed  *Feed
	table stream.Table
	since stream.Position // the table has its name since then
	// members are the tables of a group, and tables their names; none for a single table.
	members []stream.Identity
	tables  []stream.Table
	// watches are other tables, whose DDL concerns it unless that is about one table alone.
	watches []stream.Table
	epoch   stream.Epoch
	begins  stream.Position // of the DDL that it begins with

	mu       sync.Mutex
	state    State
	from     stream.Position // changes up to here are ignored: it has them
	partOf   stream.Position // of the large transaction here, it has so many changes
	part     int
	flushed  stream.Position // everything up to here is at the sink
	written  stream.Position // the position that the sink has recorded
	at       time.Time       // when the source committed what was flushed last
	queue    []*stream.Rows
	bytes    int             // of the queue
	changes  int             // in the queue
	listens  bool            // the hub delivers to it
	group    *group          // it catches up with this one
	covers   stream.Position // the queue has all changes after this
	queued   bool            // it is in line for a worker
	flushing bool
	sent     stream.Position // the end of the batch that is being written, or was last
	sentMore bool            // and more of the transaction after it follows
	holding  bool            // nothing after hold is written: a snapshot of that position is being copied
	hold     stream.Position
	copying  context.CancelFunc // ends the copy of the table; nil if there is none
	idle     chan struct{}      // closed when the flush that stop waits for has ended
	tries    int                // failed attempts to write the next batch
	resting  bool               // it waits for the next attempt
	parked   bool               // nothing is delivered to it until there is memory
	writer   stream.Writer
	err      error
}

// names are the tables that it replicates.
func (d *dispatcher) names() []stream.Table {
	if len(d.tables) > 0 {
		return d.tables
	}
	return []stream.Table{d.table}
}

// identity is the table that it replicates, or that stands for its group.
func (d *dispatcher) identity() stream.Identity { return d.table.Since(d.since) }

// is reports whether it replicates a table, and not another one of the same name. Who knows only the name means any.
func (d *dispatcher) is(t stream.Identity) bool {
	return d.table == t.Table && (d.since == t.Since || d.since == stream.AnySince || t.Since == stream.AnySince)
}

// position is up to where the dispatcher has everything.
func (d *dispatcher) position() stream.Position {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.from
}

// push takes changes from the hub, or from the group that it catches up with. It ignores what comes from a reader that it does not
// listen to, or not any more: there would be a gap before it. It returns false if earlier parts of the transaction are missing.
func (d *dispatcher) push(rows *stream.Rows, from *group) bool {
	d.mu.Lock()
	if rows.Position <= d.from || from == nil && !d.listens || d.group != from || rows.DDL != nil && d.passes(rows) || d.skips(rows) {
		d.mu.Unlock()
		return true
	}
	if d.hoards() {
		d.park()
		d.mu.Unlock()
		return true
	}
	// DDL has no changes, and comes after some if later rows of the transaction cannot be read.
	if rows.DDL == nil && (rows.Before > 0 || d.partOf == rows.Position) {
		left, follows := d.unread(rows)
		if left == nil {
			d.mu.Unlock()
			return follows
		}
		rows = left
	}
	if d.state == Running && !d.flushing && len(d.queue) == 0 {
		d.flushed = max(d.flushed, rows.Position-1) // there is nothing of this table in between
	}
	if rows.More {
		d.partOf, d.part = rows.Position, rows.Before+len(rows.Changes)
	} else {
		d.from = rows.Position
	}
	d.queue = append(d.queue, rows)
	d.bytes += rows.Bytes
	d.changes += len(rows.Changes)
	d.feed.engine.budget.take(rows.Bytes)
	if d.state == Prepared && (d.bytes > readAhead || d.feed.engine.budget.scarce()) { // it will catch up when it is started
		d.drop()
		d.covers = rows.Position
	}
	ready := d.lineUp()
	d.mu.Unlock()
	if ready {
		d.feed.enqueue(d)
	}
	return true
}

// unread is what the dispatcher does not have yet of a part of a large transaction; nil if it has all of it, or if earlier parts are
// missing, so that the part does not follow. The caller holds the lock.
func (d *dispatcher) unread(rows *stream.Rows) (left *stream.Rows, follows bool) {
	part := 0
	if d.partOf == rows.Position {
		part = d.part
	}
	list, err := stream.Unwritten([]*stream.Rows{rows}, rows.Position-1, part)
	if err != nil {
		return nil, false
	}
	if len(list) == 0 {
		if !rows.More {
			d.from = rows.Position
		}
		return nil, true
	}
	return list[0], true
}

// passes reports whether the dispatcher ignores DDL: the changefeed does not replicate DDL, or the table begins with it.
func (d *dispatcher) passes(mark *stream.Rows) bool {
	return !d.feed.config.DDL && mark.DDL.Kind != stream.UnreadableRows || mark.Position == d.begins
}

// skips reports whether rows belong to a transaction that is not replicated. DDL keeps its place in the queue, so that all tables that it
// concerns are at the same position when they pass it. What is Unexecutable has no place in the queue.
func (d *dispatcher) skips(rows *stream.Rows) bool {
	return d.skipped(rows.Position) && (rows.DDL == nil || rows.DDL.Unexecutable())
}

// skipped reports whether the transaction at a position is not replicated.
func (d *dispatcher) skipped(at stream.Position) bool {
	return slices.Contains(d.feed.config.Skips, at)
}

// lineUp puts the dispatcher in line for a worker if it has something to write. The caller holds the lock.
func (d *dispatcher) lineUp() bool {
	if d.state != Running || d.queued || d.flushing || d.resting || len(d.queue) == 0 || d.blocked() || d.held() {
		return false
	}
	d.queued = true
	return true
}

// blocked reports whether the dispatcher has reached DDL that its maintainer has to execute: DDL that concerns other tables too, or
// makes or ends the table. Another dispatcher continues after it, or none. The caller holds the lock.
func (d *dispatcher) blocked() bool {
	return len(d.queue) > 0 && d.queue[0].DDL != nil && !d.queue[0].DDL.Alone()
}

// pressing reports whether the dispatcher should be written without waiting for more: it has a whole batch, or DDL that may hold up
// others.
func (d *dispatcher) pressing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes >= d.feed.batch || slices.ContainsFunc(d.queue, func(r *stream.Rows) bool { return r.DDL != nil })
}

// drop drops the queue. The caller holds the lock.
func (d *dispatcher) drop() {
	d.feed.engine.budget.give(d.bytes)
	d.queue, d.bytes, d.changes = nil, 0, 0
}

// listen makes the dispatcher take what the hub delivers after a position. It returns false if the dispatcher was stopped or parked
// meanwhile: then it may need earlier changes.
func (d *dispatcher) listen(at stream.Position) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listens || d.parked || d.state != Prepared && d.state != Running {
		return false
	}
	d.from = max(d.from, at)
	d.listens, d.group, d.err, d.partOf = true, nil, nil, 0
	if d.state == Prepared {
		d.covers = d.from
	}
	return true
}

// follow makes the dispatcher take what a group delivers. It returns false if the dispatcher was stopped or parked meanwhile.
func (d *dispatcher) follow(g *group) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listens || d.parked || d.state != Running {
		return false
	}
	d.group, d.partOf = g, 0
	return true
}

// passed records how far a group has come, before the group goes back for another dispatcher.
func (d *dispatcher) passed(g *group, position stream.Position, at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.group == g {
		d.flushed, d.at = d.locked(position, at)
		d.from = max(d.from, position)
	}
}

// doing describes what the dispatcher is doing; empty if it has written all that was read.
func (d *dispatcher) doing() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.state != Running:
		return "is stopped"
	case d.tries > 0:
		return fmt.Sprintf("cannot be written: %v", d.err)
	case d.flushing:
		return "is being written"
	case d.held():
		return "is waiting for a part of its initial copy"
	case d.blocked():
		return "is waiting for DDL that concerns it"
	case len(d.queue) > 0:
		return "is waiting for a worker"
	case d.parked:
		return "is waiting for memory"
	case d.group != nil:
		return "is catching up with the log"
	case !d.listens:
		return "is waiting for a reader"
	}
	return ""
}

// trouble records an error of the reader, or nil once the reader reads again. An error of the sink stays until a write succeeds.
func (d *dispatcher) trouble(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tries == 0 {
		d.err = err
	}
}

// problem is why the dispatcher does not continue, or nil. The caller holds the lock.
func (d *dispatcher) problem() error {
	if d.state == Running && d.blocked() && d.queue[0].DDL.Kind == stream.UnreadableRows {
		return fmt.Errorf("%s: %w", d.queue[0].DDL.Statement, stream.ErrUnusable)
	}
	return d.err
}

// checkpoint is a position up to which everything is at the sink.
func (d *dispatcher) checkpoint() (stream.Position, time.Time) {
	// The hub's position first: what was delivered up to it is in the queue, or was written.
	position, at := d.feed.hub.where()
	d.mu.Lock()
	defer d.mu.Unlock()
	// It is recorded, so that a reported position does not decrease when the hub goes back for another dispatcher.
	d.flushed, d.at = d.locked(position, at)
	return d.flushed, d.at
}

func (d *dispatcher) locked(position stream.Position, at time.Time) (stream.Position, time.Time) {
	if d.state != Running || d.flushing || len(d.queue) > 0 {
		return d.flushed, d.at
	}
	switch {
	case d.group != nil:
		position, at = stream.Position(d.group.at.Load()), time.UnixMicro(d.group.when.Load())
	case d.listens:
		// The hub may have gone back for this dispatcher, which came to it from a group, after its position was read.
		position = min(position, stream.Position(d.feed.hub.reached.Load()))
	}
	if (d.listens || d.group != nil) && (position > d.flushed || position == d.flushed && at.After(d.at)) {
		return position, at
	}
	return d.flushed, d.at
}

// flush is a batch of a dispatcher that is being written.
type flush struct {
	*dispatcher
	batch   []*stream.Rows
	last    *stream.Rows
	bytes   int
	changes int
}

// begin takes a batch of up to so many changes off the queue, to be written; nil if there is nothing to write now.
func (d *dispatcher) begin(most int) *flush {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queued = false
	if d.state != Running || d.flushing || d.resting || len(d.queue) == 0 || d.blocked() || d.held() {
		return nil
	}
	d.flushing = true
	batch, bytes, changes := d.take(most)
	last := batch[len(batch)-1]
	d.sent, d.sentMore = last.To(), last.More
	return &flush{dispatcher: d, batch: batch, last: last, bytes: bytes, changes: changes}
}

// shareable reports whether the next batch may be written in one transaction with others, and how many changes wait for it. DDL, and
// what has failed, is tried alone.
func (d *dispatcher) shareable() (changes int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes, d.tries == 0 && len(d.members) == 0 && (len(d.queue) == 0 || d.queue[0].DDL == nil)
}

// write writes the batch alone.
func (b *flush) write(ctx context.Context) error {
	if b.last.DDL != nil {
		return b.executeDDL(ctx, b.last)
	}
	return b.writer.Write(ctx, b.batch, b.last.To())
}

// done records how a write ended. It returns whether there is more to write.
func (b *flush) done(ctx context.Context, err error) (more bool) {
	d := b.dispatcher
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushing = false
	if err != nil && !lost(err) && d.state == Running && ctx.Err() == nil {
		d.queue, d.bytes, d.changes = slices.Concat(b.batch, d.queue), d.bytes+b.bytes, d.changes+b.changes
		d.rest(err)
		return false
	}
	d.feed.engine.budget.give(b.bytes)
	if err == nil {
		d.flushed, d.at, d.err, d.tries = max(d.flushed, b.last.To()), b.last.At, nil, 0
		d.written = max(d.written, b.last.To())
		if len(d.queue) > 0 {
			d.flushed = max(d.flushed, d.queue[0].Position-1)
		}
	} else {
		d.err = err
		if lost(err) {
			d.state = Lost
			d.listens, d.group = false, nil
		}
	}
	if d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
	if d.state != Running {
		d.drop()
		return false
	}
	return d.lineUp()
}

// take takes the next batch off the queue: whole transactions, with up to so many changes if it is more than one. The caller holds the
// lock.
func (d *dispatcher) take(most int) (batch []*stream.Rows, bytes, changes int) {
	n := 0
	for n < len(d.queue) && (!d.holding || d.queue[n].Position <= d.hold) && (n == 0 || d.queue[0].DDL == nil && d.queue[n].DDL == nil && changes+len(d.queue[n].Changes) <= most) {
		changes += len(d.queue[n].Changes)
		bytes += d.queue[n].Bytes
		n++
	}
	batch = d.queue[:n:n]
	d.queue = d.queue[n:]
	if len(d.queue) == 0 {
		d.queue = nil // idle tables keep nothing
	}
	d.bytes -= bytes
	d.changes -= changes
	return batch, bytes, changes
}

// upcoming is the batch that comes after the one being written; none if it is not known yet what that will be.
func (d *dispatcher) upcoming(most int) []*stream.Rows {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.holding || len(d.queue) == 0 || d.queue[0].DDL != nil {
		return nil
	}
	changes := 0
	for n, rows := range d.queue {
		if n > 0 && (rows.DDL != nil || changes+len(rows.Changes) > most) {
			return d.queue[:n:n]
		}
		changes += len(rows.Changes)
	}
	return nil // it may grow until then
}

// executeDDL executes DDL of the table in its place among the changes. The sink may have recorded another position of the table with
// it, so the table is acquired again. Before that, the writer checks that the sink still has what it has written, because the next
// writer does not check it.
func (d *dispatcher) executeDDL(ctx context.Context, mark *stream.Rows) error {
	if may := d.feed.engine.opts.May; may != nil && !may() {
		return fmt.Errorf("table %s: %w: no DDL is executed until it is renewed", d.table, fleet.ErrLeaseInDoubt)
	}
	ddl := mark.DDL
	if d.skipped(mark.Position) {
		ddl = ddl.Without()
	}
	if err := d.writer.Write(ctx, nil, mark.Position-1); err != nil {
		return err
	}
	if err := d.feed.sink.ExecuteDDL(ctx, mark.Position, ddl, d.epoch); err != nil {
		return err
	}
	w, at, err := d.acquire(ctx, mark.Position)
	if err != nil {
		return err
	}
	if at < mark.Position-1 {
		return errors.Join(fmt.Errorf("table %s was at position %d and is at %d: %w", d.table, mark.Position-1, at, stream.ErrWentBack), w.Close())
	}
	_ = d.writer.Close() // it is not writing
	d.mu.Lock()
	d.writer = w
	d.mu.Unlock()
	if at >= mark.Position {
		return nil
	}
	return w.Write(ctx, nil, mark.Position)
}

// rest schedules the next attempt to write a batch that failed. Meanwhile the worker writes other tables: it may be only this one that
// cannot be written. The caller holds the lock.
func (d *dispatcher) rest(err error) {
	d.err, d.resting = err, true
	d.tries++
	if d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
	time.AfterFunc(retries.After(int64(d.tries)), func() {
		d.mu.Lock()
		d.resting = false
		ready := d.lineUp()
		d.mu.Unlock()
		if ready {
			d.feed.enqueue(d)
		}
	})
}

// stop stops the dispatcher and returns the position up to which everything is at the sink. It waits for the batch that is being written.
// It returns ErrLost, and the dispatcher is stopped, if it is not known what is at the sink.
func (d *dispatcher) stop(ctx context.Context) (stream.Position, error) {
	position, at := d.feed.hub.where()
	d.mu.Lock()
	// Before the state changes: with nothing queued or being written, the dispatcher is at the position of the hub.
	d.flushed, d.at = d.locked(position, at)
	if d.state != Lost {
		d.state = Stopped
	}
	if d.copying != nil {
		d.copying()
	}
	group := d.group
	d.listens, d.group = false, nil
	var idle chan struct{}
	if d.flushing {
		if d.idle == nil {
			d.idle = make(chan struct{})
		}
		idle = d.idle
	} else {
		d.drop()
	}
	d.mu.Unlock()
	d.feed.hub.unsubscribe(d)
	if group != nil {
		group.leave(d)
	}
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writer != nil {
		_ = d.writer.Close() // it is not writing
		d.writer = nil
	}
	if d.state == Lost { // before, or by the write that was waited for
		return 0, fmt.Errorf("table %s: %w", d.table, ErrLost)
	}
	return d.flushed, nil
}

// status of the dispatcher.
func (d *dispatcher) status() Status {
	at, _ := d.checkpoint()
	d.mu.Lock()
	defer d.mu.Unlock()
	return Status{Identity: d.identity(), Members: d.members, Watches: d.watches, Epoch: d.epoch, Begins: d.begins, State: d.state, Checkpoint: at, Err: d.problem()}
}
