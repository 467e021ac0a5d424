package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SettingsName is the name of the one Settings object.
const SettingsName = "cluster"

// NodeDrainPolicy decides when a node with replicas of volumes may leave.
//
// +kubebuilder:validation:Enum=block-if-contains-last-replica;allow-if-replica-is-stopped;always-allow;block-for-eviction;block-for-eviction-if-contains-last-replica
type NodeDrainPolicy string

// The five node drain policies.
const (
	BlockIfContainsLastReplica            NodeDrainPolicy = "block-if-contains-last-replica"
	AllowIfReplicaIsStopped               NodeDrainPolicy = "allow-if-replica-is-stopped"
	AlwaysAllow                           NodeDrainPolicy = "always-allow"
	BlockForEviction                      NodeDrainPolicy = "block-for-eviction"
	BlockForEvictionIfContainsLastReplica NodeDrainPolicy = "block-for-eviction-if-contains-last-replica"
)

// OnCordon is what Ebb does on Kubernetes when somebody other than Ebb cordons a core Node.
//
// +kubebuilder:validation:Enum=Drain;Hold
type OnCordon string

// What Ebb does when somebody other than Ebb cordons a core Node.
const (
	// DrainOnCordon drains the node, and parks it.
	DrainOnCordon OnCordon = "Drain"
	// HoldOnCordon drains nothing: a guard only keeps the node from being taken away while work is on it.
	HoldOnCordon OnCordon = "Hold"
)

// SettingsSpec are the settings of the whole cluster.
type SettingsSpec struct {
	// nodeDrainPolicy decides when a node with replicas of volumes may leave.
	// +optional
	// +kubebuilder:default=block-if-contains-last-replica
	NodeDrainPolicy NodeDrainPolicy `json:"nodeDrainPolicy,omitempty"`

	// volumes say how replicas of volumes are looked after.
	// +optional
	// +kubebuilder:default={}
	Volumes VolumeSettings `json:"volumes,omitempty"`

	// onCordon is what happens on Kubernetes when somebody other than Ebb cordons a core Node: Drain (the default) drains and parks it,
	// Hold only keeps it from being taken away while work is on it.
	// +optional
	// +kubebuilder:default=Drain
	OnCordon OnCordon `json:"onCordon,omitempty"`

	// drain has the settings of drains.
	// +optional
	// +kubebuilder:default={}
	Drain DrainSettings `json:"drain,omitempty"`
}

// VolumeSettings say how replicas of volumes are looked after.
type VolumeSettings struct {
	// replicaReplenishmentWait is how long a replica may be away with its node before another one is built in its place. One that comes back
	// earlier only gets what it missed.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 10m, or 0s"
	// +kubebuilder:default="10m"
	ReplicaReplenishmentWait *metav1.Duration `json:"replicaReplenishmentWait,omitempty"`

	// rebuildBytesPerSecond is how fast one replica is built at most; 0 for as fast as it goes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isInteger() && quantity(string(self)).compareTo(quantity('0')) >= 0",message="must be a number of bytes, or 0"
	RebuildBytesPerSecond *resource.Quantity `json:"rebuildBytesPerSecond,omitempty"`
}

// DrainSettings are the settings of drains.
type DrainSettings struct {
	// maintainerBatchSize is how many maintainers of changefeeds move off a node at the same time; 0 or less means 1.
	// +optional
	// +kubebuilder:default=1
	MaintainerBatchSize *int32 `json:"maintainerBatchSize,omitempty"`

	// stalledAfter is how long a drain may make no progress before it is reported as stalled.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 90s or 10m"
	// +kubebuilder:default="5m"
	StalledAfter *metav1.Duration `json:"stalledAfter,omitempty"`

	// balanceAfter is how long after the last drain maintainers, dispatchers and etcd members may be moved to balance the nodes.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 90s or 10m"
	// +kubebuilder:default="30s"
	BalanceAfter *metav1.Duration `json:"balanceAfter,omitempty"`

	// clientGrace is how long clients of a volume that is attached to a draining node may stay connected before they are disconnected.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 60s, or 0s"
	// +kubebuilder:default="60s"
	ClientGrace *metav1.Duration `json:"clientGrace,omitempty"`

	// bootstrapTimeout is how long a maintainer may take to start before it is placed on another node.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 90s or 10m"
	// +kubebuilder:default="30s"
	BootstrapTimeout *metav1.Duration `json:"bootstrapTimeout,omitempty"`

	// historyLimit is how many finished drains are kept. The oldest are deleted first, but none within a minute of its end.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	// +kubebuilder:default=100
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// historyAge is how long a finished drain is kept.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="must be a duration of at least 1m, such as 12h"
	// +kubebuilder:default="168h"
	HistoryAge *metav1.Duration `json:"historyAge,omitempty"`
}

// ActiveDrain is the slot of the one drain that may run.
type ActiveDrain struct {
	// name of the Drain.
	Name string `json:"name"`
	// uid of the Drain.
	UID string `json:"uid"`
	// node that is drained.
	Node string `json:"node"`
	// nodeEpoch that is drained. The slot is freed only when this epoch has ended.
	// +kubebuilder:validation:Minimum=1
	NodeEpoch int64 `json:"nodeEpoch"`
	// takenAt is when the drain took the slot, by the clock of the coordinator. The deadline of a drain that has not begun counts from it.
	// +optional
	TakenAt *metav1.Time `json:"takenAt,omitempty"`
}

// SettingsStatus is the coordinator's state of the whole cluster.
type SettingsStatus struct {
	// activeDrain is the running drain, if there is one.
	// +optional
	ActiveDrain *ActiveDrain `json:"activeDrain,omitempty"`
}

// Settings has the settings of the whole cluster. There is one object, named cluster, and it cannot be deleted.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=settings,singular=settings,categories=ebb
// +kubebuilder:printcolumn:name="Drain-Policy",type=string,JSONPath=`.spec.nodeDrainPolicy`
// +kubebuilder:printcolumn:name="Batch",type=integer,JSONPath=`.spec.drain.maintainerBatchSize`
// +kubebuilder:printcolumn:name="Draining",type=string,JSONPath=`.status.activeDrain.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="the only Settings object must be named cluster"
type Settings struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec are the settings.
	// +optional
	Spec SettingsSpec `json:"spec,omitempty"`
	// status is written by the coordinator.
	// +optional
	Status SettingsStatus `json:"status,omitempty"`
}

// SettingsList is a list of the one Settings object.
//
// +kubebuilder:object:root=true
type SettingsList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Settings `json:"items"`
}
