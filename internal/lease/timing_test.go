package lease_test

import (
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

func TestInstantsOfOneMachineAddAndSubtract(t *testing.T) {
	i := lease.Instant(3 * time.Second)
	if got := i.Add(2 * time.Second); got != lease.Instant(5*time.Second) {
		t.Errorf("3s + 2s = %d", got)
	}
	if got := i.Sub(lease.Instant(5 * time.Second)); got != -2*time.Second {
		t.Errorf("3s - 5s = %s", got)
	}
}

func TestTheDefaultTimingIsValid(t *testing.T) {
	if err := lease.DefaultTiming().Validate(); err != nil {
		t.Fatal(err)
	}
}

func TestATimingSaysWhatIsWrongWithIt(t *testing.T) {
	cases := []struct {
		name   string
		change func(*lease.Timing)
		want   string // empty: valid
	}{
		{"no renew", func(t *lease.Timing) { t.Renew = 0 },
			"lease timing: renew (0s) and timeout (1.5s) must be positive"},
		{"a negative timeout", func(t *lease.Timing) { t.Timeout = -time.Second },
			"lease timing: renew (2s) and timeout (-1s) must be positive"},
		{"a timeout longer than renew", func(t *lease.Timing) { t.Timeout = 2001 * time.Millisecond },
			"lease timing: timeout (2.001s) must not exceed renew (2s), or renewals overlap"},
		{"a timeout as long as renew", func(t *lease.Timing) { t.Timeout = t.Renew }, ""},
		{"a fence that one slow renewal reaches", func(t *lease.Timing) { t.Fence = 3499 * time.Millisecond },
			"lease timing: fence (3.499s) must be at least renew + timeout (3.5s), or one slow renewal would fence a healthy node"},
		{"the shortest fence", func(t *lease.Timing) { t.Fence = t.Renew + t.Timeout }, ""},
		{"no time to stop", func(t *lease.Timing) { t.Dead = t.Fence },
			"lease timing: dead (6s) must be after fence (6s): programs have the time between to stop"},
		{"lost while work still runs", func(t *lease.Timing) { t.Lost = t.Dead },
			"lease timing: lost (8s) must be after dead (8s), or other nodes would take over work that still runs"},
		{"a lost that leaseDurationSeconds cannot say", func(t *lease.Timing) { t.Lost = 10500 * time.Millisecond },
			"lease timing: lost (10.5s) must be whole seconds: it is stored as leaseDurationSeconds"},
		{"nothing set", func(t *lease.Timing) { *t = lease.Timing{} },
			"lease timing: renew (0s) and timeout (0s) must be positive"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			timing := lease.DefaultTiming()
			c.change(&timing)
			if got := message(timing.Validate()); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// An outage of the API stops nothing if it is shorter than Outage, whenever it begins, whether the server refuses connections or does not
// answer, and one in which connections are refused may last until just before the fence.
func TestAShortOutageNeverCostsTheLease(t *testing.T) {
	timing := lease.DefaultTiming()
	const answer, refusal = 10 * time.Millisecond, time.Millisecond
	for _, c := range []struct {
		name   string
		failed time.Duration // how long a renewal takes that fails
		outage time.Duration
	}{
		{"no answer", timing.Timeout, timing.Outage() - 2*answer},
		{"refused", refusal, timing.Fence - timing.Renew - timing.Renew/10 - 2*answer},
		{"refused after half of the timeout", timing.Timeout / 2, timing.Fence - timing.Renew - timing.Timeout/2 - 2*answer},
	} {
		t.Run(c.name, func(t *testing.T) {
			for begin := time.Duration(0); begin < 2*timing.Renew; begin += time.Millisecond {
				var at lease.Instant
				held := lease.NewHeldEpoch(1, timing, at)
				for now := at; now.Sub(0) < begin+c.outage+timing.Fence; {
					sentAt := now
					away := sentAt.Add(answer).Sub(0) > begin && sentAt.Sub(0) < begin+c.outage
					if away {
						now = now.Add(c.failed)
					} else if now = now.Add(answer); !held.Renewed(sentAt, now) {
						t.Fatalf("an outage of %s that began after %s cost the lease at %s", c.outage, begin, now.Sub(0))
					}
					next := timing.NextRenewal(sentAt, now, !away)
					if next < now {
						t.Fatalf("a renewal that ended at %s is followed by one at %s", now.Sub(0), next.Sub(0))
					}
					now = next
				}
			}
		})
	}
}

func TestWhenTheNextRenewalIsSent(t *testing.T) {
	timing := lease.DefaultTiming()
	at := func(d time.Duration) lease.Instant { return lease.Instant(time.Minute).Add(d) }
	for _, c := range []struct {
		name    string
		took    time.Duration
		renewed bool
		want    time.Duration // after it was sent
	}{
		{"answered at once", 0, true, 2 * time.Second},
		{"a slow answer does not make the next one late", 1400 * time.Millisecond, true, 2 * time.Second},
		{"refused at once", time.Millisecond, false, 200 * time.Millisecond},
		{"no answer", timing.Timeout, false, timing.Timeout},
	} {
		if got := timing.NextRenewal(at(0), at(c.took), c.renewed).Sub(at(0)); got != c.want {
			t.Errorf("%s: the next is sent after %s, want %s", c.name, got, c.want)
		}
	}
}
