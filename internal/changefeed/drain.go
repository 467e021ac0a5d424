package changefeed

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// Reasons of blockers.
const (
	// BlockedNoNode: there is no node to move to.
	BlockedNoNode = "NoSchedulableNode"
	// BlockedQueue: other maintainers move first.
	BlockedQueue = "AwaitingTurn"
	// BlockedMove: it is moving off the node.
	BlockedMove = "AwaitingMove"
	// BlockedUnacknowledged: the maintainer has not acknowledged the drain.
	BlockedUnacknowledged = "AwaitingMaintainer"
	// BlockedTables: its maintainer is moving the dispatchers.
	BlockedTables = "AwaitingDispatchers"
)

// Tenants are the maintainers and the dispatchers as a drain sees them. Both need the same objects, which are read once, when the
// first is asked.
func Tenants(r client.Reader) []drain.Tenant {
	look := drain.NewLook(r, read)
	return []drain.Tenant{maintainerTenant{look}, dispatcherTenant{look}}
}

// read reads what both need.
func read(ctx context.Context, r client.Reader) (World, error) {
	f, err := fleet.Read(ctx, r)
	if err != nil {
		return World{}, err
	}
	w := World{Fleet: f}
	var list v1alpha1.ChangefeedList
	if err := r.List(ctx, &list); err != nil {
		return w, fmt.Errorf("list changefeeds: %w", err)
	}
	for i := range list.Items {
		w.Changefeeds = append(w.Changefeeds, &list.Items[i])
	}
	return w, nil
}

type maintainerTenant struct{ *drain.Look[World] }

// Work implements drain.Tenant.
func (t maintainerTenant) Work() drain.Work {
	return drain.Work{Name: KindMaintainers, Stage: "MigratingMaintainers", Order: 1, Shown: "maintainers"}
}

// Remaining implements drain.Tenant.
func (t maintainerTenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	w, err := t.Take(ctx)
	if err != nil {
		return drain.Remaining{}, err
	}
	return w.MaintainersOn(node), nil
}

// MaintainersOn are the maintainers that are placed on a node, or have not stopped there yet.
func (w World) MaintainersOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		b := v1alpha1.Blocker{Kind: "Changefeed", Name: nameOf(cf)}
		switch {
		case p.From != nil && p.From.Node == node && !w.gone(p.From):
			b.Reason, b.Remedy = BlockedMove, "its maintainer has not stopped on this node yet"
		case p.Node != node:
			continue
		case w.Over(p.Node, p.NodeEpoch) && !w.Leases[node].Held() && !cf.Wanted():
			continue
		case len(w.SchedulableNodes()) == 0:
			b.Reason, b.Remedy = BlockedNoNode, "no other node is schedulable for its maintainer: start or uncordon one"
		default:
			b.Reason, b.Remedy = BlockedQueue, "its maintainer waits until others have moved; `ebb settings set drain.maintainerBatchSize=N` lets N move at a time"
		}
		left.Count++
		left.By[nameOf(cf)]++
		left.Blockers = append(left.Blockers, b)
	}
	return left
}

type dispatcherTenant struct{ *drain.Look[World] }

// Work implements drain.Tenant.
func (t dispatcherTenant) Work() drain.Work {
	return drain.Work{Name: KindDispatchers, Stage: "MigratingDispatchers", Order: 2, Shown: "dispatchers"}
}

// Remaining implements drain.Tenant.
func (t dispatcherTenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	w, err := t.Take(ctx)
	if err != nil {
		return drain.Remaining{}, err
	}
	return w.DispatchersOn(node), nil
}

// DispatchersOn are the dispatchers on a node, by changefeed. A changefeed whose maintainer has not acknowledged the drain in its
// present epoch counts with at least one: it is not known yet that there is none.
func (w World) DispatchersOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		if !cf.Wanted() || cf.Status.State == v1alpha1.ChangefeedFailed {
			continue // every node stops the dispatchers of such a changefeed itself
		}
		var n int64
		for _, on := range cf.Status.Nodes {
			if on.Node == node {
				n = on.Dispatchers
			}
		}
		if !w.Leases[node].Held() {
			n = 0 // they ended with the node's epoch; the maintainer places them on other nodes
		}
		b := v1alpha1.Blocker{Kind: "Changefeed", Name: nameOf(cf), Reason: BlockedTables, Remedy: "its maintainer is moving its dispatchers to other nodes"}
		acknowledged := w.Slot == nil || cf.Status.ObservedDrain == w.Slot.UID && cf.Status.ObservedEpoch == p.Epoch && p.Phase == v1alpha1.PlacementRunning
		if !acknowledged {
			n = max(n, 1)
			b.Reason, b.Remedy = BlockedUnacknowledged, unacknowledged(p.Node)
		}
		if n == 0 {
			continue
		}
		if len(w.SchedulableNodes()) == 0 {
			b.Reason, b.Remedy = BlockedNoNode, "no other node is schedulable for its dispatchers: start or uncordon one"
		}
		left.Count += n
		left.By[nameOf(cf)] = n
		left.Blockers = append(left.Blockers, b)
	}
	return left
}

// unacknowledged says why it is not known what a changefeed has on the draining node.
func unacknowledged(node string) string {
	if node == "" {
		return "no node runs its maintainer, which has to acknowledge the drain and report the dispatchers on this node"
	}
	return "waiting for its maintainer on node " + node + " to acknowledge the drain and report the dispatchers on this node"
}

// nameOf is the name of a changefeed as people see it: without the default namespace.
func nameOf(cf *v1alpha1.Changefeed) string {
	if cf.Namespace == "default" {
		return cf.Name
	}
	return cf.Namespace + "/" + cf.Name
}
