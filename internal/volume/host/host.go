// Package host is what a node has of volumes: the disks with their replicas, which it serves to engines on any node, and the engines of the
// volumes that are attached to it. It does what the objects ask of the node, and reports what it did in their status.
//
//	host.go      Host: what the node has
//	runtime.go   the two runtimes of the node: replicas, which follow the objects in an epoch, and engines, which outlive it
//	disks.go     the disks and the files that mark them
//	orphans.go   directories of replicas that no object knows
//	replica.go   the worker of one Replica: makes, opens and removes its directory
//	serve.go     connections of engines on other nodes
//	attach.go    the worker of one Volume: its engine and its NBD socket
//	want.go      what an engine should do with the replicas, from the objects
//	record.go    what an engine writes to its Volume
package host

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

// Kinds of work, as the gates of nodes, their counts and drains name them.
const (
	// KindReplicas are copies of volumes that have to leave before the node may.
	KindReplicas = "replicas"
	// KindEngines are volumes that are attached to the node.
	KindEngines = "engines"
)

// DefaultDisk is the disk of a node for which none are declared.
const DefaultDisk = "default"

// writeLimit bounds one write of an object.
const writeLimit = 5 * time.Second

// Options make a Host.
type Options struct {
	// Node is the node's name.
	Node string
	// Gate of the node.
	Gate *node.Gate
	// Dir is the directory of the default disk, and Sockets that of the NBD sockets.
	Dir, Sockets string
	// Files are the node's certificate, its key and the certificate authority.
	Files peer.Files
	// Objects reads and writes live, as the node.
	Objects client.Client
	// FS is where replicas are.
	FS store.FS
	// BootID of the machine.
	BootID string
	// Clock is CLOCK_BOOTTIME, and Timing that of engines.
	Clock  func() time.Duration
	Timing engine.Timing
	// Metrics of the node's replicas and engines.
	Metrics *Metrics
	// Log of the node.
	Log *slog.Logger
}

// Host is what a node has of volumes.
type Host struct {
	opts Options

	mu        sync.Mutex
	epoch     *epochRun // what the node follows in this epoch; nil while there is none
	engines   *enginesRun
	unguarded map[types.UID]bool // volumes that wait for the guard of the node
	disks     map[string]*disk
	replicas  map[types.UID]*replicaWorker
	attached  map[types.UID]*attachment
	volumes   map[types.UID]*v1alpha1.Volume // as last seen
	others    map[types.UID]*v1alpha1.Replica
	nodes     map[string]*v1alpha1.Node
}

// New makes the host of a node.
func New(o Options) (*Host, error) {
	for _, dir := range []*string{&o.Dir, &o.Sockets} {
		path, err := filepath.Abs(*dir)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("directory of volumes: %w", err)
		}
		*dir = path
	}
	if err := checkSocket(socketPath(o.Sockets, types.UID("00000000-0000-0000-0000-000000000000"))); err != nil {
		o.Log.Warn("volume: no volume can be attached to this node", "error", err)
	}
	h := &Host{
		opts: o, disks: map[string]*disk{}, replicas: map[types.UID]*replicaWorker{}, attached: map[types.UID]*attachment{},
		volumes: map[types.UID]*v1alpha1.Volume{}, others: map[types.UID]*v1alpha1.Replica{}, nodes: map[string]*v1alpha1.Node{},
	}
	o.Metrics.host.Store(h)
	return h, nil
}

// maxSocketPath is how long the path of a Unix socket may be on Linux.
const maxSocketPath = 107

// socketPath is where a volume is served. The name is short, since the whole path is bounded.
func socketPath(dir string, volume types.UID) string {
	return filepath.Join(dir, string(volume)[:8]+".sock")
}

// checkSocket fails if a path is too long for a Unix socket. A node that has no volume attached to it does not need one.
func checkSocket(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("the path of the NBD socket %s is longer than the %d bytes that a Unix socket may have: choose a shorter directory with --volume-sockets", path, maxSocketPath)
	}
	return nil
}

// Replicas is the runtime that follows the objects in an epoch.
func (h *Host) Replicas() node.Hosted {
	return node.Hosted{Runtime: replicas{h}, OnLeaseDoubt: node.StopOnDoubt}
}

// Engines is the runtime of the engines. They keep running while the lease is in doubt, because replicas refuse engines that were replaced.
func (h *Host) Engines() node.Hosted {
	return node.Hosted{Runtime: engines{h}, OnLeaseDoubt: node.KeepOnDoubt}
}

// key names an object in messages.
func key(o client.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// ErrNotHere: no such replica is open on this node.
var ErrNotHere = errors.New("the replica is not open on this node")
