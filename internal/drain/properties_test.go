package drain_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

func TestNoCourseOfEventsBreaksTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Byte(), 300, 1500).Draw(t, "tape")
		if verdict := play(simtest.NewTape(bytes), broken{}).Verdict(); verdict != "" {
			t.Fatal(verdict)
		}
	})
}

// TestNoSeedBreaksTheRules also shows that the runs are worth something: what the rules are about did happen.
func TestNoSeedBreaksTheRules(t *testing.T) {
	census := simtest.Census{}
	for seed := range testlength.Seeds(120, 3000) {
		r := play(simtest.SeededTape(seed), broken{})
		if verdict := r.Verdict(); verdict != "" {
			t.Fatalf("seed %d: %s", seed, verdict)
		}
		census.Add(r.Counts())
	}
	census.Require(t, 1,
		"hold", "take-slot", "begin", "desire-draining", "progress", "stop", "desire-stopping", "complete", "fail", "release-slot", "refuse", "queue",
		"follow-slot", "follow", "remove-finalizer", "Drained", "NodeGone", "now Failed", "now Cancelled", "taken up",
		"began Draining", "began anew", "marked", "crashed", "left", "took work", "refused by the gate", "conflict", "survived alone", "forsaken", "died for good", "recreated", "cancel", "withdraw", "term over", "refused by the term",
		"cordon", "lift-cordon", "clear-cordon-owners", "park", "parked", "stayed parked", "cordoned true by a person", "cordoned false by a person",
	)
}

func TestATapePlaysTheSameWayTwice(t *testing.T) {
	for seed := range uint64(5) {
		one, two := play(simtest.SeededTape(seed), broken{}), play(simtest.SeededTape(seed), broken{})
		if !slices.Equal(one.Heard(), two.Heard()) {
			t.Fatalf("seed %d:\n%q\n%q", seed, one.Heard(), two.Heard())
		}
	}
}

// Each of these breaks one rule of the game on purpose, and the referee must see it: a property that nothing can break is
// none. Seeds are tried in order, so the same one is found every time.
func TestTheRefereeSeesABrokenRule(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken broken
		want   rule
	}{
		{"a node that acknowledges before it closes its gate", broken{ackFirst: true}, takesNothing},
		{"a node that acknowledges before it closes its gate, and is called empty", broken{ackFirst: true}, observedZero},
		{"a node that never closes its gate", broken{neverCloses: true}, takesNothing},
		{"a node that counts before it closes its gate", broken{countFirst: true}, observedZero},
		{"a node that goes back to Alive", broken{backToAlive: true}, forwardOnly},
		{"a node that obeys what another epoch was told to do", broken{anyEpoch: true}, observedZero},
		{"a node that obeys what another epoch was told, again and again", broken{anyEpoch: true}, comesToAnEnd},
		{"a coordinator that does not wait for the acknowledgement", broken{ackIgnored: true}, observedZero},
		{"a coordinator that counts objects only", broken{objectsOnly: true}, observedZero},
		{"a slot that is freed by a phase alone", broken{freedByPhase: true}, slotUntilOver},
		{"writes that ignore versions, and rewrite an end", broken{blind: true}, endsOnce},
		{"writes that ignore versions, and take the slot away", broken{blind: true}, slotUntilOver},
		{"a coordinator that does not look at the slot", broken{slotIgnored: true}, oneAtATime},
		{"a wish that is only remembered", broken{inMemory: true}, comesToAnEnd},
		{"a deadline that is called an end", broken{lateIsDone: true}, endsOnce},
		{"a node that joins although it is parked", broken{joinsParked: true}, staysParked},
		{"a drain that is complete before its dead node is parked", broken{parksLate: true}, staysParked},
		{"a coordinator that lifts the cordon of a person", broken{liftsAny: true}, personsCordon},
		{"a node that is alone and waits to be told that it drains", broken{lateSurvivor: true}, comesToAnEnd},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			simtest.RequireBreach(t, 400, func(seed uint64) map[rule]string { return play(simtest.SeededTape(seed), c.broken).Breaches() }, c.want)
		})
	}
}
