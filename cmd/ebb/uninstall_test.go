package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestUninstallTakesBackWhatEbbWroteToACoreNode(t *testing.T) {
	other := map[string]string{"other/a": "1"}
	for _, c := range []struct {
		name            string
		annotations     map[string]string
		cordoned, stays bool // the cordon
		changed         bool
	}{
		{"nothing of Ebb", other, false, false, false},
		{"the cordon of a person", other, true, true, false},
		{"no annotations", nil, true, true, false},
		{"a cordon of Ebb's own", map[string]string{"other/a": "1", v1alpha1.CordonOwnersAnnotation: "uid"}, true, false, true},
		{"owners that are about to be removed", map[string]string{"other/a": "1", v1alpha1.CordonOwnersAnnotation: "uid"}, false, false, true},
		{"another annotation of Ebb's own", map[string]string{"other/a": "1", "ebb.dev/x": "y"}, true, true, true},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: c.annotations}, Spec: corev1.NodeSpec{Unschedulable: c.cordoned}}
		if changed := strip(n); changed != c.changed || n.Spec.Unschedulable != c.stays {
			t.Errorf("%s: changed %t, cordoned %t", c.name, changed, n.Spec.Unschedulable)
		}
		if c.annotations != nil && !cmp.Equal(n.Annotations, other) {
			t.Errorf("%s: annotations %v", c.name, n.Annotations)
		}
	}
}
