package lease_test

import (
	"sync"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

func TestAnEpochStandsByTheTimeSinceItsLastRenewalWasSent(t *testing.T) {
	cases := []struct {
		age  time.Duration
		want lease.Standing
	}{
		{0, lease.Holding},
		{6*time.Second - 1, lease.Holding},
		{6 * time.Second, lease.Fencing},
		{8*time.Second - 1, lease.Fencing},
		{8 * time.Second, lease.Over},
		{time.Hour, lease.Over},
	}
	// The reading of a clock means nothing by itself: all must hold wherever the clock started.
	for _, start := range []lease.Instant{0, -at(100), at(1e6)} {
		for _, c := range cases {
			if got := lease.NewTenure(7, timing, start).At(start.Add(c.age)); got != c.want {
				t.Errorf("from %d, aged %s: %s, want %s", start, c.age, got, c.want)
			}
		}
	}
}

func TestAStandingPrintsItsName(t *testing.T) {
	for s, want := range map[lease.Standing]string{lease.Holding: "Holding", lease.Fencing: "Fencing", lease.Over: "Over"} {
		if s.String() != want {
			t.Errorf("%d prints as %s, want %s", s, s, want)
		}
	}
}

func TestARenewalCountsFromBeforeItWasSent(t *testing.T) {
	tenure := lease.NewTenure(7, timing, at(0))
	if !tenure.Renewed(at(2), at(3)) {
		t.Fatal("a renewal in time did not continue the epoch")
	}
	wantDeadline(t, tenure, at(8), at(10))
	if tenure.SentAt() != at(2) || tenure.Epoch() != 7 {
		t.Errorf("sent at %d in epoch %d", tenure.SentAt(), tenure.Epoch())
	}
}

func TestAnOlderRenewalNeverShortensTheEpoch(t *testing.T) {
	tenure := lease.NewTenure(7, timing, at(0))
	tenure.Renewed(at(4), at(4))
	if !tenure.Renewed(at(2), at(5)) {
		t.Error("the answer to an older renewal ended the epoch")
	}
	wantDeadline(t, tenure, at(10), at(12))
}

func TestALateAnswerDoesNotReviveAnEpoch(t *testing.T) {
	cases := []struct {
		name        string
		sentAt, now lease.Instant
		goesOn      bool
	}{
		{"the last moment", at(5), at(6) - 1, true},
		{"at the fence, though nobody looked before", at(5), at(6), false},
		{"between fence and dead", at(5), at(7), false},
		{"after dead", at(5), at(9), false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tenure := lease.NewTenure(7, timing, at(0))
			if got := tenure.Renewed(c.sentAt, c.now); got != c.goesOn {
				t.Fatalf("goes on: %t, want %t", got, c.goesOn)
			}
			if !c.goesOn {
				wantDeadline(t, tenure, at(6), at(8))
			}
		})
	}
}

func TestEveryStandingButHoldingIsKept(t *testing.T) {
	cases := []struct {
		name string
		end  func(*lease.Tenure)
		want lease.Standing
	}{
		{"the fence passed", func(t *lease.Tenure) { t.At(at(6)) }, lease.Fencing},
		{"a late renewal passed the fence", func(t *lease.Tenure) { t.Renewed(at(5), at(6)) }, lease.Fencing},
		{"doubt", func(t *lease.Tenure) { t.Doubt() }, lease.Fencing},
		{"dead passed", func(t *lease.Tenure) { t.At(at(8)) }, lease.Over},
		{"doubt when all was over", func(t *lease.Tenure) { t.At(at(8)); t.Doubt() }, lease.Over},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tenure := lease.NewTenure(7, timing, at(0))
			c.end(tenure)
			// An earlier reading than the one that ended it, such as that of a slower goroutine, changes nothing.
			if tenure.Renewed(at(1), at(1)) {
				t.Error("a renewal brought the epoch back")
			}
			if got := tenure.At(at(1)); got != c.want {
				t.Errorf("stands %s, want %s", got, c.want)
			}
		})
	}
}

func TestADoubtedEpochIsOverWhenItsDeadlinePasses(t *testing.T) {
	tenure := lease.NewTenure(7, timing, at(0))
	tenure.Doubt()
	if got := tenure.At(at(8) - 1); got != lease.Fencing {
		t.Errorf("before dead: %s", got)
	}
	if got := tenure.At(at(8)); got != lease.Over {
		t.Errorf("at dead: %s", got)
	}
}

func TestATenureMayBeUsedFromManyGoroutines(t *testing.T) {
	tenure := lease.NewTenure(7, timing, at(0))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for s := range 100 {
				tenure.Renewed(at(float64(s)/100), at(1))
				tenure.At(at(float64(i)))
				tenure.Deadline()
				tenure.SentAt()
			}
			tenure.Doubt()
		})
	}
	all.Wait()
	if got := tenure.At(at(0)); got == lease.Holding {
		t.Error("a doubted epoch still holds")
	}
}

func wantDeadline(t *testing.T, tenure *lease.Tenure, wantFence, wantDead lease.Instant) {
	t.Helper()
	fence, dead := tenure.Deadline()
	if fence != wantFence || dead != wantDead {
		t.Errorf("deadline %d, %d, want %d, %d", fence, dead, wantFence, wantDead)
	}
}
