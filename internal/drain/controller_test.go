package drain_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

func testRequestToEmptyMachine(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.work.set("n2", 2)
	first := c.lead("n1", nil)
	c.request("d", "n2")
	c.phase("d", v1alpha1.DrainDraining)
	c.obeys("n2", v1alpha1.Draining)
	c.until("the count of two", func() bool { return c.drain("d").Status.Remaining[maintainers] == 2 })
	c.work.set("n2", 1)
	c.until("the count of one", func() bool { return c.drain("d").Status.Remaining[maintainers] == 1 })
	c.work.set("n2", 0)
	c.phase("d", v1alpha1.DrainStopping)
	c.obeys("n2", v1alpha1.Stopping)
	c.phase("d", v1alpha1.DrainComplete)
	c.until("a free slot", func() bool { return c.slot() == nil })
	ended(t, c.drain("d"), v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node n2 was emptied and has left.")
	first.stop()
	again := c.lead("n3", nil) // the next coordinator tells nothing twice
	c.request("e", "nobody")
	c.phase("e", v1alpha1.DrainFailed)
	c.until("the event of the refusal", func() bool { return slices.Equal(c.told("e"), []string{"DrainRefused"}) })
	if diff := cmp.Diff([]string{"DrainComplete", "DrainStarted", "NodeEmpty"}, c.told("d")); diff != "" {
		t.Errorf("the events (-want +got):\n%s", diff)
	}
	if n := durations(t, again.registry, "n2"); n != 0 {
		t.Errorf("the next coordinator counts a drain that it did not end: %d", n)
	}
}

// testTheCountsOfANodeDoNotHoldUpItsDrain: work that leaves a node changes its object; that must not keep the coordinator from writing it.
func testTheCountsOfANodeDoNotHoldUpItsDrain(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	var tries atomic.Int64
	c.work.set("n2", 1)
	c.lead("n1", func(_ *term, point string) {
		if point == "before-"+drain.StepDesireDraining {
			n := tries.Add(1)
			c.says("n2", func(s *v1alpha1.NodeStatus) { s.Held = map[string]int64{maintainers: 100 + n} })
		}
	})
	c.request("d", "n2")
	c.until("the node is told", func() bool { return c.node("n2").Spec.Desired != nil })
	if n := tries.Load(); n != 1 {
		t.Errorf("it was told at the try number %d", n)
	}
	if held := c.node("n2").Status.Held[maintainers]; held != 101 {
		t.Errorf("what the node said of itself is %d now", held)
	}
}

// testClockOfADeadline: the clocks of two coordinators may differ by more than a deadline. Both know that of the server.
func testClockOfADeadline(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.work.set("n2", 1)
	first := c.lead("n1", nil)
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: v1alpha1.DrainSpec{NodeName: "n2", Deadline: &metav1.Duration{Duration: time.Hour}}}
	c.must(c.admin.Create(t.Context(), d))
	c.obeys("n2", v1alpha1.Draining)
	c.until("the count of one", func() bool { return c.drain("d").Status.Remaining[maintainers] == 1 })
	first.stop()
	c.ahead = 2 * time.Hour
	c.lead("n3", nil)
	c.phase("d", v1alpha1.DrainFailed)
	if end := c.drain("d").Status.FinishedAt; end == nil || time.Until(end.Time) < time.Hour {
		t.Errorf("it ended at %v, and the server's clock shows two hours from now", end)
	}
}

// testCrashAtEveryStep: the coordinator crashes before and after every write, and another one comes to the same end.
func testCrashAtEveryStep(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	epoch := int64(1)
	for _, step := range []string{
		drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress,
		drain.StepStop, drain.StepDesireStopping, drain.StepComplete, drain.StepReleaseSlot,
	} {
		for _, point := range []string{"before-" + step, "after-" + step} {
			t.Run(point, func(t *testing.T) {
				epoch++
				c := &cluster{t: t, api: c.api, admin: c.admin, work: c.work}
				c.join("n2", epoch)
				first := c.crashAt("n1", point)
				if step == drain.StepProgress {
					c.work.set("n2", 1) // a node that is empty at once leaves nothing to say in between
				}
				c.request(point, "n2")
				c.until("the crash", func() bool {
					c.obeyOnce("n2")
					if c.drain(point).Status.Remaining[maintainers] == 1 {
						c.work.set("n2", 2)
					}
					return first.ctx.Err() != nil
				})
				c.work.set("n2", 0)
				first.stop()
				c.lead("n3", nil)
				c.finish(point, "n2")
			})
		}
	}
}

func testFiftyRequestsAndACrash(t *testing.T, c *cluster) {
	var names []string
	for i := range 52 {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	c.with(names...)
	first := c.crashAt("n1", "after-"+drain.StepTakeSlot)
	targets := names[1:51]
	for _, name := range targets {
		c.request("fifty-"+name, name)
	}
	c.until("the crash", func() bool { return first.ctx.Err() != nil })
	first.stop()
	c.lead("n52", nil)
	accepted, refused := 0, 0
	c.until("every request to be decided", func() bool {
		accepted, refused = 0, 0
		for _, name := range targets {
			switch d := c.drain("fifty-" + name); d.Status.Phase {
			case v1alpha1.DrainDraining:
				accepted++
			case v1alpha1.DrainFailed:
				refused++
			}
		}
		return accepted+refused == len(targets)
	})
	if accepted != 1 {
		t.Errorf("%d accepted, %d refused", accepted, refused)
	}
}

// obeyOnce lets a node do what it is told, if it is told anything new in its epoch.
func (c *cluster) obeyOnce(name string) {
	n := c.node(name)
	want := n.Spec.Desired
	if want == nil || want.Epoch != n.Status.Epoch || want.Liveness == n.Status.Liveness {
		return
	}
	c.obeys(name, want.Liveness)
}

// finish lets a node do what it is told until its drain has ended as it should.
func (c *cluster) finish(name, node string) {
	c.t.Helper()
	c.until("the end of "+name, func() bool {
		c.obeyOnce(node)
		return c.drain(name).Status.Phase.Final() && c.slot() == nil
	})
	ended(c.t, c.drain(name), v1alpha1.DrainComplete, v1alpha1.ReasonDrained, "Node "+node+" was emptied and has left.")
	want := []string{"DrainComplete", "DrainStarted", "NodeEmpty"}
	c.until("the events of "+name, func() bool { return len(c.told(name)) >= len(want) })
	if got := c.told(name); !slices.Equal(got, want) {
		c.t.Errorf("events are %v, want %v", got, want)
	}
}

func testRestartAndDeath(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.work.set("n2", 1)
	c.lead("n1", nil)
	c.request("d", "n2")
	c.obeys("n2", v1alpha1.Draining)
	c.join("n2", 2)
	c.until("the slot in the next epoch", func() bool { s := c.slot(); return s != nil && s.NodeEpoch == 2 && c.drain("d").Status.NodeEpoch == 2 })
	c.obeys("n2", v1alpha1.Draining)
	c.lease("n2", "", 2, 2)
	c.work.set("n2", 0)
	c.phase("d", v1alpha1.DrainComplete)
	ended(t, c.drain("d"), v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone, gone)
}

// Events are named after their object. One whose name is too long for an event must not hold up all drains.
func testUnwritableEvent(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.lead("n1", nil)
	long := "a" + strings.Repeat("x", 250)
	c.request(long, "n2")
	c.obeys("n2", v1alpha1.Draining)
	c.obeys("n2", v1alpha1.Stopping)
	c.phase(long, v1alpha1.DrainComplete)
	c.request("short", "n3")
	c.obeys("n3", v1alpha1.Draining)
	c.phase("short", v1alpha1.DrainStopping)
	c.until("the events of the other", func() bool { return slices.Contains(c.told("short"), "NodeEmpty") })
}

func testCancelledDrain(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	api := c.lead("n1", nil).api
	c.work.set("n2", 1)
	for i, ask := range []func(string){
		func(string) {
			if d, err := api.Cancel(bounded(t), "n2"); err != nil || d.Status.Phase != v1alpha1.DrainCancelled {
				t.Errorf("cancel: %v, %v", d, err)
			}
		},
		func(name string) {
			c.must(c.admin.Delete(context.Background(), &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		},
	} {
		name := []string{"cancelled", "deleted"}[i]
		c.request(name, "n2")
		c.phase(name, v1alpha1.DrainDraining)
		c.obeys("n2", v1alpha1.Draining)
		ask(name)
		c.phase(name, v1alpha1.DrainCancelled)
		if slot := c.slot(); slot == nil || slot.Name != name {
			t.Errorf("%s: the slot is %v before the node's epoch is over", name, slot)
		}
		c.join("n2", c.node("n2").Status.Epoch+1)
		c.until("a free slot", func() bool { return c.slot() == nil })
		c.until("only the record of the first", func() bool { return len(c.drains()) == 1 })
	}
	if diff := cmp.Diff([]string{"DrainCancelled", "DrainStarted"}, c.told("cancelled")); diff != "" {
		t.Errorf("the events (-want +got):\n%s", diff)
	}
	for node, want := range map[string]error{"n2": drain.ErrNotDraining, "n9": drain.ErrCaptureNotFound, "not/a:name": drain.ErrCaptureNotFound} {
		if _, err := api.Cancel(bounded(t), node); !errors.Is(err, want) {
			t.Errorf("cancel of %s: %v, want %v", node, err, want)
		}
	}
}

func testTooLateToCancel(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	api := c.lead("n1", nil).api
	c.request("d", "n2")
	c.phase("d", v1alpha1.DrainDraining)
	c.obeys("n2", v1alpha1.Draining)
	c.phase("d", v1alpha1.DrainStopping)
	d := c.drain("d")
	if _, err := api.Cancel(bounded(t), "n2"); !errors.Is(err, drain.ErrTooLate) || err.Error() != "too late to cancel: drain d is Stopping: node n2 is empty and is shutting down; start it again to bring it back" {
		t.Errorf("cancel: %v", err)
	}
	c.until("a refusal of the schema", func() bool {
		c.must(c.admin.Get(context.Background(), client.ObjectKeyFromObject(d), d))
		d.Spec.Cancelled = true
		err := c.admin.Update(context.Background(), d)
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "a drain that is Stopping or has ended can no longer be cancelled")
	})
	if err := c.admin.Delete(context.Background(), d); !apierrors.IsConflict(err) {
		t.Errorf("deletion: %v", err)
	}
	c.obeys("n2", v1alpha1.Stopping)
	c.phase("d", v1alpha1.DrainComplete)
}
