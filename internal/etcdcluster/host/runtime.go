package host

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/internal/node"
)

// members is the runtime of the processes, which keep running while the lease is in doubt.
type members struct{ *Host }

// Name implements node.Runtime.
func (m members) Name() string { return KindMembers }

// Held counts members that run, start or stop.
func (m members) Held() int { return m.opts.Gate.Count(KindMembers) }

// Run implements node.Runtime.
func (m members) Run(ctx context.Context, _ *node.Epoch) error {
	run := &membersRun{ctx: ctx}
	m.swept.Do(func() {
		if err := m.store.Sweep(); err != nil {
			m.opts.Log.Warn("could not delete unfinished snapshot files", "error", err)
		}
	})
	m.mu.Lock()
	m.run = run
	for _, w := range m.members {
		m.begin(w)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.run = nil
	m.mu.Unlock()
	run.tasks.Wait()
	return nil
}

// begin runs a worker, if the runtime of members does. The caller holds the lock.
func (h *Host) begin(w *memberWorker) {
	run := h.run
	if run == nil {
		return
	}
	run.tasks.Go(func() {
		w.run(run.ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		if w.isFinished() && h.members[w.uid] == w {
			delete(h.members, w.uid)
		}
	})
}

// data is the runtime that follows the objects in one epoch.
type data struct{ *Host }

// Name implements node.Runtime.
func (d data) Name() string { return KindData }

// Held counts the snapshots of which this node has the only copy, those that it is taking, and stopped members that have data here.
func (d data) Held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.working)
	for _, s := range d.snapshots {
		if !d.working[s.UID] && OnlyCopy(s, d.opts.Node) {
			n++
		}
	}
	for _, w := range d.members {
		if w.retains() {
			n++
		}
	}
	return n
}

// Run implements node.Runtime.
func (d data) Run(ctx context.Context, e *node.Epoch) error {
	if ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &epochRun{Host: d.Host, epoch: e, ctx: ctx, workers: map[types.UID]*snapshotWorker{}, heavy: make(chan struct{}, heavyAtOnce), trials: make(chan struct{}, 1)}
	defer r.end(cancel)
	if err := r.watch(ctx); err != nil {
		return err
	}
	if err := r.reconcile(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
