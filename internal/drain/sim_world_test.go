package drain_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// broken are rules of the game broken on purpose, to show that the referee would see it.
type broken struct {
	ackFirst     bool // a node acknowledges before it closes its gate
	countFirst   bool // a node counts before it closes its gate, and says so after
	neverCloses  bool // a node says that it drains and goes on taking work
	backToAlive  bool // a node goes back to Alive within an epoch
	anyEpoch     bool // a node obeys what was meant for another epoch
	ackIgnored   bool // the coordinator believes that every node has acknowledged
	objectsOnly  bool // the coordinator does not ask the node what it holds
	freedByPhase bool // the slot is freed when the drain has ended, whatever its node does
	slotIgnored  bool // the coordinator does not look whether the slot is taken
	blind        bool // writes do not look at versions
	inMemory     bool // the coordinator remembers that it wants a node to drain, and writes it down for nobody
	lateIsDone   bool // a drain that ran into its deadline is called complete
	joinsParked  bool // a node joins although it is parked
	parksLate    bool // a drain is complete before its dead node is parked
	liftsAny     bool // the coordinator lifts the cordon of every node whose drain was cancelled, whoever made it
	lateSurvivor bool // a node survives alone only once it is Draining
}

// piece is one piece of work: where the objects place it, and where it really is.
type piece struct {
	placed, held string
}

// sim is a cluster around the real Gather and Next. Everything happens in one goroutine, in an order that the tape decides.
type sim struct {
	*store
	*simtest.Tape
	*referee
	broken   broken
	now      time.Time
	machines []*machine
	pieces   []*piece
	term     int
	leaders  []*leader // the last one may be in office; the others do not know yet that they are not
	requests int
	often    weights
	rounds   int
	bound    *simtest.Play
	doomed   bool   // machines die for good before the end
	survivor string // the one that does not
	depth    int    // of actions inside a coordinator's reading
}

func newSim(t *simtest.Tape, b broken, bound *simtest.Play) *sim {
	s := &sim{store: newStore(), Tape: t, broken: b, bound: bound, now: start}
	s.referee = newReferee(s)
	s.blind = b.blind
	s.pause = s.meanwhile
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		m := &machine{sim: s, name: name}
		s.machines = append(s.machines, m)
		s.nodes[name] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
		s.bump(s.nodes[name])
		m.settle()
	}
	s.elect()
	s.often, s.doomed = kinds[s.Draw(len(kinds))], s.Draw(4) == 3
	return s
}

// play lets chance act until the tape ends, and then wants all to come to an end.
func play(t *simtest.Tape, b broken) *referee {
	bound := simtest.Start("drain", t.String(), limits)
	defer bound.End()
	s := newSim(t, b, bound)
	for !s.Ended() {
		s.act()
	}
	if slot := s.settings.Status.ActiveDrain; slot != nil && t.Ended() && s.rounds == 0 && s.requests%2 == 0 && s.survivor == "" {
		s.forsake(slot.Node)
	}
	s.settleDown()
	return s.referee
}

// forsake leaves the node in the slot alone: all others die for good. It has to go back to work, and the slot must be free.
func (s *sim) forsake(survivor string) {
	s.count("forsaken")
	for _, m := range s.machines {
		if m.name != survivor {
			m.crash()
			m.gone = true
		}
	}
}

// weights say how often each thing happens in a run of one kind.
type weights struct {
	machine, lead, schedule, evict, ask, fault, elect, clock int
}

// kinds of runs: everything goes wrong; terms are short; machines are bad.
var kinds = []weights{
	{machine: 9, lead: 7, schedule: 1, evict: 2, ask: 2, fault: 2, elect: 1, clock: 1},
	{machine: 7, lead: 9, schedule: 1, evict: 2, ask: 3, fault: 0, elect: 3, clock: 1},
	{machine: 9, lead: 7, schedule: 1, evict: 2, ask: 2, fault: 3, elect: 0, clock: 0},
}

// act is one thing that happens.
func (s *sim) act() {
	s.bound.Step()
	w := s.often
	s.DoOne(
		simtest.Chance{Weight: w.machine, Do: func() { s.machines[s.Draw(len(s.machines))].act() }},
		simtest.Chance{Weight: w.lead, Do: s.lead},
		simtest.Chance{Weight: w.schedule, Do: s.schedule},
		simtest.Chance{Weight: w.evict, Do: s.evict},
		simtest.Chance{Weight: w.ask, Do: s.ask},
		simtest.Chance{Weight: w.fault, Do: s.fault},
		simtest.Chance{Weight: 1, Do: s.cordon},
		simtest.Chance{Weight: w.elect, Do: s.elect},
		simtest.Chance{Weight: w.clock, Do: func() { s.now = s.now.Add(time.Duration(s.Draw(40)) * time.Second) }},
	)
	s.look()
}

// meanwhile is what happens between two reads of a coordinator. Even the same coordinator may go on at another place, which
// is more than a real one does.
func (s *sim) meanwhile() {
	if s.depth > 0 || s.Ended() {
		return
	}
	s.depth++
	defer func() { s.depth-- }()
	if s.Draw(16) == 15 {
		s.round() // it was frozen for long
		return
	}
	for range s.Draw(3) * s.Draw(5) {
		s.act()
	}
}

// settleDown ends all faults: whoever is down comes back, everybody does what he has to, and people take up what failed.
// By then every drain has ended and the slot is free.
func (s *sim) settleDown() {
	for _, m := range s.machines {
		if m.gone {
			m.mark()
			continue
		}
		m.wake()
		for m.up && m.leaving {
			s.bound.Step()
			m.workOn()
			m.end()
		}
		m.settle()
	}
	for calm := 0; s.rounds < 80; s.rounds++ {
		joined := s.Counted("joined")
		s.takeUpFailed()
		s.restartLast()
		if s.rounds%8 == 7 {
			s.uncordonAll()
		}
		s.round()
		calm++
		if !s.settled() || s.Counted("joined") != joined {
			calm = 0
		}
		if calm == 3 {
			return
		}
	}
	slot, _ := s.world("").Slot()
	s.Breach(comesToAnEnd, "after all faults ended the slot is %v, and not ended are %q", slot, s.phases())
}

// restartLast is what people do when the last machine has left and all others are gone for good: they start it again.
func (s *sim) restartLast() {
	for _, m := range s.machines {
		if m.up {
			return
		}
	}
	for _, m := range s.machines {
		m.settle()
	}
}

func (s *sim) world(leader string) drain.World {
	w, err := drain.Gather(context.Background(), s.store, leader, []drain.Tenant{s.tenant()}, s.now)
	if err != nil {
		panic(err)
	}
	return w
}

// round lets everybody do what he can.
func (s *sim) round() {
	s.bound.Step()
	s.now = s.now.Add(time.Second)
	for range len(s.pieces) {
		for i := range s.pieces {
			if i < len(s.pieces) {
				s.evictAt(i)
			}
		}
	}
	for _, m := range s.machines {
		m.works()
	}
	if !s.inOffice() {
		s.elect()
	}
	for range 8 {
		if n := len(s.leaders); n > 0 && s.leaders[n-1].able() {
			s.leaders[n-1].step(s)
		}
	}
	s.look()
}

func (s *sim) evictAt(i int) {
	if p := s.pieces[i]; p.placed != "" && !s.schedulable(p.placed) {
		p.placed = ""
	}
}

// takeUpFailed is what people do with a drain that failed: another one, without a deadline.
func (s *sim) takeUpFailed() {
	slot, d := s.world("").Slot()
	if slot == nil || d != nil && d.Status.Phase != v1alpha1.DrainFailed || !s.record(slot.Node).Held() {
		return
	}
	for _, other := range s.drains {
		if other.Spec.NodeName == slot.Node && !other.Status.Phase.Final() {
			return
		}
	}
	s.request(slot.Node, true, 0)
}

func (s *sim) settled() bool {
	if s.settings.Status.ActiveDrain != nil {
		return false
	}
	for _, d := range s.drains {
		if !d.Status.Phase.Final() || d.DeletionTimestamp != nil {
			return false
		}
	}
	for _, m := range s.machines {
		if m.up && m.liveness != v1alpha1.Alive {
			return false
		}
		if len(v1alpha1.CordonOwners(s.nodes[m.name])) > 0 && !s.nodes[m.name].IsParked() {
			return false
		}
	}
	return true
}

func (s *sim) phases() string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(s.drains)) {
		if d := s.drains[name]; !d.Status.Phase.Final() {
			text += fmt.Sprintf("%s of %s %s, ", name, d.Spec.NodeName, d.Status.Phase)
		}
	}
	return text
}
