package etcdcluster

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// event lets something happen.
func (s *sim) event() {
	s.bound.Step()
	n := s.nodes[s.rand.IntN(len(s.nodes))]
	switch k := s.rand.IntN(64); {
	case k < 26:
		s.machine(n)
	case k < 31:
		s.clients()
	case k < 34:
		s.down(s.keeperOr(n))
	case k < 39:
		if !n.up {
			n.up, n.removed = true, false
			s.Hear("%s is back", n.name)
		}
	default:
		s.trouble(k-39, n)
	}
	s.now = s.now.Add(time.Duration(s.rand.IntN(900)) * time.Millisecond)
}

// trouble is one kind of it.
func (s *sim) trouble(kind int, n *simNode) {
	switch kind {
	case 0, 1:
		s.scale(int32(s.rand.IntN(8)))
	case 2:
		n.noSpace = !n.noSpace
	case 3:
		s.drain(n)
	case 4:
		s.crash(n)
	case 5:
		s.corrupt()
	case 6:
		s.suspend()
	case 7:
		s.restore()
	case 8:
		s.fill(n)
	case 9:
		s.move(n)
	case 10:
		s.hush(n)
	case 11:
		s.edit()
	case 12:
		s.damage()
	case 13:
		s.deleteSnapshot()
	case 14:
		s.changePolicy()
	case 15:
		s.restoreFromMember()
	case 16:
		s.wipe(n)
	case 17:
		n.broken = !n.broken
		s.Hear("members can begin on %s: %t", n.name, !n.broken)
	case 18:
		s.follow()
	case 19:
		s.forget(n)
	case 20:
		if s.deletes {
			s.remove()
		}
	case 21:
		n.undying = !n.undying
		s.Hear("%s can delete data: %t", n.name, !n.undying)
	case 22:
		s.deleteMember()
	case 23:
		s.diverge()
	}
}

// deleteMember lets a person delete the object of a member, which stays until the member is replaced.
func (s *sim) deleteMember() {
	m := s.anyMember()
	if m == nil || m.DeletionTimestamp != nil {
		return
	}
	m.DeletionTimestamp = newTime(s.now)
	m.Generation++
	s.touch(m)
	s.Hear("somebody deletes %s", m.Name)
}

// diverge changes the keys of one member, which etcd sees, if the others can do without it.
func (s *sim) diverge() {
	r := s.raftOf()
	if r == nil || len(s.alarms(r)) > 0 {
		return
	}
	running := s.runningVoters(r)
	d := running[s.rand.IntN(len(running))]
	if s.spare(func(other *simData) bool { return other == d }) {
		d.differs = true
		s.Hear("the data of %x on %s differs", d.id, d.node)
	}
}

// replaceDiffering lets somebody delete the members whose data differs, as in the end somebody does.
func (s *sim) replaceDiffering() {
	for _, name := range slices.Sorted(maps.Keys(s.data)) {
		if m := s.members[name]; s.data[name].differs && m != nil && m.DeletionTimestamp == nil {
			m.DeletionTimestamp = newTime(s.now)
			m.Generation++
			s.touch(m)
			s.Hear("somebody deletes %s, whose data differs", name)
		}
	}
}

// mendDisks lets nodes delete data once the cluster has all its members all the same, or if the deletion is all that is asked for.
func (s *sim) mendDisks() {
	st, stay := s.cluster.Status, 0
	for _, m := range s.members {
		aside := slices.ContainsFunc(st.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Member == m.Name })
		if m.Spec.Want != v1alpha1.EtcdMemberDelete && !aside {
			stay++
		}
	}
	size := s.cluster.Size()
	if size == 0 || !s.cluster.DeletionTimestamp.IsZero() || StageOf(s.cluster) == StageRunning && int(st.ReadyReplicas) == size && stay == size {
		for _, n := range s.nodes {
			n.undying = false
		}
	}
}

// remove lets somebody delete the cluster.
func (s *sim) remove() {
	if !s.cluster.DeletionTimestamp.IsZero() {
		return
	}
	s.cluster.DeletionTimestamp = newTime(s.now)
	s.cluster.Generation++
	s.touch(s.cluster)
	s.owed = map[int64]bool{} // asked for
	s.Hear("somebody deletes the cluster")
}

// forget lets a person delete the Node of a machine that is away, as if it never came back.
func (s *sim) forget(n *simNode) {
	if n.up || s.looksAlive(n) || !s.spare(func(d *simData) bool { return d.node == n.name }) {
		return
	}
	for name := range s.files[n.name] {
		if s.snapshots[name] != nil && !slices.ContainsFunc(s.nodes, func(other *simNode) bool { return other != n && !other.removed && s.files[other.name][name] != nil }) {
			return
		}
	}
	n.removed = true
	s.Hear("somebody deletes node %s", n.name)
}

// keeperOr returns, now and then, a node with the snapshot of a stop whose members' data is being deleted, instead of another one.
func (s *sim) keeperOr(n *simNode) *simNode {
	if StageOf(s.cluster) != StageReleasing || s.rand.IntN(2) == 0 {
		return n
	}
	for _, other := range s.nodes {
		if rest := s.cluster.Status.Rest; rest != nil && s.files[other.name][rest.Snapshot] != nil {
			return other
		}
	}
	return n
}

// down takes a node away for a while, now and then several: then nobody may have a quorum until they are back.
func (s *sim) down(n *simNode) {
	others := slices.ContainsFunc(s.nodes, func(other *simNode) bool { return !other.up })
	if !n.up || others && s.rand.IntN(3) > 0 {
		return
	}
	n.up, n.downAt = false, s.now
	s.Hear("%s is down", n.name)
	s.crash(n)
}

// move gives a node another address, or one that it had before, in any stage of the cluster, as long as a quorum of the voters stays where it is:
// without it only a restore helps.
func (s *sim) move(n *simNode) {
	stay, voters := s.votersElsewhere(n)
	moves := slices.ContainsFunc(slices.Collect(maps.Values(s.members)), func(m *v1alpha1.EtcdMember) bool {
		return m.Status.PeerURL != "" && m.Status.PeerURL != s.node(m.Spec.Node).urls(m).PeerURL
	})
	// A learner that runs may become a voter at this moment, and counts before its new address is known.
	joins := slices.ContainsFunc(slices.Collect(maps.Values(s.data)), func(d *simData) bool {
		return d.node == n.name && d.running && d.raft.has(d.id) && d.raft.peer(d.id).Learner
	})
	if !n.up || voters > 0 && stay < quorum(voters) || moves || joins {
		return
	}
	n.address = s.rand.IntN(3)
	s.Count(fmt.Sprintf("moved in stage %s", StageOf(s.cluster)))
	s.Hear("%s has address %d", n.name, n.address)
	s.crash(n)
}

// votersElsewhere counts the voters of the present incarnation that have good data on other nodes, and all of them. None counts unless one has every write.
func (s *sim) votersElsewhere(n *simNode) (elsewhere, all int) {
	newest := false
	for name, d := range s.data {
		m := s.members[name]
		if m == nil || m.Spec.Incarnation != s.cluster.Status.Incarnation || !d.raft.has(d.id) || d.raft.peer(d.id).Learner {
			continue
		}
		all = d.raft.voters()
		if d.node != n.name && s.good(name) && s.node(d.node).up {
			elsewhere++
			newest = newest || d.applied == d.raft.revision
		}
	}
	if !newest {
		elsewhere = 0
	}
	return elsewhere, all
}

// crash ends the processes of members on a node; the node starts them again.
func (s *sim) crash(n *simNode) {
	for _, d := range s.data {
		if d.node == n.name {
			d.running = false
		}
	}
}

func (s *sim) drain(n *simNode) {
	for _, other := range s.nodes {
		if other.draining {
			other.draining = false
			s.Hear("%s drains no more", other.name)
			if s.rand.IntN(2) == 0 {
				s.down(other) // it was taken away, with a record of the copies that it had
			}
			return
		}
	}
	n.draining = n.up
	s.Hear("%s drains", n.name)
}

// corrupt damages the data of one member for good, unless the others would be no quorum, or another one is damaged.
func (s *sim) corrupt() {
	r := s.raftOf()
	if r == nil || slices.ContainsFunc(slices.Collect(maps.Keys(s.data)), func(name string) bool {
		return !s.good(name) && s.data[name].raft == r && r.has(s.data[name].id)
	}) {
		return
	}
	running := slices.DeleteFunc(s.runningVoters(r), func(d *simData) bool { return d.applied != r.revision })
	if len(running)-1 < quorum(r.voters()) || len(running) < r.voters() {
		return
	}
	d := running[s.rand.IntN(len(running))]
	if !s.spare(func(other *simData) bool { return other == d }) {
		return
	}
	d.corrupt, d.running = true, false
	s.Hear("the data of %x on %s is corrupt", d.id, d.node)
}

// suspend stops the cluster as its schedule does, or ends that.
func (s *sim) suspend() {
	if s.cluster.IsSuspended() {
		s.cluster.Status.Suspended = nil
	} else if s.cluster.SpecSize() > 0 {
		s.cluster.Status.Suspended = &v1alpha1.EtcdSuspension{Since: metav1.NewTime(s.now), Size: int32(s.cluster.SpecSize())}
	}
	s.touch(s.cluster)
	s.Hear("suspended: %t", s.cluster.IsSuspended())
}

// restore orders the cluster to go back to a snapshot, though it serves clients.
func (s *sim) restore() {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(s.snapshots)) {
		if snap := s.snapshots[name]; snap.DeletionTimestamp == nil && snap.Status.Facts != nil && s.anyFile(name) != nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 || s.cluster.Size() == 0 {
		return
	}
	s.order(&v1alpha1.EtcdRestoreOrder{Snapshot: names[s.rand.IntN(len(names))], Force: true, Expires: metav1.NewTime(s.now.Add(time.Duration(s.rand.IntN(60)) * time.Second))})
}

func (s *sim) order(o *v1alpha1.EtcdRestoreOrder) {
	s.orders++
	o.ID = fmt.Sprint(s.orders)
	s.cluster.Spec.Restore = o
	s.cluster.Generation++
	s.touch(s.cluster)
	s.Hear("restore %s from %s%s is ordered", o.ID, o.Snapshot, o.Member)
}

// fill fills the disk for snapshots of one node, for good.
func (s *sim) fill(n *simNode) {
	if !s.lacks() && len(s.nodes) > 3 {
		n.full = true
		s.Hear("the disk of %s is full for good", n.name)
	}
}

// hush keeps one node from answering trials, for good.
func (s *sim) hush(n *simNode) {
	if !s.lacks() && len(s.nodes) > 3 {
		n.silent = true
		s.Hear("%s is silent for good", n.name)
	}
}

// lacks returns whether a node cannot keep copies, or does not say that it can: with two of four, and one that drains, too few could be left.
func (s *sim) lacks() bool {
	return slices.ContainsFunc(s.nodes, func(n *simNode) bool { return n.full || n.silent })
}

// free frees the disk of a node that has all good members of the cluster, and lets it answer: without it no snapshot can be taken, which only a person can
// mend. A node on which no member can begin is mended when no drain waits any more.
func (s *sim) free() {
	waits := slices.ContainsFunc(slices.Collect(maps.Values(s.members)), func(m *v1alpha1.EtcdMember) bool {
		return s.node(m.Spec.Node).leaves && s.data[m.Name] != nil
	})
	for _, n := range s.nodes {
		n.broken = n.broken && waits
		here, elsewhere := 0, 0
		for _, m := range s.members {
			aside := slices.ContainsFunc(s.cluster.Status.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Member == m.Name })
			if aside || m.Spec.Want == v1alpha1.EtcdMemberDelete || m.Spec.Incarnation != s.cluster.Status.Incarnation {
				continue
			}
			d := s.data[m.Name]
			switch {
			case m.Spec.Node == n.name:
				here++
			case d == nil || !d.corrupt:
				elsewhere++
			}
		}
		n.full, n.silent = n.full && (here == 0 || elsewhere > 0), n.silent && (here == 0 || elsewhere > 0)
	}
}

// discard lets somebody discard what was set aside, as in the end somebody does.
func (s *sim) discard() {
	for _, a := range s.cluster.Status.SetAside {
		if m := s.members[a.Member]; m != nil && m.Spec.Want == v1alpha1.EtcdMemberStop {
			m.Spec.Want = v1alpha1.EtcdMemberDelete
			m.Generation++
			s.touch(m)
			s.Hear("%s is discarded", m.Name)
		}
	}
}

// good returns whether a member's data is what it was, and nobody asked for its deletion.
func (s *sim) good(name string) bool {
	d, m := s.data[name], s.members[name]
	return m != nil && m.Spec.Want != v1alpha1.EtcdMemberDelete && !d.corrupt && !d.foreign && !d.differs
}

// spare returns whether the present cluster can do without some data: a quorum of its voters has good data besides, and one of these every write.
func (s *sim) spare(lost func(*simData) bool) bool {
	rafts := map[*simRaft]bool{}
	for name, d := range s.data {
		if m := s.members[name]; m != nil && m.Spec.Incarnation == s.cluster.Status.Incarnation && lost(d) {
			rafts[d.raft] = true
		}
	}
	for r := range rafts {
		good, newest := 0, false
		for name, d := range s.data {
			if d.raft == r && !lost(d) && s.good(name) && r.has(d.id) && !r.peer(d.id).Learner {
				good, newest = good+1, newest || d.applied == r.revision
			}
		}
		if !newest || good < quorum(r.voters()) {
			return false
		}
	}
	return len(rafts) > 0 && StageOf(s.cluster) != StageReleasing
}

// anyMember picks a member; nil if there is none.
func (s *sim) anyMember() *v1alpha1.EtcdMember {
	names := slices.Sorted(maps.Keys(s.members))
	if len(names) == 0 {
		return nil
	}
	return s.members[names[s.rand.IntN(len(names))]]
}

// edit lets a person write to an EtcdMember what only the coordinator should, delete its data, or take the object away by force.
func (s *sim) edit() {
	m := s.anyMember()
	if m == nil || m.Spec.Want == v1alpha1.EtcdMemberDelete || m.Spec.Begin == nil {
		return
	}
	d := s.data[m.Name]
	without := d != nil && s.spare(func(other *simData) bool { return other == d })
	switch k := s.rand.IntN(6); {
	case k < 4:
		m.Spec.Want = []v1alpha1.EtcdMemberWish{v1alpha1.EtcdMemberReserve, v1alpha1.EtcdMemberRun, v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberStop}[k]
	case !without:
		return
	case k == 4:
		m.Spec.Want = v1alpha1.EtcdMemberDelete
	default:
		d.running = false
		delete(s.members, m.Name)
		s.Hear("somebody takes %s away by force", m.Name)
		return
	}
	m.Generation++
	s.touch(m)
	s.Hear("somebody edits %s: %s", m.Name, m.Spec.Want)
}

// damage loses the data of one member, or the marker that says whose it is.
func (s *sim) damage() {
	m := s.anyMember()
	if m == nil || s.data[m.Name] == nil {
		return
	}
	d := s.data[m.Name]
	if !s.spare(func(other *simData) bool { return other == d }) {
		return
	}
	d.running = false
	if s.rand.IntN(2) == 0 {
		delete(s.data, m.Name)
		s.Hear("the data of %s is lost", m.Name)
		return
	}
	d.foreign = true
	s.Hear("the marker of %s is lost", m.Name)
}

// wipe loses all that a node has on its disk, apart from the last copies of snapshots.
func (s *sim) wipe(n *simNode) {
	here := func(d *simData) bool { return d.node == n.name }
	if !n.up || !s.spare(here) {
		return
	}
	s.Hear("the disk of %s is lost", n.name)
	for name, d := range s.data {
		if here(d) {
			delete(s.data, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.files[n.name])) {
		snap := s.snapshots[name]
		others := slices.DeleteFunc(slices.Clone(s.nodes), func(other *simNode) bool { return other == n || s.files[other.name][name] == nil })
		if snap == nil || len(others) == 0 {
			continue
		}
		s.dropFile(n, snap)
		snap.Status.Copies = append(snap.Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: n.name, Error: "the file is missing"})
		s.touch(snap)
	}
}

// deleteSnapshot lets a person delete a snapshot, unless all keys are in it alone.
func (s *sim) deleteSnapshot() {
	names := slices.Sorted(maps.Keys(s.snapshots))
	st := s.cluster.Status
	if len(names) == 0 {
		return
	}
	snap := s.snapshots[names[s.rand.IntN(len(names))]]
	if snap.DeletionTimestamp != nil || st.Rest != nil && st.Rest.Snapshot == snap.Name || st.Stop != nil && st.Stop.Snapshot == snap.Name {
		return
	}
	if r := st.Restore; r != nil && r.Snapshot == snap.Name && !r.Phase.Final() {
		return
	}
	if order := s.cluster.Spec.Restore; order != nil && order.Snapshot == snap.Name {
		return
	}
	at := metav1.NewTime(s.now)
	snap.DeletionTimestamp = &at
	s.touch(snap)
	s.Hear("somebody deletes %s", snap.Name)
}

// changePolicy lets a person change what a stop keeps.
func (s *sim) changePolicy() {
	spec := &s.cluster.Spec
	switch s.rand.IntN(5) {
	case 4:
		on := s.rand.IntN(2) == 0
		spec.TLS.Peer = &on
	case 3:
		spec.Storage.Quota = resource.NewQuantity(1<<30+s.rand.Int64N(4), resource.BinarySI)
	case 0:
		spec.Storage.OnStop = []v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain, v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdDelete}[s.rand.IntN(4)]
	case 1:
		spec.Snapshot.Copies = 1 + int32(s.rand.IntN(2)) // of three one may be full or silent, and another one drain
	case 2:
		spec.Snapshot.Keep = 1 + int32(s.rand.IntN(4))
	}
	s.cluster.Generation++
	s.touch(s.cluster)
	s.Hear("onStop %s, %d copies, %d snapshots", spec.Storage.OnStop, spec.Snapshot.Copies, spec.Snapshot.Keep)
}

// restoreFromMember orders the cluster to go on from what one member has. Nobody says that any node is gone, so no key may be lost by it.
func (s *sim) restoreFromMember() {
	if m := s.anyMember(); m != nil && s.cluster.Size() > 0 && (s.data[m.Name] == nil || !s.data[m.Name].differs) {
		s.order(&v1alpha1.EtcdRestoreOrder{Member: m.Name, Expires: metav1.NewTime(s.now.Add(time.Duration(s.rand.IntN(60)) * time.Second))})
	}
}

// follow gives the cluster a schedule that stops and starts it every other minute, or takes it away.
func (s *sim) follow() {
	if s.cluster.Spec.Schedule == nil {
		s.cluster.Spec.Schedule = &v1alpha1.EtcdSchedule{Stop: "*/2 * * * *", Start: "1-59/2 * * * *"}
	} else {
		s.cluster.Spec.Schedule = nil
	}
	s.cluster.Generation++
	s.touch(s.cluster)
	s.Hear("schedule %v", s.cluster.Spec.Schedule)
}
