package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// timing of every play.
var timing = lease.DefaultTiming()

var quiet = slog.New(slog.DiscardHandler)

// broken are rules that a test breaks on purpose.
type broken struct {
	plainLock   bool // electors use client-go's lock as it is
	noTermCheck bool // the store takes the writes of any term
	earlyReturn bool // a term is called stopped while its work goes on
	neverStops  bool // a term's work does not stop when it is told to
	selfRelease bool // an elector may release before its term has stopped
	noWatch     bool // nobody is told that the election was released
	noSitOut    bool // whoever resigned believes that another leads already
}

// world is one play.
type world struct {
	broken   broken
	network  *simtest.Network
	flights  sync.WaitGroup // messages under way
	store    *store
	referee  *referee
	metrics  *Metrics
	machines []*machine
	running  sync.WaitGroup
	over     chan struct{}
	bound    *simtest.Play
}

// machine is where one node runs, whatever process it runs in.
type machine struct {
	world *world
	name  string

	// turn is held by whoever does something to the machine or undoes it. Without it, a machine that is killed or leaves in the
	// instant in which it comes back has a process enter an epoch that nobody ends.
	turn sync.Mutex

	mu      sync.Mutex
	epoch   int64
	process *process
	state   map[what]int // what is being done to it, how many times over
}

// play runs a plan in virtual time and returns what the referee saw.
func play(t *testing.T, p plan, b broken) *referee {
	var r *referee
	inBubble(t, p, b, func(_ *testing.T, w *world) {
		w.boot()
		r = w.referee
		for _, e := range p.events {
			time.Sleep(time.Until(r.start.Add(e.at)))
			w.begin(e)
		}
		time.Sleep(time.Until(r.start.Add(length)))
		w.settle()
		w.end()
		r.judgeHandOvers()
	})
	return r
}

func newWorld(p plan, b broken) *world {
	w := &world{
		broken: b, referee: newReferee(p), metrics: NewMetrics(prometheus.NewRegistry(), "n"), over: make(chan struct{}),
		network: newNetwork(p),
	}
	w.store = &store{referee: w.referee, broken: b, freed: w.tellFreed}
	for i := range p.machines {
		m := &machine{world: w, name: fmt.Sprintf("n%d", i), state: map[what]int{}}
		w.machines = append(w.machines, m)
		m.process = newProcess(m)
	}
	return w
}

func (w *world) boot() {
	for _, m := range w.machines {
		m.current().enter()
	}
}

// tellFreed is the watch on the election's Lease: it is late, and now and then it tells nothing.
func (w *world) tellFreed() {
	if w.broken.noWatch {
		return
	}
	for _, m := range w.machines {
		p := m.current()
		w.flights.Go(func() {
			time.Sleep(w.network.Between(time.Millisecond, 50*time.Millisecond))
			if w.network.IsCalm() || !w.network.Chance(25) {
				p.signal()
			}
		})
	}
}

// begin does an event, and undoes it when its time is over or the faults are.
func (w *world) begin(e event) {
	m := w.machines[e.who]
	w.referee.Count(string(e.what))
	switch e.what {
	case resigned:
		w.running.Go(func() { m.resign() })
		return
	case away:
		w.store.leave(true)
	default:
		m.become(e)
	}
	w.running.Go(func() {
		time.Sleep(min(e.lasts, time.Until(w.referee.start.Add(length))))
		if e.what == away {
			w.store.leave(false)
		} else {
			m.recover(e)
		}
	})
}

func (m *machine) become(e event) {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	m.state[e.what]++
	first, p := m.state[e.what] == 1, m.process
	p.gate.set(m.state[frozen] > 0)
	m.mu.Unlock()
	if !first {
		return
	}
	switch e.what {
	case killed:
		p.kill()
	case left:
		p.leave()
	case drained:
		p.wake()
	}
}

func (m *machine) recover(e event) {
	m.turn.Lock()
	defer m.turn.Unlock()
	m.mu.Lock()
	m.state[e.what]--
	last, up, p := m.state[e.what] == 0, m.state[killed]+m.state[left] == 0, m.process
	p.gate.set(m.state[frozen] > 0)
	m.mu.Unlock()
	switch {
	case !last:
	case e.what == drained:
		p.wake()
	case (e.what == killed || e.what == left) && up:
		if p.isDead() || !e.rejoin {
			m.boot()
			return
		}
		p.enter()
	}
}

// boot starts a new process; nothing of the old one is left. The caller has the turn.
func (m *machine) boot() {
	p := newProcess(m)
	m.mu.Lock()
	old := m.process
	m.process = p
	p.gate.set(m.state[frozen] > 0)
	m.mu.Unlock()
	old.kill()
	p.enter()
}

func (m *machine) resign() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := m.current().campaign.Resign(ctx); err == nil {
		m.world.referee.Count("handed over")
	}
}

func (m *machine) current() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

func (m *machine) is(w what) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state[w] > 0
}

func (m *machine) nextEpoch() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.epoch++
	return m.epoch
}

// settle wants one coordinator, and the same one for a while.
func (w *world) settle() {
	w.network.Calm()
	elected := w.machines[0].current().campaign.duration()
	// What may come first: a term that is being given up stops, and its release is tried.
	time.Sleep(elected + (timing.Dead - timing.Fence) + 2*timing.Timeout + 4*timing.Renew/4)
	w.referee.sample()
	time.Sleep(2 * timing.Timeout)
	leader := w.store.leader()
	w.judge(oneEmerges, leader)
	time.Sleep(3 * elected)
	w.judge(itStays, leader)
}

func (w *world) judge(which rule, leader string) {
	wrote, works := w.referee.sample()
	if len(works) != 1 || works[0] != leader || len(wrote) != 1 || wrote[leader] == 0 || w.store.leader() != leader {
		w.referee.locked(func() {
			w.referee.Breach(which, "%s was elected, then %s; %v worked and %v wrote", leader, w.store.leader(), works, wrote)
		})
	}
}

// end stops everything, so that nothing of a play outlives it.
func (w *world) end() {
	close(w.over)
	for _, m := range w.machines {
		m.current().leave()
	}
	w.running.Wait()
	w.flights.Wait()
	for _, m := range w.machines {
		<-m.current().campaign.last
	}
}

// everybody is a cluster in which anyone could take over, as Resign sees it.
var everybody = sync.OnceValue(func() client.Client {
	objects := []client.Object{&v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}}
	for i := range 5 {
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i)}, Status: v1alpha1.NodeStatus{Liveness: v1alpha1.Alive}}
		meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: "Serving"})
		objects = append(objects, n)
	}
	return fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(objects...).Build()
})
