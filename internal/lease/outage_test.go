package lease_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/simtest"
)

// outage is a run in which one thing goes wrong: the store is down for so long that everybody's renewals fail, and then
// every node stays cut off for a while of its own. Some are frozen for most of the outage, so that none of theirs fails.
//
// An observer counts from its last failure at the earliest. That was at most one renewal before the first that
// succeeded, which was sent at most a timeout before the store came back: less than 2*Renew before the return. One that
// was frozen counts from that first renewal. So for Lost - 2*Renew after the return nobody may be marked, and who has
// renewed (or rejoined) by then never is.
//
// A frozen observer cannot notice every outage: see unnoticed.
type outage struct {
	Seed    uint64
	Slow    bool
	Refuses bool
	From    time.Duration
	For     time.Duration
	Back    []time.Duration // how long after the store each slot comes back
	Freeze  []span          // when each slot's process is frozen
}

// span of true time; empty for never.
type span struct{ From, To time.Duration }

func (s span) empty() bool { return s.From == s.To }

func newOutage(d draw) outage {
	o := outage{Seed: uint64(d("seed", 1<<20)), Slow: d("slow", 2) == 1, Refuses: d("refuses", 2) == 1}
	o.From = 15*time.Second + time.Duration(d("from", 41))*50*time.Millisecond
	o.For = newOutageLength(d)
	for range places {
		behind := timing.Lost - timing.Fence + time.Duration(d("back", 51))*100*time.Millisecond
		o.Back = append(o.Back, behind*time.Duration(d("behind", 2)))
		o.Freeze = append(o.Freeze, o.newFreeze(d))
	}
	return o
}

// newOutageLength is long enough for one renewal of everybody to fail, however slow; often so short that most live
// through it without a fence, and often so that who is frozen must notice it and may still live through it.
func newOutageLength(d draw) time.Duration {
	shortest := timing.Renew + timing.Timeout/4 + beat
	switch d("length", 3) {
	case 0:
		return shortest + time.Duration(d("short", 21))*100*time.Millisecond
	case 1:
		return timing.Renew + 2*timing.Timeout + time.Duration(1+d("noticed", 8))*100*time.Millisecond
	default:
		return shortest + time.Duration(d("long", 21))*time.Second
	}
}

// newFreeze is none, or from the first second of the outage until about its end.
func (o outage) newFreeze(d draw) span {
	if d("frozen", 2) == 0 {
		return span{}
	}
	from := o.From + time.Duration(d("asleep", 21))*50*time.Millisecond
	return span{from, o.back() + time.Duration(d("awake", 21)-10)*50*time.Millisecond}
}

func (o outage) back() time.Duration { return o.From + o.For }

// unnoticed reports whether a frozen observer may miss the outage: two of its own renewals that succeeded, around it, may be
// Renew+Timeout apart and leave no gap, and the store may be back only a timeout after the second was sent.
func (o outage) unnoticed() bool {
	frozen := slices.ContainsFunc(o.Freeze, func(s span) bool { return !s.empty() })
	return frozen && o.For <= timing.Renew+2*timing.Timeout
}

// promised is until when nobody may be marked. An observer that did not notice the outage counts from the last write
// before it: the longest time between two writes of a healthy node, however slow, before it began.
func (o outage) promised() time.Duration {
	promised := o.back() + timing.Lost - 2*timing.Renew
	if o.unnoticed() {
		return min(promised, o.From+timing.Lost-(timing.Renew+timing.Timeout/4+beat))
	}
	return promised
}

func (o outage) play(b broken) *referee {
	w := newWorld(plan{Seed: o.Seed, Slow: o.Slow}, b)
	w.bound = simtest.Start("lease", encode(replayed{Outage: &o}), limits)
	defer w.bound.End()
	w.at(o.From, func() {
		w.store.downUntil, w.store.refuses = o.back(), o.Refuses
		for i, s := range w.slots {
			s.cutUntil = o.back() + o.Back[i]
		}
	})
	for i, f := range o.Freeze {
		if !f.empty() {
			w.at(f.From, func() { w.slots[i].process.freeze(f.To - f.From) })
		}
	}
	w.run(o.back() + 40*time.Second)
	w.referee.well()
	return w.referee
}

// breaches are what the outage alone has brought about, and how many nodes came back in time.
func (o outage) breaches(r *referee) (breaches []string, inTime int) {
	breaches = append(slices.Sorted(maps.Values(r.Breaches())), o.unfailed(r)...)
	promised := o.promised()
	for node := range nodes() {
		returned := r.renewed(node, o.back(), promised)
		if returned {
			inTime++
		}
		for _, m := range r.marks {
			if m.node == node && m.at >= o.From && (m.at <= promised || returned) {
				breaches = append(breaches, fmt.Sprintf("%s was marked at %s, the store was back at %s, returned in time: %t", node, m.at, o.back(), returned))
			}
		}
	}
	return breaches, inTime
}

// renewed reports whether a process renewed or took a node's Lease, and knows it, in a span of time. A request of the past
// that arrives in it is not enough.
func (r *referee) renewed(node string, from, to time.Duration) bool {
	for _, m := range r.renewals {
		if m.node == node && m.at >= from && m.at <= to {
			return true
		}
	}
	return false
}

// unfailed are the slots none of whose renewals failed in the outage, though they were not frozen.
func (o outage) unfailed(r *referee) (all []string) {
	for i, s := range r.w.slots {
		if o.Freeze[i].empty() && !o.failed(r, s) {
			all = append(all, fmt.Sprintf("no renewal of slot %d failed: this is not the scenario", s.index()))
		}
	}
	return all
}

// failed reports whether a renewal of a slot failed in the outage.
func (o outage) failed(r *referee, s *slot) bool {
	return slices.ContainsFunc(r.fails, func(f failure) bool {
		return f.slot == s && f.at >= o.From && f.at <= o.back()+timing.Timeout
	})
}

func TestAnOutageAloneMarksNobody(t *testing.T) {
	inTime, late := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		o := rapid.Custom(func(t *rapid.T) outage { return newOutage(drawn(t)) }).Draw(t, "outage")
		breaches, n := o.breaches(o.play(broken{}))
		if len(breaches) > 0 {
			t.Fatalf("%v", breaches)
		}
		inTime, late = inTime+n, late+3-n
	})
	if inTime == 0 || late == 0 {
		t.Errorf("%d nodes came back in time, %d did not: both must happen", inTime, late)
	}
}
