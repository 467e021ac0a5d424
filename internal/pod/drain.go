package pod

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// Tenant lets a drain that has the slot wait for the pods of its node. What is counted is in Drain.status.pods: nothing knows all pods.
type Tenant struct{ Reader client.Reader }

// Work implements drain.Tenant.
func (Tenant) Work() drain.Work { return drain.Work{Name: Name, One: "pod", Many: "pods"} }

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
	d := &v1alpha1.Drain{}
	if err := t.Reader.Get(ctx, types.NamespacedName{Name: slot.Name}, d); err != nil {
		if kubeclient.IsMissing(err) {
			err = nil
		}
		return drain.Remaining{}, err
	}
	if string(d.UID) != slot.UID || !d.WantsPods() {
		return drain.Remaining{}, nil
	}
	if err := t.Reader.Get(ctx, types.NamespacedName{Name: node}, &corev1.Node{}); err != nil {
		if kubeclient.IsMissing(err) {
			err = nil // without a core Node there are no pods
		}
		return drain.Remaining{}, err
	}
	return remaining(d), nil
}

// remaining is what is left of the pods of a drain.
func remaining(d *v1alpha1.Drain) drain.Remaining {
	st := d.Status.Pods
	switch {
	case st != nil && st.StartedAt == nil && len(st.Blockers) > 0:
		return drain.Remaining{Count: 1, Blockers: drainBlockers(st.Blockers)}
	case st == nil || st.StartedAt == nil:
		return drain.Remaining{Count: 1, Blockers: []v1alpha1.Blocker{{
			Kind: "Node", Name: d.Spec.NodeName, Reason: WaitsList,
			Remedy: fmt.Sprintf("the coordinator lists the pods of node %s when it is cordoned; if this lasts, check its log", d.Spec.NodeName),
		}}}
	case st.FinishedAt != nil:
		return drain.Remaining{}
	}
	return drain.Remaining{Count: max(1, st.Remaining), Blockers: drainBlockers(st.Blockers)}
}
