package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health/render"
)

// Problems of custom resources that are waited out by name.
type blocked struct{ reason, message string }

// Error implements error.
func (b *blocked) Error() string { return b.message }

// errNameTaken: an object of that name exists that was made for something else.
var errNameTaken = errors.New("an object of that name exists already")

// Resources creates, watches and deletes custom resources. It belongs to one term.
type Resources struct {
	config    *drainconfig.CustomDrain
	template  *render.Template
	objects   dynamic.Interface
	discovery discovery.DiscoveryInterface
	changed   func() // wakes the controller
	log       *slog.Logger

	mu         sync.Mutex
	definition Definition
	known      bool // definition is up to date
	gvr        schema.GroupVersionResource
	status     bool // the kind has a status subresource
	informer   cache.SharedIndexInformer
	stop       context.CancelFunc
}

// NewResources makes clients. changed is called when a resource or its definition may have changed.
func NewResources(cfg *rest.Config, config *drainconfig.CustomDrain, template *render.Template, changed func(), log *slog.Logger) (*Resources, error) {
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	lookup, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Resources{config: config, template: template, objects: objects, discovery: lookup, changed: changed, log: log}, nil
}

// Definition looks up the kind of the resources, unless it is known, and watches them from then on until ctx ends.
func (r *Resources) Definition(ctx context.Context) (Definition, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known && r.definition.Ready {
		return r.definition, nil
	}
	before := r.definition
	found, err := r.lookup(ctx)
	if err != nil {
		return Definition{}, err
	}
	r.definition, r.known = found, true
	if found != before {
		r.report(found)
	}
	if found.Ready {
		r.watch(ctx)
	} else {
		r.unwatch()
	}
	return found, nil
}

func (r *Resources) report(d Definition) {
	if d.Ready {
		r.log.Info("custom drains: the kind is served", "kind", r.config.GVK.String(), "resource", r.gvr.Resource)
		return
	}
	r.log.Warn("custom drains cannot begin", "reason", d.Reason, "problem", d.Message)
}

// lookup maps the kind to its resource by discovery.
func (r *Resources) lookup(ctx context.Context) (Definition, error) {
	gv := r.config.GVK.GroupVersion()
	list, err := discovery.ToServerResourcesInterfaceWithContext(r.discovery).ServerResourcesForGroupVersionWithContext(ctx, gv.String())
	missing := Definition{Reason: WaitDefinition, Message: fmt.Sprintf("The cluster serves no %s of %s: install its CustomResourceDefinition; drains wait for it.", r.config.GVK.Kind, gv)}
	switch {
	case apierrors.IsNotFound(err):
		return missing, nil
	case err != nil:
		return Definition{}, fmt.Errorf("look up %s of %s: %w", r.config.GVK.Kind, gv, err)
	}
	found := missing
	r.status = false
	for _, resource := range list.APIResources {
		if resource.Kind != r.config.GVK.Kind {
			continue
		}
		switch name, sub := cutSubresource(resource.Name); {
		case sub == "status":
			r.status = true
		case sub != "":
		case !slices.Contains(resource.Verbs, "create"):
			missing.Message = fmt.Sprintf("The CustomResourceDefinition of %s of %s is being deleted: install it again; drains wait for it.", r.config.GVK.Kind, gv)
			return missing, nil
		default:
			r.gvr = gv.WithResource(name)
			found = Definition{Ready: true, Namespaced: resource.Namespaced}
		}
	}
	return found, nil
}

func cutSubresource(name string) (resource, sub string) {
	for i := range name {
		if name[i] == '/' {
			return name[:i], name[i+1:]
		}
	}
	return name, ""
}

// watch starts an informer, which lists and watches again after errors.
func (r *Resources) watch(ctx context.Context) {
	if r.informer != nil {
		return
	}
	namespace := r.config.Namespace
	if !r.definition.Namespaced {
		namespace = metav1.NamespaceAll
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(r.objects, r.gvr, namespace, 0, cache.Indexers{}, nil).Informer()
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil && (apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err)) {
			r.forget()
		}
	}) // it fails only after the start
	wake := func(any) { r.changed() }
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(_, now any) { wake(now) }, DeleteFunc: func(any) { r.forget() },
	}) // it fails only after the stop
	running, stop := context.WithCancel(ctx)
	r.informer, r.stop = informer, stop
	go informer.RunWithContext(running)
}

func (r *Resources) unwatch() {
	if r.stop != nil {
		r.stop()
		r.informer, r.stop = nil, nil
	}
}

// forget lets the kind be looked up again: it may have been deleted with all its resources.
func (r *Resources) forget() {
	r.mu.Lock()
	r.known = false
	r.mu.Unlock()
	r.changed()
}

func (r *Resources) of(cr *v1alpha1.CustomResource) dynamic.ResourceInterface {
	r.mu.Lock()
	defer r.mu.Unlock()
	if cr.Namespace == "" {
		return r.objects.Resource(r.gvr)
	}
	return r.objects.Resource(r.gvr).Namespace(cr.Namespace)
}

// Get returns the resource that was recorded, or nil if it does not exist. What the informer has not seen is read live.
func (r *Resources) Get(ctx context.Context, cr *v1alpha1.CustomResource) (*unstructured.Unstructured, error) {
	if object := r.cached(cr); object != nil {
		return object, nil
	}
	object, err := r.of(cr).Get(ctx, cr.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		r.mu.Lock()
		r.known = false
		r.mu.Unlock()
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", cr.Kind, cr.Name, err)
	case string(object.GetUID()) != cr.UID:
		return nil, nil
	}
	return object, nil
}

func (r *Resources) cached(cr *v1alpha1.CustomResource) *unstructured.Unstructured {
	r.mu.Lock()
	informer := r.informer
	r.mu.Unlock()
	if informer == nil {
		return nil
	}
	key := types.NamespacedName{Namespace: cr.Namespace, Name: cr.Name}.String()
	if cr.Namespace == "" {
		key = cr.Name
	}
	found, ok, err := informer.GetStore().GetByKey(key)
	object, is := found.(*unstructured.Unstructured)
	if err != nil || !ok || !is || string(object.GetUID()) != cr.UID {
		return nil
	}
	return object
}

// Create creates the resource of an event, or finds the one that was created for it before, and returns its UID.
func (r *Resources) Create(ctx context.Context, e *v1alpha1.HealthEvent) (string, error) {
	cr := e.Status.CustomResource
	object, err := r.template.Render(render.NewData(e, e.Status.Pods))
	if err != nil {
		return "", &blocked{WaitTemplate, fmt.Sprintf("%v. Correct the template and restart the nodes.", err)}
	}
	status := object.Object["status"]
	r.mu.Lock()
	if r.status {
		delete(object.Object, "status")
	}
	second := r.status && status != nil
	r.mu.Unlock()
	object.SetName(cr.Name)
	object.SetNamespace(cr.Namespace)
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.HealthEventAnnotation], annotations[v1alpha1.AttemptAnnotation] = string(e.UID), strconv.FormatInt(cr.Attempt, 10)
	object.SetAnnotations(annotations)
	created, err := r.of(cr).Create(ctx, object, metav1.CreateOptions{FieldManager: "ebb"})
	if apierrors.IsAlreadyExists(err) {
		created, err = r.adopt(ctx, e)
	}
	if err != nil {
		return "", r.explain(err, cr)
	}
	if second && created.Object["status"] == nil {
		if err := r.writeStatus(ctx, cr, created, status); err != nil {
			return "", err
		}
	}
	return string(created.GetUID()), nil
}

// adopt finds a resource that was created before its UID could be recorded.
func (r *Resources) adopt(ctx context.Context, e *v1alpha1.HealthEvent) (*unstructured.Unstructured, error) {
	cr := e.Status.CustomResource
	found, err := r.of(cr).Get(ctx, cr.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	notes := found.GetAnnotations()
	if notes[v1alpha1.HealthEventAnnotation] != string(e.UID) || notes[v1alpha1.AttemptAnnotation] != strconv.FormatInt(cr.Attempt, 10) || found.GetDeletionTimestamp() != nil {
		return nil, errNameTaken
	}
	return found, nil
}

// writeStatus writes the template's status with the version of the create. A conflict means that the controller of the resource spoke
// first: its word counts.
func (r *Resources) writeStatus(ctx context.Context, cr *v1alpha1.CustomResource, created *unstructured.Unstructured, status any) error {
	created = created.DeepCopy()
	created.Object["status"] = status
	_, err := r.of(cr).UpdateStatus(ctx, created, metav1.UpdateOptions{FieldManager: "ebb"})
	switch {
	case err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return nil
	case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
		r.log.Warn("custom drains: the template's status was refused; the resource has none", "resource", cr.Name, "error", err)
		return nil
	}
	return fmt.Errorf("write the status of %s %s: %w", cr.Kind, cr.Name, err)
}

// explain turns the refusals that a person has to do something about into waits.
func (r *Resources) explain(err error, cr *v1alpha1.CustomResource) error {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, errNameTaken):
		return err
	case apierrors.IsForbidden(err):
		return &blocked{WaitForbidden, fmt.Sprintf("The coordinator may not write %s in namespace %s: %v. Start `ebb apiserver` with the same --drain-config; on Kubernetes grant the coordinator get, list, watch, create, update and delete on them, and update on their status.", cr.Kind, cr.Namespace, err)}
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return &blocked{WaitRefused, fmt.Sprintf("The API refused %s %s: %s. Correct the template and restart the nodes.", cr.Kind, cr.Name, bounded(err.Error()))}
	case apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces":
		return &blocked{WaitNamespace, fmt.Sprintf("There is no namespace %s: create it, and the drain goes on.", cr.Namespace)}
	case apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err):
		r.mu.Lock()
		r.known = false
		r.mu.Unlock()
		return &blocked{WaitDefinition, fmt.Sprintf("The cluster serves no %s: install its CustomResourceDefinition; drains wait for it.", cr.Kind)}
	}
	return fmt.Errorf("create %s %s: %w", cr.Kind, cr.Name, err)
}

// Delete deletes the resource of an event, if it exists and was made for it.
func (r *Resources) Delete(ctx context.Context, e *v1alpha1.HealthEvent) error {
	cr := e.Status.CustomResource
	if definition, err := r.Definition(ctx); err != nil || !definition.Ready {
		return err // what is not served has no objects
	}
	found, err := r.of(cr).Get(ctx, cr.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil && (cr.UID != "" && string(found.GetUID()) != cr.UID || found.GetAnnotations()[v1alpha1.HealthEventAnnotation] != string(e.UID)) {
		return nil
	}
	if err == nil {
		uid, background := found.GetUID(), metav1.DeletePropagationBackground
		err = r.of(cr).Delete(ctx, cr.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	}
	switch {
	case err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil
	case apierrors.IsForbidden(err):
		return r.explain(err, cr)
	}
	return fmt.Errorf("delete %s %s: %w", cr.Kind, cr.Name, err)
}

// Pods lists the pods on a node that a drain has to move, by namespace. An API without pods has none; a list that fails is an error.
func (r *Resources) Pods(ctx context.Context, node string, config *drainconfig.Config, now time.Time) (*v1alpha1.PodsSnapshot, error) {
	snapshot := &v1alpha1.PodsSnapshot{TakenAt: metav1.MicroTime{Time: now}}
	served, err := discovery.ToServerResourcesInterfaceWithContext(r.discovery).ServerResourcesForGroupVersionWithContext(ctx, corev1.SchemeGroupVersion.String())
	if err != nil {
		return nil, &blocked{WaitPods, fmt.Sprintf("Could not find out whether the API has pods: %v.", err)}
	}
	if !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods" }) {
		return snapshot, nil
	}
	list, err := r.objects.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, &blocked{WaitPods, fmt.Sprintf("Could not list the pods on node %s: %v. The coordinator needs to list pods in all namespaces.", node, err)}
	}
	names := map[string][]string{}
	for i := range list.Items {
		if pod := &list.Items[i]; moves(pod) && !config.SystemNamespaces.MatchString(pod.GetNamespace()) {
			names[pod.GetNamespace()] = append(names[pod.GetNamespace()], pod.GetName())
		}
	}
	for namespace, list := range names {
		slices.Sort(list)
		snapshot.Namespaces = append(snapshot.Namespaces, v1alpha1.PodsOfNamespace{Namespace: namespace, Names: list})
	}
	slices.SortFunc(snapshot.Namespaces, func(a, b v1alpha1.PodsOfNamespace) int {
		return slices.Compare([]string{a.Namespace}, []string{b.Namespace})
	})
	return snapshot, nil
}

// moves reports whether a drain has to move a pod: not one of a DaemonSet, a static one or a finished one.
func moves(pod *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	if phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed) || pod.GetAnnotations()[corev1.MirrorPodAnnotationKey] != "" {
		return false
	}
	return !slices.ContainsFunc(pod.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
}
