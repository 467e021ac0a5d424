package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/ebb-dev/ebb/internal/lease"
)

// gateLimit is how long a request waits at most. After that it gets the answer that it would have got.
const gateLimit = 10 * time.Second

// gate makes requests for custom resources wait until the server has read its definitions and serves Leases. Before that it would refuse
// them and ask clients to come back after 5 s, in which nodes lose their leases. And all kinds are set up one after another: if the
// many requests of informers came first, renewals would wait for them.
type gate struct{ opened chan struct{} }

func newGate() gate { return gate{make(chan struct{})} }

func (g gate) open() { close(g.opened) }

// keep makes everyone wait but the server itself.
func (g gate) keep(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/apis/") && !isServer(r.Context()) {
			select {
			case <-g.opened:
			case <-r.Context().Done():
			case <-time.After(gateLimit):
			}
		}
		next.ServeHTTP(w, r)
	})
}

func isServer(ctx context.Context) bool {
	who, ok := genericapirequest.UserFrom(ctx)
	return ok && who.GetName() == user.APIServerUser
}

// awaitLeases waits until Leases are served. A new store has no definition of them yet.
func (s *Server) awaitLeases(ctx context.Context) error {
	crds := s.api.Informers.Apiextensions().V1().CustomResourceDefinitions()
	return retry(ctx, func(ctx context.Context) (bool, error) {
		if !crds.Informer().HasSynced() {
			return false, nil
		}
		if _, err := crds.Lister().Get(leaseType); apierrors.IsNotFound(err) {
			return true, nil
		}
		if _, err := s.readLease(ctx, lease.CoordinatorName); err != nil {
			return false, fmt.Errorf("read a Lease: %w", err)
		}
		return true, nil
	})
}

const leaseType = "leases." + groupLeases
