package drain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// World is the input of a decision, read at one time.
type World struct {
	// Now is what the API server's clock shows. It decides only about deadlines and stalls.
	Now time.Time
	// Leader is the node that decides.
	Leader string
	// Fleet has the nodes and their leases.
	fleet.Fleet
	Settings *v1alpha1.Settings
	Drains   []*v1alpha1.Drain
	// Core has the core Nodes by name, where the API has them: then the cordons are on these.
	Core map[string]*corev1.Node
	// Pods is set if drains of nodes without a lease move their pods, without the slot. Package pod begins and ends such drains.
	Pods bool
	// Works are the kinds of work that are counted.
	Works Works
	// Refused has the nodes whose cordon the API has just refused, with its answer. They do not hold up drains of other nodes.
	Refused map[string]string
	// Left is the work that objects place on the node in the slot, by kind.
	Left map[string]Remaining
}

// Names of the steps, each one persisted write.
const (
	StepRefuse          = "refuse"
	StepQueue           = "queue"
	StepHold            = "hold"
	StepTakeSlot        = "take-slot"
	StepCordon          = "cordon"
	StepBegin           = "begin"
	StepFollowSlot      = "follow-slot"
	StepFollow          = "follow"
	StepDesireDraining  = "desire-draining"
	StepProgress        = "progress"
	StepStop            = "stop"
	StepDesireStopping  = "desire-stopping"
	StepPark            = "park"
	StepComplete        = "complete"
	StepFail            = "fail"
	StepReleaseSlot     = "release-slot"
	StepWithdraw        = "withdraw"
	StepCancel          = "cancel"
	StepLiftCordon      = "lift-cordon"
	StepClearOwners     = "clear-cordon-owners"
	StepRemoveFinalizer = "remove-finalizer"
)

// Step is one write. The object carries the resourceVersion that the decision is based on.
type Step struct {
	// Name of the step.
	Name string
	// Object to write.
	Object client.Object
	// Status says that the status is written, and not the rest of the object.
	Status bool
	// Drain is what the step is about.
	Drain *v1alpha1.Drain
}

// Next returns the next step, or nil when there is nothing to do now. It does not change w.
func Next(w World) *Step {
	slot, holder := w.Slot()
	if step := nextOfSlot(w, slot, holder); step != nil {
		return step
	}
	if step := nextOfCordons(w, slot, holder); step != nil {
		return step
	}
	for _, d := range inOrder(w.Drains) {
		step := nextOfOther(w, slot, d)
		if d == holder {
			step = nextOfHolder(d)
		}
		if step != nil {
			return step
		}
	}
	return nil
}

// inOrder sorts drains by creation time.
func inOrder(drains []*v1alpha1.Drain) []*v1alpha1.Drain {
	sorted := slices.Clone(drains)
	slices.SortFunc(sorted, func(a, b *v1alpha1.Drain) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return sorted
}

// Slot returns the slot and the drain that holds it; the drain is nil if its object was deleted.
func (w World) Slot() (*v1alpha1.ActiveDrain, *v1alpha1.Drain) {
	slot := w.Settings.Status.ActiveDrain
	if slot == nil {
		return nil, nil
	}
	for _, d := range w.Drains {
		if string(d.UID) == slot.UID {
			return slot, d
		}
	}
	return slot, nil
}

// over reports whether the epoch in the slot has ended.
func (w World) over(slot *v1alpha1.ActiveDrain) bool {
	rec, ok := w.Leases[slot.Node]
	return !ok || rec.Over(slot.NodeEpoch)
}

// follower returns a newer epoch of the slot's node that has reported its state, and whether it began Draining because of the slot;
// 0 if there is none.
func (w World) follower(slot *v1alpha1.ActiveDrain) (epoch int64, draining bool) {
	rec, node := w.Leases[slot.Node], w.Nodes[slot.Node]
	if !rec.Held() || rec.Epoch <= slot.NodeEpoch || node == nil || node.Status.Epoch != rec.Epoch || node.Status.Liveness == v1alpha1.Stopping {
		return 0, false
	}
	return rec.Epoch, node.Status.Liveness == v1alpha1.Draining && node.Status.ObservedDrain == slot.UID
}

// nextOfSlot continues the drain that holds the slot.
func nextOfSlot(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	switch {
	case slot == nil:
		return nil
	case d != nil && d.Status.Scope == v1alpha1.ScopePods:
		return releaseSlot(w, d) // the node lost its lease before the drain began, and only its pods are moved
	case d == nil || d.Status.Phase.Final():
		return nextOfEnded(w, slot, d)
	}
	switch {
	case d.Status.Phase == v1alpha1.DrainStopping:
		return nextOfStopping(w, slot, d)
	case cancelRequested(d):
		return cancel(w, slot, d, v1alpha1.ReasonCancelRequested, w.cancelMessage(slot))
	case w.uncordoned(d):
		reason, message := w.whyUncordoned(slot, d)
		return cancel(w, slot, d, reason, message)
	case d.Status.Phase == v1alpha1.DrainDraining:
		return nextOfDraining(w, slot, d)
	}
	if w.Refused[d.Spec.NodeName] != "" {
		return awaitCordon(w, slot, d)
	}
	if step, ready := makeCordon(w, d); !ready {
		if step == nil && expired(w, slot, d) {
			return giveUp(w, d.DeepCopy(), d, fmt.Sprintf("Ebb's Node %s does not show the cordon of its core Node yet", slot.Node))
		}
		return step
	}
	return begin(w, slot, d)
}

// nextOfEnded frees the slot when the drained epoch has ended. A failed drain keeps the slot while its node is Draining, also in a newer
// epoch that began Draining because of it, unless it is cancelled.
func nextOfEnded(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	failed := d != nil && d.Status.Phase == v1alpha1.DrainFailed && !released(d)
	switch {
	case !failed || w.orderedToStop(slot):
	case d.Spec.Cancelled:
		return letGo(w, d, v1alpha1.ReasonCancelRequested, w.cancelMessage(slot))
	case w.uncordoned(d):
		reason, message := w.whyUncordoned(slot, d)
		return letGo(w, d, reason, message)
	}
	if !w.over(slot) {
		return nil
	}
	if epoch, draining := w.follower(slot); failed && draining {
		return followSlot(w, d, epoch)
	}
	return releaseSlot(w, d)
}

func releaseSlot(w World, d *v1alpha1.Drain) *Step {
	settings := w.Settings.DeepCopy()
	settings.Status.ActiveDrain = nil
	return &Step{Name: StepReleaseSlot, Object: settings, Status: true, Drain: d}
}

// released reports whether a failed drain no longer keeps its node Draining.
func released(d *v1alpha1.Drain) bool {
	return meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.DrainReleased)
}

// begin records that a drain has begun: it has just got the slot.
func begin(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	next := d.DeepCopy()
	now := metav1.NewTime(w.Now)
	next.Status.Phase = v1alpha1.DrainDraining
	next.Status.NodeEpoch = slot.NodeEpoch
	next.Status.StartedAt, next.Status.LastProgress = &now, &now
	next.Status.Initial = w.counts(slot)
	next.Status.Remaining = w.counts(slot)
	next.Status.Stage = w.Works.Stage(next.Status.Remaining)
	next.Status.Blockers = nil
	finished(next, w.Now, metav1.ConditionFalse, string(v1alpha1.DrainDraining), "Work is being moved off the node.")
	return &Step{Name: StepBegin, Object: next, Status: true, Drain: d}
}

// follow continues in the newer epoch of a restarted node: it updates first the slot, then the drain.
func follow(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	if epoch, _ := w.follower(slot); epoch > 0 {
		return followSlot(w, d, epoch)
	}
	if d.Status.NodeEpoch == slot.NodeEpoch {
		return nil
	}
	next := d.DeepCopy()
	next.Status.NodeEpoch = slot.NodeEpoch
	return &Step{Name: StepFollow, Object: next, Status: true, Drain: d}
}

func followSlot(w World, d *v1alpha1.Drain, epoch int64) *Step {
	settings := w.Settings.DeepCopy()
	settings.Status.ActiveDrain.NodeEpoch = epoch
	return &Step{Name: StepFollowSlot, Object: settings, Status: true, Drain: d}
}

// nextOfDraining: work is being moved off the node. The node is ordered to drain before the deadline is checked, so that a failed drain
// leaves the node Draining.
func nextOfDraining(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	if step := follow(w, slot, d); step != nil {
		return step
	}
	if w.over(slot) {
		return nextOfOver(w, slot, d, v1alpha1.ReasonNodeGone, fmt.Sprintf("Node %s is gone and no work is placed on it any more.", slot.Node))
	}
	if step := desire(w, slot, v1alpha1.Draining, StepDesireDraining, d); step != nil {
		return step
	}
	if !expired(w, slot, d) && w.Empty(slot) {
		return stop(w, slot, d)
	}
	return wait(w, slot, d)
}

// nextOfStopping: the node was empty and is ordered to leave. If it died and came back instead, it gets the order again when it has
// reported that it is empty in its new epoch.
func nextOfStopping(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	if w.over(slot) && w.uncordoned(d) && w.placesNothing() {
		// It was empty. If its next epoch has begun already, it is wanted back, and is not drained again.
		return complete(w, slot, d, v1alpha1.ReasonDrained, fmt.Sprintf("Node %s was emptied, and uncordoned since.", slot.Node))
	}
	if step := follow(w, slot, d); step != nil {
		return step
	}
	if w.over(slot) {
		if rec := w.Leases[slot.Node]; rec.Fenced >= slot.NodeEpoch {
			return nextOfOver(w, slot, d, v1alpha1.ReasonNodeGone, fmt.Sprintf("Node %s died while it was shutting down; it was empty.", slot.Node))
		}
		return nextOfOver(w, slot, d, v1alpha1.ReasonDrained, fmt.Sprintf("Node %s was emptied and has left.", slot.Node))
	}
	want, name := v1alpha1.Draining, StepDesireDraining
	if w.orderedToStop(slot) || w.Empty(slot) {
		want, name = v1alpha1.Stopping, StepDesireStopping
	}
	if step := desire(w, slot, want, name, d); step != nil {
		return step
	}
	return wait(w, slot, d)
}

// nextOfOver: the node's epoch has ended. Each kind places its work on other nodes; when no work is placed on the node any more, the
// drain is complete.
func nextOfOver(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain, reason, message string) *Step {
	if w.Leases[slot.Node].Held() {
		return wait(w, slot, d) // it is coming back; its own report decides
	}
	if !w.placesNothing() {
		return wait(w, slot, d)
	}
	if w.parks(d) {
		message += " It is parked until it is uncordoned."
	}
	return complete(w, slot, d, reason, message+w.loose())
}

// loose returns, in a sentence, what may still run on a node that is gone.
func (w World) loose() string {
	var text string
	for _, name := range slices.Sorted(maps.Keys(w.Left)) {
		if sentence := w.Left[name].Loose; sentence != "" {
			text += " " + sentence
		}
	}
	return text
}

// placesNothing reports whether no object places work on the node in the slot.
func (w World) placesNothing() bool {
	for _, left := range w.Left {
		if left.Count > 0 {
			return false
		}
	}
	return true
}

// orderedToStop reports whether the coordinator has ordered the node to stop in the slot's epoch.
func (w World) orderedToStop(slot *v1alpha1.ActiveDrain) bool {
	node := w.Nodes[slot.Node]
	if node == nil || node.Spec.Desired == nil {
		return false
	}
	want := node.Spec.Desired
	return want.Liveness == v1alpha1.Stopping && want.Epoch == slot.NodeEpoch && want.DrainUID == slot.UID
}

// desire sets the desired liveness of the node, for the slot's epoch.
func desire(w World, slot *v1alpha1.ActiveDrain, l v1alpha1.Liveness, name string, d *v1alpha1.Drain) *Step {
	node := w.Nodes[slot.Node]
	want := v1alpha1.DesiredLiveness{Liveness: l, Epoch: slot.NodeEpoch, DrainUID: slot.UID, Park: w.parks(d)}
	if node == nil || node.Spec.Desired != nil && *node.Spec.Desired == want {
		return nil
	}
	next := node.DeepCopy()
	next.Spec.Desired = &want
	return &Step{Name: name, Object: next, Drain: d}
}

// stop: every count is zero. Next, the node is ordered to leave.
func stop(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	next := d.DeepCopy()
	now := metav1.NewTime(w.Now)
	next.Status.Phase = v1alpha1.DrainStopping
	next.Status.Stage = ""
	next.Status.Remaining = w.counts(slot)
	next.Status.Blockers = nil
	next.Status.LastProgress = &now
	finished(next, w.Now, metav1.ConditionFalse, string(v1alpha1.DrainStopping), "The node is empty and is shutting down.")
	return &Step{Name: StepStop, Object: next, Status: true, Drain: d}
}

// complete ends the drain. A node that parks is parked before.
func complete(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain, reason, message string) *Step {
	if step := park(w, slot, d); step != nil {
		return step
	}
	next := d.DeepCopy()
	now := metav1.NewTime(w.Now)
	next.Status.Stage, next.Status.Blockers = "", nil
	next.Status.Remaining = w.counts(slot)
	next.Status.LastProgress = &now
	w.judgeStall(next)
	end(next, w.Now, v1alpha1.DrainComplete, reason, message)
	return &Step{Name: StepComplete, Object: next, Status: true, Drain: d}
}

// expired reports whether the deadline of the drain in the slot has passed. It counts from the start, and until the drain can begin from
// when it got the slot: others wait for the slot meanwhile.
func expired(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) bool {
	from := d.Status.StartedAt
	if from == nil {
		from = slot.TakenAt
	}
	return d.Spec.Deadline != nil && from != nil && !w.Now.Before(from.Add(d.Spec.Deadline.Duration))
}

// giveUp fails a drain that has the slot and could not begin before its deadline. next is its status with what it waited for. It releases
// its node, because no work has moved yet. The slot is free only when the node has begun a new epoch: a node that restarted while the slot
// named it is Draining already.
func giveUp(w World, next, d *v1alpha1.Drain, why string) *Step {
	message := fmt.Sprintf("The drain of node %s could not begin within %s: %s. It releases the node, which takes work again in a new epoch; then the slot is free.",
		d.Spec.NodeName, d.Spec.Deadline.Duration, why)
	end(next, w.Now, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, message+evicted(d))
	release(w, next, v1alpha1.ReasonDeadlineExceeded, message)
	return &Step{Name: StepFail, Object: next, Status: true, Drain: d}
}

// wait records what is left, or fails the drain if its deadline has passed.
func wait(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	if expired(w, slot, d) {
		return fail(w, slot, d)
	}
	return progress(w, slot, d)
}

// fail ends the drain at its deadline. The blockers stay for people to read, and the node stays as it is.
func fail(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	next := d.DeepCopy()
	observe(w, slot, next)
	after, left := d.Spec.Deadline.Duration, w.Works.Summary(next.Status.Remaining)
	message := fmt.Sprintf("Node %s was not drained within %s: %s. It stays %s and takes no new work; a new Drain of it continues where this one ended.",
		slot.Node, after, left, v1alpha1.Draining)
	switch {
	case w.over(slot):
		message = fmt.Sprintf("Node %s died or restarted and was not drained within %s: %s. A new Drain of it starts over.", slot.Node, after, left)
	case w.orderedToStop(slot) || w.leaves(slot):
		message = fmt.Sprintf("Node %s was asked to stop and had not left %s after the drain began: %s. It takes no new work; a new Drain of it continues where this one ended.", slot.Node, after, left)
	}
	end(next, w.Now, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, message)
	return &Step{Name: StepFail, Object: next, Status: true, Drain: d}
}

// progress records what is left, if that has changed.
func progress(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	next := d.DeepCopy()
	observe(w, slot, next)
	if equality.Semantic.DeepEqual(next.Status, d.Status) {
		return nil
	}
	return &Step{Name: StepProgress, Object: next, Status: true, Drain: d}
}

// cancelRequested reports whether somebody cancelled the drain: by spec.cancelled, or by deleting it.
func cancelRequested(d *v1alpha1.Drain) bool {
	return d.Spec.Cancelled || !d.DeletionTimestamp.IsZero()
}

// cancel ends a drain that has the slot and is not Stopping. The node then begins its next epoch Alive, and after that the slot is freed.
func cancel(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain, reason, message string) *Step {
	next := d.DeepCopy()
	next.Status.Stage, next.Status.Blockers = "", nil
	if d.Status.StartedAt != nil {
		next.Status.Remaining = w.counts(slot)
	}
	end(next, w.Now, v1alpha1.DrainCancelled, reason, message+evicted(d))
	return &Step{Name: StepCancel, Object: next, Status: true, Drain: d}
}

// evicted returns, in a sentence, how many pods a drain has evicted: a cancelled drain does not bring them back.
func evicted(d *v1alpha1.Drain) string {
	st := d.Status.Pods
	if st == nil || st.Evicted+st.Deleted == 0 {
		return ""
	}
	return fmt.Sprintf(" Evicted before: %s, listed in status.pods.evictedPods.", Works{}.Counted(st.Evicted+st.Deleted, "pods"))
}

// letGo releases the node of a failed drain. The drain stays Failed: a final phase never changes.
func letGo(w World, d *v1alpha1.Drain, reason, message string) *Step {
	next := d.DeepCopy()
	release(w, next, reason, message)
	return &Step{Name: StepCancel, Object: next, Status: true, Drain: d}
}

func release(w World, d *v1alpha1.Drain, reason, message string) {
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type: v1alpha1.DrainReleased, Status: metav1.ConditionTrue, Reason: reason, Message: message,
		ObservedGeneration: d.Generation, LastTransitionTime: metav1.NewTime(w.Now),
	})
}

func (w World) cancelMessage(slot *v1alpha1.ActiveDrain) string {
	if w.leaves(slot) {
		return fmt.Sprintf("The drain was cancelled, but node %s was asked to stop and is shutting down: start it again to bring it back. Work that has moved stays where it is.", slot.Node)
	}
	return fmt.Sprintf("The drain was cancelled: node %s takes work again in a new epoch. Work that has moved stays where it is.", slot.Node)
}

// nextOfHolder removes the finalizer of a drain that has ended and was deleted, although it still holds the slot. A cancelled drain
// keeps it until its node has begun a new epoch.
func nextOfHolder(d *v1alpha1.Drain) *Step {
	if d.Status.Phase.Final() && d.Status.Phase != v1alpha1.DrainCancelled && !d.DeletionTimestamp.IsZero() {
		return removeFinalizer(d)
	}
	return nil
}

// nextOfOther decides about a drain that does not hold the slot.
func nextOfOther(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	switch {
	case w.apart(d):
		return nil
	case d.Status.Scope == v1alpha1.ScopePods && !d.Status.Phase.Final():
		return abandon(w, d)
	case d.Status.Phase == v1alpha1.DrainDraining || d.Status.Phase == v1alpha1.DrainStopping:
		return resume(w, slot, d)
	case !d.DeletionTimestamp.IsZero():
		return nextOfDeleted(w, d)
	case d.Status.Phase.Final():
		return nil
	case d.Spec.Cancelled:
		return withdraw(w, d, "The drain was cancelled before it began.")
	case w.uncordoned(d):
		return withdraw(w, d, "The node was uncordoned before the drain began.")
	}
	reason := refusal(w, d)
	switch {
	case reason == "":
		return accept(w, d)
	case reason == v1alpha1.ReasonDrainInProgress && d.Spec.WhenBusy == v1alpha1.Queue:
		return queue(w, d, fmt.Sprintf("Waiting for drain %s of node %s.", slot.Name, slot.Node))
	case w.podsLeaveFirst(d) && reason == v1alpha1.ReasonSingleNode:
		return queue(w, d, fmt.Sprintf("Waiting for another node: %s is the only one that runs.", d.Spec.NodeName))
	case w.podsLeaveFirst(d) && reason == v1alpha1.ReasonTargetIsCoordinator:
		return queue(w, d, fmt.Sprintf("Waiting for another coordinator: node %s coordinates.", d.Spec.NodeName))
	}
	return refuse(w, d, reason)
}

// podsLeaveFirst reports whether a drain waits where others are refused, because the pods of a sick node leave meanwhile.
func (w World) podsLeaveFirst(d *v1alpha1.Drain) bool {
	return w.Pods && d.WantsPods() && w.Core[d.Spec.NodeName] != nil && d.Spec.WhenBusy == v1alpha1.Queue && d.Annotations[v1alpha1.HealthEventAnnotation] != ""
}

// apart reports whether a drain moves pods alone, and has not ended: it needs no slot, and package pod decides about it.
func (w World) apart(d *v1alpha1.Drain) bool {
	switch {
	case d.Status.Phase.Final():
		return false
	case d.Status.Scope == v1alpha1.ScopePods:
		return w.Pods
	}
	return w.Pods && d.WantsPods() && d.Status.StartedAt == nil && w.Core[d.Spec.NodeName] != nil && !w.Leases[d.Spec.NodeName].Held()
}

// abandon ends a drain of pods alone that no worker continues: a custom drain was set up since it began, so another controller moves pods.
func abandon(w World, d *v1alpha1.Drain) *Step {
	switch {
	case cancelRequested(d):
		return withdraw(w, d, "The drain was cancelled.")
	case w.uncordoned(d):
		return withdraw(w, d, "The node was uncordoned.")
	}
	next := d.DeepCopy()
	end(next, w.Now, v1alpha1.DrainFailed, v1alpha1.ReasonPodsNotMoved, fmt.Sprintf(
		"A custom drain was set up after this drain began, so drains no longer move pods. Node %s stays cordoned; a health event about it starts the custom drain.%s",
		d.Spec.NodeName, evicted(d)))
	return &Step{Name: StepFail, Object: next, Status: true, Drain: d}
}

// resume gives the slot back to a drain that is running. Ebb never takes it away; if somebody edited Settings, the state of the node is
// unknown, and the drain must not be called complete.
func resume(w World, slot *v1alpha1.ActiveDrain, d *v1alpha1.Drain) *Step {
	if slot != nil {
		return nil
	}
	return takeSlot(w, d, d.Status.NodeEpoch)
}

// refusal returns why a drain may not begin, or nothing. The order of the checks is part of the API.
func refusal(w World, d *v1alpha1.Drain) string {
	rec := w.Leases[d.Spec.NodeName]
	alive := 0
	for _, r := range w.Leases {
		if r.Held() {
			alive++
		}
	}
	switch {
	case w.Nodes[d.Spec.NodeName] == nil || !rec.Held():
		return v1alpha1.ReasonCaptureNotFound
	case alive < 2:
		return v1alpha1.ReasonSingleNode
	case d.Spec.NodeName == w.Leader:
		return v1alpha1.ReasonTargetIsCoordinator
	case !w.free(d):
		return v1alpha1.ReasonDrainInProgress
	}
	return ""
}

// free reports whether a drain may have the slot: it is free, or the drain that holds it failed on the same node.
func (w World) free(d *v1alpha1.Drain) bool {
	slot, holder := w.Slot()
	if slot == nil {
		return true
	}
	ended := holder == nil || holder.Status.Phase == v1alpha1.DrainFailed
	return ended && slot.Node == d.Spec.NodeName
}

// accept gives the slot to a drain; before that it adds the finalizer, so that the drain cannot be deleted while it runs.
func accept(w World, d *v1alpha1.Drain) *Step {
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer) {
		next := d.DeepCopy()
		controllerutil.AddFinalizer(next, v1alpha1.DrainFinalizer)
		return &Step{Name: StepHold, Object: next, Drain: d}
	}
	return takeSlot(w, d, w.Leases[d.Spec.NodeName].Epoch)
}

func takeSlot(w World, d *v1alpha1.Drain, epoch int64) *Step {
	settings := w.Settings.DeepCopy()
	now := metav1.NewTime(w.Now)
	settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: d.Name, UID: string(d.UID), Node: d.Spec.NodeName, NodeEpoch: epoch, TakenAt: &now}
	return &Step{Name: StepTakeSlot, Object: settings, Status: true, Drain: d}
}

// queue lets a drain wait for something.
func queue(w World, d *v1alpha1.Drain, message string) *Step {
	next := d.DeepCopy()
	next.Status.Phase = v1alpha1.DrainPending
	finished(next, w.Now, metav1.ConditionFalse, v1alpha1.ReasonQueued, message)
	if equality.Semantic.DeepEqual(next.Status, d.Status) {
		return nil
	}
	return &Step{Name: StepQueue, Object: next, Status: true, Drain: d}
}

func refuse(w World, d *v1alpha1.Drain, reason string) *Step {
	next := d.DeepCopy()
	end(next, w.Now, v1alpha1.DrainFailed, reason, refusalMessage(w, reason))
	return &Step{Name: StepRefuse, Object: next, Status: true, Drain: d}
}

// refusalMessage returns the words of a refusal, with the drain that is in the way.
func refusalMessage(w World, reason string) string {
	message := Refusal(reason).Error()
	if slot, _ := w.Slot(); reason == v1alpha1.ReasonDrainInProgress && slot != nil {
		message += fmt.Sprintf(": drain %s of node %s", slot.Name, slot.Node)
	}
	return message
}

// nextOfDeleted removes the finalizer of a deleted drain that has ended or never got the slot.
func nextOfDeleted(w World, d *v1alpha1.Drain) *Step {
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer) {
		return nil
	}
	if d.Status.Phase.Final() {
		return removeFinalizer(d)
	}
	return withdraw(w, d, "The drain was deleted before it began.")
}

// withdraw ends a drain that never got the slot.
func withdraw(w World, d *v1alpha1.Drain, message string) *Step {
	next := d.DeepCopy()
	end(next, w.Now, v1alpha1.DrainCancelled, v1alpha1.ReasonWithdrawn, message+evicted(d))
	return &Step{Name: StepWithdraw, Object: next, Status: true, Drain: d}
}

func removeFinalizer(d *v1alpha1.Drain) *Step {
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer) {
		return nil
	}
	next := d.DeepCopy()
	controllerutil.RemoveFinalizer(next, v1alpha1.DrainFinalizer)
	return &Step{Name: StepRemoveFinalizer, Object: next, Drain: d}
}

func end(d *v1alpha1.Drain, now time.Time, phase v1alpha1.DrainPhase, reason, message string) {
	at := metav1.NewTime(now)
	d.Status.Phase = phase
	d.Status.FinishedAt = &at
	finished(d, now, metav1.ConditionTrue, reason, message)
}

func finished(d *v1alpha1.Drain, now time.Time, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type: v1alpha1.DrainFinished, Status: status, Reason: reason, Message: message, ObservedGeneration: d.Generation,
		LastTransitionTime: metav1.NewTime(now),
	})
}
