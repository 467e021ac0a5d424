package etcdcluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// drainWorldOf is what a drain sees of a world, with the cluster's status as the planner writes it.
func drainWorldOf(w World) drainWorld {
	c := w.Cluster.DeepCopy()
	c.Status = Plan(w).Status
	return drainWorld{Clusters: []*v1alpha1.EtcdCluster{c}, Members: w.Members, Snapshots: w.Snapshots, Fleet: w.Fleet}
}

func retained(w *World) {
	for _, m := range w.Members {
		m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberStopped
	}
	w.View = etcd.View{}
	w.Cluster.Status.Phase, w.Cluster.Status.Rest = v1alpha1.EtcdClusterPhaseStopped, &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdRetain}
	sized(0)(w)
}

func TestWhatOfEtcdIsLeftOnANode(t *testing.T) {
	for _, c := range []struct {
		name          string
		world         World
		members, data []string
	}{
		{
			"a member is replaced first", runningWorld(3, drains("n2")),
			[]string{"demo-2 AwaitingReplacement: cluster demo: 3 of 3 voters healthy; demo-2 leaves when another member has taken its place; now: Adding a member on n4"}, nil,
		},
		{
			"there is nowhere to go", runningWorld(1, drains("n1"), cordoned("n2")),
			[]string{"demo-1 NoSchedulableNode: cluster demo: no other node may take the place of demo-1: start or uncordon one"}, nil,
		},
		{
			"the arithmetic", runningWorld(3, drains("n2"), unhealthy("demo-3")),
			[]string{"demo-2 QuorumAtRisk: cluster demo: 2 of 3 voters healthy; removing demo-2 would lose quorum; start a node or bring demo-3 back"}, nil,
		},
		{
			"quorum is lost", runningWorld(3, drains("n2"), unhealthy("demo-1", "demo-3")),
			[]string{"demo-2 QuorumAtRisk: cluster demo: 1 of 3 voters healthy, 2 are needed; bring demo-1 and demo-3 back"}, nil,
		},
		{
			"a member that is being deleted", runningWorld(3, drains("n2"), func(w *World) { w.Members[1].Spec.Want = v1alpha1.EtcdMemberDelete }),
			[]string{"demo-2 AwaitingRemoval: cluster demo: demo-2 is being stopped here"}, nil,
		},
		{
			"a member that cannot be deleted", runningWorld(3, drains("n2"), func(w *World) {
				w.Members[1].Spec.Want, w.Members[1].Status.Error = v1alpha1.EtcdMemberDelete, "input/output error"
			}),
			[]string{"demo-2 AwaitingRemoval: cluster demo: demo-2 is being stopped here (input/output error)"}, nil,
		},
		{
			"a member of a cluster that was deleted by force, and another one has its name", runningWorld(3, drains("n2"), func(w *World) { w.Members[1].Spec.ClusterUID = "another" }),
			[]string{"demo-2 NoCluster: cluster demo: somebody deleted it by force, and demo-2 is left of it; `kubectl delete etcdmember demo-2` ends it, keeps its data on the node, and `ebb etcd orphans` lists that"}, nil,
		},
		{
			"and its data", runningWorld(3, drains("n2"), func(w *World) {
				w.Members[1].Spec.ClusterUID, w.Members[1].Spec.Want, w.Members[1].Status.Phase = "another", v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberStopped
			}), nil,
			[]string{"demo-2 NoCluster: cluster demo: somebody deleted it by force, and demo-2 is left of it; `kubectl delete etcdmember demo-2` ends it, keeps its data on the node, and `ebb etcd orphans` lists that"},
		},
		{"a member that is deleted", runningWorld(3, drains("n2"), func(w *World) {
			w.Members[1].Spec.Want, w.Members[1].Status.Phase = v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberDeleted
		}), nil, nil},
		{"data that was set aside stays until it is discarded", runningWorld(1, drains("n2"), func(w *World) {
			m := addMember(w, 2, "n2")
			w.View.Peers = w.View.Peers[:1]
			m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberStopped
			w.Cluster.Status.SetAside = []v1alpha1.EtcdSetAside{{Member: "demo-2", Node: "n2"}}
		}), nil, []string{"demo-2 SetAside: cluster demo: data of former member demo-2 was set aside here and may have keys that exist nowhere else; `ebb etcd discard demo demo-2` deletes it"}},
		{"a snapshot that others have too", runningWorld(1, drains("n2"), snapshotted("s1", time.Hour, "n1", "n2")), nil, nil},
		{
			"the only copy of a snapshot", runningWorld(1, drains("n2"), snapshotted("s1", time.Hour, "n2")), nil,
			[]string{"s1 AwaitingCopy: cluster demo: no other node that stays has a verified copy; it is being copied"},
		},
		{
			"the only copy on a node that is there", runningWorld(2, drains("n2"), gone("n1", time.Hour), snapshotted("s1", time.Hour, "n1", "n2")),
			[]string{"demo-2 QuorumAtRisk: cluster demo: 1 of 2 voters healthy, 2 are needed; bring demo-1 back"},
			[]string{"s1 AwaitingCopy: cluster demo: no other node that stays has a verified copy; it is being copied"},
		},
		{
			"data that a stopped cluster kept", runningWorld(3, retained, drains("n2")), nil,
			[]string{"demo-2 AwaitingCopy: cluster demo: it is stopped and retained data here; a snapshot of that data must first be on another node"},
		},
		{
			"a member of a stop that fails", runningWorld(3, sized(0), drains("n2"), func(w *World) {
				w.Cluster.Status.Stop = &v1alpha1.EtcdStop{OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing, Attempt: 1, PausedUntil: micro(noon.Add(10 * time.Second))}
				w.Cluster.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EtcdSnapshotFailed, Status: metav1.ConditionTrue, Message: "n4: no space left on device"}}
			}),
			[]string{"demo-2 AwaitingRemoval: cluster demo is being stopped, at step Sealing (n4: no space left on device)"}, nil,
		},
		{
			"a member that was woken for its data, and the others are away", runningWorld(3, gone("n1", time.Minute), gone("n3", time.Minute), retained, drains("n2"), func(w *World) {
				w.Cluster.Status.Stop = &v1alpha1.EtcdStop{OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing}
				w.Members[1].Spec.Want, w.Members[1].Status.Phase = v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberStarting
			}),
			[]string{"demo-2 DataMissing: cluster demo: It is stopped and retained its data, of which a snapshot can be taken only with 2 of 3 members; 1 can run. Start n1 and n3, or cancel the drain."}, nil,
		},
		{
			"a member that starts from its data, and the others are away", runningWorld(3, gone("n1", time.Minute), gone("n3", time.Minute), retained, sized(3), drains("n2"), func(w *World) {
				w.Cluster.Status.Phase, w.Cluster.Status.Starting = v1alpha1.EtcdClusterPhaseCreating, micro(noon)
				for _, m := range w.Members {
					w.Cluster.Status.Rest.Members = append(w.Cluster.Status.Rest.Members, v1alpha1.EtcdMemberInfo{Name: m.Name, Node: m.Spec.Node})
				}
				w.Members[1].Spec.Want, w.Members[1].Status.Phase = v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberStarting
			}),
			[]string{"demo-2 DataMissing: cluster demo: 1 of 3 members have their data, 2 are needed; absent nodes: n1, n3 (start them)."}, nil,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := drainWorldOf(c.world)
			said := func(list []v1alpha1.Blocker) []string {
				var text []string
				for _, b := range list {
					text = append(text, fmt.Sprintf("%s %s: %s", b.Name, b.Reason, b.Remedy))
				}
				return text
			}
			members, data := w.membersOn("n2"), w.dataOn("n2")
			if c.name == "there is nowhere to go" {
				members = w.membersOn("n1")
			}
			if diff := cmp.Diff(c.members, said(members.Blockers)); diff != "" {
				t.Errorf("members: %s", diff)
			}
			if diff := cmp.Diff(c.data, said(data.Blockers)); diff != "" {
				t.Errorf("data: %s", diff)
			}
			if int(members.Count) != len(c.members) || int(data.Count) != len(c.data) {
				t.Errorf("%d members, %d pieces of data", members.Count, data.Count)
			}
		})
	}
}

func TestRetainedDataOnADrainingNodeIsWokenForASnapshot(t *testing.T) {
	w := runningWorld(3, retained, drains("n2"))
	d := Plan(w)
	if d.Status.Stop == nil || d.Status.Stop.OnStop != v1alpha1.EtcdSnapshotThenDelete || d.Status.Phase != v1alpha1.EtcdClusterPhaseStopped {
		t.Fatalf("%+v", d.Status)
	}
	w.Cluster.Status = d.Status
	d = Plan(w)
	if got := deeds(d); got != "set-desired demo-1 Seal, set-desired demo-2 Seal, set-desired demo-3 Seal" || d.Status.Phase != v1alpha1.EtcdClusterPhaseStopped {
		t.Errorf("%s, phase %s", got, d.Status.Phase)
	}
	for _, kind := range []string{v1alpha1.EtcdReady, v1alpha1.EtcdProgressing} {
		if c := condition(d.Status, kind); c.Status != metav1.ConditionFalse || c.Message != v1alpha1.MessageEtcdStopped {
			t.Errorf("%+v", c)
		}
	}
}
