package drain_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func testErrorTable(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	api := c.lead("n1", nil).api
	refused := func(node string, want error) {
		t.Helper()
		if d, err := api.Request(bounded(t), v1alpha1.DrainSpec{NodeName: node}); !errors.Is(err, want) || err.Error() != want.Error() || d != nil {
			t.Errorf("drain of %q: %v, %v; want %v", node, d, err, want)
		}
		if list := c.drains(); len(list) > 0 {
			t.Errorf("a refused request leaves %v", c.states())
		}
	}
	refused("n9", drain.ErrCaptureNotFound)
	refused("", drain.ErrCaptureNotFound)
	refused("not/a:name", drain.ErrCaptureNotFound)
	refused("n1", drain.ErrTargetIsCoordinator)
	c.lease("n2", "", 1, 0)
	c.lease("n3", "", 1, 0)
	refused("n1", drain.ErrSingleNode)
	refused("n2", drain.ErrCaptureNotFound)
	c.join("n2", 2)
	c.join("n3", 2)
	d, err := api.Request(bounded(t), v1alpha1.DrainSpec{NodeName: "n2", Reason: "a new kernel"})
	if err != nil || d.Status.Phase != v1alpha1.DrainDraining || d.Status.StartedAt == nil || d.Spec.Reason != "a new kernel" || d.Status.NodeEpoch != 2 {
		t.Fatalf("%v, %v", d, err)
	}
	for node, want := range map[string]error{"n2": drain.ErrDrainInProgress, "n3": drain.ErrDrainInProgress, "n1": drain.ErrTargetIsCoordinator, "n9": drain.ErrCaptureNotFound} {
		if _, err := api.Request(bounded(t), v1alpha1.DrainSpec{NodeName: node}); !errors.Is(err, want) {
			t.Errorf("drain of %s while n2 drains: %v, want %v", node, err, want)
		}
	}
}

func testFiftyRequests(t *testing.T, c *cluster) {
	var names []string
	for i := range 51 {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	c.with(names...)
	api := c.lead("n1", nil).api
	var all sync.WaitGroup
	answers := make(chan error, len(names))
	ctx := bounded(t)
	for _, name := range names[1:] {
		all.Go(func() {
			_, err := api.Request(ctx, v1alpha1.DrainSpec{NodeName: name})
			answers <- err
		})
	}
	all.Wait()
	close(answers)
	accepted := 0
	for err := range answers {
		switch {
		case err == nil:
			accepted++
		case !errors.Is(err, drain.ErrDrainInProgress):
			t.Errorf("a request is answered %v", err)
		}
	}
	if list := c.states(); accepted != 1 || len(list) != 1 || c.slot() == nil {
		t.Errorf("%d accepted, %v remain, the slot is %v", accepted, list, c.slot())
	}
}

func testUndecided(t *testing.T, c *cluster) {
	c.with("n1", "n2")
	api := &drain.API{Client: c.admin, Reader: c.admin, Leader: "n1"}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if d, err := api.Request(ctx, v1alpha1.DrainSpec{NodeName: "n2"}); !errors.Is(err, drain.ErrUndecided) || d != nil {
		t.Errorf("%v, %v", d, err)
	}
	if list := c.states(); len(list) > 0 {
		t.Errorf("%v remain", list)
	}
}

func testGivenUpHeld(t *testing.T, c *cluster) {
	if d, err := c.givenUp("after-" + drain.StepHold); !errors.Is(err, drain.ErrUndecided) || d != nil || c.slot() != nil {
		t.Errorf("the drain was withdrawn, and the answer is %v, %v", d, err)
	}
}

func testGivenUpCancelled(t *testing.T, c *cluster) {
	if d, err := c.givenUp("after-" + drain.StepTakeSlot); !errors.Is(err, drain.ErrUndecided) || d != nil {
		t.Errorf("the drain was cancelled, and the answer is %v, %v", d, err)
	}
	c.join("n2", 2)
	c.until("a free slot", func() bool { return c.slot() == nil })
	c.until("the end of its record", func() bool { return len(c.drains()) == 0 })
}

func testGivenUpAccepted(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	first := c.crashAt("n1", "after-"+drain.StepBegin)
	giveUp, cancel := context.WithCancel(bounded(t))
	cancel() // whoever asked is gone before the answer is looked for
	d, err := (&drain.API{Client: lateClient{c.admin, first.ctx.Done()}, Reader: c.admin, Leader: "n1"}).Request(giveUp, v1alpha1.DrainSpec{NodeName: "n2"})
	if err != nil || d.Status.StartedAt == nil || d.DeletionTimestamp != nil {
		t.Errorf("the drain began, and the answer is %v, %v", d, err)
	}
}

// lateClient answers a creation when something has happened.
type lateClient struct {
	client.Client
	happened <-chan struct{}
}

// Create implements client.Client.
func (l lateClient) Create(_ context.Context, o client.Object, opts ...client.CreateOption) error {
	err := l.Client.Create(context.Background(), o, opts...)
	<-l.happened
	return err
}

// givenUp is the answer to a request when the coordinator crashes at a point, whoever asked gives up, and another
// coordinator goes on.
func (c *cluster) givenUp(point string) (*v1alpha1.Drain, error) {
	c.t.Helper()
	c.with("n1", "n2", "n3")
	first := c.crashAt("n1", point)
	ctx, giveUp := context.WithCancel(bounded(c.t))
	var d *v1alpha1.Drain
	var err error
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		d, err = (&drain.API{Client: c.admin, Reader: c.admin, Leader: "n1"}).Request(ctx, v1alpha1.DrainSpec{NodeName: "n2"})
	}()
	<-first.ctx.Done()
	giveUp()
	c.until("the withdrawal", func() bool { list := c.drains(); return len(list) == 1 && list[0].DeletionTimestamp != nil })
	c.lead("n3", nil)
	<-answered
	return d, err
}

func testReport(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.work.set("n2", 2)
	dispatchers := split{by: map[string]int64{"orders": 3, "users": 1}}
	api := &drain.API{Client: c.admin, Reader: c.admin, Leader: "n1", Tenants: func(client.Reader) []drain.Tenant { return []drain.Tenant{c.work, dispatchers} }}
	idle := drain.Report{Shown: map[string]int64{}, By: map[string]map[string]int64{}}
	report := func(node string, want drain.Report) {
		t.Helper()
		got, err := api.Report(bounded(t), node)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", node, err, diff)
		}
	}
	report("n2", idle)
	c.lead("n1", nil)
	c.request("d", "n2")
	c.obeys("n2", v1alpha1.Draining)
	c.says("n2", func(n *v1alpha1.NodeStatus) { n.Held = map[string]int64{maintainers: 5} })
	report("n2", drain.Report{Draining: true, Shown: map[string]int64{"maintainers": 5, "dispatchers": 4}, By: map[string]map[string]int64{"dispatchers": {"orders": 3, "users": 1}}, Total: 9})
	report("n3", idle)
	for _, node := range []string{"n9", "", "a/b"} {
		if _, err := api.Report(bounded(t), node); !errors.Is(err, drain.ErrCaptureNotFound) {
			t.Errorf("%q: %v", node, err)
		}
	}
	c.must(c.setDeadline("d", time.Nanosecond))
	c.phase("d", v1alpha1.DrainFailed)
	report("n2", drain.Report{Draining: true, Shown: map[string]int64{"maintainers": 5, "dispatchers": 4}, By: map[string]map[string]int64{"dispatchers": {"orders": 3, "users": 1}}, Total: 9})
	c.lease("n2", "", 1, 1)
	c.until("a free slot", func() bool { return c.slot() == nil })
	report("n2", idle)
}

// setDeadline changes a drain's deadline as people do.
func (c *cluster) setDeadline(name string, after time.Duration) error {
	d := c.drain(name)
	patch := []byte(fmt.Sprintf(`{"spec":{"deadline":%q}}`, metav1.Duration{Duration: after}.Duration))
	return c.admin.Patch(context.Background(), d, rawMerge(patch))
}
