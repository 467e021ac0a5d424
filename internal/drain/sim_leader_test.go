package drain_test

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// leader is a coordinator's term on a machine: it gathers, plans, may be frozen there, and writes.
type leader struct {
	machine *machine
	epoch   int64
	term    int
	planned *drain.Step
	told    map[string]bool // with inMemory: drains whose node this term means to tell
}

// elect begins a term on the next machine that may lead. Whoever led before is not told.
func (s *sim) elect() {
	from := s.Draw(len(s.machines))
	for i := range s.machines {
		m := s.machines[(from+i)%len(s.machines)]
		slot := s.settings.Status.ActiveDrain
		if !m.up || m.frozen || m.stage != "serving" || m.liveness != v1alpha1.Alive || slot != nil && slot.Node == m.name {
			continue
		}
		s.term++
		s.leaders = append(s.leaders, &leader{machine: m, epoch: m.epoch, term: s.term, told: map[string]bool{}})
		s.count("elected")
		if len(s.leaders) > 2 {
			s.leaders = s.leaders[1:]
		}
		return
	}
}

// able says whether the machine of a term could still act for it.
func (l *leader) able() bool { return l.machine.up && !l.machine.frozen && l.machine.epoch == l.epoch }

func (s *sim) inOffice() bool {
	n := len(s.leaders)
	return n > 0 && s.leaders[n-1].able() && s.leaders[n-1].machine.liveness == v1alpha1.Alive
}

// lead lets one of the coordinators go on, for a few steps.
func (s *sim) lead() {
	if len(s.leaders) == 0 {
		return
	}
	l := s.leaders[len(s.leaders)-1]
	if s.Draw(4) == 3 {
		l = s.leaders[0]
	}
	for range 1 + s.Draw(4) {
		if !l.able() || !l.step(s) {
			return
		}
	}
}

// step plans, unless that is done, and writes, unless the coordinator is frozen in between.
func (l *leader) step(s *sim) bool {
	if l.planned == nil {
		l.plan(s)
		if s.Draw(4) == 3 {
			return false
		}
	}
	step := l.planned
	l.planned = nil
	if step == nil {
		return false
	}
	l.write(s, step)
	return true
}

// plan gathers the world piece by piece and decides, if the term still stands after that.
func (l *leader) plan(s *sim) {
	w := s.world(l.machine.name)
	s.believe(w)
	step := drain.Next(w)
	if step == nil && s.broken.freedByPhase {
		step = freed(w)
	}
	if step == nil && s.broken.liftsAny {
		step = lifted(w)
	}
	if other := taken(w); other != nil && s.broken.slotIgnored && s.Draw(2) == 1 {
		step = other
	}
	if l.term != s.term {
		s.count("term over")
		return
	}
	l.planned = l.twist(s, step)
}

// believe is what a coordinator takes for granted when a rule is broken.
func (s *sim) believe(w drain.World) {
	slot, _ := w.Slot()
	if slot == nil || w.Nodes[slot.Node] == nil {
		return
	}
	status := &w.Nodes[slot.Node].Status
	if s.broken.ackIgnored && status.Epoch == slot.NodeEpoch {
		status.ObservedDrain, status.Liveness = slot.UID, v1alpha1.Draining
	}
	if s.broken.objectsOnly {
		status.Held = nil
	}
}

// freed is a slot that is let go because its drain has ended.
func freed(w drain.World) *drain.Step {
	slot, d := w.Slot()
	if slot == nil || d != nil && !d.Status.Phase.Final() {
		return nil
	}
	settings := w.Settings.DeepCopy()
	settings.Status.ActiveDrain = nil
	return &drain.Step{Name: drain.StepReleaseSlot, Object: settings, Status: true, Drain: d}
}

// lifted is a cordon that goes with a cancelled drain, whoever made it.
func lifted(w drain.World) *drain.Step {
	for _, d := range w.Drains {
		if n := w.Nodes[d.Spec.NodeName]; d.Status.Phase == v1alpha1.DrainCancelled && n.Spec.Cordoned {
			next := n.DeepCopy()
			next.Spec.Cordoned = false
			return &drain.Step{Name: drain.StepLiftCordon, Object: next, Drain: d}
		}
	}
	return nil
}

// taken is a slot that goes to a drain that waits, whoever has it.
func taken(w drain.World) *drain.Step {
	for _, d := range w.Drains {
		if d.Status.Phase == v1alpha1.DrainPending && w.Leases[d.Spec.NodeName].Held() {
			settings := w.Settings.DeepCopy()
			settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: d.Name, UID: string(d.UID), Node: d.Spec.NodeName, NodeEpoch: w.Leases[d.Spec.NodeName].Epoch}
			return &drain.Step{Name: drain.StepTakeSlot, Object: settings, Status: true, Drain: d}
		}
	}
	return nil
}

// twist changes what a coordinator writes when a rule is broken.
func (l *leader) twist(s *sim, step *drain.Step) *drain.Step {
	switch {
	case step == nil:
		return nil
	case s.broken.lateIsDone && step.Name == drain.StepFail:
		step.Object.(*v1alpha1.Drain).Status.Phase = v1alpha1.DrainComplete
	case s.broken.parksLate && step.Name == drain.StepPark:
		step.Object, step.Name = parkless(s, step.Drain), drain.StepComplete
	case s.broken.inMemory && step.Name == drain.StepBegin:
		l.told[step.Drain.Name] = true
	case s.broken.inMemory && step.Name == drain.StepDesireDraining && !l.told[step.Drain.Name]:
		return nil
	}
	return step
}

// parkless is the end of a drain whose node is not parked.
func parkless(s *sim, d *v1alpha1.Drain) *v1alpha1.Drain {
	next := d.DeepCopy()
	next.Status.Phase = v1alpha1.DrainComplete
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonNodeGone, LastTransitionTime: metav1.NewTime(s.now)})
	return next
}

// write is one persisted step: the API looks at the term and at the version.
func (l *leader) write(s *sim, step *drain.Step) {
	if l.term != s.term {
		s.count("refused by the term")
		return
	}
	before := s.before(step)
	if err := s.store.write(step); err != nil {
		s.count(err.Error())
		return
	}
	s.count(step.Name)
	s.wrote(step, before)
}
