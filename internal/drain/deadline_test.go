package drain_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

const late = "Node n2 was not drained within 10m0s: 2 volumes left. It stays Draining and takes no new work; a new Drain of it continues where this one ended."

// failed brings a drain of n2 past its deadline.
func (s *scene) failed() *v1alpha1.Drain {
	s.t.Helper()
	s.places("n2", "volumes", 2, v1alpha1.Blocker{Kind: "Volume", Name: "v", Reason: "LastCopy", Remedy: "add a disk"})
	d := s.begun("d", "n2", deadline(10*time.Minute))
	s.steps()
	s.now = start.Add(10 * time.Minute)
	s.steps()
	return d
}

func TestADrainFailsAtItsDeadlineAndKeepsBlockersAndSlot(t *testing.T) {
	s := newScene(t)
	d := s.failed()
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, late)
	s.slotIs("d", "n2", 1)
	if len(d.Status.Blockers) != 1 || d.Status.Blockers[0].Name != "v" || d.Status.Remaining["volumes"] != 2 || d.Status.Stage != "volumes" {
		t.Errorf("it keeps %v, %v, %q", d.Status.Blockers, d.Status.Remaining, d.Status.Stage)
	}
	desired(t, s, v1alpha1.Draining, 1)
	s.places("n2", "volumes", 0)
	s.now = s.now.Add(time.Hour)
	s.takes()
	s.slotIs("d", "n2", 1)
}

func TestADeadlineComesAtItsTimeAndNotBefore(t *testing.T) {
	for after, want := range map[time.Duration]v1alpha1.DrainPhase{
		10*time.Minute - time.Second: v1alpha1.DrainDraining, 10 * time.Minute: v1alpha1.DrainFailed, time.Hour: v1alpha1.DrainFailed, -time.Hour: v1alpha1.DrainDraining,
	} {
		s := newScene(t)
		d := s.at(v1alpha1.DrainDraining, deadline(10*time.Minute))
		s.places("n2", "volumes", 1)
		s.now = start.Add(after)
		s.steps()
		if d.Status.Phase != want {
			t.Errorf("after %s the drain is %s", after, d.Status.Phase)
		}
	}
}

// However short the deadline, a failed drain leaves a node that was told to drain: its message says so.
func TestADrainThatFailsAtOnceStillTellsItsNode(t *testing.T) {
	s := newScene(t)
	d := s.request("d", "n2", deadline(0))
	s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepFail)
	desired(t, s, v1alpha1.Draining, 1)
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded,
		"Node n2 was not drained within 0s: nothing is left. It stays Draining and takes no new work; a new Drain of it continues where this one ended.")
}

func TestADeadlineAlsoEndsTheWaitForANodeToLeave(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainStopping, deadline(10*time.Minute))
	s.now = start.Add(10 * time.Minute)
	s.takes(drain.StepFail)
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded,
		"Node n2 was asked to stop and had not left 10m0s after the drain began: nothing is left. It takes no new work; a new Drain of it continues where this one ended.")
	if len(d.Status.Blockers) != 1 || d.Status.Blockers[0].Reason != drain.BlockedByLeaving {
		t.Errorf("it keeps %v", d.Status.Blockers)
	}
	s.slotIs("d", "n2", 1)
	s.leaves("n2")
	s.takes(drain.StepReleaseSlot)
	if d.Status.Phase != v1alpha1.DrainFailed {
		t.Errorf("a drain that failed is %s", d.Status.Phase)
	}
}

// Work of a dead node that nobody can take would hold its drain for ever.
func TestADeadlineAlsoEndsTheWaitForADeadNodesWork(t *testing.T) {
	for name, end := range map[string]func(*scene){
		"gone":        func(s *scene) { s.dies("n2") },
		"coming back": func(s *scene) { s.takesNextEpoch("n2") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			d := s.at(v1alpha1.DrainDraining, deadline(10*time.Minute))
			s.places("n2", "volumes", 1)
			end(s)
			s.steps()
			s.now = start.Add(10 * time.Minute)
			s.takes(drain.StepFail, drain.StepReleaseSlot)
			ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded,
				"Node n2 died or restarted and was not drained within 10m0s: 1 volume left. A new Drain of it starts over.")
		})
	}
}

func TestOnlyANewDrainOfTheSameNodeTakesUpAFailedOne(t *testing.T) {
	s := newScene(t)
	failed := s.failed()
	other := s.request("other", "n3")
	waiting := s.request("waiting", "n3", queued)
	same := s.request("same", "n2")
	s.steps()
	ended(t, other, v1alpha1.DrainFailed, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain d of node n2")
	stands(t, waiting, v1alpha1.DrainPending, v1alpha1.ReasonQueued, "Waiting for drain same of node n2.")
	stands(t, same, v1alpha1.DrainDraining, "Draining", "Work is being moved off the node.")
	s.slotIs("same", "n2", 1)
	desired(t, s, v1alpha1.Draining, 1)
	s.places("n2", "volumes", 0)
	s.steps()
	if same.Status.Phase != v1alpha1.DrainDraining {
		t.Fatalf("it is %s by an acknowledgement of the drain before", same.Status.Phase)
	}
	s.obey("n2")
	s.steps()
	s.leaves("n2")
	s.steps()
	ended(t, same, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left.")
	ended(t, failed, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, late)
	s.slotIs("waiting", "n3", 1)
}

func TestADeletedRecordOfAFailedDrainLeavesTheSlotToTheSameNode(t *testing.T) {
	s := newScene(t)
	s.failed()
	s.delete("d", s.now)
	s.takes(drain.StepRemoveFinalizer)
	if len(s.drains) != 0 {
		t.Fatal("the record stays")
	}
	s.slotIs("d", "n2", 1)
	other := s.request("other", "n3")
	s.steps()
	ended(t, other, v1alpha1.DrainFailed, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain d of node n2")
	s.request("same", "n2")
	s.steps()
	s.slotIs("same", "n2", 1)
}

func TestTheEndOfAFailedNodesEpochFreesTheSlot(t *testing.T) {
	for name, c := range map[string]struct {
		end   func(*scene)
		steps []string
	}{
		"it leaves":                        {func(s *scene) { s.leaves("n2") }, []string{drain.StepReleaseSlot}},
		"it is lost":                       {func(s *scene) { s.dies("n2") }, []string{drain.StepReleaseSlot}},
		"it restarts and has not spoken":   {func(s *scene) { s.takesNextEpoch("n2") }, []string{drain.StepReleaseSlot}},
		"it restarts Alive":                {func(s *scene) { s.restarts("n2", v1alpha1.Alive, "") }, []string{drain.StepReleaseSlot}},
		"it restarts Draining for another": {func(s *scene) { s.restarts("n2", v1alpha1.Draining, "uid-x") }, []string{drain.StepReleaseSlot}},
		"its record is deleted as well":    {func(s *scene) { s.leaves("n2"); s.delete("d", s.now) }, []string{drain.StepReleaseSlot, drain.StepRemoveFinalizer}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			d := s.failed()
			c.end(s)
			if got := s.steps(); !slices.Equal(got, c.steps) {
				t.Errorf("steps are %q, want %q", got, c.steps)
			}
			s.slotIs("", "", 0)
			ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, late)
		})
	}
}

// A failed drain's node that read the slot at its start drains on: two nodes would drain if the slot went to another.
func TestAFailedDrainKeepsTheSlotForANodeThatBeganDrainingForIt(t *testing.T) {
	s := newScene(t)
	d := s.failed()
	s.restarts("n2", v1alpha1.Draining, "uid-d")
	s.takes(drain.StepFollowSlot)
	s.slotIs("d", "n2", 2)
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, late)
	s.leaves("n2")
	s.takes(drain.StepReleaseSlot)
}

// refusedCordon brings a drain of the core Node n2 to the slot, and asks for the next step while the API refuses the cordon, a time later.
func refusedCordon(t *testing.T, later time.Duration) (*scene, *v1alpha1.Drain, func() *drain.Step) {
	t.Helper()
	s := newCoreScene(t)
	d := s.request("d", "n2", deadline(10*time.Minute))
	for range 2 {
		s.step()
	}
	s.slotIs("d", "n2", 1)
	s.now = start.Add(later)
	return s, d, func() *drain.Step {
		w := s.world()
		w.Refused = map[string]string{"n2": "a webhook says no"}
		step := drain.Next(w)
		if step != nil {
			if err := s.write(step); err != nil {
				t.Fatal(err)
			}
		}
		return step
	}
}

func TestADrainThatCannotBeginFailsAtItsDeadlineAndFreesTheSlot(t *testing.T) {
	s, d, next := refusedCordon(t, time.Minute)
	if step := next(); step == nil || step.Name != drain.StepProgress {
		t.Fatalf("the next step is %+v", step)
	}
	other := s.request("other", "n3", queued)
	s.now = start.Add(10*time.Minute - time.Second)
	if step := next(); step == nil || step.Name != drain.StepQueue || d.Status.Phase != v1alpha1.DrainPending {
		t.Fatalf("before its deadline the next step is %+v, and the drain is %s", step, d.Status.Phase)
	}
	s.now = start.Add(10 * time.Minute)
	if step := next(); step == nil || step.Name != drain.StepFail {
		t.Fatalf("the next step is %+v", step)
	}
	const message = "The drain of node n2 could not begin within 10m0s: the node could not be cordoned: a webhook says no. It releases the node, which takes work again in a new epoch; then the slot is free."
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, message)
	if len(d.Status.Blockers) != 1 || d.Status.Blockers[0].Reason != drain.BlockedByCordon || !d.Status.Blockers[0].Since.Time.Equal(start.Add(time.Minute)) {
		t.Errorf("it keeps %v", d.Status.Blockers)
	}
	if text := drain.Explain(s.world(), "n2"); !strings.Contains(text, "Drain d is Failed. "+message) || !strings.Contains(text, drain.BlockedByCordon) {
		t.Errorf("it says:\n%s", text)
	}
	// The node may have restarted while the slot named it, and drain: the slot is free only after that epoch.
	if step := next(); step != nil {
		t.Fatalf("the next step is %+v", step)
	}
	s.slotIs("d", "n2", 1)
	s.restarts("n2", v1alpha1.Alive, "")
	s.steps()
	s.slotIs("other", "n3", 1)
	if other.Status.Phase.Final() {
		t.Errorf("the drain that waited is %s", other.Status.Phase)
	}
}

// The deadline of the drain itself begins with it.
func TestADrainThatBeginsLateHasItsWholeTime(t *testing.T) {
	s, d, next := refusedCordon(t, 9*time.Minute)
	next()
	s.places("n2", "volumes", 1)
	s.steps()
	s.projects("project-cordon n2")
	s.steps()
	s.now = start.Add(11 * time.Minute)
	s.steps()
	if d.Status.Phase != v1alpha1.DrainDraining {
		t.Errorf("the drain is %s", d.Status.Phase)
	}
}

func TestADrainWhoseCordonIsNotProjectedFailsAtItsDeadline(t *testing.T) {
	s := newCoreScene(t)
	d := s.request("d", "n2", deadline(10*time.Minute))
	s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepCordon)
	s.now = start.Add(10 * time.Minute)
	s.takes(drain.StepFail, drain.StepLiftCordon)
	ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded,
		"The drain of node n2 could not begin within 10m0s: Ebb's Node n2 does not show the cordon of its core Node yet. It releases the node, which takes work again in a new epoch; then the slot is free.")
}
