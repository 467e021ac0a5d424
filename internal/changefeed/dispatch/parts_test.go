package dispatch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// part is a part of the transaction at position 9.
func part(table stream.Table, before, n int, more bool) *stream.Transaction {
	return &stream.Transaction{Position: 9, More: more, Rows: []*stream.Rows{{Position: 9, Table: table, Before: before, Total: 30, More: more, Changes: make([]stream.Change, n)}}}
}

// queued is what a dispatcher has to write.
func queued(d *dispatcher) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := fmt.Sprintf("from %d:", d.from)
	for _, rows := range d.queue {
		text += fmt.Sprintf(" %d+%d", rows.Before, len(rows.Changes))
	}
	return text
}

func TestADispatcherThatJoinsBetweenPartsGetsThemAll(t *testing.T) {
	a := stream.Table{Schema: "s", Name: "a"}
	early, late := standing(a, 0, 5, true), standing(a, 0, 5, true)
	to := map[stream.Table][]*dispatcher{a: {early}}
	deliver := func(want error, parts ...*stream.Transaction) {
		t.Helper()
		for i, p := range parts {
			if err := spread(p, to, nil, nil); i == len(parts)-1 && !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	}
	deliver(nil, part(a, 0, 10, true))
	to[a] = append(to[a], late)
	deliver(errWanted, part(a, 10, 10, true))
	if got := queued(early) + ", " + queued(late); got != "from 5: 0+10 10+10, from 5:" {
		t.Error(got)
	}
	// It is read again, perhaps in other parts.
	deliver(nil, part(a, 0, 15, true), part(a, 15, 10, true), part(a, 25, 5, false))
	if got := queued(early) + ", " + queued(late); got != "from 9: 0+10 10+10 20+5 25+5, from 9: 0+15 15+10 25+5" {
		t.Error(got)
	}
	deliver(nil, part(a, 25, 5, false))
	if got := queued(early); got != "from 9: 0+10 10+10 20+5 25+5" {
		t.Error(got)
	}
}

func TestACheckpointIsBeforeATransactionOfWhichPartsAreMissing(t *testing.T) {
	a := stream.Table{Schema: "s", Name: "a"}
	d := standing(a, 0, 5, true)
	d.feed.hub = &sharedHub{hub: newHub(nil, d.feed.engine.budget)}
	h := d.feed.hub.hub
	h.subs[a], h.position, d.flushed = []*dispatcher{d}, 5, 5
	written := &counter{}
	d.writer = written
	for i, p := range []*stream.Transaction{part(a, 0, 10, true), part(a, 10, 20, true), {Position: 9}} {
		if err := h.deliver(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		d.work(t.Context())
		want := stream.Position(8)
		if !p.More {
			want = 9
		}
		if at, _ := d.checkpoint(); at != want {
			t.Errorf("after part %d the checkpoint is %d", i, at)
		}
	}
	if written.changes != 30 || written.to != 8 {
		t.Errorf("%+v", written)
	}
}

// Rows that cannot be read stop a table, also if parts of their transaction were delivered before.
func TestRowsThatCannotBeReadInALaterPartStopTheTable(t *testing.T) {
	a := stream.Table{Schema: "s", Name: "a"}
	for _, written := range []bool{false, true} {
		d := standing(a, 0, 5, true)
		d.flushed, d.writer = 5, &counter{}
		to := map[stream.Table][]*dispatcher{a: {d}}
		mark := &stream.DDL{Kind: stream.UnreadableRows, Tables: []stream.Table{a}, Statement: "its columns change"}
		for _, p := range []*stream.Transaction{
			part(a, 0, 10, true), {Position: 9, More: true, Rows: []*stream.Rows{{Position: 9, Table: a, DDL: mark}}}, {Position: 9}, {Position: 10},
		} {
			if err := spread(p, to, nil, nil); err != nil {
				t.Fatal(err)
			}
			if written {
				d.work(t.Context())
			}
		}
		d.work(t.Context())
		d.mu.Lock()
		at, _ := d.locked(10, time.Time{})
		err := d.problem()
		d.mu.Unlock()
		if at != 8 || !errors.Is(err, stream.ErrUnusable) {
			t.Errorf("the checkpoint is %d with the problem %v", at, err)
		}
	}
}

// counter counts what is written.
type counter struct {
	changes int
	to      stream.Position
}

func (c *counter) Close() error { return nil }

func (c *counter) Write(_ context.Context, rows []*stream.Rows, to stream.Position) error {
	for _, r := range rows {
		c.changes += len(r.Changes)
	}
	c.to = to
	return nil
}

// work writes one batch. It returns whether there is more.
func (d *dispatcher) work(ctx context.Context) (more bool) {
	b := d.begin(d.feed.batch)
	return b != nil && b.done(ctx, b.write(ctx))
}

// A dispatcher that comes to the hub from a group makes the hub go back, if it is the only one there. What the hub had reached before
// that does not count for it.
func TestAPositionThatTheHubHadBeforeItWentBackDoesNotCount(t *testing.T) {
	a := stream.Table{Schema: "s", Name: "a"}
	d := standing(a, 0, 5, true)
	d.flushed, d.feed.hub = 5, &sharedHub{hub: newHub(nil, d.feed.engine.budget)}
	d.feed.hub.reached.Store(5)
	if at, _ := d.locked(900, time.Now()); at != 5 {
		t.Errorf("it is at %d", at)
	}
	d.feed.hub.reached.Store(900)
	if at, _ := d.locked(900, time.Now()); at != 900 {
		t.Errorf("it is at %d", at)
	}
}
