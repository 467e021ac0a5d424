package changefeed

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
)

const (
	// lookEvery is how often placements are looked at when nothing happens, while something is on its way.
	lookEvery = time.Second
)

// Controller is the coordinator's side of changefeeds: it places maintainers.
type Controller struct {
	// Leader is the node that it runs on.
	Leader string
	// Log of the term.
	Log *slog.Logger

	client  client.Client
	live    client.Reader
	record  events.Recorder
	drained time.Time // when a drain was last seen
	nowhere bool      // it was told that there is no schedulable node

	mu     sync.Mutex
	newest map[types.UID]*v1alpha1.Changefeed // what is known to be newer than the cache
	looked string                             // the drain at whose beginning changefeeds were read live
}

// SetupWithManager adds the controller to a term's manager. Everything it watches is one question: who maintains what?
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.live = mgr.GetClient(), mgr.GetAPIReader()
	c.record = events.Recorder{Client: c.client, Controller: "changefeeds", Instance: c.Leader}
	c.drained = time.Now() // one may just have ended
	c.newest = map[types.UID]*v1alpha1.Changefeed{}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.SettingsName}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("changefeeds").
		Watches(&v1alpha1.Changefeed{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: decides})).
		Watches(&v1alpha1.Node{}, one).
		Watches(&v1alpha1.Settings{}, one).
		Watches(&coordinationv1.Lease{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: node.ChangesHands})).
		Complete(c)
}

// decides says whether an update changes anything that placements rest on. Most of them only tell how far a changefeed is.
func decides(e event.UpdateEvent) bool {
	a, ok := e.ObjectOld.(*v1alpha1.Changefeed)
	b, same := e.ObjectNew.(*v1alpha1.Changefeed)
	return !ok || !same || a.Generation != b.Generation || !a.DeletionTimestamp.Equal(b.DeletionTimestamp) || a.Status.State != b.Status.State || !slices.Equal(a.Finalizers, b.Finalizers) ||
		!equality.Semantic.DeepEqual(a.Status.Placement, b.Status.Placement)
}

// Reconcile writes the placements that are due.
func (c *Controller) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	w, err := c.gather(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	if len(w.Changefeeds) == 0 {
		return ctrl.Result{}, nil
	}
	if err := c.keepFinalizers(ctx, w); err != nil {
		return ctrl.Result{}, err
	}
	if err := c.writeAll(ctx, w, Place(w)); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: time.Millisecond}, nil // somebody wrote first: look again
		}
		return ctrl.Result{}, err
	}
	c.tellNowhere(ctx, w)
	return ctrl.Result{RequeueAfter: c.pause(w)}, nil
}

// writeAll writes placements, a few at once. One that fails does not hold up the others.
func (c *Controller) writeAll(ctx context.Context, w World, plan []*v1alpha1.Changefeed) error {
	var g errgroup.Group
	g.SetLimit(writesAtOnce)
	for _, cf := range plan {
		g.Go(func() error {
			if err := c.write(ctx, w, cf); err != nil {
				return fmt.Errorf("changefeed %s/%s: %w", cf.Namespace, cf.Name, err)
			}
			p := cf.Placement()
			c.Log.Info("maintainer placed", "changefeed", keyOf(cf).String(), "on", p.Node, "placement", p.Epoch)
			return nil
		})
	}
	return g.Wait()
}

// write writes a placement. A maintainer writes its counts all the time: what the plan rests on is the placement and the wish, and
// while these are the same the placement is written over a newer version.
func (c *Controller) write(ctx context.Context, w World, planned *v1alpha1.Changefeed) error {
	write := func(cf *v1alpha1.Changefeed) error { return c.client.Status().Update(ctx, cf) }
	written, err := kubeclient.Rewrite(ctx, c.live, planned, write, func(newest *v1alpha1.Changefeed) bool {
		i := slices.IndexFunc(w.Changefeeds, func(cf *v1alpha1.Changefeed) bool { return cf.UID == planned.UID })
		if i < 0 || newest.Generation != planned.Generation || !equality.Semantic.DeepEqual(newest.Status.Placement, w.Changefeeds[i].Status.Placement) ||
			newest.Status.State != w.Changefeeds[i].Status.State {
			return false
		}
		newest.Status.Placement, newest.Status.State = planned.Status.Placement, planned.Status.State
		return true
	})
	if err == nil {
		c.know(written)
	}
	return err
}

// know takes note of a version that the cache may not have yet.
func (c *Controller) know(cf *v1alpha1.Changefeed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest[cf.UID] = cf.DeepCopy()
}

// list reads the changefeeds from the cache, where nothing newer is known. What was written just before a drain began counts, and
// the cache of a new coordinator may not have it: they are read live once for each drain.
func (c *Controller) list(ctx context.Context, slot *v1alpha1.ActiveDrain) ([]*v1alpha1.Changefeed, error) {
	live := slot != nil && slot.UID != c.looked
	reader := client.Reader(c.client)
	if live {
		reader = c.live
	}
	var list v1alpha1.ChangefeedList
	if err := reader.List(ctx, &list); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.newest
	c.newest = map[types.UID]*v1alpha1.Changefeed{}
	var all []*v1alpha1.Changefeed
	for i := range list.Items {
		cf := &list.Items[i]
		if newer := known[cf.UID]; newer != nil && older(cf, newer) {
			cf = newer.DeepCopy()
			c.newest[cf.UID] = newer
		} else if live {
			c.newest[cf.UID] = cf.DeepCopy()
		}
		all = append(all, cf)
	}
	if live {
		c.looked = slot.UID
	}
	return all, nil
}

// pause is how soon to look again.
func (c *Controller) pause(w World) time.Duration {
	if w.Slot != nil || !w.Settled {
		return lookEvery
	}
	for _, cf := range w.Changefeeds {
		if cf.Wanted() && cf.Placement().Phase != v1alpha1.PlacementRunning {
			return lookEvery
		}
	}
	return 30 * time.Second
}

func (c *Controller) gather(ctx context.Context) (World, error) {
	w := World{Now: time.Now()}
	base, err := deployment.ReadWorld(ctx, c.client)
	if err != nil {
		return w, err
	}
	w.Nodes, w.Leases = base.Nodes, base.Leases
	settings := &v1alpha1.Settings{}
	if err := c.client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return w, err
	}
	w.Slot = settings.Status.ActiveDrain
	if w.Slot != nil {
		c.drained = w.Now
	}
	w.Settled = w.Now.Sub(c.drained) > BalanceAfter(settings)
	w.BootstrapLimit = durationOr(settings.Spec.Drain.BootstrapTimeout, DefaultBootstrapTimeout)
	if n := settings.Spec.Drain.MaintainerBatchSize; n != nil {
		w.BatchSize = int(*n)
	}
	w.Changefeeds, err = c.list(ctx, w.Slot)
	return w, err
}

// keepFinalizers holds changefeeds until their maintainers have stopped.
func (c *Controller) keepFinalizers(ctx context.Context, w World) error {
	var g errgroup.Group
	g.SetLimit(writesAtOnce)
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		gone := p.Node == "" && (p.From == nil || w.gone(p.From))
		changed := false
		if cf.DeletionTimestamp.IsZero() {
			changed = controllerutil.AddFinalizer(cf, v1alpha1.ChangefeedFinalizer)
		} else if gone {
			changed = controllerutil.RemoveFinalizer(cf, v1alpha1.ChangefeedFinalizer)
		}
		if !changed {
			continue
		}
		g.Go(func() error {
			err := c.client.Update(ctx, cf)
			if err == nil {
				c.know(cf)
			}
			if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
				return fmt.Errorf("changefeed %s/%s: %w", cf.Namespace, cf.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// tellNowhere warns, once, that there is no node to place maintainers on.
func (c *Controller) tellNowhere(ctx context.Context, w World) {
	stuck := len(w.Schedulable()) == 0
	if !stuck || c.nowhere {
		c.nowhere = stuck
		return
	}
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		if !cf.Wanted() || p.Node != "" && !w.over(p.Node, p.NodeEpoch) && (w.Slot == nil || w.Slot.Node != p.Node) {
			continue
		}
		c.nowhere = true
		c.Log.Warn("no schedulable node", "changefeed", keyOf(cf).String())
		err := c.record.Emit(ctx, events.Event{
			Regarding: cf, Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonNoSchedulableNode, Action: "Place",
			Note: "No node may take its maintainer: start, uncordon or free one.", Key: fmt.Sprint(p.Epoch),
		})
		if err != nil {
			c.Log.Warn("event not written", "error", err)
		}
	}
}
