package fleet_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// one is a fleet with a schedulable node n1 in epoch 3, changed.
func one(changes ...func(*fleet.Fleet, *v1alpha1.Node)) fleet.Fleet {
	f := fleet.New()
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Status.Epoch, n.Status.Liveness = 3, v1alpha1.Alive
	meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue})
	f.Nodes["n1"], f.Leases["n1"] = n, lease.Record{Node: "n1", Holder: "p", Epoch: 3}
	for _, c := range changes {
		c(&f, n)
	}
	return f
}

func TestWhyANodeGetsNoNewWork(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*fleet.Fleet, *v1alpha1.Node)
		want   string
		live   bool
		leaves bool
	}{
		{"it may", func(*fleet.Fleet, *v1alpha1.Node) {}, "", true, false},
		{"there is no such node", func(f *fleet.Fleet, _ *v1alpha1.Node) { delete(f.Nodes, "n1") }, fleet.NoLease, true, false},
		{"there is no lease", func(f *fleet.Fleet, _ *v1alpha1.Node) { delete(f.Leases, "n1") }, fleet.NoLease, false, false},
		{"the lease was released", func(f *fleet.Fleet, _ *v1alpha1.Node) { f.Leases["n1"] = lease.Record{Node: "n1", Epoch: 3} }, fleet.NoLease, false, false},
		{"the status is of an earlier epoch", func(_ *fleet.Fleet, n *v1alpha1.Node) { n.Status.Epoch = 2 }, fleet.NoLease, true, false},
		{"it has not said yet in which state it is", func(_ *fleet.Fleet, n *v1alpha1.Node) { n.Status.Liveness = "" }, fleet.NotAlive, true, false},
		{"it drains", func(_ *fleet.Fleet, n *v1alpha1.Node) { n.Status.Liveness = v1alpha1.Draining }, fleet.NotAlive, true, true},
		{"it stops", func(_ *fleet.Fleet, n *v1alpha1.Node) { n.Status.Liveness = v1alpha1.Stopping }, fleet.NotAlive, true, true},
		{"it drained in an earlier epoch", func(_ *fleet.Fleet, n *v1alpha1.Node) { n.Status.Epoch, n.Status.Liveness = 2, v1alpha1.Draining }, fleet.NoLease, true, false},
		{"a drain names it", func(f *fleet.Fleet, _ *v1alpha1.Node) { f.Slot = &v1alpha1.ActiveDrain{Node: "n1"} }, fleet.Draining, true, true},
		{"a drain names another", func(f *fleet.Fleet, _ *v1alpha1.Node) { f.Slot = &v1alpha1.ActiveDrain{Node: "n2"} }, "", true, false},
		{"it is not ready", func(_ *fleet.Fleet, n *v1alpha1.Node) { n.Status.Conditions = nil }, fleet.NotReady, true, false},
		{"it is cordoned", func(_ *fleet.Fleet, n *v1alpha1.Node) { n.Spec.Cordoned = true }, fleet.Cordoned, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := one(c.change)
			if got := f.Ineligible("n1"); got != c.want {
				t.Errorf("ineligible because %q, want %q", got, c.want)
			}
			var want []string
			if c.want == "" {
				want = []string{"n1"}
			}
			if got := f.SchedulableNodes(); !cmp.Equal(got, want) || f.Schedulable("n1") != (c.want == "") {
				t.Errorf("schedulable: %v, want %v", got, want)
			}
			if f.Live("n1") != c.live || f.Leaving("n1") != c.leaves || f.Staying("n1") != (c.live && !c.leaves) {
				t.Errorf("live %t, leaving %t, staying %t", f.Live("n1"), f.Leaving("n1"), f.Staying("n1"))
			}
		})
	}
}

func TestAnEpochIsOverWhenItsLeaseSaysSo(t *testing.T) {
	for _, c := range []struct {
		name  string
		rec   lease.Record
		epoch int64
		want  bool
	}{
		{"it is held", lease.Record{Holder: "p", Epoch: 3}, 3, false},
		{"it was released", lease.Record{Epoch: 3}, 3, true},
		{"it was fenced", lease.Record{Holder: "p", Epoch: 3, Fenced: 3}, 3, true},
		{"a newer one followed", lease.Record{Holder: "p", Epoch: 4}, 3, true},
		{"there is no lease", lease.Record{}, 3, true},
	} {
		f := fleet.New()
		f.Leases["n1"] = c.rec
		if got := f.Over("n1", c.epoch); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestNothingIsBalancedDuringADrainAndShortlyAfter(t *testing.T) {
	quiet, drains := one(), one(func(f *fleet.Fleet, _ *v1alpha1.Node) { f.Slot = &v1alpha1.ActiveDrain{Node: "n1"} })
	var s fleet.Settling
	if !s.Settled(quiet, noon) || s.Settled(drains, noon) {
		t.Error("without a drain before it")
	}
	s.Saw(drains, noon)
	s.Saw(quiet, noon.Add(time.Second))
	for after, want := range map[time.Duration]bool{time.Second: false, 30 * time.Second: false, 31 * time.Second: true} {
		if got := s.Settled(quiet, noon.Add(after)); got != want {
			t.Errorf("%s after a drain: settled %t", after, got)
		}
	}
	if began := fleet.Began(noon); began.Settled(quiet, noon.Add(time.Second)) || !began.Settled(quiet, noon.Add(time.Minute)) {
		t.Error("whoever began waits as after a drain")
	}
}

func TestHowLongAfterADrainAnythingIsBalanced(t *testing.T) {
	for _, c := range []struct {
		name string
		set  *metav1.Duration
		want time.Duration
	}{
		{"not set", nil, 30 * time.Second},
		{"set", &metav1.Duration{Duration: 2 * time.Minute}, 2 * time.Minute},
		{"nothing, which the schema refuses", &metav1.Duration{}, 30 * time.Second},
	} {
		var f fleet.Fleet
		f.Settings.Drain.BalanceAfter = c.set
		if got := f.BalanceAfter(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestARenewalChangesNoHands(t *testing.T) {
	held := func(name, holder, version string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	node := lease.NameOf("n1")
	for _, c := range []struct {
		name          string
		before, after *coordinationv1.Lease
		want          bool
	}{
		{"a renewal", held(node, "p", "1"), held(node, "p", "2"), false},
		{"a release", held(node, "p", "1"), held(node, "", "2"), true},
		{"the election's", held(lease.CoordinatorName, "p", "1"), held(lease.CoordinatorName, "q", "2"), false},
	} {
		if got := fleet.ChangesHands(event.UpdateEvent{ObjectOld: c.before, ObjectNew: c.after}); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}
