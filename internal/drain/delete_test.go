package drain_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

func TestADrainIsHeldBeforeItGetsTheSlot(t *testing.T) {
	s := newScene(t)
	d := s.request("d", "n2")
	if name := s.step(); name != drain.StepHold || !slices.Equal(d.Finalizers, []string{v1alpha1.DrainFinalizer}) {
		t.Errorf("step %q leaves finalizers %v", name, d.Finalizers)
	}
	s.slotIs("", "", 0)
}

func TestADrainDeletedBeforeItIsDecidedIsGone(t *testing.T) {
	s := newScene(t)
	s.request("d", "n2")
	s.delete("d", s.now)
	s.takes()
}

func TestADrainDeletedWhileItIsHeldButHasNotBegunIsWithdrawn(t *testing.T) {
	s := newScene(t)
	d := s.request("d", "n2")
	s.step()
	s.delete("d", s.now)
	s.takes(drain.StepWithdraw, drain.StepRemoveFinalizer)
	ended(t, d, v1alpha1.DrainCancelled, v1alpha1.ReasonWithdrawn, "The drain was deleted before it began.")
	s.slotIs("", "", 0)
	if len(s.drains) != 0 {
		t.Error("its record stays")
	}
}

func TestADrainDeletedWhileItIsQueuedIsGone(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 1)
	s.begun("first", "n2")
	s.request("d", "n3", queued)
	s.steps()
	s.delete("d", s.now)
	s.takes()
	if s.drains["d"] != nil {
		t.Error("it stays")
	}
}

func TestARecordOfAnEndedDrainCanBeDeleted(t *testing.T) {
	for name, end := range map[string]func(*scene) *v1alpha1.Drain{
		"complete": func(s *scene) *v1alpha1.Drain {
			d := s.at(v1alpha1.DrainStopping)
			s.leaves("n2")
			s.steps()
			return d
		},
		"failed, and the slot still its own": func(s *scene) *v1alpha1.Drain { return s.failed() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			d := end(s)
			slot := s.settings.Status.ActiveDrain.DeepCopy()
			s.delete(d.Name, s.now)
			s.takes(drain.StepRemoveFinalizer)
			if len(s.drains) != 0 {
				t.Error("it stays")
			}
			if (slot == nil) != (s.settings.Status.ActiveDrain == nil) {
				t.Error("deleting a record changed the slot")
			}
		})
	}
}

func TestARefusedDrainIsHeldByNothing(t *testing.T) {
	s := newScene(t)
	s.request("d", "nobody")
	s.steps()
	s.delete("d", s.now)
	if len(s.drains) != 0 {
		t.Error("it stays")
	}
}

// A lone survivor cancels its drain and begins its next epoch itself; what is left to the next coordinator is the slot.
func TestACancelledDrainFreesTheSlotWithTheNextEpoch(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainDraining)
	d.Status.Phase, d.Status.FinishedAt = v1alpha1.DrainCancelled, &metav1.Time{Time: s.now}
	s.takes()
	s.slotIs("d", "n2", 1)
	s.restarts("n2", v1alpha1.Alive, "")
	s.takes(drain.StepReleaseSlot)
	s.slotIs("", "", 0)
}
