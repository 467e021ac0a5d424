package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EtcdSnapshotFinalizer keeps an EtcdSnapshot until its copies are deleted.
const EtcdSnapshotFinalizer = "ebb.dev/etcdsnapshot"

// EtcdSnapshotSpec is the source of a snapshot and where it should be kept. The coordinator writes it.
type EtcdSnapshotSpec struct {
	// cluster it is of, in the same namespace.
	// +kubebuilder:validation:MaxLength=253
	Cluster string `json:"cluster"`
	// clusterUID of that.
	// +kubebuilder:validation:MaxLength=64
	ClusterUID string `json:"clusterUID"`
	// incarnation of the cluster.
	Incarnation int64 `json:"incarnation"`
	// generation of the cluster's spec for which it is taken.
	Generation int64 `json:"generation"`
	// member it is taken from; the member's node takes it.
	// +kubebuilder:validation:MaxLength=253
	Member string `json:"member"`
	// memberNode is the node of that member. No other node may write the facts of the snapshot, or why it could not be taken.
	// +kubebuilder:validation:MaxLength=253
	MemberNode string `json:"memberNode"`
	// fromData: the member is stopped and has no quorum any more. The snapshot is made of its data, through the last entry of its log.
	// +optional
	FromData bool `json:"fromData,omitempty"`
	// revision that it must have, if that is known because the cluster serves no clients and no key can change.
	// +optional
	Revision int64 `json:"revision,omitempty"`
	// trialBytes: no snapshot is taken. The nodes say whether they have room for a copy of this size and reach memberNode, before a stop keeps
	// clients out.
	// +optional
	TrialBytes int64 `json:"trialBytes,omitempty"`
	// nodes that should keep a copy, the member's own included if it should.
	// +optional
	// +listType=set
	Nodes []string `json:"nodes,omitempty"`
	// dir is spec.snapshot.dir of the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$`
	Dir string `json:"dir,omitempty"`
	// formerMembers of the cluster when it was taken.
	// +optional
	// +listType=map
	// +listMapKey=name
	FormerMembers []EtcdMemberInfo `json:"formerMembers,omitempty"`
}

// EtcdSnapshotFacts describe the snapshot as it was taken and verified. They are written once.
type EtcdSnapshotFacts struct {
	// revision of the newest key.
	Revision int64 `json:"revision"`
	// hash of all keys at that revision, from etcd's HashKV.
	Hash int64 `json:"hash"`
	// totalKeys in it, older versions included.
	TotalKeys int64 `json:"totalKeys"`
	// size of the file in bytes.
	Size int64 `json:"size"`
	// sha256 of the file, in hexadecimal.
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
	// at is when it was taken.
	At metav1.MicroTime `json:"at"`
}

// EtcdSnapshotCopy is one copy. The node that keeps it writes it.
type EtcdSnapshotCopy struct {
	// node that it is on.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// verified is when the node last verified the file; empty if it is not verified.
	// +optional
	Verified *metav1.MicroTime `json:"verified,omitempty"`
	// room is when the node found room for a copy of spec.trialBytes.
	// +optional
	Room *metav1.MicroTime `json:"room,omitempty"`
	// received is how many bytes have arrived of a copy that is on its way; empty once it is verified.
	// +optional
	Received int64 `json:"received,omitempty"`
	// error is why there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Error string `json:"error,omitempty"`
}

// EtcdSnapshotProgress is how far a snapshot is that is being taken.
type EtcdSnapshotProgress struct {
	// step: Copying the data of a stopped member, Writing the file, Hashing it, or Comparing its hash with that of the member, which does
	// not say how far it is.
	// +kubebuilder:validation:Enum=Copying;Writing;Hashing;Comparing
	Step string `json:"step"`
	// done is how many bytes of the total the step has done.
	Done int64 `json:"done"`
	// total is how many bytes the step has to do. To be hashed, a file is read several times.
	Total int64 `json:"total"`
}

// EtcdSnapshotStatus is the observed state of a snapshot.
type EtcdSnapshotStatus struct {
	// taking is how far it is while it is being taken.
	// +optional
	Taking *EtcdSnapshotProgress `json:"taking,omitempty"`
	// facts of the snapshot, once it was taken.
	// +optional
	Facts *EtcdSnapshotFacts `json:"facts,omitempty"`
	// copies by node.
	// +optional
	// +listType=map
	// +listMapKey=node
	Copies []EtcdSnapshotCopy `json:"copies,omitempty"`
	// error is why it could not be taken.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Error string `json:"error,omitempty"`
}

// EtcdSnapshot is a snapshot of an etcd cluster, kept on one node or several.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=es,categories=ebb
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.cluster`
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.status.facts.revision`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.status.facts.size`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.spec.nodes`
// +kubebuilder:printcolumn:name="Error",type=string,priority=1,JSONPath=`.status.error`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.facts) || (has(self.status) && has(self.status.facts) && self.status.facts == oldSelf.status.facts)",message="a snapshot's facts cannot be changed"
type EtcdSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	Spec EtcdSnapshotSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status EtcdSnapshotStatus `json:"status,omitempty"`
}

// EtcdSnapshotList is a list of snapshots.
//
// +kubebuilder:object:root=true
type EtcdSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdSnapshot `json:"items"`
}

// Copy on a node, and whether it is verified.
func (s *EtcdSnapshot) Copy(node string) (EtcdSnapshotCopy, bool) {
	for _, c := range s.Status.Copies {
		if c.Node == node {
			return c, c.Verified != nil
		}
	}
	return EtcdSnapshotCopy{}, false
}

// Verified are the nodes that keep a verified copy.
func (s *EtcdSnapshot) Verified() []string {
	var nodes []string
	for _, c := range s.Status.Copies {
		if c.Verified != nil {
			nodes = append(nodes, c.Node)
		}
	}
	return nodes
}
