package node_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// TestPark has an API of its own: what it does to a node has nothing to do with the slot.
func TestPark(t *testing.T) {
	api := testenv.StartAPI(t)
	for name, test := range map[string]func(*testing.T, *testenv.API){
		"a node that is told to park waits without a lease, and joins when it is uncordoned":   parksAndUnparks,
		"a parked node that is restarted stays parked":                                         restartedWhileParked,
		"a node that was uncordoned while its process was down joins, and parked is removed":   uncordonedWhileDown,
		"a node that was parked while its process was down stays parked":                       parkedWhileDown,
		"a node that is parked while it runs waits before it begins another epoch":             parkedWhileRunning,
		"a node that is parked while it takes its lease leaves again":                          parkedWhileJoining,
		"a parked node ends when its Node is deleted":                                          deletedWhileParked,
		"a parked node ends when it is asked to":                                               stoppedWhileParked,
		"a record of the coordinator's that is newer than the epoch is not removed":            newerRecordStays,
		"a node that is uncordoned before it has parked joins at once":                         uncordonedTooEarly,
		"a parked node that cannot reach the API stays parked, and sees the uncordon after it": parkedDuringOutage,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, api)
		})
	}
}

// parkable is a machine with a kept and a stopped runtime.
func parkable(t *testing.T, api *testenv.API, name string) (m *machine, kept, stopped *worker) {
	kept, stopped = &worker{name: "kept"}, &worker{name: "stopped"}
	m = newMachine(t, api, name, func(o *node.Options) {
		kept.gate, stopped.gate = o.Gate, o.Gate
		o.Runtimes = []node.Hosted{{Runtime: kept, OnLeaseDoubt: node.KeepOnDoubt}, {Runtime: stopped, OnLeaseDoubt: node.StopOnDoubt}}
	})
	return m, kept, stopped
}

// cordons sets the node's cordon as an admin would.
func (m *machine) cordons(cordoned bool) {
	m.update(func(n *v1alpha1.Node) { n.Spec.Cordoned = cordoned })
}

// tellToPark is what a drain wants of an empty node.
func (m *machine) tellToPark() {
	m.t.Helper()
	m.update(func(n *v1alpha1.Node) {
		n.Spec.Cordoned = true
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Stopping, Epoch: n.Status.Epoch, DrainUID: "d", Park: true}
	})
}

// awaitParked waits until the node has said that it is parked and released its lease.
func (m *machine) awaitParked() {
	m.t.Helper()
	until(m.t, "node "+m.name+" to be parked", func() bool {
		return m.object().Status.Parked != nil && !m.record().Held() && m.node.Ready() == nil && m.node.Epoch() == nil
	})
}

// parks starts a node and parks it, and returns the epoch that was drained.
func (m *machine) parks() int64 {
	m.t.Helper()
	m.start().awaitReady(1)
	m.tellToPark()
	m.awaitParked()
	return m.record().Epoch
}

func parksAndUnparks(t *testing.T, api *testenv.API) {
	m, kept, stopped := parkable(t, api, "parks")
	epoch := m.parks()
	n := m.object()
	if *n.Status.Parked != (v1alpha1.Parked{DrainUID: "d", Epoch: epoch}) || n.Status.Liveness != v1alpha1.Stopping {
		t.Errorf("status: %+v", n.Status)
	}
	c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady)
	if c.Reason != v1alpha1.ReasonParked || c.Message != "The node was drained and is parked: its process waits without a lease. `ebb uncordon parks` brings it back." {
		t.Errorf("ready: %+v", c)
	}
	for _, w := range []*worker{kept, stopped} {
		if running, starts, _ := w.state(); running || starts != 1 {
			t.Errorf("runtime %s: running %t, started %d times", w.name, running, starts)
		}
	}
	if r := m.record(); r.Fenced != 0 {
		t.Errorf("lease: %+v", r)
	}
	m.cordons(false)
	m.awaitReady(epoch + 1)
	if s := m.object().Status; s.Parked != nil || s.Liveness != v1alpha1.Alive {
		t.Errorf("status after the uncordon: %+v", s)
	}
	until(t, "the runtimes to run again", func() bool {
		a, _, _ := kept.state()
		b, _, _ := stopped.state()
		return a && b
	})
}

func restartedWhileParked(t *testing.T, api *testenv.API) {
	m, kept, stopped := parkable(t, api, "restarted-parked")
	epoch := m.parks()
	for range 2 {
		m.stop()
		m.start()
		m.awaitParked()
	}
	if r := m.record(); r.Epoch != epoch {
		t.Errorf("lease: %+v", r)
	}
	for _, w := range []*worker{kept, stopped} {
		if running, starts, _ := w.state(); running || starts != 1 {
			t.Errorf("runtime %s: running %t, started %d times", w.name, running, starts)
		}
	}
	m.cordons(false)
	m.awaitReady(epoch + 1)
}

func uncordonedWhileDown(t *testing.T, api *testenv.API) {
	m, _, _ := parkable(t, api, "uncordoned-down")
	epoch := m.parks()
	m.stop()
	m.cordons(false)
	m.start().awaitReady(epoch + 1)
	if s := m.object().Status; s.Parked != nil || s.Liveness != v1alpha1.Alive {
		t.Errorf("status: %+v", s)
	}
}

// recordParked writes that a node is parked, as a coordinator does for a node that died.
func (m *machine) recordParked(epoch int64) {
	m.t.Helper()
	m.cordons(true)
	until(m.t, "the record to be written", func() bool {
		n := m.object()
		n.Status.Parked = &v1alpha1.Parked{DrainUID: "d", Epoch: epoch}
		return m.admin.Status().Update(context.Background(), n) == nil
	})
}

func parkedWhileDown(t *testing.T, api *testenv.API) {
	m, _, _ := parkable(t, api, "down-parked")
	m.start().awaitReady(1)
	m.stop()
	epoch := m.record().Epoch
	m.recordParked(epoch)
	m.start()
	m.awaitParked()
	if got := m.record().Epoch; got != epoch {
		t.Errorf("it joined in epoch %d", got)
	}
	m.cordons(false)
	m.awaitReady(epoch + 1)
}

// hook runs something before the first request that writes a Lease.
type hook struct {
	http.RoundTripper
	once *sync.Once
	run  func()
}

func (h hook) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/leases/node-") {
		h.once.Do(h.run)
	}
	return h.RoundTripper.RoundTrip(r)
}

// parkedWhileJoining: a drain ends while the node it gave up joins. The process looks once more when it holds the lease.
func parkedWhileJoining(t *testing.T, api *testenv.API) {
	m, kept, stopped := parkable(t, api, "parked-joining")
	// The one request that takes the lease must not fail because the machine is busy: a node that asks again finds that it is parked.
	m.opts.Timing = lease.Timing{Renew: 10 * time.Second, Timeout: 10 * time.Second, Fence: 50 * time.Second, Dead: 55 * time.Second, Lost: time.Minute}
	m.start().awaitReady(1)
	m.stop()
	epoch := m.record().Epoch
	m.opts.Config = rest.CopyConfig(m.opts.Config)
	once := &sync.Once{}
	m.opts.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return hook{next, once, func() { m.recordParked(epoch) }}
	})
	m.start()
	m.awaitParked()
	if got := m.record(); got.Epoch != epoch+1 {
		t.Errorf("lease: %+v", got)
	}
	n := m.object()
	if *n.Status.Parked != (v1alpha1.Parked{DrainUID: "d", Epoch: epoch}) || n.Status.Liveness != v1alpha1.Stopping {
		t.Errorf("status: %+v", n.Status)
	}
	for _, w := range []*worker{kept, stopped} {
		if running, _, _ := w.state(); running {
			t.Errorf("runtime %s runs", w.name)
		}
	}
	m.cordons(false)
	m.awaitReady(epoch + 2)
}

func parkedWhileRunning(t *testing.T, api *testenv.API) {
	m, _, _ := parkable(t, api, "parked-running")
	m.start().awaitReady(1)
	epoch := m.record().Epoch
	m.recordParked(epoch)
	mark(t, m) // the epoch is over: it looks before it begins another
	m.awaitParked()
	if got := m.record(); got.Epoch != epoch {
		t.Errorf("lease: %+v", got)
	}
	if got := *m.object().Status.Parked; got != (v1alpha1.Parked{DrainUID: "d", Epoch: epoch}) {
		t.Errorf("parked: %+v", got)
	}
	m.cordons(false)
	m.awaitReady(epoch + 1)
	until(t, "the record to be removed", func() bool { return m.object().Status.Parked == nil })
}

func deletedWhileParked(t *testing.T, api *testenv.API) {
	m, _, _ := parkable(t, api, "deleted-parked")
	epoch := m.parks()
	if err := m.admin.Delete(context.Background(), m.object()); err != nil {
		t.Fatal(err)
	}
	m.awaitEnd()
	if n := m.object(); n.UID != "" {
		t.Errorf("the Node was created again: %+v", n)
	}
	// A process that is started again is a new node of the same name.
	m.start().awaitReady(epoch + 1)
	if s := m.object().Status; s.Liveness != v1alpha1.Alive || s.Parked != nil {
		t.Errorf("status: %+v", s)
	}
}

func stoppedWhileParked(t *testing.T, api *testenv.API) {
	m, _, _ := parkable(t, api, "stopped-parked")
	epoch := m.parks()
	m.stop()
	if s := m.object().Status; s.Parked == nil || s.Epoch != epoch {
		t.Errorf("status: %+v", s)
	}
}

// newerRecordStays: the coordinator parks a node that it takes for dead, while the node is there.
func newerRecordStays(t *testing.T, api *testenv.API) {
	m, _, _ := parkable(t, api, "newer-record")
	epoch := m.parks()
	m.cordons(false)
	m.awaitReady(epoch + 1)
	record := v1alpha1.Parked{DrainUID: "e", Epoch: epoch + 1}
	until(t, "the record to be written", func() bool {
		n := m.object()
		n.Status.Parked = &record
		return m.admin.Status().Update(context.Background(), n) == nil
	})
	before := m.object().ResourceVersion
	if _, err := m.opts.Gate.Enter("stopped"); err != nil { // it publishes a count
		t.Fatal(err)
	}
	until(t, "the node to publish", func() bool { return m.object().ResourceVersion != before })
	if got := m.object().Status.Parked; got == nil || *got != record {
		t.Errorf("parked: %+v", got)
	}
}

func uncordonedTooEarly(t *testing.T, api *testenv.API) {
	m, _, _ := parkable(t, api, "too-early")
	m.start().awaitReady(1)
	epoch := m.record().Epoch
	m.update(func(n *v1alpha1.Node) {
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Stopping, Epoch: epoch, DrainUID: "d", Park: true}
	})
	m.awaitReady(epoch + 1)
	if s := m.object().Status; s.Liveness != v1alpha1.Alive || s.Parked != nil {
		t.Errorf("status: %+v", s)
	}
}

func parkedDuringOutage(t *testing.T, _ *testenv.API) {
	api := testenv.StartAPI(t)
	m, _, _ := parkable(t, api, "outage-parked")
	epoch := m.parks()
	api.Stop()
	if err := m.node.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	api.Start()
	until(t, "the API", func() bool {
		return m.admin.Get(context.Background(), types.NamespacedName{Name: m.name}, &v1alpha1.Node{}) == nil
	})
	m.cordons(false)
	m.awaitReady(epoch + 1)
}
