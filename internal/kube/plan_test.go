package kube

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// newWorld has three nodes, live on core Nodes that are projected; n1 leads.
func newWorld() *World {
	w := &World{Leader: "n1", Fleet: fleet.New(), Core: map[string]*corev1.Node{}}
	for _, name := range []string{"n1", "n2", "n3"} {
		w.Core[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("core-" + name)}}
		w.Nodes[name] = &v1alpha1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ebb-" + name), Annotations: map[string]string{CoreUIDAnnotation: "core-" + name}},
			Status: v1alpha1.NodeStatus{
				Epoch: 1, Liveness: v1alpha1.Alive, Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}},
			},
		}
		w.Leases[name] = lease.Record{Node: name, Holder: "h", Epoch: 1}
	}
	return w
}

func (w *World) cordons(name string, owners ...string) {
	w.Core[name].Spec.Unschedulable = true
	v1alpha1.SetCordonOwners(w.Core[name], owners)
}

func (w *World) left(name string) { w.Leases[name] = lease.Record{Node: name, Epoch: 1} }

func (w *World) drain(name, node string, phase v1alpha1.DrainPhase, reason string) *v1alpha1.Drain {
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Spec: v1alpha1.DrainSpec{NodeName: node}}
	d.Status.Phase = phase
	if reason != "" {
		meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: reason})
	}
	w.Drains = append(w.Drains, d)
	return d
}

// play takes actions until there is none, and returns their names.
func (w *World) play(t *testing.T) []string {
	t.Helper()
	var names []string
	for range 20 {
		before := w.copied()
		a := Next(*w)
		if diff := cmp.Diff(before, *w); diff != "" {
			t.Fatalf("Next changed the world:\n%s", diff)
		}
		if a == nil {
			return names
		}
		names = append(names, a.Name+" "+a.Node)
		switch o := a.Object.(type) {
		case nil:
			return names // it resigned
		case *v1alpha1.Drain:
			w.Drains = append(w.Drains, o)
		case *v1alpha1.Node:
			if a.Verb == Delete {
				delete(w.Nodes, o.Name)
			} else {
				w.Nodes[o.Name] = o
			}
		}
	}
	t.Fatalf("it never ends: %q", names)
	return nil
}

func (w *World) copied() World {
	next := *w
	next.Nodes, next.Core, next.Drains = map[string]*v1alpha1.Node{}, map[string]*corev1.Node{}, nil
	for name, n := range w.Nodes {
		next.Nodes[name] = n.DeepCopy()
	}
	for name, n := range w.Core {
		next.Core[name] = n.DeepCopy()
	}
	for _, d := range w.Drains {
		next.Drains = append(next.Drains, d.DeepCopy())
	}
	return next
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*World)
		want  []string
	}{
		{"nothing is done when nothing has changed", func(*World) {}, nil},
		{"a new node is projected", func(w *World) { w.Nodes["n2"].Annotations = nil }, []string{"project-cordon n2"}},
		{"a node without a core Node is left alone", func(w *World) {
			delete(w.Core, "n2")
			w.Nodes["n2"].Annotations = nil
			w.Nodes["n2"].Spec.Cordoned = true
		}, nil},
		{"a cordon that Ebb did not make begins a drain", func(w *World) { w.cordons("n2") }, []string{"project-cordon n2", "create-drain n2", "note-drain n2"}},
		{"a cordon of Ebb's own does not", func(w *World) { w.cordons("n2", "uid") }, []string{"project-cordon n2"}},
		{"with Hold it does not", func(w *World) {
			w.cordons("n2")
			w.Settings.OnCordon = v1alpha1.HoldOnCordon
		}, []string{"project-cordon n2"}},
		{"the taint of Cluster Autoscaler is a cordon", func(w *World) {
			w.Core["n2"].Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, []string{"project-cordon n2", "create-drain n2", "note-drain n2"}},
		{"the taint of Karpenter is a cordon", func(w *World) {
			w.Core["n2"].Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule}}
		}, []string{"project-cordon n2", "create-drain n2", "note-drain n2"}},
		{"other taints are not", func(w *World) {
			w.Core["n2"].Spec.Taints = []corev1.Taint{{Key: "DeletionCandidateOfClusterAutoscaler", Effect: corev1.TaintEffectPreferNoSchedule}, {Key: "node.kubernetes.io/unreachable"}}
		}, nil},
		{"two nodes at once are both drained", func(w *World) { w.cordons("n2"); w.cordons("n3") },
			[]string{"project-cordon n2", "project-cordon n3", "create-drain n2", "note-drain n2", "create-drain n3", "note-drain n3"}},
		{"a drain that runs is the one", func(w *World) { w.cordons("n2"); w.drain("d", "n2", v1alpha1.DrainDraining, "") }, []string{"project-cordon n2", "note-drain n2"}},
		{"a coordinator that crashed after it created the drain finds it", func(w *World) { w.cordons("n2"); w.drain("cordon-n2-1", "n2", "", "") }, []string{"project-cordon n2", "note-drain n2"}},
		{"a parked node is not drained", func(w *World) { w.cordons("n2"); w.left("n2") }, []string{"project-cordon n2"}},
		{"a lone node is not drained", func(w *World) { w.cordons("n2"); w.left("n1"); w.left("n3") }, []string{"project-cordon n2"}},
		{"the coordinator resigns first", func(w *World) { w.cordons("n1") }, []string{"project-cordon n1", "resign n1"}},
		{"the coordinator drains others before it resigns", func(w *World) { w.cordons("n1"); w.cordons("n2") },
			[]string{"project-cordon n1", "project-cordon n2", "create-drain n2", "note-drain n2"}},
		{"nobody could take over", func(w *World) {
			w.cordons("n1")
			w.cordons("n2")
			w.cordons("n3")
			w.drain("d", "n2", v1alpha1.DrainDraining, "")
		},
			[]string{"project-cordon n1", "project-cordon n2", "project-cordon n3", "note-drain n2", "create-drain n3", "note-drain n3"}},
		{"an uncordon is projected, with the drain forgotten", func(w *World) {
			w.Nodes["n2"].Spec.Cordoned = true
			w.Nodes["n2"].Annotations[CordonDrainAnnotation] = "cordon-n2-1"
		}, []string{"project-cordon n2"}},
		{"owners are projected", func(w *World) {
			w.cordons("n2", "uid")
			w.Nodes["n2"].Spec.Cordoned = true
		}, []string{"project-cordon n2"}},
		{"a deleted core Node takes a node that left with it", func(w *World) { delete(w.Core, "n2"); w.left("n2") }, []string{"delete-node n2"}},
		{"a deleted core Node waits for the lease", func(w *World) { delete(w.Core, "n2") }, nil},
		{"a deleted core Node waits for the slot", func(w *World) {
			delete(w.Core, "n2")
			w.left("n2")
			w.Slot = &v1alpha1.ActiveDrain{Node: "n2"}
		}, nil},
		{"a node that does not carry the UID stays", func(w *World) {
			delete(w.Core, "n2")
			w.left("n2")
			w.Nodes["n2"].Annotations = nil
		}, nil},
		{"a core Node that was replaced takes a node that left with it", func(w *World) { w.Core["n2"].UID = "new"; w.left("n2") }, []string{"delete-node n2"}},
		{"a core Node that was replaced keeps a live node", func(w *World) { w.Core["n2"].UID = "new" }, []string{"project-cordon n2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			c.setup(w)
			if got := w.play(t); !slices.Equal(got, c.want) {
				t.Errorf("actions are %q, want %q", got, c.want)
			}
			for name, core := range w.Core {
				if n := w.Nodes[name]; n != nil && (n.Spec.Cordoned != cordon.Is(core) || !slices.Equal(v1alpha1.CordonOwners(n), v1alpha1.CordonOwners(core)) || n.Annotations[CoreUIDAnnotation] != string(core.UID)) {
					t.Errorf("node %s is %+v, and its core Node %+v", name, n, core)
				}
			}
		})
	}
}

func TestANodeWhoseActionFailsDoesNotKeepOthersWaiting(t *testing.T) {
	w := newWorld()
	w.Nodes["n1"].Annotations, w.Failed = nil, map[string]bool{"n1": true}
	w.cordons("n2")
	want := []string{"project-cordon n2", "create-drain n2", "note-drain n2"}
	if got := w.play(t); !slices.Equal(got, want) {
		t.Errorf("actions are %q, want %q", got, want)
	}
	y := newYard()
	y.condition(v1alpha1.NodeNeedsGuard, true)
	y.Failed = map[string]bool{"n1": true}
	if a := NextGuard(y.GuardWorld); a != nil {
		t.Errorf("action %s of %s", a.Name, a.Node)
	}
}

func TestADrainIsBegunAgainOnlyIfNobodyEndedIt(t *testing.T) {
	for _, c := range []struct {
		phase  v1alpha1.DrainPhase
		reason string
		again  bool
	}{
		{v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested, false},
		{v1alpha1.DrainCancelled, v1alpha1.ReasonWithdrawn, false},
		{v1alpha1.DrainCancelled, v1alpha1.ReasonLoneSurvivor, true},
		{v1alpha1.DrainFailed, v1alpha1.ReasonSingleNode, true},
		{v1alpha1.DrainFailed, v1alpha1.ReasonTargetIsCoordinator, true},
		{v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, false},
		{v1alpha1.DrainComplete, v1alpha1.ReasonDrained, false},
	} {
		w := newWorld()
		w.cordons("n2")
		w.drain("cordon-n2-1", "n2", c.phase, c.reason)
		w.Nodes["n2"].Spec.Cordoned = true
		w.Nodes["n2"].Annotations[CordonDrainAnnotation] = "cordon-n2-1"
		got := w.play(t)
		if again := slices.Contains(got, "create-drain n2"); again != c.again {
			t.Errorf("after %s, %s: %q", c.phase, c.reason, got)
		}
		if c.again && w.Drains[1].Name != "cordon-n2-2" {
			t.Errorf("the next one is named %s", w.Drains[1].Name)
		}
	}
}

func TestTheDrainOfACordonedNode(t *testing.T) {
	w := newWorld()
	long := strings.Repeat("a", 253)
	want := v1alpha1.DrainSpec{NodeName: long, WhenBusy: v1alpha1.Queue, Park: true, Pods: new(false), Reason: "the node was cordoned by a person or a program other than Ebb"}
	d := w.newDrain(long)
	if diff := cmp.Diff(want, d.Spec); diff != "" {
		t.Error(diff)
	}
	if len(d.Name) > 253 || d.Labels[v1alpha1.OnCordonLabel] != "true" {
		t.Errorf("%s with labels %v", d.Name, d.Labels)
	}
}
