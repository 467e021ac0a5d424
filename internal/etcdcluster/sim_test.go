package etcdcluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// play is one history: trouble for a while, then calm.
func play(s *sim, onStop v1alpha1.EtcdOnStop, steps int) {
	s.bound = simtest.Start("etcdcluster", fmt.Sprintf("%s %d", onStop, s.seed), simLimits)
	defer s.bound.End()
	s.cluster.Spec.Storage.OnStop = onStop
	for range steps {
		if s.Broken() {
			return
		}
		if s.rand.IntN(2) == 0 {
			s.coordinate()
		}
		s.event()
	}
	s.calm()
	if s.cluster.Size() > 0 && !s.Broken() {
		if r := s.raftOf(); r != nil {
			s.judge(r)
		}
	}
	// Whatever it was, it can be stopped and started again with every key.
	for _, size := range []int32{0, 3} {
		s.scale(size)
		s.calm()
		if !s.settled() {
			s.breach("size %d: it does not settle: %+v", size, s.cluster.Status)
			return
		}
	}
	s.leave()
	if r := s.raftOf(); r == nil {
		s.breach("nothing runs")
	} else {
		s.judge(r)
	}
	s.end()
}

// end deletes the cluster in the middle of trouble. Nothing is left of it but what no object knows.
func (s *sim) end() {
	s.chaos, s.deletes = true, true
	for range 60 {
		if s.rand.IntN(2) == 0 {
			s.coordinate()
		}
		s.event()
	}
	s.remove()
	s.calm()
	if !s.released || len(s.members)+len(s.snapshots) > 0 {
		s.breach("deleted, and %d members and %d snapshots are left: %+v", len(s.members), len(s.snapshots), s.cluster.Status)
	}
}

// leave stops and starts the cluster while a node drains for good, at any moment of that, and no member can begin on another node. The start ends
// all the same, and nothing is left on the node that drains.
func (s *sim) leave() {
	for range 2 {
		if len(s.nodes) < 3 {
			return
		}
		n, other := s.nodes[s.rand.IntN(len(s.nodes))], s.nodes[s.rand.IntN(len(s.nodes))]
		for _, size := range []int32{0, 3} {
			s.scale(size)
			for range s.rand.IntN(60) {
				s.bound.Step()
				s.coordinate()
				s.machine(s.nodes[s.rand.IntN(len(s.nodes))])
				s.now = s.now.Add(time.Duration(s.rand.IntN(900)) * time.Millisecond)
			}
			n.draining, n.leaves, other.broken = true, true, other != n
			s.Hear("%s leaves, and nothing can begin on %s", n.name, other.name)
			s.calm()
			if !s.settled() {
				s.breach("size %d while a node leaves: it does not settle: %+v", size, s.cluster.Status)
				return
			}
			n.draining, n.leaves, other.broken = false, false, false
		}
	}
}

// nodesOf is how many nodes a history has: mostly one more than members.
func nodesOf(seed uint64) int { return []int{4, 4, 3, 4, 5, 4, 2, 4, 3, 1}[seed%10] }

func TestEveryHistoryEndsWithEveryKey(t *testing.T) {
	for _, onStop := range []v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain, v1alpha1.EtcdDelete} {
		for seed := range testlength.Seeds(60, 3000) {
			s := newSim(seed, nodesOf(seed))
			play(s, onStop, 400)
			if verdict := s.Verdict(); verdict != "" {
				t.Fatalf("%s, seed %d: %s", onStop, seed, verdict)
			}
		}
	}
}

// After any history only one member is left, or none can be reached where it was. What the one has becomes the cluster, with every key.
func TestEveryHistoryCanGoOnFromOneMember(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*sim) (left string, gone []string)
	}{
		{"two of three machines are gone with their data", (*sim).loseAllButOne},
		{"every node gets another address at once", (*sim).moveAll},
		{"only a learner is left, which lacks keys", (*sim).loseAllVoters},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range testlength.Seeds(30, 1000) {
				s := newSim(seed, 4)
				s.bound = simtest.Start("etcdcluster", fmt.Sprintf("from a member %d", seed), simLimits)
				s.cluster.Spec.Storage.OnStop = v1alpha1.EtcdSnapshotThenDelete
				for range 100 {
					if s.rand.IntN(2) == 0 {
						s.coordinate()
					}
					s.event()
				}
				s.scale(3)
				s.calm()
				if s.settled() && !s.Broken() {
					s.goOnFrom(c.lose(s))
				}
				s.bound.End()
				if verdict := s.Verdict(); verdict != "" {
					t.Fatalf("seed %d: %s", seed, verdict)
				}
			}
		})
	}
}

// loseAllButOne takes the machines of all members but one away.
func (s *sim) loseAllButOne() (left string, gone []string) {
	one := s.cluster.Status.Members[s.rand.IntN(3)]
	for _, m := range s.cluster.Status.Members {
		if m.Node != one.Node {
			gone = append(gone, m.Node)
			s.lose(s.node(m.Node))
		}
	}
	return one.Name, gone
}

// moveAll gives every node an address that it never had.
func (s *sim) moveAll() (left string, gone []string) {
	for _, n := range s.nodes {
		n.address += 10
		s.crash(n)
	}
	return s.cluster.Status.Members[s.rand.IntN(3)].Name, nil
}

// loseAllVoters takes the machines of all voters away while a fourth member joins, and after writes that it has not got.
func (s *sim) loseAllVoters() (left string, gone []string) {
	s.scale(4)
	var joins *simData
	for range 100 {
		s.coordinate()
		for _, n := range s.nodes {
			s.machine(n)
		}
		for _, name := range slices.Sorted(maps.Keys(s.data)) {
			if d := s.data[name]; d.raft == s.raftOf() && d.raft.peer(d.id).Learner {
				left, joins = name, d
			}
		}
		if joins != nil {
			break
		}
	}
	if joins == nil {
		s.breach("no learner joins: %+v", s.cluster.Status)
		return "", nil
	}
	s.coordinateOnce(PromoteLearner) // what it is gets known, and it stays a learner
	joins.running = false
	for range 3 {
		s.clients()
	}
	for _, m := range s.members {
		if m.Spec.Node != joins.node {
			gone = append(gone, m.Spec.Node)
			s.lose(s.node(m.Spec.Node))
		}
	}
	slices.Sort(gone)
	return left, gone
}

// coordinateOnce lets the coordinator take one look without one kind of action.
func (s *sim) coordinateOnce(without Do) {
	s.mutants.decision = func(_ World, d *Decision) {
		d.Actions = slices.DeleteFunc(d.Actions, func(a Action) bool { return a.Do == without })
	}
	s.coordinate()
	s.mutants.decision = nil
}

// lose takes a machine away, for longer than the test lasts.
func (s *sim) lose(n *simNode) {
	n.up, n.downAt = false, s.now
	s.crash(n)
	s.Hear("%s is gone", n.name)
}

// goOnFrom orders a restore from a member. Without a word about the nodes that are gone it does not begin.
func (s *sim) goOnFrom(left string, gone []string) {
	if s.Broken() {
		return
	}
	s.node(s.members[left].Spec.Node).full = false // or the snapshot of its data cannot be made, and the order is refused
	s.pass(60, func() bool { return false })
	lost := condition(s.cluster.Status, v1alpha1.EtcdQuorumLost)
	if lost == nil || !strings.Contains(lost.Message, "--from-member") {
		s.breach("quorum is not reported as lost, with what to do: %+v", s.cluster.Status)
	}
	was := s.cluster.Status.Incarnation
	if len(gone) > 0 {
		s.order(&v1alpha1.EtcdRestoreOrder{Member: left, Expires: metav1.NewTime(s.now.Add(time.Hour))})
		s.pass(20, func() bool { return false })
		if s.cluster.Status.Incarnation != was {
			s.breach("the restore begins, and nobody said that %v are gone", gone)
		}
	}
	s.order(&v1alpha1.EtcdRestoreOrder{Member: left, Gone: gone, Expires: metav1.NewTime(s.now.Add(time.Hour))})
	s.pass(400, func() bool {
		return s.cluster.Status.Phase == v1alpha1.EtcdClusterPhaseRunning && s.cluster.Status.Restore.Phase == v1alpha1.EtcdRestoreDone
	})
	if r := s.raftOf(); r == nil || s.cluster.Status.Restore.Phase != v1alpha1.EtcdRestoreDone || s.cluster.Status.Incarnation == was {
		s.breach("it is not restored: %+v, %+v", s.cluster.Status.Restore, s.cluster.Status.Conditions)
	} else {
		s.judge(r)
	}
	for _, node := range gone {
		if !slices.ContainsFunc(s.cluster.Status.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Node == node }) {
			s.breach("the data on %s is not set aside: %+v", node, s.cluster.Status.SetAside)
		}
	}
}

// pass lets time pass without trouble, until something is so.
func (s *sim) pass(steps int, until func() bool) {
	for range steps {
		s.now = s.now.Add(500 * time.Millisecond)
		for _, n := range s.nodes {
			s.machine(n)
		}
		s.coordinate()
		if until() {
			return
		}
	}
}

// A history takes 400 steps, and at most three times 600 until it rests.
var simLimits = simtest.Limits{Steps: 20_000}

func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		var onStop v1alpha1.EtcdOnStop
		var seed uint64
		if _, err := fmt.Sscan(text, &onStop, &seed); err != nil {
			t.Fatalf("%s is not a policy and a seed: %v", text, err)
		}
		s := newSim(seed, nodesOf(seed))
		play(s, onStop, 400)
		if verdict := s.Verdict(); verdict != "" {
			t.Error(verdict)
		}
	})
}

// placeOnAbsent leaves snapshots to nodes that are away and have a copy by the record.
func placeOnAbsent(w World, d *Decision) {
	for _, s := range w.Snapshots {
		away := slices.DeleteFunc(s.Verified(), w.Live)
		if s.DeletionTimestamp == nil && len(away) > 0 {
			d.Actions = slices.DeleteFunc(d.Actions, func(a Action) bool { return a.Do == PlaceSnapshot && a.Snapshot.Name == s.Name })
			next := s.DeepCopy()
			next.Spec.Nodes = away
			d.Actions = append(d.Actions, Action{Do: PlaceSnapshot, Snapshot: next})
		}
	}
}

// A referee that sees nothing would let every history pass.
func TestTheRefereeSeesABrokenRule(t *testing.T) {
	for _, c := range []struct {
		name    string
		mutants mutants
		sees    string
	}{
		{"members serve while they are sealed", mutants{unsealed: true}, "is not in"},
		{"members with good data leave before one whose data differs", mutants{quiet: true}, "only members with other data stay"},
		{"copies are placed on nodes that are away", mutants{decision: placeOnAbsent}, "is placed on"},
		{"nodes drop copies by the record alone", mutants{decision: placeOnAbsent, trustsRecords: true}, "drops its copy"},
		{"data is deleted before it is released", mutants{decision: func(w World, d *Decision) {
			if d.Status.Stop != nil && d.Status.Stop.Step == v1alpha1.EtcdSealing && len(w.Members) > 0 && w.Members[0].Spec.Want == v1alpha1.EtcdMemberSeal {
				next := w.Members[0].DeepCopy()
				next.Spec.Want = v1alpha1.EtcdMemberDelete
				d.Actions = append(d.Actions, Action{Do: SetDesired, Member: next})
			}
		}}, "before it was released"},
		{"members are sealed before a node was asked for room", mutants{decision: func(w World, d *Decision) {
			if stop := d.Status.Stop; stop != nil && stop.Step == v1alpha1.EtcdSealing && stop.SealedSince == nil {
				stop.SealedSince = micro(w.Now)
			}
		}}, "no node has said"},
		{"a cluster that had keys begins empty", mutants{decision: func(_ World, d *Decision) {
			for _, a := range d.Actions {
				if a.Do == SetDesired && a.Member.Spec.Begin != nil {
					a.Member.Spec.Begin.Snapshot = ""
				}
			}
		}}, "begins empty"},
		{"two members change at once", mutants{decision: func(_ World, d *Decision) {
			for _, a := range d.Actions {
				if a.Do == CreateMember {
					more := a.Member.DeepCopy()
					more.Name += "0"
					d.Actions = append(d.Actions, Action{Do: CreateMember, Member: more})
					return
				}
			}
		}}, "others change"},
		{"data that was set aside is deleted", mutants{decision: func(w World, d *Decision) {
			for _, m := range w.Members {
				if len(w.Cluster.Status.SetAside) > 0 && m.Name == w.Cluster.Status.SetAside[0].Member && m.Spec.Want == v1alpha1.EtcdMemberStop {
					next := m.DeepCopy()
					next.Spec.Want = v1alpha1.EtcdMemberDelete
					d.Actions = append(d.Actions, Action{Do: SetDesired, Member: next})
				}
			}
		}}, "was set aside"},
		{"a restore order is carried out again", mutants{decision: func(w World, d *Decision) {
			if r := d.Status.Restore; r != nil && r.Phase == v1alpha1.EtcdRestoreDone && w.Cluster.Status.Restore.Phase == r.Phase {
				r.Phase = v1alpha1.EtcdRestoreWaiting
			}
		}}, "begins, and the order is"},
		{"a condition's time changes", mutants{decision: func(w World, d *Decision) {
			for i := range d.Status.Conditions {
				d.Status.Conditions[i].LastTransitionTime.Time = w.Now
			}
		}}, "its time changes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(300) {
				s := newSim(seed, 4)
				s.mutants = c.mutants
				play(s, v1alpha1.EtcdSnapshotThenDelete, 400)
				for _, b := range s.Breaches() {
					if strings.Contains(b, c.sees) {
						return
					}
				}
			}
			t.Error("300 histories passed")
		})
	}
}
