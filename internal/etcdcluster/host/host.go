// Package host runs members of etcd clusters on one node and keeps snapshots there. It does what the objects ask of the node, and
// reports what it did in their status.
//
//	host.go            Host: what the node has of etcd clusters
//	runtime.go         the two runtimes of the node: members, which outlive an epoch, and data, which does not
//	epoch.go           what the node knows and does in one epoch
//	member_*.go        the worker of one EtcdMember: plan (pure), steps, reports
//	snapshot_worker.go the worker of one EtcdSnapshot
//	orphans.go         data that no object knows: kept, listed, removed by name
//	transfer.go        copies of snapshots between nodes
//	marker.go, ports.go, metrics.go
package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/etcdcluster/wire"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

// nodeWriteLimit bounds one write of an object by a node.
const nodeWriteLimit = 5 * time.Second

// Options make a Host.
type Options struct {
	// Node is the node's name.
	Node string
	// Gate of the node.
	Gate *node.Gate
	// Exe is the ebb program.
	Exe string
	// Dir is the directory of the members' data, Snapshots that of the snapshots.
	Dir, Snapshots string
	// Address is the IP address on which members listen and at which others reach them.
	Address string
	// Ports to pick from.
	Ports PortRange
	// Files are the node's certificate, its key and the certificate authority.
	Files peer.Files
	// Metrics of the node's members and snapshots.
	Metrics *Metrics
	// Log of the node.
	Log *slog.Logger
	// MemberArgs are further arguments of the members' processes, and MemberLogLevel is the level at which etcd logs there.
	MemberArgs     []string
	MemberLogLevel string
	// ReceivedEvery is how often a snapshot that is taken, or a copy on its way, reports how far it is; zero is receivedEvery.
	ReceivedEvery time.Duration
	// ReachLimit is how long another node has to answer in a trial; zero is reachLimit.
	ReachLimit time.Duration
}

// Host is what a node has of etcd clusters: members and data at rest. Members keep running while the lease is in doubt, because raft
// decides which of them may write.
type Host struct {
	opts  Options
	store snapshot.Store
	sends chan struct{} // one place for each copy that is being sent to another node
	swept sync.Once     // of unfinished files that an earlier process left

	mu        sync.Mutex
	running   *epochRun // what the node knows in this epoch; nil while there is none
	members   map[types.UID]*memberWorker
	snapshots map[types.NamespacedName]*v1alpha1.EtcdSnapshot // as last seen
	working   map[types.UID]bool                              // snapshots that are being taken
	orphans   []string                                        // data that no object knows
	run       *membersRun                                     // nil while members do not run
	picking   sync.Mutex                                      // one member at a time picks ports
}

// membersRun is one run of the members' runtime.
type membersRun struct {
	ctx   context.Context
	tasks sync.WaitGroup
}

// New makes the host of a node.
func New(o Options) (*Host, error) {
	if net.ParseIP(o.Address) == nil {
		return nil, fmt.Errorf("etcd members cannot listen on %q: it is not an IP address", o.Address)
	}
	for _, dir := range []*string{&o.Dir, &o.Snapshots} {
		path, err := filepath.Abs(*dir)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("directory of etcd members: %w", err)
		}
		*dir = path
	}
	h := &Host{
		opts: o, store: snapshot.Store{Root: o.Snapshots}, sends: make(chan struct{}, sendsAtOnce), members: map[types.UID]*memberWorker{},
		snapshots: map[types.NamespacedName]*v1alpha1.EtcdSnapshot{}, working: map[types.UID]bool{},
	}
	o.Metrics.host.Store(h)
	return h, nil
}

// Members is the runtime that owns the members' processes.
func (h *Host) Members() node.Hosted {
	return node.Hosted{Runtime: members{h}, OnLeaseDoubt: node.KeepOnDoubt}
}

// Data is the runtime that follows the objects and takes, copies and deletes snapshots.
func (h *Host) Data() node.Hosted {
	return node.Hosted{Runtime: data{h}, OnLeaseDoubt: node.StopOnDoubt}
}

// Service serves snapshots to other nodes.
func (h *Host) Service() peer.Service {
	return func(r grpc.ServiceRegistrar) { wire.RegisterSnapshotsServer(r, &copies{host: h}) }
}

// count counts members by phase and the bytes of verified snapshots, for the metrics.
func (h *Host) count(phases map[v1alpha1.EtcdMemberPhase]int) (bytes int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.members {
		if phase := w.reported().Phase; phase != "" {
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
