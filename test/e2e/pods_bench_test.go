package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
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
	k.runUp(2, "--kubeconfig", k.kube.Kubeconfig())
	kubectl := testenv.Kubectl(b)
	for _, size := range []struct{ nodes, pods int }{{1, 500}, {100, 15}} {
		b.Run(fmt.Sprintf("%d-nodes-of-%d-pods", size.nodes, size.pods), func(b *testing.B) {
			k.t = b
			var theirs, ours, first time.Duration
			var latency [2]float64
			for round := 0; b.Loop(); round++ {
				b.StopTimer()
				nodes := k.fill(fmt.Sprintf("their%d-%d", size.nodes, round), size.nodes, size.pods)
				before, costs := k.evictionLatency(), k.costs()
				theirs = k.kubectlDrains(kubectl, nodes)
				latency[0] = before.until(k.evictionLatency())
				now := k.costs()
				now.since("kubectl", costs)
				now.latency("kubectl", costs)
				nodes = k.fill(fmt.Sprintf("our%d-%d", size.nodes, round), size.nodes, size.pods)
				before, costs = k.evictionLatency(), k.costs()
				b.StartTimer()
				ours, first = k.ebbDrains(nodes)
				b.StopTimer()
				latency[1] = before.until(k.evictionLatency())
				now = k.costs()
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
	k.runUp(2, "--kubeconfig", k.kube.Kubeconfig())
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
	data, err := k.typed.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(context.Background())
	if err != nil {
		k.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
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

// costs are what the machine has spent: the processor time of each program in seconds, the requests that the API server has served, and how long it
// took for them in seconds.
type costs struct {
	at                          time.Time
	seconds, requests, duration map[string]float64
}

// costs reads them from /proc and from the metrics of the API server.
func (k *installation) costs() costs {
	k.t.Helper()
	c := costs{time.Now(), map[string]float64{}, map[string]float64{}, map[string]float64{}}
	var own, children syscall.Rusage
	if err := errors.Join(syscall.Getrusage(syscall.RUSAGE_SELF, &own), syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)); err != nil {
		k.t.Fatal(err)
	}
	of := func(u syscall.Rusage) float64 { return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds() }
	c.seconds["etcd and the test"], c.seconds["kubectl"] = of(own), of(children)
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(args, []byte(k.dir)) && !bytes.Contains(args, []byte(filepath.Dir(k.kube.Kubeconfig()))) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		words := strings.Split(string(args), "\x00")
		name := filepath.Base(words[0])
		if name == "ebb-plain" {
			name = "ebb " + words[1] + " " + words[2]
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		user, _ := strconv.ParseFloat(fields[11], 64)
		system, _ := strconv.ParseFloat(fields[12], 64)
		c.seconds[name] += (user + system) / 100
	}
	data, err := k.typed.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(context.Background())
	if err != nil {
		k.t.Fatal(err)
	}
	label := regexp.MustCompile(`(code|resource|subresource|verb)="([^"]*)"`)
	for line := range strings.Lines(string(data)) {
		served, took := strings.HasPrefix(line, "apiserver_request_total{"), strings.HasPrefix(line, "apiserver_request_duration_seconds_sum{")
		if !served && !took {
			continue
		}
		is := map[string]string{}
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			is[m[1]] = m[2]
		}
		fields := strings.Fields(line)
		value, _ := strconv.ParseFloat(fields[len(fields)-1], 64)
		key := strings.TrimSuffix(is["verb"]+" "+is["resource"]+"/"+is["subresource"], "/")
		if took {
			c.duration[key] += value
		} else {
			c.requests[key+failure(is["code"])] += value
		}
	}
	return c
}

// latency prints the mean time that the API server took for each kind of request since, the ones that took most in all first, and how much of the
// processors everything together used: if that is nearly all, they are what bounds it.
func (c costs) latency(who string, before costs) {
	spent, count := map[string]float64{}, map[string]float64{}
	for key, now := range c.duration {
		if !strings.HasPrefix(key, "WATCH ") && now > before.duration[key] {
			spent[key] = now - before.duration[key]
		}
	}
	for key, now := range c.requests {
		words := strings.Fields(key)
		count[strings.Join(words[:min(2, len(words))], " ")] += now - before.requests[key]
	}
	var parts []string
	for _, key := range slices.SortedFunc(maps.Keys(spent), func(a, b string) int { return cmp.Compare(spent[b], spent[a]) }) {
		if count[key] > 0 && len(parts) < 8 {
			parts = append(parts, fmt.Sprintf("%s %.0f", key, 1000*spent[key]/count[key]))
		}
	}
	var all float64
	for key, now := range c.seconds {
		all += now - before.seconds[key]
	}
	wall := c.at.Sub(before.at).Seconds()
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Fprintf(os.Stderr, "%s: ms of the API server for a request: %s\n", who, strings.Join(parts, ", "))
	fmt.Fprintf(os.Stderr, "%s: %.1f s of processor in %.1f s, %.0f%% of %d processors; the API server had %.0f%% of one; load average %s\n",
		who, all, wall, 100*all/wall/float64(runtime.NumCPU()), runtime.NumCPU(), 100*(c.seconds["kube-apiserver"]-before.seconds["kube-apiserver"])/wall, strings.TrimSpace(string(load)))
}

// failure is the code of an answer that is no success.
func failure(code string) string {
	if strings.HasPrefix(code, "2") || code == "0" {
		return ""
	}
	return " " + code
}

// since prints what was spent since, the most first. A benchmark's own log has ten lines.
func (c costs) since(who string, before costs) {
	for name, of := range map[string][2]map[string]float64{"seconds of processor": {before.seconds, c.seconds}, "requests": {before.requests, c.requests}} {
		spent := map[string]float64{}
		for key, now := range of[1] {
			if now-of[0][key] >= 0.1 {
				spent[key] = now - of[0][key]
			}
		}
		var parts []string
		for _, key := range slices.SortedFunc(maps.Keys(spent), func(a, b string) int { return cmp.Or(cmp.Compare(spent[b], spent[a]), cmp.Compare(a, b)) }) {
			parts = append(parts, fmt.Sprintf("%s %.1f", key, spent[key]))
		}
		fmt.Fprintf(os.Stderr, "%s: %s: %s\n", who, name, strings.Join(parts, ", "))
	}
}
