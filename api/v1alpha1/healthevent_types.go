package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HealthEventFinalizer keeps a HealthEvent until its drain has been cancelled, its custom resource deleted and its quarantine lifted.
const HealthEventFinalizer = "ebb.dev/health-event"

// Annotations of health events and of what is made for them.
const (
	// RetryAnnotation on a HealthEvent requests the attempt of this number of a drain that failed.
	RetryAnnotation = "ebb.dev/retry-attempt"
	// ManualDrainAnnotation on a HealthEvent has the UID of the Drain for which Ebb itself made the event.
	ManualDrainAnnotation = "ebb.dev/manual-drain"
	// HealthEventAnnotation on a Drain or a custom resource has the UID of the HealthEvent that it was made for.
	HealthEventAnnotation = "ebb.dev/health-event"
	// AttemptAnnotation on a Drain or a custom resource has the number of the attempt that it was made for.
	AttemptAnnotation = "ebb.dev/attempt"
	// ReceivedAnnotation on a HealthEvent has the time, with nanoseconds, at which /api/v2 received it.
	ReceivedAnnotation = "ebb.dev/received-at"
)

// CheckManualDrain is the check of the events that Ebb makes for drains that people requested.
const CheckManualDrain = "ManualDrain"

// RecommendedAction is what the detector recommends to do about a problem.
//
// +kubebuilder:validation:Enum=NONE;COMPONENT_RESET;CONTACT_SUPPORT;RUN_FIELDDIAG;RESTART_VM;RESTART_BM;REPLACE_VM;RUN_DCGMEUD;CUSTOM;UNKNOWN
type RecommendedAction string

// QuarantineStatus says what became of the quarantine of an event's node.
//
// +kubebuilder:validation:Enum=Quarantined;AlreadyQuarantined;UnQuarantined;Cancelled
type QuarantineStatus string

// What may become of a quarantine.
const (
	// Quarantined: the event is an owner of the cordon of its node.
	Quarantined QuarantineStatus = "Quarantined"
	// AlreadyQuarantined: somebody else had cordoned the node. Ebb never lifts that cordon.
	AlreadyQuarantined QuarantineStatus = "AlreadyQuarantined"
	// UnQuarantined: the node is healthy again and was uncordoned.
	UnQuarantined QuarantineStatus = "UnQuarantined"
	// QuarantineCancelled: a person uncordoned the node, or the problem was over before the node was cordoned.
	QuarantineCancelled QuarantineStatus = "Cancelled"
)

// EvictionState is how far the drain of an event's node is.
//
// +kubebuilder:validation:Enum=NotStarted;InProgress;Succeeded;Failed;AlreadyDrained;Cancelled
type EvictionState string

// The states of a drain. The last four are final, but a failed drain can be retried.
const (
	EvictionNotStarted EvictionState = "NotStarted"
	EvictionInProgress EvictionState = "InProgress"
	EvictionSucceeded  EvictionState = "Succeeded"
	EvictionFailed     EvictionState = "Failed"
	AlreadyDrained     EvictionState = "AlreadyDrained"
	EvictionCancelled  EvictionState = "Cancelled"
)

// Entity is a part of a node that a problem affects, such as a GPU.
type Entity struct {
	// entityType is the kind of part.
	// +kubebuilder:validation:MaxLength=256
	EntityType string `json:"entityType"`
	// entityValue names the part.
	// +kubebuilder:validation:MaxLength=1024
	EntityValue string `json:"entityValue"`
}

// Overrides force or skip a step, whatever the rules decide.
//
// +kubebuilder:validation:XValidation:rule="!((has(self.force) && self.force) && (has(self.skip) && self.skip))",message="force and skip exclude each other"
type Overrides struct {
	// force takes the step although no rule asks for it. The limit of quarantined nodes still applies.
	// +optional
	Force bool `json:"force,omitempty"`
	// skip leaves the step out although a rule asks for it.
	// +optional
	Skip bool `json:"skip,omitempty"`
}

// HealthEventSpec is what a detector reports about a node. It cannot be changed.
type HealthEventSpec struct {
	// version of the event's format.
	// +optional
	Version int64 `json:"version,omitempty"`
	// agent is the detector that reports.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Agent string `json:"agent,omitempty"`
	// componentClass is the class of component that the check is about, such as GPU.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ComponentClass string `json:"componentClass,omitempty"`
	// checkName names the check.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	CheckName string `json:"checkName"`
	// isFatal says that the node cannot be used while the problem lasts.
	// +optional
	IsFatal bool `json:"isFatal,omitempty"`
	// isHealthy says that the check found no problem; it ends the earlier problems of the same check.
	// +optional
	IsHealthy bool `json:"isHealthy,omitempty"`
	// message describes the problem for people.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Message string `json:"message,omitempty"`
	// recommendedAction is what the detector recommends to do.
	// +optional
	RecommendedAction RecommendedAction `json:"recommendedAction,omitempty"`
	// errorCode are the codes of the problem.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=256
	ErrorCode []string `json:"errorCode,omitempty"`
	// entitiesImpacted are the parts of the node that are affected; without any the whole node is.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	EntitiesImpacted []Entity `json:"entitiesImpacted,omitempty"`
	// metadata is more about the problem.
	// +optional
	// +mapType=atomic
	// +kubebuilder:validation:MaxProperties=64
	Metadata map[string]string `json:"metadata,omitempty"`
	// generatedTimestamp is when the detector found the problem, or that it is over.
	// +optional
	GeneratedTimestamp *Timestamp `json:"generatedTimestamp,omitempty"`
	// nodeName is the node that the event is about.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// quarantineOverrides force or skip the quarantine.
	// +optional
	QuarantineOverrides *Overrides `json:"quarantineOverrides,omitempty"`
	// drainOverrides force or skip the drain.
	// +optional
	DrainOverrides *Overrides `json:"drainOverrides,omitempty"`
	// id of the event. An event is handled once, however often it is sent. Without an id it is the name of the object.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ID string `json:"id,omitempty"`
}

// EvictionStatus is how far the drain of the event's node is.
type EvictionStatus struct {
	// status of the drain.
	Status EvictionState `json:"status"`
	// message describes it for people.
	// +optional
	Message string `json:"message,omitempty"`
	// startedAt is when it began.
	// +optional
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`
	// finishedAt is when it ended.
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`
}

// HealthDrain is the Drain that was made for an event.
type HealthDrain struct {
	// name of the Drain; empty if none was needed.
	// +optional
	Name string `json:"name,omitempty"`
	// uid of the Drain; empty until it was created.
	// +optional
	UID string `json:"uid,omitempty"`
	// number distinguishes the Drains of one event: one that was refused is followed by another.
	// +kubebuilder:validation:Minimum=1
	Number int64 `json:"number"`
	// outcome of the Drain once it has ended: the reason of its condition Finished, or NotRunning if no process of the node was left.
	// +optional
	Outcome string `json:"outcome,omitempty"`
	// phase in which the Drain ended.
	// +optional
	Phase DrainPhase `json:"phase,omitempty"`
}

// CustomResourceOutcome is how the work of a custom resource ended.
//
// +kubebuilder:validation:Enum=Complete;Failed;TimedOut;Deleted;Lost;Cancelled
type CustomResourceOutcome string

// How the work of a custom resource may end.
const (
	// ResourceComplete: its controller reported that the node is drained.
	ResourceComplete CustomResourceOutcome = "Complete"
	// ResourceFailed: its controller reported a failure.
	ResourceFailed CustomResourceOutcome = "Failed"
	// ResourceTimedOut: its controller did not finish in time.
	ResourceTimedOut CustomResourceOutcome = "TimedOut"
	// ResourceDeleted: somebody deleted it before it was complete.
	ResourceDeleted CustomResourceOutcome = "Deleted"
	// ResourceLost: its definition was deleted, and with it the resource. Another one follows when the definition is back.
	ResourceLost CustomResourceOutcome = "Lost"
	// ResourceCancelled: the drain was cancelled.
	ResourceCancelled CustomResourceOutcome = "Cancelled"
)

// CustomResource is the resource that asks another controller to drain the node. The record decides what happens, and not whether an
// object of that name exists.
type CustomResource struct {
	// apiVersion of the resource.
	APIVersion string `json:"apiVersion"`
	// kind of the resource.
	Kind string `json:"kind"`
	// namespace of the resource; empty if its kind has none.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// name of the resource.
	Name string `json:"name"`
	// uid of the resource; empty until it was created.
	// +optional
	UID string `json:"uid,omitempty"`
	// attempt is its number; the first is 1.
	// +kubebuilder:validation:Minimum=1
	Attempt int64 `json:"attempt"`
	// createdAt is when it was created, by the clock of the API server.
	// +optional
	CreatedAt *metav1.MicroTime `json:"createdAt,omitempty"`
	// statusPending says that the template's status could not be written yet.
	// +optional
	StatusPending bool `json:"statusPending,omitempty"`
	// finishedAt is when its end was noticed.
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`
	// outcome is how it ended; empty while it has not.
	// +optional
	Outcome CustomResourceOutcome `json:"outcome,omitempty"`
	// message is what its controller reported.
	// +optional
	Message string `json:"message,omitempty"`
	// removed says that nothing of it is left.
	// +optional
	Removed bool `json:"removed,omitempty"`
}

// PodsOfNamespace are pods of one namespace.
type PodsOfNamespace struct {
	// namespace of the pods.
	Namespace string `json:"namespace"`
	// names of the pods.
	// +listType=atomic
	Names []string `json:"names"`
}

// PodsSnapshot are the pods on a node at one time.
type PodsSnapshot struct {
	// takenAt is when they were listed.
	TakenAt metav1.MicroTime `json:"takenAt"`
	// namespaces with pods on the node, without system namespaces.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	Namespaces []PodsOfNamespace `json:"namespaces,omitempty"`
}

// EventReference names another event.
type EventReference struct {
	// name of the event.
	Name string `json:"name"`
	// uid of the event.
	UID string `json:"uid"`
}

// HealthEventHandled is the condition that is True when nothing is left to do for an event, and False while Ebb works on it or waits. The
// reason names the end or the wait, the message says what a person can do.
const HealthEventHandled = "Handled"

// HealthEventStatus is what became of an event.
type HealthEventStatus struct {
	// nodeQuarantined says what became of the quarantine.
	// +optional
	NodeQuarantined QuarantineStatus `json:"nodeQuarantined,omitempty"`
	// quarantinedAt is when the node was cordoned for the event.
	// +optional
	QuarantinedAt *metav1.MicroTime `json:"quarantinedAt,omitempty"`
	// closedAt is when the event stopped keeping its node in quarantine.
	// +optional
	ClosedAt *metav1.MicroTime `json:"closedAt,omitempty"`
	// userPodsEvictionStatus says how far the drain is.
	// +optional
	UserPodsEvictionStatus *EvictionStatus `json:"userPodsEvictionStatus,omitempty"`
	// joined is the event of the same node whose drain this one belongs to.
	// +optional
	Joined *EventReference `json:"joined,omitempty"`
	// drain is Ebb's own drain of the node.
	// +optional
	Drain *HealthDrain `json:"drain,omitempty"`
	// customResource is the present attempt of a custom drain.
	// +optional
	CustomResource *CustomResource `json:"customResource,omitempty"`
	// attempts are the earlier ones.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Attempts []CustomResource `json:"attempts,omitempty"`
	// pods are those on the node right after it was cordoned.
	// +optional
	Pods *PodsSnapshot `json:"pods,omitempty"`
	// conditions of the event.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HealthEvent is a report about the health of a node. A fatal, unhealthy one quarantines the node and drains it; a healthy one ends that.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=he,categories=ebb
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Check",type=string,JSONPath=`.spec.checkName`
// +kubebuilder:printcolumn:name="Healthy",type=boolean,JSONPath=`.spec.isHealthy`
// +kubebuilder:printcolumn:name="Fatal",type=boolean,JSONPath=`.spec.isFatal`
// +kubebuilder:printcolumn:name="Quarantine",type=string,JSONPath=`.status.nodeQuarantined`
// +kubebuilder:printcolumn:name="Eviction",type=string,JSONPath=`.status.userPodsEvictionStatus.status`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.conditions[?(@.type=="Handled")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec == oldSelf.spec",message="an event cannot be changed: send another one with another id"
type HealthEvent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the report.
	Spec HealthEventSpec `json:"spec"`
	// status is what became of it.
	// +optional
	Status HealthEventStatus `json:"status,omitempty"`
}

// HealthEventList is a list of events.
//
// +kubebuilder:object:root=true
type HealthEventList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HealthEvent `json:"items"`
}

// EventID is the id of the event: that of the report, or else the name of the object.
func (e *HealthEvent) EventID() string {
	if e.Spec.ID != "" {
		return e.Spec.ID
	}
	return e.Name
}
