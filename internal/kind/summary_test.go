package kind

import "testing"

func TestALongMessageEndsWithASentenceIfItCan(t *testing.T) {
	for text, want := range map[string]string{
		"It is dead.":                   "It is dead.",
		"It is dead. Bring it back.":    "It is dead",
		"It is dead, frozen or cut off": "It is dead, frozen…",
	} {
		if got := shorten(text, 20); got != want {
			t.Errorf("%q is cut to %q, want %q", text, got, want)
		}
	}
}
