// Package node is one machine of the cluster: it holds the machine's lease, runs the work, stops it when the lease is in doubt, and
// leaves the cluster.
//
//	join ──▶ Alive ──▶ Draining ──▶ Stopping ──▶ left          one epoch, on the coordinator's request or SIGTERM
//	  ▲        │           │           ├─────────▶ parked, until the node is uncordoned ──▶ next epoch
//	  │        └───────────┴───────────┴── lease in doubt: nothing starts, StopOnDoubt runtimes stop
//	  └────────────────────────── next epoch ◀──┘
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// Options make a node.
type Options struct {
	// Name of the node.
	Name string
	// Dir is the node's own directory.
	Dir datadir.NodeDir
	// Config reaches the API as the node.
	Config *rest.Config
	// Timing of the lease.
	Timing lease.Timing
	// Clock is BootTime but in tests.
	Clock Clock
	// WallAhead is the function of that name but in tests.
	WallAhead func() time.Duration
	// Labels of the Node object.
	Labels map[string]string
	// Address and HTTPAddress are published.
	Address, HTTPAddress string
	// Version is published.
	Version string
	// Peers serves other nodes; without a listener it serves none.
	Peers Peers
	// Runtimes host the work.
	Runtimes []Hosted
	// Residents run in every epoch.
	Residents []Resident
	// Gate of the node, shared with the runtimes.
	Gate *Gate
	// Metrics of the node.
	Metrics *Metrics
	// Log of the node.
	Log *slog.Logger
	// AtStep is called before and after the node records that it is parked; tests use it to crash there. It may be nil.
	AtStep func(point string)
	// Die kills the process, because work did not stop before the lease expired.
	Die func(reason string)
}

// storeEvery is how often a node looks whether the store went back.
const storeEvery = 10 * time.Second

// leaveTimeout bounds what a leaving node still publishes. Past it the lease is left to expire.
const leaveTimeout = 5 * time.Second

// Node is one machine.
type Node struct {
	opts    Options
	log     *slog.Logger
	client  client.Client
	member  *membership
	host    *host
	dirLock *dirLock
	history *History
	// cordoned is what the node's object said last.
	cordoned atomic.Bool

	mu     sync.Mutex
	epoch  *Epoch // nil between epochs
	reason string // why there is none
	parked bool   // the process waits without a lease until the node is uncordoned
}

// New locks the node's directory for this process.
func New(o Options) (*Node, error) {
	if err := v1alpha1.ValidateNodeName(o.Name); err != nil {
		return nil, err
	}
	if err := o.Timing.Validate(); err != nil {
		return nil, err
	}
	if o.WallAhead == nil {
		o.WallAhead = WallAhead
	}
	c, err := kubeclient.New(o.Config)
	if err != nil {
		return nil, err
	}
	renewals, err := kubeclient.New(kubeclient.ForRenewals(o.Config))
	if err != nil {
		return nil, err
	}
	l, err := takeDirLock(o.Dir, o.Name)
	if err != nil {
		return nil, err
	}
	log := o.Log.With("node", o.Name)
	history, err := NewHistory(o.Name, o.Dir.Store(), c, log)
	if err != nil {
		l.release()
		return nil, fmt.Errorf("node %s: %w", o.Name, err)
	}
	n := &Node{
		opts: o, log: log, client: c, dirLock: l, history: history, reason: "starting",
		member: &membership{node: o.Name, client: renewals, timing: o.Timing, clock: o.Clock, ahead: o.WallAhead, log: log, dirLock: l},
		host:   &host{hosted: o.Runtimes, log: log},
	}
	if o.Peers.Listener != nil {
		n.host.peers = &peerServer{Peers: o.Peers}
	}
	n.member.waits = func(why error) { n.setEpoch(nil, "could not join yet: "+why.Error()) }
	return n, nil
}

// Run takes part in the cluster until ctx ends or the coordinator wants the node to leave. In both cases it stops its work and releases
// its lease.
func (n *Node) Run(ctx context.Context) error {
	defer n.dirLock.release()
	if n.startsParked(ctx) {
		if err := n.park(ctx); err != nil {
			return n.unlessStopped(ctx, err)
		}
	}
	keep := n.host.runtimes(KeepOnDoubt, nil)
	defer func() { keep.stop(nil) }()
	defer n.host.end()
	for {
		h, err := n.member.join(ctx)
		if err == nil {
			err = n.live(ctx, h, keep)
		}
		if errors.Is(err, errParked) {
			keep.stop(nil)
			if err = n.park(ctx); err == nil {
				keep = n.host.runtimes(KeepOnDoubt, nil)
				continue
			}
		}
		if !errors.Is(err, fleet.ErrLeaseInDoubt) {
			return n.unlessStopped(ctx, err)
		}
		if backoff.Sleep(ctx, n.opts.Timing.Renew/20) != nil {
			return nil
		}
		if keep.stopped() { // the lease came into doubt while the node was leaving
			keep = n.host.runtimes(KeepOnDoubt, nil)
		}
	}
}

// unlessStopped returns an error that ends the node, unless it only says that the node was asked to stop.
func (n *Node) unlessStopped(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || errors.Is(err, errDeleted) {
		return nil
	}
	return fmt.Errorf("node %s: %w", n.opts.Name, err)
}

// errAnew: the epoch ended because the node has to begin a new one.
var errAnew = errors.New("the node begins a new epoch")

// live runs one epoch, from the taken lease to its end.
func (n *Node) live(ctx context.Context, h *held, keep *group) error {
	e := n.newEpoch(h)
	n.log.Info("joined", "epoch", e.Number)
	standing, end := context.WithCancelCause(context.Background())
	defer end(nil)
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() {
		if err := n.member.renew(standing, h, e.LossDetector); err != nil {
			end(fmt.Errorf("%w: %w", fleet.ErrLeaseInDoubt, err))
		}
	})
	parts.Go(func() { n.watchDeadline(standing, e, end) })
	parts.Go(func() { n.watchWanted(standing, e) })
	entering, enough := context.WithCancelCause(standing)
	stop := context.AfterFunc(ctx, func() { enough(context.Cause(ctx)) })
	work, err := n.enter(entering, e)
	stop()
	switch {
	case err != nil && ctx.Err() != nil && standing.Err() == nil:
		err = n.leave(standing, e, work, keep, "it was asked to stop while it was starting")
	case errors.Is(err, errParked):
		// It was parked after its process had looked, and before it took the lease.
		err = n.leave(standing, e, work, keep, "it is parked")
	case err == nil:
		parts.Go(func() { n.publish(standing, e) })
		parts.Go(func() { n.watchStore(standing, e) })
		select {
		case <-standing.Done():
		case why := <-e.anew:
			end(fmt.Errorf("%w: %s", errAnew, why))
		case how := <-e.over:
			end(fmt.Errorf("%w: %w", fleet.ErrLeaseInDoubt, how))
		case <-ctx.Done():
			err = n.leave(standing, e, work, keep, "it was asked to stop")
		case <-e.leave:
			err = n.leave(standing, e, work, keep, "it was drained")
		}
	}
	if standing.Err() == nil && err == nil {
		end(nil)
		parts.Wait()
		return n.release(e, h)
	}
	if standing.Err() == nil {
		end(fmt.Errorf("%w: %w", fleet.ErrLeaseInDoubt, err))
	}
	n.fence(e, work, context.Cause(standing))
	return fleet.ErrLeaseInDoubt
}

func (n *Node) newEpoch(h *held) *Epoch {
	e := &Epoch{
		Node: n.opts.Name, Number: h.epoch.Number(), Held: h.epoch, Client: n.client, History: n.history, clock: n.opts.Clock,
		LossDetector: lease.NewLossDetector(n.opts.Timing, h.epoch.SentAt()),
		pause:        h.pause,
		liveness:     v1alpha1.Alive,
		ready:        readiness{reason: v1alpha1.ReasonStarting, message: "The node's runtimes are starting."},
		changed:      make(chan struct{}), leave: make(chan struct{}), anew: make(chan string, 1),
		over: make(chan error, 1), recheck: make(chan struct{}, 1), deleted: make(chan struct{}, 1),
	}
	n.opts.Metrics.current.Store(e)
	n.opts.Metrics.epoch.Set(float64(e.Number))
	return e
}

// watchDeadline ends the epoch when its deadline passes on the node's clock or the machine was paused, independent of the renewals. It
// polls, because timers stop while the machine is suspended and the deadline does not.
func (n *Node) watchDeadline(ctx context.Context, e *Epoch, end context.CancelCauseFunc) {
	for backoff.Sleep(ctx, n.opts.Timing.Renew/20) == nil {
		switch {
		case e.paused():
			end(fmt.Errorf("%w: %w", fleet.ErrLeaseInDoubt, errPaused))
			return
		case !e.Holding():
			end(fmt.Errorf("%w: %w", fleet.ErrLeaseInDoubt, errDeadline))
			return
		}
	}
}

// enter starts the epoch's work: it writes the Node object, chooses the liveness, and starts the watches and the runtimes.
func (n *Node) enter(ctx context.Context, e *Epoch) (*work, error) {
	if err := n.insist(ctx, "register", n.register); err != nil {
		return nil, err
	}
	if err := n.insist(ctx, "compare the store with what this node remembers of it", n.compareStore); err != nil {
		return nil, err
	}
	e.Generation = n.history.Generation()
	if err := n.insist(ctx, "read whether the node is parked", func(ctx context.Context) error { return n.checkParked(ctx, e) }); err != nil {
		return nil, err
	}
	if e.parks() != nil {
		return nil, errParked
	}
	if err := n.insist(ctx, "read the drain slot", func(ctx context.Context) error { return n.chooseLiveness(ctx, e) }); err != nil {
		return nil, err
	}
	if err := n.insist(ctx, "write the first status", n.writes(e)); err != nil {
		return nil, err
	}
	w := &work{}
	var err error
	if w.watch, err = n.watch(ctx, e); err != nil {
		return w, err
	}
	w.runtimes = n.host.runtimes(StopOnDoubt, e)
	w.residents = n.host.residents(e, n.opts.Residents)
	e.set(func(e *Epoch) {
		e.ready = readiness{ready: true, reason: v1alpha1.ReasonServing, message: "The node holds its lease and hosts its runtimes."}
	})
	n.setEpoch(e, "")
	return w, nil
}

// compareStore finds out whether the store went back, before anything is read from it that data on this machine depends on.
func (n *Node) compareStore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return n.history.Begin(ctx)
}

// watchStore begins a new epoch, with caches of its own, if the store is no longer in the generation that the epoch began in: watches that
// began before never learn what the store has lost, and nothing that is missing in them counts as deleted. Who noticed it first does not
// matter: a program that is started writes a new mark.
func (n *Node) watchStore(ctx context.Context, e *Epoch) {
	for backoff.Sleep(ctx, storeEvery) == nil {
		ask, cancel := context.WithTimeout(ctx, writeTimeout)
		err := n.history.Check(ask, e.Generation)
		cancel()
		if errors.Is(err, ErrStoreWentBack) {
			e.BeginAnew("the store went back")
			return
		}
	}
}

// chooseLiveness starts the epoch Alive, or Draining if a drain of this node is running or has failed: a drain outlives a restart.
func (n *Node) chooseLiveness(ctx context.Context, e *Epoch) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	slot, err := DrainedBy(ctx, n.client, n.opts.Name)
	if err != nil {
		return err
	}
	if slot != nil {
		n.opts.Gate.Close(e.Number, RefusedDraining)
		e.set(func(e *Epoch) { e.liveness, e.observedDrain = v1alpha1.Draining, slot.UID })
	} else {
		n.opts.Gate.Open(e.Number)
	}
	liveness, _ := e.Liveness()
	n.opts.Metrics.setLiveness(liveness)
	return nil
}

// DrainedBy reads live which drain a node is subject to, if any.
func DrainedBy(ctx context.Context, r client.Reader, node string) (*v1alpha1.ActiveDrain, error) {
	slot, wanted, err := readSlot(ctx, r, node)
	if err != nil || !wanted {
		return nil, err
	}
	return slot, nil
}

// readSlot reads live whether the drain slot names a node, and whether that drain still wants it drained. One that is complete,
// cancelled or deleted only has not released the slot yet.
func readSlot(ctx context.Context, r client.Reader, node string) (slot *v1alpha1.ActiveDrain, wanted bool, err error) {
	settings := &v1alpha1.Settings{}
	err = r.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings)
	if kubeclient.IsMissing(err) { // a new cluster: the first coordinator creates them
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	slot = settings.Status.ActiveDrain
	if slot == nil || slot.Node != node {
		return nil, false, nil
	}
	d := &v1alpha1.Drain{}
	err = r.Get(ctx, types.NamespacedName{Name: slot.Name}, d)
	if kubeclient.IsMissing(err) || err == nil && string(d.UID) != slot.UID {
		return slot, false, nil
	}
	return slot, err == nil && wants(d), err
}

// wants reports whether a drain that holds the slot wants its node drained.
func wants(d *v1alpha1.Drain) bool {
	return d.Status.Phase != v1alpha1.DrainComplete && d.Status.Phase != v1alpha1.DrainCancelled &&
		!meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.DrainReleased)
}

// insist repeats a step until it succeeds or the epoch ends.
func (n *Node) insist(ctx context.Context, what string, step func(context.Context) error) error {
	var repeats repeatFilter
	for {
		err := step(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		repeats.warn(n.log, "could not "+what+"; trying again", err)
		if err := backoff.Sleep(ctx, n.opts.Timing.Renew/4); err != nil {
			return err
		}
	}
}

// work is what an epoch started.
type work struct {
	watch, runtimes, residents *group
}

func (w *work) groups() []*group {
	var all []*group
	if w == nil {
		return nil
	}
	for _, g := range []*group{w.residents, w.runtimes, w.watch} {
		if g != nil {
			all = append(all, g)
		}
	}
	return all
}

// leave ends the epoch: it publishes Stopping, stops the residents and the work, and publishes Left. The lease is renewed meanwhile.
func (n *Node) leave(ctx context.Context, e *Epoch, w *work, keep *group, why string) error {
	n.log.Info("leaving", "epoch", e.Number, "reason", why)
	n.opts.Gate.Close(e.Number, RefusedStopping)
	n.opts.Metrics.setLiveness(v1alpha1.Stopping)
	n.setEpoch(nil, "stopping")
	e.set(func(e *Epoch) {
		e.liveness = v1alpha1.Stopping
		e.ready = readiness{reason: v1alpha1.ReasonStopping, message: "The node is stopping its work: " + why + "."}
	})
	if err := n.publishLast(ctx, e); err != nil {
		n.log.Warn("could not publish the status of the leaving node", "epoch", e.Number, "error", err)
	}
	if w == nil {
		w = &work{}
	}
	if w.runtimes == nil { // they stop what an earlier process of this node left running
		w.runtimes = n.host.runtimes(StopOnDoubt, e)
	}
	for _, g := range append(w.groups(), keep) {
		if !g.stop(ctx.Done()) {
			return context.Cause(ctx)
		}
	}
	if e.parks() != nil {
		return n.publishParked(ctx, e)
	}
	e.set(func(e *Epoch) {
		e.ready = readiness{reason: v1alpha1.ReasonLeft, message: "The node left: " + why + "."}
	})
	if err := n.publishLast(ctx, e); err != nil {
		n.log.Warn("could not publish the status of the leaving node", "epoch", e.Number, "error", err)
	}
	return nil
}

// publishLast writes the status of a node that leaves, within leaveTimeout.
func (n *Node) publishLast(ctx context.Context, e *Epoch) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	return n.insist(ctx, "write the last status", n.writes(e))
}

// release releases the lease, and returns errParked if the process stays.
func (n *Node) release(e *Epoch, h *held) error {
	parked := error(nil)
	if e.parks() != nil {
		parked = errParked
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if err := n.member.release(ctx, h); err != nil {
		n.log.Warn("could not release the lease; other nodes wait until it expires", "epoch", h.epoch.Number(), "error", err)
		return parked
	}
	n.log.Info("left", "epoch", h.epoch.Number())
	return parked
}

// fence ends an epoch whose lease is in doubt. Nothing starts any more, and the StopOnDoubt runtimes stop before the node can be
// marked lost. If they do not stop in time, the process is killed. A process that was frozen past its deadline gets the same time from
// when it wakes: it is late already, and every writer checks Holding first. An epoch known to be fenced, released or superseded is
// revoked: its programs are killed at once, because other nodes may run them already.
func (n *Node) fence(e *Epoch, w *work, cause error) {
	n.log.Warn("fencing", "epoch", e.Number, "reason", cause)
	n.opts.Gate.Close(e.Number, RefusedInDoubt)
	n.setEpoch(nil, cause.Error())
	e.Held.MarkInDoubt()
	if errors.Is(cause, lease.ErrNotOurs) || errors.Is(cause, errPaused) {
		e.Held.Revoke(n.opts.Clock())
	}
	n.opts.Metrics.current.CompareAndSwap(e, nil)
	_, dead := e.Held.Deadline()
	left := dead.Sub(n.opts.Clock())
	if left <= 0 {
		left = n.opts.Timing.Dead - n.opts.Timing.Fence
	}
	late, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	for _, g := range w.groups() {
		g.cancel()
	}
	if w != nil && w.runtimes != nil && !w.runtimes.stop(late.Done()) {
		n.opts.Die(fmt.Sprintf("node %s: work of epoch %d did not stop before its lease expired: %s", n.opts.Name, e.Number, strings.Join(w.runtimes.left(), ", ")))
	}
	for _, g := range w.groups() {
		g.stop(nil)
	}
	n.log.Info("fenced", "epoch", e.Number)
}

func (n *Node) setEpoch(e *Epoch, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.epoch, n.reason, n.parked = e, reason, false
}

// Epoch returns the current epoch, or nil.
func (n *Node) Epoch() *Epoch {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.epoch
}

// Ready returns nil while the node holds its lease and its runtimes run, or is parked, and otherwise what it waits for.
func (n *Node) Ready() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.parked {
		return nil
	}
	if n.epoch == nil {
		return errors.New(n.reason)
	}
	if !n.epoch.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	return nil
}

// Parked reports whether the node was drained and waits, without a lease, until it is uncordoned.
func (n *Node) Parked() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.parked
}

// Client reads and writes live, as the node.
func (n *Node) Client() client.Client { return n.client }
