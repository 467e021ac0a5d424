package dispatch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

const (
	// tapRoom bounds the DDL that is queued in a tap. A hub does not wait for the tap's reader: it ends the tap.
	tapRoom = 1000
	// tapPause is the least time between two visits of a tap without DDL.
	tapPause = 20 * time.Millisecond
)

// Tap is how a table trigger follows the reader of its node instead of reading the log a second time. It gets all DDL that the
// maintainer executes. Of other transactions it gets only the last one now and then, with the tables that any of them changes in Skipped. It keeps no
// reader running, and in memory it keeps only DDL and names.
//
// It ends when the hub has no more subscribers, cannot read, or is too far ahead. What was delivered before can still be read.
type Tap struct {
	hub *hub

	mu    sync.Mutex
	after stream.Position       // what is delivered up to here is known
	queue []*stream.Transaction // DDL, and before each what came between it and the one before
	last  *stream.Transaction   // the newest one after all that is in queue; nil if there is none
	seen  map[stream.Table]bool // the tables with rows, or DDL of their own, in what last stands for
	ended bool
	some  chan struct{} // has an element when something was delivered
	soon  chan struct{} // has an element when DDL was delivered, or the tap has ended
}

// Tap follows the reader of a changefeed on this node after a position. It returns nil if there is none, or if it has passed the position.
func (e *Engine) Tap(key FeedKey, after stream.Position) *Tap {
	e.mu.Lock()
	var h *sharedHub
	if f := e.feeds[key]; f != nil {
		h = f.hub
	}
	e.mu.Unlock()
	if h == nil {
		return nil
	}
	if at := h.reached.Load(); at == 0 || at > uint64(after) {
		return nil
	}
	return h.tap(after)
}

// tap adds a tap, unless the hub does not read, or has passed the position.
func (h *hub) tap(after stream.Position) *Tap {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.count == 0 || h.err != nil || h.position > after {
		return nil
	}
	t := &Tap{hub: h, after: after, seen: map[stream.Table]bool{}, some: make(chan struct{}, 1), soon: make(chan struct{}, 1)}
	h.taps = append(h.taps, t)
	return t
}

// endTaps ends all taps. The caller holds the lock.
func (h *hub) endTaps() {
	for _, t := range h.taps {
		t.mu.Lock()
		t.ended = true
		t.mu.Unlock()
		ring(t.soon)
	}
	h.taps = nil
}

// passTaps delivers a whole transaction to the taps. The caller holds the lock.
func (h *hub) passTaps(tx *stream.Transaction) {
	h.taps = slices.DeleteFunc(h.taps, func(t *Tap) bool { return !t.push(tx) })
}

// push takes a transaction. It returns false if that has ended the tap.
func (t *Tap) push(tx *stream.Transaction) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tx.Position < t.after || tx.Position == t.after && !tx.Idle {
		return true
	}
	t.after = tx.Position
	if tx.DDL != nil && !tx.DDL.Alone() {
		if before := t.take(); before != nil {
			t.queue = append(t.queue, before)
		}
		t.queue = append(t.queue, &stream.Transaction{Position: tx.Position, At: tx.At, ID: tx.ID, DDL: tx.DDL})
		t.ended = len(t.queue) >= tapRoom
		defer ring(t.soon)
	}
	if t.last == nil {
		t.last = &stream.Transaction{ID: tx.ID, Idle: tx.Idle}
	}
	t.last.Position, t.last.At = tx.Position, tx.At
	if !tx.Idle {
		t.last.ID, t.last.Idle = tx.ID, false
	}
	if tx.DDL != nil && tx.DDL.Alone() {
		t.seen[tx.DDL.Tables[0]] = true
	}
	for _, rows := range tx.Rows { // those of CREATE TABLE ... SELECT come after the DDL
		t.seen[rows.Table] = true
	}
	for _, table := range tx.Skipped {
		t.seen[table] = true
	}
	ring(t.some)
	return !t.ended
}

// take takes what came after the last DDL; nil if there is nothing. The caller holds the lock.
func (t *Tap) take() *stream.Transaction {
	tx := t.last
	if t.last = nil; tx != nil {
		tx.Skipped = slices.Collect(maps.Keys(t.seen))
		clear(t.seen)
	}
	return tx
}

// ring leaves an element in a channel.
func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Read calls visit for what the hub delivers, in order, until visit returns an error or ctx ends. It returns nil when the tap has ended and
// all that it got was visited.
func (t *Tap) Read(ctx context.Context, visit func(*stream.Transaction) error) error {
	defer t.leave()
	for {
		next, ended := t.next()
		switch {
		case next == nil && ended:
			return nil
		case next != nil:
			if err := visit(next); err != nil {
				return err
			}
		}
		if next != nil && (next.DDL != nil || ended || t.queued()) {
			continue
		}
		if err := t.wait(ctx, next != nil); err != nil {
			return err
		}
	}
}

// wait waits for more; for a while only for DDL, if something was visited just now.
func (t *Tap) wait(ctx context.Context, visited bool) error {
	if visited {
		pause := time.NewTimer(tapPause)
		defer pause.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.soon:
			return nil
		case <-pause.C:
		}
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.soon:
	case <-t.some:
	}
	return nil
}

// next takes what is to be visited next; nil if there is nothing.
func (t *Tap) next() (tx *stream.Transaction, ended bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) > 0 {
		tx, t.queue = t.queue[0], t.queue[1:]
		return tx, t.ended
	}
	return t.take(), t.ended
}

// queued reports whether DDL waits.
func (t *Tap) queued() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queue) > 0
}

// leave ends the delivery.
func (t *Tap) leave() {
	t.hub.mu.Lock()
	defer t.hub.mu.Unlock()
	t.hub.taps = slices.DeleteFunc(t.hub.taps, func(each *Tap) bool { return each == t })
}
