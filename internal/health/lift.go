package health

import (
	"fmt"
	"slices"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// end ends the quarantine of the node: first its drain is cancelled, as long as that is possible, then the cordon is lifted if Ebb made
// it, then the events are closed.
func (r *round) end(open []*v1alpha1.HealthEvent, status v1alpha1.QuarantineStatus, reason, message string) {
	settled := true
	for _, e := range open {
		if r.busy(e) {
			settled = false
			continue
		}
		if step, ok := r.settle(e); !ok {
			settled = false
			if step != nil {
				r.add(step)
			}
		}
	}
	if !settled || r.lift(open, status) {
		return
	}
	for _, e := range open {
		r.write(ActionClose, e, func(e *v1alpha1.HealthEvent) { r.close(e, status, reason, message) })
	}
}

// settle is the next step of ending the drain of an event; ok says that it has ended. A drain that is Stopping is waited for.
func (r *round) settle(e *v1alpha1.HealthEvent) (step *Step, ok bool) {
	if e.Status.Joined != nil {
		return nil, true
	}
	if step := r.dropResource(e); step != nil {
		return step, false
	}
	d := e.Status.Drain
	if d == nil || d.Phase != "" {
		return nil, true
	}
	found := r.drainByUID(d.UID)
	if d.UID == "" {
		found = r.drainFor(d.Name, e)
	}
	switch {
	case found == nil && d.UID == "":
		return stepOf(ActionEndDrain, e, func(e *v1alpha1.HealthEvent) {
			e.Status.Drain.Phase, e.Status.Drain.Outcome = v1alpha1.DrainCancelled, DrainNotStarted
		}).step, false
	case found == nil || found.Status.Phase.Final():
		return stepOf(ActionEndDrain, e, func(e *v1alpha1.HealthEvent) { recordDrain(e, found) }).step, false
	case found.Status.Phase == v1alpha1.DrainStopping:
		r.wait(e, WaitStopping, fmt.Sprintf("Drain %s can no longer be cancelled: node %s is empty and is stopping.", found.Name, r.name))
	case !found.Spec.Cancelled:
		next := found.DeepCopy()
		next.Spec.Cancelled = true
		return &Step{Action: ActionCancelDrain, Event: e, Drain: next}, false
	default:
		r.wait(e, WaitCancel, fmt.Sprintf("Drain %s is being cancelled.", found.Name))
	}
	return nil, false
}

// lift removes the open events and their Drains from the owners of the cordon, and with the last owner the cordon itself if one of the
// events made it. It returns whether there was something to remove.
func (r *round) lift(open []*v1alpha1.HealthEvent, status v1alpha1.QuarantineStatus) bool {
	if r.node == nil || slices.ContainsFunc(r.steps, func(s Step) bool { return s.Action == ActionQuarantine && !r.node.Spec.Cordoned }) {
		return false // a new cordon has no owners of the one before
	}
	own, made := map[string]bool{}, false
	for _, e := range open {
		own[string(e.UID)] = true
		made = made || e.Status.NodeQuarantined == v1alpha1.Quarantined
		if e.Status.Drain != nil && e.Status.Drain.UID != "" {
			own[e.Status.Drain.UID] = true
		}
	}
	owners := v1alpha1.CordonOwners(r.node)
	rest := slices.DeleteFunc(slices.Clone(owners), func(uid string) bool { return own[uid] })
	if len(rest) == len(owners) {
		return false
	}
	next := r.node.DeepCopy()
	v1alpha1.SetCordonOwners(next, rest)
	if len(rest) == 0 && made && status == v1alpha1.UnQuarantined {
		next.Spec.Cordoned = false
	}
	r.steps = append(r.steps, Step{Action: ActionLift, Event: open[0], Others: open[1:], Node: next, Before: r.node})
	return true
}

// close records that an event no longer keeps its node in quarantine.
func (r *round) close(e *v1alpha1.HealthEvent, status v1alpha1.QuarantineStatus, reason, message string) {
	if e.Status.NodeQuarantined == v1alpha1.Quarantined || status == v1alpha1.QuarantineCancelled {
		e.Status.NodeQuarantined = status
	}
	e.Status.ClosedAt = micro(r.Now)
	switch eviction(e) {
	case v1alpha1.EvictionInProgress:
		state, text := r.ended(e)
		r.evict(e, state, text)
	case v1alpha1.EvictionNotStarted:
		r.evict(e, v1alpha1.EvictionCancelled, message)
	}
	r.finish(e, reason, message)
}

// ended is how a drain ended that was cancelled: it may have been complete before that.
func (r *round) ended(e *v1alpha1.HealthEvent) (v1alpha1.EvictionState, string) {
	of := e
	if e.Status.Joined != nil {
		if other := r.byUID[e.Status.Joined.UID]; other != nil {
			of = other
		}
	}
	cr, d := of.Status.CustomResource, of.Status.Drain
	if (cr == nil || cr.Outcome == v1alpha1.ResourceComplete) && d != nil && d.Phase == v1alpha1.DrainComplete {
		return v1alpha1.EvictionSucceeded, "The node was drained before the drain could be cancelled."
	}
	return v1alpha1.EvictionCancelled, "The drain was cancelled."
}
