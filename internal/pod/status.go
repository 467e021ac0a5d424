package pod

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// observe brings status.pods in line with a plan. sent are the pods that were evicted or deleted since the status was written.
func observe(d *v1alpha1.Drain, s Snapshot, plan Plan, sent []Action, first time.Time) {
	if d.Status.Pods == nil {
		d.Status.Pods = &v1alpha1.PodsStatus{}
	}
	st := d.Status.Pods
	left := plan.Remaining()
	if st.StartedAt == nil {
		st.StartedAt, st.Initial = &metav1.MicroTime{Time: s.Now}, left
	}
	if st.FirstEvictionAt == nil && !first.IsZero() {
		st.FirstEvictionAt = &metav1.MicroTime{Time: first}
	}
	known := map[string]bool{}
	for _, name := range st.EvictedPods {
		known[name] = true
	}
	note := func(p *Pod, count *int64) {
		if known[p.Key()] {
			return
		}
		known[p.Key()] = true
		*count++
		if len(st.EvictedPods) < maxNamed {
			st.EvictedPods = append(st.EvictedPods, p.Key())
		}
	}
	for _, a := range sent {
		if a.Verb == Delete {
			note(a.Pod, &st.Deleted)
		} else {
			note(a.Pod, &st.Evicted)
		}
	}
	st.Terminating, st.Staying = 0, nil
	for _, a := range plan.Actions {
		if a.Verb == Stay {
			if st.Staying == nil {
				st.Staying = map[string]int64{}
			}
			st.Staying[a.Reason]++
			continue
		}
		if !a.Pod.Deleted.IsZero() {
			st.Terminating++
			// Also by a coordinator that died before it could write it down, but not for a drain before this one.
			before := !a.Pod.EvictedAt.IsZero() && a.Pod.EvictedAt.Before(d.CreationTimestamp.Time)
			if a.Pod.Evicted && !before && len(st.EvictedPods) < maxNamed {
				note(a.Pod, &st.Evicted)
			}
		}
	}
	slices.Sort(st.EvictedPods)
	st.LeavingPods = leaving(plan, known)
	st.Remaining = left
	st.Blockers = Blockers(s, plan, st.Blockers)
	if left > 0 {
		st.FinishedAt = nil
	}
}

// leaving are the pods of a plan that may be evicted before the status is written again, without those that are known to be evicted: what a plan
// only waits for may be allowed at any moment.
func leaving(plan Plan, evicted map[string]bool) []string {
	var names []string
	for _, a := range plan.Actions {
		if len(names) < maxNamed && a.mayLeave() && !evicted[a.Pod.Key()] {
			names = append(names, a.Pod.Key())
		}
	}
	return names
}

// mayLeave reports whether a pod that is not terminating may be evicted or deleted without another look at its mode.
func (a Action) mayLeave() bool {
	switch {
	case a.Verb == Stay || !a.Pod.Deleted.IsZero():
		return false
	case a.Verb == Wait && (a.Reason == WaitsNever || a.Reason == WaitsTwoBudgets):
		return !a.Deadline.IsZero()
	}
	return a.Reason != WaitsCompletion && a.Reason != WaitsCameBack && a.Reason != WaitsNodeGone
}

// inherited are evictions of the coordinator before that it did not write down: the pods that it was about to evict and that are gone.
func inherited(st *v1alpha1.PodsStatus, there []*Pod) []Action {
	present := map[string]bool{}
	for _, p := range there {
		present[p.Key()] = true
	}
	var gone []Action
	for _, key := range st.LeavingPods {
		if namespace, name, ok := strings.Cut(key, "/"); ok && !present[key] {
			gone = append(gone, Action{Verb: Evict, Pod: &Pod{Namespace: namespace, Name: name}})
		}
	}
	return gone
}

// own brings the rest of the status of a drain of pods alone in line with status.pods.
func own(d *v1alpha1.Drain, now time.Time) {
	st := d.Status.Pods
	at := metav1.NewTime(now.Truncate(time.Second))
	if d.Status.StartedAt == nil {
		d.Status.Phase, d.Status.Scope, d.Status.StartedAt, d.Status.LastProgress = v1alpha1.DrainDraining, v1alpha1.ScopePods, &at, &at
		d.Status.Initial = map[string]int64{Name: st.Initial}
		finished(d, now, metav1.ConditionFalse, string(v1alpha1.DrainDraining), "Pods are being moved off the node.")
	}
	if before := d.Status.Remaining[Name]; st.Remaining < before {
		d.Status.LastProgress = &at
	}
	d.Status.Remaining = map[string]int64{Name: st.Remaining}
	d.Status.Stage = ""
	if st.Remaining > 0 {
		d.Status.Stage = Name
	}
	d.Status.Blockers = drainBlockers(st.Blockers)
}

// end ends a drain of pods alone.
func end(d *v1alpha1.Drain, now time.Time, phase v1alpha1.DrainPhase, reason, message string) {
	at := metav1.NewTime(now.Truncate(time.Second))
	d.Status.Phase, d.Status.Scope, d.Status.FinishedAt, d.Status.Stage = phase, v1alpha1.ScopePods, &at, ""
	if phase != v1alpha1.DrainFailed {
		d.Status.Blockers = nil
	}
	if phase == v1alpha1.DrainComplete {
		d.Status.LastProgress = &at
	}
	if d.Status.Pods != nil {
		d.Status.Pods.LeavingPods = nil // nothing is sent any more
	}
	finished(d, now, metav1.ConditionTrue, reason, message)
}

func finished(d *v1alpha1.Drain, now time.Time, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{
		Type: v1alpha1.DrainFinished, Status: status, Reason: reason, Message: message, ObservedGeneration: d.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	})
}

// drainedMessage is what a drain of pods alone reports at its end.
func drainedMessage(d *v1alpha1.Drain, gone bool) string {
	st := d.Status.Pods
	if gone {
		return fmt.Sprintf("Node %s was deleted and no pod of it is left. %s", d.Spec.NodeName, Moved(st))
	}
	moved := fmt.Sprintf("%s evicted", pods(st.Evicted))
	if st.Deleted > 0 {
		moved += fmt.Sprintf(", %d deleted", st.Deleted)
	}
	return fmt.Sprintf("No pod is left on node %s that has to leave: %s%s. It stays cordoned.", d.Spec.NodeName, moved, stayed(st))
}

func sameStatus(a, b *v1alpha1.Drain) bool { return equality.Semantic.DeepEqual(a.Status, b.Status) }
