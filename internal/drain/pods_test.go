package drain_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// podWorld has a core Node w1 that Ebb does not know, and a drain of it.
func podWorld(change ...func(*drain.World, *v1alpha1.Drain, *corev1.Node)) drain.World {
	w := drain.World{Now: start, Leader: "n1", Fleet: fleet.New(), Settings: &v1alpha1.Settings{}, Pods: true}
	core := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1", UID: "core-w1"}}
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "uid-d"}, Spec: v1alpha1.DrainSpec{NodeName: "w1"}}
	w.Core, w.Drains = map[string]*corev1.Node{"w1": core}, []*v1alpha1.Drain{d}
	for _, f := range change {
		f(&w, d, core)
	}
	return w
}

func phase(p v1alpha1.DrainPhase) func(*drain.World, *v1alpha1.Drain, *corev1.Node) {
	return func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) {
		at := metav1.NewTime(start)
		d.Status.Phase, d.Status.Scope, d.Status.StartedAt = p, v1alpha1.ScopePods, &at
	}
}

func owned(_ *drain.World, _ *v1alpha1.Drain, core *corev1.Node) { cordon.Add(core, "uid-d") }

func TestDrainsOfPodsAloneAreDecidedElsewhere(t *testing.T) {
	type change = func(*drain.World, *v1alpha1.Drain, *corev1.Node)
	lives := func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) {
		w.Nodes["w1"] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
		for _, name := range []string{"n1", "w1"} {
			w.Leases[name] = lease.Record{Node: name, Holder: "p", Epoch: 1}
		}
	}
	sick := func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) {
		d.Spec.WhenBusy, d.Annotations = v1alpha1.Queue, map[string]string{v1alpha1.HealthEventAnnotation: "uid-e"}
	}
	nobody := func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { w.Pods = false } // a custom drain was set up
	cancelled := func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) { d.Spec.Cancelled = true }
	removed := func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) {
		at := metav1.NewTime(start)
		d.DeletionTimestamp, d.Finalizers = &at, []string{v1alpha1.DrainFinalizer}
	}
	uncordoned := func(_ *drain.World, _ *v1alpha1.Drain, core *corev1.Node) { core.Spec.Unschedulable = false }
	queued := func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) { d.Status.Phase = v1alpha1.DrainPending }
	for name, tc := range map[string]struct {
		changes []change
		want    string
	}{
		"a node without a lease":                              {nil, ""},
		"without the pods":                                    {[]change{func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) { d.Spec.Pods = new(false) }}, drain.StepRefuse},
		"where nobody moves pods":                             {[]change{func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { w.Pods = false }}, drain.StepRefuse},
		"a node that is not there":                            {[]change{func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { delete(w.Core, "w1") }}, drain.StepRefuse},
		"a node with a lease":                                 {[]change{lives}, drain.StepHold},
		"a sick node that is the only one":                    {[]change{lives, sick, func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { delete(w.Leases, "n1") }}, drain.StepQueue},
		"a sick node that coordinates":                        {[]change{lives, sick, func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { w.Leader = "w1" }}, drain.StepQueue},
		"a node that a person drains and that coordinates":    {[]change{lives, func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { w.Leader = "w1" }}, drain.StepRefuse},
		"one that runs":                                       {[]change{phase(v1alpha1.DrainDraining)}, ""},
		"one that runs on a live node":                        {[]change{phase(v1alpha1.DrainDraining), lives}, ""},
		"one that waited for the slot when its node was lost": {[]change{func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) { d.Status.Phase = v1alpha1.DrainPending }}, ""},
		"one that got the slot": {[]change{phase(v1alpha1.DrainDraining), func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) {
			w.Settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "d", UID: "uid-d", Node: "w1", NodeEpoch: 1}
		}}, drain.StepReleaseSlot},
		"a complete one keeps its cordon": {[]change{phase(v1alpha1.DrainComplete), owned}, ""},
		"a failed one keeps its cordon":   {[]change{phase(v1alpha1.DrainFailed), owned}, ""},
		"a cancelled one lifts it":        {[]change{phase(v1alpha1.DrainCancelled), owned}, drain.StepLiftCordon},
		"an uncordoned node has no owners": {[]change{phase(v1alpha1.DrainComplete), owned, func(_ *drain.World, _ *v1alpha1.Drain, core *corev1.Node) {
			core.Spec.Unschedulable = false
		}}, drain.StepClearOwners},
		"one that has not listed its pods, and whose node was uncordoned":   {[]change{owned, uncordoned}, ""},
		"a queued one that has not listed its pods, and whose node was too": {[]change{lives, queued, owned, uncordoned}, drain.StepWithdraw},
		"one that nobody goes on with":                                      {[]change{phase(v1alpha1.DrainDraining), nobody, owned}, drain.StepFail},
		"one that nobody goes on with, cancelled":                           {[]change{phase(v1alpha1.DrainDraining), nobody, cancelled}, drain.StepWithdraw},
		"one that nobody goes on with, deleted":                             {[]change{phase(v1alpha1.DrainDraining), nobody, removed}, drain.StepWithdraw},
		"one that nobody goes on with, uncordoned":                          {[]change{phase(v1alpha1.DrainDraining), nobody, owned, uncordoned}, drain.StepWithdraw},
		"one that nobody goes on with, on a live node":                      {[]change{phase(v1alpha1.DrainDraining), nobody, owned, lives}, drain.StepFail},
		"a queued one whose node was uncordoned after its pods began to leave": {[]change{lives, func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) {
			d.Status.Phase, d.Status.Pods = v1alpha1.DrainPending, &v1alpha1.PodsStatus{StartedAt: &metav1.MicroTime{Time: start}, Evicted: 2}
		}}, drain.StepWithdraw},
	} {
		t.Run(name, func(t *testing.T) {
			step, got := drain.Next(podWorld(tc.changes...)), ""
			if step != nil {
				got = step.Name
			}
			if got != tc.want {
				t.Fatalf("the next step is %q, want %q", got, tc.want)
			}
			if got == drain.StepLiftCordon && cordon.Is(step.Object) {
				t.Error("the node stays cordoned")
			}
		})
	}
}

// The drain with the slot is Stopping and waits for its node, and another one of the node is queued. Both own the cordon that somebody lifted.
func TestAQueuedDrainIsWithdrawnBesideOneThatIsStopping(t *testing.T) {
	at := metav1.NewTime(start)
	w := podWorld(owned)
	w.Core["w1"].Spec.Unschedulable = false
	v1alpha1.AddCordonOwner(w.Core["w1"], "uid-holder")
	w.Drains[0].Status.Phase, w.Drains[0].Spec.WhenBusy = v1alpha1.DrainPending, v1alpha1.Queue
	holder := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "holder", UID: "uid-holder"}, Spec: v1alpha1.DrainSpec{NodeName: "w1"}}
	holder.Status = v1alpha1.DrainStatus{Phase: v1alpha1.DrainStopping, StartedAt: &at, LastProgress: &at, NodeEpoch: 1}
	w.Drains = append([]*v1alpha1.Drain{holder}, w.Drains...)
	w.Settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "holder", UID: "uid-holder", Node: "w1", NodeEpoch: 1}
	w.Leases["w1"] = lease.Record{Node: "w1", Holder: "p", Epoch: 1}
	desired := &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Stopping, Epoch: 1, DrainUID: "uid-holder", Park: true}
	w.Nodes["w1"] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: v1alpha1.NodeSpec{Desired: desired}, Status: v1alpha1.NodeStatus{Epoch: 1, Liveness: v1alpha1.Stopping}}
	var names []string
	for range 3 {
		step := drain.Next(w)
		if step == nil {
			break
		}
		names = append(names, step.Name)
		if d, ok := step.Object.(*v1alpha1.Drain); ok {
			w.Drains[slices.IndexFunc(w.Drains, func(o *v1alpha1.Drain) bool { return o.UID == d.UID })] = d
		}
		if n, ok := step.Object.(*corev1.Node); ok {
			w.Core["w1"] = n
		}
	}
	if want := []string{drain.StepProgress, drain.StepWithdraw, drain.StepClearOwners}; !slices.Equal(names, want) {
		t.Errorf("the steps are %q, want %q", names, want)
	}
}

func TestACancelledDrainSaysHowManyPodsItEvicted(t *testing.T) {
	s := newScene(t)
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: types.UID("uid-d")}, Spec: v1alpha1.DrainSpec{NodeName: "n2", Cancelled: true}}
	d.Status.Phase, d.Status.Pods = v1alpha1.DrainPending, &v1alpha1.PodsStatus{Evicted: 2, Deleted: 1}
	w := drain.World{Now: s.now, Leader: "n1", Fleet: fleet.New(), Settings: &v1alpha1.Settings{}, Drains: []*v1alpha1.Drain{d}}
	ended := drain.Next(w).Object.(*v1alpha1.Drain)
	if got, want := ended.Status.Conditions[0].Message, "The drain was cancelled before it began. Evicted before: 3 pods, listed in status.pods.evictedPods."; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
