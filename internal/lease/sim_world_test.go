package lease_test

import (
	"container/heap"
	"math/rand/v2"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// The simulated world: one goroutine, one virtual true time that nobody in it can read, and one queue of what happens
// next. Everything random comes from the plan's seed, so a plan is a schedule that can be played again.
type world struct {
	now     time.Duration // true time
	queue   events
	order   int
	noise   *rand.Rand
	network *simtest.Network

	plan     plan
	broken   broken
	store    *store
	machines []*machine
	slots    []*slot
	referee  *referee
	healed   bool
	bound    *simtest.Play
}

// beat is how often a process looks at its own epoch and at the others.
const beat = 400 * time.Millisecond

func newWorld(p plan, b broken) *world {
	w := &world{plan: p, broken: b, noise: rand.New(rand.NewPCG(p.Seed, 0))}
	w.network = newNetwork(p, w.noise)
	w.referee = newReferee(w)
	w.store = newStore(w)
	for range 3 {
		m := &machine{w: w, permille: 1000}
		if p.Drift {
			// 1.1/0.9 < Lost/Dead: the drift that the margin between Dead and Lost is there for.
			m.permille = 900 + 200*w.noise.Int64N(2)
		}
		m.boot()
		w.machines = append(w.machines, m)
	}
	for i, place := range places {
		s := &slot{w: w, node: place.node, machine: w.machines[place.machine], ambush: map[step]time.Duration{}}
		w.slots = append(w.slots, s)
		w.after(time.Duration(i)*100*time.Millisecond, s.start)
	}
	for _, f := range p.Faults {
		w.at(f.At, func() { w.strike(f) })
	}
	return w
}

// places are the names and the machines that want them: b is wanted by two, machine 2 wants two.
var places = []struct {
	node    string
	machine int
}{{"a", 0}, {"b", 1}, {"b", 2}, {"c", 2}}

// run plays until a true time, and has the referee look after every single event.
func (w *world) run(until time.Duration) {
	for len(w.queue) > 0 && w.queue[0].at <= until {
		w.bound.Step()
		e := heap.Pop(&w.queue).(*event)
		w.now = e.at
		e.do()
		w.referee.look()
	}
	w.now = until
}

func (w *world) at(t time.Duration, do func()) {
	w.order++
	heap.Push(&w.queue, &event{max(t, w.now), w.order, do})
}

func (w *world) after(d time.Duration, do func()) { w.at(w.now+d, do) }

// upTo is a random duration below d.
func (w *world) upTo(d time.Duration) time.Duration { return time.Duration(w.noise.Int64N(int64(d))) }

// chance is true in percent of a hundred cases.
func (w *world) chance(percent int) bool { return w.noise.IntN(100) < percent }

// machine has a clock that has nothing to do with true time but its rate.
type machine struct {
	w        *world
	offset   lease.Instant
	permille int64 // rate
}

// boot starts the clock anywhere.
func (m *machine) boot() {
	m.offset = lease.Instant(m.w.noise.Int64N(int64(1e6*time.Second)) - int64(5e5*time.Second))
}

func (m *machine) clock() lease.Instant {
	return m.offset + lease.Instant(int64(m.w.now)*m.permille/1000)
}

// lasts is the true time that a duration on this machine's clock takes.
func (m *machine) lasts(d time.Duration) time.Duration {
	return time.Duration((int64(d)*1000 + m.permille - 1) / m.permille)
}

type event struct {
	at    time.Duration
	order int // events of one instant happen in the order they were planned
	do    func()
}

type events []*event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	if e[i].at != e[j].at {
		return e[i].at < e[j].at
	}
	return e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(*event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}
