// Package coordinator elects one node to run the cluster's controllers, one term at a time.
//
//	waiting ──eligible──▶ campaigning ──won, still eligible──▶ leading ──lost, resigned or node's epoch ended──▶ waiting
//
// Each term has its own manager, which has stopped before the election is released; the next term, on any node, begins after that. Every
// write of a term names it, and the embedded API refuses the writes of a term that has ended.
package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

// Options make a campaign.
type Options struct {
	// Config reaches the API as the coordinator.
	Config *rest.Config
	// Timing of the node's lease; the election's follows from it.
	Timing lease.Timing
	// Setup adds the cluster's controllers to a term's manager.
	Setup func(*Term) error
	// Metrics of the election.
	Metrics *Metrics
	// Log of the campaign.
	Log *slog.Logger
}

// Campaign takes part in the election in every epoch of a node. It is a Resident of the node.
type Campaign struct {
	opts   Options
	client coordinationclient.CoordinationV1Interface
	own    string        // part of every identity this campaign stands with, and of no other
	stands int           // how often it has stood
	last   chan struct{} // closed when the last elector has returned
	parts

	mu       sync.Mutex
	identity string      // the one it stands with now, or stood with last
	leading  *leadership // nil unless a term runs here
}

// parts are the campaign's dependencies, which tests of terms replace.
type parts struct {
	eligible func(context.Context, *node.Epoch) error
	alone    func(context.Context, *node.Epoch) error
	liveness func(*node.Epoch) (v1alpha1.Liveness, <-chan struct{})
	guard    func(l *resourcelock.LeaseLock, stopped func() bool) resourcelock.Interface
	work     func(*Term) error
}

// leadership is the term that runs here, with what is needed to end it.
type leadership struct {
	epoch  *node.Epoch
	resign context.CancelFunc
	over   chan struct{} // closed when the election was released or lost
}

// NewCampaign makes a campaign that has not begun.
func NewCampaign(o Options) (*Campaign, error) {
	cfg := kubeclient.ForRenewals(o.Config)
	cfg.Timeout = o.Timing.Timeout
	c, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return newCampaign(o, c), nil
}

func newCampaign(o Options, client coordinationclient.CoordinationV1Interface) *Campaign {
	last := make(chan struct{})
	close(last)
	c := &Campaign{opts: o, client: client, own: uuid.NewString(), last: last}
	c.parts = parts{
		eligible: c.readEligible,
		alone:    c.readAlone,
		liveness: (*node.Epoch).Liveness,
		guard: func(l *resourcelock.LeaseLock, stopped func() bool) resourcelock.Interface {
			return &lock{LeaseLock: l, former: c.isFormer, stopped: stopped}
		},
		work: (*Term).run,
	}
	return c
}

// Name implements node.Resident.
func (c *Campaign) Name() string { return "campaign" }

// Run takes part in the election until ctx ends, whenever the node is eligible.
func (c *Campaign) Run(ctx context.Context, e *node.Epoch) error {
	freed, err := watchFreed(ctx, e)
	if err != nil {
		return err
	}
	c.campaign(ctx, e, freed)
	return nil
}

// campaign is Run; freed signals whenever the election is released.
func (c *Campaign) campaign(ctx context.Context, e *node.Epoch, freed <-chan struct{}) {
	for ctx.Err() == nil {
		_, changed := c.liveness(e)
		as := c.roleFor(ctx, e)
		if as == nil {
			waitAny(ctx, c.retry()*2, changed)
			continue
		}
		select {
		case <-c.last:
		case <-ctx.Done():
			return
		}
		if c.stand(ctx, e, as, freed) {
			c.sitOut(ctx)
		}
	}
	// Give the release a moment, so that the others need not wait for the election to expire; a node that fences itself
	// has no more than that.
	waitAny(context.Background(), (c.opts.Timing.Dead-c.opts.Timing.Fence)/2, c.last)
}

// role is how a node takes part: as candidate, or as survivor (survivor.go).
type role struct {
	eligible   func(context.Context, *node.Epoch) error
	work       func(*Term) error
	livenesses []v1alpha1.Liveness // the term ends when the node has another
}

// allows reports whether a node of this liveness may stand in this role.
func (r *role) allows(l v1alpha1.Liveness) bool { return slices.Contains(r.livenesses, l) }

// roleFor returns the role that the node may have now, or nil.
func (c *Campaign) roleFor(ctx context.Context, e *node.Epoch) *role {
	candidate := &role{eligible: c.eligible, work: c.work, livenesses: []v1alpha1.Liveness{v1alpha1.Alive}}
	survivor := &role{eligible: c.alone, work: c.survive, livenesses: []v1alpha1.Liveness{v1alpha1.Alive, v1alpha1.Draining}}
	for _, r := range []*role{candidate, survivor} {
		if r.eligible(ctx, e) == nil {
			return r
		}
	}
	return nil
}

// retry is how often candidates check the election, and how often the coordinator renews it.
func (c *Campaign) retry() time.Duration { return c.opts.Timing.Renew / 4 }

// duration is how long the election lasts without a renewal. The Lease counts whole seconds; rounded up they are still no
// more than the node's own.
func (c *Campaign) duration() time.Duration {
	return (c.opts.Timing.Dead + time.Second - 1).Truncate(time.Second)
}

// readEligible reads live whether this node may be coordinator: Alive, its lease held, and not named by the drain slot.
func (c *Campaign) readEligible(ctx context.Context, e *node.Epoch) error {
	if liveness, _ := e.Liveness(); liveness != v1alpha1.Alive {
		return fmt.Errorf("node %s is %s", e.Node, liveness)
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timing.Timeout)
	defer cancel()
	slot, err := node.DrainedBy(ctx, e.Client, e.Node)
	if err != nil {
		return err
	}
	if slot != nil {
		return fmt.Errorf("node %s is being drained by drain %s", e.Node, slot.Name)
	}
	if !e.Holding() {
		return fmt.Errorf("node %s: %w", e.Node, fleet.ErrLeaseInDoubt)
	}
	return nil
}

// stand runs one elector until it has lost or resigned, or is replaced to try again at once. It reports whether this node should let
// others go first: because it resigned, or because its term failed.
//
// The elector outlives ctx until the term has stopped: only then is the election released. When the API does not answer
// the release may take its time, so stand does not wait for it; the next stand does.
func (c *Campaign) stand(ctx context.Context, e *node.Epoch, as *role, freed <-chan struct{}) (yield bool) {
	identity := c.newIdentity(e)
	electing, release := context.WithCancel(context.Background())
	defer release()
	wanted, resign := context.WithCancel(ctx)
	defer resign()
	lost, lose := context.WithCancel(context.Background())
	defer lose()
	won := make(chan *Term, 1)
	stopped := func() bool { return electing.Err() != nil } // nobody releases before
	elector, err := leaderelection.NewLeaderElector(c.electorConfig(identity, stopped, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { won <- newTerm(c.opts, e, identity) },
		OnStoppedLeading: lose,
		OnNewLeader:      func(string) { c.opts.Metrics.changes.Inc() },
	}))
	if err != nil {
		c.opts.Log.Error("could not start a leader elector", "error", err)
		waitAny(ctx, c.retry()*4)
		return false
	}
	over := make(chan struct{})
	c.last = over
	go func() {
		defer close(over)
		elector.Run(electing)
	}()
	for {
		liveness, changed := c.liveness(e)
		if !as.allows(liveness) && !elector.IsLeader() {
			release()
			<-over
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-over:
			return false
		case <-freed:
			if elector.IsLeader() {
				continue // it was freed before we won it
			}
			// A new elector tries at once; this one would wait for its retry period.
			release()
			<-over
			return false
		case term := <-won:
			failed := c.lead(wanted, lost, term, as, &leadership{epoch: e, resign: resign, over: over}, elector.IsLeader)
			release()
			if ctx.Err() != nil {
				return false
			}
			<-over
			return failed || wanted.Err() != nil
		}
	}
}

// newIdentity names the next stand. No identity is ever used twice.
func (c *Campaign) newIdentity(e *node.Epoch) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stands++
	c.identity = fmt.Sprintf("%s/%d/%s.%d", e.Node, e.Number, c.own, c.stands)
	return c.identity
}

// isOwn reports whether an identity is one that this campaign stood or stands with.
func (c *Campaign) isOwn(identity string) bool { return strings.Contains(identity, "/"+c.own+".") }

// isFormer reports whether an identity is one that this campaign stood with before. Its elector has returned and its term,
// if it won one, has stopped, whether it knew that it had won or not: a campaign stands with one at a time.
func (c *Campaign) isFormer(identity string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isOwn(identity) && identity != c.identity
}

func (c *Campaign) electorConfig(identity string, stopped func() bool, callbacks leaderelection.LeaderCallbacks) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Name: "ebb-coordinator",
		Lock: c.guard(&resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.CoordinatorName},
			Client:     c.client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}, stopped),
		// A coordinator that cannot renew stops when the node fences itself, and is replaced when all work of the node
		// has stopped.
		LeaseDuration:   c.duration(),
		RenewDeadline:   c.opts.Timing.Fence,
		RetryPeriod:     c.retry(),
		ReleaseOnCancel: true,
		Callbacks:       callbacks,
	}
}

// lead runs a term until the node resigns or loses the election, and returns when everything of the term has stopped. It reports
// whether the term failed.
func (c *Campaign) lead(wanted, lost context.Context, term *Term, as *role, l *leadership, isLeader func() bool) (failed bool) {
	log := c.opts.Log.With("term", term.Identity)
	if err := as.eligible(wanted, l.epoch); err != nil {
		log.Warn("won the election but may not coordinate", "error", err)
		return false
	}
	stands := func() bool { return wanted.Err() == nil && lost.Err() == nil && isLeader() }
	if !stands() {
		log.Warn("won the election and lost it before the term began")
		return false
	}
	c.setLeading(l)
	defer c.setLeading(nil)
	log.Info("coordinator: term started")
	ended := make(chan error, 1)
	go func() { ended <- as.work(term) }()
	for stands() {
		liveness, changed := c.liveness(l.epoch)
		if !as.allows(liveness) {
			break
		}
		// The elector keeps trying for some time after it saw another holder; isLeader reports it at once.
		select {
		case <-wanted.Done():
		case <-lost.Done():
		case <-changed:
		case <-time.After(c.retry()):
		case err := <-ended:
			if err == nil {
				log.Info("coordinator: term ended", "reason", context.Cause(term.ctx))
				return false
			}
			log.Error("coordinator: term failed", "error", err)
			return true
		}
	}
	term.end(ErrTermOver)
	if err := <-ended; err != nil {
		log.Warn("coordinator: term ended with an error", "error", err)
	}
	log.Info("coordinator: term ended")
	return false
}

func (c *Campaign) setLeading(l *leadership) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leading = l
	if l != nil {
		c.opts.Metrics.leading.Set(1)
	} else {
		c.opts.Metrics.leading.Set(0)
	}
}

// Leading reports whether a term runs here.
func (c *Campaign) Leading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leading != nil
}

// NodeOf returns the node of a term's identity.
func NodeOf(identity string) string {
	name, _, _ := strings.Cut(identity, "/")
	return name
}

// watchFreed signals whenever the election is released, so that a hand-over does not wait for the retry period.
func watchFreed(ctx context.Context, e *node.Epoch) (<-chan struct{}, error) {
	informer, err := e.Cache.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return nil, fmt.Errorf("watch the election: %w", err)
	}
	freed := make(chan struct{}, 1)
	holder := func(object any) string {
		if l, ok := object.(*coordinationv1.Lease); ok && l.Name == lease.CoordinatorName && l.Spec.HolderIdentity != nil {
			return *l.Spec.HolderIdentity
		}
		return ""
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if holder(before) != "" && holder(after) == "" {
				select {
				case freed <- struct{}{}:
				default:
				}
			}
		},
	})
	return freed, err
}

// waitAny waits until ctx ends, a time has passed or one of the channels is ready.
func waitAny(ctx context.Context, d time.Duration, channels ...<-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	var first <-chan struct{}
	if len(channels) > 0 {
		first = channels[0]
	}
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-first:
	}
}
