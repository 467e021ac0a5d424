package simtest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// failures collects what a bound says instead of ending the process.
type failures struct {
	mu   sync.Mutex
	said []string
	come chan struct{}
}

func newFailures() *failures { return &failures{come: make(chan struct{}, 1)} }

func (f *failures) fail(message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.said = append(f.said, message)
	select {
	case f.come <- struct{}{}:
	default:
	}
}

func message(within string, steps int) string {
	return fmt.Sprintf("the play did not end within %s (%d steps taken); to play it again:\n"+
		"EBB_SIM_PLAN='seed 7' go test -race -count=1 -run '^TestReplay$' ./internal/lease", within, steps)
}

func TestAPlayWithTooManyStepsSaysOnceWhichOneItWas(t *testing.T) {
	f := newFailures()
	p := start("lease", "seed 7", Limits{Steps: 3}, f.fail)
	defer p.End()
	for range 3 {
		p.Step()
	}
	if len(f.said) > 0 {
		t.Fatalf("after as many steps as it may take: %q", f.said)
	}
	p.Step()
	p.Step()
	if want := message("3 steps", 4); len(f.said) != 1 || f.said[0] != want {
		t.Errorf("got %q\nwant once %q", f.said, want)
	}
}

func TestAPlayThatGoesRoundWithoutAStepIsEndedByTheClock(t *testing.T) {
	f := newFailures()
	p := start("lease", "seed 7", Limits{Steps: 3, Wall: time.Millisecond}, f.fail)
	defer p.End()
	<-f.come
	if want := message("1ms of real time", 0); f.said[0] != want {
		t.Errorf("got %q\nwant %q", f.said[0], want)
	}
}

func TestAPlayThatLetsVirtualTimePassForEverIsEnded(t *testing.T) {
	f := newFailures()
	p := start("lease", "seed 7", Limits{Virtual: time.Hour}, f.fail)
	defer p.End()
	synctest.Test(t, func(*testing.T) {
		defer p.BoundVirtual()()
		for len(f.come) == 0 { // a process that leads on and on
			time.Sleep(2 * time.Second)
		}
	})
	if want := message("1h0m0s of virtual time", 0); f.said[0] != want {
		t.Errorf("got %q\nwant %q", f.said[0], want)
	}
}

func TestAPlayThatEndedIsNotHeardOfAgain(t *testing.T) {
	f := newFailures()
	synctest.Test(t, func(*testing.T) {
		p := start("lease", "seed 7", Limits{Steps: 1, Virtual: time.Minute, Wall: time.Minute}, f.fail)
		p.BoundVirtual()()
		p.Step()
		p.End()
		time.Sleep(time.Hour)
		synctest.Wait()
	})
	if len(f.said) > 0 {
		t.Errorf("%q", f.said)
	}
}

func TestABoundPanics(t *testing.T) {
	defer func() {
		if text, ok := recover().(string); !ok || !strings.Contains(text, "to play it again:") {
			t.Errorf("recovered %q", text)
		}
	}()
	p := Start("lease", "seed 7", Limits{})
	defer p.End()
	p.Step()
	t.Error("no panic")
}
