package node_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// marks writes the condition Guarded as the coordinator does.
func (m *machine) marks(guarded metav1.ConditionStatus) {
	m.t.Helper()
	until(m.t, "the condition Guarded to be written", func() bool {
		n := m.object()
		meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeGuarded, Status: guarded, Reason: "Test"})
		return m.admin.Status().Update(context.Background(), n) == nil
	})
}

// asks waits until the node asks for a guard, or no longer does.
func (m *machine) asks(want bool) {
	m.t.Helper()
	until(m.t, "the condition NeedsGuard to change", func() bool {
		return meta.IsStatusConditionTrue(m.object().Status.Conditions, v1alpha1.NodeNeedsGuard) == want
	})
}

func TestACordonedNodeGivesItsGuardUpWithTheLastWork(t *testing.T) {
	api := testenv.StartAPI(t)
	var w *worker
	m := newMachine(t, api, "g1", func(o *node.Options) {
		o.Gate.NeedGuard()
		w = &worker{name: "work", gate: o.Gate}
		o.Runtimes = []node.Hosted{{Runtime: w}}
	}).start()
	m.awaitReady(1)
	m.asks(false)
	if _, err := w.gate.Enter("work"); err == nil {
		t.Fatal("work is taken without a guard")
	}
	m.asks(true)
	m.marks(metav1.ConditionTrue)
	var pass *node.Pass
	until(t, "work to be taken", func() (taken bool) {
		var err error
		pass, err = w.gate.Enter("work")
		return err == nil
	})
	m.update(func(n *v1alpha1.Node) { n.Spec.Cordoned = true })
	pass.Leave()
	m.asks(false)
	if _, err := w.gate.Enter("work"); err == nil {
		t.Error("work is taken although the guard is given up")
	}
	if meta.IsStatusConditionTrue(m.object().Status.Conditions, v1alpha1.NodeNeedsGuard) {
		t.Error("the node asks for its guard before the coordinator has seen that it gave it up")
	}
	m.marks(metav1.ConditionFalse)
	m.asks(true) // for the work that came meanwhile
}
