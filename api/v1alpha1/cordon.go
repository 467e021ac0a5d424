package v1alpha1

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CordonOwnersAnnotation lists the UIDs of the objects (Drains, HealthEvents) that cordoned a node, joined by commas. A cordon without
// it was made by a person or by a program other than Ebb, and Ebb never lifts it.
const CordonOwnersAnnotation = "ebb.dev/cordon-owners"

// CordonPerson stands among the owners for a person who cordoned a node that objects of Ebb had cordoned before. When those are gone, the
// cordon is the person's alone, and has no owners.
const CordonPerson = "person"

// CordonOwners are the UIDs of the objects that cordoned a node.
func CordonOwners(node metav1.Object) []string {
	list := node.GetAnnotations()[CordonOwnersAnnotation]
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// SetCordonOwners replaces the UIDs of the objects that cordoned a node; without any the annotation is removed. A person alone is none.
func SetCordonOwners(node metav1.Object, uids []string) {
	annotations := node.GetAnnotations()
	if !slices.ContainsFunc(uids, func(uid string) bool { return uid != CordonPerson }) {
		delete(annotations, CordonOwnersAnnotation)
		node.SetAnnotations(annotations)
		return
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	uids = slices.Clone(uids)
	slices.Sort(uids)
	annotations[CordonOwnersAnnotation] = strings.Join(slices.Compact(uids), ",")
	node.SetAnnotations(annotations)
}

// AddCordonOwner adds the UID of an object to those that cordoned a node.
func AddCordonOwner(node metav1.Object, uid string) {
	SetCordonOwners(node, append(CordonOwners(node), uid))
}

// RemoveCordonOwner removes the UID of an object from those that cordoned a node, and reports whether anybody is left, a person included.
func RemoveCordonOwner(node metav1.Object, uid string) (left bool) {
	owners := slices.DeleteFunc(CordonOwners(node), func(owner string) bool { return owner == uid })
	SetCordonOwners(node, owners)
	return len(owners) > 0
}
