package health

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
)

// Reasons of the Kubernetes Events about nodes. A wait has the reason of the condition Handled.
const (
	AnnouncedQuarantine   = "Quarantined"
	AnnouncedUnquarantine = "Unquarantined"
	AnnouncedDrained      = "HealthDrainSucceeded"
	AnnouncedFailed       = "HealthDrainFailed"
	AnnouncedCancelled    = "HealthDrainCancelled"
)

// announced is the Kubernetes Event about a step, or nil.
func announced(s Step, before *v1alpha1.HealthEvent) *events.Event {
	e := s.Event
	about := fmt.Sprintf("health event %s, check %s", e.Name, e.Spec.CheckName)
	made := &events.Event{Type: corev1.EventTypeNormal, Action: string(s.Action), Key: string(e.UID)}
	switch {
	case s.Action == ActionQuarantine && !s.Before.Spec.Cordoned:
		made.Type, made.Reason, made.Note = corev1.EventTypeWarning, AnnouncedQuarantine, fmt.Sprintf("Cordoned for %s.", about)
	case s.Action == ActionLift && s.Before.Spec.Cordoned && !s.Node.Spec.Cordoned:
		made.Reason, made.Note = AnnouncedUnquarantine, fmt.Sprintf("Uncordoned: the problem of %s is over.", about)
	case s.Action == ActionFinish && eviction(e) == v1alpha1.EvictionSucceeded:
		made.Reason, made.Note = AnnouncedDrained, fmt.Sprintf("Drained for %s.", about)
	case s.Action == ActionFinish && eviction(e) == v1alpha1.EvictionFailed:
		made.Type, made.Reason, made.Note = corev1.EventTypeWarning, AnnouncedFailed, e.Status.UserPodsEvictionStatus.Message
		made.Key += "-" + strconv.Itoa(len(e.Status.Attempts)+1)
	case s.Action == ActionFinish && eviction(e) == v1alpha1.EvictionCancelled:
		made.Reason, made.Note = AnnouncedCancelled, e.Status.UserPodsEvictionStatus.Message
	case s.Action == ActionWait && before != nil && !s.Repeats:
		return waitAnnounced(before, reasonOf(e), messageOnly(e))
	default:
		return nil
	}
	return made
}

// waitAnnounced is the Kubernetes Event about a wait that has begun and that a person may have to end, or nil. Many events may wait at the
// limit: it is announced once for each node.
func waitAnnounced(before *v1alpha1.HealthEvent, reason, message string) *events.Event {
	named := slices.Contains([]string{WaitLimit, WaitCordon, WaitLift, WaitNoDrain}, reason) || slices.Contains(waitsForPerson, reason)
	if before == nil || reasonOf(before) == reason || !named {
		return nil
	}
	made := &events.Event{Type: corev1.EventTypeWarning, Action: string(ActionWait), Reason: reason, Note: message, Key: string(before.UID)}
	if reason == WaitLimit {
		made.Key = ""
	}
	return made
}

// announce writes a Kubernetes Event about a node. It is for people: nothing rests on it, and no step waits for it.
func (t *turn) announce(ctx context.Context, node *v1alpha1.Node, e *events.Event) {
	if e == nil || node == nil {
		return
	}
	e.Regarding = node
	t.notes.Go(func() error {
		if err := t.record.Emit(ctx, *e); err != nil && ctx.Err() == nil {
			t.Log.Debug("health: could not write an event", "target", node.Name, "reason", e.Reason, "error", err)
		}
		return nil
	})
}
