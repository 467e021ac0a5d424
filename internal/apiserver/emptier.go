package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	// settle is the delay before a Terminating namespace is emptied: objects whose creation was admitted just before have been
	// written by then.
	settle = 500 * time.Millisecond
	// A namespace that is not empty yet is checked again, first after a short delay and then less often.
	emptyFirst, emptySlowest = 250 * time.Millisecond, 5 * time.Second
)

// emptier deletes the objects in terminating namespaces, and removes their finalizer when nothing is left.
type emptier struct {
	*namespaces
	queue workqueue.TypedRateLimitingInterface[string]
}

func newEmptier(n *namespaces) (*emptier, error) {
	e := &emptier{namespaces: n, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](emptyFirst, emptySlowest))}
	see := func(o any) {
		if namespace, ok := o.(*corev1.Namespace); ok && namespace.DeletionTimestamp != nil {
			e.queue.AddAfter(namespace.Name, settle)
		}
	}
	_, err := n.informers.Core().V1().Namespaces().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, o any) { see(o) },
	})
	return e, err
}

func (e *emptier) run(ctx context.Context) {
	go func() {
		<-ctx.Done()
		e.queue.ShutDown()
	}()
	for {
		name, ended := e.queue.Get()
		if ended {
			return
		}
		empty, err := e.empty(ctx, name)
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "could not delete all objects of a terminating namespace; trying again", "namespace", name)
		}
		if empty {
			e.queue.Forget(name)
		} else {
			e.queue.AddRateLimited(name)
		}
		e.queue.Done(name)
	}
}

// empty deletes the objects in a namespace and reports whether it is done.
func (e *emptier) empty(ctx context.Context, name string) (bool, error) {
	namespace, err := e.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	if namespace.DeletionTimestamp == nil || !slices.Contains(namespace.Spec.Finalizers, corev1.FinalizerKubernetes) {
		return true, nil
	}
	left := e.deleteContent(ctx, name)
	if err := e.report(ctx, namespace, left); err != nil {
		return false, err
	}
	if !left.nothing() {
		return false, left.failure()
	}
	namespace.Spec.Finalizers = slices.DeleteFunc(namespace.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if _, err = e.client.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		err = nil
	}
	return err == nil, err
}

// leftover is what a namespace still contains, and the errors of listing and deleting it.
type leftover struct {
	objects, finalizers   map[string]int
	undiscovered, refused []error
}

func (l leftover) nothing() bool {
	return len(l.objects) == 0 && len(l.undiscovered) == 0 && len(l.refused) == 0
}

func (l leftover) failure() error {
	for _, err := range append(l.undiscovered, l.refused...) {
		return err
	}
	return nil
}

func (e *emptier) deleteContent(ctx context.Context, namespace string) leftover {
	left := leftover{objects: map[string]int{}, finalizers: map[string]int{}}
	resources, err := namespacedResources(e.client.Discovery())
	if err != nil {
		left.undiscovered = append(left.undiscovered, err)
	}
	for _, gvr := range resources {
		if err := e.deleteAll(ctx, namespace, gvr, left); err != nil && !apierrors.IsNotFound(err) {
			left.refused = append(left.refused, fmt.Errorf("%s: %w", gvr.GroupResource(), err))
		}
	}
	return left
}

func (e *emptier) deleteAll(ctx context.Context, namespace string, gvr schema.GroupVersionResource, left leftover) error {
	objects := e.objects.Resource(gvr).Namespace(namespace)
	refused := objects.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	list, err := objects.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		left.objects[gvr.GroupResource().String()]++
		for _, finalizer := range list.Items[i].Finalizers {
			left.finalizers[finalizer]++
		}
	}
	if len(list.Items) == 0 || refused == nil {
		return nil
	}
	return refused
}

// namespacedResources are the resources that objects in a namespace can be of.
func namespacedResources(d clientdiscovery.DiscoveryInterface) ([]schema.GroupVersionResource, error) {
	lists, err := clientdiscovery.ServerPreferredNamespacedResources(d)
	can := clientdiscovery.SupportsAllVerbs{Verbs: []string{"list", "deletecollection"}}
	found, parseErr := clientdiscovery.GroupVersionResources(clientdiscovery.FilteredBy(can, lists))
	if err == nil {
		err = parseErr
	}
	delete(found, eventsv1.SchemeGroupVersion.WithResource("events")) // the core ones in another form
	return slices.SortedFunc(maps.Keys(found), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.GroupResource().String(), b.GroupResource().String())
	}), err
}

// report writes what is left into the namespace's conditions, if they change.
func (e *emptier) report(ctx context.Context, namespace *corev1.Namespace, left leftover) error {
	changed := false
	for _, c := range left.conditions() {
		changed = setCondition(&namespace.Status, c) || changed
	}
	if !changed {
		return nil
	}
	next, err := e.client.CoreV1().Namespaces().UpdateStatus(ctx, namespace, metav1.UpdateOptions{})
	if err == nil {
		*namespace = *next
	}
	return err
}

func (l leftover) conditions() []corev1.NamespaceCondition {
	condition := func(kind corev1.NamespaceConditionType, bad bool, reason, message, otherReason, otherMessage string) corev1.NamespaceCondition {
		if bad {
			return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message}
		}
		return corev1.NamespaceCondition{Type: kind, Status: corev1.ConditionFalse, Reason: otherReason, Message: otherMessage}
	}
	return []corev1.NamespaceCondition{
		condition(corev1.NamespaceDeletionDiscoveryFailure, len(l.undiscovered) > 0,
			"DiscoveryFailed", "Discovery failed for some groups: "+texts(l.undiscovered), "ResourcesDiscovered", "All resources successfully discovered"),
		condition(corev1.NamespaceDeletionContentFailure, len(l.refused) > 0,
			"ContentDeletionFailed", "Failed to delete all resource types: "+texts(l.refused), "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		condition(corev1.NamespaceContentRemaining, len(l.objects) > 0,
			"SomeResourcesRemain", "Some resources are remaining: "+counts(l.objects, "%s has %d resource instances"), "ContentRemoved", "All content successfully removed"),
		condition(corev1.NamespaceFinalizersRemaining, len(l.finalizers) > 0,
			"SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: "+counts(l.finalizers, "%s in %d resource instances"), "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
	}
}

func texts(errs []error) string {
	all := sets.New[string]()
	for _, err := range errs {
		all.Insert(err.Error())
	}
	return strings.Join(sets.List(all), "; ")
}

func counts(of map[string]int, format string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf(format, name, of[name]))
	}
	return strings.Join(all, ", ")
}

// setCondition sets a condition and reports whether it has changed.
func setCondition(s *corev1.NamespaceStatus, want corev1.NamespaceCondition) bool {
	want.LastTransitionTime = metav1.Now()
	i := slices.IndexFunc(s.Conditions, func(c corev1.NamespaceCondition) bool { return c.Type == want.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, want)
		return true
	}
	have := s.Conditions[i]
	if have.Status == want.Status {
		want.LastTransitionTime = have.LastTransitionTime
	}
	s.Conditions[i] = want
	return have != want
}
