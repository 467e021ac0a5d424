package health

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/health/render"
)

const (
	// maxRounds bounds the rounds of one reconciliation; the next one continues.
	maxRounds = 30
	// lookAgain is when waits are looked at again that nothing wakes: limits of age, refusals that a person lifts.
	lookAgain = 30 * time.Second
	// tryAgain is when something that was refused, or a kind that is missing, is tried again. A turn that fails is tried again sooner the first times,
	// and never much later, however long the API has failed.
	tryAgain = time.Second
	tryFirst = 10 * time.Millisecond
)

// Controller is the coordinator's side of health events. It reads the world, decides what to do, does it, and repeats.
type Controller struct {
	// Leader is the node that decides.
	Leader string
	// CheckTerm fails unless the coordinator still holds its term, read live.
	CheckTerm func(context.Context) error
	// Resign lets another node become the coordinator. It returns before the term has ended.
	Resign func(context.Context) error
	// Tenants count the work on a node.
	Tenants func(client.Reader) []drain.Tenant
	// Config, Rules and Template are what the file of --drain-config says; Template is nil without a custom drain.
	Config   *drainconfig.Config
	Rules    *Rules
	Template *render.Template
	// Core says that the API has core Nodes, and Pods that Drains move their pods.
	Core, Pods bool
	// Metrics of health events.
	Metrics *Metrics
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every step; tests use it to crash there.
	AtStep func(point string)

	client    client.Client
	cached    client.Reader
	live      client.Reader
	resources *Resources
	record    events.Recorder
	term      context.Context // ends with the term
}

// SetupWithManager adds the controller to a term's manager. Every watched change leads to the same request: find the next steps.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.cached, c.live = mgr.GetClient(), mgr.GetClient(), mgr.GetAPIReader()
	c.record = events.Recorder{Client: c.client, Controller: "healthevents", Instance: c.Leader}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: "healthevents"}}}
	})
	wake := make(chan event.GenericEvent, 1)
	term, end := context.WithCancel(context.Background())
	c.term = term
	changed := func() {
		select {
		case wake <- event.GenericEvent{Object: &v1alpha1.HealthEvent{}}:
		default: // it wakes already
		}
	}
	var err error
	if c.resources, err = NewResources(mgr.GetConfig(), c.Config.CustomDrain, c.Template, changed, c.Log); err != nil {
		end()
		return err
	}
	c.resources.atStatus = func() {
		if c.AtStep != nil {
			c.AtStep("between-health-" + string(ActionWriteStatus))
		}
	}
	stop := manager.RunnableFunc(func(ctx context.Context) error {
		defer end()
		if c.Config.CustomDrain != nil { // a missing definition shows in the log before the first event
			c.resources.Definition(term)
		}
		<-ctx.Done()
		return nil
	})
	if err := mgr.Add(stop); err != nil {
		end()
		return err
	}
	b := ctrl.NewControllerManagedBy(mgr)
	if c.Core {
		b = b.Watches(&corev1.Node{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: cordon.Changes}))
	}
	return b.Named("healthevents").
		WithOptions(controller.Options{RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](tryFirst, tryAgain)}).
		Watches(&v1alpha1.HealthEvent{}, one).
		Watches(&v1alpha1.Node{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: nodeChanges})).
		Watches(&v1alpha1.Drain{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: drainChanges})).
		Watches(&coordinationv1.Lease{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		WatchesRawSource(source.Channel(wake, one)).
		Complete(c)
}

// nodeChanges reports whether an update of a Node concerns health events. Nodes publish counts all the time.
func nodeChanges(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.Node)
	after, same := e.ObjectNew.(*v1alpha1.Node)
	return !ok || !same || before.Generation != after.Generation || !maps.Equal(before.Annotations, after.Annotations) ||
		before.Status.Liveness != after.Status.Liveness || before.IsReady() != after.IsReady()
}

// drainChanges reports whether an update of a Drain concerns health events.
func drainChanges(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.Drain)
	after, same := e.ObjectNew.(*v1alpha1.Drain)
	return !ok || !same || before.Generation != after.Generation || before.Status.Phase != after.Status.Phase ||
		!equality.Semantic.DeepEqual(before.Status.StartedAt, after.Status.StartedAt)
}

// Reconcile takes steps until there is none to take.
func (c *Controller) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	t := newTurn(c)
	defer func() { _ = t.notes.Wait() }() // none of them fails
	for range maxRounds {
		w, err := t.look(ctx)
		if err != nil {
			return ctrl.Result{}, err
		}
		steps := slices.DeleteFunc(Next(w), func(s Step) bool { return t.blocked[string(s.Event.UID)] })
		switch {
		case len(steps) == 0:
			return ctrl.Result{RequeueAfter: pause(w, len(t.blocked) > 0)}, nil
		case !t.live:
			t.live = true // what was seen in the cache is decided on what is read live
			continue
		}
		now, more := portion(steps)
		if err := t.takeAll(ctx, w, now); err != nil {
			return ctrl.Result{}, err
		}
		if more && now[0].Action.records() {
			break // what arrived meanwhile may be more urgent than the rest
		}
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

// gather reads the world, from the cache or live. If the events are known, they are not read. What a turn has read besides them is only brought up
// to date, unless it is nil.
func (c *Controller) gather(ctx context.Context, live bool, known []*v1alpha1.HealthEvent, read *reading) (World, *reading, error) {
	reader := c.cached
	if live {
		reader = c.live
	}
	w := World{Now: time.Now(), Leader: c.Leader, Config: c.Config, Pods: c.Pods, Rules: c.Rules, Resources: map[string]*unstructured.Unstructured{}, Unread: map[string]Wait{}, Work: map[string]string{}}
	// Events come first. Whoever creates a Drain records its UID in the event after that, so that a Drain whose UID an event has is among the
	// drains that are read later. In another order a Drain that the coordinator before has just created would count as gone.
	var err error
	if w.Events, err = listEvents(ctx, reader, known); err != nil {
		return w, nil, err
	}
	if read = read.reusable(&w); read != nil {
		read, err = c.refresh(ctx, read, &w)
	} else {
		read, err = c.readAll(ctx, live, &w)
	}
	if err != nil {
		return w, nil, err
	}
	read.into(&w)
	if c.Config.CustomDrain != nil {
		c.gatherResources(ctx, &w)
		w.Server = c.resources.clock.Now()
		w.Distrusted = c.resources.isDistrusted()
	}
	c.gatherWork(ctx, reader, &w)
	return w, read, nil
}

// listEvents reads all events, unless they are known.
func listEvents(ctx context.Context, r client.Reader, known []*v1alpha1.HealthEvent) ([]*v1alpha1.HealthEvent, error) {
	if known != nil {
		return slices.Clone(known), nil
	}
	var list v1alpha1.HealthEventList
	if err := r.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list health events: %w", err)
	}
	all := make([]*v1alpha1.HealthEvent, 0, len(list.Items))
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// wrapped says what failed.
func wrapped(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// gatherWork counts the work that objects place on nodes that do not run and have a drain: without a process it cannot be drained by a Drain.
func (c *Controller) gatherWork(ctx context.Context, reader client.Reader, w *World) {
	if c.Tenants == nil {
		return
	}
	nodes := map[string]bool{}
	for _, e := range w.Events {
		if isOpen(e) && eviction(e) == v1alpha1.EvictionInProgress && !w.Live(e.Spec.NodeName) && !w.movesPodsOf(e) {
			nodes[e.Spec.NodeName] = true
		}
	}
	if len(nodes) == 0 {
		return
	}
	tenants := c.Tenants(newOnceReader(reader))
	var works drain.Works
	for _, t := range tenants {
		works = append(works, t.Work())
	}
	for node := range nodes {
		counts, total := map[string]int64{}, int64(0)
		for _, t := range tenants {
			left, err := t.Remaining(ctx, node)
			if err != nil {
				w.Work[node] = fmt.Sprintf("an unknown number of %s (%v)", t.Work().Many, err)
				break
			}
			counts[t.Work().Name] = left.Count
			total += left.Count
		}
		if total > 0 && w.Work[node] == "" {
			w.Work[node] = works.Listed(counts)
		}
	}
}

// movesPodsOf reports whether the Drain of an event has yet to move the pods of its node. What else is left there is asked after that.
func (w *World) movesPodsOf(e *v1alpha1.HealthEvent) bool {
	d := e.Status.Drain
	return w.Pods && w.Core[e.Spec.NodeName] && (d == nil || d.Phase == "")
}

// gatherResources reads the custom resources that have not ended, if there are any. What cannot be read holds up its own event only.
func (c *Controller) gatherResources(ctx context.Context, w *World) {
	var running []*v1alpha1.CustomResource
	for _, e := range w.Events {
		if cr := e.Status.CustomResource; cr != nil && (cr.Outcome == "" || cr.Outcome == v1alpha1.ResourceLost) {
			running = append(running, cr)
		}
	}
	if len(running) == 0 {
		return
	}
	for range 2 {
		if w.Definition = c.resources.Definition(c.term); !w.Definition.Ready {
			return
		}
		if c.readResources(ctx, w, running); c.resources.isKnown() {
			return
		}
		// One is gone: perhaps the definition is too.
	}
}

func (c *Controller) readResources(ctx context.Context, w *World, running []*v1alpha1.CustomResource) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, cr := range running {
		if cr.UID == "" || cr.Outcome != "" {
			continue
		}
		group.Go(func() error {
			object, wait := c.resources.Get(ctx, cr)
			mu.Lock()
			defer mu.Unlock()
			if object != nil {
				w.Resources[cr.UID] = object
			}
			if wait != nil {
				w.Unread[cr.UID] = *wait
			}
			return nil
		})
	}
	_ = group.Wait() // none of them fails
}

func (r *Resources) isKnown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known
}

// pause returns when to look again if nothing changes; 0 is never.
func pause(w World, blocked bool) time.Duration {
	next := time.Duration(0)
	sooner := func(d time.Duration) {
		if d = max(d, time.Millisecond); next == 0 || d < next {
			next = d
		}
	}
	if blocked || len(w.Unread) > 0 {
		sooner(tryAgain)
	}
	for _, e := range w.Events {
		cr := e.Status.CustomResource
		if !handled(e) {
			sooner(lookAgain)
		}
		if cr == nil || cr.Outcome != "" && cr.Outcome != v1alpha1.ResourceLost || w.Config.CustomDrain == nil {
			continue
		}
		switch {
		case !w.Definition.Ready || w.Distrusted:
			sooner(tryAgain)
		case cr.CreatedAt != nil && !w.Server.IsZero():
			sooner(cr.CreatedAt.Add(w.Config.CustomDrain.Timeout).Sub(w.Server))
		}
	}
	return next
}
