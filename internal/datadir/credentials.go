package datadir

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
)

// IssueCluster writes what belongs to the cluster as a whole for an API server reached at url: the credentials of admin
// and viewer, the bearer token and the certificate to trust. What is there and still good stays.
func (d Dir) IssueCluster(ca *pki.Authority, url string) error {
	if err := d.IssueShared(ca); err != nil {
		return err
	}
	admin := pki.Profile{User: identity.Admin, Groups: []string{identity.AdminGroup}}
	if err := ensureKubeconfig(d.Kubeconfig(), ca, admin, url); err != nil {
		return err
	}
	viewer := pki.Profile{User: identity.Viewer, Groups: []string{identity.ViewerGroup}}
	return ensureKubeconfig(d.ViewerKubeconfig(), ca, viewer, url)
}

// IssueShared writes what all nodes have in common: the certificate to trust and the bearer token of /api/v2.
func (d Dir) IssueShared(ca *pki.Authority) error {
	if err := atomicfile.Write(d.CA(), ca.CertPEM, 0o644); err != nil {
		return err
	}
	return errors.Join(ensureToken(d.Token()), ensureToken(d.HealthToken()))
}

// IssueNode writes the credentials of one node into dir. Hosts are the names and addresses it serves as. It must run
// where the certificate authority is kept.
func (d Dir) IssueNode(dir NodeDir, name string, hosts []string) error {
	if err := v1alpha1.ValidateNodeName(name); err != nil {
		return err
	}
	if err := d.IssueNodeTLS(dir, name, hosts); err != nil {
		return err
	}
	ca, err := pki.Load(d.PKI())
	if err != nil {
		return err
	}
	url, err := d.server()
	if err != nil {
		return err
	}
	if err := ensureKubeconfig(dir.Kubeconfig(), ca, nodeProfile(name), url); err != nil {
		return err
	}
	coordinator := pki.Profile{User: identity.Coordinator(name)}
	return ensureKubeconfig(dir.CoordinatorKubeconfig(), ca, coordinator, url)
}

// CheckNode returns what is wrong, or will soon be, with the credentials of a node that cannot renew them itself: they expire, or its certificate
// is not for the host under which others reach its HTTP API.
func (n NodeDir) CheckNode(name, host string, now time.Time) error {
	cert, err := os.ReadFile(n.TLSCert())
	if err != nil {
		return fmt.Errorf("credentials of node %s: %w", name, err)
	}
	const remedy = "run `ebb credentials %s --out DIR --host %s` on the machine of the API server, copy DIR here, and restart the node"
	if pki.Serves(cert, host) != nil {
		return fmt.Errorf("the certificate of node %s is not valid for %s, under which others reach its HTTP API: "+remedy, name, host, name, host)
	}
	until, due, err := pki.Renewable(cert, now)
	if err != nil {
		return fmt.Errorf("%s: %w", n.TLSCert(), err)
	}
	if due {
		return fmt.Errorf("the credentials of node %s expire at %s: "+remedy, name, until.UTC().Format(time.RFC3339), name, host)
	}
	return nil
}

func nodeProfile(name string) pki.Profile {
	return pki.Profile{User: identity.Node(name), Groups: []string{identity.NodeGroup}}
}

// IssueNodeTLS writes what other nodes and clients know a node by: its certificate, the authority and the bearer token. It has no credentials of an API.
func (d Dir) IssueNodeTLS(dir NodeDir, name string, hosts []string) error {
	ca, err := pki.Load(d.PKI())
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(dir), 0o700); err != nil {
		return fmt.Errorf("credentials of node %s: %w", name, err)
	}
	if err := ensureToken(d.HealthToken()); err != nil { // a directory from before there was one
		return err
	}
	health, err := os.ReadFile(d.HealthToken())
	if err != nil {
		return fmt.Errorf("credentials of node %s: %w", name, err)
	}
	if err := atomicfile.WriteSecret(dir.HealthToken(), health); err != nil {
		return err
	}
	token, err := os.ReadFile(d.Token())
	if err != nil {
		return fmt.Errorf("credentials of node %s: %w", name, err)
	}
	if err := atomicfile.WriteSecret(dir.Token(), token); err != nil {
		return err
	}
	if err := atomicfile.Write(dir.CA(), ca.CertPEM, 0o644); err != nil {
		return err
	}
	node := nodeProfile(name)
	node.Hosts = hosts
	return ensurePair(dir.TLSCert(), dir.TLSKey(), ca, node)
}

// CanIssue says whether the certificate authority is kept here.
func (d Dir) CanIssue() bool {
	_, err := pki.Load(d.PKI())
	return err == nil
}

func (d Dir) server() (string, error) {
	cfg, err := clientcmd.LoadFromFile(d.Kubeconfig())
	if err != nil {
		return "", fmt.Errorf("address of the API server: %w", err)
	}
	cluster := cfg.Clusters[clusterName]
	if cluster == nil {
		return "", fmt.Errorf("address of the API server: %s names no cluster %q", d.Kubeconfig(), clusterName)
	}
	return cluster.Server, nil
}

const clusterName = "ebb"

func ensureKubeconfig(path string, ca *pki.Authority, p pki.Profile, url string) error {
	if old, err := clientcmd.LoadFromFile(path); err == nil {
		user, cluster := old.AuthInfos[p.User], old.Clusters[clusterName]
		if user != nil && cluster != nil && cluster.Server == url && ca.Fits(user.ClientCertificateData, p) {
			return nil
		}
	}
	pair, err := ca.Issue(p)
	if err != nil {
		return err
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[clusterName] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca.CertPEM}
	cfg.AuthInfos[p.User] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	cfg.Contexts[clusterName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: p.User}
	cfg.CurrentContext = clusterName
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return atomicfile.WriteSecret(path, data)
}

func ensurePair(certPath, keyPath string, ca *pki.Authority, p pki.Profile) error {
	// A crash between the two writes below leaves a certificate beside the key of another.
	cert, certErr := os.ReadFile(certPath)
	key, keyErr := os.ReadFile(keyPath)
	if certErr == nil && keyErr == nil && ca.Fits(cert, p) && pki.Matches(cert, key) {
		return nil
	}
	pair, err := ca.Issue(p)
	if err != nil {
		return err
	}
	if err := atomicfile.WriteSecret(keyPath, pair.Key); err != nil {
		return err
	}
	return atomicfile.Write(certPath, pair.Cert, 0o644)
}

func ensureToken(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("bearer token: %w", err)
	}
	return atomicfile.WriteSecret(path, []byte(hex.EncodeToString(raw)+"\n"))
}
