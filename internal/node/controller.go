package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// Controller is the coordinator's side of nodes: it fences lost nodes and publishes in every Node's status what the
// node cannot report itself.
type Controller struct {
	// Epoch of the node that leads, with its detector of lost nodes.
	Epoch *Epoch
	// CheckTerm fails unless the coordinator still holds its term, read live.
	CheckTerm func(context.Context) error
	// Interval at which the loss detector is checked.
	Interval time.Duration
	// Log of the term.
	Log *slog.Logger

	client client.Client
	live   client.Reader
	record events.Recorder
}

// SetupWithManager adds the controller to a term's manager.
func (c *Controller) SetupWithManager(mgr ctrl.Manager) error {
	c.client, c.live = mgr.GetClient(), mgr.GetAPIReader()
	c.record = events.Recorder{Client: c.client, Controller: "nodes", Instance: c.Epoch.Node}
	if err := mgr.Add(manager.RunnableFunc(c.markLost)); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("nodes").
		For(&v1alpha1.Node{}).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			if name, ok := lease.NodeOf(o); ok {
				return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
			}
			return nil
		})).
		Complete(c)
}

// Reconcile brings one Node's status in line with its Lease and the election.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node := &v1alpha1.Node{}
	if err := c.client.Get(ctx, req.NamespacedName, node); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	rec, err := c.readRecord(ctx, c.client, node.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	next := project(node, rec, c.Epoch.Node)
	if equality.Semantic.DeepEqual(next, node.Status) {
		return ctrl.Result{}, nil
	}
	node.Status = next
	if err := c.client.Status().Update(ctx, node); err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: c.Interval}, nil // the cache is behind
		}
		return ctrl.Result{}, fmt.Errorf("node %s: %w", node.Name, err)
	}
	return ctrl.Result{}, nil
}

func (c *Controller) readRecord(ctx context.Context, r client.Reader, node string) (*lease.Record, error) {
	l := &coordinationv1.Lease{}
	err := r.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(node)}, l)
	if kubeclient.IsMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lease of node %s: %w", node, err)
	}
	rec, err := lease.Read(l)
	return &rec, err
}

// markLost fences the nodes that the loss detector nominates, until ctx ends.
func (c *Controller) markLost(ctx context.Context) error {
	for backoff.Sleep(ctx, c.Interval) == nil {
		for _, rec := range c.Epoch.LossDetector.Lost(c.Epoch.Now()) {
			err := c.mark(ctx, rec)
			if err != nil && !errors.Is(err, lease.ErrChanged) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				c.Log.Warn("could not fence a lost node; trying again", "target", rec.Node, "epoch", rec.Epoch, "error", err)
			}
		}
	}
	return nil
}

// mark fences an epoch. This is irreversible, so it reads live: the Lease, which must still be the one that was watched, and last the
// coordinator's own term.
func (c *Controller) mark(ctx context.Context, watched lease.Record) error {
	l := &coordinationv1.Lease{}
	if err := c.live.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(watched.Node)}, l); err != nil {
		return err
	}
	if rec, err := lease.Read(l); err == nil {
		c.Epoch.LossDetector.Saw(rec, c.Epoch.Now()) // a stalled watch may have shown an old one
	}
	marked, err := lease.Fence(l, watched)
	if err != nil {
		return err
	}
	if err := c.CheckTerm(ctx); err != nil {
		return err
	}
	if err := c.client.Update(ctx, marked); err != nil {
		return err
	}
	c.Log.Warn("node is lost; fenced its epoch", "target", watched.Node, "epoch", watched.Epoch)
	return c.emitLost(ctx, watched)
}

func (c *Controller) emitLost(ctx context.Context, rec lease.Record) error {
	node := &v1alpha1.Node{}
	if err := c.live.Get(ctx, types.NamespacedName{Name: rec.Node}, node); err != nil {
		return client.IgnoreNotFound(err)
	}
	return c.record.Emit(ctx, events.Event{
		Regarding: node, Type: corev1.EventTypeWarning, Reason: "NodeLost", Action: "Fence",
		Note: fmt.Sprintf("Epoch %d of node %s is fenced: its lease was not renewed for %s.", rec.Epoch, rec.Node, rec.Duration),
		Key:  strconv.FormatInt(rec.Epoch, 10),
	})
}
