package volume

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	// atOnce is how many volumes are reconciled at a time.
	atOnce = 8
	// maxSteps bounds the plans for one volume before others get their turn.
	maxSteps = 8
	// lookAgain is when to look at a volume again though nothing that is watched has changed.
	lookAgain = 30 * time.Second
)

// Controller is the coordinator's side of volumes.
type Controller struct {
	// Leader is the node that it runs on.
	Leader string
	// CheckTerm fails unless the coordinator's term still holds, read live.
	CheckTerm func(context.Context) error
	// Metrics outlive terms; nil for none.
	Metrics *Metrics
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every step, by tests that crash there.
	AtStep func(point string)

	client client.Client
	live   client.Reader
	record events.Recorder
	term   int // of the metrics
}

// SetupWithManager adds the controllers of volumes, and of what nodes publish of evictions, to a term's manager.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.live = mgr.GetClient(), mgr.GetAPIReader()
	c.record = events.Recorder{Client: c.client, Controller: "volumes", Instance: c.Leader}
	var end func()
	c.term, end = c.Metrics.begin()
	err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		end()
		return nil
	}))
	if err != nil {
		return err
	}
	every := handler.EnqueueRequestsFromMapFunc(c.all)
	limiter := func() workqueue.TypedRateLimiter[reconcile.Request] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, 2*time.Second)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("volumes").
		For(&v1alpha1.Volume{}).
		Watches(&v1alpha1.Replica{}, handler.EnqueueRequestsFromMapFunc(volumeOf)).
		Watches(&v1alpha1.Node{}, every, builder.WithPredicates(predicate.Funcs{UpdateFunc: nodeDecides})).
		Watches(&v1alpha1.Drain{}, every, builder.WithPredicates(predicate.Funcs{UpdateFunc: drainDecides})).
		Watches(&v1alpha1.Settings{}, every).
		Watches(&coordinationv1.Lease{}, every, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		WithOptions(controller.Options{MaxConcurrentReconciles: atOnce, RateLimiter: limiter()}).
		Complete(c)
	if err != nil {
		return err
	}
	nodes := handler.EnqueueRequestsFromMapFunc(c.allNodes)
	return ctrl.NewControllerManagedBy(mgr).
		Named("volumes-nodes").
		For(&v1alpha1.Node{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: nodeDecides})).
		Watches(&v1alpha1.Replica{}, handler.EnqueueRequestsFromMapFunc(nodeOf)).
		Watches(&v1alpha1.Settings{}, nodes).
		Watches(&coordinationv1.Lease{}, nodes, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		WithOptions(controller.Options{RateLimiter: limiter()}).
		Complete(reconcile.Func(c.reconcileNode))
}

// volumeOf is the volume that a replica belongs to.
func volumeOf(_ context.Context, o client.Object) []reconcile.Request {
	r, ok := o.(*v1alpha1.Replica)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: r.Spec.VolumeName}}}
}

// nodeOf is the node that a replica is on.
func nodeOf(_ context.Context, o client.Object) []reconcile.Request {
	r, ok := o.(*v1alpha1.Replica)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: r.Spec.NodeName}}}
}

// all are all volumes.
func (c *Controller) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var list v1alpha1.VolumeList
	if err := c.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// allNodes are all nodes.
func (c *Controller) allNodes(ctx context.Context, _ client.Object) []reconcile.Request {
	var list v1alpha1.NodeList
	if err := c.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
	}
	return requests
}

// nodeDecides reports whether an update of a Node changes anything that plans depend on. Most updates only publish counts and free space.
func nodeDecides(e event.UpdateEvent) bool {
	a, ok := e.ObjectOld.(*v1alpha1.Node)
	b, same := e.ObjectNew.(*v1alpha1.Node)
	return !ok || !same || a.Generation != b.Generation || a.Status.Liveness != b.Status.Liveness || a.Status.Epoch != b.Status.Epoch ||
		a.IsReady() != b.IsReady() || a.Status.AutoEvicting != b.Status.AutoEvicting || !equality.Semantic.DeepEqual(usable(a), usable(b)) ||
		b.Annotations[v1alpha1.RemoveOrphansAnnotation] != "" && !equality.Semantic.DeepEqual(a.Status.Disks, b.Status.Disks)
}

// usable says which disks of a node can be used.
func usable(n *v1alpha1.Node) map[string]bool {
	disks := map[string]bool{}
	for _, d := range n.Status.Disks {
		disks[d.Name] = d.Ready
	}
	return disks
}

// drainDecides reports whether an update of a Drain changes anything that plans depend on. Most updates only count what is left.
func drainDecides(e event.UpdateEvent) bool {
	a, ok := e.ObjectOld.(*v1alpha1.Drain)
	b, same := e.ObjectNew.(*v1alpha1.Drain)
	return !ok || !same || a.Generation != b.Generation || a.Status.Phase != b.Status.Phase || a.Status.NodeEpoch != b.Status.NodeEpoch
}

// Reconcile plans and acts for one volume until nothing is left to do.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	for range maxSteps {
		w, d, err := c.decide(ctx, req.NamespacedName)
		if err != nil {
			return c.retry(err)
		}
		if err := c.forgetOrphans(ctx, w); err != nil {
			return c.retry(err)
		}
		if w.Volume == nil {
			c.Metrics.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		wrote, err := c.writeStatus(ctx, w, d)
		if err != nil {
			return c.retry(err)
		}
		if err := c.takeActions(ctx, w, d.Actions); err != nil {
			return c.retry(err)
		}
		c.Metrics.observe(c.term, w, d)
		if !wrote && len(d.Actions) == 0 {
			after := lookAgain
			if d.LookAfter > 0 {
				after = min(after, d.LookAfter)
			}
			return ctrl.Result{RequeueAfter: after}, nil
		}
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

// decide reads and plans. A decision that gives up a copy is made again with nodes and leases that were read live.
func (c *Controller) decide(ctx context.Context, key types.NamespacedName) (World, Decision, error) {
	for _, reader := range []client.Reader{c.client, c.live} {
		w, err := c.gather(ctx, key, reader)
		if err != nil || w.Volume == nil {
			return w, Decision{}, err
		}
		if d := Plan(w); reader == c.live || !d.Irreversible(w.Volume.Status) {
			return w, d, nil
		}
	}
	panic("unreachable: what was read live is final")
}

// gather reads what a plan depends on: the volume and its replicas live, nodes and leases through r. Replicas are read before the volume: a
// replica with a newer generation then means that the store went back in time. World.Volume is nil if there is no such volume.
func (c *Controller) gather(ctx context.Context, key types.NamespacedName, r client.Reader) (World, error) {
	var w World
	var err error
	if w.Fleet, err = fleet.Read(ctx, r); err != nil {
		return w, err
	}
	if w.Drain, err = readDrain(ctx, r, w.Slot); err != nil {
		return w, err
	}
	var everyone, mine v1alpha1.ReplicaList
	if err := c.client.List(ctx, &everyone, client.UnsafeDisableDeepCopy); err != nil {
		return w, fmt.Errorf("list replicas: %w", err)
	}
	if err := c.live.List(ctx, &mine, client.InNamespace(key.Namespace), client.MatchingLabels{v1alpha1.VolumeLabel: key.Name}); err != nil {
		return w, fmt.Errorf("list replicas: %w", err)
	}
	v := &v1alpha1.Volume{}
	if err := c.live.Get(ctx, key, v); err == nil {
		w.Volume = v
	} else if !kubeclient.IsMissing(err) {
		return w, fmt.Errorf("volume %s: %w", key, err)
	}
	for i := range everyone.Items {
		if o := &everyone.Items[i]; o.Namespace != key.Namespace || o.Spec.VolumeName != key.Name {
			w.Everyone = append(w.Everyone, o)
		}
	}
	for i := range mine.Items {
		r := &mine.Items[i]
		w.Everyone = append(w.Everyone, r)
		if w.Volume != nil && r.Spec.VolumeUID == string(w.Volume.UID) {
			w.Replicas = append(w.Replicas, r)
		} else {
			w.Orphans = append(w.Orphans, r)
		}
	}
	sortReplicas(w.Replicas)
	w.Now = time.Now()
	return w, nil
}

// retry requeues after a conflicting write.
func (c *Controller) retry(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return ctrl.Result{RequeueAfter: 5 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}

// writeStatus writes the status if it changed, over the very version that the decision was based on, and returns whether it wrote.
func (c *Controller) writeStatus(ctx context.Context, w World, d Decision) (bool, error) {
	if equality.Semantic.DeepEqual(w.Volume.Status, d.Status) {
		return false, nil
	}
	if d.Irreversible(w.Volume.Status) {
		if err := c.CheckTerm(ctx); err != nil {
			return false, err
		}
	}
	step := statusStep(w.Volume.Status, d.Status)
	c.atStep("before-volume-" + step)
	next := w.Volume.DeepCopy()
	next.Status = d.Status
	if err := c.client.Status().Update(ctx, next); err != nil {
		return false, err
	}
	c.atStep("after-volume-" + step)
	w.Volume.ResourceVersion = next.ResourceVersion
	if step != "status" {
		c.Log.Info("volume: status written", "volume", client.ObjectKeyFromObject(next).String(), "step", step, "generation", d.Status.Generation,
			"attachedTo", d.Status.AttachedTo, "rebuildOn", d.Status.RebuildOn, "members", d.Status.Members, "released", d.Status.Released)
	}
	return true, nil
}

// statusStep names what a write of the status records, for logs and crash points.
func statusStep(was, is v1alpha1.VolumeStatus) string {
	switch {
	case was.AttachedTo != is.AttachedTo && is.AttachedTo != "":
		return "attach"
	case was.AttachedTo != is.AttachedTo:
		return "detach"
	case len(is.Released) > len(was.Released):
		return "release"
	case len(is.Released) < len(was.Released):
		return "unrelease"
	case !equality.Semantic.DeepEqual(was.Members, is.Members):
		return "members"
	case was.RebuildOn != is.RebuildOn:
		return "rebuild"
	case was.NextReplica != is.NextReplica:
		return "number"
	}
	return "status"
}

func (c *Controller) atStep(point string) {
	if c.AtStep != nil {
		c.AtStep(point)
	}
}

// forgetRemovedOrphans takes orphans out of the annotation that asks for their removal once the node lists them no more. Otherwise a directory
// that gets the same name later would be removed too.
func (c *Controller) forgetRemovedOrphans(ctx context.Context, n *v1alpha1.Node) error {
	if !changeAskedOrphans(n.DeepCopy()) {
		return nil
	}
	next := n.DeepCopy()
	changeAskedOrphans(next)
	write := func(n *v1alpha1.Node) error { return c.client.Update(ctx, n) }
	_, err := kubeclient.Rewrite(ctx, c.live, next, write, changeAskedOrphans)
	return err
}

// changeAskedOrphans leaves in the annotation of a node what the node still lists, and returns whether that changed anything.
func changeAskedOrphans(n *v1alpha1.Node) bool {
	was, ok := n.Annotations[v1alpha1.RemoveOrphansAnnotation]
	if !ok {
		return false
	}
	left := slices.DeleteFunc(strings.Split(was, ","), func(asked string) bool {
		return !slices.ContainsFunc(n.Status.Disks, func(d v1alpha1.DiskStatus) bool {
			name, ok := strings.CutPrefix(asked, d.Name+"/")
			return ok && slices.Contains(d.Orphans, name)
		})
	})
	if is := strings.Join(left, ","); is != "" {
		n.Annotations[v1alpha1.RemoveOrphansAnnotation] = is
		return is != was
	}
	delete(n.Annotations, v1alpha1.RemoveOrphansAnnotation)
	return true
}

// reconcileNode publishes whether replicas leave a node because of the policy. The node writes its own status over what it last read, and so
// keeps what is written here.
func (c *Controller) reconcileNode(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster, err := ReadCluster(ctx, c.client)
	if err != nil {
		return ctrl.Result{}, err
	}
	n := cluster.Nodes[req.Name]
	if n == nil {
		return ctrl.Result{}, nil
	}
	if err := c.forgetRemovedOrphans(ctx, n); err != nil {
		return c.retry(err)
	}
	if n.Status.AutoEvicting == cluster.AutoEvicting(n.Name) {
		return ctrl.Result{}, nil
	}
	is := !n.Status.AutoEvicting
	next := n.DeepCopy()
	next.Status.AutoEvicting = is
	write := func(n *v1alpha1.Node) error { return c.client.Status().Update(ctx, n) }
	_, err = kubeclient.Rewrite(ctx, c.live, next, write, func(newest *v1alpha1.Node) bool {
		if newest.Generation != n.Generation {
			return false
		}
		newest.Status.AutoEvicting = is
		return true
	})
	return c.retry(err)
}
