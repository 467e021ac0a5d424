package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DeploymentType says who runs a program.
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

// DeploymentState is where a deployment or a daemon stands.
//
// +kubebuilder:validation:Enum=UNASSIGNED;ASSIGNED;LOST;DISABLED;ENABLED
type DeploymentState string

// The states. A deployment is UNASSIGNED, ASSIGNED, LOST or DISABLED; a daemon is ENABLED or DISABLED.
const (
	// StateUnassigned: no address.
	StateUnassigned DeploymentState = "UNASSIGNED"
	// StateAssigned: the address is a node with a lease.
	StateAssigned DeploymentState = "ASSIGNED"
	// StateLost: the address is a node without one.
	StateLost DeploymentState = "LOST"
	// StateDisabled: not enabled.
	StateDisabled DeploymentState = "DISABLED"
	// StateEnabled: an enabled daemon.
	StateEnabled DeploymentState = "ENABLED"
)

// ClaimPolicy says how a node decides which deployments to claim.
//
// +kubebuilder:validation:Enum=deployment_count;resource_usage;none
type ClaimPolicy string

// The three policies.
const (
	// ClaimByCount: the node with the fewest deployments claims.
	ClaimByCount ClaimPolicy = "deployment_count"
	// ClaimByUsage: the node with the lowest use of CPU and memory claims.
	ClaimByUsage ClaimPolicy = "resource_usage"
	// ClaimNone: the node claims nothing and never writes an address; it runs what is addressed to it.
	ClaimNone ClaimPolicy = "none"
)

// Codes of what can be wrong with deployments: reasons of conditions and events, the field code of log lines, and the
// label code of the counter ebb_deployment_errors_total.
const (
	// ErrInvalidType: the type is neither daemon nor deployment. The record is skipped.
	ErrInvalidType = "ERR_INVALID_TYPE"
	// ErrDaemonAddressSet: a daemon has an address. The address is ignored.
	ErrDaemonAddressSet = "ERR_DAEMON_ADDRESS_SET"
	// ErrClaimConflict: another node claimed first. The claim is planned again.
	ErrClaimConflict = "ERR_CLAIM_CONFLICT"
	// ErrPolicyDisabled: the node's claim policy is none.
	ErrPolicyDisabled = "ERR_POLICY_DISABLED"
	// ErrDaemonMissing: an enabled daemon does not run on a node where it should.
	ErrDaemonMissing = "ERR_DAEMON_MISSING"
)

// Conditions of a Deployment, and the condition of a Node about claims.
const (
	// DeploymentValid is False while something in the spec is wrong; its reason is the code.
	DeploymentValid = "Valid"
	// DeploymentRunning is True while the program runs everywhere it should.
	DeploymentRunning = "Running"
	// NodeClaiming is True on a node that claims deployments.
	NodeClaiming = "Claiming"
)

// Reasons of these conditions beside the codes.
const (
	// ReasonAccepted: nothing is wrong with the spec.
	ReasonAccepted = "Accepted"
	// ReasonInvalidSelector: the selector cannot be understood; it matches no node.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonRunning: the program runs everywhere it should.
	ReasonRunning = "Running"
	// ReasonUnassigned: no node has claimed the deployment.
	ReasonUnassigned = "Unassigned"
	// ReasonNoEligibleNode: no node may claim the deployment.
	ReasonNoEligibleNode = "NoEligibleNode"
	// ReasonNotRunning: the program's node does not run it; its entry says why.
	ReasonNotRunning = "NotRunning"
	// ReasonDisabled: nobody wants it to run.
	ReasonDisabled = "Disabled"
	// ReasonClaiming: the node claims by its policy.
	ReasonClaiming = "Claiming"
)

// DeploymentFinalizer holds a Deployment until no node runs it any more.
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

// RestartPolicy says how a program that ended is started again.
type RestartPolicy struct {
	// backoff is the pause before the first restart; it doubles with every further one.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms')",message="must be a duration of at least 10ms, such as 1s"
	// +kubebuilder:default="1s"
	Backoff *metav1.Duration `json:"backoff,omitempty"`

	// maxBackoff is the longest pause.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms')",message="must be a duration of at least 10ms, such as 5m"
	// +kubebuilder:default="5m"
	MaxBackoff *metav1.Duration `json:"maxBackoff,omitempty"`

	// resetAfter is how long a program must run for its earlier failures to be forgotten.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a duration ahead, such as 1m"
	// +kubebuilder:default="1m"
	ResetAfter *metav1.Duration `json:"resetAfter,omitempty"`

	// limit is how many times in a row a program is started again; 0 is without end.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Limit int32 `json:"limit,omitempty"`
}

// StopPolicy says how a program is stopped.
type StopPolicy struct {
	// grace is how long the program has after SIGTERM before its whole group is killed. It may be less when the node's
	// lease ends.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s') && duration(self) <= duration('1h')",message="must be a duration up to 1h, such as 10s"
	// +kubebuilder:default="10s"
	Grace *metav1.Duration `json:"grace,omitempty"`
}

// RolloutPolicy says how a changed daemon is restarted.
type RolloutPolicy struct {
	// maxUnavailable is on how many nodes at once the daemon may be down for it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:default=1
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`
}

// DeploymentSpec is a program and who should run it.
type DeploymentSpec struct {
	// type is deployment (one node claims it, the default) or daemon (every node with matching labels runs it).
	// +optional
	// +kubebuilder:default=deployment
	Type DeploymentType `json:"type,omitempty"`

	// enabled is whether the program should run. Disabling stops every instance and keeps the address.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// address is the node that should run a deployment; empty until a node claims it. A daemon has none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	Address string `json:"address,omitempty"`

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

	// selector chooses nodes by their labels; without one every node is chosen.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// priority orders a drain: programs with a higher one are stopped later.
	// +optional
	Priority int32 `json:"priority,omitempty"`

	// restart says how a program that ended is started again.
	// +optional
	// +kubebuilder:default={}
	Restart RestartPolicy `json:"restart,omitempty"`

	// stop says how the program is stopped.
	// +optional
	// +kubebuilder:default={}
	Stop StopPolicy `json:"stop,omitempty"`

	// rollout says how a changed daemon is restarted, node by node.
	// +optional
	// +kubebuilder:default={}
	Rollout RolloutPolicy `json:"rollout,omitempty"`
}

// DeploymentHolder is who may run a deployment. It is taken from nobody, or from an epoch that is over, by
// compare-and-swap, and given back when nothing of the program is left.
type DeploymentHolder struct {
	// node that may run it; empty for nobody.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node,omitempty"`
	// nodeEpoch is the incarnation of the node.
	// +optional
	// +kubebuilder:validation:Minimum=0
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// epoch grows whenever somebody takes the deployment.
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch"`
}

// InstanceState is how a program is on one node.
//
// +kubebuilder:validation:Enum=Starting;Running;Backoff;CrashLoop;Restarting;Stopping;Failed
type InstanceState string

// The states of a program on one node.
const (
	// InstanceStarting: about to be started, or just started.
	InstanceStarting InstanceState = "Starting"
	// InstanceRunning: it runs.
	InstanceRunning InstanceState = "Running"
	// InstanceBackoff: it ended and is started again after a pause.
	InstanceBackoff InstanceState = "Backoff"
	// InstanceCrashLoop: it ended several times in a row; the pauses grow.
	InstanceCrashLoop InstanceState = "CrashLoop"
	// InstanceRestarting: it is restarted because its spec changed.
	InstanceRestarting InstanceState = "Restarting"
	// InstanceStopping: it is being stopped.
	InstanceStopping InstanceState = "Stopping"
	// InstanceFailed: its restarts are used up.
	InstanceFailed InstanceState = "Failed"
)

// InstanceExit is how a program last ended.
type InstanceExit struct {
	// code is the exit code, or -1 if it has none.
	Code int32 `json:"code"`
	// message says the same and more to a person.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
	// at is when.
	At metav1.MicroTime `json:"at"`
}

// DeploymentInstance is a program on one node. It is there while something of the program may run there.
type DeploymentInstance struct {
	// node it is on.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node"`
	// nodeEpoch is the incarnation of the node.
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
	// since is when it came into this state.
	// +optional
	Since *metav1.MicroTime `json:"since,omitempty"`
	// restarts is how many times it was started again.
	// +optional
	Restarts int32 `json:"restarts,omitempty"`
	// lastExit is how it last ended.
	// +optional
	LastExit *InstanceExit `json:"lastExit,omitempty"`
	// pause is how long nobody ran the deployment when it moved here, by the clocks of both nodes.
	// +optional
	Pause *metav1.Duration `json:"pause,omitempty"`
	// message says what it waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// DeploymentStop is the last time that a node gave back a deployment that should run on.
type DeploymentStop struct {
	// node that gave it back.
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node"`
	// epoch of the holder that it was.
	Epoch int64 `json:"epoch"`
	// at is when the program was asked to stop.
	At metav1.MicroTime `json:"at"`
}

// DeploymentStatus is how a deployment or daemon is.
type DeploymentStatus struct {
	// state: UNASSIGNED, ASSIGNED, LOST or DISABLED; of a daemon ENABLED or DISABLED.
	// +optional
	State DeploymentState `json:"state,omitempty"`

	// holder is who may run a deployment; address is who should.
	// +optional
	Holder *DeploymentHolder `json:"holder,omitempty"`

	// nodes is how the program is on each node.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=5000
	Nodes []DeploymentInstance `json:"nodes,omitempty"`

	// wanted is on how many nodes the program should run.
	// +optional
	Wanted int32 `json:"wanted"`

	// running is on how many of them it does.
	// +optional
	Running int32 `json:"running"`

	// lastStop is when a node last gave it back.
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
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.holder) || (has(self.status) && has(self.status.holder) && self.status.holder.epoch >= oldSelf.status.holder.epoch)",message="a deployment's holder never vanishes and its epoch never goes backwards"
// +kubebuilder:validation:XValidation:rule="!has(self.status) || !has(self.status.holder) || !has(self.status.holder.node) || (has(oldSelf.status) && has(oldSelf.status.holder) && has(oldSelf.status.holder.node) && oldSelf.status.holder.node == self.status.holder.node && oldSelf.status.holder.nodeEpoch == self.status.holder.nodeEpoch) || !has(oldSelf.status) || !has(oldSelf.status.holder) || self.status.holder.epoch > oldSelf.status.holder.epoch",message="a deployment's holder changes only together with a greater epoch"
type Deployment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the program and who should run it.
	Spec DeploymentSpec `json:"spec"`
	// status is how it is.
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

// IsEnabled says whether the program should run.
func (d *Deployment) IsEnabled() bool {
	return d.DeletionTimestamp.IsZero() && (d.Spec.Enabled == nil || *d.Spec.Enabled)
}

// Holder is who may run the deployment.
func (d *Deployment) Holder() DeploymentHolder {
	if d.Status.Holder == nil {
		return DeploymentHolder{}
	}
	return *d.Status.Holder
}

// Instance is the program on a node, or nil.
func (d *Deployment) Instance(node string) *DeploymentInstance {
	for i := range d.Status.Nodes {
		if d.Status.Nodes[i].Node == node {
			return &d.Status.Nodes[i]
		}
	}
	return nil
}
