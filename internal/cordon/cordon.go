// Package cordon says which object holds the cordon of a node, and who made it. Where the API has core Nodes, core spec.unschedulable is
// the only truth, and Ebb's spec.cordoned a projection of it; elsewhere spec.cordoned is. The owners are in an annotation beside it
// (v1alpha1.CordonOwnersAnnotation).
package cordon

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Is reports whether a node is cordoned. n is Ebb's Node or a core Node.
func Is(n client.Object) bool {
	switch n := n.(type) {
	case *v1alpha1.Node:
		return n != nil && n.Spec.Cordoned
	case *corev1.Node:
		return n != nil && n.Spec.Unschedulable
	}
	return false
}

// Set cordons a node, or uncordons it. The owners stay as they are: a person who uncordons a node leaves them, and the coordinator
// cancels what they wanted and then removes them.
func Set(n client.Object, cordoned bool) {
	switch n := n.(type) {
	case *v1alpha1.Node:
		n.Spec.Cordoned = cordoned
	case *corev1.Node:
		n.Spec.Unschedulable = cordoned
	}
}

// Add cordons a node on behalf of an owner.
func Add(n client.Object, owner string) {
	Set(n, true)
	v1alpha1.AddCordonOwner(n, owner)
}

// Lift removes an owner, and uncordons the node if no owner is left. The cordon of a person has no owner, and is never lifted.
func Lift(n client.Object, owner string) {
	if Owns(n, owner) && !v1alpha1.RemoveCordonOwner(n, owner) {
		Set(n, false)
	}
}

// Owns reports whether an object is among the owners of a node's cordon.
func Owns(n client.Object, owner string) bool {
	return slices.Contains(v1alpha1.CordonOwners(n), owner)
}
