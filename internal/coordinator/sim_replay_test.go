package coordinator

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/internal/simtest"
)

// A play sends about two thousand requests and takes two minutes of virtual time.
var limits = simtest.Limits{Steps: 100_000, Virtual: 15 * time.Minute}

// inBubble runs a world in virtual time, under a bound.
func inBubble(t *testing.T, p plan, b broken, run func(*testing.T, *world)) {
	t.Helper()
	bound := simtest.Start("coordinator", p.encode(), limits)
	defer bound.End()
	synctest.Test(t, func(t *testing.T) {
		defer bound.BoundVirtual()()
		w := newWorld(p, b)
		w.bound = bound
		run(t, w)
	})
}

// savedPlan is a plan as text.
type savedPlan struct {
	Seed             uint64
	Machines, Faults int
	Events           []savedEvent
}

type savedEvent struct {
	At, Lasts time.Duration
	What      what
	Who       int
	Rejoin    bool `json:",omitempty"`
}

func (p plan) encode() string {
	saved := savedPlan{Seed: p.seed, Machines: p.machines, Faults: p.faults}
	for _, e := range p.events {
		saved.Events = append(saved.Events, savedEvent{e.at, e.lasts, e.what, e.who, e.rejoin})
	}
	data, err := json.Marshal(saved)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func decodePlan(t *testing.T, text string) plan {
	t.Helper()
	var saved savedPlan
	if err := json.Unmarshal([]byte(text), &saved); err != nil {
		t.Fatalf("%s is not a plan: %v", text, err)
	}
	p := plan{seed: saved.Seed, machines: saved.Machines, faults: saved.Faults}
	for _, e := range saved.Events {
		p.events = append(p.events, event{e.At, e.Lasts, e.What, e.Who, e.Rejoin})
	}
	return p
}

// TestReplay plays a plan again and again: the jitter of the electors, and the order of what happens in one instant, differ.
func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		p := decodePlan(t, text)
		for range 100 {
			if verdict := play(t, p, broken{}).Verdict(); verdict != "" {
				t.Fatalf("%v\n%s", p, verdict)
			}
		}
	})
}

func TestAPlanIsTheSameAfterItWasPrinted(t *testing.T) {
	for seed := range uint64(20) {
		p := newPlan(seeded(seed))
		if again := decodePlan(t, p.encode()); again.encode() != p.encode() || again.String() != p.String() {
			t.Errorf("%v\nbecame %v", p, again)
		}
	}
}

// newCrowdedPlan draws events that begin and end at the same few instants, on few machines.
func newCrowdedPlan(d draw) plan {
	p := plan{seed: uint64(d("seed", 1<<30)), machines: 2}
	kinds := []what{frozen, killed, left, left, drained, resigned}
	for range 10 + d("events", 20) {
		e := drawEvent(d, p.machines, kinds, 15*time.Second)
		e.at, e.lasts = e.at.Truncate(10*time.Second), e.lasts.Truncate(10*time.Second)
		p.events = append(p.events, e)
	}
	return p.sorted()
}

// What is done to a machine and what is undone in the same instant happen one after the other: else a process would enter an
// epoch that nobody ends, and lead for ever.
func TestEventsOfTheSameInstantDoNotMix(t *testing.T) {
	for seed := range uint64(100) {
		p := newCrowdedPlan(seeded(seed))
		if verdict := play(t, p, broken{}).Verdict(); verdict != "" {
			t.Fatalf("seed %d: %v\n%s", seed, p, verdict)
		}
	}
}
