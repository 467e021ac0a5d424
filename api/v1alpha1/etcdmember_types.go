package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EtcdMemberWish is the state that the coordinator wants of a member.
//
// +kubebuilder:validation:Enum=Reserve;Run;Seal;Stop;Delete
type EtcdMemberWish string

// The desired states.
const (
	// EtcdMemberReserve: the node reserves ports and publishes the URLs; nothing runs.
	EtcdMemberReserve EtcdMemberWish = "Reserve"
	// EtcdMemberRun: it runs and serves.
	EtcdMemberRun EtcdMemberWish = "Run"
	// EtcdMemberSeal: it runs and serves clients only on its private socket.
	EtcdMemberSeal EtcdMemberWish = "Seal"
	// EtcdMemberStop: its process has ended; its data stays.
	EtcdMemberStop EtcdMemberWish = "Stop"
	// EtcdMemberDelete: its process has ended and its data is deleted.
	EtcdMemberDelete EtcdMemberWish = "Delete"
)

// EtcdMemberPhase is the phase of a member.
//
// +kubebuilder:validation:Enum=Pending;Reserved;Starting;Running;Sealed;Stopped;Deleted;Failed
type EtcdMemberPhase string

// The phases.
const (
	EtcdMemberPending  EtcdMemberPhase = "Pending"
	EtcdMemberReserved EtcdMemberPhase = "Reserved"
	EtcdMemberStarting EtcdMemberPhase = "Starting"
	EtcdMemberRunning  EtcdMemberPhase = "Running"
	EtcdMemberSealed   EtcdMemberPhase = "Sealed"
	EtcdMemberStopped  EtcdMemberPhase = "Stopped"
	EtcdMemberDeleted  EtcdMemberPhase = "Deleted"
	EtcdMemberFailed   EtcdMemberPhase = "Failed"
)

// Labels of EtcdMembers and EtcdSnapshots.
const (
	// EtcdClusterLabel is the name of the cluster that an object belongs to.
	EtcdClusterLabel = "ebb.dev/etcd-cluster"
	// EtcdMemberFinalizer keeps an EtcdMember until its data is deleted.
	EtcdMemberFinalizer = "ebb.dev/etcdmember"
)

// EtcdBegin is how a member's data is created.
type EtcdBegin struct {
	// initialCluster is name=peerURL of every member, joined by commas, as etcd takes it.
	// +kubebuilder:validation:MaxLength=4096
	InitialCluster string `json:"initialCluster"`
	// existing: the member joins an existing cluster. Otherwise it starts a new one.
	// +optional
	Existing bool `json:"existing,omitempty"`
	// token distinguishes this cluster from all others.
	// +kubebuilder:validation:MaxLength=128
	Token string `json:"token"`
	// snapshot is the EtcdSnapshot that the new cluster begins with.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Snapshot string `json:"snapshot,omitempty"`
	// exact: no write was acknowledged after the snapshot, so that revisions continue where it ends. Otherwise the revision is increased
	// far and everything before it is compacted, so that watchers never see the revision decrease or miss a change unnoticed.
	// +optional
	Exact bool `json:"exact,omitempty"`
}

// EtcdMemberSpec is the desired state of a member. The coordinator writes it.
type EtcdMemberSpec struct {
	// cluster it belongs to, in the same namespace.
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster"`
	// clusterUID of that.
	// +kubebuilder:validation:MaxLength=64
	ClusterUID string `json:"clusterUID"`
	// incarnation of the cluster.
	Incarnation int64 `json:"incarnation"`
	// node that it is on.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// want is the desired state.
	Want EtcdMemberWish `json:"want"`
	// begin is how its data is created; it is set once, before the member first runs.
	// +optional
	Begin *EtcdBegin `json:"begin,omitempty"`
	// dataRequired: its data must exist. If it is missing, the member fails and does not start empty.
	// +optional
	DataRequired bool `json:"dataRequired,omitempty"`

	// peerURL is where etcd's list has the member since its node got another address. The node starts the member there, if that is
	// the node's address.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	PeerURL string `json:"peerURL,omitempty"`
	// reportLog: once it is stopped, its node reports in status.log how far the member's log goes.
	// +optional
	ReportLog bool `json:"reportLog,omitempty"`
	// dir is spec.storage.dir of the cluster, and the rest its options.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$`
	Dir string `json:"dir,omitempty"`
	// snapshotDir is spec.snapshot.dir of the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$`
	SnapshotDir string `json:"snapshotDir,omitempty"`
	// quotaBytes of the database.
	// +optional
	QuotaBytes int64 `json:"quotaBytes,omitempty"`
	// options of etcd.
	// +optional
	Options EtcdOptions `json:"options,omitempty"`
	// clientTLS and peerTLS say whether certificates are required.
	// +optional
	ClientTLS bool `json:"clientTLS,omitempty"`
	// +optional
	PeerTLS bool `json:"peerTLS,omitempty"`
}

// EtcdLog is how far a member's log goes.
type EtcdLog struct {
	// term and index of its last entry. Of two logs, the one with the higher term is newer; with equal terms the longer one.
	Term  int64 `json:"term"`
	Index int64 `json:"index"`
	// commit is up to where the member knew that a quorum had the entries. Later ones may have been acknowledged too.
	// +optional
	Commit int64 `json:"commit,omitempty"`
}

// Newer returns whether the log may have entries that another one lacks.
func (l EtcdLog) Newer(than EtcdLog) bool {
	return l.Term > than.Term || l.Term == than.Term && l.Index > than.Index
}

// EtcdMemberURLs are where a member listens.
type EtcdMemberURLs struct {
	// +kubebuilder:validation:MaxLength=256
	PeerURL string `json:"peerURL"`
	// +kubebuilder:validation:MaxLength=256
	ClientURL string `json:"clientURL"`
}

// EtcdMemberStatus is the observed state of a member. Its node writes it.
type EtcdMemberStatus struct {
	// phase of the member.
	// +optional
	Phase EtcdMemberPhase `json:"phase,omitempty"`
	// observedGeneration is the generation of the spec that phase is for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// nodeEpoch in which the node wrote this.
	// +optional
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// peerURL and clientURL, chosen by the node once and kept until the node has another address.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	PeerURL string `json:"peerURL,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ClientURL string `json:"clientURL,omitempty"`
	// moved is where the member would listen now that its node has another address. It is started there once etcd's list has it.
	// +optional
	Moved *EtcdMemberURLs `json:"moved,omitempty"`
	// id that etcd gave the member, in hexadecimal, and that of its cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ID string `json:"id,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ClusterID string `json:"clusterID,omitempty"`
	// data says whether its data existed when it was last checked.
	// +optional
	Data bool `json:"data,omitempty"`
	// dataBytes is the size of the data.
	// +optional
	DataBytes int64 `json:"dataBytes,omitempty"`
	// log is how far its log goes, if spec.reportLog asks for that.
	// +optional
	Log *EtcdLog `json:"log,omitempty"`
	// pid of its process.
	// +optional
	PID int64 `json:"pid,omitempty"`
	// restarts of its process since the node began.
	// +optional
	Restarts int64 `json:"restarts,omitempty"`
	// error is the last error.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Error string `json:"error,omitempty"`
}

// EtcdMember is one member of an etcd cluster: an etcd server on a node.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=em,categories=ebb
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.cluster`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Want",type=string,JSONPath=`.spec.want`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.status.id`
// +kubebuilder:printcolumn:name="Error",type=string,priority=1,JSONPath=`.status.error`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.spec.cluster == oldSelf.spec.cluster && self.spec.clusterUID == oldSelf.spec.clusterUID && self.spec.incarnation == oldSelf.spec.incarnation && self.spec.node == oldSelf.spec.node",message="a member's cluster, incarnation and node cannot be changed: create another member"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.begin) || (has(self.spec.begin) && self.spec.begin == oldSelf.spec.begin)",message="a member's begin cannot be changed"
// +kubebuilder:validation:XValidation:rule="oldSelf.spec.want != 'Delete' || self.spec.want == 'Delete'",message="the deletion of a member's data cannot be undone"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.peerURL) || (has(self.status) && has(self.status.peerURL) && (self.status.peerURL == oldSelf.status.peerURL || has(self.spec.peerURL) && self.status.peerURL == self.spec.peerURL))",message="a member's peer URL changes only to spec.peerURL"
type EtcdMember struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	Spec EtcdMemberSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status EtcdMemberStatus `json:"status,omitempty"`
}

// EtcdMemberList is a list of members.
//
// +kubebuilder:object:root=true
type EtcdMemberList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdMember `json:"items"`
}
