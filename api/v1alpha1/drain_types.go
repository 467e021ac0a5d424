package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DrainPhase is where a drain stands.
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

// Final says whether a drain in this phase is over.
func (p DrainPhase) Final() bool {
	return p == DrainComplete || p == DrainCancelled || p == DrainFailed
}

// DrainFinalizer holds a Drain until it has ended and, if it was cancelled, until its node is free of it.
const DrainFinalizer = "ebb.dev/drain"

// Conditions of a Drain.
const (
	// DrainFinished is True when the drain is over; its reason says how.
	DrainFinished = "Finished"
	// DrainStalled is True while nothing has moved for the time set in Settings.
	DrainStalled = "Stalled"
	// DrainReleased is True on a failed drain that no longer holds its node: it was cancelled after it had failed, or the
	// node is the only one left. The node goes back to work in a new epoch.
	DrainReleased = "Released"
)

// Reasons of the condition Finished.
const (
	// ReasonDrained: the node was empty and left.
	ReasonDrained = "Drained"
	// ReasonNodeGone: the node died before it had left in order, and nothing is bound to it any more.
	ReasonNodeGone = "NodeGone"
	// ReasonDeadlineExceeded: something was left at the deadline; the node stays Draining.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonLoneSurvivor: every other node is lost; the node went back to work in a new epoch.
	ReasonLoneSurvivor = "LoneSurvivor"
	// ReasonWithdrawn: the drain was cancelled or deleted before it got the slot.
	ReasonWithdrawn = "Withdrawn"
	// ReasonCancelRequested: somebody cancelled or deleted the drain; the node went back to work in a new epoch.
	ReasonCancelRequested = "CancelRequested"
	// ReasonCaptureNotFound: there is no such node.
	ReasonCaptureNotFound = "CaptureNotFound"
	// ReasonSingleNode: fewer than two nodes have a live lease.
	ReasonSingleNode = "SingleNode"
	// ReasonTargetIsCoordinator: the coordinator cannot drain itself.
	ReasonTargetIsCoordinator = "TargetIsCoordinator"
	// ReasonDrainInProgress: another drain holds the slot.
	ReasonDrainInProgress = "DrainInProgress"
	// ReasonQueued: the drain waits for the slot.
	ReasonQueued = "Queued"
)

// WhenBusy says what a drain does while another one holds the slot.
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

// DrainSpec is the wish to empty a node and take it out of service.
type DrainSpec struct {
	// nodeName is the node to empty. It cannot be changed.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	NodeName string `json:"nodeName"`

	// reason is why, in the words of whoever asked.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`

	// deadline is how long the drain may take from its start. Past it the drain is Failed, keeps its blockers, and the
	// node stays Draining. Without one the drain takes as long as it needs.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a duration ahead, such as 90s or 10m"
	Deadline *metav1.Duration `json:"deadline,omitempty"`

	// whenBusy says what to do while another drain runs: Refuse (the default) or Queue.
	// +optional
	// +kubebuilder:default=Refuse
	WhenBusy WhenBusy `json:"whenBusy,omitempty"`

	// cancelled asks that the drain end. It ends Cancelled and the node comes back Alive in a new epoch; what has moved
	// stays where it is. It can be set until the drain is Stopping and cannot be taken back. Deleting the Drain asks the same.
	// +optional
	Cancelled bool `json:"cancelled,omitempty"`
}

// Blocker is one thing that keeps work on the node, and what a person can do about it.
type Blocker struct {
	// kind of the object that is held up.
	Kind string `json:"kind"`
	// name of the object that is held up.
	Name string `json:"name"`
	// reason it cannot leave, as one word.
	Reason string `json:"reason"`
	// remedy is what a person can do about it.
	// +optional
	Remedy string `json:"remedy,omitempty"`
	// since is when it was first seen.
	Since metav1.Time `json:"since"`
}

// DrainStatus is how far a drain has come.
type DrainStatus struct {
	// phase of the drain.
	// +optional
	Phase DrainPhase `json:"phase,omitempty"`

	// stage names what is moving now.
	// +optional
	Stage string `json:"stage,omitempty"`

	// nodeEpoch is the incarnation of the node that is drained.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`

	// startedAt is when the drain took the slot.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`

	// finishedAt is when it ended.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`

	// lastProgress is when something last moved.
	// +optional
	LastProgress *metav1.Time `json:"lastProgress,omitempty"`

	// initial counts, by kind, what was on the node at the start.
	// +optional
	// +mapType=granular
	Initial map[string]int64 `json:"initial,omitempty"`

	// remaining counts, by kind, what is still there.
	// +optional
	// +mapType=granular
	Remaining map[string]int64 `json:"remaining,omitempty"`

	// blockers are what keeps it there.
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

// Drain takes one node out of service: the node leaves empty, or says what keeps it. Until it is Stopping it can be cancelled.
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
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.cancelled) || !oldSelf.spec.cancelled || (has(self.spec.cancelled) && self.spec.cancelled)",message="a drain that was cancelled stays cancelled: create another Drain"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.cancelled) || !self.spec.cancelled || (has(oldSelf.spec.cancelled) && oldSelf.spec.cancelled) || !has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in ['Stopping', 'Complete', 'Cancelled'])",message="a drain that is Stopping or has ended cannot be cancelled any more: its node leaves or has left; start the node again to bring it back"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || (has(self.status) && has(self.status.phase))",message="a drain's phase never vanishes"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !has(self.status) || !has(self.status.phase) || self.status.phase == oldSelf.status.phase || !(oldSelf.status.phase in ['Complete', 'Cancelled', 'Failed'])",message="a drain that has ended stays as it ended: create another Drain"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !has(self.status) || !has(self.status.phase) || oldSelf.status.phase == 'Pending' || self.status.phase != 'Pending'",message="a drain never returns to Pending"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.phase) || !has(self.status) || !has(self.status.phase) || oldSelf.status.phase != 'Stopping' || self.status.phase != 'Draining'",message="a drain never returns from Stopping to Draining"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.nodeEpoch) || (has(self.status) && has(self.status.nodeEpoch) && self.status.nodeEpoch >= oldSelf.status.nodeEpoch)",message="a drain's nodeEpoch never goes backwards or vanishes"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.startedAt) || (has(self.status) && has(self.status.startedAt) && self.status.startedAt == oldSelf.status.startedAt)",message="a drain's startedAt is written once"
type Drain struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the wish.
	Spec DrainSpec `json:"spec"`
	// status is how far it has come.
	// +optional
	Status DrainStatus `json:"status,omitempty"`
}

// DrainList is a list of drains.
//
// +kubebuilder:object:root=true
type DrainList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Drain `json:"items"`
}
