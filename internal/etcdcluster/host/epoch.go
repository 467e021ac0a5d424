package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/node"
)

// era is what the node knows and does in one epoch.
type era struct {
	*Host
	e     *node.Epoch
	ctx   context.Context
	live  sync.WaitGroup
	heavy chan struct{} // one place for each piece of work that reads whole files

	mu       sync.Mutex
	ended    bool
	curators map[types.UID]*curator
}

// heavyAtOnce bounds how many snapshots a node reads or writes at a time.
const heavyAtOnce = 2

// watch follows the objects. From here on the keepers know of the epoch.
func (a *era) watch(ctx context.Context) error {
	a.Host.mu.Lock()
	a.Host.era = a
	a.Host.mu.Unlock()
	handlers := []struct {
		object client.Object
		on     toolscache.ResourceEventHandler
	}{
		{&v1alpha1.EtcdMember{}, node.News(a.seeMember, a.forgetMember)},
		{&v1alpha1.EtcdSnapshot{}, node.News(a.seeSnapshot, a.forgetSnapshot)},
	}
	for _, h := range handlers {
		informer, err := a.e.Cache.GetInformer(ctx, h.object)
		if err != nil {
			return fmt.Errorf("watch %T: %w", h.object, err)
		}
		registration, err := informer.AddEventHandler(h.on)
		if err != nil {
			return fmt.Errorf("watch %T: %w", h.object, err)
		}
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return ctx.Err()
		}
	}
	return nil
}

// end waits until everything of the epoch has ended. Members go on.
func (a *era) end(cancel func()) {
	cancel()
	a.Host.mu.Lock()
	if a.Host.era == a {
		a.Host.era = nil
	}
	a.Host.mu.Unlock()
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.live.Wait()
}

// reconcile forgets what went while this node was not there to see it, and deletes files that belong to nothing.
func (a *era) reconcile(ctx context.Context) error {
	var members v1alpha1.EtcdMemberList
	if err := a.e.Cache.List(ctx, &members, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range members.Items {
		there[members.Items[i].UID] = true
	}
	a.Host.mu.Lock()
	keepers := slices.Collect(maps.Values(a.keepers))
	a.Host.mu.Unlock()
	for _, k := range keepers {
		if !there[k.uid] {
			k.forget()
		}
	}
	a.live.Go(func() {
		if err := a.sweep(ctx); err != nil && ctx.Err() == nil {
			a.opts.Log.Warn("snapshots that belong to nothing are still there", "error", err)
		}
	})
	return nil
}

func (a *era) seeMember(m *v1alpha1.EtcdMember) {
	if m.Spec.Node != a.opts.Node {
		return
	}
	a.Host.mu.Lock()
	defer a.Host.mu.Unlock()
	if a.Host.era != a {
		return
	}
	k := a.keepers[m.UID]
	if k == nil {
		k = newKeeper(a.Host, m)
		a.keepers[m.UID] = k
		a.begin(k)
	}
	k.see(m)
}

func (a *era) forgetMember(m *v1alpha1.EtcdMember) {
	a.Host.mu.Lock()
	k := a.keepers[m.UID]
	current := a.Host.era == a
	a.Host.mu.Unlock()
	if k != nil && current {
		k.forget()
	}
}

// current is the epoch in which the node may start, seal and delete; nil while that is in doubt.
func (h *Host) current() *era {
	h.mu.Lock()
	a := h.era
	h.mu.Unlock()
	if a == nil || a.ctx.Err() != nil || !a.e.Holding() {
		return nil
	}
	return a
}

// errNodeInDoubt: the node's lease is in doubt, and nothing is written.
var errNodeInDoubt = errors.New("the node's lease is in doubt")

// update changes an object's status by compare-and-swap until it is as it should be, or change says that there is nothing to do. The first try rests
// on the object as it was last seen: where that is old the write is refused, and where it needs no change news will follow.
func update[T client.Object](ctx context.Context, a *era, seen T, fresh func() T, change func(T) bool) error {
	ctx, cancel := context.WithTimeout(ctx, nodeWriteLimit)
	defer cancel()
	uid, key := seen.GetUID(), client.ObjectKeyFromObject(seen)
	for object := seen; ; {
		if !change(object) {
			return nil
		}
		if !a.e.Holding() {
			return errNodeInDoubt
		}
		if err := a.e.Client.Status().Update(ctx, object); !apierrors.IsConflict(err) {
			return err
		}
		object = fresh()
		if err := a.e.Client.Get(ctx, key, object); err != nil {
			return err
		}
		if object.GetUID() != uid {
			return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("objects").GroupResource(), key.Name)
		}
	}
}
