package main

import (
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestEverySettingIsReadBackAsItWasSet(t *testing.T) {
	for _, tc := range []struct{ key, unset, text, want string }{
		{"node-drain-policy", "", "always-allow", "always-allow"},
		{"volumes.replicaReplenishmentWait", "10m0s", "90s", "1m30s"},
		{"replica-replenishment-wait", "10m0s", "0s", "0s"},
		{"volumes.rebuildBytesPerSecond", "0", "100Mi", "100Mi"},
		{"rebuild-bytes-per-second", "0", "0", "0"},
		{"drain.clientGrace", "1m0s", "0s", "0s"},
		{"drain-client-grace", "1m0s", "5s", "5s"},
		{"drain.maintainerBatchSize", "1", "4", "4"},
		{"drain.stalledAfter", "5m0s", "10s", "10s"},
		{"drain.balanceAfter", "30s", "10s", "10s"},
		{"drain.bootstrapTimeout", "30s", "10s", "10s"},
		{"drain.historyLimit", "100", "0", "0"},
		{"drain.historyAge", "168h0m0s", "12h", "12h0m0s"},
	} {
		s, err := findSetting(tc.key)
		if err != nil {
			t.Fatal(err)
		}
		spec := &v1alpha1.SettingsSpec{}
		if got := s.get(spec); got != tc.unset {
			t.Errorf("%s that nobody set is %q, want %q", tc.key, got, tc.unset)
		}
		if err := s.set(spec, tc.text); err != nil {
			t.Errorf("%s=%s: %v", tc.key, tc.text, err)
		}
		if got := s.get(spec); got != tc.want {
			t.Errorf("%s=%s is read back as %q, want %q", tc.key, tc.text, got, tc.want)
		}
	}
}

func TestSettingsRefuseWhatTheyCannotBe(t *testing.T) {
	for _, tc := range []struct{ key, text, want string }{
		{"volumes.replicaReplenishmentWait", "soon", `"soon" is not a duration such as 90s or 5m, or 0s`},
		{"drain.clientGrace", "-1s", `"-1s" is not a duration such as 90s or 5m, or 0s`},
		{"volumes.rebuildBytesPerSecond", "-1", `"-1" is not a number of bytes such as 100Mi, or 0`},
		{"volumes.rebuildBytesPerSecond", "", `"" is not a number of bytes such as 100Mi, or 0`},
		{"drain.stalledAfter", "0s", `"0s" is not a duration such as 90s or 5m`},
	} {
		s, err := findSetting(tc.key)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.set(&v1alpha1.SettingsSpec{}, tc.text); err == nil || err.Error() != tc.want {
			t.Errorf("%s=%s: %v, want %s", tc.key, tc.text, err, tc.want)
		}
	}
}
