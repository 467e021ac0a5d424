package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

// A node that the drain slot names cannot become coordinator, whether it is Draining already or does not know of its drain
// yet, with one exception: when every other node is lost, no node is left to finish its drain or to take its work. Then it
// takes part in the election as survivor. As such it fences the other nodes, cancels its drain, and begins a new epoch, Alive; the
// coordinator that it becomes in the new epoch frees the slot.

// others returns the held leases of all other nodes, read live. It fails if one cannot be read: its node may be alive.
func others(ctx context.Context, r client.Reader, self string) ([]coordinationv1.Lease, error) {
	var leases coordinationv1.LeaseList
	if err := r.List(ctx, &leases, client.InNamespace(lease.Namespace)); err != nil {
		return nil, err
	}
	var held []coordinationv1.Lease
	for _, l := range leases.Items {
		if node, ok := lease.NodeOf(&l); !ok || node == self {
			continue // the election's, or our own
		}
		rec, err := lease.Read(&l)
		if err != nil {
			return nil, err
		}
		if rec.Held() {
			held = append(held, l)
		}
	}
	return held, nil
}

// readAlone reads live whether this node drains, or is named by the drain slot, and every other node has left or is lost.
func (c *Campaign) readAlone(ctx context.Context, e *node.Epoch) error {
	liveness, _ := e.Liveness()
	if liveness == v1alpha1.Stopping {
		return fmt.Errorf("node %s is %s", e.Node, liveness)
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timing.Timeout)
	defer cancel()
	if liveness == v1alpha1.Alive {
		switch slot, err := node.DrainedBy(ctx, e.Client, e.Node); {
		case err != nil:
			return err
		case slot == nil:
			return fmt.Errorf("node %s is %s and is not being drained", e.Node, liveness)
		}
	}
	held, err := others(ctx, e.Client, e.Node)
	if err != nil {
		return err
	}
	lost := e.LossDetector.Lost(e.Now())
	for i := range held {
		rec, err := lease.Read(&held[i])
		if err != nil || !slices.Contains(lost, rec) {
			return fmt.Errorf("node %s may be alive", rec.Node)
		}
	}
	if !e.Holding() {
		return fmt.Errorf("node %s: %w", e.Node, fleet.ErrLeaseInDoubt)
	}
	return nil
}

// survive is the work of a survivor's term.
func (c *Campaign) survive(t *Term) error {
	ctx, cancel := context.WithTimeout(t.ctx, c.opts.Timing.Fence)
	defer cancel()
	defer t.end(ErrTermOver)
	cl, err := kubeclient.New(t.bind(c.opts.Config))
	if err != nil {
		return err
	}
	if err := t.begin(ctx, cl); err != nil {
		return err
	}
	if err := markAll(ctx, cl, t); err != nil {
		return err
	}
	// Read live once more: a node that has come back takes over, and the drain continues.
	if held, err := others(ctx, cl, t.Epoch.Node); err != nil || len(held) > 0 {
		return err
	}
	if err := t.checkTerm(ctx, cl); err != nil {
		return err
	}
	if err := cancelDrain(ctx, cl, t); err != nil {
		return err
	}
	t.Log.Warn("every other node is lost; cancelled the drain of this node", "epoch", t.Epoch.Number)
	t.Epoch.BeginAnew("every other node is lost")
	return nil
}

// markAll fences every other node that the loss detector nominates.
func markAll(ctx context.Context, cl client.Client, t *Term) error {
	held, err := others(ctx, cl, t.Epoch.Node)
	if err != nil {
		return err
	}
	lost := t.Epoch.LossDetector.Lost(t.Epoch.Now())
	for i := range held {
		rec, err := lease.Read(&held[i])
		if err != nil || !slices.Contains(lost, rec) {
			return err // it has renewed its lease: this node is not alone
		}
		marked, err := lease.Fence(&held[i], rec)
		if err != nil {
			return err
		}
		if err := t.checkTerm(ctx, cl); err != nil {
			return err
		}
		if err := cl.Update(ctx, marked); err != nil {
			return err
		}
		t.Log.Warn("node is lost; fenced its epoch", "target", rec.Node, "epoch", rec.Epoch)
	}
	return nil
}

// cancelDrain cancels the drain of this node. A drain that had failed stays Failed and releases the node.
func cancelDrain(ctx context.Context, cl client.Client, t *Term) error {
	settings := &v1alpha1.Settings{}
	if err := cl.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return err
	}
	slot := settings.Status.ActiveDrain
	if slot == nil || slot.Node != t.Epoch.Node {
		return nil
	}
	d := &v1alpha1.Drain{}
	err := cl.Get(ctx, types.NamespacedName{Name: slot.Name}, d)
	if err != nil && !kubeclient.IsMissing(err) {
		return err
	}
	if err != nil || string(d.UID) != slot.UID {
		return nil // the drain was deleted
	}
	message := fmt.Sprintf("Every other node is lost: node %s takes work again in a new epoch.", t.Epoch.Node)
	switch d.Status.Phase {
	case v1alpha1.DrainComplete, v1alpha1.DrainCancelled:
		return nil
	case v1alpha1.DrainFailed:
		meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
			Type: v1alpha1.DrainReleased, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLoneSurvivor, Message: message, ObservedGeneration: d.Generation,
		})
		return cl.Status().Update(ctx, d)
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	d.Status.Phase, d.Status.FinishedAt = v1alpha1.DrainCancelled, &now
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLoneSurvivor, ObservedGeneration: d.Generation, Message: message,
	})
	return cl.Status().Update(ctx, d)
}
