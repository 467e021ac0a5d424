package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VolumeRobustness says how many good copies of a volume there are.
//
// +kubebuilder:validation:Enum=unknown;healthy;degraded;faulted
type VolumeRobustness string

// The robustness of a volume.
const (
	// VolumeUnknown: the volume has no member yet.
	VolumeUnknown VolumeRobustness = "unknown"
	// VolumeHealthy: at least spec.replicas members are healthy, evicting ones included.
	VolumeHealthy VolumeRobustness = "healthy"
	// VolumeDegraded: fewer members are healthy than spec.replicas, but at least one is.
	VolumeDegraded VolumeRobustness = "degraded"
	// VolumeFaulted: no member is healthy. The volume cannot be read.
	VolumeFaulted VolumeRobustness = "faulted"
)

// AntiAffinity says whether two replicas of a volume may share a node or a disk.
//
// +kubebuilder:validation:Enum=hard;soft
type AntiAffinity string

// The two kinds of anti-affinity.
const (
	// HardAntiAffinity: never.
	HardAntiAffinity AntiAffinity = "hard"
	// SoftAntiAffinity: only if there is no other place.
	SoftAntiAffinity AntiAffinity = "soft"
)

// Names that Volumes and Replicas carry.
const (
	// VolumeFinalizer holds a Volume until its replicas are gone.
	VolumeFinalizer = "ebb.dev/volume"
	// ReplicaFinalizer holds a Replica until its node has removed its directory.
	ReplicaFinalizer = "ebb.dev/replica"
	// VolumeLabel of a Replica is the name of its volume.
	VolumeLabel = "ebb.dev/volume"
)

// Conditions of a Volume, with their reasons.
const (
	// VolumeAttached is True while an engine serves the volume on the node in status.attachedTo.
	VolumeAttached = "Attached"
	// VolumeScheduled is False while a replica that is missing cannot be placed on any disk.
	VolumeScheduled = "Scheduled"
	// VolumeOpenable is False while the members cannot be opened: copies are missing, or know a newer generation than the Volume.
	VolumeOpenable = "Openable"

	ReasonAttached        = "Attached"
	ReasonAttaching       = "Attaching"
	ReasonDetached        = "Detached"
	ReasonNodeUnavailable = "NodeUnavailable"
	ReasonScheduled       = "Scheduled"
	ReasonUnschedulable   = "Unschedulable"
	ReasonOpened          = "Opened"
	ReasonStoreIsOlder    = "StoreIsOlder"
	ReasonMembersMissing  = "MembersMissing"
)

// Events about the eviction of replicas.
const (
	EventEvictionUserRequested = "EvictionUserRequested"
	EventEvictionAutomatic     = "EvictionAutomatic"
	EventEvictionCanceled      = "EvictionCanceled"
)

// VolumeSpec is what people want of a volume.
type VolumeSpec struct {
	// size in bytes, a multiple of 4096. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('4096')) >= 0 && quantity(string(self)).compareTo(quantity('16Ti')) <= 0",message="must be from 4096 bytes to 16Ti"
	// +kubebuilder:validation:XValidation:rule="!quantity(string(self)).isInteger() || quantity(string(self)).asInteger() % 4096 == 0",message="must be a multiple of 4096 bytes"
	Size resource.Quantity `json:"size"`

	// replicas is how many copies are kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	// +kubebuilder:default=3
	Replicas int32 `json:"replicas,omitempty"`

	// attachTo is the node on which the volume is served; empty to detach it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	AttachTo string `json:"attachTo,omitempty"`

	// nodeAntiAffinity says whether two replicas may be on one node.
	// +optional
	// +kubebuilder:default=hard
	NodeAntiAffinity AntiAffinity `json:"nodeAntiAffinity,omitempty"`

	// diskAntiAffinity says whether two replicas may be on one disk of a node.
	// +optional
	// +kubebuilder:default=soft
	DiskAntiAffinity AntiAffinity `json:"diskAntiAffinity,omitempty"`
}

// ReleaseReason says why a replica was released.
//
// +kubebuilder:validation:Enum=Drain;Evict;Remove
type ReleaseReason string

// Why a replica is released.
const (
	// ReleaseForDrain: the node of the replica is drained and the policy lets it go. The replica stays on its disk.
	ReleaseForDrain ReleaseReason = "Drain"
	// ReleaseToEvict: its replacement is healthy. The replica is deleted once it is no member.
	ReleaseToEvict ReleaseReason = "Evict"
	// ReleaseToRemove: the replica is deleted once it is no member, because a person asked for it or because it failed and the volume has its count
	// elsewhere.
	ReleaseToRemove ReleaseReason = "Remove"
)

// ReleasedReplica is a replica that the volume no longer counts on. It protects no other replica.
type ReleasedReplica struct {
	// replica is the name of the Replica.
	// +kubebuilder:validation:MaxLength=253
	Replica string `json:"replica"`
	// reason of the release.
	Reason ReleaseReason `json:"reason"`
	// nodeEpoch is the epoch of the replica's node that is drained; 0 if the release is for no drain.
	// +optional
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// drainUID is the Drain for which the replica was released.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	DrainUID string `json:"drainUID,omitempty"`
}

// VolumeRebuild is the copying of data to a replica that is not a member yet.
type VolumeRebuild struct {
	// replica is the name of the Replica that is built.
	// +kubebuilder:validation:MaxLength=253
	Replica string `json:"replica"`
	// doneBytes of totalBytes have been dealt with.
	DoneBytes  int64 `json:"doneBytes"`
	TotalBytes int64 `json:"totalBytes"`
	// delta says that only what changed since the replica left is copied.
	// +optional
	Delta bool `json:"delta,omitempty"`
	// startedAt is when it began.
	StartedAt metav1.Time `json:"startedAt"`
	// error is why it stands still; empty while it runs.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Error string `json:"error,omitempty"`
}

// VolumeEngine is what the engine of a volume reports.
type VolumeEngine struct {
	// node that the engine runs on.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// generation with which the engine has opened the members.
	Generation int64 `json:"generation"`
	// serving says that clients can read and write.
	// +optional
	Serving bool `json:"serving,omitempty"`
	// clients that are connected to it.
	// +optional
	Clients int32 `json:"clients,omitempty"`
	// clientNames are the first few of them, such as "qemu-img (pid 4711)".
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=128
	ClientNames []string `json:"clientNames,omitempty"`
	// waitingFor is why IO is held up or the engine does not serve yet; empty if it serves.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	WaitingFor string `json:"waitingFor,omitempty"`
	// rebuilds that run.
	// +optional
	// +listType=map
	// +listMapKey=replica
	// +kubebuilder:validation:MaxItems=16
	Rebuilds []VolumeRebuild `json:"rebuilds,omitempty"`
}

// VolumeStatus is how a volume is. The coordinator attaches it, releases replicas and writes its robustness; the engine on the node that it is
// attached to writes generation, members, nbdURI and engine from then on.
type VolumeStatus struct {
	// robustness of the volume.
	// +optional
	Robustness VolumeRobustness `json:"robustness,omitempty"`
	// attachedTo is the node that may run the engine; empty while the volume is detached.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	AttachedTo string `json:"attachedTo,omitempty"`
	// rebuildOn is the node that may run an engine of a detached volume, only to build replicas.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RebuildOn string `json:"rebuildOn,omitempty"`
	// generation of the membership. It grows when an engine opens the volume and with every change of members; replicas refuse whoever is
	// behind.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Generation int64 `json:"generation,omitempty"`
	// members are the Replicas that have every acknowledged write, sorted.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	Members []string `json:"members,omitempty"`
	// released are the replicas that the volume no longer counts on.
	// +optional
	// +listType=map
	// +listMapKey=replica
	// +kubebuilder:validation:MaxItems=16
	Released []ReleasedReplica `json:"released,omitempty"`
	// nbdURI is where clients on the node in attachedTo reach the volume.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	NBDURI string `json:"nbdURI,omitempty"`
	// engine is what the engine reports.
	// +optional
	Engine *VolumeEngine `json:"engine,omitempty"`
	// detachedFor is the UID of the drain that detached the volume from spec.attachTo. Drain policies treat such a volume as running.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	DetachedFor string `json:"detachedFor,omitempty"`
	// nextReplica numbers the replicas.
	// +optional
	NextReplica int64 `json:"nextReplica,omitempty"`
	// observedGeneration is the spec that the coordinator last looked at.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the volume: Attached, Scheduled, Openable.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Volume is a block device of which several nodes keep a copy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=vol,categories=ebb
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Robustness",type=string,JSONPath=`.status.robustness`
// +kubebuilder:printcolumn:name="Attached-To",type=string,JSONPath=`.status.attachedTo`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Generation",type=integer,priority=1,JSONPath=`.status.generation`
// +kubebuilder:printcolumn:name="URI",type=string,priority=1,JSONPath=`.status.nbdURI`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="a volume's name must be a DNS label: lower-case letters, digits and '-', at most 63 characters"
// +kubebuilder:validation:XValidation:rule="quantity(string(self.spec.size)).compareTo(quantity(string(oldSelf.spec.size))) == 0",message="the size of a volume cannot be changed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.generation) || (has(self.status) && has(self.status.generation) && self.status.generation >= oldSelf.status.generation)",message="the generation of a volume never goes backwards or vanishes"
type Volume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what people want.
	Spec VolumeSpec `json:"spec"`
	// status is how the volume is.
	// +optional
	Status VolumeStatus `json:"status,omitempty"`
}

// VolumeList is a list of volumes.
//
// +kubebuilder:object:root=true
type VolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Volume `json:"items"`
}

// EngineNode is the node that may run an engine of the volume, to serve it or only to build replicas; empty if none may.
func (v *Volume) EngineNode() string {
	if v.Status.AttachedTo != "" {
		return v.Status.AttachedTo
	}
	return v.Status.RebuildOn
}

// ReleaseOf returns how a replica was released, or nil if it was not.
func (v *Volume) ReleaseOf(replica string) *ReleasedReplica {
	for i := range v.Status.Released {
		if v.Status.Released[i].Replica == replica {
			return &v.Status.Released[i]
		}
	}
	return nil
}
