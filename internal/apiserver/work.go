package apiserver

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

// validateNodeWrite checks a node's write to an object of work with the rules that the object's kind declares.
func (r *rules) validateNodeWrite(ctx context.Context, a admission.Attributes) error {
	node, isNode := identity.NodeName(a.GetUserInfo().GetName())
	if !isNode {
		return nil
	}
	resource := a.GetResource().Resource
	writes := r.policy.objects[resource].Node
	if writes == nil || a.GetOperation() != admission.Update {
		return fmt.Errorf("node %s may not write %s", node, resource)
	}
	if err := r.validateHosts(ctx, node, writes.Runtime); err != nil {
		return err
	}
	w := access.Write{Node: node, Old: content(a.GetOldObject()), New: content(a.GetObject()), Status: a.GetSubresource() == "status", Lease: r.leaseOf}
	return writes.Judge(ctx, w)
}

// validateHosts: a node may write only about kinds of work that it hosts, as its published counts show.
func (r *rules) validateHosts(ctx context.Context, node, runtime string) error {
	for _, cached := range []bool{true, false} {
		n, err := r.readNode(ctx, node, cached)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("read node %s: %w", node, err))
		}
		if _, ok := n.Status.Held[runtime]; ok {
			return nil
		}
	}
	return fmt.Errorf("node %s does not host %s", node, runtime)
}

// leaseOf reads a node's lease live; the record of a missing lease is empty.
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

func content(object runtime.Object) *unstructured.Unstructured {
	u, _ := object.(*unstructured.Unstructured)
	return u
}
