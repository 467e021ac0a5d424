package drain_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

func TestNothingIsDoneWhenNothingIsAsked(t *testing.T) {
	newScene(t).takes()
}

func TestADrainGoesFromRequestToAnEmptyMachine(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 2)
	s.holds("n2", "volumes", 3)
	s.holds("n2", "programs", 1)
	d := s.request("d", "n2")

	s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress)
	s.slotIs("d", "n2", 1)
	stands(t, d, v1alpha1.DrainDraining, "Draining", "Work is being moved off the node.")
	counts := map[string]int64{"volumes": 3, "programs": 1}
	if diff := cmp.Diff(v1alpha1.DrainStatus{NodeEpoch: 1, Initial: counts, Remaining: counts, Stage: "programs,volumes"},
		v1alpha1.DrainStatus{NodeEpoch: d.Status.NodeEpoch, Initial: d.Status.Initial, Remaining: d.Status.Remaining, Stage: d.Status.Stage}); diff != "" {
		t.Errorf("the record of the start (-want +got):\n%s", diff)
	}
	desired(t, s, v1alpha1.Draining, 1)

	s.obey("n2")
	s.places("n2", "volumes", 0)
	s.holds("n2", "volumes", 0)
	s.takes(drain.StepProgress)
	s.holds("n2", "programs", 0)
	s.takes(drain.StepStop, drain.StepDesireStopping, drain.StepProgress)
	stands(t, d, v1alpha1.DrainStopping, "Stopping", "The node is empty and is shutting down.")
	desired(t, s, v1alpha1.Stopping, 1)

	s.obey("n2")
	s.takes()
	s.slotIs("d", "n2", 1)
	s.now = start.Add(90 * time.Second)
	s.leaves("n2")
	s.takes(drain.StepComplete, drain.StepReleaseSlot)
	s.slotIs("", "", 0)
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left.")
	if !d.Status.StartedAt.Equal(&metav1.Time{Time: start}) || !d.Status.FinishedAt.Equal(&metav1.Time{Time: s.now}) {
		t.Errorf("it took from %v to %v", d.Status.StartedAt, d.Status.FinishedAt)
	}
}

func desired(t *testing.T, s *scene, l v1alpha1.Liveness, epoch int64) {
	t.Helper()
	want := &v1alpha1.DesiredLiveness{Liveness: l, Epoch: epoch, DrainUID: s.settings.Status.ActiveDrain.UID}
	if diff := cmp.Diff(want, s.nodes["n2"].Spec.Desired); diff != "" {
		t.Errorf("n2 is told something else (-want +got):\n%s", diff)
	}
}

// nodeActs is what the node does while a drain runs: as it is told, as soon as it can.
func nodeActs(s *scene) {
	n := s.nodes["n2"]
	before := n.Status.Liveness
	s.obey("n2")
	switch {
	case n.Status.Liveness == v1alpha1.Stopping:
		s.leaves("n2")
	case before == v1alpha1.Draining:
		s.places("n2", "volumes", 0)
		s.holds("n2", "volumes", 0)
	}
}

// The coordinator crashes between any two of its writes, and the next one, who knows the objects only, comes to the same
// end by the same number of writes.
func TestACrashBetweenAnyTwoStepsChangesNothing(t *testing.T) {
	run := func(t *testing.T, crash int) (steps int, end v1alpha1.DrainStatus) {
		s := newScene(t)
		s.places("n2", "volumes", 2)
		s.holds("n2", "volumes", 2)
		d := s.request("d", "n2")
		for idle := 0; idle < 3; {
			if steps == crash {
				s.leader = "n3" // another one, with nothing but the objects
			}
			if s.step() == "" {
				idle++
				nodeActs(s)
				continue
			}
			idle = 0
			steps++
		}
		s.slotIs("", "", 0)
		return steps, d.Status
	}
	steps, want := run(t, -1)
	if want.Phase != v1alpha1.DrainComplete || steps < 9 {
		t.Fatalf("a drain that nobody disturbs ends %s after %d steps", want.Phase, steps)
	}
	for crash := range steps {
		t.Run(fmt.Sprintf("after step %d", crash), func(t *testing.T) {
			if got, end := run(t, crash); got != steps || !cmp.Equal(end, want) {
				t.Errorf("%d steps, want %d; the end (-want +got):\n%s", got, steps, cmp.Diff(want, end))
			}
		})
	}
}

// The node dies at any point of its drain. The drain is complete when nothing is bound to the node, and not before.
func TestANodeThatDiesAtAnyPointEndsItsDrain(t *testing.T) {
	for died := range 12 {
		t.Run(fmt.Sprintf("after step %d", died), func(t *testing.T) {
			s := newScene(t)
			s.places("n2", "volumes", 1)
			d := s.request("d", "n2")
			for range died {
				if s.step() == "" {
					nodeActs(s)
				}
			}
			wasEmpty := d.Status.Phase == v1alpha1.DrainStopping || d.Status.Phase.Final()
			if !wasEmpty {
				s.places("n2", "volumes", 1)
			}
			s.dies("n2")
			s.steps()
			if d.Status.Phase == v1alpha1.DrainComplete && !wasEmpty {
				t.Fatal("it is complete while a volume is bound to the dead node")
			}
			s.places("n2", "volumes", 0)
			s.steps()
			s.slotIs("", "", 0)
			endOfTheDead(t, d, died)
		})
	}
}

// endOfTheDead: before the slot was taken the drain is refused, later it is complete.
func endOfTheDead(t *testing.T, d *v1alpha1.Drain, died int) {
	t.Helper()
	switch {
	case died < 2:
		ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonCaptureNotFound, "capture not found")
	case d.Status.Phase != v1alpha1.DrainComplete || d.Status.Remaining["volumes"] != 0:
		t.Errorf("after %d steps it ends %s with %v", died, d.Status.Phase, d.Status.Remaining)
	}
}

// The words of the planner's clock: all that a step writes comes from the time it was given.
func TestTwoPlansOfOneWorldAreTheSame(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	s.request("d", "n2", deadline(time.Hour))
	for range 8 {
		w := s.world()
		one, two := drain.Next(w), drain.Next(copied(w))
		if diff := cmp.Diff(one, two); diff != "" {
			t.Fatalf("one world, two plans:\n%s", diff)
		}
		s.step()
		nodeActs(s)
		s.now = s.now.Add(20 * time.Minute)
	}
	for _, d := range s.drains {
		for _, c := range d.Status.Conditions {
			if c.LastTransitionTime.Before(&metav1.Time{Time: start}) || c.LastTransitionTime.After(s.now) {
				t.Errorf("condition %s changed at %v, by a clock of its own", c.Type, c.LastTransitionTime)
			}
		}
	}
}

// Versions guard every write but this one: a drain's refusal does not touch the slot that it has just got. That a
// coordinator whose term is over cannot write is what the API must see to.
func TestOnlyItsTermKeepsAnOlderCoordinatorFromRefusingADrainThatHasTheSlot(t *testing.T) {
	s := newScene(t)
	d := s.request("d", "n2")
	s.step() // n1, elected after n2, holds the drain
	reads := 0
	s.pause = func() {
		if reads++; reads == 2 {
			s.pause, s.leader = nil, "n1"
			s.step() // and gives it the slot, after n2 has read Settings
		}
	}
	s.leader = "n2"
	older := drain.Next(s.world())
	if older == nil || older.Name != drain.StepRefuse {
		t.Fatalf("the older coordinator wants %v", older)
	}
	if err := s.write(older); err != nil {
		t.Fatalf("the version stopped it: %v", err)
	}
	s.takes()
	s.slotIs("d", "n2", 1)
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonTargetIsCoordinator, "cannot drain coordinator node")
	again := s.request("again", "n2")
	s.steps()
	s.slotIs("again", "n2", 1)
	stands(t, again, v1alpha1.DrainDraining, "Draining", "Work is being moved off the node.")
}
