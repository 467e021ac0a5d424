package dispatch

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// A changefeed whose sink hangs, and a table that cannot be written, must not take the memory that others need: when memory is scarce,
// nothing is delivered to their dispatchers. These are parked, and catch up later.

const (
	// stalledAfter is how long no write of a changefeed must have ended for its sink to count as hanging.
	stalledAfter = 2 * time.Second
	// tendEvery is how often parked dispatchers are checked.
	tendEvery = 100 * time.Millisecond
)

// pace records whether writes of a changefeed succeed.
type pace struct {
	mu      sync.Mutex
	writing int
	moved   time.Time // when one last succeeded, or the first of the current ones began
}

func (f *Feed) begins(now time.Time) {
	f.pace.mu.Lock()
	defer f.pace.mu.Unlock()
	if f.pace.writing == 0 {
		f.pace.moved = now
	}
	f.pace.writing++
}

func (f *Feed) ends(done bool) {
	f.pace.mu.Lock()
	defer f.pace.mu.Unlock()
	f.pace.writing--
	if done {
		f.pace.moved = time.Now()
	}
}

// stalled reports whether there are writes and none has succeeded for a while.
func (f *Feed) stalled() bool {
	f.pace.mu.Lock()
	defer f.pace.mu.Unlock()
	return f.pace.writing > 0 && time.Since(f.pace.moved) > stalledAfter
}

// parking are the parked dispatchers of a changefeed.
type parking struct {
	mu      sync.Mutex
	list    []parked
	tending bool
}

// parked is a dispatcher and the group that it was in.
type parked struct {
	*dispatcher
	group *group
}

// hoards reports whether a dispatcher uses memory that others need for changes that it cannot write. The caller holds the lock.
func (d *dispatcher) hoards() bool {
	return d.state == Running && (d.flushing || len(d.queue) > 0) && d.feed.engine.budget.scarce() && (d.tries > 0 || d.blocked() || d.feed.stalled())
}

// park ends the delivery to a dispatcher until tend resumes it. The caller holds the lock.
func (d *dispatcher) park() {
	p := parked{d, d.group}
	d.parked, d.listens, d.group, d.partOf = true, false, nil, 0
	f := d.feed
	f.parking.mu.Lock()
	defer f.parking.mu.Unlock()
	f.parking.list = append(f.parking.list, p)
	if !f.parking.tending {
		f.parking.tending = true
		f.wg.Go(f.tend)
	}
}

// relieve frees the memory of dispatchers that hoard it.
func (e *Engine) relieve() {
	e.mu.Lock()
	feeds := slices.Collect(maps.Values(e.feeds))
	e.mu.Unlock()
	for _, f := range feeds {
		for _, d := range f.all() {
			d.mu.Lock()
			if d.hoards() {
				d.shed()
			}
			d.mu.Unlock()
		}
	}
}

// shed drops all changes that are not being written, and what is prepared for them. They are read again later. The caller holds the lock.
func (d *dispatcher) shed() {
	d.partOf = 0
	if ahead, ok := d.writer.(stream.AheadWriter); ok {
		ahead.Forget()
	}
	if d.blocked() { // it needs only the DDL that it waits for
		for _, rows := range d.queue[1:] {
			d.bytes -= rows.Bytes
			d.changes -= len(rows.Changes)
			d.feed.engine.budget.give(rows.Bytes)
		}
		d.queue = d.queue[:1:1]
		d.from = d.queue[0].Position
	} else {
		d.drop()
		if d.from = d.flushed; d.flushing {
			d.from = d.sent
		}
	}
	if !d.parked {
		d.park()
	}
}

// isParked reports whether nothing is delivered to the dispatcher.
func (d *dispatcher) isParked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.parked
}

// tend resumes the delivery to parked dispatchers once they do not hoard. It returns when none is left.
func (f *Feed) tend() {
	for {
		_ = backoff.Sleep(f.ctx, tendEvery)
		f.parking.mu.Lock()
		list := f.parking.list
		f.parking.list = nil
		f.parking.mu.Unlock()
		var back []*dispatcher
		var stay []parked
		for _, p := range list {
			f.hub.unsubscribe(p.dispatcher)
			if p.group != nil {
				p.group.leave(p.dispatcher)
			}
			p.mu.Lock()
			switch {
			case p.state != Running:
			case p.hoards():
				stay = append(stay, parked{dispatcher: p.dispatcher})
			default:
				p.parked = false
				back = append(back, p.dispatcher)
			}
			p.mu.Unlock()
		}
		f.hub.join(back)
		f.parking.mu.Lock()
		f.parking.list = append(f.parking.list, stay...)
		done := len(f.parking.list) == 0 || f.ctx.Err() != nil
		f.parking.tending = !done
		f.parking.mu.Unlock()
		if done {
			return
		}
	}
}
