package drain

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
)

// eventWindow is how long after its end a drain's events are still written if they are missing: a coordinator may crash between a
// transition and its event, and the next one writes it.
const eventWindow = 10 * time.Minute

// brief is how long a drain of pods alone has to last before its start is reported. Hundreds of them may begin at once, and most end before
// that: only their end is reported.
const brief = 5 * time.Second

// isBrief reports whether a drain of pods alone has ended or runs without having lasted long. Both times of a drain are of the API server's clock; one
// that began in the future of the coordinator's clock is not brief.
func isBrief(d *v1alpha1.Drain, now time.Time) bool {
	if d.Status.Scope != v1alpha1.ScopePods || d.Status.StartedAt == nil {
		return false
	}
	if d.Status.FinishedAt != nil {
		now = d.Status.FinishedAt.Time
	}
	lasted := now.Sub(d.Status.StartedAt.Time)
	return lasted >= 0 && lasted < brief
}

// notices returns the events of a drain. They follow from the Drain object alone and have their own keys, so that each transition is
// reported once, whichever coordinator writes the event.
func notices(d *v1alpha1.Drain, now time.Time) []events.Event {
	if d.Status.FinishedAt != nil && now.Sub(d.Status.FinishedAt.Time) > eventWindow {
		return nil
	}
	var list []events.Event
	add := func(kind, reason, key, note string) {
		list = append(list, events.Event{Regarding: d, Type: kind, Reason: reason, Action: "Drain", Note: note, Key: key})
	}
	if d.Status.StartedAt != nil && !isBrief(d, now) {
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
