package changefeed

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

const (
	// reportEvery is how often a node asks the others how the changefeeds are that it maintains.
	reportEvery = 200 * time.Millisecond
	// callLimit bounds one request to another node.
	callLimit = 10 * time.Second
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
	// Listener for other nodes.
	Listener net.Listener
	// Files for mutual TLS.
	Files peer.Files
	// Opener of sources and sinks.
	Opener Opener
	// Memory bounds the changes on their way, in bytes.
	Memory int64
	// Services of other kinds of work that are reached at the listener too.
	Services []peer.Service
	// Metrics of the node's changefeeds.
	Metrics *Metrics
	// Log of the node.
	Log *slog.Logger
}

// Host is what a node has of changefeeds: the dispatchers, which go on while the lease is in doubt because the sink checks
// who owns a table, and the maintainers, which decide and so do not.
type Host struct {
	opts   Options
	engine *dispatch.Engine
	peers  *peers
	served atomic.Bool // the listener has been used

	mu       sync.Mutex
	epoch    int64                     // of the node, 0 while it has none
	holding  func() bool               // whether the epoch stands, nil while there is none
	unwanted map[dispatch.FeedKey]bool // paused or deleted
	running  map[dispatch.FeedKey]*maintainer

	writes chan struct{} // one place for each write that may be under way
}

// writesAtOnce bounds the writes of a node about its changefeeds, so that very many do not crowd out its lease.
const writesAtOnce = 4

// NewHost makes the host of a node.
func NewHost(o Options) *Host {
	h := &Host{unwanted: map[dispatch.FeedKey]bool{}, running: map[dispatch.FeedKey]*maintainer{}, writes: make(chan struct{}, writesAtOnce)}
	o.Opener.May = h.leased
	h.opts = o
	h.engine = dispatch.New(dispatch.Options{
		OpenSource: o.Opener.Source, OpenSink: o.Opener.Sink, Memory: o.Memory, Flushed: o.Metrics.flushed,
		Enter: func() (func(), error) {
			pass, err := o.Gate.Enter(KindDispatchers)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", dispatch.ErrRefused, err)
			}
			return pass.Leave, nil
		},
	})
	h.peers = newPeers(o.Node, o.Files, h)
	o.Metrics.host.Store(h)
	return h
}

// Dispatchers is the runtime of the data path.
func (h *Host) Dispatchers() node.Hosted {
	return node.Hosted{Runtime: dispatchers{h}, Doubt: node.KeepInDoubt}
}

// Maintainers is the runtime that decides.
func (h *Host) Maintainers() node.Hosted {
	return node.Hosted{Runtime: maintainers{h}, Doubt: node.StopInDoubt}
}

// dispatchers serves other nodes' maintainers, and stops everything when the node leaves.
type dispatchers struct{ *Host }

// Name implements node.Runtime.
func (d dispatchers) Name() string { return KindDispatchers }

// Held counts the dispatchers here, the table triggers of maintainers included.
func (d dispatchers) Held() int { return d.opts.Gate.Count(KindDispatchers) }

// Run implements node.Runtime.
func (d dispatchers) Run(ctx context.Context) error {
	nodes := func(r grpc.ServiceRegistrar) { wire.RegisterNodeServer(r, &server{host: d.Host}) }
	server, err := peer.NewServer(d.opts.Files, append([]peer.Service{nodes}, d.opts.Services...)...)
	if err != nil {
		return err
	}
	listener := d.opts.Listener
	if d.served.Swap(true) { // it was closed when this runtime last ended
		if listener, err = net.Listen("tcp", listener.Addr().String()); err != nil {
			return fmt.Errorf("node to node: %w", err)
		}
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
	case err := <-served:
		return fmt.Errorf("node to node: %w", err)
	}
	server.Stop()
	<-served
	for _, key := range d.engine.Keys() {
		_ = d.closeFeed(key) // it was logged, and the process ends
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
		h.opts.Log.Warn("changefeed not closed in order", "changefeed", key.String(), "error", err)
	}
	return err
}

// closeLater does so beside everything else, again and again if need be: a sink that hangs must not hold up a node whose lease is
// in doubt.
func (h *Host) closeLater(key dispatch.FeedKey, then func()) {
	go func() {
		for range closeTries {
			if h.closeFeed(key) == nil {
				break
			}
		}
		if then != nil {
			then()
		}
	}()
}

// nodeEpoch is the incarnation of this node, 0 while it has none.
func (h *Host) nodeEpoch() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.epoch
}

// leased says whether the node's lease is beyond doubt.
func (h *Host) leased() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holding != nil && h.holding()
}

// wants says whether dispatchers of a changefeed may run here.
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
func (m maintainers) Run(ctx context.Context) error {
	e := node.EpochFrom(ctx)
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
	r := &run{Host: m.Host, e: e, ctx: ctx, changed: make(chan struct{}), reports: map[string]map[dispatch.FeedKey]report{}, told: map[dispatch.FeedKey]bool{},
		world: world{nodes: map[string]*v1alpha1.Node{}, leases: map[string]lease.Record{}, drained: time.Now()}} // one may just have ended
	defer r.wait()
	if err := r.watch(ctx); err != nil {
		return err
	}
	r.live.Go(func() { r.poll(ctx) })
	<-ctx.Done()
	return nil
}

// world is what a node watches for its maintainers.
type world struct {
	nodes  map[string]*v1alpha1.Node
	leases map[string]lease.Record
	slot   *v1alpha1.ActiveDrain
	// drained is when a drain was last seen.
	drained time.Time
	// balanceAfter is how long ago that must be for tables to be balanced.
	balanceAfter time.Duration
}

// plan is the world as the planners see it.
func (w world) plan() World { return World{Nodes: w.nodes, Leases: w.leases, Slot: w.slot} }

// run is the maintainers' side in one epoch.
type run struct {
	*Host
	e     *node.Epoch
	ctx   context.Context
	live  sync.WaitGroup
	ended bool // nothing more begins; of the host's lock

	mu      sync.Mutex
	world   world
	changed chan struct{} // closed and replaced when the world changes
	reports map[string]map[dispatch.FeedKey]report
	round   uint64                    // of reports, grows with every request
	told    map[dispatch.FeedKey]bool // of which something new was reported
}

// report is what a node last said of a changefeed, and in which round it was asked.
type report struct {
	round uint64
	*wire.FeedReport
}

func (r *run) wait() {
	r.Host.mu.Lock()
	r.ended = true // the watches end after us, and may still bring news
	list := slices.Collect(maps.Values(r.running))
	r.Host.mu.Unlock()
	for _, m := range list {
		m.stop()
	}
	r.live.Wait()
}

// watch follows the objects that maintainers rest on.
func (r *run) watch(ctx context.Context) error {
	err := kubeclient.Follow(ctx, r.e.Cache,
		kubeclient.On(r.seeNode, r.forgetNode), kubeclient.On(r.seeLease, r.forgetLease), kubeclient.On(r.seeSettings, nil), kubeclient.On(r.see, r.gone))
	if err != nil {
		return err
	}
	return r.closeForgotten(ctx)
}

// closeForgotten stops what belongs to objects that went while this node was not there to see it.
func (r *run) closeForgotten(ctx context.Context) error {
	var list v1alpha1.ChangefeedList
	if err := r.e.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	known := map[dispatch.FeedKey]bool{}
	for i := range list.Items {
		known[keyOf(&list.Items[i])] = true
	}
	for _, key := range r.engine.Keys() {
		if !known[key] {
			r.closeLater(key, nil)
		}
	}
	return nil
}

func keyOf(cf *v1alpha1.Changefeed) dispatch.FeedKey {
	return dispatch.FeedKey{Namespace: cf.Namespace, Name: cf.Name, UID: string(cf.UID)}
}

func (r *run) seeNode(n *v1alpha1.Node) {
	r.change(func(w *world) { w.nodes = maps.Clone(w.nodes); w.nodes[n.Name] = n })
}

func (r *run) forgetNode(n *v1alpha1.Node) {
	r.change(func(w *world) { w.nodes = maps.Clone(w.nodes); delete(w.nodes, n.Name) })
}

func (r *run) seeLease(l *coordinationv1.Lease) {
	rec, err := lease.Read(l)
	if err != nil {
		return // not a node's
	}
	r.mu.Lock()
	old := r.world.leases[rec.Node]
	r.mu.Unlock()
	old.Version = rec.Version
	if old == rec {
		return
	}
	r.change(func(w *world) { w.leases = maps.Clone(w.leases); w.leases[rec.Node] = rec })
}

func (r *run) forgetLease(l *coordinationv1.Lease) {
	if name, ok := lease.NodeOf(l.Name); ok {
		r.change(func(w *world) { w.leases = maps.Clone(w.leases); delete(w.leases, name) })
	}
}

func (r *run) seeSettings(s *v1alpha1.Settings) {
	r.change(func(w *world) {
		if w.slot != nil || s.Status.ActiveDrain != nil {
			w.drained = time.Now()
		}
		w.slot, w.balanceAfter = s.Status.ActiveDrain, BalanceAfter(s)
	})
}

func (r *run) change(change func(*world)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.world)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *run) view() (world, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.world, r.changed
}

// see does what an object asks of this node: run its maintainer, stop it, or stop everything of it.
func (r *run) see(cf *v1alpha1.Changefeed) {
	key := keyOf(cf)
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
		m.see(cf)
		return
	}
	mine := p.Node == r.opts.Node && p.NodeEpoch == r.e.Number
	from := p.From != nil && p.From.Node == r.opts.Node && p.From.NodeEpoch == r.e.Number && !p.From.Stopped
	if !mine && !from || r.ctx.Err() != nil {
		return
	}
	m = newMaintainer(r, cf)
	r.running[key] = m
	r.live.Go(func() {
		m.live(r.ctx)
		r.Host.mu.Lock()
		defer r.Host.mu.Unlock()
		if r.running[key] == m {
			delete(r.running, key)
		}
	})
}

func (r *run) gone(cf *v1alpha1.Changefeed) {
	key := keyOf(cf)
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	if r.ended {
		return
	}
	if m := r.running[key]; m != nil && m.run == r {
		m.stop()
	}
	r.unwanted[key] = true
	r.closeLater(key, func() {
		r.Host.mu.Lock()
		defer r.Host.mu.Unlock()
		delete(r.unwanted, key)
	})
}

// feeds is how many changefeeds are maintained here.
func (r *run) feeds() int {
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	return len(r.running)
}

// poll asks every node, all the time, how the changefeeds are that are maintained here.
func (r *run) poll(ctx context.Context) {
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		w, _ := r.view()
		var feeds []*wire.Feed
		r.Host.mu.Lock()
		for key, m := range r.running {
			feeds = append(feeds, &wire.Feed{Namespace: key.Namespace, Name: key.Name, Uid: key.UID, Epoch: m.placement()})
		}
		r.Host.mu.Unlock()
		if len(feeds) == 0 {
			continue
		}
		var asked sync.WaitGroup
		for name, rec := range w.leases {
			if rec.Held() {
				asked.Go(func() { r.ask(ctx, w, name, feeds) })
			}
		}
		asked.Wait()
		r.wakeTold()
	}
}

// wakeTold wakes the maintainers of changefeeds of which something new was told.
func (r *run) wakeTold() {
	r.mu.Lock()
	told := r.told
	r.told = map[dispatch.FeedKey]bool{}
	r.mu.Unlock()
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	for key := range told {
		if m := r.running[key]; m != nil {
			m.poke()
		}
	}
}

// ask asks one node.
func (r *run) ask(ctx context.Context, w world, name string, feeds []*wire.Feed) {
	r.mu.Lock()
	r.round++
	round := r.round
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 5*reportEvery)
	defer cancel()
	reply, err := r.peers.report(ctx, w.nodes[name], &wire.ReportRequest{Caller: r.caller(), Feeds: feeds})
	if err != nil {
		return // what it said last stands until it speaks again or is gone
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	byFeed := maps.Clone(r.reports[name])
	if byFeed == nil {
		byFeed = map[dispatch.FeedKey]report{}
	}
	for _, f := range reply.Feeds {
		key := feedKey(f.Feed)
		if byFeed[key].round < round { // answers may overtake each other
			if !proto.Equal(byFeed[key].FeedReport, f) {
				r.told[key] = true
			}
			byFeed[key] = report{round, f}
		}
	}
	r.reports[name] = byFeed
}

func (r *run) caller() *wire.Caller {
	return &wire.Caller{Node: r.opts.Node, NodeEpoch: r.e.Number}
}

// update changes an object's status by compare-and-swap until it is as it should be, or change says that there is nothing
// to do.
func (r *run) update(ctx context.Context, key dispatch.FeedKey, change func(*v1alpha1.Changefeed) bool) error {
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
				continue // it may be old
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

// lastSeen is an object as it was last seen, if its maintainer is here. Most of the time it is the newest.
func (r *run) lastSeen(key dispatch.FeedKey) (*v1alpha1.Changefeed, bool) {
	r.Host.mu.Lock()
	m := r.running[key]
	r.Host.mu.Unlock()
	if m == nil {
		return nil, false
	}
	return m.latest().DeepCopy(), true
}

// peers reaches other nodes.
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

// client reaches a node at the address that it tells.
func (p *peers) client(n *v1alpha1.Node) (wire.NodeClient, error) {
	if n == nil || n.Status.Address == "" {
		return nil, fmt.Errorf("a node that has not told its address")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.conns[n.Name]
	if c != nil && c.address == n.Status.Address {
		return wire.NewNodeClient(c.conn), nil
	}
	if c != nil {
		_ = c.conn.Close() // the node is elsewhere now
	}
	conn, err := peer.Dial(p.files, n.Status.Address, n.Name)
	if err != nil {
		return nil, err
	}
	p.conns[n.Name] = &reached{address: n.Status.Address, conn: conn}
	return wire.NewNodeClient(conn), nil
}

func (p *peers) bootstrap(ctx context.Context, n *v1alpha1.Node, req *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	if n != nil && n.Name == p.self {
		return p.local.Bootstrap(ctx, req)
	}
	c, err := p.client(n)
	if err != nil {
		return nil, err
	}
	return c.Bootstrap(ctx, req)
}

func (p *peers) order(ctx context.Context, n *v1alpha1.Node, req *wire.OrderRequest) (*wire.OrderReply, error) {
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
		_ = c.conn.Close() // nothing is under way any more
		delete(p.conns, name)
	}
}
