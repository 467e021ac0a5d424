package etcdcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// errChanged: an object that a decision was based on has changed.
var errChanged = errors.New("the object has changed since the coordinator read it")

// checkUnchanged reads live what an irreversible step is based on: the spec and the status of the cluster, and the coordinator's term.
func (c *Controller) checkUnchanged(ctx context.Context, w World) error {
	fresh := &v1alpha1.EtcdCluster{}
	if err := c.live.Get(ctx, client.ObjectKeyFromObject(w.Cluster), fresh); err != nil {
		return err
	}
	if fresh.UID != w.Cluster.UID || fresh.ResourceVersion != w.Cluster.ResourceVersion {
		return conflict("etcdclusters", w.Cluster.Name)
	}
	return c.CheckTerm(ctx)
}

func conflict(resource, name string) error {
	return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource(resource).GroupResource(), name, errChanged)
}

// setDesired writes the spec of a member. The member's node writes its status at the same time: while the spec is as it was read, the
// write is repeated over the newer version. A deletion is never repeated, and what it is based on is read again first.
func (c *Controller) setDesired(ctx context.Context, w World, m *v1alpha1.EtcdMember) error {
	if m.Spec.Want == v1alpha1.EtcdMemberDelete {
		if err := c.checkDelete(ctx, w, m); err != nil {
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

// checkDelete reads live what the deletion of a member's data is based on.
func (c *Controller) checkDelete(ctx context.Context, w World, m *v1alpha1.EtcdMember) error {
	if err := c.checkUnchanged(ctx, w); err != nil {
		return err
	}
	status := w.Cluster.Status
	if m.Spec.Begin == nil || m.Spec.Incarnation < status.Incarnation {
		return nil // the member has no data, or none that counts
	}
	switch StageOf(w.Cluster) {
	case StageDeleting, StageStopped, StageStarting:
		return nil // somebody requested it, or the start that made the data was canceled
	case StageReleasing:
		if status.Stop.OnStop == v1alpha1.EtcdSnapshotThenDelete {
			return c.checkSnapshot(ctx, w, status.Rest)
		}
		return nil
	}
	// The cluster runs, or was woken for its data: etcd must not list the member any more.
	listed, err := c.etcd.Has(ctx, w.target(), m)
	if err != nil {
		return err
	}
	if listed {
		return conflict("etcdmembers", m.Name)
	}
	return nil
}

// checkSnapshot reads live whether the snapshot that the next start begins from is verified, and whether a node that has it is there: a record of a copy
// on an absent node may be all that is left of it.
func (c *Controller) checkSnapshot(ctx context.Context, w World, rest *v1alpha1.EtcdStoppedState) error {
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
	for _, node := range s.Verified() {
		rec, err := fleet.ReadLease(ctx, c.live, node)
		if err != nil {
			return err
		}
		if rec.Held() {
			return nil
		}
	}
	return conflict("etcdsnapshots", rest.Snapshot)
}

// releaseMember removes the finalizer of a member and deletes its object.
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

// releaseOrphans releases members and snapshots of deleted clusters once their nodes, which were absent, have deleted the data. It releases
// only those whose deletion was requested: if somebody deleted a cluster by force, its data stays. If somebody deletes the object of such a member,
// its node ends the process, keeps the data and lists it.
func (c *Controller) releaseOrphans(ctx context.Context, w World) error {
	for _, m := range w.Orphans.Members {
		gone := reached(m, v1alpha1.EtcdMemberDeleted) || w.Nodes[m.Spec.Node] == nil && !w.Live(m.Spec.Node)
		if asked := m.Spec.Want == v1alpha1.EtcdMemberDelete; asked && gone || !asked && !m.DeletionTimestamp.IsZero() {
			if err := c.releaseMember(ctx, m); err != nil {
				return err
			}
		}
	}
	for _, s := range w.Orphans.Snapshots {
		if !s.DeletionTimestamp.IsZero() && w.filesGone(s) {
			if err := c.releaseSnapshot(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// labelAgain gives the label of their cluster back to members and snapshots that somebody took it from. Without it the cluster does not see them: it would
// remove their members from etcd's list, or report that nothing is left.
func (c *Controller) labelAgain(ctx context.Context, key types.NamespacedName, cluster *v1alpha1.EtcdCluster, members []v1alpha1.EtcdMember) error {
	if cluster == nil {
		return nil
	}
	var snapshots v1alpha1.EtcdSnapshotList
	if err := c.client.List(ctx, &snapshots, client.InNamespace(key.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	var lost []client.Object
	for i := range members {
		if m := &members[i]; m.Namespace == key.Namespace && m.Spec.ClusterUID == string(cluster.UID) && m.Labels[v1alpha1.EtcdClusterLabel] != key.Name {
			lost = append(lost, m.DeepCopy())
		}
	}
	for i := range snapshots.Items {
		if s := &snapshots.Items[i]; s.Spec.ClusterUID == string(cluster.UID) && s.Labels[v1alpha1.EtcdClusterLabel] != key.Name {
			lost = append(lost, s.DeepCopy())
		}
	}
	for _, o := range lost {
		labels := maps.Clone(o.GetLabels())
		if labels == nil {
			labels = map[string]string{}
		}
		labels[v1alpha1.EtcdClusterLabel] = key.Name
		o.SetLabels(labels)
		if err := c.client.Update(ctx, o); err != nil {
			return err
		}
	}
	if len(lost) > 0 {
		return conflict("etcdmembers", lost[0].GetName()) // read again
	}
	return nil
}

// forget drops what is known of a cluster whose object is gone.
func (c *Controller) forget(w World, key types.NamespacedName) (ctrl.Result, error) {
	c.etcd.Forget(key)
	c.Metrics.forget(key)
	c.mu.Lock()
	delete(c.wrote, key)
	delete(c.failed, key)
	delete(c.asked, key)
	c.mu.Unlock()
	if len(w.Orphans.Members)+len(w.Orphans.Snapshots) > 0 {
		return ctrl.Result{RequeueAfter: lookLater}, nil
	}
	return ctrl.Result{}, nil
}

// emitEvents emits each event once. One that could not be written is tried again with the next reconcile.
func (c *Controller) emitEvents(ctx context.Context, cluster *v1alpha1.EtcdCluster, notices []Notice) {
	for _, n := range notices {
		key := string(cluster.UID) + "/" + n.Reason + "/" + n.Key
		c.mu.Lock()
		known := c.emitted[key]
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
			c.Log.Warn("could not write event; trying again", "etcdcluster", client.ObjectKeyFromObject(cluster).String(), "reason", n.Reason, "error", err)
			continue
		}
		c.mu.Lock()
		c.emitted[key] = true
		c.mu.Unlock()
	}
}

// followSchedule suspends the cluster or ends that as the schedule asks, and returns when it asks for something next. spec.size belongs to
// people and is not changed.
func (c *Controller) followSchedule(ctx context.Context, w *World) (time.Time, error) {
	if !w.Cluster.DeletionTimestamp.IsZero() {
		return time.Time{}, nil
	}
	next := w.Cluster.DeepCopy()
	status, at, err := Follow(w.Cluster, w.Now)
	if err != nil {
		c.emitEvents(ctx, w.Cluster, []Notice{{Warning: true, Reason: v1alpha1.ReasonEtcdBadSchedule, Key: fmt.Sprint(w.Cluster.Generation), Note: err.Error()}})
	}
	if equality.Semantic.DeepEqual(status, w.Cluster.Status) {
		return at, nil
	}
	next.Status = status
	if err := c.client.Status().Update(ctx, next); err != nil {
		return time.Time{}, err
	}
	if next.IsSuspended() != w.Cluster.IsSuspended() {
		c.Log.Info("etcd cluster: schedule followed", "etcdcluster", client.ObjectKeyFromObject(next).String(), "suspended", next.IsSuspended(), "upTo", status.Scheduled)
	}
	w.Cluster = next
	return at, nil
}
