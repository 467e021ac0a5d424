package deployment_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// A node whose disk is full cannot write what a shim needs. That counts as a failure of the program, so that another node runs it, and the object
// says why.
func TestADeploymentThatItsNodeCannotStartRunsOnAnother(t *testing.T) {
	t.Parallel()
	for name, full := range map[string]func(m *host, dir string){
		"the directory of the program": func(_ *host, dir string) { inTheWay(t, filepath.Join(dir, "spec.json")) },
		"the directory of all":         func(_ *host, dir string) { blocked(t, dir) },
		"what the node remembers":      func(m *host, _ string) { inTheWay(t, m.opts.Dir.Store()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a, b := s.host("a"), s.host("b")
			a.awaitSettled()
			full(a, filepath.Join(a.programs.Dir, s.home, "w"))
			w := s.deploy("w", addressed(a.name), restarts(10*time.Millisecond, 20*time.Millisecond, 0), moveAfter(3))
			w.runsOn(b.name)
			d := w.get()
			if len(d.Status.Avoid) != 1 || d.Status.Avoid[0].Node != a.name || !strings.Contains(d.Status.Avoid[0].Message, "write ") && !strings.Contains(d.Status.Avoid[0].Message, "not a directory") {
				t.Errorf("avoided: %+v", d.Status.Avoid)
			}
			if n := starts(onNode(w.marks(), a.name)); n != 0 {
				t.Errorf("it started %d times on a", n)
			}
		})
	}
}

// inTheWay makes a file that cannot be written, as a full disk does: before anything of it is changed.
func inTheWay(t *testing.T, file string) {
	t.Helper()
	_ = os.Remove(file) // there may be none
	if err := os.MkdirAll(filepath.Join(file, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
}

// blocked makes a directory that cannot be made.
func blocked(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A program that stays on a draining node until a person decides keeps none of higher priority there.
func TestAProgramThatCannotLeaveHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.host("a")
	stays, leaves := s.deploy("stays", addressed(a.name), pinned, prioritised(-1)), s.deploy("leaves", addressed(a.name), prioritised(1))
	stays.runsOn(a.name)
	leaves.runsOn(a.name)
	b := s.host("b")
	a.drain()
	leaves.runsOn(b.name)
	stays.runsOn(a.name)
}

// A node was away when a program was deleted and another one got its name, which runs elsewhere.
func TestNothingOfAnEarlierProgramIsLeftThoughAnotherHasItsName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	w, stays := s.deploy("w", addressed(b.name)), s.deploy("stays", addressed(b.name))
	w.runsOn(b.name)
	stays.runsOn(b.name)
	b.awaitSettled()
	stays.update(pinned)
	b.leave()
	w.delete()
	w.awaitGone()
	w = s.deploy("w", addressed(a.name))
	w.runsOn(a.name)
	b.start()
	stays.runsOn(b.name)
	until(t, "nothing of the earlier program to be left on b", func() bool { return len(s.left(b)) == 1 })
	w.runsOn(a.name)
	if left := s.left(a, b); len(left) != 2 || left[0] != a.name+"/w" || left[1] != b.name+"/stays" {
		t.Errorf("left: %q", left)
	}
}

// A file that somebody left among the directories of programs is nobody's program.
func TestAFileAmongTheProgramsKeepsNoneFromRunning(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.newHost("n")
	s.must(os.MkdirAll(m.programs.Dir, 0o700))
	s.must(os.WriteFile(filepath.Join(m.programs.Dir, "notes.txt"), nil, 0o600))
	m.start()
	s.deploy("w", addressed(m.name)).runsOn(m.name)
}

// A program that goes on without a lease on a lost node outlives its object. An event says where.
func TestADeletedProgramThatMayStillRunIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lost := s.ghost("lost")
	w := s.deploy("w", daemon, func(d *v1alpha1.Deployment) { d.Finalizers = []string{v1alpha1.DeploymentFinalizer} })
	w.status(on(lost, 1, v1alpha1.InstanceRunning), wentOn(lost))
	s.mark(lost)
	d := w.until("the lost node to be named", func(d *v1alpha1.Deployment) bool { return len(d.Status.MayRunOn) == 1 })
	w.delete()
	w.awaitGone()
	if n := s.told(d.UID, "MayStillRun"); n != 1 {
		t.Errorf("%d events say so", n)
	}
}

// What a node cannot read, a person removes, as the error says. A program that goes on meanwhile does not keep the node from looking again.
func TestANodeThatCouldNotReadWhatItRemembersLooksAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	pid := s.deploy("everywhere", daemon).runsOn(m.name)
	m.awaitSettled()
	seen := m.programs.Dir + "-seen.json"
	s.must(os.WriteFile(seen, []byte("{"), 0o600))
	m.fenced()
	until(t, "the node to say what it cannot read", func() bool { return m.log.said("could not read what the node remembers") > 0 })
	if !lives(pid) {
		t.Error("the daemon has ended")
	}
	s.must(os.Remove(seen))
	s.deploy("w", addressed(m.name)).runsOn(m.name)
}

// While a node of an earlier version lives, the coordinator lets every new program run as the node's user. A program that a node starts before is not
// started again for that.
func TestAProgramIsNotRestartedBecauseANodeOfAnEarlierVersionLives(t *testing.T) {
	need.Root(t, "run programs as other users")
	t.Parallel()
	api := testenv.StartAPI(t, deployment.Kind().Objects...)
	s := siteOn(t, api, nil) // there is no coordinator yet
	uids, err := deployment.ParseUIDs("2000000030-2000000033")
	s.must(err)
	m := s.host("n", func(m *host) { m.programs.UIDs = uids })
	older := s.ghost("older")
	n := s.node(older)
	meta.RemoveStatusCondition(&n.Status.Conditions, v1alpha1.NodeProgramsIsolated)
	s.must(s.admin.Status().Update(t.Context(), n))
	in := func(d *v1alpha1.Deployment) { d.Spec.WorkingDir = "/" }
	w := s.deploy("w", addressed(m.name), in)
	w.instance(m.name, "waiting for the coordinator", func(i *v1alpha1.DeploymentInstance) bool { return i.Message == deployment.WaitUser })
	newLeader(t, api)
	if uid := uidOf(t, w.runsOn(m.name)); uid != 0 {
		t.Errorf("it runs as %d", uid)
	}
	if n := starts(w.marks()); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestWhoAProgramRunsAsIsDecidedByTheCoordinatorWhileANodeIsOfAnEarlierVersion(t *testing.T) {
	c := newCluster("n1", "n2")
	fresh := program("d", addressed("n1"))
	if c.Undecided(fresh) {
		t.Error("undecided although every node is of this version")
	}
	c.Nodes["n2"].Status.Conditions = c.Nodes["n2"].Status.Conditions[:1]
	if !c.Undecided(fresh) {
		t.Error("decided although n2 is of an earlier version and the coordinator has not seen the object")
	}
	if named := program("d", func(d *v1alpha1.Deployment) { d.Spec.User = "nobody" }); c.Undecided(named) {
		t.Error("undecided although the object names a user")
	}
	fresh.Status, _ = deployment.Observe(c.World, fresh, time.Unix(1000, 0))
	if c.Undecided(fresh) || fresh.RunsAs() != v1alpha1.NodeUser {
		t.Errorf("once the coordinator has seen it, it runs as %q", fresh.RunsAs())
	}
}

// A program was started while a node of an earlier version was restarted. When that joins, its Node still shows what the earlier process published.
func TestWhoAProgramRunsAsIsDecidedWhenNodesThatJoinHavePublishedTheirVersion(t *testing.T) {
	c := newCluster("n1", "n2")
	d, now := program("d", addressed("n1"), on("n1", 1, v1alpha1.InstanceRunning)), time.Unix(1000, 0)
	isolated := c.Nodes["n2"].Status.Conditions
	c.Nodes["n2"].Status.Conditions = isolated[:1]
	c.restarts("n2")
	next, again := deployment.Observe(c.World, d, now)
	if !equality.Semantic.DeepEqual(next, d.Status) || again == 0 {
		t.Errorf("before n2 has published its version, the coordinator writes %+v and looks again in %s", next, again)
	}
	if !c.Undecided(program("later", addressed("n1"))) {
		t.Error("decided before n2 has published its version")
	}
	c.Nodes["n2"].Status.Epoch = c.Leases["n2"].Epoch
	if old, _ := deployment.Observe(c.World, d, now); old.Isolated {
		t.Error("n2 is still of the earlier version, which knows nothing of the field isolated")
	}
	c.Nodes["n2"].Status.Conditions = isolated
	if d.Status, _ = deployment.Observe(c.World, d, now); d.RunsAs() != "" {
		t.Errorf("after n2 was upgraded, the program is started again as %q", d.RunsAs())
	}
}

// The coordinator compares the end of the time for which a node is avoided with its own clock.
func TestANodeWithAWrongClockIsAvoidedAllTheSame(t *testing.T) {
	c := newCluster("n1", "n2")
	now := time.Unix(100000, 0)
	for name, skew := range map[string]time.Duration{"right": 0, "ahead": 24 * time.Hour, "behind": -24 * time.Hour} {
		d := program("d", addressed("n1"), on("n1", 1, v1alpha1.InstanceBackoff))
		d.Status, _ = deployment.Observe(c.World, d, now)
		d.Status = deployment.GivenUp(d, "n1", "It failed.", now.Add(time.Minute+skew)).Status
		status, again := deployment.Observe(c.World, d, now.Add(time.Minute))
		if len(status.Avoid) != 1 || again < 5*time.Minute || again > 15*time.Minute {
			t.Errorf("%s: %+v, again in %s", name, status.Avoid, again)
		}
		d.Status = status
		if status, _ = deployment.Observe(c.World, d, now.Add(20*time.Minute)); len(status.Avoid) != 0 {
			t.Errorf("%s, later: %+v", name, status.Avoid)
		}
	}
}

// A node that cannot contain or isolate its programs says so, why, and what to do.
func TestANodeSaysWhyItsProgramsAreNeitherContainedNorIsolated(t *testing.T) {
	log := &journal{t: t}
	r, err := deployment.NewRuntime(deployment.Options{
		Node: "n", Dir: t.TempDir(), Exe: "/bin/false", Gate: node.NewGate(func(string, string) {}), Metrics: deployment.NewMetrics(prometheus.NewRegistry(), "n"), Log: log.logger(),
	})
	if err != nil {
		t.Fatal(err)
	}
	var s v1alpha1.NodeStatus
	r.Report(&s)
	for _, want := range []metav1.Condition{
		{Type: v1alpha1.NodeProgramsContained, Reason: v1alpha1.ReasonNoPIDNamespaces, Message: "If a shim is killed, processes that its program started may continue."},
		{Type: v1alpha1.NodeProgramsIsolated, Reason: v1alpha1.ReasonNoOwnUsers, Message: "they can read its credentials and the files of other programs."},
	} {
		c := meta.FindStatusCondition(s.Conditions, want.Type)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != want.Reason || !strings.Contains(c.Message, want.Message) {
			t.Errorf("%s: %+v", want.Type, c)
		}
	}
}
