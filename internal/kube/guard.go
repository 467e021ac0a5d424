package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/shortname"
)

// A guard keeps `kubectl drain` from finishing on a node while work of Ebb is there: a pod that does nothing, with a budget of its own that
// allows no eviction. The node takes work only while its guard runs and the budget is observed. When the node has been drained, the
// budget is deleted, and the eviction of the pod succeeds.
//
//	work arrives ──▶ NeedsGuard ──▶ pod, budget ──▶ running and observed ──▶ Guarded ──▶ work is taken
//	cordoned ──▶ drained, lease released ──▶ not Guarded ──▶ budget deleted ──▶ kubectl drain passes

// live counts the nodes that hold a lease.
func (w GuardWorld) live() int { return World{Fleet: w.Fleet}.live() }

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
	// Fleet has Ebb's nodes and their leases.
	fleet.Fleet
	// Core has the core Nodes by name.
	Core map[string]*corev1.Node
	// Pods and Budgets of guards by their label.
	Pods    map[string]*corev1.Pod
	Budgets map[string]*policyv1.PodDisruptionBudget
	// Placed says whether objects place work on a cordoned node whose lease is free; a node that is missing here was not counted.
	Placed map[string]bool
	// Image of the guard, and the Namespace in which it runs.
	Image, Namespace string
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
		if a != nil {
			a.Node = name
			return a
		}
	}
	return nil
}

// freeOfGuard lets a node without a core Node take work: nothing takes it away by itself.
func freeOfGuard(n *v1alpha1.Node) *Action {
	if guarded(n) || !meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NodeNeedsGuard) {
		return nil
	}
	return mark(n, true, "NoCoreNode", "There is no core Node of this name that could be taken away.")
}

// keepGuard makes the guard of a node that needs one, and publishes whether it guards.
func (w GuardWorld) keepGuard(n *v1alpha1.Node) *Action {
	pod, budget := w.Pods[guardLabel(n.Name)], w.Budgets[guardLabel(n.Name)]
	if a := w.publish(n); a != nil {
		return a
	}
	needs := w.Live(n.Name) && meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NodeNeedsGuard)
	switch {
	case pod != nil && pod.DeletionTimestamp == nil && (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded):
		return &Action{Name: DeleteGuard, Verb: Delete, Object: pod}
	case needs && pod == nil:
		return &Action{Name: CreateGuard, Verb: Create, Object: w.newGuard(n)}
	case needs && budget == nil:
		return &Action{Name: CreateBudget, Verb: Create, Object: w.newBudget(n)}
	}
	return nil
}

// openGuard deletes the budget of a cordoned node when the node may go: its lease is free, and no object places work on it. First it
// publishes that the node is not guarded any more: a node that comes back takes no work before it has a guard again. Nothing is made on a
// cordoned node.
func (w GuardWorld) openGuard(n *v1alpha1.Node) *Action {
	budget := w.Budgets[guardLabel(n.Name)]
	if !w.MayGo(n.Name) {
		return w.publish(n)
	}
	if guarded(n) {
		return mark(n, false, "Opened", "The node was drained, and its guard is open.")
	}
	if budget != nil && budget.DeletionTimestamp == nil {
		return &Action{Name: OpenGuard, Verb: Delete, Object: budget}
	}
	return nil
}

// MayGo reports whether a cordoned node may be taken away: its lease is free, and no object places work on it.
func (w GuardWorld) MayGo(node string) bool {
	placed, counted := w.Placed[node]
	return !w.Live(node) && counted && !placed
}

// Holds reports whether the guard of a cordoned node keeps it from being taken away.
func (w GuardWorld) Holds(node string) bool {
	return w.Core[node] != nil && cordon.Is(w.Core[node]) && w.Budgets[guardLabel(node)] != nil && !w.MayGo(node)
}

// publish brings the condition Guarded in line with the guard.
func (w GuardWorld) publish(n *v1alpha1.Node) *Action {
	stands, why := w.stands(n.Name)
	if stands == guarded(n) {
		return nil
	}
	if stands {
		return mark(n, true, "Guarded", "The guard runs and its budget is observed.")
	}
	return mark(n, false, "NotGuarded", why)
}

// stands reports whether the guard of a node runs there and its budget allows no eviction, and otherwise why not.
func (w GuardWorld) stands(node string) (bool, string) {
	pod, budget := w.Pods[guardLabel(node)], w.Budgets[guardLabel(node)]
	switch {
	case pod == nil || budget == nil:
		return false, "The node has no guard."
	case pod.Spec.NodeName != node || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning:
		return false, "The guard does not run."
	case budget.DeletionTimestamp != nil || budget.Status.ObservedGeneration < budget.Generation || budget.Status.CurrentHealthy < 1 || budget.Status.DisruptionsAllowed > 0:
		return false, "The budget of the guard is not observed yet."
	}
	return true, ""
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

// why says what keeps a cordoned node, in the words of `ebb explain`. It names no times, so that it changes only with the work. It says
// nothing while a drain is about to be created.
func (w GuardWorld) why(n *v1alpha1.Node, drains []*v1alpha1.Drain, works drain.Works) string {
	var latest *v1alpha1.Drain
	for _, d := range drains {
		if d.Spec.NodeName == n.Name && !d.Status.Phase.Final() && (latest == nil || d.Status.StartedAt != nil) {
			latest = d
		}
	}
	switch {
	case latest != nil:
	case w.drainComes(n):
		return ""
	case w.live() < 2:
		return fmt.Sprintf("Ebb holds node %s: it holds %s, and no other node can take that. Start another node.", n.Name, works.Listed(n.Status.Held))
	default:
		return fmt.Sprintf("Ebb holds node %s: it holds %s, and no drain of it is running. `ebb drain %s` moves the work away.", n.Name, works.Listed(n.Status.Held), n.Name)
	}
	return whyDrain(n, latest, works)
}

// drainComes reports whether a drain of a cordoned node will be created by itself.
func (w GuardWorld) drainComes(n *v1alpha1.Node) bool {
	return w.Settings.OnCordon != v1alpha1.HoldOnCordon && w.Live(n.Name) && w.live() > 1 && n.Annotations[CordonDrainAnnotation] == "" && len(v1alpha1.CordonOwners(n)) == 0
}

func whyDrain(n *v1alpha1.Node, latest *v1alpha1.Drain, works drain.Works) string {
	phase := cmp.Or(latest.Status.Phase, v1alpha1.DrainPending)
	text := fmt.Sprintf("Ebb holds node %s: drain %s is %s", n.Name, latest.Name, phase)
	if latest.Status.StartedAt == nil {
		if c := meta.FindStatusCondition(latest.Status.Conditions, v1alpha1.DrainFinished); c != nil {
			return text + ". " + c.Message
		}
		return "" // it is about to be decided
	}
	sentences := []string{text + ", " + works.Summary(latest.Status.Remaining) + "."}
	for _, g := range drain.Groups(latest.Status.Blockers) {
		sentences = append(sentences, strings.Join(append([]string{g.String()}, g.Advice()...), ": ")+".")
	}
	return strings.Join(sentences, " ")
}

// noticeAfter is how often an event may say what holds a node.
const noticeAfter = 10 * time.Second
