package health

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// TenantName is the name under which drains count custom drains.
const TenantName = "customdrains"

// Tenant lets a drain that a person requested wait for the other scheduler. Drains of health events do not: they hold the slot only for
// Ebb's own work.
type Tenant struct{ Reader client.Reader }

// Work implements drain.Tenant.
func (Tenant) Work() drain.Work {
	return drain.Work{Name: TenantName, One: "custom drain", Many: "custom drains"}
}

// Remaining implements drain.Tenant.
func (t Tenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	settings := &v1alpha1.Settings{}
	if err := t.Reader.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return drain.Remaining{}, err
	}
	slot := settings.Status.ActiveDrain
	if slot == nil || slot.Node != node {
		return drain.Remaining{}, nil
	}
	d, e := &v1alpha1.Drain{}, &v1alpha1.HealthEvent{}
	if err := t.Reader.Get(ctx, types.NamespacedName{Name: slot.Name}, d); err != nil {
		if kubeclient.IsMissing(err) {
			return drain.Remaining{}, nil
		}
		return drain.Remaining{}, err
	}
	if !asksOther(d) || string(d.UID) != slot.UID {
		return drain.Remaining{}, nil
	}
	err := t.Reader.Get(ctx, types.NamespacedName{Name: "manual-" + slot.UID}, e)
	if err != nil && !kubeclient.IsMissing(err) {
		return drain.Remaining{}, err
	}
	if b := blockerOf(d, e, err == nil); b != nil {
		return drain.Remaining{Count: 1, Blockers: []v1alpha1.Blocker{*b}}, nil
	}
	return drain.Remaining{}, nil
}

// blockerOf is what a drain waits for, or nil when the other scheduler has drained the node.
func blockerOf(d *v1alpha1.Drain, e *v1alpha1.HealthEvent, found bool) *v1alpha1.Blocker {
	name := "manual-" + string(d.UID)
	cr := e.Status.CustomResource
	switch {
	case !found || cr == nil:
		return &v1alpha1.Blocker{Kind: "HealthEvent", Name: name, Reason: "CustomDrainStarting", Remedy: "the coordinator creates the custom resource; if this lasts, check its log"}
	case cr.Outcome == v1alpha1.ResourceComplete:
		return nil
	case eviction(e) == v1alpha1.EvictionFailed:
		return &v1alpha1.Blocker{Kind: cr.Kind, Name: cr.Name, Reason: "CustomDrainFailed", Remedy: fmt.Sprintf("%s Or cancel the drain with `ebb drain %s --cancel`.", e.Status.UserPodsEvictionStatus.Message, d.Spec.NodeName)}
	}
	return &v1alpha1.Blocker{Kind: cr.Kind, Name: cr.Name, Reason: reasonOf(e), Remedy: fmt.Sprintf("`ebb events show %s` shows what it waits for", e.Name)}
}
