package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// outage is how long the API server is away in these tests: longer than every lease. EBB_E2E_OUTAGE sets another.
func (c *cluster) outage() time.Duration {
	c.t.Helper()
	text := os.Getenv("EBB_E2E_OUTAGE")
	if text == "" {
		return c.timing.Lost + 2*time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		c.t.Fatal(err)
	}
	return d
}

// startFleet runs an API server and nodes, with points to crash at.
func startFleet(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := newCluster(t, testenv.EbbFailpoints(t))
	c.points = t.TempDir()
	return startNodes(t, c, nodes)
}

// arm makes the next process that reaches a point die there, or wait there.
func (c *cluster) arm(point, action string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.points, point), []byte(action), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// awaitHeld waits until a process waits at a point, and returns what lets it go on.
func (c *cluster) awaitHeld(point string) (letGo func()) {
	c.t.Helper()
	path := filepath.Join(c.points, point+".held")
	until(c.t, "a process to reach "+point, func() bool { _, err := os.Stat(path); return err == nil })
	return func() { os.Remove(path) }
}

// fired says whether the point was reached.
func (c *cluster) fired(point string) bool {
	_, err := os.Stat(filepath.Join(c.points, point))
	return os.IsNotExist(err)
}

// armed are the points that no process has reached.
func (c *cluster) armed() []string {
	c.t.Helper()
	left, err := os.ReadDir(c.points)
	if err != nil {
		c.t.Fatal(err)
	}
	names := []string{}
	for _, point := range left {
		names = append(names, point.Name())
	}
	return names
}

// ask creates a Drain, as kubectl create would.
func (c *cluster) ask(name, node string, change ...func(*v1alpha1.Drain)) *v1alpha1.Drain {
	c.t.Helper()
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.DrainSpec{NodeName: node}}
	for _, f := range change {
		f(d)
	}
	until(c.t, "the drain to be created", func() bool { return c.client.Create(context.Background(), d) == nil })
	return d
}

// awaitEnd waits until a drain is over and the slot is free, and checks how it ended.
func (c *cluster) awaitEnd(name string, phase v1alpha1.DrainPhase, reason string) *v1alpha1.Drain {
	c.t.Helper()
	d := &v1alpha1.Drain{}
	until(c.t, fmt.Sprintf("drain %s to be %s", name, phase), func() bool {
		if c.client.Get(context.Background(), types.NamespacedName{Name: name}, d) != nil {
			return false
		}
		return d.Status.Phase.Final()
	})
	end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if d.Status.Phase != phase || end == nil || end.Reason != reason {
		c.t.Fatalf("drain %s is %s: %+v, want %s, %s", name, d.Status.Phase, end, phase, reason)
	}
	until(c.t, "the slot to be free", func() bool {
		s := &v1alpha1.Settings{}
		return c.client.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, s) == nil && s.Status.ActiveDrain == nil
	})
	return d
}

// back starts a node that was drained or killed, or uncordons one that is parked, and waits until it is Alive in a new epoch.
func (c *cluster) back(name string) {
	c.t.Helper()
	before := c.record(name).Epoch
	if c.node(name).IsParked() {
		c.must("uncordon", name)
	} else {
		c.startNode(name)
	}
	until(c.t, "node "+name+" to be back", func() bool {
		n := &v1alpha1.Node{}
		err := c.client.Get(context.Background(), types.NamespacedName{Name: name}, n)
		return err == nil && n.IsReady() && n.Status.Liveness == v1alpha1.Alive && n.Status.Epoch > before
	})
}

// steps of a drain that persist something, in order.
var steps = []string{
	drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepStop, drain.StepDesireStopping, drain.StepComplete, drain.StepReleaseSlot,
}

func TestADrainSurvivesItsCoordinatorAtEveryStep(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 3)
	for _, step := range steps {
		t.Run("coordinator killed after "+step, func(t *testing.T) {
			c.t = t
			leader := c.awaitLeader("")
			target := others(trio, leader)[0]
			c.arm("after-"+step, "")
			c.ask("crash-"+step, target)
			until(t, "the coordinator to die", func() bool { return c.fired("after-" + step) })
			next := c.awaitLeader(leader)
			if step == drain.StepHold && next == target {
				// Nothing was decided yet, and the node was free to become coordinator.
				c.awaitEnd("crash-"+step, v1alpha1.DrainFailed, v1alpha1.ReasonTargetIsCoordinator)
				c.back(leader)
				return
			}
			c.awaitEnd("crash-"+step, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
			c.back(leader)
			c.back(target)
		})
		if t.Failed() {
			return
		}
	}
	c.t = t
}

func TestADrainSurvivesItsNodeAndTheAPIAtEveryStep(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 3)
	// Up to the step at which the node is told to leave it is there to be killed.
	for _, step := range steps[1:6] {
		t.Run("node killed after "+step, func(t *testing.T) {
			c.t = t
			target := others(trio, c.awaitLeader(""))[0]
			if step == drain.StepDesireStopping {
				c.arm("before-"+step, "hold")
			}
			c.arm("after-"+step, "hold")
			c.ask("dead-"+step, target)
			if step == drain.StepDesireStopping {
				// Told to leave, it would be gone before it can be killed: it is frozen just before.
				tell := c.awaitHeld("before-" + step)
				c.signal(target, syscall.SIGSTOP)
				tell()
			}
			letGo := c.awaitHeld("after-" + step)
			c.signal(target, syscall.SIGKILL)
			letGo()
			c.awaitEnd("dead-"+step, v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone)
			c.back(target)
		})
	}
	t.Run("node restarted while it drains", func(t *testing.T) {
		c.t = t
		target := others(trio, c.awaitLeader(""))[0]
		epoch := c.record(target).Epoch
		c.arm("after-"+drain.StepDesireDraining, "hold")
		c.ask("restarted", target)
		letGo := c.awaitHeld("after-" + drain.StepDesireDraining)
		c.signal(target, syscall.SIGKILL)
		until(t, "the process to be gone", func() bool { return syscall.Kill(c.pid(target), 0) != nil })
		c.startNode(target)
		c.awaitReady(target, epoch+1)
		if got := c.node(target).Status.Liveness; got != v1alpha1.Draining {
			t.Errorf("a node that was restarted while it drains is %s", got)
		}
		letGo()
		d := c.awaitEnd("restarted", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
		if d.Status.NodeEpoch <= epoch {
			t.Errorf("the drain ended in epoch %d, which is not after %d", d.Status.NodeEpoch, epoch)
		}
		c.back(target)
	})
	for _, step := range steps {
		t.Run("API server away after "+step, func(t *testing.T) {
			c.t = t
			target := others(trio, c.awaitLeader(""))[0]
			c.arm("after-"+step, "hold")
			c.ask("outage-"+step, target)
			letGo := c.awaitHeld("after-" + step)
			c.signal("apiserver", syscall.SIGKILL)
			letGo()
			time.Sleep(c.outage()) // the outage itself
			c.startServer()
			until(t, "the API server", func() bool { return c.connect() == nil })
			d := &v1alpha1.Drain{}
			until(t, "the drain to end", func() bool {
				err := c.client.Get(context.Background(), types.NamespacedName{Name: "outage-" + step}, d)
				return err == nil && d.Status.Phase.Final()
			})
			c.awaitLeader("")
			if end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); step == drain.StepHold && end.Reason == v1alpha1.ReasonTargetIsCoordinator {
				return // nothing was decided yet, and the node was free to become coordinator
			}
			if d.Status.Phase != v1alpha1.DrainComplete {
				t.Fatalf("the drain is %+v", d.Status)
			}
			c.back(target)
		})
		if t.Failed() {
			return
		}
	}
	c.t = t
}

// The coordinator of two dies for good at every step of a drain. The other goes back to work and leads, whatever it had heard of
// its drain; one that was told to leave before leaves, and does the same when it is started again.
func TestTheLoneSurvivorGoesBackToWork(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 2)
	pair := []string{"n1", "n2"}
	for _, step := range steps[1:6] {
		t.Run("coordinator dies for good after "+step, func(t *testing.T) {
			c.t = t
			leader := c.awaitLeader("")
			target := others(pair, leader)[0]
			epoch := c.record(target).Epoch
			c.arm("after-"+step, "")
			c.ask("lone-"+step, target)
			until(t, "the coordinator to die", func() bool { return c.fired("after-" + step) })
			if step == drain.StepDesireStopping {
				until(t, "the node to leave", func() bool { return !c.record(target).Held() })
				epoch++
				c.startNode(target)
			}
			c.awaitEnd("lone-"+step, v1alpha1.DrainCancelled, v1alpha1.ReasonLoneSurvivor)
			c.survived(target, leader, epoch+1)
			c.back(leader)
		})
		if t.Failed() {
			return
		}
	}
	c.t = t
}

// The node is frozen while its drain begins, and its coordinator is killed for good. Leases are long enough for people to look.
func TestPeopleAreToldWhyNobodyLeads(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.EbbFailpoints(t))
	c.points = t.TempDir()
	c.timing = lease.Timing{Renew: 2 * time.Second, Timeout: 2 * time.Second, Fence: 10 * time.Second, Dead: 12 * time.Second, Lost: 45 * time.Second}
	startNodes(t, c, 2)
	pair := []string{"n1", "n2"}
	leader := c.awaitLeader("")
	target := others(pair, leader)[0]
	epoch := c.record(target).Epoch
	c.arm("after-"+drain.StepBegin, "hold")
	c.ask("frozen", target)
	c.awaitHeld("after-" + drain.StepBegin)
	c.signal(target, syscall.SIGSTOP)
	c.signal(leader, syscall.SIGKILL)
	c.signal(target, syscall.SIGCONT)
	// It takes seconds until the survivor may act. Until then both commands say what is going on.
	silent := regexp.MustCompile(`(The coordinator, node ` + leader + `, has not renewed its election for \d+s|There is no coordinator: (node ` + leader + ` was elected|the election was released))`)
	why := "Node " + target + " cannot become coordinator while drain frozen drains it. Once every other node has left or is lost, it cancels that drain and becomes coordinator; it waits for " + leader + ".\n"
	for _, command := range [][]string{{"explain", target}, {"status"}} {
		until(t, "`ebb "+command[0]+"` to say that the coordinator is silent", func() bool {
			out := c.must(command...)
			return silent.MatchString(out) && strings.Contains(out, why)
		})
	}
	c.awaitEnd("frozen", v1alpha1.DrainCancelled, v1alpha1.ReasonLoneSurvivor)
	c.survived(target, leader, epoch+1)
	if out := c.must("explain", target); strings.Contains(out, "There is no coordinator") {
		t.Errorf("explain:\n%s", out)
	}
	c.back(leader)
}

// survived wants a node to lead, Alive in an epoch, and the other one to be marked.
func (c *cluster) survived(node, other string, epoch int64) {
	c.t.Helper()
	if got := c.awaitLeader(other); got != node {
		c.t.Errorf("%s leads", got)
	}
	until(c.t, "the survivor to be Alive", func() bool {
		n := c.node(node)
		return n.IsReady() && n.Status.Liveness == v1alpha1.Alive && n.Status.Epoch >= epoch
	})
	if r := c.record(other); r.Fenced != r.Epoch {
		c.t.Errorf("the other node was not marked: %+v", r)
	}
}

// A drain can be cancelled at every step before Stopping, and not after.
func TestADrainIsCancelled(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 3)
	leader := c.awaitLeader("")
	target := others(trio, leader)[0]
	for _, step := range steps[1:4] {
		t.Run("after "+step, func(t *testing.T) {
			c.t = t
			target = others(trio, c.awaitLeader(""))[0]
			epoch := c.record(target).Epoch
			c.arm("after-"+step, "hold")
			c.ask("cancel-"+step, target)
			letGo := c.awaitHeld("after-" + step)
			// The coordinator stands still, so the wish is written before it goes on.
			d := &v1alpha1.Drain{}
			until(t, "the wish to be written", func() bool {
				if err := c.client.Get(context.Background(), types.NamespacedName{Name: "cancel-" + step}, d); err != nil {
					return false
				}
				d.Spec.Cancelled = true
				return c.client.Update(context.Background(), d) == nil
			})
			letGo()
			c.awaitEnd("cancel-"+step, v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
			until(t, "the node to be back", func() bool {
				n := c.node(target)
				return n.IsReady() && n.Status.Liveness == v1alpha1.Alive && n.Status.Epoch > epoch
			})
		})
		if t.Failed() {
			return
		}
	}
	c.t = t
	t.Run("by the command, by HTTP and too late", func(t *testing.T) {
		c.t = t
		if _, errs, code := c.run("drain", target, "--cancel"); code != 1 || errs != "ebb: no drain to cancel: node "+target+" is not being drained\n" {
			t.Errorf("nothing to cancel: exit %d, %q", code, errs)
		}
		c.arm("before-"+drain.StepStop, "hold")
		c.ask("by-command", target)
		letGo := c.awaitHeld("before-" + drain.StepStop)
		cancelled := make(chan string)
		go func() {
			out, errs, _ := c.run("drain", target, "--cancel", "--wait")
			cancelled <- out + errs
		}()
		until(t, "the wish to be written", func() bool {
			d := &v1alpha1.Drain{}
			return c.client.Get(context.Background(), types.NamespacedName{Name: "by-command"}, d) == nil && d.Spec.Cancelled
		})
		letGo()
		if out := <-cancelled; out != "drain by-command of node "+target+" is cancelled; the node is Alive again\n" {
			t.Errorf("drain --cancel: %q", out)
		}
		c.awaitEnd("by-command", v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)

		c.arm("after-"+drain.StepStop, "hold")
		c.ask("too-late", target)
		letGo = c.awaitHeld("after-" + drain.StepStop)
		want := "drain too-late is Stopping: node " + target + " is empty and is shutting down; start it again to bring it back"
		if _, errs, code := c.run("drain", target, "--cancel"); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("too late: exit %d, %q", code, errs)
		}
		d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "too-late"}}
		if err := c.client.Delete(context.Background(), d); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "can no longer be cancelled") {
			t.Errorf("deleting it: %v", err)
		}
		letGo()
		c.awaitEnd("too-late", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	})
	c.t = t
}

// explains waits until `ebb explain` says exactly this of a node. A drain that has ended is shown until its slot is free.
func (c *cluster) explains(node, want string) {
	c.t.Helper()
	got := ""
	untilSo(c.t, func() string { return fmt.Sprintf("explain to say %q, and it says %q", want, got) }, func() bool {
		got = c.must("explain", node)
		return got == want
	})
}

func TestDrainCommand(t *testing.T) {
	beside(t, light)
	c := startCluster(t, testenv.Ebb(t), 3)
	leader := c.awaitLeader("")
	target := others(trio, leader)[0]
	for _, tc := range []struct{ node, want string }{
		{leader, "ebb: drain of node " + leader + ": cannot drain coordinator node (TargetIsCoordinator): `ebb drain " + leader + " --resign` lets another node take over first\n"},
		{"n9", "ebb: drain of node n9: capture not found (CaptureNotFound): `ebb status` lists the nodes; one that has left, is lost or is parked cannot be drained\n"},
	} {
		if _, errs, code := c.run("drain", tc.node, "--wait"); code != 1 || errs != tc.want {
			t.Errorf("drain %s: exit %d, %q, want %q", tc.node, code, errs, tc.want)
		}
	}
	out, errs, code := c.run("drain", target, "--wait", "--reason", "kernel upgrade")
	for strings.Contains(errs, "(TargetIsCoordinator)") { // on a busy machine another node may lead by now
		leader = c.awaitLeader("")
		target = others(trio, leader)[0]
		out, errs, code = c.run("drain", target, "--wait", "--reason", "kernel upgrade")
	}
	if code != 0 {
		t.Fatalf("drain %s: exit %d, %s", target, code, errs)
	}
	if !strings.Contains(out, target+": Node "+target+" was emptied and has left. It took ") {
		t.Errorf("drain:\n%s", out)
	}
	until(t, "the process to have exited 0", func() bool {
		return strings.Contains(c.up.out.String(), target+" exited 0; start it again with: "+c.ebb+" node --name "+target)
	})
	if status := c.must("status"); !strings.Contains(status, "Complete") || !strings.Contains(status, "Node "+target+" was emptied and has left.") {
		t.Errorf("status:\n%s", status)
	}
	epoch := c.record(target).Epoch
	c.explains(target, fmt.Sprintf("Node %s is Stopping in epoch %d.\nIt has left: it released its lease. It rejoins as epoch %d when its process runs again.\n", target, epoch, epoch+1))
	c.startNode(target)
	c.awaitReady(target, epoch+1)
	if got := c.node(target).Status.Liveness; got != v1alpha1.Alive {
		t.Errorf("after the restart the node is %s", got)
	}
	// The coordinator hands over and is drained in one go.
	out = c.must("drain", leader, "--resign", "--wait")
	if !strings.Contains(out, leader+" resigned; ") || !strings.Contains(out, leader+": Node "+leader+" was emptied and has left.") {
		t.Errorf("drain --resign:\n%s", out)
	}
	// One that drains itself when it is told to stop.
	epoch = c.record(leader).Epoch
	self := c.startNode(leader, "--drain-on-sigterm")
	c.awaitReady(leader, epoch+1)
	self.stop()
	if code := self.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(self.out.String(), "draining before leaving") {
		t.Errorf("exit %d:\n%s", code, self.out)
	}
	// The coordinator says so after the node has left.
	until(t, "two complete drains of "+leader, func() bool {
		var drains v1alpha1.DrainList
		if err := c.client.List(context.Background(), &drains); err != nil {
			t.Fatal(err)
		}
		complete := 0
		for _, d := range drains.Items {
			if d.Spec.NodeName == leader && d.Status.Phase == v1alpha1.DrainComplete {
				complete++
			}
		}
		return complete == 2
	})
}
