package lease_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

func TestALeaseIsLostWhenItStayedUnchangedForItsDuration(t *testing.T) {
	v := vigil(seen("b", "1"))
	renewing(v, at(0), at(9))
	wantLost(t, v, at(10)-1)
	wantLost(t, v, at(10), "b")
}

func TestTheLeasesOwnDurationDecidesNotOurs(t *testing.T) {
	short, long := seen("short", "1"), seen("long", "1")
	short.Duration, long.Duration = 3*time.Second, 30*time.Second
	v := vigil(short, long)
	wantLost(t, v, at(3)-1)
	wantLost(t, v, at(3), "short")
	renewing(v, at(0), at(29))
	wantLost(t, v, at(30)-1, "short")
	wantLost(t, v, at(30), "long", "short")
}

func TestALeaseThatSaysNoDurationIsCountedByOurs(t *testing.T) {
	for _, d := range []time.Duration{0, -time.Second} {
		r := seen("b", "1")
		r.Duration = d
		v := vigil(r)
		wantLost(t, v, at(0))
		renewing(v, at(0), at(9))
		wantLost(t, v, at(10)-1)
		wantLost(t, v, at(10), "b")
	}
}

func TestAChangedVersionRestartsOneCountOnly(t *testing.T) {
	v := vigil(seen("b", "1"), seen("c", "1"))
	v.Saw(seen("b", "2"), at(5))
	renewing(v, at(0), at(9))
	wantLost(t, v, at(10), "c")
	renewing(v, at(10), at(14))
	wantLost(t, v, at(15)-1, "c")
	wantLost(t, v, at(15), "b", "c")
}

func TestSeeingTheSameVersionAgainRestartsNothing(t *testing.T) {
	v := vigil(seen("b", "1"))
	v.Saw(seen("b", "1"), at(9))
	renewing(v, at(0), at(9))
	wantLost(t, v, at(10), "b")
}

func TestAVersionSeenOutOfOrderRestartsTheCount(t *testing.T) {
	v := vigil(seen("b", "2"))
	v.Saw(seen("b", "1"), at(4))
	renewing(v, at(0), at(13))
	wantLost(t, v, at(14)-1)
	wantLost(t, v, at(14), "b")
}

func TestAFailedRenewalOfOurOwnRestartsEveryCount(t *testing.T) {
	v := vigil(seen("b", "1"), seen("c", "1"))
	v.Failed(at(5))
	renewing(v, at(0), at(14))
	wantLost(t, v, at(15)-1)
	wantLost(t, v, at(15), "b", "c")
}

func TestAnOlderRenewalOfOurOwnIsNoNews(t *testing.T) {
	v := vigil(seen("b", "1"))
	renewing(v, at(0), at(8))
	v.Renewed(at(1))
	wantLost(t, v, at(10), "b")
}

func TestALeaseThatNobodyHoldsIsNeverLost(t *testing.T) {
	r := seen("b", "1")
	r.Holder = ""
	v := vigil(r)
	renewing(v, at(0), at(99))
	wantLost(t, v, at(100))
}

func TestAForgottenNodeIsNeitherLostNorSeen(t *testing.T) {
	v := vigil(seen("b", "1"))
	v.Forget("b")
	v.Forget("never seen")
	renewing(v, at(0), at(9))
	wantLost(t, v, at(10))
	if _, ok := v.Unchanged("b", at(10)); ok {
		t.Error("a forgotten node is still seen")
	}
	v.Saw(seen("b", "1"), at(10))
	if age, ok := v.Unchanged("b", at(11)); !ok || age != time.Second {
		t.Errorf("seen again: %s, %t", age, ok)
	}
}

func TestUnchangedIsTheTimeSinceTheCountBegan(t *testing.T) {
	v := vigil(seen("b", "1"))
	if age, ok := v.Unchanged("b", at(3)); !ok || age != 3*time.Second {
		t.Errorf("%s, %t", age, ok)
	}
	v.Failed(at(3))
	if age, _ := v.Unchanged("b", at(4)); age != time.Second {
		t.Errorf("after a failure of our own: %s", age)
	}
	if _, ok := v.Unchanged("nobody", at(3)); ok {
		t.Error("a node never seen is seen")
	}
}

func TestTheLostAreSortedByNode(t *testing.T) {
	names := []string{"m", "a", "z", "c", "b", "y"}
	v := lease.NewVigil(timing, at(0))
	for _, name := range names {
		v.Saw(seen(name, "1"), at(0))
	}
	renewing(v, at(0), at(9))
	slices.Sort(names)
	for range 20 { // maps are walked in a different order each time
		wantLost(t, v, at(10), names...)
	}
}

func TestWhatIsLostIsTheRecordThatWasWatched(t *testing.T) {
	v := vigil(seen("b", "1"))
	renewing(v, at(0), at(9))
	if got := v.Lost(at(10)); len(got) != 1 || got[0] != seen("b", "1") {
		t.Errorf("%+v", got)
	}
}

func TestAVigilMayBeUsedFromManyGoroutines(t *testing.T) {
	v := vigil(seen("b", "1"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 100 {
				now := at(float64(i))
				v.Saw(seen("b", time.Duration(now).String()), now)
				v.Renewed(now)
				v.Lost(now)
				v.Failed(now)
				v.Unchanged("b", now)
				v.Forget("c")
			}
		})
	}
	all.Wait()
}

// vigil saw the records, and renewed its own lease, at 0.
func vigil(records ...lease.Record) *lease.Vigil {
	v := lease.NewVigil(timing, at(0))
	for _, r := range records {
		v.Saw(r, at(0))
	}
	return v
}

// renewing tells a vigil of renewals of our own, one every Renew, the first at from and the last by to.
func renewing(v *lease.Vigil, from, to lease.Instant) {
	for ; from <= to; from = from.Add(timing.Renew) {
		v.Renewed(from)
	}
}

func wantLost(t *testing.T, v *lease.Vigil, now lease.Instant, want ...string) {
	t.Helper()
	var got []string
	for _, r := range v.Lost(now) {
		got = append(got, r.Node)
	}
	if !slices.Equal(got, want) {
		t.Errorf("at %s lost %v, want %v", time.Duration(now), got, want)
	}
}
