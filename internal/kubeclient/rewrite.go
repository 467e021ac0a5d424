package kubeclient

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
