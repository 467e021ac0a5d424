package apiserver

import (
	"context"
	"fmt"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

// withTerm refuses the writes of a coordinator whose term is over. A coordinator that was frozen between deciding and
// writing does not know that another was elected; the resourceVersion it read may still fit. The term it names on every
// write is compared with the election's Lease, read live. The election itself is exempt: its own resourceVersion guards
// it.
func withTerm(next http.Handler, readLease func(context.Context, string) (*coordinationv1.Lease, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkTerm(r, readLease); err != nil {
			responsewriters.ErrorNegotiated(err, apiextensions.Codecs, schema.GroupVersion{}, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func checkTerm(r *http.Request, readLease func(context.Context, string) (*coordinationv1.Lease, error)) error {
	who, ok := request.UserFrom(r.Context())
	info, ok2 := request.RequestInfoFrom(r.Context())
	if !ok || !ok2 || who.GetName() != identity.Coordinator || reading.Has(info.Verb) {
		return nil
	}
	if info.APIGroup == groupLeases && (info.Name == lease.CoordinatorName || info.Verb == "create") {
		return nil
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	current, err := readLease(r.Context(), lease.CoordinatorName)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the election's lease: %w", err))
	}
	term := r.Header.Get(identity.TermHeader)
	if term == "" || current == nil || current.Spec.HolderIdentity == nil || *current.Spec.HolderIdentity != term {
		return apierrors.NewForbidden(resource, info.Name, fmt.Errorf("the coordinator's term %q is over", term))
	}
	return nil
}
