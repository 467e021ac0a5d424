package etcdcluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"google.golang.org/grpc"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/etcdcluster/wire"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

// nodeWriteLimit bounds one write of an object by a node.
const nodeWriteLimit = 5 * time.Second

// HostOptions make a Host.
type HostOptions struct {
	// Node is the node's name.
	Node string
	// Gate of the node.
	Gate *node.Gate
	// Exe is the ebb program.
	Exe string
	// Dir is where members keep their data, Snapshots where snapshots are kept.
	Dir, Snapshots string
	// Address is that on which members listen and under which others reach them: an IP address.
	Address string
	// Ports to pick from.
	Ports PortRange
	// Files are the node's certificate, its key and whom it trusts.
	Files peer.Files
	// Metrics of the node's members and snapshots.
	Metrics *NodeMetrics
	// Log of the node.
	Log *slog.Logger
	// MemberArgs are further arguments of the members' processes, and MemberLogLevel is what etcd logs there.
	MemberArgs     []string
	MemberLogLevel string
}

// Host is what a node has of etcd clusters: members, which go on while the lease is in doubt because raft checks who may write,
// and data at rest.
type Host struct {
	opts  HostOptions
	store snapshot.Store
	sends chan struct{} // one place for each copy that may be under way to another node
	swept sync.Once     // of what an earlier process left

	mu        sync.Mutex
	era       *era // what the node knows in this epoch; nil while there is none
	keepers   map[types.UID]*keeper
	snapshots map[types.NamespacedName]*v1alpha1.EtcdSnapshot // as last seen
	working   map[types.UID]bool                              // snapshots that are being taken
	run       *membersRun                                     // nil while members do not run
	picking   sync.Mutex                                      // one member at a time picks ports
}

// membersRun is one run of the members' runtime.
type membersRun struct {
	ctx  context.Context
	live sync.WaitGroup
}

// NewHost makes the host of a node.
func NewHost(o HostOptions) (*Host, error) {
	if net.ParseIP(o.Address) == nil {
		return nil, fmt.Errorf("etcd members cannot listen on %q: it is no IP address", o.Address)
	}
	for _, dir := range []*string{&o.Dir, &o.Snapshots} {
		path, err := filepath.Abs(*dir)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("etcd members: %w", err)
		}
		*dir = path
	}
	h := &Host{
		opts: o, store: snapshot.Store{Root: o.Snapshots}, sends: make(chan struct{}, sendsAtOnce), keepers: map[types.UID]*keeper{},
		snapshots: map[types.NamespacedName]*v1alpha1.EtcdSnapshot{}, working: map[types.UID]bool{},
	}
	o.Metrics.host.Store(h)
	return h, nil
}

// Members is the runtime that owns the members' processes.
func (h *Host) Members() node.Hosted {
	return node.Hosted{Runtime: members{h}, Doubt: node.KeepInDoubt}
}

// Data is the runtime that follows the objects, and takes, copies and deletes snapshots.
func (h *Host) Data() node.Hosted { return node.Hosted{Runtime: data{h}, Doubt: node.StopInDoubt} }

// Service lets other nodes fetch snapshots.
func (h *Host) Service() peer.Service {
	return func(r grpc.ServiceRegistrar) { wire.RegisterSnapshotsServer(r, &copies{host: h}) }
}

// look counts members by phase and the bytes of snapshots, for the metrics.
func (h *Host) look(phases map[v1alpha1.EtcdMemberPhase]int) (bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range h.keepers {
		if phase := k.phase(); phase != "" {
			phases[phase]++
		}
	}
	for _, s := range h.snapshots {
		if _, verified := s.Copy(h.opts.Node); verified && s.Status.Facts != nil {
			bytes += s.Status.Facts.Size
		}
	}
	return bytes
}

// members keeps the processes running, whatever becomes of the lease.
type members struct{ *Host }

// Name implements node.Runtime.
func (m members) Name() string { return KindMembers }

// Held counts members that run, start or stop.
func (m members) Held() int { return m.opts.Gate.Count(KindMembers) }

// Run implements node.Runtime.
func (m members) Run(ctx context.Context) error {
	run := &membersRun{ctx: ctx}
	m.swept.Do(func() {
		if err := m.store.Sweep(); err != nil {
			m.opts.Log.Warn("what was left of unfinished snapshots is still there", "error", err)
		}
	})
	m.mu.Lock()
	m.run = run
	for _, k := range m.keepers {
		m.begin(k)
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.run = nil
	m.mu.Unlock()
	run.live.Wait()
	return nil
}

// begin lets a keeper work, if members run at all. It is called with the lock.
func (h *Host) begin(k *keeper) {
	run := h.run
	if run == nil {
		return
	}
	run.live.Go(func() {
		k.live(run.ctx)
		h.mu.Lock()
		defer h.mu.Unlock()
		if k.over() && h.keepers[k.uid] == k {
			delete(h.keepers, k.uid)
		}
	})
}

// data follows the objects of one epoch.
type data struct{ *Host }

// Name implements node.Runtime.
func (d data) Name() string { return KindData }

// Held counts snapshots of which this node has the only copy, those that are being taken here, and the data of members that are stopped.
func (d data) Held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.working)
	for _, s := range d.snapshots {
		if !d.working[s.UID] && OnlyCopy(s, d.opts.Node) {
			n++
		}
	}
	for _, k := range d.keepers {
		if k.retains() {
			n++
		}
	}
	return n
}

// Run implements node.Runtime.
func (d data) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &era{Host: d.Host, e: node.EpochFrom(ctx), ctx: ctx, curators: map[types.UID]*curator{}, heavy: make(chan struct{}, heavyAtOnce)}
	defer a.end(cancel)
	if err := a.watch(ctx); err != nil {
		return err
	}
	if err := a.reconcile(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// era is what the node knows and does in one epoch.
type era struct {
	*Host
	e     *node.Epoch
	ctx   context.Context
	live  sync.WaitGroup
	heavy chan struct{} // one place for each piece of work that reads whole files

	mu       sync.Mutex
	ended    bool
	curators map[types.UID]*curator
}

// heavyAtOnce bounds how many snapshots a node reads or writes at a time.
const heavyAtOnce = 2

// watch follows the objects. From here on the keepers know of the epoch.
func (a *era) watch(ctx context.Context) error {
	a.Host.mu.Lock()
	a.Host.era = a
	a.Host.mu.Unlock()
	return kubeclient.Follow(ctx, a.e.Cache, kubeclient.On(a.seeMember, a.forgetMember), kubeclient.On(a.seeSnapshot, a.forgetSnapshot))
}

// end waits until everything of the epoch has ended. Members go on.
func (a *era) end(cancel func()) {
	cancel()
	a.Host.mu.Lock()
	if a.Host.era == a {
		a.Host.era = nil
	}
	a.Host.mu.Unlock()
	a.mu.Lock()
	a.ended = true
	a.mu.Unlock()
	a.live.Wait()
}

// reconcile forgets what went while this node was not there to see it, and deletes files that belong to nothing.
func (a *era) reconcile(ctx context.Context) error {
	var members v1alpha1.EtcdMemberList
	if err := a.e.Cache.List(ctx, &members, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range members.Items {
		there[members.Items[i].UID] = true
	}
	a.Host.mu.Lock()
	keepers := slices.Collect(maps.Values(a.keepers))
	a.Host.mu.Unlock()
	for _, k := range keepers {
		if !there[k.uid] {
			k.forget()
		}
	}
	a.live.Go(func() {
		if err := a.sweep(ctx); err != nil && ctx.Err() == nil {
			a.opts.Log.Warn("snapshots that belong to nothing are still there", "error", err)
		}
	})
	return nil
}

func (a *era) seeMember(m *v1alpha1.EtcdMember) {
	if m.Spec.Node != a.opts.Node {
		return
	}
	a.Host.mu.Lock()
	defer a.Host.mu.Unlock()
	if a.Host.era != a {
		return
	}
	k := a.keepers[m.UID]
	if k == nil {
		k = newKeeper(a.Host, m)
		a.keepers[m.UID] = k
		a.begin(k)
	}
	k.see(m)
}

func (a *era) forgetMember(m *v1alpha1.EtcdMember) {
	a.Host.mu.Lock()
	k := a.keepers[m.UID]
	current := a.Host.era == a
	a.Host.mu.Unlock()
	if k != nil && current {
		k.forget()
	}
}

// current is the epoch in which the node may start, seal and delete; nil while that is in doubt.
func (h *Host) current() *era {
	h.mu.Lock()
	a := h.era
	h.mu.Unlock()
	if a == nil || a.ctx.Err() != nil || !a.e.Holding() {
		return nil
	}
	return a
}

// errNodeInDoubt: the node's lease is in doubt, and nothing is written.
var errNodeInDoubt = errors.New("the node's lease is in doubt")

// update changes an object's status by compare-and-swap until it is as it should be, or change says that there is nothing to do. The first try rests
// on the object as it was last seen: where that is old the write is refused, and where it needs no change news will follow.
func update[T client.Object](ctx context.Context, a *era, seen T, fresh func() T, change func(T) bool) error {
	ctx, cancel := context.WithTimeout(ctx, nodeWriteLimit)
	defer cancel()
	uid, key := seen.GetUID(), client.ObjectKeyFromObject(seen)
	for object := seen; ; {
		if !change(object) {
			return nil
		}
		if !a.e.Holding() {
			return errNodeInDoubt
		}
		if err := a.e.Client.Status().Update(ctx, object); !apierrors.IsConflict(err) {
			return err
		}
		object = fresh()
		if err := a.e.Client.Get(ctx, key, object); err != nil {
			return err
		}
		if object.GetUID() != uid {
			return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("objects").GroupResource(), key.Name)
		}
	}
}
