package cordon_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
)

// both are a node of either home.
func both() map[string]client.Object {
	return map[string]client.Object{"Ebb's Node": &v1alpha1.Node{}, "a core Node": &corev1.Node{}}
}

func TestTheLastOwnerLiftsTheCordon(t *testing.T) {
	for name, n := range both() {
		cordon.Add(n, "a")
		cordon.Add(n, "b")
		if !cordon.Is(n) || !cordon.Owns(n, "a") || cordon.Owns(n, "c") {
			t.Errorf("%s: cordoned %t by %q", name, cordon.Is(n), v1alpha1.CordonOwners(n))
		}
		cordon.Lift(n, "a")
		cordon.Lift(n, "c")
		if !cordon.Is(n) {
			t.Errorf("%s: the cordon of b was lifted", name)
		}
		cordon.Lift(n, "b")
		if cordon.Is(n) || len(n.GetAnnotations()) > 0 {
			t.Errorf("%s: cordoned %t by %q after the last owner", name, cordon.Is(n), v1alpha1.CordonOwners(n))
		}
	}
}

func TestAPersonWhoTakesACordonOverKeepsItWhenTheOwnersAreGone(t *testing.T) {
	for name, n := range both() {
		cordon.Add(n, "a")
		cordon.Add(n, v1alpha1.CordonPerson)
		cordon.Add(n, "b")
		cordon.Lift(n, "b")
		if !cordon.Owns(n, "a") || !cordon.Owns(n, v1alpha1.CordonPerson) {
			t.Errorf("%s: the owners are %q", name, v1alpha1.CordonOwners(n))
		}
		cordon.Lift(n, "a")
		if !cordon.Is(n) || len(n.GetAnnotations()) > 0 {
			t.Errorf("%s: cordoned %t by %q after the last owner", name, cordon.Is(n), v1alpha1.CordonOwners(n))
		}
	}
}

// A person cordons a node that Ebb cordoned, uncordons it, and Ebb cordons it again before the coordinator has removed the owners.
func TestAPersonWhoUncordonsANodeHoldsItsNextCordonNoMore(t *testing.T) {
	for name, n := range both() {
		cordon.Add(n, "a")
		cordon.Add(n, v1alpha1.CordonPerson)
		cordon.Set(n, false)
		cordon.Add(n, "b")
		cordon.Lift(n, "a")
		if !cordon.Is(n) || !cordon.Owns(n, "b") || cordon.Owns(n, v1alpha1.CordonPerson) {
			t.Errorf("%s: cordoned %t by %q", name, cordon.Is(n), v1alpha1.CordonOwners(n))
		}
		cordon.Lift(n, "b")
		if cordon.Is(n) {
			t.Errorf("%s: still cordoned by %q after the last owner", name, v1alpha1.CordonOwners(n))
		}
	}
}

func TestTheCordonOfAPersonIsNotLifted(t *testing.T) {
	for name, n := range both() {
		cordon.Set(n, true)
		cordon.Lift(n, "a")
		if !cordon.Is(n) {
			t.Errorf("%s: it was lifted", name)
		}
	}
}

func TestANodeThatAnAutoscalerRemovesIsCordoned(t *testing.T) {
	for key, want := range map[string]bool{
		"ToBeDeletedByClusterAutoscaler": true, "karpenter.sh/disrupted": true,
		"DeletionCandidateOfClusterAutoscaler": false, "node.kubernetes.io/unschedulable": false,
	} {
		n := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key}}}}
		if cordon.Is(n) != want {
			t.Errorf("a node with the taint %s: cordoned %t", key, cordon.Is(n))
		}
	}
}

func TestOnlyChangesOfTheCordonAreWatched(t *testing.T) {
	before := &corev1.Node{}
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"a heartbeat":  {func(n *corev1.Node) { n.Status.Phase = corev1.NodeRunning }, false},
		"a cordon":     {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"a taint":      {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "karpenter.sh/disrupted"}} }, true},
		"an owner":     {func(n *corev1.Node) { v1alpha1.AddCordonOwner(n, "a") }, true},
		"another node": {func(n *corev1.Node) { n.UID = "b" }, true},
	} {
		after := before.DeepCopy()
		c.change(after)
		if got := cordon.Changes(event.UpdateEvent{ObjectOld: before, ObjectNew: after}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
