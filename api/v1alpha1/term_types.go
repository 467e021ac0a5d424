package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// TermName is the name of the one Term object.
const TermName = "cluster"

// TermSpec is who coordinates.
type TermSpec struct {
	// Node is the node that leads; empty before the first election.
	// +optional
	Node string `json:"node,omitempty"`
	// Identity is the holder of the election's Lease for which it was written.
	// +optional
	Identity string `json:"identity,omitempty"`
}

// Term tells the admission policies of a Kubernetes cluster which node leads. The coordinator writes it after it has won the election and before it
// writes anything else. The election itself is decided by the Lease ebb-system/coordinator alone.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'cluster'",message="there is one Term, named cluster"
type Term struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec TermSpec `json:"spec,omitempty"`
}

// TermList is a list of Terms.
//
// +kubebuilder:object:root=true
type TermList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Term `json:"items"`
}
