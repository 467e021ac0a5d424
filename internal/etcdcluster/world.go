package etcdcluster

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// World is what a plan for one etcd cluster is based on. The objects were read first, then etcd was asked.
type World struct {
	Now     time.Time
	Cluster *v1alpha1.EtcdCluster
	// Members are the cluster's, of all incarnations.
	Members []*v1alpha1.EtcdMember
	// Taken are the names of EtcdMembers of a former cluster of the same name.
	Taken map[string]bool
	// Orphans are members and snapshots that former clusters of the same name left on absent nodes.
	Orphans Orphans
	// Snapshots are the cluster's.
	Snapshots []*v1alpha1.EtcdSnapshot
	fleet.Fleet
	// Settled says that no drain has run for a while: only then is a member moved to even out where members are.
	Settled bool
	// Load is how many members of any cluster each node has.
	Load map[string]int
	// View is what the members reported.
	View etcd.View
	// Asked is since when the nodes of the stop's trial are asked whether they have room, as this coordinator has seen it.
	Asked map[string]time.Time
	// Failed has the error of the last attempt of actions that failed.
	Failed map[Do]string
}

func (w World) target() etcd.Target {
	return etcd.Target{Cluster: w.Cluster, Members: w.Members, ClusterID: identity(w.Cluster.Status)}
}

// Orphans are members and snapshots whose cluster is gone.
type Orphans struct {
	Members   []*v1alpha1.EtcdMember
	Snapshots []*v1alpha1.EtcdSnapshot
}

// memberView is an EtcdMember with what etcd reported of it.
type memberView struct {
	*v1alpha1.EtcdMember
	peer   *etcd.Peer // nil if it is not in etcd's list
	health etcd.Health
}

func (m memberView) voter() bool   { return m.peer != nil && !m.peer.Learner }
func (m memberView) learner() bool { return m.peer != nil && m.peer.Learner }
func (m memberView) healthy() bool { return m.health.OK() }
func (m memberView) leads() bool   { return m.peer != nil && m.health.Leader == m.peer.ID }

// is returns whether the member's node reported a phase for the spec as it is now.
func (m memberView) is(phase v1alpha1.EtcdMemberPhase) bool { return reached(m.EtcdMember, phase) }

func reached(m *v1alpha1.EtcdMember, phase v1alpha1.EtcdMemberPhase) bool {
	return m.Status.Phase == phase && m.Status.ObservedGeneration == m.Generation
}

// trouble returns the error that the node reported for the spec as it is now.
func (m memberView) trouble() string {
	if m.Status.ObservedGeneration != m.Generation {
		return ""
	}
	return shortened(m.Status.Error)
}

// undeletable returns whether the process of a member has ended, and its node cannot delete the data.
func (m memberView) undeletable() bool {
	return m.Spec.Want == v1alpha1.EtcdMemberDelete && m.trouble() != "" && m.Status.PID == 0
}

// lost returns whether the node reported that the member's data is missing.
func (m memberView) lost() bool {
	return m.is(v1alpha1.EtcdMemberFailed) && m.Spec.DataRequired && !m.Status.Data
}

// join combines an object with what etcd reported of it.
func (w World) join(m *v1alpha1.EtcdMember) memberView {
	j := memberView{EtcdMember: m, health: w.View.Health[m.Name]}
	if p, ok := etcd.PeerOf(w.View.Peers, m); ok {
		j.peer = &p
	}
	return j
}

// address returns the peer URL that etcd's list should have of the member: that at which its node can run it.
func (m memberView) address() string {
	if m.Status.Moved != nil {
		return m.Status.Moved.PeerURL
	}
	return m.Status.PeerURL
}

// goneFor returns how long the lease of a node has been free, and whether it is free. If the Node object is gone, a person has removed the node.
func (w World) goneFor(node string) (time.Duration, bool) {
	if w.Live(node) {
		return 0, false
	}
	n := w.Nodes[node]
	if n == nil {
		return 365 * 24 * time.Hour, true
	}
	ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady)
	if ready == nil || ready.Status == "True" {
		return 0, true // the coordinator has not recorded it yet
	}
	return w.Now.Sub(ready.LastTransitionTime.Time), true
}

// goneForGood returns whether a node has been gone for longer than the cluster waits.
func (w World) goneForGood(node string) bool {
	patience := 5 * time.Minute
	if after := w.Cluster.Spec.ReplaceAfter; after != nil && after.Duration > 0 {
		patience = after.Duration
	}
	since, gone := w.goneFor(node)
	return gone && since >= patience
}

// zone of a node.
func (w World) zone(node string) string {
	n := w.Nodes[node]
	if n == nil {
		return ""
	}
	if z := n.Labels["topology.kubernetes.io/zone"]; z != "" {
		return z
	}
	return n.Labels["zone"]
}

func quorum(voters int) int { return etcd.Quorum(voters) }
