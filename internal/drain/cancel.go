package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// Errors of a cancellation.
var (
	// ErrNotDraining: there is no drain of the node to cancel.
	ErrNotDraining = errors.New("no drain to cancel")
	// ErrTooLate: the drain is Stopping or has ended.
	ErrTooLate = errors.New("too late to cancel")
	// ErrCancelPending: the cancellation is requested, and no coordinator has acted on it yet.
	ErrCancelPending = errors.New("the cancellation is requested; waiting for the coordinator to carry it out")
)

// Cancel requests the cancellation of a node's drain, and waits until the drain has ended. It cancels the drain that holds the slot, or
// else the first one that waits for it.
func Cancel(ctx context.Context, c client.Client, node string) (*v1alpha1.Drain, error) {
	if v1alpha1.ValidateNodeName(node) != nil {
		return nil, ErrCaptureNotFound
	}
	d, err := requestCancel(ctx, c, node)
	if err != nil {
		return nil, err
	}
	for {
		current := &v1alpha1.Drain{}
		switch err := c.Get(ctx, client.ObjectKeyFromObject(d), current); {
		case kubeclient.IsMissing(err) || err == nil && current.UID != d.UID:
			return d, nil // it has ended and was deleted
		case err == nil && current.Status.Phase == v1alpha1.DrainCancelled, err == nil && meta.IsStatusConditionTrue(current.Status.Conditions, v1alpha1.DrainReleased):
			return current, nil
		case err == nil:
			if err := cancellable(ctx, c, current); err != nil && ctx.Err() == nil {
				return nil, err
			}
		case ctx.Err() == nil:
			return nil, fmt.Errorf("read Drain %s: %w", d.Name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("drain %s of node %s: %w", d.Name, node, ErrCancelPending)
		case <-time.After(decisionPoll):
		}
	}
}

// requestCancel sets spec.cancelled on the drain of the node, and tries again if the object has changed.
func requestCancel(ctx context.Context, c client.Client, node string) (*v1alpha1.Drain, error) {
	for {
		d, err := findActive(ctx, c, node)
		if err != nil {
			return nil, err
		}
		if err := cancellable(ctx, c, d); err != nil {
			return nil, err
		}
		if cancelRequested(d) {
			return d, nil
		}
		d.Spec.Cancelled = true
		if err = c.Update(ctx, d); err == nil {
			return d, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			return nil, fmt.Errorf("cancel Drain %s: %w", d.Name, err)
		}
		if apierrors.IsInvalid(err) { // it is Stopping by now, as the next read shows
			if current, again := findActive(ctx, c, node); again != nil || tooLate(current) == nil {
				return nil, fmt.Errorf("cancel Drain %s: %w", d.Name, err)
			}
		}
	}
}

// findActive returns the drain of a node that holds the slot, or else the first one that has not ended.
func findActive(ctx context.Context, r client.Reader, node string) (*v1alpha1.Drain, error) {
	known := r.Get(ctx, types.NamespacedName{Name: node}, &v1alpha1.Node{})
	if known != nil && !kubeclient.IsMissing(known) {
		return nil, known
	}
	settings := &v1alpha1.Settings{}
	if err := r.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return nil, fmt.Errorf("read Settings: %w", err)
	}
	var list v1alpha1.DrainList
	if err := r.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list drains: %w", err)
	}
	var drains []*v1alpha1.Drain
	for i := range list.Items {
		drains = append(drains, &list.Items[i])
	}
	if _, holder := (World{Settings: settings, Drains: drains}).Slot(); holder != nil && holder.Spec.NodeName == node {
		return holder, nil
	}
	for _, d := range inOrder(drains) {
		if d.Spec.NodeName == node && !d.Status.Phase.Final() {
			return d, nil
		}
	}
	if known != nil {
		return nil, ErrCaptureNotFound // on Kubernetes a node without a Node of Ebb may have had a drain of its pods
	}
	return nil, fmt.Errorf("%w: node %s is not being drained", ErrNotDraining, node)
}

// cancellable returns why a drain can no longer be cancelled, if that is so. Of a failed drain only the slot and the node tell: it is cancelled
// by releasing its node, which a coordinator does before it frees the slot, and does not do to a node that was ordered to stop.
func cancellable(ctx context.Context, r client.Reader, d *v1alpha1.Drain) error {
	if err := tooLate(d); err != nil || d.Status.Phase != v1alpha1.DrainFailed {
		return err
	}
	settings, node, now := &v1alpha1.Settings{}, &v1alpha1.Node{}, &v1alpha1.Drain{}
	if err := r.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return fmt.Errorf("read Settings: %w", err)
	}
	if err := r.Get(ctx, types.NamespacedName{Name: d.Spec.NodeName}, node); err != nil && !kubeclient.IsMissing(err) {
		return fmt.Errorf("read Node %s: %w", d.Spec.NodeName, err)
	}
	// Read last: if the node was released before the slot was freed, the drain shows it.
	if err := r.Get(ctx, client.ObjectKeyFromObject(d), now); kubeclient.IsMissing(err) || err == nil && (now.UID != d.UID || released(now)) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read Drain %s: %w", d.Name, err)
	}
	slot := settings.Status.ActiveDrain
	w := World{Settings: settings, Fleet: fleet.Fleet{Nodes: map[string]*v1alpha1.Node{d.Spec.NodeName: node}}}
	switch {
	case slot == nil || slot.UID != string(d.UID):
		return fmt.Errorf("%w: drain %s has ended: it is %s. `ebb explain %s` shows the state of the node", ErrTooLate, d.Name, d.Status.Phase, d.Spec.NodeName)
	case w.orderedToStop(slot):
		return fmt.Errorf("%w: drain %s is %s: node %s was asked to stop and is shutting down; start it again to bring it back", ErrTooLate, d.Name, d.Status.Phase, d.Spec.NodeName)
	}
	return nil
}

// tooLate returns why a drain can no longer be cancelled, if its phase tells.
func tooLate(d *v1alpha1.Drain) error {
	switch d.Status.Phase {
	case v1alpha1.DrainStopping:
		return fmt.Errorf("%w: drain %s is Stopping: node %s is empty and is shutting down; start it again to bring it back", ErrTooLate, d.Name, d.Spec.NodeName)
	case v1alpha1.DrainComplete:
		return fmt.Errorf("%w: drain %s is Complete: node %s has left; start it again to bring it back", ErrTooLate, d.Name, d.Spec.NodeName)
	}
	return nil
}
