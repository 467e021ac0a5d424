package kubeclient

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Watch is a kind of object with the handlers of its changes.
type Watch struct {
	object client.Object
	on     toolscache.ResourceEventHandler
}

// On makes a Watch that calls see for new and changed objects, and gone with the last known state of deleted ones. gone may be nil. An object that
// was replaced by another of the same name, while nobody was watching, is gone before the other one is seen.
func On[T any, P interface {
	*T
	client.Object
}](see, gone func(P)) Watch {
	if gone == nil {
		gone = func(P) {}
	}
	return Watch{object: P(new(T)), on: toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { pass(object, see) },
		UpdateFunc: func(before, object any) {
			if was, ok := before.(P); ok && uidOf(before) != uidOf(object) {
				gone(was)
			}
			pass(object, see)
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			pass(object, gone)
		},
	}}
}

func uidOf(object any) types.UID {
	if o, ok := object.(client.Object); ok {
		return o.GetUID()
	}
	return ""
}

func pass[P any](object any, to func(P)) {
	if o, ok := object.(P); ok {
		to(o)
	}
}

// Subscribe starts watches that last as long as the informers, which list and watch again after errors.
func Subscribe(ctx context.Context, informers cache.Informers, watches ...Watch) error {
	for _, w := range watches {
		if _, err := w.subscribe(ctx, informers); err != nil {
			return err
		}
	}
	return nil
}

// Follow starts watches one after the other, each when the one before has synced. It returns when all have.
func Follow(ctx context.Context, informers cache.Informers, watches ...Watch) error {
	for _, w := range watches {
		registration, err := w.subscribe(ctx, informers)
		if err != nil {
			return err
		}
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			return ctx.Err()
		}
	}
	return nil
}

func (w Watch) subscribe(ctx context.Context, informers cache.Informers) (toolscache.ResourceEventHandlerRegistration, error) {
	informer, err := informers.GetInformer(ctx, w.object)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", w.object, err)
	}
	registration, err := informer.AddEventHandler(w.on)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", w.object, err)
	}
	return registration, nil
}
