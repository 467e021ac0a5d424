package pod

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestADrainSaysWhyItsPodsAreNotListed(t *testing.T) {
	at := time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	for _, tc := range []struct {
		what string
		err  error
		want string
	}{
		{"pods", nil, "the pods of node n1 are not listed yet: check whether the API server is overloaded"},
		{"pods", errors.New("connection refused"), "the pods of node n1 are not listed yet: connection refused: the coordinator tries again; check the API server"},
		{"pods", forbidden, "the pods of node n1 are not listed yet: pods is forbidden: no: grant the coordinator the permission to list and watch pods and poddisruptionbudgets in all namespaces; `ebb manifests` prints the ClusterRole"},
		{"budgets", errors.New("connection refused"), "the disruption budgets of the cluster are not listed yet: connection refused: the coordinator tries again; check the API server"},
	} {
		b := notListed("n1", tc.what, trouble{at, tc.err})
		if got := Sentence(b, at); got != tc.want || b.Reason != WaitsList || !b.Since.Time.Equal(at) {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
		d := &v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: "n1"}, Status: v1alpha1.DrainStatus{Pods: &v1alpha1.PodsStatus{Blockers: []v1alpha1.PodBlocker{b}}}}
		if left := remaining(d); left.Count != 1 || len(left.Blockers) != 1 || left.Blockers[0].Remedy != tc.want {
			t.Errorf("a drain that has the slot counts %+v", left)
		}
		if got, want := Explain([]*v1alpha1.Drain{d}, "n1", at), "Pods of drain : pods not listed yet.\n  "+tc.want+".\n"; got != want {
			t.Errorf("explained as %q", got)
		}
	}
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", CreationTimestamp: metav1.NewTime(at)}, Spec: v1alpha1.DrainSpec{NodeName: "n1"}}
	want := "Pods of drain d: pods not listed yet, since 5s. The coordinator lists them when the node is cordoned; if this lasts, `ebb status` shows whether there is a coordinator.\n"
	if got := ExplainWaiting([]*v1alpha1.Drain{d}, "n1", at.Add(5*time.Second)); got != want {
		t.Errorf("explained as %q", got)
	}
}
