package health_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health"
)

// The condition that means the end may be one that is False at the end. Then its reason says whether the drain failed.
func TestAFailureIsNoCompletionWhateverTheConditionIs(t *testing.T) {
	condition := func(kind, status, reason string) map[string]any {
		return map[string]any{"type": kind, "status": status, "reason": reason}
	}
	for _, c := range []struct {
		status     string
		conditions []any
		want       v1alpha1.CustomResourceOutcome
	}{
		{"False", []any{condition("Draining", "True", "Busy")}, ""},
		{"False", []any{condition("Draining", "False", "Done")}, v1alpha1.ResourceComplete},
		{"False", []any{condition("Draining", "False", "Failed")}, v1alpha1.ResourceFailed},
		{"False", []any{condition("Draining", "True", "Failed")}, ""},
		{"Unknown", []any{condition("Draining", "Unknown", "Failed")}, v1alpha1.ResourceComplete},
		{"True", []any{condition("Draining", "True", "Failed")}, v1alpha1.ResourceComplete},
		{"True", []any{condition("Draining", "False", "Failed")}, v1alpha1.ResourceFailed},
		{"True", []any{"no condition", condition("Draining", "True", "")}, v1alpha1.ResourceComplete},
		{"True", []any{map[string]any{"type": int64(1), "status": true}}, ""},
	} {
		object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": c.conditions}}}
		if got, message := health.Judge(object, &drainconfig.CustomDrain{ConditionType: "Draining", ConditionStatus: c.status}); got != c.want || (message == "") != (c.want == "") {
			t.Errorf("%v with the status %s: %q, %q; want %q", c.conditions, c.status, got, message, c.want)
		}
	}
}
