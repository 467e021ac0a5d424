package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
		created := time.Since(began) // the time in the resource is in seconds
		quarantine, resource = append(quarantine, s.event(id).Status.QuarantinedAt.Sub(began)), append(resource, created)
		b.StopTimer()
		s.well("h"+id, target, "Xid")
		until(b, "the end", func() bool { return s.event(id).Status.ClosedAt != nil })
		s.recovers(target)
		b.StartTimer()
	}
	b.ReportMetric(float64(median(quarantine).Milliseconds()), "ms-to-quarantine(p50)")
	b.ReportMetric(float64(median(resource).Milliseconds()), "ms-to-resource(p50)")
}

// BenchmarkHealthEventToEviction measures from the creation of an event about a core Node without a process of Ebb until its pod is evicted, and
// until the event says that the node is drained.
func BenchmarkHealthEventToEviction(b *testing.B) {
	k := startKubernetesWith(b, testenv.EbbPlain(b), "k1")
	k.runUp(2, "--kubeconfig", k.dir.Kubeconfig())
	ctx := context.Background()
	var quarantined, begun, first, drained []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		node := k.fill(fmt.Sprintf("sick%d", i), 1, 1)[0]
		b.StartTimer()
		began := time.Now()
		e := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)}, Spec: v1alpha1.HealthEventSpec{NodeName: node, CheckName: "Xid", IsFatal: true}}
		if err := k.client.Create(ctx, e); err != nil {
			b.Fatal(err)
		}
		until(b, "the node to be drained", func() bool {
			err := k.client.Get(ctx, client.ObjectKeyFromObject(e), e)
			return err == nil && e.Status.UserPodsEvictionStatus != nil && e.Status.UserPodsEvictionStatus.Status == v1alpha1.EvictionSucceeded
		})
		drained = append(drained, e.Status.UserPodsEvictionStatus.FinishedAt.Sub(began))
		d := k.drainsOf([]string{node})[0]
		quarantined, begun = append(quarantined, e.Status.QuarantinedAt.Sub(began)), append(begun, d.Status.Pods.StartedAt.Sub(began))
		first = append(first, d.Status.Pods.FirstEvictionAt.Sub(began))
		b.StopTimer()
		if err := k.client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); err != nil {
			b.Fatal(err)
		}
		until(b, "the event to end with its node", func() bool {
			return k.client.Get(ctx, client.ObjectKeyFromObject(e), e) == nil && e.Status.ClosedAt != nil
		})
		b.StartTimer()
	}
	b.ReportMetric(float64(median(quarantined).Milliseconds()), "ms-to-quarantine(p50)")
	b.ReportMetric(float64(median(begun).Milliseconds()), "ms-to-begin(p50)")
	b.ReportMetric(float64(median(first).Milliseconds()), "ms-to-first-eviction(p50)")
	b.ReportMetric(float64(median(drained).Milliseconds()), "ms-to-drained(p50)")
}

// BenchmarkHealthEventNodes measures how fast many sick nodes are emptied: one event for each of a hundred core Nodes with one pod, until every event
// says that its node is drained. The share of nodes that may be quarantined at once is not what limits it.
func BenchmarkHealthEventNodes(b *testing.B) {
	const nodes = 100
	file := filepath.Join(b.TempDir(), "drain.toml")
	if err := os.WriteFile(file, []byte("[[userNamespaces]]\nname = \"*\"\nmode = \"Immediate\"\n[quarantine]\nmaxShare = \"100%\"\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	k := startKubernetesWith(b, testenv.EbbPlain(b), "k1")
	k.runUp(2, "--kubeconfig", k.dir.Kubeconfig(), "--drain-config", file)
	ctx := context.Background()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		names := k.fill(fmt.Sprintf("sick%d", i), nodes, 1)
		b.StartTimer()
		began := time.Now()
		k.each(nodes, func(n int) error {
			return k.client.Create(ctx, &v1alpha1.HealthEvent{
				ObjectMeta: metav1.ObjectMeta{Name: names[n]}, Spec: v1alpha1.HealthEventSpec{NodeName: names[n], CheckName: "Xid", IsFatal: true},
			})
		})
		list := &v1alpha1.HealthEventList{}
		until(b, "all nodes to be drained", func() bool {
			done := func(e v1alpha1.HealthEvent) bool {
				return e.Status.UserPodsEvictionStatus != nil && e.Status.UserPodsEvictionStatus.Status == v1alpha1.EvictionSucceeded
			}
			return k.client.List(ctx, list) == nil && len(list.Items) >= nodes && !slices.ContainsFunc(list.Items, func(e v1alpha1.HealthEvent) bool {
				return slices.Contains(names, e.Spec.NodeName) && !done(e)
			})
		})
		took, last := time.Since(began), began
		for _, e := range list.Items {
			if at := e.Status.UserPodsEvictionStatus.FinishedAt; slices.Contains(names, e.Spec.NodeName) && at.After(last) {
				last = at.Time
			}
		}
		if last.After(began) && last.Sub(began) < took {
			took = last.Sub(began)
		}
		var first []time.Duration
		for _, d := range k.drainsOf(names) {
			first = append(first, d.Status.Pods.FirstEvictionAt.Sub(began))
		}
		b.ReportMetric(nodes/took.Seconds(), "nodes/s")
		b.ReportMetric(float64(median(first).Milliseconds()), "ms-to-first-eviction(p50)")
		b.ReportMetric(float64(slices.Max(first).Milliseconds()), "ms-to-first-eviction(max)")
		b.StopTimer()
		for _, name := range names {
			if err := k.client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
}

func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// BenchmarkHealthEvents sends ten events for each of many nodes in one post, and measures until every event has an effect or waits by name, and what
// that costs: requests and processor time of the API server. The nodes have no process: what is measured is the handling of events. Each round has a
// cluster of its own, because events that are stored already make the next ones more expensive.
func BenchmarkHealthEvents(b *testing.B) {
	for _, nodes := range []int{10, 50, 100, 500} {
		b.Run(fmt.Sprintf("%d-events", 10*nodes), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				c := newCluster(b, testenv.EbbPlain(b))
				s := startSick(b, c, "1h")
				s.kubectl("apply", "-f", customCRD)
				s.awaitLeader("")
				for i := range nodes {
					if err := s.client.Create(context.Background(), &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}}); err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(2 * time.Second) // as long as the server delays objects of a kind that is new
				before := s.costs()
				b.StartTimer()
				s.postMany(b, nodes)
				b.StopTimer()
				now := s.costs()
				now.since(b.Name(), before)
				now.latency(b.Name(), before)
				b.ReportMetric(now.all(before)/float64(10*nodes), "requests/event")
				b.ReportMetric(1000*(now.apiServer()-before.apiServer())/float64(10*nodes), "apiserver-cpu-ms/event")
				b.StartTimer()
			}
		})
	}
}

// postMany sends ten events for each of the nodes in one post, and waits until all are handled.
func (s *sick) postMany(b *testing.B, nodes int) {
	b.Helper()
	var events []v1alpha1.HealthEventSpec
	for i := range 10 * nodes {
		events = append(events, v1alpha1.HealthEventSpec{
			ID: fmt.Sprintf("e%d", i), NodeName: fmt.Sprintf("m%d", i%nodes), CheckName: fmt.Sprintf("check%d", i/nodes), IsFatal: true, Message: "it broke",
		})
	}
	body, err := json.Marshal(events)
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- s.awaitHandled(len(events)) }()
	if code, answer := s.send(s.token(), http.MethodPost, "/api/v2/healthevents", body); code != http.StatusAccepted {
		b.Fatalf("%d %s", code, answer)
	}
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-store")
	if err := <-done; err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms-to-decide")
}

// awaitHandled waits until so many events are admitted or wait at the limit. It watches them: lists of so many events would be a good part of what the
// API server does.
func (s *sick) awaitHandled(events int) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	known := map[string]bool{}
	for {
		watched, err := s.client.Watch(ctx, &v1alpha1.HealthEventList{})
		if err != nil {
			return fmt.Errorf("%d of %d events are handled: %w", len(known), events, err)
		}
		for change := range watched.ResultChan() { // the server ends it after a while
			if e, ok := change.Object.(*v1alpha1.HealthEvent); ok && (e.Status.NodeQuarantined != "" || health.StateReason(e) == health.WaitLimit) {
				known[e.Name] = true
			}
			if len(known) == events {
				watched.Stop()
				return nil
			}
		}
	}
}
