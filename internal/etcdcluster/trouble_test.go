package etcdcluster

import (
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// failsWith: the node of a member reports an error for what is wanted of it now.
func failsWith(member string, want v1alpha1.EtcdMemberWish, phase v1alpha1.EtcdMemberPhase, text string) worldChange {
	return func(w *World) {
		for _, m := range w.Members {
			if m.Name == member {
				m.Spec.Want, m.Status.Phase, m.Status.Error = want, phase, text
			}
		}
	}
}

// released: the data of the cluster is safe, and its members end.
func releasedStop(policy v1alpha1.EtcdOnStop) worldChange {
	return func(w *World) {
		sized(0)(w)
		w.View = etcd.View{Health: map[string]etcd.Health{}}
		w.Cluster.Status.Phase = v1alpha1.EtcdClusterPhaseScaling
		w.Cluster.Status.Stop = &v1alpha1.EtcdStop{Step: v1alpha1.EtcdReleased, OnStop: policy}
		w.Cluster.Status.Rest = &v1alpha1.EtcdStoppedState{OnStop: policy}
		for _, m := range w.Members {
			m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberStopped
			if policy != v1alpha1.EtcdRetain {
				m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberDeleted
			}
		}
	}
}

// What a node cannot do has a name wherever the cluster waits for it.
func TestAWaitForAMemberHasTheErrorOfItsNode(t *testing.T) {
	const failed, why = v1alpha1.EtcdMemberFailed, "input/output error"
	resumed := func(w *World) {
		retained(w)
		sized(3)(w)
		w.Cluster.Status.Starting, w.Cluster.Status.Phase = micro(noon), v1alpha1.EtcdClusterPhaseCreating
		for _, m := range w.Members {
			m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberRun, v1alpha1.EtcdMemberStarting
			w.Cluster.Status.Rest.Members = append(w.Cluster.Status.Rest.Members, v1alpha1.EtcdMemberInfo{Name: m.Name, Node: m.Spec.Node})
		}
	}
	for _, c := range []struct {
		name  string
		world World
		phase v1alpha1.EtcdClusterPhase
		says  string
	}{
		{
			"data that cannot be deleted, in a stop", runningWorld(3, releasedStop(v1alpha1.EtcdSnapshotThenDelete), failsWith("demo-2", v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberSealed, why)),
			v1alpha1.EtcdClusterPhaseScaling, "waiting for its processes to end (demo-2 on n2: input/output error)",
		},
		{
			"in a change of members", runningWorld(3, sized(2), failsWith("demo-3", v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberStopped, why), func(w *World) { w.View.Peers = w.View.Peers[:2] }),
			v1alpha1.EtcdClusterPhaseScaling, "Deleting member demo-3 on n3 (input/output error)",
		},
		{"a process that does not end", runningWorld(3, releasedStop(v1alpha1.EtcdRetain), failsWith("demo-2", v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberSealed, why)), v1alpha1.EtcdClusterPhaseScaling, "(demo-2 on n2: input/output error)"},
		{"data that cannot be used does not keep a stop from its end", runningWorld(3, releasedStop(v1alpha1.EtcdRetain), failsWith("demo-2", v1alpha1.EtcdMemberStop, failed, why)), v1alpha1.EtcdClusterPhaseStopped, ""},
		{
			"members that do not start", runningWorld(3, resumed, failsWith("demo-2", v1alpha1.EtcdMemberRun, v1alpha1.EtcdMemberStarting, why)), v1alpha1.EtcdClusterPhaseCreating,
			"Waiting for 2 of 3 members to run (demo-2 on n2: input/output error)",
		},
		{
			"an error of what was wanted before", runningWorld(3, sized(2), failsWith("demo-3", v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberStopped, why), func(w *World) {
				w.View.Peers, w.Members[2].Generation = w.View.Peers[:2], 2
			}), v1alpha1.EtcdClusterPhaseScaling, "Deleting member demo-3 on n3",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			if d.Status.Phase != c.phase || !strings.HasSuffix(message(d), c.says) {
				t.Errorf("it says %s: %q, want %s: %q", d.Status.Phase, message(d), c.phase, c.says)
			}
		})
	}
	w := runningWorld(3, failsWith("demo-2", v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberSealed, why))
	w.Cluster.DeletionTimestamp = newTime(noon.Add(-time.Minute))
	if got := message(Plan(w)); !strings.Contains(got, "Deleting cluster (demo-2 on n2: input/output error)") {
		t.Errorf("a cluster that is deleted says %q", got)
	}
}

// The data of a stopped cluster is on its way to other nodes, and a snapshot of it has just failed.
func TestAnEvacuationThatWaitsServesNobody(t *testing.T) {
	d := Plan(runningWorld(3, retained, drains("n1"), wanted(v1alpha1.EtcdMemberSeal, "demo-1", "demo-2"), func(w *World) {
		w.Cluster.Status.Stop = &v1alpha1.EtcdStop{OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing, Attempt: 1, PausedUntil: micro(noon.Add(time.Second))}
	}))
	if deeds(d) != "" || d.Status.Phase != v1alpha1.EtcdClusterPhaseStopped {
		t.Errorf("it does %q and is %s", deeds(d), d.Status.Phase)
	}
}

// The API server stamps a snapshot with its own clock, which may differ from the coordinator's.
func TestASnapshotThatFailedIsTakenAgainWhateverTheClockOfTheAPISays(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		w := runningWorld(3, sized(0), snapshotted("demo-12345678-4-1", -ahead, "n1", "n2"))
		w.Snapshots[0].Status = v1alpha1.EtcdSnapshotStatus{Error: "no space left on device"}
		w.Cluster.Status.Stop = &v1alpha1.EtcdStop{
			Generation: 4, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSnapshotting, Attempt: 1, Revision: 7, Snapshot: "demo-12345678-4-1", SealedSince: micro(noon),
		}
		wanted(v1alpha1.EtcdMemberSeal, "demo-1", "demo-2", "demo-3")(&w)
		d := Plan(w)
		if got := deeds(d); got != "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run" {
			t.Errorf("%s: when it fails it does %q", ahead, got)
		}
		wanted(v1alpha1.EtcdMemberRun, "demo-1", "demo-2", "demo-3")(&w)
		for _, c := range []struct {
			after time.Duration
			deeds string
		}{{retryFirst / 2, ""}, {retryFirst, "create-snapshot demo-12345678-4-trial-1"}} {
			w.Cluster.Status, w.Now = d.Status, noon.Add(c.after)
			if d = Plan(w); deeds(d) != c.deeds {
				t.Errorf("%s: after %s it does %q, want %q", ahead, c.after, deeds(d), c.deeds)
			}
		}
	}
}

// Without certificates members do not know the coordinator, and etcd's auth keeps it out. The status has etcd's words and what to do.
func TestAClusterWhoseAuthKeepsTheCoordinatorOutSaysSo(t *testing.T) {
	denied := func(w *World) {
		noQuorum(w)
		w.View.Error = "member demo-1: etcdserver: permission denied"
	}
	for _, c := range []struct {
		name  string
		world World
	}{
		{"it runs", runningWorld(3, denied)},
		{"it is to be stopped", runningWorld(3, denied, sized(0))},
		{"a node is drained", runningWorld(3, denied, drains("n2"))},
	} {
		const want = "3 of 3 voters answer, and none lists the members: member demo-1: etcdserver: permission denied. If etcd's auth is enabled, disable it: members that were created with spec.tls.client false cannot identify the coordinator."
		if d := Plan(c.world); message(d) != want || d.Status.Phase != v1alpha1.EtcdClusterPhaseFailed || deeds(d) != "" {
			t.Errorf("%s: it says %s: %q, and does %q", c.name, d.Status.Phase, message(d), deeds(d))
		}
	}
}
