package deployment

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// Controller is the coordinator's side of deployments. It places nothing: nodes claim. It keeps the status of every deployment up
// to date, and removes the finalizer of a deleted one when no node runs it any more.
type Controller struct {
	// Leader is the node that it runs on.
	Leader string
	// CheckTerm fails unless the coordinator's term still holds, read live.
	CheckTerm func(context.Context) error
	// Metrics count the codes.
	Metrics *Metrics
	// Log of the term.
	Log *slog.Logger

	client client.Client
	live   client.Reader
	record events.Recorder
}

// SetupWithManager adds the controller to a term's manager.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.live = mgr.GetClient(), mgr.GetAPIReader()
	c.record = events.Recorder{Client: c.client, Controller: "deployments", Instance: c.Leader}
	for field, value := range placedBy {
		err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.Deployment{}, field, func(o client.Object) []string {
			return []string{value(o.(*v1alpha1.Deployment))}
		})
		if err != nil {
			return fmt.Errorf("index deployments by %s: %w", field, err)
		}
	}
	every := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) []reconcile.Request {
		var list v1alpha1.DeploymentList
		if err := c.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			c.Log.Warn("could not list deployments", "error", err)
			return nil
		}
		requests := make([]reconcile.Request, len(list.Items))
		for i := range list.Items {
			requests[i].NamespacedName = client.ObjectKeyFromObject(&list.Items[i])
		}
		return requests
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("deployments").
		For(&v1alpha1.Deployment{}).
		Watches(&v1alpha1.Node{}, every, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.Node)
			after, same := e.ObjectNew.(*v1alpha1.Node)
			return !ok || !same || !sameForPlans(before, after)
		}})).
		Watches(&coordinationv1.Lease{}, every, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).
		Complete(c)
}

// Reconcile updates the status of one deployment.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	d := &v1alpha1.Deployment{}
	if err := c.client.Get(ctx, req.NamespacedName, d); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	w, err := ReadWorld(ctx, c.client)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !d.DeletionTimestamp.IsZero() {
		return c.letGo(ctx, w, d)
	}
	if d.Spec.User != d.RunsAs() && w.Current() {
		return c.keepUser(ctx, d)
	}
	next, again := Observe(w, d, time.Now())
	if equality.Semantic.DeepEqual(next, d.Status) {
		return ctrl.Result{RequeueAfter: again}, nil
	}
	before := d.Status
	d.Status = next
	if err := c.client.Status().Update(ctx, d); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: replan}, nil // the cache is behind
		}
		return ctrl.Result{}, fmt.Errorf("deployment %s: %w", req.NamespacedName, err)
	}
	c.reportCodes(ctx, d, before)
	return ctrl.Result{RequeueAfter: again}, nil
}

// keepUser records that a program that is older than users of their own runs as the node's user.
func (c *Controller) keepUser(ctx context.Context, d *v1alpha1.Deployment) (ctrl.Result, error) {
	d.Spec.User = d.RunsAs()
	if err := c.client.Update(ctx, d); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: replan}, nil // the cache is behind
		}
		return ctrl.Result{}, fmt.Errorf("deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	const note = "It was created before programs had users of their own, and continues as the node's user, who can read the node's credentials. Remove spec.user to give it a user of its own."
	c.Log.Warn(note, "deployment", client.ObjectKeyFromObject(d).String())
	err := c.record.Emit(ctx, events.Event{Regarding: d, Type: corev1.EventTypeWarning, Reason: "RunsAsNodeUser", Action: "Observe", Note: note, Key: string(d.UID)})
	if err != nil {
		c.Log.Warn("could not write event", "error", err)
	}
	return ctrl.Result{}, nil
}

// letGo removes our finalizer from a deleted deployment when no node runs it. This is irreversible, so the leases are read from
// the server, and after them the election.
func (c *Controller) letGo(ctx context.Context, w World, d *v1alpha1.Deployment) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DeploymentFinalizer) || !w.Vacated(d) {
		return ctrl.Result{}, nil
	}
	w, err := ReadWorld(ctx, c.live)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !w.Vacated(d) {
		return ctrl.Result{RequeueAfter: replan}, nil
	}
	if err := c.CheckTerm(ctx); err != nil {
		return ctrl.Result{}, err
	}
	if loose := w.mayRunOn(d); len(loose) > 0 {
		note := fmt.Sprintf("It is deleted, but may still run on %s, which is lost. End it there, or start the node, which ends programs that have no object.", strings.Join(loose, ", "))
		c.Log.Warn(note, "deployment", client.ObjectKeyFromObject(d).String())
		if err := c.record.Emit(ctx, events.Event{Regarding: d, Type: corev1.EventTypeWarning, Reason: "MayStillRun", Action: "Delete", Note: note, Key: string(d.UID)}); err != nil {
			c.Log.Warn("could not write event", "error", err)
		}
	}
	controllerutil.RemoveFinalizer(d, v1alpha1.DeploymentFinalizer)
	if err := c.client.Update(ctx, d); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: replan}, nil
		}
		return ctrl.Result{}, fmt.Errorf("deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return ctrl.Result{}, nil
}

// codes are the condition reasons that are reported when they appear.
var codes = map[string]bool{v1alpha1.ErrInvalidType: true, v1alpha1.ErrDaemonAddressSet: true, v1alpha1.ErrDaemonMissing: true}

// reportCodes reports codes that have appeared as log line, metric and event. It is called after the condition was written, so that a
// repeated write does not report twice.
func (c *Controller) reportCodes(ctx context.Context, d *v1alpha1.Deployment, before v1alpha1.DeploymentStatus) {
	reported := map[string]bool{}
	for _, condition := range before.Conditions {
		reported[condition.Reason] = true
	}
	for _, condition := range d.Status.Conditions {
		code := condition.Reason
		if !codes[code] || reported[code] {
			continue
		}
		reported[code] = true
		c.Metrics.code(code)
		log := c.Log.With("code", code, "deployment", client.ObjectKeyFromObject(d).String())
		log.Warn(condition.Message)
		err := c.record.Emit(ctx, events.Event{
			Regarding: d, Type: corev1.EventTypeWarning, Reason: code, Action: "Observe", Note: condition.Message, Key: d.ResourceVersion,
		})
		if err != nil {
			log.Warn("could not write event", "error", err)
		}
	}
}

// ReadWorld reads the nodes and leases through r.
func ReadWorld(ctx context.Context, r client.Reader) (World, error) {
	f, err := fleet.Read(ctx, r)
	return World{Fleet: f}, err
}
