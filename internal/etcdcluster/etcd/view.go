package etcd

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Target is the cluster that is asked.
type Target struct {
	Cluster *v1alpha1.EtcdCluster
	// Members of all incarnations; only those of the current one are asked.
	Members []*v1alpha1.EtcdMember
	// ClusterID is what members must report. It is empty while that is not known yet.
	ClusterID string
}

func (t Target) key() types.NamespacedName {
	return types.NamespacedName{Namespace: t.Cluster.Namespace, Name: t.Cluster.Name}
}

// current returns the members of the current incarnation.
func (t Target) current() []*v1alpha1.EtcdMember {
	return slices.DeleteFunc(slices.Clone(t.Members), func(m *v1alpha1.EtcdMember) bool { return m.Spec.Incarnation != t.Cluster.Status.Incarnation })
}

// View is what the members of one cluster reported.
type View struct {
	// Listed: a quorum confirmed the list of members, read after the objects were.
	Listed bool
	Peers  []Peer
	// Via is the member that returned the list, and Revision the one that it had applied after that: no write that was acknowledged
	// before is newer.
	Via      string
	Revision int64
	// Hash of all keys at Revision, if it was asked for.
	Hash int64
	// Health by the name of the member.
	Health map[string]Health
	// Alarms that etcd has raised.
	Alarms []Alarm
	// AlarmsUnknown: there are alarms, and they could not be read.
	AlarmsUnknown bool
	// Error is why no healthy member returned the list.
	Error string
}

// Peer is a member as etcd's own list has it.
type Peer struct {
	ID      uint64
	Name    string
	PeerURL string
	Learner bool
}

// PeerOf finds a member in etcd's list: by the ID that it reported, since its URL changes when its node gets another address. Only one that has not
// reported its ID yet is found by the URL with which it was added: where a removed member listened another one may listen now.
func PeerOf(list []Peer, m *v1alpha1.EtcdMember) (Peer, bool) {
	if m.Status.PeerURL == "" {
		return Peer{}, false
	}
	for _, p := range list {
		if m.Status.ID == "" && p.PeerURL == m.Status.PeerURL || m.Status.ID != "" && HexID(p.ID) == m.Status.ID {
			return p, true
		}
	}
	return Peer{}, false
}

// Health is what one member reported of itself.
type Health struct {
	Answered  bool
	ID        uint64
	ClusterID uint64
	Leader    uint64
	Learner   bool
	Revision  int64
	DBSize    int64
	// Quota of the database, and whether the member knows of an alarm.
	Quota   int64
	Alarmed bool
	// Error is why it did not answer, or why its answer does not count.
	Error string
}

// Alarm is one that etcd has raised.
type Alarm struct {
	Member uint64
	// NoSpace: the database of the member reached its quota, and the cluster refuses writes. Corrupt: its data differs from the others'.
	NoSpace, Corrupt bool
}

// OK returns whether a member answers and has a leader.
func (h Health) OK() bool { return h.Answered && h.Leader != 0 }

// Quorum returns how many of a number of voters must agree.
func Quorum(voters int) int { return voters/2 + 1 }

// HexID formats an ID as etcd's own tools do. The ID 0 is none.
func HexID(id uint64) string {
	if id == 0 {
		return ""
	}
	return strconv.FormatUint(id, 16)
}
