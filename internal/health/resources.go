package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// Wait is why something cannot be done now, as the reason and the message of the condition Handled.
type Wait struct{ Reason, Message string }

// Error implements error.
func (w *Wait) Error() string { return w.Message }

// errNameTaken: an object of that name exists that was made for something else.
var errNameTaken = errors.New("an object of that name exists already")

// Resources creates, watches and deletes custom resources. It belongs to one term.
type Resources struct {
	config    *drainconfig.CustomDrain
	template  *render.Template
	objects   dynamic.Interface
	discovery discovery.DiscoveryInterface
	clock     *kubeclient.ServerClock
	changed   func() // wakes the controller
	atStatus  func() // is called between the create and the write of the status
	log       *slog.Logger

	mu         sync.Mutex
	definition Definition
	known      bool // definition is up to date
	gvr        schema.GroupVersionResource
	status     bool                                  // the kind has a status subresource
	missing    map[schema.GroupVersionKind]time.Time // since when discovery has answered that there is no such kind
	informer   cache.SharedIndexInformer
	distrusted *string // what the informer had seen when its watch failed; its objects may be old until it has seen more
	stop       context.CancelFunc
	unread     map[string]unread // reads that failed, by UID of the resource
}

// unread is a read that failed. It is not tried again before a time.
type unread struct {
	wait  Wait
	until time.Time
}

const (
	// callLimit bounds one call about the custom resource of one node.
	callLimit = 10 * time.Second
	// readLimit bounds the reads of one look at all resources.
	readLimit = 5 * time.Second
	// goneAfter is for how long discovery has to deny a kind before its resources count as deleted. An API server that has just started
	// may not know all its kinds yet.
	goneAfter = 5 * time.Second
)

// NewResources makes clients. Without a configuration and a template they only delete resources that an earlier configuration made. changed is
// called when a resource or its definition may have changed.
func NewResources(cfg *rest.Config, config *drainconfig.CustomDrain, template *render.Template, changed func(), log *slog.Logger) (*Resources, error) {
	clock := kubeclient.NewServerClock()
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(clock.Watch)
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	lookup, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &Resources{config: config, template: template, objects: objects, discovery: lookup, clock: clock, changed: changed, atStatus: func() {}, log: log,
		missing: map[schema.GroupVersionKind]time.Time{}, unread: map[string]unread{}}, nil
}

// Definition looks up the kind of the resources, unless it is known, and watches them from then on until ctx ends. A lookup that fails says
// nothing about the kind.
func (r *Resources) Definition(ctx context.Context) Definition {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known && r.definition.Ready {
		return r.definition
	}
	before := r.definition
	found := r.lookup(ctx)
	if found != before {
		r.report(found)
	}
	r.definition, r.known = found, found.Ready || found.Reason == WaitDefinition
	switch {
	case found.Ready:
		r.watch(ctx)
	case found.Reason == WaitDefinition:
		r.unwatch()
	}
	return found
}

func (r *Resources) report(d Definition) {
	if d.Ready {
		r.log.Info("custom drains: the kind is served", "kind", r.config.GVK.String(), "resource", r.gvr.Resource)
		return
	}
	r.log.Warn("custom drains cannot begin", "reason", d.Reason, "problem", d.Message)
}

// lookup maps the kind to its resource by discovery.
func (r *Resources) lookup(ctx context.Context) Definition {
	gvk := r.config.GVK
	kind, err := r.find(ctx, gvk)
	switch {
	case err != nil:
		return Definition{Reason: WaitLookup, Message: fmt.Sprintf("Could not find out whether the cluster serves %s of %s: %v. Trying again.", gvk.Kind, gvk.GroupVersion(), err)}
	case kind.deleting:
		return Definition{Reason: WaitDefinition, Gone: kind.gone, Message: fmt.Sprintf("The CustomResourceDefinition of %s of %s is being deleted: install it again; drains wait for it.", gvk.Kind, gvk.GroupVersion())}
	case !kind.served:
		return Definition{Reason: WaitDefinition, Gone: kind.gone, Message: fmt.Sprintf("The cluster serves no %s of %s: install its CustomResourceDefinition; drains wait for it.", gvk.Kind, gvk.GroupVersion())}
	}
	r.gvr, r.status = kind.gvr, kind.status
	return Definition{Ready: true, Namespaced: kind.namespaced}
}

// servedKind is what discovery answers about a kind.
type servedKind struct {
	gvr                schema.GroupVersionResource
	served, namespaced bool
	status             bool // there is a status subresource
	deleting           bool // objects can no longer be created
	gone               bool // it has not been served for a while
}

// find asks discovery for a kind, and notes since when there is none.
func (r *Resources) find(ctx context.Context, gvk schema.GroupVersionKind) (servedKind, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	list, err := discovery.ToServerResourcesInterfaceWithContext(r.discovery).ServerResourcesForGroupVersionWithContext(ctx, gvk.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		delete(r.missing, gvk)
		return servedKind{}, err
	}
	found := servedKind{}
	if err == nil {
		found = kindIn(list, gvk)
	}
	if found.served {
		delete(r.missing, gvk)
		return found, nil
	}
	if r.missing[gvk].IsZero() {
		r.missing[gvk] = time.Now()
	}
	found.gone = time.Since(r.missing[gvk]) >= goneAfter
	return found, nil
}

func kindIn(list *metav1.APIResourceList, gvk schema.GroupVersionKind) servedKind {
	found := servedKind{}
	for _, resource := range list.APIResources {
		if resource.Kind != gvk.Kind {
			continue
		}
		switch name, sub := cutSubresource(resource.Name); {
		case sub == "status":
			found.status = true
		case sub != "":
		case !slices.Contains(resource.Verbs, "create"):
			found.deleting = true
		default:
			found.gvr, found.served, found.namespaced = gvk.GroupVersion().WithResource(name), true, resource.Namespaced
		}
	}
	return found
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
		if ctx.Err() != nil {
			return
		}
		r.distrust()
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
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
		r.informer, r.stop, r.distrusted = nil, nil, nil
	}
}

// distrust lets resources be read live until the informer has seen more: its watch failed.
func (r *Resources) distrust() {
	r.mu.Lock()
	if r.informer != nil {
		r.distrusted = new(r.informer.LastSyncResourceVersion())
	}
	r.mu.Unlock()
	r.changed()
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

// Get returns the resource that was recorded, or nil if it does not exist. What the informer has not seen is read live. A resource that
// cannot be read is a wait.
func (r *Resources) Get(ctx context.Context, cr *v1alpha1.CustomResource) (*unstructured.Unstructured, *Wait) {
	if object := r.cached(cr); object != nil {
		return object, nil
	}
	r.mu.Lock()
	before, failed := r.unread[cr.UID]
	r.mu.Unlock()
	if failed && time.Now().Before(before.until) {
		return nil, &before.wait
	}
	began := time.Now()
	object, err := r.of(cr).Get(ctx, cr.Name, metav1.GetOptions{})
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unread, cr.UID)
	switch {
	case err == nil && string(object.GetUID()) == cr.UID:
		return object, nil
	case err == nil:
		return nil, nil // another of the same name
	case isNoObject(err):
		r.known = false // perhaps the definition was deleted too
		return nil, nil
	}
	wait := Wait{Reason: WaitUnreadable, Message: fmt.Sprintf("Could not read %s %s: %v. Trying again. Check the CustomResourceDefinition of its kind, and its conversion webhook if it has one.", cr.Kind, cr.Name, err)}
	switch {
	case apierrors.IsForbidden(err):
		wait = forbidden(cr, err)
	case apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err):
		r.known = false
		wait = Wait{Reason: WaitLookup, Message: fmt.Sprintf("Could not read %s %s: the cluster does not serve its kind at the moment. Trying again.", cr.Kind, cr.Name)}
	}
	// A read that takes long, because a webhook does not answer, is tried less often: other nodes wait for it.
	r.unread[cr.UID] = unread{wait: wait, until: time.Now().Add(max(tryAgain, 4*time.Since(began)))}
	return nil, &wait
}

// isNoObject reports whether the API says that an object does not exist, as opposed to not serving its kind.
func isNoObject(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func (r *Resources) cached(cr *v1alpha1.CustomResource) *unstructured.Unstructured {
	r.mu.Lock()
	informer := r.informer
	if r.stale() {
		informer = nil
	}
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

// isDistrusted reports whether resources are read live because the watch failed.
func (r *Resources) isDistrusted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stale()
}

// stale reports whether the informer has seen nothing since its watch failed.
func (r *Resources) stale() bool {
	return r.informer != nil && r.distrusted != nil && *r.distrusted == r.informer.LastSyncResourceVersion()
}

// CreatedResource is a resource that exists.
type CreatedResource struct {
	// UID of the resource.
	UID string
	// At is when it was created, by the API server's clock.
	At metav1.Time
	// StatusPending says that the template's status could not be written yet.
	StatusPending bool
}

// Create creates the resource of an event, or finds the one that was created for it before. Once it exists it counts, also if its status cannot be
// written.
func (r *Resources) Create(ctx context.Context, e *v1alpha1.HealthEvent) (CreatedResource, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	cr := e.Status.CustomResource
	object, status, err := r.render(e)
	if err != nil {
		return CreatedResource{}, err
	}
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
		return CreatedResource{}, r.explain(err, cr)
	}
	made := CreatedResource{UID: string(created.GetUID()), At: created.GetCreationTimestamp()}
	if status == nil || created.Object["status"] != nil {
		return made, nil
	}
	r.atStatus()
	if err := r.writeStatus(ctx, cr, created, status); err != nil {
		made.StatusPending = true
		r.log.Warn("custom drains: could not write the template's status; trying again", "resource", cr.Name, "error", err)
	}
	return made, nil
}

// render renders the resource of an event, and the status that is written separately: nil if there is none, or if it is part of the resource.
func (r *Resources) render(e *v1alpha1.HealthEvent) (object *unstructured.Unstructured, status any, err error) {
	object, err = r.template.Render(render.NewData(e, e.Status.Pods))
	if err != nil {
		return nil, nil, &Wait{WaitTemplate, fmt.Sprintf("%v. Correct the template and restart the nodes.", err)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status {
		status = object.Object["status"]
		delete(object.Object, "status")
	}
	return object, status, nil
}

// WriteStatus writes the template's status to the resource of an event that was created without it, unless its controller has written one.
func (r *Resources) WriteStatus(ctx context.Context, e *v1alpha1.HealthEvent) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	cr := e.Status.CustomResource
	_, status, err := r.render(e)
	if err != nil || status == nil {
		return err
	}
	found, err := r.of(cr).Get(ctx, cr.Name, metav1.GetOptions{})
	switch {
	case isNoObject(err), err == nil && (string(found.GetUID()) != cr.UID || found.Object["status"] != nil):
		return nil
	case err == nil:
		err = r.writeStatus(ctx, cr, found, status)
	}
	if err != nil {
		return &Wait{WaitStatus, fmt.Sprintf("%s %s has been created without the template's status, which could not be written: %s. Trying again; check the webhooks of this kind.", cr.Kind, cr.Name, bounded(err.Error()))}
	}
	return nil
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

// writeStatus writes the template's status with the version that was read. A conflict means that the controller of the resource spoke
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
	return err
}

// explain turns the refusals that a person has to do something about into waits.
func (r *Resources) explain(err error, cr *v1alpha1.CustomResource) error {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, errNameTaken):
		return err
	case apierrors.IsConflict(err):
		return fmt.Errorf("create %s %s: %w", cr.Kind, cr.Name, err)
	case apierrors.IsForbidden(err):
		return new(forbidden(cr, err))
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		return &Wait{WaitRefused, fmt.Sprintf("The API refused %s %s: %s. Correct the template and restart the nodes.", cr.Kind, cr.Name, bounded(err.Error()))}
	case apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces":
		return &Wait{WaitNamespace, fmt.Sprintf("There is no namespace %s: create it; the drain then continues.", cr.Namespace)}
	case apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err):
		r.mu.Lock()
		r.known = false
		r.mu.Unlock()
		return &Wait{WaitDefinition, fmt.Sprintf("The cluster serves no %s: install its CustomResourceDefinition; drains wait for it.", cr.Kind)}
	}
	return &Wait{WaitUncreated, fmt.Sprintf("Could not create %s %s: %s. Trying again; check the API server, and the webhooks of this kind if it has any.", cr.Kind, cr.Name, bounded(err.Error()))}
}

func forbidden(cr *v1alpha1.CustomResource, err error) Wait {
	return Wait{WaitForbidden, fmt.Sprintf("The coordinator may not read and write %s in namespace %s: %v. Start `ebb apiserver` with the same --drain-config; on Kubernetes apply what `ebb manifests --drain-config FILE` prints.", cr.Kind, cr.Namespace, err)}
}

// Delete deletes the resource of an event, if it exists and was made for it. term is for how long resources are watched.
func (r *Resources) Delete(ctx, term context.Context, e *v1alpha1.HealthEvent) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	cr := e.Status.CustomResource
	objects, err := r.forDeletion(ctx, term, cr)
	if err != nil || objects == nil {
		return err
	}
	found, err := objects.Get(ctx, cr.Name, metav1.GetOptions{})
	if isNoObject(err) {
		return nil
	}
	if err == nil && (cr.UID != "" && string(found.GetUID()) != cr.UID || found.GetAnnotations()[v1alpha1.HealthEventAnnotation] != string(e.UID)) {
		return nil
	}
	if err == nil {
		uid, background := found.GetUID(), metav1.DeletePropagationBackground
		err = objects.Delete(ctx, cr.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: &background})
	}
	switch {
	case err == nil || isNoObject(err):
		return nil
	case apierrors.IsForbidden(err) && !r.configured(cr):
		return &Wait{WaitForbidden, fmt.Sprintf("The coordinator may not delete %s %s in namespace %s: %v. --drain-config no longer has this kind: restore it there until the resource is deleted, and restart `ebb apiserver` with it, or apply what `ebb manifests --drain-config FILE` prints.", cr.Kind, cr.Name, cr.Namespace, err)}
	case apierrors.IsForbidden(err):
		return new(forbidden(cr, err))
	}
	return &Wait{WaitUndeleted, fmt.Sprintf("Could not delete %s %s: %v. Trying again.", cr.Kind, cr.Name, err)}
}

// configured reports whether a resource is of the kind that --drain-config has.
func (r *Resources) configured(cr *v1alpha1.CustomResource) bool {
	return r.config != nil && schema.FromAPIVersionAndKind(cr.APIVersion, cr.Kind) == r.config.GVK
}

// forDeletion is where the resource of a record is, or nil if the cluster has not served its kind for a while: then nothing is left of it.
// The kind may be one that --drain-config had before.
func (r *Resources) forDeletion(ctx, term context.Context, cr *v1alpha1.CustomResource) (dynamic.ResourceInterface, error) {
	gvk := schema.FromAPIVersionAndKind(cr.APIVersion, cr.Kind)
	if r.configured(cr) {
		switch d := r.Definition(term); {
		case d.Ready:
			return r.of(cr), nil
		case d.Gone:
			return nil, nil
		default:
			return nil, &Wait{d.Reason, d.Message}
		}
	}
	r.mu.Lock()
	kind, err := r.find(ctx, gvk)
	r.mu.Unlock()
	switch {
	case err != nil:
		return nil, &Wait{WaitLookup, fmt.Sprintf("Could not find out whether the cluster serves %s: %v. Trying again.", gvk.Kind, err)}
	case kind.gone:
		return nil, nil
	case !kind.served:
		return nil, &Wait{WaitDefinition, fmt.Sprintf("The cluster serves no %s at the moment: %s cannot be deleted.", gvk.Kind, cr.Name)}
	case cr.Namespace == "":
		return r.objects.Resource(kind.gvr), nil
	}
	return r.objects.Resource(kind.gvr).Namespace(cr.Namespace), nil
}

// Pods lists the pods on a node that a drain has to move, by namespace. An API without pods has none; a list that fails is an error.
func (r *Resources) Pods(ctx context.Context, node string, config *drainconfig.Config, now time.Time) (*v1alpha1.PodsSnapshot, error) {
	snapshot := &v1alpha1.PodsSnapshot{TakenAt: metav1.MicroTime{Time: now}}
	served, err := discovery.ToServerResourcesInterfaceWithContext(r.discovery).ServerResourcesForGroupVersionWithContext(ctx, corev1.SchemeGroupVersion.String())
	if err != nil {
		return nil, &Wait{WaitPods, fmt.Sprintf("Could not find out whether the API has pods: %v.", err)}
	}
	if !slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "pods" }) {
		return snapshot, nil
	}
	list, err := r.objects.Resource(corev1.SchemeGroupVersion.WithResource("pods")).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, &Wait{WaitPods, fmt.Sprintf("Could not list the pods on node %s: %v. The coordinator needs to list pods in all namespaces.", node, err)}
	}
	snapshot.Namespaces = PodsByNamespace(list.Items, config)
	return snapshot, nil
}

// PodsByNamespace are the names of the pods that a drain has to move, sorted. Ebb's own stay: whoever evicts the sensor of a guard takes the
// cordon of its node over.
func PodsByNamespace(pods []unstructured.Unstructured, config *drainconfig.Config) []v1alpha1.PodsOfNamespace {
	names := map[string][]string{}
	for i := range pods {
		pod := &pods[i]
		if namespace := pod.GetNamespace(); moves(pod) && !config.IsSystem(namespace) && namespace != lease.Namespace {
			names[namespace] = append(names[namespace], pod.GetName())
		}
	}
	var list []v1alpha1.PodsOfNamespace
	for _, namespace := range slices.Sorted(maps.Keys(names)) {
		list = append(list, v1alpha1.PodsOfNamespace{Namespace: namespace, Names: slices.Sorted(slices.Values(names[namespace]))})
	}
	return list
}

// moves reports whether a drain has to move a pod: not one of a DaemonSet, a static one or a finished one.
func moves(pod *unstructured.Unstructured) bool {
	phase, _, _ := unstructured.NestedString(pod.Object, "status", "phase")
	if phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed) || pod.GetAnnotations()[corev1.MirrorPodAnnotationKey] != "" {
		return false
	}
	return !slices.ContainsFunc(pod.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.Kind == "DaemonSet" })
}
