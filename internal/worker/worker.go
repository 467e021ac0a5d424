// Package worker is the loop of one object: a goroutine that looks at the newest version of the object, decides what to do next, does
// it, reports, and waits until something changes.
package worker

import (
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// Signal wakes a loop. Any number of signals before the loop looks again are one.
type Signal chan struct{}

// NewSignal makes a Signal.
func NewSignal() Signal { return make(Signal, 1) }

// Wake makes the loop look again. It never blocks.
func (s Signal) Wake() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Woken returns whether a signal waits for the loop.
func (s Signal) Woken() bool { return len(s) > 0 }

// Forever is a wait that only something else ends.
const Forever = time.Duration(math.MaxInt64)

// On are the channels that end a wait, besides the Signal.
type On [4]<-chan struct{}

// Wait waits for the Signal, one of the channels, the end of ctx, or the limit.
func (s Signal) Wait(ctx context.Context, limit time.Duration, on On) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s:
	case <-on[0]:
	case <-on[1]:
	case <-on[2]:
	case <-on[3]:
	}
}

// Next is when a loop looks again: after In at the latest, or after the next delay of the back-off if Err is set. The zero value is at
// once.
type Next struct {
	In   time.Duration
	On   On
	Err  error
	Done bool // never again
}

// Run calls look, and again whenever its answer or the Signal asks for it, until it is done or ctx ends.
func (s Signal) Run(ctx context.Context, retry backoff.Policy, look func() Next) {
	delays := backoff.New(retry)
	for {
		next := look()
		if next.Done || ctx.Err() != nil {
			return
		}
		if next.Err != nil {
			next.In = delays.Next()
		} else {
			delays.Reset()
		}
		if s.Wait(ctx, next.In, next.On); ctx.Err() != nil {
			return
		}
	}
}

// Worker is the Signal of one object's loop, and the newest version of the object.
type Worker[T client.Object] struct {
	Signal

	mu      sync.Mutex
	seen    bool
	object  T
	deleted *types.UID // the object that was deleted, or replaced by another one of the same name
}

// New makes the worker of an object of which no version was seen yet.
func New[T client.Object]() *Worker[T] { return &Worker[T]{Signal: NewSignal()} }

// See takes a version of the object, unless a newer one was seen, and wakes the loop. Whoever writes the object may get an answer
// that is older than what a watch has delivered meanwhile.
func (w *Worker[T]) See(o T) {
	w.mu.Lock()
	switch uid := o.GetUID(); {
	case !w.seen:
		w.object, w.seen = o, true
	case uid != w.object.GetUID():
		if !w.isDeleted(uid) {
			w.deleted, w.object = new(w.object.GetUID()), o
		}
	case !kubeclient.Older(o, w.object):
		w.object = o
	}
	w.mu.Unlock()
	w.Wake()
}

// Delete takes note that the object with this UID was deleted, unless another one of the same name was seen.
func (w *Worker[T]) Delete(uid types.UID) {
	w.mu.Lock()
	if !w.seen || w.object.GetUID() == uid {
		w.deleted = &uid
	}
	w.mu.Unlock()
	w.Wake()
}

// Newest returns the newest version that was seen, and whether the object was deleted. The version must not be changed.
func (w *Worker[T]) Newest() (o T, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.object, w.seen && w.isDeleted(w.object.GetUID())
}

func (w *Worker[T]) isDeleted(uid types.UID) bool { return w.deleted != nil && *w.deleted == uid }
