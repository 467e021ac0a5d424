package deployment_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
)

func pinned(d *v1alpha1.Deployment) { d.Spec.Pinned = true }

// givenUp is a program that nodes have given up.
func givenUp(nodes ...string) change {
	return func(d *v1alpha1.Deployment) {
		for _, n := range nodes {
			d.Status = deployment.GivenUp(d, n, "It failed.", time.Unix(1000, 0)).Status
		}
	}
}

func moveAfter(n int32) change {
	return func(d *v1alpha1.Deployment) { d.Spec.Restart.MoveAfter = &n }
}

func TestADeploymentIsTriedElsewhere(t *testing.T) {
	c := newCluster("n1", "n2", "n3")
	for _, k := range []struct {
		name string
		d    *v1alpha1.Deployment
		want string // who claims it; empty for nobody
	}{
		{"as long as it runs at its address nobody claims it", program("d", addressed("n1"), running("n1", 1), givenUp("n3")), ""},
		{"given up by one", program("d", addressed("n1"), givenUp("n1", "n3")), "n2"},
		{"given up by all: it stays where it is", program("d", addressed("n1"), givenUp("n1", "n2", "n3")), ""},
		{"pinned", program("d", addressed("n1"), givenUp("n1"), pinned), ""},
		{"given up by all, and its node is lost", program("d", addressed("gone"), givenUp("n1", "n2", "n3")), "any"},
		{"another program was given up", program("d", addressed("n1"), givenUp("n1"), func(d *v1alpha1.Deployment) { d.Spec.Command = "/opt/mended" }), ""},
		{"pinned to a lost node", program("d", addressed("gone"), pinned), ""},
		{"pinned without an address", program("d", pinned, givenUp("n1", "n3")), "n2"},
	} {
		t.Run(k.name, func(t *testing.T) {
			if k.d.Status.Holder != nil && k.d.Spec.Address == "" {
				k.d.Status.Holder = nil
			}
			got := deployment.Assign(c.World, []*v1alpha1.Deployment{k.d})[k.d]
			if got != k.want && !(k.want == "any" && got != "") {
				t.Errorf("claimed by %q, want %q", got, k.want)
			}
		})
	}
}

func TestWhatIsAvoidedEnds(t *testing.T) {
	c := newCluster("n1", "n2")
	d := program("d", addressed("n2"), running("n2", 1), givenUp("n1"))
	status, again := deployment.Observe(c.World, d, time.Unix(1001, 0))
	if len(status.Avoid) != 1 || again != 10*time.Minute-time.Second {
		t.Errorf("after a second: %+v, again in %v", status.Avoid, again)
	}
	if status, _ = deployment.Observe(c.World, d, time.Unix(1600, 0)); len(status.Avoid) != 0 {
		t.Errorf("after ten minutes: %+v", status.Avoid)
	}
	d.Spec.Args = []string{"other"}
	if status, _ = deployment.Observe(c.World, d, time.Unix(1001, 0)); len(status.Avoid) != 0 {
		t.Errorf("after a change: %+v", status.Avoid)
	}
}

func TestFailuresDecideWhenItMoves(t *testing.T) {
	for _, k := range []struct {
		name     string
		d        *v1alpha1.Deployment
		failures int
		want     bool
	}{
		{"by default after five", program("d"), 5, true}, {"not after four", program("d"), 4, false},
		{"as set", program("d", moveAfter(2)), 2, true}, {"never", program("d", moveAfter(0)), 100, false},
		{"before the limit of restarts ends it", program("d", func(d *v1alpha1.Deployment) { d.Spec.Restart.Limit = 1 }), 2, true},
		{"a daemon has nowhere to go", program("d", daemon), 100, false},
	} {
		if got := deployment.Failing(k.d, k.failures); got != k.want {
			t.Errorf("%s: %t", k.name, got)
		}
	}
}

// A daemon that is only restarted, however slowly within its grace, is not missing; one that fails is.
func TestASlowRestartIsNotAMissingDaemon(t *testing.T) {
	c := newCluster("n1", "n2")
	began := time.Unix(5000, 0)
	d := program("d", daemon, on("n1", 1, v1alpha1.InstanceRestarting), running("n2", 1), func(d *v1alpha1.Deployment) {
		d.Spec.Stop.Grace = lasting(time.Minute)
		since := metav1.NewMicroTime(began)
		d.Status.Nodes[0].Since = &since
	})
	d.Status, _ = deployment.Observe(c.World, d, began)
	at := func(after time.Duration) (string, time.Duration) {
		status, again := deployment.Observe(c.World, d, began.Add(after))
		seen := d.DeepCopy()
		seen.Status = status
		return reason(seen, v1alpha1.DeploymentRunning), again
	}
	if r, again := at(64 * time.Second); r != v1alpha1.ReasonNotRunning || again != time.Second {
		t.Errorf("within its grace: %s, again in %v", r, again)
	}
	if r, _ := at(66 * time.Second); r != v1alpha1.ErrDaemonMissing {
		t.Errorf("past its grace: %s", r)
	}
	d.Status.Nodes[0].State, d.Status.Nodes[0].Failures = v1alpha1.InstanceStarting, 1
	if r, _ := at(6 * time.Second); r != v1alpha1.ErrDaemonMissing {
		t.Errorf("failing: %s", r)
	}
}

// A rollout waits until the changed daemon has run for minReady, and stops where it fails.
func TestARolloutWaitsUntilTheChangeHasProvenItself(t *testing.T) {
	c := newCluster("n1", "n2")
	d := program("d", daemon, running("n1", 1), running("n2", 1))
	if !c.MayRestart(d, "n2") {
		t.Error("n2 may not restart although n1 runs")
	}
	d.Status.Nodes[0].Settling = true
	if c.MayRestart(d, "n2") {
		t.Error("n2 may restart before n1 has proven itself")
	}
	d.Status.Nodes[0].Settling, d.Status.Nodes[0].State = false, v1alpha1.InstanceBackoff
	if c.MayRestart(d, "n2") {
		t.Error("n2 may restart although it fails on n1")
	}
}

func TestADeploymentThatFailsOnOneNodeRunsOnAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	w := s.deploy("w", addressed(a.name), restarts(10*time.Millisecond, 20*time.Millisecond, 0), moveAfter(3), runs(`[ "$EBB_NODE" != `+a.name+` ] || exit 3; exec sleep 100000`, s.file("w")))
	d := w.until("it to run on b", func(d *v1alpha1.Deployment) bool {
		i := d.Instance(b.name)
		return i != nil && i.State == v1alpha1.InstanceRunning && d.Holder().Node == b.name
	})
	// The node gives up when it could write its third failure, which may be later than that.
	said := regexp.MustCompile(`It failed ([3-9]|\d\d+) times in a row on node ` + a.name)
	if len(d.Status.Avoid) != 1 || d.Status.Avoid[0].Node != a.name || !said.MatchString(d.Status.Avoid[0].Message) {
		t.Errorf("avoided: %+v", d.Status.Avoid)
	}
	if n := s.told(d.UID, "GivenUp"); n != 1 {
		t.Errorf("%d events say so", n)
	}
}

// The failures of a program are on the node's disk: a node that is restarted does not begin to count anew.
func TestFailuresOutliveTheNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	w := s.deploy("w", addressed(m.name), moveAfter(0), runs("exit 3", s.file("w")), restarts(10*time.Millisecond, time.Hour, 0))
	before := w.instance(m.name, "to fail for the sixth time", func(i *v1alpha1.DeploymentInstance) bool { return i.Failures >= 6 })
	m.stop()
	w.released()
	m.start()
	m.awaitReady()
	after := w.instance(m.name, "to be there again", func(i *v1alpha1.DeploymentInstance) bool { return i.NodeEpoch > before.NodeEpoch })
	if after.Failures < before.Failures {
		t.Errorf("%d failures before, %d after", before.Failures, after.Failures)
	}
}

func TestAPinnedDeploymentWaitsForItsNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	gone, other := "gone-"+s.home, s.host("other")
	w := s.deploy("w", addressed(gone), pinned)
	s.deploy("free", addressed(gone)).runsOn(other.name) // it had time to claim both
	d := w.until("it to say why", func(d *v1alpha1.Deployment) bool {
		return reason(d, v1alpha1.DeploymentRunning) == v1alpha1.ReasonPinned
	})
	if d.Spec.Address != gone || d.Status.State != v1alpha1.StateLost {
		t.Errorf("it is %s at %s", d.Status.State, d.Spec.Address)
	}
	w.update(func(d *v1alpha1.Deployment) { d.Spec.Pinned = false })
	w.runsOn(other.name)
}

// What goes on without a lease may still run on a lost node, and is said to until the node is back or deleted.
func TestProgramsThatMayStillRunAreNamed(t *testing.T) {
	observed := func(c cluster, d *v1alpha1.Deployment) []string {
		status, _ := deployment.Observe(c.World, d, time.Unix(1000, 0))
		return status.MayRunOn
	}
	for _, k := range []struct {
		name string
		d    *v1alpha1.Deployment
		end  func(cluster)
		want []string
	}{
		{"a daemon of a lost node", program("d", daemon, running("n1", 1), running("n2", 1)), func(c cluster) { c.dies("n1") }, []string{"n1"}},
		{"a deployment that keeps", program("d", addressed("n1"), running("n1", 1), keeps), func(c cluster) { c.dies("n1") }, []string{"n1"}},
		{"one that stops", program("d", addressed("n1"), running("n1", 1)), func(c cluster) { c.dies("n1") }, nil},
		{"a node that left in order", program("d", daemon, running("n1", 1)), func(c cluster) { c.leaves("n1") }, nil},
		{"a node that lives", program("d", daemon, running("n1", 1)), func(cluster) {}, nil},
	} {
		c := newCluster("n1", "n2")
		k.end(c)
		if got := observed(c, k.d); !slices.Equal(got, k.want) {
			t.Errorf("%s: %q, want %q", k.name, got, k.want)
		}
	}
	d := program("d", daemon, running("n2", 1))
	d.Status.MayRunOn = []string{"n1"}
	c := newCluster("n2")
	c.join("n1")
	c.dies("n1")
	if got := observed(c, d); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("later: %q", got)
	}
	c.restarts("n1")
	if got := observed(c, d); len(got) != 0 {
		t.Errorf("when the node is back: %q", got)
	}
	delete(c.Nodes, "n1")
	delete(c.Leases, "n1")
	if got := observed(c, d); len(got) != 0 {
		t.Errorf("when the node is deleted: %q", got)
	}
}

// A program that must not run twice, and went on without a lease on a node that was lost, keeps others from starting it until that node is back
// and has ended it, or until somebody deletes its Node object.
func TestALostNodeOnWhichAProgramGoesOnKeepsOthersFromStartingIt(t *testing.T) {
	for _, k := range []struct {
		name string
		d    *v1alpha1.Deployment
	}{
		{"it kept when its node was last heard of", program("d", addressed("n2"), on("n1", 1, v1alpha1.InstanceRunning), wentOn("n1"))},
		{"it was a daemon, and the coordinator had written down where it may run", program("d", addressed("n2"), mayRunOn("n1"))},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, d := newCluster("n1", "n2"), k.d
			c.dies("n1")
			observe := func() {
				t.Helper()
				d.Status, _ = deployment.Observe(c.World, d, time.Unix(1000, 0))
			}
			observe()
			running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
			if got := c.Occupied(d, "n2"); got != "n1" || !slices.Equal(d.Status.MayRunOn, []string{"n1"}) || !strings.Contains(running.Message, "node n1, which is lost") {
				t.Errorf("%q keeps it, it may run on %q: %+v", got, d.Status.MayRunOn, running)
			}
			gone := cluster{deployment.World{Fleet: fleet.Fleet{Nodes: map[string]*v1alpha1.Node{"n2": c.Nodes["n2"]}, Leases: c.Leases}}}
			if status, _ := deployment.Observe(gone.World, d, time.Unix(1000, 0)); gone.Occupied(&v1alpha1.Deployment{Spec: d.Spec, Status: status}, "n2") != "" {
				t.Errorf("the Node object is deleted: %+v", status)
			}
			c.restarts("n1")
			observe()
			observe()
			if got := c.Occupied(d, "n2"); got != "n1" || len(d.Status.MayRunOn) > 0 || len(d.Status.Nodes) != 1 {
				t.Errorf("n1 is back and %q keeps it: %+v", got, d.Status)
			}
			if got := c.Occupied(deployment.Released(d, "n1", nil), "n2"); got != "" {
				t.Errorf("n1 has released it and %q keeps it", got)
			}
		})
	}
}

func TestAProgramThatIsToStopAfterAllStartsNowhereWhileItsNodeIsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a", endsFast), s.host("b")
	w := s.deploy("w", addressed(a.name), keeps)
	pid := w.runsOn(a.name)
	w.instance(a.name, "written down as one that goes on", func(i *v1alpha1.DeploymentInstance) bool { return strings.HasSuffix(i.Revision, keepMark) })
	a.wire.cut()
	until(t, "the epoch of a to end", func() bool { return a.node.Epoch() == nil })
	s.mark(a.name)
	w.update(func(d *v1alpha1.Deployment) { d.Spec.WhenDisconnected = v1alpha1.StopDisconnected })
	w.until("b to claim it, and to say what it waits for", func(d *v1alpha1.Deployment) bool {
		running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
		return d.Spec.Address == b.name && running != nil && strings.Contains(running.Message, "node "+a.name+", which is lost")
	})
	if !lives(pid) || starts(w.marks()) != 1 {
		t.Errorf("the program on a lives: %t; %d starts", lives(pid), starts(w.marks()))
	}
	a.wire.mend()
	w.runsOn(b.name)
	if lives(pid) {
		t.Error("the program on a lives, too")
	}
	oneAtATime(t, w.marks())
}

// A store that was restored from a backup does not know what is newer: the files of programs are data, and are kept.
func TestFilesThatAnOlderStoreDoesNotKnowAreKept(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	w, deleted := s.deploy("w", addressed(m.name)), s.deploy("deleted", addressed(m.name))
	w.runsOn(m.name)
	deleted.runsOn(m.name)
	m.stop()
	w.released()
	s.must(os.WriteFile(m.programs.Dir+"-seen.json", []byte(`{"id": "", "version": 9000000000000000000}`), 0o600)) // the store went back far
	w.delete()
	until(t, "the object to be gone", func() bool { _, err := w.read(); return apierrors.IsNotFound(err) })
	m.start()
	m.awaitReady()
	kept := filepath.Join(m.programs.Dir+"-kept", s.home, "w-*", "out.log")
	until(t, "its files to be kept", func() bool { found, err := filepath.Glob(kept); return err == nil && len(found) == 1 })
	if _, err := os.Stat(filepath.Join(m.programs.Dir, s.home, "w")); !os.IsNotExist(err) {
		t.Errorf("its directory is there as well: %v", err)
	}
	// What is deleted before the node's eyes is removed.
	deleted.runsOn(m.name)
	deleted.delete()
	until(t, "its directory to be removed", func() bool {
		_, err := os.Stat(filepath.Join(m.programs.Dir, s.home, "deleted"))
		return os.IsNotExist(err)
	})
	if found, _ := filepath.Glob(filepath.Join(m.programs.Dir+"-kept", s.home, "deleted-*")); len(found) > 0 {
		t.Errorf("kept: %v", found)
	}
}
