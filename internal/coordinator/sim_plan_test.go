package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// draw picks one of n.
type draw func(what string, n int) int

// plan is what will happen in a play: everything but the jitter of the electors' own retries.
type plan struct {
	seed     uint64 // of the network's conduct
	machines int
	faults   int // of a hundred requests, how many meet a fault
	events   []event
}

// event is one thing done to one machine, or to the store.
type event struct {
	at, lasts time.Duration
	what      what
	who       int
	rejoin    bool // a machine that left comes back with the same process
}

type what string

const (
	frozen   what = "frozen"  // its requests and answers stall
	killed   what = "killed"  // kill -9, started again later
	left     what = "left"    // its epoch ends in order, it comes back later
	drained  what = "drained" // it may not be coordinator
	cut      what = "cut off" // nothing gets out or in
	resigned what = "resigned"
	away     what = "away" // the store
)

const length = 60 * time.Second

// newPlan draws a schedule of faults.
func newPlan(d draw) plan {
	p := plan{seed: uint64(d("seed", 1<<30)), machines: 2 + d("machines", 3), faults: d("faults", 4) * 5}
	kinds := []what{frozen, frozen, frozen, killed, left, drained, cut, resigned, resigned, away}
	for range d("events", 14) {
		p.events = append(p.events, drawEvent(d, p.machines, kinds, 15*time.Second))
	}
	return p.sorted()
}

// newOrderlyPlan draws hand-overs only, on a network without faults.
func newOrderlyPlan(d draw) plan {
	p := plan{seed: uint64(d("seed", 1<<30)), machines: 2 + d("machines", 3)}
	for range 3 + d("events", 14) {
		p.events = append(p.events, drawEvent(d, p.machines, []what{left, drained, resigned}, 15*time.Second))
	}
	return p.sorted()
}

// newResignPlan draws resignations only, each when the last hand-over is long done.
func newResignPlan(d draw) plan {
	p := plan{seed: uint64(d("seed", 1<<30)), machines: 2 + d("machines", 3)}
	for round := 5 * time.Second; round < length; round += 10 * time.Second {
		at := round + time.Duration(d("at", 3000))*time.Millisecond
		for who := range p.machines { // all are asked, the coordinator does it
			p.events = append(p.events, event{at: at, what: resigned, who: who})
		}
	}
	return p.sorted()
}

func drawEvent(d draw, machines int, kinds []what, longest time.Duration) event {
	ms := func(what string, most time.Duration) time.Duration {
		return time.Duration(d(what, int(most/time.Millisecond))) * time.Millisecond
	}
	return event{
		at: ms("at", length), lasts: ms("lasts", longest), what: kinds[d("what", len(kinds))], who: d("who", machines),
		rejoin: d("rejoin", 2) == 1,
	}
}

func (p plan) sorted() plan {
	slices.SortStableFunc(p.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return p
}

func (p plan) orderly() bool     { return p.faults == 0 && p.only(left, drained, resigned) }
func (p plan) resignsOnly() bool { return p.faults == 0 && p.only(resigned) }

func (p plan) only(kinds ...what) bool {
	return !slices.ContainsFunc(p.events, func(e event) bool { return !slices.Contains(kinds, e.what) })
}

func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d machines, seed %d, %d%% faults\n", p.machines, p.seed, p.faults)
	for _, e := range p.events {
		fmt.Fprintf(&b, "  %s: n%d %s for %s\n", e.at, e.who, e.what, e.lasts)
	}
	return b.String()
}
