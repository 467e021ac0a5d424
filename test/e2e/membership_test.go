package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

var trio = []string{"n1", "n2", "n3"}

// One cluster goes through everything that befalls machines: each step starts from where the one before left it.
func TestMachinesComeAndGo(t *testing.T) {
	beside(t, heavy)
	c := newCluster(t, testenv.Ebb(t))
	c.timing = lease.DefaultTiming() // in this test alone: it is what the documents say and people have
	c.runUp(3)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"kubectl shows three Alive nodes and the coordinator", showsThreeNodes},
		{"resigning hands over to another", resigns},
		{"a coordinator that is told to stop hands over and leaves in order", stopsTheCoordinator},
		{"a killed coordinator is replaced and marked, and comes back in the next epoch", killsTheCoordinator},
		{"a frozen node is marked and writes nothing of its old epoch when it wakes", func(t *testing.T, c *cluster) {
			freezes(t, c, others(trio, c.awaitLeader(""))[0])
		}},
		{"a frozen coordinator that wakes up changes nothing", func(t *testing.T, c *cluster) {
			freezes(t, c, c.awaitLeader(""))
		}},
		{"an outage of the API marks nobody", apiOutage},
		{"everything killed at once comes back", killsEverything},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			c.t = t
			step.run(t, c)
		}) {
			break
		}
	}
	c.t = t
}

func showsThreeNodes(t *testing.T, c *cluster) {
	leader := c.awaitLeader("")
	table := c.kubectl("get", "nodes.ebb.dev")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if want := []string{"NAME", "LIVENESS", "READY", "COORDINATOR", "CORDONED", "EPOCH", "REASON", "AGE"}; !slices.Equal(strings.Fields(lines[0]), want) {
		t.Errorf("columns: %s", lines[0])
	}
	for i, name := range trio {
		epoch := strconv.FormatInt(c.record(name).Epoch, 10)
		want := []string{name, "Alive", "True", epoch, "Serving"}
		if name == leader {
			want = []string{name, "Alive", "True", "true", epoch, "Serving"}
		}
		if got := strings.Fields(lines[i+1]); !slices.Equal(got[:len(got)-1], want) {
			t.Errorf("row %q, want %q and an age", got, want)
		}
	}
}

func resigns(t *testing.T, c *cluster) {
	before := c.awaitLeader("")
	epochs := map[string]int64{}
	for _, name := range trio {
		epochs[name] = c.record(name).Epoch
	}
	result := decode[struct{ Resigned, Coordinator string }](t, c.must("resign", "-o", "json"))
	if result.Resigned != before || result.Coordinator == before || result.Coordinator == "" {
		t.Errorf("%s was the coordinator: %+v", before, result)
	}
	c.awaitLeader(before)
	for _, name := range trio {
		if e := c.node(name).Status.Epoch; e != epochs[name] {
			t.Errorf("node %s is in epoch %d, and was in %d", name, e, epochs[name])
		}
	}
}

func stopsTheCoordinator(t *testing.T, c *cluster) {
	before := c.awaitLeader("")
	epoch := c.record(before).Epoch
	c.signal(before, syscall.SIGTERM)
	c.awaitLeader(before)
	until(t, "the lease to be released", func() bool { return !c.record(before).Held() })
	if r := c.record(before); r.Fenced >= epoch {
		t.Errorf("a node that left in order was marked: %+v", r)
	}
	var n *v1alpha1.Node
	untilSo(t, func() string { return fmt.Sprintf("the node to be shown as Left: %+v", n.Status) }, func() bool {
		n = c.node(before)
		ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady)
		return n.Status.Liveness == v1alpha1.Stopping && !n.Status.Coordinator && ready.Reason == v1alpha1.ReasonLeft
	})
	until(t, "ebb up to tell of it", func() bool {
		return strings.Contains(c.up.out.String(), before+" exited 0; start it again with: "+c.ebb+" node --name "+before)
	})
	c.startNode(before)
	c.awaitReady(before, epoch+1)
}

func killsTheCoordinator(t *testing.T, c *cluster) {
	before := c.awaitLeader("")
	epoch, changes := c.record(before).Epoch, c.transitions()
	c.signal(before, syscall.SIGKILL)
	c.awaitLeader(before)
	until(t, "the mark", func() bool { return c.record(before).Fenced == epoch })
	until(t, "the node to be called Fenced", func() bool {
		r := meta.FindStatusCondition(c.node(before).Status.Conditions, v1alpha1.NodeReady)
		return r.Status == metav1.ConditionUnknown && r.Reason == v1alpha1.ReasonFenced
	})
	until(t, "an event to tell of the loss", func() bool { return strings.Contains(c.kubectl("get", "events", "-A"), "NodeLost") })
	if got := c.transitions(); got != changes+1 {
		t.Errorf("the election changed hands %d times, want once", got-changes)
	}
	c.startNode(before)
	c.awaitReady(before, epoch+1)
}

// history records every state of the Nodes that a watch shows.
type history struct {
	mu    sync.Mutex
	nodes []*v1alpha1.Node
}

func (c *cluster) watchNodes(t *testing.T) *history {
	t.Helper()
	w, err := c.client.Watch(context.Background(), &v1alpha1.NodeList{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	h := &history{}
	go func() {
		for e := range w.ResultChan() {
			if n, ok := e.Object.(*v1alpha1.Node); ok {
				h.mu.Lock()
				h.nodes = append(h.nodes, n)
				h.mu.Unlock()
			}
		}
	}()
	return h
}

// of are the states of one node in one epoch.
func (h *history) of(name string, epoch int64) []*v1alpha1.Node {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*v1alpha1.Node
	for _, n := range h.nodes {
		if n.Name == name && n.Status.Epoch == epoch {
			list = append(list, n)
		}
	}
	return list
}

func freezes(t *testing.T, c *cluster, name string) {
	epoch, wasLeader := c.record(name).Epoch, c.leader() == name
	c.signal(name, syscall.SIGSTOP)
	pid := c.pid(name)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	until(t, "the mark", func() bool { return c.record(name).Fenced == epoch })
	leader := c.awaitLeader("")
	if wasLeader {
		leader = c.awaitLeader(name)
	}
	until(t, "the node to be called Fenced", func() bool { return !c.node(name).IsReady() })
	changes, seen := c.transitions(), c.watchNodes(t)
	c.signal(name, syscall.SIGCONT)
	c.awaitReady(name, epoch+1)
	// Whatever it meant to write for its old epoch would have come before the new one.
	for _, n := range seen.of(name, epoch) {
		if n.IsReady() || n.Status.Coordinator {
			t.Errorf("the woken node wrote for epoch %d: %+v", epoch, n.Status)
		}
	}
	for range 3 { // and nothing changes as its lease is renewed
		before := c.record(name)
		until(t, "a renewal", func() bool { return c.record(name).Version != before.Version })
	}
	if got := c.leader(); got != leader || c.transitions() != changes {
		t.Errorf("the woken node changed the election: %s leads, %d changes; want %s, %d", got, c.transitions(), leader, changes)
	}
}

func apiOutage(t *testing.T, c *cluster) {
	leader, changes := c.awaitLeader(""), c.transitions()
	epochs := map[string]int64{}
	marks := map[string]int64{}
	for _, name := range trio {
		epochs[name], marks[name] = c.record(name).Epoch, c.record(name).Fenced
	}
	c.signal("apiserver", syscall.SIGKILL)
	time.Sleep(30 * time.Second) // the outage itself
	c.startServer()
	for _, name := range trio {
		c.awaitReady(name, epochs[name]+1)
		epochs[name] = c.record(name).Epoch
	}
	c.awaitLeader("")
	// Anything that the outage made look old would be marked within one more lease.
	deadline := time.Now().Add(c.timing.Lost + 2*time.Second)
	for time.Now().Before(deadline) {
		for _, name := range trio {
			if r := c.record(name); r.Fenced != marks[name] || r.Epoch != epochs[name] {
				t.Fatalf("the outage marked or moved node %s: %+v", name, r)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	if got := c.transitions() - changes; got > 1 {
		t.Errorf("the election changed hands %d times (it was %s's)", got, leader)
	}
}

func killsEverything(t *testing.T, c *cluster) {
	epochs := map[string]int64{}
	for _, name := range trio {
		epochs[name] = c.record(name).Epoch
	}
	for _, name := range append(slices.Clone(trio), "apiserver") {
		c.signal(name, syscall.SIGKILL)
	}
	c.up.stop()
	c.runUp(3)
	for _, name := range trio {
		c.awaitReady(name, epochs[name]+1)
	}
	c.awaitLeader("")
}

// The names of machines in clouds are DNS subdomains, and some are as long as the API allows.
func TestNodesWithLongNamesRunAndDrain(t *testing.T) {
	beside(t, light)
	c := startNodes(t, newCluster(t, testenv.Ebb(t)), 0)
	nodes := []string{"ip-10-0-0-1.ec2.internal", strings.Repeat("long-name.", 25) + "1", strings.Repeat("long-name.", 25) + "2"}
	sockets := t.TempDir()
	start := func(name string, epoch int64) {
		c.startNode(name, "--volume-sockets", sockets)
		c.awaitReady(name, epoch)
	}
	for _, name := range nodes {
		start(name, 1)
	}
	e := c.createEtcd("keys", 1)
	e.settle(1)
	c.must("volume", "create", "data", "--size", "4Mi", "--replicas", "2", "--wait", patience.String())
	program := &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sleeper"}, Spec: v1alpha1.DeploymentSpec{Command: "sleep", Args: []string{"1000000"}}}
	if err := c.client.Create(context.Background(), program); err != nil {
		t.Fatal(err)
	}
	for i, target := range nodes {
		if c.awaitLeader("") == target {
			c.must("resign")
			c.awaitLeader(target)
		}
		epoch := c.record(target).Epoch
		drain := fmt.Sprint("drain-", i)
		c.ask(drain, target)
		c.awaitEnd(drain, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
		start(target, epoch+1)
		e.settle(1)
	}
	until(t, "the deployment to run", func() bool {
		err := c.client.Get(context.Background(), client.ObjectKeyFromObject(program), program)
		return err == nil && program.Status.Running == 1
	})
}
