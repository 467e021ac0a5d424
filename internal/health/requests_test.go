package health_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
)

// requests counts what the controller asks of the API, by method and resource. Watches do not count.
type requests struct {
	mu    sync.Mutex
	count map[string]int
}

// see counts a request, and lets it pass.
func (q *requests) see(r *http.Request) int {
	if r.URL.Query().Get("watch") != "" {
		return 0
	}
	_, resource, _ := strings.Cut(r.URL.Path, "/v1alpha1/")
	if resource == "" {
		resource = strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis"), "/")
	}
	parts := strings.Split(resource, "/")
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	key := r.Method + " " + parts[0]
	if r.Method == http.MethodGet && len(parts) == 1 {
		key = "LIST " + parts[0]
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.count[key]++
	return 0
}

// since returns what was counted, and begins anew.
func (q *requests) since() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	count := q.count
	q.count = map[string]int{}
	return count
}

// The list of all events is what a flood makes expensive: a turn reads it once, however many steps it takes. Nothing is asked of the API in
// vain.
func TestATurnListsTheEventsOnce(t *testing.T) {
	c := startController(t, "n1", "n2")
	c.send("e1", "n1")
	c.waits("e1", health.WaitResource)
	q := &requests{count: map[string]int{}}
	c.faults.set(q.see)
	time.Sleep(100 * time.Millisecond) // what follows the first event
	q.since()
	c.send("e2", "n2")
	c.until("the resource", func() bool { cr := c.event("e2").Status.CustomResource; return cr != nil && cr.UID != "" })
	got := q.since()
	t.Log(got)
	if got["LIST healthevents"] > 2 {
		t.Errorf("the events were listed %d times until the custom resource was there: %v", got["LIST healthevents"], got)
	}
	// The API server brings its cache up to date for a live list at most ten times a second for each kind: a list for each step would make a sick node
	// wait for a tenth of a second each. A turn that takes longer than a second, on a busy machine, lists again.
	for _, kind := range []string{"drains", "nodes"} {
		if got["LIST "+kind] > 4 {
			t.Errorf("the %s were listed %d times until the custom resource was there: %v", kind, got["LIST "+kind], got)
		}
	}
	if got["GET api"] > 1 { // for the pods of the node
		t.Errorf("discovery was asked for a cordon: %v", got)
	}
}

// The watch of custom resources shows what their controllers report: nothing is asked of the API until then, and one turn follows.
func TestTheReportOfABridgeIsNoticedWithoutPolling(t *testing.T) {
	c := startController(t, "n1")
	c.send("e1", "n1")
	uid := c.waits("e1", health.WaitResource).Status.CustomResource.UID
	q := &requests{count: map[string]int{}}
	c.faults.set(q.see)
	c.until("two seconds without a request", func() bool {
		q.since()
		time.Sleep(2 * time.Second) // longer than a poll would take
		return len(q.since()) == 0
	})
	made, err := c.objects.Get(c.ctx, "drain-n1-e1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "DrainComplete", "status": "True"}}}
	if _, err := c.objects.UpdateStatus(c.ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.until("the resource to be gone", func() bool { return c.event("e1").Status.CustomResource.Removed })
	took := time.Since(began)
	got := q.since()
	t.Log(took, got)
	if e := c.event("e1"); e.Status.CustomResource.Outcome != v1alpha1.ResourceComplete || e.Status.CustomResource.UID != uid {
		t.Errorf("%+v", e.Status.CustomResource)
	}
	// Before it is deleted it is read, once.
	if got["LIST drainrequests"] > 0 || got["GET drainrequests"] > 1 || got["LIST healthevents"] > 1 {
		t.Errorf("the report was noticed with %v", got)
	}
	if took > 15*time.Second { // without the watch, the event is looked at again after 30 s
		t.Errorf("noticed after %s", took)
	}
}

// One write cordons a node for several events; when the API refuses it, all of them say so.
func TestARefusedCordonIsNamedByAllEventsThatItIsFor(t *testing.T) {
	c := startController(t, "n1")
	refuse := func(r *http.Request) int {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/nodes/") {
			return http.StatusForbidden
		}
		return 0
	}
	c.faults.set(refuse)
	for i := range 3 {
		e := &v1alpha1.HealthEvent{Spec: v1alpha1.HealthEventSpec{NodeName: "n1", CheckName: fmt.Sprintf("check%d", i), IsFatal: true, DrainOverrides: &v1alpha1.Overrides{Skip: true}}}
		e.Name = fmt.Sprintf("e%d", i)
		if err := c.client.Create(c.ctx, e); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		c.waits(fmt.Sprintf("e%d", i), health.WaitCordon)
	}
	c.faults.set(nil)
	for i := range 3 {
		c.until("the node to be quarantined", func() bool { return c.event(fmt.Sprintf("e%d", i)).Status.NodeQuarantined == v1alpha1.Quarantined })
	}

	// So do those whose quarantine cannot be lifted.
	c.faults.set(refuse)
	for i := range 3 {
		h := &v1alpha1.HealthEvent{Spec: v1alpha1.HealthEventSpec{
			NodeName: "n1", CheckName: fmt.Sprintf("check%d", i), IsHealthy: true, GeneratedTimestamp: v1alpha1.NewTimestamp(time.Now().Add(time.Second)),
		}}
		h.Name = fmt.Sprintf("h%d", i)
		if err := c.client.Create(c.ctx, h); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		e := c.waits(fmt.Sprintf("e%d", i), health.WaitLift)
		if message := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled).Message; !strings.HasPrefix(message, "The quarantine of node n1 could not be lifted; trying again: ") {
			t.Errorf("it says %q", message)
		}
	}

	// Another problem keeps the node in quarantine.
	c.send("e3", "n1")
	c.waits("e3", health.WaitCordon)
	c.faults.set(nil)
	c.waits("e3", health.WaitResource)
	for i := range 3 {
		if e := c.waits(fmt.Sprintf("e%d", i), health.ReasonNoDrain); e.Status.ClosedAt != nil {
			t.Errorf("event %s is closed", e.Name)
		}
	}
}
