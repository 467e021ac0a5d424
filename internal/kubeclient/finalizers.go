package kubeclient

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var errChanged = errors.New("it has changed since it was read")

// WriteFinalizers writes the finalizers of an object that is otherwise as it was read, and its resourceVersion into the object. The rest stays
// exactly as it is stored: of what a person wrote Go writes some in another form, because it leaves out an explicit false, an empty list and
// nanoseconds. A kind whose spec cannot be changed would refuse that for ever.
func WriteFinalizers(ctx context.Context, c client.Client, o client.Object) error {
	gvk, err := c.GroupVersionKindFor(o)
	if err != nil {
		return fmt.Errorf("write the finalizers of %s: %w", o.GetName(), err)
	}
	stored := &unstructured.Unstructured{}
	stored.SetGroupVersionKind(gvk)
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), stored); err != nil {
		return err
	}
	if stored.GetUID() != o.GetUID() || stored.GetResourceVersion() != o.GetResourceVersion() {
		return apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, o.GetName(), errChanged)
	}
	stored.SetFinalizers(o.GetFinalizers())
	if err := c.Update(ctx, stored); err != nil {
		return err
	}
	o.SetResourceVersion(stored.GetResourceVersion())
	return nil
}
