package drain_test

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// machine follows the rules of internal/node.
//
//	down ──join──▶ joined ──reads the slot──▶ looking ──reads its drain──▶ serving ──▶ left, or parked until it is uncordoned
type machine struct {
	sim  *sim
	name string

	up, frozen, leaving bool
	gone                bool             // for good
	parked, unparked    *v1alpha1.Parked // to record when it leaves; to remove
	stage               string
	epoch               int64
	liveness            v1alpha1.Liveness
	observed            string
	open                bool // the gate
	lateClose           bool // a gate that should be closed by now, with ackFirst
	slot                *v1alpha1.ActiveDrain
	early               int64          // a count taken before the gate closed, with countFirst
	outbox              *v1alpha1.Node // a status on its way
}

// settle brings a machine into service at once.
func (m *machine) settle() {
	m.join()
	for m.up && m.stage != "serving" {
		m.enter()
	}
	m.publish()
	m.flush()
}

// works does all that a machine in service can do.
func (m *machine) works() {
	if !m.up || m.frozen {
		return
	}
	for m.stage != "serving" {
		m.enter()
	}
	m.obey()
	m.survive()
	m.beginAnew()
	for m.up && m.stage != "serving" {
		m.enter()
	}
	m.workOn()
	m.publish()
	m.flush()
	if m.sim.Draw(3) == 0 {
		m.closeLate()
	}
	m.end()
}

// act does one of these things.
func (m *machine) act() {
	switch {
	case m.frozen:
		return
	case !m.up:
		if m.sim.Draw(4) == 3 {
			m.join()
		}
		return
	case m.stage != "serving":
		m.enter()
		return
	}
	if todo := m.todo(); len(todo) > 0 {
		todo[m.sim.Draw(len(todo))]()
	}
}

// todo is what there is to do for a machine in service.
func (m *machine) todo() (list []func()) {
	when := func(it bool, do func()) {
		if it {
			list = append(list, do)
		}
	}
	want := m.sim.nodes[m.name].Spec.Desired
	when(want != nil && (want.Epoch == m.epoch || m.sim.broken.anyEpoch) && !m.leaving && (want.Liveness != m.liveness || want.DrainUID != m.observed), m.obey)
	said := m.sim.nodes[m.name].Status
	when(m.outbox != nil, m.flush)
	when(said.Epoch != m.epoch || said.Liveness != m.liveness || said.ObservedDrain != m.observed || said.Held["pieces"] != m.sim.heldBy(m.name), m.publish)
	when(m.liveness != v1alpha1.Stopping, m.beginAnew)
	when(m.liveness == v1alpha1.Draining || m.liveness == v1alpha1.Alive, m.survive)
	when(m.lateClose, m.closeLate)
	when(m.leaving, m.end)
	when(m.sim.placedOn(m.name) > 0 || m.sim.heldBy(m.name) > 0, m.workOn)
	return list
}

// join begins the next epoch, unless this process is in one.
func (m *machine) join() {
	if m.up || m.gone {
		return
	}
	if m.sim.nodes[m.name].IsParked() && !m.sim.broken.joinsParked {
		m.sim.count("stayed parked")
		return
	}
	rec := m.sim.record(m.name)
	m.epoch = max(rec.Epoch, rec.Fenced) + 1
	m.sim.setLease(m.name, "process", m.epoch, rec.Fenced)
	m.up, m.frozen, m.leaving, m.stage = true, false, false, "joined"
	m.liveness, m.observed, m.open, m.slot, m.outbox, m.lateClose = v1alpha1.Alive, "", false, nil, nil, false
	m.parked, m.unparked = nil, nil
	m.sim.count("joined")
}

// enter reads the slot, then its drain, and decides how to begin.
func (m *machine) enter() {
	if m.stage == "joined" {
		if n := m.sim.nodes[m.name]; n.IsParked() && !m.sim.broken.joinsParked {
			m.sim.count("parked after it had joined")
			m.parked, m.leaving, m.liveness, m.stage = n.Status.Parked, true, v1alpha1.Stopping, "serving"
			return
		} else {
			m.unparked = n.Status.Parked
		}
		m.slot, m.stage = m.sim.settings.Status.ActiveDrain.DeepCopy(), "looking"
		return
	}
	if m.drains(m.slot) {
		m.liveness, m.observed = v1alpha1.Draining, m.slot.UID
		m.sim.count("began Draining")
	} else {
		m.open = true
	}
	m.stage = "serving"
	m.publish()
}

// drains says whether a slot wants this node to drain.
func (m *machine) drains(slot *v1alpha1.ActiveDrain) bool {
	if slot == nil || slot.Node != m.name {
		return false
	}
	d := m.sim.drains[slot.Name]
	return d != nil && string(d.UID) == slot.UID && d.Status.Phase != v1alpha1.DrainComplete && d.Status.Phase != v1alpha1.DrainCancelled &&
		!meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.DrainReleased)
}

// obey does what the coordinator wants of this epoch.
func (m *machine) obey() {
	want := m.sim.nodes[m.name].Spec.Desired
	if want == nil || want.Epoch != m.epoch && !m.sim.broken.anyEpoch || m.leaving {
		return
	}
	switch want.Liveness {
	case v1alpha1.Draining:
		if m.liveness == v1alpha1.Draining && m.observed == want.DrainUID {
			return
		}
		m.early = m.sim.heldBy(m.name)
		m.liveness, m.observed = v1alpha1.Draining, want.DrainUID
		if m.sim.broken.ackFirst || m.sim.broken.neverCloses || m.sim.broken.countFirst {
			m.lateClose = true
			return
		}
		m.open = false
	case v1alpha1.Stopping:
		m.sim.toldToStop(m)
		if want.Park {
			m.parked = &v1alpha1.Parked{DrainUID: want.DrainUID, Epoch: m.epoch}
		}
		m.leave()
	}
}

// closeLate is a gate that closes after the node said so.
func (m *machine) closeLate() {
	if m.lateClose && !m.sim.broken.neverCloses {
		m.open, m.lateClose = false, false
	}
}

// publish writes down what the node says of itself; flush sends it.
func (m *machine) publish() {
	n := m.sim.nodes[m.name].DeepCopy()
	liveness := m.liveness
	if m.sim.broken.backToAlive && liveness == v1alpha1.Draining && m.sim.Draw(4) == 3 {
		liveness = v1alpha1.Alive
	}
	held := m.sim.heldBy(m.name)
	if m.sim.broken.countFirst && m.lateClose {
		held, m.open, m.lateClose = m.early, false, false
	}
	parked := n.Status.Parked
	if parked != nil && m.unparked != nil && *parked == *m.unparked {
		parked = nil
	}
	if m.leaving && m.parked != nil && held == 0 {
		parked = m.parked
	}
	n.Status = v1alpha1.NodeStatus{Epoch: m.epoch, Liveness: liveness, ObservedDrain: m.observed, Held: map[string]int64{"pieces": held}, Parked: parked}
	m.outbox = n
}

func (m *machine) flush() {
	n := m.outbox
	m.outbox = nil
	rec := m.sim.record(m.name)
	if n == nil || rec.Epoch != n.Status.Epoch || rec.Over(n.Status.Epoch) {
		return // the API refuses what an epoch says that is over
	}
	current := m.sim.nodes[m.name]
	before := current.Status
	if update(m.sim.store, current, n, func() { current.Status = n.Status }) == nil {
		m.sim.saidStatus(m.name, before, current.Status)
	}
}

// beginAnew ends an epoch that drains for nobody, or that a slot names whose drain wants it no more.
func (m *machine) beginAnew() {
	slot := m.sim.settings.Status.ActiveDrain
	named := slot != nil && slot.Node == m.name && slot.NodeEpoch == m.epoch
	if (m.liveness == v1alpha1.Draining || named) && !m.leaving && !m.drains(slot) {
		m.up = false
		m.sim.count("began anew")
		m.join()
	}
}

// survive is what a node does that the slot names when every other node is lost: its drain Cancelled, its next epoch Alive, and
// then the slot released. Each is a step of its own.
func (m *machine) survive() {
	slot := m.sim.settings.Status.ActiveDrain
	if slot == nil || slot.Node != m.name || m.leaving || m.sim.broken.lateSurvivor && m.liveness != v1alpha1.Draining && m.drains(slot) {
		return
	}
	for _, other := range m.sim.machines {
		if other != m && m.sim.record(other.name).Held() {
			return
		}
	}
	d := m.sim.drains[slot.Name]
	switch {
	case m.drains(slot) && d.Status.Phase == v1alpha1.DrainFailed:
		meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainReleased, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLoneSurvivor})
		m.sim.bump(d)
	case d != nil && !d.Status.Phase.Final():
		before := d.Status.DeepCopy()
		d.Status.Phase = v1alpha1.DrainCancelled
		m.sim.bump(d)
		m.sim.drainMoved(d, before)
	case m.liveness == v1alpha1.Alive && !m.drains(slot) && m.epoch > slot.NodeEpoch:
		m.sim.settings.Status.ActiveDrain = nil
		m.sim.bump(m.sim.settings)
		m.sim.slotMoved(slot, nil)
		m.sim.count("survived alone")
	}
}

// workOn starts what is placed here if the gate lets it, and stops what no longer is.
func (m *machine) workOn() {
	for _, p := range m.sim.pieces {
		switch {
		case p.held == m.name && (p.placed != m.name || m.leaving):
			p.held = ""
			return
		case p.held == "" && p.placed == m.name && m.open:
			p.held = m.name
			m.sim.took(m)
			return
		case p.held == "" && p.placed == m.name:
			m.sim.count("refused by the gate")
		}
	}
}

// leave begins to end the epoch in order; end ends it.
func (m *machine) leave() {
	if !m.up || m.frozen || m.stage != "serving" {
		return
	}
	m.leaving, m.open, m.liveness = true, false, v1alpha1.Stopping
	m.publish()
}

func (m *machine) end() {
	if !m.leaving || m.sim.heldBy(m.name) > 0 {
		return
	}
	m.publish()
	m.flush()
	rec := m.sim.record(m.name)
	if is := m.sim.nodes[m.name].Status.Parked; m.parked != nil && (is == nil || *is != *m.parked) && !rec.Over(m.epoch) {
		return // it insists: without the record it does not release its lease
	}
	if rec.Epoch == m.epoch && !rec.Over(m.epoch) {
		m.sim.setLease(m.name, "", rec.Epoch, rec.Fenced)
	}
	m.up = false
	if m.parked != nil {
		m.sim.count("parked")
		return
	}
	m.sim.count("left")
}

// crash ends the process. What it alone keeps is there when it comes back.
func (m *machine) crash() {
	if m.up {
		m.up = false
		m.sim.count("crashed")
	}
}

// mark is the coordinator's word that a dead or frozen node is lost: by then its work is dead.
func (m *machine) mark() {
	rec := m.sim.record(m.name)
	if m.up && !m.frozen || !rec.Held() {
		return
	}
	m.sim.setLease(m.name, "", rec.Epoch, rec.Epoch)
	for _, p := range m.sim.pieces {
		if p.held == m.name {
			p.held = ""
		}
	}
	m.sim.count("marked")
}

// wake ends a freeze. A node whose epoch is over meanwhile tries to say something, and then joins again.
func (m *machine) wake() {
	if !m.frozen {
		return
	}
	m.frozen = false
	if m.sim.record(m.name).Over(m.epoch) {
		m.flush()
		m.up = false
		m.join()
	}
}
