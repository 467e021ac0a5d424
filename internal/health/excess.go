package health

import (
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

const (
	// MaxEvents is how many events are kept. Beyond it those are deleted early that have no effect when they are sent again, and new
	// problems are not stored.
	MaxEvents = 10_000
	// MaxOpenEvents is how many events of one check of one node are stored that are not over: more of them say nothing new.
	MaxOpenEvents = 100

	// pruneAtOnce bounds the deletions of one round.
	pruneAtOnce = 500
)

// nodeCheck is a check of one node.
type nodeCheck struct {
	node string
	check
}

// excess deletes the oldest events without effect when there are more than are kept. An event that would drain its node if it were sent
// again is kept until it is old.
func (w *World) excess(steps []Step) []Step {
	over := min(len(w.Events)-MaxEvents, pruneAtOnce)
	if over <= 0 {
		return nil
	}
	busy := map[string]bool{}
	for _, s := range steps {
		busy[string(s.Event.UID)] = true
	}
	latest := latestHealthy(w.Events)
	var more []Step
	for _, e := range inOrder(w.Events) {
		if len(more) == over {
			break
		}
		if !busy[string(e.UID)] && w.harmless(e, latest[nodeCheck{e.Spec.NodeName, checkOf(e)}]) {
			more = append(more, Step{Action: ActionPrune, Event: e})
		}
	}
	return more
}

// harmless reports whether an event has no effect any more, and would have none if it were sent again. latest are the healthy events of its
// check that are kept.
func (w *World) harmless(e *v1alpha1.HealthEvent, latest []*v1alpha1.HealthEvent) bool {
	if !handled(e) || isOpen(e) || !e.DeletionTimestamp.IsZero() || controllerutil.ContainsFinalizer(e, v1alpha1.HealthEventFinalizer) {
		return false
	}
	switch {
	case isManual(e):
		d := w.drainByUID(e.Annotations[v1alpha1.ManualDrainAnnotation])
		return d == nil || d.Status.Phase.Final()
	case e.Spec.IsHealthy:
		return !slices.Contains(latest, e)
	case reasonOf(e) == ReasonSkipped:
		return true
	case ahead(e):
		return false
	case reasonOf(e) == ReasonExpired:
		return true
	}
	return reasonOf(e) == ReasonResolved && e.Spec.GeneratedTimestamp != nil && w.resolved(e, latest)
}

// latestHealthy are the healthy events that no newer one of the same check, about as much of the node, makes superfluous.
func latestHealthy(all []*v1alpha1.HealthEvent) map[nodeCheck][]*v1alpha1.HealthEvent {
	kept := map[nodeCheck][]*v1alpha1.HealthEvent{}
	for _, e := range all {
		if !e.Spec.IsHealthy || reasonOf(e) == ReasonExpired {
			continue
		}
		key := nodeCheck{e.Spec.NodeName, checkOf(e)}
		covered := func(old, by *v1alpha1.HealthEvent) bool {
			same := len(by.Spec.EntitiesImpacted) == 0 || slices.Equal(old.Spec.EntitiesImpacted, by.Spec.EntitiesImpacted)
			return same && later(by, old)
		}
		if slices.ContainsFunc(kept[key], func(k *v1alpha1.HealthEvent) bool { return covered(e, k) }) {
			continue
		}
		kept[key] = append(slices.DeleteFunc(kept[key], func(k *v1alpha1.HealthEvent) bool { return covered(k, e) }), e)
	}
	return kept
}
