package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DrainPhase is the phase of a drain.
//
// +kubebuilder:validation:Enum=Pending;Draining;Stopping;Complete;Cancelled;Failed
type DrainPhase string

// The phases of a drain. The last three are final.
const (
	DrainPending   DrainPhase = "Pending"
	DrainDraining  DrainPhase = "Draining"
	DrainStopping  DrainPhase = "Stopping"
	DrainComplete  DrainPhase = "Complete"
	DrainCancelled DrainPhase = "Cancelled"
	DrainFailed    DrainPhase = "Failed"
)

// Final reports whether a drain in this phase has ended.
func (p DrainPhase) Final() bool {
	return p == DrainComplete || p == DrainCancelled || p == DrainFailed
}

// DrainFinalizer keeps a Drain until it has ended and, if it was cancelled, until its node has begun a new epoch.
const DrainFinalizer = "ebb.dev/drain"

// OnCordonLabel marks a Drain that was created because somebody cordoned the core Node. It is withdrawn if the node is uncordoned before
// it began.
const OnCordonLabel = "ebb.dev/on-cordon"

// Conditions of a Drain.
const (
	// DrainFinished is True when the drain has ended; its reason is the outcome.
	DrainFinished = "Finished"
	// DrainStalled is True while nothing has left the node for the time set in Settings.
	DrainStalled = "Stalled"
	// DrainReleased is True on a failed drain that no longer keeps its node Draining: it was cancelled after it had failed, the node is
	// the only one left, or the drain could not begin before its deadline. The node takes work again in a new epoch.
	DrainReleased = "Released"
)

// Reasons of the condition Finished.
const (
	// ReasonDrained: the node was empty and left.
	ReasonDrained = "Drained"
	// ReasonNodeGone: the node died before it had left, and no work is placed on it any more.
	ReasonNodeGone = "NodeGone"
	// ReasonDeadlineExceeded: work was left at the deadline, and the node stays Draining; or the drain could not begin before it.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonLoneSurvivor: every other node is lost; the node takes work again in a new epoch.
	ReasonLoneSurvivor = "LoneSurvivor"
	// ReasonWithdrawn: the drain was cancelled or deleted before it got the slot.
	ReasonWithdrawn = "Withdrawn"
	// ReasonCancelRequested: the drain was cancelled or deleted; the node takes work again in a new epoch.
	ReasonCancelRequested = "CancelRequested"
	// ReasonUncordoned: the node of a drain that parks was uncordoned before it was empty; it takes work again in a new epoch.
	ReasonUncordoned = "Uncordoned"
	// ReasonNodeReplaced: the core Node was deleted and another one of its name was created, which is not cordoned.
	ReasonNodeReplaced = "NodeReplaced"
	// ReasonCaptureNotFound: there is no such node.
	ReasonCaptureNotFound = "CaptureNotFound"
	// ReasonSingleNode: fewer than two nodes have a live lease.
	ReasonSingleNode = "SingleNode"
	// ReasonTargetIsCoordinator: the coordinator cannot drain itself.
	ReasonTargetIsCoordinator = "TargetIsCoordinator"
	// ReasonDrainInProgress: another drain holds the slot.
	ReasonDrainInProgress = "DrainInProgress"
	// ReasonPodsNotMoved: a custom drain was set up while a drain of pods alone was running.
	ReasonPodsNotMoved = "PodsNotMoved"
	// ReasonQueued: the drain waits for the slot.
	ReasonQueued = "Queued"
)

// WhenBusy is what a drain does while another one holds the slot.
//
// +kubebuilder:validation:Enum=Refuse;Queue
type WhenBusy string

// What a drain may do while another one holds the slot.
const (
	// Refuse ends the drain as Failed at once.
	Refuse WhenBusy = "Refuse"
	// Queue waits for the slot.
	Queue WhenBusy = "Queue"
)

// DrainSpec requests that all work is moved off a node and the node is taken out of service.
type DrainSpec struct {
	// nodeName is the node to drain. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`

	// reason for the drain, for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// deadline is how long the drain may take from its start. After it the drain is Failed, keeps its blockers, and the node stays
	// Draining. A drain that has the slot and cannot begin fails when it has waited for as long, and releases its node; so does a drain
	// of pods alone, from its creation on. Without a deadline the drain has no time limit.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 90s or 10m"
	Deadline *metav1.Duration `json:"deadline,omitempty"`

	// whenBusy is what to do while another drain runs: Refuse (the default) or Queue.
	// +optional
	// +kubebuilder:default=Refuse
	WhenBusy WhenBusy `json:"whenBusy,omitempty"`

	// park keeps the drained node's process running without a lease, instead of letting it exit. The node joins again, in the next epoch,
	// when it is uncordoned. The drain cordons the node before it begins, and uncordoning the node cancels the drain. It cannot be changed.
	// +optional
	Park bool `json:"park,omitempty"`

	// pods says whether the pods on the node leave too, where the API has pods; true unless it is set to false. It cannot be changed.
	// +optional
	Pods *bool `json:"pods,omitempty"`

	// requestedAt is when the drain was requested, if that was before the Drain was created. The time of the mode DeleteAfterTimeout counts
	// from it. It has no fractions of a second. It cannot be changed.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	RequestedAt *metav1.Time `json:"requestedAt,omitempty"`

	// cancelled cancels the drain. The drain ends Cancelled, and the node is Alive again in a new epoch; work that has moved stays where
	// it is. It can be set until the drain is Stopping, and it cannot be unset. Deleting the Drain has the same effect.
	// +optional
	Cancelled bool `json:"cancelled,omitempty"`
}

// Blocker is one object that a drain waits for, and what a person can do about it.
type Blocker struct {
	// kind of the object.
	Kind string `json:"kind"`
	// name of the object.
	Name string `json:"name"`
	// reason why it has not left yet, as one word.
	Reason string `json:"reason"`
	// remedy is what a person can do about it.
	// +optional
	Remedy string `json:"remedy,omitempty"`
	// since is when it was first seen.
	Since metav1.Time `json:"since"`
}

// DrainScope is what a drain moves.
//
// +kubebuilder:validation:Enum=Pods
type DrainScope string

// ScopePods is the scope of a drain that moves nothing but pods: no process of Ebb ran on the node when it began. It takes no slot, and the
// node has no epoch.
const ScopePods DrainScope = "Pods"

// PodBlocker is what keeps pods on a node, and what a person can do about it.
type PodBlocker struct {
	// kind of the object that keeps them: Pod, PodDisruptionBudget or Node.
	Kind string `json:"kind"`
	// name of the object, with its namespace.
	Name string `json:"name"`
	// reason why, as one word.
	Reason string `json:"reason"`
	// message says it in a sentence.
	Message string `json:"message"`
	// remedy is what a person can do about it.
	// +optional
	Remedy string `json:"remedy,omitempty"`
	// pods is how many pods it keeps.
	// +kubebuilder:validation:Minimum=0
	Pods int64 `json:"pods"`
	// since is when it began.
	Since metav1.Time `json:"since"`
}

// PodsStatus is how far the pods of a node are.
type PodsStatus struct {
	// startedAt is when the node was cordoned and its pods were listed.
	// +optional
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`

	// firstEvictionAt is when the first eviction was accepted.
	// +optional
	FirstEvictionAt *metav1.MicroTime `json:"firstEvictionAt,omitempty"`

	// finishedAt is when no pod was left that has to leave. It is unset again if one appears.
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`

	// initial is how many pods had to leave when the drain began.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Initial int64 `json:"initial,omitempty"`

	// remaining is how many pods have to leave still, those that are terminating included.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Remaining int64 `json:"remaining,omitempty"`

	// terminating is how many of the remaining pods are terminating.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Terminating int64 `json:"terminating,omitempty"`

	// evicted is how many evictions were accepted, and deleted how many pods were deleted after the time of DeleteAfterTimeout.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Evicted int64 `json:"evicted,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	Deleted int64 `json:"deleted,omitempty"`

	// evictedPods are the names of the evicted and deleted pods, with their namespaces; at most 500.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=500
	EvictedPods []string `json:"evictedPods,omitempty"`

	// leavingPods are the names of pods that may be evicted or deleted before the status is written again, with their namespaces; at most 500. If the
	// coordinator dies, the next one counts those of them as evicted that are gone.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=500
	LeavingPods []string `json:"leavingPods,omitempty"`

	// staying counts the pods that stay by design, by reason: DaemonSet, Static, Finished, SystemNamespace, Ebb, TerminatingForLong.
	// +optional
	// +mapType=granular
	Staying map[string]int64 `json:"staying,omitempty"`

	// blockers are what keeps the remaining pods, at most 50.
	// +optional
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +listMapKey=reason
	// +kubebuilder:validation:MaxItems=50
	Blockers []PodBlocker `json:"blockers,omitempty"`
}

// DrainStatus is the progress of a drain.
type DrainStatus struct {
	// phase of the drain.
	// +optional
	Phase DrainPhase `json:"phase,omitempty"`

	// scope is Pods if the drain moves nothing but pods, and unset otherwise.
	// +optional
	Scope DrainScope `json:"scope,omitempty"`

	// pods is how far the pods of the node are, where the API has pods.
	// +optional
	Pods *PodsStatus `json:"pods,omitempty"`

	// stage names the work that is moving now.
	// +optional
	Stage string `json:"stage,omitempty"`

	// nodeEpoch is the epoch of the node that is drained.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`

	// startedAt is when the drain began.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// finishedAt is when it ended.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`

	// lastProgress is when work last left the node.
	// +optional
	LastProgress *metav1.Time `json:"lastProgress,omitempty"`

	// initial counts, by kind, the work on the node at the start.
	// +optional
	// +mapType=granular
	Initial map[string]int64 `json:"initial,omitempty"`

	// remaining counts, by kind, the work that is still on the node.
	// +optional
	// +mapType=granular
	Remaining map[string]int64 `json:"remaining,omitempty"`

	// blockers are what the drain waits for.
	// +optional
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +listMapKey=reason
	Blockers []Blocker `json:"blockers,omitempty"`

	// conditions of the drain.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Drain takes one node out of service: it moves all work off the node, and its blockers show what it waits for. It can be cancelled
// until it is Stopping.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=dr,categories=ebb
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.conditions[?(@.type=="Finished")].reason`
// +kubebuilder:printcolumn:name="Stage",type=string,JSONPath=`.status.stage`
// +kubebuilder:printcolumn:name="Blocker",type=string,JSONPath=`.status.blockers[0].reason`
// +kubebuilder:printcolumn:name="Progress",type=date,JSONPath=`.status.lastProgress`
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.spec.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec.nodeName == oldSelf.spec.nodeName",message="a drain's nodeName cannot be changed: create another Drain for the other node"
// +kubebuilder:validation:XValidation:rule="(has(self.spec.park) && self.spec.park) == (has(oldSelf.spec.park) && oldSelf.spec.park)",message="a drain's park cannot be changed: cancel the drain and create another"
// +kubebuilder:validation:XValidation:rule="(!has(self.spec.pods) || self.spec.pods) == (!has(oldSelf.spec.pods) || oldSelf.spec.pods)",message="a drain's pods cannot be changed: cancel the drain and create another"
// +kubebuilder:validation:XValidation:rule="has(self.spec.requestedAt) == has(oldSelf.spec.requestedAt) && (!has(self.spec.requestedAt) || self.spec.requestedAt == oldSelf.spec.requestedAt)",message="a drain's requestedAt cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.scope) || (has(self.status) && has(self.status.scope))",message="a drain's scope cannot be removed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.cancelled) || !oldSelf.spec.cancelled || (has(self.spec.cancelled) && self.spec.cancelled)",message="a cancellation cannot be undone: create another Drain"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.cancelled) || !self.spec.cancelled || (has(oldSelf.spec.cancelled) && oldSelf.spec.cancelled) || !has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Stopping', 'Complete', 'Cancelled'])",message="a drain that is Stopping or has ended can no longer be cancelled: its node is shutting down or has left; start the node again to bring it back"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || (has(self.status) && has(self.status.phase))",message="a drain's phase cannot be removed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !has(self.status) || !has(self.status.phase) || self.status.phase == oldSelf.status.phase || !(oldSelf.status.phase in ['Complete', 'Cancelled', 'Failed'])",message="a drain that has ended cannot change: create another Drain"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !has(self.status) || !has(self.status.phase) || oldSelf.status.phase == 'Pending' || self.status.phase != 'Pending'",message="a drain cannot return to Pending"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !has(self.status) || !has(self.status.phase) || oldSelf.status.phase != 'Stopping' || self.status.phase != 'Draining'",message="a drain cannot return from Stopping to Draining"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.nodeEpoch) || (has(self.status) && has(self.status.nodeEpoch) && self.status.nodeEpoch >= oldSelf.status.nodeEpoch)",message="a drain's nodeEpoch cannot decrease or be removed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.startedAt) || (has(self.status) && has(self.status.startedAt) && self.status.startedAt == oldSelf.status.startedAt)",message="a drain's startedAt cannot be changed"
type Drain struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the request.
	Spec DrainSpec `json:"spec"`
	// status is the progress of the drain.
	// +optional
	Status DrainStatus `json:"status,omitempty"`
}

// WantsPods reports whether the drain moves pods where there are any. The drain of a cordon does not, and those of an earlier version do
// not say so.
func (d *Drain) WantsPods() bool {
	if d.Spec.Pods == nil {
		return d.Labels[OnCordonLabel] == ""
	}
	return *d.Spec.Pods
}

// Requested is when the drain was requested.
func (d *Drain) Requested() metav1.Time {
	if d.Spec.RequestedAt != nil {
		return *d.Spec.RequestedAt
	}
	return d.CreationTimestamp
}

// DrainList is a list of drains.
//
// +kubebuilder:object:root=true
type DrainList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Drain `json:"items"`
}
