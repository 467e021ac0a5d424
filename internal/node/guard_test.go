package node

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// wants is what the gate would publish if nothing was published before and nothing is held without a pass.
func (g *Gate) wants() bool {
	_, wanted := g.NeedsGuard(false, false)
	return wanted
}

func newGuardedGate() *Gate {
	g := NewGate(func(string, string) {})
	g.NeedGuard()
	g.WithoutGuard("daemons")
	g.Open(1)
	return g
}

func TestAGateThatNeedsAGuardAdmitsOnlyWhileThereIsOne(t *testing.T) {
	g := newGuardedGate()
	if g.wants() {
		t.Error("a guard is wanted before there is work")
	}
	if _, err := g.Enter("daemons"); err != nil {
		t.Errorf("work that needs no guard: %v", err)
	}
	if needed, wanted := g.NeedsGuard(false, false); !needed || wanted {
		t.Errorf("needed %t, wanted %t for work that needs no guard", needed, wanted)
	}
	if _, err := g.Enter("volumes"); !errors.Is(err, ErrNoGuard) || !errors.Is(err, ErrRefused) {
		t.Errorf("without a guard: %v", err)
	}
	if !g.wants() {
		t.Error("no guard is wanted although work was refused")
	}
	g.SetGuarded(true, true)
	if _, err := g.Enter("volumes"); err != nil {
		t.Errorf("with a guard: %v", err)
	}
	for _, seen := range [][2]bool{{true, false}, {false, true}, {false, false}} {
		g.SetGuarded(seen[0], seen[1])
		if _, err := g.Enter("volumes"); !errors.Is(err, ErrNoGuard) || g.Count("volumes") != 1 {
			t.Errorf("asked for and running are %v: %v, %d inside", seen, err, g.Count("volumes"))
		}
	}
	g.SetGuarded(true, true)
	g.Close(1, RefusedDraining)
	if _, err := g.Enter("volumes"); !errors.Is(err, ErrRefused) || errors.Is(err, ErrNoGuard) {
		t.Errorf("draining: %v", err)
	}
	g.Open(2) // the next epoch has to see its guard first
	if _, err := g.Enter("volumes"); !errors.Is(err, ErrNoGuard) {
		t.Errorf("in the next epoch: %v", err)
	}
}

func TestAdoptedWorkWantsAGuard(t *testing.T) {
	g := newGuardedGate()
	g.Adopt("daemons")
	if g.wants() {
		t.Error("a daemon that is there already wants a guard")
	}
	g.Adopt("volumes")
	if !g.wants() {
		t.Error("work that is there already wants no guard")
	}
}

func TestFoundWorkWantsAGuardOnceItIsKnown(t *testing.T) {
	g := newGuardedGate()
	daemon, program, lost := g.Find("programs"), g.Find("programs"), g.Find("programs")
	if g.wants() || g.holdsAny(map[string]int64{"programs": 3}) {
		t.Error("work of which nothing is known wants a guard")
	}
	daemon.Become("daemons")
	lost.Leave()
	if g.wants() || g.Count("daemons") != 1 || g.Count("programs") != 1 {
		t.Errorf("a daemon wants a guard, or is not counted: %v", g.counts)
	}
	program.Become("programs")
	if !g.wants() || !g.holdsAny(nil) {
		t.Error("a program wants no guard")
	}
}

// released tries to give the guard up with what is held.
func (g *Gate) released(at time.Duration, held int64) {
	g.ReleaseGuard(time.Unix(1000, 0).Add(at), time.Minute, func() map[string]int64 { return map[string]int64{"data": held} })
}

func TestAGuardIsGivenUpWhenNothingHasNeededItForAWhile(t *testing.T) {
	g := newGuardedGate()
	_, _ = g.Enter("volumes")
	g.SetGuarded(true, true)
	pass, err := g.Enter("volumes")
	if err != nil {
		t.Fatal(err)
	}
	g.released(0, 0)
	g.released(time.Hour, 0)
	if !g.wants() {
		t.Fatal("the guard of a node with work is given up")
	}
	pass.Leave()
	g.released(time.Hour, 1)
	g.released(2*time.Hour, 1)
	if !g.wants() {
		t.Fatal("the guard of a node that holds data is given up")
	}
	g.released(2*time.Hour, 0)
	g.released(2*time.Hour+59*time.Second, 0)
	if !g.wants() {
		t.Fatal("the guard is given up at once")
	}
	g.released(2*time.Hour+time.Minute, 0)
	if g.wants() {
		t.Fatal("the guard is kept")
	}
	// The object still says that the guard runs: the coordinator may be about to remove it.
	for _, seen := range [][2]bool{{true, true}, {false, true}, {true, false}} {
		g.SetGuarded(seen[0], seen[1])
		if _, err := g.Enter("volumes"); !errors.Is(err, ErrNoGuard) || g.wants() {
			t.Errorf("asked for and running are %v: %v", seen, err)
		}
	}
	g.SetGuarded(false, false)
	g.released(2*time.Hour+time.Minute, 0)
	if !g.wants() {
		t.Error("work that came meanwhile is forgotten")
	}
	g.SetGuarded(true, true)
	if _, err := g.Enter("volumes"); err != nil {
		t.Errorf("with the next guard: %v", err)
	}
}

func TestAGuardIsNotGivenUpIfSomethingCameMeanwhile(t *testing.T) {
	g := newGuardedGate()
	_, _ = g.Enter("volumes")
	g.SetGuarded(true, true)
	calls := 0
	g.ReleaseGuard(time.Now(), 0, func() map[string]int64 {
		calls++
		return map[string]int64{"data": int64(calls - 1)}
	})
	if _, err := g.Enter("volumes"); calls != 2 || err != nil || !g.wants() {
		t.Errorf("%d counts; %v", calls, err)
	}
}

func TestAProcessThatStartsKeepsTheGuardOfTheOneBefore(t *testing.T) {
	g := newGuardedGate()
	if _, wanted := g.NeedsGuard(true, false); !wanted {
		t.Error("a request for a guard is taken back without the handshake")
	}
	if _, wanted := newGuardedGate().NeedsGuard(false, true); !wanted {
		t.Error("something that is held wants no guard")
	}
}

// The coordinator removes a guard only when the object says that it is neither wanted nor running. Whatever the order of writes and reads,
// nothing is inside then.
func TestNothingIsInsideWhileTheGuardIsRemoved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newGuardedGate()
		var object, shown [2]bool // asks, runs; shown is what the node's watch has delivered
		there := false            // the guard exists
		var inside []*Pass
		now := time.Unix(0, 0)
		rt.Repeat(map[string]func(*rapid.T){
			"enter": func(*rapid.T) {
				if p, err := g.Enter("k"); err == nil {
					inside = append(inside, p)
				}
			},
			"leave": func(*rapid.T) {
				if len(inside) > 0 {
					inside[0].Leave()
					inside = inside[1:]
				}
			},
			"publish": func(*rapid.T) {
				now = now.Add(time.Second)
				g.ReleaseGuard(now, 2*time.Second, func() map[string]int64 { return nil })
				_, object[0] = g.NeedsGuard(object[0], false)
			},
			"deliver": func(*rapid.T) {
				shown = object
				g.SetGuarded(shown[0], shown[1])
			},
			"deliver again": func(*rapid.T) { g.SetGuarded(shown[0], shown[1]) },
			"restart the process": func(*rapid.T) {
				if len(inside) == 0 {
					g = newGuardedGate()
					_, object[0] = g.NeedsGuard(object[0], false) // the first status comes before the watch
					shown = object
				}
			},
			"coordinate": func(*rapid.T) {
				switch {
				case object[0] && there:
					object[1] = true
				case object[0]:
					there = true
				case object[1]:
					object[1] = false
				default:
					there = false
				}
			},
			"": func(rt *rapid.T) {
				if !there && len(inside) > 0 {
					rt.Fatalf("%d pieces are inside, and there is no guard", len(inside))
				}
			},
		})
	})
}
