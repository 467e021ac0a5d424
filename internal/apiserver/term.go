package apiserver

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

type termKey struct{}

// withTerm carries the term that a request names to where the request is judged.
func withTerm(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), termKey{}, r.Header.Get(identity.TermHeader))))
	})
}

// validateTerm refuses the writes of a coordinator whose term is over. A coordinator that was frozen between deciding
// and writing does not know that another was elected; the resourceVersion it read may still fit. The term it names on
// every write is compared with the election's Lease, read live, and only once the whole request is here: its header may
// have been sent before the freeze. The election itself is exempt: its own resourceVersion guards it.
func (r *rules) validateTerm(ctx context.Context, a admission.Attributes) error {
	if a.GetUserInfo().GetName() != identity.Coordinator || isElection(a) {
		return nil
	}
	current, err := r.readLease(ctx, lease.CoordinatorName)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the election's lease: %w", err))
	}
	term, _ := ctx.Value(termKey{}).(string)
	if term == "" || current == nil || current.Spec.HolderIdentity == nil || *current.Spec.HolderIdentity != term {
		return fmt.Errorf("the coordinator's term %q is over", term)
	}
	return nil
}

func isElection(a admission.Attributes) bool {
	return a.GetResource().Group == groupLeases && a.GetNamespace() == lease.Namespace && nameOf(a) == lease.CoordinatorName
}
