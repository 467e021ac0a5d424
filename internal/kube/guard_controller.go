package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/lease"
)

// recount is how often a guard that holds a cordoned node is looked at when nothing changes.
const recount = time.Second

// Guards is the coordinator's side of guards.
type Guards struct {
	// Leader is the node that decides.
	Leader string
	// Image of the guards.
	Image string
	// CheckTerm fails unless the coordinator still holds its term, read live.
	CheckTerm func(context.Context) error
	// Tenants returns the kinds of work, reading through r, and Works what they declare.
	Tenants func(r client.Reader) []drain.Tenant
	Works   drain.Works
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every action; tests use it to crash there. It may be nil.
	AtStep func(point string)

	client client.Client
	cached client.Reader
	live   client.Reader
	record events.Recorder
	told   map[string]notice    // by node
	failed map[string]*creation // by node
}

// creation is the attempt to create the pods of a node, after one has failed.
type creation struct {
	why   string
	until time.Time
	retry backoff.Backoff
}

// SetupWithManager adds the controller to a term's manager. Every watched change leads to the same request: find the next action.
func (g *Guards) SetupWithManager(mgr ctrl.Manager) error {
	g.client, g.cached, g.live = mgr.GetClient(), mgr.GetClient(), mgr.GetAPIReader()
	g.record = events.Recorder{Client: g.client, Controller: "guards", Instance: g.Leader}
	g.told, g.failed = map[string]notice{}, map[string]*creation{}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.SettingsName}}}
	})
	isGuard := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[GuardLabel] != "" || o.GetLabels()[SensorLabel] != "" }))
	return ctrl.NewControllerManagedBy(mgr).
		Named("guards").
		Watches(&corev1.Pod{}, one, isGuard).
		Watches(&policyv1.PodDisruptionBudget{}, one, isGuard).
		Watches(&corev1.Node{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: cordon.Changes})).
		Watches(&v1alpha1.Node{}, one).
		Watches(&v1alpha1.Drain{}, one).
		Complete(g)
}

// Reconcile takes actions until there is none to take. An action that fails on one node does not keep the others waiting.
func (g *Guards) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	reader := g.cached
	failed, errs := map[string]bool{}, []error(nil)
	for range maxActions {
		w, err := g.gather(ctx, reader)
		if err != nil {
			return ctrl.Result{}, err
		}
		w.Failed = failed
		a := NextGuard(w)
		if a == nil && len(errs) > 0 {
			return ctrl.Result{}, errors.Join(errs...)
		}
		if a == nil {
			return ctrl.Result{RequeueAfter: g.tell(ctx, w)}, nil
		}
		if reader != g.live {
			reader = g.live // every action is decided on what was read live
			continue
		}
		err = g.do(ctx, a)
		if outdated(err) {
			continue
		}
		if status := apierrors.APIStatus(nil); err != nil && (a.Verb != Create || !errors.As(err, &status)) {
			failed[a.Node] = true
			errs = append(errs, fmt.Errorf("kube action %s of node %s: %w", a.Name, a.Node, err))
			continue
		}
		g.judge(a, err)
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

// judge remembers that the pods of a node cannot be created, or end as soon as they are: the next attempt waits.
func (g *Guards) judge(a *Action, err error) {
	var why string
	pod, isPod := a.Object.(*corev1.Pod)
	switch {
	case err != nil:
		why = err.Error()
	case isPod && a.Verb != Create && ended(pod):
		why = "the pod ended"
		if reason := waitsFor(pod); reason != "" {
			why += ": " + reason
		}
	default:
		return
	}
	f := g.failed[a.Node]
	if f == nil {
		f = &creation{retry: backoff.New(backoff.Policy{First: time.Second, Longest: time.Minute})}
		g.failed[a.Node] = f
	}
	f.why, f.until = why, time.Now().Add(f.retry.Next())
	g.Log.Warn("kube: could not create a guard; trying again", "target", a.Node, "action", a.Name, "error", why, "next", time.Until(f.until).Round(time.Second))
}

// paused are the nodes whose pods are not created yet again, and why. A guard that runs ends the story.
func (g *Guards) paused(w GuardWorld) map[string]string {
	paused := map[string]string{}
	for name, f := range g.failed {
		pod := w.Pods[guardLabel(name)]
		switch {
		case w.Nodes[name] == nil || pod != nil && pod.Status.Phase == corev1.PodRunning && time.Since(f.until) > time.Minute:
			delete(g.failed, name)
		case time.Now().Before(f.until):
			paused[name] = f.why
		}
	}
	return paused
}

func (g *Guards) gather(ctx context.Context, r client.Reader) (GuardWorld, error) {
	w := GuardWorld{
		Image: g.Image, Namespace: lease.Namespace, Pods: map[string]*corev1.Pod{}, Sensors: map[string]*corev1.Pod{},
		Budgets: map[string]*policyv1.PodDisruptionBudget{}, Placed: map[string]Placement{}, PullSecrets: map[string][]corev1.LocalObjectReference{},
	}
	var err error
	if w.World, err = gather(ctx, r, g.Leader); err != nil {
		return w, err
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(lease.Namespace)); err != nil {
		return w, fmt.Errorf("list guards: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		switch {
		case p.Labels[GuardLabel] != "":
			w.Pods[p.Labels[GuardLabel]] = p
		case p.Labels[SensorLabel] != "":
			w.Sensors[p.Labels[SensorLabel]] = p
		case p.Labels["app.kubernetes.io/component"] == "node":
			w.PullSecrets[p.Spec.NodeName] = p.Spec.ImagePullSecrets
		}
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := r.List(ctx, &budgets, client.InNamespace(lease.Namespace), client.HasLabels{GuardLabel}); err != nil {
		return w, fmt.Errorf("list budgets of guards: %w", err)
	}
	for i := range budgets.Items {
		w.Budgets[budgets.Items[i].Labels[GuardLabel]] = &budgets.Items[i]
	}
	w.Paused = g.paused(w)
	return w, g.count(ctx, r, &w)
}

// count asks every kind what its objects place on the cordoned nodes that might go.
func (g *Guards) count(ctx context.Context, r client.Reader, w *GuardWorld) error {
	for name, n := range w.Nodes {
		if w.Core[name] == nil || !cordon.Is(w.Core[name]) || w.Live(name) && !w.gaveUp(n) {
			continue
		}
		placed := Placement{Counts: map[string]int64{}}
		for _, t := range g.Tenants(r) {
			left, err := t.Remaining(ctx, name)
			if err != nil {
				return fmt.Errorf("count %s on node %s: %w", t.Work().Name, name, err)
			}
			placed.Counts[t.Work().Name] = left.Count
			placed.Blockers = append(placed.Blockers, left.Blockers...)
		}
		w.Placed[name] = placed
	}
	return nil
}

// do writes one action. The term is checked last.
func (g *Guards) do(ctx context.Context, a *Action) error {
	if err := g.CheckTerm(ctx); err != nil {
		return err
	}
	at(g.AtStep, "before-"+a.Name)
	if err := write(ctx, g.client, a); err != nil {
		return err
	}
	at(g.AtStep, "after-"+a.Name)
	g.Log.Info("kube: action taken", "action", a.Name, "target", a.Node)
	return nil
}

// tell writes events about what holds cordoned nodes, and about guards that do not run, on the core Node and on the guard. It returns when
// to look again; 0 if only a change can bring something new.
func (g *Guards) tell(ctx context.Context, w GuardWorld) time.Duration {
	again := time.Duration(0)
	if len(w.Paused) > 0 {
		again = recount
	}
	for name, n := range w.Nodes {
		var text string
		reason := "EbbHolds"
		switch last := g.told[name]; {
		case w.Holds(name):
			again, text = recount, w.why(n, g.Works)
		case w.unguarded(n) != "":
			again, reason, text = recount, "EbbNoGuard", w.unguarded(n)
		case !last.holds:
			delete(g.told, name)
			continue
		case w.Core[name] != nil && !cordon.Is(w.Core[name]) && w.Budgets[guardLabel(name)] != nil:
			// A `kubectl drain` that goes on would wait in silence.
			text = fmt.Sprintf("Node %s is uncordoned and in service again: its guard stays, and `kubectl drain` of it waits until it is cordoned and drained.", name)
			if g.emit(ctx, reason, text, w.Core[name], w.Pods[guardLabel(name)]) == nil {
				delete(g.told, name)
			}
			continue
		default:
			delete(g.told, name)
			continue
		}
		now := time.Now()
		if text == "" || !g.told[name].due(text, now) {
			continue
		}
		if err := g.emit(ctx, reason, text, w.Core[name], w.Pods[guardLabel(name)]); err != nil {
			g.Log.Warn("kube: could not write event; trying again", "target", name, "error", err)
			continue
		}
		g.told[name] = g.told[name].said(text, now, w.Holds(name))
	}
	return again
}

func (g *Guards) emit(ctx context.Context, reason, text string, core *corev1.Node, pod *corev1.Pod) error {
	sum := sha256.Sum256([]byte(text))
	// The same text may be true again later: an event of the same minute says it already.
	key := hex.EncodeToString(sum[:8]) + "-" + strconv.FormatInt(time.Now().Unix()/60, 10)
	e := events.Event{Regarding: core, Type: corev1.EventTypeWarning, Reason: reason, Action: "Guard", Note: text, Key: key}
	if err := g.record.Emit(ctx, e); err != nil || pod == nil {
		return err
	}
	e.Regarding = pod
	return g.record.Emit(ctx, e)
}
