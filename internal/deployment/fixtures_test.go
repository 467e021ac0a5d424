package deployment_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// patience bounds every wait for something that should come.
const patience = 4 * time.Minute

// glance is how often somebody looks whether it has: every look is a request.
const glance = 100 * time.Millisecond

// fast is a timing that real requests on a loaded machine still keep.
func fast() lease.Timing {
	return lease.Timing{Renew: 2 * time.Second, Timeout: 2 * time.Second, Fence: 8 * time.Second, Dead: 10 * time.Second, Lost: 12 * time.Second}
}

// calm is a timing that is kept whatever else the machine does; fast is for nodes that are cut off.
func calm() lease.Timing {
	return lease.Timing{Renew: 3 * time.Second, Timeout: 3 * time.Second, Fence: 50 * time.Second, Dead: 55 * time.Second, Lost: time.Minute}
}

// until polls for a condition that an API object or another process reaches in its own time.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
		time.Sleep(glance)
	}
}

// all stands for all tests of the package.
var all testenv.EveryTest

// secret is in the environment of every node.
const secret = "a-secret-of-the-node"

func TestMain(m *testing.M) {
	_ = os.Setenv("NODE_SECRET", secret) // the name is a good one
	os.Exit(all.Run(m))
}

// site is a real embedded API with a coordinator, and the nodes and programs of one test. The nodes of a site have a label
// that its programs ask for, so that sites share an API and nothing else.
type site struct {
	t     testing.TB
	api   *testenv.API
	admin client.WithWatch
	lead  *leader
	home  string // label of the nodes, and namespace of the programs
	dir   string
}

// A server takes seconds to start under the race detector, so tests that neither change its schema nor need to be alone
// use the same one.
var shared = sync.OnceValue(func() *site {
	api := testenv.StartAPI(&all, deployment.Kind().Objects...)
	return &site{api: api, lead: newLeader(&all, api)}
})

var sites atomic.Int64

// newSite is a site on the shared API.
func newSite(t testing.TB) *site {
	t.Helper()
	s := shared()
	return siteOn(t, s.api, s.lead)
}

// newSiteAlone is a site on an API of its own.
func newSiteAlone(t testing.TB) *site {
	t.Helper()
	api := testenv.StartAPI(t, deployment.Kind().Objects...)
	return siteOn(t, api, newLeader(t, api))
}

func siteOn(t testing.TB, api *testenv.API, l *leader) *site {
	s := &site{t: t, api: api, admin: api.Admin(), lead: l, home: fmt.Sprintf("site-%d", sites.Add(1)), dir: t.TempDir()}
	s.must(s.admin.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.home}}))
	t.Cleanup(func() { testenv.EndPrograms(api.Dir, s.home) })
	t.Cleanup(s.clear)
	return s
}

// clear removes what nobody looks after any more.
func (s *site) clear() {
	ctx := context.Background()
	until(s.t, "the programs' objects to be gone", func() bool {
		var list v1alpha1.DeploymentList
		if err := s.admin.List(ctx, &list, client.InNamespace(s.home)); err != nil {
			return false
		}
		for i := range list.Items {
			d := &list.Items[i]
			if d.DeletionTimestamp.IsZero() {
				_ = s.admin.Delete(ctx, d) // seen in the next list
			} else if d.Finalizers = nil; true {
				_ = s.admin.Update(ctx, d)
			}
		}
		return len(list.Items) == 0
	})
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// leader is the coordinator's side of deployments in a manager of its own.
type leader struct {
	log      *journal
	registry *prometheus.Registry
}

func newLeader(t testing.TB, api *testenv.API) *leader {
	l := &leader{log: &journal{}, registry: prometheus.NewRegistry()}
	mgr, err := ctrl.NewManager(api.Config(api.Dir.Kubeconfig()), ctrl.Options{
		Scheme:         kubeclient.NewScheme(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kubeclient.NewMapper(), nil },
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		t.Fatal(err)
	}
	controller := &deployment.Controller{Leader: "leader", CheckTerm: func(context.Context) error { return nil }, Metrics: deployment.NewMetrics(l.registry, "leader"), Log: l.log.logger()}
	if err := controller.SetupWithManager(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the coordinator's manager: %v", err)
		}
	})
	return l
}

// journal keeps log lines.
type journal struct {
	t testing.TB // may be nil

	mu    sync.Mutex
	lines []map[string]any
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(j, nil)) }

func (j *journal) Write(p []byte) (int, error) {
	var line map[string]any
	if err := json.Unmarshal(p, &line); err != nil {
		return 0, err
	}
	j.mu.Lock()
	j.lines = append(j.lines, line)
	j.mu.Unlock()
	if j.t != nil {
		defer func() { _ = recover() }() // a line after the test's end is nobody's concern
		j.t.Logf("%s", p)
	}
	return len(p), nil
}

// coded counts the lines with a code about an object.
func (j *journal) coded(code, about string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.lines {
		if l["code"] == code && (l["object"] == about || l["deployment"] == about) {
			n++
		}
	}
	return n
}

// said counts the lines with a message.
func (j *journal) said(message string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.lines {
		if strings.Contains(l["msg"].(string), message) {
			n++
		}
	}
	return n
}

// metric is the value of a counter or a gauge, by the value of its one label.
func metric(t testing.TB, r *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() != "node" && l.GetValue() == label {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	t.Fatalf("no metric %s of %s", name, label)
	return 0
}

func errorsTotal(t testing.TB, r *prometheus.Registry, code string) float64 {
	t.Helper()
	return metric(t, r, "ebb_deployment_errors_total", code)
}

// host is a node with its runtime in the test's own process, against a real API.
type host struct {
	t        testing.TB
	site     *site
	name     string
	wire     *wire
	log      *journal
	registry *prometheus.Registry
	opts     node.Options
	programs deployment.Options
	node     *node.Node
	cancel   context.CancelFunc
	ended    chan error
}

// host starts a node and waits until it is Ready.
func (s *site) host(name string, changes ...func(*host)) *host {
	s.t.Helper()
	m := s.newHost(name, changes...)
	m.start()
	return m
}

func (s *site) newHost(name string, changes ...func(*host)) *host {
	s.t.Helper()
	name += "-" + s.home
	dir := s.api.Node(name)
	m := &host{
		t: s.t, site: s, name: name, wire: &wire{conns: map[net.Conn]struct{}{}}, log: &journal{t: s.t}, registry: prometheus.NewRegistry(),
	}
	cfg := s.api.Config(dir.Kubeconfig())
	cfg.UserAgent = name // so that the objects tell who wrote what
	m.wire.on(cfg)
	m.opts = node.Options{
		Name: name, Dir: dir, Config: cfg, Timing: calm(), Clock: node.BootTime, Labels: map[string]string{"home": s.home},
		HTTPAddress: "https://127.0.0.1:1", Version: "test", Metrics: node.NewMetrics(m.registry, name), Log: m.log.logger(),
		Die: func(reason string) { s.t.Error(reason) },
	}
	m.programs = deployment.Options{
		Node: name, Dir: dir.Programs(), Exe: testenv.Ebb(s.t), Policy: v1alpha1.ClaimByCount, Weights: deployment.DefaultWeights(),
		Metrics: deployment.NewMetrics(m.registry, name), Log: m.log.logger().With("node", name),
	}
	for _, c := range changes {
		c(m)
	}
	return m
}

func endsFast(m *host) { m.opts.Timing = fast() }

func claimsNothing(m *host) { m.programs.Policy = v1alpha1.ClaimNone }

func labelled(key, value string) func(*host) {
	return func(m *host) { m.opts.Labels[key] = value }
}

// start runs the node until stop.
func (m *host) start() {
	m.t.Helper()
	m.opts.Gate = node.NewGate(m.opts.Metrics.Refused)
	m.programs.Gate = m.opts.Gate
	r, err := deployment.NewRuntime(m.programs)
	m.site.must(err)
	m.opts.Runtimes = []node.Hosted{{Runtime: r, OnLeaseDoubt: node.StopOnDoubt}}
	m.node, err = node.New(m.opts)
	m.site.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.ended = cancel, make(chan error, 1)
	go func(n *node.Node, ended chan error) { ended <- n.Run(ctx) }(m.node, m.ended)
	m.t.Cleanup(m.stop)
	m.awaitReady()
}

func (m *host) awaitReady() {
	m.t.Helper()
	until(m.t, m.name+" to be Ready", func() bool {
		e := m.node.Epoch()
		if e == nil {
			return false
		}
		n := m.object()
		return n.Status.Epoch == e.Number && n.IsReady()
	})
}

// stop is SIGTERM: the node leaves in order.
func (m *host) stop() {
	m.t.Helper()
	if m.cancel == nil {
		return
	}
	m.cancel()
	m.cancel = nil
	m.awaitEnd()
}

// leave stops the node for good. Where the machine is so busy that the node did not come to release its lease, it is marked.
func (m *host) leave() {
	m.t.Helper()
	m.stop()
	if rec, err := lease.Read(m.site.lease(m.name)); err == nil && rec.Held() {
		m.site.mark(m.name)
	}
}

func (m *host) awaitEnd() {
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

func (m *host) object() *v1alpha1.Node { return m.site.node(m.name) }

// update changes the Node as an admin would.
func (m *host) update(change func(*v1alpha1.Node)) {
	m.t.Helper()
	until(m.t, m.name+" to be updated", func() bool {
		n := m.object()
		change(n)
		return m.site.admin.Update(context.Background(), n) == nil
	})
}

// drain lets the node drain, as the coordinator does, and waits until it has closed its gate.
func (m *host) drain() {
	m.t.Helper()
	m.update(func(n *v1alpha1.Node) {
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Draining, Epoch: n.Status.Epoch, DrainUID: "drain"}
	})
	until(m.t, m.name+" to drain", func() bool { return m.object().Status.Liveness == v1alpha1.Draining })
}

// epoch is the node's newest.
func (m *host) epoch() int64 { return m.object().Status.Epoch }

// fenced calls the node lost though it lives, and waits until it is back with its next epoch.
func (m *host) fenced() {
	m.t.Helper()
	before := m.epoch()
	m.site.mark(m.name)
	until(m.t, "the next epoch of "+m.name, func() bool { e := m.node.Epoch(); return e != nil && e.Number > before })
	m.awaitReady()
}

func (s *site) node(name string) *v1alpha1.Node {
	s.t.Helper()
	n := &v1alpha1.Node{}
	if err := s.admin.Get(context.Background(), types.NamespacedName{Name: name}, n); !kubeclient.IsMissing(err) {
		s.must(err)
	}
	return n
}

// ghost is a node that is only objects: alive for everybody, and nobody there. It has no deadline to keep, so that it can be
// called lost at any moment.
func (s *site) ghost(name string) string {
	s.t.Helper()
	ctx := context.Background()
	name += "-" + s.home
	holder := "process of " + name
	s.must(s.admin.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.NameOf(name), Annotations: map[string]string{lease.EpochAnnotation: "1"}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}))
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"home": s.home}}}
	s.must(s.admin.Create(ctx, n))
	n.Status = v1alpha1.NodeStatus{Epoch: 1, Liveness: v1alpha1.Alive, ClaimPolicy: v1alpha1.ClaimNone}
	meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonServing})
	// Without this condition it is a node of an earlier version, and every new deployment of the shared API runs as the node's user while it is there.
	meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeProgramsIsolated, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoOwnUsers})
	s.must(s.admin.Status().Update(ctx, n))
	s.t.Cleanup(func() {
		l := s.lease(name)
		l.Spec.HolderIdentity = nil
		s.must(s.admin.Update(ctx, l))
	})
	return name
}

func (s *site) lease(name string) *coordinationv1.Lease {
	s.t.Helper()
	l := &coordinationv1.Lease{}
	s.must(s.admin.Get(context.Background(), types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(name)}, l))
	return l
}

// mark calls a node lost, as the coordinator does.
func (s *site) mark(name string) {
	s.t.Helper()
	until(s.t, name+" to be marked", func() bool {
		l := s.lease(name)
		rec, err := lease.Read(l)
		s.must(err)
		marked, err := lease.Fence(l, rec)
		s.must(err)
		err = s.admin.Update(context.Background(), marked)
		if !apierrors.IsConflict(err) {
			s.must(err)
		}
		return err == nil
	})
}

// wire is a node's way to the API: it can be cut, and what goes through it is looked at.
type wire struct {
	mu     sync.Mutex
	broken bool
	conns  map[net.Conn]struct{}
	sent   []sent
	before func(sent) // called before a request goes out
}

// sent is a write of a deployment that says what its address would be afterwards.
type sent struct{ name, address string }

func (w *wire) on(cfg *rest.Config) {
	var d net.Dialer
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.broken {
			conn.Close()
			return nil, errors.New("the wire is cut")
		}
		w.conns[conn] = struct{}{}
		return conn, nil
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if err := w.look(r); err != nil {
				return nil, err
			}
			return next.RoundTrip(r)
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *wire) look(r *http.Request) error {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if r.Method == http.MethodGet || r.Body == nil || len(parts) < 6 || parts[5] != "deployments" || parts[len(parts)-1] == "status" {
		return nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	var d struct{ Spec struct{ Address *string } }
	if err := json.Unmarshal(body, &d); err != nil {
		return err
	}
	request := sent{name: parts[len(parts)-1]}
	switch {
	case d.Spec.Address != nil:
		request.address = *d.Spec.Address
	case r.Method == http.MethodPatch: // it leaves the address as it is
		return nil
	}
	w.mu.Lock()
	w.sent = append(w.sent, request)
	before := w.before
	w.mu.Unlock()
	if before != nil {
		before(request)
	}
	return nil
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = true
	for conn := range w.conns {
		conn.Close()
	}
	clear(w.conns)
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken = false
}

func (w *wire) writes() []sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sent)
}

// named gives a run of a program a name: its process id says nothing outside its PID namespace.
const named = `
read -r run </proc/sys/kernel/random/uuid`

// steady is a program that says when it starts, that it lives, and when it ends. All write to one file, so that the order of
// the lines is the order of what happened, whatever the clocks say.
const steady = named + `
mark() { read -r up rest </proc/uptime; echo "$1 $run $EBB_NODE $EBB_DEPLOYMENT $up $2" >>"$file"; }
file=$0
trap 'mark end; exit 0' TERM
mark start "$1"
while :; do mark beat; sleep 0.1; done
`

// slow takes a while to end.
const slow = named + `
mark() { read -r up rest </proc/uptime; echo "$1 $run $EBB_NODE $EBB_DEPLOYMENT $up" >>"$file"; }
file=$0
trap 'for i in 1 2 3 4 5 6 7 8 9 10; do mark beat; sleep 0.1; done; mark end; exit 0' TERM
mark start
while :; do mark beat; sleep 0.1; done
`

// work is one deployment or daemon of a site.
type work struct {
	t    testing.TB
	site *site
	key  types.NamespacedName
	file string
}

// deploy creates a program for the nodes of the site: steady, unless a change says otherwise.
func (s *site) deploy(name string, changes ...change) *work {
	s.t.Helper()
	w := &work{t: s.t, site: s, key: types.NamespacedName{Namespace: s.home, Name: name}, file: s.file(name)}
	d := &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.home, Name: name}}
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"home": s.home}}
	runs(steady, w.file)(d)
	for _, c := range changes {
		c(d)
	}
	s.must(s.admin.Create(context.Background(), d))
	return w
}

func (s *site) file(name string) string { return filepath.Join(s.dir, name+".marks") }

// runs makes the program a shell script with arguments.
func runs(script string, args ...string) change {
	return func(d *v1alpha1.Deployment) {
		d.Spec.Command, d.Spec.Args = "/bin/sh", append([]string{"-c", script}, args...)
	}
}

func restarts(backoff, most time.Duration, limit int32) change {
	return func(d *v1alpha1.Deployment) {
		d.Spec.Restart.Backoff, d.Spec.Restart.MaxBackoff = &metav1.Duration{Duration: backoff}, &metav1.Duration{Duration: most}
		d.Spec.Restart.Limit = limit
	}
}

func grace(d time.Duration) change {
	return func(o *v1alpha1.Deployment) { o.Spec.Stop.Grace = &metav1.Duration{Duration: d} }
}

func enabled(d *v1alpha1.Deployment) { d.Spec.Enabled = new(true) }

func (w *work) get() *v1alpha1.Deployment {
	w.t.Helper()
	d, err := w.read()
	w.site.must(err)
	return d
}

func (w *work) read() (*v1alpha1.Deployment, error) {
	d := &v1alpha1.Deployment{}
	return d, w.site.admin.Get(context.Background(), w.key, d)
}

// update changes the object as people do.
func (w *work) update(changes ...change) {
	w.t.Helper()
	w.write(w.site.admin.Update, changes)
}

// status changes the object's status, as whoever may.
func (w *work) status(changes ...change) {
	w.t.Helper()
	w.write(func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
		return w.site.admin.Status().Update(ctx, o)
	}, changes)
}

func (w *work) write(write func(context.Context, client.Object, ...client.UpdateOption) error, changes []change) {
	w.t.Helper()
	for {
		d := w.get()
		for _, c := range changes {
			c(d)
		}
		err := write(context.Background(), d)
		if !apierrors.IsConflict(err) {
			w.site.must(err)
			return
		}
	}
}

// delete asks for the object to go.
func (w *work) delete() {
	w.t.Helper()
	w.site.must(w.site.admin.Delete(context.Background(), w.get()))
}

// until waits for the object to be as it should.
func (w *work) until(what string, holds func(*v1alpha1.Deployment) bool) *v1alpha1.Deployment {
	w.t.Helper()
	var d *v1alpha1.Deployment
	deadline := time.Now().Add(patience)
	for {
		if d = w.get(); holds(d) {
			return d
		}
		if time.Now().After(deadline) {
			text, _ := json.MarshalIndent(map[string]any{"spec": d.Spec, "status": d.Status}, "", "  ")
			w.t.Fatalf("waited %s for %s: %s is %s", patience, what, w.key, text)
		}
		time.Sleep(glance)
	}
}

// runsOn waits until the program runs on a node, and says with which pid.
func (w *work) runsOn(node string) int {
	w.t.Helper()
	d := w.until("it to run on "+node, func(d *v1alpha1.Deployment) bool {
		i := d.Instance(node)
		return i != nil && i.State == v1alpha1.InstanceRunning && i.PID != 0
	})
	return int(d.Instance(node).PID)
}

// stands waits for a state.
func (w *work) stands(s v1alpha1.DeploymentState) *v1alpha1.Deployment {
	w.t.Helper()
	return w.until("the state "+string(s), func(d *v1alpha1.Deployment) bool { return d.Status.State == s })
}

// reason is why a condition is as it is.
func reason(d *v1alpha1.Deployment, condition string) string {
	if c := meta.FindStatusCondition(d.Status.Conditions, condition); c != nil {
		return c.Reason
	}
	return ""
}

// told are the events about an object with a reason.
func (s *site) told(about types.UID, reason string) (n int) {
	s.t.Helper()
	var list eventsv1.EventList
	s.must(s.admin.List(context.Background(), &list))
	for i := range list.Items {
		if list.Items[i].Regarding.UID == about && list.Items[i].Reason == reason {
			n++
		}
	}
	return n
}

// mark is a line that a program wrote.
type mark struct {
	what, node, deployment string
	run                    string
	up                     float64 // seconds since the machine booted
	rest                   string
}

func (w *work) marks() []mark { return readMarks(w.t, w.file) }

func readMarks(t testing.TB, file string) []mark {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	var list []mark
	for _, line := range lines[:len(lines)-1] { // the last may be being written
		f := strings.Fields(line)
		if len(f) < 5 {
			t.Fatalf("%s: a line %q", file, line)
		}
		m := mark{what: f[0], run: f[1], node: f[2], deployment: f[3], rest: strings.Join(f[5:], " ")}
		if m.up, err = strconv.ParseFloat(f[4], 64); err != nil {
			t.Fatal(err)
		}
		list = append(list, m)
	}
	return list
}

// starts counts the starts.
func starts(marks []mark) (n int) {
	for _, m := range marks {
		if m.what == "start" {
			n++
		}
	}
	return n
}

// oneAtATime fails if two processes lived at once: between the first and the last line of one there is none of another.
func oneAtATime(t testing.TB, marks []mark) {
	t.Helper()
	last := map[string]int{}
	for i, m := range marks {
		last[m.run] = i
	}
	current := ""
	for i, m := range marks {
		if m.run != current && current != "" && i < last[current] {
			t.Errorf("run %s on %s (line %d) while %s lived until line %d", m.run, m.node, i+1, current, last[current]+1)
			return
		}
		current = m.run
	}
}

// on are the marks of one node.
func onNode(marks []mark, node string) []mark {
	return slices.DeleteFunc(slices.Clone(marks), func(m mark) bool { return m.node != node })
}

func lives(pid int) bool { return syscall.Kill(pid, 0) == nil }

// runsAnywhere reports whether a process on this machine has a text in its command line.
func runsAnywhere(text string) bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	return slices.ContainsFunc(lines, func(path string) bool {
		line, _ := os.ReadFile(path)
		return strings.Contains(string(line), text)
	})
}

// ebbNode is `ebb node`: a node in a process of its own.
type ebbNode struct {
	site   *site
	name   string
	timing lease.Timing
	cmd    *exec.Cmd
	log    string
}

// ebbNode starts a node that also stands for election, with the controllers of a real coordinator.
func (s *site) ebbNode(name string, timing lease.Timing) *ebbNode {
	s.t.Helper()
	p := &ebbNode{site: s, name: name, timing: timing, log: filepath.Join(s.dir, name+".log")}
	s.t.Cleanup(func() { p.end(syscall.SIGTERM) })
	s.t.Cleanup(func() {
		if s.t.Failed() {
			text, _ := os.ReadFile(p.log)
			s.t.Logf("node %s:\n%s", name, text)
		}
	})
	p.start()
	return p
}

func (p *ebbNode) start() {
	t := p.site.t
	t.Helper()
	f := p.timing
	p.cmd = exec.Command(testenv.Ebb(t), "node", "--name", p.name, "--data-dir", string(p.site.api.Dir), "--label", "home="+p.site.home, "--program-uids", "none",
		"--lease-renew", f.Renew.String(), "--lease-renew-timeout", f.Timeout.String(), "--lease-fence", f.Fence.String(),
		"--lease-dead", f.Dead.String(), "--lease-duration", f.Lost.String())
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	p.site.must(err)
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	epoch := p.site.node(p.name).Status.Epoch
	p.site.must(p.cmd.Start())
	until(t, p.name+" to be Ready", func() bool {
		n := p.site.node(p.name)
		return n.Status.Epoch > epoch && n.IsReady()
	})
}

// end sends a signal and waits for the end.
func (p *ebbNode) end(s syscall.Signal) {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Signal(s)
		_ = p.cmd.Wait()
	}
}
