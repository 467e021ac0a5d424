package volume

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const gib = int64(1) << 30

// scene builds a World by hand.
type scene struct{ World }

// newScene is a volume "data" that wants some replicas, on nodes that are all well.
func newScene(replicas int32, nodes ...string) *scene {
	s := &scene{World{Now: noon, Fleet: fleet.New()}}
	for _, n := range nodes {
		s.node(n)
	}
	s.Volume = &v1alpha1.Volume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "uid-data", ResourceVersion: "1", Finalizers: []string{v1alpha1.VolumeFinalizer}},
		Spec:       v1alpha1.VolumeSpec{Size: *resource.NewQuantity(gib, resource.BinarySI), Replicas: replicas},
	}
	return s
}

func (s *scene) node(name string) *v1alpha1.Node {
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Epoch, n.Status.Liveness = 1, v1alpha1.Alive
	n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon)}}
	n.Status.Disks = []v1alpha1.DiskStatus{{Name: "default", Path: "/d", UUID: "u-" + name, Ready: true, TotalBytes: 100 * gib, AvailableBytes: 100 * gib}}
	s.Nodes[name], s.Leases[name] = n, lease.Record{Node: name, Holder: name + "/1", Epoch: 1}
	return n
}

func (s *scene) policy(p v1alpha1.NodeDrainPolicy) *scene { s.Settings.NodeDrainPolicy = p; return s }

func (s *scene) cordon(nodes ...string) *scene {
	for _, n := range nodes {
		s.Nodes[n].Spec.Cordoned = true
	}
	return s
}

func (s *scene) down(nodes ...string) *scene {
	for _, n := range nodes {
		s.Leases[n] = lease.Record{Node: n, Epoch: 1, Fenced: 1}
		s.Nodes[n].Status.Conditions[0].Status = metav1.ConditionFalse
	}
	return s
}

func (s *scene) gone(nodes ...string) *scene {
	for _, n := range nodes {
		delete(s.Nodes, n)
		delete(s.Leases, n)
	}
	return s
}

// drain gives a drain of a node the slot; the node has acknowledged it.
func (s *scene) drain(node string) *scene {
	s.Slot = &v1alpha1.ActiveDrain{Name: "d", UID: "uid-d", Node: node, NodeEpoch: 1}
	started := metav1.NewTime(noon)
	s.Drain = &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "uid-d"}, Spec: v1alpha1.DrainSpec{NodeName: node}}
	s.Drain.Status.Phase, s.Drain.Status.NodeEpoch, s.Drain.Status.StartedAt = v1alpha1.DrainDraining, 1, &started
	if n := s.Nodes[node]; n != nil {
		n.Status.Liveness = v1alpha1.Draining
	}
	return s
}

// unused adds a replica that has not been built.
func (s *scene) unused(node string) *v1alpha1.Replica {
	n := len(s.Replicas) + 1
	r := &v1alpha1.Replica{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprintf("data-r%d", n), UID: types.UID(fmt.Sprintf("uid-r%d", n)), Generation: 1,
			Labels: map[string]string{v1alpha1.VolumeLabel: "data"}, Finalizers: []string{v1alpha1.ReplicaFinalizer},
		},
		Spec:   v1alpha1.ReplicaSpec{VolumeName: "data", VolumeUID: "uid-data", NodeName: node, Disk: "default", SizeBytes: gib},
		Status: v1alpha1.ReplicaStatus{State: v1alpha1.ReplicaReady, NodeEpoch: 1, Created: true},
	}
	s.Replicas, s.Everyone = append(s.Replicas, r), append(s.Everyone, r)
	s.Volume.Status.NextReplica = int64(n) + 1
	return r
}

// healthy adds a member.
func (s *scene) healthy(node string) *v1alpha1.Replica {
	r := s.unused(node)
	at := metav1.NewTime(noon.Add(-time.Hour))
	r.Status.HealthyAt = &at
	s.Volume.Status.Members = append(s.Volume.Status.Members, r.Name)
	s.Volume.Status.Generation = max(s.Volume.Status.Generation, 1)
	return r
}

// failed adds a former member.
func (s *scene) failed(node string) *v1alpha1.Replica {
	r := s.unused(node)
	at, since := metav1.NewTime(noon.Add(-time.Hour)), metav1.NewTime(noon.Add(-time.Minute))
	r.Status.HealthyAt, r.Status.FailedAt = &at, &since
	s.Volume.Status.Generation = max(s.Volume.Status.Generation, 1)
	return r
}

// attach puts an engine with some clients on a node.
func (s *scene) attach(node string, clients int32) *scene {
	st := &s.Volume.Status
	s.Volume.Spec.AttachTo, st.AttachedTo = node, node
	st.Engine = &v1alpha1.VolumeEngine{Node: node, Generation: st.Generation, Serving: true, Clients: clients}
	return s
}

func (s *scene) release(r *v1alpha1.Replica, reason v1alpha1.ReleaseReason) *scene {
	e := v1alpha1.ReleasedReplica{Replica: r.Name, Reason: reason}
	if reason == v1alpha1.ReleaseForDrain {
		e.NodeEpoch, e.DrainUID = 1, "uid-d"
	}
	s.Volume.Status.Released = append(s.Volume.Status.Released, e)
	return s
}

func deletedAt(r *v1alpha1.Replica) *v1alpha1.Replica {
	at := metav1.NewTime(noon)
	r.DeletionTimestamp = &at
	return r
}

func byUID(list ...*v1alpha1.Volume) map[types.UID]*v1alpha1.Volume {
	volumes := map[types.UID]*v1alpha1.Volume{}
	for _, v := range list {
		volumes[v.UID] = v
	}
	return volumes
}
