package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Reasons of blockers that the drain itself finds; each kind of work brings its own.
const (
	// BlockedByNode: the node has not reported yet that it closed its gate for this drain.
	BlockedByNode = "AwaitingAcknowledgement"
	// BlockedByCordon: the API does not let the node be cordoned.
	BlockedByCordon = "CordonRefused"
	// BlockedByReturn: the node is restarting and has not reported its state yet.
	BlockedByReturn = "AwaitingReturn"
	// BlockedByLeaving: the node is empty or was asked to stop, and has not left yet.
	BlockedByLeaving = "AwaitingExit"
	// BlockedByHeld: the node reports work that no object places on it.
	BlockedByHeld = "NodeStillHolds"
)

const defaultStalledAfter = 5 * time.Minute

// maxBlockers bounds the blockers in a status: an object has a size limit, and people read the first ones.
const maxBlockers = 100

// counts returns the work of each kind on the slot's node: what the objects place there or what the node itself reports, whichever is
// more. A node that is gone holds nothing.
func (w World) counts(slot *v1alpha1.ActiveDrain) map[string]int64 {
	counts := map[string]int64{}
	for kind, left := range w.Left {
		counts[kind] = left.Count
	}
	node := w.Nodes[slot.Node]
	if node == nil || node.Status.Epoch != slot.NodeEpoch {
		return counts
	}
	gone := w.over(slot) && !w.Leases[slot.Node].Held()
	for kind, held := range node.Status.Held {
		if gone {
			held = 0
		}
		counts[kind] = max(counts[kind], held)
	}
	return counts
}

// acknowledged reports whether the node closed its gate for this drain in this epoch, so that its counts can only fall.
func (w World) acknowledged(slot *v1alpha1.ActiveDrain) bool {
	node := w.Nodes[slot.Node]
	return node != nil && node.Status.Epoch == slot.NodeEpoch && node.Status.ObservedDrain == slot.UID &&
		node.Status.Liveness.Rank() >= v1alpha1.Draining.Rank()
}

// Empty reports whether nothing is left: the node's own counts, taken after its gate closed for this drain in this epoch, and
// the objects agree on zero.
func (w World) Empty(slot *v1alpha1.ActiveDrain) bool {
	if !w.acknowledged(slot) {
		return false
	}
	for _, count := range w.counts(slot) {
		if count > 0 {
			return false
		}
	}
	return true
}

// observe updates a drain's status with what is left.
func observe(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) {
	old := d.Status.Remaining
	d.Status.Remaining = w.counts(slot)
	d.Status.Stage = w.Works.Stage(d.Status.Remaining)
	if moved(old, d.Status.Remaining) || d.Status.LastProgress == nil {
		now := metav1.NewTime(w.Now)
		d.Status.LastProgress = &now
	}
	d.Status.Blockers = w.blockers(slot, d)
	w.judgeStall(d)
}

// moved reports whether anything left the node.
func moved(old, now map[string]int64) bool {
	for kind, count := range old {
		if now[kind] < count {
			return true
		}
	}
	return false
}

// blockers returns what the drain waits for, sorted, each with the time when it was first seen.
func (w World) blockers(slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) []v1alpha1.Blocker {
	var list []v1alpha1.Blocker
	for _, left := range w.Left {
		list = append(list, left.Blockers...)
	}
	list = sorted(list)
	own := w.ownBlocker(slot, d)
	if own != nil {
		list = append(list[:min(len(list), maxBlockers-1)], *own)
	}
	list = sorted(list)
	list = list[:min(len(list), maxBlockers)]
	since := map[v1alpha1.Blocker]metav1.Time{}
	for _, b := range d.Status.Blockers {
		since[identity(b)] = b.Since
	}
	for i := range list {
		first, ok := since[identity(list[i])]
		if !ok {
			first = metav1.NewTime(w.Now.Truncate(time.Second))
		}
		list[i].Since = first
	}
	return list
}

// identity is what makes two blockers the same.
func identity(b v1alpha1.Blocker) v1alpha1.Blocker {
	return v1alpha1.Blocker{Kind: b.Kind, Name: b.Name, Reason: b.Reason}
}

// sorted sorts blockers and removes duplicates.
func sorted(list []v1alpha1.Blocker) []v1alpha1.Blocker {
	slices.SortFunc(list, func(a, b v1alpha1.Blocker) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Remedy, b.Remedy))
	})
	return slices.CompactFunc(list, func(a, b v1alpha1.Blocker) bool { return identity(a) == identity(b) })
}

// ownBlocker returns the blocker of the node itself, if any.
func (w World) ownBlocker(slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *v1alpha1.Blocker {
	b := &v1alpha1.Blocker{Kind: "Node", Name: slot.Node}
	switch {
	case w.over(slot) && w.Leases[slot.Node].Held():
		b.Reason = BlockedByReturn
		b.Remedy = fmt.Sprintf("node %s is restarting; if this lasts, check its log", slot.Node)
	case w.over(slot):
		return nil
	case d.Status.Phase == v1alpha1.DrainStopping && w.orderedToStop(slot):
		b.Reason = BlockedByLeaving
		b.Remedy = fmt.Sprintf("node %s is empty and is shutting down; if it hangs, check its log or kill its process", slot.Node)
	case w.leaves(slot):
		b.Reason = BlockedByLeaving
		b.Remedy = fmt.Sprintf("node %s was asked to stop and is shutting down; if it hangs, check its log or kill its process", slot.Node)
	case !w.acknowledged(slot):
		b.Reason = BlockedByNode
		b.Remedy = fmt.Sprintf("node %s has not acknowledged the drain yet; if this lasts, check its log; a dead node is fenced when its lease expires", slot.Node)
	default:
		held := w.heldAlone(slot)
		if len(held) == 0 {
			return nil
		}
		b.Reason = BlockedByHeld
		b.Remedy = fmt.Sprintf("node %s still holds %s that no object places there: the node is stopping them, or they hang; if this lasts, check the node's log, or kill the node's process: its work then stops when its lease expires", slot.Node, w.Works.Listed(held))
	}
	return b
}

// heldAlone counts, by kind, the work that the node reports although no object of that kind is placed there.
func (w World) heldAlone(slot *v1alpha1.ActiveDrain) map[string]int64 {
	held := map[string]int64{}
	for kind, count := range w.counts(slot) {
		if count > 0 && w.Left[kind].Count == 0 {
			held[kind] = count
		}
	}
	return held
}

// leaves reports whether the node is stopping in the slot's epoch, for whatever reason.
func (w World) leaves(slot *v1alpha1.ActiveDrain) bool {
	node := w.Nodes[slot.Node]
	return node != nil && node.Status.Epoch == slot.NodeEpoch && node.Status.Liveness == v1alpha1.Stopping
}

// judgeStall sets the condition Stalled: whether nothing has left the node for too long.
func (w World) judgeStall(d *v1alpha1.Drain) {
	patience := defaultStalledAfter
	if set := w.Settings.Spec.Drain.StalledAfter; set != nil && set.Duration > 0 {
		patience = set.Duration
	}
	c := metav1.Condition{
		Type: v1alpha1.DrainStalled, Status: metav1.ConditionFalse, Reason: "Moving", Message: "Work is leaving the node.",
		ObservedGeneration: d.Generation, LastTransitionTime: metav1.NewTime(w.Now),
	}
	if w.Now.Sub(d.Status.LastProgress.Time) >= patience {
		c.Status, c.Reason = metav1.ConditionTrue, "NothingMoves"
		c.Message = fmt.Sprintf("Nothing has left the node for %s: %s.", patience, w.Works.Summary(d.Status.Remaining))
	}
	meta.SetStatusCondition(&d.Status.Conditions, c)
}
