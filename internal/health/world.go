// Package health handles reports about the health of nodes. A fatal, unhealthy report quarantines its node and drains it; a healthy one
// ends that. The work of other schedulers is drained by a custom resource that is made from a template, and that another controller
// works on.
//
//	              limit reached: waits                          healthy again, or uncordoned by a person
//	                   ┌──┐                                       ┌───────────────────────────────────┐
//	                   │  ▼                                       │                                   ▼
//	recorded ──▶ wants quarantine ──▶ cordoned ──▶ leads a drain ─┴▶ Succeeded · Failed · Cancelled ──▶ closed
//	   │                                   └─────▶ joins the drain of its node
//	   └──▶ handled: healthy, too old, skipped by a rule or by itself
//
// A drain has two tracks that run at the same time: the custom resource, which begins right after the cordon, and Ebb's own Drain, which
// queues for the slot. It has succeeded when both have. All state is in the objects; every write names the drain that it belongs to.
package health

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kube"
)

// World is the input of a decision, read at one time.
type World struct {
	// Now is the coordinator's wall clock.
	Now time.Time
	// Server is what the API server's clock shows at least; zero if that is unknown. Custom resources time out by that clock, which set when they
	// were created: the coordinators of two terms may have different ones.
	Server time.Time
	// Leader is the node that decides.
	Leader string
	// Fleet has the nodes, their leases and the slot.
	fleet.Fleet
	// Core has the names of all core Nodes.
	Core map[string]bool
	// CoreOnly are the nodes of Fleet that are no nodes of Ebb's: core Nodes on which no process of Ebb ever ran. They have no Ebb work.
	CoreOnly map[string]bool
	// Events are all reports.
	Events []*v1alpha1.HealthEvent
	// Drains are all drains.
	Drains []*v1alpha1.Drain
	// Config has the limits, and how a custom drain works.
	Config *drainconfig.Config
	// Pods says that Drains move the pods of core Nodes.
	Pods bool
	// Rules decide about events.
	Rules *Rules
	// Definition is what is known of the kind of the custom resources.
	Definition Definition
	// Resources are the custom resources by UID.
	Resources map[string]*unstructured.Unstructured
	// Unread are the custom resources that could not be read, by UID, and why. Nothing is known of them.
	Unread map[string]Wait
	// Distrusted says that the watch of custom resources failed, so that they are looked at often.
	Distrusted bool
	// Work is what is left of Ebb's own work, in words, on nodes that do not run and have a drain. Empty is none.
	Work map[string]string
}

// addCore adds core Nodes that Ebb has no Node of to the fleet, so that they can be sick like any other and count in the share.
func (w *World) addCore(nodes map[string]*corev1.Node) {
	w.Core, w.CoreOnly = map[string]bool{}, map[string]bool{}
	for name, core := range nodes {
		w.Core[name] = true
		if w.Nodes[name] != nil {
			continue
		}
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{kube.CoreUIDAnnotation: string(core.UID)}}}
		n.Spec.Cordoned = cordon.Is(core)
		v1alpha1.SetCordonOwners(n, v1alpha1.CordonOwners(core))
		w.Nodes[name], w.CoreOnly[name] = n, true
	}
}

// Definition says whether custom resources can be created.
type Definition struct {
	// Ready says that they can.
	Ready bool
	// Gone says that the kind has not been served for a while, so that no resource of it is left. A kind that is neither Ready nor Gone may
	// have resources.
	Gone bool
	// Reason and Message say why they cannot.
	Reason, Message string
	// Namespaced says that the kind has namespaces.
	Namespaced bool
}

// handled reports whether nothing is left to do for an event, apart from what happens to its node later.
func handled(e *v1alpha1.HealthEvent) bool {
	return meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.HealthEventHandled)
}

// reasonOf is the reason of the condition Handled.
func reasonOf(e *v1alpha1.HealthEvent) string {
	if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled); c != nil {
		return c.Reason
	}
	return ""
}

// StateReason is the reason of the condition Handled: how an event ended, or what it waits for.
func StateReason(e *v1alpha1.HealthEvent) string { return reasonOf(e) }

// isOpen reports whether an event keeps its node in quarantine.
func isOpen(e *v1alpha1.HealthEvent) bool {
	return e.Status.ClosedAt == nil && (e.Status.NodeQuarantined == v1alpha1.Quarantined || e.Status.NodeQuarantined == v1alpha1.AlreadyQuarantined)
}

// isManual reports whether Ebb made the event for a drain that a person requested.
func isManual(e *v1alpha1.HealthEvent) bool {
	return e.Annotations[v1alpha1.ManualDrainAnnotation] != ""
}

// eviction is how far the drain of an event is.
func eviction(e *v1alpha1.HealthEvent) v1alpha1.EvictionState {
	if e.Status.UserPodsEvictionStatus == nil {
		return v1alpha1.EvictionNotStarted
	}
	return e.Status.UserPodsEvictionStatus.Status
}

// maxAhead is how far ahead of the API server's clock that of a detector may be.
const maxAhead = time.Minute

// TimeOf is when an event happened: as its detector says, or else when it was created. A time in the future counts as that of its creation and
// maxAhead: a report that a check is healthy next year would end all problems of the check until then, and a problem of next year could not end.
func TimeOf(e *v1alpha1.HealthEvent) time.Time {
	created := e.CreationTimestamp.Time
	if e.Spec.GeneratedTimestamp == nil {
		return created
	}
	if latest := created.Add(maxAhead); !created.IsZero() && e.Spec.GeneratedTimestamp.After(latest) {
		return latest
	}
	return e.Spec.GeneratedTimestamp.Time
}

// ahead reports whether an event has a time that does not count. It would count as a later one if it were sent again.
func ahead(e *v1alpha1.HealthEvent) bool {
	return e.Spec.GeneratedTimestamp != nil && TimeOf(e).Before(e.Spec.GeneratedTimestamp.Time)
}

// latestTime is the latest time that an event could count by if it were sent again.
func latestTime(e *v1alpha1.HealthEvent) time.Time {
	if ahead(e) {
		return e.Spec.GeneratedTimestamp.Time
	}
	return e.CreationTimestamp.Time
}

// later reports whether an event happened after another. Of two with the same time from a detector whose clock is ahead it says which was first.
func later(a, b *v1alpha1.HealthEvent) bool {
	order := TimeOf(a).Compare(TimeOf(b))
	if s, t := a.Spec.GeneratedTimestamp, b.Spec.GeneratedTimestamp; order == 0 && s != nil && t != nil {
		order = s.Compare(t.Time)
	}
	return order > 0
}

// ReceivedAt is when an event reached the cluster.
func ReceivedAt(e *v1alpha1.HealthEvent) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, e.Annotations[v1alpha1.ReceivedAnnotation]); err == nil {
		return at
	}
	return e.CreationTimestamp.Time
}

// inOrder sorts events by the time at which they were created.
func inOrder(events []*v1alpha1.HealthEvent) []*v1alpha1.HealthEvent {
	sorted := slices.Clone(events)
	slices.SortFunc(sorted, func(a, b *v1alpha1.HealthEvent) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), TimeOf(a).Compare(TimeOf(b)), strings.Compare(a.Name, b.Name))
	})
	return sorted
}

// expired reports whether an event is older than the retention.
func (w *World) expired(e *v1alpha1.HealthEvent) bool {
	return w.Now.Sub(TimeOf(e)) > w.Config.Quarantine.Retention
}

// resolves reports whether a healthy event ends the problem of an unhealthy one: it is newer, of the same check, and about the same
// parts of the node, or about all of it.
func resolves(healthy, problem *v1alpha1.HealthEvent) bool {
	h, p := &healthy.Spec, &problem.Spec
	if !h.IsHealthy || h.NodeName != p.NodeName || h.Agent != p.Agent || h.ComponentClass != p.ComponentClass || h.CheckName != p.CheckName {
		return false
	}
	return later(healthy, problem) && reasonOf(healthy) != ReasonExpired
}

// check identifies what an event is about.
type check struct{ agent, componentClass, checkName string }

func checkOf(e *v1alpha1.HealthEvent) check {
	return check{e.Spec.Agent, e.Spec.ComponentClass, e.Spec.CheckName}
}

// healthyByCheck are the healthy ones of the events of a node.
func healthyByCheck(ofNode []*v1alpha1.HealthEvent) map[check][]*v1alpha1.HealthEvent {
	by := map[check][]*v1alpha1.HealthEvent{}
	for _, e := range ofNode {
		if e.Spec.IsHealthy {
			by[checkOf(e)] = append(by[checkOf(e)], e)
		}
	}
	return by
}

// resolved reports whether the problem of an event is over: each of its entities was reported healthy later.
func (w *World) resolved(problem *v1alpha1.HealthEvent, ofNode []*v1alpha1.HealthEvent) bool {
	if !problem.DeletionTimestamp.IsZero() {
		return true
	}
	left := map[v1alpha1.Entity]bool{}
	for _, entity := range problem.Spec.EntitiesImpacted {
		left[entity] = true
	}
	for _, h := range ofNode {
		if !resolves(h, problem) || !handled(h) && w.expired(h) {
			continue
		}
		if len(h.Spec.EntitiesImpacted) == 0 {
			return true
		}
		for _, entity := range h.Spec.EntitiesImpacted {
			delete(left, entity)
		}
		if len(problem.Spec.EntitiesImpacted) > 0 && len(left) == 0 {
			return true
		}
	}
	return false
}

// room is how many more nodes may be quarantined.
func (w *World) room() int { return w.limit() - len(w.cordoned()) }

// limit is how many nodes may be cordoned at once.
func (w *World) limit() int {
	return max(1, int(float64(len(w.Nodes))*w.Config.Quarantine.MaxShare/100))
}

// cordoned are the nodes that are cordoned, by whomever, sorted.
func (w *World) cordoned() []string {
	var names []string
	for name, n := range w.Nodes {
		if n.Spec.Cordoned {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// liveNodes counts the nodes on which a process may be living.
func (w *World) liveNodes() int {
	live := 0
	for name := range w.Nodes {
		if w.Live(name) {
			live++
		}
	}
	return live
}

// successor reports whether another node could become the coordinator.
func (w *World) successor() bool {
	for name, n := range w.Nodes {
		if name != w.Leader && w.Live(name) && n.IsReady() && n.Status.Liveness == v1alpha1.Alive && (w.Slot == nil || w.Slot.Node != name) {
			return true
		}
	}
	return false
}

// drainByUID finds a Drain.
func (w *World) drainByUID(uid string) *v1alpha1.Drain {
	for _, d := range w.Drains {
		if string(d.UID) == uid {
			return d
		}
	}
	return nil
}

// drainFor finds the Drain of a name that was made for an event.
func (w *World) drainFor(name string, e *v1alpha1.HealthEvent) *v1alpha1.Drain {
	for _, d := range w.Drains {
		if d.Name == name && d.Annotations[v1alpha1.HealthEventAnnotation] == string(e.UID) {
			return d
		}
	}
	return nil
}

func micro(t time.Time) *metav1.MicroTime { return &metav1.MicroTime{Time: t} }
