package host

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
)

// epochRun is what the node knows and does in one epoch.
type epochRun struct {
	*Host
	epoch  *node.Epoch
	ctx    context.Context
	tasks  sync.WaitGroup
	heavy  chan struct{} // one place for each task that reads or writes a whole file
	trials chan struct{} // one place for a trial that reserves room

	mu      sync.Mutex
	ended   bool
	workers map[types.UID]*snapshotWorker
}

// heavyAtOnce bounds how many snapshots a node reads or writes at a time.
const heavyAtOnce = 2

// watch follows the objects. From here on the member workers know of the epoch.
func (r *epochRun) watch(ctx context.Context) error {
	r.Host.mu.Lock()
	r.Host.running = r
	r.Host.mu.Unlock()
	return kubeclient.Follow(ctx, r.epoch.Cache, kubeclient.On(r.seeMember, r.forgetMember), kubeclient.On(r.seeSnapshot, r.forgetSnapshot))
}

// end waits until everything of the epoch has ended. Members keep running.
func (r *epochRun) end(cancel func()) {
	cancel()
	r.Host.mu.Lock()
	if r.Host.running == r {
		r.Host.running = nil
	}
	r.Host.mu.Unlock()
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.tasks.Wait()
}

// reconcile ends the workers of members that were deleted while this node did not watch, and begins to look for data that no object knows.
func (r *epochRun) reconcile(ctx context.Context) error {
	var members v1alpha1.EtcdMemberList
	if err := r.epoch.Cache.List(ctx, &members, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range members.Items {
		there[members.Items[i].UID] = true
	}
	r.Host.mu.Lock()
	workers := slices.Collect(maps.Values(r.members))
	r.Host.mu.Unlock()
	for _, w := range workers {
		if !there[w.uid] {
			w.Delete(w.uid)
		}
	}
	r.tasks.Go(func() { r.watchOrphans(ctx) })
	return nil
}

func (r *epochRun) seeMember(m *v1alpha1.EtcdMember) {
	if m.Spec.Node != r.opts.Node {
		return
	}
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	if r.Host.running != r {
		return
	}
	w := r.members[m.UID]
	if w == nil {
		w = newMemberWorker(r.Host, m)
		r.members[m.UID] = w
		r.begin(w)
	}
	w.See(m)
	w.publishes.Wake()
}

func (r *epochRun) forgetMember(m *v1alpha1.EtcdMember) {
	r.Host.mu.Lock()
	w := r.members[m.UID]
	current := r.Host.running == r
	r.Host.mu.Unlock()
	if w != nil && current {
		w.Delete(w.uid)
	}
}

// current returns the epoch in which the node may start, seal and delete; nil while its lease is in doubt.
func (h *Host) current() *epochRun {
	h.mu.Lock()
	r := h.running
	h.mu.Unlock()
	if r == nil || r.ctx.Err() != nil || !r.epoch.Holding() {
		return nil
	}
	return r
}

// update changes an object's status while the lease is held. It begins with the object as it was last seen: if that is old, the API
// refuses the write; if it needs no change, a newer version is on its way.
func update[T any, P interface {
	*T
	client.Object
}](ctx context.Context, r *epochRun, seen P, change func(P) bool) error {
	ctx, cancel := context.WithTimeout(ctx, nodeWriteLimit)
	defer cancel()
	return kubeclient.ChangeStatus(ctx, r.epoch.Client, seen, func(o P) (bool, error) {
		if !change(o) {
			return false, nil
		}
		return true, r.epoch.Check()
	})
}
