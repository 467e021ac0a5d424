package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// disksEvery is how often the disks are looked at.
	disksEvery = 2 * time.Second
	// dropLimit bounds how long a node that leaves waits until engines elsewhere have let its replicas go.
	dropLimit = 15 * time.Second
)

// replicas is the runtime that follows the objects in one epoch. The replicas themselves are served also while the lease is in doubt.
type replicas struct{ *Host }

// Name implements node.Runtime.
func (r replicas) Name() string { return KindReplicas }

// Held counts the replicas that have to leave before the node may, and those that are being made.
func (r replicas) Held() int { held, _ := r.count(); return held + r.opts.Gate.Count(KindReplicas) }

// Staying counts the replicas that stay on their disks when the node leaves.
func (r replicas) Staying() int { _, staying := r.count(); return staying }

func (h *Host) count() (held, staying int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	epoch := int64(0)
	if h.epoch != nil {
		epoch = h.epoch.epoch.Number
	}
	var mine []*v1alpha1.Replica
	for _, w := range h.replicas {
		mine = append(mine, w.newest())
	}
	return CountReplicas(h.opts.Node, epoch, h.volumes, mine)
}

// epochRun is what the node follows in one epoch.
type epochRun struct {
	*Host
	epoch *node.Epoch
	ctx   context.Context
	tasks sync.WaitGroup
}

// Run implements node.Runtime.
func (r replicas) Run(ctx context.Context, e *node.Epoch) error {
	if ctx.Err() != nil {
		return nil
	}
	run := &epochRun{Host: r.Host, epoch: e, ctx: ctx}
	defer run.end()
	own := &v1alpha1.Node{}
	if err := e.Client.Get(ctx, types.NamespacedName{Name: r.opts.Node}, own); err != nil {
		return err
	}
	r.lookAtDisks(own)
	r.mu.Lock()
	r.epoch = run
	for _, w := range r.replicas {
		run.begin(w)
	}
	r.mu.Unlock()
	run.tasks.Go(func() { run.watchDisks(ctx) })
	err := kubeclient.Follow(ctx, e.Cache, kubeclient.On(r.seeNode, nil), kubeclient.On(r.seeReplica, r.forgetReplica), kubeclient.On(r.seeVolume, r.forgetVolume))
	if err != nil {
		return err
	}
	if err := run.reconcile(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	if liveness, _ := e.Liveness(); liveness == v1alpha1.Stopping {
		run.awaitDropped()
	}
	return nil
}

// end waits until everything of the epoch has ended. Stores stay open.
func (r *epochRun) end() {
	r.mu.Lock()
	if r.Host.epoch == r {
		r.Host.epoch = nil
	}
	r.mu.Unlock()
	r.tasks.Wait()
}

// begin lets a worker follow its replica in this epoch. The caller holds the host's lock.
func (r *epochRun) begin(w *replicaWorker) {
	r.tasks.Go(func() { w.follow(r.ctx, r) })
}

func (r *epochRun) watchDisks(ctx context.Context) {
	for backoff.Sleep(ctx, disksEvery) == nil {
		r.mu.Lock()
		own := r.nodes[r.opts.Node]
		r.mu.Unlock()
		if own == nil {
			continue
		}
		before := r.diskStates()
		r.lookAtDisks(own)
		if err := r.lookForOrphans(ctx, own); err != nil && ctx.Err() == nil {
			r.opts.Log.Warn("volume: orphans", "error", err)
		}
		if after := r.diskStates(); !slices.Equal(before, after) {
			r.mu.Lock()
			for _, w := range r.replicas {
				w.Wake()
			}
			r.mu.Unlock()
		}
	}
}

// diskStates tells whether anything about the disks changed that replicas depend on.
func (h *Host) diskStates() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []string
	for _, d := range h.disks {
		list = append(list, d.Name+" "+d.Path+" "+d.UUID+" "+d.Message)
	}
	slices.Sort(list)
	return list
}

// reconcile forgets what was deleted while this node did not watch.
func (r *epochRun) reconcile(ctx context.Context) error {
	var list v1alpha1.ReplicaList
	if err := r.epoch.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	var volumes v1alpha1.VolumeList
	if err := r.epoch.Cache.List(ctx, &volumes, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		there[list.Items[i].UID] = true
	}
	for i := range volumes.Items {
		there[volumes.Items[i].UID] = true
	}
	r.mu.Lock()
	var goneReplicas []*v1alpha1.Replica
	var goneVolumes []*v1alpha1.Volume
	for uid, o := range r.others {
		if !there[uid] {
			goneReplicas = append(goneReplicas, o)
		}
	}
	for uid, o := range r.volumes {
		if !there[uid] {
			goneVolumes = append(goneVolumes, o)
		}
	}
	r.mu.Unlock()
	for _, o := range goneReplicas {
		r.forgetReplica(o)
	}
	for _, o := range goneVolumes {
		r.forgetVolume(o)
	}
	return nil
}

// awaitDropped waits until engines elsewhere have let the replicas go that were released for the drain of this node.
func (r *epochRun) awaitDropped() {
	ctx, cancel := context.WithTimeout(context.Background(), dropLimit)
	defer cancel()
	for {
		var waiting []string
		r.mu.Lock()
		workers := make([]*replicaWorker, 0, len(r.replicas))
		for _, w := range r.replicas {
			workers = append(workers, w)
		}
		r.mu.Unlock()
		for _, w := range workers {
			o := w.newest()
			v := &v1alpha1.Volume{}
			if err := r.epoch.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Spec.VolumeName}, v); err != nil {
				continue // deleted, or the API is away: engines notice by themselves
			}
			if v.EngineNode() != "" && v.EngineNode() != r.opts.Node && v.ReleaseOf(o.Name) != nil && slices.Contains(v.Status.Members, o.Name) {
				waiting = append(waiting, key(o))
			}
		}
		if len(waiting) == 0 {
			return
		}
		if backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			r.opts.Log.Warn("volume: leaving although engines on other nodes still have replicas of this node as members", "replicas", waiting)
			return
		}
	}
}

func (h *Host) seeNode(n *v1alpha1.Node) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.nodes[n.Name]
	h.nodes[n.Name] = n
	if before == nil || before.Status.Liveness != n.Status.Liveness {
		h.wantAll()
	}
}

// wantAll passes on to all engines what the objects ask for. The caller holds the lock.
func (h *Host) wantAll() {
	for uid, a := range h.attached {
		if v := h.volumes[uid]; v != nil {
			a.setWant(v)
		}
	}
}

func (h *Host) seeReplica(r *v1alpha1.Replica) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.others[r.UID] = r
	if r.Spec.NodeName == h.opts.Node {
		w := h.replicas[r.UID]
		if w == nil {
			w = &replicaWorker{Worker: worker.New[*v1alpha1.Replica](), h: h}
			w.See(r)
			h.replicas[r.UID] = w
			if h.epoch != nil {
				h.epoch.begin(w)
			}
		}
		w.See(r)
	}
	if a, v := h.attached[types.UID(r.Spec.VolumeUID)], h.volumes[types.UID(r.Spec.VolumeUID)]; a != nil && v != nil {
		a.setWant(v)
	}
}

// forgetReplica is for a replica whose object is gone. Its directory, if there is one, is kept as an orphan.
func (h *Host) forgetReplica(r *v1alpha1.Replica) {
	h.mu.Lock()
	delete(h.others, r.UID)
	w := h.replicas[r.UID]
	delete(h.replicas, r.UID)
	h.mu.Unlock()
	if w != nil {
		if err := w.close(); err != nil {
			h.opts.Log.Warn("volume: closing a replica whose object is gone", "replica", key(r), "error", err)
		}
	}
}

func (h *Host) seeVolume(v *v1alpha1.Volume) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if before := h.volumes[v.UID]; before != nil && kubeclient.Older(v, before) {
		return
	}
	h.volumes[v.UID] = v
	h.follow(v)
}

func (h *Host) forgetVolume(v *v1alpha1.Volume) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.volumes, v.UID)
	if a := h.attached[v.UID]; a != nil {
		a.cancel()
	}
}

// engines is the runtime of the engines.
type engines struct{ *Host }

// enginesRun is one run of that runtime.
type enginesRun struct {
	ctx   context.Context
	tasks sync.WaitGroup
}

// Name implements node.Runtime.
func (e engines) Name() string { return KindEngines }

// Held counts the engines that run, start or stop.
func (e engines) Held() int { return e.opts.Gate.Count(KindEngines) }

// Run implements node.Runtime. When it ends, the engines have ended, and then the replicas are closed.
func (e engines) Run(ctx context.Context, _ *node.Epoch) error {
	run := &enginesRun{ctx: ctx}
	e.mu.Lock()
	e.engines = run
	for _, v := range e.volumes {
		e.follow(v)
	}
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.engines = nil
	e.mu.Unlock()
	run.tasks.Wait()
	var all []error
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, w := range e.replicas {
		all = append(all, w.close())
	}
	return errors.Join(all...)
}
