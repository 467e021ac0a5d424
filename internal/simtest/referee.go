package simtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Referee records the first breach of each rule, what happened how often, and what a person needs to follow a play.
type Referee[R ~string] struct {
	at func() string

	mu       sync.Mutex
	breaches map[R]string
	counts   map[string]int
	heard    []string
	broken   int // how much was heard up to the first breach
}

// NewReferee makes a referee. at returns the time of the play in words.
func NewReferee[R ~string](at func() string) *Referee[R] {
	return &Referee[R]{at: at, breaches: map[R]string{}, counts: map[string]int{}}
}

// Breach records that a rule is broken.
func (r *Referee[R]) Breach(which R, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.breaches[which]; known {
		return
	}
	text := fmt.Sprintf(format, args...)
	r.breaches[which] = "at " + r.at() + ": " + text
	r.heard = append(r.heard, fmt.Sprintf("%s BREACH %s: %s", r.at(), which, text))
	if r.broken == 0 {
		r.broken = len(r.heard)
	}
}

// Count counts that something happened: a play in which nothing does shows nothing.
func (r *Referee[R]) Count(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[what]++
}

// Hear adds a line to what a person reads.
func (r *Referee[R]) Hear(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = append(r.heard, r.at()+" "+fmt.Sprintf(format, args...))
}

// Broken returns whether a rule is broken.
func (r *Referee[R]) Broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.breaches) > 0
}

// Breaches returns the first breach of each rule.
func (r *Referee[R]) Breaches() map[R]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.breaches)
}

// Counted returns how often something happened.
func (r *Referee[R]) Counted(what string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[what]
}

// Counts returns how often everything happened.
func (r *Referee[R]) Counts() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}

// Heard returns all that was heard.
func (r *Referee[R]) Heard() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.heard)
}

// Verdict is empty if no rule is broken. Otherwise it has the breaches, and the lines that led to the first one.
func (r *Referee[R]) Verdict() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.breaches) == 0 {
		return ""
	}
	var lines []string
	for _, which := range slices.Sorted(maps.Keys(r.breaches)) {
		lines = append(lines, fmt.Sprintf("%s: %s", which, r.breaches[which]))
	}
	return strings.Join(append(lines, r.heard[max(0, r.broken-60):r.broken]...), "\n")
}

// Census adds up what happened in many plays.
type Census map[string]int

// Add adds the counts of one play.
func (c Census) Add(counts map[string]int) {
	for what, n := range counts {
		c[what] += n
	}
}

// Require fails the test unless each of these happened at least that often.
func (c Census) Require(t testing.TB, least int, whats ...string) {
	t.Helper()
	t.Logf("in all: %v", c)
	for _, what := range whats {
		if c[what] < least {
			t.Errorf("%q happened %d times, want at least %d", what, c[what], least)
		}
	}
}

// RequireBreach plays seeds in order until each of the rules was broken, and fails the test if one is not: a rule that nothing breaks
// checks nothing.
func RequireBreach[R ~string](t testing.TB, seeds uint64, play func(seed uint64) map[R]string, want ...R) {
	t.Helper()
	missing := slices.Clone(want)
	for seed := range seeds {
		breaches := play(seed)
		missing = slices.DeleteFunc(missing, func(which R) bool {
			text, broken := breaches[which]
			if broken {
				t.Logf("seed %d: %s: %s", seed, which, text)
			}
			return broken
		})
		if len(missing) == 0 {
			return
		}
	}
	t.Errorf("%d plays did not break %q", seeds, missing)
}
