package v1alpha1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Liveness says whether a node takes work. Within one epoch it only moves forward: Alive, Draining, Stopping.
//
// +kubebuilder:validation:Enum=Alive;Draining;Stopping
type Liveness string

// The three states of a node's liveness.
const (
	// Alive nodes run work and take more.
	Alive Liveness = "Alive"
	// Draining nodes take no new work, and their work moves to other nodes.
	Draining Liveness = "Draining"
	// Stopping nodes take no new work and are about to leave.
	Stopping Liveness = "Stopping"
)

// Rank orders the states: within an epoch a node's liveness never moves to a lower rank.
func (l Liveness) Rank() int {
	switch l {
	case Draining:
		return 1
	case Stopping:
		return 2
	default:
		return 0
	}
}

// Conditions of a Node and their reasons.
const (
	// NodeReady is True while the node's lease is held and its runtimes run.
	NodeReady = "Ready"

	// NodeNeedsGuard is True on Kubernetes once work has asked to be taken by the node, which it may be only while a guard runs there.
	NodeNeedsGuard = "NeedsGuard"
	// NodeGuarded is True on Kubernetes while the guard of the node runs and its budget is observed.
	NodeGuarded = "Guarded"

	// ReasonServing: the node holds its lease and its runtimes run.
	ReasonServing = "Serving"
	// ReasonStarting: the node has begun an epoch and its runtimes are starting.
	ReasonStarting = "Starting"
	// ReasonLeft: the node stopped its work and released its lease.
	ReasonLeft = "Left"
	// ReasonStopping: the node is stopping its work.
	ReasonStopping = "Stopping"
	// ReasonParked: the node was drained, released its lease and waits until it is uncordoned.
	ReasonParked = "Parked"
	// ReasonFenced: the node's lease expired and its epoch was fenced.
	ReasonFenced = "Fenced"
)

// NodeSpec is the desired state of a node, set by people and by the coordinator.
type NodeSpec struct {
	// cordoned keeps new work away from the node; work that runs there stays.
	// +optional
	Cordoned bool `json:"cordoned,omitempty"`

	// evictionRequested moves the replicas of volumes off this node.
	// +optional
	EvictionRequested bool `json:"evictionRequested,omitempty"`

	// disks are where the node keeps replicas of volumes. Without any it has one, named default, in its own directory.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Disks []Disk `json:"disks,omitempty"`

	// desired is the liveness that the coordinator wants. The node applies it only in the epoch it names.
	// +optional
	Desired *DesiredLiveness `json:"desired,omitempty"`
}

// Disk is a directory in which a node keeps replicas of volumes.
type Disk struct {
	// name of the disk on its node.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// path of the directory on the node. It must be there.
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/.+`
	Path string `json:"path"`
	// reserved is what replicas leave free.
	// +optional
	Reserved *resource.Quantity `json:"reserved,omitempty"`
	// allowScheduling says whether new replicas may be placed on the disk.
	// +optional
	// +kubebuilder:default=true
	AllowScheduling *bool `json:"allowScheduling,omitempty"`
	// evictionRequested asks that the replicas of volumes leave this disk.
	// +optional
	EvictionRequested bool `json:"evictionRequested,omitempty"`
}

// DiskStatus is what a node reports of one of its disks.
type DiskStatus struct {
	// name of the disk.
	Name string `json:"name"`
	// path of the directory.
	Path string `json:"path"`
	// uuid in the file that marks the directory as this disk.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid,omitempty"`
	// ready says that the disk can be used.
	// +optional
	Ready bool `json:"ready,omitempty"`
	// message says why it cannot.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// totalBytes and availableBytes of its file system.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// +optional
	AvailableBytes int64 `json:"availableBytes,omitempty"`
	// orphans are directories of replicas that no Replica knows, as VOLUME/REPLICA; the first of them if there are many. They are kept until a
	// person asks for one to be removed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	Orphans []string `json:"orphans,omitempty"`
}

// RemoveOrphansAnnotation of a Node names directories of replicas to remove that no Replica knows, as DISK/VOLUME/REPLICA joined by commas.
const RemoveOrphansAnnotation = "ebb.dev/remove-orphans"

// RemoveEtcdOrphansAnnotation of a Node names entries of status.etcdOrphans to remove, joined by commas.
const RemoveEtcdOrphansAnnotation = "ebb.dev/remove-etcd-orphans"

// StoreMarkAnnotation of a Node is written by the node itself, which remembers it on its disk: a store that shows another one has gone back, or is
// another store.
const StoreMarkAnnotation = "ebb.dev/store-mark"

// DesiredLiveness is the liveness that a drain wants of one epoch of a node.
type DesiredLiveness struct {
	// liveness the node should reach.
	// +kubebuilder:validation:XValidation:rule="self != 'Alive'",message="a node can be asked to become Draining or Stopping; it is Alive again only in a new epoch"
	Liveness Liveness `json:"liveness"`

	// epoch of the node this is meant for; any other epoch ignores it.
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`

	// drainUID is the UID of the Drain that wants it.
	// +kubebuilder:validation:MaxLength=64
	DrainUID string `json:"drainUID"`

	// park says that a node that is asked to stop keeps its process running without a lease until it is uncordoned.
	// +optional
	Park bool `json:"park,omitempty"`
}

// NodeStatus is the observed state of a node, reported by the node and by the coordinator.
type NodeStatus struct {
	// liveness of the node in its epoch. It only moves forward: Alive, Draining, Stopping.
	// +optional
	Liveness Liveness `json:"liveness,omitempty"`

	// epoch is the number of times the node has joined: at every start of its process and after it was fenced.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch,omitempty"`

	// coordinator is true on the node that is the coordinator.
	// +optional
	Coordinator bool `json:"coordinator,omitempty"`

	// address for connections from other nodes, host:port.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Address string `json:"address,omitempty"`

	// httpAddress is the URL of the node's HTTP API.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	HTTPAddress string `json:"httpAddress,omitempty"`

	// version of ebb that the node runs.
	// +optional
	Version string `json:"version,omitempty"`

	// held counts, by kind, the work that has to leave before the node may: work that runs, starts or stops here, or whose
	// only copy is here. A kind without work counts 0.
	// +optional
	// +mapType=granular
	Held map[string]int64 `json:"held,omitempty"`

	// staying counts, by kind, the work that stays by design until the node stops.
	// +optional
	// +mapType=granular
	Staying map[string]int64 `json:"staying,omitempty"`

	// observedDrain is the UID of the drain for which the node stopped taking work; held and staying were counted after that.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ObservedDrain string `json:"observedDrain,omitempty"`

	// claimPolicy is how the node chooses deployments to claim.
	// +optional
	ClaimPolicy ClaimPolicy `json:"claimPolicy,omitempty"`

	// trustedCommands is the regular expression that a program's command must match for the node to claim or run it; empty trusts
	// every command.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	TrustedCommands string `json:"trustedCommands,omitempty"`

	// programUsers are the users of the machine that programs may name in spec.user, separated by commas: names, numbers, @node for the
	// node's own user, * for every user, none for no user. Empty is @node.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	ProgramUsers string `json:"programUsers,omitempty"`

	// usage is the last measured load of the machine; without it the load is unknown.
	// +optional
	Usage *NodeUsage `json:"usage,omitempty"`

	// disks are the disks of the node for replicas of volumes.
	// +optional
	// +listType=map
	// +listMapKey=name
	Disks []DiskStatus `json:"disks,omitempty"`

	// etcdOrphans are directories of members of etcd clusters and files of their snapshots that no object knows; the first of them if there are
	// many. They are kept until a person asks for one to be removed.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	EtcdOrphans []string `json:"etcdOrphans,omitempty"`

	// autoEvicting is true while replicas of volumes leave the node because of the node drain policy, not because a person asked.
	// +optional
	AutoEvicting bool `json:"autoEvicting,omitempty"`

	// parked is set before a drained node releases its lease if its process does not exit. The node reads it before it joins, and waits
	// until it is uncordoned.
	// +optional
	Parked *Parked `json:"parked,omitempty"`

	// conditions of the node: Ready, Claiming and ProgramsContained.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Parked says that a node was drained and waits, without a lease, until it is uncordoned.
type Parked struct {
	// drainUID is the UID of the Drain that parked the node.
	// +kubebuilder:validation:MaxLength=64
	DrainUID string `json:"drainUID"`
	// epoch that was drained.
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
}

// NodeUsage is a sample of a machine's load.
type NodeUsage struct {
	// cpu is the share of all cores in use, in percent.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	CPU int32 `json:"cpu"`
	// memory is the share of memory in use, in percent.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Memory int32 `json:"memory"`
	// score is the weighted load in thousandths; the node with the lowest score claims first.
	// +kubebuilder:validation:Minimum=0
	Score int32 `json:"score"`
	// deployments is the number of deployments on the node when the sample was taken.
	// +kubebuilder:validation:Minimum=0
	Deployments int32 `json:"deployments"`
}

// Node is one machine that runs work.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=en,categories=ebb
// +kubebuilder:printcolumn:name="Liveness",type=string,JSONPath=`.status.liveness`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Coordinator",type=boolean,JSONPath=`.status.coordinator`
// +kubebuilder:printcolumn:name="Cordoned",type=boolean,JSONPath=`.spec.cordoned`
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Address",type=string,priority=1,JSONPath=`.status.httpAddress`
// +kubebuilder:printcolumn:name="Version",type=string,priority=1,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.epoch) || (has(self.status) && has(self.status.epoch) && self.status.epoch >= oldSelf.status.epoch)",message="a node's epoch cannot decrease or be removed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.liveness) || (has(self.status) && has(self.status.liveness))",message="a node's liveness cannot be removed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.liveness) || !has(self.status) || !has(self.status.liveness) || (has(self.status.epoch) ? self.status.epoch : 0) > (has(oldSelf.status.epoch) ? oldSelf.status.epoch : 0) || self.status.liveness == oldSelf.status.liveness || oldSelf.status.liveness == 'Alive' || self.status.liveness == 'Stopping'",message="a node's liveness only moves forward within an epoch: Alive, Draining, Stopping"
type Node struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the node.
	// +optional
	Spec NodeSpec `json:"spec,omitempty"`
	// status is the observed state of the node.
	// +optional
	Status NodeStatus `json:"status,omitempty"`
}

// NodeList is a list of nodes.
//
// +kubebuilder:object:root=true
type NodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Node `json:"items"`
}

// IsReady reports whether the condition Ready is True.
func (n *Node) IsReady() bool { return meta.IsStatusConditionTrue(n.Status.Conditions, NodeReady) }

// IsParked reports whether the node was drained and waits until it is uncordoned.
func (n *Node) IsParked() bool { return n.Status.Parked != nil && n.Spec.Cordoned }

// Schedulable reports whether the node may get new work: it is Alive, Ready and not cordoned. A node that drains refuses new work itself.
func (n *Node) Schedulable() bool {
	return n.Status.Liveness == Alive && n.IsReady() && !n.Spec.Cordoned
}

// ValidateNodeName refuses the names that the API would refuse for a Node. Names are also parts of paths and identities.
func ValidateNodeName(name string) error {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return fmt.Errorf("node name %q is not a DNS subdomain: use lower-case letters, digits, '-' and '.', at most 253 characters", name)
	}
	return nil
}
