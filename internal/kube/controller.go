package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
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
	"github.com/ebb-dev/ebb/internal/fleet"
)

const (
	// maxActions bounds the actions of one reconciliation; the next one continues.
	maxActions = 50
	// resignAgain is the delay before a coordinator that could not resign tries again.
	resignAgain = 5 * time.Second
)

// Controller is the coordinator's side of core Nodes. It reads the world, decides the next action, does it, and repeats.
type Controller struct {
	// Leader is the node that decides.
	Leader string
	// CheckTerm fails unless the coordinator still holds its term, read live.
	CheckTerm func(context.Context) error
	// Resign lets another node win the election. It is called in a goroutine of its own, because it waits for the end of the term.
	Resign func(context.Context) error
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every action; tests use it to crash there. It may be nil.
	AtStep func(point string)

	client client.Client
	cached client.Reader
	live   client.Reader
}

// SetupWithManager adds the controller to a term's manager. Every watched change leads to the same request: find the next action.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.cached, c.live = mgr.GetClient(), mgr.GetClient(), mgr.GetAPIReader()
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.SettingsName}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("kube").
		Watches(&corev1.Node{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: cordon.Changes})).
		Watches(&v1alpha1.Node{}, one).
		Watches(&v1alpha1.Drain{}, one).
		Watches(&v1alpha1.Settings{}, one).
		Watches(&coordinationv1.Lease{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		Complete(c)
}

// Reconcile takes actions until there is none to take. An action that fails on one node does not keep the others waiting.
func (c *Controller) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	reader := c.cached
	failed, errs := map[string]bool{}, []error(nil)
	for range maxActions {
		w, err := gather(ctx, reader, c.Leader)
		if err != nil {
			return ctrl.Result{}, err
		}
		w.Failed = failed
		a := Next(w)
		if a == nil {
			return ctrl.Result{}, errors.Join(errs...)
		}
		if reader != c.live {
			reader = c.live // every action is decided on what was read live
			continue
		}
		if a.Verb == Resign {
			go c.resign(ctx, a)
			return ctrl.Result{RequeueAfter: resignAgain}, nil
		}
		if err := c.do(ctx, a); err != nil && !outdated(err) {
			failed[a.Node] = true
			errs = append(errs, fmt.Errorf("kube action %s of node %s: %w", a.Name, a.Node, err))
		}
	}
	return ctrl.Result{RequeueAfter: time.Millisecond}, nil
}

// outdated reports whether a write failed because the world has changed: decide again.
func outdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
}

// gather reads the world through r.
func gather(ctx context.Context, r client.Reader, leader string) (World, error) {
	w := World{Leader: leader}
	var err error
	if w.Fleet, err = fleet.Read(ctx, r); err != nil {
		return w, err
	}
	if w.Core, err = ReadNodes(ctx, r); err != nil {
		return w, err
	}
	var drains v1alpha1.DrainList
	if err := r.List(ctx, &drains); err != nil {
		return w, fmt.Errorf("list drains: %w", err)
	}
	for i := range drains.Items {
		w.Drains = append(w.Drains, &drains.Items[i])
	}
	return w, nil
}

// do writes one action. The term is checked last.
func (c *Controller) do(ctx context.Context, a *Action) error {
	if err := c.CheckTerm(ctx); err != nil {
		return err
	}
	at(c.AtStep, "before-"+a.Name)
	if err := write(ctx, c.client, a); err != nil {
		return err
	}
	at(c.AtStep, "after-"+a.Name)
	c.Log.Info("kube: action taken", "action", a.Name, "target", a.Node)
	return nil
}

// write does what an action says. Deletions name the version that was read too.
func write(ctx context.Context, c client.Client, a *Action) error {
	switch a.Verb {
	case Create:
		return c.Create(ctx, a.Object)
	case Delete:
		uid, version := a.Object.GetUID(), a.Object.GetResourceVersion()
		return c.Delete(ctx, a.Object, client.Preconditions{UID: &uid, ResourceVersion: &version})
	case DeleteNow:
		uid := a.Object.GetUID()
		return c.Delete(ctx, a.Object, client.Preconditions{UID: &uid}, client.GracePeriodSeconds(0))
	case Update:
		return c.Update(ctx, a.Object)
	case UpdateStatus:
		return c.Status().Update(ctx, a.Object)
	}
	return errors.New("no such verb: " + string(a.Verb))
}

// resign hands over. It outlives the term, which ends because of it.
func (c *Controller) resign(ctx context.Context, a *Action) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignAgain)
	defer cancel()
	c.Log.Info("kube: resigning, because this node is cordoned and a coordinator cannot be drained", "target", a.Node)
	if err := c.Resign(ctx); err != nil {
		c.Log.Warn("kube: could not resign; trying again", "target", a.Node, "error", err)
	}
}

// at calls a hook of tests, if there is one.
func at(hook func(string), point string) {
	if hook != nil {
		hook(point)
	}
}
