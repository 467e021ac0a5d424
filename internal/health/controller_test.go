package health_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/health/render"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// faults answers requests in place of the API, for which refuse returns a status.
type faults struct {
	mu     sync.Mutex
	refuse func(*http.Request) int
}

func (f *faults) set(refuse func(*http.Request) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
}

// around makes a client's requests pass the faults.
func (f *faults) around(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &faulty{faults: f, next: next} })
	return cfg
}

type faulty struct {
	*faults
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f *faulty) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	refuse := f.refuse
	f.mu.Unlock()
	if refuse == nil || refuse(r) == 0 {
		return f.next.RoundTrip(r)
	}
	code := refuse(r)
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(http.StatusText(code))),
	}, nil
}

// isResource reports whether a request is about one custom resource, or a list or watch of them.
func isResource(r *http.Request) bool { return strings.Contains(r.URL.Path, "/drainrequests") }

// isDiscovery reports whether a request asks for the kinds of the group.
func isDiscovery(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, "/apis/nvsentinel.nvidia.com/v1alpha1")
}

// controllerTest is the controller on a real API, with faults between them.
type controllerTest struct {
	*resourceTest
	client client.Client
	faults *faults
	api    *testenv.API
	drains string // the file of --drain-config
	stop   func()
}

func startController(t *testing.T, nodes ...string) *controllerTest {
	t.Helper()
	api := testenv.StartAPI(t)
	admin := api.Config(api.Dir.Kubeconfig())
	c := &controllerTest{resourceTest: newResourceTest(t, api, admin), client: api.Admin(), faults: &faults{}, api: api, drains: "[customDrain]\nenabled = true\nnamespace = \"default\"\n[quarantine]\nmaxShare = \"100%\"\n"}
	c.install()
	if err := client.IgnoreAlreadyExists(c.client.Create(c.ctx, &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}})); err != nil {
		t.Fatal(err)
	}
	for _, name := range nodes {
		if err := c.client.Create(c.ctx, &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	c.run()
	return c
}

// run begins a term.
func (c *controllerTest) run() {
	c.t.Helper()
	template, err := os.ReadFile("render/testdata/seed.yaml")
	if err != nil {
		c.t.Fatal(err)
	}
	config, err := drainconfig.Parse("drain.toml", []byte(c.drains))
	if err != nil {
		c.t.Fatal(err)
	}
	parsed := (*render.Template)(nil)
	if custom := config.CustomDrain; custom != nil {
		if parsed, err = render.Parse("drain-template.yaml", string(template), custom.GVK, custom.Namespace); err != nil {
			c.t.Fatal(err)
		}
	}
	mgr, err := ctrl.NewManager(c.faults.around(c.api.Config(c.api.Dir.Kubeconfig())), ctrl.Options{
		Scheme: c.client.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}, Controller: crconfig.Controller{SkipNameValidation: new(true)},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	controller := &health.Controller{
		Leader: "nobody", CheckTerm: func(context.Context) error { return nil }, Resign: func(context.Context) error { return nil }, Config: config,
		Rules: &health.Rules{}, Template: parsed, Log: slog.New(slog.DiscardHandler),
	}
	if err := controller.SetupWithManager(mgr); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(c.stop)
}

// again ends the term and begins another.
func (c *controllerTest) again() {
	c.t.Helper()
	c.stop()
	c.run()
}

func (c *controllerTest) send(name, node string) {
	c.t.Helper()
	e := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HealthEventSpec{NodeName: node, CheckName: "check", IsFatal: true}}
	if err := c.client.Create(c.ctx, e); err != nil {
		c.t.Fatal(err)
	}
}

// join gives nodes the leases of processes that run.
func (c *controllerTest) join(nodes ...string) {
	c.t.Helper()
	for _, name := range nodes {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.NameOf(name), Annotations: map[string]string{lease.EpochAnnotation: "1"}}}
		l.Spec.HolderIdentity = new(name + "/1")
		if err := c.client.Create(c.ctx, l); err != nil {
			c.t.Fatal(err)
		}
	}
}

func (c *controllerTest) event(name string) *v1alpha1.HealthEvent {
	c.t.Helper()
	e := &v1alpha1.HealthEvent{}
	if err := c.client.Get(c.ctx, types.NamespacedName{Name: name}, e); err != nil {
		c.t.Fatal(err)
	}
	return e
}

// waits waits until an event waits for something.
func (c *controllerTest) waits(name, reason string) *v1alpha1.HealthEvent {
	c.t.Helper()
	last := ""
	defer func() {
		if c.t.Failed() {
			c.t.Logf("event %s: %s", name, last)
		}
	}()
	c.until("event "+name+" to be "+reason, func() bool {
		condition := meta.FindStatusCondition(c.event(name).Status.Conditions, v1alpha1.HealthEventHandled)
		if condition != nil {
			last = condition.Reason + ": " + condition.Message
		}
		return condition != nil && condition.Reason == reason
	})
	return c.event(name)
}

func TestTheControllerAndAnAPIThatFails(t *testing.T) {
	c := startController(t, "n1", "n2", "n3", "n4", "n5")
	c.send("e1", "n1")
	uid := c.waits("e1", health.WaitResource).Status.CustomResource.UID
	about := func(name string, code int) func(*http.Request) int {
		return func(r *http.Request) int {
			if isResource(r) && r.Method == http.MethodGet && (strings.HasSuffix(r.URL.Path, name) || !strings.Contains(r.URL.Path, "drainrequests/")) {
				return code
			}
			return 0
		}
	}
	for _, fault := range []struct {
		what, reason, node string
		refuse             func(*http.Request) int
	}{
		{"may not read it", health.WaitForbidden, "n2", about("drain-n1-e1", http.StatusForbidden)},
		{"the conversion webhook is down", health.WaitUnreadable, "n3", about("drain-n1-e1", http.StatusInternalServerError)},
		{"its kind is not served at the moment", health.WaitLookup, "n4", about("drain-n1-e1", http.StatusNotFound)},
	} {
		// After a failover the next coordinator has seen nothing yet.
		c.faults.set(fault.refuse)
		c.again()
		c.waits("e1", fault.reason)
		// Another node is quarantined and drained all the same.
		c.send("e-"+fault.node, fault.node)
		c.until("the resource of another node", func() bool {
			cr := c.event("e-" + fault.node).Status.CustomResource
			return cr != nil && cr.UID != ""
		})
		c.faults.set(nil)
		if e := c.waits("e1", health.WaitResource); e.Status.CustomResource.UID != uid || e.Status.CustomResource.Outcome != "" || len(e.Status.Attempts) > 0 {
			t.Errorf("%s: %+v", fault.what, e.Status.CustomResource)
		}
	}
	for code, reason := range map[int]string{http.StatusNotFound: health.WaitDefinition, http.StatusServiceUnavailable: health.WaitLookup} {
		c.faults.set(func(r *http.Request) int {
			if isDiscovery(r) {
				return code
			}
			return 0
		})
		c.again()
		c.waits("e1", reason)
		c.faults.set(nil)
		if e := c.waits("e1", health.WaitResource); e.Status.CustomResource.UID != uid || e.Status.CustomResource.Outcome != "" || len(e.Status.Attempts) > 0 {
			t.Errorf("discovery answers %d: %+v", code, e.Status.CustomResource)
		}
	}
	// What is over while discovery fails is deleted later.
	c.faults.set(func(r *http.Request) int {
		if isDiscovery(r) {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	c.again()
	healthyOne := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: "h1"}, Spec: v1alpha1.HealthEventSpec{
		NodeName: "n1", CheckName: "check", IsHealthy: true, GeneratedTimestamp: v1alpha1.NewTimestamp(time.Now().Add(time.Second)),
	}}
	if err := c.client.Create(c.ctx, healthyOne); err != nil {
		t.Fatal(err)
	}
	c.until("the end to be recorded", func() bool { return c.event("e1").Status.CustomResource.Outcome == v1alpha1.ResourceCancelled })
	c.waits("e1", health.WaitLookup)
	if c.event("e1").Status.CustomResource.Removed {
		t.Error("recorded as removed, and it is there")
	}
	c.faults.set(nil)
	c.waits("e1", health.ReasonResolved)
	if _, err := c.objects.Get(c.ctx, "drain-n1-e1", metav1.GetOptions{}); err == nil {
		t.Error("the resource is left")
	}
}

// A detector may write what is false or empty, and a time with nanoseconds. Go does not when it writes the event, and the API takes that for a change of
// the report.
func TestAnEventIsHandledHoweverItsReportIsWritten(t *testing.T) {
	c := startController(t, "n1")
	found := time.Now().UTC().Truncate(time.Second).Add(time.Nanosecond)
	send := func(name string, at time.Time, spec map[string]any) {
		t.Helper()
		spec["nodeName"], spec["checkName"], spec["generatedTimestamp"] = "n1", "check", at.Format(time.RFC3339Nano)
		e := &unstructured.Unstructured{Object: map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "HealthEvent", "metadata": map[string]any{"name": name}, "spec": spec}}
		if err := c.client.Create(c.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	send("e1", found, map[string]any{
		"isFatal": true, "isHealthy": false, "version": int64(0), "agent": "", "message": "", "errorCode": []any{}, "entitiesImpacted": []any{}, "metadata": map[string]any{},
		"quarantineOverrides": map[string]any{"force": false, "skip": false}, "drainOverrides": map[string]any{},
	})
	c.waits("e1", health.WaitResource)
	send("h1", found.Add(time.Second), map[string]any{"isFatal": false, "isHealthy": true})
	c.waits("e1", health.ReasonResolved)
	c.until("the event to be let go", func() bool { return len(c.event("e1").Finalizers) == 0 })
}

// What the API, or a webhook, does not let the coordinator create is named by the event, and tried again.
func TestWhatCannotBeCreatedIsNamed(t *testing.T) {
	c := startController(t, "n1", "n2")
	c.join("n1", "n2") // nodes that run have a Drain
	for node, refused := range map[string]struct{ path, reason, message string }{
		"n1": {"/drainrequests", health.WaitUncreated, "Could not create DrainRequest drain-n1-e-n1: "},
		"n2": {"/drains", health.WaitNoDrain, "Drain health-n2-"},
	} {
		c.faults.set(func(r *http.Request) int {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, refused.path) {
				return http.StatusInternalServerError
			}
			return 0
		})
		c.send("e-"+node, node)
		e := c.waits("e-"+node, refused.reason)
		if message := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled).Message; !strings.HasPrefix(message, refused.message) {
			t.Errorf("it says %q", message)
		}
		c.faults.set(nil)
		c.waits("e-"+node, health.WaitResource)
	}
}

// Its bridge would drain the node for ever.
func TestAResourceIsDeletedAfterCustomDrainsWereTurnedOff(t *testing.T) {
	c := startController(t, "n1")
	c.send("e1", "n1")
	c.waits("e1", health.WaitResource)
	c.drains = "[quarantine]\nmaxShare = \"100%\"\n"
	c.faults.set(func(r *http.Request) int {
		if isResource(r) {
			return http.StatusForbidden
		}
		return 0
	})
	c.again()
	c.waits("e1", health.WaitDisabled)
	h := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: "h1"}, Spec: v1alpha1.HealthEventSpec{
		NodeName: "n1", CheckName: "check", IsHealthy: true, GeneratedTimestamp: v1alpha1.NewTimestamp(time.Now().Add(time.Second)),
	}}
	if err := c.client.Create(c.ctx, h); err != nil {
		t.Fatal(err)
	}
	e := c.waits("e1", health.WaitForbidden)
	message := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled).Message
	if e.Status.CustomResource.Removed || !strings.Contains(message, "--drain-config no longer has this kind: restore it there") {
		t.Errorf("%+v; it says %q", e.Status.CustomResource, message)
	}
	c.faults.set(nil)
	c.waits("e1", health.ReasonResolved)
	if _, err := c.objects.Get(c.ctx, "drain-n1-e1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the resource is left: %v", err)
	}
}

// A resource that was created counts, also if its status is refused: its time runs, and Ebb's own Drain begins.
func TestAResourceWhoseStatusIsRefusedIsRecorded(t *testing.T) {
	c := startController(t, "n1", "n2")
	c.join("n1", "n2")
	c.faults.set(func(r *http.Request) int {
		if isResource(r) && r.Method == http.MethodPut {
			return http.StatusInternalServerError
		}
		return 0
	})
	c.send("e1", "n1")
	c.waits("e1", health.WaitStatus)
	made, err := c.objects.Get(c.ctx, "drain-n1-e1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cr := c.event("e1").Status.CustomResource
	if cr.UID != string(made.GetUID()) || cr.CreatedAt == nil || !cr.CreatedAt.Time.Equal(made.GetCreationTimestamp().Time) {
		t.Errorf("recorded %+v, and the resource was created at %s", cr, made.GetCreationTimestamp())
	}
	c.until("Ebb's own Drain", func() bool { d := c.event("e1").Status.Drain; return d != nil && d.UID != "" })
	c.waits("e1", health.WaitStatus)
	c.faults.set(nil)
	c.waits("e1", health.WaitResource)
	if made, err = c.objects.Get(c.ctx, "drain-n1-e1", metav1.GetOptions{}); err != nil || made.Object["status"] == nil {
		t.Errorf("it has no status: %v, %v", made, err)
	}
}

func TestAFloodOfEventsIsNotStored(t *testing.T) {
	api := testenv.StartAPI(t)
	receiver := &health.API{Client: api.Admin(), Reader: api.Admin(), Cache: api.Admin()}
	var flood []v1alpha1.HealthEventSpec
	for i := range health.MaxOpenEvents + 5 {
		flood = append(flood, v1alpha1.HealthEventSpec{ID: fmt.Sprintf("e%d", i), NodeName: "n1", CheckName: "check", IsFatal: true})
	}
	count := func(received []health.Received) map[health.Result]int {
		counts := map[health.Result]int{}
		for _, r := range received {
			counts[r.Result]++
			if (r.Reason != "") != (r.Result == health.Dropped) {
				t.Errorf("%+v", r)
			}
		}
		return counts
	}
	for _, want := range []map[health.Result]int{
		{health.Created: health.MaxOpenEvents, health.Dropped: 5},
		{health.Existing: health.MaxOpenEvents, health.Dropped: 5}, // sent again
	} {
		received, err := receiver.Receive(t.Context(), flood, time.Now())
		if got := count(received); err != nil || !maps.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	// Other checks, other nodes and the end of the problem are stored.
	received, err := receiver.Receive(t.Context(), []v1alpha1.HealthEventSpec{
		{ID: "a", NodeName: "n1", CheckName: "another", IsFatal: true}, {ID: "b", NodeName: "n2", CheckName: "check", IsFatal: true}, {ID: "c", NodeName: "n1", CheckName: "check", IsHealthy: true},
	}, time.Now())
	if got := count(received); err != nil || got[health.Created] != 3 {
		t.Errorf("%v, %v", received, err)
	}
}

// An API that failed for long is not left alone for as long after that.
func TestATurnThatFailsIsTriedAgainSoon(t *testing.T) {
	const tries = 14 // the default of controllers would wait for 40 s then, and for twice as long each time after that
	c := startController(t, "n1")
	var mu sync.Mutex
	var asked []time.Time
	c.faults.set(func(r *http.Request) int {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/drains") || r.URL.Query().Get("watch") != "" {
			return 0
		}
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, time.Now())
		return http.StatusForbidden
	})
	c.send("e1", "n1")
	c.until("many tries", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) >= 2*tries // each is asked for twice: see RoundTrip
	})
	mu.Lock()
	for i := range asked[1:] {
		if pause := asked[i+1].Sub(asked[i]); pause > 15*time.Second {
			t.Errorf("try %d came after %s", i+1, pause)
		}
	}
	mu.Unlock()
	c.faults.set(nil)
	c.waits("e1", health.WaitResource)
}
