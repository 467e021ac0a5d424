package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/ebb-dev/ebb/internal/lease"
)

func TestANodeIsGivenTheTimingThatItsClusterWasGiven(t *testing.T) {
	short := lease.Timing{Renew: 600 * time.Millisecond, Timeout: 500 * time.Millisecond, Fence: 3 * time.Second, Dead: 4 * time.Second, Lost: 5 * time.Second}
	oneDiffers := lease.DefaultTiming()
	oneDiffers.Lost = 12 * time.Second
	for _, tc := range []struct {
		timing lease.Timing
		want   []string
	}{
		{lease.DefaultTiming(), nil},
		{oneDiffers, []string{"--lease-duration=12s"}},
		{short, []string{"--lease-renew=600ms", "--lease-renew-timeout=500ms", "--lease-fence=3s", "--lease-dead=4s", "--lease-duration=5s"}},
	} {
		args := leaseArgs(tc.timing)
		if !slices.Equal(args, tc.want) {
			t.Errorf("%+v: %q, want %q", tc.timing, args, tc.want)
		}
		got := lease.DefaultTiming()
		fs := pflag.NewFlagSet("node", pflag.ContinueOnError)
		addLeaseTiming(fs, &got)
		if err := fs.Parse(args); err != nil || got != tc.timing {
			t.Errorf("%q is read as %+v, want %+v (%v)", args, got, tc.timing, err)
		}
	}
}

func TestUpRefusesATimingBeforeItStartsAnything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	cmd := newUp()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs([]string{"--data-dir", dir, "--lease-fence", "9s"})
	const want = "lease timing: dead (8s) must be after fence (9s): programs have the time between to stop"
	if err := cmd.Execute(); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("something was made in the data directory: %v", err)
	}
}
