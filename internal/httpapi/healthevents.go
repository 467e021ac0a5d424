package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	strictjson "sigs.k8s.io/json"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
)

// CodeTooManyEvents: some events were not stored, because there are too many.
const CodeTooManyEvents = "ErrTooManyEvents"

// CodeEventConflict: another event has the id of one that was sent.
const CodeEventConflict = "ErrEventConflict"

// maxEvents is how many events one request may have.
const maxEvents = 5000

// HealthEvents stores reports about the health of nodes; only the coordinator can.
type HealthEvents interface {
	Receive(ctx context.Context, events []v1alpha1.HealthEventSpec, now time.Time) ([]health.Received, error)
}

// EventsReceived answers health events.
type EventsReceived struct {
	Events []health.Received `json:"events"`
}

func (s *Server) postHealthEvents(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	events, err := readEvents(r.Body)
	if err != nil {
		writeError(w, http.StatusBadRequest, CodeBadRequest, err.Error())
		return
	}
	store := s.opts.HealthEvents()
	if store == nil {
		writeError(w, http.StatusServiceUnavailable, CodeNoCoordinator, errTermStarting.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	received, err := store.Receive(ctx, events, now)
	if apierrors.IsInvalid(err) {
		writeError(w, http.StatusBadRequest, CodeBadRequest, "an event was refused, others may be stored: "+err.Error())
		return
	}
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, CodeNoCoordinator, "some events may not be stored; send all of them again: "+err.Error())
		return
	}
	code, answer := answerTo(received)
	writeJSON(w, code, answer)
}

// answerTo is the answer that says what became of the events of a request.
func answerTo(received []health.Received) (code int, answer any) {
	var conflicts, dropped []string
	for _, e := range received {
		if e.Result == health.Dropped {
			dropped = append(dropped, e.ID+" ("+e.Reason+")")
		}
		if e.Result == health.Conflicting {
			conflicts = append(conflicts, e.ID)
		}
	}
	var wrong []string
	if n := len(conflicts); n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d of %d events have the id of another event: %s.", n, len(received), first(conflicts, ", ")))
	}
	if n := len(dropped); n > 0 {
		wrong = append(wrong, fmt.Sprintf("%d of %d events were not stored, because there are too many: %s.", n, len(received), first(dropped, "; ")))
	}
	message := strings.Join(append(wrong, "All others are stored."), " ")
	switch {
	case len(conflicts) > 0:
		return http.StatusConflict, Error{Code: CodeEventConflict, Message: message}
	case len(dropped) > 0:
		return http.StatusTooManyRequests, Error{Code: CodeTooManyEvents, Message: message}
	}
	return http.StatusAccepted, EventsReceived{Events: received}
}

// first are the first of a list that may be long.
func first(list []string, separator string) string {
	const most = 10
	if len(list) <= most {
		return strings.Join(list, separator)
	}
	return fmt.Sprintf("%s%sand %d more", strings.Join(list[:most], separator), separator, len(list)-most)
}

// readEvents reads one event or a list of them.
func readEvents(body io.Reader) ([]v1alpha1.HealthEventSpec, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	if !utf8.Valid(data) { // it would be read as other characters, and two ids as one
		return nil, errors.New("the body is not UTF-8")
	}
	var events []v1alpha1.HealthEventSpec
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		err = strictly(data, &events)
	} else {
		events = make([]v1alpha1.HealthEventSpec, 1)
		err = strictly(data, &events[0])
	}
	if err != nil {
		return nil, fmt.Errorf("the body is neither a health event nor a list of them: %w", err)
	}
	if len(events) == 0 || len(events) > maxEvents {
		return nil, fmt.Errorf("the body has %d events: send 1 to %d", len(events), maxEvents)
	}
	var wrong []error
	seen := map[string]int{}
	for i := range events {
		if at, twice := seen[events[i].ID]; twice && events[i].ID != "" && !equality.Semantic.DeepEqual(events[at], events[i]) {
			wrong = append(wrong, fmt.Errorf("event %d (%s): event %d has the same id and another content", i+1, events[i].ID, at+1))
		}
		seen[events[i].ID] = i
		if err := health.Validate(&events[i]); err != nil {
			wrong = append(wrong, fmt.Errorf("event %d (%s): %s", i+1, events[i].ID, strings.ReplaceAll(err.Error(), "\n", "; ")))
		}
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("no event was stored: %w", errors.Join(wrong[:min(len(wrong), 10)]...))
	}
	return events, nil
}

// strictly reads JSON in which every field has exactly its name, and is there once: with two spellings of one field, one would silently replace the other.
func strictly(data []byte, into any) error {
	wrong, err := strictjson.UnmarshalStrict(data, into)
	return errors.Join(append(wrong[:min(len(wrong), 10)], err)...)
}
