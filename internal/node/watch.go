package node

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// watch begins the epoch's watches: what the coordinator wants of this node, and the leases of all nodes.
func (n *Node) watch(ctx context.Context, e *Epoch) (*group, error) {
	c, err := cache.New(n.opts.Config, cache.Options{
		Scheme: kubeclient.NewScheme(),
		Mapper: kubeclient.NewMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: {Namespaces: map[string]cache.Config{lease.Namespace: {}}},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	e.Cache = c
	g := n.host.start([]string{"watch"}, []func(context.Context) error{c.Start})
	watches := append([]kubeclient.Watch{n.nodeWatch(e)}, e.slotWatches()...)
	return g, kubeclient.Subscribe(ctx, c, append(watches, n.leaseWatch(e))...)
}

// slotWatches watch the drain slot and the drains of this node. They request a check when a drain may no longer want the node drained.
func (e *Epoch) slotWatches() []kubeclient.Watch {
	see := func(d *v1alpha1.Drain) {
		if d.Spec.NodeName == e.Node && !wants(d) {
			e.checkSlot()
		}
	}
	gone := func(d *v1alpha1.Drain) {
		if d.Spec.NodeName == e.Node {
			e.checkSlot()
		}
	}
	return []kubeclient.Watch{kubeclient.On(func(*v1alpha1.Settings) { e.checkSlot() }, nil), kubeclient.On(see, gone)}
}

// watchWanted begins the next epoch when the drain of this one was cancelled or deleted. Without that the node would drain forever,
// and the slot is freed only when this epoch is released or fenced.
func (n *Node) watchWanted(ctx context.Context, e *Epoch) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.recheck:
		}
		_ = n.insist(ctx, "read the drain slot", func(ctx context.Context) error { // it ends with the epoch
			ctx, cancel := context.WithTimeout(ctx, writeTimeout)
			defer cancel()
			slot, wanted, err := readSlot(ctx, n.client, e.Node)
			if err == nil && !wanted && unwanted(e, slot) {
				e.BeginAnew("the drain of this node was cancelled or deleted")
			}
			return err
		})
	}
}

// unwanted reports whether an epoch without a drain has to end: it is Draining, or the slot still names it.
func unwanted(e *Epoch, slot *v1alpha1.ActiveDrain) bool {
	liveness, _ := e.Liveness()
	return liveness == v1alpha1.Draining || liveness == v1alpha1.Alive && slot != nil && slot.NodeEpoch == e.Number
}

// nodeWatch makes the epoch obey what the node's object wants of it.
func (n *Node) nodeWatch(e *Epoch) kubeclient.Watch {
	see := func(node *v1alpha1.Node) {
		if node.Name == e.Node {
			n.cordoned.Store(node.Spec.Cordoned)
			if node.Status.Epoch == e.Number { // what a watch shows of an earlier epoch may be old
				is := func(condition string) bool { return meta.IsStatusConditionTrue(node.Status.Conditions, condition) }
				n.opts.Gate.SetGuarded(is(v1alpha1.NodeNeedsGuard), is(v1alpha1.NodeGuarded))
			}
			if node.Status.Epoch > e.Number { // somebody wrote it there, and this epoch can report nothing any more; the next one is after that
				e.BeginAnew("its Node shows a later epoch")
			}
			e.obey(node.Spec.Desired, n.opts.Gate)
			liveness, _ := e.Liveness()
			n.opts.Metrics.setLiveness(liveness)
		}
	}
	gone := func(node *v1alpha1.Node) {
		if node.Name != e.Node {
			return
		}
		select {
		case e.deleted <- struct{}{}:
		default:
		}
	}
	return kubeclient.On(see, gone)
}

// leaseWatch passes the leases of all nodes to the loss detector, and reports to the epoch if its own was fenced, released or taken.
func (n *Node) leaseWatch(e *Epoch) kubeclient.Watch {
	see := func(l *coordinationv1.Lease) {
		rec, err := lease.Read(l)
		if err != nil {
			return
		}
		e.LossDetector.Saw(rec, n.opts.Clock())
		if rec.Node == e.Node && rec.Epoch >= e.Number && rec.Over(e.Number) {
			e.learn(fmt.Errorf("node %s epoch %d: %w: its holder is %q, its epoch %d, its fenced epoch %d", e.Node, e.Number, lease.ErrNotOurs, rec.Holder, rec.Epoch, rec.Fenced))
		}
	}
	gone := func(l *coordinationv1.Lease) {
		if node, ok := lease.NodeOf(l); ok {
			e.LossDetector.Forget(node)
		}
	}
	return kubeclient.On(see, gone)
}
