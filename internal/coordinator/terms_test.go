package coordinator

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

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
		if r := play(t, p, broken{}); len(r.breach) > 0 {
			rt.Fatalf("%v\n%v", p, r.breach)
		}
	})
}

// TestNoSeedBreaksTheRulesOfTerms also shows that the plays are worth something: what the rules are about did happen.
func TestNoSeedBreaksTheRulesOfTerms(t *testing.T) {
	counts := map[string]int{}
	for seed := range testlength.Seeds(60, 1000) {
		p := newPlan(seeded(seed))
		r := play(t, p, broken{})
		if len(r.breach) > 0 {
			t.Fatalf("seed %d: %v\n%v", seed, p, r.breach)
		}
		for what, n := range r.counts {
			counts[what] += n
		}
	}
	t.Log(counts)
	for _, what := range []string{"begun", "taken", "taken over", "released", "handed over", "refused", errNotHeld.Error(), errStillWorking.Error(), "conflict", "late arrival"} {
		if counts[what] == 0 {
			t.Errorf("%q never happened: %v", what, counts)
		}
	}
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
				if len(r.breach) > 0 {
					t.Fatalf("seed %d: %v\n%v", seed, p, r.breach)
				}
				begun += r.counts["begun"]
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
			found := map[rule]bool{}
			for seed := range uint64(200) {
				for which, text := range play(t, c.plan(seeded(seed)), c.broken).breach {
					if slices.Contains(c.want, which) && !found[which] {
						found[which] = true
						t.Logf("play %d: %s: %s", seed+1, which, text)
					}
				}
				if len(found) == len(c.want) {
					return
				}
			}
			t.Errorf("200 plays broke only %v", found)
		})
	}
}
