package etcdcluster

import (
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// differing: etcd says that the data of members differs from the others'.
func differing(members ...uint64) worldChange {
	return func(w *World) {
		for _, n := range members {
			w.View.Alarms = append(w.View.Alarms, etcd.Alarm{Member: 0xa0 + n, Corrupt: true})
		}
	}
}

// sealed: the members of a stop serve nobody.
func sealed(w *World) {
	sized(0)(w)
	w.Cluster.Status.Stop = &v1alpha1.EtcdStop{Generation: 4, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing, SealedSince: micro(noon)}
	for _, m := range w.Members {
		m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberSealed
	}
}

// The members whose data does not differ have the only good copies of it.
func TestAMemberWhoseDataDiffersIsNoCopyOfTheCluster(t *testing.T) {
	for _, c := range []struct {
		name  string
		world World
		deeds string
	}{
		{"it leaves before the others", runningWorld(3, sized(2), differing(2)), "remove-peer demo-2"},
		{"also before one that is not healthy", runningWorld(4, sized(3), differing(2), unhealthy("demo-4")), "remove-peer demo-2"},
		{"it is not made the leader", runningWorld(4, sized(3), deletedByHand("demo-1"), differing(2)), "move-leader demo-3"},
		{"it leads no longer when a member is added, which gets the leader's data", runningWorld(3, differing(1), drains("n3")), "move-leader demo-2"},
		{"the only good data stays", runningWorld(2, sized(1), drains("n1"), differing(2)), ""},
		{"until the others are replaced", runningWorld(2, sized(1), drains("n1"), differing(2), deletedByHand("demo-2")), "create-member demo-3 on n3"},
		{"and gives the new one its data, though it leaves too", runningWorld(2, sized(1), drains("n2"), differing(1), deletedByHand("demo-1")), "move-leader demo-2"},
		{"a stop does not give it up either", runningWorld(2, sealed, gone("n2", time.Minute), differing(1)), ""},
		{"without another leader it stays", runningWorld(1, differing(1), sized(2)), "create-member demo-2 on n2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := deeds(Plan(c.world)); got != c.deeds {
				t.Errorf("it does %q, want %q", got, c.deeds)
			}
		})
	}
	for _, c := range []struct {
		name  string
		world World
		from  string
	}{
		{"all are good", runningWorld(3, sealed), "demo-1"},
		{"one differs", runningWorld(3, sealed, differing(1)), "demo-2"},
		{"two differ", runningWorld(3, sealed, differing(1, 2)), "demo-3"},
		{"all differ", runningWorld(3, sealed, differing(1, 2, 3)), ""},
		{"what differs cannot be read", runningWorld(3, sealed, func(w *World) { w.View.AlarmsUnknown = true }), ""},
	} {
		t.Run("a snapshot is taken when "+c.name, func(t *testing.T) {
			from := ""
			for _, a := range Plan(c.world).Actions {
				if a.Do == CreateSnapshot {
					from = a.Snapshot.Spec.Member
				}
			}
			if from != c.from {
				t.Errorf("it is taken from %q, want %q", from, c.from)
			}
		})
	}
	said := condition(Plan(runningWorld(3, differing(2), func(w *World) { w.Cluster.Namespace = "team" })).Status, v1alpha1.EtcdCorrupt)
	if said == nil || !strings.Contains(said.Message, "replace the wrong one (`kubectl delete etcdmember NAME -n team`), and disarm the alarm (`etcdctl alarm disarm`)") {
		t.Errorf("it says %+v", said)
	}
}
