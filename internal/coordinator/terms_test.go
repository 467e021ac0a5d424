package coordinator

import (
	"math/rand/v2"
	"os"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

func TestMain(m *testing.M) {
	testenv.Quiet()
	os.Exit(m.Run())
}

func drawn(t *rapid.T) draw {
	return func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }
}

// seeded draws evenly, where rapid prefers small numbers, and always the same.
func seeded(seed uint64) draw {
	r := rand.New(rand.NewPCG(seed, 1))
	return func(_ string, n int) int { return r.IntN(n) }
}

func TestNoScheduleBreaksTheRulesOfTerms(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlan(drawn(rt))
		if verdict := play(t, p, broken{}).Verdict(); verdict != "" {
			rt.Fatalf("%v\n%s", p, verdict)
		}
	})
}

// TestNoSeedBreaksTheRulesOfTerms also shows that the plays are worth something: what the rules are about did happen.
func TestNoSeedBreaksTheRulesOfTerms(t *testing.T) {
	census := simtest.Census{}
	for seed := range testlength.Seeds(60, 1000) {
		p := newPlan(seeded(seed))
		r := play(t, p, broken{})
		if verdict := r.Verdict(); verdict != "" {
			t.Fatalf("seed %d: %v\n%s", seed, p, verdict)
		}
		census.Add(r.Counts())
	}
	census.Require(t, 1, "begun", "taken", "taken over", "released", "handed over", "refused", errNotHeld.Error(), errStillWorking.Error(), "conflict", "late arrival")
}

func TestHandOversWithoutFaults(t *testing.T) {
	for name, plan := range map[string]func(draw) plan{
		"never overlap, whether nodes leave, drain or resign": newOrderlyPlan,
		"are prompt while nodes only resign":                  newResignPlan,
	} {
		t.Run(name, func(t *testing.T) {
			begun := 0
			for seed := range uint64(30) {
				p := plan(seeded(seed))
				r := play(t, p, broken{})
				if verdict := r.Verdict(); verdict != "" {
					t.Fatalf("seed %d: %v\n%s", seed, p, verdict)
				}
				begun += r.Counted("begun")
			}
			if begun < 90 {
				t.Errorf("only %d terms began in 30 plays", begun)
			}
		})
	}
}

// Each of these breaks one rule on purpose, and the referee must see it: a property that nothing can break is none.
func TestTheRefereeSeesABrokenTerm(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken broken
		plan   func(draw) plan
		want   []rule
	}{
		{"client-go's lock as it is", broken{plainLock: true}, newPlan, []rule{ownRelease, stopFirst}},
		{"a lock that lets an elector release when it gives up", broken{selfRelease: true}, newPlan, []rule{stopFirst}},
		{"a store that takes the writes of any term", broken{noTermCheck: true}, newPlan, []rule{oneWrites}},
		{"an election released before the work has stopped", broken{earlyReturn: true}, newPlan, []rule{stopFirst, oneTerm}},
		{"a hand-over before the work has stopped", broken{earlyReturn: true}, newOrderlyPlan, []rule{stopFirst, handOver}},
		{"a release that nobody hears of", broken{noWatch: true}, newResignPlan, []rule{promptly}},
		{"a resigner that does not sit out", broken{noSitOut: true}, newResignPlan, []rule{another}},
		{"work that does not stop", broken{neverStops: true}, newPlan, []rule{oneEmerges, itStays}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			simtest.RequireBreach(t, 200, func(seed uint64) map[rule]string { return play(t, c.plan(seeded(seed)), c.broken).Breaches() }, c.want...)
		})
	}
}
