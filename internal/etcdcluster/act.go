package etcdcluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// errChanged: what a decision rested on is not so any more.
var errChanged = errors.New("it has changed since it was read")

// stillSo reads live what an irreversible step rests on: the wish and the record of the cluster, and the coordinator's own term.
func (c *Controller) stillSo(ctx context.Context, w World) error {
	fresh := &v1alpha1.EtcdCluster{}
	if err := c.live.Get(ctx, client.ObjectKeyFromObject(w.Cluster), fresh); err != nil {
		return err
	}
	if fresh.UID != w.Cluster.UID || fresh.ResourceVersion != w.Cluster.ResourceVersion {
		return conflict("etcdclusters", w.Cluster.Name)
	}
	return c.Stands(ctx)
}

func conflict(resource, name string) error {
	return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource(resource).GroupResource(), name, errChanged)
}

// wish writes what a member should be. Its node writes its status all the time; while the spec is what it was, the wish is written
// over a newer version. That data be deleted is written only after all it rests on was read again.
func (c *Controller) wish(ctx context.Context, w World, m *v1alpha1.EtcdMember) error {
	if m.Spec.Want == v1alpha1.EtcdMemberDelete {
		if err := c.mayDelete(ctx, w, m); err != nil {
			return err
		}
	}
	write := func(m *v1alpha1.EtcdMember) error { return c.client.Update(ctx, m) }
	_, err := kubeclient.Rewrite(ctx, c.live, m.DeepCopy(), write, func(newest *v1alpha1.EtcdMember) bool {
		if newest.Generation != m.Generation || m.Spec.Want == v1alpha1.EtcdMemberDelete {
			return false
		}
		newest.Spec = m.Spec
		return true
	})
	return err
}

// mayDelete reads again what the deletion of a member's data rests on.
func (c *Controller) mayDelete(ctx context.Context, w World, m *v1alpha1.EtcdMember) error {
	if err := c.stillSo(ctx, w); err != nil {
		return err
	}
	status := w.Cluster.Status
	released := status.Stop != nil && status.Stop.Step == v1alpha1.EtcdReleased
	switch {
	case !w.Cluster.DeletionTimestamp.IsZero() || m.Spec.Begin == nil:
		return nil // asked for, or there is nothing
	case m.Spec.Incarnation < status.Incarnation:
		return nil
	case released && status.Stop.OnStop == v1alpha1.EtcdSnapshotThenDelete:
		return c.snapshotStands(ctx, w, status.Rest)
	case released:
		return nil
	case status.Stop == nil && (status.Rest != nil || status.ClusterID == ""):
		return nil // a start that came to nothing
	}
	// A member of a cluster that runs, or that was woken for its data: etcd must not have it any more.
	now, err := c.etcd.current(ctx, w)
	if err != nil {
		return err
	}
	if _, there := now.find(m.Status.PeerURL); there {
		return conflict("etcdmembers", m.Name)
	}
	return nil
}

// snapshotStands reads live whether what the next start begins from is safe.
func (c *Controller) snapshotStands(ctx context.Context, w World, rest *v1alpha1.EtcdRest) error {
	if rest == nil || rest.Snapshot == "" {
		return conflict("etcdsnapshots", "")
	}
	s := &v1alpha1.EtcdSnapshot{}
	if err := c.live.Get(ctx, types.NamespacedName{Namespace: w.Cluster.Namespace, Name: rest.Snapshot}, s); err != nil {
		return fmt.Errorf("snapshot %s: %w", rest.Snapshot, err)
	}
	if s.Spec.ClusterUID != string(w.Cluster.UID) || s.Status.Facts == nil || len(s.Verified()) == 0 || s.Status.Facts.Revision != rest.Revision || !s.DeletionTimestamp.IsZero() {
		return conflict("etcdsnapshots", rest.Snapshot)
	}
	return nil
}

// releaseMember lets the object of a member go.
func (c *Controller) releaseMember(ctx context.Context, m *v1alpha1.EtcdMember) error {
	next := m.DeepCopy()
	if controllerutil.RemoveFinalizer(next, v1alpha1.EtcdMemberFinalizer) {
		if err := c.client.Update(ctx, next); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if !m.DeletionTimestamp.IsZero() {
		return nil
	}
	return client.IgnoreNotFound(c.client.Delete(ctx, next, client.Preconditions{UID: &m.UID}))
}

func (c *Controller) releaseSnapshot(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	next := s.DeepCopy()
	if !controllerutil.RemoveFinalizer(next, v1alpha1.EtcdSnapshotFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(c.client.Update(ctx, next))
}

func (c *Controller) holdCluster(ctx context.Context, cluster *v1alpha1.EtcdCluster) error {
	next := cluster.DeepCopy()
	controllerutil.AddFinalizer(next, v1alpha1.EtcdClusterFinalizer)
	return c.client.Update(ctx, next)
}

func (c *Controller) releaseCluster(ctx context.Context, cluster *v1alpha1.EtcdCluster) error {
	next := cluster.DeepCopy()
	if !controllerutil.RemoveFinalizer(next, v1alpha1.EtcdClusterFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(c.client.Update(ctx, next))
}

// sweep lets go of what clusters that are gone left on nodes that were absent, once these have deleted it. All of it was told to go
// before its cluster went; what was not, because someone took a cluster away by force, stays.
func (c *Controller) sweep(ctx context.Context, w World) error {
	for _, m := range w.Orphans.Members {
		gone := reached(m, v1alpha1.EtcdMemberDeleted) || w.Nodes[m.Spec.Node] == nil && !w.live(m.Spec.Node)
		if m.Spec.Want == v1alpha1.EtcdMemberDelete && gone {
			if err := c.releaseMember(ctx, m); err != nil {
				return err
			}
		}
	}
	for _, s := range w.Orphans.Snapshots {
		kept := slices.ContainsFunc(s.Status.Copies, func(copy v1alpha1.EtcdSnapshotCopy) bool { return w.live(copy.Node) })
		if !s.DeletionTimestamp.IsZero() && !kept {
			if err := c.releaseSnapshot(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget drops what is known of a cluster that is gone.
func (c *Controller) forget(w World, key types.NamespacedName) (ctrl.Result, error) {
	if _, err := c.etcd.endpoints(key, nil); err != nil {
		return ctrl.Result{}, err
	}
	c.Metrics.forget(key)
	c.mu.Lock()
	delete(c.wrote, key)
	c.mu.Unlock()
	if len(w.Orphans.Members)+len(w.Orphans.Snapshots) > 0 {
		return ctrl.Result{RequeueAfter: lookLater}, nil
	}
	return ctrl.Result{}, nil
}

// tell writes the events that are called for, each once. One that cannot be written is tried again with the next look.
func (c *Controller) tell(ctx context.Context, cluster *v1alpha1.EtcdCluster, notices []Notice) {
	for _, n := range notices {
		key := string(cluster.UID) + "/" + n.Reason + "/" + n.Key
		c.mu.Lock()
		known := c.told[key]
		c.mu.Unlock()
		if known {
			continue
		}
		kind := corev1.EventTypeNormal
		if n.Warning {
			kind = corev1.EventTypeWarning
		}
		err := c.record.Emit(ctx, events.Event{Regarding: cluster, Type: kind, Reason: n.Reason, Action: "Reconcile", Note: n.Note, Key: n.Key})
		if err != nil {
			c.Log.Warn("event not written yet", "cluster", client.ObjectKeyFromObject(cluster).String(), "reason", n.Reason, "error", err)
			continue
		}
		c.mu.Lock()
		c.told[key] = true
		c.mu.Unlock()
	}
}

// followSchedule scales the cluster by the clock, and says when to look at it next.
func (c *Controller) followSchedule(ctx context.Context, w *World) (time.Time, error) {
	if w.Cluster.Spec.Schedule == nil || !w.Cluster.DeletionTimestamp.IsZero() {
		return time.Time{}, nil
	}
	due, err := Due(w.Cluster, w.Now)
	if err != nil {
		c.tell(ctx, w.Cluster, []Notice{{Warning: true, Reason: "BadSchedule", Key: fmt.Sprint(w.Cluster.Generation), Note: err.Error()}})
		return time.Time{}, nil
	}
	if due.Size != nil && int(*due.Size) != w.Cluster.Size() {
		next := w.Cluster.DeepCopy()
		next.Spec.Size = due.Size
		if err := c.client.Update(ctx, next); err != nil {
			return time.Time{}, err
		}
		c.Log.Info("etcd cluster", "cluster", client.ObjectKeyFromObject(w.Cluster).String(), "step", "schedule", "size", *due.Size)
		w.Cluster = next
	}
	if at := w.Cluster.Status.Scheduled; at == nil || !at.Time.Equal(due.UpTo) {
		next := w.Cluster.DeepCopy()
		next.Status.Scheduled = newTime(due.UpTo)
		if err := c.client.Status().Update(ctx, next); err != nil {
			return time.Time{}, err
		}
		w.Cluster = next
	}
	return due.Next, nil
}
