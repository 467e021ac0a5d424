package etcdcluster

import (
	"fmt"
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
	if r := s.raftOf(); r == nil {
		s.breach("nothing runs")
	} else {
		s.judge(r)
	}
}

func TestEveryHistoryEndsWithEveryKey(t *testing.T) {
	for _, onStop := range []v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain, v1alpha1.EtcdDelete} {
		for seed := range testlength.Seeds(60, 3000) {
			s := newSim(seed, 4)
			play(s, onStop, 400)
			if verdict := s.Verdict(); verdict != "" {
				t.Fatalf("%s, seed %d: %s", onStop, seed, verdict)
			}
		}
	}
}

// After any history two of three machines are gone with their data. What the third one has becomes the cluster, with every key.
func TestEveryHistoryCanGoOnFromOneMember(t *testing.T) {
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
			s.goOnFromOne()
		}
		s.bound.End()
		if verdict := s.Verdict(); verdict != "" {
			t.Fatalf("seed %d: %s", seed, verdict)
		}
	}
}

// goOnFromOne takes the machines of all members but one away, and orders a restore from that one.
func (s *sim) goOnFromOne() {
	left := s.cluster.Status.Members[s.rand.IntN(3)]
	s.node(left.Node).full = false // or the snapshot of its data cannot be made, and the order is refused
	var gone []string
	for _, m := range s.cluster.Status.Members {
		if n := s.node(m.Node); m.Node != left.Node {
			n.up, n.downAt = false, s.now
			gone = append(gone, n.name)
			for _, d := range s.data {
				d.running = d.running && d.node != n.name
			}
		}
	}
	for range 60 {
		s.now = s.now.Add(time.Second)
		s.coordinate()
	}
	if condition(s.cluster.Status, v1alpha1.EtcdQuorumLost) == nil {
		s.breach("quorum is not reported as lost: %+v", s.cluster.Status)
	}
	s.order(&v1alpha1.EtcdRestoreOrder{Member: left.Name, Gone: gone, Expires: metav1.NewTime(s.now.Add(time.Hour))})
	for range 400 {
		s.now = s.now.Add(500 * time.Millisecond)
		for _, n := range s.nodes {
			s.machine(n)
		}
		s.coordinate()
		if s.cluster.Status.Phase == v1alpha1.EtcdClusterPhaseRunning && s.cluster.Status.ReadyReplicas == 3 {
			break
		}
	}
	if r := s.raftOf(); r == nil || s.cluster.Status.Restore.Phase != v1alpha1.EtcdRestoreDone {
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

// A history takes 400 steps, and at most three times 600 until it rests.
var simLimits = simtest.Limits{Steps: 20_000}

func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		var onStop v1alpha1.EtcdOnStop
		var seed uint64
		if _, err := fmt.Sscan(text, &onStop, &seed); err != nil {
			t.Fatalf("%s is not a policy and a seed: %v", text, err)
		}
		s := newSim(seed, 4)
		play(s, onStop, 400)
		if verdict := s.Verdict(); verdict != "" {
			t.Error(verdict)
		}
	})
}

// A referee that sees nothing would let every history pass.
func TestTheRefereeSeesABrokenRule(t *testing.T) {
	for _, c := range []struct {
		name    string
		mutants mutants
		sees    string
	}{
		{"members serve while they are sealed", mutants{unsealed: true}, "is not in"},
		{"data is deleted before it is released", mutants{decision: func(w World, d *Decision) {
			if d.Status.Stop != nil && d.Status.Stop.Step == v1alpha1.EtcdSealing && len(w.Members) > 0 && w.Members[0].Spec.Want == v1alpha1.EtcdMemberSeal {
				next := w.Members[0].DeepCopy()
				next.Spec.Want = v1alpha1.EtcdMemberDelete
				d.Actions = append(d.Actions, Action{Do: SetDesired, Member: next})
			}
		}}, "before it was released"},
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
