package etcdcluster

import (
	"slices"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// wanted: somebody wrote that to the objects of members.
func wanted(want v1alpha1.EtcdMemberWish, members ...string) worldChange {
	return func(w *World) {
		for _, m := range w.Members {
			if slices.Contains(members, m.Name) {
				m.Spec.Want = want
			}
		}
	}
}

// People write to objects that only the coordinator should write to. The cluster comes back from that by itself.
func TestWhatPeopleWriteToMembersIsPutRight(t *testing.T) {
	const all = "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"
	stopping := func(left time.Duration) worldChange {
		return func(w *World) {
			w.Cluster.Status.Stop = &v1alpha1.EtcdStop{Generation: 4, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing, Attempt: 1, PausedUntil: micro(noon.Add(left))}
		}
	}
	stopped := wanted(v1alpha1.EtcdMemberStop, "demo-1", "demo-2", "demo-3")
	for _, c := range []struct {
		name    string
		world   World
		deeds   string
		message string
	}{
		{"one that reserves its ports runs again", runningWorld(3, unhealthy("demo-3"), wanted(v1alpha1.EtcdMemberReserve, "demo-3")), "set-desired demo-3 Run", "Cluster is running"},
		{
			"also before a stop, which needs it", runningWorld(3, sized(0), unhealthy("demo-2", "demo-3"), wanted(v1alpha1.EtcdMemberReserve, "demo-2", "demo-3")),
			"set-desired demo-2 Run, set-desired demo-3 Run", "Waiting for a quorum before stopping, so that every key is kept",
		},
		{"also while a stop waits to try again", runningWorld(3, sized(0), noQuorum, stopped, stopping(time.Second)), all, ""},
		{"also while a stop asks for room", runningWorld(3, sized(0), noQuorum, stopped, stopping(-time.Second)), all, ""},
		{"one of a stopped cluster that was started stops", runningWorld(3, retained, wanted(v1alpha1.EtcdMemberRun, "demo-2")), "set-desired demo-2 Stop", v1alpha1.MessageEtcdStopped},
		{
			"one whose data is to be deleted leaves the list, although its node is absent", runningWorld(3, gone("n3", time.Minute), wanted(v1alpha1.EtcdMemberDelete, "demo-3")),
			"remove-peer demo-3", "Removing demo-3, whose data is deleted",
		},
		{
			"but not if that would lose quorum", runningWorld(3, gone("n3", time.Minute), unhealthy("demo-2"), wanted(v1alpha1.EtcdMemberDelete, "demo-3")),
			"", "1 of 3 voters healthy; removing demo-3, whose data is deleted, would lose quorum; bring demo-2 and demo-3 back",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			if deeds(d) != c.deeds || c.message != "" && message(d) != c.message {
				t.Errorf("it does %q, want %q; it says %q, want %q", deeds(d), c.deeds, message(d), c.message)
			}
		})
	}
}
