package etcdcluster

import (
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/testenv"
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

// Members with certificates and members without cannot reach each other.
func TestAChangedPeerTLSTakesEffectWithTheNextIncarnation(t *testing.T) {
	no := false
	withTLS := func(on bool) worldChange {
		return func(w *World) {
			for _, m := range w.Members {
				m.Spec.PeerTLS = on
			}
		}
	}
	changed := func(to *bool) worldChange { return func(w *World) { w.Cluster.Spec.TLS.Peer = to } }
	for _, c := range []struct {
		name  string
		world World
		want  bool
	}{
		{"as the others, with certificates", runningWorld(3, sized(4), withTLS(true), changed(&no)), true},
		{"as the others, without", runningWorld(3, sized(4), withTLS(false), changed(nil)), false},
		{"the first one as the spec says", runningWorld(0, sized(3), snapshotted("s1", time.Hour, "n1"), stoppedWith("s1"), changed(&no)), false},
	} {
		d := Plan(c.world)
		i := slices.IndexFunc(d.Actions, func(a Action) bool { return a.Do == CreateMember })
		if i < 0 || d.Actions[i].Member.Spec.PeerTLS != c.want {
			t.Errorf("%s: it does %q", c.name, deeds(d))
		}
	}
}

func TestWhatPeopleDoToObjects(t *testing.T) {
	api := testenv.StartAPI(t)
	c := &Controller{client: api.Admin(), live: api.Admin()}
	t.Run("labels that somebody took away come back", func(t *testing.T) { takeLabelsAway(t, c) })
	t.Run("what is left of a cluster can be deleted", func(t *testing.T) { deleteWhatIsLeft(t, c) })
}

func takeLabelsAway(t *testing.T, c *Controller) {
	cluster := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo", UID: "uid"}}
	m := &v1alpha1.EtcdMember{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo-1"}}
	m.Spec = v1alpha1.EtcdMemberSpec{Cluster: "demo", ClusterUID: "uid", Node: "n1", Want: v1alpha1.EtcdMemberRun}
	other := m.DeepCopy()
	other.Name, other.Spec.ClusterUID = "other-1", "another"
	s := &v1alpha1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s1", Labels: map[string]string{"team": "a"}}}
	s.Spec = v1alpha1.EtcdSnapshotSpec{Cluster: "demo", ClusterUID: "uid", Member: "demo-1", MemberNode: "n1"}
	for _, o := range []client.Object{m, other, s} {
		if err := c.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	key := client.ObjectKeyFromObject(cluster)
	w := World{Cluster: cluster, Taken: map[string]bool{}, Load: map[string]int{}}
	if err := c.readMembers(t.Context(), key, &w); !apierrors.IsConflict(err) {
		t.Errorf("it goes on without what it does not see: %v", err)
	}
	w = World{Cluster: cluster, Taken: map[string]bool{}, Load: map[string]int{}}
	if err := c.readMembers(t.Context(), key, &w); err != nil || len(w.Members) != 1 || len(w.Snapshots) != 1 || w.Snapshots[0].Labels["team"] != "a" {
		t.Errorf("it sees %d members and %d snapshots, %v", len(w.Members), len(w.Snapshots), err)
	}
	if err := c.live.Get(t.Context(), client.ObjectKeyFromObject(other), other); err != nil || len(other.Labels) > 0 {
		t.Errorf("another cluster's has %v, %v", other.Labels, err)
	}
}

// Nobody manages what is left of a cluster that was deleted by force. Its objects stay until somebody deletes them, and then they go.
func deleteWhatIsLeft(t *testing.T, c *Controller) {
	member := func() *v1alpha1.EtcdMember {
		m := &v1alpha1.EtcdMember{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gone-1", Finalizers: []string{v1alpha1.EtcdMemberFinalizer}}}
		m.Spec = v1alpha1.EtcdMemberSpec{Cluster: "gone", ClusterUID: "uid", Node: "n1", Want: v1alpha1.EtcdMemberRun}
		return m
	}
	m := member()
	if err := c.client.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	release := func() error {
		if err := c.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "gone-1"}, m); err != nil {
			return err
		}
		w := World{Fleet: fleet.New(), Orphans: Orphans{Members: []*v1alpha1.EtcdMember{m}}}
		if err := c.releaseOrphans(t.Context(), w); err != nil {
			return err
		}
		return c.live.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "gone-1"}, m)
	}
	if err := release(); err != nil {
		t.Fatalf("nobody deleted it: %v", err)
	}
	if err := c.client.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := release(); !apierrors.IsNotFound(err) {
		t.Errorf("somebody deleted it: %v", err)
	}
}
