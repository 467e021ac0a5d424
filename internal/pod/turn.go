package pod

import (
	"context"
	"sync"
	"time"

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

// tryTurn reports whether this drain may begin now: a few do so at once.
func (w *nodeWorker) tryTurn() bool {
	if w.endTurn != nil {
		return true
	}
	select {
	case w.turns <- struct{}{}:
		w.beginTurn()
		return true
	default:
		return false
	}
}

// awaitTurn waits until this drain may begin, and reports it if that lasts.
func (w *nodeWorker) awaitTurn(ctx context.Context, d *v1alpha1.Drain, alone bool) (worker.Next, error) {
	if w.queued.IsZero() {
		w.queued = time.Now()
	}
	timer := time.NewTimer(turnNotice)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return worker.Next{}, ctx.Err()
	case w.turns <- struct{}{}:
		w.beginTurn()
		return worker.Next{}, w.reread(ctx) // it may have been cancelled, deleted or refused meanwhile
	case <-timer.C:
	}
	_, err := w.report(ctx, d, alone, notBegun(w.node, w.queued), turnNotice)
	return worker.Next{}, err // it waits for its turn again
}

func (w *nodeWorker) beginTurn() {
	w.endTurn = sync.OnceFunc(func() { <-w.turns })
	time.AfterFunc(turnLimit, w.endTurn)
}
