package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kind"
)

// Reasons of blockers.
const (
	// BlockedNowhere: no other node may claim the deployment.
	BlockedNowhere = "NoEligibleNode"
	// BlockedUnclaimed: no other node has claimed it yet.
	BlockedUnclaimed = "AwaitingClaim"
	// BlockedPinned: it is pinned to the node.
	BlockedPinned = "Pinned"
	// BlockedRunning: its namespace has the mode AllowCompletion, and its program has not ended.
	BlockedRunning = "RunsToCompletion"
	// BlockedStopping: it was claimed elsewhere and is being stopped here.
	BlockedStopping = "AwaitingStop"
)

// placedBy are the fields that place a deployment on a node. The API server can select by them, and the coordinator's cache indexes them.
var placedBy = map[string]func(*v1alpha1.Deployment) string{
	"spec.address":       func(d *v1alpha1.Deployment) string { return d.Spec.Address },
	"status.holder.node": func(d *v1alpha1.Deployment) string { return d.Holder().Node },
}

// Tenant reports deployments to drains. Daemons stay until the node stops and are not reported.
type Tenant struct {
	Reader client.Reader
	// Completes is the field of World.
	Completes func(namespace string) bool
}

// Work implements drain.Tenant.
func (t Tenant) Work() drain.Work { return drain.Work{Name: Name} }

// Remaining returns the deployments that should or may run on a node.
func (t Tenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	found := map[types.UID]*v1alpha1.Deployment{}
	for field := range placedBy {
		var list v1alpha1.DeploymentList
		if err := t.Reader.List(ctx, &list, client.MatchingFields{field: node}); err != nil {
			return drain.Remaining{}, fmt.Errorf("list deployments by %s: %w", field, err)
		}
		for i := range list.Items {
			found[list.Items[i].UID] = &list.Items[i]
		}
	}
	w, err := ReadWorld(ctx, t.Reader)
	if err != nil {
		return drain.Remaining{}, err
	}
	w.Completes = t.Completes
	left := w.Left(found, node)
	if !w.Live(node) {
		left.Loose, err = t.loose(ctx, node)
	}
	return left, err
}

// loose names the programs that may still run on a lost node.
func (t Tenant) loose(ctx context.Context, node string) (string, error) {
	var list v1alpha1.DeploymentList
	if err := t.Reader.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list deployments: %w", err)
	}
	var names []string
	for i := range list.Items {
		d := &list.Items[i]
		// The coordinator may not have written it down yet.
		if slices.Contains(d.Status.MayRunOn, node) || d.Instance(node) != nil && d.Spec.GoesOn() || goesOn(d.Instance(node)) {
			names = append(names, kind.NameIn(d.Namespace, d.Name))
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	slices.Sort(names)
	more := ""
	if len(names) > maxNamed {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", len(names)-maxNamed)
	}
	return fmt.Sprintf("Programs that continue without a lease may still run there: %s%s.", strings.Join(names, ", "), more), nil
}

// Left counts the deployments that are left on a node, with a blocker for each.
func (w World) Left(deployments map[types.UID]*v1alpha1.Deployment, node string) drain.Remaining {
	var left drain.Remaining
	for _, d := range deployments {
		held := d.Holder().Node == node
		should := d.Spec.Type == v1alpha1.TypeDeployment && d.IsEnabled() && d.Spec.Address == node
		if !should && !(held && w.Live(node)) {
			continue
		}
		left.Count++
		left.Blockers = append(left.Blockers, w.blocker(d, node))
	}
	return left
}

func (w World) blocker(d *v1alpha1.Deployment, node string) v1alpha1.Blocker {
	b := v1alpha1.Blocker{Kind: "Deployment", Name: d.Name}
	if d.Namespace != defaultNamespace {
		b.Name = d.Namespace + "/" + d.Name
	}
	if d.Spec.Address != node || !d.IsEnabled() {
		b.Reason = BlockedStopping
		b.Remedy = fmt.Sprintf("node %s is stopping it; it is killed if it has not exited %s after SIGTERM", node, Grace(d.Spec.Stop))
		return b
	}
	if d.Spec.Pinned {
		b.Reason, b.Remedy = BlockedPinned, fmt.Sprintf("it is pinned to node %s: set spec.pinned to false so that another node may claim it, change its address, or disable it", node)
		return b
	}
	if w.completing(d) {
		b.Reason = BlockedRunning
		b.Remedy = fmt.Sprintf("its program runs until it ends by itself: namespace %s has the mode AllowCompletion. Wait for it, disable the deployment, or give the namespace another mode (docs/pods.md)", d.Namespace)
		return b
	}
	if why := w.Nowhere(d, node); why != "" {
		b.Reason = BlockedNowhere
		b.Remedy = nowhere(d, why) + " Make a node eligible (its labels, `ebb uncordon`, its claim policy or its trusted commands), or disable the deployment"
		return b
	}
	b.Reason, b.Remedy = BlockedUnclaimed, "waiting for another node to claim it"
	return b
}

const defaultNamespace = "default"
