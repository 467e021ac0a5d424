package drain_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kube"
)

// newCoreScene is a scene on Kubernetes: every node has a core Node.
func newCoreScene(t *testing.T) *scene {
	s := newScene(t)
	s.core = map[string]*corev1.Node{}
	for name := range s.nodes {
		s.core[name] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("core-" + name)}}
		s.bump(s.core[name])
	}
	s.projects("project-cordon n1", "project-cordon n2", "project-cordon n3")
	return s
}

// projects lets the planner of core Nodes act until it has nothing to do, and wants it to have done this.
func (s *scene) projects(want ...string) {
	s.t.Helper()
	var names []string
	for range 20 {
		f, err := fleet.Read(context.Background(), s.store)
		if err != nil {
			s.t.Fatal(err)
		}
		w := kube.World{Leader: s.leader, Fleet: f, Core: s.core}
		for _, d := range s.drains {
			w.Drains = append(w.Drains, d)
		}
		a := kube.Next(w)
		if a == nil {
			break
		}
		names = append(names, a.Name+" "+a.Node)
		switch o := a.Object.(type) {
		case *v1alpha1.Node:
			if err := s.write(&drain.Step{Object: o}); err != nil {
				s.t.Fatal(err)
			}
		case *v1alpha1.Drain:
			o.UID = types.UID("uid-" + o.Name)
			s.bump(o)
			s.drains[o.Name] = o
		}
	}
	if !slices.Equal(names, want) {
		s.t.Fatalf("actions are %q, want %q", names, want)
	}
}

// coreCordons changes the cordon of a core Node as kubectl does.
func (s *scene) coreCordons(name string, cordoned bool) {
	s.core[name].Spec.Unschedulable = cordoned
	s.bump(s.core[name])
}

func TestEveryDrainOnACoreNodeParks(t *testing.T) {
	s := newCoreScene(t)
	s.request("d", "n2")
	s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepCordon)
	if !s.core["n2"].Spec.Unschedulable || !slices.Equal(v1alpha1.CordonOwners(s.core["n2"]), []string{"uid-d"}) {
		t.Errorf("the core Node is %+v", s.core["n2"])
	}
	s.cordonIs("n2", false) // the drain waits until the node can see it
	s.projects("project-cordon n2")
	s.cordonIs("n2", true, "uid-d")
	s.takes(drain.StepBegin, drain.StepDesireDraining, drain.StepProgress)
	s.obey("n2")
	s.steps()
	s.obey("n2")
	s.leaves("n2")
	s.takes(drain.StepComplete, drain.StepReleaseSlot)
	s.parkedIs("n2", "d", 1)
	s.projects()

	s.coreCordons("n2", false)
	s.takes(drain.StepClearOwners)
	s.projects("project-cordon n2")
	s.cordonIs("n2", false)
}

func TestACordonThatCannotBeLiftedKeepsNoOtherDrainWaiting(t *testing.T) {
	s := newCoreScene(t)
	v1alpha1.SetCordonOwners(s.core["n2"], []string{"somebody"}) // of a node that was uncordoned
	s.request("d", "n3")
	w := s.world()
	if step := drain.Next(w); step == nil || step.Name != drain.StepClearOwners {
		t.Fatalf("the next step is %+v", step)
	}
	w.Refused = map[string]string{"n2": "no"}
	if step := drain.Next(w); step == nil || step.Name != drain.StepHold || step.Drain.Name != "d" {
		t.Errorf("the next step is %+v", step)
	}
}

func TestADrainThatMayNotCordonItsNodeSaysSoAndKeepsNoOtherOneUndecided(t *testing.T) {
	s := newCoreScene(t)
	s.request("d", "n3")
	for range 2 { // it is held, and gets the slot
		if err := s.write(drain.Next(s.world())); err != nil {
			t.Fatal(err)
		}
	}
	s.request("e", "n2")
	w := s.world()
	if step := drain.Next(w); step == nil || step.Name != drain.StepCordon {
		t.Fatalf("the next step is %+v", step)
	}
	w.Refused = map[string]string{"n3": "a webhook says no"}
	step := drain.Next(w)
	if step == nil || step.Name != drain.StepProgress || step.Drain.Name != "d" {
		t.Fatalf("the next step is %+v", step)
	}
	status := step.Object.(*v1alpha1.Drain).Status
	want := v1alpha1.Blocker{
		Kind: "Node", Name: "n3", Reason: drain.BlockedByCordon, Remedy: "node n3 could not be cordoned: a webhook says no; the coordinator tries again: check admission webhooks and its permission to update nodes", Since: metav1.NewTime(w.Now),
	}
	if status.Phase != v1alpha1.DrainPending || status.StartedAt != nil || len(status.Blockers) != 1 || status.Blockers[0] != want {
		t.Errorf("the status is %+v", status)
	}
	if err := s.write(step); err != nil {
		t.Fatal(err)
	}
	w = s.world()
	if text := drain.Explain(w, "n3"); !strings.Contains(text, "Drain d is about to begin.\n") || !strings.Contains(text, "node n3 could not be cordoned: a webhook says no") {
		t.Errorf("it says:\n%s", text)
	}
	w.Refused = map[string]string{"n3": "a webhook says no"}
	if step := drain.Next(w); step == nil || step.Name != drain.StepRefuse || step.Drain.Name != "e" {
		t.Errorf("the next step is %+v", step)
	}
}

func TestACancelledDrainLiftsTheCordonOfTheCoreNode(t *testing.T) {
	s := newCoreScene(t)
	s.places("n2", "volumes", 1)
	s.request("d", "n2")
	s.steps()
	s.projects("project-cordon n2")
	s.steps()
	s.cancel("d")
	s.takes(drain.StepCancel, drain.StepLiftCordon)
	s.projects("project-cordon n2")
	s.cordonIs("n2", false)
}

// Nobody has uncordoned the node: it was deleted, and another one has its name.
func TestADrainOfACoreNodeThatIsMadeAgainSaysSo(t *testing.T) {
	s := newCoreScene(t)
	s.places("n2", "volumes", 1)
	d := s.request("d", "n2")
	s.steps()
	s.projects("project-cordon n2")
	s.steps()
	s.core["n2"] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", UID: "core-n2-again", CreationTimestamp: metav1.NewTime(d.CreationTimestamp.Add(time.Minute))}}
	s.bump(s.core["n2"])
	s.takes(drain.StepCancel)
	ended(t, s.drains["d"], v1alpha1.DrainCancelled, v1alpha1.ReasonNodeReplaced,
		"The core Node n2 was deleted and created again, without the cordon: it takes work again in a new epoch. Work that has moved stays where it is.")
}

func TestACordonOfACoreNodeDrainsIt(t *testing.T) {
	s := newCoreScene(t)
	s.places("n2", "volumes", 1)
	s.coreCordons("n2", true)
	s.projects("project-cordon n2", "create-drain n2", "note-drain n2")
	s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress)
	s.cordonIs("n2", true)

	s.coreCordons("n2", false)
	s.takes(drain.StepCancel)
	s.projects("project-cordon n2")
	ended(t, s.drains["cordon-n2-1"], v1alpha1.DrainCancelled, v1alpha1.ReasonUncordoned, "Node n2 was uncordoned: it takes work again in a new epoch. Work that has moved stays where it is.")
	s.restarts("n2", v1alpha1.Alive, "")
	s.takes(drain.StepReleaseSlot)

	s.coreCordons("n2", true) // once more
	s.projects("project-cordon n2", "create-drain n2", "note-drain n2")
	if s.drains["cordon-n2-2"] == nil {
		t.Errorf("the drains are %v", s.drains)
	}
}

func TestAQueuedDrainOfACordonIsWithdrawnWithIt(t *testing.T) {
	s := newCoreScene(t)
	s.places("n2", "volumes", 1)
	s.coreCordons("n2", true)
	s.coreCordons("n3", true)
	s.projects("project-cordon n2", "project-cordon n3", "create-drain n2", "note-drain n2", "create-drain n3", "note-drain n3")
	s.takes(drain.StepHold, drain.StepTakeSlot, drain.StepBegin, drain.StepDesireDraining, drain.StepProgress, drain.StepQueue)
	s.coreCordons("n3", false)
	s.takes(drain.StepWithdraw)
	s.projects("project-cordon n3")
	ended(t, s.drains["cordon-n3-1"], v1alpha1.DrainCancelled, v1alpha1.ReasonWithdrawn, "The node was uncordoned before the drain began.")
	s.cordonIs("n3", false)
}

// A person cancels the drain and leaves the node cordoned.
func TestACancelledDrainOfACordonIsNotBegunAgain(t *testing.T) {
	s := newCoreScene(t)
	s.places("n2", "volumes", 1)
	s.coreCordons("n2", true)
	s.projects("project-cordon n2", "create-drain n2", "note-drain n2")
	s.steps()
	s.cancel("cordon-n2-1")
	s.takes(drain.StepCancel)
	s.restarts("n2", v1alpha1.Alive, "")
	s.takes(drain.StepReleaseSlot)
	s.projects()
	s.cordonIs("n2", true)
}

func TestANodeThatWaitsForItsGuardIsExplained(t *testing.T) {
	s := newCoreScene(t)
	s.status("n2", func(n *v1alpha1.NodeStatus) {
		n.Conditions = []metav1.Condition{{Type: v1alpha1.NodeNeedsGuard, Status: metav1.ConditionTrue}, {Type: v1alpha1.NodeGuarded, Status: metav1.ConditionFalse, Message: "The guard does not run."}}
	})
	want := "Node n2 is Alive in epoch 1.\n" +
		"Until its guard runs, it takes no work that must leave before the node does. The guard does not run. `kubectl get pods,pdb -n ebb-system -l ebb.dev/guard` shows the guards.\n" +
		"No drain of it is running. It holds nothing.\n"
	if got := drain.Explain(s.world(), "n2"); got != want {
		t.Errorf("explanation:\n%s\nwant:\n%s", got, want)
	}
	s.status("n2", func(n *v1alpha1.NodeStatus) { n.Conditions[1].Status = metav1.ConditionTrue })
	if got := drain.Explain(s.world(), "n2"); got != "Node n2 is Alive in epoch 1.\nNo drain of it is running. It holds nothing.\n" {
		t.Errorf("explanation:\n%s", got)
	}
}
