package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

// Errors of a request to resign.
var (
	// ErrNotCoordinator: this node has no term to give up.
	ErrNotCoordinator = errors.New("this node is not the coordinator")
	// ErrNoSuccessor: no other node could take over.
	ErrNoSuccessor = errors.New("no other node can take over: none is Alive, Ready and not being drained")
)

// Resign ends the term that runs here and keeps this node from the next one. It returns when the election is free.
func (c *Campaign) Resign(ctx context.Context) error {
	l, err := c.resign(ctx)
	if err != nil {
		return err
	}
	select {
	case <-l.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("resigned, but the election has not been released yet: %w", context.Cause(ctx))
	}
}

// RequestResign ends the term that runs here, like Resign, but does not wait for its end: for controllers, which are part of the term.
func (c *Campaign) RequestResign(ctx context.Context) error {
	_, err := c.resign(ctx)
	return err
}

func (c *Campaign) resign(ctx context.Context) (*leadership, error) {
	c.mu.Lock()
	l := c.leading
	c.mu.Unlock()
	if l == nil {
		return nil, ErrNotCoordinator
	}
	if err := c.successor(ctx, l.epoch); err != nil {
		return nil, err
	}
	l.resign()
	return l, nil
}

// successor makes sure that some other node could win.
func (c *Campaign) successor(ctx context.Context, e *node.Epoch) error {
	var nodes v1alpha1.NodeList
	if err := e.Client.List(ctx, &nodes); err != nil {
		return err
	}
	settings := &v1alpha1.Settings{}
	if err := e.Client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		named := settings.Status.ActiveDrain != nil && settings.Status.ActiveDrain.Node == n.Name
		if n.Name != e.Node && !named && n.IsReady() && n.Status.Liveness == v1alpha1.Alive {
			return nil
		}
	}
	return ErrNoSuccessor
}

// sitOut waits until another node is coordinator, or until none has become it although the election would have expired, in case the
// release was lost. Time during which the API does not answer does not count, because no node can be elected then.
//
// Another node may have a request on its way that times out although the API is back, see the last renewal only after that, count the
// duration from there, and look again a while after it has passed. An elector waits for up to 2.2 retries between two looks.
func (c *Campaign) sitOut(ctx context.Context) {
	patience := c.opts.Timing.Timeout + c.duration() + 6*c.retry()
	for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; waitAny(ctx, c.retry()) {
		l, err := c.client.Leases(lease.Namespace).Get(ctx, lease.CoordinatorName, metav1.GetOptions{})
		switch {
		case kubeclient.IsMissing(err):
		case err != nil:
			end = time.Now().Add(patience)
		case l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" && !c.isOwn(*l.Spec.HolderIdentity):
			return
		}
	}
}
