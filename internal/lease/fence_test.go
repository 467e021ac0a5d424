package lease_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/ebb-dev/ebb/internal/lease"
)

func TestFencingClearsTheHolderAndMarksTheEpoch(t *testing.T) {
	current := leaseOf("n1").held("p1", 7).fenced(5).renewedAt(wall).Lease
	next, err := lease.Fence(current, read(t, current))
	if err != nil {
		t.Fatal(err)
	}
	want := current.DeepCopy()
	want.Spec.HolderIdentity = nil
	want.Annotations[lease.FencedAnnotation] = "7"
	if !reflect.DeepEqual(next, want) {
		t.Errorf("got  %+v\nwant %+v", next, want)
	}
	if r := read(t, next); !r.Over(7) || r.Held() {
		t.Errorf("fenced, but %+v", r)
	}
}

func TestAMarkNeverDecreases(t *testing.T) {
	for _, c := range []struct{ fenced, want int64 }{{0, 7}, {6, 7}, {7, 7}, {8, 8}, {9, 9}} {
		current := leaseOf("n1").held("p1", 7).fenced(c.fenced).Lease
		next, err := lease.Fence(current, read(t, current))
		if err != nil {
			t.Fatal(err)
		}
		if r := read(t, next); r.Fenced != c.want || r.Epoch != 7 || r.Held() {
			t.Errorf("epoch 7 marked over %d: %+v, want %d", c.fenced, r, c.want)
		}
	}
}

func TestTheFirstMarkNeedsNoAnnotations(t *testing.T) {
	current := leaseOf("n1").held("p1", 7).Lease
	current.Annotations = nil // a Lease that was never taken by a claimant of ours
	next, err := lease.Fence(current, read(t, current))
	if err != nil || next.Annotations[lease.FencedAnnotation] != "0" {
		t.Errorf("%v, %v", next, err)
	}
}

func TestALeaseThatChangedIsNotFenced(t *testing.T) {
	watched := read(t, leaseOf("n1").held("p1", 7).Lease)
	newer := leaseOf("n1").held("p1", 7)
	newer.ResourceVersion = "42"
	cases := map[string]object{
		"renewed":          newer,
		"taken by another": leaseOf("n1").held("p2", 7),
		"another epoch":    leaseOf("n1").held("p1", 8),
		"another duration": leaseOf("n1").held("p1", 7).duration(11),
		"another mark":     leaseOf("n1").held("p1", 7).fenced(1),
		"another node":     leaseOf("n2").held("p1", 7),
		"released":         leaseOf("n1").released(7),
	}
	for name, current := range cases {
		t.Run(name, func(t *testing.T) {
			wantChanged(t, current, watched)
		})
	}
}

func TestALeaseThatNobodyHoldsIsNotFenced(t *testing.T) {
	for _, current := range []object{leaseOf("n1"), leaseOf("n1").released(7), leaseOf("n1").released(7).fenced(7)} {
		wantChanged(t, current, read(t, current.Lease))
	}
}

func wantChanged(t *testing.T, current object, watched lease.Record) {
	t.Helper()
	next, err := lease.Fence(current.Lease, watched)
	if next != nil || !errors.Is(err, lease.ErrChanged) {
		t.Errorf("fenced: %v, %v", next, err)
	}
	if want := "node n1: the lease has changed since it was read"; message(err) != want {
		t.Errorf("got  %q\nwant %q", message(err), want)
	}
}

// steps are all that may be done to a Lease held by p1 in epoch 7.
var steps = map[string]func(*coordinationv1.Lease, time.Time) (*coordinationv1.Lease, error){
	"take": func(l *coordinationv1.Lease, wall time.Time) (*coordinationv1.Lease, error) {
		next, _, err := lease.Take(l, claimant("p2", "p1"), timing, wall)
		return next, err
	},
	"take a held one": func(l *coordinationv1.Lease, wall time.Time) (*coordinationv1.Lease, error) {
		next, _, err := lease.Take(l, claimant("p2"), timing, wall)
		return next, err
	},
	"renew": func(l *coordinationv1.Lease, wall time.Time) (*coordinationv1.Lease, error) {
		return lease.Renew(l, "p1", 7, timing, wall)
	},
	"release": func(l *coordinationv1.Lease, _ time.Time) (*coordinationv1.Lease, error) {
		return lease.Release(l, "p1", 7)
	},
	"fence": func(l *coordinationv1.Lease, _ time.Time) (*coordinationv1.Lease, error) {
		r, err := lease.Read(l)
		if err != nil {
			return nil, err
		}
		return lease.Fence(l, r)
	},
}

func TestStepsLeaveWhatTheyWereGivenUnchanged(t *testing.T) {
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			given := leaseOf("n1").held("p1", 7).fenced(6).renewedAt(wall).Lease
			before := given.DeepCopy()
			next, err := step(given, wall.Add(time.Hour))
			if next != nil { // what is returned may be changed without changing what was given
				next.Annotations["scribble"] = "x"
				if next.Spec.HolderIdentity != nil {
					*next.Spec.HolderIdentity = "scribble"
				}
				*next.Spec.RenewTime = *next.Spec.AcquireTime
			}
			if !reflect.DeepEqual(given, before) {
				t.Errorf("%v: it became %+v", err, given)
			}
		})
	}
}

func TestTakingLeavesTheClaimantUnchanged(t *testing.T) {
	c := claimant("p2", "p1")
	next, _, err := lease.Take(leaseOf("n1").held("p1", 7).Lease, c, timing, wall)
	if err != nil {
		t.Fatal(err)
	}
	*next.Spec.HolderIdentity = "scribble"
	if !reflect.DeepEqual(c, claimant("p2", "p1")) {
		t.Errorf("it became %+v", c)
	}
}

// The times on a Lease are for people: set wrong, missing, or far apart they must not change any decision.
func TestTheWallClockDecidesNothing(t *testing.T) {
	walls := []time.Time{{}, wall, wall.Add(-1000 * time.Hour), wall.Add(1000 * time.Hour)}
	for name, step := range steps {
		t.Run(name, func(t *testing.T) {
			reference, wantErr := step(leaseOf("n1").held("p1", 7).Lease, wall)
			for _, stored := range walls {
				for _, now := range walls {
					got, err := step(leaseOf("n1").held("p1", 7).renewedAt(stored).Lease, now)
					if message(err) != message(wantErr) || !reflect.DeepEqual(timeless(got), timeless(reference)) {
						t.Errorf("renewed at %s, now %s: %+v, %v", stored, now, got, err)
					}
				}
			}
		})
	}
}

func TestTheWallClockIsNotPartOfARecord(t *testing.T) {
	a, b := leaseOf("n1").held("p1", 7).renewedAt(wall), leaseOf("n1").held("p1", 7).renewedAt(wall.Add(time.Hour))
	if read(t, a.Lease) != read(t, b.Lease) {
		t.Error("two Leases that differ in their times alone read differently")
	}
}

// timeless is a Lease without its times.
func timeless(l *coordinationv1.Lease) *coordinationv1.Lease {
	if l == nil {
		return nil
	}
	l = l.DeepCopy()
	l.Spec.RenewTime, l.Spec.AcquireTime = nil, nil
	return l
}

func read(t *testing.T, l *coordinationv1.Lease) lease.Record {
	t.Helper()
	r, err := lease.Read(l)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantVersion checks that a step asks for a compare-and-swap with what it was given.
func wantVersion(t *testing.T, given, next *coordinationv1.Lease) {
	t.Helper()
	want := ""
	if given != nil {
		want = given.ResourceVersion
	}
	if next.ResourceVersion != want {
		t.Errorf("would be written over version %q, want %q", next.ResourceVersion, want)
	}
}
