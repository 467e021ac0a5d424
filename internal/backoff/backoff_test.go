package backoff_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
)

func TestDelaysDoubleUpToTheLongest(t *testing.T) {
	for what, c := range map[string]struct {
		policy backoff.Policy
		want   []time.Duration
	}{
		"grows":                        {backoff.Policy{First: 2, Longest: 16}, []time.Duration{2, 4, 8, 16, 16}},
		"stops at the longest":         {backoff.Policy{First: 3, Longest: 10}, []time.Duration{3, 6, 10, 10, 10}},
		"begins at the longest":        {backoff.Policy{First: 7, Longest: 7}, []time.Duration{7, 7, 7, 7, 7}},
		"is never above the longest":   {backoff.Policy{First: 9, Longest: 5}, []time.Duration{5, 5, 5, 5, 5}},
		"does not wait":                {backoff.Policy{Longest: 5}, []time.Duration{0, 0, 0, 0, 0}},
		"does not overflow":            {backoff.Policy{First: math.MaxInt64/2 + 1, Longest: math.MaxInt64}, []time.Duration{math.MaxInt64/2 + 1, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}},
		"an odd longest is reached":    {backoff.Policy{First: 1, Longest: 5}, []time.Duration{1, 2, 4, 5, 5}},
		"half of the longest is twice": {backoff.Policy{First: 2, Longest: 5}, []time.Duration{2, 4, 5, 5, 5}},
	} {
		t.Run(what, func(t *testing.T) {
			b := backoff.New(c.policy)
			var counted, computed []time.Duration
			for i := range c.want {
				if peeked, next := b.Peek(), b.Next(); peeked != next {
					t.Errorf("delay %d: Peek said %d, Next %d", i, peeked, next)
				} else {
					counted = append(counted, next)
				}
				computed = append(computed, c.policy.After(int64(i+1)))
			}
			if !slices.Equal(counted, c.want) || !slices.Equal(computed, c.want) {
				t.Errorf("counted %v, computed %v, want %v", counted, computed, c.want)
			}
		})
	}
}

func TestNoDelayWithoutFailure(t *testing.T) {
	p := backoff.Policy{First: time.Second, Longest: time.Minute}
	if got := p.After(0); got != 0 {
		t.Errorf("after none: %s", got)
	}
	if got := p.After(-1); got != 0 {
		t.Errorf("after less than none: %s", got)
	}
	if got := p.After(math.MaxInt64); got != time.Minute {
		t.Errorf("after more than can be counted: %s", got)
	}
}

func TestASuccessBeginsAnewAndALastingFailureSkipsAhead(t *testing.T) {
	b := backoff.New(backoff.Policy{First: 1, Longest: 100})
	b.Next()
	b.Next()
	b.Reset()
	if got := b.Next(); got != 1 {
		t.Errorf("after Reset: %d", got)
	}
	b.Exhaust()
	if got := []time.Duration{b.Next(), b.Next()}; !slices.Equal(got, []time.Duration{100, 100}) {
		t.Errorf("after Exhaust: %v", got)
	}
}

func TestJitterStaysWithinItsFraction(t *testing.T) {
	low, high := time.Duration(math.MaxInt64), time.Duration(0)
	for range 1000 {
		d := backoff.Jitter(1000, 0.1)
		low, high = min(low, d), max(high, d)
	}
	if low < 900 || low > 910 || high > 1100 || high < 1090 {
		t.Errorf("from %d to %d, want from about 900 to about 1100", low, high)
	}
	for _, d := range []time.Duration{backoff.Jitter(0, 0.5), backoff.Jitter(1, 0.5) - 1, backoff.Jitter(1000, 0) - 1000} {
		if d != 0 {
			t.Errorf("nothing to spread, but off by %d", d)
		}
	}
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := backoff.Sleep(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(why) })
		began = time.Now()
		if err := backoff.Sleep(ctx, time.Hour); !errors.Is(err, why) || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}
