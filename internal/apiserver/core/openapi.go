package core

import (
	"fmt"
	"reflect"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// served are the types that requests and answers are made of.
var served = []any{
	corev1.Namespace{}, corev1.NamespaceList{}, corev1.Secret{}, corev1.SecretList{}, corev1.ConfigMap{}, corev1.ConfigMapList{},
	corev1.Event{}, corev1.EventList{}, eventsv1.Event{}, eventsv1.EventList{},
	authenticationv1.SelfSubjectReview{}, authorizationv1.SelfSubjectAccessReview{}, authorizationv1.SelfSubjectRulesReview{},
}

// Definitions describe the served types, for `kubectl explain` and for server-side apply. The published modules of
// Kubernetes carry the types and their documentation but no generated description of them, and generating one of the
// core group would bring all its hundreds of types along.
func Definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	d := definitions{ref: ref, all: map[string]common.OpenAPIDefinition{}}
	for _, o := range served {
		d.add(reflect.TypeOf(o))
	}
	return d.all
}

// definitions grow with every type that another one needs.
type definitions struct {
	ref common.ReferenceCallback
	all map[string]common.OpenAPIDefinition
}

// modelled is a type that has a name in OpenAPI; all of k8s.io/api and k8s.io/apimachinery have.
type modelled interface{ OpenAPIModelName() string }

// documented is a type of k8s.io/api that carries its documentation: by field, and its own under the empty name.
type documented interface{ SwaggerDoc() map[string]string }

// add describes a type, once, and returns its name.
func (d definitions) add(t reflect.Type) string {
	name := reflect.Zero(t).Interface().(modelled).OpenAPIModelName()
	if _, done := d.all[name]; done || !strings.HasPrefix(t.PkgPath(), "k8s.io/api/") {
		return name // the others are described by those who made them
	}
	d.all[name] = common.OpenAPIDefinition{} // a type may hold itself
	docs := docsOf(t)
	schema := spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}, Description: docs[""], Properties: map[string]spec.Schema{}}}
	needs := map[string]bool{}
	d.fields(t, &schema, needs)
	if t == reflect.TypeFor[corev1.ObjectReference]() {
		schema.AddExtension("x-kubernetes-map-type", "atomic")
	}
	definition := common.OpenAPIDefinition{Schema: schema}
	for needed := range needs {
		definition.Dependencies = append(definition.Dependencies, needed)
	}
	d.all[name] = definition
	return name
}

func docsOf(t reflect.Type) map[string]string {
	if o, ok := reflect.Zero(t).Interface().(documented); ok {
		return o.SwaggerDoc()
	}
	return nil
}

// optional are fields that are written though they are empty, and need not be given.
var optional = map[string]bool{"metadata": true, "status": true, "reportingComponent": true, "reportingInstance": true}

func (d definitions) fields(t reflect.Type, to *spec.Schema, needs map[string]bool) {
	docs := docsOf(t)
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			d.fields(f.Type, to, needs)
			continue
		}
		s := d.schema(f.Type, needs)
		s.Description = docs[name]
		if how := f.Tag.Get("patchStrategy"); how != "" {
			s.AddExtension("x-kubernetes-patch-strategy", how)
		}
		if key := f.Tag.Get("patchMergeKey"); key != "" {
			s.AddExtension("x-kubernetes-patch-merge-key", key)
			s.AddExtension("x-kubernetes-list-type", "map")
			s.AddExtension("x-kubernetes-list-map-keys", []any{key})
		}
		to.Properties[name] = s
		if !strings.Contains(options, "omitempty") && !optional[name] {
			to.Required = append(to.Required, name)
		}
	}
}

func (d definitions) schema(t reflect.Type, needs map[string]bool) spec.Schema {
	simple := func(kind, format string) spec.Schema {
		return spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{kind}, Format: format}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.schema(t.Elem(), needs)
	case reflect.String:
		return simple("string", "")
	case reflect.Bool:
		return simple("boolean", "")
	case reflect.Int32, reflect.Int64:
		return simple("integer", t.Kind().String())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return simple("string", "byte")
		}
		item := d.schema(t.Elem(), needs)
		s := simple("array", "")
		s.Items = &spec.SchemaOrArray{Schema: &item}
		return s
	case reflect.Map:
		value := d.schema(t.Elem(), needs)
		s := simple("object", "")
		s.AdditionalProperties = &spec.SchemaOrBool{Allows: true, Schema: &value}
		return s
	case reflect.Struct:
		name := d.add(t)
		needs[name] = true
		return spec.Schema{SchemaProps: spec.SchemaProps{Ref: d.ref(name)}}
	}
	panic(fmt.Sprintf("%s has no description in OpenAPI", t))
}
