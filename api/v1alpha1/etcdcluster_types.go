package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EtcdClusterPhase is the phase of an etcd cluster.
//
// +kubebuilder:validation:Enum=Creating;Running;Scaling;Stopped;Failed
type EtcdClusterPhase string

// The phases.
const (
	// EtcdClusterPhaseCreating: its first members are being started, for the first time or again.
	EtcdClusterPhaseCreating EtcdClusterPhase = "Creating"
	// EtcdClusterPhaseRunning: it has as many members as it should have, and a quorum.
	EtcdClusterPhaseRunning EtcdClusterPhase = "Running"
	// EtcdClusterPhaseScaling: members are added, removed or moved, or the cluster is being stopped.
	EtcdClusterPhaseScaling EtcdClusterPhase = "Scaling"
	// EtcdClusterPhaseStopped: no member runs.
	EtcdClusterPhaseStopped EtcdClusterPhase = "Stopped"
	// EtcdClusterPhaseFailed: it needs a person; a condition has the reason and what to do.
	EtcdClusterPhaseFailed EtcdClusterPhase = "Failed"
)

// Conditions of an EtcdCluster.
const (
	// EtcdReady is True while a quorum of the desired members serves clients.
	EtcdReady = "Ready"
	// EtcdProgressing is True while members are added, removed or moved.
	EtcdProgressing = "Progressing"
	// EtcdScheduleValid is False while spec.schedule cannot be followed.
	EtcdScheduleValid = "ScheduleValid"
	// EtcdQuorumLost is True while too many members are lost for a quorum.
	EtcdQuorumLost = "QuorumLost"
	// EtcdDataMissing is True while too many members of a stopped cluster have no data to start it.
	EtcdDataMissing = "DataMissing"
	// EtcdSnapshotFailed is True while a snapshot that is needed cannot be taken, verified or copied.
	EtcdSnapshotFailed = "SnapshotFailed"
	// EtcdMemberFailing is True while a member's process cannot be kept running, or a new member does not catch up.
	EtcdMemberFailing = "MemberFailing"
	// EtcdNoSpace is True while etcd refuses writes because a database has reached its quota.
	EtcdNoSpace = "NoSpace"
	// EtcdCorrupt is True while etcd says that the data of a member differs from the others'.
	EtcdCorrupt = "Corrupt"
	// EtcdRestorePending is True while spec.restore waits to be carried out; the message has what it waits for.
	EtcdRestorePending = "RestorePending"
)

// Reasons of conditions and events of an EtcdCluster, with the words of two of them.
const (
	ReasonEtcdCreating = "Creating"
	ReasonEtcdRunning  = "Running"
	ReasonEtcdScaling  = "Scaling"
	ReasonEtcdStopping = "Stopping"
	ReasonEtcdStopped  = "Stopped"
	ReasonEtcdFailed   = "Failed"
	ReasonEtcdAlarm    = "Alarm"

	ReasonEtcdFollowed    = "Followed"
	ReasonEtcdBadSchedule = "BadSchedule"

	EventEtcdClusterCreated = "ClusterCreated"
	EventEtcdClusterStopped = "ClusterStopped"
	EventEtcdClusterScaled  = "ClusterScaled"

	MessageEtcdStopped     = "Cluster stopped"
	MessageEtcdScaledTo0   = "Cluster scaled to zero and stopped"
	MessageEtcdRestarting  = "Restarting cluster from stopped state"
	MessageEtcdBootstrap   = "Creating cluster"
	MessageEtcdRunning     = "Cluster is running"
	EtcdClusterFinalizer   = "ebb.dev/etcdcluster"
	EtcdClusterDefaultSize = 3
	// EtcdFromNothing, in place of the name of a snapshot, stands for an empty cluster.
	EtcdFromNothing = "none"
)

// EtcdOnStop is what happens to the members' data when a cluster is scaled to zero.
//
// +kubebuilder:validation:Enum=SnapshotThenDelete;Retain;Delete
type EtcdOnStop string

// The policies.
const (
	// EtcdSnapshotThenDelete: a snapshot is taken, verified and copied, then the members' data is deleted.
	EtcdSnapshotThenDelete EtcdOnStop = "SnapshotThenDelete"
	// EtcdRetain: the members' data stays where it is.
	EtcdRetain EtcdOnStop = "Retain"
	// EtcdDelete: the data is deleted; the next start begins empty.
	EtcdDelete EtcdOnStop = "Delete"
)

// EtcdStorage is where members keep their data and what happens to it.
type EtcdStorage struct {
	// onStop is what happens to the data when the cluster is scaled to zero.
	// +optional
	// +kubebuilder:default=SnapshotThenDelete
	OnStop EtcdOnStop `json:"onStop,omitempty"`

	// stopTimeout is how long a stop may keep clients out before its data is safe. Then they are served again, and the stop is tried later.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be a duration of at least 1s, such as 5m"
	// +kubebuilder:default="5m"
	StopTimeout *metav1.Duration `json:"stopTimeout,omitempty"`

	// dir is a directory below the nodes' --etcd-dir in which members keep their data.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$`
	Dir string `json:"dir,omitempty"`

	// quota bounds the database of each member; etcd refuses writes beyond it. The default is 2Gi.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(self).compareTo(quantity('16Mi')) >= 0 && quantity(self).compareTo(quantity('64Gi')) <= 0",message="must be from 16Mi to 64Gi"
	Quota *resource.Quantity `json:"quota,omitempty"`
}

// EtcdSnapshotPolicy is where and how many snapshots are kept.
type EtcdSnapshotPolicy struct {
	// dir is a directory below the nodes' --etcd-snapshot-dir in which snapshots are kept.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$`
	Dir string `json:"dir,omitempty"`

	// keep is how many snapshots are kept.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=3
	Keep int32 `json:"keep,omitempty"`

	// copies is on how many nodes each snapshot is kept, if there are enough nodes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7
	// +kubebuilder:default=2
	Copies int32 `json:"copies,omitempty"`
}

// EtcdSuspension is a stop by the schedule.
type EtcdSuspension struct {
	// since is the time of the schedule at which the cluster was to stop.
	Since metav1.Time `json:"since"`
	// size is spec.size at that time. Another one ends the suspension.
	Size int32 `json:"size"`
}

// EtcdSchedule stops and starts a cluster at set times.
type EtcdSchedule struct {
	// stop is when to stop the cluster, as a cron expression: minute hour day month weekday.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Stop string `json:"stop,omitempty"`

	// start is when to start it again, with spec.size members, as a cron expression.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Start string `json:"start,omitempty"`

	// timeZone of both, such as Europe/Berlin. The default is UTC.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
}

// EtcdOptions are options of etcd itself.
type EtcdOptions struct {
	// heartbeatInterval between leader and followers.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=5000
	// +kubebuilder:default=100
	HeartbeatMilliseconds int32 `json:"heartbeatMilliseconds,omitempty"`

	// electionMilliseconds without a heartbeat before a follower starts an election.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=50000
	// +kubebuilder:default=1000
	ElectionMilliseconds int32 `json:"electionMilliseconds,omitempty"`

	// autoCompactionMode is periodic or revision.
	// +optional
	// +kubebuilder:validation:Enum=periodic;revision
	AutoCompactionMode string `json:"autoCompactionMode,omitempty"`

	// autoCompactionRetention is a duration such as 1h for periodic, a number of revisions for revision.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+[smh]?)?$`
	AutoCompactionRetention string `json:"autoCompactionRetention,omitempty"`
}

// EtcdTLS is where certificates are required. All of them are signed by the cluster's certificate authority.
type EtcdTLS struct {
	// client: members require a certificate of clients.
	// +optional
	// +kubebuilder:default=true
	Client *bool `json:"client,omitempty"`

	// peer: members require a certificate of each other.
	// +optional
	// +kubebuilder:default=true
	Peer *bool `json:"peer,omitempty"`
}

// EtcdRestoreOrder asks for a new incarnation of the cluster from a snapshot or from the data of one member, whatever the others have. It is
// carried out once.
//
// +kubebuilder:validation:XValidation:rule="has(self.snapshot) != has(self.member)",message="a restore needs either a snapshot or a member"
type EtcdRestoreOrder struct {
	// id of the order. Another id is another order.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	ID string `json:"id"`
	// snapshot is the name of an EtcdSnapshot of this cluster, or none to start empty.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Snapshot string `json:"snapshot,omitempty"`
	// member whose data becomes the cluster, through the last entry of its log.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Member string `json:"member,omitempty"`
	// gone are nodes that somebody confirmed to be gone: no process of theirs runs, and none will. Only a restore from a member asks for it.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	Gone []string `json:"gone,omitempty"`
	// force: restore although the cluster serves clients. What they wrote since is set aside.
	// +optional
	Force bool `json:"force,omitempty"`
	// expires is when an order that has not begun is not carried out any more.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	Expires metav1.Time `json:"expires"`
}

// EtcdRestorePhase is how far a restore is.
//
// +kubebuilder:validation:Enum=Waiting;Reading;Starting;Done;Refused;Expired;Canceled
type EtcdRestorePhase string

// The phases. The last four are final.
const (
	// EtcdRestoreWaiting: what it needs is not available yet.
	EtcdRestoreWaiting EtcdRestorePhase = "Waiting"
	// EtcdRestoreReading: the members are stopped, and a snapshot is made of the data of one.
	EtcdRestoreReading EtcdRestorePhase = "Reading"
	// EtcdRestoreStarting: the new incarnation is being started.
	EtcdRestoreStarting EtcdRestorePhase = "Starting"
	EtcdRestoreDone     EtcdRestorePhase = "Done"
	EtcdRestoreRefused  EtcdRestorePhase = "Refused"
	EtcdRestoreExpired  EtcdRestorePhase = "Expired"
	EtcdRestoreCanceled EtcdRestorePhase = "Canceled"
)

// Final returns whether nothing follows.
func (p EtcdRestorePhase) Final() bool {
	switch p {
	case EtcdRestoreDone, EtcdRestoreRefused, EtcdRestoreExpired, EtcdRestoreCanceled:
		return true
	}
	return false
}

// EtcdRestoreState is the last restore order that the coordinator saw.
type EtcdRestoreState struct {
	// id of the order.
	ID string `json:"id"`
	// phase of it.
	Phase EtcdRestorePhase `json:"phase"`
	// message is what it waits for, or how it ended.
	// +optional
	Message string `json:"message,omitempty"`
	// snapshot that the new incarnation begins with.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// since is when the phase began.
	Since metav1.MicroTime `json:"since"`
}

// EtcdClusterSpec is the desired state of an etcd cluster.
type EtcdClusterSpec struct {
	// size is how many members there should be; 0 stops the cluster.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	// +kubebuilder:default=3
	Size *int32 `json:"size,omitempty"`

	// storage of the members.
	// +optional
	// +kubebuilder:default={}
	Storage EtcdStorage `json:"storage,omitempty"`

	// snapshot is where and how many snapshots are kept.
	// +optional
	// +kubebuilder:default={}
	Snapshot EtcdSnapshotPolicy `json:"snapshot,omitempty"`

	// schedule stops and starts the cluster at set times.
	// +optional
	Schedule *EtcdSchedule `json:"schedule,omitempty"`

	// etcd's own options.
	// +optional
	// +kubebuilder:default={}
	Etcd EtcdOptions `json:"etcd,omitempty"`

	// tls between clients and members and among members.
	// +optional
	// +kubebuilder:default={}
	TLS EtcdTLS `json:"tls,omitempty"`

	// restoreFrom is what the next start of a stopped cluster begins with: the name of an EtcdSnapshot of this cluster, or "none" for an
	// empty cluster. One start obeys it; later ones begin with the data of the last stop.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RestoreFrom string `json:"restoreFrom,omitempty"`

	// restore asks once for a new incarnation of a cluster that is not stopped.
	// +optional
	Restore *EtcdRestoreOrder `json:"restore,omitempty"`

	// replaceAfter is how long a member's node may be absent before the member is replaced.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 90s or 10m"
	// +kubebuilder:default="5m"
	ReplaceAfter *metav1.Duration `json:"replaceAfter,omitempty"`

	// replaceFailedAfter is how long a member on a node that is there may fail, or a new one make no progress, before it is replaced. A large
	// database may need a longer time.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be a positive duration, such as 90s or 10m"
	// +kubebuilder:default="2m"
	ReplaceFailedAfter *metav1.Duration `json:"replaceFailedAfter,omitempty"`
}

// EtcdMemberRole is the role of a member in its cluster.
//
// +kubebuilder:validation:Enum=leader;voter;learner
type EtcdMemberRole string

// The roles.
const (
	EtcdLeader  EtcdMemberRole = "leader"
	EtcdVoter   EtcdMemberRole = "voter"
	EtcdLearner EtcdMemberRole = "learner"
)

// EtcdMemberInfo is a summary of a member.
type EtcdMemberInfo struct {
	// name of the member.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// node that it is on.
	// +optional
	Node string `json:"node,omitempty"`
	// id that etcd gave it, in hexadecimal.
	// +optional
	ID string `json:"id,omitempty"`
	// role in the cluster; empty while it is not part of it.
	// +optional
	Role EtcdMemberRole `json:"role,omitempty"`
	// healthy: it answers and knows the leader.
	Healthy bool `json:"healthy"`
	// message is what it is doing or what is wrong.
	// +optional
	Message string `json:"message,omitempty"`
	// revisionLag is how many revisions it is behind.
	// +optional
	RevisionLag int64 `json:"revisionLag,omitempty"`
	// dbSize in bytes.
	// +optional
	DBSize int64 `json:"dbSize,omitempty"`
	// clientURL and peerURL are its addresses.
	// +optional
	ClientURL string `json:"clientURL,omitempty"`
	// +optional
	PeerURL string `json:"peerURL,omitempty"`
}

// EtcdStopStep is the step of a cluster's stop.
//
// +kubebuilder:validation:Enum=Sealing;Snapshotting;Copying;Released
type EtcdStopStep string

// The steps.
const (
	// EtcdSealing: members stop serving clients.
	EtcdSealing EtcdStopStep = "Sealing"
	// EtcdSnapshotting: no client is served; the snapshot is taken and verified.
	EtcdSnapshotting EtcdStopStep = "Snapshotting"
	// EtcdCopying: it is copied to other nodes.
	EtcdCopying EtcdStopStep = "Copying"
	// EtcdReleased: everything that the cluster's policy keeps is safe. A start after this step restores the cluster.
	EtcdReleased EtcdStopStep = "Released"
)

// EtcdStop is a running stop, persisted before it takes effect.
type EtcdStop struct {
	// generation of the cluster's spec that requested it.
	Generation int64 `json:"generation"`
	// onStop as it was when the stop began.
	OnStop EtcdOnStop `json:"onStop"`
	// step of the stop.
	Step EtcdStopStep `json:"step"`
	// attempt counts snapshots taken for this stop.
	// +optional
	Attempt int64 `json:"attempt,omitempty"`
	// began is when the stop began.
	Began metav1.MicroTime `json:"began"`
	// revision after the members stopped serving clients.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// snapshot is the EtcdSnapshot that was taken for it.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// trial is the EtcdSnapshot with which nodes say whether they have room for a copy, before members stop serving clients.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Trial string `json:"trial,omitempty"`
	// copyFailures are the nodes that could not make a copy of the snapshot, or have no room for one.
	// +optional
	// +listType=map
	// +listMapKey=node
	CopyFailures []EtcdSnapshotCopy `json:"copyFailures,omitempty"`
	// silent are the nodes that did not answer whether they have room for a copy. They are asked last until they answer.
	// +optional
	// +listType=set
	Silent []string `json:"silent,omitempty"`
	// sealedSince is when members were last asked to serve no clients.
	// +optional
	SealedSince *metav1.MicroTime `json:"sealedSince,omitempty"`
	// pausedUntil is set while clients are served again because the stop could not be completed: when it is tried again.
	// +optional
	PausedUntil *metav1.MicroTime `json:"pausedUntil,omitempty"`
}

// EtcdStoppedState is what a cluster was stopped with. The next start begins from it.
type EtcdStoppedState struct {
	// onStop is what happened to the data.
	OnStop EtcdOnStop `json:"onStop"`
	// snapshot to restore from, with SnapshotThenDelete.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// revision and hash of all keys at it, when the cluster stopped.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// +optional
	Hash int64 `json:"hash,omitempty"`
	// members that it had; with Retain, those that are started together.
	// +optional
	// +listType=map
	// +listMapKey=name
	Members []EtcdMemberInfo `json:"members,omitempty"`
	// stopped is when.
	// +optional
	Stopped *metav1.Time `json:"stopped,omitempty"`
}

// EtcdAbsentData is data of a member that should be deleted on a node that is absent.
type EtcdAbsentData struct {
	// member it was of.
	Member string `json:"member"`
	// node that it is on.
	Node string `json:"node"`
	// incarnation of the cluster that it belongs to.
	// +optional
	Incarnation int64 `json:"incarnation,omitempty"`
}

// EtcdSetAside is data of a member that no longer belongs to the cluster and may have keys that nothing else has. It is kept until somebody
// discards it by name.
type EtcdSetAside struct {
	// member it is of, an EtcdMember that does not run.
	Member string `json:"member"`
	// node that it is on.
	Node string `json:"node"`
	// reason why it was set aside.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// EtcdMemberFailure is a member that does not run steadily, or a new one that has not caught up.
type EtcdMemberFailure struct {
	// member that fails.
	Member string `json:"member"`
	// since when: of a voter since it last ran steadily or its data grew while it starts, of a new member since it last made progress.
	Since metav1.MicroTime `json:"since"`
	// learner: it was not a voter yet.
	// +optional
	Learner bool `json:"learner,omitempty"`
	// restarts of its process and progress of its data when this was last written.
	// +optional
	Restarts int64 `json:"restarts,omitempty"`
	// +optional
	Progress int64 `json:"progress,omitempty"`
	// healthySince is since when it runs again.
	// +optional
	HealthySince *metav1.MicroTime `json:"healthySince,omitempty"`
}

// EtcdAvoidedNode is a node on which a member failed.
type EtcdAvoidedNode struct {
	// node that is avoided.
	Node string `json:"node"`
	// until when.
	Until metav1.Time `json:"until"`
}

// EtcdClusterStatus is the observed state of an etcd cluster.
type EtcdClusterStatus struct {
	// phase of the cluster.
	// +optional
	Phase EtcdClusterPhase `json:"phase,omitempty"`

	// observedGeneration is the generation of the spec that this status is for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// readyReplicas is how many voters are healthy; a written 0.
	// +optional
	ReadyReplicas int32 `json:"readyReplicas"`

	// members of the cluster; empty while it is stopped.
	// +optional
	// +listType=map
	// +listMapKey=name
	Members []EtcdMemberInfo `json:"members"`

	// nodes that members are on, sorted by name.
	// +optional
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`

	// clusterID that etcd gave it, in hexadecimal. Once it is set, a cluster whose data is missing never starts empty.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ClusterID string `json:"clusterID,omitempty"`

	// incarnation increases whenever the cluster begins from a snapshot or empty. Data of an older incarnation is never started.
	// +optional
	Incarnation int64 `json:"incarnation,omitempty"`

	// nextMember numbers members; no number is used twice.
	// +optional
	NextMember int64 `json:"nextMember,omitempty"`

	// stop is the running stop.
	// +optional
	Stop *EtcdStop `json:"stop,omitempty"`

	// rest is the state of the last stop; the next start begins from it, and it is removed when the cluster runs again.
	// +optional
	Rest *EtcdStoppedState `json:"rest,omitempty"`

	// starting is when the running start began.
	// +optional
	Starting *metav1.MicroTime `json:"starting,omitempty"`

	// snapshot is the newest verified one.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`

	// lastStop and lastStart are how long the last stop and start took.
	// +optional
	LastStop *metav1.Duration `json:"lastStop,omitempty"`
	// +optional
	LastStart *metav1.Duration `json:"lastStart,omitempty"`

	// absentData is data to be deleted on nodes that are absent.
	// +optional
	// +listType=map
	// +listMapKey=member
	AbsentData []EtcdAbsentData `json:"absentData,omitempty"`

	// setAside is data of former members that is kept until somebody discards it: `ebb etcd discard CLUSTER MEMBER`.
	// +optional
	// +listType=map
	// +listMapKey=member
	SetAside []EtcdSetAside `json:"setAside,omitempty"`

	// failing are members that do not run steadily, and new ones that have not caught up.
	// +optional
	// +listType=map
	// +listMapKey=member
	Failing []EtcdMemberFailure `json:"failing,omitempty"`

	// avoid are nodes on which a member failed. New members go elsewhere for a while, if another node is free.
	// +optional
	// +listType=map
	// +listMapKey=node
	Avoid []EtcdAvoidedNode `json:"avoid,omitempty"`

	// restore is the last order of spec.restore that was seen.
	// +optional
	Restore *EtcdRestoreState `json:"restore,omitempty"`

	// observedRestoreFrom is the spec.restoreFrom that a start obeyed. It is not obeyed again.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ObservedRestoreFrom string `json:"observedRestoreFrom,omitempty"`

	// restoreFromTracked says that observedRestoreFrom is kept. A former version did not keep it: a cluster that runs without this has obeyed
	// its spec.restoreFrom.
	// +optional
	RestoreFromTracked bool `json:"restoreFromTracked,omitempty"`

	// scheduled is the time up to which the schedule has been applied.
	// +optional
	Scheduled *metav1.Time `json:"scheduled,omitempty"`

	// observedSchedule is the schedule that was applied. A schedule that was changed counts from the time of the change.
	// +optional
	ObservedSchedule *EtcdSchedule `json:"observedSchedule,omitempty"`

	// suspended says that the schedule has stopped the cluster: it has size 0 until the schedule starts it, or somebody changes spec.size.
	// +optional
	Suspended *EtcdSuspension `json:"suspended,omitempty"`

	// selector names the cluster's EtcdMembers by label, for the scale subresource.
	// +optional
	Selector string `json:"selector,omitempty"`

	// conditions: Ready and Progressing always; QuorumLost, DataMissing and SnapshotFailed, RestorePending and others when they apply.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EtcdCluster is an etcd cluster of 0 to 7 members, each on a node of its own.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.size,statuspath=.status.readyReplicas,selectorpath=.status.selector
// +kubebuilder:resource:scope=Namespaced,shortName=ec,categories=ebb
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Progressing")].message`
// +kubebuilder:printcolumn:name="Snapshot",type=string,priority=1,JSONPath=`.status.snapshot`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 52 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="an etcd cluster's name must be a DNS label of at most 52 characters: lower-case letters, digits and '-'"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.etcd) || !has(self.spec.etcd.electionMilliseconds) || !has(self.spec.etcd.heartbeatMilliseconds) || self.spec.etcd.electionMilliseconds >= 5 * self.spec.etcd.heartbeatMilliseconds",message="spec.etcd.electionMilliseconds must be at least five times heartbeatMilliseconds"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.incarnation) || (has(self.status) && has(self.status.incarnation) && self.status.incarnation >= oldSelf.status.incarnation)",message="an etcd cluster's incarnation cannot decrease"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.nextMember) || (has(self.status) && has(self.status.nextMember) && self.status.nextMember >= oldSelf.status.nextMember)",message="an etcd cluster's nextMember cannot decrease"
type EtcdCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +optional
	// +kubebuilder:default={}
	Spec EtcdClusterSpec `json:"spec,omitempty"`
	// status is the observed state.
	// +optional
	Status EtcdClusterStatus `json:"status,omitempty"`
}

// EtcdClusterList is a list of etcd clusters.
//
// +kubebuilder:object:root=true
type EtcdClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdCluster `json:"items"`
}

// Size that the cluster should have now: spec.size, or 0 while its schedule has it stopped.
func (c *EtcdCluster) Size() int {
	if c.IsSuspended() {
		return 0
	}
	return c.SpecSize()
}

// SpecSize is the size that people ask for.
func (c *EtcdCluster) SpecSize() int {
	if c.Spec.Size == nil {
		return EtcdClusterDefaultSize
	}
	return int(*c.Spec.Size)
}

// IsSuspended reports whether the schedule has the cluster stopped. One that people have stopped is not: only they start it.
func (c *EtcdCluster) IsSuspended() bool {
	return c.Status.Suspended != nil && int(c.Status.Suspended.Size) == c.SpecSize() && c.SpecSize() > 0
}
