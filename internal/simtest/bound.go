// Package simtest is what the simulations of Ebb's parts share: a referee, versions of objects with compare-and-swap, chance that can be
// played again, and a bound, so that a play that does not end fails and says which
// one it was, and a way to play that one again.
package simtest

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// PlanVariable names the plan that a package's test of replays plays.
const PlanVariable = "EBB_SIM_PLAN"

// ReplayTest is the name of the test, in every package with a simulation, that plays the plan of PlanVariable.
const ReplayTest = "TestReplay"

// Limits of one play.
type Limits struct {
	// Steps is how many steps it may take. It bounds the memory of a play too, since what a play remembers grows by steps.
	// Choose it far above what the longest play takes.
	Steps int64
	// Virtual is how much virtual time may pass, in a play in a bubble of testing/synctest. Zero is without end.
	Virtual time.Duration
	// Wall is how much real time may pass; zero is DefaultWall. It catches a play that goes round without a step.
	Wall time.Duration
}

// DefaultWall is far above what any play takes on a busy machine, and below the timeout of a test run.
const DefaultWall = 5 * time.Minute

// Play is one play under a bound.
type Play struct {
	pkg, plan string
	limits    Limits
	steps     atomic.Int64
	watchdog  *time.Timer
	fail      func(message string)
}

// Start begins a play of a package (its directory under internal/) by a plan, in the words that replay it. The caller calls
// End. In a bubble of testing/synctest both are called outside it.
//
// A play that exceeds its limits panics: its goroutines cannot be ended, and rapid takes a panic for the failure that it is.
func Start(pkg, plan string, limits Limits) *Play {
	return start(pkg, plan, limits, func(message string) { panic(message) })
}

func start(pkg, plan string, limits Limits, fail func(string)) *Play {
	if limits.Wall == 0 {
		limits.Wall = DefaultWall
	}
	p := &Play{pkg: pkg, plan: plan, limits: limits, fail: fail}
	p.watchdog = time.AfterFunc(limits.Wall, func() { p.exceed(fmt.Sprintf("%s of real time", limits.Wall)) })
	return p
}

// End ends the bound: the play has ended by itself.
func (p *Play) End() { p.watchdog.Stop() }

// Step counts one step. It may be called by any goroutine.
func (p *Play) Step() {
	if n := p.steps.Add(1); n == p.limits.Steps+1 {
		p.exceed(fmt.Sprintf("%d steps", p.limits.Steps))
	}
}

// Steps is how many steps the play has taken.
func (p *Play) Steps() int64 { return p.steps.Load() }

// BoundVirtual bounds the virtual time of the bubble that calls it, until stop is called.
func (p *Play) BoundVirtual() (stop func()) {
	timer := time.AfterFunc(p.limits.Virtual, func() { p.exceed(fmt.Sprintf("%s of virtual time", p.limits.Virtual)) })
	return func() { timer.Stop() }
}

func (p *Play) exceed(what string) {
	p.fail(fmt.Sprintf("the play did not end within %s (%d steps taken); to play it again:\n%s='%s' go test -race -count=1 -run '^%s$' ./internal/%s",
		what, p.steps.Load(), PlanVariable, p.plan, ReplayTest, p.pkg))
}

// Replay plays the plan of the environment, and skips the test if there is none.
func Replay(t *testing.T, play func(t *testing.T, plan string)) {
	t.Helper()
	plan := os.Getenv(PlanVariable)
	if plan == "" {
		t.Skipf("set %s to the plan that a failed play printed", PlanVariable)
	}
	play(t, plan)
}
