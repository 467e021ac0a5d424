package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func parking(d *v1alpha1.Drain) { d.Spec.Park = true }

// awaitParked waits until a node is parked and its lease free.
func (c *cluster) awaitParked(name string) *v1alpha1.Node {
	c.t.Helper()
	until(c.t, "node "+name+" to be parked", func() bool { return c.node(name).IsParked() && !c.record(name).Held() })
	return c.node(name)
}

// waits waits until a process says that it is parked.
func (p *process) waits(t testing.TB) {
	t.Helper()
	until(t, "the process to be parked", func() bool { return strings.Contains(p.out.String(), "parked: waiting until the node is uncordoned") })
}

// uncordoned uncordons a node and waits until it is Alive after an epoch, with nothing left of its parking.
func (c *cluster) uncordoned(name string, epoch int64) {
	c.t.Helper()
	c.must("uncordon", name)
	until(c.t, "node "+name+" to be back", func() bool {
		n := c.node(name)
		return n.IsReady() && n.Status.Liveness == v1alpha1.Alive && n.Status.Epoch > epoch && n.Status.Parked == nil && !n.Spec.Cordoned && len(v1alpha1.CordonOwners(n)) == 0
	})
}

func TestParkCommand(t *testing.T) {
	beside(t, light)
	c := startCluster(t, testenv.Ebb(t), 3)
	leader := c.awaitLeader("")
	target := others(trio, leader)[0]
	pid, epoch := c.pid(target), c.record(target).Epoch
	if _, errs, code := c.run("drain", target, "--park", "--cancel"); code != 1 || errs != "ebb: --cancel can only be combined with --wait\n" {
		t.Errorf("--park --cancel: exit %d, %q", code, errs)
	}
	out := c.must("drain", target, "--park", "--wait")
	if !strings.Contains(out, target+": Node "+target+" was emptied and has left. It is parked until it is uncordoned. It took ") {
		t.Errorf("drain --park:\n%s", out)
	}
	c.awaitParked(target)
	if c.pid(target) != pid || syscall.Kill(pid, 0) != nil {
		t.Errorf("process %d of the parked node has ended", pid)
	}
	c.expect(t, target, http.MethodGet, "/readyz", answer{http.StatusOK, "ok"})
	c.expect(t, target, http.MethodGet, "/healthz", answer{http.StatusOK, "ok"})
	until(t, "the status to show it", func() bool {
		for _, line := range strings.Split(c.must("status"), "\n") {
			if f := strings.Fields(line); len(f) > 4 && f[0] == target && f[1] == "Stopping" && f[2] == "False" && f[3] == "Parked" && f[len(f)-1] == "cordoned" {
				return true
			}
		}
		return false
	})
	c.explains(target, fmt.Sprintf("Node %s is Stopping in epoch %d.\nIt is parked: it was drained, and its process waits without a lease. `ebb uncordon %s` brings it back as epoch %d.\n", target, epoch, target, epoch+1))
	if _, errs, code := c.run("drain", target, "--wait"); code != 1 || errs != "ebb: drain of node "+target+": capture not found (CaptureNotFound): `ebb status` lists the nodes; one that has left, is lost or is parked cannot be drained\n" {
		t.Errorf("drain of a parked node: exit %d, %q", code, errs)
	}
	if got := c.must("uncordon", target); got != fmt.Sprintf("node %s uncordoned; it was parked and joins again in epoch %d\n", target, epoch+1) {
		t.Errorf("uncordon: %q", got)
	}
	c.awaitReady(target, epoch+1)
	until(t, "the owners to be cleared", func() bool { return len(v1alpha1.CordonOwners(c.node(target))) == 0 })
	if c.pid(target) != pid {
		t.Errorf("another process runs the node")
	}
	// HTTP asks for it too; ebb up starts again with a node that is parked.
	c.expect(t, leader, http.MethodPut, drainPath(target)+"?park=perhaps", refused(http.StatusBadRequest, "ErrBadRequest", `park "perhaps": use true or false`))
	c.expect(t, leader, http.MethodPut, drainPath(target)+"?park=true", accepted)
	c.awaitParked(target)
	c.up.stop()
	c.runUp(3)
	if out := c.up.out.String(); !strings.Contains(out, target+" is parked: `"+c.ebb+" uncordon "+target+"` brings it back\n") {
		t.Errorf("ebb up:\n%s", out)
	}
	if !c.node(target).IsParked() {
		t.Error("the restarted node is not parked any more")
	}
	c.uncordoned(target, epoch+1)
}

// Whoever dies at whatever step, the node is parked in the end, and comes back when it is uncordoned.
func TestAParkedNodeSurvivesEveryCrash(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 3)
	for _, step := range []string{drain.StepCordon, drain.StepDesireStopping, drain.StepComplete} {
		t.Run("coordinator killed after "+step, func(t *testing.T) {
			c.t = t
			leader := c.awaitLeader("")
			target := others(trio, leader)[0]
			epoch := c.record(target).Epoch
			c.arm("after-"+step, "")
			c.ask("leader-"+step, target, parking)
			c.awaitLeader(leader)
			c.awaitEnd("leader-"+step, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
			c.awaitParked(target)
			c.back(leader)
			c.uncordoned(target, epoch)
		})
		if t.Failed() {
			return
		}
	}
	for _, point := range []string{"before-record-parked", "after-record-parked"} {
		t.Run("node killed "+point, func(t *testing.T) {
			c.t = t
			target := others(trio, c.awaitLeader(""))[0]
			epoch := c.record(target).Epoch
			c.arm(point, "")
			d := c.ask(point, target, parking)
			until(t, "the node to die", func() bool { return c.fired(point) })
			p := c.startNode(target)
			p.waits(t)
			until(t, "the drain to be complete", func() bool {
				return c.client.Get(context.Background(), types.NamespacedName{Name: d.Name}, d) == nil && d.Status.Phase == v1alpha1.DrainComplete
			})
			if n := c.awaitParked(target); n.Status.Parked.DrainUID != string(d.UID) {
				t.Errorf("parked: %+v", n.Status.Parked)
			}
			c.uncordoned(target, epoch)
		})
		if t.Failed() {
			return
		}
	}
	t.Run("node killed while it drains, and started when its drain is over", func(t *testing.T) {
		c.t = t
		target := others(trio, c.awaitLeader(""))[0]
		epoch := c.record(target).Epoch
		c.arm("after-"+drain.StepDesireDraining, "hold")
		c.ask("dies", target, parking)
		letGo := c.awaitHeld("after-" + drain.StepDesireDraining)
		c.signal(target, syscall.SIGKILL)
		letGo()
		c.awaitEnd("dies", v1alpha1.DrainComplete, v1alpha1.ReasonNodeGone)
		c.startNode(target).waits(t)
		c.awaitParked(target)
		c.uncordoned(target, epoch)
	})
	t.Run("killed while parked, and uncordoned while it is down", func(t *testing.T) {
		c.t = t
		target := others(trio, c.awaitLeader(""))[0]
		epoch := c.record(target).Epoch
		c.ask("down", target, parking)
		c.awaitEnd("down", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
		c.awaitParked(target)
		c.signal(target, syscall.SIGKILL)
		p := c.startNode(target)
		p.waits(t)
		_ = p.cmd.Process.Kill()
		<-p.done
		if got := c.record(target).Epoch; got != epoch {
			t.Errorf("the restarted node joined in epoch %d", got)
		}
		c.must("uncordon", target)
		c.startNode(target)
		c.uncordoned(target, epoch)
	})
	t.Run("uncordoned before it is empty", func(t *testing.T) {
		c.t = t
		target := others(trio, c.awaitLeader(""))[0]
		epoch := c.record(target).Epoch
		c.arm("after-"+drain.StepDesireDraining, "hold")
		c.ask("uncordoned", target, parking)
		letGo := c.awaitHeld("after-" + drain.StepDesireDraining)
		if got := c.must("uncordon", target); got != "node "+target+" uncordoned; the drain or quarantine that cordoned it is cancelled\n" {
			t.Errorf("uncordon: %q", got)
		}
		letGo()
		c.awaitEnd("uncordoned", v1alpha1.DrainCancelled, v1alpha1.ReasonUncordoned)
		c.uncordoned(target, epoch)
	})
	t.Run("its Node is deleted while it is parked", func(t *testing.T) {
		c.t = t
		target := others(trio, c.awaitLeader(""))[0]
		epoch := c.record(target).Epoch
		c.ask("deleted", target, parking)
		c.awaitEnd("deleted", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
		pid := c.pid(target)
		if err := c.client.Delete(context.Background(), c.awaitParked(target)); err != nil {
			t.Fatal(err)
		}
		until(t, "the process to end", func() bool { return syscall.Kill(pid, 0) != nil })
		if err := c.client.Get(context.Background(), types.NamespacedName{Name: target}, &v1alpha1.Node{}); !kubeclient.IsMissing(err) {
			t.Errorf("the Node is there again: %v", err)
		}
		c.startNode(target)
		c.awaitReady(target, epoch+1)
	})
	c.t = t
}

// The only other node dies for good at every step. The survivor goes back to work, at once or when it is uncordoned.
func TestTheLoneSurvivorOfADrainThatParks(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 2)
	pair := []string{"n1", "n2"}
	for _, step := range []string{drain.StepCordon, drain.StepDesireDraining, drain.StepDesireStopping} {
		t.Run("coordinator dies for good after "+step, func(t *testing.T) {
			c.t = t
			leader := c.awaitLeader("")
			target := others(pair, leader)[0]
			epoch := c.record(target).Epoch
			c.arm("after-"+step, "")
			c.ask("lone-"+step, target, parking)
			until(t, "the coordinator to die", func() bool { return c.fired("after-" + step) })
			if step == drain.StepDesireStopping {
				c.awaitParked(target)
				if out := c.must("status"); !strings.Contains(out, "Parked") {
					t.Errorf("status:\n%s", out)
				}
				c.must("uncordon", target)
				epoch++
			}
			c.awaitEnd("lone-"+step, v1alpha1.DrainCancelled, v1alpha1.ReasonLoneSurvivor)
			c.survived(target, leader, epoch+1)
			until(t, "the cordon to be lifted", func() bool {
				n := c.node(target)
				return !n.Spec.Cordoned && len(v1alpha1.CordonOwners(n)) == 0 && n.Status.Parked == nil
			})
			c.back(leader)
		})
		if t.Failed() {
			return
		}
	}
	c.t = t
}
