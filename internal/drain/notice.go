package drain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
)

// told is how long after its end a drain's events are still written if they are missing: a coordinator may crash between a
// transition and its event, and the next one writes it.
const told = 10 * time.Minute

// notices returns the events of a drain. They follow from the Drain object alone and have their own keys, so that each transition is
// reported once, whichever coordinator writes the event.
func notices(d *v1alpha1.Drain, now time.Time) []events.Event {
	if d.Status.FinishedAt != nil && now.Sub(d.Status.FinishedAt.Time) > told {
		return nil
	}
	var list []events.Event
	add := func(kind, reason, key, note string) {
		list = append(list, events.Event{Regarding: d, Type: kind, Reason: reason, Action: "Drain", Note: note, Key: key})
	}
	if d.Status.StartedAt != nil {
		add(corev1.EventTypeNormal, "DrainStarted", "", fmt.Sprintf("Draining node %s.", d.Spec.NodeName))
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainStalled); c != nil && c.Status == "True" {
		add(corev1.EventTypeWarning, "DrainStalled", c.LastTransitionTime.UTC().Format(time.RFC3339), c.Message)
	}
	if d.Status.Phase == v1alpha1.DrainStopping {
		add(corev1.EventTypeNormal, "NodeEmpty", "", fmt.Sprintf("Node %s is empty and is shutting down.", d.Spec.NodeName))
	}
	end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if end != nil && end.Reason == v1alpha1.ReasonQueued {
		add(corev1.EventTypeNormal, "DrainQueued", "", end.Message)
	}
	if end == nil || end.Status != "True" {
		return list
	}
	switch {
	case d.Status.Phase == v1alpha1.DrainComplete:
		add(corev1.EventTypeNormal, "DrainComplete", "", end.Message)
	case d.Status.Phase == v1alpha1.DrainCancelled:
		add(corev1.EventTypeWarning, "DrainCancelled", "", end.Message)
	case Refusal(end.Reason) != nil:
		add(corev1.EventTypeWarning, "DrainRefused", "", end.Message)
	default:
		add(corev1.EventTypeWarning, "DrainFailed", "", end.Message)
	}
	return list
}
