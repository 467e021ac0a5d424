package apiserver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

const (
	// fillLimit is how long a list waits until the cache of its kind is filled. That takes milliseconds, on a busy machine seconds.
	fillLimit = 10 * time.Second
	fillLook  = 5 * time.Millisecond
)

// patientKinds makes the lists of custom resources wait until the cache of their kind is filled, where the server would refuse
// them with 429. The first request for a kind creates its cache, empty. If the deletion of the definition makes this
// request, a refusal is a failure from which the deletion recovers late (see deletions).
type patientKinds struct {
	generic.RESTOptionsGetter
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (k patientKinds) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := k.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return o, err
	}
	decorate := o.Decorator
	o.Decorator = func(config *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error), newFunc, newListFunc func() runtime.Object,
		attrs storage.AttrFunc, trigger storage.IndexerFuncs, indexers *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
		s, destroy, err := decorate(config, prefix, key, newFunc, newListFunc, attrs, trigger, indexers)
		if err != nil {
			return s, destroy, err
		}
		return patientStorage{s}, destroy, nil
	}
	return o, nil
}

// patientStorage is a storage whose lists wait for its cache.
type patientStorage struct {
	storage.Interface
}

// GetList implements storage.Interface. A list that waited for too long is refused as it would have been.
func (s patientStorage) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	_ = wait.PollUntilContextTimeout(ctx, fillLook, fillLimit, true, func(context.Context) (bool, error) {
		return s.ReadinessCheck() == nil, nil
	})
	return s.Interface.GetList(ctx, key, opts, list)
}
