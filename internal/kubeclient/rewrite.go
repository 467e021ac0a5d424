package kubeclient

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// rewrites bounds how often a write that conflicts is tried again.
const rewrites = 5

// Rewrite writes an object that was decided on an earlier version of it. If somebody wrote in between, the newest version is read,
// live, and carry puts the decision into it, unless what the decision rested on has changed: then it returns false, and Rewrite
// the conflict. An object that was made anew under the same name is always a conflict. The version that was written is returned.
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
