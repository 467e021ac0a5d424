package simtest_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/simtest"
)

func TestANetworkLosesAndDelaysAsOftenAsItIsToldUntilItIsCalm(t *testing.T) {
	const messages, usual, late = 20_000, 10 * time.Millisecond, time.Hour
	n := simtest.NewNetwork(rand.New(rand.NewPCG(1, 2)), simtest.Span{From: time.Millisecond, To: usual},
		simtest.Faults{Lost: 0.1, Late: []simtest.Late{{Share: 0.2, UpTo: late}}})
	count := func() (lost, slow int) {
		for range messages {
			m := n.Message()
			switch {
			case m.Takes < time.Millisecond || m.Takes >= usual+late:
				t.Fatalf("a message takes %s", m.Takes)
			case m.Lost:
				lost++
			case m.Takes >= usual:
				slow++
			}
		}
		return lost, slow
	}
	if lost, slow := count(); lost < 1800 || lost > 2200 || slow < 3700 || slow > 4300 {
		t.Errorf("%d of %d messages were lost and %d late, want about 2000 and 4000", lost, messages, slow)
	}
	n.Calm()
	if lost, slow := count(); lost+slow > 0 || !n.IsCalm() {
		t.Errorf("on a calm network %d messages were lost and %d late", lost, slow)
	}
}

func TestAScriptComesBeforeChance(t *testing.T) {
	n := simtest.NewNetwork(rand.New(rand.NewPCG(1, 2)), simtest.Span{From: time.Millisecond, To: 2 * time.Millisecond}, simtest.Faults{})
	n.Script(simtest.Message{Lost: true}, simtest.Message{Takes: time.Hour})
	if a, b, c := n.Message(), n.Message(), n.Message(); !a.Lost || b.Takes != time.Hour || c.Lost || c.Takes >= 2*time.Millisecond {
		t.Errorf("%+v, %+v, %+v", a, b, c)
	}
}
