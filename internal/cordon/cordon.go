// Package cordon says which object holds the cordon of a node, and who made it. Where the API has core Nodes, core spec.unschedulable is
// the only truth, and Ebb's spec.cordoned a projection of it; elsewhere spec.cordoned is. The owners are in an annotation beside it
// (v1alpha1.CordonOwnersAnnotation).
package cordon

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// goingTaints are what Cluster Autoscaler and Karpenter put on a core Node that they are about to remove.
var goingTaints = []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"}

// Is reports whether a node is cordoned. n is Ebb's Node or a core Node. A core Node that an autoscaler is about to remove counts as
// cordoned.
func Is(n client.Object) bool {
	switch n := n.(type) {
	case *v1alpha1.Node:
		return n != nil && n.Spec.Cordoned
	case *corev1.Node:
		return n != nil && (n.Spec.Unschedulable || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return slices.Contains(goingTaints, t.Key) }))
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

// Add cordons a node on behalf of an owner. A person among the owners of an uncordoned node has uncordoned it since, and holds nothing.
func Add(n client.Object, owner string) {
	if !Is(n) {
		v1alpha1.RemoveCordonOwner(n, v1alpha1.CordonPerson)
	}
	Set(n, true)
	v1alpha1.AddCordonOwner(n, owner)
}

// Lift removes an owner, and uncordons the node if no owner is left. The cordon of a person has no owner, and is never lifted.
func Lift(n client.Object, owner string) {
	if Owns(n, owner) && !v1alpha1.RemoveCordonOwner(n, owner) {
		Set(n, false)
	}
}

// Replaced reports whether a core Node was created after a drain of its name: the drain was about one that has been deleted since. Both times are
// the API server's.
func Replaced(n client.Object, d *v1alpha1.Drain) bool {
	core, ok := n.(*corev1.Node)
	return ok && core != nil && core.CreationTimestamp.After(d.CreationTimestamp.Time)
}

// Owns reports whether an object is among the owners of a node's cordon.
func Owns(n client.Object, owner string) bool {
	return slices.Contains(v1alpha1.CordonOwners(n), owner)
}

// Changes reports whether an update of a node concerns its cordon, for who watches core Nodes: kubelets report their status all the time.
func Changes(e event.UpdateEvent) bool {
	return Is(e.ObjectOld) != Is(e.ObjectNew) || e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
		e.ObjectOld.GetAnnotations()[v1alpha1.CordonOwnersAnnotation] != e.ObjectNew.GetAnnotations()[v1alpha1.CordonOwnersAnnotation]
}
