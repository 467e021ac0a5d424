package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChangefeedWish is what people want of a changefeed.
//
// +kubebuilder:validation:Enum=running;paused
type ChangefeedWish string

// The wishes.
const (
	// ChangefeedRun: it should flow.
	ChangefeedRun ChangefeedWish = "running"
	// ChangefeedPause: it should stand still and go on from where it stood.
	ChangefeedPause ChangefeedWish = "paused"
)

// ChangefeedState is how a changefeed is.
//
// +kubebuilder:validation:Enum=Pending;Running;Moving;Paused;Failed
type ChangefeedState string

// The states.
const (
	// ChangefeedPending: no maintainer runs yet.
	ChangefeedPending ChangefeedState = "Pending"
	// ChangefeedRunning: its maintainer runs.
	ChangefeedRunning ChangefeedState = "Running"
	// ChangefeedMoving: its maintainer moves to another node; its tables go on flowing.
	ChangefeedMoving ChangefeedState = "Moving"
	// ChangefeedPaused: nothing of it runs.
	ChangefeedPaused ChangefeedState = "Paused"
	// ChangefeedFailed: it cannot go on as it is; its error says why.
	ChangefeedFailed ChangefeedState = "Failed"
)

// PlacementPhase is how far a maintainer's placement has come.
//
// +kubebuilder:validation:Enum=Placing;Running;Stopping
type PlacementPhase string

// The phases.
const (
	// PlacementPlacing: the node was told, and has not said yet that its maintainer has bootstrapped.
	PlacementPlacing PlacementPhase = "Placing"
	// PlacementRunning: the maintainer schedules.
	PlacementRunning PlacementPhase = "Running"
	// PlacementStopping: nobody should maintain it; the origin has yet to say that it stopped.
	PlacementStopping PlacementPhase = "Stopping"
)

// ChangefeedFinalizer holds a Changefeed until nothing of it runs any more.
const ChangefeedFinalizer = "ebb.dev/changefeed"

// Conditions of a Changefeed, and reasons.
const (
	// ChangefeedReady is True while its maintainer runs and every table has a dispatcher.
	ChangefeedReady = "Ready"
	// ReasonNoSchedulableNode: there is no node to place the maintainer on.
	ReasonNoSchedulableNode = "NoSchedulableNode"
)

// DefaultPasswordKey is where in a Secret a password is unless told otherwise.
const DefaultPasswordKey = "password"

// PasswordSecretRef names a password in a Secret.
type PasswordSecretRef struct {
	// name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
	// key in the Secret's data.
	// +optional
	// +kubebuilder:default=password
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}

// ChangefeedSpec says what flows from where to where. Rules about one URL are here rather than at its field: the server repeats a
// field's value when it refuses it.
//
// +kubebuilder:validation:XValidation:rule="!self.source.matches('^[^/?#]*://[^/?#]*:[^/?#]*@') && !self.source.matches('^mysql://[^@]*:.*@') && !self.source.matches('(?i)[?&](password|passwd|pwd)=')",fieldPath=".source",message="leave the password out of the URL: everybody who may read the object would know it; name a Secret in sourcePasswordSecretRef or a file in sourcePasswordFile"
// +kubebuilder:validation:XValidation:rule="!self.sink.matches('^[^/?#]*://[^/?#]*:[^/?#]*@') && !self.sink.matches('^mysql://[^@]*:.*@') && !self.sink.matches('(?i)[?&](password|passwd|pwd)=')",fieldPath=".sink",message="leave the password out of the URL: everybody who may read the object would know it; name a Secret in sinkPasswordSecretRef or a file in sinkPasswordFile"
// +kubebuilder:validation:XValidation:rule="!has(self.sourcePasswordSecretRef) || !has(self.sourcePasswordFile) || size(self.sourcePasswordFile) == 0",message="give one of sourcePasswordFile and sourcePasswordSecretRef"
// +kubebuilder:validation:XValidation:rule="!has(self.sinkPasswordSecretRef) || !has(self.sinkPasswordFile) || size(self.sinkPasswordFile) == 0",message="give one of sinkPasswordFile and sinkPasswordSecretRef"
type ChangefeedSpec struct {
	// source is where changes come from: mysql://user@host:port (MariaDB 10.6 or newer, by GTID), or datagen://?tables=N&rate=R&seed=S.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Source string `json:"source"`

	// sourcePasswordFile is the file with the source's password, below the nodes' --credentials-dir.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$`
	SourcePasswordFile string `json:"sourcePasswordFile,omitempty"`

	// sourcePasswordSecretRef is the Secret with the source's password, in the changefeed's namespace.
	// +optional
	SourcePasswordSecretRef *PasswordSecretRef `json:"sourcePasswordSecretRef,omitempty"`

	// sink is where changes go: mysql://user@host:port, file:///directory, or blackhole://.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	Sink string `json:"sink"`

	// sinkPasswordFile is the file with the sink's password, below the nodes' --credentials-dir.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$`
	SinkPasswordFile string `json:"sinkPasswordFile,omitempty"`

	// sinkPasswordSecretRef is the Secret with the sink's password, in the changefeed's namespace.
	// +optional
	SinkPasswordSecretRef *PasswordSecretRef `json:"sinkPasswordSecretRef,omitempty"`

	// filter are patterns schema.table with * and ?; one that begins with ! leaves tables out. The last that matches decides;
	// without any, every table flows.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Filter []string `json:"filter,omitempty"`

	// startPosition is where to begin: a GTID, or the sequence number of one. Without it the changefeed begins now.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	StartPosition string `json:"startPosition,omitempty"`

	// ddl says whether DDL is replicated too.
	// +optional
	// +kubebuilder:default=true
	DDL *bool `json:"ddl,omitempty"`

	// state is running (the default) or paused.
	// +optional
	// +kubebuilder:default=running
	State ChangefeedWish `json:"state,omitempty"`

	// workers is how many tables of the changefeed a node writes at the same time.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=256
	// +kubebuilder:default=8
	Workers int32 `json:"workers,omitempty"`

	// batchRows is how many row changes are written at once at most.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +kubebuilder:default=2000
	BatchRows int32 `json:"batchRows,omitempty"`
}

// PlacementOrigin is a placement that must have stopped before the next may begin.
type PlacementOrigin struct {
	// node of the earlier maintainer.
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node"`
	// nodeEpoch is the incarnation of that node.
	NodeEpoch int64 `json:"nodeEpoch"`
	// epoch of the earlier placement.
	Epoch int64 `json:"epoch"`
	// stopped says that nothing of it runs any more; the origin writes it.
	// +optional
	Stopped bool `json:"stopped,omitempty"`
}

// ChangefeedPlacement is where a changefeed's maintainer runs. It is written before it takes effect: a move is this record.
type ChangefeedPlacement struct {
	// node of the maintainer; empty for nobody.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node,omitempty"`
	// nodeEpoch is the incarnation of the node.
	// +optional
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// epoch grows with every placement. What carries an older one is refused.
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch"`
	// phase of the placement.
	// +optional
	Phase PlacementPhase `json:"phase,omitempty"`
	// since is when it came into this phase.
	// +optional
	Since *metav1.MicroTime `json:"since,omitempty"`
	// from is the placement before, until it has stopped.
	// +optional
	From *PlacementOrigin `json:"from,omitempty"`
}

// ChangefeedNode counts a changefeed's dispatchers on one node.
type ChangefeedNode struct {
	// node they are on.
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node"`
	// dispatchers there, the table trigger's included.
	Dispatchers int64 `json:"dispatchers"`
}

// ChangefeedStatus is how a changefeed is.
type ChangefeedStatus struct {
	// state of the changefeed.
	// +optional
	State ChangefeedState `json:"state,omitempty"`

	// startPosition is where it began.
	// +optional
	StartPosition *int64 `json:"startPosition,omitempty"`

	// checkpoint is a position up to which everything is at the sink. It is written on change, at most every 10 s, and less often where a node maintains very many.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`

	// checkpointTime is when the source committed the checkpoint.
	// +optional
	CheckpointTime *metav1.Time `json:"checkpointTime,omitempty"`

	// slowest says what holds the checkpoint where it is. It is written with the checkpoint.
	// +optional
	Slowest string `json:"slowest,omitempty"`

	// placement of its maintainer.
	// +optional
	Placement *ChangefeedPlacement `json:"placement,omitempty"`

	// observedDrain is the UID of the drain that the maintainer knows of, and observedEpoch the placement in which it
	// learned of it; nodes was counted after.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	ObservedDrain string `json:"observedDrain,omitempty"`
	// +optional
	ObservedEpoch int64 `json:"observedEpoch,omitempty"`

	// nodes counts its dispatchers by node.
	// +optional
	// +listType=map
	// +listMapKey=node
	Nodes []ChangefeedNode `json:"nodes,omitempty"`

	// tables is how many tables flow.
	// +optional
	Tables int64 `json:"tables,omitempty"`

	// error is why it does not flow, or what it last stumbled over.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Error string `json:"error,omitempty"`

	// conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Changefeed carries changes of tables from a source to a sink.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=cf,categories=ebb
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.placement.node`
// +kubebuilder:printcolumn:name="Tables",type=integer,JSONPath=`.status.tables`
// +kubebuilder:printcolumn:name="Checkpoint",type=integer,JSONPath=`.status.checkpoint`
// +kubebuilder:printcolumn:name="Error",type=string,priority=1,JSONPath=`.status.error`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec.source == oldSelf.spec.source && self.spec.sink == oldSelf.spec.sink",message="a changefeed's source and sink cannot be changed: positions of one mean nothing to another; create another changefeed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.placement) || (has(self.status) && has(self.status.placement) && self.status.placement.epoch >= oldSelf.status.placement.epoch)",message="a changefeed's placement never vanishes and its epoch never goes backwards"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.placement) || !has(self.status) || !has(self.status.placement) || !has(self.status.placement.node) || (has(oldSelf.status.placement.node) && oldSelf.status.placement.node == self.status.placement.node) || self.status.placement.epoch > oldSelf.status.placement.epoch",message="a changefeed moves only together with a greater epoch"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.checkpoint) || (has(self.status) && has(self.status.checkpoint) && self.status.checkpoint >= oldSelf.status.checkpoint)",message="a changefeed's checkpoint never goes backwards"
type Changefeed struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what flows.
	Spec ChangefeedSpec `json:"spec"`
	// status is how it flows.
	// +optional
	Status ChangefeedStatus `json:"status,omitempty"`
}

// ChangefeedList is a list of changefeeds.
//
// +kubebuilder:object:root=true
type ChangefeedList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Changefeed `json:"items"`
}

// Wanted says whether the changefeed should flow.
func (c *Changefeed) Wanted() bool {
	return c.DeletionTimestamp.IsZero() && c.Spec.State != ChangefeedPause
}

// Placement is where the maintainer runs.
func (c *Changefeed) Placement() ChangefeedPlacement {
	if c.Status.Placement == nil {
		return ChangefeedPlacement{}
	}
	return *c.Status.Placement
}
