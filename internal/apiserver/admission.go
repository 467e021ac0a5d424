package apiserver

import (
	"context"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

// rules is the admission plugin of the embedded API: checks that a schema cannot express or that depend on the user.
type rules struct {
	// policy has the declarations of the kinds of work.
	policy policy
	// readLease reads a Lease live; nil means that there is none.
	readLease func(ctx context.Context, name string) (*coordinationv1.Lease, error)
	// readSlot reads the drain slot live; nil means that no drain is running.
	readSlot func(ctx context.Context) (*v1alpha1.ActiveDrain, error)
	// readNode reads a Node, from a cache if that is enough; a missing one is returned empty.
	readNode func(ctx context.Context, name string, cached bool) (*v1alpha1.Node, error)
	// ownTypes are the CustomResourceDefinitions of Ebb.
	ownTypes sets.Set[string]
	// usable reports whether all system namespaces exist.
	usable func() bool
}

var (
	_ admission.MutationInterface   = (*rules)(nil)
	_ admission.ValidationInterface = (*rules)(nil)
)

// Handles implements admission.Interface.
func (r *rules) Handles(op admission.Operation) bool { return op != admission.Connect }

// Admit removes the finalizers and options that need a garbage collector, which the embedded API does not have: an object marked for
// foreground deletion would never be deleted.
func (r *rules) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := r.validateStarted(a); err != nil {
		return err
	}
	if opts, ok := a.GetOperationOptions().(*metav1.DeleteOptions); ok && opts != nil {
		if waitsForCollector(opts) && a.GetName() == "" {
			// The store has copied the options of a collection before this call: they cannot be changed any more.
			return apierrors.NewBadRequest("the embedded API has no garbage collector: delete a collection with propagationPolicy Background")
		}
		background := metav1.DeletePropagationBackground
		opts.PropagationPolicy = &background
		opts.OrphanDependents = nil //nolint:staticcheck // deprecated, but older clients still send it
	}
	object, ok := a.GetObject().(metav1.Object)
	if !ok || a.GetOperation() == admission.Delete {
		return nil
	}
	collected := func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	}
	if kept := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), collected); len(kept) != len(object.GetFinalizers()) {
		object.SetFinalizers(kept)
	}
	return nil
}

// validateStarted refuses to create objects in a namespace while the server is still creating its namespaces: otherwise the client
// would get the answer that the namespace does not exist.
func (r *rules) validateStarted(a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetNamespace() == "" || r.usable() || a.GetUserInfo().GetName() == user.APIServerUser {
		return nil
	}
	return apierrors.NewServiceUnavailable("the server is starting and has not created its namespaces yet; try again")
}

func waitsForCollector(o *metav1.DeleteOptions) bool {
	orphan := o.OrphanDependents //nolint:staticcheck // deprecated, but older clients still send it
	return orphan != nil && *orphan || o.PropagationPolicy != nil && *o.PropagationPolicy != metav1.DeletePropagationBackground
}

// Validate refuses writes that no user may make, and writes that this user may not make.
func (r *rules) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	gr := a.GetResource().GroupResource()
	if isReview(gr.Group, gr.Resource) { // a review changes nothing
		return nil
	}
	err := r.validateTerm(ctx, a)
	switch {
	case err != nil:
	case gr.Group == apiextensionsv1.GroupName && a.GetOperation() == admission.Delete:
		err = r.validateTypeDelete(nameOf(a))
	case gr.Group == groupEbb && gr.Resource == "settings":
		err = validateSettings(a)
	case gr.Group == groupEbb && gr.Resource == "nodes":
		err = r.validateNode(ctx, a)
	case gr.Group == groupEbb && gr.Resource == "drains" && a.GetOperation() == admission.Delete:
		err = validateDrainDelete(a)
	case gr.Group == groupEbb:
		err = r.validateNodeWrite(ctx, a)
	case gr.Group == groupLeases && gr.Resource == "leases":
		err = validateLease(a)
	}
	if err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return err
	}
	return apierrors.NewForbidden(a.GetResource().GroupResource(), nameOf(a), err)
}

// validateTypeDelete: deleting a type would delete all its objects without the checks of these rules.
func (r *rules) validateTypeDelete(name string) error {
	if r.ownTypes.Has(name) {
		return fmt.Errorf("%s is a type of Ebb and cannot be deleted: all objects of that type would be deleted with it", name)
	}
	return nil
}

func validateSettings(a admission.Attributes) error {
	if a.GetOperation() == admission.Delete {
		return fmt.Errorf("the Settings object %q holds the cluster's drain slot and cannot be deleted; use `ebb settings set` to change it", nameOf(a))
	}
	return nil
}

// validateDrainDelete: deleting a drain cancels it, and a drain that is Stopping cannot be cancelled any more. It can be deleted when
// it has ended.
func validateDrainDelete(a admission.Attributes) error {
	status, _ := field(a.GetOldObject(), "status").(map[string]any)
	spec, _ := field(a.GetOldObject(), "spec").(map[string]any)
	if status["phase"] != string(v1alpha1.DrainStopping) {
		return nil
	}
	return apierrors.NewConflict(a.GetResource().GroupResource(), nameOf(a), fmt.Errorf(
		"the drain is Stopping: node %v is empty and is shutting down, so the drain can no longer be cancelled; delete the Drain when it has ended", spec["nodeName"]))
}

func (r *rules) validateNode(ctx context.Context, a admission.Attributes) error {
	name := nameOf(a)
	if a.GetOperation() == admission.Delete {
		return r.validateNodeDelete(ctx, name)
	}
	node, isNode := identity.NodeName(a.GetUserInfo().GetName())
	if !isNode {
		return nil
	}
	if name != node {
		return fmt.Errorf("the credentials of node %s may not write node %s", node, name)
	}
	// People and the coordinator write the spec of a node; the node itself writes only its status and its labels.
	if a.GetSubresource() == "" && !equality.Semantic.DeepEqual(field(a.GetObject(), "spec"), field(a.GetOldObject(), "spec")) {
		return fmt.Errorf("node %s may not write its own spec", node)
	}
	if holdsItself(a.GetObject(), a.GetOldObject()) {
		return fmt.Errorf("node %s may not change its own finalizers or owner references", node)
	}
	if a.GetSubresource() == "status" {
		return r.validateEpochStands(ctx, node, a.GetObject())
	}
	return nil
}

// holdsItself reports whether a write changes what keeps an object from being deleted.
func holdsItself(object, old runtime.Object) bool {
	next, ok := object.(metav1.Object)
	if !ok {
		return false
	}
	var finalizers []string
	var owners []metav1.OwnerReference
	if before, ok := old.(metav1.Object); ok {
		finalizers, owners = before.GetFinalizers(), before.GetOwnerReferences()
	}
	return !equality.Semantic.DeepEqual(next.GetFinalizers(), finalizers) || !equality.Semantic.DeepEqual(next.GetOwnerReferences(), owners)
}

// validateEpochStands refuses the status of a node from an epoch that has ended: a node that wakes up after a freeze does not know yet
// that its epoch was fenced, and the resourceVersion it read may still be current.
func (r *rules) validateEpochStands(ctx context.Context, node string, object runtime.Object) error {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("node %s: unexpected object type %T", node, object)
	}
	epoch, _, err := unstructured.NestedInt64(u.Object, "status", "epoch")
	if err != nil {
		return err
	}
	l, err := r.readLease(ctx, lease.NameOf(node))
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the lease of node %s: %w", node, err))
	}
	if l == nil {
		return fmt.Errorf("node %s has no lease: it may not write for epoch %d", node, epoch)
	}
	if rec, err := lease.Read(l); err != nil || rec.Epoch != epoch || rec.Over(epoch) {
		return fmt.Errorf("node %s may not write for epoch %d: its lease is in epoch %d, fenced up to %d", node, epoch, rec.Epoch, rec.Fenced)
	}
	return nil
}

func (r *rules) validateNodeDelete(ctx context.Context, name string) error {
	slot, err := r.readSlot(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the drain slot: %w", err))
	}
	if slot != nil && slot.Node == name {
		return fmt.Errorf("drain %s of node %s still holds the drain slot: wait until the drain has ended, or cancel it with `ebb drain %s --cancel`", slot.Name, name, name)
	}
	l, err := r.readLease(ctx, lease.NameOf(name))
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the lease of node %s: %w", name, err))
	}
	if l == nil {
		return nil
	}
	if rec, err := lease.Read(l); err != nil || rec.Held() {
		return fmt.Errorf("node %s still holds its lease: drain it or stop its process, then delete it", name)
	}
	return nil
}

// validateLease ensures, for every user, that epochs and fenced epochs never decrease and that a fenced epoch is not renewed.
func validateLease(a admission.Attributes) error {
	name := nameOf(a)
	node, isNode := identity.NodeName(a.GetUserInfo().GetName())
	if isNode && name != lease.NameOf(node) {
		return fmt.Errorf("the credentials of node %s may not write the lease %s", node, name)
	}
	if !lease.IsNodes(name) || a.GetNamespace() != lease.Namespace {
		return nil
	}
	old, err := record(a.GetOldObject())
	if err != nil {
		return err
	}
	if a.GetOperation() == admission.Delete {
		return fmt.Errorf("lease %s cannot be deleted: it records that node %s has used epoch %d, which must not be used again; it is enough to delete the Node", name, old.Node, max(old.Epoch, old.Fenced))
	}
	next, err := record(a.GetObject())
	if err != nil {
		return err
	}
	switch {
	case old.Node != "" && next.Node != old.Node:
		return fmt.Errorf("lease %s: it is the lease of node %s, and not of %s", name, old.Node, next.Node)
	case next.Epoch < old.Epoch || next.Fenced < old.Fenced:
		return fmt.Errorf("lease %s: epoch (%d) and fenced epoch (%d) must not decrease", name, old.Epoch, old.Fenced)
	case next.Held() && (next.Epoch <= next.Fenced || next.Epoch < 1):
		return fmt.Errorf("lease %s: epoch %d was fenced and cannot be held again; join with the next epoch", name, next.Epoch)
	case next.Held() && next.Epoch == old.Epoch && next.Holder != old.Holder:
		return fmt.Errorf("lease %s: epoch %d belongs to another holder; join with the next epoch", name, next.Epoch)
	case isNode && next.Fenced != old.Fenced:
		return fmt.Errorf("lease %s: only the coordinator may fence an epoch", name)
	}
	return nil
}

func record(object runtime.Object) (lease.Record, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok || u == nil {
		return lease.Record{}, nil
	}
	l := &coordinationv1.Lease{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, l); err != nil {
		return lease.Record{}, err
	}
	return lease.Read(l)
}

func field(object runtime.Object, name string) any {
	u, ok := object.(*unstructured.Unstructured)
	if !ok || u == nil {
		return map[string]any{}
	}
	if value, ok := u.Object[name]; ok {
		return value
	}
	return map[string]any{}
}

// nameOf returns the name from the object if there is one: the request to delete a collection has no name.
func nameOf(a admission.Attributes) string {
	for _, object := range []runtime.Object{a.GetObject(), a.GetOldObject()} {
		if m, ok := object.(metav1.Object); ok && m != nil && m.GetName() != "" {
			return m.GetName()
		}
	}
	return a.GetName()
}
