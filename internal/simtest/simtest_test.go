package simtest

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

type rule string

func TestAVerdictHasTheFirstBreachOfEachRuleAndWhatLedToIt(t *testing.T) {
	now := "1s"
	r := NewReferee[rule](func() string { return now })
	r.Hear("%s begins", "n1")
	if got := r.Verdict(); got != "" {
		t.Errorf("nothing is broken, and the verdict is %q", got)
	}
	now = "2s"
	r.Breach("one works", "%d work", 2)
	r.Breach("one works", "%d work", 3)
	r.Hear("n1 ends")
	r.Breach("epochs grow", "3 became 2")
	const want = `epochs grow: at 2s: 3 became 2
one works: at 2s: 2 work
1s n1 begins
2s BREACH one works: 2 work`
	if got := r.Verdict(); got != want {
		t.Errorf("the verdict is\n%s\nwant\n%s", got, want)
	}
	if got := r.Breaches()["one works"]; got != "at 2s: 2 work" {
		t.Errorf("the breach is %q", got)
	}
	if got := len(r.Heard()); got != 4 {
		t.Errorf("%d lines were heard: %q", got, r.Heard())
	}
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	failed []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Errorf(f string, _ ...any) { r.failed = append(r.failed, f) }

func TestACensusMissesWhatNeverHappened(t *testing.T) {
	c, r := Census{}, NewReferee[rule](func() string { return "" })
	r.Count("died")
	r.Count("died")
	c.Add(r.Counts())
	c.Add(map[string]int{"died": 1, "moved": 1})
	for _, want := range []struct {
		least  int
		whats  []string
		misses int
	}{{3, []string{"died"}, 0}, {1, []string{"died", "moved"}, 0}, {2, []string{"died", "moved"}, 1}, {1, []string{"drained"}, 1}} {
		got := &recorder{TB: t}
		if c.Require(got, want.least, want.whats...); len(got.failed) != want.misses {
			t.Errorf("%q at least %d times: it misses %d, want %d", want.whats, want.least, len(got.failed), want.misses)
		}
	}
	if got := r.Counted("died"); got != 2 {
		t.Errorf("counted %d", got)
	}
}

func TestEveryRuleThatIsWantedMustBeBroken(t *testing.T) {
	play := func(seed uint64) map[rule]string {
		return map[uint64]map[rule]string{1: {"a": "x"}, 3: {"b": "y"}}[seed]
	}
	for _, c := range []struct {
		seeds uint64
		want  []rule
		found bool
	}{{2, []rule{"a"}, true}, {1, []rule{"a"}, false}, {4, []rule{"a", "b"}, true}, {3, []rule{"a", "b"}, false}, {4, []rule{"c"}, false}} {
		got := &recorder{TB: t}
		if RequireBreach(got, c.seeds, play, c.want...); (len(got.failed) == 0) != c.found {
			t.Errorf("%q in %d plays: failed %q", c.want, c.seeds, got.failed)
		}
	}
}

func TestATapeIsTheSameAfterItWasPrinted(t *testing.T) {
	for seed := range uint64(3) {
		tape := SeededTape(seed)
		if tape.String() != SeededTape(seed).String() {
			t.Errorf("seed %d has two tapes", seed)
		}
		t.Setenv(PlanVariable, tape.String())
		ReplayTape(t, func(again *Tape) string {
			for range tapeLength {
				if a, b := tape.Draw(7), again.Draw(7); a != b {
					t.Fatalf("drew %d and then %d", a, b)
				}
			}
			if !again.Ended() || again.Draw(7) != 0 {
				t.Error("it goes on after its end")
			}
			return ""
		})
	}
	if SeededTape(1).String() == SeededTape(2).String() {
		t.Error("two seeds have one tape")
	}
}

func TestThingsHappenAsOftenAsTheirWeights(t *testing.T) {
	var got []string
	thing := func(name string, weight int) Chance {
		return Chance{Weight: weight, Do: func() { got = append(got, name) }}
	}
	tape := NewTape([]byte{0, 1, 2, 3, 4, 5})
	for range 6 {
		tape.DoOne(thing("a", 2), thing("never", 0), thing("b", 3), thing("c", 1))
	}
	if text := strings.Join(got, " "); text != "a a b b b c" {
		t.Errorf("it happened %s", text)
	}
}

func TestAWriteIsFreshIfItWasMadeFromTheCurrentVersion(t *testing.T) {
	var r Revisions
	one := &corev1.ConfigMap{}
	one.UID = "1"
	r.Stamp(one)
	two := one.DeepCopy()
	if !Fresh(one, two, false) {
		t.Error("a copy of the current version is not fresh")
	}
	r.Stamp(one)
	if one.ResourceVersion != "2" || r.Last() != 2 || Fresh(one, two, false) || !Fresh(one, two, true) {
		t.Errorf("version %s, last %d: fresh %v, blindly %v", one.ResourceVersion, r.Last(), Fresh(one, two, false), Fresh(one, two, true))
	}
	if two.UID = "2"; Fresh(one, two, true) {
		t.Error("another object of the same name is fresh")
	}
}

func TestWhoeverIsBehindSeesEarlierVersions(t *testing.T) {
	v := Versions[string]{}
	if v.Newest("a") != "" {
		t.Error("there is something before anything was stored")
	}
	for _, text := range []string{"one", "two", "three"} {
		v.Add("a", text)
	}
	v.Add("b", "other")
	seen, asked := Seen{}, []int{}
	v.CatchUp(seen, func(n int) int { asked = append(asked, n); return n - 2 })
	if v.At("a", seen["a"]) != "one" || v.At("b", seen["b"]) != "other" || v.Newest("a") != "three" || !slices.Equal(asked, []int{4, 2}) {
		t.Errorf("seen %v after draws of %v", seen, asked)
	}
	v.CatchUp(seen, func(int) int { return 0 })
	if seen["a"] != 3 || len(asked) != 2 {
		t.Errorf("seen %v", seen)
	}
}
