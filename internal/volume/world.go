package volume

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kind"
)

const (
	// DefaultReplenishmentWait is how long a replica may be away with its node before another is built, unless the settings say otherwise.
	DefaultReplenishmentWait = 10 * time.Minute
	// DefaultClientGrace is how long clients of a volume on a draining node may stay connected.
	DefaultClientGrace = time.Minute
	// forever is how long a node is gone whose object a person deleted.
	forever = 365 * 24 * time.Hour
)

// Cluster is all volumes with what decides about them, read at one time.
type Cluster struct {
	Now time.Time
	fleet.Fleet
	// Drain is the one in the slot, or nil if there is none or its object is gone.
	Drain *v1alpha1.Drain
	// Volumes and Replicas of all namespaces.
	Volumes  []*v1alpha1.Volume
	Replicas []*v1alpha1.Replica
}

// World is what a plan for one volume is based on.
type World struct {
	Now time.Time
	fleet.Fleet
	// Drain is the one in the slot, or nil.
	Drain *v1alpha1.Drain
	// Volume of the plan.
	Volume *v1alpha1.Volume
	// Replicas are the volume's, sorted by number.
	Replicas []*v1alpha1.Replica
	// Everyone are the replicas of all volumes, which use space on the same disks.
	Everyone []*v1alpha1.Replica
	// Orphans are replicas of a former volume of the same name that somebody deleted by force.
	Orphans []*v1alpha1.Replica
}

// World is what decides about one volume.
func (c Cluster) World(v *v1alpha1.Volume) World {
	w := World{Now: c.Now, Fleet: c.Fleet, Drain: c.Drain, Volume: v, Everyone: c.Replicas}
	for _, r := range c.Replicas {
		if r.Namespace == v.Namespace && r.Spec.VolumeName == v.Name && r.Spec.VolumeUID == string(v.UID) {
			w.Replicas = append(w.Replicas, r)
		}
	}
	sortReplicas(w.Replicas)
	return w
}

// Volume returns the volume of a replica, or nil if it is gone.
func (c Cluster) Volume(r *v1alpha1.Replica) *v1alpha1.Volume {
	for _, v := range c.Volumes {
		if v.Namespace == r.Namespace && v.Name == r.Spec.VolumeName && string(v.UID) == r.Spec.VolumeUID {
			return v
		}
	}
	return nil
}

// sortReplicas sorts replicas of a volume by their number.
func sortReplicas(list []*v1alpha1.Replica) {
	slices.SortFunc(list, func(a, b *v1alpha1.Replica) int {
		return cmp.Or(cmp.Compare(number(a.Name), number(b.Name)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// number of a replica: the 3 of data-r3.
func number(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndex(name, "-r")+len("-r"):])
	return n
}

// policy is the node drain policy in force.
func policyOf(f fleet.Fleet) v1alpha1.NodeDrainPolicy {
	return cmp.Or(f.Settings.NodeDrainPolicy, v1alpha1.BlockIfContainsLastReplica)
}

func (w World) policy() v1alpha1.NodeDrainPolicy { return policyOf(w.Fleet) }

func (w World) replenishmentWait() time.Duration {
	if set := w.Settings.Volumes.ReplicaReplenishmentWait; set != nil {
		return set.Duration
	}
	return DefaultReplenishmentWait
}

func (w World) clientGrace() time.Duration {
	if set := w.Settings.Drain.ClientGrace; set != nil {
		return set.Duration
	}
	return DefaultClientGrace
}

// name of the volume as people know it.
func (w World) name() string { return kind.NameIn(w.Volume.Namespace, w.Volume.Name) }

// replica returns one of the volume's replicas by name, or nil.
func (w World) replica(name string) *v1alpha1.Replica {
	for _, r := range w.Replicas {
		if r.Name == name {
			return r
		}
	}
	return nil
}

func (w World) member(r *v1alpha1.Replica) bool {
	return slices.Contains(w.Volume.Status.Members, r.Name)
}

func deleting(o metav1.Object) bool {
	return !o.GetDeletionTimestamp().IsZero()
}

// Healthy reports whether a replica has every acknowledged write.
func (w World) Healthy(r *v1alpha1.Replica) bool {
	return w.member(r) && r.Status.State != v1alpha1.ReplicaFailed
}

// Unused reports whether a replica was never healthy, so that it has no data.
func (w World) Unused(r *v1alpha1.Replica) bool {
	return !w.member(r) && r.Status.HealthyAt == nil && r.Status.FailedAt == nil
}

// Failed reports whether a replica was healthy and is not any more.
func (w World) Failed(r *v1alpha1.Replica) bool { return !w.Healthy(r) && !w.Unused(r) }

// Protected reports whether a replica protects the data when others leave: it is healthy, neither released nor being deleted, and its node is
// schedulable.
func (w World) Protected(r *v1alpha1.Replica) bool {
	return w.unprotected(r) == ""
}

// unprotected returns why a replica does not protect the data; empty if it does.
func (w World) unprotected(r *v1alpha1.Replica) string {
	switch why := w.Ineligible(r.Spec.NodeName); {
	case w.Unused(r):
		return "not built yet"
	case !w.Healthy(r):
		return "failed"
	case deleting(r):
		return "being deleted"
	case w.Volume.ReleaseOf(r.Name) != nil:
		return "released"
	case w.Nodes[r.Spec.NodeName] == nil:
		return "its node is gone"
	case why == fleet.NoLease:
		return "its node is down"
	case why != "":
		return "its node is " + why
	}
	return ""
}

// ProtectedPeer returns a protected replica on another node, or nil.
func (w World) ProtectedPeer(r *v1alpha1.Replica) *v1alpha1.Replica {
	for _, other := range w.Replicas {
		if other.Spec.NodeName != r.Spec.NodeName && w.Protected(other) {
			return other
		}
	}
	return nil
}

// Stopped reports whether nobody uses the volume: it is detached and has no engine. One that a drain detached is in use.
func (w World) Stopped() bool {
	s := w.Volume.Status
	return w.Volume.EngineNode() == "" && s.Engine == nil && s.DetachedFor == ""
}

// source reports whether another replica can be built from this one.
func (w World) source(r *v1alpha1.Replica) bool { return w.Healthy(r) && !w.down(r.Spec.NodeName) }

// kept reports whether the volume counts on a replica: it is healthy, neither released nor being deleted, and its node is live.
func (w World) kept(r *v1alpha1.Replica) bool {
	return w.Healthy(r) && !deleting(r) && w.Volume.ReleaseOf(r.Name) == nil && w.Nodes[r.Spec.NodeName] != nil && w.Live(r.Spec.NodeName)
}

// othersKept counts the replicas besides r that the volume counts on.
func (w World) othersKept(r *v1alpha1.Replica) int {
	n := 0
	for _, other := range w.Replicas {
		if other.Name != r.Name && w.kept(other) {
			n++
		}
	}
	return n
}

// replacement returns the replica that was built or is being built in the place of r, or nil. One that can be counted on comes first.
func (w World) replacement(r *v1alpha1.Replica) *v1alpha1.Replica {
	var found *v1alpha1.Replica
	for _, other := range w.Replicas {
		if other.Spec.Replaces != r.Name || deleting(other) {
			continue
		}
		if w.kept(other) {
			return other
		}
		found = other
	}
	return found
}

// draining reports whether a node is being drained. One that stops without a drain is not: it comes back, or it is lost.
func (w World) draining(node string) bool {
	if w.Slot != nil && w.Slot.Node == node {
		return w.Drain == nil || w.Drain.Status.Phase != v1alpha1.DrainCancelled
	}
	n := w.Nodes[node]
	return n != nil && w.Live(node) && n.Status.Epoch == w.Leases[node].Epoch && n.Status.Liveness == v1alpha1.Draining
}

// down reports whether the lease of a node was released or fenced, or its object is gone.
func (w World) down(node string) bool { return w.Nodes[node] == nil || !w.Live(node) }

// goneFor returns how long the lease of a node has been free; 0 if it is held.
func (w World) goneFor(node string) time.Duration {
	if !w.down(node) {
		return 0
	}
	n := w.Nodes[node]
	if n == nil {
		return forever
	}
	ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady)
	if ready == nil || ready.Status == "True" {
		return 0 // the coordinator has not recorded it yet
	}
	return w.Now.Sub(ready.LastTransitionTime.Time)
}

// rebuild returns what the engine reports of the building of a replica, or nil.
func (w World) rebuild(name string) *v1alpha1.VolumeRebuild {
	if w.Volume.Status.Engine == nil {
		return nil
	}
	for i := range w.Volume.Status.Engine.Rebuilds {
		if b := &w.Volume.Status.Engine.Rebuilds[i]; b.Replica == name {
			return b
		}
	}
	return nil
}
