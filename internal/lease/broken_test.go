package lease_test

import (
	"testing"

	"github.com/ebb-dev/ebb/internal/simtest"
)

// Each of these breaks one rule of the game on purpose, and the referee must see it: a property that nothing can break
// is none. Seeds are tried in order, so the same one is found every time.
func TestTheRefereeSeesABrokenRule(t *testing.T) {
	cases := []struct {
		name   string
		broken broken
		want   []rule
	}{
		{"a holder that counts from the answer", broken{deadlineFromAnswer: true}, []rule{deadFirst, noReturn}},
		{"a shim that is told how long, not until when", broken{relativeDeadline: true}, []rule{deadFirst, oneWorks}},
		{"a holder that works until Lost, while clocks drift", broken{worksUntilLost: true}, []rule{deadFirst}},
		{"a holder that never fences itself", broken{noFence: true}, []rule{deadFirst, oneWorks, noReturn}},
		{"a late answer that revives", broken{lateAnswer: true}, []rule{noReturn}},
		{"a rejoin in the same epoch", broken{reuse: true}, []rule{epochsGrow, noReturn, allWell}},
		{"a rejoin before the old work is dead", broken{earlyRejoin: true}, []rule{oneWorks}},
		{"a release before the work is dead", broken{earlyRelease: true}, []rule{oneWorks, deadFirst}},
		{"a take from a process that may live", broken{takeAtOnce: true}, []rule{deadFirst}},
		{"an observer that believes whatever duration it reads", broken{believesEdits: true}, []rule{deadFirst}},
		{"a mark that is written blindly", broken{blindMark: true}, []rule{epochsGrow}},
		{"a mark on a Lease that was not the one watched", broken{unwatchedMark: true}, []rule{deadFirst}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			simtest.RequireBreach(t, 400, func(seed uint64) map[rule]string { return play(newPlan(seeded(seed)), c.broken).Breaches() }, c.want...)
		})
	}
}

func TestAnOutageMarksNodesWhenARuleIsBroken(t *testing.T) {
	cases := map[string]broken{
		"an observer that believes its own renewals always succeed": {ownFailures: true},
		"an observer that was out and keeps its old count":          {keptDetector: true},
		"an observer that was frozen and sees no gap":               {unseenGap: true},
	}
	for name, b := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantFound(t, 100, func(seed uint64) bool {
				o := newOutage(seeded(seed))
				if breaches, _ := o.breaches(o.play(broken{})); len(breaches) > 0 {
					t.Fatalf("run %d, by the rules: %s", seed+1, breaches)
				}
				breaches, _ := o.breaches(o.play(b))
				if len(breaches) > 0 {
					t.Logf("run %d: %s", seed+1, breaches)
				}
				return len(breaches) > 0
			})
		})
	}
}

// wantFound wants all that is looked for to be found in the first runs.
func wantFound(t *testing.T, runs uint64, run func(seed uint64) bool) {
	t.Helper()
	for seed := range runs {
		if run(seed) {
			return
		}
	}
	t.Errorf("%d runs did not find it", runs)
}
