package volume

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// Summarize counts volumes by state.
func Summarize(list []v1alpha1.Volume) *kind.Summary {
	k := kind.NewSummary("volume", "volumes", "ebb status volumes")
	for i := range list {
		state, message := summaryState(&list[i])
		k.Add(kind.NameIn(list[i].Namespace, list[i].Name), state, message)
	}
	return k
}

// summaryState follows from a volume's robustness and conditions.
func summaryState(v *v1alpha1.Volume) (kind.State, string) {
	s := v.Status
	wrong := func(condition string) string {
		if c := meta.FindStatusCondition(s.Conditions, condition); c != nil && c.Status == metav1.ConditionFalse {
			return c.Message
		}
		return ""
	}
	switch {
	case deleting(v):
		return kind.Deleting, ""
	case s.Robustness == v1alpha1.VolumeFaulted:
		return kind.State{Name: "faulted", Rank: kind.Wrong}, "no healthy replica is left"
	case wrong(v1alpha1.VolumeOpenable) != "":
		return kind.State{Name: "not openable", One: "cannot be opened", Many: "cannot be opened", Rank: kind.Wrong}, wrong(v1alpha1.VolumeOpenable)
	case s.Robustness == "" || s.ObservedGeneration != v.Generation:
		return kind.Unseen, ""
	case s.Robustness == v1alpha1.VolumeDegraded:
		message := fmt.Sprintf("%d of %d replicas are healthy", len(s.Members), v.Spec.Replicas)
		if why := wrong(v1alpha1.VolumeScheduled); why != "" {
			message = why
		}
		return kind.State{Name: "degraded", Rank: kind.Wrong}, message
	case s.Robustness == v1alpha1.VolumeUnknown:
		return kind.State{Name: "being made", Rank: kind.Busy}, wrong(v1alpha1.VolumeScheduled)
	case wrong(v1alpha1.VolumeScheduled) != "":
		return kind.State{Name: "short of disks", Rank: kind.Wrong}, wrong(v1alpha1.VolumeScheduled)
	case v.Spec.AttachTo != "" && !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.VolumeAttached):
		return kind.State{Name: "not attached", Rank: kind.Busy}, wrong(v1alpha1.VolumeAttached)
	case v.Spec.AttachTo == "":
		return kind.State{Name: "detached", Rank: kind.Wanted}, ""
	}
	return kind.Running, ""
}
