package health

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// onceReader reads every list and every object once. The kinds of work list all their objects, and get the Settings, to count what one node has, and
// there may be many nodes.
type onceReader struct {
	client.Reader
	read map[string]runtime.Object
}

func newOnceReader(r client.Reader) *onceReader {
	return &onceReader{Reader: r, read: map[string]runtime.Object{}}
}

// Get implements client.Reader. An object that is not there is looked for again.
func (r *onceReader) Get(ctx context.Context, name client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	return r.once(fmt.Sprintf("%T/%v/%s", object, object.GetObjectKind().GroupVersionKind(), name), object, func() error { return r.Reader.Get(ctx, name, object, opts...) })
}

// once reads into an object, or sets it to what was read before.
func (r *onceReader) once(key string, into runtime.Object, read func() error) error {
	if known := r.read[key]; known != nil {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(known).Elem())
		return nil
	}
	if err := read(); err != nil {
		return err
	}
	r.read[key] = into.DeepCopyObject()
	return nil
}

// List implements client.Reader. Who reads the same list shares its objects, and must not change them.
func (r *onceReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	key := fmt.Sprintf("%T/%v/%s/%v/%v/%v/%v", list, list.GetObjectKind().GroupVersionKind(), o.Namespace, o.LabelSelector, o.FieldSelector, o.Limit, o.Continue)
	return r.once(key, list, func() error { return r.Reader.List(ctx, list, opts...) })
}
