package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// costs are what the machine has spent: the processor time of each program in seconds, the requests that the API server has served, and how long it
// took for them in seconds.
type costs struct {
	at                          time.Time
	seconds, requests, duration map[string]float64
}

// costs reads them from /proc, for the programs that have the directory of the cluster or another one among their arguments, and from the metrics of
// the API server.
func (c *cluster) costs(dirs ...string) costs {
	c.t.Helper()
	spent := costs{time.Now(), map[string]float64{}, map[string]float64{}, map[string]float64{}}
	var own, children syscall.Rusage
	if err := errors.Join(syscall.Getrusage(syscall.RUSAGE_SELF, &own), syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)); err != nil {
		c.t.Fatal(err)
	}
	of := func(u syscall.Rusage) float64 { return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds() }
	spent.seconds["etcd and the test"], spent.seconds["kubectl"] = of(own), of(children)
	ours := func(args []byte) bool {
		return slices.ContainsFunc(append(dirs, string(c.dir)), func(dir string) bool { return bytes.Contains(args, []byte(dir)) })
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		args, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if err != nil || !ours(args) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(process, "stat"))
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
		spent.seconds[name] += (user + system) / 100
	}
	label := regexp.MustCompile(`(code|resource|subresource|verb)="([^"]*)"`)
	for line := range strings.Lines(c.serverMetrics()) {
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
			spent.duration[key] += value
		} else {
			spent.requests[key+failure(is["code"])] += value
		}
	}
	return spent
}

// serverMetrics are the metrics of the API server.
func (c *cluster) serverMetrics() string {
	c.t.Helper()
	cfg, err := kubeclient.Load(c.dir.Kubeconfig())
	if err != nil {
		c.t.Fatal(err)
	}
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	data, err := typed.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(data)
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
		who, all, wall, 100*all/wall/float64(runtime.NumCPU()), runtime.NumCPU(), 100*(c.apiServer()-before.apiServer())/wall, strings.TrimSpace(string(load)))
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

// apiServer is the processor time of the API server.
func (c costs) apiServer() float64 {
	sum := 0.0
	for name, seconds := range c.seconds {
		if name == "kube-apiserver" || strings.HasPrefix(name, "ebb apiserver") {
			sum += seconds
		}
	}
	return sum
}

// all is the number of requests since.
func (c costs) all(before costs) float64 {
	sum := 0.0
	for key, now := range c.requests {
		if !strings.HasPrefix(key, "WATCH ") {
			sum += now - before.requests[key]
		}
	}
	return sum
}
