package etcdcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/peer"
)

const (
	// atOnce is how many clusters are reconciled at a time, so that a slow one does not delay the others.
	atOnce = 16
	// maxSteps bounds the plans for one cluster before others get their turn.
	maxSteps = 8
	// lookSoon is when to look again while something is under way, lookLater while nothing is.
	lookSoon  = 200 * time.Millisecond
	lookLater = 3 * time.Second
	// lookRarely is when to look again at a cluster that is stopped.
	lookRarely = 30 * time.Second
	// numbersEvery is how often a status is written in which only sizes and lags changed.
	numbersEvery = 5 * time.Second
)

// Controller is the coordinator's side of etcd clusters.
type Controller struct {
	// Leader is the node that it runs on.
	Leader string
	// CheckTerm fails unless the coordinator's term still holds, read live.
	CheckTerm func(context.Context) error
	// Files are the certificate that it authenticates with to members.
	Files peer.Files
	// Metrics outlive terms.
	Metrics *Metrics
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every step, by tests that crash there.
	AtStep func(point string)

	client client.Client
	live   client.Reader
	record events.Recorder
	etcd   *etcd.Client

	mu       sync.Mutex
	settling fleet.Settling
	emitted  map[string]bool                        // events that were written
	wrote    map[types.NamespacedName]time.Time     // when a status was last written
	failed   map[types.NamespacedName]map[Do]string // the errors of actions whose last attempt failed
	asked    map[types.NamespacedName]*askings      // of trials that are under way
}

// SetupWithManager adds the controller to a term's manager.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.live = mgr.GetClient(), mgr.GetAPIReader()
	c.record = events.Recorder{Client: c.client, Controller: "etcdclusters", Instance: c.Leader}
	c.etcd = etcd.New(c.Files)
	c.settling = fleet.Began(time.Now())
	c.emitted, c.wrote, c.failed = map[string]bool{}, map[types.NamespacedName]time.Time{}, map[types.NamespacedName]map[Do]string{}
	c.asked = map[types.NamespacedName]*askings{}
	end := manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		c.etcd.Close()
		return nil
	})
	if err := mgr.Add(end); err != nil {
		return err
	}
	every := handler.EnqueueRequestsFromMapFunc(c.all)
	return ctrl.NewControllerManagedBy(mgr).
		Named("etcdclusters").
		For(&v1alpha1.EtcdCluster{}).
		Watches(&v1alpha1.EtcdMember{}, handler.EnqueueRequestsFromMapFunc(clusterOf)).
		Watches(&v1alpha1.EtcdSnapshot{}, handler.EnqueueRequestsFromMapFunc(clusterOf)).
		Watches(&v1alpha1.Node{}, every, builder.WithPredicates(predicate.Funcs{UpdateFunc: nodeDecides})).
		Watches(&v1alpha1.Settings{}, every).
		Watches(&coordinationv1.Lease{}, every, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: atOnce,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 2*time.Second),
		}).
		Complete(c)
}

// clusterOf is the cluster that a member or a snapshot belongs to.
func clusterOf(_ context.Context, o client.Object) []reconcile.Request {
	name := ""
	switch o := o.(type) {
	case *v1alpha1.EtcdMember:
		name = o.Spec.Cluster
	case *v1alpha1.EtcdSnapshot:
		name = o.Spec.Cluster
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
}

// all are all clusters.
func (c *Controller) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var list v1alpha1.EtcdClusterList
	if err := c.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// nodeDecides returns whether an update of a Node changes anything that plans depend on. Most updates only publish counts.
func nodeDecides(e event.UpdateEvent) bool {
	a, ok := e.ObjectOld.(*v1alpha1.Node)
	b, same := e.ObjectNew.(*v1alpha1.Node)
	return !ok || !same || a.Generation != b.Generation || a.Status.Liveness != b.Status.Liveness || a.Status.Epoch != b.Status.Epoch ||
		a.IsReady() != b.IsReady() || !equality.Semantic.DeepEqual(a.Labels, b.Labels)
}

// Reconcile plans and acts for one cluster until nothing is left to do.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	for range maxSteps {
		w, err := c.gather(ctx, req.NamespacedName)
		if err != nil {
			return ctrl.Result{}, err
		}
		if err := c.releaseOrphans(ctx, w); err != nil {
			return c.retry(err)
		}
		if w.Cluster == nil {
			return c.forget(w, req.NamespacedName)
		}
		next, err := c.followSchedule(ctx, &w)
		if err != nil {
			return c.retry(err)
		}
		d := Plan(w)
		wrote, err := c.writeStatus(ctx, w, d.Status)
		if err != nil {
			return c.retry(err)
		}
		did, err := c.takeActions(ctx, w, d.Actions)
		c.Metrics.observe(w, d)
		if err != nil {
			return c.retry(err)
		}
		c.emitEvents(ctx, w.Cluster, d.Notices)
		if !did && !(wrote && deciding(w.Cluster.Status, d.Status)) {
			return ctrl.Result{RequeueAfter: c.requeueAfter(d, next)}, nil
		}
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

// deciding returns whether a status differs in what decisions rest on: then the next step may be due at once.
func deciding(was, is v1alpha1.EtcdClusterStatus) bool {
	return was.Phase != is.Phase || was.Incarnation != is.Incarnation || was.NextMember != is.NextMember || was.ClusterID != is.ClusterID ||
		!equality.Semantic.DeepEqual(was.Stop, is.Stop) || !equality.Semantic.DeepEqual(was.Restore, is.Restore) || (was.Rest == nil) != (is.Rest == nil) || (was.Starting == nil) != (is.Starting == nil)
}

// retry requeues after a conflicting write, or when etcd was not ready for a change.
func (c *Controller) retry(err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err):
		return ctrl.Result{RequeueAfter: 5 * time.Millisecond}, nil
	case errors.Is(err, etcd.ErrNotInSync):
		return ctrl.Result{RequeueAfter: lookSoon / 4}, nil
	case errors.Is(err, etcd.ErrQuorum) || errors.Is(err, etcd.ErrNoAnswer):
		c.Log.Info("etcd cluster: postponing a change of members", "error", err)
		return ctrl.Result{RequeueAfter: lookSoon}, nil
	}
	return ctrl.Result{}, err
}

func (c *Controller) requeueAfter(d Decision, next time.Time) time.Duration {
	pause := lookLater
	switch {
	case d.Changing:
		pause = lookSoon
	case d.Status.Phase == v1alpha1.EtcdClusterPhaseStopped:
		pause = lookRarely
	}
	if until := time.Until(next); !next.IsZero() && until < pause {
		pause = max(until, time.Millisecond)
	}
	return pause
}

// settled reports whether no drain has run for a while.
func (c *Controller) settled(f fleet.Fleet) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.settling.Saw(f, now)
	return c.settling.Settled(f, now)
}

// gather reads the objects live, and then asks etcd. World.Cluster is nil if there is no such cluster.
func (c *Controller) gather(ctx context.Context, key types.NamespacedName) (World, error) {
	w := World{Taken: map[string]bool{}, Load: map[string]int{}, Failed: c.lastFailures(key)}
	var err error
	if w.Fleet, err = fleet.Read(ctx, c.client); err != nil {
		return w, err
	}
	w.Settled = c.settled(w.Fleet)
	cluster := &v1alpha1.EtcdCluster{}
	if err := c.live.Get(ctx, key, cluster); err == nil {
		w.Cluster = cluster
	} else if !kubeclient.IsMissing(err) {
		return w, err
	}
	if err := c.readMembers(ctx, key, &w); err != nil {
		return w, err
	}
	if w.Cluster != nil {
		stop := cluster.Status.Stop
		hash := stop != nil && stop.OnStop == v1alpha1.EtcdRetain && stop.Step == v1alpha1.EtcdSealing && allSealed(w.Members)
		if w.View, err = c.etcd.Look(ctx, w.target(), hash); err != nil {
			return w, err
		}
	}
	w.Now = time.Now()
	w.Asked = c.askedSince(key, w)
	return w, nil
}

// askedSince returns since when the nodes of the trial of a cluster's stop are asked.
func (c *Controller) askedSince(key types.NamespacedName, w World) map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	trial := w.trial()
	if trial == nil {
		delete(c.asked, key)
		return nil
	}
	if c.asked[key] == nil {
		c.asked[key] = &askings{}
	}
	return c.asked[key].saw(trial, w.Now)
}

func allSealed(members []*v1alpha1.EtcdMember) bool {
	return !slices.ContainsFunc(members, func(m *v1alpha1.EtcdMember) bool {
		return m.Spec.Want != v1alpha1.EtcdMemberDelete && !reached(m, v1alpha1.EtcdMemberSealed)
	})
}

// readMembers reads the members and snapshots that carry the cluster's name. Names of those of a former cluster cannot be used again.
func (c *Controller) readMembers(ctx context.Context, key types.NamespacedName, w *World) error {
	mine := []client.ListOption{client.InNamespace(key.Namespace), client.MatchingLabels{v1alpha1.EtcdClusterLabel: key.Name}}
	var members v1alpha1.EtcdMemberList
	if err := c.live.List(ctx, &members, mine...); err != nil {
		return fmt.Errorf("list members: %w", err)
	}
	for i := range members.Items {
		m := &members.Items[i]
		if w.Cluster != nil && m.Spec.ClusterUID == string(w.Cluster.UID) {
			w.Members = append(w.Members, m)
		} else {
			w.Taken[m.Name] = true
			w.Orphans.Members = append(w.Orphans.Members, m)
		}
	}
	var snapshots v1alpha1.EtcdSnapshotList
	if err := c.live.List(ctx, &snapshots, mine...); err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}
	for i := range snapshots.Items {
		if s := &snapshots.Items[i]; w.Cluster != nil && s.Spec.ClusterUID == string(w.Cluster.UID) {
			w.Snapshots = append(w.Snapshots, s)
		} else {
			w.Orphans.Snapshots = append(w.Orphans.Snapshots, s)
		}
	}
	var everyone v1alpha1.EtcdMemberList
	if err := c.client.List(ctx, &everyone, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list members: %w", err)
	}
	for i := range everyone.Items {
		w.Load[everyone.Items[i].Spec.Node]++
	}
	return c.labelAgain(ctx, key, w.Cluster, everyone.Items)
}

// writeStatus writes the status if it changed, and returns whether it wrote. A status in which only sizes and lags changed is written
// every numbersEvery.
func (c *Controller) writeStatus(ctx context.Context, w World, status v1alpha1.EtcdClusterStatus) (bool, error) {
	key := client.ObjectKeyFromObject(w.Cluster)
	if equality.Semantic.DeepEqual(w.Cluster.Status, status) {
		return false, nil
	}
	if equality.Semantic.DeepEqual(withoutNumbers(w.Cluster.Status), withoutNumbers(status)) && time.Since(c.lastWrite(key)) < numbersEvery {
		return false, nil
	}
	step := statusStep(w.Cluster.Status, status)
	c.atStep("before-etcd-" + step)
	next := w.Cluster.DeepCopy()
	next.Status = status
	if err := c.client.Status().Update(ctx, next); err != nil {
		return false, err
	}
	c.atStep("after-etcd-" + step)
	w.Cluster.ResourceVersion = next.ResourceVersion
	c.mu.Lock()
	c.wrote[key] = time.Now()
	c.mu.Unlock()
	if step != "status" {
		c.Log.Info("etcd cluster: status written", "etcdcluster", key.String(), "step", step, "stage", stageWith(w.Cluster, status), "phase", status.Phase, "message", progress(status))
	}
	return true, nil
}

func progress(s v1alpha1.EtcdClusterStatus) string {
	if p := meta.FindStatusCondition(s.Conditions, v1alpha1.EtcdProgressing); p != nil {
		return p.Message
	}
	return ""
}

func (c *Controller) lastWrite(key types.NamespacedName) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrote[key]
}

// statusStep names what a write of the status records, for logs and crash points.
func statusStep(was, is v1alpha1.EtcdClusterStatus) string {
	step := func(s *v1alpha1.EtcdStop) v1alpha1.EtcdStopStep {
		if s == nil {
			return ""
		}
		return s.Step
	}
	switch {
	case step(was.Stop) != step(is.Stop) && is.Stop != nil:
		return "stop-" + string(is.Stop.Step)
	case is.Phase == v1alpha1.EtcdClusterPhaseStopped && was.Phase != is.Phase:
		return "stopped"
	case was.Starting == nil && is.Starting != nil:
		return "start"
	case was.ClusterID != is.ClusterID && is.ClusterID != "":
		return "established"
	case was.Phase != is.Phase:
		return "phase"
	}
	return "status"
}

// withoutNumbers leaves out the sizes and lags of members, which change all the time.
func withoutNumbers(s v1alpha1.EtcdClusterStatus) v1alpha1.EtcdClusterStatus {
	s = *s.DeepCopy()
	for i := range s.Members {
		s.Members[i].DBSize, s.Members[i].RevisionLag = 0, 0
	}
	return s
}

// takeActions takes the actions, and returns whether there were any. It stops at the first that fails: everything is planned anew.
func (c *Controller) takeActions(ctx context.Context, w World, acts []Action) (bool, error) {
	for _, a := range acts {
		c.atStep("before-etcd-" + string(a.Do))
		err := c.execute(ctx, w, a)
		c.recordAttempt(client.ObjectKeyFromObject(w.Cluster), a.Do, err)
		if err != nil {
			return true, fmt.Errorf("etcd cluster %s/%s: %s: %w", w.Cluster.Namespace, w.Cluster.Name, a.Do, err)
		}
		c.atStep("after-etcd-" + string(a.Do))
		c.logAction(w, a)
	}
	return len(acts) > 0, nil
}

// recordAttempt keeps the error of the last attempt of an action, for the condition of the cluster. A conflict is no failure: what was decided is
// decided again.
func (c *Controller) recordAttempt(key types.NamespacedName, do Do, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		delete(c.failed[key], do)
	case apierrors.IsConflict(err):
	case c.failed[key] == nil:
		c.failed[key] = map[Do]string{do: err.Error()}
	default:
		c.failed[key][do] = err.Error()
	}
}

// lastFailures returns the errors of actions of a cluster whose last attempt failed.
func (c *Controller) lastFailures(key types.NamespacedName) map[Do]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.failed[key])
}

func (c *Controller) logAction(w World, a Action) {
	args := []any{"etcdcluster", client.ObjectKeyFromObject(w.Cluster).String(), "action", a.Do}
	if a.Member != nil {
		args = append(args, "member", a.Member.Name, "node", a.Member.Spec.Node, "want", a.Member.Spec.Want)
	}
	if a.Snapshot != nil {
		args = append(args, "snapshot", a.Snapshot.Name)
	}
	if a.Peer.ID != 0 {
		args = append(args, "peer", a.Peer.Name, "id", etcd.HexID(a.Peer.ID))
	}
	c.Log.Info("etcd cluster: action taken", args...)
}

func (c *Controller) execute(ctx context.Context, w World, a Action) error {
	switch a.Do {
	case CreateMember:
		return c.client.Create(ctx, a.Member)
	case SetDesired:
		return c.setDesired(ctx, w, a.Member)
	case ReleaseMember:
		return c.releaseMember(ctx, a.Member)
	case AddLearner:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		return c.etcd.AddLearner(ctx, w.target(), a.Member)
	case PromoteLearner:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		return c.etcd.Promote(ctx, w.target(), a.Member)
	case UpdatePeer:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		return c.etcd.UpdateURL(ctx, w.target(), a.Peer)
	case RemovePeer:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		return c.etcd.Remove(ctx, w.target(), a.Peer)
	case MoveLeader:
		return c.etcd.MoveLeader(ctx, w.target(), a.Peer)
	case DisarmNoSpace:
		return c.etcd.DisarmNoSpace(ctx, w.target(), a.Peer.ID)
	case CreateSnapshot:
		return c.client.Create(ctx, a.Snapshot)
	case PlaceSnapshot:
		return c.client.Update(ctx, a.Snapshot)
	case DeleteSnapshot:
		if err := c.checkUnchanged(ctx, w); err != nil {
			return err
		}
		return client.IgnoreNotFound(c.client.Delete(ctx, a.Snapshot, client.Preconditions{UID: &a.Snapshot.UID, ResourceVersion: &a.Snapshot.ResourceVersion}))
	case ReleaseSnapshot:
		return c.releaseSnapshot(ctx, a.Snapshot)
	case HoldCluster:
		return c.holdCluster(ctx, w.Cluster)
	case ReleaseCluster:
		return c.releaseCluster(ctx, w.Cluster)
	}
	return fmt.Errorf("unknown action %q", a.Do)
}

func (c *Controller) atStep(point string) {
	if c.AtStep != nil {
		c.AtStep(point)
	}
}
