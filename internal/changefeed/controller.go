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
	"github.com/ebb-dev/ebb/internal/changefeed/maintainer"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	// lookEvery is how often placements are reconciled without an event, while one of them is not running yet.
	lookEvery = time.Second
)

// Controller is the coordinator's side of changefeeds: it places maintainers.
type Controller struct {
	// Leader is the node that it runs on.
	Leader string
	// CheckTerm fails unless the coordinator's term still holds, read live.
	CheckTerm func(context.Context) error
	// Log of the term.
	Log *slog.Logger

	client   client.Client
	live     client.Reader
	record   events.Recorder
	settling fleet.Settling
	nowhere  bool // the event that there is no schedulable node was written

	mu     sync.Mutex
	newest map[types.UID]*v1alpha1.Changefeed // versions that are newer than those in the cache
	looked string                             // the drain for which changefeeds were last read from the API server
}

// SetupWithManager adds the controller to a term's manager. Everything that it watches leads to the same request: placements are
// planned for all changefeeds together.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.live = mgr.GetClient(), mgr.GetAPIReader()
	c.record = events.Recorder{Client: c.client, Controller: "changefeeds", Instance: c.Leader}
	c.settling = fleet.Began(time.Now())
	c.newest = map[types.UID]*v1alpha1.Changefeed{}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: v1alpha1.SettingsName}}}
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("changefeeds").
		Watches(&v1alpha1.Changefeed{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: decides})).
		Watches(&v1alpha1.Node{}, one).
		Watches(&v1alpha1.Settings{}, one).
		Watches(&coordinationv1.Lease{}, one, builder.WithPredicates(predicate.Funcs{UpdateFunc: fleet.ChangesHands})).
		Complete(c)
}

// decides reports whether an update changes anything that placements depend on. Most only publish a checkpoint or counts.
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
			return ctrl.Result{RequeueAfter: time.Millisecond}, nil // the plan is outdated: plan again
		}
		return ctrl.Result{}, err
	}
	c.warnNowhere(ctx, w)
	return ctrl.Result{RequeueAfter: c.pause(w)}, nil
}

// writeAll writes placements, a few at a time. If one fails, the others are written nevertheless.
func (c *Controller) writeAll(ctx context.Context, w World, plan []*v1alpha1.Changefeed) error {
	var g errgroup.Group
	g.SetLimit(writesAtOnce)
	for _, cf := range plan {
		g.Go(func() error {
			if err := c.write(ctx, w, cf); err != nil {
				return fmt.Errorf("write the placement of changefeed %s/%s: %w", cf.Namespace, cf.Name, err)
			}
			p, log := cf.Placement(), c.Log.With("changefeed", maintainer.KeyOf(cf).String())
			if p.Node == "" {
				log.Info("maintainer has to stop: its changefeed is paused, deleted or failed", "placement", p.Epoch)
			} else {
				log.Info("maintainer placed", "to", p.Node, "placement", p.Epoch)
			}
			return nil
		})
	}
	return g.Wait()
}

// write writes a placement. Maintainers write to the same status: if only their part has changed since the plan was made, the
// placement is written to the newer version.
func (c *Controller) write(ctx context.Context, w World, planned *v1alpha1.Changefeed) error {
	write := func(cf *v1alpha1.Changefeed) error { return c.client.Status().Update(ctx, cf) }
	written, err := kubeclient.Rewrite(ctx, c.live, planned, write, func(newest *v1alpha1.Changefeed) bool {
		i := slices.IndexFunc(w.Changefeeds, func(cf *v1alpha1.Changefeed) bool { return cf.UID == planned.UID })
		if i < 0 || newest.Generation != planned.Generation || !equality.Semantic.DeepEqual(newest.Status.Placement, w.Changefeeds[i].Status.Placement) ||
			newest.Status.State != w.Changefeeds[i].Status.State {
			return false
		}
		decide(&newest.Status, planned.Status.Placement, planned.Status.State)
		return true
	})
	if err == nil {
		c.know(written)
	}
	return err
}

// know remembers a version that the cache may not have yet.
func (c *Controller) know(cf *v1alpha1.Changefeed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest[cf.UID] = cf.DeepCopy()
}

// list reads the changefeeds from the cache, and takes newer versions where they are known. The cache of a new coordinator may lack
// what its predecessor wrote just before a drain began, so they are read from the API server once for each drain.
func (c *Controller) list(ctx context.Context, slot *v1alpha1.ActiveDrain) ([]*v1alpha1.Changefeed, error) {
	live := slot != nil && slot.UID != c.looked
	reader := client.Reader(c.client)
	if live {
		reader = c.live
	}
	var list v1alpha1.ChangefeedList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list changefeeds: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.newest
	c.newest = map[types.UID]*v1alpha1.Changefeed{}
	var all []*v1alpha1.Changefeed
	for i := range list.Items {
		cf := &list.Items[i]
		if newer := known[cf.UID]; newer != nil && kubeclient.Older(cf, newer) {
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

// pause is how soon to reconcile again.
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
	var err error
	if w.Fleet, err = fleet.Read(ctx, c.client); err != nil {
		return w, err
	}
	c.settling.Saw(w.Fleet, w.Now)
	w.Settled = c.settling.Settled(w.Fleet, w.Now)
	w.BootstrapLimit = fleet.DurationOr(w.Settings.Drain.BootstrapTimeout, DefaultBootstrapTimeout)
	if n := w.Settings.Drain.MaintainerBatchSize; n != nil {
		w.BatchSize = int(*n)
	}
	w.Changefeeds, err = c.list(ctx, w.Slot)
	return w, err
}

// keepFinalizers adds a finalizer to every changefeed, and removes it from deleted ones whose maintainers have stopped.
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
			if !cf.DeletionTimestamp.IsZero() { // it cannot be taken back
				if err := c.CheckTerm(ctx); err != nil {
					return err
				}
			}
			err := kubeclient.WriteFinalizers(ctx, c.client, cf)
			if err == nil {
				c.know(cf)
			}
			if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
				return fmt.Errorf("write the finalizers of changefeed %s/%s: %w", cf.Namespace, cf.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// warnNowhere warns, once, that there is no schedulable node for maintainers.
func (c *Controller) warnNowhere(ctx context.Context, w World) {
	stuck := len(w.SchedulableNodes()) == 0
	if !stuck || c.nowhere {
		c.nowhere = stuck
		return
	}
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		if !cf.Wanted() || p.Node != "" && !w.Over(p.Node, p.NodeEpoch) && (w.Slot == nil || w.Slot.Node != p.Node) {
			continue
		}
		c.nowhere = true
		c.Log.Warn("no schedulable node for the maintainer", "changefeed", maintainer.KeyOf(cf).String())
		err := c.record.Emit(ctx, events.Event{
			Regarding: cf, Type: corev1.EventTypeWarning, Reason: v1alpha1.ReasonNoSchedulableNode, Action: "Place",
			Note: "No schedulable node can run its maintainer: start a node or uncordon one.", Key: fmt.Sprint(p.Epoch),
		})
		if err != nil {
			c.Log.Warn("could not write an event", "error", err)
		}
	}
}
