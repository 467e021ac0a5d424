package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// A drain that parks leaves the node's process running without a lease. Node.status.parked is written before the lease is released, and
// read before the next one is taken: a parked node that is restarted stays parked. While it is parked the process runs nothing but a
// watch of its own Node. An uncordoned node is not parked: its process joins in the next epoch, and removes the record.
//
//	Stopping ──▶ work stopped ──▶ status.parked ──▶ lease released ──▶ parked ──uncordoned──▶ next epoch
//	                                                                     └──Node deleted──▶ exit

var (
	// errParked: the node is parked and takes no lease.
	errParked = errors.New("the node is parked")
	// errDeleted: the Node object was deleted while the node was parked.
	errDeleted = errors.New("the Node object was deleted while the node was parked")
)

// parkedCheck is how often a parked node looks at its core Node.
const parkedCheck = 5 * time.Second

// parkedMessage is what people read of a parked node.
func parkedMessage(node string) string {
	return fmt.Sprintf("The node was drained and is parked: its process waits without a lease. `ebb uncordon %s` brings it back.", node)
}

// startsParked reports whether the node is parked when its process starts. If the API does not answer, it may be: joining finds out.
func (n *Node) startsParked(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, n.opts.Timing.Timeout)
	defer cancel()
	node, err := n.readNode(ctx)
	if err != nil {
		return false
	}
	parked, err := isParked(ctx, n.client, node)
	return err == nil && parked
}

// isParked reports whether a node is parked. Where it has a core Node, that one says whether it is cordoned: Ebb's Node shows it only while
// there is a coordinator, which may be this node.
func isParked(ctx context.Context, r client.Reader, node *v1alpha1.Node) (bool, error) {
	if !node.IsParked() {
		return false, nil
	}
	core := &corev1.Node{}
	switch err := r.Get(ctx, client.ObjectKeyFromObject(node), core); {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || meta.IsNoMatchError(err):
		return true, nil // the API has no core Nodes, or none of this name
	case err != nil:
		return false, err
	}
	return cordon.Is(core), nil
}

func (n *Node) readNode(ctx context.Context) (*v1alpha1.Node, error) {
	node := &v1alpha1.Node{}
	err := n.client.Get(ctx, types.NamespacedName{Name: n.opts.Name}, node)
	return node, err
}

// checkParked reads, with the lease held, whether the node was parked before the lease was taken: the coordinator parks a node that died
// during its drain. An epoch that begins on a node that is not parked removes the record of an earlier one.
func (n *Node) checkParked(ctx context.Context, e *Epoch) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	node, err := n.readNode(ctx)
	if err != nil {
		return err
	}
	parked, err := isParked(ctx, n.client, node)
	if err != nil {
		return err
	}
	e.set(func(e *Epoch) {
		if parked {
			e.parked = node.Status.Parked
		} else {
			e.unparked = node.Status.Parked
		}
	})
	return nil
}

// parking is what the epoch publishes as status.parked, in place of what is there. It removes only the record with which it began: one
// that the coordinator wrote since stands.
func (e *Epoch) parking(old *v1alpha1.Parked) *v1alpha1.Parked {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ready.reason == v1alpha1.ReasonParked:
		return e.parked.DeepCopy()
	case old != nil && e.unparked != nil && *old == *e.unparked:
		return nil
	}
	return old
}

// publishParked records that the node is parked. Without the record the lease is not released: a process that restarts would join.
func (n *Node) publishParked(ctx context.Context, e *Epoch) error {
	n.at("before-record-parked")
	e.set(func(e *Epoch) {
		e.ready = readiness{reason: v1alpha1.ReasonParked, message: parkedMessage(e.Node)}
	})
	err := n.insist(ctx, "record that the node is parked", n.writes(e))
	n.at("after-record-parked")
	return err
}

func (n *Node) at(point string) {
	if n.opts.AtStep != nil {
		n.opts.AtStep(point)
	}
}

// park waits, without a lease, until the node is uncordoned.
func (n *Node) park(ctx context.Context) error {
	n.opts.Metrics.current.Store(nil)
	n.log.Info("parked: waiting until the node is uncordoned")
	n.setParked(true)
	defer n.setParked(false)
	n.host.end()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	changed, err := n.watchOwn(watching)
	if err != nil {
		return err
	}
	var repeats repeatFilter
	for {
		node, err := n.readNode(ctx)
		parked := false
		if err == nil {
			parked, err = isParked(ctx, n.client, node)
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case kubeclient.IsMissing(err):
			n.log.Warn("the Node object was deleted while the node was parked; leaving")
			return errDeleted
		case err != nil:
			repeats.warn(n.log, "could not read whether the node is still parked; trying again", err)
			_ = backoff.Sleep(ctx, n.opts.Timing.Renew/4) // the next turn sees that ctx has ended
			continue
		case !parked:
			n.log.Info("unparked: the node is uncordoned")
			return nil
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(parkedCheck): // a core Node is not watched
		}
	}
}

func (n *Node) setParked(parked bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.parked, n.reason = parked, "joining"
}

// watchOwn signals every change of the node's own object, until ctx ends.
func (n *Node) watchOwn(ctx context.Context) (<-chan struct{}, error) {
	c, err := cache.New(n.opts.Config, cache.Options{
		Scheme: kubeclient.NewScheme(),
		Mapper: kubeclient.NewMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.Node{}: {Field: fields.OneTermEqualSelector("metadata.name", n.opts.Name)},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	changed := make(chan struct{}, 1)
	signal := func(*v1alpha1.Node) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	g := n.host.start([]string{"watch"}, []func(context.Context) error{c.Start})
	context.AfterFunc(ctx, func() { g.stop(nil) })
	return changed, kubeclient.Subscribe(ctx, c, kubeclient.On(signal, signal))
}
