package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// BenchmarkPods drains nodes of their pods with `kubectl drain`, one process for each node, and with Ebb, one after the other on the same API
// server, and compares them. The pods end at once, so that what is measured is the evictions.
func BenchmarkPods(b *testing.B) {
	k := startKubernetesWith(b, testenv.EbbPlain(b), "k1")
	k.runUp(2, "--kubeconfig", k.dir.Kubeconfig())
	kubectl := testenv.Kubectl(b)
	for _, size := range []struct{ nodes, pods int }{{1, 500}, {100, 15}} {
		b.Run(fmt.Sprintf("%d-nodes-of-%d-pods", size.nodes, size.pods), func(b *testing.B) {
			k.t = b
			var theirs, ours, first time.Duration
			var latency [2]float64
			for round := 0; b.Loop(); round++ {
				b.StopTimer()
				nodes := k.fill(fmt.Sprintf("their%d-%d", size.nodes, round), size.nodes, size.pods)
				before, costs := k.evictionLatency(), k.costs(filepath.Dir(k.kube.Kubeconfig()))
				theirs = k.kubectlDrains(kubectl, nodes)
				latency[0] = before.until(k.evictionLatency())
				now := k.costs(filepath.Dir(k.kube.Kubeconfig()))
				now.since("kubectl", costs)
				now.latency("kubectl", costs)
				nodes = k.fill(fmt.Sprintf("our%d-%d", size.nodes, round), size.nodes, size.pods)
				before, costs = k.evictionLatency(), k.costs(filepath.Dir(k.kube.Kubeconfig()))
				b.StartTimer()
				ours, first = k.ebbDrains(nodes)
				b.StopTimer()
				latency[1] = before.until(k.evictionLatency())
				now = k.costs(filepath.Dir(k.kube.Kubeconfig()))
				now.since("ebb", costs)
				now.latency("ebb", costs)
				b.StartTimer()
			}
			b.ReportMetric(theirs.Seconds()*1000, "kubectl-ms")
			b.ReportMetric(ours.Seconds()*1000, "ebb-ms")
			b.ReportMetric(theirs.Seconds()/ours.Seconds(), "times-faster")
			b.ReportMetric(float64(size.nodes)/ours.Seconds(), "nodes/s")
			b.ReportMetric(float64(size.nodes*size.pods)/ours.Seconds(), "evictions/s")
			b.ReportMetric(first.Seconds()*1000, "ms-to-first-eviction")
			b.ReportMetric(latency[0], "apiserver-ms/eviction(kubectl)")
			b.ReportMetric(latency[1], "apiserver-ms/eviction(ebb)")
		})
	}
	k.t = b
}

// BenchmarkPodsMemory is what the coordinator weighs while 100 nodes drain, whose pods cannot leave, in a cluster of EBB_BENCH_PODS pods
// (100,000 unless set).
func BenchmarkPodsMemory(b *testing.B) {
	many := 100000
	if text := os.Getenv("EBB_BENCH_PODS"); text != "" {
		var err error
		if many, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	k := startKubernetesWith(b, testenv.EbbPlain(b), "k1")
	k.runUp(2, "--kubeconfig", k.dir.Kubeconfig())
	ctx := context.Background()
	// The scheduler does not look at these, nor does KWOK: they are objects of the API.
	k.each(many, func(i int) error {
		return k.client.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("idle%d", i), Labels: map[string]string{"app": "idle"}},
			Spec:       corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "ebb.dev/idle"}}, Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		})
	})
	nodes := k.fill("hold", 100, 15, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(3600)) })
	leader := k.awaitLeader("")
	for b.Loop() {
		before := k.resident(b, leader)
		k.requestDrains(nodes)
		until(b, "all pods to be terminating", func() bool {
			for _, d := range k.drainsOf(nodes) {
				if d.Status.Pods == nil || d.Status.Pods.Terminating < 15 {
					return false
				}
			}
			return true
		})
		b.ReportMetric(before, "MiB-before")
		b.ReportMetric(k.resident(b, leader), "MiB-while-draining")
	}
}

// each calls do for 0 to n-1, several at once.
func (k *installation) each(n int, do func(int) error) {
	k.t.Helper()
	var all sync.WaitGroup
	places := make(chan struct{}, 32)
	for i := range n {
		places <- struct{}{}
		all.Add(1)
		go func() {
			defer func() { <-places; all.Done() }()
			for attempt := 0; ; attempt++ {
				err := do(i)
				if err == nil || apierrors.IsAlreadyExists(err) {
					return
				}
				if attempt == 20 {
					k.t.Error(err)
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}()
	}
	all.Wait()
}

// fill makes nodes with running pods.
func (k *installation) fill(prefix string, nodes, pods int, change ...func(*corev1.Pod)) []string {
	k.t.Helper()
	ctx := context.Background()
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("%s-%d", prefix, i))
	}
	k.each(nodes, func(i int) error {
		return k.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: names[i], Labels: map[string]string{corev1.LabelHostname: names[i]}}})
	})
	k.each(nodes*pods, func(i int) error {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-p%d", prefix, i), Labels: map[string]string{"fill": prefix}},
			Spec:       corev1.PodSpec{NodeName: names[i%nodes], TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		}
		for _, f := range change {
			f(p)
		}
		return k.client.Create(ctx, p)
	})
	until(k.t, "all pods to run", func() bool {
		var list corev1.PodList
		if err := k.client.List(ctx, &list, client.InNamespace("default"), client.MatchingLabels{"fill": prefix}); err != nil {
			return false
		}
		return len(list.Items) == nodes*pods && !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.Status.Phase != corev1.PodRunning })
	})
	return names
}

// kubectlDrains runs kubectl drain for all nodes at once. It needs --force for pods without a controller, which costs it nothing.
func (k *installation) kubectlDrains(kubectl string, nodes []string) time.Duration {
	k.t.Helper()
	began := time.Now()
	var all sync.WaitGroup
	for _, node := range nodes {
		all.Add(1)
		go func() {
			defer all.Done()
			out, err := exec.Command(kubectl, "--kubeconfig", k.dir.Kubeconfig(), "drain", node, "--force", "--ignore-daemonsets").CombinedOutput()
			if err != nil {
				k.t.Errorf("kubectl drain %s: %v\n%s", node, err, out)
			}
		}()
	}
	all.Wait()
	return time.Since(began)
}

func (k *installation) requestDrains(nodes []string) {
	k.each(len(nodes), func(i int) error {
		return k.client.Create(context.Background(), &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "of-" + nodes[i]}, Spec: v1alpha1.DrainSpec{NodeName: nodes[i]}})
	})
}

func (k *installation) drainsOf(nodes []string) []v1alpha1.Drain {
	var list v1alpha1.DrainList
	if err := k.client.List(context.Background(), &list); err != nil {
		k.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(d v1alpha1.Drain) bool { return !slices.Contains(nodes, d.Spec.NodeName) })
}

// ebbDrains asks for drains of all nodes at once, and waits until all are Complete. It returns how long that took, and how long the first
// eviction of the first node took.
func (k *installation) ebbDrains(nodes []string) (took, first time.Duration) {
	k.t.Helper()
	var ended []*v1alpha1.Drain
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// A watch, since lists of so many drains would be a good part of what the API server does.
	began := time.Now()
	left := map[string]bool{}
	for _, name := range nodes {
		left[name] = true
	}
	go k.requestDrains(nodes)
	for len(left) > 0 {
		watched, err := k.client.Watch(ctx, &v1alpha1.DrainList{})
		if err != nil {
			k.t.Fatalf("waiting for all drains to be Complete, %d are left: %v", len(left), err)
		}
		for change := range watched.ResultChan() { // the client ends it after a while
			if d, ok := change.Object.(*v1alpha1.Drain); ok && d.Status.Phase == v1alpha1.DrainComplete && left[d.Spec.NodeName] {
				delete(left, d.Spec.NodeName)
				ended = append(ended, d)
			}
			if len(left) == 0 {
				watched.Stop()
				break
			}
		}
	}
	took = time.Since(began)
	for _, d := range ended {
		if at := d.Status.Pods.FirstEvictionAt; at != nil && (first == 0 || at.Sub(began) < first) {
			first = at.Sub(began)
		}
	}
	return took, first
}

// served is how many evictions an API server has served, and for how long.
type served struct{ seconds, count float64 }

// until is the mean time of an eviction since, in milliseconds.
func (s served) until(now served) float64 {
	return 1000 * (now.seconds - s.seconds) / max(now.count-s.count, 1)
}

// evictionLatency reads the metrics of the API server.
func (k *installation) evictionLatency() (s served) {
	k.t.Helper()
	for line := range strings.Lines(k.serverMetrics()) {
		if !strings.Contains(line, `subresource="eviction"`) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		switch {
		case err != nil:
		case strings.HasPrefix(line, "apiserver_request_duration_seconds_sum{"):
			s.seconds += value
		case strings.HasPrefix(line, "apiserver_request_duration_seconds_count{"):
			s.count += value
		}
	}
	return s
}
