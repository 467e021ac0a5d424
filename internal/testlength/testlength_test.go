package testlength

import (
	"slices"
	"testing"
)

func TestTheShortAndTheLongForm(t *testing.T) {
	t.Setenv(seedEnv, "")
	for env, want := range map[string]int{"": 3, "0": 3, "1": 5} {
		t.Setenv(longEnv, env)
		got, again := slices.Collect(Seeds(3, 5)), slices.Collect(Seeds(3, 5))
		if len(got) != want+1 || !slices.Equal(got[:3], []uint64{0, 1, 2}) || !slices.Equal(got[:want], again[:want]) {
			t.Errorf("%s=%q: seeds %v, then %v", longEnv, env, got, again)
		}
		if got[want] == again[want] {
			t.Errorf("two runs end with the same seed %d", got[want])
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
