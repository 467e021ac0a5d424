package deployment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/shim"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// startsAtOnce bounds how many programs a node starts at the same time, and startJitter spreads them.
	startsAtOnce = 4
	startJitter  = 50 * time.Millisecond
	// writesAtOnce bounds a node's concurrent requests for its programs. It is small: when all of them are repeated after an
	// outage, the renewals of leases must not wait behind them.
	writesAtOnce = 4
	// writeLimit bounds one of them.
	writeLimit = 5 * time.Second
	// departAtOnce bounds how many programs move to other nodes at the same time in a drain, and departLimit for how long a
	// program counts that does not start elsewhere.
	departAtOnce = 4
	departLimit  = 5 * time.Second
	// discardEvery is how often the runtime tries again to remove the directories of deleted programs, and discardPause the time between two tries.
	discardEvery = time.Second
	discardPause = 50 * time.Millisecond
	// pulseEvery is how often the runtime checks whether the lease was renewed.
	pulseEvery = 50 * time.Millisecond
)

// Options make a runtime.
type Options struct {
	// Node is the node's name.
	Node string
	// Dir is where the programs' directories are.
	Dir string
	// Exe is the ebb executable, which also runs as the shim.
	Exe string
	// Gate of the node.
	Gate *node.Gate
	// Policy is the node's claim policy.
	Policy v1alpha1.ClaimPolicy
	// Weights of CPU and memory under resource_usage.
	Weights Weights
	// Trust decides which commands the node runs, and as whom.
	Trust Trust
	// UIDs is the range of the users of programs.
	UIDs UIDs
	// Completes is the field of World.
	Completes func(namespace string) bool
	// Metrics of the node's programs.
	Metrics *Metrics
	// Log of the node.
	Log *slog.Logger
	// ShimLogFormat is the format of the shims' own log: text or json.
	ShimLogFormat string
}

// Runtime is a node's side of deployments: it claims deployments and runs the programs of the node.
type Runtime struct {
	opts    Options
	starts  chan struct{}
	writes  chan struct{}
	sampler *sampler
	// uncontained says why programs have no PID namespaces; nil if they have.
	uncontained error
	// isolation says as whom programs run, and unisolated why they have no users of their own; nil if they have.
	isolation  isolation
	unisolated error
	ownMu      sync.Mutex // one program at a time takes a user id

	mu         sync.Mutex
	workers    map[types.NamespacedName]*programWorker
	found      map[string]*node.Pass // programs of an earlier process, by directory, until a worker has attached to them
	world      World
	moved      chan struct{}                      // closed and replaced when a program has ended or the world has changed
	departed   map[types.NamespacedName]time.Time // programs that move to another node in a drain, and since when
	conflict   string                             // message of the last conflict
	conflictAt time.Time

	history    *node.History      // of the store
	generation int64              // of the store when the epoch began
	settled    int64              // the generation in which everything was moved aside that the store does not know
	doubtful   []string           // the programs for which that could not be done
	covered    map[types.UID]bool // objects that the history covers

	// undiscarded are the programs whose directories are to be removed or kept, and discards wakes the loop that does it.
	undiscarded map[types.NamespacedName]goneObject
	discards    worker.Signal
	kept        []string // directories that the store does not know

	refused map[types.UID]string // untrusted revisions that were already logged

	once sync.Once // ERR_POLICY_DISABLED is reported once
}

// NewRuntime finds the programs that an earlier process of this node left running, and counts them.
func NewRuntime(o Options) (*Runtime, error) {
	r := &Runtime{
		opts: o, starts: make(chan struct{}, startsAtOnce), writes: make(chan struct{}, writesAtOnce),
		workers: map[types.NamespacedName]*programWorker{}, found: map[string]*node.Pass{}, moved: make(chan struct{}),
		departed: map[types.NamespacedName]time.Time{}, undiscarded: map[types.NamespacedName]goneObject{}, covered: map[types.UID]bool{}, discards: worker.NewSignal(), refused: map[types.UID]string{},
	}
	r.sampler = newSampler(r, o.Weights)
	if r.uncontained = shim.ProbeNamespaces(context.Background(), o.Exe); r.uncontained != nil {
		o.Log.Warn("programs get no PID namespaces: if a shim is killed, processes that its program started may continue", "error", r.uncontained)
	}
	if r.isolation, r.unisolated = newIsolation(o.UIDs); r.unisolated != nil {
		o.Log.Warn("programs get no users of their own: they can read what the node can read", "reason", r.unisolated)
	}
	err := r.eachDir(func(key types.NamespacedName, dir string) error {
		if mayRun(dir) {
			r.found[dir] = o.Gate.Find(Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("programs of node %s: %w", o.Node, err)
	}
	o.Metrics.runtime.Store(r)
	return r, nil
}

// mayRun reports whether processes of a program may be left in its directory. An earlier process of the node may have died when it had
// just spawned a shim that has not written its state yet: that has the lock.
func mayRun(dir string) bool {
	if st, err := shim.ReadState(dir); err == nil && st.Phase != shim.Exited {
		return true
	}
	held, err := shim.Held(dir)
	return err == nil && held
}

// eachDir visits the directories of programs.
func (r *Runtime) eachDir(visit func(types.NamespacedName, string) error) error {
	namespaces, err := os.ReadDir(r.opts.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		if !ns.IsDir() {
			continue // somebody's file
		}
		names, err := os.ReadDir(filepath.Join(r.opts.Dir, ns.Name()))
		if err != nil {
			return err
		}
		for _, name := range names {
			key := types.NamespacedName{Namespace: ns.Name(), Name: name.Name()}
			if err := visit(key, r.dir(key)); err != nil {
				return err
			}
		}
	}
	return nil
}

// dir is the directory of one program.
func (r *Runtime) dir(key types.NamespacedName) string {
	return filepath.Join(r.opts.Dir, key.Namespace, key.Name)
}

// Name implements node.Runtime.
func (r *Runtime) Name() string { return Name }

// Held counts the deployments that run, start or stop here.
func (r *Runtime) Held() int { return r.opts.Gate.Count(Name) }

// Staying counts the daemons, which stay until the node stops.
func (r *Runtime) Staying() int { return r.opts.Gate.Count(KindDaemons) }

// Report implements node.Reporter. It publishes what the plans of other nodes need, and the state of the claims.
func (r *Runtime) Report(s *v1alpha1.NodeStatus) {
	s.ClaimPolicy = r.opts.Policy
	s.TrustedCommands, s.ProgramUsers = r.opts.Trust.String(), r.opts.Trust.users.String()
	s.Usage = nil
	if r.opts.Policy == v1alpha1.ClaimByUsage {
		s.Usage = r.sampler.usage()
	}
	c := metav1.Condition{
		Type: v1alpha1.NodeClaiming, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonClaiming,
		Message: fmt.Sprintf("The node claims deployments by policy %s.", r.opts.Policy),
	}
	r.mu.Lock()
	conflict := r.conflict
	r.mu.Unlock()
	switch {
	case r.opts.Policy == v1alpha1.ClaimNone:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ErrPolicyDisabled, policyDisabled
	case conflict != "":
		c.Reason, c.Message = v1alpha1.ErrClaimConflict, conflict
	}
	meta.SetStatusCondition(&s.Conditions, c)
	meta.SetStatusCondition(&s.Conditions, r.contained())
	meta.SetStatusCondition(&s.Conditions, r.isolated())
	r.reportKept(s)
}

// contained is the condition ProgramsContained.
func (r *Runtime) contained() metav1.Condition {
	if r.uncontained == nil {
		return metav1.Condition{
			Type: v1alpha1.NodeProgramsContained, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPIDNamespaces,
			Message: "All processes of a program end with its shim.",
		}
	}
	return metav1.Condition{
		Type: v1alpha1.NodeProgramsContained, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoPIDNamespaces,
		Message: fmt.Sprintf("Programs get no PID namespaces (%v). If a shim is killed, processes that its program started may continue. Run the node as root, or allow "+
			"unprivileged user namespaces.", r.uncontained),
	}
}

// isolated is the condition ProgramsIsolated.
func (r *Runtime) isolated() metav1.Condition {
	if r.unisolated == nil {
		return metav1.Condition{
			Type: v1alpha1.NodeProgramsIsolated, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonOwnUsers,
			Message: fmt.Sprintf("Each program runs as a user of its own from %d to %d, unless it names another.", r.isolation.uids.First, r.isolation.uids.Last),
		}
	}
	return metav1.Condition{
		Type: v1alpha1.NodeProgramsIsolated, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoOwnUsers,
		Message: fmt.Sprintf("Programs run as the node's user (%v): they can read its credentials and the files of other programs. Run the node as root, with --program-uids.", r.unisolated),
	}
}

const policyDisabled = "The node's claim policy is none: it claims no deployments. It still runs deployments that are addressed to it."

// End implements node.Ender: it stops the programs that go on without a lease. The others end at their deadline.
func (r *Runtime) End(ctx context.Context) {
	var all sync.WaitGroup
	err := r.eachDir(func(key types.NamespacedName, dir string) error {
		h, err := shim.Attach(ctx, dir)
		if err != nil {
			return nil // nothing runs there, or its shim does not answer
		}
		all.Go(func() {
			defer h.Close()
			err := h.Stop(ctx, -1) // with its own grace
			if err == nil {
				_, err = h.Wait(ctx)
			}
			if err != nil && !errors.Is(err, shim.ErrNotRunning) {
				r.opts.Log.Warn("could not stop a program", "deployment", key.String(), "error", err)
			}
		})
		return nil
	})
	all.Wait()
	if err != nil {
		r.opts.Log.Error("could not look for programs that run", "error", err)
	}
}

// Run implements node.Runtime.
func (r *Runtime) Run(ctx context.Context, e *node.Epoch) error {
	standing, fall := context.WithCancel(context.WithoutCancel(ctx))
	run := &run{Runtime: r, e: e, pulse: newPulse(e.Held), ctx: ctx, standing: standing}
	var parts sync.WaitGroup
	defer parts.Wait()
	pulsing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	parts.Go(func() {
		run.pulse.run(pulsing, e, fall)
		fall()
	})
	run.adopt()
	if ctx.Err() == nil {
		if err := run.watch(ctx); err != nil {
			r.opts.Log.Warn("could not watch deployments; trying again", "error", err)
			run.wait()
			return err
		}
		parts.Go(func() { r.sampler.run(ctx) })
		parts.Go(func() { run.claim(ctx) })
		parts.Go(func() { run.discardLoop(ctx) })
	}
	<-ctx.Done()
	run.wait()
	return nil
}

// run is the runtime in one epoch.
type run struct {
	*Runtime
	e     *node.Epoch
	pulse *pulse
	// ctx ends when the programs have to stop; standing ends when the lease is in doubt.
	ctx, standing context.Context
	synced        atomic.Bool // every object has been seen once

	claims *Claimer
	loops  sync.WaitGroup // the workers
	ended  bool           // no more workers are started
}

// wait returns when every worker has ended. Programs that were found running but have no object are stopped.
func (r *run) wait() {
	r.mu.Lock()
	r.ended = true // the watches end later and may still bring objects
	r.mu.Unlock()
	r.loops.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for dir, pass := range r.found {
		pass.Leave()
		delete(r.found, dir)
	}
	clear(r.workers)
}

// adopt starts workers for the programs that an earlier process or epoch left running.
func (r *run) adopt() {
	err := r.eachDir(func(key types.NamespacedName, dir string) error {
		if mayRun(dir) {
			r.adoptProgram(key)
		}
		return nil
	})
	if err != nil {
		r.opts.Log.Error("could not look for programs that an earlier process left running", "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for dir, pass := range r.found { // these have ended since
		pass.Leave()
		delete(r.found, dir)
	}
}

// newWorker starts the worker of an object or of a program that was found running. The caller holds the lock.
func (r *run) newWorker(key types.NamespacedName, found *node.Pass) *programWorker {
	pw := &programWorker{run: r, Worker: worker.New[*v1alpha1.Deployment](), key: key, dir: r.dir(key), pass: found, stray: found != nil}
	r.workers[key] = pw
	delete(r.undiscarded, key) // the directory belongs to this program now
	r.loops.Go(func() { pw.work(r.ctx) })
	return pw
}

// adoptProgram starts the worker of a program that an earlier process left running.
func (r *run) adoptProgram(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dir := r.dir(key)
	pass := r.found[dir]
	delete(r.found, dir)
	if pass == nil {
		pass = r.opts.Gate.Find(Name)
	}
	r.newWorker(key, pass)
}

// watch subscribes to the objects that decisions depend on. It returns when the cache has synced.
func (r *run) watch(ctx context.Context) error {
	r.claims = r.newClaimer()
	r.mu.Lock()
	r.world = World{Fleet: fleet.New(), Completes: r.opts.Completes}
	r.mu.Unlock()
	if err := r.insistSeen(ctx); err != nil { // before a worker removes anything
		return err
	}
	err := kubeclient.Follow(ctx, r.e.Cache,
		kubeclient.On(r.seeNode, r.forgetNode),
		kubeclient.On(r.seeLease, r.forgetLease),
		kubeclient.On(r.see, r.gone)) // deployments last: decisions about them depend on nodes and leases
	if err != nil {
		return err
	}
	r.synced.Store(true)
	r.stir()
	return nil
}

// see passes an object on to its worker, if it concerns this node.
func (r *run) see(d *v1alpha1.Deployment) {
	r.claims.Wake()
	key := client.ObjectKeyFromObject(d)
	r.mu.Lock() // held until the worker has the object, or it could end before
	defer r.mu.Unlock()
	r.arrived(d)
	pw := r.workers[key]
	if pw == nil && !r.ended && r.concerns(d) {
		pw = r.newWorker(key, nil)
	}
	if pw != nil {
		pw.See(d)
	}
}

// concerns reports whether this node has anything to do about an object.
func (r *run) concerns(d *v1alpha1.Deployment) bool {
	switch {
	case d.Holder().Node == r.opts.Node || d.Instance(r.opts.Node) != nil:
		return true
	case !d.IsEnabled():
		return false
	}
	return d.Spec.Type == v1alpha1.TypeDaemon || d.Spec.Type == v1alpha1.TypeDeployment && d.Spec.Address == r.opts.Node
}

func (r *run) gone(d *v1alpha1.Deployment) {
	r.claims.Wake()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, d.UID)
	delete(r.covered, d.UID)
	key := client.ObjectKeyFromObject(d)
	if pw := r.workers[key]; pw != nil {
		pw.Delete(d.UID)
		return
	}
	r.discard(key, goneObject{uid: d.UID, deleted: true})
}

// oldDirs is what discardOld found.
type oldDirs struct {
	left     bool     // some belong to programs that are gone, and cannot be discarded yet
	doubtful []string // programs that the store knows, whose directories may have the home of another that it does not know
	unseen   error    // why
}

// discardOld discards the directories of programs whose objects were deleted while this node was down.
func (r *run) discardOld(ctx context.Context) (oldDirs, error) {
	var list v1alpha1.DeploymentList
	if err := r.e.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return oldDirs{}, err
	}
	known := map[types.NamespacedName]types.UID{}
	for i := range list.Items {
		known[client.ObjectKeyFromObject(&list.Items[i])] = list.Items[i].UID
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var old oldDirs
	err := r.eachDir(func(key types.NamespacedName, dir string) error {
		switch uid := known[key]; {
		case uid != "" && r.doubted():
			if err := r.keepAnother(key, uid, dir); err != nil {
				old.doubtful = append(old.doubtful, key.String())
				old.unseen = errors.Join(old.unseen, fmt.Errorf("%s: %w", key, err))
			}
		case uid != "":
			r.discardFormer(key, uid)
		case r.workers[key] != nil:
			old.left = true // it is discarded when it has stopped
		default:
			r.discard(key, goneObject{})
		}
		return nil
	})
	old.left = old.left || len(r.undiscarded) > 0
	return old, err
}

func (r *run) seeNode(n *v1alpha1.Node) {
	relabelled := false
	r.change(func(w *World) bool {
		old := w.Nodes[n.Name]
		relabelled = n.Name == r.opts.Node && (old == nil || !equality.Semantic.DeepEqual(old.Labels, n.Labels))
		w.Nodes = maps.Clone(w.Nodes)
		w.Nodes[n.Name] = n
		return old == nil || !sameForPlans(old, n)
	})
	if relabelled {
		r.reconsider()
	}
}

// sameForPlans reports whether a change of a node makes no difference to any plan.
func sameForPlans(a, b *v1alpha1.Node) bool {
	return a.Status.Liveness == b.Status.Liveness && a.Status.Epoch == b.Status.Epoch && a.IsReady() == b.IsReady() &&
		a.Spec.Cordoned == b.Spec.Cordoned && a.Status.ClaimPolicy == b.Status.ClaimPolicy &&
		a.Status.TrustedCommands == b.Status.TrustedCommands && a.Status.ProgramUsers == b.Status.ProgramUsers &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Status.Usage, b.Status.Usage)
}

// reconsider checks every object again: which ones concern this node depends on its labels.
func (r *run) reconsider() {
	go func() {
		var list v1alpha1.DeploymentList
		if err := r.e.Cache.List(r.ctx, &list); err != nil {
			return // the cache has ended
		}
		for i := range list.Items {
			r.see(&list.Items[i])
		}
	}()
}

func (r *run) forgetNode(n *v1alpha1.Node) {
	r.change(func(w *World) bool {
		w.Nodes = maps.Clone(w.Nodes)
		delete(w.Nodes, n.Name)
		return true
	})
}

func (r *run) seeLease(l *coordinationv1.Lease) {
	rec, err := lease.Read(l)
	if err != nil {
		return // not the lease of a node, or malformed: no node may be considered lost because of it
	}
	r.change(func(w *World) bool {
		old, known := w.Leases[rec.Node]
		old.Version = rec.Version
		w.Leases = maps.Clone(w.Leases)
		w.Leases[rec.Node] = rec
		return !known || old != rec
	})
}

func (r *run) forgetLease(l *coordinationv1.Lease) {
	name, ok := lease.NodeOf(l)
	if !ok {
		return
	}
	r.change(func(w *World) bool {
		w.Leases = maps.Clone(w.Leases)
		delete(w.Leases, name)
		return true
	})
}

// change replaces the world, and wakes the workers if the change matters to them.
func (r *run) change(change func(*World) bool) {
	r.mu.Lock()
	next := r.world
	differs := change(&next)
	r.world = next
	r.mu.Unlock()
	if differs {
		r.stir()
		r.claims.Wake()
	}
}

// stir wakes the workers that wait for something outside their own object.
func (r *Runtime) stir() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.moved)
	r.moved = make(chan struct{})
}

// view returns the world, and a channel that is closed when it changes.
func (r *Runtime) view() (World, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.world, r.moved
}

// noteDistrust records that a revision of a program is not trusted here, and reports whether that is new.
func (r *Runtime) noteDistrust(d *v1alpha1.Deployment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	revision := Revision(d)
	news := r.refused[d.UID] != revision
	r.refused[d.UID] = revision
	return news
}

// remove removes a worker that has nothing to do, unless something has changed for it.
func (r *Runtime) remove(pw *programWorker) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if pw.Woken() {
		return false
	}
	if r.workers[pw.key] == pw {
		delete(r.workers, pw.key)
		d, deleted := pw.Newest()
		if pw.orphan {
			var o goneObject
			if o.deleted = deleted; d != nil {
				o.uid = d.UID
			}
			r.discard(pw.key, o)
		} else if d != nil && !deleted {
			r.discardFormer(pw.key, d.UID)
		}
	}
	return true
}
