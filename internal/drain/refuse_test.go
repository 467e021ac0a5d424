package drain_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// An obstacle is one reason to refuse a drain of n2, brought about alone.
type obstacle struct {
	reason, message string
	raise           func(*scene)
}

// obstacles in the order in which they are checked.
var obstacles = []obstacle{
	{v1alpha1.ReasonCaptureNotFound, "capture not found", func(s *scene) { delete(s.nodes, "n2") }},
	{v1alpha1.ReasonSingleNode, "at least 2 captures required for drain operation", func(s *scene) {
		for _, other := range []string{"n1", "n3"} {
			s.dies(other)
		}
	}},
	{v1alpha1.ReasonTargetIsCoordinator, "cannot drain coordinator node", func(s *scene) { s.leader = "n2" }},
	{v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain first of node n3", func(s *scene) {
		s.settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "first", UID: "uid-first", Node: "n3", NodeEpoch: s.record("n3").Epoch + 1}
	}},
}

// Every set of reasons at once, from none to all four, is refused for the first of them.
func TestADrainIsRefusedForTheFirstReasonThatApplies(t *testing.T) {
	for set := range 1 << len(obstacles) {
		var names []string
		var first *obstacle
		for i := range obstacles {
			if set&(1<<i) == 0 {
				continue
			}
			names = append(names, obstacles[i].reason)
			if first == nil {
				first = &obstacles[i]
			}
		}
		t.Run("reasons "+strings.Join(names, " and "), func(t *testing.T) {
			s := newScene(t)
			for i := range obstacles {
				if set&(1<<i) != 0 {
					obstacles[i].raise(s)
				}
			}
			d := s.request("d", "n2")
			if first == nil {
				s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress)
				return
			}
			s.takes(drain.StepRefuse)
			ended(t, d, v1alpha1.DrainFailed, first.reason, first.message)
			if d.Status.StartedAt != nil || len(d.Finalizers) > 0 {
				t.Errorf("a refused drain began at %v and is held by %v", d.Status.StartedAt, d.Finalizers)
			}
		})
	}
}

func TestANodeWithoutALeaseIsNotFound(t *testing.T) {
	for name, end := range map[string]func(*scene){
		"left": func(s *scene) { s.leaves("n2") },
		"lost": func(s *scene) { s.dies("n2") },
		"never joined": func(s *scene) {
			delete(s.leases, "n2")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			end(s)
			d := s.request("d", "n2")
			s.takes(drain.StepRefuse)
			ended(t, d, v1alpha1.DrainFailed, v1alpha1.ReasonCaptureNotFound, "capture not found")
		})
	}
}

func TestARefusalStandsForItsError(t *testing.T) {
	for reason, want := range map[string]error{
		v1alpha1.ReasonCaptureNotFound: drain.ErrCaptureNotFound, v1alpha1.ReasonSingleNode: drain.ErrSingleNode,
		v1alpha1.ReasonTargetIsCoordinator: drain.ErrTargetIsCoordinator, v1alpha1.ReasonDrainInProgress: drain.ErrDrainInProgress,
	} {
		if got := drain.Refusal(reason); !errors.Is(got, want) {
			t.Errorf("%s is %v, want %v", reason, got, want)
		}
	}
	for _, reason := range []string{"", v1alpha1.ReasonDrained, v1alpha1.ReasonDeadlineExceeded, v1alpha1.ReasonQueued} {
		if got := drain.Refusal(reason); got != nil {
			t.Errorf("%s is no refusal, but %v", reason, got)
		}
	}
}

func TestOfManyRequestsTheOldestGetsTheSlot(t *testing.T) {
	s := newScene(t)
	younger := s.request("a-younger", "n2", func(d *v1alpha1.Drain) { d.CreationTimestamp.Time = start.Add(time.Minute) })
	older := s.request("z-older", "n3")
	s.steps()
	s.slotIs("z-older", "n3", 1)
	stands(t, older, v1alpha1.DrainDraining, "Draining", "Work is being moved off the node.")
	ended(t, younger, v1alpha1.DrainFailed, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain z-older of node n3")
}

func TestOfRequestsMadeAtOnceTheNameDecides(t *testing.T) {
	s := newScene(t)
	at := func(d *v1alpha1.Drain) { d.CreationTimestamp.Time = start }
	s.request("b", "n2", at)
	s.request("a", "n3", at)
	s.steps()
	s.slotIs("a", "n3", 1)
}

func TestASecondDrainOfTheSameNodeIsRefusedWhileTheFirstRuns(t *testing.T) {
	s := newScene(t)
	s.begun("first", "n2")
	second := s.request("second", "n2")
	s.steps()
	ended(t, second, v1alpha1.DrainFailed, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain first of node n2")
}

func TestAQueuedDrainWaitsForTheSlotAndThenBegins(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	s.begun("first", "n2")
	second := s.request("second", "n3", queued)
	third := s.request("third", "n3", queued)
	s.takes(drain.StepProgress, drain.StepQueue, drain.StepQueue)
	stands(t, second, v1alpha1.DrainPending, v1alpha1.ReasonQueued, "Waiting for drain first of node n2.")
	s.places("n2", "volumes", 0)
	s.takes(drain.StepStop, drain.StepDesireStopping, drain.StepProgress)
	s.leaves("n2")
	s.takes(drain.StepComplete, drain.StepReleaseSlot, drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress, drain.StepQueue)
	s.slotIs("second", "n3", 1)
	stands(t, third, v1alpha1.DrainPending, v1alpha1.ReasonQueued, "Waiting for drain second of node n3.")
}

// What a queued drain waits for is the slot and nothing else: any other reason refuses it, at once or when it comes up.
func TestAQueuedDrainIsRefusedForEveryOtherReason(t *testing.T) {
	for _, o := range obstacles[:3] {
		for _, waited := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, waited %t", o.reason, waited), func(t *testing.T) {
				s := newScene(t)
				s.begun("first", "n3")
				d := s.request("d", "n2", queued)
				if waited {
					s.steps()
					stands(t, d, v1alpha1.DrainPending, v1alpha1.ReasonQueued, "Waiting for drain first of node n3.")
				}
				o.raise(s)
				s.steps()
				ended(t, d, v1alpha1.DrainFailed, o.reason, o.message)
			})
		}
	}
}

func TestANewerRequestDoesNotOvertakeAQueuedOne(t *testing.T) {
	s := newScene(t)
	s.begun("first", "n2")
	s.request("patient", "n3", queued)
	s.steps()
	s.leaves("n2")
	hasty := s.request("hasty", "n3")
	s.steps()
	s.slotIs("patient", "n3", 1)
	ended(t, hasty, v1alpha1.DrainFailed, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain patient of node n3")
}
