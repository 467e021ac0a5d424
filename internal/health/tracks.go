package health

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/shortname"
)

// Outcomes of Ebb's own Drain that are not reasons of its condition Finished.
const (
	// DrainNotRunning: no process of the node was left, so that no Drain was needed.
	DrainNotRunning = "NotRunning"
	// DrainPodsAlone: no process of Ebb ran on the node, and its pods have left.
	DrainPodsAlone = "PodsAlone"
	// DrainDeleted: somebody deleted the Drain before it ended.
	DrainDeleted = "Deleted"
	// DrainNotStarted: the drain was cancelled before the Drain was created.
	DrainNotStarted = "NotStarted"
)

// maxName is the length of a label's value, which names of resources are often used as.
const maxName = 63

// ResourceName is the name of the custom resource of an attempt: drain-<node>-<event id>, and the number of later attempts. A name that is
// not valid is made valid, and one that was changed has a sum of the original.
func ResourceName(node, id string, attempt int64) string {
	name, suffix := "drain-"+node+"-"+id, ""
	if attempt > 1 {
		suffix = fmt.Sprintf("-%d", attempt)
	}
	valid := strings.Trim(strings.Map(validRune, strings.ToLower(name)), "-.")
	for _, pair := range []string{"..", ".-", "-."} {
		for strings.Contains(valid, pair) {
			valid = strings.ReplaceAll(valid, pair, "-")
		}
	}
	if valid != name || len(valid) > maxName-len(longestSuffix) {
		// The sum is of the original: two names may become the same valid one.
		valid = strings.TrimRight(valid[:min(len(valid), maxName-len(longestSuffix)-sumLength-1)], "-.") + "-" + sum(name)
	}
	return valid + suffix
}

const (
	longestSuffix = "-99"
	sumLength     = 10
)

// sum distinguishes names that became the same.
func sum(name string) string {
	s := sha256.Sum256([]byte(name))
	return hex.EncodeToString(s[:sumLength/2])
}

func validRune(c rune) rune {
	if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '.' || c == '-' {
		return c
	}
	return '-'
}

// nameResource records which custom resource is created next.
func (r *round) nameResource(e *v1alpha1.HealthEvent, attempt int64) {
	c := r.Config.CustomDrain
	apiVersion, kind := c.GVK.ToAPIVersionAndKind()
	if old := e.Status.CustomResource; old != nil {
		remember(e, *old)
	}
	e.Status.CustomResource = &v1alpha1.CustomResource{
		APIVersion: apiVersion, Kind: kind, Namespace: c.Namespace, Name: ResourceName(e.Spec.NodeName, e.EventID(), attempt), Attempt: attempt,
	}
}

// maxRemembered is how many earlier attempts an event records. People retry only a few; lost ones have no limit.
const maxRemembered = 32

// remember records an attempt that has ended.
func remember(e *v1alpha1.HealthEvent, cr v1alpha1.CustomResource) {
	e.Status.Attempts = append(e.Status.Attempts, cr)
	e.Status.Attempts = e.Status.Attempts[max(0, len(e.Status.Attempts)-maxRemembered):]
}

// otherResource is another event of the node with a custom resource that has not ended. The recorded name is the lock of the node: it is
// there before the resource is, and a node has one at a time. An end that this round is about to record releases nothing yet: that write may fail.
func (r *round) otherResource(e *v1alpha1.HealthEvent) *v1alpha1.HealthEvent {
	for _, other := range r.events {
		for _, seen := range []*v1alpha1.HealthEvent{other, r.now(other)} {
			if cr := seen.Status.CustomResource; seen.UID != e.UID && cr != nil && cr.Outcome == "" {
				return seen
			}
		}
	}
	return nil
}

// track is how far one of the two tracks of a drain is: it wants a step, waits, or has ended.
type track struct {
	step      *Step
	reason    string
	message   string
	done      bool
	failed    bool
	cancelled bool
}

// stepOf is a track that wants an event written.
func stepOf(action Action, e *v1alpha1.HealthEvent, change func(*v1alpha1.HealthEvent)) track {
	next := e.DeepCopy()
	change(next)
	return track{step: &Step{Action: action, Event: next}}
}

// progress continues the drain of the node, and lets the other events of the node follow it.
func (r *round) progress(open []*v1alpha1.HealthEvent) {
	leader := r.leader()
	for _, e := range open {
		if r.busy(e) || e.Status.Joined == nil {
			continue
		}
		r.followJoined(e)
	}
	for _, e := range open {
		if !r.busy(e) && reasonOf(e) == WaitLift {
			r.stay(e)
		}
	}
	if leader == nil || r.busy(leader) {
		return
	}
	switch eviction(leader) {
	case v1alpha1.EvictionInProgress:
		r.advance(leader)
	case v1alpha1.EvictionFailed:
		r.retry(leader)
	}
}

// stay lets an event whose quarantine could not be lifted say again how its drain ended: another problem keeps the node in quarantine now.
func (r *round) stay(e *v1alpha1.HealthEvent) {
	s := e.Status.UserPodsEvictionStatus
	if s == nil {
		return
	}
	reasons := map[v1alpha1.EvictionState]string{
		v1alpha1.EvictionNotStarted: ReasonNoDrain, v1alpha1.EvictionSucceeded: ReasonDrained, v1alpha1.AlreadyDrained: ReasonDrained,
		v1alpha1.EvictionFailed: ReasonFailed, v1alpha1.EvictionCancelled: ReasonCancelled,
	}
	if reason := reasons[s.Status]; reason != "" { // what is in progress says what it waits for
		r.write(ActionWait, e, func(e *v1alpha1.HealthEvent) { r.finish(e, reason, s.Message) })
	}
}

// followJoined keeps an event in step with the drain that it joined. If that drain never began, the event leads one itself.
func (r *round) followJoined(e *v1alpha1.HealthEvent) {
	if other := r.byUID[e.Status.Joined.UID]; other != nil && isOpen(other) && other.Status.UserPodsEvictionStatus != nil {
		r.write(ActionFollow, e, func(e *v1alpha1.HealthEvent) { r.follow(e, r.now(other)) })
		return
	}
	leader := r.leader()
	r.write(ActionAdmit, e, func(e *v1alpha1.HealthEvent) {
		if leader == nil {
			r.lead(e)
			return
		}
		e.Status.Joined = &v1alpha1.EventReference{Name: leader.Name, UID: string(leader.UID)}
		r.follow(e, leader)
	})
}

// waitsForPerson are the reasons why a step of the custom track was not possible.
var waitsForPerson = []string{WaitDefinition, WaitLookup, WaitUnreadable, WaitUndeleted, WaitForbidden, WaitNamespace, WaitRefused, WaitUncreated, WaitStatus, WaitTemplate, WaitPods}

// advance takes the next step of a drain that runs.
func (r *round) advance(e *v1alpha1.HealthEvent) {
	if r.name == r.Leader && !r.started(e) && r.successor() {
		// A sick machine does not coordinate: the next coordinator goes on.
		r.steps = append(r.steps, Step{Action: ActionResign, Event: e})
		return
	}
	custom, own := r.custom(e), r.own(e)
	tracks := []track{custom, own}
	if slices.Contains(waitsForPerson, reasonOf(e)) { // Ebb's own work does not wait for a person to mend the other track
		tracks = []track{own, custom}
	}
	for _, t := range tracks {
		if t.step != nil {
			r.add(t.step)
			return
		}
	}
	switch {
	case own.cancelled:
		r.cancelOwn(e)
	case custom.failed:
		r.write(ActionFinish, e, func(e *v1alpha1.HealthEvent) { r.fail(e, custom.message) })
	case custom.done && own.done:
		r.write(ActionFinish, e, func(e *v1alpha1.HealthEvent) {
			r.evict(e, v1alpha1.EvictionSucceeded, "The node was drained.")
			r.finish(e, ReasonDrained, "The node was drained.")
		})
	case !custom.done:
		r.wait(e, custom.reason, custom.message)
	default:
		r.wait(e, own.reason, own.message)
	}
}

// started reports whether Ebb's own Drain of an event has begun to move work, or needs no other one. One that waits, or that was refused,
// may be that of the coordinator's own node.
func (r *round) started(e *v1alpha1.HealthEvent) bool {
	switch d := e.Status.Drain; {
	case d == nil || d.UID == "":
		return false
	case d.Phase != "":
		return !r.again(d)
	default:
		object := r.drainByUID(d.UID)
		return object == nil || object.Status.StartedAt != nil || object.Status.Phase.Final()
	}
}

// again reports whether a Drain that has ended is followed by another one: it was refused, or it did not move the work of a node that runs.
func (r *round) again(d *v1alpha1.HealthDrain) bool {
	switch d.Phase {
	case v1alpha1.DrainComplete:
		return (d.Outcome == DrainNotRunning || d.Outcome == DrainPodsAlone) && r.Live(r.name)
	case v1alpha1.DrainCancelled:
		return d.Outcome == v1alpha1.ReasonLoneSurvivor
	}
	return true
}

func (r *round) fail(e *v1alpha1.HealthEvent, why string) {
	message := why + " Attempts are used up: send another event, or drain the node by hand."
	if e.Status.CustomResource.Attempt < MaxAttempts {
		message = fmt.Sprintf("%s `ebb events retry %s` tries again.", why, e.Name)
	}
	r.evict(e, v1alpha1.EvictionFailed, message)
	r.finish(e, ReasonFailed, message)
}

// cancelOwn ends a drain whose Drain a person cancelled. The node stays quarantined.
func (r *round) cancelOwn(e *v1alpha1.HealthEvent) {
	if step := r.dropResource(e); step != nil {
		r.add(step)
		return
	}
	r.write(ActionFinish, e, func(e *v1alpha1.HealthEvent) {
		message := fmt.Sprintf("Drain %s was cancelled by a person. The node stays quarantined; `ebb uncordon %s` lifts that.", e.Status.Drain.Name, r.name)
		r.evict(e, v1alpha1.EvictionCancelled, message)
		r.finish(e, ReasonCancelled, message)
	})
}

// dropResource is the next step of cancelling a custom resource, or nil if nothing of it is left.
func (r *round) dropResource(e *v1alpha1.HealthEvent) *Step {
	cr := e.Status.CustomResource
	switch {
	case cr == nil || cr.Removed:
		return nil
	case cr.Outcome == "":
		return stepOf(ActionEndCR, e, func(e *v1alpha1.HealthEvent) {
			r.endResource(e, v1alpha1.ResourceCancelled, "The drain was cancelled.")
		}).step
	}
	return r.deleteResource(e)
}

func (r *round) deleteResource(e *v1alpha1.HealthEvent) *Step {
	return stepOf(ActionDeleteCR, e, func(e *v1alpha1.HealthEvent) { e.Status.CustomResource.Removed = true }).step
}

func (r *round) endResource(e *v1alpha1.HealthEvent, outcome v1alpha1.CustomResourceOutcome, message string) {
	cr := e.Status.CustomResource
	cr.Outcome, cr.Message, cr.FinishedAt = outcome, message, micro(r.Now)
}

// retry begins another attempt of a failed drain, if a person requested exactly that one.
func (r *round) retry(e *v1alpha1.HealthEvent) {
	cr := e.Status.CustomResource
	if cr == nil || r.Config.CustomDrain == nil || attemptOf(e) != cr.Attempt+1 || cr.Attempt >= MaxAttempts || r.otherResource(e) != nil {
		return
	}
	r.write(ActionRetry, e, func(e *v1alpha1.HealthEvent) {
		r.nameResource(e, cr.Attempt+1)
		r.evict(e, v1alpha1.EvictionInProgress, "The node is being drained.")
		r.waitIn(e, WaitStart, fmt.Sprintf("Attempt %d of the drain is starting.", cr.Attempt+1))
	})
}

// custom is the track of the custom resource.
func (r *round) custom(e *v1alpha1.HealthEvent) track {
	c, cr := r.Config.CustomDrain, e.Status.CustomResource
	switch {
	case cr == nil && c == nil:
		return track{done: true}
	case cr == nil || cr.Outcome == v1alpha1.ResourceLost && r.otherResource(e) != nil:
		return r.lock(e)
	case cr.Outcome != "" && cr.Outcome != v1alpha1.ResourceLost && !cr.Removed:
		return track{step: r.deleteResource(e)}
	}
	switch cr.Outcome {
	case v1alpha1.ResourceComplete:
		return track{done: true}
	case v1alpha1.ResourceFailed, v1alpha1.ResourceTimedOut, v1alpha1.ResourceDeleted, v1alpha1.ResourceCancelled:
		return track{failed: true, message: fmt.Sprintf("%s %s: %s", cr.Kind, cr.Name, cr.Message)}
	}
	if c == nil || cr.APIVersion != c.GVK.GroupVersion().String() || cr.Kind != c.GVK.Kind {
		return track{reason: WaitDisabled, message: fmt.Sprintf("The drain waits for %s %s, and --drain-config no longer has this kind: restore it there, or uncordon the node.", cr.Kind, cr.Name)}
	}
	if cr.Outcome == v1alpha1.ResourceLost {
		return r.replaceLost(e)
	}
	if cr.UID == "" {
		return r.create(e)
	}
	return r.watch(e, c)
}

// replaceLost begins another attempt when the definition of the resource is back.
func (r *round) replaceLost(e *v1alpha1.HealthEvent) track {
	if !r.Definition.Ready {
		return track{reason: r.Definition.Reason, message: r.Definition.Message}
	}
	return stepOf(ActionRetry, e, func(e *v1alpha1.HealthEvent) { r.nameResource(e, e.Status.CustomResource.Attempt+1) })
}

// lock names the resource, when no other one of the node is left.
func (r *round) lock(e *v1alpha1.HealthEvent) track {
	if other := r.otherResource(e); other != nil {
		cr := other.Status.CustomResource
		return track{reason: WaitBusy, message: fmt.Sprintf("Waiting for %s %s of event %s: a node has one at a time.", cr.Kind, cr.Name, other.Name)}
	}
	return stepOf(ActionSnapshot, e, func(e *v1alpha1.HealthEvent) { r.nameResource(e, 1) })
}

// create creates the resource.
func (r *round) create(e *v1alpha1.HealthEvent) track {
	if !r.Definition.Ready {
		return track{reason: r.Definition.Reason, message: r.Definition.Message}
	}
	return stepOf(ActionCreateCR, e, func(e *v1alpha1.HealthEvent) {
		if !r.Definition.Namespaced {
			e.Status.CustomResource.Namespace = ""
		}
		r.waitForController(e)
	})
}

func (r *round) waitForController(e *v1alpha1.HealthEvent) {
	r.waitIn(e, WaitResource, fmt.Sprintf("Waiting for the controller of %s %s.", e.Status.CustomResource.Kind, e.Status.CustomResource.Name))
}

// watch looks how far the controller of the resource is.
func (r *round) watch(e *v1alpha1.HealthEvent, c *drainconfig.CustomDrain) track {
	cr := e.Status.CustomResource
	object := r.Resources[cr.UID]
	if object == nil {
		if wait, ok := r.Unread[cr.UID]; ok {
			return track{reason: wait.Reason, message: wait.Message}
		}
		if !r.Definition.Ready && !r.Definition.Gone {
			return track{reason: r.Definition.Reason, message: r.Definition.Message}
		}
		// A definition that was deleted took its resources with it. It may be back: then the event says that it waited for it.
		if !r.Definition.Ready || reasonOf(e) == WaitDefinition {
			return stepOf(ActionEndCR, e, func(e *v1alpha1.HealthEvent) {
				r.endResource(e, v1alpha1.ResourceLost, "Its CustomResourceDefinition was deleted, and the resource with it.")
				e.Status.CustomResource.Removed = true
			})
		}
		return stepOf(ActionDrainFailed, e, func(e *v1alpha1.HealthEvent) {
			r.endResource(e, v1alpha1.ResourceDeleted, "It was deleted before it was complete.")
			e.Status.CustomResource.Removed = true
		})
	}
	switch outcome, message := Judge(object, c); {
	case outcome == v1alpha1.ResourceComplete:
		return stepOf(ActionMarkAlreadyDrained, e, func(e *v1alpha1.HealthEvent) { r.endResource(e, outcome, message) })
	case outcome != "":
		return stepOf(ActionDrainFailed, e, func(e *v1alpha1.HealthEvent) { r.endResource(e, outcome, message) })
	case r.timedOut(cr, c):
		return stepOf(ActionDrainFailed, e, func(e *v1alpha1.HealthEvent) {
			r.endResource(e, v1alpha1.ResourceTimedOut, fmt.Sprintf("It was not complete after %s.", c.Timeout))
		})
	}
	if cr.StatusPending {
		return stepOf(ActionWriteStatus, e, func(e *v1alpha1.HealthEvent) {
			e.Status.CustomResource.StatusPending = false
			r.waitForController(e)
		})
	}
	return track{reason: WaitResource, message: fmt.Sprintf("Waiting for the controller of %s %s%s. It has %s; if nothing happens, check its log.", cr.Kind, cr.Name, conditionOf(object, c), c.Timeout)}
}

// timedOut reports whether a custom resource has had its time.
func (r *round) timedOut(cr *v1alpha1.CustomResource, c *drainconfig.CustomDrain) bool {
	return cr.CreatedAt != nil && !r.Server.IsZero() && r.Server.Sub(cr.CreatedAt.Time) >= c.Timeout
}

// Judge returns how a custom resource ended, or nothing while it has not.
func Judge(object *unstructured.Unstructured, c *drainconfig.CustomDrain) (v1alpha1.CustomResourceOutcome, string) {
	failed := ""
	for _, condition := range conditions(object) {
		kind, status, reason := text(condition, "type"), text(condition, "status"), text(condition, "reason")
		switch {
		case kind == "DrainFailed" && status == string(metav1.ConditionTrue) && kind != c.ConditionType,
			kind == c.ConditionType && status == string(metav1.ConditionFalse) && reason == "Failed": // also if False is what means complete
			failed = sentence("Its controller reported a failure", condition)
		case kind == c.ConditionType && status == c.ConditionStatus:
			return v1alpha1.ResourceComplete, sentence("Its controller reported that the node is drained", condition)
		}
	}
	if failed != "" {
		return v1alpha1.ResourceFailed, failed
	}
	return "", ""
}

func conditions(object *unstructured.Unstructured) []map[string]any {
	list, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return nil
	}
	var out []map[string]any
	for _, entry := range list {
		if c, ok := entry.(map[string]any); ok {
			out = append(out, c)
		}
	}
	return out
}

func text(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}

// sentence adds to a sentence what a condition says, within bounds.
func sentence(begin string, condition map[string]any) string {
	for _, more := range []string{text(condition, "reason"), text(condition, "message")} {
		if more != "" {
			begin += ": " + bounded(more)
		}
	}
	return strings.TrimSuffix(begin, ".") + "."
}

func bounded(s string) string {
	if runes := []rune(s); len(runes) > 500 {
		return string(runes[:500]) + "…"
	}
	return s
}

// conditionOf is what a resource says of itself while it is in progress.
func conditionOf(object *unstructured.Unstructured, c *drainconfig.CustomDrain) string {
	for _, condition := range conditions(object) {
		if text(condition, "type") == c.ConditionType && text(condition, "reason") != "" {
			return ", which says " + bounded(text(condition, "reason"))
		}
	}
	return ", which has not reported anything yet"
}

// own is the track of Ebb's own Drain.
func (r *round) own(e *v1alpha1.HealthEvent) track {
	d := e.Status.Drain
	switch {
	case d == nil:
		return r.nameDrain(e, 1)
	case d.Phase == "" && d.UID == "":
		return r.startDrain(e)
	case d.Phase == "":
		return r.watchDrain(e)
	case r.again(d):
		return r.nameDrain(e, d.Number+1)
	case d.Phase == v1alpha1.DrainComplete && !r.Leases[r.name].Held() && r.Work[r.name] != "":
		return r.awaitWork() // its Drain was about the pods alone
	case d.Phase == v1alpha1.DrainComplete:
		return track{done: true}
	}
	return track{cancelled: true}
}

// nameDrain records which Drain is created next, as soon as one would be accepted.
func (r *round) nameDrain(e *v1alpha1.HealthEvent, number int64) track {
	lease := r.Leases[r.name]
	switch {
	case !lease.Held() && r.hasPods():
		// Its Drain moves the pods alone, without the slot.
	case !lease.Held() && lease.Epoch == 0 && !r.CoreOnly[r.name]:
		return track{reason: WaitNotRunning, message: fmt.Sprintf("Node %s has not joined yet, so it cannot be drained: start it, or delete it.", r.name)}
	case !lease.Held() && r.Work[r.name] != "":
		return r.awaitWork()
	case !lease.Held():
		return stepOf(ActionNameDrain, e, func(e *v1alpha1.HealthEvent) {
			e.Status.Drain = &v1alpha1.HealthDrain{Number: number, Outcome: DrainNotRunning, Phase: v1alpha1.DrainComplete}
		})
	case r.stuck() != nil && (!r.hasPods() || e.Status.Drain != nil && e.Status.Drain.Phase == v1alpha1.DrainFailed):
		// Its Drain would be refused. One that moves pods waits, and its pods leave.
		return *r.stuck()
	}
	name := shortname.Fit(fmt.Sprintf("health-%s-%s", r.name, e.UID), maxName)
	if number > 1 {
		name = shortname.Fit(fmt.Sprintf("health-%s-%s-%d", r.name, e.UID, number), maxName)
	}
	return stepOf(ActionNameDrain, e, func(e *v1alpha1.HealthEvent) { e.Status.Drain = &v1alpha1.HealthDrain{Name: name, Number: number} })
}

// stuck is why the work of the node cannot move now, or nil.
func (r *round) stuck() *track {
	switch {
	case r.liveNodes() < 2:
		return &track{reason: WaitSingle, message: fmt.Sprintf("Node %s is the only one that runs: its work cannot move. Start another node.", r.name)}
	case r.name == r.Leader:
		return &track{reason: WaitNoSuccessor, message: fmt.Sprintf("Node %s is the coordinator, and no other node can take over: none is Alive, Ready and not being drained.", r.name)}
	}
	return nil
}

// awaitWork waits for work of Ebb that is left on a node that does not run.
func (r *round) awaitWork() track {
	return track{reason: WaitNotRunning, message: fmt.Sprintf("Node %s does not run, and %s is left on it. The drain continues when that has moved, or when the node runs again.", r.name, r.Work[r.name])}
}

// hasPods reports whether the node is a core Node, from which a Drain moves the pods also if no process of Ebb runs there.
func (r *round) hasPods() bool { return r.Pods && r.Core[r.name] }

func (r *round) startDrain(e *v1alpha1.HealthEvent) track {
	action := ActionStartDrain
	if r.hasPods() {
		action = evictAction(r.Config)
	}
	t := stepOf(action, e, func(e *v1alpha1.HealthEvent) {})
	t.step.Drain = &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{
			Name: e.Status.Drain.Name, Annotations: map[string]string{v1alpha1.HealthEventAnnotation: string(e.UID)},
		},
		Spec: v1alpha1.DrainSpec{NodeName: r.name, Reason: bounded("health event " + e.Name + ": " + e.Spec.CheckName), WhenBusy: v1alpha1.Queue, Park: true},
	}
	if r.Pods { // their time counts from the event
		t.step.Drain.Spec.RequestedAt = new(e.CreationTimestamp)
	}
	if r.hasPods() { // what moves them holds the Drain first: this saves a write
		t.step.Drain.Finalizers = []string{v1alpha1.DrainFinalizer}
	}
	return t
}

func (r *round) watchDrain(e *v1alpha1.HealthEvent) track {
	d := r.drainByUID(e.Status.Drain.UID)
	if d == nil || d.Status.Phase.Final() {
		return stepOf(ActionEndDrain, e, func(e *v1alpha1.HealthEvent) { recordDrain(e, d) })
	}
	if t := r.stuck(); t != nil && d.Status.StartedAt == nil && r.Leases[r.name].Held() {
		if r.hasPods() {
			t.message += " Its pods leave meanwhile."
		}
		return *t
	}
	if d.Status.StartedAt == nil {
		return track{reason: WaitQueue, message: fmt.Sprintf("Drain %s is queued: one node is drained at a time.", d.Name)}
	}
	return track{reason: WaitDrain, message: fmt.Sprintf("Drain %s is running; `ebb explain %s` shows what it waits for.", d.Name, r.name)}
}

// recordDrain records how a Drain ended; nil is one that was deleted.
func recordDrain(e *v1alpha1.HealthEvent, d *v1alpha1.Drain) {
	if d == nil {
		e.Status.Drain.Phase, e.Status.Drain.Outcome = v1alpha1.DrainCancelled, DrainDeleted
		return
	}
	e.Status.Drain.Phase, e.Status.Drain.UID = d.Status.Phase, string(d.UID)
	if d.Status.Scope == v1alpha1.ScopePods && d.Status.Phase == v1alpha1.DrainComplete {
		e.Status.Drain.Outcome = DrainPodsAlone
		return
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); c != nil {
		e.Status.Drain.Outcome = c.Reason
	}
}
