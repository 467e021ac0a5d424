package kube

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// yard is one node on a core Node, live and without work.
type yard struct{ GuardWorld }

func newYard() *yard {
	y := &yard{GuardWorld{
		Fleet: fleet.New(), Core: map[string]*corev1.Node{}, Pods: map[string]*corev1.Pod{}, Budgets: map[string]*policyv1.PodDisruptionBudget{},
		Placed: map[string]bool{}, Image: "ebb:1", Namespace: "ebb-system",
	}}
	y.Nodes["n1"] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "ebb-n1"}}
	y.Core["n1"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "core-n1"}}
	y.Leases["n1"] = lease.Record{Node: "n1", Holder: "h", Epoch: 1}
	y.condition(v1alpha1.NodeNeedsGuard, false)
	return y
}

func (y *yard) condition(name string, on bool) {
	status := metav1.ConditionFalse
	if on {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&y.Nodes["n1"].Status.Conditions, metav1.Condition{Type: name, Status: status, Reason: "Test"})
}

// works: the pod runs, and its budget is observed.
func (y *yard) works() {
	if p := y.Pods["n1"]; p != nil && p.Status.Phase == "" {
		p.Status.Phase = corev1.PodRunning
	}
	if b := y.Budgets["n1"]; b != nil {
		b.Generation, b.Status.ObservedGeneration, b.Status.CurrentHealthy = 1, 1, 1
	}
}

// guard lets a guard stand on the node.
func (y *yard) guard() {
	y.condition(v1alpha1.NodeNeedsGuard, true)
	y.Pods["n1"], y.Budgets["n1"] = y.newGuard(y.Nodes["n1"]), y.newBudget(y.Nodes["n1"])
	y.works()
	y.condition(v1alpha1.NodeGuarded, true)
}

func (y *yard) cordon() { y.Core["n1"].Spec.Unschedulable = true }

// leaves: the node was drained and holds no lease, and its work was counted.
func (y *yard) leaves(placed bool) {
	y.Leases["n1"] = lease.Record{Node: "n1", Epoch: 1}
	y.Placed["n1"] = placed
}

// play takes actions until there is none. Between them nothing happens unless between does it.
func (y *yard) play(t *testing.T, between func()) []string {
	t.Helper()
	var names []string
	for range 20 {
		a := NextGuard(y.GuardWorld)
		if a == nil {
			return names
		}
		names = append(names, a.Name)
		switch o := a.Object.(type) {
		case *v1alpha1.Node:
			y.Nodes[o.Name] = o
		case *corev1.Pod:
			delete(y.Pods, "n1")
			if a.Verb == Create {
				y.Pods["n1"] = o
			}
		case *policyv1.PodDisruptionBudget:
			delete(y.Budgets, "n1")
			if a.Verb == Create {
				y.Budgets["n1"] = o
			}
		}
		if between != nil {
			between()
		}
	}
	t.Fatalf("it never ends: %q", names)
	return nil
}

func TestGuards(t *testing.T) {
	for _, c := range []struct {
		name    string
		setup   func(*yard)
		between func(*yard)
		want    []string
		guarded bool
	}{
		{name: "a node without work has no guard", setup: func(*yard) {}},
		{name: "a node that needs one gets it, and is not guarded before it runs", setup: func(y *yard) { y.condition(v1alpha1.NodeNeedsGuard, true) }, want: []string{CreateGuard, CreateBudget}},
		{name: "a node is guarded when its guard runs and the budget is observed", setup: func(y *yard) { y.condition(v1alpha1.NodeNeedsGuard, true) }, between: (*yard).works,
			want: []string{CreateGuard, CreateBudget, MarkGuarded}, guarded: true},
		{name: "a guard that stands is left alone", setup: (*yard).guard, guarded: true},
		{name: "a budget that is not observed guards nothing", setup: func(y *yard) { y.guard(); y.Budgets["n1"].Generation = 2 }, want: []string{MarkGuarded}},
		{name: "a budget without a healthy pod guards nothing", setup: func(y *yard) { y.guard(); y.Budgets["n1"].Status.CurrentHealthy = 0 }, want: []string{MarkGuarded}},
		{name: "a budget that allows a disruption guards nothing", setup: func(y *yard) { y.guard(); y.Budgets["n1"].Status.DisruptionsAllowed = 1 }, want: []string{MarkGuarded}},
		{name: "a pod on another node guards nothing", setup: func(y *yard) { y.guard(); y.Pods["n1"].Spec.NodeName = "n2" }, want: []string{MarkGuarded}},
		{name: "a guard that failed is made again", setup: func(y *yard) { y.guard(); y.Pods["n1"].Status.Phase = corev1.PodFailed },
			between: (*yard).works, want: []string{MarkGuarded, DeleteGuard, CreateGuard, MarkGuarded}, guarded: true},
		{name: "a guard that was removed is made again", setup: func(y *yard) { y.guard(); delete(y.Pods, "n1") }, between: (*yard).works, want: []string{MarkGuarded, CreateGuard, MarkGuarded}, guarded: true},
		{name: "a budget that was removed is made again", setup: func(y *yard) { y.guard(); delete(y.Budgets, "n1") }, between: (*yard).works, want: []string{MarkGuarded, CreateBudget, MarkGuarded}, guarded: true},
		{name: "a dead node gets none", setup: func(y *yard) { y.condition(v1alpha1.NodeNeedsGuard, true); y.leaves(false) }},
		{name: "a cordoned node keeps its guard while it is live", setup: func(y *yard) { y.guard(); y.cordon(); y.Placed["n1"] = false }, guarded: true},
		{name: "a cordoned node keeps its guard while work is placed on it", setup: func(y *yard) { y.guard(); y.cordon(); y.leaves(true) }, guarded: true},
		{name: "a cordoned node keeps its guard while nobody has counted", setup: func(y *yard) { y.guard(); y.cordon(); y.leaves(false); clear(y.Placed) }, guarded: true},
		{name: "a drained node opens its guard", setup: func(y *yard) { y.guard(); y.cordon(); y.leaves(false) }, want: []string{MarkGuarded, OpenGuard}},
		{name: "a cordoned node gets no guard", setup: func(y *yard) { y.condition(v1alpha1.NodeNeedsGuard, true); y.cordon() }},
		{name: "a guard that was removed from a cordoned node is not made again", setup: func(y *yard) { y.guard(); y.cordon(); delete(y.Pods, "n1") }, want: []string{MarkGuarded}},
		{name: "a node that is uncordoned before its guard opened keeps it", setup: func(y *yard) { y.guard(); y.leaves(false) }, guarded: true},
		{name: "a node that comes back after its guard opened gets it again", setup: func(y *yard) { y.guard(); delete(y.Budgets, "n1"); y.condition(v1alpha1.NodeGuarded, false) },
			between: (*yard).works, want: []string{CreateBudget, MarkGuarded}, guarded: true},
		{name: "a node without a core Node needs no guard", setup: func(y *yard) { delete(y.Core, "n1"); y.condition(v1alpha1.NodeNeedsGuard, true) }, want: []string{MarkGuarded}, guarded: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			y := newYard()
			c.setup(y)
			between := func() {}
			if c.between != nil {
				between = func() { c.between(y) }
			}
			if got := y.play(t, between); !slices.Equal(got, c.want) {
				t.Errorf("actions are %q, want %q", got, c.want)
			}
			if got := guarded(y.Nodes["n1"]); got != c.guarded {
				t.Errorf("guarded: %t, want %t", got, c.guarded)
			}
		})
	}
}

// What kubectl drain looks at: no local data, a controller that is not a DaemonSet, and a budget in whole pods.
func TestAGuardCanBeEvictedWithoutForce(t *testing.T) {
	y := newYard()
	pod, budget := y.newGuard(y.Nodes["n1"]), y.newBudget(y.Nodes["n1"])
	want := metav1.OwnerReference{APIVersion: "ebb.dev/v1alpha1", Kind: "Node", Name: "n1", UID: types.UID("ebb-n1"), Controller: new(true)}
	if diff := cmp.Diff(&want, metav1.GetControllerOf(pod)); diff != "" {
		t.Error(diff)
	}
	if len(pod.Spec.Volumes) > 0 || pod.Spec.NodeName != "n1" {
		t.Errorf("pod: %+v", pod.Spec)
	}
	if budget.Spec.MinAvailable.String() != "1" || !cmp.Equal(budget.Spec.Selector.MatchLabels, map[string]string{GuardLabel: "n1"}) || pod.Labels[GuardLabel] != "n1" {
		t.Errorf("budget: %+v", budget.Spec)
	}
}

func TestWhatHoldsANodeIsSaid(t *testing.T) {
	works := drain.Works{{Name: "volumes", One: "volume", Many: "volumes"}}
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.NodeStatus{Held: map[string]int64{"volumes": 2}}}
	began := metav1.NewTime(time.Unix(0, 0))
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "cordon-n1-1"}, Spec: v1alpha1.DrainSpec{NodeName: "n1"}}
	queued := d.DeepCopy()
	queued.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DrainFinished, Reason: v1alpha1.ReasonQueued, Message: "Waiting for drain d of node n2."}}
	d.Status = v1alpha1.DrainStatus{
		Phase: v1alpha1.DrainDraining, StartedAt: &began, Remaining: map[string]int64{"volumes": 2},
		Blockers: []v1alpha1.Blocker{{Kind: "Volume", Name: "default/v", Reason: "LastReplica", Remedy: "add a node"}},
	}
	hold := func(w *GuardWorld) { w.Settings.OnCordon = v1alpha1.HoldOnCordon }
	for _, c := range []struct {
		setup  func(*GuardWorld)
		drains []*v1alpha1.Drain
		want   string
	}{
		{nil, nil, ""},
		{hold, nil, "Ebb holds node n1: it holds 2 volumes, and no drain of it is running. `ebb drain n1` moves the work away."},
		{func(w *GuardWorld) { delete(w.Leases, "n2") }, nil, "Ebb holds node n1: it holds 2 volumes, and no other node can take that. Start another node."},
		{nil, []*v1alpha1.Drain{{Spec: v1alpha1.DrainSpec{NodeName: "n1"}}}, ""},
		{nil, []*v1alpha1.Drain{queued}, "Ebb holds node n1: drain cordon-n1-1 is Pending. Waiting for drain d of node n2."},
		{nil, []*v1alpha1.Drain{d}, "Ebb holds node n1: drain cordon-n1-1 is Draining, 2 volumes left. Volume default/v: LastReplica: add a node."},
	} {
		y := newYard()
		y.Nodes["n2"], y.Leases["n2"] = &v1alpha1.Node{}, lease.Record{Node: "n2", Holder: "h", Epoch: 1}
		if c.setup != nil {
			c.setup(&y.GuardWorld)
		}
		if got := y.why(n, c.drains, works); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}
