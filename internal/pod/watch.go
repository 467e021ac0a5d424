package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// errNotOurs: a watch delivered an object of another type.
var errNotOurs = errors.New("an object of another type")

// reduce is how pods and budgets are kept.
func reduce(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		return Reduce(o), nil
	case *policyv1.PodDisruptionBudget:
		return ReduceBudget(o), nil
	case *Pod, *Budget, toolscache.DeletedFinalStateUnknown:
		return o, nil
	}
	return nil, fmt.Errorf("%w: %T", errNotOurs, o)
}

// podWatch is the list and the watch of the pods of one node.
type podWatch struct {
	store      toolscache.Store
	controller toolscache.Controller

	lists *listing

	mu      sync.Mutex
	arrived map[types.UID]bool // pods that came after the first list
}

// listing is how far a first list is: since when it is asked for, and why it failed the last time.
type listing struct {
	mu    sync.Mutex
	since time.Time
	err   error
	fails func() // called when it failed for another reason than before
}

// trouble is what a first list waits for.
type trouble struct {
	since time.Time
	err   error
}

// note takes note of an answer.
func (l *listing) note(err error) error {
	l.mu.Lock()
	changed := err != nil && (l.err == nil || l.err.Error() != err.Error())
	if err != nil {
		l.err = err
	}
	l.mu.Unlock()
	if changed {
		l.fails()
	}
	return err
}

func (l *listing) trouble() trouble {
	l.mu.Lock()
	defer l.mu.Unlock()
	return trouble{l.since, l.err}
}

// noted makes a listing take note of all answers. The next success ends the trouble, since what waits for it looks at the list first.
func noted(l *listing, lists *toolscache.ListWatch) *toolscache.ListWatch {
	list, watches := lists.ListWithContextFunc, lists.WatchFuncWithContext
	lists.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		all, err := list(ctx, o)
		return all, l.note(err)
	}
	lists.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := watches(ctx, o)
		return w, l.note(err)
	}
	return lists
}

// watchPods begins to watch the pods of a node, until ctx ends. changed is called after every change.
func watchPods(ctx context.Context, kube kubernetes.Interface, node string, changed func()) *podWatch {
	w := &podWatch{arrived: map[types.UID]bool{}, lists: &listing{since: time.Now(), fails: changed}}
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	api := kube.CoreV1().Pods(metav1.NamespaceAll)
	lists := &toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return api.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return api.Watch(ctx, o)
		},
	}
	w.store, w.controller = toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: toolscache.ToListWatcherWithWatchListSemantics(noted(w.lists, lists), kube), ObjectType: &corev1.Pod{}, Transform: reduce,
		Handler: w.handler(changed),
	})
	go w.controller.RunWithContext(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-w.controller.HasSyncedChecker().Done():
			changed()
		}
	}()
	return w
}

// handler notes which pods arrive. changed is called after every change.
func (w *podWatch) handler(changed func()) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(o any, first bool) {
			if p, ok := o.(*Pod); ok && !first {
				w.arrives(p.UID)
			}
			changed()
		},
		UpdateFunc: func(before, after any) {
			// After a watch that broke, a pod that was replaced is a change of the one that had its name.
			if old, ok := before.(*Pod); ok {
				if p, ok := after.(*Pod); ok && p.UID != old.UID {
					w.leaves(old.UID)
					w.arrives(p.UID)
				}
			}
			changed()
		},
		DeleteFunc: func(o any) {
			if unknown, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = unknown.Obj
			}
			if p, ok := o.(*Pod); ok {
				w.leaves(p.UID)
			}
			changed()
		},
	}
}

func (w *podWatch) trouble() trouble { return w.lists.trouble() }

func (w *podWatch) arrives(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrived[uid] = true
}

func (w *podWatch) leaves(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.arrived, uid)
}

// see returns the pods, those of them that came after the first list, and whether the first list is complete.
func (w *podWatch) see() (pods []*Pod, arrived map[types.UID]bool, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.controller.HasSynced() {
		return nil, nil, false
	}
	arrived = map[types.UID]bool{}
	for uid := range w.arrived {
		arrived[uid] = true
	}
	for _, o := range w.store.List() {
		pods = append(pods, o.(*Pod))
	}
	return pods, arrived, true
}

// listPods reads the pods of a node from the server.
func listPods(ctx context.Context, kube kubernetes.Interface, node string) ([]*Pod, error) {
	list, err := kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", node, err)
	}
	var pods []*Pod
	for i := range list.Items {
		pods = append(pods, Reduce(&list.Items[i]))
	}
	return pods, nil
}

// listUnready reads the names of pods of a budget that are not Ready. It explains why a budget refuses, so that a recent answer is enough.
func listUnready(ctx context.Context, kube kubernetes.Interface, b *Budget) ([]string, error) {
	list, err := kube.CoreV1().Pods(b.Namespace).List(ctx, metav1.ListOptions{LabelSelector: b.Selects.String(), ResourceVersion: "0", Limit: 200})
	if err != nil {
		return nil, fmt.Errorf("list the pods of budget %s: %w", b.Key(), err)
	}
	var names []string
	for i := range list.Items {
		if p := Reduce(&list.Items[i]); !p.Ready && p.Phase != corev1.PodSucceeded && p.Phase != corev1.PodFailed {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// byNamespace is the index of budgets.
const byNamespace = "namespace"

// budgetWatch is the watch of all budgets. It begins with the first drain.
type budgetWatch struct {
	kube    kubernetes.Interface
	changed func(namespace string)

	once       sync.Once
	lists      *listing
	store      toolscache.Indexer
	controller toolscache.Controller
}

func (w *budgetWatch) trouble() trouble { return w.lists.trouble() }

// start begins to watch budgets, until ctx ends, and returns whether all are known.
func (w *budgetWatch) start(ctx context.Context) bool {
	w.once.Do(func() {
		w.lists = &listing{since: time.Now(), fails: func() { w.changed("") }}
		api := w.kube.PolicyV1().PodDisruptionBudgets(metav1.NamespaceAll)
		lists := &toolscache.ListWatch{
			ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return api.Watch(ctx, o) },
		}
		one := func(o any) {
			if b, ok := o.(*Budget); ok {
				w.changed(b.Namespace)
			}
		}
		store, controller := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
			ListerWatcher: toolscache.ToListWatcherWithWatchListSemantics(noted(w.lists, lists), w.kube), ObjectType: &policyv1.PodDisruptionBudget{}, Transform: reduce,
			Indexers: toolscache.Indexers{byNamespace: func(o any) ([]string, error) {
				b, ok := o.(*Budget)
				if !ok {
					return nil, errNotOurs
				}
				return []string{b.Namespace}, nil
			}},
			Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: one, UpdateFunc: func(_, o any) { one(o) }, DeleteFunc: func(o any) {
				if unknown, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
					o = unknown.Obj
				}
				one(o)
			}},
		})
		w.store, w.controller = store.(toolscache.Indexer), controller
		go w.controller.RunWithContext(ctx)
		go func() {
			select {
			case <-ctx.Done():
			case <-w.controller.HasSyncedChecker().Done():
				w.changed("")
			}
		}()
	})
	return w.controller.HasSynced()
}

// of returns the budgets of namespaces.
func (w *budgetWatch) of(namespaces map[string]bool) ([]*Budget, error) {
	var list []*Budget
	for namespace := range namespaces {
		objects, err := w.store.ByIndex(byNamespace, namespace)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			list = append(list, o.(*Budget))
		}
	}
	return list, nil
}
