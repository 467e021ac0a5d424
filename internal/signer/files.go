package signer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certificatesclient "k8s.io/client-go/kubernetes/typed/certificates/v1"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/shortname"
)

const (
	signPoll = 500 * time.Millisecond
	// signPatience is how long a node waits for the signer before it says so. It goes on with the same request.
	signPatience = 2 * time.Minute
	// clientPatience is how long a person waits.
	clientPatience = 30 * time.Second
	// checkEvery is how often a node looks whether its certificate has to be renewed, and readEvery how often it reads whether there is another authority.
	checkEvery = 10 * time.Second
	readEvery  = 10 * time.Minute
)

// deniedRetry is when a node whose request was denied makes another one. At its first start the API server may not know its address yet; what is
// denied after that is a mistake in the installation, and a cluster keeps every request for hours.
var deniedRetry = backoff.Policy{First: time.Second, Longest: 10 * time.Minute}

// errDenied: the signer refused a request.
var errDenied = errors.New("the signer refused the request")

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
	retry, denied := backoff.New(backoff.Policy{First: signPoll, Longest: 10 * time.Second}), backoff.New(deniedRetry)
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
		wait := &retry
		if errors.Is(err, errDenied) {
			wait = &denied
		}
		if backoff.Sleep(ctx, wait.Next()) != nil {
			return fmt.Errorf("certificate of node %s: %w", f.Node, err)
		}
	}
}

// Keep renews the files until ctx ends.
func (f Files) Keep(ctx context.Context) {
	read := time.Now()
	denied, wait := backoff.New(deniedRetry), checkEvery
	for backoff.Sleep(ctx, wait) == nil {
		wait = checkEvery
		authority, err := os.ReadFile(f.Dir.CA())
		if err == nil && f.good(authority) && time.Since(read) < readEvery {
			continue
		}
		err = f.update(ctx)
		switch {
		case err == nil:
			read = time.Now()
			denied.Reset()
		case ctx.Err() == nil:
			if errors.Is(err, errDenied) {
				wait = max(checkEvery, denied.Next())
			}
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
	if err := f.updateToken(ctx, TokenName, f.Dir.Token()); err != nil {
		return err
	}
	// A signer of an older version does not make this one, and older roles do not let nodes read it: then no token sends events only.
	if err := f.updateToken(ctx, HealthTokenName, f.Dir.HealthToken()); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return err
	}
	if f.good([]byte(authority.Data[authorityKey])) {
		return nil
	}
	return f.renew(ctx)
}

func (f Files) updateToken(ctx context.Context, name, path string) error {
	token, err := f.Kube.CoreV1().Secrets(f.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, token.Data[tokenKey]) {
		return nil
	}
	return atomicfile.WriteSecret(path, token.Data[tokenKey])
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

// pendingRequest is a request for a certificate that is not signed yet, with its key. It is stored before the request is made: a node that waits
// or restarts goes on with the one that it has.
type pendingRequest struct {
	Profile      pki.Profile
	Request, Key []byte
}

// name of the signing request. It follows from what is requested.
func (p pendingRequest) name(node string) string {
	sum := sha256.Sum256(p.Request)
	return shortname.Fit("ebb-node-"+node, 200) + "-" + hex.EncodeToString(sum[:8])
}

// pending returns the request that is stored, or a new one if there is none or it is for another address.
func (f Files) pending() (pendingRequest, error) {
	var p pendingRequest
	if data, err := os.ReadFile(f.Dir.TLSRequest()); err == nil && json.Unmarshal(data, &p) == nil && reflect.DeepEqual(p.Profile, f.profile()) {
		return p, nil
	}
	p = pendingRequest{Profile: f.profile()}
	var err error
	if p.Request, p.Key, err = pki.NewRequest(p.Profile); err != nil {
		return p, err
	}
	data, err := json.Marshal(p)
	if err != nil {
		return p, err
	}
	return p, atomicfile.WriteSecret(f.Dir.TLSRequest(), data)
}

// ask creates the signing request, or finds the one that was created before.
func (f Files) ask(ctx context.Context, p pendingRequest) (*certificatesv1.CertificateSigningRequest, error) {
	requests := f.Kube.CertificatesV1().CertificateSigningRequests()
	name := p.name(f.Node)
	csr, err := requests.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		csr, err = requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: p.Request, SignerName: SignerName, Usages: usages},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("create signing request %s: %w", name, err)
	}
	if !bytes.Equal(csr.Spec.Request, p.Request) {
		return nil, fmt.Errorf("signing request %s is not the one of this node: delete it", name)
	}
	return csr, nil
}

// renew requests a certificate and writes it. The key goes first: whoever reads in between keeps the pair before.
func (f Files) renew(ctx context.Context) error {
	p, err := f.pending()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, signPatience)
	defer cancel()
	csr, err := f.ask(ctx, p)
	if err != nil {
		return err
	}
	cert, err := await(ctx, f.Kube.CertificatesV1().CertificateSigningRequests(), csr)
	if errors.Is(err, errDenied) {
		return errors.Join(err, f.forget())
	}
	if err != nil {
		return err
	}
	if err := atomicfile.WriteSecret(f.Dir.TLSKey(), p.Key); err != nil {
		return err
	}
	if err := atomicfile.Write(f.Dir.TLSCert(), cert, 0o644); err != nil {
		return err
	}
	f.Log.Info("have a new certificate", "request", csr.Name)
	return f.forget()
}

// forget removes the pending request, so that the next certificate has a key of its own.
func (f Files) forget() error {
	if err := os.Remove(f.Dir.TLSRequest()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// await returns the certificate of a signing request once it is signed.
func await(ctx context.Context, requests certificatesclient.CertificateSigningRequestInterface, csr *certificatesv1.CertificateSigningRequest) ([]byte, error) {
	name := csr.Name
	for len(csr.Status.Certificate) == 0 {
		for _, c := range csr.Status.Conditions {
			if c.Status == corev1.ConditionTrue && (c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed) {
				return nil, fmt.Errorf("%w: signing request %s is %s: %s", errDenied, name, c.Type, c.Message)
			}
		}
		if backoff.Sleep(ctx, signPoll) != nil {
			return nil, fmt.Errorf("signing request %s is not signed yet", name)
		}
		var err error
		if csr, err = requests.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("signing request %s was deleted before it was signed", name)
		} else if err != nil {
			return nil, err
		}
	}
	return csr.Status.Certificate, nil
}

// RequestClient gets a certificate for a person, who must be allowed to approve requests of the signer.
func RequestClient(ctx context.Context, kube kubernetes.Interface) (pki.Pair, error) {
	request, key, err := pki.NewRequest(pki.Profile{User: identity.Client})
	if err != nil {
		return pki.Pair{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	requests := kube.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "ebb-client-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: ClientSignerName, Usages: clientUsages},
	}, metav1.CreateOptions{})
	if err != nil {
		return pki.Pair{}, fmt.Errorf("create a signing request: %w", err)
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Requested", Message: "The requester approved it.",
	})
	if csr, err = requests.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return pki.Pair{}, fmt.Errorf("approve a signing request of %s: %w", ClientSignerName, err)
	}
	cert, err := await(ctx, requests, csr)
	return pki.Pair{Cert: cert, Key: key}, err
}
