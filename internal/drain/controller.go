package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// recount is how often an unfinished drain is counted when nothing changes.
const recount = time.Second

// maxSteps bounds the steps of one reconciliation; the next one continues.
const maxSteps = 50

// Controller is the coordinator's side of drains. It reads the world, decides the next step, writes it, and repeats.
type Controller struct {
	// Leader is the node that decides.
	Leader string
	// CheckTerm fails unless the coordinator still holds its term, read live.
	CheckTerm func(context.Context) error
	// Tenants returns the kinds of work, reading through r.
	Tenants func(r client.Reader) []Tenant
	// Core reads the core Nodes by name; nil where the API has none.
	Core func(context.Context, client.Reader) (map[string]*corev1.Node, error)
	// Pods is set if package pod carries out the drains of nodes without a lease.
	Pods bool
	// Metrics of drains.
	Metrics *Metrics
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every step; tests use it to crash there.
	AtStep func(point string)

	client     client.Client
	cached     client.Reader
	live       client.Reader
	clock      *kubeclient.ServerClock // set by the answers to live reads
	record     events.Recorder
	reported   map[string]bool // events that this term has written or found written, and refusals that it has logged
	unreported map[string]bool // events that could not be written, each logged once
}

// SetupWithManager adds the controller to a term's manager. Every watched change leads to the same request: find the next step.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	cfg := rest.CopyConfig(mgr.GetConfig())
	c.clock = kubeclient.NewServerClock()
	cfg.Wrap(c.clock.Watch)
	live, err := kubeclient.New(cfg)
	if err != nil {
		return fmt.Errorf("client of drains: %w", err)
	}
	c.client, c.cached, c.live = mgr.GetClient(), mgr.GetClient(), live
	c.record = events.Recorder{Client: c.client, Controller: "drains", Instance: c.Leader}
	c.reported, c.unreported = map[string]bool{}, map[string]bool{}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.SettingsName}}}
	})
	b := ctrl.NewControllerManagedBy(mgr)
	if c.Core != nil {
		b = b.Watches(&corev1.Node{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: cordon.Changes}))
	}
	return b.Named("drains").
		Watches(&v1alpha1.Drain{}, one).
		Watches(&v1alpha1.Node{}, one).
		Watches(&v1alpha1.Settings{}, one).
		Watches(&coordinationv1.Lease{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		Complete(c)
}

// Reconcile takes steps until there is none to take.
func (c *Controller) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if err := c.setClock(ctx); err != nil {
		return ctrl.Result{}, err
	}
	idle, err := c.idle(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	if idle {
		if err := c.forgetGone(ctx); err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{RequeueAfter: c.prune(ctx)}, nil
	}
	live, refused := false, map[string]string{}
	for range maxSteps {
		w, step, err := c.look(ctx, live, refused)
		if err != nil {
			return ctrl.Result{}, err
		}
		c.Metrics.see(w)
		written := c.writeEvents(ctx, w)
		if step == nil {
			return ctrl.Result{RequeueAfter: sooner(pause(w, written && len(refused) == 0), c.prune(ctx))}, nil
		}
		live = live || step.Name != StepProgress // the cache does not have this write yet
		if err := c.take(ctx, step); err != nil {
			if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
				live = true
				continue // the object has changed: decide again
			}
			if !slices.Contains([]string{StepCordon, StepClearOwners, StepLiftCordon}, step.Name) || !answered(err) {
				return ctrl.Result{}, err
			}
			refused[step.Object.GetName()] = err.Error()
			c.reportRefusal(ctx, step, err)
			continue
		}
		delete(c.reported, refusalKey(step)) // if it is refused again, that is another refusal
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

// answered reports whether the API server refused a write, for instance by an admission webhook, and did not merely fail to answer.
func answered(err error) bool {
	status := apierrors.APIStatus(nil)
	return errors.As(err, &status)
}

func refusalKey(step *Step) string {
	return "refused/" + step.Name + "/" + string(step.Object.GetUID())
}

// reportRefusal reports once, until the step succeeds, that the API does not let a cordon be written. The drain that wanted a cordon to be lifted has
// ended, so that nothing else shows it.
func (c *Controller) reportRefusal(ctx context.Context, step *Step, err error) {
	node := step.Object
	key := refusalKey(step)
	if c.reported[key] {
		return
	}
	c.reported[key] = true
	c.Log.Warn("drain: a cordon could not be written; trying again", "step", step.Name, "target", node.GetName(), "error", err)
	if failed := c.record.Emit(ctx, events.Event{
		Regarding: node, Type: corev1.EventTypeWarning, Reason: BlockedByCordon, Action: "Cordon", Key: step.Name + "/" + node.GetResourceVersion(),
		Note: fmt.Sprintf("The cordon of node %s could not be written; trying again: %v. Check admission webhooks and the coordinator's permission to update nodes.", node.GetName(), err),
	}); failed != nil {
		c.Log.Warn("could not write event", "target", node.GetName(), "reason", BlockedByCordon, "error", failed)
	}
}

// look finds the next step. Counts come from the cache, because there may be very many objects and nodes report every change; every
// other step is decided on what was read live.
func (c *Controller) look(ctx context.Context, live bool, refused map[string]string) (w World, step *Step, err error) {
	reader := c.cached
	if live {
		reader = c.live
	}
	if w, err = Gather(ctx, reader, c.Leader, c.Tenants(reader), c.now()); err != nil {
		return w, nil, err
	}
	w.Now = c.now().Truncate(time.Second) // the answers have said what time it is
	if c.Core != nil {
		if w.Core, err = c.Core(ctx, reader); err != nil {
			return w, nil, err
		}
	}
	w.Pods, w.Refused = c.Pods, refused
	step = Next(w)
	if !live && step != nil && step.Name != StepProgress {
		return c.look(ctx, true, refused)
	}
	return w, step, nil
}

// now is the time by the API server's clock. Deadlines and stalls are counted by several coordinators in turn, whose own clocks may differ by hours.
func (c *Controller) now() time.Time {
	if c.clock != nil {
		if now := c.clock.Now(); !now.IsZero() {
			return now
		}
	}
	return time.Now()
}

// setClock makes the API server say what time it is, unless it has.
func (c *Controller) setClock(ctx context.Context) error {
	if c.clock == nil || !c.clock.Now().IsZero() {
		return nil
	}
	if err := c.live.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, &v1alpha1.Settings{}); err != nil {
		return fmt.Errorf("read Settings: %w", err)
	}
	return nil
}

// idle reports, from the cache, whether there is nothing to do: most of the time there is no drain.
func (c *Controller) idle(ctx context.Context) (bool, error) {
	settings := &v1alpha1.Settings{}
	if err := c.cached.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return false, err
	}
	var drains v1alpha1.DrainList
	if err := c.cached.List(ctx, &drains); err != nil {
		return false, err
	}
	w := World{Fleet: fleet.New()}
	for i := range drains.Items {
		d := &drains.Items[i]
		w.Drains = append(w.Drains, d)
		if !d.Status.Phase.Final() || !d.DeletionTimestamp.IsZero() || d.Status.FinishedAt != nil && c.now().Sub(d.Status.FinishedAt.Time) < eventWindow && !c.allReported(d) {
			return false, nil
		}
	}
	if settings.Status.ActiveDrain != nil {
		return false, nil
	}
	var nodes v1alpha1.NodeList
	if err := c.cached.List(ctx, &nodes); err != nil {
		return false, err
	}
	for i := range nodes.Items {
		w.Nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	if c.Core != nil {
		var err error
		if w.Core, err = c.Core(ctx, c.cached); err != nil {
			return false, err
		}
	}
	return nextOfCordons(w, nil, nil) == nil, nil
}

// forgetGone drops the metrics of nodes whose Node object was deleted.
func (c *Controller) forgetGone(ctx context.Context) error {
	var nodes v1alpha1.NodeList
	if err := c.cached.List(ctx, &nodes); err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range nodes.Items {
		there[nodes.Items[i].Name] = true
	}
	c.Metrics.keep(func(node string) bool { return there[node] })
	return nil
}

// pause returns when to check again if nothing changes.
func pause(w World, written bool) time.Duration {
	if w.Settings.Status.ActiveDrain == nil && written {
		return 0
	}
	return recount
}

// take writes one step. A step that decides something is based on live reads; the term is checked last.
func (c *Controller) take(ctx context.Context, step *Step) error {
	if step.Name != StepProgress && step.Name != StepQueue {
		if err := c.CheckTerm(ctx); err != nil {
			return fmt.Errorf("drain step %s: %w", step.Name, err)
		}
	}
	c.at("before-" + step.Name)
	err := c.write(ctx, step)
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return err
		}
		return fmt.Errorf("drain step %s: %w", step.Name, err)
	}
	c.at("after-" + step.Name)
	if d, ok := step.Object.(*v1alpha1.Drain); ok && step.Name == StepComplete {
		c.Metrics.observeEnd(d)
	}
	if step.Name != StepProgress {
		c.logStep(step)
	}
	return nil
}

func (c *Controller) write(ctx context.Context, step *Step) error {
	if step.Status {
		return c.client.Status().Update(ctx, step.Object)
	}
	node, ok := step.Object.(*v1alpha1.Node)
	if !ok || step.Name != StepDesireDraining {
		return c.client.Update(ctx, step.Object)
	}
	// A node updates its counts often while work leaves it. The order to drain does not depend on these counts.
	_, err := kubeclient.Rewrite(ctx, c.live, node, func(n *v1alpha1.Node) error { return c.client.Update(ctx, n) }, func(newest *v1alpha1.Node) bool {
		if newest.Generation != node.Generation || newest.Status.Epoch != node.Status.Epoch {
			return false
		}
		newest.Spec = node.Spec
		return true
	})
	return err
}

func (c *Controller) logStep(step *Step) {
	if step.Drain == nil {
		c.Log.Info("drain: step taken", "step", step.Name)
		return
	}
	c.Log.Info("drain: step taken", "step", step.Name, "drain", step.Drain.Name, "target", step.Drain.Spec.NodeName)
}

func (c *Controller) at(point string) {
	if c.AtStep != nil {
		c.AtStep(point)
	}
}

// writeEvents writes the events of all drains, and reports whether all of them are written. An event that cannot be written is tried again
// later; it does not delay a drain.
func (c *Controller) writeEvents(ctx context.Context, w World) bool {
	all := true
	for _, d := range w.Drains {
		if !d.Status.Phase.Final() && isBrief(d, w.Now) {
			all = false // it may last
		}
		for _, n := range notices(d, w.Now) {
			key := noticeKey(d, n)
			if c.reported[key] {
				continue
			}
			err := c.record.Emit(ctx, n)
			if err == nil {
				c.reported[key] = true
				continue
			}
			all = false
			if !c.unreported[key] {
				c.unreported[key] = true
				c.Log.Warn("could not write event; trying again", "drain", d.Name, "reason", n.Reason, "error", err)
			}
		}
	}
	return all
}

func (c *Controller) allReported(d *v1alpha1.Drain) bool {
	for _, n := range notices(d, c.now()) {
		if !c.reported[noticeKey(d, n)] {
			return false
		}
	}
	return true
}

func noticeKey(d *v1alpha1.Drain, e events.Event) string {
	return string(d.UID) + "/" + e.Reason + "/" + e.Key
}

// Gather reads the world through r.
func Gather(ctx context.Context, r client.Reader, leader string, tenants []Tenant, now time.Time) (World, error) {
	w := World{
		Now: now.Truncate(time.Second), Leader: leader, Settings: &v1alpha1.Settings{}, Left: map[string]Remaining{},
	}
	if err := r.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, w.Settings); err != nil {
		return w, fmt.Errorf("read Settings: %w", err)
	}
	var drains v1alpha1.DrainList
	if err := r.List(ctx, &drains); err != nil {
		return w, fmt.Errorf("list drains: %w", err)
	}
	for i := range drains.Items {
		w.Drains = append(w.Drains, &drains.Items[i])
	}
	var err error
	if w.Fleet, err = fleet.ReadNodes(ctx, r); err != nil {
		return w, err
	}
	return w, w.count(ctx, tenants)
}

// count asks every kind what it has on the node in the slot.
func (w *World) count(ctx context.Context, tenants []Tenant) error {
	for _, t := range tenants {
		w.Works = append(w.Works, t.Work())
	}
	slot := w.Settings.Status.ActiveDrain
	if slot == nil {
		return nil
	}
	for _, t := range tenants {
		name := t.Work().Name
		left, err := t.Remaining(ctx, slot.Node)
		if err != nil {
			return fmt.Errorf("count %s on node %s: %w", name, slot.Node, err)
		}
		w.Left[name] = left
	}
	return nil
}
