package drain_test

import (
	"testing"

	"github.com/ebb-dev/ebb/internal/simtest"
)

// A run takes at most a step for each byte of its tape, and the rounds of its end.
var limits = simtest.Limits{Steps: 100_000}

func TestReplay(t *testing.T) {
	simtest.ReplayTape(t, func(tape *simtest.Tape) string { return play(tape, broken{}).Verdict() })
}
