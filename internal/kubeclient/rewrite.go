package kubeclient

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// rewrites bounds how often a write that conflicts is tried again.
const rewrites = 5

// Rewrite writes a change that was decided on an earlier version of an object. If the object has changed since, Rewrite reads the newest
// version live, and carry applies the change to it. carry returns false if the input of the decision has changed; then Rewrite returns
// the conflict. An object that was deleted and created again is always a conflict. Rewrite returns the version that was written.
func Rewrite[T any, P interface {
	*T
	client.Object
}](ctx context.Context, live client.Reader, decided P, write func(P) error, carry func(newest P) bool) (P, error) {
	conflict := write(decided)
	for range rewrites {
		if !apierrors.IsConflict(conflict) {
			break
		}
		newest := P(new(T))
		if err := live.Get(ctx, client.ObjectKeyFromObject(decided), newest); err != nil {
			return decided, err
		}
		if newest.GetUID() != decided.GetUID() || !carry(newest) {
			return decided, conflict
		}
		if conflict = write(newest); conflict == nil {
			return newest, nil
		}
	}
	return decided, conflict
}

// Change changes an object by compare-and-swap: while others write in between, it reads the newest version and calls change again, which
// returns false if there is nothing to write. It begins with the version in object, or reads one if object has only a name. In the end
// object is the version that was written or that needed no change. An object that was deleted and created again counts as missing.
func Change[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c client.Client, object P, change func(P) (bool, error)) error {
	return changeBy(ctx, c, object, change, func(o P) error { return c.Update(ctx, o) })
}

// ChangeStatus is Change for the status of an object.
func ChangeStatus[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c client.Client, object P, change func(P) (bool, error)) error {
	return changeBy(ctx, c, object, change, func(o P) error { return c.Status().Update(ctx, o) })
}

func changeBy[T any, P interface {
	*T
	client.Object
}](ctx context.Context, r client.Reader, object P, change func(P) (bool, error), write func(P) error) error {
	uid, key := object.GetUID(), client.ObjectKeyFromObject(object)
	for read := object.GetResourceVersion() == ""; ; read = true {
		if read {
			newest := P(new(T))
			if err := r.Get(ctx, key, newest); err != nil {
				return err
			}
			if uid != "" && newest.GetUID() != uid {
				return apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.GroupVersion.Group}, key.Name)
			}
			*object = *newest
			uid = newest.GetUID()
		}
		if needed, err := change(object); err != nil || !needed {
			return err
		}
		if err := write(object); !apierrors.IsConflict(err) {
			return err
		}
	}
}
