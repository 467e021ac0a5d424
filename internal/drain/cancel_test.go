package drain_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// ways to ask that a drain end.
var cancels = map[string]func(*scene, string){
	"cancelled": func(s *scene, name string) { s.cancel(name) },
	"deleted":   func(s *scene, name string) { s.delete(name, s.now) },
}

func TestADrainThatHasTheSlotAndIsNotStoppingCanBeCancelled(t *testing.T) {
	const words = "The drain was cancelled: node n2 takes work again in a new epoch. Work that has moved stays where it is."
	for how, ask := range cancels {
		for _, steps := range []int{2, 3, 4, 5} { // hold, take-slot, begin, desire-draining, progress
			for _, acknowledged := range []bool{false, true} {
				s := newScene(t)
				s.places("n2", "volumes", 2)
				d := s.request("d", "n2")
				for range steps {
					s.step()
				}
				if acknowledged {
					s.obey("n2")
				}
				ask(s, "d")
				s.takes(drain.StepCancel)
				ended(t, d, v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested, words)
				if len(d.Status.Blockers) > 0 || d.Status.Stage != "" {
					t.Errorf("%s after %d steps: blockers %v, stage %q", how, steps, d.Status.Blockers, d.Status.Stage)
				}
				if s.drains["d"] == nil {
					t.Fatalf("%s after %d steps: its record is gone before its node is free", how, steps)
				}
				s.slotIs("d", "n2", 1) // until the node has begun its next epoch
				s.restarts("n2", v1alpha1.Alive, "")
				s.steps()
				s.slotIs("", "", 0)
				if gone := s.drains["d"] == nil; gone != (how == "deleted") {
					t.Errorf("%s after %d steps: its record is gone: %v", how, steps, gone)
				}
			}
		}
	}
}

func TestADrainThatIsStoppingIsNotCancelled(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainStopping)
	// The API refuses both; a home that does not leaves the drain as it is.
	d.Spec.Cancelled = true
	s.bump(d)
	s.delete("d", s.now)
	s.steps()
	s.leaves("n2")
	s.steps()
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left.")
}

func TestAQueuedDrainThatIsCancelledIsWithdrawn(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	s.begun("first", "n2")
	d := s.request("d", "n3", queued)
	s.steps()
	s.cancel("d")
	s.takes(drain.StepWithdraw)
	ended(t, d, v1alpha1.DrainCancelled, v1alpha1.ReasonWithdrawn, "The drain was cancelled before it began.")
	s.slotIs("first", "n2", 1)
}

func TestACancelledDrainOfADeadNodeFreesTheSlotWhenTheNodeIsMarked(t *testing.T) {
	s := newScene(t)
	s.at(v1alpha1.DrainDraining)
	s.cancel("d")
	s.takes(drain.StepCancel)
	s.dies("n2")
	s.takes(drain.StepReleaseSlot)
	s.slotIs("", "", 0)
}

func TestACancelledDrainIsNotFollowedIntoAnEpochThatBeganDraining(t *testing.T) {
	s := newScene(t)
	s.at(v1alpha1.DrainDraining)
	s.cancel("d")
	s.steps()
	s.restarts("n2", v1alpha1.Draining, "uid-d") // it read the drain just before
	s.takes(drain.StepReleaseSlot)
}

func TestAFailedDrainThatIsCancelledLetsGoOfItsNode(t *testing.T) {
	s := newScene(t)
	d := s.failed()
	s.cancel("d")
	s.takes(drain.StepCancel)
	if d.Status.Phase != v1alpha1.DrainFailed || !meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.DrainReleased) {
		t.Errorf("it is %s: %v", d.Status.Phase, d.Status.Conditions)
	}
	s.slotIs("d", "n2", 1)
	s.restarts("n2", v1alpha1.Alive, "")
	s.takes(drain.StepReleaseSlot)
}

func TestAFailedDrainWhoseNodeWasToldToLeaveIsNotCancelled(t *testing.T) {
	s := newScene(t)
	d := s.request("d", "n2", deadline(time.Minute))
	s.steps()
	s.obey("n2")
	s.steps()
	s.now = s.now.Add(2 * time.Minute)
	s.steps()
	if d.Status.Phase != v1alpha1.DrainFailed {
		t.Fatalf("it is %s", d.Status.Phase)
	}
	s.cancel("d")
	s.takes()
}

func TestWhatANodeHoldsThoughNothingIsPlacedThereIsNamed(t *testing.T) {
	s := newScene(t)
	s.places("n2", "programs", 1)
	s.holds("n2", "programs", 1)
	d := s.at(v1alpha1.DrainDraining)
	if len(d.Status.Blockers) > 0 {
		t.Fatalf("while an object places it there: %v", d.Status.Blockers)
	}
	s.places("n2", "programs", 0)
	s.steps()
	if len(d.Status.Blockers) != 1 {
		t.Fatalf("blockers: %v", d.Status.Blockers)
	}
	b := d.Status.Blockers[0]
	if b.Kind != "Node" || b.Name != "n2" || b.Reason != "NodeStillHolds" || !strings.HasPrefix(b.Remedy, "node n2 still holds 1 program that no object places there") {
		t.Errorf("blocker: %+v", b)
	}
	s.holds("n2", "programs", 0)
	s.takes(drain.StepStop, drain.StepDesireStopping, drain.StepProgress)
}

// A node that is stopping does not come back by itself, whatever becomes of its drain.
func TestACancelledDrainOfANodeThatIsStoppingSaysThatTheNodeStops(t *testing.T) {
	const words = "The drain was cancelled, but node n2 was asked to stop and is shutting down: start it again to bring it back. Work that has moved stays where it is."
	stopping := func(n *v1alpha1.NodeStatus) { n.Liveness = v1alpha1.Stopping }
	t.Run("while it drains", func(t *testing.T) {
		s := newScene(t)
		s.places("n2", "volumes", 2)
		d := s.begun("d", "n2")
		s.says(stopping)
		s.cancel("d")
		s.steps()
		ended(t, d, v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested, words)
	})
	t.Run("after its drain has failed", func(t *testing.T) {
		s := newScene(t)
		d := s.failed()
		s.says(stopping)
		s.cancel("d")
		s.steps()
		if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainReleased); c == nil || c.Message != words {
			t.Errorf("it is released with %+v", c)
		}
	})
}

func TestADrainOfANodeThatIsStoppingFailsWithWordsThatAreTrue(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 2)
	d := s.begun("d", "n2", deadline(10*time.Minute))
	s.says(func(n *v1alpha1.NodeStatus) { n.Liveness = v1alpha1.Stopping })
	s.now = start.Add(10 * time.Minute)
	s.steps()
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded,
		"Node n2 was asked to stop and had not left 10m0s after the drain began: 2 volumes left. It takes no new work; a new Drain of it continues where this one ended.")
}
