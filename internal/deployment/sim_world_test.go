package deployment_test

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// The life of a lease, in ticks: a process doubts itself, its programs are dead, others may call it lost.
const (
	doubtAfter = 6
	deadAfter  = 8
	lostAfter  = 10
	// returnAfter is how long a node that left in order is waited for.
	returnAfter = 4
)

// broken are rules of the game broken on purpose, to show that the referee would see it.
type broken struct {
	takesOccupied  bool // a node takes without looking who may still run it
	epochIsOver    bool // a node takes from an older epoch of a node that lives in a newer
	cachedLeases   bool // a node takes by what its cache says of leases
	releasesEarly  bool // a node gives back when it has asked the program to end, not when it has ended
	startsUntaken  bool // a node starts what it has not taken
	blind          bool // writes do not look at versions
	immortal       bool // shims do not end programs at their deadline
	lateStart      bool // a shim starts a program though its deadline has passed
	marksEarly     bool // others call a node lost before its programs are dead
	unattached     bool // a restarted node does not see what its programs do
	gateOpen       bool // a draining node takes new work
	noneClaims     bool // a node with the policy none claims
	restartsAtOnce bool // a changed daemon is restarted without a look at others
	reapsEarly     bool // a deleted object goes while somebody may run it
	neverReleases  bool // a node does not say that nothing is left
	unmarked       bool // a node does not say that its programs go on without a lease
	undecided      bool // a node starts a program before it is decided as whom it runs
	keepsFailing   bool // a node does not give up what fails there
	unspawned      bool // a restarted node does not see shims that have only begun to start
}

// sim is a cluster around the real Next, Taken, Released, Occupied, MayRestart and Assign. Everything happens in one
// goroutine, in an order that the tape decides.
type sim struct {
	*store
	*simtest.Tape
	*referee
	broken   broken
	now      int // true time
	machines []*machine
	names    []string
	flying   []func() // writes whose process has died
	often    weights
	made     int
	bound    *simtest.Play
	spared   int // how many objects are left in the end as they are
}

func newSim(t *simtest.Tape, b broken, bound *simtest.Play) *sim {
	s := &sim{store: newStore(), Tape: t, broken: b, bound: bound, names: []string{"a", "b", "c"}}
	s.referee = newReferee(s)
	s.blind = b.blind
	s.often, s.spared = kinds[s.Draw(len(kinds))], s.Draw(3)
	for i, policy := range []v1alpha1.ClaimPolicy{v1alpha1.ClaimByCount, v1alpha1.ClaimByCount, v1alpha1.ClaimByUsage, v1alpha1.ClaimNone} {
		m := &machine{
			sim: s, name: fmt.Sprintf("n%d", i+1), policy: policy, programs: map[string]*shimmed{}, spawned: map[string]*shimmed{}, fails: map[string]bool{},
			failed: map[string]failure{},
		}
		s.machines = append(s.machines, m)
		s.nodes[m.name] = []*v1alpha1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: m.name, Labels: map[string]string{"disk": "fast"}},
			Status:     v1alpha1.NodeStatus{Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}, {Type: v1alpha1.NodeProgramsIsolated, Status: metav1.ConditionTrue}}},
		}}
		if i == 1 {
			m.trust, _ = deployment.ParseTrust("^/opt/")
		}
		m.older = i == 2 && s.Draw(8) == 7
		m.join()
		m.process.publish()
	}
	if s.machines[2].older {
		for _, m := range s.machines { // all know of it
			m.process.cache.see(func(int) int { return 0 })
		}
	}
	for _, name := range s.names {
		s.create(name)
	}
	return s
}

// create makes an object: a selects fast disks, b is not trusted by n2, of c two may restart at once.
func (s *sim) create(name string) {
	s.made++
	d := program(name, unavailable(1))
	d.UID = types.UID(fmt.Sprintf("uid-%d", s.made))
	d.Spec.Restart.MoveAfter = new(int32(2))
	switch name {
	case "a":
		fastDisk(d)
	case "b":
		d.Spec.Command = "/usr/b"
	case "c":
		unavailable(2)(d)
	}
	switch s.Draw(6) {
	case 2, 5:
		daemon(d)
	case 4:
		keeps(d)
	}
	s.put(d)
	s.created(d)
}

// play lets chance act until the tape ends, and then wants everything to run where it should.
func play(t *simtest.Tape, b broken) *referee {
	bound := simtest.Start("deployment", t.String(), limits)
	defer bound.End()
	s := newSim(t, b, bound)
	for !s.Ended() {
		s.act()
	}
	s.settleDown()
	return s.referee
}

// weights say how often each thing happens in a run of one kind.
type weights struct {
	machine, clock, admin, retype, fault, coordinate int
}

// kinds of runs: a bit of everything; machines are bad; people change their minds all the time.
var kinds = []weights{
	{machine: 40, clock: 4, admin: 2, retype: 1, fault: 1, coordinate: 2},
	{machine: 40, clock: 7, admin: 2, retype: 0, fault: 3, coordinate: 3},
	{machine: 40, clock: 2, admin: 4, retype: 2, fault: 1, coordinate: 2},
}

// act is one thing that happens.
func (s *sim) act() {
	s.bound.Step()
	w := s.often
	s.DoOne(
		simtest.Chance{Weight: w.machine, Do: func() { s.someMachine().act() }},
		simtest.Chance{Weight: w.clock, Do: s.tick},
		simtest.Chance{Weight: w.admin, Do: s.administer},
		simtest.Chance{Weight: w.retype, Do: s.retype},
		simtest.Chance{Weight: w.fault, Do: s.fault},
		simtest.Chance{Weight: w.coordinate, Do: s.coordinate},
	)
	s.look()
}

func (s *sim) someMachine() *machine { return s.machines[s.Draw(len(s.machines))] }

func (s *sim) someName() string { return s.names[s.Draw(len(s.names))] }

// tick lets time pass: leases are renewed, shims look at their deadlines.
func (s *sim) tick() {
	s.now++
	for _, m := range s.machines {
		m.tick()
	}
	if s.broken.marksEarly {
		s.markLost()
	}
}

// settleDown ends all disturbance and lets everybody do what he can. By then all that should run does.
func (s *sim) settleDown() {
	for _, m := range s.machines {
		m.heal()
		m.upgrade()
	}
	for _, name := range s.names[s.spared:] {
		s.revive(name)
	}
	for _, name := range s.names {
		s.mend(name)
	}
	well := 0
	for range 60 {
		s.round()
		if well++; s.unwell() != "" {
			well = 0
		}
		if well == 3 {
			return
		}
	}
	s.Breach(runsInTheEnd, "%s", s.unwell())
}

// mend ends the failures of a program but for one machine, if that one has another beside it.
func (s *sim) mend(name string) {
	kept := false
	for _, m := range s.machines {
		m.fails[name] = m.fails[name] && !kept && m.policy != v1alpha1.ClaimNone
		kept = kept || m.fails[name]
	}
}

// round lets everybody do what he can, once.
func (s *sim) round() {
	s.bound.Step()
	s.tick()
	for _, write := range s.flying {
		write()
	}
	s.flying = nil
	s.markLost()
	for _, name := range s.names {
		s.observe(name)
		s.reap(name)
	}
	for _, m := range s.machines {
		m.works()
		s.look()
	}
}

// unwell says what does not run as it should.
func (s *sim) unwell() string {
	for _, name := range s.names {
		if why := s.unwellObject(s.object(name), name); why != "" {
			return why
		}
	}
	return ""
}

func (s *sim) unwellObject(d *v1alpha1.Deployment, name string) string {
	w := s.live()
	must, may := map[string]bool{}, map[string]bool{}
	if d != nil && d.IsEnabled() {
		if d.Spec.Type == v1alpha1.TypeDaemon && s.failsSomewhere(d) {
			return "" // its rollout may have stopped where it fails
		}
		for _, m := range s.machines {
			out := w.IneligibleReason(d, m.name)
			switch {
			case d.Spec.Type == v1alpha1.TypeDaemon:
				must[m.name] = out != "labels do not match" && m.trust.Refuses(d) == "" && s.matches(d, m.name)
			case out == "" || d.Spec.Address == m.name:
				may[m.name] = true
			}
		}
	}
	count := 0
	for _, m := range s.machines {
		p := m.programs[name]
		if p == nil {
			if must[m.name] {
				return fmt.Sprintf("daemon %s does not run on %s: %s", name, m.name, text(d))
			}
			continue
		}
		count++
		if !must[m.name] && !may[m.name] {
			return fmt.Sprintf("%s runs on %s: %s", name, m.name, text(d))
		}
		if p.uid != d.UID || p.revision != revision(d) || p.ending || p.free && !d.Spec.GoesOn() {
			return fmt.Sprintf("on %s runs something else than %s: %+v", m.name, text(d), *p)
		}
		if d.Spec.Type == v1alpha1.TypeDeployment && d.Spec.Address != m.name {
			return fmt.Sprintf("%s runs on %s and should on %s", name, m.name, d.Spec.Address)
		}
	}
	if d != nil && d.Spec.Type == v1alpha1.TypeDeployment && d.IsEnabled() && count != 1 && s.somebodyMay(d) {
		return fmt.Sprintf("deployment %s runs %d times: %s", name, count, text(d))
	}
	return ""
}

// somebodyMay says whether a node on which a deployment does not fail may claim it.
func (s *sim) somebodyMay(d *v1alpha1.Deployment) bool {
	w := s.live()
	for _, m := range s.machines {
		if !m.fails[d.Name] && w.IneligibleReason(d, m.name) == "" {
			return true
		}
	}
	return false
}

func (s *sim) failsSomewhere(d *v1alpha1.Deployment) bool {
	return slices.ContainsFunc(s.machines, func(m *machine) bool { return m.fails[d.Name] })
}

func (s *sim) matches(d *v1alpha1.Deployment, node string) bool {
	return d.Spec.Selector == nil || s.nodes.Newest(node).Labels["disk"] == "fast"
}

// text is an object in a few words, for a person who reads a failure.
func text(d *v1alpha1.Deployment) string {
	if d == nil {
		return "deleted"
	}
	words := fmt.Sprintf("%s %s v%s enabled=%t address=%q holder=%+v", d.Spec.Type, d.UID, d.ResourceVersion, d.IsEnabled(), d.Spec.Address, d.Holder())
	for _, i := range d.Status.Nodes {
		words += fmt.Sprintf(" %s/%d:%s%s", i.Node, i.NodeEpoch, i.State, i.Revision)
	}
	return words + fmt.Sprintf(" goes on=%t may run on=%q", d.Spec.GoesOn(), d.Status.MayRunOn)
}
