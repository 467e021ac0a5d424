package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

type termKey struct{}

// claim is the term that a request names, and whether it has ended.
type claim struct {
	term string
	over atomic.Bool // atomic: after a timeout the answer is sent while the request is still being checked
}

// withTerm passes the term that a request names to admission, and sets a header of the answer if the term has ended.
func withTerm(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		term := r.Header.Get(identity.TermHeader)
		if term == "" || r.Method == http.MethodGet { // a watch needs the writer as it is
			next.ServeHTTP(w, r)
			return
		}
		c := &claim{term: term}
		next.ServeHTTP(&claimWriter{ResponseWriter: w, claim: c}, r.WithContext(context.WithValue(r.Context(), termKey{}, c)))
	})
}

// claimWriter adds the header just before the answer is sent.
type claimWriter struct {
	http.ResponseWriter
	claim *claim
}

// WriteHeader implements http.ResponseWriter.
func (w *claimWriter) WriteHeader(code int) {
	if w.claim.over.Load() {
		w.Header().Set(identity.TermOverHeader, "true")
	}
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap implements what http.ResponseController asks for.
func (w *claimWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// validateTerm refuses the writes of a coordinator whose term has ended. A coordinator that was frozen between deciding and writing
// does not know that another was elected, and the resourceVersion it read may still be current. Every write names its term, which is
// compared with the election's Lease, read live. The comparison is made after the whole request has arrived, because its header may have
// been sent before the freeze. The election itself is exempt: its own resourceVersion guards it.
func (r *rules) validateTerm(ctx context.Context, a admission.Attributes) error {
	node, ok := identity.CoordinatorName(a.GetUserInfo().GetName())
	if !ok {
		return nil
	}
	if isElection(a) {
		return validateElection(node, a)
	}
	current, err := r.readLease(ctx, lease.CoordinatorName)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("read the election's lease: %w", err))
	}
	c, ok := ctx.Value(termKey{}).(*claim)
	if !ok {
		c = &claim{}
	}
	if c.term != "" && !lease.TermOf(c.term, node) {
		return fmt.Errorf("the coordinator on node %s may not write in the term %q of another node", node, c.term)
	}
	if c.term == "" || current == nil || current.Spec.HolderIdentity == nil || *current.Spec.HolderIdentity != c.term {
		c.over.Store(true)
		return fmt.Errorf("the coordinator's term %q has ended", c.term)
	}
	return nil
}

// validateElection: a coordinator may write only its own node as the holder of the election, and release only its own.
func validateElection(node string, a admission.Attributes) error {
	next, ok := field(a.GetObject(), "spec").(map[string]any)
	if !ok || a.GetOperation() == admission.Delete {
		return nil
	}
	holder, _ := next["holderIdentity"].(string)
	old, _ := field(a.GetOldObject(), "spec").(map[string]any)
	was, _ := old["holderIdentity"].(string)
	if holder == "" && (was == "" || lease.TermOf(was, node)) || lease.TermOf(holder, node) {
		return nil
	}
	return fmt.Errorf("the coordinator on node %s may not set the holder of the election to %q; it was %q", node, holder, was)
}

func isElection(a admission.Attributes) bool {
	return a.GetResource().Group == groupLeases && a.GetNamespace() == lease.Namespace && nameOf(a) == lease.CoordinatorName
}
