package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
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
	told   map[string]notice // by node
}

// notice is what an event last said of a node.
type notice struct {
	text string
	at   time.Time
}

// SetupWithManager adds the controller to a term's manager. Every watched change leads to the same request: find the next action.
func (g *Guards) SetupWithManager(mgr ctrl.Manager) error {
	g.client, g.cached, g.live = mgr.GetClient(), mgr.GetClient(), mgr.GetAPIReader()
	g.record = events.Recorder{Client: g.client, Controller: "guards", Instance: g.Leader}
	g.told = map[string]notice{}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.SettingsName}}}
	})
	isGuard := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetLabels()[GuardLabel] != "" }))
	return ctrl.NewControllerManagedBy(mgr).
		Named("guards").
		Watches(&corev1.Pod{}, one, isGuard).
		Watches(&policyv1.PodDisruptionBudget{}, one, isGuard).
		Watches(&corev1.Node{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: cordon.Changes})).
		Watches(&v1alpha1.Node{}, one).
		Watches(&v1alpha1.Drain{}, one).
		Complete(g)
}

// Reconcile takes actions until there is none to take.
func (g *Guards) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	reader := g.cached
	for range maxActions {
		w, err := g.gather(ctx, reader)
		if err != nil {
			return ctrl.Result{}, err
		}
		a := NextGuard(w)
		if a == nil {
			return ctrl.Result{RequeueAfter: g.tell(ctx, w)}, nil
		}
		if reader != g.live {
			reader = g.live // every action is decided on what was read live
			continue
		}
		if err := g.do(ctx, a); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, fmt.Errorf("kube action %s of node %s: %w", a.Name, a.Node, err)
		}
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

func (g *Guards) gather(ctx context.Context, r client.Reader) (GuardWorld, error) {
	w := GuardWorld{
		Image: g.Image, Namespace: lease.Namespace,
		Pods: map[string]*corev1.Pod{}, Budgets: map[string]*policyv1.PodDisruptionBudget{}, Placed: map[string]bool{},
	}
	var err error
	if w.Fleet, err = fleet.Read(ctx, r); err != nil {
		return w, err
	}
	if w.Core, err = ReadNodes(ctx, r); err != nil {
		return w, err
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(lease.Namespace), client.HasLabels{GuardLabel}); err != nil {
		return w, fmt.Errorf("list guards: %w", err)
	}
	for i := range pods.Items {
		w.Pods[pods.Items[i].Labels[GuardLabel]] = &pods.Items[i]
	}
	var budgets policyv1.PodDisruptionBudgetList
	if err := r.List(ctx, &budgets, client.InNamespace(lease.Namespace), client.HasLabels{GuardLabel}); err != nil {
		return w, fmt.Errorf("list budgets of guards: %w", err)
	}
	for i := range budgets.Items {
		w.Budgets[budgets.Items[i].Labels[GuardLabel]] = &budgets.Items[i]
	}
	return w, g.count(ctx, r, &w)
}

// count asks every kind what its objects place on the cordoned nodes that might go.
func (g *Guards) count(ctx context.Context, r client.Reader, w *GuardWorld) error {
	for name := range w.Nodes {
		if w.Core[name] == nil || !cordon.Is(w.Core[name]) || w.Live(name) {
			continue
		}
		w.Placed[name] = false
		for _, t := range g.Tenants(r) {
			left, err := t.Remaining(ctx, name)
			if err != nil {
				return fmt.Errorf("count %s on node %s: %w", t.Work().Name, name, err)
			}
			w.Placed[name] = w.Placed[name] || left.Count > 0
		}
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

// tell writes events about what holds cordoned nodes, on the core Node and on the guard, and returns when to look again; 0 if only a
// change can bring something new.
func (g *Guards) tell(ctx context.Context, w GuardWorld) time.Duration {
	var again time.Duration
	for name, n := range w.Nodes {
		if !w.Holds(name) {
			delete(g.told, name)
			continue
		}
		again = recount
		var list v1alpha1.DrainList
		if err := g.cached.List(ctx, &list); err != nil {
			return recount
		}
		var drains []*v1alpha1.Drain
		for i := range list.Items {
			drains = append(drains, &list.Items[i])
		}
		text := w.why(n, drains, g.Works)
		if last := g.told[name]; text == "" || last.text == text || time.Since(last.at) < noticeAfter {
			continue
		}
		if err := g.emit(ctx, text, w.Core[name], w.Pods[guardLabel(name)]); err != nil {
			g.Log.Warn("kube: could not write event; trying again", "target", name, "error", err)
			continue
		}
		g.told[name] = notice{text, time.Now()}
	}
	return again
}

func (g *Guards) emit(ctx context.Context, text string, core *corev1.Node, pod *corev1.Pod) error {
	sum := sha256.Sum256([]byte(text))
	// The same text may be true again later: an event of the same minute says it already.
	key := hex.EncodeToString(sum[:8]) + "-" + strconv.FormatInt(time.Now().Unix()/60, 10)
	e := events.Event{Regarding: core, Type: corev1.EventTypeWarning, Reason: "EbbHolds", Action: "Guard", Note: text, Key: key}
	if err := g.record.Emit(ctx, e); err != nil || pod == nil {
		return err
	}
	e.Regarding = pod
	return g.record.Emit(ctx, e)
}
