package changefeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/maintainer"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

const (
	// reportEvery is how often a node requests reports about the changefeeds that it maintains.
	reportEvery = 200 * time.Millisecond
	// writeLimit bounds one write of an object.
	writeLimit = 5 * time.Second
	// closeLimit bounds how long a changefeed may take to stop on this node.
	closeLimit = 30 * time.Second
	closeTries = 20
)

// Options make a host.
type Options struct {
	// Node is the node's name.
	Node string
	// Gate of the node.
	Gate *node.Gate
	// Files for mutual TLS.
	Files peer.Files
	// Opener of sources and sinks.
	Opener Opener
	// Memory bounds the changes that were read and not yet written, in bytes.
	Memory int64
	// Metrics of the node's changefeeds.
	Metrics *Metrics
	// Log of the node.
	Log *slog.Logger
}

// Host runs what a node has of changefeeds: dispatchers, which continue while the node's lease is in doubt because the sink checks
// who owns a table, and maintainers, which make decisions and are therefore stopped.
type Host struct {
	opts   Options
	engine *dispatch.Engine
	peers  *peers

	mu       sync.Mutex
	epoch    int64                     // of the node, 0 while it has none
	holding  func() bool               // reports whether the node's lease is held and not in doubt; nil while there is no epoch
	unwanted map[dispatch.FeedKey]bool // paused or deleted
	running  map[dispatch.FeedKey]*hosted

	writes chan struct{} // bounds the concurrent writes
}

// writesAtOnce bounds the concurrent writes of a node about its changefeeds, so that very many do not delay the renewal of its lease.
const writesAtOnce = 4

// NewHost makes the host of a node.
func NewHost(o Options) *Host {
	h := &Host{unwanted: map[dispatch.FeedKey]bool{}, running: map[dispatch.FeedKey]*hosted{}, writes: make(chan struct{}, writesAtOnce)}
	o.Opener.May = h.leased
	h.opts = o
	h.engine = dispatch.New(dispatch.Options{
		OpenSource: o.Opener.Source, OpenSink: o.Opener.Sink, Memory: o.Memory, Flushed: o.Metrics.flushed, May: h.leased,
		Enter: func() (func(), error) {
			pass, err := o.Gate.Enter(KindDispatchers)
			if err != nil {
				return nil, err
			}
			return pass.Leave, nil
		},
	})
	h.peers = newPeers(o.Node, o.Files, h)
	o.Metrics.host.Store(h)
	return h
}

// Service lets maintainers on other nodes order this node's dispatchers.
func (h *Host) Service() peer.Service {
	return func(r grpc.ServiceRegistrar) { wire.RegisterNodeServer(r, &server{host: h}) }
}

// Dispatchers is the runtime of the data path.
func (h *Host) Dispatchers() node.Hosted {
	return node.Hosted{Runtime: dispatchers{h}, OnLeaseDoubt: node.KeepOnDoubt}
}

// Maintainers is the runtime of the maintainers.
func (h *Host) Maintainers() node.Hosted {
	return node.Hosted{Runtime: maintainers{h}, OnLeaseDoubt: node.StopOnDoubt}
}

// dispatchers serves other nodes' maintainers, and stops everything when the node leaves.
type dispatchers struct{ *Host }

// Name implements node.Runtime.
func (d dispatchers) Name() string { return KindDispatchers }

// Held counts the dispatchers here, the table triggers of maintainers included.
func (d dispatchers) Held() int { return d.opts.Gate.Count(KindDispatchers) }

// Run implements node.Runtime.
func (d dispatchers) Run(ctx context.Context, _ *node.Epoch) error {
	<-ctx.Done()
	for _, key := range d.engine.Keys() {
		_ = d.closeFeed(key) // the error was logged, and the process ends
	}
	d.peers.close()
	return nil
}

// closeFeed stops everything of a changefeed here.
func (h *Host) closeFeed(key dispatch.FeedKey) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	err := h.engine.Close(ctx, key)
	if err != nil {
		h.opts.Log.Warn("could not stop all dispatchers of the changefeed on this node", "changefeed", key.String(), "error", err)
	}
	return err
}

// closeLater does so in the background, and retries while the changefeed is unwanted: a sink that hangs must not block a node whose lease is in
// doubt.
func (h *Host) closeLater(key dispatch.FeedKey, then func()) {
	go func() {
		for range closeTries {
			if h.closeFeed(key) == nil || h.wants(key) {
				break
			}
		}
		if then != nil {
			then()
		}
	}()
}

// nodeEpoch is the epoch of this node, 0 while it has none.
func (h *Host) nodeEpoch() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.epoch
}

// leased reports whether the node's lease is held and not in doubt.
func (h *Host) leased() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holding != nil && h.holding()
}

// wants reports whether dispatchers of a changefeed may run here.
func (h *Host) wants(key dispatch.FeedKey) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.unwanted[key]
}

// maintainers runs the maintainers that are placed on this node.
type maintainers struct{ *Host }

// Name implements node.Runtime.
func (m maintainers) Name() string { return KindMaintainers }

// Held counts them.
func (m maintainers) Held() int { return m.opts.Gate.Count(KindMaintainers) }

// Run implements node.Runtime.
func (m maintainers) Run(ctx context.Context, e *node.Epoch) error {
	m.mu.Lock()
	m.epoch, m.holding = e.Number, e.Holding
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.epoch, m.holding = 0, nil
		m.mu.Unlock()
	}()
	if ctx.Err() != nil {
		return nil
	}
	r := &run{Host: m.Host, e: e, ctx: ctx, changed: make(chan struct{}), reports: map[string]map[dispatch.FeedKey]maintainer.Report{}, fresh: map[dispatch.FeedKey]bool{},
		world: maintainer.View{Fleet: fleet.New(), Settling: fleet.Began(time.Now())}}
	defer r.wait()
	if err := r.watch(ctx); err != nil {
		return err
	}
	r.live.Go(func() { r.poll(ctx) })
	<-ctx.Done()
	return nil
}

// run is the maintainers' side in one epoch.
type run struct {
	*Host
	e     *node.Epoch
	ctx   context.Context
	live  sync.WaitGroup
	ended bool // nothing more begins; of the host's lock

	mu      sync.Mutex
	world   maintainer.View
	changed chan struct{} // closed and replaced when the world changes
	reports map[string]map[dispatch.FeedKey]maintainer.Report
	round   uint64                    // of reports, grows with every request
	fresh   map[dispatch.FeedKey]bool // changefeeds whose reports have changed
}

// hosted is a maintainer, and the epoch in which it was made.
type hosted struct {
	*maintainer.Maintainer
	run *run
}

// maintainerOptions are what every maintainer of the epoch is made with.
func (r *run) maintainerOptions() maintainer.Options {
	return maintainer.Options{
		Epoch: r.e, Gate: r.opts.Gate, Opener: r.opts.Opener, Cluster: r, Nodes: r.peers, Reports: r, Tap: r.engine.Tap, Status: r, Paused: r.opts.Metrics.paused, Log: r.opts.Log,
	}
}

func (r *run) wait() {
	r.Host.mu.Lock()
	r.ended = true // the watches end later, and may still deliver events
	list := slices.Collect(maps.Values(r.running))
	r.Host.mu.Unlock()
	for _, m := range list {
		m.Stop()
	}
	r.live.Wait()
}

// watch follows the objects that maintainers need.
func (r *run) watch(ctx context.Context) error {
	err := kubeclient.Follow(ctx, r.e.Cache,
		kubeclient.On(r.seeNode, r.forgetNode), kubeclient.On(r.seeLease, r.forgetLease), kubeclient.On(r.seeSettings, nil), kubeclient.On(r.see, r.gone))
	if err != nil {
		return err
	}
	return r.closeForgotten(ctx)
}

// closeForgotten stops dispatchers of changefeeds that were deleted while this node did not watch.
func (r *run) closeForgotten(ctx context.Context) error {
	var list v1alpha1.ChangefeedList
	if err := r.e.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	known := map[dispatch.FeedKey]bool{}
	for i := range list.Items {
		known[maintainer.KeyOf(&list.Items[i])] = true
	}
	for _, key := range r.engine.Keys() {
		if !known[key] {
			r.closeLater(key, nil)
		}
	}
	return nil
}

func (r *run) seeNode(n *v1alpha1.Node) {
	r.change(func(w *maintainer.View) { w.Nodes = maps.Clone(w.Nodes); w.Nodes[n.Name] = n })
}

func (r *run) forgetNode(n *v1alpha1.Node) {
	r.change(func(w *maintainer.View) { w.Nodes = maps.Clone(w.Nodes); delete(w.Nodes, n.Name) })
}

func (r *run) seeLease(l *coordinationv1.Lease) {
	rec, err := lease.Read(l)
	if err != nil {
		return // not a node's
	}
	r.mu.Lock()
	old := r.world.Leases[rec.Node]
	r.mu.Unlock()
	old.Version = rec.Version
	if old == rec {
		return
	}
	r.change(func(w *maintainer.View) { w.Leases = maps.Clone(w.Leases); w.Leases[rec.Node] = rec })
}

func (r *run) forgetLease(l *coordinationv1.Lease) {
	if name, ok := lease.NodeOf(l); ok {
		r.change(func(w *maintainer.View) { w.Leases = maps.Clone(w.Leases); delete(w.Leases, name) })
	}
}

func (r *run) seeSettings(s *v1alpha1.Settings) {
	r.change(func(w *maintainer.View) {
		w.Settling.Saw(w.Fleet, time.Now()) // a drain that has just ended ran until now
		w.Slot, w.Settings = s.Status.ActiveDrain, s.Spec
		w.Settling.Saw(w.Fleet, time.Now())
	})
}

func (r *run) change(change func(*maintainer.View)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.world)
	close(r.changed)
	r.changed = make(chan struct{})
}

// View implements maintainer.Cluster.
func (r *run) View() (maintainer.View, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.world
	v.Rules = World{Fleet: v.Fleet}
	return v, r.changed
}

// see runs the maintainer of a changefeed that is placed here, and stops everything of one that is paused, deleted or failed.
func (r *run) see(cf *v1alpha1.Changefeed) {
	key := maintainer.KeyOf(cf)
	wanted := cf.Wanted() && cf.Status.State != v1alpha1.ChangefeedFailed
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	if r.ended {
		return
	}
	if wanted {
		delete(r.unwanted, key)
	} else if !r.unwanted[key] {
		r.unwanted[key] = true
		r.closeLater(key, nil)
	}
	p := cf.Placement()
	m := r.running[key]
	if m != nil && m.run == r {
		m.Observe(cf)
		return
	}
	mine := p.Node == r.opts.Node && p.NodeEpoch == r.e.Number
	from := p.From != nil && p.From.Node == r.opts.Node && p.From.NodeEpoch == r.e.Number && !p.From.Stopped
	if !mine && !from || r.ctx.Err() != nil {
		return
	}
	m = &hosted{Maintainer: maintainer.New(r.maintainerOptions(), cf), run: r}
	r.running[key] = m
	r.live.Go(func() {
		m.Run(r.ctx)
		r.Host.mu.Lock()
		defer r.Host.mu.Unlock()
		if r.running[key] == m {
			delete(r.running, key)
		}
	})
}

func (r *run) gone(cf *v1alpha1.Changefeed) {
	key := maintainer.KeyOf(cf)
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	if r.ended {
		return
	}
	if m := r.running[key]; m != nil && m.run == r {
		m.Gone()
	}
	r.unwanted[key] = true
	r.closeLater(key, func() {
		r.Host.mu.Lock()
		defer r.Host.mu.Unlock()
		delete(r.unwanted, key)
	})
}

// Maintained implements maintainer.Status.
func (r *run) Maintained() int {
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	return len(r.running)
}

// poll requests reports from every node, periodically, about the changefeeds that are maintained here.
func (r *run) poll(ctx context.Context) {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		w, _ := r.View()
		var feeds []*wire.Feed
		r.Host.mu.Lock()
		for key, m := range r.running {
			feeds = append(feeds, wire.NewFeed(key, m.Placement()))
		}
		r.Host.mu.Unlock()
		if len(feeds) == 0 {
			continue
		}
		var asked sync.WaitGroup
		for name, rec := range w.Leases {
			if rec.Held() {
				asked.Go(func() { r.Request(ctx, w, name, feeds) })
			}
		}
		asked.Wait()
		r.wakeReported()
	}
}

// wakeReported wakes the maintainers of changefeeds whose reports have changed.
func (r *run) wakeReported() {
	r.mu.Lock()
	fresh := r.fresh
	r.fresh = map[dispatch.FeedKey]bool{}
	r.mu.Unlock()
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	for key := range fresh {
		if m := r.running[key]; m != nil {
			m.Wake()
		}
	}
}

// Of implements maintainer.Reports.
func (r *run) Of(key dispatch.FeedKey) map[string]maintainer.Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := map[string]maintainer.Report{}
	for name, byFeed := range r.reports {
		if report, ok := byFeed[key]; ok {
			of[name] = report
		}
	}
	return of
}

// Round implements maintainer.Reports.
func (r *run) Round() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.round
}

// Request implements maintainer.Reports.
func (r *run) Request(ctx context.Context, w maintainer.View, name string, feeds []*wire.Feed) {
	r.mu.Lock()
	r.round++
	round := r.round
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*reportEvery)
	defer cancel()
	reply, err := r.peers.report(ctx, w.Nodes[name], &wire.ReportRequest{Caller: r.caller(), Feeds: feeds})
	if err != nil {
		return // its last report stays valid until it sends another or loses its lease
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	byFeed := maps.Clone(r.reports[name])
	if byFeed == nil {
		byFeed = map[dispatch.FeedKey]maintainer.Report{}
	}
	for _, f := range reply.Feeds {
		key := f.Feed.Key()
		if byFeed[key].Round < round { // replies may overtake each other
			if !proto.Equal(byFeed[key].FeedReport, f) {
				r.fresh[key] = true
			}
			byFeed[key] = maintainer.Report{Round: round, FeedReport: f}
		}
	}
	r.reports[name] = byFeed
}

func (r *run) caller() *wire.Caller {
	return &wire.Caller{Node: r.opts.Node, NodeEpoch: r.e.Number}
}

// Update implements maintainer.Status.
func (r *run) Update(ctx context.Context, key dispatch.FeedKey, change func(*v1alpha1.Changefeed) bool) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	select {
	case r.writes <- struct{}{}:
		defer func() { <-r.writes }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for cf, seen := r.lastSeen(key); ; cf, seen = nil, false {
		if !seen {
			cf = &v1alpha1.Changefeed{}
			if err := r.e.Client.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Name}, cf); err != nil {
				return err
			}
		}
		if string(cf.UID) != key.UID || !change(cf) {
			if seen {
				continue // it may be outdated: read it from the API server
			}
			return nil
		}
		if !r.e.Holding() {
			return context.Canceled
		}
		if err := r.e.Client.Status().Update(ctx, cf); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// lastSeen is the last observed version of an object, if its maintainer is here. Usually it is the newest.
func (r *run) lastSeen(key dispatch.FeedKey) (*v1alpha1.Changefeed, bool) {
	r.Host.mu.Lock()
	m := r.running[key]
	r.Host.mu.Unlock()
	if m == nil {
		return nil, false
	}
	return m.Latest().DeepCopy(), true
}

// peers sends requests to nodes.
type peers struct {
	self  string
	files peer.Files
	local *server

	mu    sync.Mutex
	conns map[string]*reached
}

type reached struct {
	address string
	conn    *grpc.ClientConn
}

func newPeers(self string, f peer.Files, h *Host) *peers {
	return &peers{self: self, files: f, local: &server{host: h}, conns: map[string]*reached{}}
}

// client returns a client for the address that a node has published.
func (p *peers) client(n *v1alpha1.Node) (wire.NodeClient, error) {
	if n == nil {
		return nil, errors.New("the Node object does not exist")
	}
	if n.Status.Address == "" {
		return nil, fmt.Errorf("node %s has not published its address", n.Name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[n.Name]
	if c != nil && c.address == n.Status.Address {
		return wire.NewNodeClient(c.conn), nil
	}
	if c != nil {
		_ = c.conn.Close() // the node has another address now
	}
	conn, err := peer.Dial(p.files, n.Status.Address, n.Name)
	if err != nil {
		return nil, err
	}
	p.conns[n.Name] = &reached{address: n.Status.Address, conn: conn}
	return wire.NewNodeClient(conn), nil
}

// Bootstrap implements maintainer.Nodes.
func (p *peers) Bootstrap(ctx context.Context, n *v1alpha1.Node, req *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	if n != nil && n.Name == p.self {
		return p.local.Bootstrap(ctx, req)
	}
	c, err := p.client(n)
	if err != nil {
		return nil, err
	}
	return c.Bootstrap(ctx, req)
}

// Order implements maintainer.Nodes.
func (p *peers) Order(ctx context.Context, n *v1alpha1.Node, req *wire.OrderRequest) (*wire.OrderReply, error) {
	if n != nil && n.Name == p.self {
		return p.local.Order(ctx, req)
	}
	c, err := p.client(n)
	if err != nil {
		return nil, err
	}
	return c.Order(ctx, req)
}

func (p *peers) report(ctx context.Context, n *v1alpha1.Node, req *wire.ReportRequest) (*wire.ReportReply, error) {
	if n != nil && n.Name == p.self {
		return p.local.Report(ctx, req)
	}
	c, err := p.client(n)
	if err != nil {
		return nil, err
	}
	return c.Report(ctx, req)
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, c := range p.conns {
		_ = c.conn.Close() // there are no requests any more
		delete(p.conns, name)
	}
}
