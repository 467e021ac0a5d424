package deployment

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// Healthy reports whether a program is as it should be: it runs where it should, or it is disabled and nothing of it is left.
func Healthy(d *v1alpha1.Deployment) bool {
	running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
	return running != nil && running.ObservedGeneration == d.Generation &&
		(running.Status == metav1.ConditionTrue || running.Reason == v1alpha1.ReasonDisabled && len(d.Status.Nodes) == 0) &&
		!meta.IsStatusConditionFalse(d.Status.Conditions, v1alpha1.DeploymentValid)
}

// Summarize counts deployments and daemons by state.
func Summarize(list []v1alpha1.Deployment) []*kind.Summary {
	deployments := kind.NewSummary("deployment", "deployments", "ebb status deployments")
	daemons := kind.NewSummary("daemon", "daemons", "ebb status deployments")
	for i := range list {
		d := &list[i]
		state, message := stateOf(d)
		if d.Spec.Type == v1alpha1.TypeDaemon {
			daemons.Add(kind.NameIn(d.Namespace, d.Name), state, message)
		} else {
			deployments.Add(kind.NameIn(d.Namespace, d.Name), state, message)
		}
	}
	return []*kind.Summary{deployments, daemons}
}

// stateOf returns the state that follows from a program's conditions.
func stateOf(d *v1alpha1.Deployment) (kind.State, string) {
	running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
	valid := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentValid)
	switch {
	case !d.DeletionTimestamp.IsZero():
		return kind.Deleting, ""
	case Healthy(d) && running.Status == metav1.ConditionTrue:
		return kind.Running, ""
	case Healthy(d):
		return kind.State{Name: "disabled", Rank: kind.Wanted}, ""
	case running == nil || running.ObservedGeneration != d.Generation:
		return kind.Unseen, ""
	case valid != nil && valid.Status == metav1.ConditionFalse:
		return kind.State{Name: "invalid", Rank: kind.Wrong}, valid.Message
	}
	return kind.State{Name: "not running where it should", Many: "not running where they should", Rank: kind.Wrong}, running.Message
}
