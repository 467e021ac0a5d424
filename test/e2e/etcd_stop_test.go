package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// change writes the spec of the cluster.
func (e *etcdUnderTest) change(f func(*v1alpha1.EtcdClusterSpec)) {
	e.t.Helper()
	until(e.t, "the spec to be written", func() bool {
		ec := e.get()
		f(&ec.Spec)
		return e.client.Update(context.Background(), ec) == nil
	})
}

// want asks for a size and waits for nothing.
func (e *etcdUnderTest) want(size int32) {
	e.t.Helper()
	e.change(func(s *v1alpha1.EtcdClusterSpec) { s.Size = &size })
}

// become asks for a size and waits for it.
func (e *etcdUnderTest) become(size int32) {
	e.t.Helper()
	e.want(size)
	e.settle(int(size))
}

// put writes a key that must be there from then on.
func (e *etcdUnderTest) put(key, value string) {
	e.t.Helper()
	c := e.connectEtcd()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := c.Put(ctx, key, value); err != nil {
		e.t.Fatal(err)
	}
	e.keys[key] = value
}

// all reads every key that was put.
func (e *etcdUnderTest) all() {
	e.t.Helper()
	c := e.connectEtcd()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for key, value := range e.keys {
		got, err := c.Get(ctx, key)
		if err != nil {
			e.t.Fatal(err)
		}
		if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != value {
			e.t.Errorf("%s is not %q: %v", key, value, got.Kvs)
		}
	}
}

// snapshot that the stopped cluster rests on.
func (e *etcdUnderTest) snapshot() *v1alpha1.EtcdSnapshot {
	e.t.Helper()
	rest := e.get().Status.Rest
	if rest == nil || rest.Snapshot == "" {
		e.t.Fatalf("%s rests on no snapshot: %+v", e.key.Name, rest)
	}
	s := &v1alpha1.EtcdSnapshot{}
	if err := e.client.Get(context.Background(), types.NamespacedName{Namespace: e.key.Namespace, Name: rest.Snapshot}, s); err != nil {
		e.t.Fatal(err)
	}
	return s
}

// flip changes one bit in the middle of the copy of a snapshot. Done twice it is as it was.
func (e *etcdUnderTest) flip(node string, s *v1alpha1.EtcdSnapshot) {
	e.t.Helper()
	path := filepath.Join(string(e.dir.Node(node)), "etcd-snapshots", s.Spec.ClusterUID, s.Name+".db")
	data, err := os.ReadFile(path)
	if err != nil {
		e.t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		e.t.Fatal(err)
	}
}

// of runs what follows as a part of its own, beside others on the same nodes.
func (c *cluster) of(t testing.TB) *cluster {
	part := *c
	part.t = t
	return &part
}

func TestStopsOfEtcdClustersKeepWhatTheyShould(t *testing.T) {
	beside(t, heavy)
	c := startFleet(t, 3)
	t.Run("beside each other", func(t *testing.T) {
		for name, run := range map[string]func(*cluster){
			"no write is acknowledged that the stop does not keep": runIntoTheStop,
			"a snapshot that was tampered with is refused":         tamper,
			"what is deleted is gone":                              discard,
			"a snapshot that cannot be taken holds the stop":       failToTakeSnapshots,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(c.of(t))
			})
		}
	})
	t.Run("a change of mind at every step", func(t *testing.T) { changeOfMind(c.of(t)) })
	t.Run("a node that dies while the snapshot is taken", func(t *testing.T) { loseANode(c.of(t)) })
	t.Run("a node that is absent does not hold a stop", func(t *testing.T) { stopWithoutANode(c.of(t)) })
}

func runIntoTheStop(c *cluster) {
	e := c.createEtcd("writer", 3)
	e.settle(3)
	l := e.load()
	for _, policy := range []v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain} {
		e.change(func(s *v1alpha1.EtcdClusterSpec) { s.Storage.OnStop = policy })
		l.goesOn()
		e.become(0)
		rest, written := e.get().Status.Rest, l.count()
		if last := l.last(); rest == nil || rest.OnStop != policy || last.revision > rest.Revision {
			c.t.Errorf("%+v was acknowledged, and what was kept is %+v", last, rest)
		}
		e.become(3)
		c.t.Logf("%s at revision %d with %d writes acknowledged, stop %s, start %s", policy, rest.Revision, written, e.get().Status.LastStop.Duration, e.get().Status.LastStart.Duration)
	}
	l.check()
}

// failToTakeSnapshots: where the snapshots should be is a file. Clients are not kept out, and nothing of what they write is lost.
func failToTakeSnapshots(c *cluster) {
	e := c.createEtcd("nowhere", 1, func(s *v1alpha1.EtcdClusterSpec) { s.Snapshot.Dir = "nowhere" })
	e.settle(1)
	for _, name := range trio {
		dir := filepath.Join(string(c.dir.Node(name)), "etcd-snapshots")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			c.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "nowhere"), []byte("full"), 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
	l := e.load()
	l.goesOn()
	before := e.get().Status.Members
	e.want(0)
	until(c.t, "SnapshotFailed, and Ready", func() bool {
		conditions := e.get().Status.Conditions
		return meta.IsStatusConditionTrue(conditions, v1alpha1.EtcdSnapshotFailed) && meta.IsStatusConditionTrue(conditions, v1alpha1.EtcdReady)
	})
	if stop := e.get().Status.Stop; stop == nil || stop.Snapshot != "" || stop.SealedSince != nil {
		c.t.Errorf("members were sealed though no node has room for a copy: %+v", stop)
	}
	l.goesOn()
	for i, m := range e.get().Status.Members {
		if m.Name != before[i].Name || m.ID != before[i].ID {
			c.t.Errorf("member %s %s is now %s %s", before[i].Name, before[i].ID, m.Name, m.ID)
		}
	}
	for _, name := range trio {
		if err := os.Remove(filepath.Join(string(c.dir.Node(name)), "etcd-snapshots", "nowhere")); err != nil {
			c.t.Fatal(err)
		}
	}
	e.settle(0)
	if ec := e.get(); ec.Status.Rest == nil || l.last().revision > ec.Status.Rest.Revision || meta.FindStatusCondition(ec.Status.Conditions, v1alpha1.EtcdSnapshotFailed) != nil {
		c.t.Errorf("%+v was acknowledged, and it stopped as %+v", l.last(), ec.Status)
	}
	e.become(1)
	l.check()
}

// loseANode kills a node while the snapshot is being taken.
func loseANode(c *cluster) {
	e := c.createEtcd("killed", 3)
	e.settle(3)
	l := e.load()
	l.goesOn()
	c.arm("after-etcd-stop-Snapshotting", "hold")
	e.want(0)
	letGo := c.awaitHeld("after-etcd-stop-Snapshotting")
	victim := others(trio, c.awaitLeader(""))[0]
	c.signal(victim, syscall.SIGKILL)
	letGo()
	e.settle(0)
	if rest := e.get().Status.Rest; rest == nil || l.last().revision > rest.Revision {
		c.t.Errorf("%+v was acknowledged, and what was kept is %+v", l.last(), rest)
	}
	c.back(victim)
	e.become(3)
	l.check()
}

// last write that was acknowledged.
func (l *etcdLoad) last() etcdWrite {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked[len(l.acked)-1]
}

func tamper(c *cluster) {
	e := c.createEtcd("tampered", 1)
	e.settle(1)
	e.put("before", "the first stop")
	// One copy of two is bad, first the one and then the other: whichever it begins from, the good one is used.
	for i := range 2 {
		e.become(0)
		s := e.snapshot()
		nodes := s.Verified()
		if len(nodes) != 2 {
			c.t.Fatalf("snapshot %s is verified on %v", s.Name, nodes)
		}
		slices.Sort(nodes)
		e.flip(nodes[i], s)
		e.become(1)
		e.all()
		e.put(fmt.Sprintf("round-%d", i), "written after a restore")
	}
	// All are bad: nothing begins.
	e.become(0)
	s := e.snapshot()
	nodes := s.Verified()
	for _, node := range nodes {
		e.flip(node, s)
	}
	e.want(1)
	until(c.t, "DataMissing", func() bool { return meta.IsStatusConditionTrue(e.get().Status.Conditions, v1alpha1.EtcdDataMissing) })
	missing := e.get()
	text := meta.FindStatusCondition(missing.Status.Conditions, v1alpha1.EtcdDataMissing).Message
	if missing.Status.Phase != v1alpha1.EtcdClusterPhaseFailed || missing.Status.ReadyReplicas != 0 || missing.Status.Rest == nil ||
		!strings.Contains(text, "No node has a verified copy of snapshot "+s.Name) {
		c.t.Errorf("with no good copy left: %s, %+v", text, missing.Status)
	}
	// One is as it was again: it goes on by itself.
	e.flip(nodes[0], s)
	e.settle(1)
	e.all()
}

func discard(c *cluster) {
	e := c.createEtcd("discarded", 1, func(s *v1alpha1.EtcdClusterSpec) { s.Storage.OnStop = v1alpha1.EtcdDelete })
	e.settle(1)
	e.put("gone", "after the stop")
	before := e.get().Status.ClusterID
	e.become(0)
	var snapshots v1alpha1.EtcdSnapshotList
	if err := c.client.List(context.Background(), &snapshots, client.MatchingLabels{v1alpha1.EtcdClusterLabel: e.key.Name}); err != nil || len(snapshots.Items) > 0 {
		c.t.Errorf("snapshots of a cluster that keeps nothing: %v %v", snapshots.Items, err)
	}
	e.become(1)
	cl := e.connectEtcd()
	defer cl.Close()
	got, err := cl.Get(context.Background(), "gone")
	if err != nil || len(got.Kvs) > 0 {
		c.t.Errorf("what was to be deleted is %v, %v", got, err)
	}
	if after := e.get().Status.ClusterID; after == before {
		c.t.Errorf("it is the same cluster %s", after)
	}
}

// stopSteps that every stop with a snapshot goes through; one that finds the copies made does not stay at Copying.
var stopSteps = []v1alpha1.EtcdStopStep{v1alpha1.EtcdSealing, v1alpha1.EtcdSnapshotting, v1alpha1.EtcdReleased}

func changeOfMind(c *cluster) {
	e := c.createEtcd("mind", 3)
	e.settle(3)
	l := e.load()
	l.goesOn()
	incarnation := e.get().Status.Incarnation
	for _, step := range stopSteps {
		point := "after-etcd-stop-" + string(step)
		c.arm(point, "hold")
		e.want(0)
		letGo := c.awaitHeld(point)
		e.want(3)
		letGo()
		e.settle(3)
		l.goesOn()
		if step == v1alpha1.EtcdReleased {
			incarnation++
		}
		if ec := e.get(); ec.Status.Incarnation != incarnation || ec.Status.Stop != nil {
			c.t.Errorf("called off after %s: incarnation %d, want %d: %+v", step, ec.Status.Incarnation, incarnation, ec.Status)
		}
	}
	l.check()
}

func stopWithoutANode(c *cluster) {
	e := c.createEtcd("absent", 3)
	e.settle(3)
	e.put("kept", "by the others")
	absent := others(trio, c.awaitLeader(""))[0]
	var lost string
	for _, m := range e.get().Status.Members {
		if m.Node == absent {
			lost = m.Name
		}
	}
	c.signal(absent, syscall.SIGKILL)
	e.become(0)
	stopped := e.get()
	if a := stopped.Status.AbsentData; len(a) != 1 || a[0].Node != absent || a[0].Member != lost {
		c.t.Errorf("data on %s is listed as %+v", absent, a)
	}
	dir := filepath.Join(string(c.dir.Node(absent)), "etcd", string(stopped.UID), lost)
	if _, err := os.Stat(dir); err != nil {
		c.t.Errorf("data on a node that is dead: %v", err)
	}
	e.become(2)
	e.all()
	c.back(absent)
	until(c.t, "the data to be deleted", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
	until(c.t, "the list to be empty", func() bool { return len(e.get().Status.AbsentData) == 0 })
	e.become(3)
	e.all()
	if nodes := e.get().Status.Nodes; len(nodes) != 3 {
		c.t.Errorf("three members are on %v", nodes)
	}
}

// A schedule stops a cluster while a node is down. The cluster is started with the size that people asked for, not with the one that it had.
func TestAScheduledStopKeepsTheSize(t *testing.T) {
	beside(t, light)
	c := startNodes(t, newCluster(t, testenv.Ebb(t)), 3)
	down := others(trio, c.awaitLeader(""))[0]
	e := c.createEtcd("nightly", 3)
	e.settle(3)
	e.five(3)
	epoch := c.record(down).Epoch
	c.signal(down, syscall.SIGKILL)
	follow := func(stop string) {
		e.kubectl("patch", "etcdcluster", "nightly", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"schedule":{"stop":%q}}}`, stop))
	}
	follow("* * * * *")
	e.settle(0)
	follow("0 0 1 1 *") // a cluster that is stopped stays so
	if ec := e.get(); ec.SpecSize() != 3 || !ec.IsSuspended() {
		t.Errorf("the schedule wrote size %d, suspended %+v", ec.SpecSize(), ec.Status.Suspended)
	}
	if out := c.must("status"); !strings.Contains(out, "suspended") {
		t.Errorf("ebb status says\n%s", out)
	}
	c.startNode(down)
	c.awaitReady(down, epoch+1)
	c.must("etcd", "resume", "nightly")
	e.settle(3)
	e.five(3)
	if _, errs, code := c.run("etcd", "resume", "nightly"); code == 0 || !strings.Contains(errs, "was not stopped by its schedule: its size is 3") {
		t.Errorf("a cluster that runs is resumed: %d, %s", code, errs)
	}
}
