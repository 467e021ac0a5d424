package kube

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/shortname"
)

// Annotations of Ebb's Nodes.
const (
	// CoreUIDAnnotation is the UID of the core Node on which the node runs. A Node that carries it is deleted with that core Node.
	CoreUIDAnnotation = "ebb.dev/core-node-uid"
	// CordonDrainAnnotation names the Drain that the present cordon of a node led to. It stays until the node is uncordoned, so that a
	// cancelled drain is not begun again.
	CordonDrainAnnotation = "ebb.dev/cordon-drain"
)

// World is the input of a decision, read at one time.
type World struct {
	// Leader is the node that decides.
	Leader string
	// Fleet has Ebb's nodes, their leases, the slot and the settings.
	fleet.Fleet
	// Core has the core Nodes by name.
	Core map[string]*corev1.Node
	// Drains of the cluster.
	Drains []*v1alpha1.Drain
	// Failed are the nodes of which an action has just failed: the others do not wait for them.
	Failed map[string]bool
}

// Verb is what an action does with its object.
type Verb string

// The verbs. Every write carries the resourceVersion that was read.
const (
	Update Verb = "update"
	Create Verb = "create"
	Delete Verb = "delete"
	// DeleteNow deletes a pod without a grace period.
	DeleteNow Verb = "delete-now"
	// UpdateStatus writes the status, and not the rest of the object.
	UpdateStatus Verb = "update-status"
	// Resign lets another node become coordinator. It has no object.
	Resign Verb = "resign"
)

// Names of the actions.
const (
	// Project copies the cordon of a core Node to Ebb's Node.
	Project = "project-cordon"
	// DeleteNode deletes Ebb's Node after its core Node.
	DeleteNode = "delete-node"
	// CreateDrain begins a drain because of a cordon that Ebb did not make.
	CreateDrain = "create-drain"
	// NoteDrain records which drain a cordon has led to.
	NoteDrain = "note-drain"
	// ResignFirst lets another node lead, because a coordinator cannot be drained.
	ResignFirst = "resign"
)

// Action is one thing to do.
type Action struct {
	// Name of the action.
	Name string
	// Verb and Object are what is written.
	Verb   Verb
	Object client.Object
	// Node that it is about.
	Node string
}

// Next returns the next action, or nil when there is nothing to do now. It does not change w.
func Next(w World) *Action {
	names := slices.Sorted(maps.Keys(w.Nodes))
	for _, name := range names {
		if a := w.reconcileNode(w.Nodes[name], w.Core[name]); a != nil && !w.Failed[name] {
			return a
		}
	}
	for _, name := range names {
		if a := w.drainCordoned(w.Nodes[name], w.Core[name]); name != w.Leader && a != nil && !w.Failed[name] {
			return a
		}
	}
	if n := w.Nodes[w.Leader]; n != nil && !w.Failed[w.Leader] {
		return w.drainCordoned(n, w.Core[w.Leader]) // last: while it leads, it drains the others
	}
	return nil
}

// reconcileNode brings Ebb's Node in line with its core Node.
func (w World) reconcileNode(n *v1alpha1.Node, core *corev1.Node) *Action {
	carried := n.Annotations[CoreUIDAnnotation]
	gone := carried != "" && (core == nil || carried != string(core.UID))
	if gone && w.mayDelete(n.Name) {
		return &Action{Name: DeleteNode, Verb: Delete, Object: n, Node: n.Name}
	}
	if core == nil {
		return nil
	}
	next := n.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[CoreUIDAnnotation] = string(core.UID)
	next.Spec.Cordoned = cordon.Is(core)
	v1alpha1.SetCordonOwners(next, v1alpha1.CordonOwners(core))
	if !next.Spec.Cordoned {
		delete(next.Annotations, CordonDrainAnnotation)
	}
	if equality.Semantic.DeepEqual(n, next) {
		return nil
	}
	return &Action{Name: Project, Verb: Update, Object: next, Node: n.Name}
}

// mayDelete reports whether the last epoch of a node was released or fenced, and no drain of it holds the slot. A process that holds the
// lease of a node whose core Node was created anew goes on, on the new one.
func (w World) mayDelete(node string) bool {
	return !w.Live(node) && (w.Slot == nil || w.Slot.Node != node)
}

// drainCordoned begins the drain of a live node that was cordoned by somebody other than Ebb.
func (w World) drainCordoned(n *v1alpha1.Node, core *corev1.Node) *Action {
	if !personal(core) || !w.Live(n.Name) || w.Settings.OnCordon == v1alpha1.HoldOnCordon {
		return nil
	}
	if d := w.running(n.Name); d != nil {
		return note(n, d)
	}
	if !w.wantsDrain(n, core) {
		return nil
	}
	if n.Name == w.Leader {
		return w.resign(n)
	}
	return &Action{Name: CreateDrain, Verb: Create, Object: w.newDrain(n.Name), Node: n.Name}
}

// personal reports whether a core Node is cordoned by somebody other than Ebb.
func personal(core *corev1.Node) bool {
	return core != nil && cordon.Is(core) && len(v1alpha1.CordonOwners(core)) == 0
}

// wantsDrain reports whether the cordon of a live node asks for a drain that has not been created. A lone node cannot be drained.
func (w World) wantsDrain(n *v1alpha1.Node, core *corev1.Node) bool {
	if !personal(core) || !w.Live(n.Name) || w.Settings.OnCordon == v1alpha1.HoldOnCordon || w.running(n.Name) != nil || w.live() < 2 {
		return false
	}
	noted := n.Annotations[CordonDrainAnnotation]
	return noted == "" || w.again(noted)
}

// running returns a drain of a node that has not ended.
func (w World) running(node string) *v1alpha1.Drain {
	for _, d := range w.Drains {
		if d.Spec.NodeName == node && !d.Status.Phase.Final() {
			return d
		}
	}
	return nil
}

// note records the drain that a cordon has led to.
func note(n *v1alpha1.Node, d *v1alpha1.Drain) *Action {
	if n.Annotations[CordonDrainAnnotation] == d.Name {
		return nil
	}
	next := n.DeepCopy()
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[CordonDrainAnnotation] = d.Name
	return &Action{Name: NoteDrain, Verb: Update, Object: next, Node: n.Name}
}

// again reports whether the drain that a cordon led to ended for a reason that says nothing about what people want: it was refused, or
// every other node was lost. A drain that was cancelled or deleted is not begun again.
func (w World) again(name string) bool {
	for _, d := range w.Drains {
		if d.Name != name {
			continue
		}
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
		return c != nil && slices.Contains([]string{
			v1alpha1.ReasonLoneSurvivor, v1alpha1.ReasonSingleNode, v1alpha1.ReasonTargetIsCoordinator, v1alpha1.ReasonCaptureNotFound,
		}, c.Reason)
	}
	return false
}

// live counts the nodes that hold a lease.
func (w World) live() int {
	count := 0
	for name := range w.Nodes {
		if w.Live(name) {
			count++
		}
	}
	return count
}

// resign lets another node lead, if one can and no drain is running or waiting: several cordoned nodes would hand the term round.
func (w World) resign(n *v1alpha1.Node) *Action {
	if w.busy() || w.successor() == "" {
		return nil
	}
	return &Action{Name: ResignFirst, Verb: Resign, Node: n.Name}
}

// busy reports whether a drain has not ended.
func (w World) busy() bool {
	return slices.ContainsFunc(w.Drains, func(d *v1alpha1.Drain) bool { return !d.Status.Phase.Final() })
}

// successor is a node that could lead in place of the coordinator, or empty.
func (w World) successor() string {
	for _, name := range w.SchedulableNodes() {
		if name != w.Leader {
			return name
		}
	}
	return ""
}

// newDrain is the drain of a cordoned node. Its name is the first that is free, so that a coordinator that crashed after it created one
// finds it.
func (w World) newDrain(node string) *v1alpha1.Drain {
	taken := map[string]bool{}
	for _, d := range w.Drains {
		taken[d.Name] = true
	}
	name := ""
	for i := 1; name == "" || taken[name]; i++ {
		name = shortname.Fit(fmt.Sprintf("cordon-%s-%d", node, i), 253)
	}
	return &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.OnCordonLabel: "true"}},
		Spec: v1alpha1.DrainSpec{
			NodeName: node, WhenBusy: v1alpha1.Queue, Park: true,
			Pods:   new(false), // a cordon asks nobody to evict pods, and kubectl drain does it itself
			Reason: "the node was cordoned by a person or a program other than Ebb",
		},
	}
}
