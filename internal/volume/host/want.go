package host

import (
	"slices"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/volume/engine"
)

// Want is what the engine of a volume should do with its replicas: build those that are ready and no members, and let those go that were
// released. stopping reports whether a node is about to leave.
func Want(v *v1alpha1.Volume, replicas []*v1alpha1.Replica, stopping func(node string) bool) engine.Want {
	want := engine.Want{Leave: map[string]bool{}}
	for _, r := range replicas {
		member := slices.Contains(v.Status.Members, r.Name)
		switch release := v.ReleaseOf(r.Name); {
		case release == nil:
			if !member && r.DeletionTimestamp == nil && r.Status.State == v1alpha1.ReplicaReady && !stopping(r.Spec.NodeName) {
				want.Build = append(want.Build, r.Name)
			}
		case release.Reason == v1alpha1.ReleaseForDrain:
			if member && stopping(r.Spec.NodeName) {
				want.Leave[r.Name] = true
			}
		default:
			want.Leave[r.Name] = false
		}
	}
	slices.Sort(want.Build)
	return want
}
