package etcdcluster

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// firstMember is a cluster of three whose first member is on n1 and has not answered yet.
func firstMember(change ...worldChange) World {
	first := func(w *World) {
		sized(3)(w)
		w.Cluster.Status = v1alpha1.EtcdClusterStatus{
			Phase: v1alpha1.EtcdClusterPhaseCreating, Incarnation: 1, NextMember: 2, Starting: micro(noon.Add(-time.Minute)), RestoreFromTracked: true,
		}
		m := w.Members[0]
		m.CreationTimestamp = metav1.NewTime(noon.Add(-time.Minute))
		m.Spec.Want, m.Spec.DataRequired = v1alpha1.EtcdMemberSeal, false
		m.Status = v1alpha1.EtcdMemberStatus{Phase: v1alpha1.EtcdMemberStarting, ObservedGeneration: 1, PeerURL: "peer-demo-1"}
		w.View = etcd.View{Health: map[string]etcd.Health{}}
		addNode(w, "n3")
	}
	return runningWorld(1, append([]worldChange{first}, change...)...)
}

// fails gives the first member an error.
func fails(w *World) { w.Members[0].Status.Error = "disk full" }

// withFailure is what an earlier plan recorded of the first member.
func withFailure(since time.Duration, progress int64) worldChange {
	return func(w *World) {
		w.Cluster.Status.Failing = []v1alpha1.EtcdMemberFailure{{Member: "demo-1", Since: *micro(noon.Add(-since)), Progress: progress}}
	}
}

func TestTheFirstMember(t *testing.T) {
	for _, c := range []struct {
		name        string
		world       World
		deeds       string
		incarnation int64
		avoids      bool
	}{
		{"is waited for", firstMember(), "", 1, false},
		{"is waited for however long it takes, if it has no error", firstMember(func(w *World) { w.Members[0].CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour)) }), "", 1, false},
		{"that fails is given time", firstMember(fails), "", 1, false},
		{"that has failed for long begins elsewhere", firstMember(fails, withFailure(3*time.Minute, 0)), "set-desired demo-1 Delete", 2, true},
		{"that failed and gets further is given time", firstMember(fails, withFailure(3*time.Minute, 0), func(w *World) { w.Members[0].Status.DataBytes = 1 << 30 }), "", 1, false},
		{"whose node says for good that it cannot begins elsewhere", firstMember(fails, func(w *World) { w.Members[0].Status.Phase = v1alpha1.EtcdMemberFailed }), "set-desired demo-1 Delete", 2, true},
		{"on a node that is being drained begins elsewhere, though it was told to start", firstMember(drains("n1")), "set-desired demo-1 Delete", 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			if got := deeds(d); got != c.deeds || d.Status.Incarnation != c.incarnation {
				t.Errorf("it does %q in incarnation %d, want %q in %d", got, d.Status.Incarnation, c.deeds, c.incarnation)
			}
			if avoids := len(d.Status.Avoid) == 1 && d.Status.Avoid[0].Node == "n1"; avoids != c.avoids {
				t.Errorf("it avoids %v", d.Status.Avoid)
			}
		})
	}
}

// A first member that fails late, each time after much data has arrived, begins elsewhere like one that fails at once.
func TestTheTimeOfAFirstMemberBeginsAnewOnlyWhenItGetsFurtherThanEver(t *testing.T) {
	const mb, gb = 1 << 20, 1 << 30
	for _, c := range []struct {
		name  string
		bytes []int64 // that it reports, every 40 s
		since int     // the report from which on it fails
		mark  int64   // how far it ever got
	}{
		{"it retries from the beginning", []int64{8 * gb, 100 * mb, 200 * mb}, 0, 8 * gb},
		{"it makes no progress", []int64{100 * mb, 100 * mb, 100 * mb}, 0, 100 * mb},
		{"it gets further each time", []int64{100 * mb, 200 * mb, 300 * mb}, 2, 300 * mb},
		{"it retries, and gets further", []int64{200 * mb, 100 * mb, 300 * mb}, 2, 300 * mb},
		{"it got further once", []int64{100 * mb, 300 * mb, 200 * mb}, 1, 300 * mb},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := firstMember(fails)
			at := func(i int) time.Time { return noon.Add(time.Duration(i) * 40 * time.Second) }
			for i, bytes := range c.bytes {
				w.Now, w.Members[0].Status.DataBytes, w.Members[0].Status.Restarts = at(i), bytes, int64(i)
				w.Cluster.Status = Plan(w).Status
			}
			f := w.Cluster.Status.Failing
			if len(f) != 1 || !f[0].Since.Time.Equal(at(c.since)) || f[0].Progress != c.mark {
				t.Fatalf("it fails %+v, want since %s with %d", f, at(c.since), c.mark)
			}
			w.Now = at(c.since).Add(w.failedAfter())
			if d := Plan(w); d.Status.Incarnation != 2 || deeds(d) != "set-desired demo-1 Delete" {
				t.Errorf("then it does %q in incarnation %d", deeds(d), d.Status.Incarnation)
			}
		})
	}
}

func TestAStartSaysWhatItWaitsFor(t *testing.T) {
	nobody := firstMember(cordoned("n1"), cordoned("n2"), cordoned("n3"), func(w *World) { w.Members = nil })
	for _, w := range []World{nobody, {}} {
		if w.Cluster == nil { // the same again, from what was written
			w = nobody
			w.Cluster.Status = Plan(nobody).Status
		}
		if got, want := message(Plan(w)), v1alpha1.MessageEtcdBootstrap+". No node is schedulable for the first member; start or uncordon a node"; got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	w := firstMember(fails, withFailure(time.Minute, 0))
	var said string
	for _, c := range Plan(w).Status.Conditions {
		if c.Type == v1alpha1.EtcdMemberFailing {
			said = c.Message
		}
	}
	if !strings.Contains(said, "disk full") || !strings.Contains(said, "Another node is tried when it has failed for 2m0s.") {
		t.Errorf("it says %q", said)
	}
}

func TestAnEvacuationWithoutAQuorumSaysWhoIsMissingAndEndsWithItsDrain(t *testing.T) {
	woken := func(w *World) {
		retained(w)
		w.Cluster.Status.Stop = &v1alpha1.EtcdStop{OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing}
		for _, m := range w.Members {
			m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberStarting
		}
	}
	d := Plan(runningWorld(3, gone("n2", time.Minute), gone("n3", time.Minute), woken, drains("n1")))
	said := ""
	for _, c := range d.Status.Conditions {
		if c.Type == v1alpha1.EtcdDataMissing {
			said = c.Message
		}
	}
	if !strings.Contains(said, "only with 2 of 3 members; 1 can run. Start n2 and n3, or cancel the drain.") || d.Status.Phase != v1alpha1.EtcdClusterPhaseStopped {
		t.Errorf("%s: it says %q", d.Status.Phase, said)
	}
	d = Plan(runningWorld(3, woken)) // the drain was cancelled
	if got := deeds(d); got != "set-desired demo-1 Stop, set-desired demo-2 Stop, set-desired demo-3 Stop" || d.Status.Stop != nil || d.Status.Rest == nil {
		t.Errorf("it does %q; %+v", got, d.Status)
	}
	d = Plan(runningWorld(3, woken, func(w *World) { w.Cluster.Status.Stop = nil })) // and only its status was written
	if got := deeds(d); got != "set-desired demo-1 Stop, set-desired demo-2 Stop, set-desired demo-3 Stop" {
		t.Errorf("it does %q", got)
	}
}

func TestASnapshotIsReleasedWhenNoNodeHasItsFile(t *testing.T) {
	deleted := func(copies ...string) worldChange {
		return func(w *World) {
			s := &v1alpha1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "old", Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer}, DeletionTimestamp: new(metav1.NewTime(noon)),
			}}
			s.Spec.Cluster, s.Spec.ClusterUID = "demo", "12345678-90"
			for _, node := range copies {
				s.Status.Copies = append(s.Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: node, Verified: micro(noon)})
			}
			w.Snapshots = append(w.Snapshots, s)
		}
	}
	for want, w := range map[string]World{
		"":                     runningWorld(3, deleted("n4"), gone("n4", time.Minute)),
		"release-snapshot old": runningWorld(3, deleted("n4"), gone("n4", time.Minute), func(w *World) { delete(w.Nodes, "n4") }),
	} {
		if got := deeds(Plan(w)); got != want {
			t.Errorf("it does %q, want %q", got, want)
		}
	}
}

func TestAWaitForASnapshotSaysHowFarItIs(t *testing.T) {
	for _, c := range []struct {
		name string
		is   v1alpha1.EtcdSnapshotStatus
		want string
	}{
		{"nothing is known", v1alpha1.EtcdSnapshotStatus{}, ""},
		{"it is written", v1alpha1.EtcdSnapshotStatus{Taking: &v1alpha1.EtcdSnapshotProgress{Step: "Writing", Done: 3 << 30, Total: 12 << 30}}, ", writing, 3.0 GiB of 12 GiB"},
		{"etcd does not say how far its hash is", v1alpha1.EtcdSnapshotStatus{Taking: &v1alpha1.EtcdSnapshotProgress{Step: "Comparing", Total: 12 << 30}}, ", comparing with the member, 12 GiB"},
		{"it was taken", v1alpha1.EtcdSnapshotStatus{Taking: &v1alpha1.EtcdSnapshotProgress{Step: "Writing"}, Facts: &v1alpha1.EtcdSnapshotFacts{}}, ""},
		{"it failed", v1alpha1.EtcdSnapshotStatus{Taking: &v1alpha1.EtcdSnapshotProgress{Step: "Writing"}, Error: "no space left on device"}, ""},
	} {
		if got := taken(&v1alpha1.EtcdSnapshot{Status: c.is}); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
