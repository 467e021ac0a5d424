package volume

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// errChanged: an object that a decision was based on has changed.
var errChanged = errors.New("the object has changed since the coordinator read it")

// takeActions takes the actions. It stops at the first that fails: everything is planned anew.
func (c *Controller) takeActions(ctx context.Context, w World, acts []Action) error {
	for _, a := range acts {
		c.atStep("before-volume-" + string(a.Do))
		if err := c.execute(ctx, w, a); err != nil {
			return fmt.Errorf("volume %s: %s: %w", w.name(), a.Do, err)
		}
		c.atStep("after-volume-" + string(a.Do))
		if a.Do == RecordReplica {
			continue
		}
		args := []any{"volume", client.ObjectKeyFromObject(w.Volume).String(), "action", a.Do}
		if a.Replica != nil {
			args = append(args, "replica", a.Replica.Name, "node", a.Replica.Spec.NodeName, "disk", a.Replica.Spec.Disk)
		}
		if a.Do == SetEviction {
			args = append(args, "evictionRequested", a.Eviction.Requested, "reason", a.Eviction.Event)
		}
		c.Log.Info("volume: action taken", args...)
	}
	return nil
}

func (c *Controller) execute(ctx context.Context, w World, a Action) error {
	switch a.Do {
	case HoldVolume:
		next := w.Volume.DeepCopy()
		controllerutil.AddFinalizer(next, v1alpha1.VolumeFinalizer)
		return c.client.Update(ctx, next)
	case CreateReplica:
		return c.client.Create(ctx, a.Replica)
	case SetEviction:
		return c.setEviction(ctx, a)
	case RecordReplica:
		return c.recordReplica(ctx, a.Replica)
	case DeleteReplica:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		return client.IgnoreNotFound(c.client.Delete(ctx, a.Replica, client.Preconditions{UID: &a.Replica.UID}))
	case ForgetReplica:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		return c.forgetReplica(ctx, a.Replica)
	case ForgetVolume:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		next := w.Volume.DeepCopy()
		controllerutil.RemoveFinalizer(next, v1alpha1.VolumeFinalizer)
		return client.IgnoreNotFound(c.client.Update(ctx, next))
	}
	return fmt.Errorf("unknown action %q", a.Do)
}

// checkUnchanged reads live what an irreversible step is based on: the volume as it was read or written, and the coordinator's term.
func (c *Controller) checkUnchanged(ctx context.Context, w World) error {
	fresh := &v1alpha1.Volume{}
	if err := c.live.Get(ctx, client.ObjectKeyFromObject(w.Volume), fresh); err != nil {
		return err
	}
	if fresh.UID != w.Volume.UID || fresh.ResourceVersion != w.Volume.ResourceVersion {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("volumes").GroupResource(), w.Volume.Name, errChanged)
	}
	return c.CheckTerm(ctx)
}

// setEviction emits the event and writes the spec. The key of the event is the generation that the write makes, so that a coordinator that
// crashes in between emits it once.
func (c *Controller) setEviction(ctx context.Context, a Action) error {
	err := c.record.Emit(ctx, events.Event{
		Regarding: a.Replica, Type: corev1.EventTypeNormal, Reason: a.Eviction.Event, Action: "Evict", Note: a.Eviction.Why + ".",
		Key: fmt.Sprint(a.Replica.Generation + 1),
	})
	if err != nil {
		c.Log.Warn("could not write event", "replica", a.Replica.Name, "reason", a.Eviction.Event, "error", err)
	}
	write := func(r *v1alpha1.Replica) error { return c.client.Update(ctx, r) }
	_, err = kubeclient.Rewrite(ctx, c.live, a.Replica.DeepCopy(), write, func(newest *v1alpha1.Replica) bool {
		if newest.Generation != a.Replica.Generation {
			return false
		}
		newest.Spec.EvictionRequested = a.Eviction.Requested
		return true
	})
	if err == nil {
		c.Metrics.evicted(a.Eviction.Event)
	}
	return err
}

// recordReplica writes the coordinator's fields of a replica's status; its node writes the others at the same time.
func (c *Controller) recordReplica(ctx context.Context, r *v1alpha1.Replica) error {
	write := func(r *v1alpha1.Replica) error { return c.client.Status().Update(ctx, r) }
	_, err := kubeclient.Rewrite(ctx, c.live, r.DeepCopy(), write, func(newest *v1alpha1.Replica) bool {
		if newest.Status.State != r.Status.State {
			return false
		}
		newest.Status.HealthyAt, newest.Status.FailedAt, newest.Status.Conditions = r.Status.HealthyAt, r.Status.FailedAt, r.Status.Conditions
		return true
	})
	return err
}

// forgetReplica removes the finalizer of a replica.
func (c *Controller) forgetReplica(ctx context.Context, r *v1alpha1.Replica) error {
	next := r.DeepCopy()
	controllerutil.RemoveFinalizer(next, v1alpha1.ReplicaFinalizer)
	return client.IgnoreNotFound(c.client.Update(ctx, next))
}

// forgetOrphans forgets replicas of a volume that somebody deleted by force, once somebody deleted them too. Nobody else deletes them: they
// may be all that is left of the data.
func (c *Controller) forgetOrphans(ctx context.Context, w World) error {
	for _, r := range w.Orphans {
		if !deleting(r) || !w.forgettable(r) {
			continue
		}
		if err := c.CheckTerm(ctx); err != nil {
			return err
		}
		if err := c.forgetReplica(ctx, r); err != nil {
			return err
		}
	}
	return nil
}
