package health_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/lease"
)

var begin = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// store keeps the objects of a planner's world, and does what its steps say. Others (persons, the drain controller, the controller of
// custom resources) change it through methods.
type store struct {
	now        time.Time     // of the API server
	ahead      time.Duration // the coordinator's clock shows that much more
	leader     string
	nodes      map[string]*v1alpha1.Node
	dead       map[string]bool // nodes without a lease
	events     map[string]*v1alpha1.HealthEvent
	drains     map[string]*v1alpha1.Drain
	resources  map[string]*unstructured.Unstructured
	definition health.Definition
	config     *drainconfig.Config
	rules      *health.Rules
	version    int
	uid        int

	unread map[string]health.Wait // resources that cannot be read, by name
	work   map[string]string      // what is left on nodes that do not run
	noPods bool                   // pods cannot be listed
	mute   bool                   // the status of resources cannot be written
	kube   bool                   // nodes are core Nodes, and Drains move their pods unless there is a custom drain
	core   map[string]bool        // nodes that are core Nodes only
	// coreGone are the nodes whose core Node was deleted under a process that runs.
	coreGone map[string]bool
	left     map[string]bool // events that are left alone until the next turn, by UID

	// crash ends the coordinator at a point: it returns whether the process dies there.
	crash func(point string) bool
	// refuse says that the API refuses a write: nothing happens, and the coordinator tries again.
	refuse func(step health.Step) bool
	// saw is called for every step that was taken.
	saw func(step health.Step)
}

func newStore(nodes int) *store {
	s := &store{
		now: begin, leader: "n1", nodes: map[string]*v1alpha1.Node{}, dead: map[string]bool{}, events: map[string]*v1alpha1.HealthEvent{},
		drains: map[string]*v1alpha1.Drain{}, resources: map[string]*unstructured.Unstructured{},
		definition: health.Definition{Ready: true, Namespaced: true}, config: drainconfig.Default(), rules: &health.Rules{},
		unread: map[string]health.Wait{}, work: map[string]string{}, left: map[string]bool{},
		crash: func(string) bool { return false }, refuse: func(health.Step) bool { return false }, saw: func(health.Step) {},
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i+1)
		s.nodes[name] = &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.NodeStatus{
			Liveness: v1alpha1.Alive, Epoch: 1, Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}},
		}}
		s.born(s.nodes[name])
	}
	return s
}

// custom lets another controller drain nodes.
func (s *store) custom() *store {
	s.config.CustomDrain = &drainconfig.CustomDrain{
		Namespace: "nvsentinel", GVK: schema.GroupVersionKind{Group: "nvsentinel.nvidia.com", Version: "v1alpha1", Kind: "DrainRequest"},
		Timeout: time.Hour, ConditionType: "DrainComplete", ConditionStatus: "True",
	}
	return s
}

func (s *store) born(o client.Object) {
	s.uid++
	o.SetUID(types.UID(fmt.Sprintf("u%d", s.uid)))
	o.SetCreationTimestamp(metav1.NewTime(s.now.Truncate(time.Second)))
	s.touch(o)
}

func (s *store) touch(o client.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
}

// world is what the planner sees.
func (s *store) world() health.World {
	w := health.World{
		Now: s.now.Add(s.ahead), Server: s.now, Leader: s.leader, Fleet: fleet.New(), Config: s.config, Rules: s.rules, Definition: s.definition, Resources: map[string]*unstructured.Unstructured{},
		Unread: map[string]health.Wait{}, Work: maps.Clone(s.work),
	}
	w.Pods, w.Core, w.CoreOnly = s.kube && s.config.CustomDrain == nil, map[string]bool{}, maps.Clone(s.core)
	for name, n := range s.nodes {
		w.Nodes[name], w.Core[name] = n.DeepCopy(), n.Annotations[kube.CoreUIDAnnotation] != "" && !s.coreGone[name]
		rec := lease.Record{Node: name, Epoch: n.Status.Epoch}
		if !s.dead[name] {
			rec.Holder = name
		}
		w.Leases[name] = rec
	}
	for _, name := range slices.Sorted(maps.Keys(s.events)) {
		w.Events = append(w.Events, s.events[name].DeepCopy())
	}
	for _, name := range slices.Sorted(maps.Keys(s.drains)) {
		w.Drains = append(w.Drains, s.drains[name].DeepCopy())
	}
	if s.definition.Ready {
		for _, r := range s.resources {
			if wait, ok := s.unread[r.GetName()]; ok {
				w.Unread[string(r.GetUID())] = wait
				continue
			}
			w.Resources[string(r.GetUID())] = r.DeepCopy()
		}
	}
	return w
}

// send stores an event.
func (s *store) send(name string, change func(*v1alpha1.HealthEvent)) *v1alpha1.HealthEvent {
	e := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HealthEventSpec{
		CheckName: "check", NodeName: "n2", IsFatal: true, ID: name, GeneratedTimestamp: v1alpha1.NewTimestamp(s.now),
	}}
	if change != nil {
		change(e)
	}
	if s.events[name] != nil {
		return s.events[name] // the same id
	}
	s.born(e)
	s.events[name] = e
	s.now = s.now.Add(time.Second)
	return e
}

func healthy(e *v1alpha1.HealthEvent) { e.Spec.IsHealthy, e.Spec.IsFatal = true, false }

func on(node string) func(*v1alpha1.HealthEvent) {
	return func(e *v1alpha1.HealthEvent) { e.Spec.NodeName = node }
}

// take does what a step says, as the controller does, and returns whether the coordinator is still alive. Writes with an old version fail.
func (s *store) take(step health.Step) (alive bool) {
	if s.crash("before-" + string(step.Action)) {
		return false
	}
	if s.refuse(step) {
		return true
	}
	switch step.Action {
	case health.ActionQuarantine, health.ActionLift:
		if old := s.nodes[step.Node.Name]; old == nil || old.ResourceVersion != step.Node.ResourceVersion {
			return true
		}
		s.saw(step)
		s.nodes[step.Node.Name] = step.Node.DeepCopy()
		s.touch(s.nodes[step.Node.Name])
	case health.ActionCancelDrain:
		if old := s.drains[step.Drain.Name]; old == nil || old.ResourceVersion != step.Drain.ResourceVersion {
			return true
		}
		s.saw(step)
		s.drains[step.Drain.Name] = step.Drain.DeepCopy()
		s.touch(s.drains[step.Drain.Name])
	case health.ActionManual:
		s.saw(step)
		if s.events[step.Event.Name] == nil {
			s.born(step.Event)
			s.events[step.Event.Name] = step.Event
		}
	case health.ActionPrune:
		s.saw(step)
		delete(s.events, step.Event.Name)
	case health.ActionResign:
		s.saw(step)
		for name := range s.nodes {
			if name != s.leader && !s.dead[name] {
				s.leader = name
				break
			}
		}
		return false
	default:
		return s.takeForEvent(step)
	}
	return !s.crash("after-" + string(step.Action))
}

func (s *store) takeForEvent(step health.Step) bool {
	old, next := s.events[step.Event.Name], step.Event.DeepCopy()
	if old == nil || old.ResourceVersion != next.ResourceVersion {
		return true
	}
	s.saw(step)
	switch step.Action {
	case health.ActionSnapshot:
		if s.noPods {
			return s.block(old, health.Wait{Reason: health.WaitPods, Message: "No list."})
		}
		next.Status.Pods = &v1alpha1.PodsSnapshot{TakenAt: metav1.MicroTime{Time: s.now}}
	case health.ActionCreateCR:
		if !s.definition.Ready {
			return s.block(old, health.Wait{Reason: health.WaitDefinition, Message: "missing"})
		}
		r := s.createResource(next)
		if s.crash("between-create-cr") {
			return false
		}
		cr := next.Status.CustomResource
		cr.UID, cr.CreatedAt, cr.StatusPending = string(r.GetUID()), &metav1.MicroTime{Time: s.now}, s.mute
	case health.ActionWriteStatus:
		if s.mute {
			return s.block(old, health.Wait{Reason: health.WaitStatus, Message: "500"})
		}
	case health.ActionDeleteCR:
		if !s.definition.Ready && !s.definition.Gone {
			return s.block(old, health.Wait{Reason: s.definition.Reason, Message: s.definition.Message})
		}
		if r := s.resources[next.Status.CustomResource.Name]; r != nil && r.GetAnnotations()[v1alpha1.HealthEventAnnotation] == string(next.UID) {
			delete(s.resources, next.Status.CustomResource.Name)
		}
		if s.crash("between-delete-cr") {
			return false
		}
	case health.ActionStartDrain, health.ActionEvictImmediate, health.ActionEvictWithTimeout, health.ActionCheckCompletion:
		d := s.drains[step.Drain.Name]
		if d == nil {
			d = step.Drain.DeepCopy()
			s.born(d)
			s.drains[d.Name] = d
		}
		if s.crash("between-start-drain") {
			return false
		}
		next.Status.Drain.UID = string(d.UID)
	}
	s.touch(next)
	s.events[next.Name] = next
	if !next.DeletionTimestamp.IsZero() && len(next.Finalizers) == 0 {
		delete(s.events, next.Name)
	}
	return !s.crash("after-" + string(step.Action))
}

// block records what an event waits for, as the controller does when a step is refused. Until the next turn it leaves the event alone.
func (s *store) block(e *v1alpha1.HealthEvent, wait health.Wait) bool {
	if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled); c != nil && c.Reason == wait.Reason {
		s.left[string(e.UID)] = true
	}
	next := e.DeepCopy()
	health.SetHandled(next, metav1.ConditionFalse, wait.Reason, wait.Message, s.now)
	if !equality.Semantic.DeepEqual(next.Status, e.Status) {
		s.touch(next)
		s.events[next.Name] = next
	}
	return true
}

// next are the steps of a turn.
func (s *store) next() []health.Step {
	return slices.DeleteFunc(health.Next(s.world()), func(step health.Step) bool { return s.left[string(step.Event.UID)] })
}

func (s *store) createResource(e *v1alpha1.HealthEvent) *unstructured.Unstructured {
	name := e.Status.CustomResource.Name
	if r := s.resources[name]; r != nil {
		return r
	}
	r := &unstructured.Unstructured{Object: map[string]any{}}
	r.SetName(name)
	r.SetAnnotations(map[string]string{v1alpha1.HealthEventAnnotation: string(e.UID)})
	s.born(r)
	s.resources[name] = r
	return r
}

// settle lets the coordinator work until there is nothing to do, and returns what it did.
func (s *store) settle() (taken []health.Action) {
	clear(s.left)
	for range 200 {
		steps := s.next()
		if len(steps) == 0 {
			return taken
		}
		for _, step := range steps {
			taken = append(taken, step.Action)
			if !s.take(step) {
				break
			}
		}
	}
	panic(fmt.Sprintf("the planner does not come to rest: %v", taken[len(taken)-20:]))
}

// turns lets the coordinator look some times, whether there is something left to do or not.
func (s *store) turns(n int) {
	for range n {
		clear(s.left)
		for _, step := range s.next() {
			s.take(step)
		}
	}
}

// say lets the controller of a resource report a condition.
func (s *store) say(name, kind, status, reason string) {
	r := s.resources[name]
	list, _, _ := unstructured.NestedSlice(r.Object, "status", "conditions")
	list = append(list, map[string]any{"type": kind, "status": status, "reason": reason})
	if err := unstructured.SetNestedSlice(r.Object, list, "status", "conditions"); err != nil {
		panic(err)
	}
}

// endDrain lets Ebb's drain controller end the only drain that runs.
func (s *store) endDrain(phase v1alpha1.DrainPhase, reason string) {
	for _, d := range s.drains {
		if d.Status.Phase.Final() {
			continue
		}
		d.Status.Phase = phase
		if phase.Final() {
			meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: reason})
		}
		if phase == v1alpha1.DrainComplete {
			s.dead[d.Spec.NodeName] = true
		}
		s.touch(d)
	}
}

func (s *store) uncordon(node string) {
	s.nodes[node].Spec.Cordoned = false
	s.touch(s.nodes[node])
}

func (s *store) cordon(node string) {
	s.nodes[node].Spec.Cordoned = true
	s.touch(s.nodes[node])
}

// is checks the state of an event in words: quarantine, eviction, and the reason of the condition Handled.
func (s *store) is(t *testing.T, name string, quarantine v1alpha1.QuarantineStatus, eviction v1alpha1.EvictionState, reason string) {
	t.Helper()
	e := s.events[name]
	got := v1alpha1.EvictionState("")
	if e.Status.UserPodsEvictionStatus != nil {
		got = e.Status.UserPodsEvictionStatus.Status
	}
	c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled)
	if c == nil {
		c = &metav1.Condition{}
	}
	if e.Status.NodeQuarantined != quarantine || got != eviction || c.Reason != reason {
		t.Errorf("event %s is %q, %q, %q (%s); want %q, %q, %q", name, e.Status.NodeQuarantined, got, c.Reason, c.Message, quarantine, eviction, reason)
	}
}
