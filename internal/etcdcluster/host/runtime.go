package host

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/node"
)

// members keeps the processes running, whatever becomes of the lease.
type members struct{ *Host }

// Name implements node.Runtime.
func (m members) Name() string { return etcdcluster.KindMembers }

// Held counts members that run, start or stop.
func (m members) Held() int { return m.opts.Gate.Count(etcdcluster.KindMembers) }

// Run implements node.Runtime.
func (m members) Run(ctx context.Context) error {
	run := &membersRun{ctx: ctx}
	m.swept.Do(func() {
		if err := m.store.Sweep(); err != nil {
			m.opts.Log.Warn("what was left of unfinished snapshots is still there", "error", err)
		}
	})
	m.mu.Lock()
	m.run = run
	for _, k := range m.keepers {
		m.begin(k)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.run = nil
	m.mu.Unlock()
	run.live.Wait()
	return nil
}

// begin lets a keeper work, if members run at all. It is called with the lock.
func (h *Host) begin(k *keeper) {
	run := h.run
	if run == nil {
		return
	}
	run.live.Go(func() {
		k.live(run.ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		if k.over() && h.keepers[k.uid] == k {
			delete(h.keepers, k.uid)
		}
	})
}

// data follows the objects of one epoch.
type data struct{ *Host }

// Name implements node.Runtime.
func (d data) Name() string { return etcdcluster.KindData }

// Held counts snapshots of which this node has the only copy, those that are being taken here, and the data of members that are stopped.
func (d data) Held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.working)
	for _, s := range d.snapshots {
		if !d.working[s.UID] && etcdcluster.OnlyCopy(s, d.opts.Node) {
			n++
		}
	}
	for _, k := range d.keepers {
		if k.retains() {
			n++
		}
	}
	return n
}

// Run implements node.Runtime.
func (d data) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &era{Host: d.Host, e: node.EpochFrom(ctx), ctx: ctx, curators: map[types.UID]*curator{}, heavy: make(chan struct{}, heavyAtOnce)}
	defer a.end(cancel)
	if err := a.watch(ctx); err != nil {
		return err
	}
	if err := a.reconcile(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
