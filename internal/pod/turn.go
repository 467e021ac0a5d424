package pod

import (
	"context"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// beginAtOnce is how many drains begin at the same time, and turnLimit how long one of them may keep others from it. If very many are
	// requested at once, the first ones evict while the next ones begin.
	beginAtOnce = 8
	turnLimit   = 2 * time.Second
	// turnNotice is how long a drain waits for its turn before it reports that.
	turnNotice = 5 * time.Second
)

// turns lets a few drains begin at once, in the order in which they were requested.
type turns struct {
	mu      sync.Mutex
	free    int
	waiting []*turn
}

func newTurns(atOnce int) *turns { return &turns{free: atOnce} }

// turn is the place of one drain among those that begin.
type turn struct {
	of        *turns
	requested time.Time
	wake      func() // called when the turn has come; it does not block
	granted   bool
	over      bool
	limit     *time.Timer
}

// ask returns a place behind all drains that were requested before. It is kept until end is called.
func (t *turns) ask(requested time.Time, wake func()) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &turn{of: t, requested: requested, wake: wake}
	at := slices.IndexFunc(t.waiting, func(o *turn) bool { return requested.Before(o.requested) })
	if at < 0 {
		at = len(t.waiting)
	}
	t.waiting = slices.Insert(t.waiting, at, p)
	t.grant()
	return p
}

// grant gives free turns to those who were requested first. The caller holds mu.
func (t *turns) grant() {
	for t.free > 0 && len(t.waiting) > 0 {
		p := t.waiting[0]
		t.waiting = t.waiting[1:]
		t.free--
		p.granted, p.limit = true, time.AfterFunc(turnLimit, p.end)
		p.wake()
	}
}

// come reports whether the turn has come. It does not go back: a drain that took longer than its turn goes on.
func (p *turn) come() bool {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	return p.granted
}

// end lets the next drain begin, or gives up the place of one whose turn has not come.
func (p *turn) end() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.over {
		return
	}
	p.over = true
	if !p.granted {
		p.of.waiting = slices.DeleteFunc(p.of.waiting, func(o *turn) bool { return o == p })
		return
	}
	p.limit.Stop()
	p.of.free++
	p.of.grant()
}

// tryTurn reports whether this drain may begin now: a few do so at once. The end of another one's turn wakes this worker.
func (w *nodeWorker) tryTurn(d *v1alpha1.Drain) bool {
	if w.turn == nil {
		w.turn = w.turns.ask(d.CreationTimestamp.Time, w.Wake)
	}
	return w.turn.come() && w.queued.IsZero()
}

// awaitTurn waits until this drain may begin, and reports it if that lasts. Whatever wakes this worker meanwhile, such as a cancellation,
// is looked at before.
func (w *nodeWorker) awaitTurn(ctx context.Context, d *v1alpha1.Drain, alone bool) (worker.Next, error) {
	if w.turn.come() {
		w.queued = time.Time{}
		if !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer) {
			return worker.Next{}, nil // its finalizer is written before anything happens, and that fails if the drain has changed
		}
		return worker.Next{}, w.reread(ctx) // it may have been cancelled, deleted or refused meanwhile
	}
	if w.queued.IsZero() {
		w.queued = time.Now()
	}
	if wait := turnNotice - time.Since(w.queued); wait > 0 {
		return worker.Next{In: wait}, nil
	}
	return w.report(ctx, d, alone, notBegun(w.node, w.queued), worker.Forever)
}

// endTurn lets the next drain begin.
func (w *nodeWorker) endTurn() {
	if w.turn != nil {
		w.turn.end()
	}
}
