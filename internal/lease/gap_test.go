package lease_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

// overdue is the longest time between two successful renewals of our own in which nothing can have gone unseen.
const overdue = 3500 * time.Millisecond

func TestNobodyIsLostWhileOurOwnRenewalsAreOverdue(t *testing.T) {
	d := detector(seen("b", "1"))
	renewing(d, at(0), at(8))
	wantLost(t, d, at(8).Add(overdue), "b")
	wantLost(t, d, at(8).Add(overdue)+1)
	wantLost(t, d, at(3600))
}

func TestALossDetectorThatNeverRenewedIsOverdueSinceItBegan(t *testing.T) {
	short, own := seen("b", "1"), timing
	short.Duration, own.Lost = time.Second, time.Second
	d := lease.NewLossDetector(own, at(0))
	d.Saw(short, at(0))
	wantLost(t, d, at(0).Add(overdue), "b")
	wantLost(t, d, at(0).Add(overdue)+1)
}

func TestAGapBetweenOurOwnRenewalsRestartsEveryCount(t *testing.T) {
	cases := []struct {
		name  string
		gap   time.Duration // after the renewal at 4
		since lease.Instant // when the counts begin that began at 0 and at 5
		later lease.Instant
	}{
		{"as long as a renewal may take", overdue, at(0), at(5)},
		{"just longer", overdue + 1, at(7.5) + 1, at(7.5) + 1},
		{"much longer", time.Hour, at(3604), at(3604)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := detector(seen("b", "1"), seen("c", "1"))
			renewing(d, at(0), at(4))
			d.Saw(seen("c", "2"), at(5))
			after := at(4).Add(c.gap)
			d.Renewed(after)
			for node, since := range map[string]lease.Instant{"b": c.since, "c": c.later} {
				if age, ok := d.Unchanged(node, after); !ok || age != after.Sub(since) {
					t.Errorf("%s: unchanged for %s, %t, want %s", node, age, ok, after.Sub(since))
				}
			}
			renewing(d, after, c.later.Add(timing.Lost))
			wantLost(t, d, c.since.Add(timing.Lost)-1)
			wantLost(t, d, c.later.Add(timing.Lost), "b", "c")
		})
	}
}

func TestAGapIsCountedOnce(t *testing.T) {
	d := detector(seen("b", "1"))
	renewing(d, at(60), at(69))
	wantLost(t, d, at(70)-1)
	wantLost(t, d, at(70), "b")
}

func TestANewLossDetectorHasNoGapBehindIt(t *testing.T) {
	d := lease.NewLossDetector(timing, at(100))
	d.Saw(seen("b", "1"), at(100))
	renewing(d, at(102), at(109))
	wantLost(t, d, at(110), "b")
}

// frozenThrough is the outage that nothing but a gap can show: the observer a renews at zero, is frozen from 0.1 s on
// and goes on at 5.8 s, still within its epoch. The store is down all that time and nobody sees a renewal of a's fail.
// The last write of b is as old as it can be, from -1.9 s, and it is cut off until 9 s: past -1.9 s + Lost.
func frozenThrough(seed uint64, refuses bool) outage {
	return outage{
		Seed: seed, Refuses: refuses, From: zero + 100*time.Millisecond, For: 5700 * time.Millisecond,
		Back:   []time.Duration{0, 3200 * time.Millisecond, 0, 0},
		Freeze: []span{{zero + 100*time.Millisecond, zero + 5800*time.Millisecond}, {}, {}, {}},
	}
}

// zero is a moment at which a renews: it does every 2 s of true time, and b 0.1 s later.
const zero = 20 * time.Second

func TestAnObserverFrozenThroughAnOutageMarksNobody(t *testing.T) {
	for seed := range uint64(10) {
		for _, refuses := range []bool{true, false} {
			t.Run(fmt.Sprintf("seed %d, refuses %t", seed, refuses), func(t *testing.T) {
				o := frozenThrough(seed, refuses)
				r := o.play(broken{})
				wantFrozenThrough(t, r)
				if breaches, _ := o.breaches(r); len(breaches) > 0 || len(r.marks) > 0 {
					t.Errorf("%v, marks %v", breaches, r.marks)
				}
				// The same schedule is deadly to b if the gap goes unseen.
				if breaches, _ := o.breaches(o.play(broken{unseenGap: true})); len(breaches) == 0 {
					t.Error("an observer that sees no gap marks nobody either")
				}
			})
		}
	}
}

// wantFrozenThrough checks that the schedule is the one that was meant.
func wantFrozenThrough(t *testing.T, r *referee) {
	t.Helper()
	for _, f := range r.fails {
		if f.slot == r.w.slots[0] {
			t.Errorf("a renewal of a failed at %s", f.at)
		}
	}
	wantHeard(t, r, "a", -2*time.Second, 0, 5800*time.Millisecond, 7800*time.Millisecond)
	wantHeard(t, r, "b", -1900*time.Millisecond)
	if !r.renewed("b", zero+9*time.Second, zero+12*time.Second) {
		t.Error("b did not come back")
	}
}

// wantHeard checks when the renewals of a node were sent that it knows of, from -2 s to 9 s. An answer takes less than
// 0.1 s.
func wantHeard(t *testing.T, r *referee, node string, want ...time.Duration) {
	t.Helper()
	var got []time.Duration
	for _, m := range r.renewals {
		if m.node == node && m.at >= zero-2*time.Second && m.at < zero+9*time.Second {
			got = append(got, m.at.Truncate(100*time.Millisecond)-zero)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s renewed at %v, want %v", node, got, want)
	}
}

func TestAGapNeverMovesACountBack(t *testing.T) {
	d := detector(seen("b", "1"))
	d.Saw(seen("b", "2"), at(12)) // while the renewal sent at 10 is under way
	d.Renewed(at(10))
	renewing(d, at(12), at(21))
	wantLost(t, d, at(22)-1)
	wantLost(t, d, at(22), "b")
}

func TestAFailureNeverMovesACountBack(t *testing.T) {
	d := detector(seen("b", "1"))
	d.Saw(seen("b", "2"), at(3))
	d.Failed(at(2)) // as read by a slower goroutine
	renewing(d, at(0), at(12))
	wantLost(t, d, at(13)-1)
	wantLost(t, d, at(13), "b")
}
