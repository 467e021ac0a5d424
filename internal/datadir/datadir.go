// Package datadir knows where everything is on a machine: the data directory of an API server, of nodes, or of both.
//
//	kubeconfig          admin's credentials            run/<name>.pid    of every process
//	viewer.kubeconfig   a viewer's credentials         logs/<name>.log   of every process that `ebb up` started
//	token               bearer token of /api/v2        pki/              the certificate authority
//	health-token        the one for health events      apiserver/        embedded etcd, the address in use
//	ca.crt              what to trust                  nodes/<name>/     a node's credentials, lock and work
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/shortname"
)

// Dir is the path of a data directory.
type Dir string

// Kubeconfig is the admin's.
func (d Dir) Kubeconfig() string { return d.at("kubeconfig") }

// ViewerKubeconfig is a viewer's.
func (d Dir) ViewerKubeconfig() string { return d.at("viewer.kubeconfig") }

// Token is the file with the bearer token of /api/v2.
func (d Dir) Token() string { return d.at("token") }

// HealthToken is the file with the bearer token that may only send health events.
func (d Dir) HealthToken() string { return d.at("health-token") }

// CA is the certificate to trust.
func (d Dir) CA() string { return d.at("ca.crt") }

// PKI is the directory of the certificate authority.
func (d Dir) PKI() string { return d.at("pki") }

// APIServer is the directory of the API server.
func (d Dir) APIServer() string { return d.at("apiserver") }

// APIServerLock is held by the API server's process as long as it lives.
func (d Dir) APIServerLock() string { return d.at("apiserver", "lock") }

// PIDFile is where the process of that name says its process ID.
func (d Dir) PIDFile(name string) string { return d.at("run", fileName(name)+".pid") }

// LogFile is the log of the process of that name.
func (d Dir) LogFile(name string) string { return d.at("logs", fileName(name)+".log") }

// Node is the directory of one node.
func (d Dir) Node(name string) NodeDir { return NodeDir(d.at("nodes", name)) }

// fileName leaves room in the name of a file for what is put before and after it.
func fileName(process string) string { return shortname.Fit(process, 200) }

func (d Dir) at(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Create makes the directories that every data directory has. What is inside belongs to the owner alone.
func (d Dir) Create() error {
	for _, sub := range []string{"", "run", "logs"} {
		if err := os.MkdirAll(d.at(sub), 0o700); err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	}
	return nil
}

// CheckNobodyElses fails if the directory has files under the names that the cluster's own files will have, and Ebb did not write them: a
// kubeconfig of a person would be lost. Ebb makes its certificate authority before anything else, so that a directory with one is Ebb's. A file
// at the path given belongs to whoever says so. Tokens are used as they are, and may be there beforehand.
func (d Dir) CheckNobodyElses(given string) error {
	if _, err := os.Lstat(d.PKI()); err == nil {
		return nil
	}
	named, _ := os.Stat(given) // nil if there is none
	var found []string
	for _, path := range []string{d.CA(), d.Kubeconfig(), d.ViewerKubeconfig()} {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && named != nil && os.SameFile(info, named) {
			continue
		}
		found = append(found, filepath.Base(path))
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("data directory %s: Ebb did not write %s there and would replace it: set another directory with --data-dir, or move it away", d, strings.Join(found, ", "))
}

// WritePID records this process under a name, and returns what removes the record again if it is still ours.
func (d Dir) WritePID(name string) (remove func(), err error) {
	path := d.PIDFile(name)
	own := strconv.Itoa(os.Getpid()) + "\n"
	if err := atomicfile.Write(path, []byte(own), 0o644); err != nil {
		return nil, err
	}
	return func() {
		if data, err := os.ReadFile(path); err == nil && string(data) == own {
			os.Remove(path)
		}
	}, nil
}

// ReadToken reads a bearer token from a file.
func ReadToken(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("bearer token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("bearer token: %s is empty", path)
	}
	return token, nil
}

// Credentials is where password files of changefeeds are.
func (d Dir) Credentials() string { return d.at("credentials") }

// NodeDir is the directory of one node.
type NodeDir string

// Kubeconfig holds the credentials of the node's runtimes.
func (n NodeDir) Kubeconfig() string { return n.at("node.kubeconfig") }

// CoordinatorKubeconfig holds the credentials for the election and the controllers.
func (n NodeDir) CoordinatorKubeconfig() string { return n.at("coordinator.kubeconfig") }

// TLSCert is the certificate that the node serves with and shows to other nodes.
func (n NodeDir) TLSCert() string { return n.at("tls.crt") }

// TLSKey is its key.
func (n NodeDir) TLSKey() string { return n.at("tls.key") }

// TLSRequest is the key and the request of a certificate that is not signed yet.
func (n NodeDir) TLSRequest() string { return n.at("tls.request") }

// CA is the certificate to trust.
func (n NodeDir) CA() string { return n.at("ca.crt") }

// Token is the file with the bearer token of /api/v2.
func (n NodeDir) Token() string { return n.at("token") }

// HealthToken is the file with the bearer token that may only send health events. Directories from before there was one have none.
func (n NodeDir) HealthToken() string { return n.at("health-token") }

// Lock is held by the node's process as long as it lives.
func (n NodeDir) Lock() string { return n.at("lock") }

// Holder remembers under which identity this directory last held the node's lease.
func (n NodeDir) Holder() string { return n.at("holder.json") }

// Store remembers what the node last wrote to the store.
func (n NodeDir) Store() string { return n.at("store.json") }

// Programs is where the directories of the node's programs are.
func (n NodeDir) Programs() string { return n.at("programs") }

// Etcd is where members of etcd clusters keep their data.
func (n NodeDir) Etcd() string { return n.at("etcd") }

// EtcdSnapshots is where snapshots of etcd clusters are kept.
func (n NodeDir) EtcdSnapshots() string { return n.at("etcd-snapshots") }

// Volumes is the disk of a node that declares none: its replicas of volumes.
func (n NodeDir) Volumes() string { return n.at("volumes") }

// NBDSockets is where clients connect to volumes that are attached to the node.
func (n NodeDir) NBDSockets() string { return n.at("nbd") }

func (n NodeDir) at(name string) string { return filepath.Join(string(n), name) }

// HasCredentials says whether a node can start from this directory, given which of the kubeconfig files it needs.
func (n NodeDir) HasCredentials(node, coordinator bool) (bool, error) {
	needed := []string{n.TLSCert(), n.TLSKey(), n.CA(), n.Token()}
	if node {
		needed = append(needed, n.Kubeconfig())
	}
	if coordinator {
		needed = append(needed, n.CoordinatorKubeconfig())
	}
	for _, path := range needed {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, fmt.Errorf("credentials of the node: %w", err)
		}
	}
	return true, nil
}
