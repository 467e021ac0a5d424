package health_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
)

// flood sends ten events for each of many nodes as one post does: all have the same time, and they are stored a few at a time and in no order, while
// the coordinator already works on the first ones. It returns how often each action was taken.
func flood(s *store, nodes int) map[health.Action]int {
	taken, posted := map[health.Action]int{}, s.now
	order := rand.New(rand.NewPCG(1, 2)).Perm(10 * nodes)
	for len(order) > 0 || len(s.next()) > 0 {
		arrived := min(16, len(order))
		for _, i := range order[:arrived] {
			s.now = posted
			s.send(fmt.Sprintf("e%d", i), func(e *v1alpha1.HealthEvent) {
				e.Spec.NodeName, e.Spec.CheckName = fmt.Sprintf("n%d", 2+i%nodes), fmt.Sprintf("check%d", i/nodes)
			})
		}
		order = order[arrived:]
		for _, step := range s.next() {
			taken[step.Action]++
			s.take(step)
		}
	}
	return taken
}

// The events that wait for room are most of a flood. Each is written once, whatever becomes of the other nodes and in whatever order the events
// arrive: only the oldest one names the nodes that are cordoned, and is written again when they change.
func TestTheWritesOfAFloodGrowAsItsEventsDo(t *testing.T) {
	for _, nodes := range []int{10, 50} {
		s := newStore(nodes + 3).custom()
		taken := flood(s, nodes)
		waiting, rooms := 0, (nodes+3)/10
		for _, e := range s.events {
			if e.Status.NodeQuarantined == "" {
				waiting++
				s.is(t, e.Name, "", "", health.WaitLimit)
			}
		}
		if want := 10 * (nodes - rooms); waiting != want {
			t.Errorf("%d events of %d nodes wait, want %d", waiting, nodes, want)
		}
		if extra := taken[health.ActionWait] - waiting; extra > 10*rooms+2*len(s.events)/16 {
			t.Errorf("%d nodes: %d events wait and were written %d times: %v", nodes, waiting, taken[health.ActionWait], taken)
		}
		t.Logf("%d events: %v", len(s.events), taken)
	}
}
