package lease_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

func TestALeaseIsLostWhenItStayedUnchangedForItsDuration(t *testing.T) {
	d := detector(seen("b", "1"))
	renewing(d, at(0), at(9))
	wantLost(t, d, at(10)-1)
	wantLost(t, d, at(10), "b")
}

// Ours are 10 s. A shorter duration may have been written by somebody, and the work of the node ends by another timing.
func TestTheLongerOfTheLeasesDurationAndOursDecides(t *testing.T) {
	short, long := seen("short", "1"), seen("long", "1")
	short.Duration, long.Duration = 3*time.Second, 30*time.Second
	d := detector(short, long)
	renewing(d, at(0), at(29))
	wantLost(t, d, at(10)-1)
	wantLost(t, d, at(10), "short")
	wantLost(t, d, at(30)-1, "short")
	wantLost(t, d, at(30), "long", "short")
}

func TestNobodyIsWaitedForLongerThanATimingAllows(t *testing.T) {
	r := seen("b", "1")
	r.Duration = 24 * time.Hour
	d := detector(r)
	renewing(d, at(0), at(600))
	wantLost(t, d, at(600)-1)
	wantLost(t, d, at(600), "b")
}

func TestALeaseThatSaysNoDurationIsCountedByOurs(t *testing.T) {
	for _, duration := range []time.Duration{0, -time.Second} {
		r := seen("b", "1")
		r.Duration = duration
		d := detector(r)
		wantLost(t, d, at(0))
		renewing(d, at(0), at(9))
		wantLost(t, d, at(10)-1)
		wantLost(t, d, at(10), "b")
	}
}

func TestAChangedVersionRestartsOneCountOnly(t *testing.T) {
	d := detector(seen("b", "1"), seen("c", "1"))
	d.Saw(seen("b", "2"), at(5))
	renewing(d, at(0), at(9))
	wantLost(t, d, at(10), "c")
	renewing(d, at(10), at(14))
	wantLost(t, d, at(15)-1, "c")
	wantLost(t, d, at(15), "b", "c")
}

func TestSeeingTheSameVersionAgainRestartsNothing(t *testing.T) {
	d := detector(seen("b", "1"))
	d.Saw(seen("b", "1"), at(9))
	renewing(d, at(0), at(9))
	wantLost(t, d, at(10), "b")
}

func TestAVersionSeenOutOfOrderRestartsTheCount(t *testing.T) {
	d := detector(seen("b", "2"))
	d.Saw(seen("b", "1"), at(4))
	renewing(d, at(0), at(13))
	wantLost(t, d, at(14)-1)
	wantLost(t, d, at(14), "b")
}

func TestAFailedRenewalOfOurOwnRestartsEveryCount(t *testing.T) {
	d := detector(seen("b", "1"), seen("c", "1"))
	d.Failed(at(5))
	renewing(d, at(0), at(14))
	wantLost(t, d, at(15)-1)
	wantLost(t, d, at(15), "b", "c")
}

func TestAnOlderRenewalOfOurOwnIsNoNews(t *testing.T) {
	d := detector(seen("b", "1"))
	renewing(d, at(0), at(8))
	d.Renewed(at(1))
	wantLost(t, d, at(10), "b")
}

func TestALeaseThatNobodyHoldsIsNeverLost(t *testing.T) {
	r := seen("b", "1")
	r.Holder = ""
	d := detector(r)
	renewing(d, at(0), at(99))
	wantLost(t, d, at(100))
}

func TestAForgottenNodeIsNeitherLostNorSeen(t *testing.T) {
	d := detector(seen("b", "1"))
	d.Forget("b")
	d.Forget("never seen")
	renewing(d, at(0), at(9))
	wantLost(t, d, at(10))
	if _, ok := d.Unchanged("b", at(10)); ok {
		t.Error("a forgotten node is still seen")
	}
	d.Saw(seen("b", "1"), at(10))
	if age, ok := d.Unchanged("b", at(11)); !ok || age != time.Second {
		t.Errorf("seen again: %s, %t", age, ok)
	}
}

func TestUnchangedIsTheTimeSinceTheCountBegan(t *testing.T) {
	d := detector(seen("b", "1"))
	if age, ok := d.Unchanged("b", at(3)); !ok || age != 3*time.Second {
		t.Errorf("%s, %t", age, ok)
	}
	d.Failed(at(3))
	if age, _ := d.Unchanged("b", at(4)); age != time.Second {
		t.Errorf("after a failure of our own: %s", age)
	}
	if _, ok := d.Unchanged("nobody", at(3)); ok {
		t.Error("a node never seen is seen")
	}
}

func TestTheLostAreSortedByNode(t *testing.T) {
	names := []string{"m", "a", "z", "c", "b", "y"}
	d := lease.NewLossDetector(timing, at(0))
	for _, name := range names {
		d.Saw(seen(name, "1"), at(0))
	}
	renewing(d, at(0), at(9))
	slices.Sort(names)
	for range 20 { // maps are walked in a different order each time
		wantLost(t, d, at(10), names...)
	}
}

func TestWhatIsLostIsTheRecordThatWasWatched(t *testing.T) {
	d := detector(seen("b", "1"))
	renewing(d, at(0), at(9))
	if got := d.Lost(at(10)); len(got) != 1 || got[0] != seen("b", "1") {
		t.Errorf("%+v", got)
	}
}

func TestALossDetectorMayBeUsedFromManyGoroutines(t *testing.T) {
	d := detector(seen("b", "1"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 100 {
				now := at(float64(i))
				d.Saw(seen("b", time.Duration(now).String()), now)
				d.Renewed(now)
				d.Lost(now)
				d.Failed(now)
				d.Unchanged("b", now)
				d.Forget("c")
			}
		})
	}
	all.Wait()
}

// detector saw the records, and renewed its own lease, at 0.
func detector(records ...lease.Record) *lease.LossDetector {
	d := lease.NewLossDetector(timing, at(0))
	for _, r := range records {
		d.Saw(r, at(0))
	}
	return d
}

// renewing reports renewals of our own to a loss detector, one every Renew, the first at from and the last by to.
func renewing(d *lease.LossDetector, from, to lease.Instant) {
	for ; from <= to; from = from.Add(timing.Renew) {
		d.Renewed(from)
	}
}

func wantLost(t *testing.T, d *lease.LossDetector, now lease.Instant, want ...string) {
	t.Helper()
	var got []string
	for _, r := range d.Lost(now) {
		got = append(got, r.Node)
	}
	if !slices.Equal(got, want) {
		t.Errorf("at %s lost %v, want %v", time.Duration(now), got, want)
	}
}
