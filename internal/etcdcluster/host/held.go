package host

import "github.com/ebb-dev/ebb/api/v1alpha1"

// Kinds of work, as the gates of nodes, their counts and drains name them.
const (
	// KindMembers are members that run, start or stop.
	KindMembers = "etcdmembers"
	// KindData is data at rest of which a node has the only copy, or a part that its cluster needs to start.
	KindData = "etcddata"
)

// The node's own count and the drain's both use these two, so that they agree on what must not be left behind.

// OnlyCopy returns whether a node keeps the one verified copy of a snapshot. One that is being deleted does not count.
func OnlyCopy(s *v1alpha1.EtcdSnapshot, node string) bool {
	if s.DeletionTimestamp != nil {
		return false
	}
	verified := s.Verified()
	return len(verified) == 1 && verified[0] == node
}

// Retained returns whether a node keeps the data of a member that is stopped and not to be deleted.
func Retained(m *v1alpha1.EtcdMember, node string) bool {
	return m.Spec.Node == node && m.Spec.Want == v1alpha1.EtcdMemberStop && m.Status.Data
}
