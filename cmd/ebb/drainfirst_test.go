package main

import (
	"context"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/node"
)

// leaving is a node whose drain parks it after some time.
type leaving struct {
	parks time.Time // zero: never
}

func (l leaving) Epoch() *node.Epoch    { return nil }
func (l leaving) Client() client.Client { return nil }
func (l leaving) Parked() bool          { return !l.parks.IsZero() && !time.Now().Before(l.parks) }

// A node that is parked runs nothing any more: its process need not wait for the end of --drain-timeout, which a supervisor would cut short.
func TestAProcessThatDrainsItsNodeFirstEndsWhenTheNodeIsParked(t *testing.T) {
	for _, c := range []struct {
		what   string
		parks  time.Duration
		signal time.Duration
		want   string
		after  time.Duration
	}{
		{what: "it is parked", parks: 3500 * time.Millisecond, after: 4 * time.Second},
		{what: "it is not parked in time", want: "the drain timeout has passed", after: time.Minute},
		{what: "a second signal", signal: 5 * time.Second, want: "received a second signal", after: 5 * time.Second},
	} {
		t.Run(c.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				l := leaving{}
				if c.parks > 0 {
					l.parks = began.Add(c.parks)
				}
				again := make(chan os.Signal, 1)
				if c.signal > 0 {
					time.AfterFunc(c.signal, func() { again <- syscall.SIGTERM })
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if got := (&ownDrain{node: l}).watch(ctx, again); got != c.want || time.Since(began) != c.after {
					t.Errorf("%q after %s, want %q after %s", got, time.Since(began), c.want, c.after)
				}
			})
		})
	}
}
