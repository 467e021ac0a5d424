package etcdcluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// simNode is a machine: its node may be down for a while, or drain.
type simNode struct {
	name     string
	up       bool
	draining bool
	downAt   time.Time
	noSpace  bool // snapshots fail here
	full     bool // and go on to, when all other trouble has ended
	silent   bool // it never answers a trial, nor other nodes in one
	broken   bool // no member can begin here, though the node runs
	leaves   bool // it drains until nothing of the cluster is on it
	undying  bool // it cannot delete the data of members
	removed  bool // somebody deleted its Node while it was away
	address  int
}

// simRaft is an etcd cluster as it really is: its members, and how many writes it acknowledged.
type simRaft struct {
	id       uint64
	peers    []etcd.Peer
	revision int64
	acked    map[int64]int64 // the revision of each write
	removed  map[uint64]bool
	lead     uint64 // leadership was moved to it
}

// simData is a data directory.
type simData struct {
	raft        *simRaft
	id          uint64
	applied     int64
	incarnation int64
	node        string
	running     bool
	sealed      bool
	admitted    bool // the gate of its node counts it
	corrupt     bool // its process ends as soon as it starts
	foreign     bool // its marker is lost, so that the node does not know whose it is
	differs     bool // its keys are not those of the others, and etcd says so
}

// simFile is a snapshot file.
type simFile struct {
	revision int64
	acked    map[int64]int64
}

func (f *simFile) has(write int64) bool { return f.acked[write] > 0 }

// sim is a cluster around the real planner: everything happens in one goroutine, in an order that chance decides.
type sim struct {
	rand     *rand.Rand
	now      time.Time
	versions simtest.Revisions

	cluster   *v1alpha1.EtcdCluster
	members   map[string]*v1alpha1.EtcdMember
	snapshots map[string]*v1alpha1.EtcdSnapshot
	nodes     []*simNode
	seen      map[string]*v1alpha1.EtcdMember // by member: what its node knows of the object
	data      map[string]*simData             // by member
	files     map[string]map[string]*simFile  // by node and snapshot
	nextID    uint64

	owed   map[int64]bool // writes that were acknowledged and must be there
	writes int64
	chaos  bool
	*simtest.Referee[string]
	events   map[string]int
	mutants  mutants
	asked    askings       // what the coordinator has in memory
	ahead    time.Duration // of its clock
	orders   int
	restored map[string]bool // orders that were carried out
	deletes  bool            // somebody may delete the cluster
	released bool            // and its object is gone
	seed     uint64
	bound    *simtest.Play
}

// mutants are rules broken on purpose, to show that the referee would see it.
type mutants struct {
	unsealed      bool                   // members go on serving while they say that they are sealed, and clients know their addresses
	quiet         bool                   // etcd does not say whose data differs
	trustsRecords bool                   // nodes drop copies though those that should keep them are away
	decision      func(World, *Decision) // the planner decides otherwise
}

func newSim(seed uint64, nodes int) *sim {
	s := &sim{
		rand: rand.New(rand.NewPCG(seed, 3)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), members: map[string]*v1alpha1.EtcdMember{},
		snapshots: map[string]*v1alpha1.EtcdSnapshot{}, seen: map[string]*v1alpha1.EtcdMember{}, data: map[string]*simData{}, files: map[string]map[string]*simFile{}, nextID: 100,
		owed: map[int64]bool{}, events: map[string]int{}, restored: map[string]bool{}, chaos: true, seed: seed,
	}
	s.Referee = simtest.NewReferee[string](func() string { return s.now.Format("04:05.000") })
	for i := range nodes {
		s.nodes = append(s.nodes, &simNode{name: fmt.Sprintf("n%d", i+1), up: true})
	}
	three := int32(3)
	s.cluster = &v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo", UID: "0123456789", Generation: 1, Finalizers: []string{v1alpha1.EtcdClusterFinalizer}},
		Spec: v1alpha1.EtcdClusterSpec{
			Size: &three, Storage: v1alpha1.EtcdStorage{OnStop: v1alpha1.EtcdSnapshotThenDelete}, Snapshot: v1alpha1.EtcdSnapshotPolicy{Keep: 3, Copies: 1 + int32(seed%2)},
			ReplaceAfter: &metav1.Duration{Duration: 30 * time.Second}, ReplaceFailedAfter: &metav1.Duration{Duration: 10 * time.Second},
		},
	}
	s.touch(s.cluster)
	return s
}

func (s *sim) touch(o metav1.Object) {
	s.versions.Stamp(o)
}

// breach has a rule for each thing that may be wrong: the format names it.
func (s *sim) breach(format string, args ...any) { s.Breach(format, format, args...) }

func (s *sim) chance(n int) bool { return s.chaos && s.rand.IntN(n) == 0 }

func (s *sim) node(name string) *simNode {
	for _, n := range s.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

func (s *sim) scale(size int32) {
	s.cluster.Spec.Size = &size
	if !s.cluster.IsSuspended() {
		s.cluster.Status.Suspended = nil // as Follow does
	}
	s.cluster.Generation++
	s.touch(s.cluster)
	s.Hear("size %d", size)
}

// simLease is for how long a node that is down looks alive.
const simLease = 3 * time.Second

// world is what the coordinator reads.
func (s *sim) world() World {
	w := World{
		Now: s.now.Add(s.ahead), Cluster: s.cluster.DeepCopy(), Fleet: fleet.New(), Settled: true, Load: map[string]int{},
	}
	for _, n := range s.nodes {
		if n.removed {
			continue
		}
		object := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
		object.Status.Epoch, object.Status.Liveness = 1, v1alpha1.Alive
		ready, rec := metav1.ConditionTrue, lease.Record{Node: n.name, Holder: n.name, Epoch: 1}
		if n.draining {
			object.Status.Liveness = v1alpha1.Draining
			w.Slot, w.Settled = &v1alpha1.ActiveDrain{Node: n.name}, false
		}
		if !s.looksAlive(n) {
			ready, rec.Holder, rec.Fenced = metav1.ConditionFalse, "", 1
		}
		object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(n.downAt)}}
		w.Nodes[n.name], w.Leases[n.name] = object, rec
	}
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		w.Members = append(w.Members, s.members[name].DeepCopy())
		w.Load[s.members[name].Spec.Node]++
	}
	for _, name := range slices.Sorted(maps.Keys(s.snapshots)) {
		w.Snapshots = append(w.Snapshots, s.snapshots[name].DeepCopy())
	}
	if s.chance(8) {
		s.event() // between the objects and what etcd says
	}
	w.View = s.view(w.Members)
	w.Asked = s.asked.saw(w.trial(), w.Now)
	return w
}

// view is what etcd says to a coordinator that knows these objects. Now and then it does not reach some of the members.
func (s *sim) view(members []*v1alpha1.EtcdMember) etcd.View {
	v := etcd.View{Health: map[string]etcd.Health{}}
	blind := s.chance(10)
	for _, m := range members {
		name := m.Name
		d := s.data[name]
		asked := m.Spec.Begin != nil && (m.Spec.Want == v1alpha1.EtcdMemberRun || m.Spec.Want == v1alpha1.EtcdMemberSeal) && m.Spec.Incarnation == s.cluster.Status.Incarnation
		if d == nil || !d.running || !asked || m.Status.ClientURL == "" || blind && s.rand.IntN(2) == 0 {
			continue
		}
		h := etcd.Health{Answered: true, ID: d.id, ClusterID: d.raft.id, Revision: d.applied}
		if s.quorate(d.raft) && d.raft.has(d.id) {
			h.Leader = s.leader(d.raft)
			if v.Alarms == nil && !s.mutants.quiet {
				v.Alarms = s.alarms(d.raft)
			}
			if !v.Listed && !d.raft.peer(d.id).Learner {
				v.Listed, v.Peers, v.Via, v.Revision = true, slices.Clone(d.raft.peers), name, d.raft.revision
			}
		}
		v.Health[name] = h
	}
	return v
}

// alarms are those that etcd has raised.
func (s *sim) alarms(r *simRaft) (list []etcd.Alarm) {
	for _, name := range slices.Sorted(maps.Keys(s.data)) {
		if d := s.data[name]; d.raft == r && d.differs && r.has(d.id) {
			list = append(list, etcd.Alarm{Member: d.id, Corrupt: true})
		}
	}
	return list
}

func (r *simRaft) has(id uint64) bool {
	return slices.ContainsFunc(r.peers, func(p etcd.Peer) bool { return p.ID == id })
}

func (r *simRaft) peer(id uint64) etcd.Peer {
	for _, p := range r.peers {
		if p.ID == id {
			return p
		}
	}
	return etcd.Peer{}
}

func (r *simRaft) voters() int {
	n := 0
	for _, p := range r.peers {
		if !p.Learner {
			n++
		}
	}
	return n
}

// runningVoters are the data directories of voters whose process runs.
func (s *sim) runningVoters(r *simRaft) []*simData {
	var list []*simData
	for _, name := range slices.Sorted(maps.Keys(s.data)) {
		if d := s.data[name]; d.raft == r && d.running && r.has(d.id) && !r.peer(d.id).Learner {
			list = append(list, d)
		}
	}
	return list
}

func (s *sim) quorate(r *simRaft) bool {
	running := s.runningVoters(r)
	return len(running) >= quorum(r.voters()) && slices.ContainsFunc(running, func(d *simData) bool { return d.applied == r.revision })
}

func (s *sim) leader(r *simRaft) uint64 {
	var first uint64
	for _, d := range s.runningVoters(r) {
		switch {
		case d.applied != r.revision:
		case d.id == r.lead:
			return d.id
		case first == 0:
			first = d.id
		}
	}
	return first
}

// clients write whenever somebody serves them, and members catch up.
func (s *sim) clients() {
	seen := map[*simRaft]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.data)) {
		r := s.data[name].raft
		if seen[r] || !s.quorate(r) {
			continue
		}
		seen[r] = true
		serving := slices.ContainsFunc(s.runningVoters(r), func(d *simData) bool { return !d.sealed || s.mutants.unsealed })
		published := s.mutants.unsealed || slices.ContainsFunc(s.cluster.Status.Members, func(m v1alpha1.EtcdMemberInfo) bool {
			return m.ClientURL != "" && s.data[m.Name] != nil && s.data[m.Name].raft == r
		})
		if serving && published {
			s.writes++
			r.revision++
			r.acked[s.writes] = r.revision
			s.owed[s.writes] = true
			for _, d := range s.runningVoters(r) {
				d.applied = r.revision
			}
		}
		for _, d := range s.data {
			if d.raft == r && d.running && r.has(d.id) {
				d.applied = r.revision
			}
		}
	}
}

// judge looks whether every acknowledged write is in the cluster that runs.
func (s *sim) judge(r *simRaft) {
	for id := range s.owed {
		if r.acked[id] == 0 {
			s.breach("write %d was acknowledged and is not in cluster %x", id, r.id)
			return
		}
	}
}

// machine lets a node obey for one of its members.
func (s *sim) machine(n *simNode) {
	if !n.up {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.members)) {
		if m := s.members[name]; m.Spec.Node == n.name && !s.chance(3) {
			s.obeySeen(n, m)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.snapshots)) {
		if !s.chance(3) {
			s.curate(n, s.snapshots[name])
		}
	}
}

func (s *sim) phase(m *v1alpha1.EtcdMember, phase v1alpha1.EtcdMemberPhase) {
	if m.Status.Phase != phase || m.Status.ObservedGeneration != m.Generation {
		m.Status.Phase, m.Status.ObservedGeneration = phase, m.Generation
		s.touch(m)
		s.Hear("%s on %s: %s", m.Name, m.Spec.Node, phase)
	}
}

// obeySeen lets a node do what it knows of an object, which may be older than the object.
func (s *sim) obeySeen(n *simNode, m *v1alpha1.EtcdMember) {
	if s.seen[m.Name] == nil || !s.chance(4) {
		s.seen[m.Name] = m.DeepCopy()
	}
	known := s.seen[m.Name].DeepCopy()
	known.Status = *m.Status.DeepCopy()
	s.obey(n, known)
	if !equality.Semantic.DeepEqual(m.Status, known.Status) {
		m.Status = known.Status
		s.touch(m)
	}
}

func (s *sim) obey(n *simNode, m *v1alpha1.EtcdMember) {
	d := s.data[m.Name]
	m.Status.Data = d != nil
	if d != nil && d.foreign && m.Spec.Want != v1alpha1.EtcdMemberDelete {
		d.running = false
		m.Status.Error = "the data here is not this member's"
		s.phase(m, v1alpha1.EtcdMemberFailed)
		return
	}
	switch m.Spec.Want {
	case v1alpha1.EtcdMemberReserve:
		if d != nil {
			d.running, d.admitted = false, false
		}
		if n.draining {
			return
		}
		if n.broken {
			m.Status.Error = "read-only file system"
			s.phase(m, v1alpha1.EtcdMemberPending)
			return
		}
		if m.Status.PeerURL == "" {
			urls := n.urls(m)
			m.Status.PeerURL, m.Status.ClientURL = urls.PeerURL, urls.ClientURL
		}
		s.phase(m, v1alpha1.EtcdMemberReserved)
	case v1alpha1.EtcdMemberRun, v1alpha1.EtcdMemberSeal:
		if !s.listens(n, m) {
			if d != nil {
				d.running, d.admitted = false, false
			}
			s.phase(m, v1alpha1.EtcdMemberFailed)
			return
		}
		if d == nil {
			if m.Spec.DataRequired || m.Status.ID != "" {
				s.phase(m, v1alpha1.EtcdMemberFailed)
				return
			}
			if n.draining {
				return
			}
			if n.broken {
				m.Status.Error, m.Status.Restarts = "no space left on device", m.Status.Restarts+1
				s.touch(m)
				s.phase(m, v1alpha1.EtcdMemberStarting)
				return
			}
			if d = s.begin(n, m); d == nil {
				return
			}
		}
		if !d.admitted && n.draining && m.Spec.Want == v1alpha1.EtcdMemberRun {
			m.Status.Error = "the node takes no new work: NodeDraining"
			s.phase(m, v1alpha1.EtcdMemberStarting)
			return
		}
		d.admitted = true
		if d.corrupt {
			d.running = false
			m.Status.Error, m.Status.Restarts = "invalid database", m.Status.Restarts+1
			s.touch(m)
			s.phase(m, v1alpha1.EtcdMemberStarting)
			return
		}
		if d.raft.removed[d.id] {
			d.running = false
			s.phase(m, v1alpha1.EtcdMemberStopped)
			return
		}
		d.running, d.sealed = true, m.Spec.Want == v1alpha1.EtcdMemberSeal
		m.Status.Error = ""
		m.Status.ID, m.Status.ClusterID, m.Status.Data = etcd.HexID(d.id), etcd.HexID(d.raft.id), true
		for i := range d.raft.peers {
			if d.raft.peers[i].ID == d.id {
				d.raft.peers[i].Name = m.Name
			}
		}
		if d.sealed {
			s.phase(m, v1alpha1.EtcdMemberSealed)
		} else {
			s.phase(m, v1alpha1.EtcdMemberRunning)
		}
	case v1alpha1.EtcdMemberStop:
		if d != nil {
			d.running, d.admitted = false, false
			if m.Spec.ReportLog {
				m.Status.Log = &v1alpha1.EtcdLog{Term: 1, Index: d.applied}
			}
		}
		s.phase(m, v1alpha1.EtcdMemberStopped)
	case v1alpha1.EtcdMemberDelete:
		if d != nil && n.undying {
			d.running, d.admitted = false, false
			m.Status.Error, m.Status.ObservedGeneration = "read-only file system", m.Generation
			return
		}
		delete(s.data, m.Name) // what is not known to be the member's stays, and no object knows it any more
		m.Status.Data = false
		s.phase(m, v1alpha1.EtcdMemberDeleted)
	}
}

// urls are where a member listens at the address that its node has now.
func (n *simNode) urls(m *v1alpha1.EtcdMember) v1alpha1.EtcdMemberURLs {
	return v1alpha1.EtcdMemberURLs{PeerURL: fmt.Sprintf("peer://%s@%d", m.Name, n.address), ClientURL: fmt.Sprintf("client://%s@%d", m.Name, n.address)}
}

// listens says whether a member can listen at its URLs, or at those that etcd's list has of it since its node has another address.
func (s *sim) listens(n *simNode, m *v1alpha1.EtcdMember) bool {
	urls := n.urls(m)
	before := m.Status.DeepCopy()
	m.Status.Moved = nil
	switch m.Status.PeerURL {
	case urls.PeerURL:
	default:
		if m.Spec.PeerURL != urls.PeerURL {
			m.Status.Moved = &urls
			break
		}
		if d := s.data[m.Name]; d != nil && d.raft.peer(d.id).ID != 0 && d.raft.peer(d.id).PeerURL != urls.PeerURL {
			s.breach("%s moves to %s, and etcd's list has it at %s", m.Name, urls.PeerURL, d.raft.peer(d.id).PeerURL)
		}
		m.Status.PeerURL, m.Status.ClientURL = urls.PeerURL, urls.ClientURL
		s.Hear("%s moves to %s", m.Name, urls.PeerURL)
	}
	if !equality.Semantic.DeepEqual(*before, m.Status) {
		s.touch(m)
	}
	return m.Status.Moved == nil
}

// begin makes a member's data.
func (s *sim) begin(n *simNode, m *v1alpha1.EtcdMember) *simData {
	b := m.Spec.Begin
	if b == nil {
		s.breach("%s runs and does not know how to begin", m.Name)
		return nil
	}
	d := &simData{incarnation: m.Spec.Incarnation, node: n.name}
	if b.Existing {
		for name, other := range s.data {
			if there := s.members[name]; there == nil || there.Spec.PeerTLS != m.Spec.PeerTLS {
				continue // they do not understand each other
			}
			if i := slices.IndexFunc(other.raft.peers, func(p etcd.Peer) bool { return p.PeerURL == m.Status.PeerURL }); i >= 0 {
				d.raft, d.id = other.raft, other.raft.peers[i].ID
			}
		}
		if d.raft == nil || !s.quorate(d.raft) {
			return nil // nobody to join yet
		}
	} else {
		s.nextID++
		d.raft, d.id = &simRaft{id: s.nextID, acked: map[int64]int64{}, removed: map[uint64]bool{}}, s.nextID+1000
		d.raft.peers = []etcd.Peer{{ID: d.id, Name: m.Name, PeerURL: m.Status.PeerURL}}
		if b.Snapshot != "" {
			file := s.anyFile(b.Snapshot)
			if file == nil {
				s.phase(m, v1alpha1.EtcdMemberFailed)
				return nil
			}
			d.raft.revision, d.raft.acked = file.revision, maps.Clone(file.acked)
			d.applied = file.revision
		}
		s.Hear("%s begins cluster %x at revision %d", m.Name, d.raft.id, d.raft.revision)
	}
	s.data[m.Name] = d
	return d
}

// file is a snapshot of the data: it has what was applied to it.
func (d *simData) file() *simFile {
	f := &simFile{revision: d.applied, acked: maps.Clone(d.raft.acked)}
	if d.differs {
		f.acked = map[int64]int64{}
	}
	maps.DeleteFunc(f.acked, func(_, revision int64) bool { return revision > d.applied })
	return f
}

func (s *sim) anyFile(snapshot string) *simFile {
	for _, n := range s.nodes {
		if f := s.files[n.name][snapshot]; f != nil && n.up {
			return f
		}
	}
	return nil
}

// storedFile is a snapshot's file on a node that looks alive: one that has just gone still does, and its file is there when it is back.
func (s *sim) storedFile(snapshot string) *simFile {
	for _, n := range s.nodes {
		if f := s.files[n.name][snapshot]; f != nil && s.looksAlive(n) {
			return f
		}
	}
	return nil
}

// looksAlive returns whether a node holds its lease: one that has just gone still does.
func (s *sim) looksAlive(n *simNode) bool { return n.up || s.now.Sub(n.downAt) < simLease }

// curate lets a node take, copy or delete a snapshot.
func (s *sim) curate(n *simNode, snap *v1alpha1.EtcdSnapshot) {
	has := s.files[n.name][snap.Name] != nil
	wanted := slices.Contains(snap.Spec.Nodes, n.name)
	switch {
	case snap.DeletionTimestamp != nil:
		s.dropFile(n, snap)
	case snap.Spec.TrialBytes > 0:
		s.tryRoom(n, snap)
	case snap.Status.Facts == nil && snap.Status.Error == "" && s.members[snap.Spec.Member] != nil && s.members[snap.Spec.Member].Spec.Node == n.name:
		d := s.data[snap.Spec.Member]
		if d == nil || d.running == snap.Spec.FromData {
			return
		}
		if n.noSpace || n.full || s.chance(6) || snap.Spec.Revision != 0 && snap.Spec.Revision != d.applied {
			snap.Status.Error = "no space left on device"
			s.touch(snap)
			return
		}
		snap.Status.Facts = &v1alpha1.EtcdSnapshotFacts{Revision: d.applied, At: *micro(s.now)}
		s.keepFile(n, snap, d.file())
	case wanted && !has && snap.Status.Facts != nil && n.full:
		if _, failed := snap.Copy(n.name); !failed && !slices.ContainsFunc(snap.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return c.Node == n.name }) {
			snap.Status.Copies = append(snap.Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: n.name, Error: "no space left on device"})
			s.touch(snap)
		}
	case wanted && !has && snap.Status.Facts != nil && !n.noSpace:
		if f := s.anyFile(snap.Name); f != nil {
			s.keepFile(n, snap, f)
		}
	case !wanted && has && slices.ContainsFunc(snap.Verified(), func(other string) bool {
		return slices.Contains(snap.Spec.Nodes, other) && (s.looksAlive(s.node(other)) || s.mutants.trustsRecords)
	}):
		s.refereeDrop(n, snap)
		s.dropFile(n, snap)
	}
}

// tryRoom lets a node say whether it has room for a copy.
func (s *sim) tryRoom(n *simNode, trial *v1alpha1.EtcdSnapshot) {
	if c, _ := trial.Copy(n.name); c.Node != "" || !slices.Contains(trial.Spec.Nodes, n.name) || n.silent {
		return
	}
	entry := v1alpha1.EtcdSnapshotCopy{Node: n.name, Room: micro(s.now)}
	if n.noSpace || n.full || s.chance(6) {
		entry = v1alpha1.EtcdSnapshotCopy{Node: n.name, Error: "no space left on device"}
	}
	if s.node(trial.Spec.MemberNode).silent {
		entry = v1alpha1.EtcdSnapshotCopy{Node: n.name, Error: "node " + trial.Spec.MemberNode + " does not answer"}
	}
	trial.Status.Copies = append(trial.Status.Copies, entry)
	s.touch(trial)
	s.Hear("%s has room for %s: %t", n.name, trial.Name, entry.Room != nil)
}

func (s *sim) keepFile(n *simNode, snap *v1alpha1.EtcdSnapshot, f *simFile) {
	if s.files[n.name] == nil {
		s.files[n.name] = map[string]*simFile{}
	}
	s.files[n.name][snap.Name] = f
	snap.Status.Copies = slices.DeleteFunc(snap.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return c.Node == n.name })
	snap.Status.Copies = append(snap.Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: n.name, Verified: micro(s.now)})
	s.touch(snap)
	s.Hear("%s has %s at revision %d", n.name, snap.Name, f.revision)
}

func (s *sim) dropFile(n *simNode, snap *v1alpha1.EtcdSnapshot) {
	delete(s.files[n.name], snap.Name)
	before := len(snap.Status.Copies)
	snap.Status.Copies = slices.DeleteFunc(snap.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return c.Node == n.name })
	if len(snap.Status.Copies) != before {
		s.touch(snap)
	}
}

// coordinate lets the coordinator take one look and do what follows, and says whether there was anything. It may die at any point,
// and the world goes on meanwhile.
func (s *sim) coordinate() bool {
	if s.released {
		return s.releaseOrphans()
	}
	s.followSchedule()
	w := s.world()
	d := Plan(w)
	if s.mutants.decision != nil {
		s.mutants.decision(w, &d)
	}
	if w.Cluster.ResourceVersion != s.cluster.ResourceVersion {
		return true
	}
	s.refereeStages(w, d)
	s.refereeRestore(w, d)
	changed := !equality.Semantic.DeepEqual(s.cluster.Status, d.Status)
	if changed {
		s.referee(w, d)
		s.cluster.Status = *d.Status.DeepCopy()
		s.touch(s.cluster)
	}
	for _, n := range d.Notices {
		s.events[n.Reason+"/"+n.Key]++
	}
	if s.chance(8) {
		s.Hear("the coordinator dies after it wrote the status")
		s.elect()
		return true
	}
	rested := s.cluster.ResourceVersion
	for _, a := range d.Actions {
		if s.chance(6) {
			s.event()
		}
		if s.cluster.ResourceVersion != rested && irreversible(a) {
			return true // it reads live and finds another record
		}
		if !s.do(w, a) {
			return true
		}
		if s.chance(8) {
			s.Hear("the coordinator dies after %s", a.Do)
			s.elect()
			return true
		}
	}
	return changed || len(d.Actions) > 0
}

// followSchedule does as the controller before each plan.
func (s *sim) followSchedule() {
	if s.cluster.Spec.Schedule == nil {
		return
	}
	next, _, err := Follow(s.cluster, s.now.Add(s.ahead))
	if err != nil {
		s.breach("a schedule cannot be followed: %v", err)
	}
	if !equality.Semantic.DeepEqual(s.cluster.Status, next) {
		s.cluster.Status = next
		s.touch(s.cluster)
		s.Hear("by its schedule it is suspended: %t", s.cluster.IsSuspended())
	}
}

// releaseOrphans does as the controller of a cluster that is gone, and says whether there was anything.
func (s *sim) releaseOrphans() bool {
	w := s.world()
	before := len(s.members) + len(s.snapshots)
	for _, m := range w.Members {
		if m.Spec.Want == v1alpha1.EtcdMemberDelete && (reached(m, v1alpha1.EtcdMemberDeleted) || w.Nodes[m.Spec.Node] == nil) {
			delete(s.members, m.Name)
		}
	}
	for _, snap := range w.Snapshots {
		if snap.DeletionTimestamp != nil && w.filesGone(snap) {
			delete(s.snapshots, snap.Name)
		}
	}
	return len(s.members)+len(s.snapshots) < before
}

// elect makes another node the coordinator. Now and then its clock is ahead of the others', or behind them.
func (s *sim) elect() {
	s.asked, s.ahead = askings{}, 0
	if s.chance(4) {
		s.ahead = []time.Duration{time.Hour, -time.Hour}[s.rand.IntN(2)]
	}
}

// reconcile lets the coordinator look again at once after each thing that it did, before any node has seen it, and says whether there was anything.
func (s *sim) reconcile() (busy bool) {
	for range maxSteps {
		if !s.coordinate() {
			break
		}
		busy = true
	}
	return busy
}

func irreversible(a Action) bool {
	return a.Do == AddLearner || a.Do == UpdatePeer || a.Do == PromoteLearner || a.Do == RemovePeer || a.Do == DeleteSnapshot || a.Do == SetDesired && a.Member.Spec.Want == v1alpha1.EtcdMemberDelete
}

// raftOf is the etcd cluster of the present incarnation.
func (s *sim) raftOf() *simRaft {
	for _, name := range slices.Sorted(maps.Keys(s.data)) {
		if m := s.members[name]; m != nil && m.Spec.Incarnation == s.cluster.Status.Incarnation && s.data[name].running && s.quorate(s.data[name].raft) {
			return s.data[name].raft
		}
	}
	return nil
}

func (s *sim) do(w World, a Action) bool {
	var name string
	switch {
	case a.Member != nil:
		name = a.Member.Name + " " + string(a.Member.Spec.Want) + " on " + a.Member.Spec.Node
	case a.Snapshot != nil:
		name = a.Snapshot.Name + " " + strings.Join(a.Snapshot.Spec.Nodes, ",")
	default:
		name = a.Peer.Name
	}
	s.Hear("%s %s", a.Do, name)
	switch a.Do {
	case CreateMember:
		return s.createMember(w, a.Member)
	case SetDesired:
		return s.restThere(w, a.Member) && s.wishMember(a.Member)
	case ReleaseMember:
		if s.data[a.Member.Name] != nil && !s.node(a.Member.Spec.Node).removed {
			s.breach("%s is let go and its data is there", a.Member.Name)
		}
		delete(s.members, a.Member.Name)
	case AddLearner, PromoteLearner, RemovePeer, MoveLeader, UpdatePeer:
		return s.reconfigure(a)
	case CreateSnapshot:
		if s.snapshots[a.Snapshot.Name] != nil {
			return false
		}
		snap := a.Snapshot.DeepCopy()
		snap.UID, snap.Generation, snap.CreationTimestamp = types.UID(snap.Name), 1, metav1.NewTime(s.now)
		s.touch(snap)
		s.snapshots[snap.Name] = snap
	case PlaceSnapshot:
		snap := s.snapshots[a.Snapshot.Name]
		if snap == nil || snap.ResourceVersion != a.Snapshot.ResourceVersion {
			return false
		}
		s.refereePlace(w, a.Snapshot)
		snap.Spec, snap.Finalizers = *a.Snapshot.Spec.DeepCopy(), a.Snapshot.Finalizers
		s.touch(snap)
	case DeleteSnapshot:
		snap := s.snapshots[a.Snapshot.Name]
		if snap == nil || snap.ResourceVersion != a.Snapshot.ResourceVersion {
			return false
		}
		if rest := s.cluster.Status.Rest; rest != nil && rest.Snapshot == snap.Name && s.cluster.DeletionTimestamp.IsZero() {
			s.breach("snapshot %s is deleted and the next start begins from it", snap.Name)
		}
		at := metav1.NewTime(s.now)
		snap.DeletionTimestamp = &at
		s.touch(snap)
	case ReleaseSnapshot:
		delete(s.snapshots, a.Snapshot.Name)
	case ReleaseCluster:
		s.released = true
	}
	return true
}

func (s *sim) createMember(w World, m *v1alpha1.EtcdMember) bool {
	if s.members[m.Name] != nil {
		s.breach("member %s is created twice", m.Name)
		return false
	}
	m = m.DeepCopy()
	m.UID, m.Generation, m.CreationTimestamp = types.UID(m.Name), 1, metav1.NewTime(s.now)
	s.touch(m)
	s.members[m.Name] = m
	s.refereeCreate(w, m)
	return true
}

func (s *sim) wishMember(m *v1alpha1.EtcdMember) bool {
	is := s.members[m.Name]
	if is == nil || is.Generation != m.Generation || m.Spec.Want == v1alpha1.EtcdMemberDelete && is.ResourceVersion != m.ResourceVersion {
		return false
	}
	if m.Spec.Want == v1alpha1.EtcdMemberDelete && is.Spec.Want != m.Spec.Want {
		s.refereeDelete(is)
	}
	if m.Spec.Begin != nil && is.Spec.Begin == nil {
		s.refereeBegin(m)
	}
	is.Spec = *m.Spec.DeepCopy()
	is.Generation++
	s.touch(is)
	return true
}

// reconfigure changes etcd's list, with what the observer checks just before.
func (s *sim) reconfigure(a Action) bool {
	r := s.raftOf()
	if r == nil {
		return false
	}
	switch a.Do {
	case AddLearner:
		if slices.ContainsFunc(r.peers, func(p etcd.Peer) bool { return p.PeerURL == a.Member.Status.PeerURL }) {
			return true
		}
		if slices.ContainsFunc(r.peers, func(p etcd.Peer) bool { return p.Learner }) {
			return false
		}
		s.nextID++
		r.peers = append(r.peers, etcd.Peer{ID: s.nextID + 1000, PeerURL: a.Member.Status.PeerURL, Learner: true})
	case PromoteLearner:
		p, _ := etcd.PeerOf(r.peers, a.Member)
		for i := range r.peers {
			if r.peers[i].ID == p.ID && !s.chance(2) && s.inSync(r, p.ID) {
				r.peers[i].Learner = false
			}
		}
	case UpdatePeer:
		for i := range r.peers {
			if r.peers[i].ID == a.Peer.ID {
				r.peers[i].PeerURL = a.Peer.PeerURL
			}
		}
	case MoveLeader:
		r.lead = a.Peer.ID
	case RemovePeer:
		p := r.peer(a.Peer.ID)
		if p.ID == 0 || p.Learner != a.Peer.Learner {
			return true
		}
		after := 0
		for _, d := range s.runningVoters(r) {
			if d.id != p.ID {
				after++
			}
		}
		if !p.Learner && after < quorum(r.voters()-1) {
			return false // as the observer refuses
		}
		s.refereeRemove(r, p)
		r.peers = slices.DeleteFunc(r.peers, func(q etcd.Peer) bool { return q.ID == p.ID })
		r.removed[p.ID] = true
	}
	return true
}

// inSync returns whether a learner runs and has every write: otherwise etcd does not promote it.
func (s *sim) inSync(r *simRaft, id uint64) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(s.data)), func(d *simData) bool {
		return d.raft == r && d.id == id && d.running && d.applied == r.revision
	})
}

// calm ends all trouble and lets the cluster come to rest.
func (s *sim) calm() {
	for _, n := range s.nodes {
		n.up, n.removed, n.draining, n.noSpace, n.broken = true, false, n.leaves, false, n.broken && !s.chaos
	}
	s.chaos = false
	s.elect()
	s.Hear("calm")
	s.cluster.Spec.Schedule = nil
	if s.cluster.IsSuspended() {
		s.suspend()
	}
	for i := range 600 {
		if r := s.cluster.Status.Restore; i == 300 && r != nil && r.Phase == v1alpha1.EtcdRestoreReading {
			s.cluster.Spec.Restore = nil // somebody sees that it does not get on
			s.touch(s.cluster)
		}
		s.bound.Step()
		s.free()
		s.now = s.now.Add(500 * time.Millisecond)
		if s.settledBut(len(s.cluster.Status.SetAside)) {
			s.discard()
		}
		s.replaceDiffering()
		s.mendDisks()
		for _, n := range s.nodes {
			s.machine(n)
		}
		s.clients()
		busy := s.reconcile()
		if !busy && s.settled() {
			return
		}
	}
}

func (s *sim) settled() bool { return s.settledBut(0) }

// settledBut returns whether the cluster is at rest, with so many members besides whose data is set aside.
func (s *sim) settledBut(aside int) bool {
	st := s.cluster.Status
	if !s.cluster.DeletionTimestamp.IsZero() {
		return s.released && len(s.members)+len(s.snapshots) == 0
	}
	if st.ObservedGeneration != s.cluster.Generation {
		return false
	}
	for _, m := range s.members {
		if m.DeletionTimestamp != nil && m.Spec.Want == v1alpha1.EtcdMemberRun {
			return false
		}
		if s.node(m.Spec.Node).leaves && s.data[m.Name] != nil {
			return false
		}
		if q := s.cluster.Spec.Storage.Quota; q != nil && m.Spec.Want == v1alpha1.EtcdMemberRun && m.Spec.QuotaBytes != q.Value() {
			return false
		}
	}
	if s.cluster.Size() == 0 {
		return st.Phase == v1alpha1.EtcdClusterPhaseStopped && st.Stop == nil
	}
	return st.Phase == v1alpha1.EtcdClusterPhaseRunning && int(st.ReadyReplicas) == s.cluster.Size() && len(s.members) == s.cluster.Size()+aside
}

func condition(s v1alpha1.EtcdClusterStatus, kind string) *metav1.Condition {
	return meta.FindStatusCondition(s.Conditions, kind)
}
