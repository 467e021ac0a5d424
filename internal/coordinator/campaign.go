// Package coordinator elects one node to run the cluster's controllers, one term at a time.
//
//	waiting ──eligible──▶ campaigning ──won, still eligible──▶ leading ──lost, resigned or node's epoch over──▶ waiting
//
// A term has a manager of its own, which has stopped before the election is released; the next term, wherever it is,
// begins after. Every write of a term names it, and the embedded API refuses the writes of a term that is over.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

// What a request to resign may run into.
var (
	// ErrNotCoordinator: this node has no term to give up.
	ErrNotCoordinator = errors.New("this node is not the coordinator")
	// ErrNoSuccessor: no other node could take over.
	ErrNoSuccessor = errors.New("no other node can take over: none is Alive, Ready and free of a drain")
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

// Campaign stands for election in every epoch of a node. It is a Resident of the node.
type Campaign struct {
	opts   Options
	client coordinationclient.CoordinationV1Interface
	last   chan struct{} // closed when the last elector has returned

	mu      sync.Mutex
	leading *leadership // nil unless a term runs here
	former  string      // identity of the last term that ran here and has stopped
}

// leadership is the term that runs here, as whoever wants it to end sees it.
type leadership struct {
	epoch  *node.Epoch
	resign context.CancelFunc
	over   chan struct{} // closed when the election was released or lost
}

// Metrics of the election as this node sees it.
type Metrics struct {
	changes prometheus.Counter
	leading prometheus.Gauge
}

// NewMetrics makes the metrics of the election, registered with r.
func NewMetrics(r prometheus.Registerer, nodeName string) *Metrics {
	labels := prometheus.Labels{"node": nodeName}
	m := &Metrics{
		changes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ebb_coordinator_election_changes_total", Help: "How often this node saw the coordinator change.", ConstLabels: labels,
		}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ebb_coordinator_leading", Help: "1 while this node is the coordinator.", ConstLabels: labels,
		}),
	}
	r.MustRegister(m.changes, m.leading)
	return m
}

// NewCampaign makes a campaign that has not begun.
func NewCampaign(o Options) (*Campaign, error) {
	// As for the node's lease: a connection of its own, given up at the first timeout.
	cfg := rest.CopyConfig(o.Config)
	cfg.NextProtos = []string{"http/1.1"}
	cfg.Timeout = o.Timing.Timeout
	c, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	last := make(chan struct{})
	close(last)
	return &Campaign{opts: o, client: c, last: last}, nil
}

// Name implements node.Resident.
func (c *Campaign) Name() string { return "campaign" }

// Run stands for election until ctx ends: whenever the node is eligible, for as long as it takes.
func (c *Campaign) Run(ctx context.Context, e *node.Epoch) error {
	freed, err := watchFreed(ctx, e)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		_, changed := e.Liveness()
		if err := c.eligible(ctx, e); err != nil {
			waitAny(ctx, c.retry()*2, changed)
			continue
		}
		select {
		case <-c.last:
		case <-ctx.Done():
			return nil
		}
		if c.stand(ctx, e, freed) {
			c.sitOut(ctx, e)
		}
	}
	// Give the release a moment, so that the others need not wait for the election to lapse; a node that fences itself
	// has no more than that.
	waitAny(context.Background(), (c.opts.Timing.Dead-c.opts.Timing.Fence)/2, c.last)
	return nil
}

// retry is how often candidates look, and how often the coordinator renews.
func (c *Campaign) retry() time.Duration { return c.opts.Timing.Renew / 4 }

// eligible reads live whether this node may be coordinator: Alive, its lease held, and not named by the drain slot.
func (c *Campaign) eligible(ctx context.Context, e *node.Epoch) error {
	if liveness, _ := e.Liveness(); liveness != v1alpha1.Alive {
		return fmt.Errorf("node %s is %s", e.Node, liveness)
	}
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timing.Timeout)
	defer cancel()
	settings := &v1alpha1.Settings{}
	if err := e.Client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return err
	}
	if slot := settings.Status.ActiveDrain; slot != nil && slot.Node == e.Node {
		return fmt.Errorf("node %s is named by drain %s", e.Node, slot.Name)
	}
	if !e.Holding() {
		return fmt.Errorf("the lease of node %s is in doubt", e.Node)
	}
	return nil
}

// stand runs one elector until it lost, resigned, or was ended to look again at once. It says whether it resigned.
//
// The elector outlives ctx until the term has stopped: only then is the election released. When the API does not answer
// the release may take its time, so stand does not wait for it; the next stand does.
func (c *Campaign) stand(ctx context.Context, e *node.Epoch, freed <-chan struct{}) (resigned bool) {
	identity := fmt.Sprintf("%s/%d/%s", e.Node, e.Number, uuid.NewString())
	electing, release := context.WithCancel(context.Background())
	wanted, resign := context.WithCancel(ctx)
	defer resign()
	lost, lose := context.WithCancel(context.Background())
	defer lose()
	won := make(chan *Term, 1)
	elector, err := leaderelection.NewLeaderElector(c.electorConfig(identity, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(context.Context) { won <- newTerm(c.opts, e, identity) },
		OnStoppedLeading: lose,
		OnNewLeader:      func(string) { c.opts.Metrics.changes.Inc() },
	}))
	if err != nil {
		release()
		c.opts.Log.Error("cannot stand for election", "error", err)
		waitAny(ctx, c.retry()*4)
		return false
	}
	over := make(chan struct{})
	c.last = over
	go func() {
		defer close(over)
		elector.Run(electing)
	}()
	defer release()
	select {
	case <-ctx.Done():
	case <-over:
	case <-freed:
		// A new elector looks at once; this one would wait out its period. But not if it has just won.
		release()
		<-over
		select {
		case term := <-won:
			term.end(errors.New("the election was restarted"))
		default:
		}
	case term := <-won:
		l := &leadership{epoch: e, resign: resign, over: over}
		c.lead(wanted, lost, term, l, elector.IsLeader)
		release()
		if ctx.Err() == nil {
			<-over
			return wanted.Err() != nil
		}
	}
	return false
}

func (c *Campaign) electorConfig(identity string, callbacks leaderelection.LeaderCallbacks) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Name: "ebb-coordinator",
		Lock: &lock{
			LeaseLock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.CoordinatorName},
				Client:     c.client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			},
			former: c.isFormer,
		},
		// A coordinator that cannot renew is on its way out when the node fences itself, and replaced when everything
		// of the node that must be dead is dead.
		LeaseDuration:   c.opts.Timing.Dead.Truncate(time.Second),
		RenewDeadline:   c.opts.Timing.Fence,
		RetryPeriod:     c.retry(),
		ReleaseOnCancel: true,
		Callbacks:       callbacks,
	}
}

// lead runs a term until the node no longer wants it or the election is lost, and returns when everything of the term
// has stopped.
func (c *Campaign) lead(wanted, lost context.Context, term *Term, l *leadership, isLeader func() bool) {
	log := c.opts.Log.With("term", term.Identity)
	if err := c.eligible(wanted, l.epoch); err != nil {
		log.Warn("won the election but may not lead", "error", err)
		return
	}
	c.setLeading(l)
	defer func() {
		c.setLeading(nil)
		c.setFormer(term.Identity)
	}()
	log.Info("coordinator: term begins")
	ended := make(chan error, 1)
	go func() { ended <- term.run() }()
	for wanted.Err() == nil && lost.Err() == nil && isLeader() {
		liveness, changed := l.epoch.Liveness()
		if liveness != v1alpha1.Alive {
			break
		}
		// The elector goes on trying for a while after it saw another holder; isLeader says so at once.
		select {
		case <-wanted.Done():
		case <-lost.Done():
		case <-changed:
		case <-time.After(c.retry()):
		case err := <-ended:
			log.Error("coordinator: term failed", "error", err)
			return
		}
	}
	term.end(ErrTermOver)
	if err := <-ended; err != nil {
		log.Warn("coordinator: term ended with an error", "error", err)
	}
	log.Info("coordinator: term over")
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

func (c *Campaign) setFormer(identity string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.former = identity
}

func (c *Campaign) isFormer(identity string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return identity != "" && identity == c.former
}

// Leading says whether a term runs here.
func (c *Campaign) Leading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leading != nil
}

// Resign ends the term that runs here and keeps this node from the next one. It returns when the election is free.
func (c *Campaign) Resign(ctx context.Context) error {
	c.mu.Lock()
	l := c.leading
	c.mu.Unlock()
	if l == nil {
		return ErrNotCoordinator
	}
	if err := c.successor(ctx, l.epoch); err != nil {
		return err
	}
	l.resign()
	select {
	case <-l.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("resigned, but the election is not free yet: %w", context.Cause(ctx))
	}
}

// successor makes sure that some other node could win.
func (c *Campaign) successor(ctx context.Context, e *node.Epoch) error {
	var nodes v1alpha1.NodeList
	if err := e.Client.List(ctx, &nodes); err != nil {
		return err
	}
	settings := &v1alpha1.Settings{}
	if err := e.Client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return err
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		named := settings.Status.ActiveDrain != nil && settings.Status.ActiveDrain.Node == n.Name
		if n.Name != e.Node && !named && n.IsReady() && n.Status.Liveness == v1alpha1.Alive {
			return nil
		}
	}
	return ErrNoSuccessor
}

// sitOut waits after a resignation until another node leads, or until it is clear that none will.
func (c *Campaign) sitOut(ctx context.Context, e *node.Epoch) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timing.Dead)
	defer cancel()
	for ctx.Err() == nil {
		l := &coordinationv1.Lease{}
		err := e.Client.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.CoordinatorName}, l)
		if err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != "" {
			return
		}
		waitAny(ctx, c.retry())
	}
}

// NodeOf is the node whose term an identity names.
func NodeOf(identity string) string {
	name, _, _ := strings.Cut(identity, "/")
	return name
}

// watchFreed signals whenever the election is released, so that a hand-over does not wait for the next look.
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
