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
