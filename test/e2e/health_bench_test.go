package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// BenchmarkHealthEventToResource measures from the request of a detector until the cordon, and until the custom resource.
func BenchmarkHealthEventToResource(b *testing.B) {
	c := newCluster(b, testenv.EbbPlain(b))
	s := startSick(b, c, "1h")
	s.kubectl("apply", "-f", customCRD)
	target := others(trio, s.awaitLeader(""))[0]
	var quarantine, resource []time.Duration
	for i := 0; b.Loop(); i++ {
		id := fmt.Sprintf("e%d", i)
		began := time.Now()
		s.fatal(id, target, "Xid")
		until(b, "the resource", func() bool { cr := s.event(id).Status.CustomResource; return cr != nil && cr.UID != "" })
		e := s.event(id)
		quarantine, resource = append(quarantine, e.Status.QuarantinedAt.Sub(began)), append(resource, e.Status.CustomResource.CreatedAt.Sub(began))
		b.StopTimer()
		s.well("h"+id, target, "Xid")
		until(b, "the end", func() bool { return s.event(id).Status.ClosedAt != nil })
		s.recovers(target)
		b.StartTimer()
	}
	b.ReportMetric(float64(median(quarantine).Milliseconds()), "ms-to-quarantine(p50)")
	b.ReportMetric(float64(median(resource).Milliseconds()), "ms-to-resource(p50)")
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// BenchmarkHealthEvents sends ten events for each of many nodes in one post, and measures until every event has an effect or waits by name.
// The nodes have no process: what is measured is the handling of events.
func BenchmarkHealthEvents(b *testing.B) {
	for _, nodes := range []int{10, 50, 100} {
		b.Run(fmt.Sprintf("%d-events", 10*nodes), func(b *testing.B) {
			c := newCluster(b, testenv.EbbPlain(b))
			s := startSick(b, c, "1h")
			s.kubectl("apply", "-f", customCRD)
			s.awaitLeader("")
			ctx := context.Background()
			for i := range nodes {
				if err := s.client.Create(ctx, &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}}); err != nil {
					b.Fatal(err)
				}
			}
			for round := 0; b.Loop(); round++ {
				var events []v1alpha1.HealthEventSpec
				for i := range 10 * nodes {
					events = append(events, v1alpha1.HealthEventSpec{
						ID: fmt.Sprintf("e%d-%d", round, i), NodeName: fmt.Sprintf("m%d", i%nodes), CheckName: fmt.Sprintf("check%d", i/nodes), IsFatal: true, Message: "it broke",
					})
				}
				body, err := json.Marshal(events)
				if err != nil {
					b.Fatal(err)
				}
				began := time.Now()
				if code, answer := s.send(s.token(), http.MethodPost, "/api/v2/healthevents", body); code != http.StatusAccepted {
					b.Fatalf("%d %s", code, answer)
				}
				posted := time.Since(began)
				until(b, "every event to be handled", func() bool {
					var list v1alpha1.HealthEventList
					if err := s.client.List(ctx, &list); err != nil {
						return false
					}
					return !slices.ContainsFunc(list.Items, func(e v1alpha1.HealthEvent) bool {
						return e.Status.NodeQuarantined == "" && health.StateReason(&e) != health.WaitLimit
					})
				})
				b.ReportMetric(float64(posted.Milliseconds()), "ms-to-store")
				b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-decide")
			}
		})
	}
}
