package etcdcluster

import (
	"slices"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// referee looks at what the planner writes down.
func (s *sim) referee(w World, d Decision) {
	was, is := w.Cluster.Status, d.Status
	for _, c := range is.Conditions {
		if before := condition(was, c.Type); before != nil && before.Status == c.Status && !before.LastTransitionTime.Equal(&c.LastTransitionTime) {
			s.breach("condition %s stays %s and its time changes", c.Type, c.Status)
		}
	}
	if is.Incarnation < was.Incarnation || is.NextMember < was.NextMember {
		s.breach("incarnation %d to %d, next member %d to %d", was.Incarnation, is.Incarnation, was.NextMember, is.NextMember)
	}
	if is.Phase == v1alpha1.EtcdClusterPhaseStopped && was.Phase != is.Phase {
		for name, data := range s.data {
			former := s.members[name] != nil && s.members[name].Spec.Incarnation < is.Incarnation // its node was absent, and has just come back
			if data.running && s.node(data.node).up && !former {
				s.breach("Stopped and %s runs", name)
			}
		}
		if is.Rest != nil && is.Rest.OnStop == v1alpha1.EtcdDelete {
			s.owed = map[int64]bool{} // asked for
		}
		if len(is.Members) > 0 || is.ReadyReplicas != 0 {
			s.breach("Stopped and members %v", is.Members)
		}
	}
	if is.Stop != nil && is.Stop.SealedSince != nil && (was.Stop == nil || was.Stop.SealedSince == nil) {
		trial := is.Stop.Trial
		if trial == "" && was.Stop != nil {
			trial = was.Stop.Trial // its members were sealed already, and the snapshot is asked for at once
		}
		s.refereeSeal(is, trial)
	}
	if is.Stop != nil && is.Stop.Step == v1alpha1.EtcdReleased && (was.Stop == nil || was.Stop.Step != v1alpha1.EtcdReleased) {
		s.refereeRelease(is)
	}
}

// refereeSeal: clients are kept out for a snapshot only when nodes have said that they have room for its copies.
func (s *sim) refereeSeal(is v1alpha1.EtcdClusterStatus, trialName string) {
	if is.Stop.OnStop != v1alpha1.EtcdSnapshotThenDelete || is.Phase == v1alpha1.EtcdClusterPhaseStopped {
		return
	}
	room := 0
	if trial := s.snapshots[trialName]; trial != nil {
		for _, c := range trial.Status.Copies {
			if c.Room != nil {
				room++
			}
		}
		if len(trial.Status.Copies) == 0 && s.now.Sub(trial.CreationTimestamp.Time) > trialLimit {
			return // nobody answers
		}
	}
	if room == 0 {
		s.breach("clients are kept out and no node has said that it has room")
	}
}

// refereeStages: the stage changes as it is drawn, from the one that was read to the one that is written.
func (s *sim) refereeStages(w World, d Decision) {
	at := StageOf(w.Cluster)
	for _, t := range d.Transitions {
		if t.From != at || !t.Legal() {
			s.breach("from stage %s it goes from %s to %s", at, t.From, t.To)
		}
		at = t.To
	}
	if is := stageWith(w.Cluster, d.Status); is != at {
		s.breach("stage %s is written as %s", at, is)
	}
}

// refereeRelease: what is kept has every acknowledged write.
func (s *sim) refereeRelease(is v1alpha1.EtcdClusterStatus) {
	if is.Stop.OnStop != v1alpha1.EtcdSnapshotThenDelete {
		return
	}
	f := s.storedFile(is.Rest.Snapshot)
	if f == nil {
		s.breach("released and no node that is there has %s", is.Rest.Snapshot)
		return
	}
	for id := range s.owed {
		if !f.has(id) {
			s.breach("released and write %d is not in %s", id, is.Rest.Snapshot)
			return
		}
	}
}

// refereeRestore: a restore that begins was ordered, has not expired, and begins once; from then on only what its snapshot has is owed.
func (s *sim) refereeRestore(w World, d Decision) {
	was, is := w.Cluster.Status.Restore, d.Status.Restore
	if is == nil || is.Phase != v1alpha1.EtcdRestoreStarting || was != nil && was.ID == is.ID && was.Phase == is.Phase {
		return
	}
	order := w.Cluster.Spec.Restore
	if order == nil || order.ID != is.ID || s.restored[is.ID] || order.Member == "" && w.Now.After(order.Expires.Time) {
		s.breach("restore %s begins, and the order is %+v", is.ID, order)
		return
	}
	s.restored[is.ID] = true
	f := s.storedFile(is.Snapshot)
	if f == nil {
		s.breach("restore %s begins, and nobody has snapshot %s", is.ID, is.Snapshot)
		return
	}
	if order.Member != "" && !s.votersGone(order) {
		for id := range s.owed {
			if !f.has(id) {
				s.breach("restore %s: write %d was acknowledged, and is not in the snapshot of the member's data", is.ID, id)
			}
		}
		return
	}
	for id := range s.owed {
		if !f.has(id) {
			delete(s.owed, id) // somebody forced it
		}
	}
}

// votersGone returns whether somebody confirmed that no voter comes back: then what a learner has is all there is.
func (s *sim) votersGone(order *v1alpha1.EtcdRestoreOrder) bool {
	d := s.data[order.Member]
	if d == nil || !d.raft.peer(d.id).Learner {
		return false
	}
	for _, other := range s.data {
		if other.raft == d.raft && d.raft.has(other.id) && !d.raft.peer(other.id).Learner && !slices.Contains(order.Gone, other.node) {
			return false
		}
	}
	return true
}

// refereeCreate: one member in change at a time, and no two on one node while another is free, unless a drain waits and members failed there.
func (s *sim) refereeCreate(w World, m *v1alpha1.EtcdMember) {
	used, changing := map[string]bool{}, 0
	for _, other := range s.members {
		if other.Spec.Want == v1alpha1.EtcdMemberDelete || other.Spec.Incarnation != m.Spec.Incarnation || other.Name == m.Name {
			continue
		}
		if slices.ContainsFunc(s.cluster.Status.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Member == other.Name }) {
			continue
		}
		if other.DeletionTimestamp != nil {
			continue // it is replaced, maybe where it was
		}
		used[other.Spec.Node] = true
		r := s.raftOf()
		if r == nil {
			continue
		}
		if p, listed := etcd.PeerOf(r.peers, other); !listed || p.Learner {
			changing++
		}
	}
	if changing > 0 {
		s.breach("%s is created while %d others change", m.Name, changing)
	}
	if used[m.Spec.Node] {
		for _, node := range w.SchedulableNodes() {
			failed := slices.ContainsFunc(w.Cluster.Status.Avoid, func(a v1alpha1.EtcdAvoidedNode) bool { return a.Node == node }) ||
				slices.ContainsFunc(w.Cluster.Status.Failing, func(f v1alpha1.EtcdMemberFailure) bool {
					return s.members[f.Member] != nil && s.members[f.Member].Spec.Node == node
				})
			if !used[node] && !(failed && w.Slot != nil) {
				s.breach("%s is created on %s and %s is free", m.Name, m.Spec.Node, node)
			}
		}
	}
}

// refereeBegin: a cluster that had keys does not begin empty.
func (s *sim) refereeBegin(m *v1alpha1.EtcdMember) {
	b := m.Spec.Begin
	if b.Existing || b.Snapshot != "" {
		return
	}
	if s.cluster.Status.ClusterID != "" {
		s.breach("%s begins empty and cluster %s was recorded", m.Name, s.cluster.Status.ClusterID)
	}
	if len(s.owed) > 0 {
		s.breach("%s begins empty and %d writes were acknowledged", m.Name, len(s.owed))
	}
}

// refereeDelete: data goes only when it was released, or etcd has done without it.
func (s *sim) refereeDelete(m *v1alpha1.EtcdMember) {
	d, st := s.data[m.Name], s.cluster.Status
	if !s.cluster.DeletionTimestamp.IsZero() {
		return // asked for
	}
	if slices.ContainsFunc(st.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Member == m.Name }) {
		s.breach("%s is deleted and was set aside", m.Name)
	}
	if d == nil || !d.raft.has(d.id) || etcd.HexID(d.raft.id) != st.ClusterID {
		return
	}
	if st.Stop == nil || st.Stop.Step != v1alpha1.EtcdReleased {
		s.breach("%s is deleted before it was released, and etcd has it", m.Name)
	}
}

// refereeRemove: a member with good data does not leave while only such stay whose data differs.
func (s *sim) refereeRemove(r *simRaft, leaves etcd.Peer) {
	good, bad := 0, 0
	for _, d := range s.data {
		switch {
		case d.raft != r || !r.has(d.id) || r.peer(d.id).Learner:
		case d.differs:
			bad++
		case d.id != leaves.ID:
			good++
		}
	}
	if d := s.dataOf(r, leaves.ID); d != nil && !d.differs && !leaves.Learner && bad > 0 && good == 0 {
		s.breach("%s leaves cluster %x, and only members with other data stay", leaves.Name, r.id)
	}
}

func (s *sim) dataOf(r *simRaft, id uint64) *simData {
	for _, d := range s.data {
		if d.raft == r && d.id == id {
			return d
		}
	}
	return nil
}

// refereeDrop: a node deletes a copy that is too many only while another node that is there has one.
func (s *sim) refereeDrop(n *simNode, snap *v1alpha1.EtcdSnapshot) {
	others := slices.DeleteFunc(slices.Clone(s.nodes), func(other *simNode) bool { return other == n })
	if !slices.ContainsFunc(others, func(other *simNode) bool { return s.looksAlive(other) && s.files[other.name][snap.Name] != nil }) {
		s.breach("%s drops its copy of %s, and no other node that is there has one", n.name, snap.Name)
	}
}

// refereePlace: no node that is away is meant to keep a copy in the place of one that has it.
func (s *sim) refereePlace(w World, snap *v1alpha1.EtcdSnapshot) {
	away := func(node string) bool { return !w.Live(node) }
	for _, node := range snap.Verified() {
		if w.Staying(node) && !slices.Contains(snap.Spec.Nodes, node) && slices.ContainsFunc(snap.Spec.Nodes, away) {
			s.breach("%s is placed on %v, and not on %s, which has it", snap.Name, snap.Spec.Nodes, node)
		}
	}
}

// restThere: the coordinator asks for the deletion of secured data only while a node that has the snapshot is there, and reads that live once more.
func (s *sim) restThere(w World, m *v1alpha1.EtcdMember) bool {
	st := s.cluster.Status
	released := StageOf(s.cluster) == StageReleasing && st.Stop.OnStop == v1alpha1.EtcdSnapshotThenDelete
	if m.Spec.Want != v1alpha1.EtcdMemberDelete || !released || m.Spec.Begin == nil || m.Spec.Incarnation < st.Incarnation {
		return true
	}
	i := slices.IndexFunc(w.Snapshots, func(snap *v1alpha1.EtcdSnapshot) bool { return snap.Name == st.Rest.Snapshot })
	if i < 0 || !slices.ContainsFunc(w.Snapshots[i].Verified(), w.Live) {
		s.breach("%s is to be deleted and no node that is there has %s", m.Name, st.Rest.Snapshot)
	}
	return s.storedFile(st.Rest.Snapshot) != nil
}
