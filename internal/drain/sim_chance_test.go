package drain_test

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// schedule places a new piece, by a cache that may be stale: anywhere.
func (s *sim) schedule() {
	if len(s.pieces) < 6 {
		s.pieces = append(s.pieces, &piece{placed: s.machines[s.Draw(len(s.machines))].name})
	}
}

// evict moves one piece off a node that is not Alive, to one that is; or ends it.
func (s *sim) evict() {
	if len(s.pieces) == 0 {
		return
	}
	i := s.Draw(len(s.pieces))
	p := s.pieces[i]
	if p.placed != "" && !s.schedulable(p.placed) {
		p.placed = ""
		for _, m := range s.machines {
			if s.schedulable(m.name) && p.placed == "" {
				p.placed = m.name
			}
		}
	}
	if p.held == "" && p.placed == "" {
		s.pieces = append(s.pieces[:i:i], s.pieces[i+1:]...)
	}
}

// schedulable is what the objects say of a node.
func (s *sim) schedulable(name string) bool {
	n, rec := s.nodes[name], s.record(name)
	return n.Status.Liveness == v1alpha1.Alive && rec.Held() && !rec.Over(n.Status.Epoch)
}

// placedOn and heldBy count pieces.
func (s *sim) placedOn(node string) (n int64) {
	for _, p := range s.pieces {
		if p.placed == node {
			n++
		}
	}
	return n
}

func (s *sim) heldBy(node string) (n int64) {
	for _, p := range s.pieces {
		if p.held == node {
			n++
		}
	}
	return n
}

// tenant counts pieces by their objects.
func (s *sim) tenant() drain.Tenant {
	return place{"pieces", func(node string) drain.Remaining {
		s.meanwhile()
		return drain.Remaining{Count: s.placedOn(node)}
	}}
}

// ask makes a request or deletes one. People ask for the coordinator and for the dead less often than for others.
func (s *sim) ask() {
	open := 0
	for _, d := range s.drains {
		if !d.Status.Phase.Final() {
			open++
		}
	}
	if which := fmt.Sprintf("d%d", max(0, s.requests-1-s.Draw(3))); s.requests > 0 && s.Draw(6) == 0 {
		if s.Draw(2) == 0 {
			s.cancel(which)
			return
		}
		if d := s.drains[which]; d == nil || d.Status.Phase != v1alpha1.DrainStopping || s.Draw(2) == 0 { // one home refuses it
			s.delete(which, s.now)
		}
		return
	}
	m := s.machines[s.Draw(len(s.machines))]
	if !m.up || s.inOffice() && s.leaders[len(s.leaders)-1].machine == m {
		m = s.machines[s.Draw(len(s.machines))]
	}
	if open < 3 {
		s.request(m.name, s.Draw(2) == 0, time.Duration(s.Draw(3))*time.Minute)
		s.drains[fmt.Sprintf("d%d", s.requests-1)].Spec.Park = s.Draw(2) == 0
	}
}

// cordon is what people do to the cordon of a node: they uncordon one that waits for it, or cordon or uncordon any.
func (s *sim) cordon() {
	n := s.nodes[s.machines[s.Draw(len(s.machines))].name]
	if !n.Spec.Cordoned && s.Draw(3) > 0 {
		return
	}
	s.setCordoned(n, !n.Spec.Cordoned)
}

func (s *sim) setCordoned(n *v1alpha1.Node, cordoned bool) {
	if cordoned {
		v1alpha1.SetCordonOwners(n, nil)
	}
	n.Spec.Cordoned = cordoned
	s.bump(n)
	s.cordonMoved(n.Name, cordoned)
	s.count(fmt.Sprintf("cordoned %t by a person", cordoned))
}

// uncordonAll is what people do in the end: parked nodes come back.
func (s *sim) uncordonAll() {
	for _, m := range s.machines {
		if n := s.nodes[m.name]; n.Spec.Cordoned {
			s.setCordoned(n, false)
		}
		m.settle()
	}
}

func (s *sim) request(node string, queue bool, within time.Duration) {
	name := fmt.Sprintf("d%d", s.requests)
	s.requests++
	d := &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(s.now)},
		Spec:       v1alpha1.DrainSpec{NodeName: node, WhenBusy: v1alpha1.Refuse},
	}
	if queue {
		d.Spec.WhenBusy = v1alpha1.Queue
	}
	if within > 0 {
		d.Spec.Deadline = &metav1.Duration{Duration: within}
	}
	s.bump(d)
	s.drains[name] = d
	s.count("requested")
}

// fault is what goes wrong: a process dies, freezes, wakes up, comes back; a dead one is marked; all but one die, at once or one after the other;
// somebody deletes the Node of one that is away, which makes it again.
func (s *sim) fault() {
	m := s.machines[s.Draw(len(s.machines))]
	switch s.Draw(10) {
	case 9:
		s.forsakeOne(m)
	case 8:
		s.recreate(m)
	case 0:
		m.crash()
	case 1:
		m.frozen = m.up
	case 2:
		m.wake()
	case 3:
		m.mark()
	case 4, 5:
		m.join()
	case 6:
		m.leave()
	case 7:
		if slot := s.settings.Status.ActiveDrain; slot != nil && s.Draw(2) == 1 {
			s.disaster(slot.Node)
		}
	}
}

// forsakeOne lets another machine than that in the slot die for good, in one of the plays in which all do before their end.
func (s *sim) forsakeOne(m *machine) {
	slot := s.settings.Status.ActiveDrain
	if !s.doomed || s.survivor == "" && slot == nil {
		return
	}
	if s.survivor == "" {
		s.survivor = slot.Node
	}
	if m.name != s.survivor && !m.gone {
		m.crash()
		m.gone = true
		s.count("died for good")
	}
}

// recreate deletes the Node of a machine that has no lease and that the slot does not name, as the API allows it.
func (s *sim) recreate(m *machine) {
	if slot := s.settings.Status.ActiveDrain; m.up || m.gone || s.record(m.name).Held() || slot != nil && slot.Node == m.name {
		return
	}
	s.nodes[m.name] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name, UID: s.nodes[m.name].UID + "x"}}
	s.bump(s.nodes[m.name])
	s.cordonMoved(m.name, false)
	s.count("recreated")
}

// disaster leaves one machine.
func (s *sim) disaster(survivor string) {
	for _, m := range s.machines {
		if m.name != survivor {
			m.crash()
			m.mark()
		}
	}
}
