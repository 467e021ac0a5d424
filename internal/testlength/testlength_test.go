package testlength

import (
	"slices"
	"testing"
)

func TestTheShortAndTheLongForm(t *testing.T) {
	t.Setenv(seedEnv, "")
	for env, want := range map[string][]uint64{"": {0, 1, 2}, "0": {0, 1, 2}, "1": {0, 1, 2, 3, 4}} {
		t.Setenv(longEnv, env)
		got, again := slices.Collect(Seeds(3, 5)), slices.Collect(Seeds(3, 5))
		if n := len(want); len(got) < n || !slices.Equal(got[:n], want) || !slices.Equal(got[:n], again[:n]) {
			t.Errorf("%s=%q: seeds %v, then %v", longEnv, env, got, again)
		}
		if random := len(got) - len(want); random != map[bool]int{true: 1}[env == "1"] || random == 1 && got[len(want)] == again[len(want)] {
			t.Errorf("%s=%q: seeds %v, then %v; only the long form ends with a random one", longEnv, env, got, again)
		}
		if Pick("short", "long") != map[bool]string{false: "short", true: "long"}[env == "1"] {
			t.Errorf("%s=%q picks %s", longEnv, env, Pick("short", "long"))
		}
	}
}

func TestASeedThatIsGivenIsTheOnlyOne(t *testing.T) {
	t.Setenv(seedEnv, "4294967299")
	if got := slices.Collect(Seeds(3, 5)); !slices.Equal(got, []uint64{4294967299}) {
		t.Errorf("seeds %v", got)
	}
}
