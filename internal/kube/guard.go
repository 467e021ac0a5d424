package kube

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/shortname"
)

// A guard keeps `kubectl drain` from finishing on a node while work of Ebb is there: a pod that does nothing, with a budget of its own that
// allows no eviction. The node takes work only while its guard runs and the budget is observed. When the node has been drained, the
// budget is deleted, and the eviction of the pod succeeds. A node that needs its guard no longer gives it up:
//
//	work arrives ──▶ NeedsGuard ──▶ pod, budget ──▶ running and observed ──▶ Guarded ──▶ work is taken
//	cordoned ──▶ drained, lease released ──▶ not Guarded ──▶ budget deleted ──▶ kubectl drain passes
//	nothing is left ──▶ not NeedsGuard ──▶ not Guarded ──▶ budget deleted; if the node is not cordoned, the pod too

// GuardLabel is on the guard of a node and on its budget; its value is the node's name, shortened if need be.
const GuardLabel = "ebb.dev/guard"

// Names of the actions of guards.
const (
	CreateGuard  = "create-guard"
	DeleteGuard  = "delete-guard"
	CreateBudget = "create-budget"
	OpenGuard    = "open-guard"
	MarkGuarded  = "mark-guarded"
)

// GuardWorld is the input of a decision about guards, read at one time.
type GuardWorld struct {
	// World has Ebb's nodes and their leases, the core Nodes and the drains.
	World
	// Pods and Budgets of guards, and Sensors, by their label.
	Pods    map[string]*corev1.Pod
	Budgets map[string]*policyv1.PodDisruptionBudget
	Sensors map[string]*corev1.Pod
	// Placed is what objects place on a cordoned node that might go; a node that is missing here was not counted.
	Placed map[string]Placement
	// Paused says why the pods of a node could not be created; it is not tried again yet.
	Paused map[string]string
	// PullSecrets are those of the pods that run the nodes.
	PullSecrets map[string][]corev1.LocalObjectReference
	// Image of the guard, and the Namespace in which it runs.
	Image, Namespace string
}

// Placement is the work that objects place on a node.
type Placement struct {
	// Counts by kind.
	Counts map[string]int64
	// Blockers are what the work waits for.
	Blockers []v1alpha1.Blocker
}

// none reports whether no work is placed.
func (p Placement) none() bool {
	for _, count := range p.Counts {
		if count > 0 {
			return false
		}
	}
	return true
}

// guardLabel is the value of the label of a node's guard.
func guardLabel(node string) string { return shortname.Fit(node, 63) }

// NextGuard returns the next action about guards, or nil when there is nothing to do now. It does not change w.
func NextGuard(w GuardWorld) *Action {
	for _, name := range slices.Sorted(maps.Keys(w.Nodes)) {
		var a *Action
		switch n, core := w.Nodes[name], w.Core[name]; {
		case core == nil:
			a = freeOfGuard(n)
		case cordon.Is(core):
			a = w.openGuard(n)
		default:
			a = w.keepGuard(n)
		}
		if a == nil {
			a = w.sense(w.Nodes[name])
		}
		if a != nil && !w.Failed[name] {
			a.Node = name
			return a
		}
	}
	return nil
}

// freeOfGuard lets a node without a core Node take work: nothing takes it away by itself.
func freeOfGuard(n *v1alpha1.Node) *Action {
	if guarded(n) == needsGuard(n) {
		return nil
	}
	if !needsGuard(n) {
		return mark(n, false, reasonNotNeeded, messageNotNeeded)
	}
	return mark(n, true, "NoCoreNode", "There is no core Node of this name, so there is nothing to guard.")
}

// keepGuard makes the guard of a node that needs one, removes it from one that gave it up, and publishes whether it guards.
func (w GuardWorld) keepGuard(n *v1alpha1.Node) *Action {
	pod, budget := w.Pods[guardLabel(n.Name)], w.Budgets[guardLabel(n.Name)]
	if a := w.publish(n); a != nil {
		return a
	}
	switch {
	case w.gaveUp(n) && budget != nil && budget.DeletionTimestamp == nil:
		return &Action{Name: OpenGuard, Verb: Delete, Object: budget}
	case pod != nil && pod.DeletionTimestamp == nil && (w.gaveUp(n) || ended(pod)):
		return &Action{Name: DeleteGuard, Verb: Delete, Object: pod}
	case !w.Live(n.Name) || !needsGuard(n) || w.Paused[n.Name] != "":
	case pod == nil:
		return &Action{Name: CreateGuard, Verb: Create, Object: w.newGuard(n)}
	case budget == nil:
		return &Action{Name: CreateBudget, Verb: Create, Object: w.newBudget(n)}
	}
	return nil
}

// ended reports whether a pod does not run any more and never will.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// needsGuard reports whether a node asks for a guard.
func needsGuard(n *v1alpha1.Node) bool {
	return meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NodeNeedsGuard)
}

// gaveUp reports whether a living node needs its guard no longer. It admits no work that needs one until it has one again.
func (w GuardWorld) gaveUp(n *v1alpha1.Node) bool {
	return w.Live(n.Name) && meta.IsStatusConditionFalse(n.Status.Conditions, v1alpha1.NodeNeedsGuard) && n.Status.Epoch == w.Leases[n.Name].Epoch
}

// openGuard deletes the budget of a cordoned node when the node may go. First it publishes that the node is not guarded any more: a node that
// comes back takes no work before it has a guard again. Nothing is made on a cordoned node.
func (w GuardWorld) openGuard(n *v1alpha1.Node) *Action {
	budget := w.Budgets[guardLabel(n.Name)]
	if !w.MayGo(n.Name) {
		return w.publish(n)
	}
	if guarded(n) {
		return mark(n, false, "Opened", "The node may leave; its guard is open.")
	}
	if budget != nil && budget.DeletionTimestamp == nil {
		return &Action{Name: OpenGuard, Verb: Delete, Object: budget}
	}
	return nil
}

// MayGo reports whether a cordoned node may be taken away: no object places work on it, and its lease is free. A node that lives may go too
// if it holds nothing and no drain of it is running or about to begin.
func (w GuardWorld) MayGo(node string) bool {
	placed, counted := w.Placed[node]
	if !counted || !placed.none() {
		return false
	}
	n := w.Nodes[node]
	return !w.Live(node) || w.gaveUp(n) && w.running(node) == nil && !w.drainComes(n)
}

// Holds reports whether the guard of a cordoned node keeps it from being taken away.
func (w GuardWorld) Holds(node string) bool {
	return w.Core[node] != nil && cordon.Is(w.Core[node]) && w.Budgets[guardLabel(node)] != nil && !w.MayGo(node)
}

const (
	reasonNotNeeded  = "NotNeeded"
	messageNotNeeded = "The node holds no work that must leave before the node does."
)

// publish brings the condition Guarded in line with the guard. A node that does not ask for a guard is not guarded: what guards it still may
// be removed.
func (w GuardWorld) publish(n *v1alpha1.Node) *Action {
	if w.gaveUp(n) {
		if !guarded(n) {
			return nil
		}
		return mark(n, false, reasonNotNeeded, messageNotNeeded)
	}
	stands, why, problem := w.stands(n.Name)
	stands = stands && needsGuard(n)
	if stands == guarded(n) && !(problem && needsGuard(n) && messageOf(n) != why) {
		return nil
	}
	if stands {
		return mark(n, true, "Guarded", "The guard runs and its budget is observed.")
	}
	return mark(n, false, "NotGuarded", why)
}

// stands reports whether the guard of a node runs there and its budget allows no eviction, and otherwise why not; problem says that this may
// last, and people should know.
func (w GuardWorld) stands(node string) (stands bool, why string, problem bool) {
	pod, budget := w.Pods[guardLabel(node)], w.Budgets[guardLabel(node)]
	switch {
	case (pod == nil || budget == nil) && w.Paused[node] != "":
		return false, "The guard could not be created; trying again: " + w.Paused[node] + ".", true
	case pod == nil || budget == nil:
		return false, "The node has no guard.", false
	case pod.Spec.NodeName != node || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning:
		if waits := waitsFor(pod); waits != "" {
			return false, "The guard does not run: " + waits + ".", true
		}
		return false, "The guard does not run.", false
	case budget.DeletionTimestamp != nil || budget.Status.ObservedGeneration < budget.Generation || budget.Status.CurrentHealthy < 1 || budget.Status.DisruptionsAllowed > 0:
		return false, "Kubernetes has not observed the budget of the guard yet.", false
	}
	return true, "", false
}

// waitsFor is why a pod does not run, as the kubelet reports it: its image cannot be pulled, or it ends as soon as it starts.
func waitsFor(pod *corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != "ContainerCreating" {
			return strings.TrimSuffix(joined(s.State.Waiting.Reason, s.State.Waiting.Message), ".")
		}
	}
	return strings.TrimSuffix(joined(pod.Status.Reason, pod.Status.Message), ".")
}

func joined(reason, message string) string {
	if reason == "" || message == "" {
		return reason + message
	}
	return reason + ": " + message
}

func messageOf(n *v1alpha1.Node) string {
	if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeGuarded); c != nil {
		return c.Message
	}
	return ""
}

func guarded(n *v1alpha1.Node) bool {
	return meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NodeGuarded)
}

func mark(n *v1alpha1.Node, on bool, reason, message string) *Action {
	next := n.DeepCopy()
	status := metav1.ConditionFalse
	if on {
		status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeGuarded, Status: status, Reason: reason, Message: message})
	return &Action{Name: MarkGuarded, Verb: UpdateStatus, Object: next}
}

// objectMeta of a guard or its budget. Ebb's Node is the controller, so that kubectl drain evicts the pod without --force, and it goes with
// the node.
func (w GuardWorld) objectMeta(n *v1alpha1.Node) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: w.Namespace, Name: shortname.Fit("ebb-guard-"+n.Name, 253),
		Labels: map[string]string{GuardLabel: guardLabel(n.Name), "app.kubernetes.io/name": "ebb-guard"},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Node", Name: n.Name, UID: n.UID, Controller: new(true),
		}},
	}
}

func (w GuardWorld) newGuard(n *v1alpha1.Node) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: w.objectMeta(n),
		Spec: corev1.PodSpec{
			NodeName:                      n.Name, // the scheduler is not asked: no other node would do
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			PriorityClassName:             "system-node-critical",
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			ImagePullSecrets:              w.PullSecrets[n.Name],
			TerminationGracePeriodSeconds: new(int64(1)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65532)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "guard", Image: w.Image, Command: []string{"/ebb"}, Args: []string{"guard"},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

func (w GuardWorld) newBudget(n *v1alpha1.Node) *policyv1.PodDisruptionBudget {
	one := intstr.FromInt32(1) // an integer: a share asks the controller of the pod for its size, and Ebb's Node has none
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: w.objectMeta(n),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &one,
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{GuardLabel: guardLabel(n.Name)}},
		},
	}
}
