package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DeploymentType decides which nodes run a program.
//
// +kubebuilder:validation:Enum=daemon;deployment
type DeploymentType string

// The two types.
const (
	// TypeDeployment is a program that one node claims.
	TypeDeployment DeploymentType = "deployment"
	// TypeDaemon is a program that every node with matching labels runs.
	TypeDaemon DeploymentType = "daemon"
)

// DeploymentState is the state of a deployment or a daemon.
//
// +kubebuilder:validation:Enum=UNASSIGNED;ASSIGNED;LOST;DISABLED;ENABLED
type DeploymentState string

// The states. A deployment is UNASSIGNED, ASSIGNED, LOST or DISABLED; a daemon is ENABLED or DISABLED.
const (
	// StateUnassigned: no address.
	StateUnassigned DeploymentState = "UNASSIGNED"
	// StateAssigned: the address is a node with a lease.
	StateAssigned DeploymentState = "ASSIGNED"
	// StateLost: the address is a node without a lease.
	StateLost DeploymentState = "LOST"
	// StateDisabled: not enabled.
	StateDisabled DeploymentState = "DISABLED"
	// StateEnabled: an enabled daemon.
	StateEnabled DeploymentState = "ENABLED"
)

// ClaimPolicy is how a node chooses deployments to claim.
//
// +kubebuilder:validation:Enum=deployment_count;resource_usage;none
type ClaimPolicy string

// The three policies.
const (
	// ClaimByCount: the node with the fewest deployments claims.
	ClaimByCount ClaimPolicy = "deployment_count"
	// ClaimByUsage: the node with the lowest usage of CPU and memory claims.
	ClaimByUsage ClaimPolicy = "resource_usage"
	// ClaimNone: the node claims nothing; it runs the deployments that are addressed to it.
	ClaimNone ClaimPolicy = "none"
)

// Error codes of deployments. They are used as reasons of conditions and events, as the field code of log lines, and as the label code
// of the counter ebb_deployment_errors_total.
const (
	// ErrInvalidType: the type is neither daemon nor deployment. No node runs the object.
	ErrInvalidType = "ERR_INVALID_TYPE"
	// ErrDaemonAddressSet: a daemon has an address. The address is ignored.
	ErrDaemonAddressSet = "ERR_DAEMON_ADDRESS_SET"
	// ErrClaimConflict: another node claimed the deployment first.
	ErrClaimConflict = "ERR_CLAIM_CONFLICT"
	// ErrPolicyDisabled: the node's claim policy is none.
	ErrPolicyDisabled = "ERR_POLICY_DISABLED"
	// ErrDaemonMissing: an enabled daemon does not run on a node where it should.
	ErrDaemonMissing = "ERR_DAEMON_MISSING"
)

// Conditions of a Deployment, and the condition of a Node about claims.
const (
	// DeploymentValid is False while the spec is invalid; its reason is the error code.
	DeploymentValid = "Valid"
	// DeploymentRunning is True while the program runs everywhere it should.
	DeploymentRunning = "Running"
	// NodeClaiming is True on a node that claims deployments.
	NodeClaiming = "Claiming"
	// NodeProgramsContained is True on a node whose programs have PID namespaces of their own: all processes of a program end with its shim.
	NodeProgramsContained = "ProgramsContained"
	// NodeProgramsIsolated is True on a node that gives each program a user of its own.
	NodeProgramsIsolated = "ProgramsIsolated"
	// NodeProgramFilesKept is True on a node that keeps files of programs that the store does not know, which may be the store's fault.
	NodeProgramFilesKept = "ProgramFilesKept"
)

// Further reasons of these conditions.
const (
	// ReasonPIDNamespaces: programs have PID namespaces of their own.
	ReasonPIDNamespaces = "PIDNamespaces"
	// ReasonNoPIDNamespaces: the machine does not allow PID namespaces. If the shim of a program is killed, processes that the program started
	// may go on.
	ReasonNoPIDNamespaces = "NoPIDNamespaces"
	// ReasonOwnUsers: each program has a user of its own.
	ReasonOwnUsers = "OwnUsers"
	// ReasonNoOwnUsers: the node cannot run programs as other users, or is told not to. They can read what the node can read.
	ReasonNoOwnUsers = "NoOwnUsers"
	// ReasonStoreWentBack: the store was restored from a backup, or is another one.
	ReasonStoreWentBack = "StoreWentBack"
	// ReasonAccepted: the spec is valid.
	ReasonAccepted = "Accepted"
	// ReasonInvalidSelector: the selector is invalid and matches no node.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonRunning: the program runs everywhere it should.
	ReasonRunning = "Running"
	// ReasonUnassigned: no node has claimed the deployment.
	ReasonUnassigned = "Unassigned"
	// ReasonNoEligibleNode: no node may claim the deployment.
	ReasonNoEligibleNode = "NoEligibleNode"
	// ReasonPinned: the deployment is pinned to a node without a lease.
	ReasonPinned = "Pinned"
	// ReasonNotRunning: the program's node does not run it; the message gives the reason.
	ReasonNotRunning = "NotRunning"
	// ReasonDisabled: spec.enabled is false.
	ReasonDisabled = "Disabled"
	// ReasonClaiming: the node claims by its policy.
	ReasonClaiming = "Claiming"
)

// DeploymentFinalizer keeps a Deployment until no node runs it any more.
const DeploymentFinalizer = "ebb.dev/deployment"

// EnvVar is one variable of a program's environment.
type EnvVar struct {
	// name of the variable.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^=\x00]+$`
	Name string `json:"name"`
	// value of the variable.
	// +optional
	// +kubebuilder:validation:MaxLength=131072
	Value string `json:"value,omitempty"`
}

// RestartPolicy is how a program that ended is started again.
type RestartPolicy struct {
	// backoff is the delay before the first restart; it doubles with every further one.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms')",message="must be a duration of at least 10ms, such as 1s"
	// +kubebuilder:default="1s"
	Backoff *metav1.Duration `json:"backoff,omitempty"`

	// maxBackoff is the longest delay.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms')",message="must be a duration of at least 10ms, such as 5m"
	// +kubebuilder:default="5m"
	MaxBackoff *metav1.Duration `json:"maxBackoff,omitempty"`

	// resetAfter is how long a program must run before its earlier failures no longer count.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 1m"
	// +kubebuilder:default="1m"
	ResetAfter *metav1.Duration `json:"resetAfter,omitempty"`

	// limit is how many times in a row a program is started again; 0 means no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Limit int32 `json:"limit,omitempty"`

	// moveAfter is after how many failures in a row a deployment is tried on another node, if one may run it; 0 means never. A node that gave
	// it up is avoided for ten minutes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=5
	MoveAfter *int32 `json:"moveAfter,omitempty"`
}

// StopPolicy is how a program is stopped.
type StopPolicy struct {
	// grace is how long the program may run after SIGTERM before all its processes are killed. The program is killed earlier if the
	// node's lease expires.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('1h')",message="must be a duration up to 1h, such as 10s"
	// +kubebuilder:default="10s"
	Grace *metav1.Duration `json:"grace,omitempty"`
}

// RolloutPolicy is how a changed daemon is restarted.
type RolloutPolicy struct {
	// maxUnavailable is on how many nodes the daemon may be down at the same time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=1
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`

	// minReady is how long the changed daemon must have run on a node before the next node is restarted. If it ends sooner, the rollout stops
	// there.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be a duration of at least 1s, such as 10s"
	// +kubebuilder:default="10s"
	MinReady *metav1.Duration `json:"minReady,omitempty"`
}

// DeploymentSpec is a program and the nodes that should run it.
type DeploymentSpec struct {
	// type is deployment (one node claims it, the default) or daemon (every node with matching labels runs it).
	// +optional
	// +kubebuilder:default=deployment
	Type DeploymentType `json:"type,omitempty"`

	// enabled says whether the program should run. Disabling stops every instance and keeps the address.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// address is the node that should run a deployment; empty until a node claims it. A daemon has none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	Address string `json:"address,omitempty"`

	// pinned keeps a deployment at its address: no other node claims it, also if that node is lost or drained.
	// +optional
	Pinned bool `json:"pinned,omitempty"`

	// command is the program: a path, or a name that is looked up in PATH.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Command string `json:"command"`

	// args of the program.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	Args []string `json:"args,omitempty"`

	// env is the program's environment, beside PATH, EBB_NODE and EBB_DEPLOYMENT.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1024
	Env []EnvVar `json:"env,omitempty"`

	// workingDir of the program, an absolute path; / if empty.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^(/.*)?$`
	WorkingDir string `json:"workingDir,omitempty"`

	// user is who the program runs as. Empty: a user of its own, which the node takes from its range (--program-uids). A name or a number
	// of a user of the machine, where the node allows it (--program-users); @node is the node's own user.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(@node|[A-Za-z_][A-Za-z0-9._-]*[$]?|[0-9]{1,10})?$`
	User string `json:"user,omitempty"`

	// selector selects nodes by their labels; without one every node is selected.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// priority orders the programs in a drain: those with a higher priority are stopped later.
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// restart is how a program that ended is started again.
	// +optional
	// +kubebuilder:default={}
	Restart RestartPolicy `json:"restart,omitempty"`

	// stop is how the program is stopped.
	// +optional
	// +kubebuilder:default={}
	Stop StopPolicy `json:"stop,omitempty"`

	// whenDisconnected is what happens to a deployment whose node loses its lease, for example because the API does not answer: Stop (the
	// default), so that it never runs twice, or Keep, for a program that should rather run twice than not at all. Daemons always go on.
	// +optional
	// +kubebuilder:default=Stop
	WhenDisconnected WhenDisconnected `json:"whenDisconnected,omitempty"`

	// rollout is how a changed daemon is restarted, node by node.
	// +optional
	// +kubebuilder:default={}
	Rollout RolloutPolicy `json:"rollout,omitempty"`
}

// NodeUser is the user of a program that runs as the node's own user.
const NodeUser = "@node"

// WhenDisconnected is what happens to a deployment whose node loses its lease.
//
// +kubebuilder:validation:Enum=Stop;Keep
type WhenDisconnected string

// What may happen to a deployment whose node loses its lease.
const (
	// StopDisconnected stops the program before the lease expires: it never runs twice.
	StopDisconnected WhenDisconnected = "Stop"
	// KeepDisconnected lets the program go on. Another node may run it as well once the node is marked as lost.
	KeepDisconnected WhenDisconnected = "Keep"
)

// GoesOn reports whether the program goes on while its node has no lease.
func (s *DeploymentSpec) GoesOn() bool {
	return s.Type == TypeDaemon || s.WhenDisconnected == KeepDisconnected
}

// DeploymentHolder is the node that may run a deployment. A node becomes the holder by compare-and-swap, if there is none or the
// lease of the holder has ended, and releases it when no process of the program is left.
type DeploymentHolder struct {
	// node that may run it; empty for none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// nodeEpoch is the epoch of the node.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// epoch increases whenever a node becomes the holder.
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch"`
}

// InstanceState is the state of a program on one node.
//
// +kubebuilder:validation:Enum=Starting;Running;Backoff;CrashLoop;Restarting;Stopping;Failed
type InstanceState string

// The states of a program on one node.
const (
	// InstanceStarting: about to be started, or just started.
	InstanceStarting InstanceState = "Starting"
	// InstanceRunning: it runs.
	InstanceRunning InstanceState = "Running"
	// InstanceBackoff: it ended and is started again after a delay.
	InstanceBackoff InstanceState = "Backoff"
	// InstanceCrashLoop: it ended several times in a row; the delays grow.
	InstanceCrashLoop InstanceState = "CrashLoop"
	// InstanceRestarting: it is restarted because its spec changed.
	InstanceRestarting InstanceState = "Restarting"
	// InstanceStopping: it is being stopped.
	InstanceStopping InstanceState = "Stopping"
	// InstanceFailed: its restart limit is reached.
	InstanceFailed InstanceState = "Failed"
)

// InstanceExit is how a program last ended.
type InstanceExit struct {
	// code is the exit code, or -1 if it has none.
	Code int32 `json:"code"`
	// message describes the exit for people.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// at is when.
	At metav1.MicroTime `json:"at"`
}

// DeploymentInstance is a program on one node. It exists while processes of the program may run there.
type DeploymentInstance struct {
	// node that runs it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// nodeEpoch is the epoch of the node.
	// +kubebuilder:validation:Minimum=1
	NodeEpoch int64 `json:"nodeEpoch"`
	// state of the program there.
	State InstanceState `json:"state"`
	// revision of the spec that it runs.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Revision string `json:"revision,omitempty"`
	// pid of the program, 0 while none runs.
	// +optional
	PID int32 `json:"pid,omitempty"`
	// since is when it entered this state.
	// +optional
	Since *metav1.MicroTime `json:"since,omitempty"`
	// restarts is how many times it was restarted.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`
	// failures is how many times in a row it ended without being stopped, or could not be started.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Failures int32 `json:"failures,omitempty"`
	// retryAt is when it is started again.
	// +optional
	RetryAt *metav1.MicroTime `json:"retryAt,omitempty"`
	// settling says that a daemon runs, but not yet for as long as rollout.minReady.
	// +optional
	Settling bool `json:"settling,omitempty"`
	// lastExit is how it last ended.
	// +optional
	LastExit *InstanceExit `json:"lastExit,omitempty"`
	// pause is how long no node ran the deployment when it moved here, by the clocks of both nodes.
	// +optional
	Pause *metav1.Duration `json:"pause,omitempty"`
	// message is what the program waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// DeploymentStop is the last time that a node stopped and released an enabled deployment.
type DeploymentStop struct {
	// node that released it.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// epoch of that holder.
	Epoch int64 `json:"epoch"`
	// at is when the program was asked to stop.
	At metav1.MicroTime `json:"at"`
}

// AvoidedNode is a node that gave a deployment up because it failed there again and again.
type AvoidedNode struct {
	// node that gave it up.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// revision that failed; a changed program may run there.
	// +kubebuilder:validation:MaxLength=64
	Revision string `json:"revision"`
	// until is when the node is considered again.
	Until metav1.MicroTime `json:"until"`
	// message is how it failed.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// DeploymentStatus is the observed state of a deployment or daemon.
type DeploymentStatus struct {
	// state: UNASSIGNED, ASSIGNED, LOST or DISABLED; of a daemon ENABLED or DISABLED.
	// +optional
	State DeploymentState `json:"state,omitempty"`

	// holder is the node that may run a deployment; spec.address is the node that should.
	// +optional
	Holder *DeploymentHolder `json:"holder,omitempty"`

	// nodes has the state of the program on each node.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=5000
	Nodes []DeploymentInstance `json:"nodes,omitempty"`

	// wanted is on how many nodes the program should run.
	// +optional
	Wanted int32 `json:"wanted"`

	// running is on how many of these nodes it runs.
	// +optional
	Running int32 `json:"running"`

	// mayRunOn are the lost nodes on which it ran and may still run, because it goes on without a lease: a daemon, or a deployment with
	// whenDisconnected: Keep. A node leaves the list when it is back or its Node object is deleted.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=5000
	MayRunOn []string `json:"mayRunOn,omitempty"`

	// avoid are the nodes that gave it up because it failed there. Others are preferred to them.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=5000
	Avoid []AvoidedNode `json:"avoid,omitempty"`

	// isolated says that the program runs as a user of its own unless spec.user says otherwise. It is not set for objects from before
	// there were such users: these run as the node's user.
	// +optional
	Isolated bool `json:"isolated,omitempty"`

	// lastStop is when a node last released it.
	// +optional
	LastStop *DeploymentStop `json:"lastStop,omitempty"`

	// conditions: Valid and Running.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Deployment is a program that one node claims (type deployment) or that every matching node runs (type daemon).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=edep,categories=ebb
// +kubebuilder:selectablefield:JSONPath=`.spec.type`
// +kubebuilder:selectablefield:JSONPath=`.spec.address`
// +kubebuilder:selectablefield:JSONPath=`.status.holder.node`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="Holder",type=string,JSONPath=`.status.holder.node`
// +kubebuilder:printcolumn:name="Running",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="Wanted",type=integer,JSONPath=`.status.wanted`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Running")].reason`
// +kubebuilder:printcolumn:name="Command",type=string,priority=1,JSONPath=`.spec.command`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.holder) || (has(self.status) && has(self.status.holder) && self.status.holder.epoch >= oldSelf.status.holder.epoch)",message="a deployment's holder cannot be removed and its epoch cannot decrease"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.holder) || !has(self.status.holder.node) || (has(oldSelf.status) && has(oldSelf.status.holder) && has(oldSelf.status.holder.node) && oldSelf.status.holder.node == self.status.holder.node && oldSelf.status.holder.nodeEpoch == self.status.holder.nodeEpoch) || !has(oldSelf.status) || !has(oldSelf.status.holder) || self.status.holder.epoch > oldSelf.status.holder.epoch",message="a deployment's holder can change only with a greater epoch"
type Deployment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the program and the nodes that should run it.
	Spec DeploymentSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status DeploymentStatus `json:"status,omitempty"`
}

// DeploymentList is a list of deployments and daemons.
//
// +kubebuilder:object:root=true
type DeploymentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Deployment `json:"items"`
}

// IsEnabled reports whether the program should run.
func (d *Deployment) IsEnabled() bool {
	return d.DeletionTimestamp.IsZero() && (d.Spec.Enabled == nil || *d.Spec.Enabled)
}

// Holder returns the holder of the deployment.
func (d *Deployment) Holder() DeploymentHolder {
	if d.Status.Holder == nil {
		return DeploymentHolder{}
	}
	return *d.Status.Holder
}

// RunsAs is the user of the program: empty for one of its own, NodeUser, or a user of the machine. An object that an earlier version
// has seen runs as the node's user.
func (d *Deployment) RunsAs() string {
	if d.Spec.User == "" && !d.Status.Isolated && len(d.Status.Conditions) > 0 {
		return NodeUser
	}
	return d.Spec.User
}

// Instance returns the instance on a node, or nil.
func (d *Deployment) Instance(node string) *DeploymentInstance {
	for i := range d.Status.Nodes {
		if d.Status.Nodes[i].Node == node {
			return &d.Status.Nodes[i]
		}
	}
	return nil
}
