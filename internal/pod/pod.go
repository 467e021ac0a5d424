// Package pod moves the pods of a Kubernetes node when the node is drained: by the mode of their namespace, through the Eviction API, within
// disruption budgets. It is present only where the API has pods.
//
//	Drain ──▶ node cordoned ──▶ pods listed and watched ──▶ Evaluate ──▶ evict, delete, wait, stay ──▶ nothing left
//
// Each node that drains has a watch of its own pods, for as long as it drains; nothing knows all pods. A budget that refuses is watched: the
// next attempt follows a change of its status, and no timer. What was done and what is waited for is in Drain.status.pods.
//
// Pods take no slot. A node on which no process of Ebb runs has a drain of pods alone (status.scope Pods), which this package begins and
// ends. On every other node the pods leave while the Drain waits for the slot and while it runs, and the Drain waits for both.
package pod

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Name of the kind, and of its count in drains.
const Name = "pods"

// Pod is what a drain needs to know of a pod.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Labels          map[string]string
	Phase           corev1.PodPhase
	// Ready is the condition Ready.
	Ready bool
	// Owner is the controller, such as "ReplicaSet web-5d", and DaemonSet says that it is one.
	Owner     string
	DaemonSet bool
	// Static: the kubelet runs it from a file.
	Static bool
	// Deleted is its deletionTimestamp, the end of its grace; zero if nobody deleted it.
	Deleted    time.Time
	Finalizers []string
	// Grace is its own grace period in seconds.
	Grace int64
	// Evicted says that it was deleted through the Eviction API, and EvictedAt when, by the API server's clock; zero if that is unknown.
	Evicted   bool
	EvictedAt time.Time
	// Tolerates says that it tolerates the taint of a cordon.
	Tolerates bool

	version string
}

// GetObjectMeta lets caches find the key of a pod.
func (p *Pod) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.version}
}

// Key is the name with the namespace.
func (p *Pod) Key() string { return p.Namespace + "/" + p.Name }

// cordonTaint is what Kubernetes puts on a cordoned node.
var cordonTaint = corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}

// Reduce keeps what a drain needs of a pod.
func Reduce(p *corev1.Pod) *Pod {
	r := &Pod{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, Phase: p.Status.Phase, Finalizers: p.Finalizers,
		Grace: corev1.DefaultTerminationGracePeriodSeconds, version: p.ResourceVersion,
	}
	for _, c := range p.Status.Conditions {
		switch c.Type {
		case corev1.PodReady:
			r.Ready = c.Status == corev1.ConditionTrue
		case corev1.DisruptionTarget:
			if r.Evicted = c.Status == corev1.ConditionTrue && c.Reason == "EvictionByEvictionAPI"; r.Evicted {
				r.EvictedAt = c.LastTransitionTime.Time
			}
		}
	}
	if o := metav1.GetControllerOfNoCopy(p); o != nil {
		r.Owner, r.DaemonSet = o.Kind+" "+o.Name, o.Kind == "DaemonSet"
	}
	_, r.Static = p.Annotations[corev1.MirrorPodAnnotationKey]
	if p.DeletionTimestamp != nil {
		r.Deleted = p.DeletionTimestamp.Time
	}
	if p.Spec.TerminationGracePeriodSeconds != nil {
		r.Grace = *p.Spec.TerminationGracePeriodSeconds
	}
	r.Tolerates = slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Key == cordonTaint.Key || t.Key == "" && t.Operator == corev1.TolerationOpExists) && (t.Effect == "" || t.Effect == cordonTaint.Effect)
	})
	return r
}

// Budget is what a drain needs to know of a PodDisruptionBudget.
type Budget struct {
	Namespace, Name string
	// Version changes whenever the budget does.
	Version string
	// Selects are the pods that it is for.
	Selects labels.Selector
	// Observed says that its status is about its present spec.
	Observed bool
	// Allowed, Healthy, Desired and Expected are its status: disruptions allowed now, pods that are healthy, that have to be, and that there are.
	Allowed, Healthy, Desired, Expected int32
	// Counts says that Expected are the pods that exist, and not those that their controllers want: minAvailable is a number.
	Counts bool
	// Never says that the spec allows no disruption, however many pods are healthy.
	Never bool
	// AlwaysUnready lets pods that are not Ready go in any case.
	AlwaysUnready bool
	// Trouble is why Kubernetes cannot count its pods, in the words of Kubernetes; empty if it can. Its status may be about earlier pods then.
	Trouble string
	// Since is when it began to allow no disruption.
	Since time.Time
}

// Key is the name with the namespace.
func (b *Budget) Key() string { return b.Namespace + "/" + b.Name }

// GetObjectMeta lets caches find the key of a budget.
func (b *Budget) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name, ResourceVersion: b.Version}
}

// matches reports whether the budget is for a pod.
func (b *Budget) matches(p *Pod) bool {
	return b.Namespace == p.Namespace && b.Selects.Matches(labels.Set(p.Labels))
}

// omits reports whether the budget counts no pod because none of its pods has a controller, as this one does not: unless minAvailable is a number,
// Kubernetes counts the pods that controllers want.
func (b *Budget) omits(p *Pod) bool {
	return b.Observed && !b.Counts && b.Expected == 0 && b.Healthy > 0 && p.Owner == ""
}

// ReduceBudget keeps what a drain needs of a budget.
func ReduceBudget(b *policyv1.PodDisruptionBudget) *Budget {
	r := &Budget{
		Namespace: b.Namespace, Name: b.Name, Version: b.ResourceVersion, Observed: b.Status.ObservedGeneration >= b.Generation,
		Allowed: b.Status.DisruptionsAllowed, Healthy: b.Status.CurrentHealthy, Desired: b.Status.DesiredHealthy, Expected: b.Status.ExpectedPods,
		AlwaysUnready: b.Spec.UnhealthyPodEvictionPolicy != nil && *b.Spec.UnhealthyPodEvictionPolicy == policyv1.AlwaysAllow,
	}
	var err error
	if r.Selects, err = metav1.LabelSelectorAsSelector(b.Spec.Selector); err != nil {
		r.Selects = labels.Nothing() // as the API server does
	}
	r.Counts = b.Spec.MinAvailable != nil && b.Spec.MinAvailable.Type == intstr.Int
	r.Never = zero(b.Spec.MaxUnavailable) || all(b.Spec.MinAvailable)
	for _, c := range b.Status.Conditions {
		if c.Type == policyv1.DisruptionAllowedCondition && c.Status == metav1.ConditionFalse {
			r.Since = c.LastTransitionTime.Time
			if c.Reason == policyv1.SyncFailedReason {
				r.Trouble = c.Message
			}
		}
	}
	return r
}

// zero reports whether a limit is 0 or 0%.
func zero(v *intstr.IntOrString) bool {
	return v != nil && (v.Type == intstr.Int && v.IntVal == 0 || v.Type == intstr.String && v.StrVal == "0%")
}

// all reports whether a limit is 100%.
func all(v *intstr.IntOrString) bool {
	return v != nil && v.Type == intstr.String && v.StrVal == "100%"
}
