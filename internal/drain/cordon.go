package drain

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
)

// A drain that parks its node needs the node to be cordoned: the node waits until it is uncordoned. It cordons the node itself before it
// begins, as owner of the cordon, unless the node is cordoned already. From then on an uncordoned node means that somebody wants it back.

// Cordon returns the object that has the cordon of a node, or nil if there is no such node.
func (w World) Cordon(node string) client.Object {
	if core := w.Core[node]; core != nil {
		return core
	}
	if n := w.Nodes[node]; n != nil {
		return n
	}
	return nil
}

// parks reports whether a drain parks its node. On a core Node every drain does: something restarts the process there.
func (w World) parks(d *v1alpha1.Drain) bool { return d.Spec.Park || w.Core[d.Spec.NodeName] != nil }

// uncordoned reports whether somebody uncordoned the node of a drain that parks.
func (w World) uncordoned(d *v1alpha1.Drain) bool {
	n := w.Cordon(d.Spec.NodeName)
	if n == nil || !w.parks(d) || cordon.Is(n) {
		return false
	}
	began := d.Status.Pods != nil && d.Status.Pods.StartedAt != nil // it was cordoned then, and is drained of its pods
	return began || d.Status.StartedAt != nil || cordon.Owns(n, string(d.UID)) || d.Labels[v1alpha1.OnCordonLabel] != ""
}

// makeCordon cordons the node of a drain that parks and has not begun, and reports whether the drain may begin. The node itself sees the
// cordon on Ebb's Node, so the drain waits until it is projected there.
func makeCordon(w World, d *v1alpha1.Drain) (step *Step, ready bool) {
	n := w.Cordon(d.Spec.NodeName)
	switch {
	case n == nil || !w.parks(d):
		return nil, true
	case !cordon.Is(n):
		next := copyOf(n)
		cordon.Add(next, string(d.UID))
		return &Step{Name: StepCordon, Object: next, Drain: d}, false
	}
	own := w.Nodes[d.Spec.NodeName]
	return nil, own == nil || own.Spec.Cordoned
}

// awaitCordon records that a drain that has the slot cannot begin, because the API does not let its node be cordoned. At its deadline the
// drain fails.
func awaitCordon(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	next := d.DeepCopy()
	next.Status.Phase = v1alpha1.DrainPending
	b := v1alpha1.Blocker{
		Kind: "Node", Name: d.Spec.NodeName, Reason: BlockedByCordon, Since: metav1.NewTime(w.Now.Truncate(time.Second)),
		Remedy: fmt.Sprintf("node %s could not be cordoned: %s; the coordinator tries again: check admission webhooks and its permission to update nodes", d.Spec.NodeName, w.Refused[d.Spec.NodeName]),
	}
	if old := d.Status.Blockers; len(old) == 1 && identity(old[0]) == identity(b) {
		b.Since = old[0].Since
	}
	next.Status.Blockers = []v1alpha1.Blocker{b}
	if expired(w, slot, d) {
		return giveUp(w, next, d, "the node could not be cordoned: "+w.Refused[d.Spec.NodeName])
	}
	finished(next, w.Now, metav1.ConditionFalse, BlockedByCordon, fmt.Sprintf("Node %s could not be cordoned; trying again: %s", d.Spec.NodeName, w.Refused[d.Spec.NodeName]))
	if equality.Semantic.DeepEqual(next.Status, d.Status) {
		return nil
	}
	return &Step{Name: StepProgress, Object: next, Status: true, Drain: d}
}

// nextOfCordons removes owners from cordons: all of them from a node that somebody uncordoned, and drains that no longer want it.
// UIDs that belong to no drain are left alone: other objects own cordons too, and the Drain that parked a node may have been deleted.
func nextOfCordons(w World, slot *v1alpha1.ActiveDrain, holder *v1alpha1.Drain) *Step {
	for _, name := range w.cordonable() {
		if w.Refused[name] != "" {
			continue
		}
		n := w.Cordon(name)
		owners := v1alpha1.CordonOwners(n)
		if len(owners) > 0 && !cordon.Is(n) {
			if d := w.unfinished(owners, holder); d != nil {
				// It owns the cordon until it has ended: that is how it is known that its node was uncordoned under it.
				if w.apart(d) {
					continue
				}
				if step := nextOfOther(w, slot, d); step != nil {
					return step
				}
			}
			next := copyOf(n)
			v1alpha1.SetCordonOwners(next, nil)
			return &Step{Name: StepClearOwners, Object: next}
		}
		for _, d := range w.Drains {
			if slices.Contains(owners, string(d.UID)) && w.disowns(slot, d) {
				return disown(w, holder, n, d)
			}
		}
	}
	return nil
}

// unfinished returns a drain among the owners of a cordon that has not ended and does not hold the slot. (nextOfSlot decides about the drain
// that holds the slot.)
func (w World) unfinished(owners []string, holder *v1alpha1.Drain) *v1alpha1.Drain {
	for _, d := range w.Drains {
		if d != holder && !d.Status.Phase.Final() && slices.Contains(owners, string(d.UID)) {
			return d
		}
	}
	return nil
}

// cordonable are the names of all nodes that have a cordon: Ebb's, and core Nodes on which drains have moved pods alone.
func (w World) cordonable() []string {
	names := map[string]bool{}
	for name := range w.Nodes {
		names[name] = true
	}
	for name, core := range w.Core {
		if len(v1alpha1.CordonOwners(core)) > 0 {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// disowns reports whether a drain that has ended no longer wants its node to be cordoned.
func (w World) disowns(slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) bool {
	switch d.Status.Phase {
	case v1alpha1.DrainCancelled:
		return true
	case v1alpha1.DrainFailed:
		if d.Status.Scope == v1alpha1.ScopePods { // a new drain continues, unless somebody gave up
			return !d.DeletionTimestamp.IsZero() || d.Spec.Cancelled
		}
		// A node that it parked in spite of its deadline is empty and stays out of service, unless the drain is deleted, which cancels it.
		return !d.DeletionTimestamp.IsZero() || (slot == nil || slot.UID != string(d.UID) || released(d)) && !w.parkedBy(d)
	case v1alpha1.DrainComplete:
		return !w.parkedBy(d) && d.Status.Scope != v1alpha1.ScopePods
	}
	return false
}

// disown removes a drain from the owners of a cordon. The last owner lifts the cordon, unless another drain needs it, or the drain is
// complete: then the node was uncordoned and cordoned again since it was parked, and the cordon is somebody else's.
func disown(w World, holder *v1alpha1.Drain, n client.Object, d *v1alpha1.Drain) *Step {
	next := copyOf(n)
	switch {
	case d.Status.Phase == v1alpha1.DrainComplete:
		v1alpha1.RemoveCordonOwner(next, string(d.UID))
	case holder != nil && holder != d && holder.Spec.NodeName == n.GetName() && w.parks(holder) && !holder.Status.Phase.Final():
		v1alpha1.AddCordonOwner(next, string(holder.UID)) // first: a person who is left alone is not among the owners any more
		v1alpha1.RemoveCordonOwner(next, string(d.UID))
	default:
		cordon.Lift(next, string(d.UID))
	}
	return &Step{Name: StepLiftCordon, Object: next, Drain: d}
}

// parkedBy reports whether a drain has parked its node.
func (w World) parkedBy(d *v1alpha1.Drain) bool {
	n := w.Nodes[d.Spec.NodeName]
	return n != nil && n.Status.Parked != nil && n.Status.Parked.DrainUID == string(d.UID)
}

// park records that a node is parked if the node has not done it itself: it died, or was stopped before it could. When its process runs
// again, it waits until the node is uncordoned.
func park(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	n := w.Nodes[slot.Node]
	if !w.parks(d) || n == nil || !cordon.Is(w.Cordon(slot.Node)) || w.parkedBy(d) {
		return nil
	}
	next := n.DeepCopy()
	next.Status.Parked = &v1alpha1.Parked{DrainUID: slot.UID, Epoch: slot.NodeEpoch}
	return &Step{Name: StepPark, Object: next, Status: true, Drain: d}
}

// whyUncordoned is the message of a drain that ended because its node is no longer cordoned.
func (w World) whyUncordoned(slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) (reason, message string) {
	const again = "it takes work again in a new epoch. Work that has moved stays where it is."
	if cordon.Replaced(w.Cordon(slot.Node), d) {
		return v1alpha1.ReasonNodeReplaced, fmt.Sprintf("The core Node %s was deleted and created again, without the cordon: %s", slot.Node, again)
	}
	return v1alpha1.ReasonUncordoned, fmt.Sprintf("Node %s was uncordoned: %s", slot.Node, again)
}

func copyOf(n client.Object) client.Object { return n.DeepCopyObject().(client.Object) }
