package health

import (
	"context"
	"fmt"
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// onceReader reads every list once. The kinds of work list all their objects to count what one node has, and there may be many nodes.
type onceReader struct {
	client.Reader
	read map[string]client.ObjectList
}

func newOnceReader(r client.Reader) *onceReader {
	return &onceReader{Reader: r, read: map[string]client.ObjectList{}}
}

// List implements client.Reader. Who reads the same list shares its objects, and must not change them.
func (r *onceReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	key := fmt.Sprintf("%T/%v/%s/%v/%v/%v/%v", list, list.GetObjectKind().GroupVersionKind(), o.Namespace, o.LabelSelector, o.FieldSelector, o.Limit, o.Continue)
	if known := r.read[key]; known != nil {
		reflect.ValueOf(list).Elem().Set(reflect.ValueOf(known).Elem())
		return nil
	}
	if err := r.Reader.List(ctx, list, opts...); err != nil {
		return err
	}
	r.read[key] = list.DeepCopyObject().(client.ObjectList)
	return nil
}
