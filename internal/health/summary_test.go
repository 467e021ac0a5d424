package health_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// A Drain that moves pods is created long before a pod is evicted, if it waits for its turn or for budgets.
func TestTheFirstEvictionIsThatOfAPod(t *testing.T) {
	at := time.Date(2026, 11, 18, 12, 0, 0, 0, time.UTC)
	before := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at)}}
	begun := before.DeepCopy()
	begun.Status.Drain = &v1alpha1.HealthDrain{Name: "d", UID: "uid-d"}
	ended := begun.DeepCopy()
	ended.Status.Drain.Phase = v1alpha1.DrainComplete
	resource := begun.DeepCopy()
	resource.Status.CustomResource = &v1alpha1.CustomResource{UID: "uid-r"}
	d := &v1alpha1.Drain{}
	d.Status.Pods = &v1alpha1.PodsStatus{FirstEvictionAt: &metav1.MicroTime{Time: at.Add(7 * time.Second)}}
	for name, c := range map[string]struct {
		pods bool
		see  func(m *health.Metrics, pods bool)
		want string
	}{
		"pods": {true, func(m *health.Metrics, pods bool) {
			m.See(before, begun, pods, nil, at.Add(time.Second))
			m.See(begun, ended, pods, d, at.Add(time.Minute))
		}, "7"},
		"no pod was there": {true, func(m *health.Metrics, pods bool) {
			m.See(before, begun, pods, nil, at.Add(time.Second))
			m.See(begun, ended, pods, &v1alpha1.Drain{}, at.Add(time.Minute))
		}, ""},
		"a home without pods": {false, func(m *health.Metrics, pods bool) {
			m.See(before, begun, pods, nil, at.Add(time.Second))
			m.See(begun, ended, pods, &v1alpha1.Drain{}, at.Add(time.Minute))
		}, "1"},
		"a custom resource": {false, func(m *health.Metrics, pods bool) { m.See(before, resource, pods, nil, at.Add(2*time.Second)) }, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := prometheus.NewPedanticRegistry()
			c.see(health.NewMetrics(r), c.pods)
			families, err := r.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, f := range families {
				if f.GetName() == "ebb_health_event_to_first_eviction_seconds" {
					if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() > 0 {
						got = fmt.Sprint(h.GetSampleSum())
					}
				}
			}
			if got != c.want {
				t.Errorf("measured %q s, want %q", got, c.want)
			}
		})
	}
}
