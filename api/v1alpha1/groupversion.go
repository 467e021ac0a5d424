// Package v1alpha1 holds Ebb's objects: what people and schedulers want (spec) and what was observed (status).
//
// Validation and defaults live in the markers below, from which the custom resource definitions under config/crd are
// generated, so that the embedded API and a full Kubernetes enforce the same rules. Rules that compare an object with
// its predecessor stand at the object's root, where they still run when a field has vanished.
//
// +kubebuilder:object:generate=true
// +groupName=ebb.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every object in this package.
var GroupVersion = schema.GroupVersion{Group: "ebb.dev", Version: "v1alpha1"}

// objects are all objects of the group, with their lists.
var objects = []runtime.Object{
	&Node{}, &NodeList{},
	&Drain{}, &DrainList{},
	&Settings{}, &SettingsList{},
	&Term{}, &TermList{},
	&Deployment{}, &DeploymentList{},
	&Changefeed{}, &ChangefeedList{},
	&EtcdCluster{}, &EtcdClusterList{},
	&EtcdMember{}, &EtcdMemberList{},
	&EtcdSnapshot{}, &EtcdSnapshotList{},
	&Volume{}, &VolumeList{},
	&Replica{}, &ReplicaList{},
	&HealthEvent{}, &HealthEventList{},
}

// ClusterScoped are the kinds whose objects are in no namespace. Objects of work are in one.
var ClusterScoped = []string{"Node", "Drain", "Settings", "Term", "HealthEvent"}

// Register adds objects of a kind of work that is defined in another package, with their lists, before the first client is made.
func Register(more ...runtime.Object) { objects = append(objects, more...) }

// AddToScheme adds the objects of the group to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, objects...)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
