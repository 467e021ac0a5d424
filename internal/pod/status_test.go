package pod

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A drain was cancelled while its pods were terminating, and the node is drained again. What the first one evicted is not the second one's.
func TestADrainDoesNotCountWhatWasEvictedBeforeIt(t *testing.T) {
	d := drainOf("n1")
	requested := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	d.CreationTimestamp = metav1.NewTime(requested)
	plan := Plan{}
	for name, at := range map[string]time.Time{"before": requested.Add(-time.Second), "since": requested, "unknown": {}} {
		p := Reduce(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), DeletionTimestamp: new(metav1.NewTime(requested.Add(time.Hour)))},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
				{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI", LastTransitionTime: metav1.NewTime(at)},
			}},
		})
		plan.Actions = append(plan.Actions, Action{Verb: Wait, Reason: WaitsEnd, Pod: p})
	}
	observe(d, Snapshot{Now: requested}, plan, nil, time.Time{})
	if st := d.Status.Pods; st.Evicted != 2 || st.Terminating != 3 || !slices.Equal(st.EvictedPods, []string{"default/since", "default/unknown"}) {
		t.Errorf("the status is %+v", st)
	}
}
