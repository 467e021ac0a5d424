// Package core serves the part of Kubernetes' built-in API that people expect of every cluster: namespaces, Secrets, ConfigMaps, Events,
// and the reviews behind `kubectl auth`. The generic registry of k8s.io/apiserver stores the objects; this package validates and prints
// them, and deletes namespaces.
package core

import (
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/value"
)

// Groups are the groups beside the core one that this package serves, all in version v1.
var Groups = []string{authenticationv1.GroupName, authorizationv1.GroupName, eventsv1.GroupName}

// Config configures the built-in API.
type Config struct {
	// Etcd stores the objects.
	Etcd genericoptions.EtcdOptions
	// Secrets encrypts Secrets before they are written.
	Secrets value.Transformer
	// EventTTL is how long Events are kept.
	EventTTL time.Duration
	// Authorizer answers reviews.
	Authorizer authorizer.Authorizer
	// Rules lists what a user may do.
	Rules authorizer.RuleResolver
}

// Install adds the built-in API to a server.
func (c Config) Install(server *genericapiserver.GenericAPIServer) error {
	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	resources, err := c.resources(scheme, c.restOptions(codecs))
	if err != nil {
		return err
	}
	group := func(name string, storage map[string]rest.Storage) *genericapiserver.APIGroupInfo {
		info := genericapiserver.NewDefaultAPIGroupInfo(name, scheme, runtime.NewParameterCodec(scheme), codecs)
		info.VersionedResourcesStorageMap["v1"] = storage
		return &info
	}
	if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, group(corev1.GroupName, resources)); err != nil {
		return err
	}
	return server.InstallAPIGroups(
		group(eventsv1.GroupName, map[string]rest.Storage{"events": resources["events"]}),
		group(authenticationv1.GroupName, map[string]rest.Storage{"selfsubjectreviews": selfReview()}),
		group(authorizationv1.GroupName, map[string]rest.Storage{
			"selfsubjectaccessreviews": accessReview(c.Authorizer),
			"selfsubjectrulesreviews":  rulesReview(c.Rules),
		}),
	)
}

func (c Config) resources(scheme *runtime.Scheme, options generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	all := map[string]rest.Storage{}
	for _, k := range []kind{secrets(), configMaps(), events(c.EventTTL)} {
		store, err := k.store(scheme, options)
		if err != nil {
			return nil, err
		}
		all[k.plural] = named{store, k.short}
	}
	return all, addNamespaces(all, scheme, options)
}

func (c Config) restOptions(codecs serializer.CodecFactory) generic.RESTOptionsGetter {
	etcd := c.Etcd
	etcd.StorageConfig.Codec = codecs.LegacyCodec(corev1.SchemeGroupVersion)
	etcd.WatchCacheSizes = []string{"events#0"} // written far more often than read
	factory := &genericoptions.SimpleStorageFactory{StorageConfig: etcd.StorageConfig}
	return etcd.CreateRESTOptionsGetter(factory, onlySecrets{c.Secrets})
}

// onlySecrets encrypts Secrets, and no other objects, in the store.
type onlySecrets struct{ value.Transformer }

// TransformerForResource implements value.ResourceTransformers.
func (s onlySecrets) TransformerForResource(gr schema.GroupResource) value.Transformer {
	if gr == (schema.GroupResource{Resource: "secrets"}) {
		return s.Transformer
	}
	return nil
}

// newScheme has the types that are served. The internal version is v1 itself, so that only Events of events.k8s.io are converted, which
// are another form of the core Events.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	same := func(gv schema.GroupVersion, types ...runtime.Object) {
		s.AddKnownTypes(gv, types...)
		s.AddKnownTypes(schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}, types...)
	}
	same(corev1.SchemeGroupVersion, &corev1.Namespace{}, &corev1.NamespaceList{}, &corev1.Secret{}, &corev1.SecretList{},
		&corev1.ConfigMap{}, &corev1.ConfigMapList{}, &corev1.Event{}, &corev1.EventList{})
	same(authenticationv1.SchemeGroupVersion, &authenticationv1.SelfSubjectReview{})
	same(authorizationv1.SchemeGroupVersion, &authorizationv1.SelfSubjectAccessReview{}, &authorizationv1.SelfSubjectRulesReview{})
	addEvents(s)
	s.AddTypeDefaultingFunc(&corev1.Secret{}, func(o any) { defaultSecret(o.(*corev1.Secret)) })
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion, authenticationv1.SchemeGroupVersion, authorizationv1.SchemeGroupVersion} {
		metav1.AddToGroupVersion(s, gv)
		mustSucceed(s.SetVersionPriority(gv))
	}
	addFields(s, corev1.SchemeGroupVersion.WithKind("Namespace"), map[string]string{"status.phase": "status.phase"})
	addFields(s, corev1.SchemeGroupVersion.WithKind("Secret"), map[string]string{"type": "type"})
	return s
}

// mustSucceed panics on an error that only a bug can cause.
func mustSucceed(err error) {
	if err != nil {
		panic(err)
	}
}
