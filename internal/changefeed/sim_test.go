package changefeed_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// A simulation: a coordinator that plans with Place, nodes whose maintainers begin, stop and acknowledge as those of package
// maintainer do, and a store with compare-and-swap. Every process has an outdated view of each kind of object, and not of the same
// time for all kinds. Processes die, freeze and come back; coordinators change in the middle of a plan. A referee checks what
// really runs.

// rule is a property of the whole cluster, of what really runs and not of what a process has observed.
type rule string

const (
	// oneWorks: never two maintainers of a changefeed work, except on nodes whose epoch has ended.
	oneWorks rule = "one maintainer works"
	// epochsGrow: the epoch of a placement never falls, and another node always has a greater one.
	epochsGrow rule = "epochs grow"
	// fewMove: at most a batch of maintainers moves off the draining node at a time.
	fewMove rule = "few move at once"
	// allWell: when all nodes are healthy, everything that should run does so on a schedulable node, and nothing on the draining node.
	allWell rule = "all is well in the end"
)

// broken are faults of the coordinator or of maintainers, which the referee must find.
type broken struct {
	beginsUnwritten bool // a maintainer begins because it sees that its origin's epoch has ended, and does not record it
	beginsAtOnce    bool // a maintainer begins whether its origin has stopped or not
	acksEarly       bool // an origin acknowledges while it works
	neverAcks       bool // an origin does not acknowledge
	forgetsOrigin   bool // the coordinator writes a move without its origin
	blindWrites     bool // the coordinator overwrites versions that it has not seen, even its own
	noBatch         bool // the coordinator does not count the current moves
	blindToSlot     bool // the coordinator does not see the drain
	reusesEpoch     bool // the coordinator moves without a greater epoch
	worksOn         bool // a maintainer whose placement is elsewhere works on
}

// history is every state that a kind of object was in.
type history[T any] []T

func (h history[T]) last() T { return h[len(h)-1] }

// view is how much of each history a process has seen.
type view struct{ feeds, leases, nodes, settings int }

type setting struct {
	slot  *v1alpha1.ActiveDrain
	batch int
}

type process struct {
	name   string
	alive  bool
	frozen bool
	bad    bool  // bootstraps do not come to an end here
	epoch  int64 // 0 while it has none
	seen   view
	works  map[string]int64 // changefeeds, and for which placement
	ends   map[string]bool  // those that are stopping
}

type sim struct {
	chance *rand.Rand
	broken broken
	now    time.Time
	calm   bool // nothing goes wrong any more

	feeds    history[map[string]*v1alpha1.Changefeed]
	leases   history[map[string]lease.Record]
	nodes    history[map[string]*v1alpha1.Node]
	settings history[setting]
	versions simtest.Revisions

	processes map[string]*process
	names     []string
	leader    view // what the coordinator has seen
	wrote     int  // and what it has written last: it plans only when it has seen that

	*simtest.Referee[rule]
	bound *simtest.Play
}

func newSim(seed uint64, b broken) *sim {
	s := &sim{
		chance: rand.New(rand.NewPCG(seed, 7)), broken: b, now: now, processes: map[string]*process{},
		feeds: history[map[string]*v1alpha1.Changefeed]{{}}, leases: history[map[string]lease.Record]{{}}, nodes: history[map[string]*v1alpha1.Node]{{}},
		settings: history[setting]{{batch: 1}},
	}
	s.Referee = simtest.NewReferee[rule](s.at)
	for i := range 2 + s.chance.IntN(3) {
		name := fmt.Sprintf("n%d", i+1)
		s.names = append(s.names, name)
		s.processes[name] = &process{name: name}
		s.start(s.processes[name])
	}
	for i := range 1 + s.chance.IntN(4) {
		s.write(feed(fmt.Sprintf("f%d", i)), "made")
	}
	s.leader = s.newest()
	return s
}

func (s *sim) newest() view {
	return view{len(s.feeds) - 1, len(s.leases) - 1, len(s.nodes) - 1, len(s.settings) - 1}
}

// sees makes a process see more, of one kind or of all.
func (s *sim) sees(v *view) {
	n := s.newest()
	if s.calm || s.chance.IntN(3) == 0 {
		*v = n
		return
	}
	one := func(seen *int, newest int) { *seen += s.chance.IntN(newest - *seen + 1) }
	switch s.chance.IntN(4) {
	case 0:
		one(&v.feeds, n.feeds)
	case 1:
		one(&v.leases, n.leases)
	case 2:
		one(&v.nodes, n.nodes)
	case 3:
		one(&v.settings, n.settings)
	}
}

func (s *sim) world(v view) changefeed.World {
	w := changefeed.World{
		Now: s.now, Fleet: fleet.Fleet{Nodes: s.nodes[v.nodes], Leases: s.leases[v.leases], Slot: s.settings[v.settings].slot}, BatchSize: s.settings[v.settings].batch,
		BootstrapLimit: bootstrapLimit, Settled: true,
	}
	for _, name := range slices.Sorted(maps.Keys(s.feeds[v.feeds])) {
		w.Changefeeds = append(w.Changefeeds, s.feeds[v.feeds][name])
	}
	return w
}

func (s *sim) at() string { return fmt.Sprintf("%6.1f", s.now.Sub(now).Seconds()) }

// write stores a changefeed, whatever was there.
func (s *sim) write(cf *v1alpha1.Changefeed, why string) {
	next := maps.Clone(s.feeds.last())
	cf = cf.DeepCopy()
	s.versions.Stamp(cf)
	if was := next[cf.Name]; was != nil {
		s.judge(was.Placement(), cf.Placement(), cf.Name)
	}
	next[cf.Name] = cf
	s.feeds = append(s.feeds, next)
	s.Hear("%s %s: %s", cf.Name, why, strings.Join(describePlan(feeds(cf)), ""))
}

func (s *sim) judge(was, is v1alpha1.ChangefeedPlacement, name string) {
	if is.Epoch < was.Epoch || is.Node != "" && is.Epoch == was.Epoch && (is.Node != was.Node || is.NodeEpoch != was.NodeEpoch) {
		s.Breach(epochsGrow, "%s went from %s in epoch %d to %s in epoch %d", name, was.Node, was.Epoch, is.Node, is.Epoch)
	}
}

// swap changes a changefeed as it is now, if change says that there is something to do.
func (s *sim) swap(name, why string, change func(*v1alpha1.Changefeed) bool) bool {
	cf := s.feeds.last()[name].DeepCopy()
	if !change(cf) {
		return false
	}
	s.write(cf, why)
	return true
}

func (s *sim) over(p *process) bool { return p.epoch == 0 || s.leases.last()[p.name].Over(p.epoch) }

func (s *sim) setNode(name string, change func(*v1alpha1.Node)) {
	next := maps.Clone(s.nodes.last())
	n := next[name]
	if n == nil {
		n = machine(name)
	}
	n = n.DeepCopy()
	change(n)
	next[name] = n
	s.nodes = append(s.nodes, next)
}

func (s *sim) setLease(rec lease.Record) {
	next := maps.Clone(s.leases.last())
	next[rec.Node] = rec
	s.leases = append(s.leases, next)
}

// start begins the next epoch of a node.
func (s *sim) start(p *process) {
	rec := s.leases.last()[p.name]
	p.alive, p.frozen, p.bad, p.epoch = true, false, !s.calm && s.chance.IntN(5) == 0, rec.Epoch+1
	p.works, p.ends = map[string]int64{}, map[string]bool{}
	s.setLease(lease.Record{Node: p.name, Holder: fmt.Sprintf("%s-%d", p.name, p.epoch), Epoch: p.epoch, Fenced: rec.Fenced})
	s.setNode(p.name, func(n *v1alpha1.Node) {
		n.Status.Epoch, n.Status.Liveness = p.epoch, v1alpha1.Alive
		if slot := s.settings.last().slot; slot != nil && slot.Node == p.name {
			n.Status.Liveness = v1alpha1.Draining
		}
	})
	p.seen = s.newest()
	s.Count("start")
	s.Hear("%s starts in epoch %d", p.name, p.epoch)
}

// tend is one iteration of a maintainer's loop, for one changefeed on one node.
func (s *sim) tend(p *process, name string) {
	w := changefeed.World{Fleet: fleet.Fleet{Leases: s.leases[p.seen.leases]}}
	cf := s.feeds[p.seen.feeds][name]
	if cf == nil {
		return
	}
	at := cf.Placement()
	mine := func(at v1alpha1.ChangefeedPlacement) bool { return at.Node == p.name && at.NodeEpoch == p.epoch }
	isFrom := func(f *v1alpha1.PlacementOrigin) bool {
		return f != nil && f.Node == p.name && f.NodeEpoch == p.epoch && !f.Stopped
	}
	acknowledge := func() {
		if s.broken.neverAcks {
			return
		}
		if s.swap(name, "acknowledged by "+p.name, func(cf *v1alpha1.Changefeed) bool {
			if cf.Placement().Epoch != at.Epoch || !isFrom(cf.Placement().From) {
				return false
			}
			since := metav1.NewMicroTime(s.now)
			cf.Status.Placement.From.Stopped, cf.Status.Placement.Since = true, &since
			return true
		}) {
			s.Count("acknowledged")
		}
	}
	if s.broken.acksEarly && isFrom(at.From) {
		acknowledge()
	}
	if epoch, works := p.works[name]; works {
		stands := mine(at) && at.Epoch == epoch && cf.Wanted()
		switch {
		case p.ends[name]:
			delete(p.works, name)
			delete(p.ends, name)
			s.Hear("%s stops %s %d", p.name, name, epoch)
		case !stands && !s.broken.worksOn:
			p.ends[name] = true // what is under way comes to its end first
		case at.Phase == v1alpha1.PlacementPlacing && !p.bad && s.chance.IntN(2) == 0:
			if s.swap(name, "runs", func(cf *v1alpha1.Changefeed) bool {
				if now := cf.Placement(); !mine(now) || now.Epoch != epoch || !cf.Wanted() {
					return false
				}
				cf.Status.Placement.Phase, cf.Status.Placement.From, cf.Status.State = v1alpha1.PlacementRunning, nil, v1alpha1.ChangefeedRunning
				return true
			}) {
				s.Count("runs")
			}
		}
		return
	}
	if isFrom(at.From) {
		acknowledge()
		return
	}
	if !mine(at) || !cf.Wanted() || s.nodes.last()[p.name].Status.Liveness != v1alpha1.Alive { // the node's own gate
		return
	}
	if !w.MayBegin(at) && !s.broken.beginsAtOnce {
		return
	}
	if from := at.From; from != nil && !from.Stopped && !s.broken.beginsUnwritten && !s.broken.beginsAtOnce {
		// It has observed that the origin's epoch has ended. It reads that again, and records it before it begins, because others
		// may not have observed it.
		if !(changefeed.World{Fleet: fleet.Fleet{Leases: s.leases.last()}}).MayBegin(at) {
			return
		}
		if !s.swap(name, "origin found over by "+p.name, func(cf *v1alpha1.Changefeed) bool {
			if now := cf.Placement(); !mine(now) || now.Epoch != at.Epoch || now.From == nil {
				return false
			}
			since := metav1.NewMicroTime(s.now)
			cf.Status.Placement.From.Stopped, cf.Status.Placement.Since = true, &since
			return true
		}) {
			return
		}
		s.Count("found over")
	}
	p.works[name] = at.Epoch
	s.Count("begins")
	s.Hear("%s begins %s %d", p.name, name, at.Epoch)
}

// plan is one iteration of the coordinator. It may end between any two writes.
func (s *sim) plan() {
	if !s.broken.blindWrites {
		s.leader.feeds = max(s.leader.feeds, s.wrote)
	}
	w := s.world(s.leader)
	slot := w.Slot
	if s.broken.noBatch {
		w.BatchSize = 100
	}
	if s.broken.blindToSlot {
		w.Slot = nil
	}
	for _, cf := range changefeed.Place(w) {
		if !s.calm && s.chance.IntN(10) == 0 {
			s.leader = s.newest() // another one takes over
			s.Count("failover")
			return
		}
		was := s.feeds.last()[cf.Name]
		if cf.ResourceVersion != was.ResourceVersion && !s.broken.blindWrites {
			s.Count("conflict")
			return
		}
		is := cf.Placement()
		if s.broken.forgetsOrigin {
			cf.Status.Placement.From = nil
		}
		if s.broken.reusesEpoch {
			cf.Status.Placement.Epoch = max(is.Epoch-1, 1)
		}
		if is.From != nil && was.Placement().Phase == v1alpha1.PlacementPlacing && was.Placement().From == nil {
			s.Count("late")
		}
		s.write(cf, "placed")
		s.wrote = len(s.feeds) - 1
		if slot != nil && is.From != nil && is.From.Node == slot.Node && is.Phase == v1alpha1.PlacementPlacing && was.Placement().Node == slot.Node {
			s.Count("moves")
			under := 0
			for _, each := range s.feeds.last() {
				if p := each.Placement(); p.From != nil && p.From.Node == slot.Node && p.Node != slot.Node && p.Phase == v1alpha1.PlacementPlacing && each.Wanted() {
					under++
				}
			}
			if most := max(s.settings[s.leader.settings].batch, 1); under > most {
				s.Breach(fewMove, "%d moves off %s are under way, of %d", under, slot.Node, most)
			}
		}
	}
}

// step is one thing that happens.
func (s *sim) step() {
	s.now = s.now.Add(time.Duration(s.chance.IntN(1000)) * time.Millisecond)
	p := s.processes[s.names[s.chance.IntN(len(s.names))]]
	switch n := s.chance.IntN(100); {
	case n < 30:
		s.sees(&p.seen)
	case n < 45:
		s.sees(&s.leader)
	case n < 60:
		s.plan()
	case n < 85:
		s.tendOne(p)
	default:
		s.disturb(p)
	}
	s.watch()
}

func (s *sim) tendOne(p *process) {
	if !p.alive || p.frozen || s.over(p) {
		return
	}
	if slot := s.settings[p.seen.settings].slot; slot != nil && slot.Node == p.name && slot.NodeEpoch == p.epoch {
		s.setNode(p.name, func(n *v1alpha1.Node) { n.Status.Liveness = v1alpha1.Draining })
	}
	names := slices.Sorted(maps.Keys(s.feeds.last()))
	s.tend(p, names[s.chance.IntN(len(names))])
}

// disturb is a fault, or a change by a user.
func (s *sim) disturb(p *process) {
	switch s.chance.IntN(10) {
	case 0:
		if p.alive && s.chance.IntN(2) == 0 {
			p.alive, p.frozen, p.works, p.ends = false, false, nil, nil
			s.Count("die")
			s.Hear("%s dies", p.name)
		}
	case 1:
		if p.alive && !p.frozen {
			p.frozen = true
			s.Hear("%s freezes", p.name)
		}
	case 2:
		s.thaw(p)
	case 3, 4:
		s.fence(p)
	case 5:
		if !p.alive {
			s.start(p)
		}
	case 6:
		names := slices.Sorted(maps.Keys(s.feeds.last()))
		s.swap(names[s.chance.IntN(len(names))], "wanted otherwise", func(cf *v1alpha1.Changefeed) bool {
			if cf.Spec.State == v1alpha1.ChangefeedPause {
				cf.Spec.State = v1alpha1.ChangefeedRun
			} else if s.chance.IntN(3) == 0 {
				cf.Spec.State = v1alpha1.ChangefeedPause
			}
			return true
		})
	case 7:
		s.setNode(p.name, func(n *v1alpha1.Node) { n.Spec.Cordoned = !n.Spec.Cordoned && s.chance.IntN(3) == 0 })
	case 8:
		now := s.settings.last()
		now.batch = s.chance.IntN(4) - 1
		s.settings = append(s.settings, now)
	case 9:
		s.drain(p)
	}
}

// fence fences an epoch whose process is dead or frozen.
func (s *sim) fence(p *process) {
	rec := s.leases.last()[p.name]
	if !rec.Held() || p.alive && !p.frozen {
		return
	}
	rec.Holder, rec.Fenced = "", rec.Epoch
	s.setLease(rec)
	s.Count("fenced")
	s.Hear("%s is fenced in epoch %d", p.name, rec.Epoch)
	if now := s.settings.last(); now.slot != nil && now.slot.Node == p.name {
		now.slot = nil
		s.settings = append(s.settings, now)
	}
}

// thaw resumes a process. If its epoch has ended meanwhile, it stops everything first.
func (s *sim) thaw(p *process) {
	if !p.frozen {
		return
	}
	p.frozen = false
	if s.over(p) {
		p.works, p.ends = map[string]int64{}, map[string]bool{}
		s.start(p)
	}
}

// drain begins a drain, or ends the one that runs if nothing is left.
func (s *sim) drain(p *process) {
	now := s.settings.last()
	if now.slot == nil {
		if rec := s.leases.last()[p.name]; rec.Held() && s.chance.IntN(2) == 0 {
			now.slot = &v1alpha1.ActiveDrain{Name: "d", UID: fmt.Sprint(len(s.settings)), Node: p.name, NodeEpoch: rec.Epoch}
			s.settings = append(s.settings, now)
			s.Count("drain")
			s.Hear("%s is to be drained", p.name)
		}
		return
	}
	p = s.processes[now.slot.Node]
	if p.frozen || !p.alive || len(p.works) > 0 || s.world(s.newest()).MaintainersOn(p.name).Count > 0 || s.nodes.last()[p.name].Status.Liveness != v1alpha1.Draining {
		return
	}
	rec := s.leases.last()[p.name]
	rec.Holder = ""
	s.setLease(rec)
	p.alive, now.slot = false, nil
	s.settings = append(s.settings, now)
	s.Count("drained")
	s.Hear("%s is drained", p.name)
}

// watch is the referee: it checks which maintainers work.
func (s *sim) watch() {
	for name := range s.feeds.last() {
		var who []string
		for _, node := range s.names {
			p := s.processes[node]
			if epoch, works := p.works[name]; p.alive && works && !s.over(p) {
				who = append(who, fmt.Sprintf("%s for %d", node, epoch))
			}
		}
		if len(who) > 1 {
			s.Breach(oneWorks, "%s: %s", name, strings.Join(who, " and "))
		}
	}
}

// play runs a simulation: faults first, then none, when a drain must complete.
func play(seed uint64, b broken) *sim {
	s := newSim(seed, b)
	s.bound = simtest.Start("changefeed", strconv.FormatUint(seed, 10), simLimits)
	defer s.bound.End()
	for range 400 {
		s.bound.Step()
		s.step()
	}
	s.settle()
	return s
}

// A simulation takes 400 steps with faults, and at most 150 rounds without.
var simLimits = simtest.Limits{Steps: 10_000}

func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s is not a seed: %v", text, err)
		}
		if verdict := play(seed, broken{}).Verdict(); verdict != "" {
			t.Error(verdict)
		}
	})
}

// settle ends all faults, drains a node, and checks the final state.
func (s *sim) settle() {
	s.calm = true
	s.Hear("peace")
	for _, name := range s.names {
		p := s.processes[name]
		s.thaw(p)
		p.bad = false
		if !p.alive {
			s.fence(p)
			s.start(p)
		}
		s.setNode(name, func(n *v1alpha1.Node) { n.Spec.Cordoned = false })
	}
	for s.settings.last().slot == nil {
		s.bound.Step()
		s.drain(s.processes[s.names[s.chance.IntN(len(s.names))]])
	}
	for range 150 {
		s.bound.Step()
		if s.uneasy() == "" {
			return
		}
		s.now = s.now.Add(time.Second)
		s.sees(&s.leader)
		s.plan()
		for _, name := range s.names {
			p := s.processes[name]
			s.sees(&p.seen)
			for range 3 * len(s.feeds.last()) {
				s.tendOne(p)
			}
		}
		s.watch()
	}
	s.Breach(allWell, "%s", s.uneasy())
}

// uneasy is what is not yet as it must be in the end.
func (s *sim) uneasy() string {
	w, slot := s.world(s.newest()), s.settings.last().slot
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		works := s.processes[p.Node] != nil && s.processes[p.Node].works[cf.Name] == p.Epoch
		if cf.Wanted() && (p.Phase != v1alpha1.PlacementRunning || !slices.Contains(w.SchedulableNodes(), p.Node) || !works) {
			return fmt.Sprintf("%s is %s on %q, works: %v", cf.Name, p.Phase, p.Node, works)
		}
		if !cf.Wanted() && (p.Node != "" || !w.MayBegin(p)) {
			return fmt.Sprintf("%s is not wanted and is %s on %q", cf.Name, p.Phase, p.Node)
		}
	}
	if left := w.MaintainersOn(slot.Node); left.Count != 0 || len(s.processes[slot.Node].works) != 0 {
		return fmt.Sprintf("on the draining %s: %v, %d work", slot.Node, left.By, len(s.processes[slot.Node].works))
	}
	return ""
}

func TestMaintainersWithFaults(t *testing.T) {
	census := simtest.Census{}
	for seed := range testlength.Seeds(1000, 20000) {
		s := play(seed, broken{})
		census.Add(s.Counts())
		if verdict := s.Verdict(); verdict != "" {
			t.Fatalf("run %d: %s", seed, verdict)
		}
	}
	census.Require(t, 20, "start", "die", "fenced", "begins", "runs", "acknowledged", "found over", "moves", "late", "conflict", "failover", "drain", "drained")
}

// Each of these has a fault on purpose, and the referee must find it: a check that cannot fail is worthless. Seeds are tried in order,
// so that the same one is found every time.
func TestTheRefereeSeesABrokenRule(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken broken
		want   []rule
	}{
		{"a maintainer that does not wait for its origin", broken{beginsAtOnce: true}, []rule{oneWorks}},
		{"an origin that acknowledges before it stops", broken{acksEarly: true}, []rule{oneWorks}},
		{"an origin that never acknowledges", broken{neverAcks: true}, []rule{allWell}},
		{"a coordinator that forgets the origin", broken{forgetsOrigin: true}, []rule{oneWorks}},
		{"a coordinator that writes blindly", broken{blindWrites: true}, []rule{epochsGrow}},
		{"a coordinator that counts no moves", broken{noBatch: true}, []rule{fewMove}},
		{"a coordinator that does not see the drain", broken{blindToSlot: true}, []rule{allWell}},
		{"a coordinator that uses an epoch twice", broken{reusesEpoch: true}, []rule{epochsGrow}},
		{"a maintainer that does not stop", broken{worksOn: true}, []rule{allWell}},
	} {
		t.Run(c.name, func(t *testing.T) {
			simtest.RequireBreach(t, 600, func(seed uint64) map[rule]string { return play(seed, c.broken).Breaches() }, c.want...)
		})
	}
}

// A move whose destination is drained before it began: the first destination has observed only the first move and that the origin
// died; the second has observed everything. Only one of them may begin.
func TestAMaintainerRecordsThatItsOriginEndedBeforeItBegins(t *testing.T) {
	for name, b := range map[string]broken{"by the rules": {}, "on its own view alone": {beginsUnwritten: true}} {
		t.Run(name, func(t *testing.T) {
			s := &sim{
				chance: rand.New(rand.NewPCG(1, 1)), broken: b, now: now, processes: map[string]*process{},
				feeds: history[map[string]*v1alpha1.Changefeed]{{}}, leases: history[map[string]lease.Record]{{}}, nodes: history[map[string]*v1alpha1.Node]{{}},
				settings: history[setting]{{batch: 1}}, calm: true,
			}
			s.Referee = simtest.NewReferee[rule](s.at)
			for _, name := range []string{"n1", "n2", "n3"} {
				s.names = append(s.names, name)
				s.processes[name] = &process{name: name}
				s.start(s.processes[name])
			}
			s.write(feed("f", placing("n2", 4), from("n1", 3)), "moved")
			s.write(feed("load", running("n1", 1)), "placed")
			first := s.processes["n2"]
			first.seen = s.newest()

			s.settings = append(s.settings, setting{batch: 1, slot: &v1alpha1.ActiveDrain{Name: "d", UID: "d", Node: "n2", NodeEpoch: 1}})
			s.leader = s.newest()
			s.plan()
			if p := s.feeds.last()["f"].Placement(); p.Node != "n3" || p.From == nil || p.From.Node != "n1" {
				t.Fatalf("it was moved on to %+v", p)
			}
			last := s.processes["n3"]
			s.processes["n1"].alive = false
			s.fence(s.processes["n1"])
			first.seen.leases = s.newest().leases // but not the second move, nor the drain
			last.seen = s.newest()
			s.tend(first, "f")
			s.tend(last, "f")
			s.watch()
			if got, want := s.Breaches()[oneWorks] != "", b.beginsUnwritten; got != want {
				t.Errorf("two work: %v\n%s", got, strings.Join(s.Heard(), "\n"))
			}
			if s.Counted("begins") == 0 {
				t.Error("nobody begins")
			}
		})
	}
}
