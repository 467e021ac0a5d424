package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// An API server that is restarted within the lease, in order or after kill -9, stops no program: with the timing that people have, every
// deployment and daemon is the same process afterwards, as its own diary says.
func TestARestartOfTheAPIServerStopsNothing(t *testing.T) {
	beside(t, heavy)
	f := &fleetOfPrograms{cluster: newCluster(t, testenv.EbbPlain(t)), dir: t.TempDir()}
	f.timing = lease.DefaultTiming()
	startNodes(t, f.cluster, 3)
	restartedServer(t, f, 2)
}

// BenchmarkARestartOfTheAPIServer measures for how long the API is away when its server is restarted with programs in the cluster.
func BenchmarkARestartOfTheAPIServer(b *testing.B) {
	f := &fleetOfPrograms{cluster: newCluster(b, testenv.EbbPlain(b)), dir: b.TempDir()}
	startNodes(b, f.cluster, 3)
	for name, away := range restartedServer(b, f, 5) {
		slices.Sort(away)
		b.ReportMetric(float64(away[len(away)/2].Milliseconds()), name+"-ms")
		b.ReportMetric(float64(away[len(away)-1].Milliseconds()), name+"-max-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// restartedServer restarts the API server a few times in each way and returns for how long the API was away. A machine that is too busy to start a
// server within the time that the lease leaves says nothing about programs: such a restart is made again.
func restartedServer(t testing.TB, f *fleetOfPrograms, times int) map[string][]time.Duration {
	const programs, attempts = 12, 5
	for i := range manyDaemons {
		f.create(f.program(fmt.Sprintf("daemon%d", i), v1alpha1.TypeDaemon))
	}
	for i := range programs {
		f.create(f.program(programName(i), v1alpha1.TypeDeployment))
	}
	f.allRun(trio...)
	all := map[string][]time.Duration{}
	for name, signal := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL} {
		for good, tried := 0, 0; good < times; tried++ {
			if tried == times+attempts {
				t.Fatalf("%s: the API was away for longer than %s again and again: %v", name, f.timing.Outage(), all[name])
			}
			before, epochs := f.runs(), f.epochs()
			away := f.restartServer(signal)
			all[name] = append(all[name], away)
			time.Sleep(f.timing.Lost) // whatever ends for lack of a lease has ended
			f.allRun(trio...)
			after := f.runs()
			t.Logf("%s: the API was away for %s; epochs were %v and are %v", name, away.Round(time.Millisecond), epochs, f.epochs())
			if away > f.timing.Outage() {
				continue
			}
			good++
			for who, run := range before {
				if after[who] != run {
					t.Errorf("%s, the API away for %s: %s was the process %s and is %s", name, away, who, run, after[who])
				}
			}
		}
	}
	f.neverTwice()
	return all
}

// runs are the last runs of all programs: the process ID and the start time of each, by name, and for daemons by node.
func (f *fleetOfPrograms) runs() map[string]string {
	runs := map[string]string{}
	for _, e := range f.diary() {
		who := e.name
		if strings.HasPrefix(who, "daemon") {
			who += "@" + e.node
		}
		runs[who] = e.node + "/" + e.run
	}
	return runs
}

func (f *fleetOfPrograms) epochs() []int64 {
	var list []int64
	for _, name := range trio {
		list = append(list, f.record(name).Epoch)
	}
	return list
}

// restartServer ends the API server by a signal, starts it again at once, and returns the time from its last answer to its next.
func (f *fleetOfPrograms) restartServer(signal syscall.Signal) time.Duration {
	f.t.Helper()
	answers := f.listenForAnswers()
	defer answers.stop()
	pid, signalled := f.pid("apiserver"), time.Now()
	f.signal("apiserver", signal)
	for syscall.Kill(pid, 0) == nil {
		time.Sleep(time.Millisecond)
	}
	ended := time.Now()
	f.startServer()
	until(f.t, "an answer of the restarted server", func() bool { return answers.lastAfter(ended) })
	return answers.longestSince(signalled)
}

// answers are the times at which the API answered.
type answers struct {
	stop func()

	mu    sync.Mutex
	times []time.Time
}

// listenForAnswers reads a Lease again and again, as soon as the last read has ended.
func (f *fleetOfPrograms) listenForAnswers() *answers {
	f.t.Helper()
	cfg, err := kubeclient.Load(f.cluster.dir.Kubeconfig())
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := kubeclient.New(kubeclient.ForRenewals(cfg))
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	a := &answers{stop: func() { cancel(); <-ended }}
	key := types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(trio[0])}
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			ask, done := context.WithTimeout(ctx, f.timing.Timeout)
			if c.Get(ask, key, &coordinationv1.Lease{}) == nil {
				a.mu.Lock()
				a.times = append(a.times, time.Now())
				a.mu.Unlock()
			}
			done()
			time.Sleep(20 * time.Millisecond)
		}
	}()
	until(f.t, "the first answer", func() bool { return a.lastAfter(time.Time{}) })
	return a
}

func (a *answers) lastAfter(t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.times) > 0 && a.times[len(a.times)-1].After(t)
}

// longestSince is the longest time between two answers of which the second came after t.
func (a *answers) longestSince(t time.Time) (longest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := 1; i < len(a.times); i++ {
		if a.times[i].After(t) {
			longest = max(longest, a.times[i].Sub(a.times[i-1]))
		}
	}
	return longest
}
