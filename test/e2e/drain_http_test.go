package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// longLeases keep a frozen node from being called lost while a test looks at its drain.
var longLeases = []string{"--lease-renew=2s", "--lease-renew-timeout=2s", "--lease-fence=100s", "--lease-dead=110s", "--lease-duration=120s"}

// answer is a status code and a body.
type answer struct {
	code int
	body string
}

func refused(code int, kind, message string) answer {
	return answer{code, fmt.Sprintf(`{"error_code":%q,"error_msg":%q}`+"\n", kind, message)}
}

var (
	notFound      = refused(404, "ErrCaptureNotFound", "capture not found")
	singleNode    = refused(400, "ErrSingleNode", "at least 2 captures required for drain operation")
	isCoordinator = refused(400, "ErrTargetIsCoordinator", "cannot drain coordinator node")
	inProgress    = refused(409, "ErrDrainInProgress", "another drain operation is in progress")
	accepted      = answer{202, `{"current_maintainer_count":0,"current_dispatcher_count":0}` + "\n"}
	notDraining   = answer{200, `{"is_draining":false,"remaining_maintainer_count":0,"remaining_dispatcher_count":{}}` + "\n"}
)

// expect asks a node and compares the answer word for word.
func (c *cluster) expect(t *testing.T, node, method, path string, want answer) {
	t.Helper()
	token, err := datadir.ReadToken(c.dir.Token())
	if err != nil {
		t.Fatal(err)
	}
	code, body := c.request(t, node, method, path, token)
	if code != want.code || body != want.body {
		t.Errorf("%s %s on %s: %d %s want %d %s", method, path, node, code, body, want.code, want.body)
	}
}

func drainPath(node string) string { return "/api/v2/captures/" + node + "/drain" }

func TestDrainOverHTTPAndKubectl(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.Ebb(t))
	startNodes(t, c, 0)
	for _, name := range trio {
		c.startNode(name, longLeases...)
	}
	for _, name := range trio {
		c.awaitReady(name, 1)
	}
	leader := c.awaitLeader("")
	rest := others(trio, leader)
	target, third := rest[0], rest[1]

	c.expect(t, third, "GET", drainPath(target), notDraining)
	c.expect(t, third, "GET", drainPath("n9"), notFound)
	for _, via := range trio { // the coordinator answers, whoever is asked
		c.expect(t, via, "PUT", drainPath("n9"), notFound)
		c.expect(t, via, "PUT", drainPath("Not_A_Name"), notFound)
		c.expect(t, via, "PUT", drainPath(leader), isCoordinator)
	}
	c.kubectlRefused(t, "n9", v1alpha1.ReasonCaptureNotFound, "capture not found")
	c.kubectlRefused(t, leader, v1alpha1.ReasonTargetIsCoordinator, "cannot drain coordinator node")

	// A frozen node acknowledges nothing, so its drain stays.
	c.signal(target, syscall.SIGSTOP)
	pid := c.pid(target)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	c.expect(t, third, "PUT", drainPath(target), accepted)
	c.expect(t, third, "GET", drainPath(target), answer{200, `{"is_draining":true,"draining_capture_id":"` + target + `","remaining_maintainer_count":0,"remaining_dispatcher_count":{}}` + "\n"})
	c.expect(t, third, "GET", drainPath(third), notDraining)
	// Each reason with the one after it: not found, then the coordinator, then the slot.
	c.expect(t, third, "PUT", drainPath(target), inProgress)
	c.expect(t, third, "PUT", drainPath(third), inProgress)
	c.expect(t, third, "PUT", drainPath(leader), isCoordinator)
	c.expect(t, third, "PUT", drainPath("n9"), notFound)
	c.kubectlRefused(t, third, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain ")
	c.kubectlRefused(t, target, v1alpha1.ReasonDrainInProgress, "another drain operation is in progress: drain ")
	c.metric(t, leader, `ebb_coordinator_drain_capture_status{capture_id="`+target+`"} 1`)
	if got := c.must("explain", target); !strings.Contains(got, "Node "+target+" blocks the drain: AwaitingAcknowledgement, for ") {
		t.Errorf("explain:\n%s", got)
	}
	queued := c.ask("queued", third, func(d *v1alpha1.Drain) { d.Spec.WhenBusy = v1alpha1.Queue })
	until(t, "the drain to be queued", func() bool {
		return c.client.Get(context.Background(), types.NamespacedName{Name: queued.Name}, queued) == nil && queued.Status.Phase == v1alpha1.DrainPending
	})

	// Watching a drain that somebody deletes ends.
	watching := c.start("drain", third, "--queue", "--wait", "--kubeconfig", c.dir.Kubeconfig())
	var waiting string
	until(t, "the watched drain", func() bool {
		var drains v1alpha1.DrainList
		if c.client.List(context.Background(), &drains) != nil {
			return false
		}
		for _, d := range drains.Items {
			if d.Status.Phase == v1alpha1.DrainPending && d.Name != queued.Name {
				waiting = d.Name
			}
		}
		return waiting != ""
	})
	c.kubectl("delete", "drain", waiting)
	if code := watching.awaitExit(t); code != 1 || !strings.Contains(watching.out.String(), "was deleted before it ended") {
		t.Errorf("exit %d: %s", code, watching.out)
	}

	c.signal(target, syscall.SIGCONT)
	until(t, "the node to have left", func() bool { return !c.record(target).Held() })
	c.awaitEnd("queued", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	c.metric(t, leader, `ebb_coordinator_drain_capture_status{capture_id="`+target+`"} 0`)
	c.metric(t, leader, `ebb_coordinator_drain_capture_duration_seconds_count{capture_id="`+target+`"} 1`)

	// Alone: that comes before being the coordinator, and after not being there.
	c.expect(t, leader, "PUT", drainPath(leader), singleNode)
	c.expect(t, leader, "PUT", drainPath(target), notFound)
	c.kubectlRefused(t, leader, v1alpha1.ReasonSingleNode, "at least 2 captures required for drain operation")
	c.expect(t, leader, "POST", "/api/v2/owner/resign", refused(409, "ErrNoSuccessor", "no other node can take over: none is Alive, Ready and not being drained"))
}

// kubectlRefused creates a Drain and checks for which reason it fails.
func (c *cluster) kubectlRefused(t *testing.T, node, reason, message string) {
	t.Helper()
	d := c.ask(fmt.Sprintf("refused-%s-%s", strings.ToLower(reason), node), node)
	until(t, "the drain to be refused", func() bool {
		return c.client.Get(context.Background(), types.NamespacedName{Name: d.Name}, d) == nil && d.Status.Phase.Final()
	})
	end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if d.Status.Phase != v1alpha1.DrainFailed || end.Reason != reason || !strings.HasPrefix(end.Message, message) {
		t.Errorf("drain of %s: %s, %+v, want Failed, %s: %s", node, d.Status.Phase, end, reason, message)
	}
}

// metric waits until a node serves a line among its metrics.
func (c *cluster) metric(t *testing.T, node, line string) {
	t.Helper()
	until(t, line, func() bool {
		_, body := c.request(t, node, "GET", "/metrics", "")
		return hasLine(body, line)
	})
}
