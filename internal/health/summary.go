package health

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// States of events in `ebb status`.
var (
	stateHandled     = kind.State{Name: "handled"}
	stateQuarantined = kind.State{Name: "keeping its node in quarantine", Many: "keeping their nodes in quarantine", Rank: kind.Wrong}
	stateDraining    = kind.State{Name: "draining its node", Many: "draining their nodes", Rank: kind.Busy}
	stateWaiting     = kind.State{Name: "waiting", Rank: kind.Busy}
	stateFailed      = kind.State{Name: "with a failed drain", Rank: kind.Wrong}
)

func readSummaries(ctx context.Context, r client.Reader, _ time.Time) ([]*kind.Summary, error) {
	var list v1alpha1.HealthEventList
	if err := r.List(ctx, &list); err != nil {
		return nil, err
	}
	return []*kind.Summary{Summarize(list.Items)}, nil
}

// Summarize is the line of `ebb status`.
func Summarize(events []v1alpha1.HealthEvent) *kind.Summary {
	s := kind.NewSummary("health event", "health events", "ebb events")
	for i := range events {
		e := &events[i]
		s.Add(e.Name, stateOf(e), messageOf(e))
	}
	return s
}

func stateOf(e *v1alpha1.HealthEvent) kind.State {
	switch {
	case !handled(e) && reasonOf(e) == "":
		return kind.Unseen
	case eviction(e) == v1alpha1.EvictionFailed && (isOpen(e) || isManual(e) && !handled(e)):
		return stateFailed
	case !handled(e) && eviction(e) == v1alpha1.EvictionInProgress:
		return stateDraining
	case !handled(e):
		return stateWaiting
	case isOpen(e):
		return stateQuarantined
	}
	return stateHandled
}

// messageOnly is the message of the condition Handled.
func messageOnly(e *v1alpha1.HealthEvent) string {
	if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled); c != nil {
		return c.Message
	}
	return ""
}

// messageOf is what an event waits for, or how it ended.
func messageOf(e *v1alpha1.HealthEvent) string {
	c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled)
	if c == nil {
		return ""
	}
	return "node " + e.Spec.NodeName + ": " + c.Message
}
