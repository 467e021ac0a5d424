package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/shim"
)

const (
	// resync is how often a unit looks again though nothing has happened.
	resync = 30 * time.Second
	// again is how soon it tries again what failed, or looks for what nobody tells of.
	again = 250 * time.Millisecond
	// readyAfter is how long a daemon must have run for a rollout to go on with the next node.
	readyAfter = time.Second
)

// unit looks after one object on this node: a goroutine that decides (Next), does, and waits for something to change.
type unit struct {
	*run
	key  types.NamespacedName
	dir  string
	wake chan struct{}

	mu      sync.Mutex
	object  *v1alpha1.Deployment // the newest that was seen or written
	deleted types.UID            // the object that was deleted, if it was the newest
	program *program             // nil while none runs here

	// What follows belongs to the unit's own goroutine.
	pass     *node.Pass
	knows    bool       // what an earlier process counted
	orphan   bool       // nothing of it is left, and the object is gone
	stray    bool       // something may run in the directory that the unit is not attached to
	asked    *time.Time // when the program was asked to end
	changing bool       // it was asked because its spec changed
	tried    string     // the revision that was last started, or tried to
	failures int        // in a row
	restarts int32
	lastExit *v1alpha1.InstanceExit
	until    time.Time // the pause before the next start ends
	pause    *metav1.Duration
	since    metav1.MicroTime
	told     v1alpha1.DeploymentInstance // what was last written
	said     string                      // what was last logged
}

// see takes note of an object, unless a newer one is known.
func (u *unit) see(d *v1alpha1.Deployment) {
	u.mu.Lock()
	if u.object == nil || newer(d, u.object) {
		u.object = d
	}
	u.mu.Unlock()
	u.poke()
}

// newer says whether one reading of an object is newer than another.
func newer(d, than *v1alpha1.Deployment) bool {
	c, err := resourceversion.CompareResourceVersion(d.ResourceVersion, than.ResourceVersion)
	return err != nil || c > 0
}

// gone takes note that an object was deleted.
func (u *unit) gone(uid types.UID) {
	u.mu.Lock()
	if u.object == nil || u.object.UID == uid {
		u.deleted = uid
	}
	u.mu.Unlock()
	u.poke()
}

func (u *unit) poke() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// snapshot is the newest object, nil if it is gone, and whether something runs here.
func (u *unit) snapshot() (*v1alpha1.Deployment, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.object == nil || u.deleted == u.object.UID {
		return nil, u.program != nil
	}
	return u.object, u.program != nil
}

func (u *unit) setProgram(p *program) {
	u.mu.Lock()
	u.program = p
	u.mu.Unlock()
}

func (u *unit) logger() *slog.Logger { return u.opts.Log.With("deployment", u.key.String()) }

// live looks after the object until it is none of this node's business, or until the node's work ends.
func (u *unit) live(ctx context.Context) {
	defer u.leave()
	leaving := ctx.Done()
	for {
		u.attach(ctx)
		_, changed := u.e.Liveness()
		w, moved := u.view()
		f := u.facts(ctx, w)
		if f.Object == nil && !f.Leaving && !u.synced.Load() {
			u.await(resync, leaving, changed, moved) // found running; what it is for is not known yet
			continue
		}
		u.remember(f.Object)
		step := Next(f)
		pause, over := u.do(ctx, f, step)
		if over && u.remove(u) {
			return
		}
		if f.Leaving {
			leaving = nil
		}
		u.await(pause, leaving, changed, moved)
	}
}

// remember goes on counting where an earlier process left off.
func (u *unit) remember(d *v1alpha1.Deployment) {
	if d == nil || u.knows {
		return
	}
	u.knows = true
	if i := d.Instance(u.opts.Node); i != nil {
		u.restarts, u.lastExit, u.pause = i.Restarts, i.LastExit, i.Pause
	}
}

// leave ends the unit: nothing of its program is left, or its shim ends it.
func (u *unit) leave() {
	if u.pass != nil {
		u.pass.Leave()
	}
	u.stir()
}

func (u *unit) await(pause time.Duration, leaving, changed, moved <-chan struct{}) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var done <-chan struct{}
	if u.program != nil {
		done = u.program.done
	}
	select {
	case <-u.wake:
	case <-done:
		u.ended()
	case <-timer.C:
	case <-leaving:
	case <-changed:
	case <-moved:
	}
}

// attach finds what runs in the unit's directory, if that is not known. A shim that does not answer keeps its place until
// its deadline.
func (u *unit) attach(ctx context.Context) {
	if !u.stray {
		return
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeLimit)
	defer cancel()
	h, err := shim.Attach(bounded, u.dir)
	switch {
	case err == nil:
		u.stray = false
		p := newProgram(h, u.pulse)
		p.settled = true // it has been running for a while
		u.setProgram(p)
		u.since = metav1.NewMicroTime(p.started)
		u.logger().Info("found the program running", "pid", p.pid)
	case errors.Is(err, shim.ErrNotRunning) && !errors.Is(err, shim.ErrLeftovers):
		u.stray = false
	default:
		u.say("a program runs here whose shim does not answer; it ends at its deadline", err)
	}
}

// say logs an error unless it is the one logged last.
func (u *unit) say(what string, err error) {
	if text := what + err.Error(); text != u.said {
		u.said = text
		u.logger().Warn(what, "error", err)
	}
}

// ended takes note of how the program ended.
func (u *unit) ended() {
	p := u.program
	if p.err != nil { // nobody knows; the directory tells
		u.say("how the program ended is not known", p.err)
		u.stray = true
	}
	ran := time.Since(p.started)
	u.setProgram(nil)
	u.stir()
	u.lastExit = &v1alpha1.InstanceExit{Code: int32(p.exit.Code), Message: p.exit.Message, At: metav1.NowMicro()}
	asked, changing := u.asked != nil, u.changing
	u.changing = false
	d, _ := u.snapshot()
	if asked || p.exit.Reason == shim.ReasonStopped || p.exit.Reason == shim.ReasonDeadlinePassed || d == nil {
		if changing {
			u.asked, u.failures, u.until = nil, 0, time.Time{}
		}
		return
	}
	u.failed(d, ran)
}

// failed counts a program that ended by itself, or did not start, and sets when it is tried again.
func (u *unit) failed(d *v1alpha1.Deployment, ran time.Duration) {
	if Forgiven(d.Spec.Restart, ran) {
		u.failures = 0
	}
	u.failures++
	u.restarts++
	u.opts.Metrics.restarted(d.Spec.Type)
	pause := Backoff(d.Spec.Restart, u.failures)
	u.until = time.Now().Add(backoff.Jitter(pause, 0.1))
	u.logger().Warn("the program ended by itself", "exit", u.lastExit.Message, "failures", u.failures, "again in", pause)
}

// facts are what the next decision rests on.
func (u *unit) facts(ctx context.Context, w World) Facts {
	d, _ := u.snapshot()
	liveness, _ := u.e.Liveness()
	f := Facts{
		Object: d, Node: u.opts.Node, Epoch: u.e.Number, Trust: u.opts.Trust,
		Alive: liveness == v1alpha1.Alive, Leaving: ctx.Err() != nil, Admitted: u.pass != nil,
		Wait: time.Until(u.until), MayRestart: true, Turn: true,
	}
	if n := w.Nodes[u.opts.Node]; n != nil {
		f.Labels = n.Labels
	}
	switch {
	case u.stray || u.program != nil && u.asked != nil:
		f.Phase = Ending
	case u.program != nil:
		f.Phase = Present
	}
	if u.program != nil {
		f.UID, f.Revision = u.program.uid, u.program.revision
	}
	if d == nil {
		return f
	}
	if u.tried != "" && u.tried != Revision(&d.Spec) { // what failed was another program
		u.tried, u.failures, u.until, f.Wait = "", 0, time.Time{}, 0
	}
	f.Occupied = w.Occupied(d, u.opts.Node)
	f.Spent = Exhausted(d.Spec.Restart, u.failures)
	if d.Spec.Type == v1alpha1.TypeDaemon {
		f.MayRestart = w.MayRestart(d, u.opts.Node)
	} else if !f.Alive && !f.Leaving && f.Phase == Present && d.Spec.Address != u.opts.Node {
		f.Turn = u.turn(u, d.Spec.Priority)
	}
	return f
}

// do takes one step. It says how long to wait at most before the next, and whether the unit has nothing more to do.
func (u *unit) do(ctx context.Context, f Facts, step Step) (pause time.Duration, over bool) {
	var err error
	switch step.Do {
	case Idle:
		return u.idle(f, step)
	case Forget:
		return again, u.forget(f, step)
	case Take:
		err = u.take(f)
	case Start:
		err = u.start(ctx)
	case Restart:
		if err = u.write(u.withState(f.Object, v1alpha1.InstanceRestarting)); err == nil {
			u.changing = true
			err = u.stop(step.Why)
		}
	case Stop:
		u.changing = step.Why == "changed"
		err = u.stop(step.Why)
	case Release:
		if f.Leaving && !u.e.Holding() {
			return 0, true // it is not ours to say any more; the next epoch does
		}
		if err = u.write(Released(f.Object, u.opts.Node, u.asked)); err == nil {
			u.released()
		}
	}
	switch {
	case err == nil:
		return 0, false
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		err = u.refresh(f.Object)
	}
	if err != nil {
		u.say(fmt.Sprintf("cannot %s yet", step.Do), err)
	}
	return backoff.Jitter(again, 0.5), f.Leaving && !u.e.Holding() && u.program == nil && !u.stray
}

// idle keeps the node's entry true while there is nothing to do but wait.
func (u *unit) idle(f Facts, step Step) (time.Duration, bool) {
	pause := resync
	switch step.Why {
	case WaitBackoff:
		pause = f.Wait
	case WaitOccupied, WaitRollout, WaitTurn, WaitStopping:
		pause = again
	}
	unheard := !f.Leaving && u.asked != nil && time.Since(*u.asked) > 2*again
	if step.Why == WaitStopping && u.program != nil && u.asked != nil && (unheard || u.e.Held.Revoked()) {
		_ = u.program.stop(u.grace()) // a shim that did not hear it hears it now, and one that gave grace ends it
	}
	if now, _ := f.ours(); now && !f.Leaving {
		entry, soon := u.entry(f, step)
		if soon > 0 {
			pause = min(pause, soon)
		}
		if err := u.tell(entry); err != nil {
			u.say("the node's entry is not written yet", err)
			pause = min(pause, again)
		}
	}
	return pause, false
}

// forget ends the unit, and says so if that is because the node does not trust the program.
func (u *unit) forget(f Facts, step Step) bool {
	if f.Object != nil && step.Why == WaitUntrusted && u.distrusts(f.Object) {
		u.logger().Warn("not run: the command is not trusted on this node", "command", f.Object.Spec.Command, "trusted", u.opts.Trust.String())
	}
	u.orphan = f.Object == nil && !f.Leaving
	return true
}

// take writes down that this node may run the program, once everything that it rests on was read live.
func (u *unit) take(f Facts) error {
	d := f.Object
	counted := Name
	if d.Spec.Type == v1alpha1.TypeDaemon {
		counted = KindDaemons
	}
	if u.pass == nil {
		pass, err := u.opts.Gate.Enter(counted)
		if err != nil {
			return err
		}
		u.pass = pass
	}
	u.pass.Become(counted)
	w, err := u.alone(d)
	if err != nil {
		return err
	}
	if !controllerutil.ContainsFinalizer(d, v1alpha1.DeploymentFinalizer) {
		held := d.DeepCopy()
		controllerutil.AddFinalizer(held, v1alpha1.DeploymentFinalizer)
		// A patch of nothing but the finalizers: this write has no address in it.
		patch := client.MergeFromWithOptions(d, client.MergeFromWithOptimisticLock{})
		if err := u.update(held, func(ctx context.Context, o client.Object) error { return u.e.Client.Patch(ctx, o, patch) }); err != nil {
			return err
		}
		d = held
	}
	instance, _ := u.entry(f, Step{})
	if err := u.write(Taken(d, w, u.opts.Node, u.e.Number, instance)); err != nil {
		return err
	}
	u.told = instance
	return nil
}

// alone makes sure, with leases read live, that no other node may still run a deployment: the cache may be behind.
func (u *unit) alone(d *v1alpha1.Deployment) (World, error) {
	w, err := u.liveLeases(d)
	if err != nil {
		return w, err
	}
	if other := w.Occupied(d, u.opts.Node); d.Spec.Type == v1alpha1.TypeDeployment && other != "" {
		return w, fmt.Errorf("node %s still runs it", other)
	}
	return w, nil
}

// liveLeases reads, from the server, the leases of all other nodes that a deployment's object has down for running it. Of a
// daemon nobody asks.
func (u *unit) liveLeases(d *v1alpha1.Deployment) (World, error) {
	w := World{Fleet: fleet.Fleet{Leases: map[string]lease.Record{u.opts.Node: {Node: u.opts.Node, Holder: "us", Epoch: u.e.Number}}}}
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
		rec, err := fleet.ReadLease(u.standing, u.e.Client, name)
		if err != nil {
			return w, err
		}
		w.Leases[name] = rec
	}
	return w, nil
}

// start runs the program. A few start at once, a little apart; what was decided is decided again when its turn has come.
func (u *unit) start(ctx context.Context) error {
	select {
	case u.starts <- struct{}{}:
		defer func() { <-u.starts }()
	case <-ctx.Done():
		return nil
	}
	if backoff.Sleep(ctx, rand.N(startJitter)) != nil {
		return nil
	}
	w, _ := u.view()
	f := u.facts(ctx, w)
	if Next(f).Do != Start || !u.e.Holding() {
		return nil
	}
	if _, err := u.alone(f.Object); err != nil {
		return err
	}
	d, revision := f.Object, Revision(&f.Object.Spec)
	u.tried = revision
	deadline, _ := u.pulse.current()
	h, err := shim.Start(ctx, u.opts.Exe, u.dir, shim.Spec{
		Instance: newInstance(d.UID, revision), Command: d.Spec.Command, Args: d.Spec.Args,
		Env: environment(d, u.opts.Node), WorkingDir: d.Spec.WorkingDir,
		Grace: Grace(d.Spec.Stop), Deadline: deadline, ShimLogFormat: u.opts.ShimLogFormat,
	})
	switch {
	case err == nil:
		u.began(newProgram(h, u.pulse), d)
		return nil
	case errors.Is(err, shim.ErrStartFailed) || errors.Is(err, shim.ErrInvalidSpec):
		u.lastExit = &v1alpha1.InstanceExit{Code: -1, Message: cut(err.Error()), At: metav1.NowMicro()}
		u.failed(d, 0)
		return nil
	case errors.Is(err, shim.ErrDeadlinePassed):
		return err
	}
	u.stray = true // it may run all the same
	return err
}

// began takes note of a program that was started.
func (u *unit) began(p *program, d *v1alpha1.Deployment) {
	u.setProgram(p)
	u.asked, u.since, u.said = nil, metav1.NewMicroTime(p.started), ""
	u.logger().Info("started", "pid", p.pid, "type", d.Spec.Type)
	stop := d.Status.LastStop
	if u.pause != nil || d.Spec.Type != v1alpha1.TypeDeployment || stop == nil || stop.Node == u.opts.Node || stop.Epoch+1 != d.Holder().Epoch {
		return
	}
	u.pause = &metav1.Duration{Duration: max(p.started.Sub(stop.At.Time), 0).Round(time.Millisecond)}
	u.opts.Metrics.moved(u.pause.Duration)
	record := events.Recorder{Client: u.e.Client, Controller: "deployments", Instance: u.opts.Node}
	bounded, cancel := context.WithTimeout(u.standing, writeLimit)
	defer cancel()
	err := record.Emit(bounded, events.Event{
		Regarding: d, Type: corev1.EventTypeNormal, Reason: "Moved", Action: "Start",
		Note: fmt.Sprintf("Moved from %s to %s; nobody ran it for %s.", stop.Node, u.opts.Node, u.pause.Duration),
		Key:  fmt.Sprint(d.Holder().Epoch),
	})
	if err != nil {
		u.say("event not written", err)
	}
}

// stop asks the program to end. From here on the unit waits for its end.
func (u *unit) stop(why string) error {
	if u.asked == nil {
		now := time.Now()
		u.asked = &now
		u.logger().Info("stopping", "why", why, "grace", u.grace())
	}
	return u.program.stop(u.grace())
}

// grace is how long the program has to end. The shim ends it at its deadline at the latest. Once the epoch is known to be over
// there is none: another node may run the program already. Only daemons keep it, which nobody runs in this node's place.
func (u *unit) grace() time.Duration {
	d, _ := u.snapshot()
	if u.e.Held.Revoked() && (d == nil || d.Spec.Type != v1alpha1.TypeDaemon) {
		return 0
	}
	if d != nil {
		return Grace(d.Spec.Stop)
	}
	return -1 // as it was when the program was started
}

// released takes note that nothing of the program is left here and that the object says so.
func (u *unit) released() {
	if u.pass != nil {
		u.pass.Leave()
		u.pass = nil
	}
	u.asked, u.pause, u.failures, u.restarts, u.lastExit, u.until = nil, nil, 0, 0, nil, time.Time{}
	u.told = v1alpha1.DeploymentInstance{}
	u.stir()
}
