package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/lease"
)

// ListCaptures reads live which nodes hold a lease, sorted by name.
func ListCaptures(ctx context.Context, r client.Reader) ([]Capture, error) {
	var nodes v1alpha1.NodeList
	if err := r.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var leases coordinationv1.LeaseList
	if err := r.List(ctx, &leases, client.InNamespace(lease.Namespace)); err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	held := map[string]bool{}
	for i := range leases.Items {
		if rec, err := lease.Read(&leases.Items[i]); err == nil && rec.Held() {
			held[rec.Node] = true
		}
	}
	leader, err := coordinator.Locate(ctx, r)
	if err != nil && !errors.Is(err, coordinator.ErrNone) {
		return nil, err
	}
	captures := []Capture{}
	for _, n := range nodes.Items {
		if held[n.Name] {
			captures = append(captures, Capture{
				ID: n.Name, Address: n.Status.HTTPAddress, IsCoordinator: n.Name == leader,
				Liveness: n.Status.Liveness, Epoch: n.Status.Epoch,
			})
		}
	}
	slices.SortFunc(captures, func(a, b Capture) int { return cmp.Compare(a.ID, b.ID) })
	return captures, nil
}
