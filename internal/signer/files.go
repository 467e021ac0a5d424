package signer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/shortname"
)

const (
	signPoll = 500 * time.Millisecond
	// signPatience is how long one request may wait for the signer before a new one is made: the first may have been removed.
	signPatience = 2 * time.Minute
	// checkEvery is how often a node looks whether its certificate has to be renewed. The authority is read as often.
	checkEvery = 10 * time.Second
)

// Files keeps the files that a node is known by to others up to date: its certificate, the authority and the bearer token.
type Files struct {
	// Kube reaches the API as the node.
	Kube kubernetes.Interface
	// Namespace of Ebb.
	Namespace string
	// Node is the node's name, and Hosts what it serves as.
	Node  string
	Hosts []string
	// Dir is the node's directory.
	Dir datadir.NodeDir
	// Log of the node.
	Log *slog.Logger
}

// Ensure returns when all files are there and can be used, or ctx ends.
func (f Files) Ensure(ctx context.Context) error {
	retry := backoff.New(backoff.Policy{First: signPoll, Longest: 10 * time.Second})
	said := ""
	for {
		err := f.update(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("certificate of node %s: %w", f.Node, err)
		}
		if said != err.Error() {
			said = err.Error()
			f.Log.Warn("waiting for the node's certificate; is `ebb signer` running?", "error", err)
		}
		if backoff.Sleep(ctx, retry.Next()) != nil {
			return fmt.Errorf("certificate of node %s: %w", f.Node, err)
		}
	}
}

// Keep renews the files until ctx ends.
func (f Files) Keep(ctx context.Context) {
	for backoff.Sleep(ctx, checkEvery) == nil {
		if err := f.update(ctx); err != nil && ctx.Err() == nil {
			f.Log.Warn("could not renew the node's certificate; trying again", "error", err)
		}
	}
}

func (f Files) update(ctx context.Context) error {
	authority, err := f.Kube.CoreV1().ConfigMaps(f.Namespace).Get(ctx, AuthorityName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := replace(f.Dir.CA(), []byte(authority.Data[authorityKey])); err != nil {
		return err
	}
	token, err := f.Kube.CoreV1().Secrets(f.Namespace).Get(ctx, TokenName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, err := os.Stat(f.Dir.Token()); errors.Is(err, os.ErrNotExist) {
		if err := atomicfile.WriteSecret(f.Dir.Token(), token.Data[tokenKey]); err != nil {
			return err
		}
	}
	if f.good([]byte(authority.Data[authorityKey])) {
		return nil
	}
	return f.renew(ctx)
}

// replace writes a file that everyone may read, unless it is the same.
func replace(path string, data []byte) error {
	if len(data) == 0 {
		return fmt.Errorf("the ConfigMap %s has no %s", AuthorityName, authorityKey)
	}
	if current, err := os.ReadFile(path); err == nil && string(current) == string(data) {
		return nil
	}
	return atomicfile.Write(path, data, 0o644)
}

// good says whether the certificate is signed by the authority, for what the node serves as, and a third of its life is left.
func (f Files) good(authority []byte) bool {
	cert, certErr := os.ReadFile(f.Dir.TLSCert())
	key, keyErr := os.ReadFile(f.Dir.TLSKey())
	if certErr != nil || keyErr != nil || !pki.Matches(cert, key) || !pki.SignedBy(cert, authority, f.profile()) {
		return false
	}
	from, until, err := pki.Life(cert)
	return err == nil && time.Until(until) > until.Sub(from)/3
}

func (f Files) profile() pki.Profile {
	return pki.Profile{User: identity.Node(f.Node), Groups: []string{identity.NodeGroup}, Hosts: f.Hosts}
}

// renew requests a certificate and writes it. The key goes first: whoever reads in between keeps the pair before.
func (f Files) renew(ctx context.Context) error {
	request, key, err := pki.NewRequest(f.profile())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, signPatience)
	defer cancel()
	requests := f.Kube.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: shortname.Fit("ebb-node-"+f.Node, 200) + "-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: SignerName, Usages: usages},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a signing request: %w", err)
	}
	for len(csr.Status.Certificate) == 0 {
		for _, c := range csr.Status.Conditions {
			if c.Status == corev1.ConditionTrue && (c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed) {
				return fmt.Errorf("signing request %s is %s: %s", csr.Name, c.Type, c.Message)
			}
		}
		if backoff.Sleep(ctx, signPoll) != nil {
			return fmt.Errorf("signing request %s was not signed within %s", csr.Name, signPatience)
		}
		if csr, err = requests.Get(ctx, csr.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return errors.New("the signing request was deleted before it was signed")
		} else if err != nil {
			return err
		}
	}
	if err := atomicfile.WriteSecret(f.Dir.TLSKey(), key); err != nil {
		return err
	}
	if err := atomicfile.Write(f.Dir.TLSCert(), csr.Status.Certificate, 0o644); err != nil {
		return err
	}
	f.Log.Info("have a new certificate", "request", csr.Name)
	return nil
}
