package drain_test

import (
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
	for name, tc := range map[string]struct {
		changes []change
		want    string
	}{
		"a node without a lease":                              {nil, ""},
		"without the pods":                                    {[]change{func(_ *drain.World, d *v1alpha1.Drain, _ *corev1.Node) { d.Spec.Pods = new(false) }}, drain.StepRefuse},
		"where nobody moves pods":                             {[]change{func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { w.Pods = false }}, drain.StepRefuse},
		"a node that is not there":                            {[]change{func(w *drain.World, _ *v1alpha1.Drain, _ *corev1.Node) { delete(w.Core, "w1") }}, drain.StepRefuse},
		"a node with a lease":                                 {[]change{lives}, drain.StepHold},
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
