package drain_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kube"
)

// start is when every scene begins.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// scene is a cluster set up by hand around the real Gather and Next: n1 leads, n2 and n3 are Alive in epoch 1.
type scene struct {
	*store
	t      testing.TB
	now    time.Time
	leader string
	left   map[string]map[string]drain.Remaining // node, kind
}

func newScene(t testing.TB) *scene {
	s := &scene{store: newStore(), t: t, now: start, leader: "n1", left: map[string]map[string]drain.Remaining{}}
	for _, name := range []string{"n1", "n2", "n3"} {
		s.join(name, 1, v1alpha1.Alive, "")
	}
	return s
}

// place is a kind of work of a scene or a simulation, counted from a variable.
type place struct {
	kind string
	left func(node string) drain.Remaining
}

func (p place) Work() drain.Work { return workOf(p.kind) }

func (p place) Remaining(_ context.Context, node string) (drain.Remaining, error) {
	return p.left(node), nil
}

// join puts a node into an epoch that holds its lease.
func (s *scene) join(name string, epoch int64, l v1alpha1.Liveness, observed string) {
	s.setLease(name, "process-of-"+name, epoch, s.record(name).Fenced)
	s.status(name, func(n *v1alpha1.NodeStatus) {
		*n = v1alpha1.NodeStatus{Epoch: epoch, Liveness: l, ObservedDrain: observed, Held: n.Held}
	})
}

// status changes what a node says of itself.
func (s *scene) status(name string, change func(*v1alpha1.NodeStatus)) {
	n := s.nodes[name]
	if n == nil {
		n = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
		s.nodes[name] = n
	}
	change(&n.Status)
	s.bump(n)
}

// holds sets what a node says that it holds.
func (s *scene) holds(name, kind string, count int64) {
	s.status(name, func(n *v1alpha1.NodeStatus) {
		held := map[string]int64{kind: count}
		for k, v := range n.Held {
			if k != kind {
				held[k] = v
			}
		}
		n.Held = held
	})
}

// places sets what the objects place on a node.
func (s *scene) places(name, kind string, count int64, blockers ...v1alpha1.Blocker) {
	if s.left[name] == nil {
		s.left[name] = map[string]drain.Remaining{}
	}
	s.left[name][kind] = drain.Remaining{Count: count, Blockers: blockers}
}

// obey lets a node do what it is told in its own epoch.
func (s *scene) obey(name string) {
	want := s.nodes[name].Spec.Desired
	if want == nil || want.Epoch != s.nodes[name].Status.Epoch {
		return
	}
	s.status(name, func(n *v1alpha1.NodeStatus) {
		if want.Liveness.Rank() >= n.Liveness.Rank() {
			n.Liveness, n.ObservedDrain = want.Liveness, want.DrainUID
		}
		if want.Liveness == v1alpha1.Stopping && want.Park {
			n.Parked = &v1alpha1.Parked{DrainUID: want.DrainUID, Epoch: want.Epoch}
		}
	})
}

// leaves ends a node's epoch in order, dies ends it by the mark, restarts begins the next without either.
func (s *scene) leaves(name string) {
	rec := s.record(name)
	s.setLease(name, "", rec.Epoch, rec.Fenced)
}

func (s *scene) dies(name string) {
	rec := s.record(name)
	s.setLease(name, "", rec.Epoch, rec.Epoch)
}

func (s *scene) takesNextEpoch(name string) {
	rec := s.record(name)
	s.setLease(name, "next-process-of-"+name, rec.Epoch+1, rec.Fenced)
}

func (s *scene) restarts(name string, l v1alpha1.Liveness, observed string) {
	s.takesNextEpoch(name)
	s.join(name, s.record(name).Epoch, l, observed)
}

// request makes a Drain a second after the last one.
func (s *scene) request(name, node string, change ...func(*v1alpha1.Drain)) *v1alpha1.Drain {
	d := &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(start.Add(time.Duration(len(s.drains)) * time.Second))},
		Spec:       v1alpha1.DrainSpec{NodeName: node, WhenBusy: v1alpha1.Refuse},
	}
	for _, c := range change {
		c(d)
	}
	s.bump(d)
	s.drains[name] = d
	return d
}

func queued(d *v1alpha1.Drain) { d.Spec.WhenBusy = v1alpha1.Queue }

func parking(d *v1alpha1.Drain) { d.Spec.Park = true }

// cordons changes the cordon of a node as a person does: the owners stay.
func (s *scene) cordons(name string, cordoned bool) {
	s.nodes[name].Spec.Cordoned = cordoned
	s.bump(s.nodes[name])
}

// cordonIs wants a node to be cordoned or not, by these.
func (s *scene) cordonIs(name string, cordoned bool, owners ...string) {
	s.t.Helper()
	n := s.nodes[name]
	if n.Spec.Cordoned != cordoned || !slices.Equal(v1alpha1.CordonOwners(n), owners) {
		s.t.Errorf("node %s is cordoned %t by %q, want %t by %q", name, n.Spec.Cordoned, v1alpha1.CordonOwners(n), cordoned, owners)
	}
}

func deadline(after time.Duration) func(*v1alpha1.Drain) {
	return func(d *v1alpha1.Drain) { d.Spec.Deadline = &metav1.Duration{Duration: after} }
}

func (s *scene) world() drain.World {
	s.t.Helper()
	kinds := map[string]bool{}
	for _, byKind := range s.left {
		for kind := range byKind {
			kinds[kind] = true
		}
	}
	var tenants []drain.Tenant
	for kind := range kinds {
		tenants = append(tenants, place{kind, func(node string) drain.Remaining { return s.left[node][kind] }})
	}
	w, err := drain.Gather(context.Background(), s.store, s.leader, tenants, s.now)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.core != nil {
		if w.Core, err = kube.ReadNodes(context.Background(), s.store); err != nil {
			s.t.Fatal(err)
		}
	}
	return w
}

// step takes the next step and says its name, or nothing when there is none. Nothing is remembered from one to the next.
func (s *scene) step() string {
	s.t.Helper()
	w := s.world()
	before := copied(w)
	step := drain.Next(w)
	if diff := cmp.Diff(before, w); diff != "" {
		s.t.Fatalf("Next changed the snapshot it was given:\n%s", diff)
	}
	if step == nil {
		return ""
	}
	if err := s.write(step); err != nil {
		s.t.Fatalf("step %s: %v", step.Name, err)
	}
	return step.Name
}

// copied is a world that shares nothing with another.
func copied(w drain.World) drain.World {
	next := w
	next.Settings = w.Settings.DeepCopy()
	next.Drains = nil
	for _, d := range w.Drains {
		next.Drains = append(next.Drains, d.DeepCopy())
	}
	next.Nodes, next.Leases, next.Left = map[string]*v1alpha1.Node{}, maps.Clone(w.Leases), map[string]drain.Remaining{}
	for name, n := range w.Nodes {
		next.Nodes[name] = n.DeepCopy()
	}
	for kind, left := range w.Left {
		left.By, left.Blockers = maps.Clone(left.By), slices.Clone(left.Blockers)
		next.Left[kind] = left
	}
	return next
}

// steps takes steps until there is none.
func (s *scene) steps() []string {
	s.t.Helper()
	var names []string
	for range 50 {
		name := s.step()
		if name == "" {
			return names
		}
		names = append(names, name)
	}
	s.t.Fatalf("the steps never end: %v", names)
	return nil
}

// takes wants the next steps to be these and then none.
func (s *scene) takes(want ...string) {
	s.t.Helper()
	if got := s.steps(); !slices.Equal(got, want) {
		s.t.Fatalf("steps are %q, want %q", got, want)
	}
}

// begun begins a drain of a node and lets the node acknowledge it.
func (s *scene) begun(name, node string, change ...func(*v1alpha1.Drain)) *v1alpha1.Drain {
	s.t.Helper()
	d := s.request(name, node, change...)
	s.steps()
	s.obey(node)
	return d
}

// ended wants a drain to have ended so, in these words.
func ended(t testing.TB, d *v1alpha1.Drain, phase v1alpha1.DrainPhase, reason, message string) {
	t.Helper()
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if c == nil {
		t.Fatalf("drain %s is %s and says nothing of its end", d.Name, d.Status.Phase)
	}
	if d.Status.Phase != phase || c.Status != metav1.ConditionTrue || c.Reason != reason || c.Message != message || d.Status.FinishedAt == nil {
		t.Errorf("drain %s is %s (%s=%s, %s at %v): %q\nwant %s, %s: %q", d.Name, d.Status.Phase, c.Type, c.Status, c.Reason, d.Status.FinishedAt, c.Message, phase, reason, message)
	}
}

// stands wants a drain to be under way so, in these words.
func stands(t testing.TB, d *v1alpha1.Drain, phase v1alpha1.DrainPhase, reason, message string) {
	t.Helper()
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if c == nil || d.Status.Phase != phase || c.Status != metav1.ConditionFalse || c.Reason != reason || c.Message != message || d.Status.FinishedAt != nil {
		t.Errorf("drain %s is %s: %v\nwant %s, %s: %q", d.Name, d.Status.Phase, c, phase, reason, message)
	}
}

// slotIs wants the slot to be a drain's, or free.
func (s *scene) slotIs(name, node string, epoch int64) {
	s.t.Helper()
	var want *v1alpha1.ActiveDrain
	if name != "" {
		want = &v1alpha1.ActiveDrain{Name: name, UID: "uid-" + name, Node: node, NodeEpoch: epoch}
	}
	if diff := cmp.Diff(want, s.settings.Status.ActiveDrain, cmpopts.IgnoreFields(v1alpha1.ActiveDrain{}, "TakenAt")); diff != "" {
		s.t.Errorf("the slot is not what it should be (-want +got):\n%s", diff)
	}
}
