package deployment_test

import (
	"encoding/hex"
	"testing"

	"github.com/ebb-dev/ebb/internal/simtest"
)

// A run takes at most a step for each byte of its tape, and the rounds of its end.
var limits = simtest.Limits{Steps: 100_000}

func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		bytes, err := hex.DecodeString(text)
		if err != nil {
			t.Fatalf("%s is not a tape: %v", text, err)
		}
		if r := play(&tape{left: bytes}, broken{}); len(r.breach) > 0 {
			t.Errorf("%v\n%v", r.breach, tail(r))
		}
	})
}
