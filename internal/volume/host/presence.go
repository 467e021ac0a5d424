package host

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Presence is how a replica counts on its node.
type Presence int

const (
	// Gone: nothing of it is there.
	Gone Presence = iota
	// Held: it has to leave, or be released, before the node may go.
	Held
	// Staying: it was released for the drain of this epoch of the node, and goes with it.
	Staying
)

// PresenceOf says how a replica counts on its node in an epoch. The volume is nil if it is gone.
func PresenceOf(v *v1alpha1.Volume, r *v1alpha1.Replica, epoch int64) Presence {
	if r.Status.State == v1alpha1.ReplicaRemoved {
		return Gone
	}
	if v != nil && string(v.UID) == r.Spec.VolumeUID {
		if e := v.ReleaseOf(r.Name); e != nil && e.Reason == v1alpha1.ReleaseForDrain && e.NodeEpoch == epoch {
			return Staying
		}
	}
	return Held
}

// CountReplicas counts the replicas on a node in an epoch: those that hold it, and those that stay until it stops.
func CountReplicas(node string, epoch int64, volumes map[types.UID]*v1alpha1.Volume, replicas []*v1alpha1.Replica) (held, staying int) {
	for _, r := range replicas {
		if r.Spec.NodeName != node {
			continue
		}
		switch PresenceOf(volumes[types.UID(r.Spec.VolumeUID)], r, epoch) {
		case Held:
			held++
		case Staying:
			staying++
		}
	}
	return held, staying
}
