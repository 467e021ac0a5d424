package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
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
	ctx      context.Context
	written  time.Time // when the status was last written
	released time.Time // since when no process has the lease of the node, as far as this worker has seen
	logged   string    // the last error in the log

	mu         sync.Mutex
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
	return next
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
	if deleted || d.Status.Phase.Final() {
		return worker.Next{Done: true}, nil
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
	began := d.Status.Pods != nil && d.Status.Pods.StartedAt != nil
	owns := !gone && cordon.Owns(core, string(d.UID))
	switch {
	case d.Spec.Cancelled || !d.DeletionTimestamp.IsZero():
		return w.cancel(ctx, d, alone, v1alpha1.ReasonCancelRequested, fmt.Sprintf("The drain was cancelled: node %s takes pods again.", w.node))
	case gone && !began:
		return forever, nil // there is nothing to move; the coordinator refuses it
	case !gone && !cordon.Is(core) && (owns || began || d.Status.StartedAt != nil):
		return w.cancel(ctx, d, alone, v1alpha1.ReasonUncordoned, fmt.Sprintf("Node %s was uncordoned and takes pods again.", w.node))
	case alone && !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer):
		next := d.DeepCopy()
		controllerutil.AddFinalizer(next, v1alpha1.DrainFinalizer)
		return worker.Next{}, w.write(ctx, stepHold, next, false)
	case !gone && !cordon.Is(core):
		return w.cordon(ctx, d, core)
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

// cordon cordons the node as the owner of the cordon. A running drain of Ebb's own work has cordoned it before.
func (w *nodeWorker) cordon(ctx context.Context, d *v1alpha1.Drain, core *corev1.Node) (worker.Next, error) {
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
		if cordon.Is(live) {
			return worker.Next{In: writeEvery}, nil // the cache will show it, and wake this worker
		}
		cordon.Add(live, string(d.UID))
		err = w.client.Update(ctx, live)
	}
	if err != nil {
		return worker.Next{}, fmt.Errorf("cordon node %s: %w", w.node, err)
	}
	w.at("after-" + stepCordon)
	if w.watch == nil {
		w.watch = watchPods(w.ctx, w.kube, w.node, w.Wake) // the list begins after the cordon
	}
	return worker.Next{In: writeEvery}, nil // the watch of core Nodes wakes this worker
}

// move evaluates the pods, writes what it found, and sends what is to be sent.
func (w *nodeWorker) move(ctx context.Context, d *v1alpha1.Drain, alone, gone bool) (worker.Next, error) {
	pods, arrived, listed := w.watch.see()
	if !w.budgets.start(w.term) || !listed {
		return forever, nil // their watches wake this worker
	}
	s, err := w.snapshot(ctx, d, pods, arrived, gone)
	if err != nil {
		return worker.Next{}, err
	}
	plan := Evaluate(s)
	began := d.Status.Pods != nil && d.Status.Pods.StartedAt != nil
	switch {
	case !began || alone && d.Status.Scope == "": // its own process may have ended after the pods had begun to leave
		return worker.Next{}, w.begin(ctx, d, alone, s, plan)
	case alone && expired(d, s.Now):
		return worker.Next{Done: true}, w.fail(ctx, d, s, plan)
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
	if at := plan.Again; !at.IsZero() {
		wait = min(wait, max(at.Sub(s.Now), time.Millisecond))
	}
	if alone && d.Spec.Deadline != nil && d.Status.StartedAt != nil {
		wait = min(wait, max(d.Status.StartedAt.Add(d.Spec.Deadline.Duration).Sub(s.Now), time.Millisecond))
	}
	return worker.Next{In: wait}, nil
}

// snapshot is everything that a decision rests on.
func (w *nodeWorker) snapshot(ctx context.Context, d *v1alpha1.Drain, pods []*Pod, arrived map[types.UID]bool, gone bool) (Snapshot, error) {
	now := time.Now()
	s := Snapshot{
		Now: now, Node: w.node, NodeGone: gone, Pods: pods, Config: w.Config, Requested: d.Requested().Time, TerminatingFor: w.Limits.TerminatingFor,
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
	return s, w.explain(ctx, &s)
}

// explain finds out which pods of the budgets that refuse are not Ready.
func (w *nodeWorker) explain(ctx context.Context, s *Snapshot) error {
	if len(s.Budgets) == 0 {
		return nil
	}
	refusing := map[string]*Budget{}
	for _, a := range Evaluate(*s).Actions {
		if a.Verb == Wait && a.Budget != nil && (a.Reason == WaitsBudget || a.Reason == WaitsNever) {
			refusing[a.Budget.Key()] = a.Budget
		}
	}
	for key, b := range refusing {
		known := w.unready[key]
		if known.version != b.Version && s.Now.Sub(known.at) >= explainEvery {
			names, err := listUnready(ctx, w.kube, b)
			if err != nil {
				return err
			}
			known = explanation{version: b.Version, at: s.Now, names: names}
			w.unready[key] = known
		}
		s.Unready[key] = known.names
	}
	return nil
}

// begin persists that the pods are moved from here on, and what keeps them, before anything is evicted. For a drain of pods alone this is
// the decision: it is written only if no process has the lease of the node still.
func (w *nodeWorker) begin(ctx context.Context, d *v1alpha1.Drain, alone bool, s Snapshot, plan Plan) error {
	next := d.DeepCopy()
	observe(next, s, plan, nil, time.Time{})
	if alone {
		rec, err := fleet.ReadLease(ctx, w.live, w.node)
		if err != nil {
			return err
		}
		if rec.Held() && d.Status.Scope == "" {
			return nil // it has joined since: the drain is Ebb's
		}
		own(next, s.Now)
	}
	return w.write(ctx, stepBegin, next, true)
}

// progress writes what has changed, not too often, and returns when to look again.
func (w *nodeWorker) progress(ctx context.Context, d *v1alpha1.Drain, alone bool, s Snapshot, plan Plan) (time.Duration, error) {
	w.mu.Lock()
	sent, first := w.sent, w.first
	w.mu.Unlock()
	next := d.DeepCopy()
	observe(next, s, plan, sent, first)
	if alone {
		own(next, s.Now)
	}
	if sameStatus(next, d) {
		w.forget(len(sent))
		return worker.Forever, nil
	}
	if wait := max(writeEvery, w.writeInterval()) - time.Since(w.written); wait > 0 {
		return wait, nil
	}
	if err := w.write(ctx, stepProgress, next, true); err != nil {
		return 0, err
	}
	w.forget(len(sent))
	return worker.Forever, nil
}

// forget drops the first of what was sent: it is in the status.
func (w *nodeWorker) forget(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = w.sent[n:]
}

// finish ends the track of the pods when the server itself says that none is left.
func (w *nodeWorker) finish(ctx context.Context, d *v1alpha1.Drain, alone bool, s Snapshot) (worker.Next, error) {
	var err error
	if s.Pods, err = listPods(ctx, w.kube, w.node); err != nil {
		return worker.Next{}, err
	}
	plan := Evaluate(s)
	if plan.Remaining() > 0 {
		return worker.Next{In: writeEvery}, nil // the watch will show them
	}
	w.mu.Lock()
	sent, first := w.sent, w.first
	w.mu.Unlock()
	next := d.DeepCopy()
	observe(next, s, plan, sent, first)
	next.Status.Pods.FinishedAt = &metav1.MicroTime{Time: s.Now}
	if !alone {
		err := w.write(ctx, stepComplete, next, true)
		if err == nil {
			w.forget(len(sent))
		}
		return worker.Next{}, err
	}
	own(next, s.Now)
	left, err := w.placed(ctx)
	if err != nil {
		return worker.Next{}, err
	}
	if left != "" {
		return w.awaitWork(ctx, d, next, left)
	}
	reason := v1alpha1.ReasonDrained
	if s.NodeGone {
		reason = v1alpha1.ReasonNodeGone
	}
	end(next, s.Now, v1alpha1.DrainComplete, reason, drainedMessage(next, s.NodeGone))
	return worker.Next{}, w.write(ctx, stepComplete, next, true)
}

// placed says in words which work of Ebb the objects place on the node; empty for none.
func (w *nodeWorker) placed(ctx context.Context) (string, error) {
	if w.Tenants == nil {
		return "", nil
	}
	var works drain.Works
	counts, total := map[string]int64{}, int64(0)
	for _, t := range w.Tenants(w.cached) {
		if t.Work().Name == Name {
			continue
		}
		left, err := t.Remaining(ctx, w.node)
		if err != nil {
			return "", err
		}
		works = append(works, t.Work())
		counts[t.Work().Name] = left.Count
		total += left.Count
	}
	if total == 0 {
		return "", nil
	}
	return works.Listed(counts), nil
}

// awaitWork waits for work of Ebb on the node of a drain of pods alone: nobody may take the machine away before it has left.
func (w *nodeWorker) awaitWork(ctx context.Context, d, next *v1alpha1.Drain, left string) (worker.Next, error) {
	next.Status.Pods.FinishedAt = d.Status.Pods.FinishedAt
	next.Status.Blockers = []v1alpha1.Blocker{{
		Kind: "Node", Name: w.node, Reason: WaitsWork, Since: metav1.NewTime(time.Now().Truncate(time.Second)),
		Remedy: fmt.Sprintf("the pods have left, and %s of Ebb is left on the node, which did not run when the drain began: start the node, cancel this drain and drain the node again, or wait until the work has moved", left),
	}}
	if len(d.Status.Blockers) == 1 && d.Status.Blockers[0].Reason == WaitsWork {
		next.Status.Blockers[0].Since = d.Status.Blockers[0].Since
	}
	if !sameStatus(next, d) {
		if err := w.write(ctx, stepProgress, next, true); err != nil {
			return worker.Next{}, err
		}
	}
	return worker.Next{In: recountEvery}, nil
}

// cancel ends a drain of pods alone, and says what was evicted already. The coordinator ends every other drain, and lifts cordons.
func (w *nodeWorker) cancel(ctx context.Context, d *v1alpha1.Drain, alone bool, reason, message string) (worker.Next, error) {
	if w.busy() {
		return forever, nil // requests are under way; the end of each wakes this worker
	}
	if !alone {
		return forever, w.record(ctx, d)
	}
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer) && !d.DeletionTimestamp.IsZero() {
		return worker.Next{Done: true}, nil
	}
	next := d.DeepCopy()
	if w.sentAny() || d.Status.Pods != nil {
		w.note(next)
	}
	end(next, time.Now(), v1alpha1.DrainCancelled, reason, message+" "+Moved(next.Status.Pods))
	return worker.Next{}, w.write(ctx, stepCancel, next, true)
}

// record writes what was evicted, for a drain that ends elsewhere.
func (w *nodeWorker) record(ctx context.Context, d *v1alpha1.Drain) error {
	if !w.sentAny() || d.Status.Pods == nil {
		return nil
	}
	w.mu.Lock()
	n := len(w.sent)
	w.mu.Unlock()
	next := d.DeepCopy()
	w.note(next)
	err := w.write(ctx, stepProgress, next, true)
	if err == nil {
		w.forget(n)
	}
	return err
}

func (w *nodeWorker) busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.underway > 0
}

func (w *nodeWorker) sentAny() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sent) > 0
}

// note adds what was sent to a status, and leaves the rest as it is.
func (w *nodeWorker) note(d *v1alpha1.Drain) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := d.Status.Pods.DeepCopy()
	observe(d, Snapshot{Now: time.Now()}, Plan{}, w.sent, w.first)
	if old != nil {
		st := d.Status.Pods
		st.Remaining, st.Terminating, st.Staying, st.Blockers, st.FinishedAt = old.Remaining, old.Terminating, old.Staying, old.Blockers, old.FinishedAt
	}
}

// expired reports whether the deadline of a drain has passed.
func expired(d *v1alpha1.Drain, now time.Time) bool {
	return d.Spec.Deadline != nil && d.Status.StartedAt != nil && !now.Before(d.Status.StartedAt.Add(d.Spec.Deadline.Duration))
}

// fail ends a drain of pods alone at its deadline. The blockers stay for people to read, and the node stays cordoned.
func (w *nodeWorker) fail(ctx context.Context, d *v1alpha1.Drain, s Snapshot, plan Plan) error {
	w.mu.Lock()
	sent, first := w.sent, w.first
	w.mu.Unlock()
	next := d.DeepCopy()
	observe(next, s, plan, sent, first)
	own(next, s.Now)
	end(next, s.Now, v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, fmt.Sprintf(
		"Node %s was not drained within %s: %s. It stays cordoned; a new Drain of it continues where this one ended.", w.node, d.Spec.Deadline.Duration, Progress(next.Status.Pods)))
	return w.write(ctx, stepFail, next, true)
}

// write writes the drain with the version that was read. The term is checked before what decides something.
func (w *nodeWorker) write(ctx context.Context, step string, d *v1alpha1.Drain, status bool) error {
	check := w.CheckTerm
	if step == stepHold || step == stepBegin {
		check = w.checkTermRecently // what they write can be taken back
	}
	if step != stepProgress {
		if err := check(ctx); err != nil {
			return err
		}
	}
	w.at("before-" + step)
	var err error
	if status {
		err = w.client.Status().Update(ctx, d)
	} else {
		err = w.client.Update(ctx, d)
	}
	if err != nil {
		if apierrors.IsConflict(err) || kubeclient.IsMissing(err) {
			return err
		}
		return fmt.Errorf("drain %s: step %s: %w", d.Name, step, err)
	}
	w.at("after-" + step)
	w.written = time.Now()
	w.See(d)
	if step != stepProgress {
		w.Log.Info("pods: step taken", "step", step, "drain", d.Name, "target", w.node)
	}
	return nil
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

// request sends one eviction or deletion, and records its result.
func (w *nodeWorker) request(ctx context.Context, a Action) {
	defer w.running.Done()
	err := w.limited(ctx, func() error { return send(ctx, w.kube, a) })
	now := time.Now()
	w.mu.Lock()
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
