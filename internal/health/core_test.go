package health_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/kube"
)

// onKubernetes makes all nodes core Nodes, and some of them core Nodes only.
func (s *store) onKubernetes(only ...string) *store {
	s.kube, s.core = true, map[string]bool{}
	for _, n := range s.nodes {
		n.Annotations = map[string]string{kube.CoreUIDAnnotation: "core-" + n.Name}
	}
	for _, name := range only {
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{kube.CoreUIDAnnotation: "core-" + name}}}
		s.born(n)
		s.nodes[name], s.core[name], s.dead[name] = n, true, true
	}
	return s
}

// begun is the one drain that was made.
func (s *store) begun(t *testing.T, node string) *v1alpha1.Drain {
	t.Helper()
	for _, d := range s.drains {
		if d.Spec.NodeName == node {
			return d
		}
	}
	t.Fatalf("no drain of node %s: %v", node, s.drains)
	return nil
}

func TestDrainsOfANodeWhoseCoreNodeIsGoneAreNotMadeAgainAndAgain(t *testing.T) {
	s := newStore(2).onKubernetes()
	s.dead["n1"], s.leader = true, "n2" // n2 is the only one that runs
	s.coreGone = map[string]bool{"n2": true}
	s.send("e1", on("n2"))
	for range 5 {
		s.settle()
		s.endDrain(v1alpha1.DrainFailed, v1alpha1.ReasonSingleNode)
	}
	s.is(t, "e1", quarantined, progressing, health.WaitSingle)
	if len(s.drains) > 0 {
		t.Errorf("%d drains were made", len(s.drains))
	}
	delete(s.coreGone, "n2") // it may be gone by the time that the Drain is looked at
	for range 5 {
		s.settle()
		s.endDrain(v1alpha1.DrainFailed, v1alpha1.ReasonSingleNode)
	}
	if len(s.drains) > 1 {
		t.Errorf("%d drains were made", len(s.drains))
	}
}

func TestACoreNodeThatEbbDoesNotKnowIsQuarantinedAndDrainedOfItsPods(t *testing.T) {
	s := newStore(3).onKubernetes("w1")
	s.send("e1", on("w1"))
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	if !s.nodes["w1"].Spec.Cordoned {
		t.Error("the node is not cordoned")
	}
	d := s.begun(t, "w1")
	d.Status.Scope, d.Status.StartedAt = v1alpha1.ScopePods, new(metav1.NewTime(s.now))
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitDrain)
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
	s.send("h1", func(e *v1alpha1.HealthEvent) { healthy(e); e.Spec.NodeName = "w1" })
	s.settle()
	s.is(t, "e1", v1alpha1.UnQuarantined, succeeded, health.ReasonResolved)
	if s.nodes["w1"].Spec.Cordoned {
		t.Error("the node is still cordoned")
	}
}

// The action that starts the drain of pods is named after what may happen to them at once.
func TestTheActionThatStartsADrainNamesTheMostUrgentMode(t *testing.T) {
	modes := func(list ...drainconfig.Mode) []drainconfig.UserNamespace {
		var all []drainconfig.UserNamespace
		for i, m := range list {
			all = append(all, drainconfig.UserNamespace{Name: fmt.Sprintf("n%d-*", i), Mode: m})
		}
		return all
	}
	for _, c := range []struct {
		name  string
		s     *store
		modes []drainconfig.UserNamespace
		want  health.Action
	}{
		{"pods of every namespace at once", newStore(3).onKubernetes(), drainconfig.Default().UserNamespaces, health.ActionEvictImmediate},
		{"some at once", newStore(3).onKubernetes(), modes(drainconfig.AllowCompletion, drainconfig.DeleteAfterTimeout, drainconfig.Immediate), health.ActionEvictImmediate},
		{"some after a time", newStore(3).onKubernetes(), modes(drainconfig.AllowCompletion, drainconfig.DeleteAfterTimeout), health.ActionEvictWithTimeout},
		{"all run to their end", newStore(3).onKubernetes(), nil, health.ActionCheckCompletion},
		{"there are no pods", newStore(3), drainconfig.Default().UserNamespaces, health.ActionStartDrain},
		{"another controller drains", newStore(3).custom().onKubernetes(), drainconfig.Default().UserNamespaces, health.ActionStartDrain},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.s.config.UserNamespaces = c.modes
			c.s.send("e1", nil)
			started := slices.DeleteFunc(c.s.settle(), func(a health.Action) bool { return !a.StartsDrain() })
			if !slices.Equal(started, []health.Action{c.want}) {
				t.Errorf("the drain was started by %q, want %q", started, c.want)
			}
			c.s.begun(t, "n2")
		})
	}
}

func TestACoreNodeThatEbbDoesNotKnowHasACustomDrain(t *testing.T) {
	s := newStore(3).custom().onKubernetes("w1")
	s.send("e1", on("w1"))
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	if len(s.drains) != 0 {
		t.Errorf("there is nothing of Ebb's to drain: %v", s.drains)
	}
	s.say("drain-w1-e1", "DrainComplete", "True", "")
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
}

// The pods of a sick node leave also if its own work cannot move: its Drain is made, and waits.
func TestPodsDoNotWaitForAnotherNode(t *testing.T) {
	lone := newStore(1).onKubernetes("w1")
	lone.send("e1", on("n1"))
	lone.settle()
	lone.is(t, "e1", quarantined, progressing, health.WaitSingle)
	lone.begun(t, "n1")

	two := newStore(2).onKubernetes("w1")
	two.nodes["n2"].Status.Liveness = v1alpha1.Draining
	two.send("e1", on("n1"))
	two.settle()
	two.is(t, "e1", quarantined, progressing, health.WaitNoSuccessor)
	two.begun(t, "n1")
	two.nodes["n2"].Status.Liveness = v1alpha1.Alive // now somebody can take over
	steps := health.Next(two.world())
	if len(steps) != 1 || steps[0].Action != health.ActionResign {
		t.Errorf("the sick coordinator does not resign: %+v", steps)
	}
}

// The only other node ends while the Drain of a sick node is queued.
func TestOnlyTheDrainOfACoreNodeSaysThatPodsLeaveMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name string
		s    *store
		want string
	}{
		{"embedded", newStore(3), "Node n2 is the only one that runs: its work cannot move. Start another node."},
		{"on Kubernetes", newStore(3).onKubernetes(), "Node n2 is the only one that runs: its work cannot move. Start another node. Its pods leave meanwhile."},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.s.send("e1", nil)
			c.s.settle()
			c.s.begun(t, "n2")
			c.s.dead["n1"], c.s.dead["n3"] = true, true
			c.s.settle()
			c.s.is(t, "e1", quarantined, progressing, health.WaitSingle)
			if got := meta.FindStatusCondition(c.s.events["e1"].Status.Conditions, v1alpha1.HealthEventHandled); got == nil || got.Message != c.want {
				t.Errorf("the condition is %+v, want %q", got, c.want)
			}
		})
	}
}
