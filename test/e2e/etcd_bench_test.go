package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// BenchmarkEtcdStopAndStart stops and starts three members with 100 MB of data, and tells where the time goes.
func BenchmarkEtcdStopAndStart(b *testing.B) {
	for _, policy := range []v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain} {
		b.Run(string(policy), func(b *testing.B) {
			c := startCluster(b, testenv.EbbPlain(b), 3)
			e := c.createEtcd("big", 3, func(s *v1alpha1.EtcdClusterSpec) { s.Storage.OnStop = policy })
			e.settle(3)
			e.fill(100)
			took := map[string]time.Duration{}
			for b.Loop() {
				e.timed(took, "stop", 0)
				e.timed(took, "start", 3)
			}
			for name, d := range took {
				b.ReportMetric(d.Seconds()/float64(b.N), name+"-s")
			}
		})
	}
}

// fill writes megabytes in pieces of 10 kB.
func (e *etcdUnderTest) fill(megabytes int) {
	e.t.Helper()
	value := strings.Repeat("x", 10_000)
	cl := e.connectEtcd()
	defer cl.Close()
	var wg sync.WaitGroup
	for part := range 10 {
		wg.Go(func() {
			for i := range megabytes * 10 {
				if _, err := cl.Put(context.Background(), fmt.Sprintf("big/%d/%d", part, i), value); err != nil {
					e.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// timed brings the cluster to a size and adds how long that took, as a whole and by what it was at.
func (e *etcdUnderTest) timed(took map[string]time.Duration, name string, size int32) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w, err := e.client.Watch(ctx, &v1alpha1.EtcdClusterList{}, client.InNamespace(e.key.Namespace))
	if err != nil {
		e.t.Fatal(err)
	}
	defer w.Stop()
	e.want(size)
	began := time.Now()
	last, at := began, "asked"
	for event := range w.ResultChan() {
		ec, ok := event.Object.(*v1alpha1.EtcdCluster)
		if !ok || ec.Name != e.key.Name || int32(ec.Size()) != size {
			continue
		}
		done := ec.Status.ObservedGeneration == ec.Generation && (ec.Status.Phase == v1alpha1.EtcdClusterPhaseStopped && size == 0 ||
			ec.Status.Phase == v1alpha1.EtcdClusterPhaseRunning && size > 0)
		if is := part(ec); is != at || done {
			took[name+"-"+at] += time.Since(last)
			last, at = time.Now(), is
		}
		if done {
			break
		}
	}
	took[name] += time.Since(began)
}

// part says what a cluster that stops or starts is at.
func part(ec *v1alpha1.EtcdCluster) string {
	switch {
	case ec.Status.Stop != nil:
		return strings.ToLower(string(ec.Status.Stop.Step))
	case ec.Status.Rest != nil:
		return "beginning"
	case ec.Size() == 0:
		return "asked"
	}
	return "growing"
}
