package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/pager"

	"github.com/ebb-dev/ebb/internal/lease"
)

// systemNamespaces always exist. The default one is created last: if it exists, so do the others.
var systemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespacePublic, lease.Namespace, metav1.NamespaceDefault}

// namespaces enforces the lifecycle of namespaces: no object is created in one that is missing or being deleted, and one that is being
// deleted is emptied.
type namespaces struct {
	client    kubernetes.Interface
	objects   metadata.Interface
	informers informers.SharedInformerFactory
	lifecycle *lifecycle.Lifecycle
}

func (s *Server) newNamespaces() (*namespaces, error) {
	client, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(s.config)
	if err != nil {
		return nil, err
	}
	guard, err := lifecycle.NewLifecycle(sets.New(systemNamespaces...))
	if err != nil {
		return nil, err
	}
	n := &namespaces{client: client, objects: objects, lifecycle: guard, informers: informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(dropManagedFields))}
	guard.SetExternalKubeClientSet(client)
	guard.SetExternalKubeInformerFactory(n.informers)
	return n, guard.ValidateInitialization()
}

func dropManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// start begins to watch namespaces, and to empty those that are deleted, until the server ends.
func (n *namespaces) start(hook genericapiserver.PostStartHookContext) error {
	e, err := newEmptier(n)
	if err != nil {
		return err
	}
	n.informers.Start(hook.Done())
	go e.run(hook)
	return nil
}

// create creates the system namespaces and, in a store from before there were namespaces, the namespaces of existing objects.
func (n *namespaces) create(ctx context.Context, crds crdclient.CustomResourceDefinitionInterface) error {
	_, err := n.client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	used, err := n.used(ctx, crds)
	if err != nil {
		return err
	}
	for _, name := range append(sets.List(used.Delete(systemNamespaces...)), systemNamespaces...) {
		if err := n.createOne(ctx, name); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
	}
	return nil
}

func (n *namespaces) createOne(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := n.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// used are the namespaces that custom resources are in.
func (n *namespaces) used(ctx context.Context, crds crdclient.CustomResourceDefinitionInterface) (sets.Set[string], error) {
	all, err := crds.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for i := range all.Items {
		gvr, ok := namespacedResource(&all.Items[i])
		if !ok {
			continue
		}
		err := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return n.objects.Resource(gvr).List(ctx, o)
		}).EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
			used[o.(metav1.Object).GetNamespace()] = true
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) { // a type whose names were not accepted is not served
			return nil, fmt.Errorf("list %s: %w", gvr.GroupResource(), err)
		}
	}
	return sets.New(slices.Collect(maps.Keys(used))...), nil
}

// namespacedResource is a version under which a type's objects can be listed, if they are in namespaces: the one in which
// they are stored, where it is served, because nothing has to be converted then.
func namespacedResource(crd *apiextensionsv1.CustomResourceDefinition) (schema.GroupVersionResource, bool) {
	if crd.Spec.Scope != apiextensionsv1.NamespaceScoped || crd.DeletionTimestamp != nil {
		return schema.GroupVersionResource{}, false
	}
	gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
	for _, v := range crd.Spec.Versions {
		if v.Served && (v.Storage || gvr.Version == "") {
			gvr.Version = v.Name
		}
	}
	return gvr, gvr.Version != ""
}
