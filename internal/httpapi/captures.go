package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/drain"
)

// Codes of errors of drains.
const (
	CodeCaptureNotFound     = "ErrCaptureNotFound"
	CodeSingleNode          = "ErrSingleNode"
	CodeTargetIsCoordinator = "ErrTargetIsCoordinator"
	CodeDrainInProgress     = "ErrDrainInProgress"
	CodeBadRequest          = "ErrBadRequest"
	CodeNotDraining         = "ErrNotDraining"
	CodeTooLate             = "ErrTooLateToCancel"
)

// Drains creates, cancels and reports drains; only the coordinator can.
type Drains interface {
	// Request waits for the decision.
	Request(ctx context.Context, spec v1alpha1.DrainSpec) (*v1alpha1.Drain, error)
	// Cancel waits until the drain of the node has ended.
	Cancel(ctx context.Context, node string) (*v1alpha1.Drain, error)
	// Report returns the present progress.
	Report(ctx context.Context, node string) (drain.Report, error)
}

// Capture is a node with a live lease.
type Capture struct {
	ID            string            `json:"id"`
	Address       string            `json:"address"`
	IsCoordinator bool              `json:"is_coordinator"`
	Liveness      v1alpha1.Liveness `json:"liveness"`
	Epoch         int64             `json:"epoch"`
}

// The counts of drains that this API shows; each kind of work declares which one includes it.
const (
	ShownMaintainers = "maintainers"
	ShownDispatchers = "dispatchers"
)

// DrainAccepted answers an accepted drain.
type DrainAccepted struct {
	CurrentMaintainerCount int64 `json:"current_maintainer_count"`
	CurrentDispatcherCount int64 `json:"current_dispatcher_count"`
}

// DrainStatus answers a request for the progress of a drain.
type DrainStatus struct {
	IsDraining               bool             `json:"is_draining"`
	DrainingCaptureID        string           `json:"draining_capture_id,omitempty"`
	RemainingMaintainerCount int64            `json:"remaining_maintainer_count"`
	RemainingDispatcherCount map[string]int64 `json:"remaining_dispatcher_count"`
}

func (s *Server) putDrain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	park, err := boolOf(r, "park")
	if err != nil {
		writeError(w, http.StatusBadRequest, CodeBadRequest, err.Error())
		return
	}
	d, err := s.drains().Request(ctx, v1alpha1.DrainSpec{NodeName: r.PathValue("id"), Reason: "requested by PUT " + r.URL.Path, Park: park})
	if err != nil {
		writeDrainError(w, err)
		return
	}
	initial := s.opts.Works.Shown(d.Status.Initial)
	writeJSON(w, http.StatusAccepted, DrainAccepted{
		CurrentMaintainerCount: initial[ShownMaintainers],
		CurrentDispatcherCount: initial[ShownDispatchers],
	})
}

// boolOf returns a parameter of the query that is true or false; without it, false.
func boolOf(r *http.Request, name string) (bool, error) {
	if !r.URL.Query().Has(name) {
		return false, nil
	}
	value, err := strconv.ParseBool(r.URL.Query().Get(name))
	if err != nil {
		return false, fmt.Errorf("%s %q: use true or false", name, r.URL.Query().Get(name))
	}
	return value, nil
}

// DrainCancelled answers a drain that was cancelled.
type DrainCancelled struct {
	Cancelled string `json:"cancelled"` // the Drain
	CaptureID string `json:"capture_id"`
}

func (s *Server) deleteDrain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	d, err := s.drains().Cancel(ctx, r.PathValue("id"))
	if err != nil {
		writeDrainError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, DrainCancelled{Cancelled: d.Name, CaptureID: d.Spec.NodeName})
}

func (s *Server) getDrain(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	id := r.PathValue("id")
	report, err := s.drains().Report(ctx, id)
	if err != nil {
		writeDrainError(w, err)
		return
	}
	status := DrainStatus{
		IsDraining: report.Draining, RemainingMaintainerCount: report.Shown[ShownMaintainers], RemainingDispatcherCount: report.By[ShownDispatchers],
	}
	if status.RemainingDispatcherCount == nil {
		status.RemainingDispatcherCount = map[string]int64{}
	}
	if report.Draining {
		status.DrainingCaptureID = id
	}
	writeJSON(w, http.StatusOK, status)
}

func (s *Server) getCaptures(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	captures, err := s.opts.Captures(ctx)
	if err != nil {
		writeDrainError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, captures)
}

// putDrainV1 serves clients that repeat the request until nothing is left: a request for a drain that is already running is answered
// with what is left.
func (s *Server) putDrainV1(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	var body struct {
		CaptureID string `json:"capture_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.CaptureID == "" {
		writeError(w, http.StatusBadRequest, CodeBadRequest, `the body must be {"capture_id": "<id>"}`)
		return
	}
	_, err := s.drains().Request(ctx, v1alpha1.DrainSpec{NodeName: body.CaptureID, Reason: "requested by PUT " + r.URL.Path})
	if err != nil && !errors.Is(err, drain.ErrDrainInProgress) {
		writeDrainError(w, err)
		return
	}
	report, reportErr := s.drains().Report(ctx, body.CaptureID)
	switch {
	case reportErr != nil:
		writeDrainError(w, reportErr)
	case err != nil && !report.Draining:
		writeDrainError(w, err) // another node drains
	default:
		writeJSON(w, http.StatusAccepted, map[string]int64{"current_table_count": report.Total})
	}
}

func (s *Server) getCapturesV1(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
	defer cancel()
	captures, err := s.opts.Captures(ctx)
	if err != nil {
		writeDrainError(w, err)
		return
	}
	type captureV1 struct {
		ID      string `json:"id"`
		IsOwner bool   `json:"is_owner"`
		Address string `json:"address"`
	}
	list := []captureV1{}
	for _, c := range captures {
		list = append(list, captureV1{ID: c.ID, IsOwner: c.IsCoordinator, Address: c.Address})
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) getStatusV1(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"version": s.opts.Version, "git_hash": "", "id": s.opts.Node, "pid": os.Getpid(), "is_owner": s.opts.Election.Leading(),
	})
}

// drains returns the drains of the term that runs here. Its callers run on the coordinator.
func (s *Server) drains() Drains {
	if d := s.opts.Drains(); d != nil {
		return d
	}
	return noDrains{}
}

// noDrains answers between winning an election and the start of the term.
type noDrains struct{}

var errTermStarting = errors.New("the coordinator is changing: try again")

func (noDrains) Request(context.Context, v1alpha1.DrainSpec) (*v1alpha1.Drain, error) {
	return nil, errTermStarting
}

func (noDrains) Cancel(context.Context, string) (*v1alpha1.Drain, error) {
	return nil, errTermStarting
}

func (noDrains) Report(context.Context, string) (drain.Report, error) {
	return drain.Report{}, errTermStarting
}

func writeDrainError(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, drain.ErrCaptureNotFound):
		writeError(w, http.StatusNotFound, CodeCaptureNotFound, err.Error())
	case errors.Is(err, drain.ErrSingleNode):
		writeError(w, http.StatusBadRequest, CodeSingleNode, err.Error())
	case errors.Is(err, drain.ErrTargetIsCoordinator):
		writeError(w, http.StatusBadRequest, CodeTargetIsCoordinator, err.Error())
	case errors.Is(err, drain.ErrDrainInProgress):
		writeError(w, http.StatusConflict, CodeDrainInProgress, err.Error())
	case errors.Is(err, drain.ErrNotDraining):
		writeError(w, http.StatusNotFound, CodeNotDraining, err.Error())
	case errors.Is(err, drain.ErrTooLate):
		writeError(w, http.StatusConflict, CodeTooLate, err.Error())
	case errors.Is(err, errTermStarting), errors.Is(err, coordinator.ErrTermOver):
		writeError(w, http.StatusServiceUnavailable, CodeNoCoordinator, err.Error())
	default:
		writeError(w, http.StatusInternalServerError, CodeInternal, fmt.Sprintf("internal server error: %v", err))
	}
}
