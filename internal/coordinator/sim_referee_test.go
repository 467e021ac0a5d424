package coordinator

import (
	"slices"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/simtest"
)

// rule is one thing that must never happen.
type rule string

const (
	oneWrites   rule = "once a term's write was accepted, no write of an earlier term is"
	ownRelease  rule = "the holder is cleared by its own identity only"
	stopFirst   rule = "the election is released after the term's work has returned"
	handOver    rule = "without faults a term's work begins after the last one's has returned"
	promptly    rule = "most clean hand-overs take less than 300 ms"
	another     rule = "after a resignation the next term is another node's"
	oneTerm     rule = "one process runs one term at a time"
	oneEmerges  rule = "when the faults are over one coordinator emerges and works"
	itStays     rule = "and it stays"
	knownWriter rule = "only a term that was begun writes"
)

// referee sees everything that happens in a play and knows the rules.
type referee struct {
	*simtest.Referee[rule]
	start   time.Time
	orderly bool // a play without faults
	resigns bool // an orderly play in which there is always somebody to hand over to

	mu      sync.Mutex
	freedAt time.Time // when the election was last released
	// handOvers are how long nobody worked after each release.
	handOvers []time.Duration
	leader    string              // the node whose term began last
	running   map[string]*process // work, by term
	begun     map[string]bool
	writer    string
	past      map[string]bool // terms that wrote before the writer did
	writes    map[string]int  // since the last sample
}

func newReferee(p plan) *referee {
	start := time.Now()
	return &referee{
		Referee: simtest.NewReferee[rule](func() string { return time.Since(start).String() }), start: start, orderly: p.orderly(), resigns: p.resignsOnly(),
		running: map[string]*process{}, begun: map[string]bool{}, past: map[string]bool{}, writes: map[string]int{},
	}
}

func (r *referee) locked(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// held sees who made whom the holder instead of whom.
func (r *referee) held(by, before, after string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case before == after:
		return
	case after != "":
		r.Count("taken")
		if before != "" && NodeOf(before) != NodeOf(after) {
			r.Count("taken over")
		}
		return
	case by != before:
		r.Breach(ownRelease, "%s cleared %s", by, before)
	case r.running[before] != nil:
		r.Breach(stopFirst, "%s was released and still works", before)
	}
	r.Count("released")
	r.freedAt = time.Now()
}

func (r *referee) begins(p *process, term string) {
	if p.isDead() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Count("begun")
	if r.resigns && !r.freedAt.IsZero() {
		r.handOvers = append(r.handOvers, time.Since(r.freedAt))
	}
	if r.resigns && r.leader == NodeOf(term) {
		r.Breach(another, "%s begins and %s had resigned", term, r.leader)
	}
	r.leader = NodeOf(term)
	for other, by := range r.running {
		if by == p {
			r.Breach(oneTerm, "%s begins and %s still works", term, other)
		}
		if r.orderly {
			r.Breach(handOver, "%s begins and %s still works", term, other)
		}
	}
	r.running[term], r.begun[term] = p, true
}

// judgeHandOvers looks at all hand-overs of a play. One alone may take longer: a candidate that is woken while it asks waits for its next turn.
func (r *referee) judgeHandOvers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.handOvers)
	if n := len(r.handOvers); n > 0 && r.handOvers[n/2] > 300*time.Millisecond {
		r.Breach(promptly, "half of them took more than %s", r.handOvers[n/2])
	}
}

func (r *referee) ends(p *process, term string) {
	r.locked(func() {
		if r.running[term] == p {
			delete(r.running, term)
		}
	})
}

// died: what a dead process was doing is over.
func (r *referee) died(p *process) {
	r.locked(func() {
		for term, by := range r.running {
			if by == p {
				delete(r.running, term)
			}
		}
	})
}

// wrote sees a write that the store accepted.
func (r *referee) wrote(term string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun[term] {
		r.Breach(knownWriter, "%s wrote", term)
	}
	if r.past[term] {
		r.Breach(oneWrites, "%s wrote after %s", term, r.writer)
	}
	if r.writer != term {
		r.past[r.writer] = true
		r.writer = term
	}
	r.writes[term]++
}

// sample is who wrote since the last one, and who works now.
func (r *referee) sample() (wrote map[string]int, works []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wrote, r.writes = r.writes, map[string]int{}
	for term := range r.running {
		works = append(works, term)
	}
	return wrote, works
}
