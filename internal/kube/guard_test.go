package kube

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// yard is one node on a core Node, live and without work.
type yard struct{ GuardWorld }

func newYard() *yard {
	y := &yard{GuardWorld{
		World: World{Leader: "n2", Fleet: fleet.New(), Core: map[string]*corev1.Node{}}, Pods: map[string]*corev1.Pod{}, Sensors: map[string]*corev1.Pod{},
		Budgets: map[string]*policyv1.PodDisruptionBudget{}, Placed: map[string]Placement{}, Paused: map[string]string{}, Image: "ebb:1", Namespace: "ebb-system",
	}}
	y.Nodes["n1"] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "ebb-n1"}, Status: v1alpha1.NodeStatus{Epoch: 1}}
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

func (y *yard) cordon(owners ...string) {
	y.Core["n1"].Spec.Unschedulable, y.Nodes["n1"].Spec.Cordoned = true, true
	v1alpha1.SetCordonOwners(y.Core["n1"], owners)
}

// empties: the node has given its guard up, and no object places work on it.
func (y *yard) empties() {
	y.condition(v1alpha1.NodeNeedsGuard, false)
	y.Placed["n1"] = Placement{}
}

// another adds a node that could take the work, and the lead.
func (y *yard) another() {
	y.Nodes["n2"] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", UID: "ebb-n2"}, Status: v1alpha1.NodeStatus{
		Epoch: 1, Liveness: v1alpha1.Alive, Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}},
	}}
	y.Leases["n2"] = lease.Record{Node: "n2", Holder: "h", Epoch: 1}
}

// evicts marks a sensor as being deleted, as an eviction does.
func (y *yard) evicts() {
	y.deletes()
	y.Sensors["n1"].Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: evictionReason}}
}

// deletes marks a sensor as being deleted, by somebody who did not evict it.
func (y *yard) deletes() { y.Sensors["n1"].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

// leaves: the node was drained and holds no lease, and its work was counted.
func (y *yard) leaves(placed bool) {
	y.Leases["n1"] = lease.Record{Node: "n1", Epoch: 1}
	y.Placed["n1"] = Placement{Counts: map[string]int64{"volumes": map[bool]int64{true: 1}[placed]}}
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
		case *corev1.Node:
			y.Core[o.Name] = o
			v1alpha1.SetCordonOwners(y.Nodes[o.Name], v1alpha1.CordonOwners(o))
		case *corev1.Pod:
			pods := y.Pods
			if o.Labels[SensorLabel] != "" {
				pods = y.Sensors
			}
			delete(pods, "n1")
			if a.Verb == Create {
				pods["n1"] = o
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
		{name: "a cordoned node keeps its guard while it is live", setup: func(y *yard) { y.guard(); y.cordon(); y.Placed["n1"] = Placement{} }, guarded: true},
		{name: "a cordoned node keeps its guard while work is placed on it", setup: func(y *yard) { y.guard(); y.cordon(); y.leaves(true) }, guarded: true},
		{name: "a cordoned node keeps its guard while nobody has counted", setup: func(y *yard) { y.guard(); y.cordon(); y.leaves(false); clear(y.Placed) }, guarded: true},
		{name: "a drained node opens its guard", setup: func(y *yard) { y.guard(); y.cordon(); y.leaves(false) }, want: []string{MarkGuarded, OpenGuard}},
		{name: "a cordoned node gets no guard", setup: func(y *yard) { y.condition(v1alpha1.NodeNeedsGuard, true); y.cordon() }},
		{name: "a guard that was removed from a cordoned node is not made again", setup: func(y *yard) { y.guard(); y.cordon(); delete(y.Pods, "n1") }, want: []string{MarkGuarded}},
		{name: "a node that is uncordoned before its guard opened keeps it", setup: func(y *yard) { y.guard(); y.leaves(false) }, guarded: true},
		{name: "a node that comes back after its guard opened gets it again", setup: func(y *yard) { y.guard(); delete(y.Budgets, "n1"); y.condition(v1alpha1.NodeGuarded, false) },
			between: (*yard).works, want: []string{CreateBudget, MarkGuarded}, guarded: true},
		{name: "a node that gave its guard up loses it", setup: func(y *yard) { y.guard(); y.empties() }, want: []string{MarkGuarded, OpenGuard, DeleteGuard}},
		{name: "a node that gave its guard up and asks again gets it back", setup: func(y *yard) { y.guard(); y.empties() }, between: func(y *yard) {
			if y.Pods["n1"] == nil {
				y.condition(v1alpha1.NodeNeedsGuard, true)
			}
			y.works()
		}, want: []string{MarkGuarded, OpenGuard, DeleteGuard, CreateGuard, CreateBudget, MarkGuarded}, guarded: true},
		{name: "what an earlier epoch said takes no guard away", setup: func(y *yard) {
			y.guard()
			y.empties()
			y.Leases["n1"] = lease.Record{Node: "n1", Holder: "h", Epoch: 2}
		}, want: []string{MarkGuarded}},
		{name: "the last node opens its guard when it holds nothing", setup: func(y *yard) { y.guard(); y.cordon(); y.empties() }, want: []string{MarkGuarded, OpenGuard}},
		{name: "the last node keeps its guard while objects place work on it", setup: func(y *yard) {
			y.guard()
			y.cordon()
			y.empties()
			y.Placed["n1"] = Placement{Counts: map[string]int64{"volumes": 1}}
		}, want: []string{MarkGuarded}},
		{name: "with Hold an empty node opens its guard", setup: func(y *yard) {
			y.guard()
			y.cordon()
			y.empties()
			y.another()
			y.Settings.OnCordon = v1alpha1.HoldOnCordon
		}, want: []string{MarkGuarded, OpenGuard}},
		{name: "an empty node whose drain comes waits for it", setup: func(y *yard) { y.guard(); y.cordon(); y.empties(); y.another() }, want: []string{MarkGuarded}},
		{name: "an empty node whose drain runs waits for it", setup: func(y *yard) {
			y.guard()
			y.cordon("uid")
			y.empties()
			y.another()
			y.Drains = []*v1alpha1.Drain{{Spec: v1alpha1.DrainSpec{NodeName: "n1"}, Status: v1alpha1.DrainStatus{Phase: v1alpha1.DrainDraining}}}
		}, want: []string{MarkGuarded}},
		{name: "an empty coordinator that nobody can follow opens its guard", setup: func(y *yard) {
			y.guard()
			y.cordon()
			y.empties()
			y.another()
			y.Leader, y.Nodes["n2"].Spec.Cordoned = "n1", true
		}, want: []string{MarkGuarded, OpenGuard}},
		{name: "a guard that cannot be created waits, and says why", setup: func(y *yard) { y.condition(v1alpha1.NodeNeedsGuard, true); y.Paused["n1"] = "over quota" }, want: []string{MarkGuarded}},
		{name: "a sensor that cannot be created takes no guard away", setup: func(y *yard) {
			y.guard()
			y.cordon("event")
			y.another()
			y.Paused["n1"] = "over quota"
		}, guarded: true},
		{name: "a guard whose image is missing says so", setup: func(y *yard) {
			y.guard()
			y.Pods["n1"].Status.Phase = corev1.PodPending
			y.Pods["n1"].Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image."}}}}
		}, want: []string{MarkGuarded}},
		{name: "a quarantined node gets a sensor", setup: func(y *yard) { y.guard(); y.cordon("event"); y.another() }, want: []string{CreateSensor}, guarded: true},
		{name: "a cordoned node whose drain comes gets no sensor", setup: func(y *yard) { y.guard(); y.cordon(); y.another() }, guarded: true},
		{name: "with Hold there are no sensors", setup: func(y *yard) {
			y.guard()
			y.cordon("event")
			y.another()
			y.Settings.OnCordon = v1alpha1.HoldOnCordon
		}, guarded: true},
		{name: "the last node gets no sensor", setup: func(y *yard) { y.guard(); y.cordon("event") }, guarded: true},
		{name: "a node without a guard gets no sensor", setup: func(y *yard) { y.cordon("event"); y.another() }},
		{name: "the eviction of a sensor takes the cordon from its owners", setup: func(y *yard) {
			y.guard()
			y.cordon("event")
			y.another()
			y.Sensors["n1"] = y.newSensor(y.Nodes["n1"])
			y.evicts()
		}, want: []string{TakeCordon, DeleteSensor}, guarded: true},
		{name: "the eviction of a sensor begins a drain that was cancelled", setup: func(y *yard) {
			y.guard()
			y.cordon()
			y.another()
			y.Nodes["n1"].Annotations = map[string]string{CordonDrainAnnotation: "cordon-n1-1"}
			y.Sensors["n1"] = y.newSensor(y.Nodes["n1"])
			y.evicts()
		}, want: []string{TakeCordon, DeleteSensor}, guarded: true},
		{name: "the deletion of a sensor begins no drain", setup: func(y *yard) {
			y.guard()
			y.cordon("event")
			y.another()
			y.Sensors["n1"] = y.newSensor(y.Nodes["n1"])
			y.deletes()
		}, want: []string{DeleteSensor, CreateSensor}, guarded: true},
		{name: "a sensor goes when the node is uncordoned", setup: func(y *yard) { y.guard(); y.another(); y.Sensors["n1"] = y.newSensor(y.Nodes["n1"]) }, want: []string{DeleteSensor}, guarded: true},
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

// The sensor is evicted by kubectl drain like the guard, but no budget keeps it.
func TestASensorIsNotAGuard(t *testing.T) {
	y := newYard()
	pod, budget := y.newSensor(y.Nodes["n1"]), y.newBudget(y.Nodes["n1"])
	selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	if selector.Matches(labels.Set(pod.Labels)) || pod.Name == y.newGuard(y.Nodes["n1"]).Name || metav1.GetControllerOf(pod) == nil {
		t.Errorf("sensor: %+v", pod.ObjectMeta)
	}
	if errs := validation.IsDNS1123Subdomain(pod.Name); len(errs) > 0 {
		t.Errorf("%s: %v", pod.Name, errs)
	}
}

func TestAGuardPullsItsImageAsItsNodeDoes(t *testing.T) {
	y := newYard()
	y.PullSecrets = map[string][]corev1.LocalObjectReference{"n1": {{Name: "registry"}}}
	if got := y.newGuard(y.Nodes["n1"]).Spec.ImagePullSecrets; len(got) != 1 || got[0].Name != "registry" {
		t.Errorf("pull secrets: %v", got)
	}
}

func TestWhatHoldsANodeIsSaid(t *testing.T) {
	works := drain.Works{{Name: "volumes", One: "volume", Many: "volumes"}}
	began := metav1.NewTime(time.Unix(0, 0))
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "cordon-n1-1", UID: "d"}, Spec: v1alpha1.DrainSpec{NodeName: "n1"}}
	queued := d.DeepCopy()
	queued.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DrainFinished, Reason: v1alpha1.ReasonQueued, Message: "Waiting for drain d of node n2."}}
	last := v1alpha1.Blocker{Kind: "Volume", Name: "default/v", Reason: "LastReplica", Remedy: "add a node"}
	d.Status = v1alpha1.DrainStatus{
		Phase: v1alpha1.DrainDraining, StartedAt: &began, Remaining: map[string]int64{"volumes": 2}, Blockers: []v1alpha1.Blocker{last},
	}
	failed := d.DeepCopy()
	failed.Status.Phase = v1alpha1.DrainFailed
	other := d.DeepCopy()
	other.Name, other.Spec.NodeName = "o", "n3"
	with := func(drains ...*v1alpha1.Drain) func(*yard) { return func(y *yard) { y.Drains = drains } }
	for _, c := range []struct {
		name  string
		setup func(*yard)
		want  string
	}{
		{"a drain comes at once", func(*yard) {}, ""},
		{"Hold", func(y *yard) { y.Settings.OnCordon = v1alpha1.HoldOnCordon }, "Ebb holds node n1: it holds 2 volumes, and no drain of it is running. `ebb drain n1` moves the work away."},
		{"the last node", func(y *yard) { delete(y.Leases, "n2") }, "Ebb holds node n1: it holds 2 volumes, and no other node can take that. Start another node."},
		{"undecided", with(&v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: "n1"}}), ""},
		{"queued", with(queued), "Ebb holds node n1: drain cordon-n1-1 is Pending. Waiting for drain d of node n2."},
		{"draining", with(d), "Ebb holds node n1: drain cordon-n1-1 is Draining, 2 volumes left. Volume default/v: LastReplica: add a node."},
		{"draining, and another waits", with(d, queued), "Ebb holds node n1: drain cordon-n1-1 is Draining, 2 volumes left. Volume default/v: LastReplica: add a node."},
		{"failed", func(y *yard) {
			y.Drains, y.Slot = []*v1alpha1.Drain{failed}, &v1alpha1.ActiveDrain{UID: "d", Node: "n1"}
		}, "Ebb holds node n1: drain cordon-n1-1 is Failed, 2 volumes left. `ebb drain n1` continues it. Volume default/v: LastReplica: add a node."},
		{"cancelled", func(y *yard) { y.Nodes["n1"].Annotations = map[string]string{CordonDrainAnnotation: "cordon-n1-1"} },
			"Ebb holds node n1: it holds 2 volumes, and no drain of it is running. `ebb drain n1` moves the work away."},
		{"quarantined", func(y *yard) { y.cordon("event"); y.Sensors["n1"] = y.newSensor(y.Nodes["n1"]) },
			"Ebb holds node n1: it holds 2 volumes, and no drain of it is running. `ebb drain n1`, or a new `kubectl drain n1`, moves the work away."},
		{"lost", func(y *yard) {
			y.Leases["n1"] = lease.Record{Node: "n1", Epoch: 1, Fenced: 1}
			y.Placed["n1"] = Placement{Counts: map[string]int64{"volumes": 1}, Blockers: []v1alpha1.Blocker{last}}
		}, "Ebb holds node n1: it is lost, and objects place 1 volume on it. Ebb moves that to other nodes. Volume default/v: LastReplica: add a node."},
		{"left", func(y *yard) { y.leaves(true) }, "Ebb holds node n1: it has left, and objects place 1 volume on it. Ebb moves that to other nodes."},
		{"left, with nothing", func(y *yard) { y.leaves(false) }, ""},
		{"empty, with work placed on it", func(y *yard) {
			y.empties()
			y.Settings.OnCordon = v1alpha1.HoldOnCordon
			y.Placed["n1"] = Placement{Counts: map[string]int64{"volumes": 1}}
		}, "Ebb holds node n1: it runs nothing, and objects place 1 volume on it."},
		{"the coordinator, which resigns", func(y *yard) { y.Leader = "n1" }, ""},
		{"the coordinator, which drains others", func(y *yard) { y.Leader, y.Drains = "n1", []*v1alpha1.Drain{other} },
			"Ebb holds node n1: it is the coordinator, which cannot be drained. It resigns when drain o of node n3 has ended."},
		{"the coordinator, which nobody can follow", func(y *yard) { y.Leader, y.Nodes["n2"].Spec.Cordoned = "n1", true },
			"Ebb holds node n1: it is the coordinator, which cannot be drained, and no other node can take over. Uncordon another node, or start one."},
	} {
		t.Run(c.name, func(t *testing.T) {
			y := newYard()
			y.guard()
			y.cordon()
			y.another()
			y.Nodes["n1"].Status.Held = map[string]int64{"volumes": 2}
			c.setup(y)
			if got := y.why(y.Nodes["n1"], works); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestEventsAreRepeatedAndDoNotFlood(t *testing.T) {
	count, first := 0, time.Unix(0, 0)
	var last notice
	at := func(now time.Time, text string) {
		if last.due(text, now) {
			last = last.said(text, now, true)
			count++
		}
	}
	for second := range 3600 {
		at(first.Add(time.Duration(second)*time.Second), strconv.Itoa(second))
	}
	if count < 15 || count > 40 {
		t.Errorf("%d events in an hour in which something changed every second", count)
	}
	count, last = 0, notice{}
	for second := range 3600 {
		at(first.Add(time.Duration(second)*time.Second), "the same")
	}
	if count != 3 {
		t.Errorf("%d events in an hour in which nothing changed", count)
	}
}
