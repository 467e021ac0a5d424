package health_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
)

func line(s *store) string {
	var list []v1alpha1.HealthEvent
	for _, e := range s.events {
		list = append(list, *e)
	}
	summary := health.Summarize(list)
	summary.Sort()
	return summary.Line(true)
}

func TestTheLineOfTheStatus(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "1 health event: 1 not seen by the coordinator since the last change (e1), see `ebb events`"},
		{func() {
			s.definition = health.Definition{Reason: health.WaitDefinition, Message: "There is no DrainRequest."}
		},
			"1 health event: 1 draining its node (e1: node n2: There is no DrainRequest), see `ebb events`"},
		{func() { s.send("e2", on("n3")) }, "2 health events: 1 draining its node (e1: node n2: There is no DrainRequest), 1 waiting (e2: node n3: At most 1 of 3 nodes may be cordoned at once, and these are: n2), see `ebb events`"},
		{func() {
			delete(s.events, "e2")
			s.definition = health.Definition{Ready: true}
			s.settle()
			s.say("drain-n2-e1", "DrainFailed", "True", "No")
		}, "1 health event: 1 with a failed drain (e1: node n2: DrainRequest drain-n2-e1: Its controller reported a failure: No. `ebb events retry e1` tries again), see `ebb events`"},
		{func() {
			s.send("h1", healthy)
			s.settle()
			s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
		}, "2 health events: all as they should be"},
	} {
		step.do()
		if !strings.HasPrefix(step.want, "1 health event: 1 not seen") {
			s.settle()
		}
		if got := line(s); got != step.want {
			t.Errorf("%s\nwant %s", got, step.want)
		}
	}
}

func TestMetricsAreNamedAsDocumented(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	health.NewMetrics(r)
	if n, err := testutil.GatherAndCount(r, "ebb_health_event_to_quarantine_seconds", "ebb_health_event_to_first_eviction_seconds", "ebb_health_event_to_drained_seconds"); err != nil || n != 3 {
		t.Errorf("%d, %v", n, err)
	}
}
