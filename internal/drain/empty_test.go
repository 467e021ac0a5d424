package drain_test

import (
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// Empty is what the node says after it closed its gate for this drain in this epoch, and what the objects say; anything
// else keeps the node.
func TestANodeIsEmptyOnlyByBothCountsAfterItsAcknowledgement(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*scene)
		empty  bool
	}{
		"all at zero":                               {func(*scene) {}, true},
		"stopping already, by itself":               {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.Liveness = v1alpha1.Stopping }) }, true},
		"nothing was ever counted":                  {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.Held = nil }) }, true},
		"only what stays":                           {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.Staying = map[string]int64{"programs": 3} }) }, true},
		"the objects place something":               {func(s *scene) { s.places("n2", "volumes", 1) }, false},
		"the objects place something of a new kind": {func(s *scene) { s.places("n2", "members", 1) }, false},
		"the node holds something":                  {func(s *scene) { s.holds("n2", "volumes", 1) }, false},
		"the node holds what no object knows":       {func(s *scene) { s.holds("n2", "programs", 1) }, false},
		"both":                                      {func(s *scene) { s.places("n2", "volumes", 1); s.holds("n2", "volumes", 1) }, false},
		"no acknowledgement":                        {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.ObservedDrain = "" }) }, false},
		"an acknowledgement of another drain":       {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.ObservedDrain = "uid-other" }) }, false},
		"an acknowledgement without a closed gate":  {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.Liveness = v1alpha1.Alive }) }, false},
		"an acknowledgement in an older epoch":      {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.Epoch-- }) }, false},
		"an acknowledgement in a newer epoch":       {func(s *scene) { s.says(func(n *v1alpha1.NodeStatus) { n.Epoch++ }) }, false},
		"no object of the node":                     {func(s *scene) { delete(s.nodes, "n2") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.join("n2", 4, v1alpha1.Alive, "")
			s.places("n2", "volumes", 0)
			s.holds("n2", "volumes", 0)
			d := s.begun("d", "n2")
			c.change(s)
			w := s.world()
			if slot, _ := w.Slot(); w.Empty(slot) != c.empty {
				t.Errorf("Empty is %t", !c.empty)
			}
			s.steps()
			if got := d.Status.Phase == v1alpha1.DrainStopping; got != c.empty {
				t.Errorf("the drain is %s", d.Status.Phase)
			}
		})
	}
}

// says changes what n2 says of itself.
func (s *scene) says(change func(*v1alpha1.NodeStatus)) { s.status("n2", change) }

func TestRemainingIsTheGreaterOfTheTwoCounts(t *testing.T) {
	for name, c := range map[string]struct{ placed, held, want int64 }{
		"the objects know more": {5, 2, 5},
		"the node knows more":   {2, 5, 5},
		"they agree":            {3, 3, 3},
		"only the objects":      {1, 0, 1},
		"only the node":         {0, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.places("n2", "volumes", c.placed)
			s.holds("n2", "volumes", c.held)
			d := s.begun("d", "n2")
			s.steps()
			if got := d.Status.Remaining["volumes"]; got != c.want || d.Status.Initial["volumes"] != c.want {
				t.Errorf("%d remain of %d, want %d", got, d.Status.Initial["volumes"], c.want)
			}
		})
	}
}

func TestANodeIsToldToStopOnlyAfterThatWasWrittenDown(t *testing.T) {
	s := newScene(t)
	d := s.begun("d", "n2")
	if name := s.step(); name != drain.StepStop || d.Status.Phase != v1alpha1.DrainStopping || s.nodes["n2"].Spec.Desired.Liveness != v1alpha1.Draining {
		t.Fatalf("step %q leaves the drain %s and wants the node %s", name, d.Status.Phase, s.nodes["n2"].Spec.Desired.Liveness)
	}
	if len(d.Status.Blockers) > 0 || d.Status.Stage != "" {
		t.Errorf("it is empty, and blocked by %v in stage %q", d.Status.Blockers, d.Status.Stage)
	}
	if name := s.step(); name != drain.StepDesireStopping || s.nodes["n2"].Spec.Desired.Liveness != v1alpha1.Stopping {
		t.Fatalf("step %q wants the node %s", name, s.nodes["n2"].Spec.Desired.Liveness)
	}
}

// A scheduler with a stale cache may place something there even now; the node is told to leave when that is moved.
func TestWhatIsPlacedBetweenZeroAndTheOrderToStopIsWaitedFor(t *testing.T) {
	s := newScene(t)
	d := s.begun("d", "n2")
	for d.Status.Phase != v1alpha1.DrainStopping {
		s.step()
	}
	s.places("n2", "volumes", 1)
	s.takes(drain.StepProgress)
	desired(t, s, v1alpha1.Draining, 1)
	s.places("n2", "volumes", 0)
	s.takes(drain.StepDesireStopping, drain.StepProgress)
	s.places("n2", "volumes", 1)
	s.takes(drain.StepProgress)
	desired(t, s, v1alpha1.Stopping, 1)
	s.leaves("n2")
	s.takes(drain.StepProgress)
	s.places("n2", "volumes", 0)
	s.takes(drain.StepComplete, drain.StepReleaseSlot)
	ended(t, d, v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left.")
}
