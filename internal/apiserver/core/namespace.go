package core

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
)

func namespaceKind() kind {
	return kind{
		plural: "namespaces", singular: "namespace", short: []string{"ns"},
		empty:    func() runtime.Object { return &corev1.Namespace{} },
		list:     func() runtime.Object { return &corev1.NamespaceList{} },
		prepare:  prepareNamespace,
		validate: validateNamespace,
		fields: func(o runtime.Object) fields.Set {
			return fields.Set{"status.phase": string(o.(*corev1.Namespace).Status.Phase)}
		},
		columns: columns{nameColumn(),
			{name: "Status", cell: func(o runtime.Object) any { return string(o.(*corev1.Namespace).Status.Phase) }},
			ageColumn()},
	}
}

// addNamespaces adds namespaces and the two ways to write parts of them: status, and the finalizers in their spec.
func addNamespaces(all map[string]rest.Storage, scheme *runtime.Scheme, options generic.RESTOptionsGetter) error {
	k := namespaceKind()
	store, err := k.store(scheme, options)
	if err != nil {
		return err
	}
	store.ShouldDeleteDuringUpdate = func(_ context.Context, _ string, next, _ runtime.Object) bool {
		return len(next.(*corev1.Namespace).Spec.Finalizers) == 0
	}
	part := func(prepare func(next, old runtime.Object)) *namespacePart {
		k, s := k, *store
		k.prepare = prepare
		s.UpdateStrategy = strategy{ObjectTyper: scheme, kind: k}
		return &namespacePart{&s}
	}
	all["namespaces"] = &namespaceStorage{keeper: store, store: store}
	all["namespaces/status"] = part(keepSpec)
	all["namespaces/finalize"] = part(keepStatus)
	return nil
}

// prepareNamespace: only the system writes the finalizers in the spec of a namespace and its status.
func prepareNamespace(next, old runtime.Object) {
	n := next.(*corev1.Namespace)
	if was, ok := old.(*corev1.Namespace); ok {
		n.Spec.Finalizers, n.Status = was.Spec.Finalizers, was.Status
	} else {
		n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
		if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
			n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
		}
	}
	if n.Name != "" {
		metav1.SetMetaDataLabel(&n.ObjectMeta, corev1.LabelMetadataName, n.Name)
	}
}

func keepSpec(next, old runtime.Object) { next.(*corev1.Namespace).Spec = old.(*corev1.Namespace).Spec }

func keepStatus(next, old runtime.Object) {
	next.(*corev1.Namespace).Status = old.(*corev1.Namespace).Status
}

func validateNamespace(next, old runtime.Object) field.ErrorList {
	n := next.(*corev1.Namespace)
	var errs field.ErrorList
	if n.Name != "" || n.GenerateName == "" {
		for _, message := range validation.ValidateNamespaceName(n.Name, false) {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), n.Name, message))
		}
	}
	was, ok := old.(*corev1.Namespace)
	if ok && !equality.Semantic.DeepEqual(n.Status, was.Status) && (n.Status.Phase == corev1.NamespaceTerminating) != (n.DeletionTimestamp != nil) {
		errs = append(errs, field.Invalid(field.NewPath("status", "phase"), n.Status.Phase, "must be Terminating while the namespace is being deleted, and Active otherwise"))
	}
	return errs
}

// keeper are the operations of a store that namespaces use as they are: all but deleting one, which differs, and deleting a collection.
type keeper interface {
	rest.StorageWithReadiness
	rest.Scoper
	rest.SingularNameProvider
	rest.Lister
	rest.Getter
	rest.Creater
	rest.Updater
	rest.Watcher
}

// namespaceStorage is the store of namespaces.
type namespaceStorage struct {
	keeper
	store *genericregistry.Store
}

// ShortNames implements rest.ShortNamesProvider.
func (s *namespaceStorage) ShortNames() []string { return []string{"ns"} }

// Delete marks a namespace Terminating. It is deleted when it is empty and has no finalizer left.
func (s *namespaceStorage) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	have, err := s.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	if len(have.(*corev1.Namespace).Spec.Finalizers) == 0 {
		return s.store.Delete(ctx, name, validate, opts)
	}
	key, err := s.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, false, err
	}
	var must storage.Preconditions
	if opts != nil && opts.Preconditions != nil {
		must.UID, must.ResourceVersion = opts.Preconditions.UID, opts.Preconditions.ResourceVersion
	}
	marked := &corev1.Namespace{}
	mark := storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
		n, ok := o.(*corev1.Namespace)
		if !ok {
			return nil, fmt.Errorf("namespace %s: unexpected object type %T", name, o)
		}
		if validate != nil {
			if err := validate(ctx, n); err != nil {
				return nil, err
			}
		}
		if n.DeletionTimestamp == nil {
			now, atOnce := metav1.Now(), int64(0)
			n.DeletionTimestamp, n.DeletionGracePeriodSeconds = &now, &atOnce
		}
		n.Status.Phase = corev1.NamespaceTerminating
		return n, nil
	})
	err = s.store.Storage.GuaranteedUpdate(ctx, key, marked, false, &must, mark, opts != nil && dryrun.IsDryRun(opts.DryRun), nil)
	if err != nil {
		err = storeerr.InterpretDeleteError(err, s.store.DefaultQualifiedResource, name)
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			err = storeerr.InterpretUpdateError(err, s.store.DefaultQualifiedResource, name)
		}
		return nil, false, err
	}
	return marked, false, nil
}

// namespacePart writes one part of a namespace.
type namespacePart struct{ store *genericregistry.Store }

// New implements rest.Storage.
func (p *namespacePart) New() runtime.Object { return &corev1.Namespace{} }

// Destroy implements rest.Storage; the store is its owner's to end.
func (p *namespacePart) Destroy() {}

// Get implements rest.Getter.
func (p *namespacePart) Get(ctx context.Context, name string, opts *metav1.GetOptions) (runtime.Object, error) {
	return p.store.Get(ctx, name, opts)
}

// Update implements rest.Updater.
func (p *namespacePart) Update(ctx context.Context, name string, next rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return p.store.Update(ctx, name, next, create, update, false, opts)
}

// ConvertToTable implements rest.TableConvertor.
func (p *namespacePart) ConvertToTable(ctx context.Context, o, opts runtime.Object) (*metav1.Table, error) {
	return p.store.ConvertToTable(ctx, o, opts)
}
