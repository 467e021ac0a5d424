package volume

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// A history takes a few hundred steps, and at most some hundred more until it rests.
var simLimits = simtest.Limits{Steps: 20_000}

const simNodes = 5

// play is one history: trouble for a while, then calm, then a drain that can end.
func play(s *sim, steps int) {
	s.bound = simtest.Start("volume", s.plan, simLimits)
	defer s.bound.End()
	for range steps {
		if s.chance(2) {
			s.event()
		}
		s.step()
		if s.chance(2) {
			s.coordinate()
		}
		if len(s.broken) > 0 {
			return
		}
	}
	s.calm()
	if len(s.broken) > 0 {
		return
	}
	if !s.settle(300, s.healthy) {
		s.breach("it does not become healthy: %+v", s.volume.Status)
		return
	}
	s.drainThatEnds()
}

// drainThatEnds drains a node of a healthy volume on five nodes: there is room, so that only a last copy that the policy keeps holds it up.
func (s *sim) drainThatEnds() {
	n := s.nodes[s.rand.IntN(len(s.nodes))]
	s.log("the drain that ends, under %s", s.policy)
	s.startDrain(n)
	ended := s.settle(200, func() bool { return s.slot == nil })
	switch {
	case len(s.broken) > 0:
	case !ended && s.policy == v1alpha1.BlockIfContainsLastReplica && s.onlyOn(n):
	case !ended && s.policy == v1alpha1.AllowIfReplicaIsStopped && s.onlyOn(n) && !s.cluster().World(s.volume).Stopped():
	case !ended:
		s.breach("the drain of %s does not end under %s: %+v %+v", n.name, s.policy, s.cluster().replicasOn(n.name).Blockers, s.volume.Status.Conditions)
	case s.policy == v1alpha1.BlockForEviction && !s.healthy():
		s.breach("after the drain the volume is %s", s.volume.Status.Robustness)
	}
}

func (s *sim) onlyOn(n *simNode) bool {
	for _, m := range s.volume.Status.Members {
		if s.replicas[m].Spec.NodeName != n.name {
			return false
		}
	}
	return true
}

func TestNoHistoryLosesTheLastCopy(t *testing.T) {
	for _, policy := range policies {
		for replicas := int32(1); replicas <= 3; replicas++ {
			for seed := range testlength.Seeds(25, 300) {
				s := newSim(seed, policy, replicas, simNodes)
				play(s, 250)
				if len(s.broken) > 0 {
					t.Fatalf("%s: %s\n%s", s.plan, s.broken[0], s.tail())
				}
			}
		}
	}
}

func TestCordonsAndDrainsAloneNeverDegradeAVolumeThatIsEvicted(t *testing.T) {
	for replicas := int32(1); replicas <= 3; replicas++ {
		for seed := range testlength.Seeds(40, 500) {
			s := newSim(seed, v1alpha1.BlockForEviction, replicas, simNodes)
			s.trouble = false
			play(s, 250)
			if len(s.broken) > 0 {
				t.Fatalf("%s: %s\n%s", s.plan, s.broken[0], s.tail())
			}
		}
	}
}

func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		var policy v1alpha1.NodeDrainPolicy
		var replicas int32
		var seed uint64
		if _, err := fmt.Sscan(text, &policy, &replicas, &seed); err != nil {
			t.Fatalf("%s is not a policy, a count and a seed: %v", text, err)
		}
		s := newSim(seed, policy, replicas, simNodes)
		play(s, 250)
		if len(s.broken) > 0 {
			t.Errorf("%s\n%s", s.broken[0], s.tail())
		}
	})
}

// A referee that sees nothing would let every history pass.
func TestTheRefereeSeesABrokenRule(t *testing.T) {
	releaseAll := func(reason v1alpha1.ReleaseReason, which func(World, *v1alpha1.Replica) bool) func(World, *Decision) {
		return func(w World, d *Decision) {
			for _, r := range w.Replicas {
				if d.Status.Generation > 0 && which(w, r) {
					e := v1alpha1.ReleasedReplica{Replica: r.Name, Reason: reason}
					if w.Slot != nil && reason == v1alpha1.ReleaseForDrain {
						e.NodeEpoch, e.DrainUID = w.Slot.NodeEpoch, w.Slot.UID
					}
					p := planner{World: w, status: &d.Status}
					p.setRelease(r.Name, &e)
				}
			}
		}
	}
	for _, c := range []struct {
		name    string
		policy  v1alpha1.NodeDrainPolicy
		trouble bool
		mutants mutants
		sees    string
	}{
		{"whatever is on a draining node is released", v1alpha1.BlockIfContainsLastReplica, true, mutants{decision: releaseAll(v1alpha1.ReleaseForDrain, func(w World, r *v1alpha1.Replica) bool {
			return w.Slot != nil && w.Slot.Node == r.Spec.NodeName
		})}, "lets the last healthy copy"},
		{"a replica is evicted before its replacement is healthy", v1alpha1.BlockForEviction, false, mutants{decision: releaseAll(v1alpha1.ReleaseToEvict, func(_ World, r *v1alpha1.Replica) bool {
			return r.Spec.EvictionRequested
		})}, "degraded"},
		{"the last copy is evicted", v1alpha1.BlockForEviction, true, mutants{decision: releaseAll(v1alpha1.ReleaseToEvict, func(_ World, r *v1alpha1.Replica) bool {
			return r.Spec.EvictionRequested
		})}, "the last healthy copy"},
		{"members are deleted", v1alpha1.BlockForEviction, true, mutants{decision: func(w World, d *Decision) {
			for _, r := range w.Replicas {
				if r.Spec.EvictionRequested && !deleting(r) {
					d.Actions = append(d.Actions, Action{Do: DeleteReplica, Replica: r})
				}
			}
		}}, "is deleted"},
		{"a replica that is not built becomes a member", v1alpha1.BlockIfContainsLastReplica, true, mutants{decision: func(w World, d *Decision) {
			for _, r := range w.Replicas {
				if w.Volume.EngineNode() == "" && d.Status.Generation > 0 && w.Unused(r) && !w.member(r) {
					d.Status.Members = append(d.Status.Members, r.Name)
					d.Status.Generation++
				}
			}
		}}, "acknowledged writes"},
		{"a status is written over a newer one", v1alpha1.BlockIfContainsLastReplica, true, mutants{noCAS: true}, "the generation goes back"},
		{"nothing is released for a drain", v1alpha1.BlockIfContainsLastReplica, true, mutants{decision: func(w World, d *Decision) {
			d.Status.Released = nil
		}}, "does not end"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var other []string
			for seed := range uint64(300) {
				s := newSim(seed, c.policy, 2, simNodes)
				s.mutants, s.trouble = c.mutants, c.trouble
				play(s, 250)
				other = append(other, s.broken...)
				for _, b := range s.broken {
					if strings.Contains(b, c.sees) {
						return
					}
				}
			}
			t.Errorf("300 histories passed, or broke another rule: %v", other)
		})
	}
}
