package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// fast is a timing that real requests on a loaded machine still keep.
func fast() lease.Timing {
	return lease.Timing{Renew: time.Second, Timeout: time.Second, Fence: 5 * time.Second, Dead: 7 * time.Second, Lost: 8 * time.Second}
}

// patience bounds every wait for something that should come.
const patience = 4 * time.Minute

// machine is a node in the test's own process, against a real API.
type machine struct {
	t      testing.TB
	api    *testenv.API
	admin  client.WithWatch
	name   string
	opts   node.Options
	cancel context.CancelFunc
	ended  chan error
	died   atomic.Pointer[string]
	node   *node.Node
}

func newMachine(t testing.TB, api *testenv.API, name string, change ...func(*node.Options)) *machine {
	t.Helper()
	m := &machine{t: t, api: api, admin: api.Admin(), name: name}
	metrics := node.NewMetrics(prometheus.NewRegistry(), name)
	dir := api.Node(name)
	m.opts = node.Options{
		Name: name, Dir: dir, Config: api.Config(dir.Kubeconfig()), Timing: fast(), Clock: node.BootTime,
		HTTPAddress: "https://127.0.0.1:1", Version: "test", Gate: node.NewGate(metrics.Refused), Metrics: metrics,
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		Die: func(reason string) { m.died.Store(&reason) },
	}
	for _, c := range change {
		c(&m.opts)
	}
	return m
}

// start runs the node until stop.
func (m *machine) start() *machine {
	m.t.Helper()
	n, err := node.New(m.opts)
	if err != nil {
		m.t.Fatal(err)
	}
	m.node = n
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.ended = cancel, make(chan error, 1)
	go func(ended chan error) { ended <- n.Run(ctx) }(m.ended)
	m.t.Cleanup(func() { m.stop() })
	return m
}

// stop is SIGTERM: the node leaves in order.
func (m *machine) stop() {
	m.t.Helper()
	if m.cancel == nil {
		return
	}
	m.cancel()
	m.awaitEnd()
	m.cancel = nil
}

func (m *machine) awaitEnd() {
	m.t.Helper()
	select {
	case err := <-m.ended:
		m.ended <- nil
		if err != nil {
			m.t.Errorf("node %s: %v", m.name, err)
		}
	case <-time.After(patience):
		m.t.Fatalf("node %s did not end", m.name)
	}
}

func (m *machine) object() *v1alpha1.Node {
	m.t.Helper()
	n := &v1alpha1.Node{}
	if err := m.admin.Get(context.Background(), types.NamespacedName{Name: m.name}, n); err != nil && !kubeclient.IsMissing(err) {
		m.t.Fatal(err)
	}
	return n
}

func (m *machine) lease() *coordinationv1.Lease {
	m.t.Helper()
	l := &coordinationv1.Lease{}
	if err := m.admin.Get(context.Background(), types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(m.name)}, l); err != nil {
		m.t.Fatal(err)
	}
	return l
}

func (m *machine) record() lease.Record {
	m.t.Helper()
	r, err := lease.Read(m.lease())
	if err != nil {
		m.t.Fatal(err)
	}
	return r
}

// update changes the Node as an admin would.
func (m *machine) update(change func(*v1alpha1.Node)) {
	m.t.Helper()
	until(m.t, "the node to be updated", func() bool {
		n := m.object()
		change(n)
		return m.admin.Update(context.Background(), n) == nil
	})
}

// awaitReady waits until the node is Ready in an epoch or a later one: a write that takes the lease and is answered too late uses up an epoch.
func (m *machine) awaitReady(epoch int64) {
	m.t.Helper()
	until(m.t, fmt.Sprintf("node %s to be Ready in epoch %d", m.name, epoch), func() bool {
		n := m.object()
		return n.Status.Epoch >= epoch && n.IsReady()
	})
}

// until polls for a condition that an API object or another process reaches in its own time.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// worker is a runtime that records when it ran.
type worker struct {
	name     string
	gate     *node.Gate
	stubborn chan struct{} // if set, Run does not return before it is closed

	mu      sync.Mutex
	running bool
	starts  int
	stopped lease.Instant
}

func (w *worker) Name() string { return w.name }
func (w *worker) Held() int    { return w.gate.Count(w.name) }

func (w *worker) Run(ctx context.Context, _ *node.Epoch) error {
	w.set(true)
	<-ctx.Done()
	if w.stubborn != nil {
		<-w.stubborn
	}
	w.set(false)
	return errors.New("stopped")
}

func (w *worker) set(running bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running = running
	if running {
		w.starts++
	} else {
		w.stopped = node.BootTime()
	}
}

func (w *worker) state() (running bool, starts int, stopped lease.Instant) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running, w.starts, w.stopped
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	defer func() { _ = recover() }() // a log line after the test's end is nobody's concern
	w.t.Logf("%s", p)
	return len(p), nil
}

var _ io.Writer = testWriter{}
