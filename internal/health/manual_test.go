package health_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// `ebb drain --pods=false` moves Ebb's work alone: no other controller is asked to empty the node, and the drain does not wait for one. The Drain of a
// cordon leaves the pods alone by itself, and asks the other controller as before.
func TestADrainThatLeavesPodsAloneAsksNoOtherController(t *testing.T) {
	for name, c := range map[string]struct {
		pods     *bool
		onCordon bool
		asks     int
	}{
		"as by default": {nil, false, 1}, "with pods": {new(true), false, 1}, "without pods": {new(false), false, 0}, "on a cordon": {new(false), true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(3).custom()
			d := manual(s, "n2-abc")
			d.Spec.Pods = c.pods
			if c.onCordon {
				d.Labels = map[string]string{v1alpha1.OnCordonLabel: "true"}
			}
			s.settle()
			if len(s.events) != c.asks || len(s.resources) != c.asks {
				t.Errorf("%d events and %d resources, want %d", len(s.events), len(s.resources), c.asks)
			}
			settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
			settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: d.Name, UID: string(d.UID), Node: "n2"}
			stored := d.DeepCopy()
			stored.ResourceVersion = ""
			api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(settings, stored).Build()
			left, err := health.Tenant{Reader: api}.Remaining(t.Context(), "n2")
			if err != nil || left.Count != int64(c.asks) {
				t.Errorf("the drain waits for %d other controllers, want %d: %v", left.Count, c.asks, err)
			}
		})
	}
}

// Somebody made an event of the name that Ebb would give to that of a drain, or removed its annotation. It is not made again and again.
func TestAnEventThatHasTheNameOfThatOfADrainIsLeftAlone(t *testing.T) {
	s := newStore(3).custom()
	d := manual(s, "n2-abc")
	s.send("manual-"+string(d.UID), healthy)
	s.settle()
	for _, step := range health.Next(s.world()) {
		t.Errorf("step %s of %s", step.Action, step.Event.Name)
	}
	if e := s.events["manual-"+string(d.UID)]; e == nil || e.UID == types.UID("") {
		t.Errorf("the event is %+v", e)
	}
}
