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
	// BlockedMove: a move off the node is under way.
	BlockedMove = "AwaitingMove"
	// BlockedUnheard: the maintainer has not said yet that it knows of the drain.
	BlockedUnheard = "AwaitingMaintainer"
	// BlockedTables: its maintainer moves the dispatchers.
	BlockedTables = "AwaitingDispatchers"
)

// Tenants are the maintainers and the dispatchers as a drain sees them, at the time when it first asks: both rest on the same,
// which is read once.
func Tenants(r client.Reader) []drain.Tenant {
	look := drain.NewLook(r, read)
	return []drain.Tenant{maintainerTenant{look}, dispatcherTenant{look}}
}

// read reads what both kinds rest on.
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

// MaintainersOn is which maintainers are on a node, or have yet to stop there.
func (w World) MaintainersOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		b := v1alpha1.Blocker{Kind: "Changefeed", Name: nameOf(cf)}
		switch {
		case p.From != nil && p.From.Node == node && !w.gone(p.From):
			b.Reason, b.Remedy = BlockedMove, "its maintainer is stopping here"
		case p.Node != node:
			continue
		case w.Over(p.Node, p.NodeEpoch) && !w.Leases[node].Held() && !cf.Wanted():
			continue
		case len(w.SchedulableNodes()) == 0:
			b.Reason, b.Remedy = BlockedNoNode, "no other node may take its maintainer: start or uncordon one"
		default:
			b.Reason, b.Remedy = BlockedQueue, "its maintainer moves when others have; `ebb settings set drain.maintainerBatchSize=N` lets more move at once"
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

// DispatchersOn is which dispatchers are on a node, by changefeed. One whose maintainer has not acknowledged the drain in its
// present epoch counts as one at least: nobody knows yet that there is none.
func (w World) DispatchersOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		if !cf.Wanted() || cf.Status.State == v1alpha1.ChangefeedFailed {
			continue // each node stops its own
		}
		var n int64
		for _, on := range cf.Status.Nodes {
			if on.Node == node {
				n = on.Dispatchers
			}
		}
		if !w.Leases[node].Held() {
			n = 0 // they ended with the node; its maintainer places them anew
		}
		b := v1alpha1.Blocker{Kind: "Changefeed", Name: nameOf(cf), Reason: BlockedTables, Remedy: "its maintainer moves its dispatchers to other nodes"}
		heard := w.Slot == nil || cf.Status.ObservedDrain == w.Slot.UID && cf.Status.ObservedEpoch == p.Epoch && p.Phase == v1alpha1.PlacementRunning
		if !heard {
			n = max(n, 1)
			b.Reason, b.Remedy = BlockedUnheard, "its maintainer, on "+orNobody(p.Node)+", has not said yet what it has here since the drain began"
		}
		if n == 0 {
			continue
		}
		if len(w.SchedulableNodes()) == 0 {
			b.Reason, b.Remedy = BlockedNoNode, "no other node may take its dispatchers: start or uncordon one"
		}
		left.Count += n
		left.By[nameOf(cf)] = n
		left.Blockers = append(left.Blockers, b)
	}
	return left
}

func orNobody(node string) string {
	if node == "" {
		return "no node"
	}
	return node
}

// nameOf is how people call a changefeed.
func nameOf(cf *v1alpha1.Changefeed) string {
	if cf.Namespace == "default" {
		return cf.Name
	}
	return cf.Namespace + "/" + cf.Name
}
