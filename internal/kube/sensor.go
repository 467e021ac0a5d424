package kube

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/shortname"
)

// `kubectl drain` of a node that is cordoned already changes nothing that can be seen but the pods that it evicts, and the guard refuses
// that. So a node whose cordon began no drain (a health event quarantined it, or the drain was cancelled) gets a second pod, without a
// budget: its sensor. Whoever evicts the sensor wants the node drained. The cordon becomes theirs, and begins a drain like any other. An
// evicted sensor stays for its grace period, so that the next coordinator sees it too.
//
//	cordoned, held, no drain ──▶ sensor ──kubectl drain evicts it──▶ cordon has no owners ──▶ Drain ──▶ sensor deleted

// SensorLabel is on the sensor of a node; its value is the node's name, shortened if need be.
const SensorLabel = "ebb.dev/guard-sensor"

// sensorGrace is for how long an evicted sensor can be seen.
const sensorGrace = int64(600)

// evictionReason is the reason of the condition DisruptionTarget that an eviction leaves.
const evictionReason = "EvictionByEvictionAPI"

// Names of the actions of sensors.
const (
	CreateSensor = "create-sensor"
	DeleteSensor = "delete-sensor"
	// TakeCordon makes the cordon of a node one of whoever runs kubectl drain.
	TakeCordon = "take-cordon"
)

// sense makes and removes the sensor of a node, and acts on its eviction.
func (w GuardWorld) sense(n *v1alpha1.Node) *Action {
	sensor := w.Sensors[guardLabel(n.Name)]
	wanted := w.sensorWanted(n)
	switch {
	case sensor == nil && wanted && w.Paused[n.Name] == "":
		return &Action{Name: CreateSensor, Verb: Create, Object: w.newSensor(n)}
	case sensor == nil:
		return nil
	case wanted && evicted(sensor):
		return w.takeCordon(n)
	case !wanted || ended(sensor) || sensor.DeletionTimestamp != nil:
		return &Action{Name: DeleteSensor, Verb: DeleteNow, Object: sensor}
	}
	return nil
}

// evicted reports whether somebody evicted a pod. One that was deleted says nothing about its node.
func evicted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == evictionReason
	})
}

// sensorWanted reports whether a drain of a cordoned node could begin, but nothing asks for it.
func (w GuardWorld) sensorWanted(n *v1alpha1.Node) bool {
	return w.Holds(n.Name) && w.Live(n.Name) && w.live() > 1 && w.Settings.OnCordon != v1alpha1.HoldOnCordon && w.running(n.Name) == nil && !w.wantsDrain(n, w.Core[n.Name])
}

// takeCordon removes what keeps a cordon from beginning a drain: first its owners, then the record of an earlier drain.
func (w GuardWorld) takeCordon(n *v1alpha1.Node) *Action {
	if core := w.Core[n.Name]; cordon.Is(core) && len(v1alpha1.CordonOwners(core)) > 0 {
		next := core.DeepCopy()
		v1alpha1.SetCordonOwners(next, nil)
		return &Action{Name: TakeCordon, Verb: Update, Object: next}
	}
	if n.Annotations[CordonDrainAnnotation] != "" {
		next := n.DeepCopy()
		delete(next.Annotations, CordonDrainAnnotation)
		return &Action{Name: TakeCordon, Verb: Update, Object: next}
	}
	return nil // Ebb's Node does not show yet that the cordon has no owners
}

func (w GuardWorld) newSensor(n *v1alpha1.Node) *corev1.Pod {
	pod := w.newGuard(n)
	// No node has a name that begins with a hyphen: this is the name of no guard.
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: w.Namespace, Name: shortname.Fit("ebb-guard--sensor-"+n.Name, 253), OwnerReferences: pod.OwnerReferences,
		Labels: map[string]string{SensorLabel: guardLabel(n.Name), "app.kubernetes.io/name": "ebb-guard"},
	}
	pod.Spec.TerminationGracePeriodSeconds = new(sensorGrace)
	pod.Spec.Containers[0].Args = []string{"guard", "--outlast-sigterm"}
	return pod
}
