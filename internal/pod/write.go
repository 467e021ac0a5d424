package pod

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/worker"
)

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
		own(next, s.time())
	}
	err := w.write(ctx, stepBegin, next, true)
	w.inherits = w.inherits || err == nil // nothing was evicted before
	return err
}

// inherit counts, once, what the coordinator before evicted and did not write down. there are the pods of the node.
func (w *nodeWorker) inherit(d *v1alpha1.Drain, there []*Pod) {
	if w.inherits {
		return
	}
	w.inherits = true
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, inherited(d.Status.Pods, there)...)
}

// progress writes what has changed, not too often, and returns when to look again.
func (w *nodeWorker) progress(ctx context.Context, d *v1alpha1.Drain, alone bool, s Snapshot, plan Plan) (time.Duration, error) {
	w.mu.Lock()
	sent, first := w.sent, w.first
	w.mu.Unlock()
	next := d.DeepCopy()
	observe(next, s, plan, sent, first)
	if alone {
		own(next, s.time())
	}
	if sameStatus(next, d) {
		w.forget(len(sent))
		return worker.Forever, nil
	}
	if wait := max(writeEvery, w.writeInterval()) - time.Since(w.written); wait > 0 {
		return wait, nil
	}
	return worker.Forever, w.writeSent(ctx, stepProgress, next, len(sent))
}

// forget drops the first of what was sent: it is in the status.
func (w *nodeWorker) forget(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = w.sent[n:]
}

// finish ends the track of the pods when the server itself says that none is left, and that the node is still cordoned or gone.
func (w *nodeWorker) finish(ctx context.Context, d *v1alpha1.Drain, alone bool, s Snapshot) (worker.Next, error) {
	if w.busy() {
		return forever, nil // an answer may come after its pod has gone, and counts; it wakes this worker
	}
	core, err := w.readNode(ctx)
	if err != nil {
		return worker.Next{}, err
	}
	if core != nil && !cordon.Is(core) {
		return w.uncordoned(ctx, d, alone)
	}
	s.NodeGone = core == nil
	if s.Pods, err = listPods(ctx, w.kube, w.node); err != nil {
		if ctx.Err() != nil {
			return worker.Next{}, err
		}
		_, failed := w.report(ctx, d, alone, notListed(w.node, "pods", trouble{time.Now(), err}), 0)
		return worker.Next{}, errors.Join(err, failed)
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
		return worker.Next{}, w.writeSent(ctx, stepComplete, next, len(sent))
	}
	own(next, s.time())
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
	end(next, s.time(), v1alpha1.DrainComplete, reason, drainedMessage(next, s.NodeGone))
	return worker.Next{}, w.writeSent(ctx, stepComplete, next, len(sent))
}

// placed says in words which work of Ebb the objects place on the node; empty for none. That there is none is read from the server, if the
// node was ever Ebb's: nobody can place work on another one.
func (w *nodeWorker) placed(ctx context.Context) (string, error) {
	left, err := w.placedAs(ctx, w.cached)
	if err != nil || left != "" {
		return left, err
	}
	err = w.cached.Get(ctx, client.ObjectKey{Name: w.node}, &v1alpha1.Node{})
	if kubeclient.IsMissing(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return w.placedAs(ctx, w.live)
}

// placedAs is placed as a reader knows it.
func (w *nodeWorker) placedAs(ctx context.Context, r client.Reader) (string, error) {
	if w.Tenants == nil {
		return "", nil
	}
	var works drain.Works
	counts, total := map[string]int64{}, int64(0)
	for _, t := range w.Tenants(r) {
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
		Remedy: fmt.Sprintf("the pods have left, but %s of Ebb is placed on the node, on which no process of Ebb ran when the drain began: start the node, cancel this drain and drain the node again, or wait until the work has moved", left),
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
	w.setStopped(true)
	if w.busy() {
		return forever, nil // requests are under way; the end of each wakes this worker
	}
	if !alone {
		return forever, w.record(ctx, d)
	}
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DrainFinalizer) && !d.DeletionTimestamp.IsZero() {
		return worker.Next{Done: true}, nil
	}
	next, sent := d.DeepCopy(), 0
	if w.sentAny() || d.Status.Pods != nil {
		sent = w.note(next, w.unwritten(ctx, d))
	}
	now := Snapshot{Now: time.Now(), Server: w.clock.Now()}.time() // as it began
	end(next, now, v1alpha1.DrainCancelled, reason, message+" "+Moved(next.Status.Pods))
	return worker.Next{}, w.writeSent(ctx, stepCancel, next, sent)
}

// leave ends this worker after its drain, which may have ended elsewhere: first what was evicted meanwhile is written down.
func (w *nodeWorker) leave(ctx context.Context, d *v1alpha1.Drain) (worker.Next, error) {
	w.setStopped(true)
	if w.busy() {
		return forever, nil
	}
	return worker.Next{Done: true}, w.record(ctx, d)
}

// record writes what was evicted, for a drain that ends elsewhere.
func (w *nodeWorker) record(ctx context.Context, d *v1alpha1.Drain) error {
	if d.Status.Pods == nil || !w.sentAny() && w.watch != nil {
		return nil
	}
	next := d.DeepCopy()
	sent := w.note(next, w.unwritten(ctx, d))
	if sameStatus(next, d) {
		return nil
	}
	return w.writeSent(ctx, stepProgress, next, sent)
}

// unwritten evaluates the pods of a drain that ends before this worker has listed them: the coordinator before may have evicted some of them
// that it could not write down any more, and they are terminating. The end of a drain does not wait for a list that fails.
func (w *nodeWorker) unwritten(ctx context.Context, d *v1alpha1.Drain) Plan {
	if w.watch != nil || d.Status.Pods == nil || d.Status.Pods.StartedAt == nil || d.Status.Pods.FinishedAt != nil {
		return Plan{}
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	pods, err := listPods(ctx, w.kube, w.node)
	if err != nil {
		w.Log.Warn("pods: could not list pods that were evicted before this term", "target", w.node, "error", err)
		return Plan{}
	}
	w.inherit(d, pods)
	return Evaluate(Snapshot{Now: time.Now(), Server: w.clock.Now(), Node: w.node, Pods: pods, Config: w.Config, TerminatingFor: w.Limits.TerminatingFor})
}

func (w *nodeWorker) setStopped(stopped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = stopped
}

func (w *nodeWorker) isStopped() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stopped
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

// note adds to a status what was sent, and what a plan shows to have been evicted. It leaves the rest as it is, and returns how many were sent.
func (w *nodeWorker) note(d *v1alpha1.Drain, plan Plan) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := d.Status.Pods.DeepCopy()
	observe(d, Snapshot{Now: time.Now()}, plan, w.sent, w.first)
	d.Status.Pods.LeavingPods = nil
	if old != nil {
		st := d.Status.Pods
		st.StartedAt, st.Initial = old.StartedAt, old.Initial // without a start its pods were never listed
		st.Remaining, st.Terminating, st.Staying, st.Blockers, st.FinishedAt = old.Remaining, old.Terminating, old.Staying, old.Blockers, old.FinishedAt
	}
	return len(w.sent)
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
	own(next, s.time())
	end(next, s.time(), v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded, fmt.Sprintf(
		"Node %s was not drained within %s: %s. It stays cordoned; a new Drain of it continues where this one ended.", w.node, d.Spec.Deadline.Duration, Progress(next.Status.Pods)))
	return w.writeSent(ctx, stepFail, next, len(sent))
}

// late reports whether the deadline of a drain of pods alone has passed before the drain could begin. Until then it counts from the creation,
// by the clock of the API server, which set that time.
func (w *nodeWorker) late(ctx context.Context, d *v1alpha1.Drain) bool {
	if d.Spec.Deadline == nil || d.Status.StartedAt != nil {
		return false
	}
	if w.clock.Now().IsZero() {
		ctx, cancel := context.WithTimeout(ctx, listLimit)
		defer cancel()
		_ = w.kube.CoreV1().RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error() // any answer shows the clock, a refusal too
	}
	now := w.clock.Now()
	return !now.IsZero() && !now.Before(d.CreationTimestamp.Add(d.Spec.Deadline.Duration))
}

// byDeadline looks again at the deadline of a drain that has not begun, at the latest.
func (w *nodeWorker) byDeadline(next worker.Next) worker.Next {
	d, _ := w.Newest()
	now := w.clock.Now()
	if d.Spec.Deadline == nil || d.Status.StartedAt != nil || d.Status.Phase.Final() || now.IsZero() {
		return next
	}
	if left := d.CreationTimestamp.Add(d.Spec.Deadline.Duration).Sub(now); left > 0 {
		next.In = min(next.In, left)
	}
	return next
}

// giveUp fails a drain of pods alone that could not begin before its deadline. The blockers stay for people to read. As for every drain of
// pods that failed, a cordon stays: a new drain continues, and cancelling or deleting this one lifts it.
func (w *nodeWorker) giveUp(ctx context.Context, d *v1alpha1.Drain, core *corev1.Node) (worker.Next, error) {
	rec, err := fleet.ReadLease(ctx, w.live, w.node)
	if err != nil {
		return worker.Next{}, err
	}
	if rec.Held() && d.Status.Scope == "" {
		return worker.Next{In: lookAgain}, nil // it has joined since: the drain is Ebb's
	}
	next, why, cordoned := d.DeepCopy(), Progress(d.Status.Pods), "It is not cordoned."
	if st := d.Status.Pods; st != nil && len(st.Blockers) > 0 {
		why = st.Blockers[0].Message
	}
	if cordon.Is(core) {
		cordoned = "It stays cordoned; a new Drain of it starts over."
	}
	end(next, w.clock.Now(), v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded,
		fmt.Sprintf("The drain of node %s could not begin within %s: %s. No pod was evicted. %s", w.node, d.Spec.Deadline.Duration, why, cordoned))
	return worker.Next{}, w.write(ctx, stepFail, next, true)
}

// writeSent writes a status that has the first of what was sent.
func (w *nodeWorker) writeSent(ctx context.Context, step string, d *v1alpha1.Drain, sent int) error {
	err := w.write(ctx, step, d, true)
	if err == nil {
		w.forget(sent)
	}
	return err
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
