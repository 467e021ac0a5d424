package pod

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// termFresh is for how long the answer about the term counts for evictions. Requests of an ended term are refused in any case: the client
// of a term sends none, and the policies of Kubernetes admit only the coordinator's.
const termFresh = 250 * time.Millisecond

// Controller is the coordinator's side of pods. It has a worker for each drain that moves pods.
type Controller struct {
	// CheckTerm fails unless the coordinator still holds its term, read live.
	CheckTerm func(context.Context) error
	// Config has the modes, and Limits those of the requests.
	Config *drainconfig.Config
	Limits Limits
	// Tenants of all kinds: a drain of pods alone is not complete while work of Ebb is placed on its node.
	Tenants func(client.Reader) []drain.Tenant
	// Metrics of evictions.
	Metrics *Metrics
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every step; tests use it to crash there. It may be nil.
	AtStep func(point string)

	client  client.Client
	cached  client.Reader
	live    client.Reader
	kube    kubernetes.Interface
	budgets *budgetWatch
	term    context.Context // ends with the term
	places  chan struct{}   // one for each request that may be under way
	turns   *turns
	clock   *kubeclient.ServerClock
	running sync.WaitGroup

	mu      sync.Mutex
	workers map[types.UID]*nodeWorker

	checking sync.Mutex
	checked  time.Time
}

// SetupWithManager adds the controller to a term's manager. A change of a drain, of a core Node's cordon or of a lease wakes the workers
// that it concerns.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.cached, c.live = mgr.GetClient(), mgr.GetClient(), mgr.GetAPIReader()
	cfg := rest.CopyConfig(mgr.GetConfig())
	// Core types speak protobuf. The limit is this client's own, so that evictions delay nothing else.
	cfg.ContentType, cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	cfg.QPS, cfg.Burst = float32(c.Limits.PerSecond), c.Limits.PerSecond
	c.clock = kubeclient.NewServerClock()
	cfg.Wrap(c.clock.Watch)
	var err error
	if c.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return fmt.Errorf("client of evictions: %w", err)
	}
	term, end := context.WithCancel(context.Background())
	c.term, c.places, c.workers = term, make(chan struct{}, c.Limits.Parallel), map[types.UID]*nodeWorker{}
	c.turns = newTurns(beginAtOnce)
	c.budgets = &budgetWatch{kube: c.kube, changed: c.wakeNamespace}
	stop := manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		c.mu.Lock()
		end() // no worker is begun from here on
		c.mu.Unlock()
		c.running.Wait()
		return nil
	})
	if err := mgr.Add(stop); err != nil {
		end()
		return err
	}
	none := func(context.Context, client.Object) []reconcile.Request { return nil }
	wakes := func(name func(client.Object) string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			c.wakeNode(name(o))
			return none(ctx, o)
		})
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.Drain{}).
		Watches(&corev1.Node{}, wakes(client.Object.GetName), builder.WithPredicates(predicate.Funcs{UpdateFunc: cordon.Changes})).
		Watches(&v1alpha1.Settings{}, wakes(func(client.Object) string { return "" })).
		Watches(&coordinationv1.Lease{}, wakes(nodeOfLease), builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		Complete(c)
}

// nodeOfLease is the node of a lease; "-" is no node's name.
func nodeOfLease(o client.Object) string {
	if l, ok := o.(*coordinationv1.Lease); ok {
		if name, ok := lease.NodeOf(l); ok {
			return name
		}
	}
	return "-"
}

// Reconcile gives a drain to its worker.
func (c *Controller) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	d := &v1alpha1.Drain{}
	err := c.cached.Get(ctx, r.NamespacedName, d)
	if kubeclient.IsMissing(err) {
		c.gone(r.Name)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.workers[d.UID]; w != nil {
		w.See(d)
		return ctrl.Result{}, nil
	}
	c.replaced(d)
	if d.Status.Phase.Final() || !d.WantsPods() || c.term.Err() != nil {
		return ctrl.Result{}, nil
	}
	w := newNodeWorker(c, d)
	c.workers[d.UID] = w
	c.Metrics.draining.Set(float64(len(c.workers)))
	c.running.Add(1)
	go func() {
		defer c.running.Done()
		w.run(c.term)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.workers, d.UID)
		c.Metrics.draining.Set(float64(len(c.workers)))
	}()
	return ctrl.Result{}, nil
}

// gone ends the workers of a drain that was deleted.
func (c *Controller) gone(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, w := range c.workers {
		if d, _ := w.Newest(); d.Name == name {
			w.Delete(uid)
		}
	}
}

// replaced ends the worker of a drain that was deleted and has been made again under its name. The caller holds mu.
func (c *Controller) replaced(by *v1alpha1.Drain) {
	for uid, w := range c.workers {
		if d, _ := w.Newest(); d.Name == by.Name && uid != by.UID {
			w.Delete(uid)
		}
	}
}

// wakeNode wakes the workers of a node; "" is every node.
func (c *Controller) wakeNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.workers {
		if name == "" || w.node == name {
			w.Wake()
		}
	}
}

// wakeNamespace wakes the workers that have pods in a namespace.
func (c *Controller) wakeNamespace(namespace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.workers {
		if w.concerns(namespace) {
			w.Wake()
		}
	}
}

// writeInterval is how often each of the drains may write its progress.
func (c *Controller) writeInterval() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(len(c.workers)) * writesApart
}

// limited calls send when one of the places is free.
func (c *Controller) limited(ctx context.Context, send func() error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case c.places <- struct{}{}:
	}
	defer func() { <-c.places }()
	return send()
}

// checkTermRecently checks the term, or relies on a check that was a moment old when the caller asked. Whoever asks during a check gets its
// answer: if each made its own, one after another, a slow API server would make everybody wait for all of them.
func (c *Controller) checkTermRecently(ctx context.Context) error {
	asked := time.Now()
	c.checking.Lock()
	defer c.checking.Unlock()
	if asked.Sub(c.checked) < termFresh {
		return nil
	}
	began := time.Now()
	if err := c.CheckTerm(ctx); err != nil {
		return err
	}
	c.checked = began
	return nil
}

func (c *Controller) at(point string) {
	if c.AtStep != nil {
		c.AtStep(point)
	}
}
