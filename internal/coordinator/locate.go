package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
)

// ErrNone: there is no coordinator.
var ErrNone = errors.New("there is no coordinator: a new one is elected within the duration of a lease")

// Locate returns the coordinator's node from the election's Lease, read live. It fails with ErrNone if there is no coordinator.
func Locate(ctx context.Context, r client.Reader) (string, error) {
	l := &coordinationv1.Lease{}
	err := r.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.CoordinatorName}, l)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read the election's lease: %w", err)
	}
	if err != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", ErrNone
	}
	return NodeOf(*l.Spec.HolderIdentity), nil
}

// URL returns the URL of the coordinator's HTTP API.
func URL(ctx context.Context, r client.Reader) (*url.URL, error) {
	name, err := Locate(ctx, r)
	if err != nil {
		return nil, err
	}
	n := &v1alpha1.Node{}
	if err := r.Get(ctx, types.NamespacedName{Name: name}, n); err != nil {
		return nil, fmt.Errorf("coordinator %s: %w", name, err)
	}
	u, err := url.Parse(n.Status.HTTPAddress)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("coordinator %s has published no usable HTTP address (%q)", name, n.Status.HTTPAddress)
	}
	return u, nil
}
