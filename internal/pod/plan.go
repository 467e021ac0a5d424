package pod

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/lease"
)

// Snapshot is the input of a decision about the pods of one node, read at one time.
type Snapshot struct {
	// Now is the coordinator's clock, which counts how long ago something was tried.
	Now time.Time
	// Server is what the API server's clock shows at least; zero if that is unknown. Deadlines and ends of grace periods are times of that
	// clock, and none of them has passed while it is unknown.
	Server time.Time
	// Node that drains, and whether its core Node was deleted.
	Node     string
	NodeGone bool
	// Pods of the node, and the budgets of their namespaces.
	Pods    []*Pod
	Budgets []*Budget
	// Unready are pods that are not Ready, by the budget that they belong to. They explain why it refuses.
	Unready map[string][]string
	// Config has the modes.
	Config *drainconfig.Config
	// Requested is when the drain was requested.
	Requested time.Time
	// TerminatingFor is how long after its grace a pod that does not end is waited for.
	TerminatingFor time.Duration
	// Attempts are what was tried already, by the UID of the pod.
	Attempts map[types.UID]Attempt
	// Arrived are pods that came after the node was cordoned and its pods were listed.
	Arrived map[types.UID]bool
}

// time is the API server's clock if it is known, for times that are recorded.
func (s Snapshot) time() time.Time {
	if s.Server.IsZero() {
		return s.Now
	}
	return s.Server
}

// reached reports whether a time of the API server's clock has come.
func (s Snapshot) reached(at time.Time) bool { return !s.Server.IsZero() && !s.Server.Before(at) }

// Attempt is one request that was sent for a pod.
type Attempt struct {
	// Accepted by the API, or under way: the pod is terminating, although the watch may not show it yet.
	Accepted bool
	// Budget is the version of the budget that was known when it was sent. One that a budget refused is repeated when the version changes.
	Budget string
	// Refused by a budget.
	Refused bool
	// Failed is why it failed otherwise, and Again when it is repeated; also if it was accepted and the pod does not terminate.
	Failed string
	Again  time.Time
}

// Verb is what is done with a pod.
type Verb string

// The verbs.
const (
	// Evict it through the Eviction API, which respects budgets.
	Evict Verb = "evict"
	// Delete it past budgets, with its own grace.
	Delete Verb = "delete"
	// Wait for something; the Reason names it.
	Wait Verb = "wait"
	// Stay: it does not have to leave.
	Stay Verb = "stay"
)

// Reasons why a pod stays.
const (
	StaysSystem    = "SystemNamespace"
	StaysEbb       = "Ebb"
	StaysDaemonSet = "DaemonSet"
	StaysStatic    = "Static"
	StaysFinished  = "Finished"
	StaysStuck     = "TerminatingForLong"
)

// Reasons of waits.
const (
	// WaitsEnd: the pod is terminating, within its grace.
	WaitsEnd = "PodsTerminating"
	// WaitsStuck: the grace of a terminating pod is over, and it is still there.
	WaitsStuck = "StillTerminating"
	// WaitsCompletion: its namespace has the mode AllowCompletion.
	WaitsCompletion = "RunsToCompletion"
	// WaitsBudget: its budget allows no disruption now, and WaitsTurn: no more of them at once.
	WaitsBudget = "BudgetAllowsNone"
	WaitsTurn   = "BudgetAllowsFew"
	// WaitsNever: its budget can never allow one.
	WaitsNever = "BudgetNeverAllows"
	// WaitsTwoBudgets: more than one budget selects it, which the Eviction API does not support.
	WaitsTwoBudgets = "SeveralBudgets"
	// WaitsBudgetStatus: the controller of budgets has not counted yet, or cannot.
	WaitsBudgetStatus = "BudgetNotCounted"
	// WaitsCameBack: it came after the cordon, because it tolerates it.
	WaitsCameBack = "CameBack"
	// WaitsFailed: the API refused for another reason.
	WaitsFailed = "EvictionFailed"
	// WaitsList: the pods or their budgets are not listed yet.
	WaitsList = "PodsNotListed"
	// WaitsCordon: the API does not let the node be cordoned.
	WaitsCordon = "CordonRefused"
	// WaitsBegin: many drains were requested at once, and this one is not among the first that begin.
	WaitsBegin = "DrainsBeginning"
	// WaitsWork: the pods have left, and work of Ebb is left on a node on which no process of Ebb ran.
	WaitsWork = "WorkOfEbb"
	// WaitsNodeGone: the node was deleted, and Kubernetes deletes its pods.
	WaitsNodeGone = "NodeDeleted"
)

// Action is what is done with one pod.
type Action struct {
	Verb Verb
	Pod  *Pod
	// Reason of a wait or a stay, and the budget that a wait or an eviction is about.
	Reason string
	Budget *Budget
	// Detail is more about a wait, for people.
	Detail string
	// Grace in seconds, of a deletion.
	Grace int64
	// Deadline is when the pod is deleted past budgets; zero for never.
	Deadline time.Time
}

// Plan is what to do with the pods of a node.
type Plan struct {
	// Actions, one for each pod: first those whose mode is Immediate, then DeleteAfterTimeout, then AllowCompletion, each by name.
	Actions []Action
	// Again is when to decide again if nothing changes; zero for never.
	Again time.Time
}

// Remaining is how many pods have to leave still.
func (p Plan) Remaining() int64 {
	n := int64(0)
	for _, a := range p.Actions {
		if a.Verb != Stay {
			n++
		}
	}
	return n
}

// lookAgain is when a decision is repeated that needs the API server's clock.
const lookAgain = time.Second

// order of the modes.
var order = map[drainconfig.Mode]int{drainconfig.Immediate: 0, drainconfig.DeleteAfterTimeout: 1, drainconfig.AllowCompletion: 2}

// Evaluate decides about every pod of a node. It does not change s.
func Evaluate(s Snapshot) Plan {
	e := &evaluation{Snapshot: s, used: map[string]int32{}}
	for _, p := range s.Pods {
		if a := s.Attempts[p.UID]; a.Accepted && p.Deleted.IsZero() {
			for _, b := range e.budgets(p) {
				if b.Version == a.Budget {
					e.used[b.Key()]++ // its status does not count this one yet
				}
			}
		}
	}
	pods := slices.Clone(s.Pods)
	rank := func(p *Pod) int {
		mode, _ := s.Config.ModeOf(p.Namespace)
		return order[mode]
	}
	slices.SortFunc(pods, func(a, b *Pod) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Key(), b.Key())) })
	for _, p := range pods {
		a := e.decide(p)
		a.Pod = p
		e.plan.Actions = append(e.plan.Actions, a)
	}
	return e.plan
}

// evaluation is one decision in progress.
type evaluation struct {
	Snapshot
	used map[string]int32 // disruptions of a budget that this plan takes, or that its status does not show yet
	plan Plan
}

// again asks for another decision at a time.
func (e *evaluation) again(at time.Time) {
	if e.plan.Again.IsZero() || at.Before(e.plan.Again) {
		e.plan.Again = at
	}
}

// againAt asks for another decision at a time of the API server's clock. While that is unknown, an answer of the API server makes it known.
func (e *evaluation) againAt(at time.Time) {
	if e.Server.IsZero() {
		e.again(e.Now.Add(lookAgain))
		return
	}
	e.again(e.Now.Add(at.Sub(e.Server)))
}

func (e *evaluation) budgets(p *Pod) []*Budget {
	var list []*Budget
	for _, b := range e.Budgets {
		if b.matches(p) {
			list = append(list, b)
		}
	}
	return list
}

// stays returns why a pod does not have to leave, or nothing.
func (e *evaluation) stays(p *Pod) string {
	switch {
	case e.Config.IsSystem(p.Namespace):
		return StaysSystem
	case p.Namespace == lease.Namespace:
		return StaysEbb
	case p.DaemonSet:
		return StaysDaemonSet
	case p.Static:
		return StaysStatic
	case p.Phase == corev1.PodSucceeded || p.Phase == corev1.PodFailed:
		return StaysFinished
	case !p.Deleted.IsZero() && e.reached(p.Deleted.Add(e.TerminatingFor)):
		return StaysStuck
	}
	return ""
}

// decide decides about one pod.
func (e *evaluation) decide(p *Pod) Action {
	if why := e.stays(p); why != "" {
		return Action{Verb: Stay, Reason: why}
	}
	mode, _ := e.Config.ModeOf(p.Namespace)
	attempt := e.Attempts[p.UID]
	switch {
	case !p.Deleted.IsZero():
		return e.terminating(p)
	case e.NodeGone:
		return Action{Verb: Wait, Reason: WaitsNodeGone}
	case attempt.Accepted && (attempt.Again.IsZero() || e.Now.Before(attempt.Again)):
		if !attempt.Again.IsZero() {
			e.again(attempt.Again)
		}
		return Action{Verb: Wait, Reason: WaitsEnd}
	case mode == drainconfig.AllowCompletion:
		return Action{Verb: Wait, Reason: WaitsCompletion}
	case e.Arrived[p.UID] && p.Tolerates:
		return Action{Verb: Wait, Reason: WaitsCameBack}
	case attempt.Failed != "" && e.Now.Before(attempt.Again):
		e.again(attempt.Again)
		return Action{Verb: Wait, Reason: WaitsFailed, Detail: attempt.Failed}
	}
	if mode != drainconfig.DeleteAfterTimeout {
		return e.evict(p)
	}
	deadline := e.Requested.Add(e.Config.DeleteAfterTimeout)
	if e.reached(deadline) {
		return Action{Verb: Delete, Grace: max(1, p.Grace), Deadline: deadline}
	}
	a := e.evict(p)
	a.Deadline = deadline
	if a.Verb == Wait {
		e.againAt(deadline)
	}
	return a
}

// terminating waits for a pod that somebody deleted.
func (e *evaluation) terminating(p *Pod) Action {
	if !e.reached(p.Deleted) {
		e.againAt(p.Deleted)
		return Action{Verb: Wait, Reason: WaitsEnd}
	}
	e.againAt(p.Deleted.Add(e.TerminatingFor))
	detail := "its kubelet has not removed it"
	if len(p.Finalizers) > 0 {
		detail = "finalizers keep it: " + strings.Join(slices.Sorted(slices.Values(p.Finalizers)), ", ")
	}
	if e.NodeGone && len(p.Finalizers) == 0 {
		return Action{Verb: Wait, Reason: WaitsNodeGone}
	}
	return Action{Verb: Wait, Reason: WaitsStuck, Detail: detail}
}

// evict evicts a pod if its budget allows it. This repeats what the Eviction API decides, so that it is asked only if it may accept.
func (e *evaluation) evict(p *Pod) Action {
	if p.Phase == corev1.PodPending {
		return Action{Verb: Evict} // budgets count running pods
	}
	budgets := e.budgets(p)
	switch len(budgets) {
	case 0:
		return Action{Verb: Evict}
	case 1:
		return e.within(p, budgets[0])
	}
	var names []string
	for _, b := range budgets {
		names = append(names, b.Key())
	}
	slices.Sort(names)
	return Action{Verb: Wait, Reason: WaitsTwoBudgets, Detail: strings.Join(names, " and ")}
}

// within evicts a pod within its budget.
func (e *evaluation) within(p *Pod, b *Budget) Action {
	free := !p.Ready && (b.AlwaysUnready || b.Observed && b.Desired > 0 && b.Healthy >= b.Desired)
	wait := func(reason string) Action {
		a := Action{Verb: Wait, Reason: reason, Budget: b}
		if unready := e.Unready[b.Key()]; len(unready) > 0 {
			a.Detail = some(unready) + " " + are(len(unready)) + " not Ready"
		}
		return a
	}
	attempt := e.Attempts[p.UID]
	switch {
	case attempt.Refused && attempt.Budget == b.Version && (!free || e.Now.Before(attempt.Again)):
		// It was refused by what the watch does not show yet, or by what it shows: the next version decides. A pod that may go whatever the
		// budget says was refused because it changed meanwhile, and no version follows from that.
		if free {
			e.again(attempt.Again)
		}
	case free:
		return Action{Verb: Evict, Budget: b}
	case b.Observed && b.Allowed > e.used[b.Key()]:
		e.used[b.Key()]++
		return Action{Verb: Evict, Budget: b}
	}
	switch {
	case b.Allowed > 0 && b.Observed:
		return wait(WaitsTurn)
	case b.Trouble != "" && !b.Never:
		return wait(WaitsBudgetStatus)
	case b.omits(p) || e.never(b):
		return wait(WaitsNever)
	case !b.Observed:
		return wait(WaitsBudgetStatus)
	}
	return wait(WaitsBudget)
}

// replacedWithin is how long a controller may take to make a pod in place of one that has gone.
const replacedWithin = 10 * time.Second

// never reports whether a budget can never allow the eviction of a healthy pod: it needs all pods that there are. One that counts the pods that
// exist seems to, for the moment in which one that was evicted has gone and the next is not made.
func (e *evaluation) never(b *Budget) bool {
	switch {
	case b.Never:
		return true
	case !b.Observed || b.Expected == 0 || b.Desired < b.Expected:
		return false
	case !b.Counts || b.Since.IsZero():
		return true
	}
	settled := b.Since.Add(replacedWithin)
	if !e.reached(settled) {
		e.againAt(settled)
		return false
	}
	return true
}

// are is the verb for one or several.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// maxNames is how many names a message has.
const maxNames = 3

// some names the first few.
func some(names []string) string {
	if len(names) <= maxNames+1 { // "and 1 more" is no shorter than the name
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
}
