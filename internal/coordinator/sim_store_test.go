package coordinator

import (
	"net/http"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// store is a model of the API server: the election's Lease under compare-and-swap, and writes that name their term.
type store struct {
	referee *referee
	broken  broken

	mu       sync.Mutex
	lease    *coordinationv1.Lease // nil until somebody creates it
	versions simtest.Revisions
	away     bool
	freed    func() // called when the holder is cleared
}

var leases = coordinationv1.Resource("leases")

func (s *store) get() (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil, apierrors.NewNotFound(leases, lease.CoordinatorName)
	}
	return s.lease.DeepCopy(), nil
}

func (s *store) create(by string, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease != nil {
		return nil, apierrors.NewAlreadyExists(leases, lease.CoordinatorName)
	}
	return s.put(by, l), nil
}

func (s *store) update(by string, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease == nil {
		return nil, apierrors.NewNotFound(leases, lease.CoordinatorName)
	}
	if !simtest.Fresh(s.lease, l, false) {
		s.referee.Count("conflict")
		return nil, apierrors.NewConflict(leases, lease.CoordinatorName, nil)
	}
	return s.put(by, l), nil
}

func (s *store) put(by string, l *coordinationv1.Lease) *coordinationv1.Lease {
	before, after := s.holder(), *l.Spec.HolderIdentity
	s.lease = l.DeepCopy()
	s.versions.Stamp(s.lease)
	s.referee.held(by, before, after)
	if before != "" && after == "" {
		s.freed()
	}
	return s.lease.DeepCopy()
}

func (s *store) holder() string {
	if s.lease == nil {
		return ""
	}
	return *s.lease.Spec.HolderIdentity
}

// write judges one write as the embedded API does: by the term it names and the election's Lease when it is all here.
func (s *store) write(header http.Header) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	term := header.Get(identity.TermHeader)
	if term != s.holder() && !s.broken.noTermCheck {
		s.referee.Count("refused")
		over := http.Header{}
		over.Set(identity.TermOverHeader, "true")
		return &http.Response{StatusCode: http.StatusForbidden, Header: over, Body: http.NoBody}, nil
	}
	s.referee.wrote(term)
	return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: http.NoBody}, nil
}

func (s *store) leave(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *store) isAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

func (s *store) leader() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder()
}
