package coordinator

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// scenario plays in virtual time what a plan hits only by chance.
func scenario(t *testing.T, machines int, prepare, script func(*testing.T, *world)) {
	t.Helper()
	inBubble(t, plan{machines: machines, events: []event{{what: away}}}, broken{}, func(t *testing.T, w *world) {
		prepare(t, w)
		w.boot()
		script(t, w)
		w.end()
		for which, text := range w.referee.Breaches() {
			t.Errorf("%s: %s", which, text)
		}
	})
}

func (w *world) leading() *machine {
	for _, m := range w.machines {
		if p := m.current(); !p.isDead() && p.campaign.Leading() {
			return m
		}
	}
	return nil
}

func nothing(*testing.T, *world) {}

func TestAResignerWhoseReleaseWasLostLetsAnotherLead(t *testing.T) {
	for range 20 { // when the others look differs from play to play
		scenario(t, 2, nothing, func(t *testing.T, w *world) {
			time.Sleep(5 * time.Second)
			first := w.leading()
			w.running.Go(first.resign)
			w.store.leave(true)
			for w.leading() != nil {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(time.Second) // the release has failed
			w.store.leave(false)
			if NodeOf(w.store.leader()) != first.name {
				t.Fatal("the election was released")
			}
			for w.leading() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			if next := w.leading(); next == first {
				t.Errorf("%s leads again", first.name)
			}
		})
	}
}

func TestAKilledCoordinatorIsReplacedWithinTheLeaseAndASecond(t *testing.T) {
	var longest time.Duration
	for range 20 {
		scenario(t, 3, nothing, func(_ *testing.T, w *world) {
			time.Sleep(5 * time.Second)
			w.leading().become(event{what: killed})
			killedAt := time.Now()
			for w.leading() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			longest = max(longest, time.Since(killedAt))
		})
	}
	t.Logf("at most %s", longest)
	if longest > timing.Lost+time.Second {
		t.Errorf("it took %s", longest)
	}
}

func TestAnElectionWonUnknowinglyIsFreeToTheProcessThatWonIt(t *testing.T) {
	lost := func(_ *testing.T, w *world) {
		// Eligible, there is no Lease, and the answer to its creation gets lost.
		w.network.Script(simtest.Message{}, simtest.Message{}, simtest.Message{}, simtest.Message{}, simtest.Message{}, simtest.Message{Lost: true}) // the third answer
	}
	scenario(t, 1, lost, func(t *testing.T, w *world) {
		time.Sleep(100 * time.Millisecond)
		unknown := w.store.leader()
		w.machines[0].current().signal() // a watch that makes the elector begin anew
		time.Sleep(time.Second)
		if leader := w.store.leader(); unknown == "" || leader == unknown || w.leading() == nil {
			t.Errorf("%q was elected first, then %q", unknown, leader)
		}
	})
}

func TestANodeWhoseTermFailsLetsAnotherLead(t *testing.T) {
	var tries atomic.Int32
	fails := func(_ *testing.T, w *world) {
		w.machines[0].current().campaign.work = func(*Term) error {
			tries.Add(1)
			return errors.New("no port is free")
		}
		w.machines[1].become(event{what: drained})
	}
	scenario(t, 2, fails, func(t *testing.T, w *world) {
		time.Sleep(time.Minute)
		if n := tries.Load(); n < 5 || n > 8 {
			t.Errorf("the failing term was tried %d times in a minute", n)
		}
		w.machines[1].recover(event{what: drained})
		time.Sleep(20 * time.Second)
		if w.leading() != w.machines[1] {
			t.Errorf("%s leads", w.store.leader())
		}
	})
}

func TestEveryValidTimingMakesAnElection(t *testing.T) {
	ms := func(t *rapid.T, what string, low, high int) time.Duration {
		return time.Duration(rapid.IntRange(low, high).Draw(t, what)) * time.Millisecond
	}
	rapid.Check(t, func(t *rapid.T) {
		timing := lease.Timing{Renew: ms(t, "renew", 1, 5000)}
		timing.Timeout = ms(t, "timeout", 1, int(timing.Renew/time.Millisecond))
		timing.Fence = timing.Renew + timing.Timeout + ms(t, "fence", 0, 5000)
		timing.Dead = timing.Fence + ms(t, "dead", 1, 5000)
		timing.Lost = (timing.Dead + time.Second).Truncate(time.Second) + time.Duration(rapid.IntRange(0, 5).Draw(t, "lost"))*time.Second
		if err := timing.Validate(); err != nil {
			t.Fatalf("%+v: %v", timing, err)
		}
		c := newCampaign(Options{Timing: timing}, nil)
		config := c.electorConfig("n/1/x", func() bool { return true }, leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {},
		})
		if _, err := leaderelection.NewLeaderElector(config); err != nil {
			t.Errorf("%+v: %v", timing, err)
		}
		if config.LeaseDuration < timing.Dead || config.LeaseDuration > timing.Lost {
			t.Errorf("%+v: an election lasts %s", timing, config.LeaseDuration)
		}
	})
}

func TestACampaignKnowsItsFormerIdentitiesFromThoseOfOthers(t *testing.T) {
	scenario(t, 2, nothing, func(t *testing.T, w *world) {
		time.Sleep(5 * time.Second)
		mine, other := w.machines[0].current().campaign, w.machines[1].current().campaign
		former := strings.TrimSuffix(mine.identity, "1") + "0"
		for identity, want := range map[string]bool{"": false, mine.identity: false, other.identity: false, former: true} {
			if got := mine.isFormer(identity); got != want {
				t.Errorf("%q is former: %v", identity, got)
			}
		}
	})
}
