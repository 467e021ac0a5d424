package apiserver

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

// validateDeployment bounds what a node may write: the address, and that only to itself; the holder, from nobody or from a
// node on which nobody lives, in an epoch that stands; its own instance.
func (r *rules) validateDeployment(ctx context.Context, a admission.Attributes) error {
	node, isNode := identity.NodeName(a.GetUserInfo().GetName())
	if !isNode || a.GetOperation() == admission.Delete {
		return nil
	}
	next, err := deployment(a.GetObject())
	if err != nil {
		return err
	}
	old, err := deployment(a.GetOldObject())
	if err != nil {
		return err
	}
	if a.GetSubresource() == "status" {
		if err := r.validateHolder(ctx, node, old, next); err != nil {
			return err
		}
		return r.validateInstances(ctx, node, old, next)
	}
	if old.Spec.Address != next.Spec.Address && next.Spec.Address != node {
		return fmt.Errorf("node %s may claim a deployment for itself only, not for %q", node, next.Spec.Address)
	}
	old.Spec.Address = next.Spec.Address
	if !equality.Semantic.DeepEqual(old.Spec, next.Spec) {
		return fmt.Errorf("node %s may change nothing of a deployment's spec but its address", node)
	}
	added := slices.Clone(old.Finalizers)
	if !slices.Contains(added, v1alpha1.DeploymentFinalizer) {
		added = append(added, v1alpha1.DeploymentFinalizer)
	}
	if !slices.Equal(next.Finalizers, old.Finalizers) && !slices.Equal(next.Finalizers, added) || !equality.Semantic.DeepEqual(next.OwnerReferences, old.OwnerReferences) {
		return fmt.Errorf("node %s may put no finalizers or owners on a deployment but %s, and take none away", node, v1alpha1.DeploymentFinalizer)
	}
	return nil
}

func deployment(object runtime.Object) (*v1alpha1.Deployment, error) {
	d := &v1alpha1.Deployment{}
	u, ok := object.(*unstructured.Unstructured)
	if !ok || u == nil {
		return d, nil
	}
	return d, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, d)
}

func (r *rules) validateHolder(ctx context.Context, node string, old, next *v1alpha1.Deployment) error {
	was, is := old.Holder(), next.Holder()
	switch {
	case was == is:
		return nil
	case is.Node == "" && was.Node == node:
		return nil
	case is.Node != node:
		return fmt.Errorf("node %s may take a deployment for itself, and give back its own; the holder was %q", node, was.Node)
	case next.Spec.Type != v1alpha1.TypeDeployment || next.Spec.Address != node:
		return fmt.Errorf("node %s may not take a deployment that is addressed to %q", node, next.Spec.Address)
	}
	if err := r.epochStands(ctx, node, is.NodeEpoch, "take a deployment in"); err != nil {
		return err
	}
	for i := range next.Status.Nodes {
		if err := r.nobodyLives(ctx, node, next.Status.Nodes[i].Node, "may run the program"); err != nil {
			return err
		}
	}
	return r.nobodyLives(ctx, node, was.Node, "holds the deployment")
}

// epochStands fails unless a node's lease is held in an epoch.
func (r *rules) epochStands(ctx context.Context, node string, epoch int64, does string) error {
	rec, err := r.leaseOf(ctx, node)
	if err == nil && (rec.Epoch != epoch || rec.Over(epoch)) {
		err = fmt.Errorf("node %s may not %s epoch %d: its lease is in epoch %d, fenced up to %d", node, does, epoch, rec.Epoch, rec.Fenced)
	}
	return err
}

// nobodyLives fails while some process may live on another node.
func (r *rules) nobodyLives(ctx context.Context, node, other, does string) error {
	if other == "" || other == node {
		return nil
	}
	rec, err := r.leaseOf(ctx, other)
	if err == nil && rec.Held() {
		err = fmt.Errorf("node %s %s and its lease stands", other, does)
	}
	return err
}

// leaseOf reads a node's lease live; one that is not there is nobody's.
func (r *rules) leaseOf(ctx context.Context, node string) (lease.Record, error) {
	l, err := r.readLease(ctx, lease.NameOf(node))
	if err != nil {
		return lease.Record{}, apierrors.NewInternalError(fmt.Errorf("read the lease of node %s: %w", node, err))
	}
	if l == nil {
		return lease.Record{Node: node}, nil
	}
	return lease.Read(l)
}

// validateInstances: a node writes its own, and may take away those of nodes on which nobody lives.
func (r *rules) validateInstances(ctx context.Context, node string, old, next *v1alpha1.Deployment) error {
	for i := range next.Status.Nodes {
		is := &next.Status.Nodes[i]
		if was := old.Instance(is.Node); was != nil && equality.Semantic.DeepEqual(was, is) {
			continue
		}
		if is.Node != node {
			return fmt.Errorf("node %s may not speak for node %s", node, is.Node)
		}
		if err := r.epochStands(ctx, node, is.NodeEpoch, "speak for"); err != nil {
			return err
		}
	}
	for i := range old.Status.Nodes {
		was := old.Status.Nodes[i].Node
		if next.Instance(was) == nil {
			if err := r.nobodyLives(ctx, node, was, "may run the program"); err != nil {
				return err
			}
		}
	}
	return nil
}
