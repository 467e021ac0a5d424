package health_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// The smallest bridge relies on what the definition of the example requires: a node, and conditions with a type and a status.
func TestTheDefinitionOfTheExampleRefusesWhatItsBridgeCannotRead(t *testing.T) {
	api := testenv.StartAPI(t)
	r := newResourceTest(t, api, api.Config(api.Dir.Kubeconfig()))
	r.install()
	request := func(spec any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "nvsentinel.nvidia.com/v1alpha1", "kind": "DrainRequest", "metadata": map[string]any{"name": "r"}}}
		if spec != nil {
			u.Object["spec"] = spec
		}
		return u
	}
	for _, spec := range []any{nil, map[string]any{}, map[string]any{"nodeName": ""}, map[string]any{"nodeName": int64(1)}} {
		if _, err := r.objects.Create(r.ctx, request(spec), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("spec %v: %v", spec, err)
		}
	}
	made, err := r.objects.Create(r.ctx, request(map[string]any{"nodeName": "n1", "reason": "more", "podsToDrain": map[string]any{"default": []any{"a"}}}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if reason, _, _ := unstructured.NestedString(made.Object, "spec", "reason"); reason != "more" {
		t.Errorf("the spec is %v", made.Object["spec"])
	}
	for _, condition := range []any{"no condition", map[string]any{"type": "DrainComplete"}, map[string]any{"type": "DrainComplete", "status": true}} {
		wrong := made.DeepCopy()
		wrong.Object["status"] = map[string]any{"conditions": []any{condition}}
		if _, err := r.objects.UpdateStatus(r.ctx, wrong, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("condition %v: %v", condition, err)
		}
	}
	made.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "DrainComplete", "status": "True", "reason": "Done", "lastTransitionTime": "2026-11-19T12:00:00Z"}}, "more": "text"}
	if made, err = r.objects.UpdateStatus(r.ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if more, _, _ := unstructured.NestedString(made.Object, "status", "more"); more != "text" {
		t.Errorf("the status is %v", made.Object["status"])
	}
}
