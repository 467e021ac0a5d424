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
		{8 * time.Second, lease.Expired},
		{time.Hour, lease.Expired},
	}
	// The reading of a clock means nothing by itself: all must hold wherever the clock started.
	for _, start := range []lease.Instant{0, -at(100), at(1e6)} {
		for _, c := range cases {
			if got := lease.NewHeldEpoch(7, timing, start).StandingAt(start.Add(c.age)); got != c.want {
				t.Errorf("from %d, aged %s: %s, want %s", start, c.age, got, c.want)
			}
		}
	}
}

func TestAStandingPrintsItsName(t *testing.T) {
	for s, want := range map[lease.Standing]string{lease.Holding: "Holding", lease.Fencing: "Fencing", lease.Expired: "Expired"} {
		if s.String() != want {
			t.Errorf("%d prints as %s, want %s", s, s, want)
		}
	}
}

func TestARenewalCountsFromBeforeItWasSent(t *testing.T) {
	held := lease.NewHeldEpoch(7, timing, at(0))
	if !held.Renewed(at(2), at(3)) {
		t.Fatal("a renewal in time did not continue the epoch")
	}
	wantDeadline(t, held, at(8), at(10))
	if held.SentAt() != at(2) || held.Number() != 7 {
		t.Errorf("sent at %d in epoch %d", held.SentAt(), held.Number())
	}
}

func TestAnOlderRenewalNeverShortensTheEpoch(t *testing.T) {
	held := lease.NewHeldEpoch(7, timing, at(0))
	held.Renewed(at(4), at(4))
	if !held.Renewed(at(2), at(5)) {
		t.Error("the answer to an older renewal ended the epoch")
	}
	wantDeadline(t, held, at(10), at(12))
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
			held := lease.NewHeldEpoch(7, timing, at(0))
			if got := held.Renewed(c.sentAt, c.now); got != c.goesOn {
				t.Fatalf("goes on: %t, want %t", got, c.goesOn)
			}
			if !c.goesOn {
				wantDeadline(t, held, at(6), at(8))
			}
		})
	}
}

func TestEveryStandingButHoldingIsKept(t *testing.T) {
	cases := []struct {
		name string
		end  func(*lease.HeldEpoch)
		want lease.Standing
	}{
		{"the fence passed", func(h *lease.HeldEpoch) { h.StandingAt(at(6)) }, lease.Fencing},
		{"a late renewal passed the fence", func(h *lease.HeldEpoch) { h.Renewed(at(5), at(6)) }, lease.Fencing},
		{"doubt", func(h *lease.HeldEpoch) { h.MarkInDoubt() }, lease.Fencing},
		{"dead passed", func(h *lease.HeldEpoch) { h.StandingAt(at(8)) }, lease.Expired},
		{"doubt after it expired", func(h *lease.HeldEpoch) { h.StandingAt(at(8)); h.MarkInDoubt() }, lease.Expired},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			held := lease.NewHeldEpoch(7, timing, at(0))
			c.end(held)
			// An earlier reading than the one that ended it, such as that of a slower goroutine, changes nothing.
			if held.Renewed(at(1), at(1)) {
				t.Error("a renewal brought the epoch back")
			}
			if got := held.StandingAt(at(1)); got != c.want {
				t.Errorf("stands %s, want %s", got, c.want)
			}
		})
	}
}

func TestAnEpochInDoubtExpiresWhenItsDeadlinePasses(t *testing.T) {
	held := lease.NewHeldEpoch(7, timing, at(0))
	held.MarkInDoubt()
	if got := held.StandingAt(at(8) - 1); got != lease.Fencing {
		t.Errorf("before dead: %s", got)
	}
	if got := held.StandingAt(at(8)); got != lease.Expired {
		t.Errorf("at dead: %s", got)
	}
}

func TestAHeldEpochMayBeUsedFromManyGoroutines(t *testing.T) {
	held := lease.NewHeldEpoch(7, timing, at(0))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for s := range 100 {
				held.Renewed(at(float64(s)/100), at(1))
				held.StandingAt(at(float64(i)))
				held.Deadline()
				held.SentAt()
			}
			held.MarkInDoubt()
		})
	}
	all.Wait()
	if got := held.StandingAt(at(0)); got == lease.Holding {
		t.Error("an epoch in doubt still holds")
	}
}

func wantDeadline(t *testing.T, held *lease.HeldEpoch, wantFence, wantDead lease.Instant) {
	t.Helper()
	fence, dead := held.Deadline()
	if fence != wantFence || dead != wantDead {
		t.Errorf("deadline %d, %d, want %d, %d", fence, dead, wantFence, wantDead)
	}
}
