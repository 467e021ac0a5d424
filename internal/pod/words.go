package pod

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

const (
	// maxBlockers bounds the blockers in a status, and maxNamed the names of evicted pods.
	maxBlockers = 50
	maxNamed    = 500
	// allowsNone is where a sentence gets the time for which a budget has allowed nothing.
	allowsNone = "0 disruptions allowed"
)

// Blockers returns what keeps the pods of a plan, sorted: one for each budget, one for all pods that terminate in order, and one for each
// other pod. Each has the time when it was first seen.
func Blockers(s Snapshot, plan Plan, old []v1alpha1.PodBlocker) []v1alpha1.PodBlocker {
	var list []v1alpha1.PodBlocker
	for _, a := range plan.Actions {
		if a.Verb != Wait {
			continue
		}
		b := blockerOf(s, a)
		if at := slices.IndexFunc(list, func(o v1alpha1.PodBlocker) bool { return same(o, b) }); at >= 0 {
			list[at].Pods++
			continue
		}
		list = append(list, b)
	}
	for i := range list {
		list[i].Message = counted(list[i])
		if !list[i].Since.IsZero() {
			continue // since its budget says so
		}
		list[i].Since = metav1.NewTime(s.Now.Truncate(time.Second))
		if at := slices.IndexFunc(old, func(o v1alpha1.PodBlocker) bool { return same(o, list[i]) }); at >= 0 {
			list[i].Since = old[at].Since
		}
	}
	slices.SortFunc(list, func(a, b v1alpha1.PodBlocker) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Reason, b.Reason))
	})
	return list[:min(len(list), maxBlockers)]
}

func same(a, b v1alpha1.PodBlocker) bool {
	return a.Kind == b.Kind && a.Name == b.Name && a.Reason == b.Reason
}

// blockerOf says what one action waits for.
func blockerOf(s Snapshot, a Action) v1alpha1.PodBlocker {
	b := v1alpha1.PodBlocker{Kind: "Pod", Name: a.Pod.Key(), Reason: a.Reason, Pods: 1}
	if a.Budget != nil {
		return budgetBlocker(a)
	}
	name := "pod " + a.Pod.Key()
	switch a.Reason {
	case WaitsEnd:
		b.Kind, b.Name = "Node", s.Node
	case WaitsNodeGone:
		b.Kind, b.Name = "Node", s.Node
		b.Remedy = "Kubernetes deletes the pods of a deleted node within about a minute"
	case WaitsStuck:
		b.Message = fmt.Sprintf("%s is still terminating after its grace period: %s", name, a.Detail)
		b.Remedy = fmt.Sprintf("check the pod; the drain gives up waiting for it %s after its grace period", duration.HumanDuration(s.TerminatingFor))
	case WaitsCompletion:
		b.Message = fmt.Sprintf("%s runs until it ends by itself: namespace %s has the mode AllowCompletion", name, a.Pod.Namespace)
		b.Remedy = "wait for it, delete it yourself, or give the namespace another mode (docs/pods.md)"
	case WaitsTwoBudgets:
		b.Message = fmt.Sprintf("%s has several budgets, %s, and the Eviction API supports one", name, a.Detail)
		b.Remedy = "change the selectors so that one budget selects the pod" + deleted(a)
	case WaitsCameBack:
		b.Message = fmt.Sprintf("%s came back to the node after it was cordoned, because it tolerates the cordon", name)
		b.Remedy = "remove its toleration of " + cordonTaint.Key + ", or scale it down"
		if a.Pod.Owner != "" {
			b.Remedy = fmt.Sprintf("remove the toleration of %s from %s, or scale that down", cordonTaint.Key, a.Pod.Owner)
		}
	case WaitsFailed:
		b.Message = fmt.Sprintf("the API refused to evict %s: %s", name, a.Detail)
		b.Remedy = "the coordinator tries again"
	}
	return b
}

// counted is the message of a blocker of any number of pods.
func counted(b v1alpha1.PodBlocker) string {
	switch b.Reason {
	case WaitsEnd:
		return pods(b.Pods) + " " + are(int(b.Pods)) + " terminating"
	case WaitsNodeGone:
		return fmt.Sprintf("node %s was deleted, and %s of it %s still there", b.Name, pods(b.Pods), are(int(b.Pods)))
	}
	return b.Message
}

func pods(n int64) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// budgetBlocker says why a budget allows nothing.
func budgetBlocker(a Action) v1alpha1.PodBlocker {
	budget := a.Budget
	b := v1alpha1.PodBlocker{Kind: "PodDisruptionBudget", Name: budget.Key(), Reason: a.Reason, Pods: 1}
	needs := fmt.Sprintf("budget %s needs %d of %d pods", budget.Key(), budget.Desired, budget.Expected)
	switch {
	case a.Reason == WaitsTurn:
		b.Message = fmt.Sprintf("%s; %d allowed at once", needs, budget.Allowed)
		b.Remedy = "the next pod is evicted when its status changes" + deleted(a)
		return b
	case a.Reason == WaitsBudgetStatus && budget.Trouble != "":
		b.Message = fmt.Sprintf("Kubernetes cannot count the pods of budget %s, which allows no eviction until then: %s", budget.Key(), strings.TrimSuffix(budget.Trouble, "."))
		b.Remedy = "give its pods a controller with a scale, set minAvailable to a number, or delete the budget" + deleted(a)
		return b
	case a.Reason == WaitsBudgetStatus:
		b.Message = fmt.Sprintf("budget %s was changed, and Kubernetes has not updated its status yet", budget.Key())
		b.Remedy = "if this lasts, check kube-controller-manager" + deleted(a)
		return b
	case a.Reason == WaitsNever && budget.omits(a.Pod):
		b.Message = fmt.Sprintf("budget %s counts only pods that have a controller, and these have none, so it can never allow an eviction", budget.Key())
		b.Remedy = "set minAvailable to a number, or delete the budget" + deleted(a)
		return b
	case a.Reason == WaitsNever:
		b.Message = needs + " and can never allow an eviction"
		b.Remedy = "set maxUnavailable to 1 or more, add a replica, or delete the budget" + deleted(a)
	default:
		b.Message = needs + "; " + allowsNone
		b.Remedy = "check its pods, or change the budget" + deleted(a)
	}
	if a.Detail != "" {
		b.Message += "; " + a.Detail
	}
	if !budget.Since.IsZero() {
		b.Since = metav1.NewTime(budget.Since)
	}
	return b
}

// deleted says when a pod is deleted in spite of what it waits for.
func deleted(a Action) string {
	if a.Deadline.IsZero() {
		return ""
	}
	return "; at " + a.Deadline.UTC().Format(time.RFC3339) + " it is deleted anyway (DeleteAfterTimeout)"
}

// notBegun says that a drain waits for others that begin.
func notBegun(node string, since time.Time) v1alpha1.PodBlocker {
	return v1alpha1.PodBlocker{
		Kind: "Node", Name: node, Reason: WaitsBegin, Since: metav1.NewTime(since.Truncate(time.Second)),
		Message: fmt.Sprintf("the drain has not begun: %d drains begin at a time, and others were requested before it", beginAtOnce),
		Remedy:  "wait for its turn",
	}
}

// notCordoned says that the node could not be cordoned, before which nothing is evicted.
func notCordoned(node string, err error) v1alpha1.PodBlocker {
	return v1alpha1.PodBlocker{
		Kind: "Node", Name: node, Reason: WaitsCordon, Since: metav1.NewTime(time.Now().Truncate(time.Second)),
		Message: fmt.Sprintf("the node could not be cordoned: %v", err),
		Remedy:  "the coordinator tries again; check admission webhooks and its permission to update core Nodes",
	}
}

// notListed says why the pods of a node, or their budgets, are not known yet.
func notListed(node, what string, t trouble) v1alpha1.PodBlocker {
	b := v1alpha1.PodBlocker{Kind: "Node", Name: node, Reason: WaitsList, Since: metav1.NewTime(t.since.Truncate(time.Second))}
	subject := "the pods of node " + node
	if what == "budgets" {
		subject = "the disruption budgets of the cluster"
	}
	switch {
	case t.err == nil:
		b.Message = subject + " are not listed yet"
		b.Remedy = "check whether the API server is overloaded"
	case apierrors.IsForbidden(t.err) || apierrors.IsUnauthorized(t.err):
		b.Message = fmt.Sprintf("%s are not listed yet: %v", subject, t.err)
		b.Remedy = "grant the coordinator the permission to list and watch pods and poddisruptionbudgets in all namespaces; `ebb manifests` prints the ClusterRole"
	default:
		b.Message = fmt.Sprintf("%s are not listed yet: %v", subject, t.err)
		b.Remedy = "the coordinator tries again; check the API server"
	}
	return b
}

// Sentence is a blocker for people, with the time since when a budget has allowed nothing.
func Sentence(b v1alpha1.PodBlocker, now time.Time) string {
	text := b.Message
	if b.Reason == WaitsBudget {
		text = strings.Replace(text, allowsNone, allowsNone+" since "+duration.HumanDuration(now.Sub(b.Since.Time)), 1)
	}
	if b.Remedy != "" {
		text += ": " + b.Remedy
	}
	return text
}

// drainBlockers are the same blockers in the form in which drains have them.
func drainBlockers(list []v1alpha1.PodBlocker) []v1alpha1.Blocker {
	var out []v1alpha1.Blocker
	for _, b := range list {
		remedy := b.Message
		if b.Remedy != "" {
			remedy += ": " + b.Remedy
		}
		out = append(out, v1alpha1.Blocker{Kind: b.Kind, Name: b.Name, Reason: b.Reason, Remedy: remedy, Since: b.Since})
	}
	return out
}

// Moved says what was done with pods: "3 pods were evicted (a/x, a/y, b/z)".
func Moved(s *v1alpha1.PodsStatus) string {
	if s == nil || s.Evicted+s.Deleted == 0 {
		return "No pod was evicted."
	}
	return fmt.Sprintf("%s %s evicted before: %s.", pods(s.Evicted+s.Deleted), was(s.Evicted+s.Deleted), some(slices.Sorted(slices.Values(s.EvictedPods))))
}

func was(n int64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// stayed says which pods stay.
func stayed(s *v1alpha1.PodsStatus) string {
	words := map[string]string{
		StaysSystem: "of system namespaces", StaysEbb: "of Ebb", StaysDaemonSet: "of DaemonSets", StaysStatic: "static", StaysFinished: "finished",
		StaysStuck: "that do not terminate",
	}
	var parts []string
	for _, reason := range []string{StaysDaemonSet, StaysStatic, StaysFinished, StaysSystem, StaysEbb, StaysStuck} {
		if n := s.Staying[reason]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, words[reason]))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "; staying: " + strings.Join(parts, ", ")
}

// Progress is the state of the pods in one line, without times: "3 of 15 pods left, 2 terminating; 12 evicted; staying: 2 of DaemonSets".
func Progress(s *v1alpha1.PodsStatus) string {
	if s == nil || s.StartedAt == nil {
		return "pods not listed yet"
	}
	text := fmt.Sprintf("%d of %s left", s.Remaining, pods(max(s.Initial, s.Remaining)))
	if s.Terminating > 0 {
		text += fmt.Sprintf(", %d terminating", s.Terminating)
	}
	if s.Evicted > 0 {
		text += fmt.Sprintf("; %d evicted", s.Evicted)
	}
	if s.Deleted > 0 {
		text += fmt.Sprintf("; %d deleted after the timeout of DeleteAfterTimeout", s.Deleted)
	}
	return text + stayed(s)
}

// ExplainWaiting describes the drains of a core Node about whose pods nothing is recorded yet.
func ExplainWaiting(drains []*v1alpha1.Drain, node string, now time.Time) string {
	var b strings.Builder
	for _, d := range drains {
		if d.Spec.NodeName == node && d.WantsPods() && d.Status.Pods == nil && !d.Status.Phase.Final() {
			fmt.Fprintf(&b, "Pods of drain %s: %s, since %s. The coordinator lists them when the node is cordoned; if this lasts, `ebb status` shows whether there is a coordinator.\n",
				d.Name, Progress(nil), duration.HumanDuration(now.Sub(d.CreationTimestamp.Time)))
		}
	}
	return b.String()
}

// Explain describes in sentences how far the pods of drains of a node are, for drains that have not ended and the last one that has.
func Explain(drains []*v1alpha1.Drain, node string, now time.Time) string {
	var b strings.Builder
	for _, d := range drains {
		if d.Spec.NodeName != node || d.Status.Pods == nil || d.Status.Phase.Final() {
			continue
		}
		fmt.Fprintf(&b, "Pods of drain %s: %s.\n", d.Name, Progress(d.Status.Pods))
		for _, blocker := range d.Status.Pods.Blockers {
			fmt.Fprintf(&b, "  %s.\n", strings.TrimSuffix(Sentence(blocker, now), "."))
		}
	}
	return b.String()
}
