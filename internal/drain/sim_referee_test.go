package drain_test

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// rule is a rule of DESIGN that the referee watches, by what really is and not by what anybody believes.
type rule string

const (
	takesNothing  rule = "1: a draining or stopping node takes no new work"
	oneAtATime    rule = "2: at most one node drains at a time"
	slotUntilOver rule = "2: the slot is free only when that epoch is over"
	forwardOnly   rule = "3: liveness moves forward only within an epoch"
	observedZero  rule = "4: Stopping and Complete mean observed zero"
	comesToAnEnd  rule = "5: whoever crashes, a drain comes to its end"
	staysParked   rule = "a node that was drained to be parked takes no lease until it is uncordoned"
	personsCordon rule = "the cordon of a person is never lifted"
	endsOnce      rule = "9: an end is never rewritten, and only an end is called one"
)

type epochOf struct {
	node  string
	epoch int64
}

// referee watches a simulation.
type referee struct {
	*simtest.Referee[rule]
	sim     *sim
	emptied map[epochOf]string // epochs of which a drain said that they are empty
	parked  map[string]string  // nodes that a drain completed to be parked, by that drain; until they are uncordoned
	persons map[string]bool    // nodes that a person cordoned
}

func newReferee(s *sim) *referee {
	return &referee{parked: map[string]string{}, persons: map[string]bool{}, Referee: simtest.NewReferee[rule](func() string { return s.now.Sub(start).String() }), sim: s}
}

func (r *referee) count(what string) {
	r.Count(what)
	r.Hear("%s", what)
}

// before is an object as it was before a step.
func (r *referee) before(step *drain.Step) any {
	switch o := step.Object.(type) {
	case *v1alpha1.Settings:
		return r.sim.settings.Status.ActiveDrain.DeepCopy()
	case *v1alpha1.Node:
		return r.sim.nodes[o.Name].Spec.Cordoned
	case *v1alpha1.Drain:
		if d := r.sim.drains[o.Name]; d != nil {
			return d.Status.DeepCopy()
		}
	}
	return nil
}

// wrote looks at what a coordinator has written.
func (r *referee) wrote(step *drain.Step, before any) {
	switch before := before.(type) {
	case *v1alpha1.ActiveDrain:
		r.slotMoved(before, r.sim.settings.Status.ActiveDrain)
	case bool:
		if node := step.Object.GetName(); before && !r.sim.nodes[node].Spec.Cordoned {
			delete(r.parked, node)
			if r.persons[node] {
				r.Breach(personsCordon, "step %s lifted the cordon of a person from %s", step.Name, node)
			}
		}
	case *v1alpha1.DrainStatus:
		if d := r.sim.drains[step.Object.GetName()]; d != nil {
			r.drainMoved(d, before)
		}
	}
}

// slotMoved: from a drain to nobody, or to another node, only when the epoch is over; to another drain only of the same
// node, after the first has failed.
func (r *referee) slotMoved(from, to *v1alpha1.ActiveDrain) {
	if from == nil || to != nil && *from == *to {
		return
	}
	over := r.sim.record(from.Node).Over(from.NodeEpoch)
	if to == nil {
		if !over {
			r.Breach(slotUntilOver, "the slot of %s in epoch %d was freed", from.Node, from.NodeEpoch)
		}
		return
	}
	holder := r.sim.drains[from.Name]
	running := holder != nil && !holder.Status.Phase.Final()
	switch {
	case to.Node != from.Node && (!over || running):
		r.Breach(slotUntilOver, "the slot went from %s in epoch %d to %s", from.Node, from.NodeEpoch, to.Node)
	case to.UID != from.UID && running:
		r.Breach(slotUntilOver, "the slot of %s went from %s to %s", from.Node, from.Name, to.Name)
	case to.UID == from.UID && (!over || to.NodeEpoch <= from.NodeEpoch):
		r.Breach(slotUntilOver, "the slot of %s went from epoch %d to %d", from.Node, from.NodeEpoch, to.NodeEpoch)
	}
	if to.UID != from.UID {
		r.count("taken up")
	}
}

// drainMoved: forward only, and nothing is called empty that is not.
func (r *referee) drainMoved(d *v1alpha1.Drain, before *v1alpha1.DrainStatus) {
	was, is := before.Phase, d.Status.Phase
	if was == is {
		return
	}
	r.count("now " + string(is))
	if was.Final() || is == v1alpha1.DrainPending && was != "" || is == v1alpha1.DrainDraining && was == v1alpha1.DrainStopping {
		r.Breach(endsOnce, "drain %s went from %s to %s", d.Name, was, is)
	}
	switch is {
	case v1alpha1.DrainStopping:
		r.emptyNow(d, d.Status.NodeEpoch)
		r.emptied = with(r.emptied, epochOf{d.Spec.NodeName, d.Status.NodeEpoch}, d.Name)
	case v1alpha1.DrainComplete:
		r.completed(d)
		if d.Spec.Park && r.sim.nodes[d.Spec.NodeName].Spec.Cordoned {
			r.parked[d.Spec.NodeName] = d.Name
		}
	}
}

// cordonMoved: a person cordoned or uncordoned a node.
func (r *referee) cordonMoved(node string, cordoned bool) {
	delete(r.parked, node)
	r.persons[node] = cordoned
}

func with(m map[epochOf]string, key epochOf, value string) map[epochOf]string {
	if m == nil {
		m = map[epochOf]string{}
	}
	m[key] = value
	return m
}

func (r *referee) completed(d *v1alpha1.Drain) {
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if c == nil || c.Reason != v1alpha1.ReasonDrained && c.Reason != v1alpha1.ReasonNodeGone || d.Status.StartedAt == nil {
		r.Breach(endsOnce, "drain %s is Complete with %v, begun %v", d.Name, c, d.Status.StartedAt)
		return
	}
	r.count(c.Reason)
	if !r.sim.record(d.Spec.NodeName).Over(d.Status.NodeEpoch) {
		r.Breach(endsOnce, "drain %s is Complete, %s, and epoch %d of %s stands", d.Name, c.Reason, d.Status.NodeEpoch, d.Spec.NodeName)
	}
	r.emptyNow(d, d.Status.NodeEpoch)
}

func (r *referee) emptyNow(d *v1alpha1.Drain, epoch int64) {
	if n := r.sim.heldBy(d.Spec.NodeName); n > 0 {
		r.Breach(observedZero, "drain %s is %s, and %s holds %d pieces (epoch %d)", d.Name, d.Status.Phase, d.Spec.NodeName, n, epoch)
	}
}

// took: a piece went in through the gate of a machine.
func (r *referee) took(m *machine) {
	r.count("took work")
	said := r.sim.nodes[m.name].Status
	if m.liveness != v1alpha1.Alive || said.Epoch == m.epoch && said.Liveness != v1alpha1.Alive {
		r.Breach(takesNothing, "%s took work in epoch %d, where it is %s and says %s", m.name, m.epoch, m.liveness, said.Liveness)
	}
	if by, ok := r.emptied[epochOf{m.name, m.epoch}]; ok {
		r.Breach(observedZero, "%s took work in epoch %d, of which drain %s said that it is empty", m.name, m.epoch, by)
	}
}

// toldToStop: a machine begins to leave because a drain says that it is empty.
func (r *referee) toldToStop(m *machine) {
	if n := r.sim.heldBy(m.name); n > 0 {
		r.Breach(observedZero, "%s is told to stop and holds %d pieces in epoch %d", m.name, n, m.epoch)
	}
}

// saidStatus: a node's status was written.
func (r *referee) saidStatus(node string, before, now v1alpha1.NodeStatus) {
	if by, ok := r.parked[node]; ok && before.Epoch != now.Epoch && now.Liveness == v1alpha1.Alive {
		r.Breach(staysParked, "%s is Alive in epoch %d although drain %s parked it, and nobody has uncordoned it", node, now.Epoch, by)
	}
	if before.Epoch == now.Epoch && now.Liveness.Rank() < before.Liveness.Rank() {
		r.Breach(forwardOnly, "%s went from %s to %s in epoch %d", node, before.Liveness, now.Liveness, now.Epoch)
	}
}

// look counts the nodes that drain for a drain that runs, in an epoch that stands.
func (r *referee) look() {
	var draining []string
	for _, m := range r.sim.machines {
		said := r.sim.nodes[m.name].Status
		if said.Liveness != v1alpha1.Draining || r.sim.record(m.name).Over(said.Epoch) {
			continue
		}
		for _, d := range r.sim.drains {
			if string(d.UID) == said.ObservedDrain && !d.Status.Phase.Final() {
				draining = append(draining, fmt.Sprintf("%s in epoch %d for %s (%s)", m.name, said.Epoch, d.Name, d.Status.Phase))
			}
		}
	}
	if len(draining) > 1 {
		r.Breach(oneAtATime, "these drain at once: %q", draining)
	}
}
