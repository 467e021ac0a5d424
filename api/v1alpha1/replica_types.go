package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ReplicaState is what a node reports of a replica on one of its disks.
//
// +kubebuilder:validation:Enum=Pending;Ready;Failed;Removed
type ReplicaState string

// The states.
const (
	// ReplicaPending: its directory is not there yet.
	ReplicaPending ReplicaState = "Pending"
	// ReplicaReady: its directory is there and its node serves it.
	ReplicaReady ReplicaState = "Ready"
	// ReplicaFailed: its directory or its disk is missing, foreign or damaged. It is never made again empty.
	ReplicaFailed ReplicaState = "Failed"
	// ReplicaRemoved: its directory was removed, because the Replica is being deleted.
	ReplicaRemoved ReplicaState = "Removed"
)

// EvictAnnotation of a Replica, set to "true", asks that it leaves its node, as spec.evictionRequested of a node or disk does for all there.
const EvictAnnotation = "ebb.dev/evict"

// Conditions of a Replica, with their reasons.
const (
	// ReplicaEvicting is True while the replica is to leave its node, and says how far that is.
	ReplicaEvicting = "Evicting"

	ReasonReplacementBuilding = "ReplacementBuilding"
	ReasonNoReplacement       = "Unschedulable"
	ReasonReplaced            = "Replaced"
	ReasonLastHealthyReplica  = "LastHealthyReplica"
	ReasonNotEvicting         = "NotEvicting"
)

// ReplicaSpec says where a copy of a volume is. The coordinator writes it.
//
// +kubebuilder:validation:XValidation:rule="self.volumeName == oldSelf.volumeName && self.volumeUID == oldSelf.volumeUID && self.nodeName == oldSelf.nodeName && self.disk == oldSelf.disk && self.sizeBytes == oldSelf.sizeBytes",message="a replica does not move: make another one"
type ReplicaSpec struct {
	// volumeName is the volume that it is a copy of, in the same namespace.
	// +kubebuilder:validation:MaxLength=253
	VolumeName string `json:"volumeName"`
	// volumeUID of that volume.
	// +kubebuilder:validation:MaxLength=64
	VolumeUID string `json:"volumeUID"`
	// nodeName is the node that it is on.
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// disk of that node, by name.
	// +kubebuilder:validation:MaxLength=63
	Disk string `json:"disk"`
	// sizeBytes is the size of the volume.
	// +kubebuilder:validation:Minimum=4096
	SizeBytes int64 `json:"sizeBytes"`
	// evictionRequested says that it should leave its node. Only the coordinator writes it.
	// +optional
	EvictionRequested bool `json:"evictionRequested,omitempty"`
	// replaces is the Replica in whose place it is built, if its volume had its count without it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Replaces string `json:"replaces,omitempty"`
}

// ReplicaStatus is how a copy is. Its node writes the state; the coordinator writes the times and conditions.
type ReplicaStatus struct {
	// state that its node reports.
	// +optional
	State ReplicaState `json:"state,omitempty"`
	// nodeEpoch in which the node last wrote.
	// +optional
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// created says that its directory was made once.
	// +optional
	Created bool `json:"created,omitempty"`
	// diskUUID of the disk that it was made on.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	DiskUUID string `json:"diskUUID,omitempty"`
	// generation that the copy knows on disk.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// incomplete says that the copy was never built completely, so that a part of the data is missing.
	// +optional
	Incomplete bool `json:"incomplete,omitempty"`
	// message says what is wrong.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// healthyAt is when it last became a member of its volume.
	// +optional
	HealthyAt *metav1.Time `json:"healthyAt,omitempty"`
	// failedAt is when it stopped being one; empty while it is healthy or was never healthy.
	// +optional
	FailedAt *metav1.Time `json:"failedAt,omitempty"`
	// conditions of the replica: Evicting.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Replica is one copy of a volume, on one disk of one node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=rep,categories=ebb
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volumeName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Disk",type=string,JSONPath=`.spec.disk`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Evicting",type=boolean,JSONPath=`.spec.evictionRequested`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Replica struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says where it is.
	Spec ReplicaSpec `json:"spec"`
	// status is how it is.
	// +optional
	Status ReplicaStatus `json:"status,omitempty"`
}

// ReplicaList is a list of replicas.
//
// +kubebuilder:object:root=true
type ReplicaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Replica `json:"items"`
}
