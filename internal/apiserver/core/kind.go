package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kind describes one built-in type.
type kind struct {
	plural, singular string
	short            []string
	namespaced       bool
	empty, list      func() runtime.Object
	// prepare completes an object before it is validated; old is nil when it is created.
	prepare func(next, old runtime.Object)
	// validate returns the errors in an object; old is nil when it is created.
	validate func(next, old runtime.Object) field.ErrorList
	// fields are the fields that can be selected, beside the object's name and namespace.
	fields  func(runtime.Object) fields.Set
	columns columns
	ttl     uint64
}

func (k kind) store(scheme *runtime.Scheme, options generic.RESTOptionsGetter) (*genericregistry.Store, error) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, kind: k}
	store := &genericregistry.Store{
		NewFunc:                   k.empty,
		NewListFunc:               k.list,
		PredicateFunc:             k.match,
		DefaultQualifiedResource:  schema.GroupResource{Resource: k.plural},
		SingularQualifiedResource: schema.GroupResource{Resource: k.singular},
		CreateStrategy:            s,
		UpdateStrategy:            s,
		DeleteStrategy:            s,
		TableConvertor:            k.columns,
	}
	if k.ttl > 0 {
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return k.ttl, nil }
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: k.attributes}); err != nil {
		return nil, fmt.Errorf("%s: %w", k.plural, err)
	}
	return store, nil
}

func (k kind) match(l labels.Selector, f fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{Label: l, Field: f, GetAttrs: k.attributes}
}

func (k kind) attributes(o runtime.Object) (labels.Set, fields.Set, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not an API object", o)
	}
	set := fields.Set{"metadata.name": m.GetName()}
	if k.namespaced {
		set["metadata.namespace"] = m.GetNamespace()
	}
	if k.fields != nil {
		maps.Copy(set, k.fields(o))
	}
	return m.GetLabels(), set, nil
}

// addFields lets clients select by further fields of a kind, under the names they use.
func addFields(s *runtime.Scheme, gvk schema.GroupVersionKind, names map[string]string) {
	mustSucceed(s.AddFieldLabelConversionFunc(gvk, func(label, value string) (string, string, error) {
		if label == "metadata.name" || label == "metadata.namespace" {
			return label, value, nil
		}
		if name, ok := names[label]; ok {
			return name, value, nil
		}
		known := append(slices.Sorted(maps.Keys(names)), "metadata.name", "metadata.namespace")
		return "", "", fmt.Errorf("%q is not a supported field selector: use %s", label, strings.Join(known, ", "))
	}))
}

// strategy is how the registry treats objects of a kind.
type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	kind kind
}

func (s strategy) NamespaceScoped() bool { return s.kind.namespaced }

func (s strategy) PrepareForCreate(_ context.Context, o runtime.Object) { s.kind.prepare(o, nil) }

func (s strategy) PrepareForUpdate(_ context.Context, o, old runtime.Object) { s.kind.prepare(o, old) }

func (s strategy) Validate(_ context.Context, o runtime.Object) field.ErrorList {
	return s.kind.validate(o, nil)
}

func (s strategy) ValidateUpdate(_ context.Context, o, old runtime.Object) field.ErrorList {
	return s.kind.validate(o, old)
}

func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (strategy) Canonicalize(runtime.Object)                   {}
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// named is a store with the short names of kubectl.
type named struct {
	*genericregistry.Store
	short []string
}

// ShortNames implements rest.ShortNamesProvider.
func (n named) ShortNames() []string { return n.short }
