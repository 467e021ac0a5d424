package main

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// summarizeNodes counts nodes by state; a node that left or is parked is not a problem.
func summarizeNodes(list []nodeStatus) *kind.Summary {
	k := kind.NewSummary("node", "nodes", "")
	for _, n := range list {
		switch {
		case n.Ready == string(metav1.ConditionTrue):
			k.Add(n.Name, kind.State{Name: "ready"}, "")
		case n.Reason == v1alpha1.ReasonParked:
			k.Add(n.Name, kind.State{Name: "parked", Rank: kind.Wanted}, "")
		case n.Reason == v1alpha1.ReasonLeft:
			k.Add(n.Name, kind.State{Name: "left", Rank: kind.Wanted}, "")
		case n.Reason == v1alpha1.ReasonStarting || n.Reason == v1alpha1.ReasonStopping:
			k.Add(n.Name, kind.State{Name: strings.ToLower(n.Reason), Rank: kind.Busy}, "")
		case n.Reason != "":
			k.Add(n.Name, kind.State{Name: strings.ToLower(n.Reason), Rank: kind.Wrong}, n.Message)
		default:
			k.Add(n.Name, kind.State{Name: "not ready", Rank: kind.Wrong}, n.Message)
		}
	}
	k.Sort()
	return k
}

// drainProblem returns what is wrong with the drain that holds the slot; empty if nothing is.
func drainProblem(slot *v1alpha1.ActiveDrain, drains []v1alpha1.Drain) string {
	if slot == nil {
		return ""
	}
	i := slices.IndexFunc(drains, func(d v1alpha1.Drain) bool { return string(d.UID) == slot.UID })
	if i < 0 {
		return "the Drain object was deleted; a new Drain of the node continues"
	}
	d := &drains[i]
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainStalled); !d.Status.Phase.Final() && c != nil && c.Status == metav1.ConditionTrue {
		return "stalled: " + strings.TrimSuffix(kind.OneLine(c.Message), ".")
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); d.Status.Phase == v1alpha1.DrainFailed && c != nil {
		return "failed: " + strings.TrimSuffix(kind.OneLine(c.Message), ".")
	}
	return ""
}
