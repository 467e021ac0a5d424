package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// maxMetadata bounds the keys and values of an event's metadata together.
const maxMetadata = 64 << 10

// Received says what became of one event that was sent.
type Received struct {
	// ID of the event.
	ID string `json:"id"`
	// Name of its object.
	Name string `json:"name"`
	// Result is created, existing, conflict or dropped.
	Result Result `json:"result"`
	// Reason says why it was dropped.
	Reason string `json:"reason,omitempty"`
}

// Result says what became of an event that was sent.
type Result string

// Results.
const (
	// Created: the event is new.
	Created Result = "created"
	// Existing: the same event was sent before.
	Existing Result = "existing"
	// Conflicting: another event has the id.
	Conflicting Result = "conflict"
	// Dropped: there are too many events, and this one was not stored.
	Dropped Result = "dropped"
)

// API receives events from HTTP clients. It belongs to one term.
type API struct {
	// Cache reads what is stored, perhaps a moment ago.
	Cache client.Reader
	// Metrics of health events.
	Metrics *Metrics
	// Client writes for the term.
	Client client.Client
	// Reader reads live.
	Reader client.Reader
}

var actions = []v1alpha1.RecommendedAction{
	"", "NONE", "COMPONENT_RESET", "CONTACT_SUPPORT", "RUN_FIELDDIAG", "RESTART_VM", "RESTART_BM", "REPLACE_VM", "RUN_DCGMEUD", "CUSTOM", "UNKNOWN",
}

// Validate refuses what the API would refuse, so that of several events either all are valid or none is stored.
func Validate(s *v1alpha1.HealthEventSpec) error {
	var wrong []error
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if s.ID == "" {
		refuse("id is missing: an event is handled once for each id")
	}
	if s.CheckName == "" {
		refuse("checkName is missing")
	}
	if err := v1alpha1.ValidateNodeName(s.NodeName); err != nil {
		refuse("nodeName: %w", err)
	}
	if !slices.Contains(actions, s.RecommendedAction) {
		refuse("recommendedAction %q is unknown", s.RecommendedAction)
	}
	for name, o := range map[string]*v1alpha1.Overrides{"quarantineOverrides": s.QuarantineOverrides, "drainOverrides": s.DrainOverrides} {
		if o != nil && o.Force && o.Skip {
			refuse("%s: force and skip exclude each other", name)
		}
	}
	for _, f := range []struct {
		name  string
		value string
		most  int
	}{{"id", s.ID, 256}, {"agent", s.Agent, 256}, {"componentClass", s.ComponentClass, 256}, {"checkName", s.CheckName, 256}, {"message", s.Message, 8192}} {
		if len([]rune(f.value)) > f.most {
			refuse("%s is longer than %d characters", f.name, f.most)
		}
	}
	for i, code := range s.ErrorCode {
		if len([]rune(code)) > 256 {
			refuse("errorCode[%d] is longer than 256 characters", i)
		}
	}
	for i, e := range s.EntitiesImpacted {
		if len([]rune(e.EntityType)) > 256 || len([]rune(e.EntityValue)) > 1024 {
			refuse("entitiesImpacted[%d] is longer than 256 characters in entityType or 1024 in entityValue", i)
		}
	}
	if at := s.GeneratedTimestamp; at != nil && (at.UTC().Year() < 0 || at.UTC().Year() > 9999) {
		refuse("generatedTimestamp is in the year %d of UTC", at.UTC().Year())
	}
	size := 0
	for key, value := range s.Metadata {
		size += len(key) + len(value)
	}
	if size > maxMetadata {
		refuse("metadata has %d bytes, more than %d", size, maxMetadata)
	}
	if len(s.ErrorCode) > 64 || len(s.EntitiesImpacted) > 256 || len(s.Metadata) > 64 {
		refuse("at most 64 codes in errorCode, 256 entities in entitiesImpacted and 64 keys in metadata")
	}
	slices.SortFunc(wrong, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(wrong...)
}

// EventName is the name of the object of an event.
func EventName(id string) string {
	if len(id) <= 200 && len(validation.IsDNS1123Subdomain(id)) == 0 && !strings.HasPrefix(id, "manual-") {
		return id
	}
	return "event-" + sum("a"+id) + sum("b"+id)
}

// Receive stores events that are valid, each once for its id.
func (a *API) Receive(ctx context.Context, specs []v1alpha1.HealthEventSpec, now time.Time) ([]Received, error) {
	results := make([]Received, len(specs))
	if err := a.drop(ctx, specs, results); err != nil {
		return nil, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range specs {
		if results[i].Result == Dropped {
			continue
		}
		group.Go(func() (err error) {
			results[i], err = a.receive(ctx, specs[i], now)
			return err
		})
	}
	return results, group.Wait()
}

// drop finds the events that are not stored: a detector that sends too many must not fill the store. Healthy events are not dropped until
// there are twice as many.
func (a *API) drop(ctx context.Context, specs []v1alpha1.HealthEventSpec, results []Received) error {
	if a.Cache == nil {
		return nil
	}
	var list v1alpha1.HealthEventList
	if err := a.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list health events: %w", err)
	}
	known, open := map[string]bool{}, map[nodeCheck]int{}
	for i := range list.Items {
		e := &list.Items[i]
		known[e.Name] = true
		if !e.Spec.IsHealthy && e.Status.ClosedAt == nil && (isOpen(e) || !handled(e)) {
			open[nodeCheck{e.Spec.NodeName, checkOf(e)}]++
		}
	}
	for i := range specs {
		s := &specs[i]
		name := EventName(s.ID)
		if known[name] {
			continue
		}
		key, most := nodeCheck{s.NodeName, check{s.Agent, s.ComponentClass, s.CheckName}}, MaxEvents
		if s.IsHealthy {
			most = 2 * MaxEvents
		}
		var reason string
		switch {
		case len(known) >= most:
			reason = fmt.Sprintf("there are %d health events, and at most %d are stored", len(known), most)
		case !s.IsHealthy && open[key] >= MaxOpenEvents:
			reason = fmt.Sprintf("check %q of node %s has %d unfinished events; no more are stored until some have ended", s.CheckName, s.NodeName, open[key])
		default:
			known[name] = true
			if !s.IsHealthy {
				open[key]++
			}
			continue
		}
		results[i] = Received{ID: s.ID, Name: name, Result: Dropped, Reason: reason}
		a.Metrics.drop()
	}
	return nil
}

func (a *API) receive(ctx context.Context, spec v1alpha1.HealthEventSpec, now time.Time) (Received, error) {
	sent := spec
	if spec.GeneratedTimestamp == nil {
		spec.GeneratedTimestamp = v1alpha1.NewTimestamp(now.Truncate(time.Microsecond))
	}
	r := Received{ID: spec.ID, Name: EventName(spec.ID), Result: Created}
	e := &v1alpha1.HealthEvent{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Annotations: map[string]string{v1alpha1.ReceivedAnnotation: now.UTC().Format(time.RFC3339Nano)}}, Spec: spec,
	}
	if spec.IsFatal && !spec.IsHealthy && (spec.QuarantineOverrides == nil || !spec.QuarantineOverrides.Skip) {
		// It will most likely quarantine its node, which must not happen before it is held: this saves a write before the cordon.
		e.Finalizers = []string{v1alpha1.HealthEventFinalizer}
	}
	err := a.Client.Create(ctx, e)
	if err == nil {
		return r, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return r, fmt.Errorf("event %s: %w", spec.ID, err)
	}
	old := &v1alpha1.HealthEvent{}
	if err := a.Reader.Get(ctx, types.NamespacedName{Name: r.Name}, old); err != nil {
		return r, fmt.Errorf("event %s: %w", spec.ID, err)
	}
	r.Result = Existing
	if !sameReport(&old.Spec, &sent) {
		r.Result = Conflicting
	}
	return r, nil
}

// sameReport reports whether an event is the one that is stored. An event that was sent without a time got that of its arrival.
func sameReport(stored, sent *v1alpha1.HealthEventSpec) bool {
	copied := *sent
	if copied.GeneratedTimestamp == nil {
		copied.GeneratedTimestamp = stored.GeneratedTimestamp
	} else {
		copied.GeneratedTimestamp = v1alpha1.NewTimestamp(copied.GeneratedTimestamp.Truncate(time.Microsecond))
	}
	return equality.Semantic.DeepEqual(*stored, copied)
}
