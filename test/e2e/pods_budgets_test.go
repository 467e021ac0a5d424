package e2e

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func podsForbidden(t *testing.T, k *installation) {
	p := k.on(t, "w-forbid", "now-forbid")
	p.pod("a1")
	p.pod("a2", elsewhere)
	p.pod("a3", elsewhere)
	p.setReady("a3", corev1.ConditionFalse)
	p.budget("a", 2, 2, 3)
	p.drain()
	p.blocked("BudgetAllowsNone", "budget now-forbid/a needs 2 of 3 pods; 0 disruptions allowed since ", "; a3 is not Ready")
	if out := p.must("status"); !strings.Contains(out, "budget now-forbid/a needs 2 of 3 pods") {
		t.Errorf("ebb status:\n%s", out)
	}
	p.setReady("a3", corev1.ConditionTrue) // its status changes, and the pod follows
	p.completes(v1alpha1.ReasonDrained, "1 pod evicted")
}

func podsNeverAllowed(t *testing.T, k *installation) {
	p := k.on(t, "w-never", "now-never")
	p.pod("a1")
	p.pod("b1")
	p.pod("c1", graceOf(1))
	p.budget("a", 1, 1, 1)
	p.create(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "b"}}},
	})
	seen := p.history()
	p.drain()
	p.blocked("BudgetNeverAllows", "budget now-never/a needs 1 of 1 pods and can never allow an eviction: set maxUnavailable to 1 or more, add a replica, or delete the budget", "1 evicted")
	// What the spec of a budget shows was said before anything was evicted.
	seen.wants(t, "BudgetNeverAllows", "budget now-never/b ")
	seen.mu.Lock()
	began := seen.began
	seen.mu.Unlock()
	if began == nil || began.Evicted+began.Terminating > 0 || !slices.ContainsFunc(began.Blockers, func(b v1alpha1.PodBlocker) bool { return b.Reason == "BudgetNeverAllows" && b.Name == "now-never/b" }) {
		t.Errorf("it began as %+v", began)
	}
	p.cancels("1 pod was evicted before: now-never/c1.")
	if !p.ready(p.namespace, "a1") || !p.ready(p.namespace, "b1") {
		t.Error("a pod has gone")
	}
}

func podsTwoBudgets(t *testing.T, k *installation) {
	p := k.on(t, "w-two", "now-two")
	p.pod("a1")
	p.pod("a2", elsewhere)
	p.budget("a", 1, 2, 2)
	p.budget("ab", 1, 2, 2)
	p.drain()
	p.blocked("SeveralBudgets", "pod now-two/a1 has several budgets, now-two/a and now-two/ab, and the Eviction API supports one")
	p.kubectl("delete", "pdb", "-n", p.namespace, "ab")
	p.completes(v1alpha1.ReasonDrained, "1 pod evicted")
}

// podsNotCounted: with maxUnavailable or a share, Kubernetes asks the controllers of the pods how many there should be. These have none, or one that has
// no scale.
func podsNotCounted(t *testing.T, k *installation) {
	p := k.on(t, "w-uncounted", "now-uncounted")
	p.pod("a1")
	owner := p.core()
	p.pod("b1", func(o *corev1.Pod) {
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID, Controller: new(true)}}
	})
	share := intstr.FromString("50%")
	for name, spec := range map[string]policyv1.PodDisruptionBudgetSpec{"a": {MaxUnavailable: new(intstr.FromInt32(1))}, "b": {MinAvailable: &share}} {
		spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
		p.create(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name}, Spec: spec})
	}
	p.drain()
	p.blocked("BudgetNeverAllows", "budget now-uncounted/a counts only pods that have a controller, and these have none, so it can never allow an eviction: set minAvailable to a number, or delete the budget")
	p.blocked("BudgetNotCounted", "Kubernetes cannot count the pods of budget now-uncounted/b, which allows no eviction until then: ")
	if !p.ready(p.namespace, "a1") || !p.ready(p.namespace, "b1") {
		t.Error("a pod has gone")
	}
	p.kubectl("delete", "pdb", "-n", p.namespace, "a")
	p.kubectl("patch", "pdb", "-n", p.namespace, "b", "--type=merge", "-p", `{"spec":{"minAvailable":0}}`) // a number, as the drain says
	p.completes(v1alpha1.ReasonDrained, "2 pods evicted")
}
