package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EtcdMemberWish is what the coordinator wants of a member.
//
// +kubebuilder:validation:Enum=Reserve;Run;Seal;Stop;Delete
type EtcdMemberWish string

// The wishes.
const (
	// EtcdMemberReserve: the node picks ports and tells the URLs; nothing runs.
	EtcdMemberReserve EtcdMemberWish = "Reserve"
	// EtcdMemberRun: it runs and serves.
	EtcdMemberRun EtcdMemberWish = "Run"
	// EtcdMemberSeal: it runs and serves no client but on its private socket.
	EtcdMemberSeal EtcdMemberWish = "Seal"
	// EtcdMemberStop: its process has ended; its data stays.
	EtcdMemberStop EtcdMemberWish = "Stop"
	// EtcdMemberDelete: its process has ended and its data is gone.
	EtcdMemberDelete EtcdMemberWish = "Delete"
)

// EtcdMemberPhase is how a member is.
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
	// EtcdMemberFinalizer holds an EtcdMember until its data is gone.
	EtcdMemberFinalizer = "ebb.dev/etcdmember"
)

// EtcdBegin is how a member's data comes to be when there is none yet.
type EtcdBegin struct {
	// initialCluster is name=peerURL of every member, joined by commas, as etcd takes it.
	// +kubebuilder:validation:MaxLength=4096
	InitialCluster string `json:"initialCluster"`
	// existing: the member joins a cluster that there is. Otherwise it begins one.
	// +optional
	Existing bool `json:"existing,omitempty"`
	// token sets this cluster apart from all others.
	// +kubebuilder:validation:MaxLength=128
	Token string `json:"token"`
	// snapshot is the EtcdSnapshot that the new cluster begins with.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Snapshot string `json:"snapshot,omitempty"`
	// exact: nothing was acknowledged after the snapshot, so that revisions go on where it ends. Otherwise the revision is
	// moved far ahead and everything before it is compacted: no watcher sees it go backwards or misses what it has not seen.
	// +optional
	Exact bool `json:"exact,omitempty"`
}

// EtcdMemberSpec says what a member should be. The coordinator writes it.
type EtcdMemberSpec struct {
	// cluster it belongs to, in the same namespace.
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster"`
	// clusterUID of that.
	// +kubebuilder:validation:MaxLength=64
	ClusterUID string `json:"clusterUID"`
	// incarnation of the cluster.
	Incarnation int64 `json:"incarnation"`
	// node it is on.
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node"`
	// want is what it should be doing.
	Want EtcdMemberWish `json:"want"`
	// begin is how its data comes to be; it is set once, before the member first runs.
	// +optional
	Begin *EtcdBegin `json:"begin,omitempty"`
	// dataRequired: its data should be there. If it is not, the member fails rather than begins anew.
	// +optional
	DataRequired bool `json:"dataRequired,omitempty"`

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
	// clientTLS and peerTLS say whether certificates are asked for.
	// +optional
	ClientTLS bool `json:"clientTLS,omitempty"`
	// +optional
	PeerTLS bool `json:"peerTLS,omitempty"`
}

// EtcdMemberStatus is how a member is. Its node writes it.
type EtcdMemberStatus struct {
	// phase of the member.
	// +optional
	Phase EtcdMemberPhase `json:"phase,omitempty"`
	// observedGeneration is the spec that phase is for.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// nodeEpoch in which the node wrote this.
	// +optional
	NodeEpoch int64 `json:"nodeEpoch,omitempty"`
	// peerURL and clientURL, picked by the node once and kept.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	PeerURL string `json:"peerURL,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ClientURL string `json:"clientURL,omitempty"`
	// id that etcd gave the member, in hexadecimal, and that of its cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ID string `json:"id,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=16
	ClusterID string `json:"clusterID,omitempty"`
	// data says whether its data is there, as last looked at.
	// +optional
	Data bool `json:"data,omitempty"`
	// dataBytes is how much that is.
	// +optional
	DataBytes int64 `json:"dataBytes,omitempty"`
	// pid of its process.
	// +optional
	PID int64 `json:"pid,omitempty"`
	// restarts of its process since the node began.
	// +optional
	Restarts int64 `json:"restarts,omitempty"`
	// error is what went wrong last.
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
// +kubebuilder:validation:XValidation:rule="self.spec.cluster == oldSelf.spec.cluster && self.spec.clusterUID == oldSelf.spec.clusterUID && self.spec.incarnation == oldSelf.spec.incarnation && self.spec.node == oldSelf.spec.node",message="a member stays what and where it is: make another one"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.spec.begin) || (has(self.spec.begin) && self.spec.begin == oldSelf.spec.begin)",message="how a member begins is set once"
// +kubebuilder:validation:XValidation:rule="oldSelf.spec.want != 'Delete' || self.spec.want == 'Delete'",message="a member that is being deleted stays so"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.peerURL) || (has(self.status) && has(self.status.peerURL) && self.status.peerURL == oldSelf.status.peerURL)",message="a member's peer URL is picked once"
type EtcdMember struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what it should be.
	Spec EtcdMemberSpec `json:"spec"`
	// status is how it is.
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
