package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
)

// Action is what a step does.
type Action string

// The actions. Each is one write, except those about custom resources and Drains, which create or delete one and then record that.
const (
	// ActionSkip records that nothing is done about an event.
	ActionSkip Action = "skip"
	// ActionWait records what an event waits for.
	ActionWait Action = "wait"
	// ActionHold keeps an event from being deleted before its effects are undone.
	ActionHold Action = "hold"
	// ActionQuarantine cordons a node, or adds owners to its cordon.
	ActionQuarantine Action = "quarantine"
	// ActionAdmit records that the node is quarantined and which drain the event belongs to.
	ActionAdmit Action = "admit"
	// ActionSnapshot lists the pods of the node, and records them with the name of the custom resource.
	ActionSnapshot Action = "snapshot"
	// ActionResign lets another node become the coordinator.
	ActionResign Action = "resign"
	// ActionCreateCR creates the custom resource and records its UID.
	ActionCreateCR Action = "create-cr"
	// ActionWriteStatus writes the template's status to a custom resource that was created without it.
	ActionWriteStatus Action = "write-status"
	// ActionMarkAlreadyDrained records that the controller of the custom resource has drained the node.
	ActionMarkAlreadyDrained Action = "mark-already-drained"
	// ActionDrainFailed records that the custom drain has failed.
	ActionDrainFailed Action = "drain-failed"
	// ActionEndCR records that a custom resource is lost or cancelled.
	ActionEndCR Action = "end-cr"
	// ActionDeleteCR deletes the custom resource and records that.
	ActionDeleteCR Action = "delete-cr"
	// ActionNameDrain records the name of the Drain that is created next, or that none is needed.
	ActionNameDrain Action = "name-drain"
	// ActionStartDrain creates Ebb's own Drain, which moves no pods, and records its UID.
	ActionStartDrain Action = "start-drain"
	// ActionEvictImmediate, ActionEvictWithTimeout and ActionCheckCompletion create the Drain that moves the pods of the node as well, and record its
	// UID. They are named after the most urgent mode that is configured: Immediate, DeleteAfterTimeout or AllowCompletion. The Drain looks
	// up the mode of each pod.
	ActionEvictImmediate   Action = "evict-immediate"
	ActionEvictWithTimeout Action = "evict-with-timeout"
	ActionCheckCompletion  Action = "check-completion"
	// ActionEndDrain records how Ebb's own Drain ended.
	ActionEndDrain Action = "end-drain"
	// ActionCancelDrain cancels Ebb's own Drain.
	ActionCancelDrain Action = "cancel-drain"
	// ActionFinish records the end of a drain: Succeeded, Failed or Cancelled.
	ActionFinish Action = "finish"
	// ActionFollow records for an event what became of the drain that it joined.
	ActionFollow Action = "follow"
	// ActionRetry begins the next attempt.
	ActionRetry Action = "retry"
	// ActionLift removes owners from a cordon, and the cordon with the last one.
	ActionLift Action = "lift"
	// ActionClose records that an event no longer keeps its node in quarantine.
	ActionClose Action = "close"
	// ActionRelease lets an event be deleted.
	ActionRelease Action = "release"
	// ActionManual creates the event of a drain that a person requested.
	ActionManual Action = "manual"
	// ActionPrune deletes an old event.
	ActionPrune Action = "prune"
)

// StartsDrain reports whether an action creates a Drain.
func (a Action) StartsDrain() bool {
	return slices.Contains([]Action{ActionStartDrain, ActionEvictImmediate, ActionEvictWithTimeout, ActionCheckCompletion}, a)
}

// records reports whether an action only records something or deletes what has no effect any more: nothing waits for it.
func (a Action) records() bool {
	return slices.Contains([]Action{ActionWait, ActionSkip, ActionRelease, ActionPrune}, a)
}

// evictAction is the action that starts a Drain that moves pods.
func evictAction(c *drainconfig.Config) Action {
	has := func(m drainconfig.Mode) bool {
		return slices.ContainsFunc(c.UserNamespaces, func(u drainconfig.UserNamespace) bool { return u.Mode == m })
	}
	switch {
	case has(drainconfig.Immediate):
		return ActionEvictImmediate
	case has(drainconfig.DeleteAfterTimeout):
		return ActionEvictWithTimeout
	}
	return ActionCheckCompletion
}

// Reasons of the condition Handled. The first ones are ends, the others waits.
const (
	ReasonHealthy    = "Healthy"
	ReasonExpired    = "Expired"
	ReasonSkipped    = "Skipped"
	ReasonResolved   = "Resolved"
	ReasonUncordoned = "Uncordoned"
	ReasonTaken      = "CordonTaken"
	ReasonNodeGone   = "NodeDeleted"
	ReasonNoDrain    = "Quarantined"
	ReasonDrained    = "Drained"
	ReasonFailed     = "DrainFailed"
	ReasonCancelled  = "DrainCancelled"

	WaitNode        = "NodeNotFound"
	WaitLimit       = "QuarantineLimit"
	WaitProblems    = "TooManyProblems"
	WaitCordon      = "CordonRefused"
	WaitLift        = "UncordonRefused"
	WaitStart       = "Starting"
	WaitResource    = "CustomResourceInProgress"
	WaitBusy        = "OtherCustomResource"
	WaitDisabled    = "CustomDrainChanged"
	WaitDefinition  = "DefinitionMissing"
	WaitLookup      = "DefinitionUnknown"
	WaitUnreadable  = "ResourceUnreadable"
	WaitUndeleted   = "ResourceNotDeleted"
	WaitForbidden   = "Forbidden"
	WaitNamespace   = "NamespaceMissing"
	WaitRefused     = "ResourceRefused"
	WaitUncreated   = "ResourceNotCreated"
	WaitStatus      = "ResourceStatusNotWritten"
	WaitTemplate    = "TemplateFailed"
	WaitPods        = "PodsNotListed"
	WaitSingle      = "SingleNode"
	WaitNoSuccessor = "NoSuccessor"
	WaitNotRunning  = "NodeNotRunning"
	WaitNoDrain     = "DrainNotCreated"
	WaitDrain       = "Draining"
	WaitQueue       = "DrainQueued"
	WaitStopping    = "DrainStopping"
	WaitCancel      = "CancellingDrain"
	WaitJoined      = "JoinedDrain"
	WaitOthers      = "OtherChecksUnhealthy"
)

// maxOwners is for how many events a node is cordoned at once. Their UIDs are in one annotation, and annotations of 256 KiB are all that an object
// may have.
const maxOwners = 500

// messageUncordoned is what events report whose quarantine a person ended.
const messageUncordoned = "A person uncordoned the node."

// MaxAttempts is how many custom resources an event may have.
const MaxAttempts = 5

// keepHandled is for how long an event is kept after it was created and after the time that its detector gave it, at least.
const keepHandled = 7 * 24 * time.Hour

// Step is one action.
type Step struct {
	// Action to take.
	Action Action
	// Event that it is about, as it is to be written. Its resourceVersion is what the decision rests on.
	Event *v1alpha1.HealthEvent
	// Node to write, for ActionQuarantine and ActionLift, and as it was when that was decided.
	Node, Before *v1alpha1.Node
	// Drain to create, for an action that starts one, or to write, for ActionCancelDrain.
	Drain *v1alpha1.Drain
	// Others are the other events for which ActionQuarantine cordons the node, or whose quarantine ActionLift ends.
	Others []*v1alpha1.HealthEvent
	// Repeats says that another event of the node says the same to people.
	Repeats bool
}

// Next returns what to do now, at most one step for each event and each node. Steps of different nodes are independent. It does not
// change w.
func Next(w World) []Step {
	byNode := map[string][]*v1alpha1.HealthEvent{}
	// Nodes by the age of their oldest problem that waits, so that whoever came first gets the room that there is, and then the others.
	var waiting, order []string
	waits := map[string]bool{}
	for _, e := range inOrder(w.Events) {
		name := e.Spec.NodeName
		if byNode[name] == nil {
			order = append(order, name)
		}
		if !waits[name] && !e.Spec.IsHealthy && !handled(e) {
			waits[name] = true
			waiting = append(waiting, name)
		}
		byNode[name] = append(byNode[name], e)
	}
	order = append(waiting, slices.DeleteFunc(order, func(name string) bool { return waits[name] })...)
	shared := &limits{room: w.room()}
	var steps []Step
	for _, name := range order {
		r := newRound(&w, name, byNode[name], shared)
		r.run()
		steps = append(steps, r.steps...)
	}
	steps = append(steps, w.manualEvents()...)
	return append(steps, w.excess(steps)...)
}

// limits are what the rounds of all nodes share.
type limits struct {
	room  int      // how many more nodes may be cordoned
	taken []string // nodes that are about to be cordoned
	named bool     // an event that waits for room names the nodes that are cordoned
}

// take gives room to a node.
func (l *limits) take(node string) {
	l.room--
	l.taken = append(l.taken, node)
}

// round decides about the events of one node.
type round struct {
	*World
	name   string
	node   *v1alpha1.Node
	events []*v1alpha1.HealthEvent
	edited map[string]*v1alpha1.HealthEvent // what this round writes, by UID
	shared *limits
	steps  []Step

	byUID   map[string]*v1alpha1.HealthEvent
	healthy map[check][]*v1alpha1.HealthEvent
	owners  map[string]bool // of the cordon
	led     *v1alpha1.HealthEvent
	looked  bool // led is up to date
}

func newRound(w *World, name string, events []*v1alpha1.HealthEvent, shared *limits) *round {
	r := &round{
		World: w, name: name, node: w.Nodes[name], events: events, shared: shared, edited: map[string]*v1alpha1.HealthEvent{},
		byUID: map[string]*v1alpha1.HealthEvent{}, healthy: healthyByCheck(events), owners: map[string]bool{},
	}
	for _, e := range events {
		r.byUID[string(e.UID)] = e
	}
	if r.node != nil {
		for _, uid := range v1alpha1.CordonOwners(r.node) {
			r.owners[uid] = true
		}
	}
	return r
}

// isResolved reports whether the problem of an event is over.
func (r *round) isResolved(e *v1alpha1.HealthEvent) bool {
	return r.resolved(e, r.healthy[checkOf(e)])
}

// now is an event as this round leaves it.
func (r *round) now(e *v1alpha1.HealthEvent) *v1alpha1.HealthEvent {
	if edited := r.edited[string(e.UID)]; edited != nil {
		return edited
	}
	return e
}

// busy reports whether this round already has a step for an event.
func (r *round) busy(e *v1alpha1.HealthEvent) bool { return r.edited[string(e.UID)] != nil }

// add adds a step about an event.
func (r *round) add(s *Step) {
	r.edited[string(s.Event.UID)], r.looked = s.Event, false
	r.steps = append(r.steps, *s)
}

// write adds a step that writes an event, unless nothing would change.
func (r *round) write(action Action, e *v1alpha1.HealthEvent, change func(*v1alpha1.HealthEvent)) {
	next := e.DeepCopy()
	change(next)
	if equality.Semantic.DeepEqual(next, e) {
		return
	}
	r.looked = r.looked && next.Status.Joined != nil // one that joined another leads nothing
	r.edited[string(e.UID)] = next
	r.steps = append(r.steps, Step{Action: action, Event: next})
}

func (r *round) run() {
	for _, e := range r.events {
		if !e.Spec.IsHealthy && !isManual(e) && e.Status.NodeQuarantined == "" && !handled(e) {
			r.judge(e)
		}
	}
	joining := r.quarantine()
	var open []*v1alpha1.HealthEvent
	for _, e := range r.events {
		if isOpen(r.now(e)) {
			open = append(open, e)
		}
	}
	lost := r.uncordoned(open)
	switch {
	case len(open) == 0:
	case joining && !r.node.Spec.Cordoned:
		// It is about to be cordoned for another event, which the API may refuse for long. Nothing is started on it before that.
		r.end(lost, v1alpha1.QuarantineCancelled, ReasonUncordoned, messageUncordoned)
	case joining && len(lost) == 0:
		r.progress(open) // nothing is lifted meanwhile: the quarantine is about to have another reason
	case !joining && r.allResolved(open):
		r.end(open, v1alpha1.UnQuarantined, ReasonResolved, "The problem is over.")
	case r.node == nil:
		r.end(open, v1alpha1.QuarantineCancelled, ReasonNodeGone, "The node was deleted.")
	case len(lost) > 0 && r.node.Spec.Cordoned && !r.ownedByAnother(lost):
		r.end(lost, v1alpha1.QuarantineCancelled, ReasonTaken, "Somebody else has taken the cordon of the node over: Ebb does not lift it any more.")
	case len(lost) > 0:
		r.end(lost, v1alpha1.QuarantineCancelled, ReasonUncordoned, messageUncordoned)
	default:
		r.progress(open)
	}
	for _, e := range r.events {
		if r.busy(e) {
			continue
		}
		if isManual(e) && !handled(e) {
			r.manual(e)
		}
		if e.Spec.IsHealthy && !handled(e) {
			r.judgeHealthy(e, open, joining)
		}
		r.tidy(e)
	}
}

// judge decides about a problem that has had no effect yet whether it has none at all.
func (r *round) judge(e *v1alpha1.HealthEvent) {
	end := func(reason, message string) {
		r.write(ActionSkip, e, func(e *v1alpha1.HealthEvent) { r.finish(e, reason, message) })
	}
	decision := r.Rules.Decide(e)
	switch {
	case r.owns(e):
		// The node was cordoned for it, which is recorded first.
	case r.expired(e):
		end(ReasonExpired, fmt.Sprintf("The event is older than %s; it is recorded and has no effect.", r.Config.Quarantine.Retention))
	case r.isResolved(e):
		r.write(ActionSkip, e, func(e *v1alpha1.HealthEvent) {
			e.Status.NodeQuarantined = v1alpha1.QuarantineCancelled
			e.Status.ClosedAt = micro(r.Now)
			r.evict(e, v1alpha1.EvictionCancelled, "The problem was over before the node was quarantined.")
			r.finish(e, ReasonResolved, "The problem was over before the node was quarantined.")
		})
	case !decision.Quarantine:
		end(ReasonSkipped, decision.Reason)
	case r.node == nil:
		r.wait(e, WaitNode, fmt.Sprintf("There is no node %s; the event has no effect until it joins.", r.name))
	}
}

// owns reports whether an event is an owner of the cordon of the node.
func (r *round) owns(e *v1alpha1.HealthEvent) bool {
	return r.node != nil && r.node.Spec.Cordoned && r.owners[string(e.UID)]
}

// quarantine cordons the node for the problems that ask for it, and admits those for which it is cordoned. It returns whether some are
// still on their way.
func (r *round) quarantine() (joining bool) {
	var waiting []*v1alpha1.HealthEvent
	full, waits := r.node != nil && !r.node.Spec.Cordoned && r.shared.room <= 0, false
	for _, e := range r.events {
		if e.Spec.IsHealthy || isManual(e) || handled(e) || e.Status.NodeQuarantined != "" || r.busy(e) || r.node == nil {
			continue
		}
		if !r.owns(e) && (r.isResolved(e) || !r.Rules.Decide(e).Quarantine) {
			continue
		}
		if full {
			r.waitForRoom(e, waits)
			waits = true
			continue
		}
		if !controllerutil.ContainsFinalizer(e, v1alpha1.HealthEventFinalizer) {
			r.write(ActionHold, e, func(e *v1alpha1.HealthEvent) { controllerutil.AddFinalizer(e, v1alpha1.HealthEventFinalizer) })
			joining = true
			continue
		}
		waiting = append(waiting, e)
	}
	if (joining || len(waiting) > 0) && !r.node.Spec.Cordoned {
		r.shared.take(r.name) // from the first step on, so that the events of nodes that will wait are written once
	}
	if len(waiting) == 0 {
		return joining
	}
	owners := v1alpha1.CordonOwners(r.node)
	if r.node.Spec.Cordoned && len(owners) == 0 {
		for _, e := range waiting {
			r.admit(e, v1alpha1.AlreadyQuarantined)
		}
		return true
	}
	if !r.node.Spec.Cordoned {
		owners = nil
	}
	var adds []*v1alpha1.HealthEvent
	for _, e := range waiting {
		switch {
		case owners != nil && r.owners[string(e.UID)]:
			r.admit(e, v1alpha1.Quarantined)
			joining = true
		case len(owners)+len(adds) >= maxOwners:
			r.wait(e, WaitProblems, fmt.Sprintf("Node %s is quarantined for %d other problems. The event joins them when some of those have ended.", r.name, maxOwners))
		default:
			adds = append(adds, e)
		}
	}
	if len(adds) > 0 {
		next := r.node.DeepCopy()
		next.Spec.Cordoned = true
		all := slices.Clone(owners)
		for _, e := range adds {
			all = append(all, string(e.UID))
		}
		v1alpha1.SetCordonOwners(next, all)
		r.steps = append(r.steps, Step{Action: ActionQuarantine, Event: adds[0], Others: adds[1:], Node: next, Before: r.node})
	}
	return joining || len(adds) > 0
}

// waitForRoom records that too many nodes are cordoned; repeats says that an event of the node waits for it already. The oldest of all names those
// nodes. What the others say does not depend on them, so that a change writes one event and not all that wait.
func (r *round) waitForRoom(e *v1alpha1.HealthEvent, repeats bool) {
	const remedy = "Uncordon one of them, or raise quarantine.maxShare in the file of --drain-config."
	message := fmt.Sprintf("At most %v%% of the nodes, or one, may be cordoned at once, and that many are; the oldest waiting event names them. %s", r.Config.Quarantine.MaxShare, remedy)
	if !r.shared.named {
		r.shared.named = true
		message = fmt.Sprintf("At most %d of %d nodes may be cordoned at once, and these are: %s. %s", r.limit(), len(r.Nodes), some(append(r.cordoned(), r.shared.taken...)), remedy)
	}
	before := len(r.steps)
	r.wait(e, WaitLimit, message)
	for i := range r.steps[before:] {
		r.steps[before+i].Repeats = repeats
	}
}

// some are the first of some names, and how many more there are.
func some(names []string) string {
	const most = 5
	slices.Sort(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// admit records that the node is quarantined for an event, and which drain the event belongs to.
func (r *round) admit(e *v1alpha1.HealthEvent, status v1alpha1.QuarantineStatus) {
	decision := r.Rules.Decide(e)
	leader := r.leader()
	r.write(ActionAdmit, e, func(e *v1alpha1.HealthEvent) {
		e.Status.NodeQuarantined, e.Status.QuarantinedAt = status, micro(r.Now)
		switch {
		case !decision.Drain:
			r.evict(e, v1alpha1.EvictionNotStarted, decision.Reason)
			r.finish(e, ReasonNoDrain, "The node is quarantined and is not drained. "+decision.Reason)
		case leader != nil:
			e.Status.Joined = &v1alpha1.EventReference{Name: leader.Name, UID: string(leader.UID)}
			r.follow(e, leader)
		default:
			r.lead(e)
			r.nameAtOnce(e)
		}
	})
}

// nameAtOnce names the Drain of an event with the write that admits it, if that is all that comes before it: the pods of a sick node wait for no
// write that could be saved.
func (r *round) nameAtOnce(e *v1alpha1.HealthEvent) {
	if r.Config.CustomDrain != nil || r.name == r.Leader {
		return
	}
	if t := r.nameDrain(e, 1); t.step != nil {
		e.Status.Drain = t.step.Event.Status.Drain
	}
}

// lead makes an event the one that a drain is made for.
func (r *round) lead(e *v1alpha1.HealthEvent) {
	e.Status.Joined = nil
	r.evict(e, v1alpha1.EvictionInProgress, "The node is being drained.")
	r.waitIn(e, WaitStart, "The drain of the node is starting.")
}

// leader is the event whose drain others of the node join: the one whose drain runs, or else the last that succeeded or failed.
func (r *round) leader() *v1alpha1.HealthEvent {
	if !r.looked {
		r.led, r.looked = r.findLeader(), true
	}
	return r.led
}

func (r *round) findLeader() *v1alpha1.HealthEvent {
	var found *v1alpha1.HealthEvent
	for _, e := range r.events {
		e = r.now(e)
		if !isOpen(e) || e.Status.Joined != nil {
			continue
		}
		switch eviction(e) {
		case v1alpha1.EvictionInProgress:
			return e
		case v1alpha1.EvictionSucceeded:
			found = e
		case v1alpha1.EvictionFailed:
			if cr := e.Status.CustomResource; cr == nil || cr.Attempt < MaxAttempts { // otherwise a later event leads a drain of its own
				found = e
			}
		}
	}
	return found
}

// follow sets the status of an event that joined the drain of another one.
func (r *round) follow(e, leader *v1alpha1.HealthEvent) {
	switch state := eviction(leader); state {
	case v1alpha1.EvictionInProgress:
		r.evict(e, state, fmt.Sprintf("The node is being drained for event %s.", leader.Name))
		r.waitIn(e, WaitJoined, fmt.Sprintf("The node is being drained for event %s.", leader.Name))
	case v1alpha1.EvictionSucceeded:
		if now := eviction(e); now != v1alpha1.EvictionInProgress && now != state {
			state = v1alpha1.AlreadyDrained
		}
		r.evict(e, state, fmt.Sprintf("The node was drained for event %s.", leader.Name))
		r.finish(e, ReasonDrained, fmt.Sprintf("The node was drained for event %s.", leader.Name))
	case v1alpha1.EvictionFailed:
		message := fmt.Sprintf("The drain for event %s failed; `ebb events retry %s` tries again.", leader.Name, leader.Name)
		r.evict(e, state, message)
		r.finish(e, ReasonFailed, message)
	case v1alpha1.EvictionCancelled:
		message := fmt.Sprintf("The drain for event %s was cancelled.", leader.Name)
		r.evict(e, state, message)
		r.finish(e, ReasonCancelled, message)
	}
}

func (r *round) allResolved(open []*v1alpha1.HealthEvent) bool {
	for _, e := range open {
		if !r.isResolved(e) {
			return false
		}
	}
	return true
}

// uncordoned are the open events under which somebody else lifted the cordon. The node may have been cordoned again since.
func (r *round) uncordoned(open []*v1alpha1.HealthEvent) []*v1alpha1.HealthEvent {
	var lost []*v1alpha1.HealthEvent
	if r.node == nil {
		return nil
	}
	for _, e := range open {
		owned := r.owners[string(e.UID)] || r.now(e).Status.NodeQuarantined == v1alpha1.AlreadyQuarantined
		if !r.node.Spec.Cordoned || !owned {
			lost = append(lost, e)
		}
	}
	return lost
}

// ownedByAnother reports whether an event that is not among these owns the cordon. An event becomes an owner together with those before it,
// so that these lost a cordon that a person lifted, and the node was cordoned again after that.
func (r *round) ownedByAnother(lost []*v1alpha1.HealthEvent) bool {
	return slices.ContainsFunc(r.events, func(e *v1alpha1.HealthEvent) bool { return r.owners[string(e.UID)] && !slices.Contains(lost, e) })
}

// judgeHealthy ends a healthy event when all that it ends has ended. joining says that another problem is about to keep the node in quarantine.
func (r *round) judgeHealthy(e *v1alpha1.HealthEvent, open []*v1alpha1.HealthEvent, joining bool) {
	if r.expired(e) {
		r.write(ActionSkip, e, func(e *v1alpha1.HealthEvent) {
			r.finish(e, ReasonExpired, fmt.Sprintf("The event is older than %s; it is recorded and has no effect.", r.Config.Quarantine.Retention))
		})
		return
	}
	ends := slices.ContainsFunc(open, func(p *v1alpha1.HealthEvent) bool { return resolves(e, p) })
	switch {
	case ends && !joining && r.allResolved(open):
		r.wait(e, WaitCancel, fmt.Sprintf("The quarantine of node %s is being lifted.", r.name))
	case ends:
		r.write(ActionSkip, e, func(e *v1alpha1.HealthEvent) {
			r.finish(e, WaitOthers, fmt.Sprintf("Node %s stays quarantined: other checks are still unhealthy.", r.name))
		})
	case slices.ContainsFunc(open, func(p *v1alpha1.HealthEvent) bool { return checkOf(p) == checkOf(e) }):
		r.write(ActionSkip, e, func(e *v1alpha1.HealthEvent) {
			r.finish(e, ReasonHealthy, fmt.Sprintf("Node %s stays quarantined: a problem of this check has the same time or a later one.", r.name))
		})
	default:
		r.write(ActionSkip, e, func(e *v1alpha1.HealthEvent) {
			r.finish(e, ReasonHealthy, fmt.Sprintf("No problem of this check keeps node %s in quarantine.", r.name))
		})
	}
}

// tidy lets events go that have no effect any more, and deletes old ones.
func (r *round) tidy(e *v1alpha1.HealthEvent) {
	if r.busy(e) || isOpen(e) || !handled(e) && e.DeletionTimestamp.IsZero() || r.unfinished(e) {
		return
	}
	if controllerutil.ContainsFinalizer(e, v1alpha1.HealthEventFinalizer) {
		r.write(ActionRelease, e, func(e *v1alpha1.HealthEvent) { controllerutil.RemoveFinalizer(e, v1alpha1.HealthEventFinalizer) })
		return
	}
	if e.Spec.IsHealthy && slices.ContainsFunc(r.events, isOpen) {
		return // a problem of the node may have ended with it, and others have not
	}
	// If an event that was deleted is sent again, it must be older than the retention, and have no effect. One whose detector's clock was ahead counts
	// by that clock then.
	if e.DeletionTimestamp.IsZero() && r.Now.Sub(latestTime(e)) > max(keepHandled, 2*r.Config.Quarantine.Retention) {
		r.steps = append(r.steps, Step{Action: ActionPrune, Event: e})
	}
}

// unfinished reports whether something that was made for an event is left.
func (r *round) unfinished(e *v1alpha1.HealthEvent) bool {
	return r.owns(e) || e.Status.CustomResource != nil && !e.Status.CustomResource.Removed
}

// evict sets the state of the drain of an event.
func (r *round) evict(e *v1alpha1.HealthEvent, state v1alpha1.EvictionState, message string) {
	s := e.Status.UserPodsEvictionStatus
	if s == nil {
		s = &v1alpha1.EvictionStatus{}
	}
	before := s.Status
	s.Status, s.Message = state, message
	if state == v1alpha1.EvictionInProgress && before != state {
		s.FinishedAt = nil
		if s.StartedAt == nil {
			s.StartedAt = micro(r.Now)
		}
	}
	if before == v1alpha1.EvictionInProgress && state != before {
		s.FinishedAt = micro(r.Now)
	}
	e.Status.UserPodsEvictionStatus = s
}

// finish records that nothing is left to do.
func (r *round) finish(e *v1alpha1.HealthEvent, reason, message string) {
	r.condition(e, metav1.ConditionTrue, reason, message)
}

// waitIn records in an event that is written anyway what it waits for.
func (r *round) waitIn(e *v1alpha1.HealthEvent, reason, message string) {
	r.condition(e, metav1.ConditionFalse, reason, message)
}

// wait records what an event waits for.
func (r *round) wait(e *v1alpha1.HealthEvent, reason, message string) {
	r.write(ActionWait, e, func(e *v1alpha1.HealthEvent) { r.waitIn(e, reason, message) })
}

func (r *round) condition(e *v1alpha1.HealthEvent, status metav1.ConditionStatus, reason, message string) {
	SetHandled(e, status, reason, message, r.Now)
}

// SetHandled sets the condition Handled of an event.
func SetHandled(e *v1alpha1.HealthEvent, status metav1.ConditionStatus, reason, message string, now time.Time) {
	old := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled)
	c := metav1.Condition{
		Type: v1alpha1.HealthEventHandled, Status: status, Reason: reason, Message: message, ObservedGeneration: e.Generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	// A wait has begun when its reason did.
	if old != nil && old.Reason != reason {
		meta.RemoveStatusCondition(&e.Status.Conditions, v1alpha1.HealthEventHandled)
	}
	meta.SetStatusCondition(&e.Status.Conditions, c)
}

// attemptOf is the attempt that a person requested, or 0.
func attemptOf(e *v1alpha1.HealthEvent) int64 {
	n, err := strconv.ParseInt(e.Annotations[v1alpha1.RetryAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
