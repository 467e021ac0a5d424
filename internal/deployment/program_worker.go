package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
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
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/shim"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// resync is how often a worker checks again even if nothing has changed.
	resync = 30 * time.Second
	// again is the delay before it retries what failed, and between polls.
	again = 250 * time.Millisecond
	// readyAfter is how long a daemon must have run for a rollout to go on with the next node.
	readyAfter = time.Second
)

// programWorker is the loop of one object on this node: a goroutine that decides (Next), acts, and waits for a change.
type programWorker struct {
	*run
	*worker.Worker[*v1alpha1.Deployment]
	key types.NamespacedName
	dir string

	mu      sync.Mutex
	program *program // nil while none runs here

	// What follows belongs to the worker's own goroutine.
	pass     *node.Pass
	knows    bool       // what an earlier process counted
	orphan   bool       // nothing of it is left, and the object is gone
	stray    bool       // something may run in the directory that the worker is not attached to
	asked    *time.Time // when the program was asked to end
	changing bool       // it was asked because its spec changed
	tried    string     // the revision that was last started, or tried to
	failures int        // in a row
	restarts int32
	lastExit *v1alpha1.InstanceExit
	until    time.Time // the pause before the next start ends
	pause    *metav1.Duration
	since    metav1.MicroTime
	wrote    v1alpha1.DeploymentInstance // what was last written
	logged   string                      // what was last logged
}

// object is the newest version of the object, nil if it is gone.
func (pw *programWorker) object() *v1alpha1.Deployment {
	d, deleted := pw.Newest()
	if deleted {
		return nil
	}
	return d
}

// running is the program, nil while none runs here.
func (pw *programWorker) running() *program {
	pw.mu.Lock()
	defer pw.mu.Unlock()
	return pw.program
}

func (pw *programWorker) setProgram(p *program) {
	pw.mu.Lock()
	pw.program = p
	pw.mu.Unlock()
}

func (pw *programWorker) logger() *slog.Logger {
	return pw.opts.Log.With("deployment", pw.key.String())
}

// work runs the worker until this node has nothing to do with the object any more, or until the node's work ends.
func (pw *programWorker) work(ctx context.Context) {
	defer pw.leave()
	pw.Worker.Run(context.WithoutCancel(ctx), backoff.Policy{}, func() worker.Next { return pw.look(ctx) })
}

// look takes the next step, and returns when to look again.
func (pw *programWorker) look(ctx context.Context) worker.Next {
	if pw.program != nil && pw.program.exited() {
		pw.recordEnd()
	}
	pw.attach(ctx)
	_, changed := pw.e.Liveness()
	w, moved := pw.view()
	f := pw.facts(ctx, w)
	next := worker.Next{In: resync, On: worker.On{changed, moved}}
	if f.Object != nil || f.Leaving || pw.synced.Load() { // otherwise it was found running, and what it is for is not known yet
		pw.remember(f.Object)
		next.In, next.Done = pw.do(ctx, f, Next(f))
	}
	next.Done = next.Done && pw.remove(pw)
	if !f.Leaving {
		next.On[2] = ctx.Done()
	}
	if pw.program != nil {
		next.On[3] = pw.program.done
	}
	return next
}

// remember continues the counts of an earlier process.
func (pw *programWorker) remember(d *v1alpha1.Deployment) {
	if d == nil || pw.knows {
		return
	}
	pw.knows = true
	if i := d.Instance(pw.opts.Node); i != nil {
		pw.restarts, pw.lastExit, pw.pause = i.Restarts, i.LastExit, i.Pause
	}
	f, err := readFailures(pw.dir)
	if err != nil {
		pw.logOnce("could not read how often the program has failed; counting from 0", err)
	}
	if f != nil && f.Object == d.UID && f.Revision == Revision(d) {
		pw.tried, pw.failures, pw.until = f.Revision, f.inARow(d.Spec.Restart, time.Now()), f.Until
		pw.until = time.Now().Add(min(time.Until(f.Until), Backoff(d.Spec.Restart, pw.failures))) // the clock may have been set since
	}
}

// leave ends the worker: no process of its program is left, or its shim kills it.
func (pw *programWorker) leave() {
	if pw.pass != nil {
		pw.pass.Leave()
	}
	pw.stir()
}

// attach attaches to the shim in the worker's directory, if one may run there. A shim that does not answer counts as running until its
// deadline.
func (pw *programWorker) attach(ctx context.Context) {
	if !pw.stray {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
	defer cancel()
	h, err := shim.Attach(bounded, pw.dir)
	switch {
	case err == nil:
		st, err := h.Status(bounded)
		if err != nil { // whether it has a deadline is not known
			h.Close()
			pw.logOnce("the shim of a running program does not answer; trying again", err)
			return
		}
		pw.stray = false
		p := newProgram(h, pw.pulse)
		p.free = st.Deadline.Never()
		p.settled, p.seen = true, time.Time{} // it has been running for a while
		pw.setProgram(p)
		pw.since = metav1.NewMicroTime(p.started)
		pw.logger().Info("attached to a running program", "pid", p.pid)
	case errors.Is(err, shim.ErrLeftovers):
		pw.logOnce("processes that a dead shim left do not end; nothing is started in their place", err)
	case errors.Is(err, shim.ErrNotRunning):
		pw.stray = false
	default:
		pw.logOnce("the shim of a running program does not answer; the program is killed at its deadline", err)
	}
}

// logOnce logs an error unless it is the one logged last.
func (pw *programWorker) logOnce(what string, err error) {
	if text := what + err.Error(); text != pw.logged {
		pw.logged = text
		pw.logger().Warn(what, "error", err)
	}
}

// recordEnd records how the program ended.
func (pw *programWorker) recordEnd() {
	p := pw.program
	if p.err != nil { // not known; the next attach finds out
		pw.logOnce("could not learn how the program ended", p.err)
		pw.stray = true
	}
	ran := time.Since(p.started)
	pw.setProgram(nil)
	pw.stir()
	pw.lastExit = &v1alpha1.InstanceExit{Code: int32(p.exit.Code), Message: p.exit.Message, At: metav1.NowMicro()}
	asked, changing := pw.asked != nil, pw.changing
	pw.changing = false
	d := pw.object()
	if asked || p.exit.Reason == shim.ReasonStopped || p.exit.Reason == shim.ReasonDeadlinePassed || d == nil {
		if changing {
			pw.asked, pw.failures, pw.until = nil, 0, time.Time{}
		}
		return
	}
	pw.failed(d, ran)
}

// failed counts a program that exited without being stopped or could not be started, and sets when it is started again.
func (pw *programWorker) failed(d *v1alpha1.Deployment, ran time.Duration) {
	if Forgiven(d.Spec.Restart, ran) {
		pw.failures = 0
	}
	pw.failures++
	pw.restarts++
	pw.opts.Metrics.restarted(d.Spec.Type)
	pause := Backoff(d.Spec.Restart, pw.failures)
	pw.until = time.Now().Add(backoff.Jitter(pause, 0.1))
	if err := writeFailures(pw.dir, failures{Object: d.UID, Revision: Revision(d), InARow: pw.failures, Until: pw.until}); err != nil {
		pw.logOnce("could not record that the program failed", err)
	}
	pw.logger().Warn("the program exited or could not be started; restarting it", "exit", pw.lastExit.Message, "failures", pw.failures, "wait", pause)
}

// facts returns the input of the next decision.
func (pw *programWorker) facts(ctx context.Context, w World) Facts {
	d := pw.object()
	liveness, _ := pw.e.Liveness()
	f := Facts{
		Object: d, Node: pw.opts.Node, Epoch: pw.e.Number, Trust: pw.opts.Trust,
		Alive: liveness == v1alpha1.Alive, Leaving: ctx.Err() != nil, Stopping: liveness == v1alpha1.Stopping, Admitted: pw.pass != nil,
		Wait: time.Until(pw.until), MayRestart: true, Turn: true,
	}
	if n := w.Nodes[pw.opts.Node]; n != nil {
		f.Labels = n.Labels
	}
	switch {
	case pw.stray || pw.program != nil && pw.asked != nil:
		f.Phase = Ending
	case pw.program != nil:
		f.Phase = Present
	}
	if pw.program != nil {
		f.UID, f.Revision, f.Free = pw.program.uid, pw.program.revision, pw.program.free
	}
	if d == nil {
		return f
	}
	if pw.program != nil && !d.Spec.GoesOn() {
		f.Free = pw.program.free || pw.program.mayBeFree
	}
	if pw.tried != "" && pw.tried != Revision(d) { // what failed was another program
		pw.tried, pw.failures, pw.until, f.Wait = "", 0, time.Time{}, 0
	}
	f.Occupied, f.Undecided = w.Occupied(d, pw.opts.Node), w.Undecided(d)
	f.Spent = Exhausted(d.Spec.Restart, pw.failures)
	f.Failing = Failing(d, pw.failures) && w.Current()
	f.Completes = pw.opts.Completes != nil && pw.opts.Completes(d.Namespace)
	if f.Failing || Avoids(d, pw.opts.Node) || f.Completes && !f.Alive {
		f.Elsewhere = w.Elsewhere(d, pw.opts.Node)
	}
	if d.Spec.Type == v1alpha1.TypeDaemon {
		f.MayRestart = w.MayRestart(d, pw.opts.Node)
	} else if !f.Alive && !f.Leaving && f.Phase == Present && d.Spec.Address != pw.opts.Node {
		f.Turn = pw.turn(pw, d.Spec.Priority)
	}
	return f
}

// do takes one step. It returns the longest time to wait before the next one, and whether the worker has nothing more to do.
func (pw *programWorker) do(ctx context.Context, f Facts, step Step) (pause time.Duration, over bool) {
	var err error
	switch step.Do {
	case Idle:
		return pw.idle(f, step)
	case Forget:
		return again, pw.forget(f, step)
	case Take:
		err = pw.take(f)
	case Start:
		err = pw.start(ctx)
	case Restart:
		if err = pw.write(pw.withState(f.Object, v1alpha1.InstanceRestarting)); err == nil {
			pw.changing = true
			err = pw.stop(step.Why)
		}
	case Detach:
		pw.program.detach()
		pw.setProgram(nil)
		pw.stray = true // if this worker is asked once more before it ends, the program still runs
		return 0, true
	case Stop:
		pw.changing = step.Why == "changed"
		err = pw.stop(step.Why)
	case GiveUp:
		message := fmt.Sprintf("It failed %d times in a row on node %s%s.", pw.failures, pw.opts.Node, ending(&v1alpha1.DeploymentInstance{LastExit: pw.lastExit}))
		if err = pw.write(GivenUp(f.Object, pw.opts.Node, message, time.Now())); err == nil {
			pw.gaveUp(f.Object, message)
			pw.recordRelease(f.Leaving)
		}
	case Release:
		if f.Leaving && !pw.e.Holding() {
			return 0, true // this epoch may not write any more; the next one does
		}
		if err = pw.write(Released(f.Object, pw.opts.Node, pw.asked)); err == nil {
			pw.recordRelease(f.Leaving)
		}
	}
	switch {
	case err == nil:
		return 0, false
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		err = pw.refresh(f.Object)
	}
	if err != nil {
		pw.logOnce(fmt.Sprintf("could not take the step %s; trying again", step.Do), err)
	}
	return backoff.Jitter(again, 0.5), f.Leaving && !pw.e.Holding() && pw.program == nil && !pw.stray
}

// idle keeps the node's instance up to date while there is nothing to do but wait.
func (pw *programWorker) idle(f Facts, step Step) (time.Duration, bool) {
	pause := resync
	switch step.Why {
	case WaitBackoff:
		pause = f.Wait
	case WaitOccupied, WaitRollout, WaitTurn, WaitStopping:
		pause = again
	}
	unheard := !f.Leaving && pw.asked != nil && time.Since(*pw.asked) > 2*again
	if step.Why == WaitStopping && pw.program != nil && pw.asked != nil && (unheard || pw.e.Held.Revoked()) {
		_ = pw.program.stop(pw.grace()) // for a shim that did not get the first request, or whose grace must end now
	}
	if now, _ := f.ours(); now && !f.Leaving {
		entry, soon := pw.entry(f, step)
		if soon > 0 {
			pause = min(pause, soon)
		}
		if err := pw.publish(entry); err != nil {
			pw.logOnce("could not write the node's instance; trying again", err)
			pause = min(pause, again)
		} else if f.Phase == Present && !f.Free && f.Object.Spec.GoesOn() && goesOn(&pw.wrote) && pw.program.setFree() != nil {
			pause = min(pause, again) // its shim does not answer
		}
	}
	return pause, false
}

// forget ends the worker, and logs it if the node does not trust the program.
func (pw *programWorker) forget(f Facts, step Step) bool {
	if f.Object != nil && (step.Why == untrustedCommand || step.Why == untrustedUser) && pw.noteDistrust(f.Object) {
		pw.logger().Warn("program not run: this node does not trust it", "reason", step.Why, "command", f.Object.Spec.Command, "trusted", pw.opts.Trust.String(),
			"user", f.Object.RunsAs(), "users", pw.opts.Trust.users.String())
	}
	pw.orphan = f.Object == nil && !f.Leaving
	if pw.orphan && pw.pass != nil {
		pw.pass.Become(pw.pass.Kind()) // no object will show its kind
	}
	return true
}

// take records that this node may run the program, after it has read live that no other node may.
func (pw *programWorker) take(f Facts) error {
	d := f.Object
	counted := Name
	if d.Spec.Type == v1alpha1.TypeDaemon {
		counted = KindDaemons
	}
	if pw.pass == nil {
		pass, err := pw.opts.Gate.Enter(counted)
		if err != nil {
			return err
		}
		pw.pass = pass
	}
	pw.pass.Become(counted)
	w, err := pw.alone(d, f.Phase == Present)
	if err != nil {
		return err
	}
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DeploymentFinalizer) {
		held := d.DeepCopy()
		controllerutil.AddFinalizer(held, v1alpha1.DeploymentFinalizer)
		// A patch of nothing but the finalizers: this write has no address in it.
		patch := client.MergeFromWithOptions(d, client.MergeFromWithOptimisticLock{})
		if err := pw.update(held, func(ctx context.Context, o client.Object) error { return pw.e.Client.Patch(ctx, o, patch) }); err != nil {
			return err
		}
		d = held
	}
	instance, _ := pw.entry(f, Step{})
	if err := pw.write(Taken(d, w, pw.opts.Node, pw.e.Number, instance)); err != nil {
		return err
	}
	pw.wrote = instance
	return nil
}

// alone makes sure, with leases read live, that no other node may still run a deployment: the cache may be behind. A holder whose program runs only
// goes on, whatever a lost node does.
func (pw *programWorker) alone(d *v1alpha1.Deployment, runs bool) (World, error) {
	w, err := pw.liveLeases(d)
	if err != nil {
		return w, err
	}
	others := w.Occupied
	if runs && d.Holder().Node == pw.opts.Node {
		others = w.Claimed
	}
	if other := others(d, pw.opts.Node); d.Spec.Type == v1alpha1.TypeDeployment && other != "" {
		return w, fmt.Errorf("node %s may still run it", other)
	}
	return w, nil
}

// liveLeases reads live the leases of all other nodes that may run a deployment according to its object. It reads none for a daemon.
func (pw *programWorker) liveLeases(d *v1alpha1.Deployment) (World, error) {
	w := World{Fleet: fleet.Fleet{Leases: map[string]lease.Record{pw.opts.Node: {Node: pw.opts.Node, Holder: "us", Epoch: pw.e.Number}}}}
	if d.Spec.Type != v1alpha1.TypeDeployment {
		return w, nil
	}
	others := []string{d.Holder().Node}
	for i := range d.Status.Nodes {
		others = append(others, d.Status.Nodes[i].Node)
	}
	for _, name := range others {
		if _, known := w.Leases[name]; known || name == "" {
			continue
		}
		rec, err := fleet.ReadLease(pw.standing, pw.e.Client, name)
		if err != nil {
			return w, err
		}
		w.Leases[name] = rec
	}
	return w, nil
}

// start starts the program. Only a few programs start at the same time, with a random delay; after the wait the decision is checked again.
func (pw *programWorker) start(ctx context.Context) error {
	select {
	case pw.starts <- struct{}{}:
		defer func() { <-pw.starts }()
	case <-ctx.Done():
		return nil
	}
	if backoff.Sleep(ctx, rand.N(startJitter)) != nil {
		return nil
	}
	w, _ := pw.view()
	f := pw.facts(ctx, w)
	if Next(f).Do != Start || !pw.e.Holding() {
		return nil
	}
	if _, err := pw.alone(f.Object, false); err != nil {
		return err
	}
	d, revision := f.Object, Revision(f.Object)
	pw.tried = revision
	deadline, _ := pw.pulse.current()
	if d.Spec.GoesOn() && goesOn(d.Instance(pw.opts.Node)) { // others know; if they do not yet, it gets its leave when they do
		deadline = shim.Never
	}
	user, home, err := pw.prepare(ctx, d)
	if errors.Is(err, errStoreUnknown) { // that is no failure of the program
		return err
	}
	if err != nil {
		pw.couldNotStart(d, err)
		return nil
	}
	h, err := shim.Start(ctx, pw.opts.Exe, pw.dir, shim.Spec{
		Instance: newInstance(d.UID, revision), Command: d.Spec.Command, Args: d.Spec.Args,
		Env: environment(d, pw.opts.Node), WorkingDir: d.Spec.WorkingDir,
		Grace: Grace(d.Spec.Stop), Deadline: deadline, ShimLogFormat: pw.opts.ShimLogFormat, Namespace: pw.uncontained == nil,
		User: user, Home: home,
	})
	switch {
	case err == nil:
		p := newProgram(h, pw.pulse)
		p.free = deadline.Never()
		pw.began(p, d)
		return nil
	case errors.Is(err, shim.ErrStartFailed) || errors.Is(err, shim.ErrNotSpawned) || errors.Is(err, shim.ErrInvalidSpec):
		pw.couldNotStart(d, err)
		pw.stray = errors.Is(err, shim.ErrStartFailed) // a shim that died meanwhile may have left processes
		return nil
	case errors.Is(err, shim.ErrDeadlinePassed):
		return err
	}
	pw.stray = true // it may run nevertheless
	return err
}

// prepare makes the program's directory ready for a start, and returns the user that the program runs as and the name of its home.
func (pw *programWorker) prepare(ctx context.Context, d *v1alpha1.Deployment) (*shim.User, string, error) {
	if err := pw.cover(ctx, d.UID); err != nil {
		return nil, "", err
	}
	if err := pw.clearFormer(ctx, pw.key, d.UID, pw.dir); err != nil {
		return nil, "", err
	}
	return pw.runAs(ctx, d, pw.dir)
}

// couldNotStart counts a start that failed, because of the program or because of its node. Then another node may be able to run it.
func (pw *programWorker) couldNotStart(d *v1alpha1.Deployment, err error) {
	// The node and the deployment are known: the shim's directory tells a person nothing.
	pw.lastExit = &v1alpha1.InstanceExit{Code: -1, Message: cut(strings.TrimPrefix(err.Error(), "shim "+pw.dir+": ")), At: metav1.NowMicro()}
	pw.failed(d, 0)
}

// began records a program that was started.
func (pw *programWorker) began(p *program, d *v1alpha1.Deployment) {
	pw.setProgram(p)
	pw.asked, pw.since, pw.logged = nil, metav1.NewMicroTime(p.started), ""
	pw.logger().Info("program started", "pid", p.pid, "type", d.Spec.Type)
	stop := d.Status.LastStop
	if pw.pause != nil || d.Spec.Type != v1alpha1.TypeDeployment || stop == nil || stop.Node == pw.opts.Node || stop.Epoch+1 != d.Holder().Epoch {
		return
	}
	pw.pause = &metav1.Duration{Duration: max(p.started.Sub(stop.At.Time), 0).Round(time.Millisecond)}
	pw.opts.Metrics.moved(pw.pause.Duration)
	record := events.Recorder{Client: pw.e.Client, Controller: "deployments", Instance: pw.opts.Node}
	bounded, cancel := context.WithTimeout(pw.standing, writeLimit)
	defer cancel()
	err := record.Emit(bounded, events.Event{
		Regarding: d, Type: corev1.EventTypeNormal, Reason: "Moved", Action: "Start",
		Note: fmt.Sprintf("Moved from %s to %s; no node ran it for %s.", stop.Node, pw.opts.Node, pw.pause.Duration),
		Key:  fmt.Sprint(d.Holder().Epoch),
	})
	if err != nil {
		pw.logOnce("could not write event", err)
	}
}

// stop asks the program to end. From here on the worker waits for its end.
func (pw *programWorker) stop(why string) error {
	if pw.asked == nil {
		now := time.Now()
		pw.asked = &now
		pw.logger().Info("stopping program", "reason", why, "grace", pw.grace())
	}
	return pw.program.stop(pw.grace())
}

// grace returns how long the program has to end. The shim kills it at its deadline at the latest. There is no grace once the epoch is
// known to have ended, because another node may already run the program. Only daemons keep it: no other node runs them instead.
func (pw *programWorker) grace() time.Duration {
	d := pw.object()
	if pw.e.Held.Revoked() && (d == nil || d.Spec.Type != v1alpha1.TypeDaemon) {
		return 0
	}
	if d != nil {
		return Grace(d.Spec.Stop)
	}
	return -1 // as it was when the program was started
}

// gaveUp reports, in the log and as an event, that another node should run a deployment because it failed here.
func (pw *programWorker) gaveUp(d *v1alpha1.Deployment, message string) {
	pw.logger().Warn("giving the deployment up; another node should run it", "failures", pw.failures)
	record := events.Recorder{Client: pw.e.Client, Controller: "deployments", Instance: pw.opts.Node}
	ctx, cancel := context.WithTimeout(pw.standing, writeLimit)
	defer cancel()
	err := record.Emit(ctx, events.Event{
		Regarding: d, Type: corev1.EventTypeWarning, Reason: "GivenUp", Action: "Release", Key: d.ResourceVersion,
		Note: message + " Another node should run it; this one is avoided for " + avoidFor.String() + ".",
	})
	if err != nil {
		pw.logOnce("could not write event", err)
	}
}

// recordRelease records that no process of the program is left here and that the object shows it.
func (pw *programWorker) recordRelease(leaving bool) {
	if pw.pass != nil {
		pw.pass.Leave()
		pw.pass = nil
	}
	pw.asked, pw.pause, pw.failures, pw.restarts, pw.lastExit, pw.until = nil, nil, 0, 0, nil, time.Time{}
	pw.wrote = v1alpha1.DeploymentInstance{}
	if !leaving { // a node that is only restarted goes on counting
		forgetFailures(pw.dir)
	}
	pw.stir()
}
