// Package member is one member of an etcd cluster: a child process of a node that runs etcd's own server.
//
// The node starts the child with Start, gives it its Config as the first line of its standard input, and from then on a
// Command a line; the child answers with a Report a line on its standard output. When its standard input ends the node is
// gone, and the child stops in order. A frozen node keeps the pipe open, and its members keep serving.
//
//	      Config                seal                stop, SIGTERM, end of input
//	──▶ starting ──▶ serving ◀──────▶ sealed ──────────────▶ stopped
//	        │           │      unseal    │
//	        │           └────────────────┴──▶ removed: etcd removed the member from its cluster
//	        └──▶ removed, or unheard: it has to be started again
package member

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

// Command is the hidden command of ebb that runs a member.
const Command = "etcd-member"

// Names in a member's directory.
const (
	DataName = "data"
	LockName = "lock"
	LogName  = "log"
	// SalvageName is where a salvage copies the data to.
	SalvageName = "salvage"
	socketName  = "private.sock"
	httpName    = "http.sock"
)

// Data is where etcd keeps its data in a member's directory.
func Data(dir string) string { return filepath.Join(dir, DataName) }

// TLS are the files of a node: its certificate with its key, and the authority that it trusts.
type TLS struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
	CA   string `json:"ca"`
}

// Restore names a snapshot that becomes the data of the first member of a new cluster.
type Restore struct {
	// Path, Size and SHA256 of the file.
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Exact: nothing was acknowledged after the snapshot.
	Exact bool `json:"exact,omitempty"`
}

// Config is what a member is started with.
type Config struct {
	// Dir is the member's directory.
	Dir string `json:"dir"`
	// Name of the member.
	Name string `json:"name"`
	// ClusterUID is the UID of the EtcdCluster.
	ClusterUID string `json:"clusterUID"`
	// PeerURL and ClientURL are where it listens, and what it advertises.
	PeerURL   string `json:"peerURL"`
	ClientURL string `json:"clientURL"`
	// InitialCluster, Existing and Token are how it begins; etcd uses them only while there is no data.
	InitialCluster string `json:"initialCluster"`
	Existing       bool   `json:"existing,omitempty"`
	Token          string `json:"token"`
	// Restore is the snapshot that it begins with while there is no data.
	Restore *Restore `json:"restore,omitempty"`
	// TLS are the files for those of the two URLs that are https.
	TLS TLS `json:"tls"`
	// QuotaBytes of the database; 0 for 2 GiB.
	QuotaBytes int64 `json:"quotaBytes,omitempty"`
	// HeartbeatMilliseconds and ElectionMilliseconds are etcd's; 0 for its own.
	HeartbeatMilliseconds int32 `json:"heartbeatMilliseconds,omitempty"`
	ElectionMilliseconds  int32 `json:"electionMilliseconds,omitempty"`
	// AutoCompactionMode and AutoCompactionRetention are etcd's.
	AutoCompactionMode      string `json:"autoCompactionMode,omitempty"`
	AutoCompactionRetention string `json:"autoCompactionRetention,omitempty"`
	// Sealed: no client is served from the start.
	Sealed bool `json:"sealed,omitempty"`
	// Unheard is how often in a row it was started and ended Unheard.
	Unheard int `json:"unheard,omitempty"`
	// Salvage: the child does not run the member, but makes a snapshot of its data.
	Salvage *Salvage `json:"salvage,omitempty"`
	// LogLevel is etcd's: debug, info, warn (if empty) or error.
	LogLevel string `json:"logLevel,omitempty"`
}

func (c Config) validate() error {
	switch {
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("directory %q is not an absolute path", c.Dir)
	case c.Name == "":
		return errors.New("the member has no name")
	case c.Salvage != nil:
		if !filepath.IsAbs(c.Salvage.Work) || !filepath.IsAbs(c.Salvage.Output) {
			return errors.New("the paths of a salvage are not absolute")
		}
	case c.PeerURL == "" || c.ClientURL == "":
		return errors.New("the peer URL or the client URL is missing")
	case c.InitialCluster == "" || c.Token == "":
		return errors.New("the initial cluster or the token is missing")
	}
	return nil
}

func (c Config) clientTLS() bool { return strings.HasPrefix(c.ClientURL, "https:") }
func (c Config) peerTLS() bool   { return strings.HasPrefix(c.PeerURL, "https:") }

// Order is what a node asks of a running member.
type Order string

// The orders.
const (
	// Seal: refuse clients, except on the private socket. The report follows when all requests that were admitted before have ended.
	Seal Order = "seal"
	// Unseal: serve clients again.
	Unseal Order = "unseal"
	// Stop: end in order.
	Stop Order = "stop"
)

// request is a line from the node. Numbers grow, and a report carries the number of the last order that was carried out.
type request struct {
	Number int64 `json:"number"`
	Order  Order `json:"order"`
}

// State is the state of a member's process.
type State string

// The states.
const (
	// Starting: it is not part of the cluster yet.
	Starting State = "starting"
	// Serving: it is part of the cluster and serves clients.
	Serving State = "serving"
	// Sealed: it is part of the cluster and serves only its private socket.
	Sealed State = "sealed"
	// Removed: etcd removed it from the cluster; its process ends.
	Removed State = "removed"
	// Unheard: its process ends, to be started again at once from the same data. See patiences.
	Unheard State = "unheard"
	// Salvaged: a snapshot was made of its data; the process ends.
	Salvaged State = "salvaged"
	// Failed: its process ends with an error.
	Failed State = "failed"
)

// Report is a line from the member.
type Report struct {
	// Number of the last order that is carried out.
	Number int64 `json:"number,omitempty"`
	State  State `json:"state"`
	// ID and ClusterID that etcd gave it, in hexadecimal.
	ID        string `json:"id,omitempty"`
	ClusterID string `json:"clusterID,omitempty"`
	Error     string `json:"error,omitempty"`
	// Facts of the snapshot, of a child that made one of a stopped member's data.
	Facts *snapshot.Facts `json:"facts,omitempty"`
	// Progress of that child.
	Progress *Progress `json:"progress,omitempty"`
}

// Progress is how far a step of taking a snapshot is.
type Progress struct {
	Step  snapshot.Step `json:"step"`
	Done  int64         `json:"done"`
	Total int64         `json:"total"`
}

const (
	// orphanLimit is how long a member whose node is gone may take to stop.
	orphanLimit = 2 * time.Second
	// lockEvery is how often a member tries the lock that its predecessor may still have.
	lockEvery = 20 * time.Millisecond
)
