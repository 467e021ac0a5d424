package node

import (
	"errors"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func newTestGate() (*Gate, map[string]int) {
	refusals := map[string]int{}
	return NewGate(func(kind, reason string) { refusals[kind+"/"+reason]++ }), refusals
}

func TestGateStaysClosedUntilTheFirstEpoch(t *testing.T) {
	g, refusals := newTestGate()
	if _, err := g.Enter("programs"); !errors.Is(err, ErrRefused) {
		t.Fatalf("entered before the first epoch: %v", err)
	}
	if refusals["programs/Starting"] != 1 {
		t.Errorf("refusals: %v", refusals)
	}
	g.Open(1)
	p, err := g.Enter("programs")
	if err != nil {
		t.Fatal(err)
	}
	if got := g.Count("programs"); got != 1 {
		t.Errorf("count %d, want 1", got)
	}
	p.Leave()
	p.Leave()
	if got := g.Count("programs"); got != 0 {
		t.Errorf("count %d after leaving twice, want 0", got)
	}
}

func TestADrainingNodeRefusesNewWorkAndKeepsCountingTheOld(t *testing.T) {
	g, _ := newTestGate()
	g.Open(1)
	p, err := g.Enter("programs")
	if err != nil {
		t.Fatal(err)
	}
	g.Close(1, RefusedDraining)
	if _, err := g.Enter("programs"); err == nil || err.Error() != "programs: the node takes no new work: NodeDraining" {
		t.Errorf("refusal: %v", err)
	}
	if got := g.Count("programs"); got != 1 {
		t.Errorf("count %d, want 1", got)
	}
	g.Open(1)
	if g.Closed() != RefusedDraining {
		t.Error("the same epoch opened the gate again")
	}
	g.Open(2)
	if g.Closed() != "" {
		t.Error("the next epoch did not open the gate")
	}
	g.Close(1, RefusedInDoubt)
	if g.Closed() != "" {
		t.Error("an epoch that is over closed the gate of the next")
	}
	p.Leave()
}

// Once the gate is closed the count can only fall, whatever enters and leaves at the same time.
func TestACountTakenAfterClosingNeverGrows(t *testing.T) {
	g := NewGate(func(string, string) {})
	g.Open(1)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if p, err := g.Enter("programs"); err == nil {
					defer p.Leave()
				}
			}
		})
	}
	g.Close(1, RefusedDraining)
	last := g.Count("programs")
	for range 1000 {
		now := g.Count("programs")
		if now > last {
			t.Fatalf("count grew from %d to %d after the gate was closed", last, now)
		}
		last = now
	}
	wg.Wait()
	if got := g.Count("programs"); got != 0 {
		t.Errorf("count %d at the end", got)
	}
}

// The gate against a model: what it admits, what it counts, what reopens it.
func TestGateModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := NewGate(func(string, string) {})
		var inside []*Pass
		var epoch int64
		open := false
		rt.Repeat(map[string]func(*rapid.T){
			"enter": func(rt *rapid.T) {
				p, err := g.Enter("k")
				if (err == nil) != open {
					rt.Fatalf("entered: %v, but the gate is open: %v", err, open)
				}
				if err == nil {
					inside = append(inside, p)
				}
			},
			"leave": func(rt *rapid.T) {
				if len(inside) > 0 {
					inside[0].Leave()
					inside = inside[1:]
				}
			},
			"open": func(rt *rapid.T) {
				e := rapid.Int64Range(1, epoch+2).Draw(rt, "epoch")
				g.Open(e)
				if e > epoch {
					epoch, open = e, true
				}
			},
			"close": func(rt *rapid.T) {
				e := rapid.Int64Range(1, epoch+1).Draw(rt, "epoch")
				g.Close(e, RefusedStopping)
				if e >= epoch {
					epoch, open = e, false
				}
			},
			"": func(rt *rapid.T) {
				if got := g.Count("k"); got != len(inside) {
					rt.Fatalf("count %d, want %d", got, len(inside))
				}
			},
		})
	})
}
