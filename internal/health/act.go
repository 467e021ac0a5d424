package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// atOnce is for how many nodes steps are taken at the same time.
const atOnce = 16

// recordAtOnce is how many steps that only record something are taken before the world is read again.
const recordAtOnce = 256

// portion returns which steps are taken now, in their order, and whether some are left for later. Steps that have an effect come first: of a thousand
// events most only wait, and the nodes that can be quarantined do not wait until that is written down. A few of the others are taken with them, so
// that one that is refused again and again keeps nothing from being recorded.
func portion(steps []Step) (now []Step, more bool) {
	var records []Step
	for _, s := range steps {
		if s.Action.records() {
			records = append(records, s)
		} else {
			now = append(now, s)
		}
	}
	most := recordAtOnce
	if len(now) > 0 {
		most = atOnce
	}
	most = min(most, len(records))
	return append(now, records[:most]...), most < len(records)
}

// turn is one reconciliation.
type turn struct {
	*Controller
	live   bool
	events []*v1alpha1.HealthEvent // all of them as this turn read and wrote them; nil if they have to be read
	read   *reading                // what it has read besides them; nil if it has to be read
	notes  errgroup.Group          // writes what people read, beside the steps

	mu      sync.Mutex
	wrote   map[string]*v1alpha1.HealthEvent // in this round, by UID
	stale   bool                             // events have changed otherwise
	blocked map[string]bool                  // events that wait for a person, by UID; they are left alone until the next turn
}

func newTurn(c *Controller) *turn {
	t := &turn{Controller: c, wrote: map[string]*v1alpha1.HealthEvent{}, blocked: map[string]bool{}}
	t.notes.SetLimit(atOnce)
	return t
}

// look reads the world, the events only if somebody else may have changed those that this turn has: a list of many events is most of what a round
// costs. What arrives meanwhile begins the next turn.
func (t *turn) look(ctx context.Context) (World, error) {
	w, read, err := t.gather(ctx, t.live, t.events, t.read)
	if err == nil && t.live {
		t.events, t.read = w.Events, read
	}
	return w, err
}

// written takes note of an event that was written.
func (t *turn) written(e *v1alpha1.HealthEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wrote[string(e.UID)] = e
}

// reread makes the next round read everything.
func (t *turn) reread() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stale = true
}

// update brings the events of the turn in line with what the round wrote.
func (t *turn) update() {
	if t.stale {
		t.events, t.read = nil, nil
	}
	for i, e := range t.events {
		if wrote := t.wrote[string(e.UID)]; wrote != nil {
			t.events[i] = wrote
		}
	}
	clear(t.wrote)
	t.stale = false
}

// takeAll takes steps: those of one node in their order, those of several nodes at the same time. A step that conflicts is left to the
// next round.
func (t *turn) takeAll(ctx context.Context, w World, steps []Step) error {
	if err := t.CheckTerm(ctx); err != nil {
		return fmt.Errorf("health events: %w", err)
	}
	before := map[string]*v1alpha1.HealthEvent{}
	for _, e := range w.Events {
		before[string(e.UID)] = e
	}
	var names []string // in the order of their steps
	byNode := map[string][]Step{}
	for _, s := range steps {
		name := s.Event.Spec.NodeName
		if byNode[name] == nil {
			names = append(names, name)
		}
		byNode[name] = append(byNode[name], s)
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, name := range names {
		group.Go(func() error {
			for _, s := range byNode[name] {
				// What fails for one node is tried again soon, and keeps no other node waiting.
				if err := t.take(ctx, w, s, before, w.Nodes[name]); err != nil && ctx.Err() == nil {
					t.leave(s.Event)
					t.reread()
					t.Log.Warn("health: a step failed; trying again", "step", string(s.Action), "event", s.Event.Name, "target", s.Event.Spec.NodeName, "error", err)
				}
			}
			return nil
		})
	}
	err := group.Wait()
	t.update()
	return err
}

// leave leaves an event alone until the next turn.
func (t *turn) leave(e *v1alpha1.HealthEvent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.blocked[string(e.UID)] = true
}

// take takes one step. old are the events by UID as the decision saw them.
func (t *turn) take(ctx context.Context, w World, s Step, old map[string]*v1alpha1.HealthEvent, node *v1alpha1.Node) error {
	before := old[string(s.Event.UID)]
	t.at("before-health-" + string(s.Action))
	err := t.do(ctx, s)
	wait := (*Wait)(nil)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case errors.As(err, &wait):
		t.announce(ctx, node, waitAnnounced(before, wait.Reason, wait.Message))
		for _, other := range s.Others {
			if err := t.block(ctx, other, wait); err != nil {
				return err
			}
		}
		return t.block(ctx, before, wait)
	case errors.Is(err, errCordonAhead) && !w.CoreOnly[s.Event.Spec.NodeName]:
		t.reread()
		for _, e := range append(slices.Clone(s.Others), s.Event) {
			t.leave(e) // the change of Ebb's Node begins the next turn
		}
		return nil
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err) || errors.Is(err, errCordonAhead):
		t.reread()
		return nil // decided on an old version: the next round decides again
	case err != nil:
		return fmt.Errorf("health event %s: step %s: %w", s.Event.Name, s.Action, err)
	}
	t.at("after-health-" + string(s.Action))
	if s.Action != ActionWait {
		t.Log.Info("health: step taken", "step", string(s.Action), "event", s.Event.Name, "target", s.Event.Spec.NodeName, "reason", reasonOf(s.Event))
	}
	t.announce(ctx, node, announced(s, before))
	if before != nil {
		var ended *v1alpha1.Drain
		if s.Action == ActionEndDrain {
			ended = w.drainByUID(s.Event.Status.Drain.UID)
		}
		t.Metrics.See(before, s.Event, w.Pods, ended, time.Now())
	}
	return nil
}

func (t *turn) at(point string) {
	if t.AtStep != nil {
		t.AtStep(point)
	}
}

// block records what a person has to do before a step can be taken.
func (t *turn) block(ctx context.Context, e *v1alpha1.HealthEvent, wait *Wait) error {
	if reasonOf(e) == wait.Reason || wait.Reason == WaitNoDrain { // otherwise the other track may go on at once, and it did before the Drain
		t.leave(e)
	}
	next := e.DeepCopy()
	SetHandled(next, metav1.ConditionFalse, wait.Reason, wait.Message, time.Now())
	if equality.Semantic.DeepEqual(next.Status, e.Status) {
		return nil
	}
	t.Log.Warn("health: waiting", "event", e.Name, "target", e.Spec.NodeName, "reason", wait.Reason, "problem", wait.Message)
	err := t.client.Status().Update(ctx, next)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		t.reread()
		return nil
	}
	if err == nil {
		t.written(next)
	}
	return err
}

// do does what a step says.
func (t *turn) do(ctx context.Context, s Step) error {
	switch s.Action {
	case ActionQuarantine:
		return cordonRefused(ctx, t.writeCordon(ctx, s.Node, s.Before), WaitCordon, fmt.Sprintf("Node %s could not be cordoned", s.Event.Spec.NodeName))
	case ActionLift:
		return cordonRefused(ctx, t.writeCordon(ctx, s.Node, s.Before), WaitLift, fmt.Sprintf("The quarantine of node %s could not be lifted", s.Event.Spec.NodeName))
	case ActionHold:
		return t.noted(s.Event, kubeclient.WriteFinalizers(ctx, t.client, s.Event))
	case ActionRelease:
		t.reread() // one that was deleted is gone after that
		return kubeclient.WriteFinalizers(ctx, t.client, s.Event)
	case ActionCancelDrain:
		err := t.client.Update(ctx, s.Drain)
		if err == nil || ctx.Err() != nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return err
		}
		return &Wait{WaitCancel, fmt.Sprintf("Drain %s could not be cancelled: %s. It is tried again; check admission webhooks and the right of the coordinator to update drains.", s.Drain.Name, bounded(err.Error()))}
	case ActionManual:
		t.reread()
		return client.IgnoreAlreadyExists(t.client.Create(ctx, s.Event))
	case ActionPrune:
		t.reread()
		return t.client.Delete(ctx, s.Event, client.Preconditions{UID: &s.Event.UID, ResourceVersion: &s.Event.ResourceVersion})
	case ActionResign:
		return t.resign(ctx, s)
	case ActionSnapshot:
		if err := t.snapshot(ctx, s.Event); err != nil {
			return err
		}
	case ActionCreateCR:
		if err := t.createResource(ctx, s.Event); err != nil {
			return err
		}
	case ActionWriteStatus:
		if err := t.resources.WriteStatus(ctx, s.Event); err != nil {
			return err
		}
	case ActionDeleteCR:
		if err := t.deleteResource(ctx, s.Event); err != nil {
			return err
		}
	case ActionStartDrain, ActionEvictImmediate, ActionEvictWithTimeout, ActionCheckCompletion:
		if err := t.startDrain(ctx, s); err != nil {
			return err
		}
	}
	return t.noted(s.Event, t.client.Status().Update(ctx, s.Event))
}

// cordonRefused is a wait if the API refuses a cordon or its end, and otherwise what became of the write.
func cordonRefused(ctx context.Context, err error, reason, what string) error {
	if err == nil || ctx.Err() != nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) || errors.Is(err, errCordonAhead) {
		return err
	}
	return &Wait{reason, fmt.Sprintf("%s; trying again: %s. Check admission webhooks and the coordinator's permission to update nodes.", what, bounded(err.Error()))}
}

// noted takes note of an event if it was written.
func (t *turn) noted(e *v1alpha1.HealthEvent, err error) error {
	if err == nil {
		t.written(e)
	}
	return err
}

// errCordonAhead: the cordon of a core Node is not the one that a decision rests on. Ebb's Node may not show yet what somebody, this controller too,
// did to the core Node.
var errCordonAhead = errors.New("the cordon of its core Node has changed")

// writeCordon writes the cordon of a node, to its core Node if it has one. A node publishes its counts often, and the cordon does not rest
// on them.
func (t *turn) writeCordon(ctx context.Context, n, before *v1alpha1.Node) error {
	target, err := client.Object(n), error(nil)
	if t.Core {
		target, err = kube.CoreCordonOf(ctx, t.Controller.live, n)
	}
	if err != nil {
		return err
	}
	if core, ok := target.(*corev1.Node); ok {
		if before == nil || cordon.Is(core) != before.Spec.Cordoned || !slices.Equal(v1alpha1.CordonOwners(core), v1alpha1.CordonOwners(before)) {
			return fmt.Errorf("node %s: %w", core.Name, errCordonAhead)
		}
		cordon.Set(core, n.Spec.Cordoned)
		v1alpha1.SetCordonOwners(core, v1alpha1.CordonOwners(n))
		return t.client.Update(ctx, core)
	}
	old := n.ResourceVersion
	_, err = kubeclient.Rewrite(ctx, t.Controller.live, n, func(n *v1alpha1.Node) error { return t.client.Update(ctx, n) }, func(newest *v1alpha1.Node) bool {
		if newest.Generation != n.Generation || newest.ResourceVersion == old || before == nil || !slices.Equal(v1alpha1.CordonOwners(newest), v1alpha1.CordonOwners(before)) {
			return false
		}
		newest.Spec.Cordoned = n.Spec.Cordoned
		v1alpha1.SetCordonOwners(newest, v1alpha1.CordonOwners(n))
		return true
	})
	return err
}

// resign lets another node become the coordinator, and leaves the event to it.
func (t *turn) resign(ctx context.Context, s Step) error {
	t.leave(s.Event)
	t.Log.Info("health: resigning, because this node is sick", "event", s.Event.Name)
	if err := t.Resign(ctx); err != nil {
		return &Wait{WaitNoSuccessor, fmt.Sprintf("Node %s is the coordinator and could not resign: %v.", t.Leader, err)}
	}
	return nil
}

func (t *turn) snapshot(ctx context.Context, e *v1alpha1.HealthEvent) (err error) {
	if e.Status.Pods == nil {
		e.Status.Pods, err = t.resources.Pods(ctx, e.Spec.NodeName, t.Config, time.Now())
	}
	return err
}

func (t *turn) createResource(ctx context.Context, e *v1alpha1.HealthEvent) error {
	cr := e.Status.CustomResource
	made, err := t.resources.Create(ctx, e)
	if errors.Is(err, errNameTaken) {
		// What has the name is not ours: the next attempt has another.
		old := *cr
		old.Outcome, old.Message, old.Removed = v1alpha1.ResourceLost, "Another object has its name.", true
		remember(e, old)
		cr.Attempt++
		cr.Name = ResourceName(e.Spec.NodeName, e.EventID(), cr.Attempt)
		return nil
	}
	if err != nil {
		return err
	}
	t.at("between-health-" + string(ActionCreateCR))
	cr.UID, cr.CreatedAt, cr.StatusPending = made.UID, micro(made.At.Time), made.StatusPending
	return nil
}

func (t *turn) deleteResource(ctx context.Context, e *v1alpha1.HealthEvent) error {
	err := t.resources.Delete(ctx, t.term, e)
	t.at("between-health-" + string(ActionDeleteCR))
	return err
}

// startDrain creates Ebb's own Drain, or finds the one that was created before its UID could be recorded.
func (t *turn) startDrain(ctx context.Context, s Step) error {
	d := s.Drain
	err := t.client.Create(ctx, d)
	if apierrors.IsAlreadyExists(err) {
		err = t.Controller.live.Get(ctx, client.ObjectKeyFromObject(d), d)
		if err == nil && d.Annotations[v1alpha1.HealthEventAnnotation] != string(s.Event.UID) {
			return &Wait{WaitNoDrain, fmt.Sprintf("Drain %s exists and was not made for this event: delete it.", d.Name)}
		}
	}
	switch {
	case err == nil:
	case ctx.Err() != nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return err
	default:
		return &Wait{WaitNoDrain, fmt.Sprintf("Drain %s could not be created: %s. It is tried again; check admission webhooks and the right of the coordinator to create drains.", d.Name, bounded(err.Error()))}
	}
	t.at("between-health-" + string(ActionStartDrain))
	s.Event.Status.Drain.UID = string(d.UID)
	return nil
}
