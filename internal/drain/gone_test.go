package drain_test

import (
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

const gone = "Node n2 is gone and no work is placed on it any more."

func TestADrainOfADeadNodeIsCompleteOnceNothingIsBoundToIt(t *testing.T) {
	for name, end := range map[string]func(*scene){
		"marked lost":         func(s *scene) { s.dies("n2") },
		"left by itself":      func(s *scene) { s.leaves("n2") },
		"its lease is gone":   func(s *scene) { delete(s.leases, "n2") },
		"its object is gone":  func(s *scene) { s.leaves("n2"); delete(s.nodes, "n2") },
		"lost, back and lost": func(s *scene) { s.dies("n2"); s.takesNextEpoch("n2"); s.dies("n2") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.places("n2", "volumes", 2)
			s.holds("n2", "volumes", 5)
			d := s.begun("d", "n2")
			s.steps()
			end(s)
			s.takes(drain.StepProgress)
			if got := d.Status.Remaining["volumes"]; got != 2 {
				t.Errorf("%d volumes remain: a node that is gone holds none, and the objects place 2", got)
			}
			s.slotIs("d", "n2", 1)
			s.places("n2", "volumes", 0)
			s.takes(drain.StepComplete, drain.StepReleaseSlot)
			ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone, gone)
			if d.Status.Remaining["volumes"] != 0 || d.Status.Stage != "" || len(d.Status.Blockers) > 0 {
				t.Errorf("it is complete, and of it is left: %v, %q, %v", d.Status.Remaining, d.Status.Stage, d.Status.Blockers)
			}
		})
	}
}

func TestADrainGoesOnInTheNextEpochOfItsNode(t *testing.T) {
	for name, c := range map[string]struct {
		liveness v1alpha1.Liveness
		observed string
		steps    []string
	}{
		"that began Draining":                       {v1alpha1.Draining, "uid-d", []string{drain.StepFollowSlot, drain.StepFollow, drain.StepDesireDraining}},
		"that read the slot before it was taken":    {v1alpha1.Alive, "", []string{drain.StepFollowSlot, drain.StepFollow, drain.StepDesireDraining, drain.StepProgress}},
		"that began Draining for a drain before it": {v1alpha1.Draining, "uid-before", []string{drain.StepFollowSlot, drain.StepFollow, drain.StepDesireDraining, drain.StepProgress}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.places("n2", "volumes", 1)
			d := s.begun("d", "n2")
			s.steps()
			s.restarts("n2", c.liveness, c.observed)
			s.takes(c.steps...)
			s.slotIs("d", "n2", 2)
			stands(t, d, v1alpha1.DrainDraining, "Draining", "Work is being moved off the node.")
			if d.Status.NodeEpoch != 2 {
				t.Errorf("the drain is of epoch %d", d.Status.NodeEpoch)
			}
			s.places("n2", "volumes", 0)
			s.obey("n2")
			s.steps()
			s.leaves("n2")
			s.steps()
			ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left.")
		})
	}
}

// A coordinator crashes between the slot's move to the new epoch and the drain's.
func TestADrainFollowsTheSlotAfterACrash(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	d := s.begun("d", "n2")
	s.steps()
	s.restarts("n2", v1alpha1.Draining, "uid-d")
	if name := s.step(); name != drain.StepFollowSlot || d.Status.NodeEpoch != 1 {
		t.Fatalf("step %q, the drain is of epoch %d", name, d.Status.NodeEpoch)
	}
	s.dies("n2")
	s.places("n2", "volumes", 0)
	s.takes(drain.StepFollow, drain.StepComplete, drain.StepReleaseSlot)
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone, gone)
}

// A process that takes the lease has not said yet in which state it begins: nothing is decided until it has.
func TestARestartingNodeIsWaitedFor(t *testing.T) {
	for _, phase := range []v1alpha1.DrainPhase{v1alpha1.DrainDraining, v1alpha1.DrainStopping} {
		t.Run(string(phase), func(t *testing.T) {
			s := newScene(t)
			d := s.at(phase)
			s.takesNextEpoch("n2")
			s.steps()
			if d.Status.Phase != phase || len(d.Status.Blockers) != 1 || d.Status.Blockers[0].Reason != drain.BlockedByReturn {
				t.Errorf("it is %s, blocked by %v", d.Status.Phase, d.Status.Blockers)
			}
			s.slotIs("d", "n2", 1)
			s.dies("n2")
			s.steps()
			if d.Status.Phase != v1alpha1.DrainComplete {
				t.Errorf("it came back and died, and the drain is %s", d.Status.Phase)
			}
		})
	}
}

// at brings a drain of n2 to a phase.
func (s *scene) at(phase v1alpha1.DrainPhase, change ...func(*v1alpha1.Drain)) *v1alpha1.Drain {
	s.t.Helper()
	if phase == v1alpha1.DrainDraining {
		s.places("n2", "volumes", 1)
	}
	d := s.begun("d", "n2", change...)
	s.steps()
	s.places("n2", "volumes", 0)
	if d.Status.Phase != phase {
		s.t.Fatalf("the drain is %s", d.Status.Phase)
	}
	return d
}

func TestAStoppingNodesEndDecidesHowItsDrainEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end             func(*scene)
		reason, message string
	}{
		"released":                      {func(s *scene) { s.leaves("n2") }, v1alpha1.ReasonDrained, "Node n2 was emptied and has left."},
		"fenced":                        {func(s *scene) { s.dies("n2") }, v1alpha1.ReasonNodeGone, "Node n2 died while it was shutting down; it was empty."},
		"released, and its lease gone":  {func(s *scene) { delete(s.leases, "n2") }, v1alpha1.ReasonDrained, "Node n2 was emptied and has left."},
		"released, and its object gone": {func(s *scene) { s.leaves("n2"); delete(s.nodes, "n2") }, v1alpha1.ReasonDrained, "Node n2 was emptied and has left."},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			d := s.at(v1alpha1.DrainStopping)
			c.end(s)
			s.takes(drain.StepComplete, drain.StepReleaseSlot)
			ended(t, d, v1alpha1.DrainComplete, c.reason, c.message)
		})
	}
}

// What goes on without a lease may still run on a node that is gone: its drain ends, and says so.
func TestADrainSaysWhatMayStillRun(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainStopping)
	s.dies("n2")
	s.left["n2"]["volumes"] = drain.Remaining{Loose: "Two of them may still run there."}
	s.takes(drain.StepComplete, drain.StepReleaseSlot)
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone, "Node n2 died while it was shutting down; it was empty. Two of them may still run there.")
}

// A node that dies on its way out and is started again by a supervisor has not left: nobody may switch the machine off.
func TestAStoppingNodeThatComesBackIsToldAgain(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainStopping)
	s.restarts("n2", v1alpha1.Draining, "uid-d")
	s.holds("n2", "volumes", 1)
	s.takes(drain.StepFollowSlot, drain.StepFollow, drain.StepDesireDraining, drain.StepProgress)
	stands(t, d, v1alpha1.DrainStopping, "Stopping", "The node is empty and is shutting down.")
	s.holds("n2", "volumes", 0)
	s.takes(drain.StepDesireStopping, drain.StepProgress)
	desired(t, s, v1alpha1.Stopping, 2)
	s.leaves("n2")
	s.takes(drain.StepComplete, drain.StepReleaseSlot)
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left.")
}

func TestANodeThatIsStoppedWhileItComesBackIsGone(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainDraining)
	s.restarts("n2", v1alpha1.Stopping, "")
	s.steps()
	s.slotIs("d", "n2", 1)
	s.leaves("n2")
	s.steps()
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone, gone)
}

// Somebody wrote over the slot. The drain that runs says nothing of an end that nobody saw; it takes the slot again.
func TestADrainThatLostTheSlotTakesItAgain(t *testing.T) {
	for _, phase := range []v1alpha1.DrainPhase{v1alpha1.DrainDraining, v1alpha1.DrainStopping} {
		for _, deleted := range []bool{false, true} {
			t.Run(string(phase), func(t *testing.T) {
				s := newScene(t)
				d := s.at(phase)
				if deleted {
					s.delete("d", s.now)
				}
				s.settings.Status.ActiveDrain = nil
				s.bump(s.settings)
				s.step()
				s.slotIs("d", "n2", 1)
				if d.Status.Phase != phase {
					t.Errorf("it is %s", d.Status.Phase)
				}
			})
		}
	}
}

func TestADrainThatLostTheSlotToAnotherWaitsForIt(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainDraining)
	s.settings.Status.ActiveDrain = nil
	other := s.begun("another", "n3", func(o *v1alpha1.Drain) { o.CreationTimestamp.Time = start.Add(-time.Hour) })
	s.steps()
	s.slotIs("another", "n3", 1)
	s.leaves("n3")
	s.steps()
	s.slotIs("d", "n2", 1)
	if other.Status.Phase != v1alpha1.DrainComplete || d.Status.Phase.Final() {
		t.Errorf("the other is %s, this one %s", other.Status.Phase, d.Status.Phase)
	}
}
