package lease_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// outage is a run in which one thing goes wrong: the store is down for so long that everybody's renewals fail, and then
// every node stays cut off for a while of its own.
//
// An observer counts from its last failure at the earliest. That was at most one renewal before the first that
// succeeded, which was sent at most a timeout before the store came back: less than 2*Renew before the return. So for
// Lost - 2*Renew after the return nobody may be marked, and who has renewed (or rejoined) by then never is.
type outage struct {
	Seed    uint64
	Slow    bool
	Refuses bool
	From    time.Duration
	For     time.Duration
	Back    []time.Duration // how long after the store each slot comes back
}

func newOutage(d draw) outage {
	o := outage{Seed: uint64(d("seed", 1<<20)), Slow: d("slow", 2) == 1, Refuses: d("refuses", 2) == 1}
	o.From = 15*time.Second + time.Duration(d("from", 41))*50*time.Millisecond
	// Long enough for one renewal of everybody to fail, however slow; often so short that most live through it without a fence.
	o.For = timing.Renew + timing.Timeout/4 + beat + time.Duration(d("for", 21))*100*time.Millisecond*time.Duration(1+9*d("long", 2))
	for range places {
		behind := timing.Lost - timing.Fence + time.Duration(d("back", 51))*100*time.Millisecond
		o.Back = append(o.Back, behind*time.Duration(d("behind", 2)))
	}
	return o
}

// play returns what the outage alone has brought about, and how many nodes came back in time.
func (o outage) play(b broken) (breaches []string, inTime int) {
	w := newWorld(plan{Seed: o.Seed, Slow: o.Slow}, b)
	back := o.From + o.For
	w.at(o.From, func() {
		w.store.downUntil, w.store.refuses = back, o.Refuses
		for i, s := range w.slots {
			s.cutUntil = back + o.Back[i]
		}
	})
	w.run(back + 40*time.Second)
	w.referee.well()
	breaches = append(w.referee.verdict(), w.referee.unfailed(o.From, back)...)
	promised := back + timing.Lost - 2*timing.Renew
	for node := range nodes() {
		returned := w.referee.renewed(node, back, promised)
		if returned {
			inTime++
		}
		for _, m := range w.referee.marks {
			if m.node == node && m.at >= o.From && (m.at <= promised || returned) {
				breaches = append(breaches, fmt.Sprintf("%s was marked at %s, the store was back at %s, returned in time: %t", node, m.at, back, returned))
			}
		}
	}
	return breaches, inTime
}

// renewed says whether a process renewed or took a node's Lease, and knows it, in a span of time. A request of the past
// that arrives in it is not enough.
func (r *referee) renewed(node string, from, to time.Duration) bool {
	for _, m := range r.heard {
		if m.node == node && m.at >= from && m.at <= to {
			return true
		}
	}
	return false
}

// unfailed are the holders none of whose renewals failed in a span of time.
func (r *referee) unfailed(from, to time.Duration) (all []string) {
	for _, s := range r.w.slots {
		found := false
		for _, f := range r.fails {
			found = found || f.slot == s && f.at >= from && f.at <= to+timing.Timeout
		}
		if !found {
			all = append(all, fmt.Sprintf("no renewal of slot %d failed: this is not the scenario", s.index()))
		}
	}
	return all
}

func TestAnOutageAloneMarksNobody(t *testing.T) {
	inTime, late := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		o := rapid.Custom(func(t *rapid.T) outage { return newOutage(drawn(t)) }).Draw(t, "outage")
		breaches, n := o.play(broken{})
		if len(breaches) > 0 {
			t.Fatalf("%v", breaches)
		}
		inTime, late = inTime+n, late+3-n
	})
	if inTime == 0 || late == 0 {
		t.Errorf("%d nodes came back in time, %d did not: both must happen", inTime, late)
	}
}
