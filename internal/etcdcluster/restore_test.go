package etcdcluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
	"github.com/ebb-dev/ebb/internal/lease"
)

// ordered adds a restore order.
func ordered(change func(*v1alpha1.EtcdRestoreOrder)) worldChange {
	return func(w *World) {
		o := &v1alpha1.EtcdRestoreOrder{ID: "o1", Expires: metav1.NewTime(noon.Add(time.Hour))}
		change(o)
		w.Cluster.Spec.Restore = o
	}
}

func fromSnapshot(name string) worldChange {
	return ordered(func(o *v1alpha1.EtcdRestoreOrder) { o.Snapshot = name })
}

func fromMember(name string, gone ...string) worldChange {
	return ordered(func(o *v1alpha1.EtcdRestoreOrder) { o.Member, o.Gone = name, gone })
}

// stoppedForRestore: the members that can be reached are stopped and have reported their logs.
func stoppedForRestore(logs map[string]v1alpha1.EtcdLog) worldChange {
	return func(w *World) {
		w.View = etcd.View{}
		w.Cluster.Status.Restore = &v1alpha1.EtcdRestoreState{ID: "o1", Phase: v1alpha1.EtcdRestoreReading, Since: *micro(noon)}
		for _, m := range w.Members {
			m.Spec.Want, m.Spec.ReportLog = v1alpha1.EtcdMemberStop, true
			if log, ok := logs[m.Name]; ok {
				m.Status.Phase, m.Status.Log = v1alpha1.EtcdMemberStopped, &log
			}
		}
	}
}

func released(node string) worldChange {
	return func(w *World) { w.Leases[node] = lease.Record{Node: node, Epoch: 1} }
}

func TestHowARestoreOrderIsCarriedOut(t *testing.T) {
	lost := []worldChange{gone("n2", time.Minute), gone("n3", time.Minute), noQuorum}
	quorumLost := func(change ...worldChange) World { return runningWorld(3, append(lost, change...)...) }
	expired := func(w *World) { w.Cluster.Spec.Restore.Expires = metav1.NewTime(noon.Add(-time.Second)) }
	for _, c := range []struct {
		name  string
		world World
		phase v1alpha1.EtcdRestorePhase
		says  string
		deeds string
	}{
		{"from a snapshot, once quorum is lost", quorumLost(snapshotted("s1", time.Hour, "n1"), fromSnapshot("s1")), "Starting", "new incarnation", "create-member demo-4 on n1, set-desired demo-1 Stop, set-desired demo-2 Stop, set-desired demo-3 Stop, place-snapshot s1"},
		{"not while a quorum serves", runningWorld(3, snapshotted("s1", time.Hour, "n1", "n2"), fromSnapshot("s1")), "Refused", "--force", ""},
		{"not even if the desired size is not reached", runningWorld(3, sized(7), snapshotted("s1", time.Hour, "n1", "n2"), fromSnapshot("s1")), "Refused", "serves clients", "create-member demo-4 on n4"},
		{"unless it is forced", runningWorld(3, snapshotted("s1", time.Hour, "n1", "n2"), ordered(func(o *v1alpha1.EtcdRestoreOrder) { o.Snapshot, o.Force = "s1", true })), "Starting", "", "create-member demo-4 on n1, set-desired demo-1 Stop, set-desired demo-2 Stop, set-desired demo-3 Stop"},
		{"it waits for an absent node, and says so", quorumLost(snapshotted("s1", time.Hour, "n2"), fromSnapshot("s1")), "Waiting", "start n2", "place-snapshot s1"},
		{"and expires", quorumLost(snapshotted("s1", time.Hour, "n1"), fromSnapshot("s1"), expired), "Expired", "expired", "place-snapshot s1"},
		{"it is carried out once", quorumLost(snapshotted("s1", time.Hour, "n1"), fromSnapshot("s1"), func(w *World) {
			w.Cluster.Status.Restore = &v1alpha1.EtcdRestoreState{ID: "o1", Phase: v1alpha1.EtcdRestoreDone}
		}), "Done", "", "place-snapshot s1"},
		{"an order that is withdrawn is canceled", quorumLost(func(w *World) {
			w.Cluster.Status.Restore = &v1alpha1.EtcdRestoreState{ID: "o1", Phase: v1alpha1.EtcdRestoreWaiting}
		}), "Canceled", "withdrawn", ""},
		{"a cluster that is to be stopped is not restored", quorumLost(sized(0), fromSnapshot("none")), "Refused", "spec.restoreFrom", ""},

		{"from a member: not while a quorum serves", runningWorld(3, fromMember("demo-1")), "Refused", "has every key", ""},
		{"of a member that is not there", quorumLost(fromMember("demo-9")), "Refused", "Member demo-9 has no data", ""},
		{"of a member whose node is absent", quorumLost(fromMember("demo-2")), "Waiting", "Node n2, which has the data of member demo-2, is absent", ""},
		{"while others may serve among themselves", quorumLost(fromMember("demo-1")), "Waiting", "order the restore with --gone n2,n3", ""},
		{"one of them confirmed leaves no quorum", quorumLost(fromMember("demo-1", "n2")), "Reading", "", "set-desired demo-1 Stop, set-desired demo-2 Stop, set-desired demo-3 Stop"},
		{"nodes that left in order run nothing", quorumLost(fromMember("demo-1"), released("n2"), released("n3")), "Reading", "", "set-desired demo-1 Stop, set-desired demo-2 Stop, set-desired demo-3 Stop"},
		{"every member that can be reached stops first", quorumLost(fromMember("demo-1", "n2", "n3"), stoppedForRestore(nil)), "Reading", "Waiting until", ""},
		{"then its data becomes a snapshot", quorumLost(fromMember("demo-1", "n2", "n3"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}})), "Reading", "Taking snapshot demo-12345678-r-o1-2-9", "create-snapshot demo-12345678-r-o1-2-9"},
		{"unless a member that can be reached has a higher term", runningWorld(3, gone("n3", time.Minute), noQuorum, fromMember("demo-1"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 3, Index: 4}})), "Refused", "`ebb etcd restore demo --from-member n2`", "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"},
		{"or a longer log", runningWorld(3, gone("n3", time.Minute), noQuorum, fromMember("demo-1"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 10}})), "Refused", "newer log", "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"},
		{"not after nodes are lost whose members had not stopped", quorumLost(fromMember("demo-1"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}})), "Waiting", "order the restore with --gone n2,n3", "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"},
		{"if one of two had stopped, the other is no quorum", quorumLost(fromMember("demo-1"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 8}})), "Reading", "Taking snapshot demo-12345678-r-o1-2-9", "create-snapshot demo-12345678-r-o1-2-9"},
		{"an absent member's log that is known to be newer counts", quorumLost(fromMember("demo-1", "n3"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 10}})), "Refused", "Node n2 is absent: start it and restore from that member instead (`ebb etcd restore demo --from-member n2`), or, if its data is lost for good, order the restore with --gone n2,n3.", "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"},
		{"also when it was reported for an earlier order", quorumLost(fromMember("demo-1", "n3"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 10}}), func(w *World) { w.Members[1].Generation++ }), "Refused", "order the restore with --gone n2,n3", "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"},
		{"unless somebody says that it is gone", quorumLost(fromMember("demo-1", "n2", "n3"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 10}})), "Reading", "Taking snapshot demo-12345678-r-o1-2-9", "create-snapshot demo-12345678-r-o1-2-9"},
		{"the one that can be reached is named first", runningWorld(4, gone("n3", time.Minute), gone("n4", time.Minute), noQuorum, fromMember("demo-1", "n4"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 10}, "demo-3": {Term: 2, Index: 11}})), "Refused", "Restore from it instead: `ebb etcd restore demo --from-member n2`.", "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run, set-desired demo-4 Run"},
		{"a snapshot of before the member ran again is not enough", quorumLost(fromMember("demo-1", "n2", "n3"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 12}}), snapshotted("demo-12345678-r-o1-2-9", 0, "n1", "n4")), "Reading", "Taking snapshot demo-12345678-r-o1-2-12", "create-snapshot demo-12345678-r-o1-2-12"},
		{"and from the snapshot the cluster starts", quorumLost(fromMember("demo-1", "n2", "n3"), stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}}), snapshotted("demo-12345678-r-o1-2-9", 0, "n1", "n4")), "Starting", "", "create-member demo-4 on n4, set-desired demo-1 Stop, set-desired demo-2 Stop, set-desired demo-3 Stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			got := d.Status.Restore
			if got == nil || got.Phase != c.phase || !strings.Contains(got.Message, c.says) {
				t.Errorf("the order is %+v, want %s: %s", got, c.phase, c.says)
			}
			if deeds(d) != c.deeds {
				t.Errorf("it does %q, want %q", deeds(d), c.deeds)
			}
			pending := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.EtcdRestorePending)
			if waits := c.phase == "Waiting" || c.phase == "Reading"; (pending != nil) != waits {
				t.Errorf("RestorePending is %v", pending)
			}
		})
	}
}

// joins adds a learner, a member that is not a voter yet.
func joins(number int, node string) worldChange {
	return func(w *World) {
		m := addMember(w, number, node)
		m.Spec.DataRequired = false
		w.View.Peers[len(w.View.Peers)-1].Learner = true
		w.Cluster.Status.Members = append(w.Cluster.Status.Members, v1alpha1.EtcdMemberInfo{Name: m.Name, Node: node, Role: v1alpha1.EtcdLearner})
	}
}

func TestALearnerNeitherCountsInAQuorumNorStandsForIt(t *testing.T) {
	logs := func(indexes ...int64) worldChange {
		known := map[string]v1alpha1.EtcdLog{}
		for i, index := range indexes {
			if index > 0 {
				known[fmt.Sprintf("demo-%d", i+1)] = v1alpha1.EtcdLog{Term: 2, Index: index}
			}
		}
		return stoppedForRestore(known)
	}
	noData := func(w *World) {
		w.Members[0].Status.Phase, w.Members[0].Status.Data = v1alpha1.EtcdMemberStopped, false
	}
	growing := func(change ...worldChange) World { // voter demo-1 on n1, learner demo-2 on n2
		return runningWorld(1, append([]worldChange{sized(3), joins(2, "n2"), noQuorum}, change...)...)
	}
	three := func(change ...worldChange) World { // voters on n1, n2 and n3, a learner on n4
		return runningWorld(3, append([]worldChange{sized(5), joins(4, "n4"), noQuorum}, change...)...)
	}
	const run = "set-desired demo-1 Run, set-desired demo-2 Run"
	for _, c := range []struct {
		name  string
		world World
		phase v1alpha1.EtcdRestorePhase
		says  string
		deeds string
	}{
		{"the only voter may still serve", growing(gone("n1", time.Minute), fromMember("demo-2")), "Waiting", "order the restore with --gone n1", ""},
		{"it is confirmed to be gone", growing(gone("n1", time.Minute), fromMember("demo-2", "n1")), "Reading", "", "set-desired demo-1 Stop, set-desired demo-2 Stop"},
		{"then the learner is all there is", growing(gone("n1", time.Minute), fromMember("demo-2", "n1"), logs(0, 5)), "Reading", "Taking snapshot", "create-snapshot demo-12345678-r-o1-2-5"},
		{"the voter left in order, and has more", growing(gone("n1", time.Minute), released("n1"), fromMember("demo-2"), logs(0, 5)), "Refused", "--gone n1", run},
		{"the voter is there and lost its data", growing(fromMember("demo-2"), logs(0, 5), noData), "Refused", "--gone n1", run},
		{"and somebody said so", growing(fromMember("demo-2", "n1"), logs(0, 5), noData), "Reading", "Taking snapshot", "create-snapshot demo-12345678-r-o1-2-5"},
		{"two of three voters may serve, whatever learners there are", three(gone("n1", time.Minute), gone("n2", time.Minute), fromMember("demo-3")), "Waiting", "order the restore with --gone n1,n2", ""},
		{"a voter's log is not known", three(gone("n1", time.Minute), fromMember("demo-4"), logs(0, 9, 9, 9)), "Refused", "--gone n1", run + ", set-desired demo-3 Run, set-desired demo-4 Run"},
		{"a voter has a newer log", three(fromMember("demo-4"), logs(9, 9, 8, 8)), "Refused", "Member demo-1 on n1 has a newer log", run + ", set-desired demo-3 Run, set-desired demo-4 Run"},
		{"every voter's log is known", three(fromMember("demo-4"), logs(9, 9, 8, 9)), "Reading", "Taking snapshot", "create-snapshot demo-12345678-r-o1-2-9"},
		{"a voter does not depend on learners", three(gone("n4", time.Minute), fromMember("demo-1"), logs(9, 9, 8)), "Reading", "Taking snapshot", "create-snapshot demo-12345678-r-o1-2-9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			if got := d.Status.Restore; got.Phase != c.phase || !strings.Contains(got.Message, c.says) {
				t.Errorf("the order is %+v, want %s: %s", got, c.phase, c.says)
			}
			if deeds(d) != c.deeds {
				t.Errorf("it does %q, want %q", deeds(d), c.deeds)
			}
		})
	}
	advice := func(w World) string {
		return meta.FindStatusCondition(Plan(w).Status.Conditions, v1alpha1.EtcdQuorumLost).Message
	}
	if got := advice(three(gone("n1", time.Minute), gone("n2", time.Minute))); !strings.HasSuffix(got, "with NODE n3.") {
		t.Errorf("with a voter left: %s", got)
	}
	if got := advice(growing(gone("n1", time.Minute))); strings.Contains(got, "start empty") || !strings.Contains(got, "may lack keys: demo-2 on n2") {
		t.Errorf("with only a learner left: %s", got)
	}
}

// A stop needs the quorum that a restore has stopped.
func TestAStopLetsMembersRunThatARestoreHasStopped(t *testing.T) {
	stopped := stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 7}})
	suspended := func(w *World) { w.Cluster.Status.Suspended = &v1alpha1.EtcdSuspension{Size: 3} }
	withdrawn := func(w *World) { w.Cluster.Spec.Restore = nil }
	refused := func(w *World) { w.Cluster.Status.Restore.Phase = v1alpha1.EtcdRestoreRefused }
	for _, c := range []struct {
		name   string
		change []worldChange
		phase  v1alpha1.EtcdRestorePhase
	}{
		{"size 0", []worldChange{sized(0)}, "Refused"},
		{"suspended by the schedule", []worldChange{suspended}, "Refused"},
		{"withdrawn, and size 0", []worldChange{withdrawn, sized(0)}, "Canceled"},
		{"refused before, and size 0", []worldChange{refused, sized(0)}, "Refused"},
		{"retained data", []worldChange{onStop(v1alpha1.EtcdRetain), sized(0)}, "Refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(runningWorld(3, append([]worldChange{gone("n3", time.Minute), noQuorum, fromMember("demo-1"), stopped}, c.change...)...))
			if d.Status.Restore.Phase != c.phase {
				t.Errorf("the order is %+v", d.Status.Restore)
			}
			if want := "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"; deeds(d) != want {
				t.Errorf("it does %q, want %q", deeds(d), want)
			}
		})
	}
}

// A stopped cluster whose retained data moves off a drained node looks stopped to people. An order does not make it one that is being stopped.
func TestARestoreEndsTheEvacuationOfRetainedData(t *testing.T) {
	woken := func(w *World) {
		retained(w)
		w.Cluster.Status.Stop = &v1alpha1.EtcdStop{OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing}
	}
	d := Plan(runningWorld(3, woken, drains("n1"), sized(3), fromMember("demo-1")))
	if d.Status.Stop != nil || d.Status.Rest == nil || d.Status.Restore.Phase != v1alpha1.EtcdRestoreReading {
		t.Errorf("stop %+v, restore %+v", d.Status.Stop, d.Status.Restore)
	}
	// The order ends before its members have: the cluster is stopped again when they have, and then its data moves.
	w := runningWorld(3, retained, drains("n1"), func(w *World) {
		w.Cluster.Status.Phase, w.Members[1].Status.Phase = v1alpha1.EtcdClusterPhaseScaling, v1alpha1.EtcdMemberSealed
		w.Members[2].Spec.Want = v1alpha1.EtcdMemberSeal
	})
	for _, c := range []struct {
		deeds  string
		phase  v1alpha1.EtcdClusterPhase
		moves  []Transition
		change worldChange
	}{
		{"set-desired demo-3 Stop", v1alpha1.EtcdClusterPhaseScaling, nil, retained},
		{"", v1alpha1.EtcdClusterPhaseStopped, nil, func(*World) {}},
		{"", v1alpha1.EtcdClusterPhaseStopped, []Transition{{StageStopped, StageEvacuating}}, func(*World) {}},
	} {
		d := Plan(w)
		if deeds(d) != c.deeds || d.Status.Phase != c.phase || !slices.Equal(d.Transitions, c.moves) {
			t.Errorf("it does %q, is %s and goes %v; want %q, %s and %v", deeds(d), d.Status.Phase, d.Transitions, c.deeds, c.phase, c.moves)
		}
		w.Cluster.Status = d.Status
		phase := d.Status.Phase
		c.change(&w)
		w.Cluster.Status.Phase = phase
	}
}

func TestDataThatARestoreLeavesBehindIsSetAsideUntilItIsDiscarded(t *testing.T) {
	w := runningWorld(3, gone("n2", time.Minute), gone("n3", time.Minute), noQuorum, snapshotted("s1", time.Hour, "n1"), fromSnapshot("s1"))
	d := Plan(w)
	if len(d.Status.SetAside) != 3 || !strings.Contains(d.Status.SetAside[0].Reason, "snapshot s1") {
		t.Fatalf("set aside: %+v", d.Status.SetAside)
	}
	// The new cluster runs.
	w.Cluster.Status = d.Status
	w.Cluster.Status.Rest, w.Cluster.Status.ClusterID, w.Cluster.Status.Starting = nil, "c2", nil
	for _, m := range w.Members {
		m.Spec.Want = v1alpha1.EtcdMemberStop
	}
	w.Snapshots, w.View = nil, etcd.View{Listed: true, Health: map[string]etcd.Health{}}
	for i := range 3 {
		m := addMember(&w, 4+i, []string{"n1", "n4", "n1"}[i])
		m.Spec.Incarnation = w.Cluster.Status.Incarnation
	}
	if d = Plan(w); strings.Contains(deeds(d), "Delete") || len(d.Status.SetAside) != 3 {
		t.Errorf("it does %q, set aside %v", deeds(d), d.Status.SetAside)
	}
	w.Members[0].Spec.Want = v1alpha1.EtcdMemberDelete
	if d = Plan(w); len(d.Status.SetAside) != 2 {
		t.Errorf("after one was discarded: %v", d.Status.SetAside)
	}
	// It does not keep the cluster from being stopped.
	w.Cluster.Status.Stop, w.Cluster.Status.Rest = &v1alpha1.EtcdStop{Step: v1alpha1.EtcdReleased, OnStop: v1alpha1.EtcdDelete}, &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdDelete}
	w.Members = w.Members[1:3]
	sized(0)(&w)
	if d = Plan(w); d.Status.Phase != v1alpha1.EtcdClusterPhaseStopped || len(d.Status.SetAside) != 2 {
		t.Errorf("%s, set aside %v", d.Status.Phase, d.Status.SetAside)
	}
}

func TestAMemberThatWasAbsentWhenAnotherBecameTheClusterIsSetAside(t *testing.T) {
	w := runningWorld(3, gone("n3", time.Minute), noQuorum, fromMember("demo-1"),
		stoppedForRestore(map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}, "demo-2": {Term: 2, Index: 7}}), snapshotted("demo-12345678-r-o1-2-9", 0, "n1", "n4"))
	if d := Plan(w); len(d.Status.SetAside) != 1 || d.Status.SetAside[0].Member != "demo-3" || d.Status.Rest.Snapshot != "demo-12345678-r-o1-2-9" || d.Status.Rest.Revision != 0 {
		t.Errorf("set aside %+v, from %+v", d.Status.SetAside, d.Status.Rest)
	}
}

func TestWhatIsSetAsideSaysWhatWasKnownOfItsLog(t *testing.T) {
	for _, c := range []struct {
		name string
		log  *v1alpha1.EtcdLog // of demo-2 on n2, which is absent
		says string
	}{
		{"it reported none", nil, "Its log was not known when the cluster was restored from member demo-1; it may have newer keys"},
		{"it was not newer", &v1alpha1.EtcdLog{Term: 2, Index: 8}, "Its node was absent when the cluster was restored from member demo-1; its log was not newer"},
		{"it was newer", &v1alpha1.EtcdLog{Term: 3, Index: 8}, "Its log (term 3, index 8) was newer when the cluster was restored from member demo-1, and its node was confirmed to be gone; it may have newer keys"},
	} {
		t.Run(c.name, func(t *testing.T) {
			logs := map[string]v1alpha1.EtcdLog{"demo-1": {Term: 2, Index: 9}}
			if c.log != nil {
				logs["demo-2"] = *c.log
			}
			d := Plan(runningWorld(3, gone("n2", time.Minute), gone("n3", time.Minute), noQuorum, fromMember("demo-1", "n2", "n3"), stoppedForRestore(logs), snapshotted("demo-12345678-r-o1-2-9", 0, "n1", "n4")))
			if len(d.Status.SetAside) != 2 || d.Status.SetAside[0].Member != "demo-2" || d.Status.SetAside[0].Reason != c.says {
				t.Errorf("set aside: %+v", d.Status.SetAside)
			}
		})
	}
}

func TestRestoreFromIsObeyedByOneStart(t *testing.T) {
	w := runningWorld(0, sized(3), snapshotted("s1", time.Hour, "n1"), snapshotted("s2", time.Minute, "n1"), func(w *World) {
		w.View = etcd.View{}
		w.Cluster.Spec.RestoreFrom = "s1"
		w.Cluster.Status = v1alpha1.EtcdClusterStatus{
			Phase: v1alpha1.EtcdClusterPhaseStopped, ClusterID: "c1", Incarnation: 1, NextMember: 4,
			Rest: &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: "s2", Revision: 9},
		}
	})
	d := Plan(w)
	if d.Status.Rest.Snapshot != "s1" || d.Status.ObservedRestoreFrom != "s1" {
		t.Fatalf("it starts from %+v, observed %q", d.Status.Rest, d.Status.ObservedRestoreFrom)
	}
	w.Cluster.Status = d.Status
	w.Cluster.Status.Starting, w.Cluster.Status.Phase = nil, v1alpha1.EtcdClusterPhaseStopped
	w.Cluster.Status.Rest = &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: "s2", Revision: 12}
	if d = Plan(w); d.Status.Rest.Snapshot != "s2" {
		t.Errorf("the next start begins from %+v", d.Status.Rest)
	}
	w.Cluster.Spec.RestoreFrom = ""
	if d = Plan(w); d.Status.ObservedRestoreFrom != "" {
		t.Error("set again it would not be obeyed")
	}
}

// stoppedWith: the cluster was stopped with a snapshot, and keeps one.
func stoppedWith(snapshot string) worldChange {
	return func(w *World) {
		w.View, w.Cluster.Spec.Snapshot.Keep = etcd.View{}, 1
		w.Cluster.Status = v1alpha1.EtcdClusterStatus{
			Phase: v1alpha1.EtcdClusterPhaseStopped, ClusterID: "c1", Incarnation: 1, NextMember: 4, RestoreFromTracked: true,
			Rest: &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: snapshot, Revision: 9},
		}
	}
}

func TestTheSnapshotOfTheLastStopStaysUntilWhatWasStartedInsteadRuns(t *testing.T) {
	w := runningWorld(0, sized(3), func(w *World) { addNode(w, "n2") }, snapshotted("s1", time.Hour, "n1", "n2"), snapshotted("s2", time.Minute, "n1", "n2"), stoppedWith("s2"))
	w.Cluster.Spec.RestoreFrom = "s1"
	step := func(what, want string) Decision {
		t.Helper()
		d := Plan(w)
		if deeds(d) != want {
			t.Fatalf("%s it does %q, want %q", what, deeds(d), want)
		}
		w.Cluster.Status = d.Status
		return d
	}
	if d := step("when it is started from s1", "create-member demo-4 on n1"); d.Status.Rest.Snapshot != "s1" {
		t.Fatalf("it starts from %+v", d.Status.Rest)
	}
	w.View.Health = map[string]etcd.Health{}
	m := addMember(&w, 4, "n1")
	w.View, m.Spec.Incarnation = etcd.View{}, w.Cluster.Status.Incarnation
	m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberStarting
	step("while it starts", "")
	sized(0)(&w)
	step("when the start is canceled", "set-desired demo-4 Delete")
	started := w.Members
	w.Members = nil
	step("then", "")
	if d := step("once it is stopped", ""); d.Status.Phase != v1alpha1.EtcdClusterPhaseStopped || d.Status.Rest.Snapshot != "s1" {
		t.Fatalf("%s with %+v", d.Status.Phase, d.Status.Rest)
	}
	sized(1)(&w)
	step("when it is started again", "create-member demo-5 on n2")
	id := uint64(0xa5)
	m.Name, m.Spec.Incarnation, m.Status.Phase, m.Status.ID, w.Members = "demo-5", w.Cluster.Status.Incarnation, v1alpha1.EtcdMemberSealed, etcd.HexID(id), started
	w.View = etcd.View{
		Listed: true, Via: m.Name, Revision: 7, Peers: []etcd.Peer{{ID: id, Name: m.Name, PeerURL: m.Status.PeerURL}},
		Health: map[string]etcd.Health{m.Name: {Answered: true, ID: id, ClusterID: 0xc2, Leader: id, Revision: 7}},
	}
	if d := step("when it runs", "set-desired demo-5 Run, delete-snapshot s1"); d.Status.Rest != nil {
		t.Errorf("it runs, with %+v", d.Status.Rest)
	}
}

func TestWhatIsKeptWhileAClusterStarts(t *testing.T) {
	both := func(w *World) {
		addNode(w, "n2")
		snapshotted("s1", time.Hour, "n1", "n2")(w)
		snapshotted("s2", time.Minute, "n1", "n2")(w)
	}
	forced := ordered(func(o *v1alpha1.EtcdRestoreOrder) { o.Snapshot, o.Force = "s1", true })
	for _, c := range []struct {
		name  string
		world World
		goes  string // the snapshot that is deleted
	}{
		{"from the last stop: the policy is obeyed", runningWorld(0, both, sized(3), stoppedWith("s2")), "s1"},
		{"stopped: the policy is obeyed", runningWorld(0, both, stoppedWith("s2")), "s1"},
		{"from nothing, as somebody asked", runningWorld(0, both, sized(3), stoppedWith("s2"), func(w *World) { w.Cluster.Spec.RestoreFrom = "none" }), ""},
		{"from an older one, by an order", runningWorld(1, both, forced, func(w *World) { w.Cluster.Spec.Snapshot.Keep = 1 }), ""},
		{"one that failed", runningWorld(0, both, sized(3), stoppedWith("s2"), snapshotted("s3", time.Minute), func(w *World) {
			w.Cluster.Spec.RestoreFrom, w.Snapshots[2].Status = "s1", v1alpha1.EtcdSnapshotStatus{Error: "no space left on device"}
		}), "s3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			for _, a := range Plan(c.world).Actions {
				if a.Do == DeleteSnapshot {
					got += a.Snapshot.Name
				}
			}
			if got != c.goes {
				t.Errorf("%q is deleted, want %q", got, c.goes)
			}
		})
	}
}

func TestARestoreFromThatAFormerVersionObeyedIsNotObeyedAgain(t *testing.T) {
	older := func(w *World) { w.Cluster.Spec.RestoreFrom, w.Cluster.Status.RestoreFromTracked = "s1", false }
	starting := func(w *World) {
		w.Cluster.Status.Phase, w.Cluster.Status.Starting = v1alpha1.EtcdClusterPhaseCreating, micro(noon)
		w.Cluster.Status.Rest = &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: "s1"}
	}
	s1 := snapshotted("s1", time.Hour, "n1", "n2")
	for _, c := range []struct {
		name  string
		world World
		want  string // status.observedRestoreFrom
	}{
		{"it runs", runningWorld(3, s1, older), "s1"},
		{"it is about to stop", runningWorld(3, s1, older, sized(0)), "s1"},
		{"it starts", runningWorld(3, s1, older, starting), "s1"},
		{"it is stopped: the next start obeys it", runningWorld(0, s1, stoppedWith("s2"), older, func(w *World) { addNode(w, "n2") }), ""},
		{"somebody asks for it while the cluster runs", runningWorld(3, s1, older, func(w *World) { w.Cluster.Status.RestoreFromTracked = true }), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 {
				d := Plan(c.world)
				if d.Status.ObservedRestoreFrom != c.want || !d.Status.RestoreFromTracked {
					t.Fatalf("observed %q, want %q", d.Status.ObservedRestoreFrom, c.want)
				}
				c.world.Cluster.Status = d.Status
			}
		})
	}
	w := runningWorld(3, s1, older, func(w *World) { w.Cluster.Spec.RestoreFrom = "" })
	w.Cluster.Status = Plan(w).Status
	w.Cluster.Spec.RestoreFrom = "s1"
	if d := Plan(w); d.Status.ObservedRestoreFrom != "" {
		t.Error("what is asked for later is not obeyed")
	}
}
