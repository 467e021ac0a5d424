package health

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// agentEbb is the agent of the events that Ebb makes itself.
const agentEbb = "ebb"

// manualEvents are the events that are made for drains that people requested: another scheduler has to empty the node too. They begin
// when the drain does.
func (w *World) manualEvents() []Step {
	if w.Config.CustomDrain == nil {
		return nil
	}
	known := map[string]bool{}
	for _, e := range w.Events {
		known[e.Annotations[v1alpha1.ManualDrainAnnotation]], known[e.Name] = true, true // one that somebody made is not replaced
	}
	steps := map[string]Step{}
	for _, d := range w.Drains {
		name := "manual-" + string(d.UID)
		if !NeedsEvent(d) || known[string(d.UID)] || known[name] {
			continue
		}
		steps[d.Name] = Step{Action: ActionManual, Event: &v1alpha1.HealthEvent{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Finalizers: []string{v1alpha1.HealthEventFinalizer},
				Annotations: map[string]string{v1alpha1.ManualDrainAnnotation: string(d.UID)},
			},
			Spec: v1alpha1.HealthEventSpec{
				Agent: agentEbb, CheckName: v1alpha1.CheckManualDrain, NodeName: d.Spec.NodeName, Message: d.Spec.Reason, IsFatal: true,
				GeneratedTimestamp: v1alpha1.NewTimestamp(w.Now.Truncate(time.Microsecond)), ID: name,
			},
		}}
	}
	var list []Step
	for _, name := range slices.Sorted(maps.Keys(steps)) {
		list = append(list, steps[name])
	}
	return list
}

// NeedsEvent reports whether a running Drain was requested by a person, and wants the node emptied by the other scheduler too.
func NeedsEvent(d *v1alpha1.Drain) bool {
	return asksOther(d) && d.Status.StartedAt != nil && !d.Status.Phase.Final() && d.Status.Phase != v1alpha1.DrainStopping
}

// asksOther reports whether another scheduler has to empty the node of a Drain, apart from those of health events, which have custom resources of their
// own. A person who leaves the pods alone wants to move nothing but Ebb's own work. The Drain of a cordon leaves them alone too, because nobody asked
// for that; but whoever cordons a node with kubectl wants it empty.
func asksOther(d *v1alpha1.Drain) bool {
	return d.Annotations[v1alpha1.HealthEventAnnotation] == "" && (d.WantsPods() || d.Labels[v1alpha1.OnCordonLabel] != "")
}

// manual continues the custom drain of a drain that a person requested.
func (r *round) manual(e *v1alpha1.HealthEvent) {
	d := r.drainByUID(e.Annotations[v1alpha1.ManualDrainAnnotation])
	if d == nil || d.Status.Phase.Final() || !e.DeletionTimestamp.IsZero() {
		r.endManual(e, d)
		return
	}
	if e.Status.UserPodsEvictionStatus == nil {
		r.write(ActionAdmit, e, func(e *v1alpha1.HealthEvent) {
			e.Status.Drain = &v1alpha1.HealthDrain{Name: d.Name, UID: string(d.UID), Number: 1}
			r.lead(e)
		})
		return
	}
	if eviction(e) == v1alpha1.EvictionFailed {
		r.retry(e)
		return
	}
	t := r.custom(e)
	switch {
	case t.step != nil:
		r.add(t.step)
	case t.failed:
		// Not handled: the drain waits for it until somebody tries again or cancels.
		r.write(ActionFinish, e, func(e *v1alpha1.HealthEvent) {
			r.fail(e, t.message)
			r.waitIn(e, ReasonFailed, e.Status.UserPodsEvictionStatus.Message)
		})
	case t.done:
		r.write(ActionFinish, e, func(e *v1alpha1.HealthEvent) {
			r.evict(e, v1alpha1.EvictionSucceeded, "The other scheduler has drained the node.")
			r.finish(e, ReasonDrained, "The other scheduler has drained the node.")
		})
	default:
		r.wait(e, t.reason, t.message)
	}
}

// endManual ends the event of a drain that has ended or was deleted.
func (r *round) endManual(e *v1alpha1.HealthEvent, d *v1alpha1.Drain) {
	if step := r.dropResource(e); step != nil {
		r.add(step)
		return
	}
	r.write(ActionFinish, e, func(e *v1alpha1.HealthEvent) {
		how := "deleted"
		if d != nil {
			how = string(d.Status.Phase)
		}
		message := fmt.Sprintf("The drain that it was made for is %s.", how)
		state := v1alpha1.EvictionCancelled
		if cr := e.Status.CustomResource; cr != nil && cr.Outcome == v1alpha1.ResourceComplete {
			state = v1alpha1.EvictionSucceeded
		}
		r.evict(e, state, message)
		r.finish(e, ReasonCancelled, message)
	})
}
