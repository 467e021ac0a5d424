package lease_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// plans draws plans with rapid, which shrinks one that fails.
var plans = rapid.Custom(func(t *rapid.T) plan { return newPlan(drawn(t)) })

func drawn(t *rapid.T) draw {
	return func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }
}

func TestNoScheduleBreaksTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if verdict := play(plans.Draw(t, "plan"), broken{}).Verdict(); verdict != "" {
			t.Fatal(verdict)
		}
	})
}

// seeded draws evenly, where rapid prefers small numbers, and always the same.
func seeded(seed uint64) draw {
	r := rand.New(rand.NewPCG(seed, 1))
	return func(_ string, n int) int { return r.IntN(n) }
}

// TestNoSeedBreaksTheRules also shows that the runs are worth something: what the rules are about did happen.
func TestNoSeedBreaksTheRules(t *testing.T) {
	census := simtest.Census{}
	for seed := range testlength.Seeds(60, 3000) {
		p := newPlan(seeded(seed))
		r := play(p, broken{})
		if verdict := r.Verdict(); verdict != "" {
			t.Fatalf("seed %d: %v\n%s", seed, p, verdict)
		}
		census.Add(r.Counts())
	}
	census.Require(t, 1, "taken", "taken over", "epoch ended", "held by another", "late answer", "conflict", "nominated", "changed since", "marked", "re-attached", "edited")
}

func TestAPlanPlaysTheSameWayTwice(t *testing.T) {
	for seed := range uint64(5) {
		p := newPlan(seeded(seed))
		one, two := play(p, broken{}), play(p, broken{})
		if !reflect.DeepEqual(one.renewals, two.renewals) || !reflect.DeepEqual(one.Counts(), two.Counts()) {
			t.Fatalf("seed %d: %v\n%v\n%v", seed, p, one.Counts(), two.Counts())
		}
	}
}
