package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// writeEvery bounds how often the progress of one drain is written, and writesApart how far apart on average those of all drains are:
	// with many drains the API server is for evictions. The end of a drain is written at once.
	writeEvery  = time.Second
	writesApart = 100 * time.Millisecond
	// recountEvery is how often the work of Ebb that is left on a node is counted, and returnLimit how long a node that released its lease may take
	// to come back before its drain is about pods alone.
	recountEvery = 5 * time.Second
	returnLimit  = 3 * time.Second
	// explainEvery bounds how often the pods of one budget are listed to explain it.
	explainEvery = 2 * time.Second
	// listLimit is how long the list of pods may take before the drain reports that it waits for it.
	listLimit = 2 * time.Second
)

// Names of the steps, each one persisted write.
const (
	stepHold     = "pods-hold"
	stepCordon   = "pods-cordon"
	stepBegin    = "pods-begin"
	stepProgress = "pods-progress"
	stepEvict    = "pods-evict"
	stepComplete = "pods-complete"
	stepCancel   = "pods-cancel"
	stepFail     = "pods-fail"
)

// nodeWorker moves the pods of the node of one drain. Everything that outlives it is in the Drain and in the pods.
type nodeWorker struct {
	*worker.Worker[*v1alpha1.Drain]
	*Controller
	node string

	watch    *podWatch
	cordoned *corev1.Node // the newest version of the core Node in which this worker knows it to be cordoned; the cache may be older
	turn     *turn        // its place among the drains that begin; nil before it asked for one
	inherits bool         // what the coordinator before evicted last is among what was sent, or there is none
	queued   time.Time    // since when this drain waits for its turn; zero if it does not
	ctx      context.Context
	written  time.Time // when the status was last written
	released time.Time // since when no process has the lease of the node, as far as this worker has seen
	logged   string    // the last error in the log
	explains time.Time // when an explanation that is out of date may be renewed; zero if none is

	mu         sync.Mutex
	stopped    bool            // the drain has ended or is about to: what was not sent yet is not sent
	namespaces map[string]bool // of the pods on the node
	attempts   map[types.UID]Attempt
	failures   map[types.UID]int64
	underway   int
	sent       []Action // accepted, and not in the status yet
	first      time.Time
	unready    map[string]explanation
}

// explanation is which pods of a budget were not Ready, as of a version of it.
type explanation struct {
	version string
	at      time.Time
	names   []string
}

func newNodeWorker(c *Controller, d *v1alpha1.Drain) *nodeWorker {
	w := &nodeWorker{
		Worker: worker.New[*v1alpha1.Drain](), Controller: c, node: d.Spec.NodeName, namespaces: map[string]bool{}, attempts: map[types.UID]Attempt{},
		failures: map[types.UID]int64{}, unready: map[string]explanation{},
	}
	w.See(d)
	return w
}

// run works until the drain has ended, is deleted, or ctx ends.
func (w *nodeWorker) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer w.endTurn()
	w.ctx = ctx
	w.Signal.Run(ctx, backoff.Policy{First: 100 * time.Millisecond, Longest: 5 * time.Second}, func() worker.Next {
		next := w.look(ctx)
		if next.Err != nil && ctx.Err() == nil && next.Err.Error() != w.logged {
			w.logged = next.Err.Error()
			w.Log.Warn("pods: trying again", "target", w.node, "error", next.Err)
		}
		return next
	})
}

// concerns reports whether a change of a budget of a namespace concerns the node; "" is any namespace.
func (w *nodeWorker) concerns(namespace string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return namespace == "" || w.namespaces[namespace]
}

var forever = worker.Next{In: worker.Forever}

// look takes the next step. Writes that meet a newer version look again.
func (w *nodeWorker) look(ctx context.Context) worker.Next {
	next, err := w.step(ctx)
	switch {
	case apierrors.IsConflict(err) || kubeclient.IsMissing(err):
		if err := w.reread(ctx); err != nil {
			return worker.Next{Err: err}
		}
		return worker.Next{}
	case err != nil:
		return worker.Next{Err: err}
	}
	return w.byDeadline(next)
}

// reread reads the drain from the server.
func (w *nodeWorker) reread(ctx context.Context) error {
	old, _ := w.Newest()
	d := &v1alpha1.Drain{}
	err := w.live.Get(ctx, client.ObjectKeyFromObject(old), d)
	if kubeclient.IsMissing(err) || err == nil && d.UID != old.UID {
		w.Delete(old.UID)
		return nil
	}
	if err == nil {
		w.See(d)
	}
	return err
}

func (w *nodeWorker) step(ctx context.Context) (worker.Next, error) {
	d, deleted := w.Newest()
	switch {
	case deleted:
		return worker.Next{Done: true}, nil
	case d.Status.Phase.Final():
		return w.leave(ctx, d)
	}
	alone, wait, err := w.alone(ctx, d)
	if err != nil || wait > 0 {
		return worker.Next{In: wait}, err
	}
	if !alone && !w.accepted(ctx, d) {
		return forever, nil // the coordinator has not decided about it, or it is Stopping
	}
	core := &corev1.Node{}
	err = w.cached.Get(ctx, client.ObjectKey{Name: w.node}, core)
	gone := kubeclient.IsMissing(err)
	if err != nil && !gone {
		return worker.Next{}, err
	}
	if !gone && w.cordoned != nil && kubeclient.Older(core, w.cordoned) {
		core = w.cordoned
	}
	began := d.Status.Pods != nil && d.Status.Pods.StartedAt != nil
	owns := !gone && cordon.Owns(core, string(d.UID))
	switch {
	case d.Spec.Cancelled || !d.DeletionTimestamp.IsZero():
		return w.cancel(ctx, d, alone, v1alpha1.ReasonCancelRequested, fmt.Sprintf("The drain was cancelled: node %s takes pods again.", w.node))
	case gone && !began:
		return forever, nil // there is nothing to move; the coordinator refuses it
	case !gone && !cordon.Is(core) && (owns || began || d.Status.StartedAt != nil || w.wasCordoned(core)):
		return w.uncordoned(ctx, d, alone)
	case alone && !began && w.late(ctx, d):
		return w.giveUp(ctx, d, core)
	case !began && !w.tryTurn(d):
		return w.awaitTurn(ctx, d, alone)
	case (alone || !gone && wantsCordon(core, d)) && !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer):
		next := d.DeepCopy()
		controllerutil.AddFinalizer(next, v1alpha1.DrainFinalizer)
		return worker.Next{}, w.write(ctx, stepHold, next, false)
	case !gone && wantsCordon(core, d):
		return w.cordon(ctx, d, core, alone)
	}
	if !gone {
		w.cordoned = core
	}
	if w.watch == nil {
		w.watch = watchPods(w.ctx, w.kube, w.node, w.Wake)
	}
	return w.move(ctx, d, alone, gone)
}

// alone reports whether a drain moves nothing but pods, because no process of Ebb holds the lease of its node. What is persisted decides.
// A lease that was released may be that of a process that is only restarted: whose the drain is, is decided after a while.
func (w *nodeWorker) alone(ctx context.Context, d *v1alpha1.Drain) (alone bool, wait time.Duration, err error) {
	if d.Status.Scope == v1alpha1.ScopePods || d.Status.StartedAt != nil {
		return d.Status.Scope == v1alpha1.ScopePods, 0, nil
	}
	if w.slotOf(ctx, d) {
		return false, 0, nil
	}
	if err := w.cached.Get(ctx, client.ObjectKey{Name: w.node}, &corev1.Node{}); err != nil {
		return false, 0, client.IgnoreNotFound(err)
	}
	rec, err := fleet.ReadLease(ctx, w.cached, w.node)
	switch {
	case err != nil:
		return false, 0, err
	case rec.Held():
		w.released = time.Time{}
		return false, 0, nil
	case rec.Epoch == 0 || rec.Fenced >= rec.Epoch:
		return true, 0, nil
	case w.released.IsZero():
		w.released = time.Now()
	}
	return true, max(0, returnLimit-time.Since(w.released)), nil
}

// slotOf reports whether a drain has the slot.
func (w *nodeWorker) slotOf(ctx context.Context, d *v1alpha1.Drain) bool {
	settings := &v1alpha1.Settings{}
	err := w.cached.Get(ctx, client.ObjectKey{Name: v1alpha1.SettingsName}, settings)
	return err == nil && settings.Status.ActiveDrain != nil && settings.Status.ActiveDrain.UID == string(d.UID)
}

// accepted reports whether a drain of Ebb's own work was accepted: it waits in the queue, has the slot, or is running.
func (w *nodeWorker) accepted(ctx context.Context, d *v1alpha1.Drain) bool {
	switch d.Status.Phase {
	case v1alpha1.DrainPending, v1alpha1.DrainDraining:
		return true
	case "":
		return w.slotOf(ctx, d)
	}
	return false
}

// cordon cordons the node as an owner of the cordon. A running drain of Ebb's own work has cordoned it before.
func (w *nodeWorker) cordon(ctx context.Context, d *v1alpha1.Drain, core *corev1.Node, alone bool) (worker.Next, error) {
	if err := w.checkTermRecently(ctx); err != nil {
		return worker.Next{}, err
	}
	w.at("before-" + stepCordon)
	next := core.DeepCopy()
	cordon.Add(next, string(d.UID))
	err := w.client.Update(ctx, next)
	if apierrors.IsConflict(err) {
		live := &corev1.Node{}
		if err := w.live.Get(ctx, client.ObjectKeyFromObject(core), live); err != nil {
			return worker.Next{}, err
		}
		next = live
		if err = nil; wantsCordon(live, d) {
			cordon.Add(live, string(d.UID))
			err = w.client.Update(ctx, live)
		}
	}
	if err != nil {
		err = fmt.Errorf("cordon node %s: %w", w.node, err)
		if ctx.Err() != nil {
			return worker.Next{}, err
		}
		_, failed := w.report(ctx, d, alone, notCordoned(w.node, err), 0)
		return worker.Next{}, errors.Join(err, failed)
	}
	w.at("after-" + stepCordon)
	w.cordoned = next
	return worker.Next{}, nil // the list begins after the cordon
}

// wantsCordon reports whether a drain has to become an owner of the cordon of its node: there is none, or other objects of Ebb made it, which
// lift it when they want it no longer. The cordon of a person has no owners and stays so, and a health event ends its Drain before its cordon.
func wantsCordon(core *corev1.Node, d *v1alpha1.Drain) bool {
	if !cordon.Is(core) {
		return true
	}
	return len(v1alpha1.CordonOwners(core)) > 0 && !cordon.Owns(core, string(d.UID)) && d.Annotations[v1alpha1.HealthEventAnnotation] == ""
}

// wasCordoned reports whether this worker has seen a core Node cordoned. If it is not any more, somebody uncordoned it, also if its owners have
// been removed since.
func (w *nodeWorker) wasCordoned(core *corev1.Node) bool {
	return w.cordoned != nil && w.cordoned.UID == core.UID
}

// readNode reads the core Node from the server; nil if there is none.
func (w *nodeWorker) readNode(ctx context.Context) (*corev1.Node, error) {
	core := &corev1.Node{}
	err := w.live.Get(ctx, client.ObjectKey{Name: w.node}, core)
	switch {
	case kubeclient.IsMissing(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read node %s: %w", w.node, err)
	}
	return core, nil
}

// uncordoned ends a drain whose node was uncordoned, if the server says so too: the cache of a new coordinator may be older than the cordon.
func (w *nodeWorker) uncordoned(ctx context.Context, d *v1alpha1.Drain, alone bool) (worker.Next, error) {
	core, err := w.readNode(ctx)
	switch {
	case err != nil:
		return worker.Next{}, err
	case core == nil:
		return worker.Next{In: lookAgain}, nil // its deletion wakes this worker
	case cordon.Is(core):
		w.cordoned = core
		return worker.Next{}, nil
	}
	if cordon.Replaced(core, d) {
		return w.cancel(ctx, d, alone, v1alpha1.ReasonNodeReplaced, fmt.Sprintf("Node %s was deleted and created again, without the cordon, and takes pods.", w.node))
	}
	return w.cancel(ctx, d, alone, v1alpha1.ReasonUncordoned, fmt.Sprintf("Node %s was uncordoned and takes pods again.", w.node))
}

// move evaluates the pods, writes what it found, and sends what is to be sent.
func (w *nodeWorker) move(ctx context.Context, d *v1alpha1.Drain, alone, gone bool) (worker.Next, error) {
	w.setStopped(false)
	pods, arrived, listed := w.watch.see()
	if known := w.budgets.start(w.term); !known || !listed {
		return w.awaitLists(ctx, d, alone, listed) // their watches wake this worker
	}
	s, err := w.snapshot(ctx, d, pods, arrived, gone)
	if err != nil {
		return worker.Next{}, err
	}
	plan := Evaluate(s)
	began := d.Status.Pods != nil && d.Status.Pods.StartedAt != nil
	if began {
		w.inherit(d, pods)
	}
	switch {
	case !began || alone && d.Status.Scope == "": // its own process may have ended after the pods had begun to leave
		err := w.begin(ctx, d, alone, s, plan)
		if err == nil {
			w.endTurn()
		}
		return worker.Next{}, err
	case alone && expired(d, s.time()):
		return worker.Next{}, w.fail(ctx, d, s, plan) // what is under way is waited for, and written down, when it has ended
	case plan.Remaining() == 0 && (alone || d.Status.Pods.FinishedAt == nil):
		return w.finish(ctx, d, alone, s)
	}
	if err := w.evict(ctx, plan); err != nil {
		return worker.Next{}, err
	}
	wait, err := w.progress(ctx, d, alone, s, plan)
	if err != nil {
		return worker.Next{}, err
	}
	for _, at := range []time.Time{plan.Again, w.explains} {
		if !at.IsZero() {
			wait = min(wait, max(at.Sub(s.Now), time.Millisecond))
		}
	}
	if alone && d.Spec.Deadline != nil && d.Status.StartedAt != nil {
		wait = min(wait, max(d.Status.StartedAt.Add(d.Spec.Deadline.Duration).Sub(s.time()), time.Millisecond))
	}
	return worker.Next{In: wait}, nil
}

// awaitLists waits for the first lists of pods and budgets, and reports it if that lasts or fails. Nothing is evicted before.
func (w *nodeWorker) awaitLists(ctx context.Context, d *v1alpha1.Drain, alone, listed bool) (worker.Next, error) {
	what, trouble := "pods", w.watch.trouble()
	if listed {
		what, trouble = "budgets", w.budgets.trouble()
	}
	limit := listLimit
	if trouble.err != nil {
		limit = writeEvery // a first failure may be mended by the next request
	}
	if wait := limit - time.Since(trouble.since); wait > 0 {
		return worker.Next{In: wait}, nil
	}
	return w.report(ctx, d, alone, notListed(w.node, what, trouble), listLimit)
}

// report writes the one thing that a drain waits for before it begins, and looks again after a while.
func (w *nodeWorker) report(ctx context.Context, d *v1alpha1.Drain, alone bool, blocker v1alpha1.PodBlocker, again time.Duration) (worker.Next, error) {
	next := d.DeepCopy()
	if next.Status.Pods == nil {
		next.Status.Pods = &v1alpha1.PodsStatus{}
	}
	if old := next.Status.Pods.Blockers; len(old) == 1 && same(old[0], blocker) {
		blocker.Since = old[0].Since
	}
	next.Status.Pods.Blockers = []v1alpha1.PodBlocker{blocker}
	if alone {
		next.Status.Blockers = drainBlockers(next.Status.Pods.Blockers)
	}
	if sameStatus(next, d) {
		return worker.Next{In: again}, nil
	}
	if wait := writeEvery - time.Since(w.written); wait > 0 {
		return worker.Next{In: wait}, nil
	}
	return worker.Next{In: again}, w.write(ctx, stepProgress, next, true)
}

// snapshot is everything that a decision rests on.
func (w *nodeWorker) snapshot(ctx context.Context, d *v1alpha1.Drain, pods []*Pod, arrived map[types.UID]bool, gone bool) (Snapshot, error) {
	now := time.Now()
	s := Snapshot{
		Now: now, Server: w.clock.Now(), Node: w.node, NodeGone: gone, Pods: pods, Config: w.Config, Requested: d.Requested().Time, TerminatingFor: w.Limits.TerminatingFor,
		Arrived: arrived, Attempts: map[types.UID]Attempt{}, Unready: map[string][]string{},
	}
	namespaces, there := map[string]bool{}, map[types.UID]bool{}
	for _, p := range pods {
		namespaces[p.Namespace], there[p.UID] = true, true
	}
	w.mu.Lock()
	w.namespaces = namespaces
	for uid := range w.attempts {
		if a := w.attempts[uid]; there[uid] {
			s.Attempts[uid] = a
		} else if a.Again.IsZero() && !a.Refused {
			continue // under way
		} else {
			delete(w.attempts, uid)
			delete(w.failures, uid)
		}
	}
	w.mu.Unlock()
	var err error
	if s.Budgets, err = w.budgets.of(namespaces); err != nil {
		return s, err
	}
	w.explain(ctx, &s)
	return s, nil
}

// explain finds out which pods of the budgets that refuse are not Ready.
func (w *nodeWorker) explain(ctx context.Context, s *Snapshot) {
	w.explains = time.Time{}
	if len(s.Budgets) == 0 {
		return
	}
	refusing := map[string]*Budget{}
	for _, a := range Evaluate(*s).Actions {
		if a.Verb == Wait && a.Budget != nil && (a.Reason == WaitsBudget || a.Reason == WaitsNever) {
			refusing[a.Budget.Key()] = a.Budget
		}
	}
	for key, b := range refusing {
		known := w.unready[key]
		renew := known.at.Add(explainEvery)
		if known.version != b.Version && s.Now.Before(renew) && (w.explains.IsZero() || renew.Before(w.explains)) {
			w.explains = renew // no other change may follow
		}
		if known.version != b.Version && !s.Now.Before(renew) {
			names, err := listUnready(ctx, w.kube, b)
			if err != nil {
				// It only explains: evictions do not wait for it, and it is asked again.
				w.Log.Debug("pods: could not list the pods of a budget", "target", w.node, "budget", key, "error", err)
				names, b = known.names, &Budget{}
				w.explains = s.Now.Add(explainEvery)
			}
			known = explanation{version: b.Version, at: s.Now, names: names}
			w.unready[key] = known
		}
		s.Unready[key] = known.names
	}
}

// evict sends what a plan says, within limits. Every request is for exactly the pod that was seen.
func (w *nodeWorker) evict(ctx context.Context, plan Plan) error {
	checked := false
	for _, a := range plan.Actions {
		if a.Verb != Evict && a.Verb != Delete {
			continue
		}
		w.mu.Lock()
		full := w.underway >= w.Limits.perNode()
		w.mu.Unlock()
		if full {
			return nil // the end of one wakes this worker
		}
		if !checked {
			if err := w.checkTermRecently(ctx); err != nil {
				return err
			}
			w.at("before-" + stepEvict)
			checked = true
		}
		version := ""
		if a.Budget != nil {
			version = a.Budget.Version
		}
		w.mu.Lock()
		w.underway++
		w.attempts[a.Pod.UID] = Attempt{Accepted: true, Budget: version}
		w.mu.Unlock()
		w.running.Add(1)
		go w.request(ctx, a)
	}
	return nil
}

// request sends one eviction or deletion, and records its result. It is not sent if the drain ends before its turn comes.
func (w *nodeWorker) request(ctx context.Context, a Action) {
	defer w.running.Done()
	sent := false
	err := w.limited(ctx, func() error {
		if sent = !w.isStopped(); !sent {
			return nil
		}
		return send(ctx, w.kube, a)
	})
	now := time.Now()
	w.mu.Lock()
	if err == nil && !sent {
		w.underway--
		delete(w.attempts, a.Pod.UID)
		w.mu.Unlock()
		w.Wake()
		return
	}
	attempt, result := judge(err, a, w.failures[a.Pod.UID], now)
	w.underway--
	w.attempts[a.Pod.UID] = attempt
	switch result {
	case resultAccepted:
		w.sent = append(w.sent, a)
		if w.first.IsZero() {
			w.first = now
		}
		delete(w.failures, a.Pod.UID)
	case resultFailed:
		w.failures[a.Pod.UID]++
	}
	w.mu.Unlock()
	w.Metrics.sent(a.Verb, result)
	if result == resultAccepted {
		w.at("after-" + stepEvict)
	}
	w.Wake()
}
