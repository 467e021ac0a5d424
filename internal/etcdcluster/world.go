package etcdcluster

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// World is what decisions about one etcd cluster rest on. The objects were read first, then etcd was asked.
type World struct {
	Now     time.Time
	Cluster *v1alpha1.EtcdCluster
	// Members are the cluster's, of all incarnations.
	Members []*v1alpha1.EtcdMember
	// Taken are names of EtcdMembers that belong to a former cluster of the same name.
	Taken map[string]bool
	// Orphans are what former clusters of the same name left on nodes that were absent.
	Orphans Orphans
	// Snapshots are the cluster's.
	Snapshots []*v1alpha1.EtcdSnapshot
	fleet.Fleet
	// Load is how many members of any cluster each node has.
	Load map[string]int
	// View is what etcd says.
	View View
}

// Orphans are members and snapshots whose cluster is gone.
type Orphans struct {
	Members   []*v1alpha1.EtcdMember
	Snapshots []*v1alpha1.EtcdSnapshot
}

// View is what the members of one cluster say.
type View struct {
	// Listed: a quorum confirmed the list of members, read after the objects were.
	Listed bool
	Peers  []Peer
	// Via is the member that told the list, and Revision how far it was after that: no write that was acknowledged before is newer.
	Via      string
	Revision int64
	// Hash of all keys at Revision, if it was asked for.
	Hash int64
	// Health by the name of the member.
	Health map[string]Health
}

// Peer is a member as etcd's own list has it.
type Peer struct {
	ID      uint64
	Name    string
	PeerURL string
	Learner bool
}

// Health is what one member says of itself.
type Health struct {
	Answered  bool
	ID        uint64
	ClusterID uint64
	Leader    uint64
	Learner   bool
	Revision  int64
	DBSize    int64
	// Error is why it did not answer, or what it complains of.
	Error string
}

// OK says whether a member answers and knows a leader.
func (h Health) OK() bool { return h.Answered && h.Leader != 0 }

// memberView is an EtcdMember with what etcd says of it.
type memberView struct {
	*v1alpha1.EtcdMember
	peer   *Peer // nil if etcd's list does not have it
	health Health
}

func (m memberView) voter() bool   { return m.peer != nil && !m.peer.Learner }
func (m memberView) learner() bool { return m.peer != nil && m.peer.Learner }
func (m memberView) healthy() bool { return m.health.OK() }
func (m memberView) leads() bool   { return m.peer != nil && m.health.Leader == m.peer.ID }

// is says whether the member's node has brought it to a phase since its spec was last written.
func (m memberView) is(phase v1alpha1.EtcdMemberPhase) bool { return reached(m.EtcdMember, phase) }

func reached(m *v1alpha1.EtcdMember, phase v1alpha1.EtcdMemberPhase) bool {
	return m.Status.Phase == phase && m.Status.ObservedGeneration == m.Generation
}

// lost says whether the member's data is not where it should be.
func (m memberView) lost() bool {
	return m.is(v1alpha1.EtcdMemberFailed) && m.Spec.DataRequired && !m.Status.Data
}

// join brings together an object and what etcd says of it.
func (w World) join(m *v1alpha1.EtcdMember) memberView {
	j := memberView{EtcdMember: m, health: w.View.Health[m.Name]}
	if m.Status.PeerURL == "" {
		return j
	}
	for i := range w.View.Peers {
		if w.View.Peers[i].PeerURL == m.Status.PeerURL {
			j.peer = &w.View.Peers[i]
		}
	}
	return j
}

// goneFor says how long nobody has lived on a node, and whether anybody does not. A node whose object is gone was taken away by a
// person.
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
		return 0, true // the coordinator has not written it down yet
	}
	return w.Now.Sub(ready.LastTransitionTime.Time), true
}

// goneForGood says whether a node has been gone for longer than the cluster waits.
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

// quorum is how many of n voters are needed.
func quorum(n int) int { return n/2 + 1 }

// hexID is an ID as etcd's own tools print it.
func hexID(id uint64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatUint(id, 16)
}
