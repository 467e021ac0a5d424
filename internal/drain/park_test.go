package drain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// parkedIs wants a node to be parked by a drain, or not to be.
func (s *scene) parkedIs(name, by string, epoch int64) {
	s.t.Helper()
	var want *v1alpha1.Parked
	if by != "" {
		want = &v1alpha1.Parked{DrainUID: "uid-" + by, Epoch: epoch}
	}
	if diff := cmp.Diff(want, s.nodes[name].Status.Parked); diff != "" {
		s.t.Errorf("parked (-want +got):\n%s", diff)
	}
}

func TestADrainThatParksCordonsItsNodeBeforeItBegins(t *testing.T) {
	s := newScene(t)
	d := s.request("d", "n2", parking)
	s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepCordon, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress)
	s.cordonIs("n2", true, "uid-d")

	s.obey("n2")
	s.takes(drain.StepStop, drain.StepDesireStopping, drain.StepProgress)
	if !s.nodes["n2"].Spec.Desired.Park {
		t.Error("the node is not told to park")
	}
	s.obey("n2")
	s.leaves("n2")
	s.takes(drain.StepComplete, drain.StepReleaseSlot)
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left. It is parked until it is uncordoned.")
	s.cordonIs("n2", true, "uid-d")
	s.parkedIs("n2", "d", 1)
	if got := drain.Explain(s.world(), "n2"); !strings.Contains(got, "It is parked: it was drained, and its process waits without a lease. `ebb uncordon n2` brings it back as epoch 2.\n") {
		t.Errorf("explanation:\n%s", got)
	}

	s.cordons("n2", false)
	s.takes(drain.StepClearOwners)
	s.cordonIs("n2", false)
	if got := drain.Explain(s.world(), "n2"); !strings.Contains(got, "It was parked and is uncordoned now: it joins as epoch 2 when its process runs.\n") {
		t.Errorf("explanation:\n%s", got)
	}
}

func TestTheCordonOfAPersonStaysThatPersons(t *testing.T) {
	for _, c := range []struct {
		name string
		ends func(*scene, *v1alpha1.Drain)
	}{
		{"cancelled", func(s *scene, d *v1alpha1.Drain) { s.cancel(d.Name) }},
		{"complete", func(s *scene, _ *v1alpha1.Drain) {
			s.obey("n2")
			s.steps()
			s.obey("n2")
			s.leaves("n2")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			s.cordons("n2", true)
			d := s.begun("d", "n2", parking)
			s.cordonIs("n2", true)
			c.ends(s, d)
			s.steps()
			s.cordonIs("n2", true)
			if !d.Status.Phase.Final() {
				t.Errorf("the drain is %s", d.Status.Phase)
			}
		})
	}
}

func TestACancelledDrainLiftsItsCordon(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	d := s.begun("d", "n2", parking)
	s.cancel("d")
	s.takes(drain.StepCancel, drain.StepLiftCordon)
	s.cordonIs("n2", false)
	s.restarts("n2", v1alpha1.Alive, "")
	s.takes(drain.StepReleaseSlot)
	ended(t, d, v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested, "The drain was cancelled: node n2 takes work again in a new epoch. Work that has moved stays where it is.")
}

func TestADeletedDrainLiftsItsCordonBeforeItGoes(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	s.begun("d", "n2", parking)
	s.delete("d", s.now)
	s.takes(drain.StepCancel, drain.StepLiftCordon)
	s.restarts("n2", v1alpha1.Alive, "")
	s.takes(drain.StepReleaseSlot, drain.StepRemoveFinalizer)
	s.cordonIs("n2", false)
}

func TestAnUncordonCancelsTheDrainThatParks(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	d := s.begun("d", "n2", parking)
	s.cordons("n2", false)
	s.takes(drain.StepCancel, drain.StepClearOwners)
	ended(t, d, v1alpha1.DrainCancelled, v1alpha1.ReasonUncordoned, "Node n2 was uncordoned: it takes work again in a new epoch. Work that has moved stays where it is.")
	s.cordonIs("n2", false)
}

func TestAnUncordonOfAPersonsCordonCancelsTheDrainThatParks(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	s.cordons("n2", true)
	d := s.begun("d", "n2", parking)
	s.cordons("n2", false)
	s.takes(drain.StepCancel)
	if d.Status.Phase != v1alpha1.DrainCancelled {
		t.Errorf("the drain is %s", d.Status.Phase)
	}
}

func TestAnUncordonBetweenTheCordonAndTheStartCancelsTheDrain(t *testing.T) {
	s := newScene(t)
	d := s.request("d", "n2", parking)
	for s.step() != drain.StepCordon {
	}
	s.cordons("n2", false)
	s.takes(drain.StepCancel, drain.StepClearOwners)
	if d.Status.Phase != v1alpha1.DrainCancelled || d.Status.StartedAt != nil {
		t.Errorf("the drain is %s, started %v", d.Status.Phase, d.Status.StartedAt)
	}
}

// It is too late to cancel: the node parks, and joins again.
func TestAnUncordonOfAStoppingNodeBringsItBack(t *testing.T) {
	for _, c := range []struct {
		name  string
		joins bool
	}{{"the coordinator sees that it left", false}, {"it is back before the coordinator looks", true}} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			d := s.begun("d", "n2", parking)
			s.steps()
			s.cordons("n2", false)
			s.takes(drain.StepClearOwners)
			s.obey("n2")
			s.leaves("n2")
			if c.joins {
				s.restarts("n2", v1alpha1.Draining, "uid-d")
			}
			s.takes(drain.StepComplete, drain.StepReleaseSlot)
			ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied, and uncordoned since.")
			s.cordonIs("n2", false)
		})
	}
}

func TestANodeThatDiesWhileItIsDrainedToBeParkedIsParked(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	d := s.begun("d", "n2", parking)
	s.dies("n2")
	s.takes(drain.StepProgress)
	s.places("n2", "volumes", 0)
	s.takes(drain.StepPark, drain.StepComplete, drain.StepReleaseSlot)
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone, "Node n2 is gone and no work is placed on it any more. It is parked until it is uncordoned.")
	s.parkedIs("n2", "d", 1)
	s.cordonIs("n2", true, "uid-d")
}

func TestANodeThatRestartsWhileItIsDrainedToBeParkedIsFollowed(t *testing.T) {
	s := newScene(t)
	d := s.begun("d", "n2", parking)
	s.steps()
	s.restarts("n2", v1alpha1.Draining, "uid-d")
	s.takes(drain.StepFollowSlot, drain.StepFollow, drain.StepDesireStopping)
	if want := s.nodes["n2"].Spec.Desired; !want.Park || want.Epoch != 2 {
		t.Errorf("the node is told %+v", want)
	}
	s.obey("n2")
	s.leaves("n2")
	s.takes(drain.StepComplete, drain.StepReleaseSlot)
	s.parkedIs("n2", "d", 2)
	if d.Status.Phase != v1alpha1.DrainComplete {
		t.Errorf("the drain is %s", d.Status.Phase)
	}
}

func TestAFailedDrainThatParksKeepsItsCordonUntilItLetsItsNodeGo(t *testing.T) {
	failed := func(t *testing.T) (*scene, *v1alpha1.Drain) {
		s := newScene(t)
		s.places("n2", "volumes", 1)
		d := s.begun("d", "n2", parking, deadline(time.Minute))
		s.now = start.Add(2 * time.Minute)
		s.takes(drain.StepFail)
		s.cordonIs("n2", true, "uid-d")
		return s, d
	}
	t.Run("cancelled", func(t *testing.T) {
		s, _ := failed(t)
		s.cancel("d")
		s.takes(drain.StepCancel, drain.StepLiftCordon)
		s.cordonIs("n2", false)
	})
	t.Run("uncordoned", func(t *testing.T) {
		s, d := failed(t)
		s.cordons("n2", false)
		s.takes(drain.StepCancel, drain.StepClearOwners)
		if c := d.Status.Conditions[len(d.Status.Conditions)-1]; c.Type != v1alpha1.DrainReleased || c.Reason != v1alpha1.ReasonUncordoned {
			t.Errorf("the last condition is %+v", c)
		}
	})
	t.Run("its node ends", func(t *testing.T) {
		s, _ := failed(t)
		s.dies("n2")
		s.takes(drain.StepReleaseSlot, drain.StepLiftCordon)
		s.cordonIs("n2", false)
	})
	t.Run("taken up by one that parks", func(t *testing.T) {
		s, _ := failed(t)
		s.request("e", "n2", parking)
		s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress, drain.StepLiftCordon)
		s.cordonIs("n2", true, "uid-e")
	})
	t.Run("taken up by one that parks, after a person cordoned the node too", func(t *testing.T) {
		s, _ := failed(t)
		v1alpha1.AddCordonOwner(s.nodes["n2"], v1alpha1.CordonPerson)
		s.bump(s.nodes["n2"])
		s.request("e", "n2", parking)
		s.steps()
		s.cordonIs("n2", true, v1alpha1.CordonPerson, "uid-e")
		s.cancel("e")
		s.steps()
		s.cordonIs("n2", true)
	})
	t.Run("taken up by one that does not park", func(t *testing.T) {
		s, _ := failed(t)
		s.request("e", "n2")
		s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress, drain.StepLiftCordon)
		s.cordonIs("n2", false)
	})
}

// Owners that are no drains belong to others, and a Drain that parked a node may have been deleted.
func TestOwnersThatAreNoDrainsAreLeftAlone(t *testing.T) {
	s := newScene(t)
	v1alpha1.SetCordonOwners(s.nodes["n2"], []string{"uid-of-an-event"})
	s.cordons("n2", true)
	s.takes()
	s.begun("d", "n2", parking)
	s.cordonIs("n2", true, "uid-of-an-event")
	s.cancel("d")
	s.steps()
	s.cordonIs("n2", true, "uid-of-an-event")
}

// A person uncordons a parked node and cordons it again before the coordinator looks.
func TestACordonMadeAfterANodeWasParkedIsNotLifted(t *testing.T) {
	s := newScene(t)
	s.begun("d", "n2", parking)
	s.steps()
	s.obey("n2")
	s.leaves("n2")
	s.steps()
	s.restarts("n2", v1alpha1.Alive, "") // it saw the uncordon, and removed status.parked
	s.takes(drain.StepLiftCordon)
	s.cordonIs("n2", true)
}

func TestARefusedDrainCordonsNothing(t *testing.T) {
	s := newScene(t)
	s.begun("d", "n2")
	s.request("e", "n3", parking)
	s.request("f", "n3", parking, queued)
	s.steps()
	s.cordonIs("n3", false)
}

// A parked node has no lease: it is not one of the nodes that are left, and cannot be drained.
func TestAParkedNodeIsNotAlive(t *testing.T) {
	s := newScene(t)
	for _, name := range []string{"n2", "n3"} {
		s.begun("park-"+name, name, parking)
		s.steps()
		s.obey(name)
		s.leaves(name)
		s.steps()
	}
	alone := s.request("alone", "n1")
	again := s.request("again", "n2", parking)
	s.takes(drain.StepRefuse, drain.StepRefuse)
	ended(t, alone, v1alpha1.DrainFailed, v1alpha1.ReasonSingleNode, "at least 2 captures required for drain operation")
	ended(t, again, v1alpha1.DrainFailed, v1alpha1.ReasonCaptureNotFound, "capture not found")
	s.cordonIs("n2", true, "uid-park-n2")
}

// The coordinator crashes between any two writes of a drain that parks.
func TestACrashBetweenAnyTwoStepsParksAllTheSame(t *testing.T) {
	run := func(t *testing.T, crash int) (steps int, end v1alpha1.DrainStatus) {
		s := newScene(t)
		s.places("n2", "volumes", 2)
		s.holds("n2", "volumes", 2)
		d := s.request("d", "n2", parking)
		for idle := 0; idle < 3; {
			if steps == crash {
				s.leader = "n3"
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
		s.cordonIs("n2", true, "uid-d")
		s.parkedIs("n2", "d", 1)
		return steps, d.Status
	}
	steps, want := run(t, -1)
	if want.Phase != v1alpha1.DrainComplete || steps < 10 {
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
