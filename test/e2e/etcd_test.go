package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// etcdUnderTest is one etcd cluster, and the keys that must be in it.
type etcdUnderTest struct {
	*cluster
	key  types.NamespacedName
	keys map[string]string
}

// createEtcd creates an etcd cluster.
func (c *cluster) createEtcd(name string, size int32, change ...func(*v1alpha1.EtcdClusterSpec)) *etcdUnderTest {
	c.t.Helper()
	ec := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.EtcdClusterSpec{Size: &size}}
	for _, f := range change {
		f(&ec.Spec)
	}
	if err := c.client.Create(context.Background(), ec); err != nil {
		c.t.Fatal(err)
	}
	return &etcdUnderTest{cluster: c, key: client.ObjectKeyFromObject(ec), keys: map[string]string{}}
}

func (e *etcdUnderTest) get() *v1alpha1.EtcdCluster {
	e.t.Helper()
	ec := &v1alpha1.EtcdCluster{}
	e.read(e.key, ec)
	return ec
}

// scale changes the size as kubectl does, and waits until the status shows it.
func (e *etcdUnderTest) scale(size int) time.Duration {
	e.t.Helper()
	e.kubectl("scale", "etcdcluster", e.key.Name, fmt.Sprintf("--replicas=%d", size))
	began := time.Now()
	e.settle(size)
	return time.Since(began)
}

// settle waits until the cluster is what it should be.
func (e *etcdUnderTest) settle(size int) {
	e.t.Helper()
	var ec *v1alpha1.EtcdCluster
	defer func() {
		if e.t.Failed() && ec != nil {
			e.t.Logf("etcd cluster %s: %+v", e.key.Name, ec.Status)
		}
	}()
	until(e.t, fmt.Sprintf("etcd cluster %s to have size %d", e.key.Name, size), func() bool {
		ec = e.get()
		if ec.Status.ObservedGeneration != ec.Generation || ec.Size() != size {
			return false
		}
		if size == 0 {
			return ec.Status.Phase == v1alpha1.EtcdClusterPhaseStopped
		}
		return ec.Status.Phase == v1alpha1.EtcdClusterPhaseRunning && int(ec.Status.ReadyReplicas) == size && len(ec.Status.Members) == size
	})
}

// etcdctl runs Debian's etcdctl in the environment that `ebb etcd endpoints --shell` prints.
func (e *etcdUnderTest) etcdctl(command string) (string, error) {
	e.t.Helper()
	script := e.must("etcd", "endpoints", e.key.Name, "--shell") + command + "\n"
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-ec", script)
	cmd.Env = append(os.Environ(), "ETCDCTL_COMMAND_TIMEOUT=30s", "ETCDCTL_DIAL_TIMEOUT=30s") // a password alone takes seconds with the race detector
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e *etcdUnderTest) mustctl(command string) string {
	e.t.Helper()
	out, err := e.etcdctl(command)
	if err != nil {
		e.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// five runs the seed's five commands as they are written, and reads every key that was ever written.
func (e *etcdUnderTest) five(size int) {
	e.t.Helper()
	var out string
	var parts []string
	// A command may meet an election: on a busy machine there is one now and then.
	untilSo(e.t, func() string { return fmt.Sprintf("the five commands with %d members:\n%s", size, out) }, func() bool {
		var err error
		out, err = e.etcdctl(`etcdctl member list; echo ---
etcdctl endpoint health --cluster 2>&1; echo ---
etcdctl endpoint status --cluster --write-out=table; echo ---
etcdctl put test-key test-value; echo ---
etcdctl get test-key; echo ---
etcdctl get key- --prefix`)
		parts = strings.Split(out, "---\n")
		return err == nil && len(parts) == 6 && strings.Count(parts[0], "started") == size && strings.Count(parts[1], "is healthy") == size &&
			strings.Count(parts[2], "https://") == size && parts[3] == "OK\n" && parts[4] == "test-key\ntest-value\n"
	})
	for key, value := range e.keys {
		if !strings.Contains(parts[5], key+"\n"+value+"\n") {
			e.t.Errorf("key %s is not %q any more:\n%s", key, value, parts[5])
		}
	}
	key := fmt.Sprintf("key-%d", len(e.keys))
	e.keys[key] = fmt.Sprintf("written with %d members", size)
	e.mustctl(fmt.Sprintf("etcdctl put %s '%s'", key, e.keys[key]))
}

// hash is the hash of all keys at a revision, the newest one if it is 0.
func (e *etcdUnderTest) hash(revision int64) (int64, int64) {
	e.t.Helper()
	type status struct {
		Status struct {
			Header struct{ Revision int64 } `json:"header"`
		}
	}
	if revision == 0 {
		revision = decode[[]status](e.t, e.mustctl("etcdctl endpoint status -w json"))[0].Status.Header.Revision
	}
	type hashed struct {
		HashKV struct {
			Hash int64 `json:"hash"`
		}
	}
	hashes := decode[[]hashed](e.t, e.mustctl(fmt.Sprintf("etcdctl endpoint hashkv --cluster --rev=%d -w json", revision)))
	for _, h := range hashes {
		if h.HashKV.Hash != hashes[0].HashKV.Hash {
			e.t.Errorf("members differ at revision %d: %+v", revision, hashes)
		}
	}
	return revision, hashes[0].HashKV.Hash
}

// events counts the events of the cluster by reason and note.
func (e *etcdUnderTest) events() map[string]int {
	e.t.Helper()
	var list eventsv1.EventList
	if err := e.client.List(context.Background(), &list); err != nil {
		e.t.Fatal(err)
	}
	count := map[string]int{}
	for _, event := range list.Items {
		if event.Regarding.Name == e.key.Name && event.Regarding.Kind == "EtcdCluster" {
			count[event.Reason+": "+event.Note]++
		}
	}
	return count
}

// nothingLeft looks for what a stopped cluster left on the nodes.
func (e *etcdUnderTest) nothingLeft() {
	e.t.Helper()
	var members v1alpha1.EtcdMemberList
	until(e.t, "the members' objects to go", func() bool {
		return e.client.List(context.Background(), &members, client.InNamespace(e.key.Namespace)) == nil && len(members.Items) == 0
	})
	out, _ := exec.Command("find", string(e.dir), "-path", "*/etcd/*", "-name", "*.db").CombinedOutput()
	if len(out) > 0 {
		e.t.Errorf("left behind:\n%s", out)
	}
}

func TestAnEtcdClusterIsScaledStoppedAndStartedAsTheSeedSays(t *testing.T) {
	beside(t, heavy)
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 3)
	e := c.createEtcd("scale", 1)
	e.settle(1)
	e.five(1)
	for _, size := range []int{3, 1} {
		t.Logf("size %d took %s", size, e.scale(size))
		e.five(size)
	}
	revision, before := e.hash(0)
	t.Logf("stop of 1 took %s", e.scale(0))
	stopped := e.get().Status
	for _, kind := range []string{v1alpha1.EtcdReady, v1alpha1.EtcdProgressing} {
		if cond := meta.FindStatusCondition(stopped.Conditions, kind); cond == nil || cond.Status != metav1.ConditionFalse || cond.Reason != "Stopped" || cond.Message != "Cluster stopped" {
			t.Errorf("%s of a stopped cluster: %+v", kind, cond)
		}
	}
	if stopped.ReadyReplicas != 0 || len(stopped.Members) != 0 || stopped.Rest == nil || stopped.Rest.Revision != revision {
		t.Errorf("a stopped cluster says %+v", stopped)
	}
	if _, stderr, code := c.run("etcd", "endpoints", "scale"); code == 0 || !strings.Contains(stderr, "stopped") {
		t.Errorf("endpoints of a stopped cluster: exit %d, %s", code, stderr)
	}
	e.nothingLeft()
	t.Logf("start of 1 took %s", e.scale(1))
	if _, after := e.hash(revision); after != before {
		t.Errorf("hash at revision %d: %d before, %d after the stop", revision, before, after)
	}
	e.five(1)
	e.scale(0)
	t.Logf("start of 7 took %s", e.scale(7))
	e.five(7)
	onNode := map[string]int{}
	for _, m := range e.get().Status.Members {
		onNode[m.Node]++
	}
	if len(onNode) != 3 || slices.Max([]int{onNode["n1"], onNode["n2"], onNode["n3"]}) > 3 {
		t.Errorf("seven members on %v", onNode)
	}
	revision, before = e.hash(0)
	t.Logf("stop of 7 took %s", e.scale(0))
	e.nothingLeft()
	t.Logf("start of 3 took %s", e.scale(3))
	if _, after := e.hash(revision); after != before {
		t.Errorf("hash at revision %d: %d before, %d after the stop", revision, before, after)
	}
	e.five(3)
	until(t, "the events", func() bool {
		got := e.events()
		return got["ClusterCreated: Creating cluster"] == 1 && got["ClusterCreated: Restarting cluster from stopped state"] == 3 &&
			got["ClusterStopped: Cluster scaled to zero and stopped"] == 3
	})
}

func TestAStoppedEtcdClusterThatRetainsItsDataGoesOnFromIt(t *testing.T) {
	beside(t, light)
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 3)
	e := c.createEtcd("keep", 3, func(s *v1alpha1.EtcdClusterSpec) { s.Storage.OnStop = v1alpha1.EtcdRetain })
	e.settle(3)
	e.five(3)
	revision, before := e.hash(0)
	e.scale(0)
	if rest := e.get().Status.Rest; rest == nil || rest.Revision != revision || rest.Hash != before || len(rest.Members) != 3 {
		t.Errorf("at rest: %+v, want revision %d and hash %d", rest, revision, before)
	}
	e.scale(3)
	if _, after := e.hash(revision); after != before {
		t.Errorf("hash at revision %d: %d before, %d after the stop", revision, before, after)
	}
	e.five(3)

	// One of three is lost: it is replaced. Two are lost: nothing begins empty.
	e.scale(0)
	e.loseData(1)
	e.scale(3)
	e.five(3)
	e.scale(0)
	e.loseData(2)
	e.kubectl("scale", "etcdcluster", "keep", "--replicas=3")
	until(t, "DataMissing", func() bool { return meta.IsStatusConditionTrue(e.get().Status.Conditions, v1alpha1.EtcdDataMissing) })
	if ec := e.get(); ec.Status.Phase != v1alpha1.EtcdClusterPhaseFailed || ec.Status.ReadyReplicas != 0 {
		t.Errorf("with two of three data directories lost: %+v", ec.Status)
	}
}

// loseData deletes the data of some members of a stopped cluster.
func (e *etcdUnderTest) loseData(count int) {
	e.t.Helper()
	ec := e.get()
	for _, m := range ec.Status.Rest.Members[:count] {
		dir := string(e.dir.Node(m.Node)) + "/etcd/" + string(ec.UID) + "/" + m.Name
		if _, err := os.Stat(dir); err != nil {
			e.t.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			e.t.Fatal(err)
		}
	}
}

// connectEtcd makes a client as a program would.
func (e *etcdUnderTest) connectEtcd() *clientv3.Client {
	e.t.Helper()
	where := decode[struct {
		Endpoints         []string
		CACert, Cert, Key string
	}](e.t, e.must("etcd", "endpoints", e.key.Name, "--shell", "-o", "json"))
	pem, err := os.ReadFile(where.CACert)
	if err != nil {
		e.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	cert, err := tls.LoadX509KeyPair(where.Cert, where.Key)
	if err != nil {
		e.t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: where.Endpoints, TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, Logger: zap.NewNop(),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return c
}

func TestAnEtcdClusterGoesOnWhenTheCoordinatorDiesAtAnyStep(t *testing.T) {
	beside(t, heavy)
	c := startFleet(t, 3)
	e := c.createEtcd("steps", 1)
	e.settle(1)
	e.five(1)
	for _, step := range []struct {
		point string
		sizes []int
	}{
		{"after-etcd-create-member", []int{2}}, {"after-etcd-add-learner", []int{3}}, {"before-etcd-promote-learner", []int{2, 3}},
		{"after-etcd-promote-learner", []int{2, 3}}, {"after-etcd-remove-peer", []int{2}}, {"before-etcd-release-member", []int{1}},
		{"after-etcd-stop-Sealing", []int{0, 3}}, {"after-etcd-create-snapshot", []int{0, 3}}, {"after-etcd-stop-Snapshotting", []int{0, 3}},
		{"after-etcd-stop-Released", []int{0, 3}}, {"before-etcd-stopped", []int{0, 3}}, {"after-etcd-stopped", []int{0}},
		{"after-etcd-start", []int{3}}, {"before-etcd-established", []int{0, 3}}, {"after-etcd-established", []int{0, 3}},
	} {
		t.Run(step.point, func(t *testing.T) {
			e.t = t
			c.awaitLeader("")
			c.arm(step.point, "")
			died := false
			for i, size := range step.sizes {
				e.kubectl("scale", "etcdcluster", e.key.Name, fmt.Sprintf("--replicas=%d", size))
				// The step may come after the size is reached, so the size is no reason to stop waiting for it if it has to come now.
				late := !died && i == len(step.sizes)-1
				until(t, "the step, or the size", func() bool {
					ec := e.get()
					done := ec.Status.ObservedGeneration == ec.Generation && (size == 0 && ec.Status.Phase == v1alpha1.EtcdClusterPhaseStopped ||
						size > 0 && ec.Status.Phase == v1alpha1.EtcdClusterPhaseRunning && int(ec.Status.ReadyReplicas) == size)
					return !died && c.fired(step.point) || done && !late
				})
				if !died && c.fired(step.point) {
					died = true
					c.back(c.awaitDeath(trio))
				}
				e.settle(size)
				if size > 0 {
					e.five(size)
				}
			}
		})
	}
}

// awaitDeath waits until the process of one of the nodes has ended, and says which.
func (c *cluster) awaitDeath(nodes []string) string {
	c.t.Helper()
	var dead, seen string
	untilSo(c.t, func() string { return "the coordinator to die; process IDs are " + seen }, func() bool {
		seen = ""
		for _, name := range nodes {
			pid := c.pid(name)
			if syscall.Kill(pid, 0) != nil {
				dead = name
			}
			seen += fmt.Sprintf(" %s=%d", name, pid)
		}
		return dead != ""
	})
	return dead
}

func TestDataOfStoppedEtcdClustersSurvivesTheDrainOfEveryNodeInTurn(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 3)
	var clusters []*etcdUnderTest
	for _, policy := range []v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain} {
		e := c.createEtcd(strings.ToLower(string(policy)), 1, func(s *v1alpha1.EtcdClusterSpec) { s.Storage.OnStop = policy })
		e.settle(1)
		e.five(1)
		e.scale(0)
		clusters = append(clusters, e)
	}
	for _, name := range trio {
		if c.leader() == name {
			c.must("resign")
			c.awaitLeader(name)
		}
		c.ask("drain-"+name, name)
		c.awaitEnd("drain-"+name, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
		// Nothing of it may be needed any more.
		for _, dir := range []string{"etcd", "etcd-snapshots"} {
			if err := os.RemoveAll(filepath.Join(string(c.dir.Node(name)), dir)); err != nil {
				t.Fatal(err)
			}
		}
		c.back(name)
	}
	for _, e := range clusters {
		if got := e.get().Status.Phase; got != v1alpha1.EtcdClusterPhaseStopped {
			t.Errorf("%s is %s after the drains", e.key.Name, got)
		}
		e.scale(1)
		e.five(1)
	}
}

func TestAnEtcdClusterWhoseQuorumIsLostIsRestoredWhenAPersonSaysSo(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 3)
	e := c.createEtcd("lost", 3)
	e.settle(3)
	e.five(3)
	if out := c.must("etcd", "snapshot", "lost"); !strings.HasPrefix(out, "snapshot lost-") {
		t.Errorf("it says %q", out)
	}
	until(t, "a copy on a second node", func() bool {
		s := &v1alpha1.EtcdSnapshot{}
		name := e.get().Status.Snapshot
		return name != "" && c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, s) == nil && len(s.Verified()) == 2
	})
	if _, stderr, code := c.run("etcd", "restore", "lost"); code == 0 || !strings.Contains(stderr, "serves clients") {
		t.Errorf("a cluster that serves is restored: exit %d, %s", code, stderr)
	}
	leader := c.awaitLeader("")
	for _, name := range others(trio, leader) {
		c.signal(name, syscall.SIGKILL)
	}
	until(t, "QuorumLost", func() bool { return meta.IsStatusConditionTrue(e.get().Status.Conditions, v1alpha1.EtcdQuorumLost) })
	lost := e.get()
	if text := meta.FindStatusCondition(lost.Status.Conditions, v1alpha1.EtcdQuorumLost).Message; lost.Status.Phase != v1alpha1.EtcdClusterPhaseFailed ||
		!strings.HasPrefix(text, "1 of 3 voters answer, 2 are needed: bring ") || !strings.Contains(text, "`ebb etcd restore lost --snapshot "+lost.Status.Snapshot+"`") {
		t.Errorf("%s: %s", lost.Status.Phase, text)
	}
	// One of the two comes back with nothing: with one more the cluster would be whole again, but a person decides otherwise.
	back := others(trio, leader)[0]
	if err := os.RemoveAll(filepath.Join(string(c.dir.Node(back)), "etcd")); err != nil {
		t.Fatal(err)
	}
	c.back(back)
	c.must("etcd", "restore", "lost")
	e.settle(3)
	e.five(3)
	if after := e.get(); after.Status.Incarnation <= lost.Status.Incarnation || after.Status.ClusterID == lost.Status.ClusterID {
		t.Errorf("restored as incarnation %d, cluster %s", after.Status.Incarnation, after.Status.ClusterID)
	}
}

func TestEtcdClustersOfOneNameInTwoNamespacesDoNotTouchEachOther(t *testing.T) {
	beside(t, light)
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 3)
	one := c.createEtcd("twin", 1)
	size := int32(1)
	if err := c.client.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Create(context.Background(), &v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "twin"}, Spec: v1alpha1.EtcdClusterSpec{Size: &size},
	}); err != nil {
		t.Fatal(err)
	}
	two := &etcdUnderTest{cluster: c, key: types.NamespacedName{Namespace: "other", Name: "twin"}, keys: map[string]string{}}
	one.settle(1)
	two.settle(1)
	one.five(1)
	one.scale(0)
	if ec := two.get(); ec.Status.Phase != v1alpha1.EtcdClusterPhaseRunning || ec.Status.ReadyReplicas != 1 || ec.Status.Snapshot != "" {
		t.Errorf("the other one: %+v", ec.Status)
	}
	if err := c.client.Delete(context.Background(), two.get()); err != nil {
		t.Fatal(err)
	}
	until(t, "the other one to be deleted", func() bool {
		var clusters v1alpha1.EtcdClusterList
		var members v1alpha1.EtcdMemberList
		return c.client.List(context.Background(), &clusters, client.InNamespace("other")) == nil && len(clusters.Items) == 0 &&
			c.client.List(context.Background(), &members, client.InNamespace("other")) == nil && len(members.Items) == 0
	})
	one.scale(1)
	one.five(1)
}

func TestManyStopsAndStartsLeaveNothingBehind(t *testing.T) {
	beside(t, heavy)
	c := startCluster(t, testenv.EbbPlain(t), 3)
	e := c.createEtcd("cycles", 3)
	e.settle(3)
	e.five(3)
	var stops, starts []time.Duration
	for range testlength.Pick(4, 20) { // more than are kept
		stops = append(stops, e.scale(0))
		starts = append(starts, e.scale(3))
	}
	e.five(3)
	t.Logf("stops took up to %s, starts up to %s", slices.Max(stops), slices.Max(starts))
	e.scale(0)
	e.nothingLeft()
	var snapshots v1alpha1.EtcdSnapshotList
	until(t, "old snapshots to go", func() bool {
		return c.client.List(context.Background(), &snapshots) == nil && len(snapshots.Items) == 3
	})
	out, _ := exec.Command("find", string(c.dir), "-path", "*/etcd-snapshots/*", "-name", "*.db").CombinedOutput()
	if n := strings.Count(string(out), "\n"); n != 6 {
		t.Errorf("%d files of snapshots are left, want two of each of three:\n%s", n, out)
	}
}

// Nobody took a snapshot, two of three machines are gone, and what is left of the third has every key.
func TestAnEtcdClusterGoesOnFromTheDataOfTheOneMemberThatIsLeft(t *testing.T) {
	beside(t, light)
	c := startFleet(t, 3)
	e := c.createEtcd("left", 3)
	e.settle(3)
	e.five(3)
	leader := c.awaitLeader("")
	gone := others(trio, leader)
	for _, name := range gone {
		c.signal(name, syscall.SIGKILL)
	}
	remedy := "`ebb etcd restore left --from-member NODE`, with NODE " + leader
	until(t, "QuorumLost with a remedy that deletes nothing", func() bool {
		cond := meta.FindStatusCondition(e.get().Status.Conditions, v1alpha1.EtcdQuorumLost)
		return cond != nil && strings.Contains(cond.Message, remedy) && !strings.Contains(cond.Message, "none")
	})
	c.must("etcd", "restore", "left", "--from-member", leader)
	until(t, "the order to wait for a confirmation", func() bool {
		cond := meta.FindStatusCondition(e.get().Status.Conditions, v1alpha1.EtcdRestorePending)
		return cond != nil && strings.Contains(cond.Message, "--gone "+strings.Join(gone, ","))
	})
	c.must("etcd", "restore", "left", "--from-member", leader, "--gone", strings.Join(gone, ","))
	e.settle(3)
	e.five(3)
	after := e.get()
	if r := after.Status.Restore; r == nil || r.Phase != v1alpha1.EtcdRestoreDone || len(after.Status.SetAside) != 2 {
		t.Fatalf("restore %+v, set aside %+v", after.Status.Restore, after.Status.SetAside)
	}
	// One of the others comes back: its data stays until somebody discards it by name.
	c.back(gone[0])
	aside := after.Status.SetAside[slices.IndexFunc(after.Status.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Node == gone[0] })]
	dir := filepath.Join(string(c.dir.Node(gone[0])), "etcd", string(after.UID), aside.Member)
	until(t, "the member that came back to be stopped", func() bool {
		m := &v1alpha1.EtcdMember{}
		return c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: aside.Member}, m) == nil && m.Status.Phase == v1alpha1.EtcdMemberStopped && m.Status.Data
	})
	if out := c.must("etcd", "members", "left"); !strings.Contains(out, "`ebb etcd discard left "+aside.Member+"`") {
		t.Errorf("it says %s", out)
	}
	c.must("etcd", "discard", "left", aside.Member)
	until(t, "its data to be deleted", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err) && len(e.get().Status.SetAside) == 1
	})
}
