package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// State of a dispatcher.
type State int32

// The states.
const (
	// Prepared: it reads ahead and writes nothing; it is ready to go on where another stops.
	Prepared State = iota + 1
	// Running: it reads and writes.
	Running
	// Stopped: it does nothing more, and everything up to its checkpoint is at the sink.
	Stopped
	// Lost: another owner has the table at the sink.
	Lost
)

// readAhead bounds what a prepared dispatcher keeps. One that has more lets it go and catches up later.
const readAhead = 1 << 20

// dispatcher carries one table. It has no goroutine of its own: the hub pushes, the feed's workers write.
type dispatcher struct {
	feed  *Feed
	table stream.Table
	epoch stream.Epoch

	mu       sync.Mutex
	state    State
	from     stream.Position // changes up to here are of no interest
	flushed  stream.Position // everything up to here is at the sink
	at       time.Time       // when the source committed what was flushed last
	queue    []*stream.Rows
	bytes    int
	listens  bool            // the hub delivers to it
	covers   stream.Position // and has since this position
	queued   bool            // it is in line for a worker
	flushing bool
	idle     chan struct{} // closed when a flush that somebody waits for has ended
	writer   stream.Writer
	err      error
}

// position is up to where the dispatcher has everything.
func (d *dispatcher) position() stream.Position {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.from
}

// push takes changes from a reader.
func (d *dispatcher) push(rows *stream.Rows) {
	d.mu.Lock()
	if rows.Position <= d.from || d.state == Stopped || d.state == Lost {
		d.mu.Unlock()
		return
	}
	d.from = rows.Position
	d.queue = append(d.queue, rows)
	d.bytes += rows.Bytes
	d.feed.engine.budget.take(rows.Bytes)
	over := d.state == Prepared && d.bytes > readAhead
	if over { // it catches up when it is started
		d.drop()
		d.covers = rows.Position
	}
	ready := d.ready()
	d.mu.Unlock()
	if ready {
		d.feed.enqueue(d)
	}
}

// ready puts the dispatcher in line for a worker if it has something to write. The caller holds the lock.
func (d *dispatcher) ready() bool {
	if d.state != Running || d.queued || d.flushing || len(d.queue) == 0 {
		return false
	}
	d.queued = true
	return true
}

// drop lets everything go that was read ahead. The caller holds the lock.
func (d *dispatcher) drop() {
	d.feed.engine.budget.give(d.bytes)
	d.queue, d.bytes = nil, 0
}

// skip says that nothing of interest lies before a position.
func (d *dispatcher) skip(to stream.Position) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.from = max(d.from, to)
}

// joined takes note that the hub delivers from here on.
func (d *dispatcher) joined() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listens, d.covers, d.err = true, d.from, nil
}

func (d *dispatcher) trouble(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// checkpoint is a position up to which everything is at the sink.
func (d *dispatcher) checkpoint() (stream.Position, time.Time) {
	// The hub's position first: what was delivered up to it is in the queue, or was written.
	position, at := d.feed.hub.where()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.locked(position, at)
}

func (d *dispatcher) locked(position stream.Position, at time.Time) (stream.Position, time.Time) {
	if d.state == Running && d.listens && !d.flushing && len(d.queue) == 0 && position > d.flushed {
		return position, at
	}
	return d.flushed, d.at
}

// work writes one batch. It says whether there is more.
func (d *dispatcher) work(ctx context.Context) (more bool) {
	d.mu.Lock()
	d.queued = false
	if d.state != Running || d.flushing || len(d.queue) == 0 {
		d.mu.Unlock()
		return false
	}
	d.flushing = true
	batch, bytes := d.take()
	writer := d.writer
	d.mu.Unlock()

	last := batch[len(batch)-1]
	err := d.write(ctx, writer, batch, last.Position)

	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushing = false
	d.feed.engine.budget.give(bytes)
	if err == nil {
		d.flushed, d.at, d.err = last.Position, last.At, nil
		d.feed.wrote(batch, bytes)
	} else {
		d.err = err
		if errors.Is(err, stream.ErrNotOwner) {
			d.state = Lost
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
	return d.ready()
}

// take takes the next batch off the queue. The caller holds the lock.
func (d *dispatcher) take() (batch []*stream.Rows, bytes int) {
	changes, n := 0, 0
	for n < len(d.queue) && (n == 0 || changes+len(d.queue[n].Changes) <= d.feed.batch) {
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
	return batch, bytes
}

// write tries until the batch is written, the table is another's, or the dispatcher has to stop.
func (d *dispatcher) write(ctx context.Context, w stream.Writer, batch []*stream.Rows, to stream.Position) error {
	pause := retryFirst
	for {
		err := w.Write(ctx, batch, to)
		if err == nil || errors.Is(err, stream.ErrNotOwner) || ctx.Err() != nil {
			return err
		}
		d.trouble(err)
		sleep(ctx, pause)
		pause = min(2*pause, retryLast)
		if d.stopping() {
			return err
		}
	}
}

func (d *dispatcher) stopping() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state != Running
}

// stop ends the dispatcher and says up to where everything is at the sink. It waits for what is being written.
func (d *dispatcher) stop(ctx context.Context) (stream.Position, error) {
	position, at := d.feed.hub.where()
	d.mu.Lock()
	// While it still runs: with nothing queued or being written it is where the hub is.
	d.flushed, d.at = d.locked(position, at)
	if d.state != Lost {
		d.state = Stopped
	}
	listens := d.listens
	d.listens = false
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
	if listens {
		d.feed.hub.unsubscribe(d)
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
		_ = d.writer.Close() // it has nothing under way
		d.writer = nil
	}
	return d.flushed, nil
}

// status is how the dispatcher is.
func (d *dispatcher) status() Status {
	at, _ := d.checkpoint()
	d.mu.Lock()
	defer d.mu.Unlock()
	return Status{Table: d.table, Epoch: d.epoch, State: d.state, Checkpoint: at, Err: d.err}
}
