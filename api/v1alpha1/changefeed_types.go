package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ChangefeedWish is the desired state of a changefeed.
//
// +kubebuilder:validation:Enum=running;paused
type ChangefeedWish string

// The desired states.
const (
	// ChangefeedRun: it should replicate.
	ChangefeedRun ChangefeedWish = "running"
	// ChangefeedPause: it should stop, and continue from its checkpoint when it is resumed.
	ChangefeedPause ChangefeedWish = "paused"
)

// ChangefeedForward is whether rows are forwarded to the sink as they were logged.
//
// +kubebuilder:validation:Enum=Auto;Never
type ChangefeedForward string

// Whether rows are forwarded.
const (
	// ForwardAuto: rows of tables that are the same at the source and at the sink are forwarded; others are written as text.
	ForwardAuto ChangefeedForward = "Auto"
	// ForwardNever: all rows are decoded and written as text.
	ForwardNever ChangefeedForward = "Never"
)

// ChangefeedState is the state of a changefeed.
//
// +kubebuilder:validation:Enum=Pending;Running;Moving;Paused;Failed
type ChangefeedState string

// The states.
const (
	// ChangefeedPending: no maintainer runs yet.
	ChangefeedPending ChangefeedState = "Pending"
	// ChangefeedRunning: its maintainer runs.
	ChangefeedRunning ChangefeedState = "Running"
	// ChangefeedMoving: its maintainer moves to another node; its tables are still replicated.
	ChangefeedMoving ChangefeedState = "Moving"
	// ChangefeedPaused: nothing of it runs.
	ChangefeedPaused ChangefeedState = "Paused"
	// ChangefeedFailed: it cannot continue without a change; status.error has the reason.
	ChangefeedFailed ChangefeedState = "Failed"
)

// PlacementPhase is the phase of a maintainer's placement.
//
// +kubebuilder:validation:Enum=Placing;Running;Stopping
type PlacementPhase string

// The phases.
const (
	// PlacementPlacing: the maintainer is placed on the node, which has not reported yet that it has bootstrapped.
	PlacementPlacing PlacementPhase = "Placing"
	// PlacementRunning: the maintainer runs.
	PlacementRunning PlacementPhase = "Running"
	// PlacementStopping: it should have no maintainer; the origin has not reported yet that its maintainer has stopped.
	PlacementStopping PlacementPhase = "Stopping"
)

// ChangefeedFinalizer keeps a Changefeed until its maintainer and dispatchers have stopped.
const ChangefeedFinalizer = "ebb.dev/changefeed"

// Conditions of a Changefeed, and reasons.
const (
	// ChangefeedReady is True while its maintainer runs and every table has a dispatcher.
	ChangefeedReady = "Ready"
	// ReasonNoSchedulableNode: there is no node to place the maintainer on.
	ReasonNoSchedulableNode = "NoSchedulableNode"
)

// DefaultPasswordKey is the default key of a password in a Secret.
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

// ChangefeedSpec is what to replicate, from where and to where. The rules about a URL are here and not at its field, because the server
// repeats the value of a refused field in its error.
//
// +kubebuilder:validation:XValidation:rule="!self.source.matches('^[^/?#]*://[^/?#]*:[^/?#]*@') && !self.source.matches('^mysql://[^@]*:.*@') && !self.source.matches('(?i)[?&](password|passwd|pwd)=')",fieldPath=".source",message="remove the password from the URL, where everybody who may read the object sees it; name a Secret in sourcePasswordSecretRef or a file in sourcePasswordFile"
// +kubebuilder:validation:XValidation:rule="!self.sink.matches('^[^/?#]*://[^/?#]*:[^/?#]*@') && !self.sink.matches('^mysql://[^@]*:.*@') && !self.sink.matches('(?i)[?&](password|passwd|pwd)=')",fieldPath=".sink",message="remove the password from the URL, where everybody who may read the object sees it; name a Secret in sinkPasswordSecretRef or a file in sinkPasswordFile"
// +kubebuilder:validation:XValidation:rule="!has(self.sourcePasswordSecretRef) || !has(self.sourcePasswordFile) || size(self.sourcePasswordFile) == 0",message="set sourcePasswordFile or sourcePasswordSecretRef, not both"
// +kubebuilder:validation:XValidation:rule="!has(self.sinkPasswordSecretRef) || !has(self.sinkPasswordFile) || size(self.sinkPasswordFile) == 0",message="set sinkPasswordFile or sinkPasswordSecretRef, not both"
// +kubebuilder:validation:XValidation:rule="!has(self.snapshot) || (self.source.startsWith('mysql://') && self.sink.startsWith('mysql://'))",message="a snapshot needs a source and a sink of mysql://"
// +kubebuilder:validation:XValidation:rule="!has(self.snapshot) || !has(self.startPosition) || size(self.startPosition) == 0",message="set snapshot or startPosition, not both: a snapshot has a position of its own"
// +kubebuilder:validation:XValidation:rule="!has(self.snapshot) || !has(self.ddl) || self.ddl",message="a snapshot needs ddl: true, because tables may be altered while they are copied"
// +kubebuilder:validation:XValidation:rule="!has(self.forward) || self.forward != 'Auto' || (self.source.startsWith('mysql://') && self.sink.startsWith('mysql://'))",message="forward: Auto needs a source and a sink of mysql://"
// +kubebuilder:validation:XValidation:rule="!has(self.forward) || self.forward != 'Auto' || !has(self.ddl) || self.ddl",message="forward: Auto needs ddl: true, because a table that is altered at the sink alone would get values of other columns"
// +kubebuilder:validation:XValidation:rule="!has(self.routing) || size(self.routing) == 0 || (self.source.startsWith('mysql://') && self.sink.startsWith('mysql://'))",message="routing needs a source and a sink of mysql://"
// +kubebuilder:validation:XValidation:rule="!has(self.leaveOut) || size(self.leaveOut) == 0 || (self.source.startsWith('mysql://') && self.sink.startsWith('mysql://'))",message="leaveOut needs a source and a sink of mysql://"
// +kubebuilder:validation:XValidation:rule="!has(self.skip) || size(self.skip) == 0 || (self.source.startsWith('mysql://') && self.sink.startsWith('mysql://'))",message="skip needs a source and a sink of mysql://"
// +kubebuilder:validation:XValidation:rule="!has(self.resumeFrom) || size(self.resumeFrom) == 0 || (self.source.startsWith('mysql://') && self.sink.startsWith('mysql://'))",message="resumeFrom needs a source and a sink of mysql://"
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

	// filter are patterns schema.table with the wildcards * and ?; one that begins with ! excludes tables. The last pattern that matches
	// decides; without a filter every table is replicated.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Filter []string `json:"filter,omitempty"`

	// routing gives tables other names at the sink. The first route that matches a table decides; a table that none matches keeps its name.
	// It can be changed only before the changefeed begins.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Routing []ChangefeedRoute `json:"routing,omitempty"`

	// leaveOut are columns and rows of tables that are not replicated. All entries that match a table apply to it. It can be changed only
	// before the changefeed begins.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	LeaveOut []ChangefeedLeaveOut `json:"leaveOut,omitempty"`

	// startPosition is where to begin: a GTID, or its sequence number. Without it the changefeed begins at the newest position.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	StartPosition string `json:"startPosition,omitempty"`

	// skip are GTIDs of transactions of the source that are not replicated: neither their rows nor their DDL. A change applies when the
	// changefeed is paused or has failed, and is resumed. status.skip shows what came of it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[0-9]{1,10}-[0-9]{1,10}-[0-9]{1,19}$`
	Skip []string `json:"skip,omitempty"`

	// resumeFrom is the GTID after which the changefeed continues when it is resumed, instead of its checkpoint, which must be before it:
	// everything in between is left out. It applies once; status.resumedFrom shows that it has.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^([0-9]{1,10}-[0-9]{1,10}-[0-9]{1,19})?$`
	ResumeFrom string `json:"resumeFrom,omitempty"`

	// snapshot makes the changefeed copy what the source has before it replicates changes: tables are created at the sink and filled.
	// It needs a source and a sink that are MariaDB, ddl, and no startPosition.
	// +optional
	Snapshot *ChangefeedSnapshot `json:"snapshot,omitempty"`

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

	// batchRows is the largest number of row changes that are written at once.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	// +kubebuilder:default=2000
	BatchRows int32 `json:"batchRows,omitempty"`

	// forward is Never (the default), or Auto: rows of a table that is the same at the source and at the sink are forwarded as they were
	// logged, by BINLOG statements, and not decoded and written as text. It needs a source and a sink that are MariaDB, and ddl. A change
	// applies when the changefeed is paused and resumed.
	// +optional
	// +kubebuilder:default=Never
	Forward ChangefeedForward `json:"forward,omitempty"`
}

// ChangefeedRoute is the name of tables at the sink.
//
// +kubebuilder:validation:XValidation:rule="(has(self.schema) && size(self.schema) > 0) || (has(self.table) && size(self.table) > 0)",message="set schema or table: a route gives tables another name"
// +kubebuilder:validation:XValidation:rule="!has(self.schema) || size(self.schema) == 0 || self.schema.contains('{schema}') || !self.match.matches('^[^.]*[*?]')",message="tables of several schemas match: use {schema} in schema, or match one schema"
// +kubebuilder:validation:XValidation:rule="!has(self.table) || size(self.table) == 0 || self.table.contains('{table}') || !self.match.matches('^[^.]*[.].*[*?]')",message="several tables match: use {table} in table, or match one table"
type ChangefeedRoute struct {
	// match is schema.table, by the names at the source, with the wildcards * and ?.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^!.\[\]\\][^.\[\]\\]*\.[^\[\]\\]+$`
	Match string `json:"match"`
	// schema at the sink, in which {schema} stands for that at the source; the same if it is empty.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Schema string `json:"schema,omitempty"`
	// table is its name at the sink, in which {table} stands for that at the source; the same if it is empty.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Table string `json:"table,omitempty"`
}

// ChangefeedLeaveOut is what of tables is not replicated.
//
// +kubebuilder:validation:XValidation:rule="(has(self.columns) && size(self.columns) > 0) || (has(self.rows) && size(self.rows) > 0)",message="set columns or rows: what of the tables is left out"
type ChangefeedLeaveOut struct {
	// match is schema.table, by the names at the source, with the wildcards * and ?.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[^!.\[\]\\][^.\[\]\\]*\.[^\[\]\\]+$`
	Match string `json:"match"`
	// columns that the tables do not have at the sink. A column of the primary key, or of a unique or foreign key, cannot be left out.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_$]+$`
	Columns []string `json:"columns,omitempty"`
	// rows is an expression; rows for which it is true are left out. It compares columns with literals (=, <>, <, <=, >, >=, IN, IS NULL),
	// and joins comparisons by AND, OR and NOT. Only columns of the key may change in a row.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[\x20-\x7e]*$`
	Rows string `json:"rows,omitempty"`
}

// ChangefeedSnapshot is how what the source has already is copied.
type ChangefeedSnapshot struct {
	// rowsPerSecond is how many rows each node copies per second at most; 0, the default, for any number. It applies to tables that are
	// started on a node from then on.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RowsPerSecond int64 `json:"rowsPerSecond,omitempty"`
	// maxKeylessBytes is how large, by the estimate of the source, a table without a key may be. It is copied in one transaction.
	// +optional
	// +kubebuilder:default=268435456
	// +kubebuilder:validation:Minimum=0
	MaxKeylessBytes *int64 `json:"maxKeylessBytes,omitempty"`
}

// ChangefeedSnapshotStatus is how far the initial copy is.
type ChangefeedSnapshotStatus struct {
	// tables to copy, and tablesDone of them that are copied.
	Tables     int64 `json:"tables"`
	TablesDone int64 `json:"tablesDone"`
	// rows that were copied, and estimatedRows about how many there are.
	Rows          int64 `json:"rows"`
	EstimatedRows int64 `json:"estimatedRows"`
	// startedAt is when it began, and finishedAt when all tables were copied.
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
	// estimatedSeconds is about how long the rest takes, as fast as it has been lately.
	// +optional
	EstimatedSeconds *int64 `json:"estimatedSeconds,omitempty"`
}

// PlacementOrigin is a placement that must have stopped before the next may begin.
type PlacementOrigin struct {
	// node of the earlier maintainer.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// nodeEpoch is the epoch of that node.
	NodeEpoch int64 `json:"nodeEpoch"`
	// epoch of the earlier placement.
	Epoch int64 `json:"epoch"`
	// stopped says that the maintainer has stopped; the origin writes it.
	// +optional
	Stopped bool `json:"stopped,omitempty"`
}

// ChangefeedPlacement is where a changefeed's maintainer runs. It is written before it takes effect.
type ChangefeedPlacement struct {
	// node of the maintainer; empty for none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// nodeEpoch is the epoch of the node.
	// +optional
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// epoch increases with every placement. Requests with an older epoch are refused.
	// +kubebuilder:validation:Minimum=0
	Epoch int64 `json:"epoch"`
	// phase of the placement.
	// +optional
	Phase PlacementPhase `json:"phase,omitempty"`
	// since is when it entered this phase.
	// +optional
	Since *metav1.MicroTime `json:"since,omitempty"`
	// from is the previous placement, until it has stopped.
	// +optional
	From *PlacementOrigin `json:"from,omitempty"`
}

// ChangefeedNode counts a changefeed's dispatchers on one node.
type ChangefeedNode struct {
	// node they are on.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// dispatchers there, including that of the table trigger.
	Dispatchers int64 `json:"dispatchers"`
}

// ChangefeedFilter is the filter that a changefeed works with.
type ChangefeedFilter struct {
	// patterns are those of spec.filter when the changefeed started, or was last resumed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	Patterns []string `json:"patterns,omitempty"`
	// pending says that spec.filter has changed since. It applies when the changefeed is paused and resumed.
	// +optional
	Pending bool `json:"pending,omitempty"`
	// stopped says that the changefeed was paused or has failed, so that spec.filter applies when it starts again.
	// +optional
	Stopped bool `json:"stopped,omitempty"`
}

// ChangefeedSkip is a transaction that is not replicated.
type ChangefeedSkip struct {
	// gtid of the transaction.
	// +kubebuilder:validation:MaxLength=64
	GTID string `json:"gtid"`
	// passedAt is when the checkpoint had passed it; not set before.
	// +optional
	PassedAt *metav1.Time `json:"passedAt,omitempty"`
}

// ChangefeedResume is a position at which a changefeed continued.
type ChangefeedResume struct {
	// gtid after which it continued.
	// +kubebuilder:validation:MaxLength=64
	GTID string `json:"gtid"`
	// checkpoint that it had; what came after it, up to gtid, was left out.
	Checkpoint int64 `json:"checkpoint"`
	// at is when it continued.
	At metav1.Time `json:"at"`
}

// ChangefeedStatus is the observed state of a changefeed.
type ChangefeedStatus struct {
	// state of the changefeed.
	// +optional
	State ChangefeedState `json:"state,omitempty"`

	// startPosition is where it began.
	// +optional
	StartPosition *int64 `json:"startPosition,omitempty"`

	// checkpoint is a position up to which every change is at the sink. It is written when it changes, at most every 10 s, and less often if a node maintains very many changefeeds.
	// +optional
	Checkpoint int64 `json:"checkpoint,omitempty"`

	// checkpointTime is when the source committed the checkpoint.
	// +optional
	CheckpointTime *metav1.Time `json:"checkpointTime,omitempty"`

	// slowest is what limits the checkpoint. It is written with the checkpoint.
	// +optional
	Slowest string `json:"slowest,omitempty"`

	// placement of its maintainer.
	// +optional
	Placement *ChangefeedPlacement `json:"placement,omitempty"`

	// observedDrain is the UID of the drain that the maintainer has acknowledged, and observedEpoch the epoch of its placement then; nodes
	// was counted after that.
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

	// filter that is in effect.
	// +optional
	Filter *ChangefeedFilter `json:"filter,omitempty"`

	// skip are the transactions of spec.skip when the changefeed started, or was last resumed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Skip []ChangefeedSkip `json:"skip,omitempty"`

	// resumedFrom is the last spec.resumeFrom that was applied.
	// +optional
	ResumedFrom *ChangefeedResume `json:"resumedFrom,omitempty"`

	// snapshot is how far the initial copy is.
	// +optional
	Snapshot *ChangefeedSnapshotStatus `json:"snapshot,omitempty"`

	// tables is how many tables are replicated.
	// +optional
	Tables int64 `json:"tables,omitempty"`

	// error is why it does not replicate, or its last error.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Error string `json:"error,omitempty"`

	// conditions: Ready.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Changefeed replicates changes of tables from a source to a sink.
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
// +kubebuilder:validation:XValidation:rule="self.spec.source == oldSelf.spec.source && self.spec.sink == oldSelf.spec.sink",message="a changefeed's source and sink cannot be changed, because a position is valid only for its source; create another changefeed"
// +kubebuilder:validation:XValidation:rule="has(self.spec.snapshot) == has(oldSelf.spec.snapshot) || !has(oldSelf.status) || !has(oldSelf.status.startPosition)",message="a snapshot can be added or removed only before the changefeed begins; create another changefeed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.startPosition) || (has(self.spec.routing) ? has(oldSelf.spec.routing) && self.spec.routing == oldSelf.spec.routing : !has(oldSelf.spec.routing))",message="routing can be changed only before the changefeed begins, because what it has written has the names of then; create another changefeed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.startPosition) || (has(self.spec.leaveOut) ? has(oldSelf.spec.leaveOut) && self.spec.leaveOut == oldSelf.spec.leaveOut : !has(oldSelf.spec.leaveOut))",message="leaveOut can be changed only before the changefeed begins, because what it has written was chosen by it; create another changefeed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.placement) || (has(self.status) && has(self.status.placement) && self.status.placement.epoch >= oldSelf.status.placement.epoch)",message="a changefeed's placement cannot be removed and its epoch cannot decrease"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.placement) || !has(self.status) || !has(self.status.placement) || !has(self.status.placement.node) || (has(oldSelf.status.placement.node) && oldSelf.status.placement.node == self.status.placement.node) || self.status.placement.epoch > oldSelf.status.placement.epoch",message="a changefeed's placement can change only with a greater epoch"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.checkpoint) || (has(self.status) && has(self.status.checkpoint) && self.status.checkpoint >= oldSelf.status.checkpoint)",message="a changefeed's checkpoint cannot decrease"
type Changefeed struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what to replicate.
	Spec ChangefeedSpec `json:"spec"`
	// status is the observed state.
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

// Same reports whether another entry is of the same transaction, and was passed, too, if this one was.
func (s ChangefeedSkip) Same(o ChangefeedSkip) bool {
	return s.GTID == o.GTID && (s.PassedAt == nil) == (o.PassedAt == nil)
}

// Wanted reports whether the changefeed should replicate.
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
