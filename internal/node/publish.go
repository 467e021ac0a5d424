package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

const (
	// flagLabels records which labels came from the command line, so that a label that is no longer given is removed.
	flagLabels = "ebb.dev/flag-labels"
	// countEvery is how often the node checks whether its counts have changed.
	countEvery = 200 * time.Millisecond
	// writeTimeout bounds one write of the node's status.
	writeTimeout = 5 * time.Second
)

// publish keeps the Node object up to date with the epoch until ctx ends.
func (n *Node) publish(ctx context.Context, e *Epoch) {
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	var written *v1alpha1.NodeStatus // by us, as we remember it
	var repeats repeatFilter
	for {
		_, changed := e.Liveness()
		n.releaseGuard()
		var base v1alpha1.NodeStatus
		if written != nil {
			base = *written.DeepCopy() // times of transitions stay as they were
		}
		if want := n.status(e, base); written == nil || !equality.Semantic.DeepEqual(*written, want) {
			// What was written is remembered, not what was wanted before: the counts may have changed in between, and back again since.
			if status, err := n.writeStatus(ctx, e); err == nil {
				written, repeats = status, repeatFilter{}
			} else if ctx.Err() == nil {
				repeats.warn(n.log, "could not write the node's status; trying again", err)
				if backoff.Sleep(ctx, n.opts.Timing.Renew/4) != nil {
					return
				}
				continue
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
		case <-e.deleted:
			written = nil // it is made again
		}
	}
}

// writeStatus updates the Node's status, and returns it. It writes nothing once the epoch is in doubt, and the resourceVersion that was
// read guards it against changes in between.
func (n *Node) writeStatus(ctx context.Context, e *Epoch) (*v1alpha1.NodeStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for {
		node := &v1alpha1.Node{}
		err := e.Client.Get(ctx, types.NamespacedName{Name: e.Node}, node)
		if kubeclient.IsMissing(err) {
			if liveness, _ := e.Liveness(); liveness == v1alpha1.Stopping {
				return nil, nil // it was deleted, and the node leaves
			}
			n.log.Warn("the Node object was deleted while the node runs; creating it again", "epoch", e.Number)
			if err = n.register(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if node.Status.Epoch > e.Number {
			return nil, fmt.Errorf("node %s: %w: it is in epoch %d", e.Node, lease.ErrNotOurs, node.Status.Epoch)
		}
		status := n.status(e, *node.Status.DeepCopy())
		if equality.Semantic.DeepEqual(status, node.Status) {
			return &status, nil
		}
		node.Status = *status.DeepCopy() // the client replaces it by the answer
		if !e.Holding() {
			return nil, errDeadline
		}
		if err := e.Client.Status().Update(ctx, node); !apierrors.IsConflict(err) {
			return &status, err
		}
	}
}

// writes is writeStatus as a step that is insisted on.
func (n *Node) writes(e *Epoch) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := n.writeStatus(ctx, e)
		return err
	}
}

// status returns the node's own report, added to what others wrote.
func (n *Node) status(e *Epoch, old v1alpha1.NodeStatus) v1alpha1.NodeStatus {
	liveness, drain, ready := e.state()
	next := old
	if old.Epoch != e.Number || ready.reason == v1alpha1.ReasonLeft {
		// The coordinator was elected in this epoch, and publishes it itself.
		next.Coordinator = false
	}
	next.Epoch = e.Number
	next.Liveness = liveness
	next.ObservedDrain = drain
	next.Parked = e.parking(old.Parked)
	next.Address = n.opts.Address
	next.HTTPAddress = n.opts.HTTPAddress
	next.Version = n.opts.Version
	// Counted after the state was read: the counts published with a drain were taken after the gate was closed for it.
	next.Held, next.Staying = n.host.counts()
	if liveness == v1alpha1.Stopping && old.Epoch == e.Number && old.Liveness == v1alpha1.Stopping {
		lower(next.Held, old.Held)
	}
	n.host.report(&next)
	value := metav1.ConditionFalse
	if ready.ready {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{
		Type: v1alpha1.NodeReady, Status: value, Reason: ready.reason, Message: ready.message,
	})
	before := meta.IsStatusConditionTrue(old.Conditions, v1alpha1.NodeNeedsGuard)
	if needed, wanted := n.opts.Gate.NeedsGuard(before, n.opts.Gate.holdsAny(next.Held)); needed {
		meta.SetStatusCondition(&next.Conditions, needsGuard(wanted))
	}
	return next
}

// lower takes back what counts have risen: a node that is stopping takes nothing, and a runtime that has ended no longer knows what of its kind may
// stay on the node.
func lower(counts, before map[string]int64) {
	for kind, count := range before {
		if now, ok := counts[kind]; ok {
			counts[kind] = min(now, count)
		}
	}
}

// releaseGuard gives the guard up when nothing needs it any more.
func (n *Node) releaseGuard() {
	linger := guardLinger
	if n.cordoned.Load() {
		linger = cordonedLinger
	}
	n.opts.Gate.ReleaseGuard(time.Now(), linger, func() map[string]int64 {
		held, _ := n.host.counts()
		return held
	})
}

// needsGuard is the condition that asks for a guard once work has come.
func needsGuard(wanted bool) metav1.Condition {
	if wanted {
		return metav1.Condition{Type: v1alpha1.NodeNeedsGuard, Status: metav1.ConditionTrue, Reason: "Work", Message: "The node was offered work that must leave before the node does."}
	}
	return metav1.Condition{Type: v1alpha1.NodeNeedsGuard, Status: metav1.ConditionFalse, Reason: "NoWork", Message: "The node has no work that must leave before the node does."}
}

// register makes sure that the Node object exists and carries the labels of the command line.
func (n *Node) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	for {
		node := &v1alpha1.Node{}
		err := n.client.Get(ctx, types.NamespacedName{Name: n.opts.Name}, node)
		if kubeclient.IsMissing(err) {
			node = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.opts.Name}}
			applyLabels(node, n.opts.Labels)
			if err = n.client.Create(ctx, node); apierrors.IsAlreadyExists(err) {
				continue
			}
			return err
		}
		if err != nil {
			return err
		}
		before := node.DeepCopy()
		applyLabels(node, n.opts.Labels)
		if equality.Semantic.DeepEqual(before.ObjectMeta, node.ObjectMeta) {
			return nil
		}
		if err = n.client.Update(ctx, node); !apierrors.IsConflict(err) {
			return err
		}
	}
}

func applyLabels(node *v1alpha1.Node, labels map[string]string) {
	for _, key := range strings.Split(node.Annotations[flagLabels], ",") {
		if _, still := labels[key]; key != "" && !still {
			delete(node.Labels, key)
		}
	}
	if len(labels) == 0 {
		delete(node.Annotations, flagLabels)
		return
	}
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	maps.Copy(node.Labels, labels)
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[flagLabels] = strings.Join(slices.Sorted(maps.Keys(labels)), ",")
}
