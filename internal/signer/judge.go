// Package signer issues the certificates of nodes on Kubernetes, by the API of certificate signing requests. `ebb signer` approves and signs the
// requests (Signer), and a node makes and renews its own (Files).
package signer

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/identity"
)

// Names on Kubernetes.
const (
	// SignerName is the signer of nodes' certificates.
	SignerName = "ebb.dev/node"
	// ClientSignerName is the signer of people's certificates, for members of etcd clusters. A person approves its requests.
	ClientSignerName = "ebb.dev/client"
	// NodeClaim and PodClaim are what the API server says of a token that is bound to a pod: its node and its name.
	NodeClaim = "authentication.kubernetes.io/node-name"
	PodClaim  = "authentication.kubernetes.io/pod-name"
)

// usages are what a node's certificate is for, and clientUsages what a person's is.
var (
	usages       = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth}
	clientUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
)

// localHosts are names that every node may serve as.
var localHosts = []string{"localhost", "127.0.0.1", "::1"}

// judge returns the request for a certificate that a signing request contains, or why it is refused. addresses are those of the pod that made it.
func judge(csr *certificatesv1.CertificateSigningRequest, user string, addresses []string) (*x509.CertificateRequest, error) {
	if csr.Spec.Username != user {
		return nil, fmt.Errorf("the requester is %s, not %s", csr.Spec.Username, user)
	}
	node, err := claim(csr, NodeClaim)
	if err != nil {
		return nil, err
	}
	if err := v1alpha1.ValidateNodeName(node); err != nil {
		return nil, err
	}
	request, err := parse(csr, usages)
	if err != nil {
		return nil, err
	}
	return request, judgeContent(request, node, addresses)
}

// judgeClient returns the request that a person's signing request contains, or why it is refused: such a certificate is for nothing but a client.
func judgeClient(csr *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	request, err := parse(csr, clientUsages)
	if err != nil {
		return nil, err
	}
	if request.Subject.CommonName != identity.Client || len(request.Subject.Organization) > 0 {
		return nil, fmt.Errorf("a client's certificate is one of %q, not of %q in %q", identity.Client, request.Subject.CommonName, request.Subject.Organization)
	}
	if len(request.DNSNames)+len(request.IPAddresses)+len(request.EmailAddresses)+len(request.URIs) > 0 {
		return nil, errors.New("a client's certificate has no names to serve as")
	}
	return request, nil
}

// parse returns the request for a certificate, if it is signed with its own key.
func parse(csr *certificatesv1.CertificateSigningRequest, allowed []certificatesv1.KeyUsage) (*x509.CertificateRequest, error) {
	for _, usage := range csr.Spec.Usages {
		if !slices.Contains(allowed, usage) {
			return nil, fmt.Errorf("usage %q is not one of such a certificate", usage)
		}
	}
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil {
		return nil, errors.New("the request is not PEM encoded")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be parsed: %w", err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request is not signed with its own key: %w", err)
	}
	return request, nil
}

// judgeContent: a node asks for a certificate of its own name only, to serve as its own pod.
func judgeContent(request *x509.CertificateRequest, node string, addresses []string) error {
	if _, ok := request.PublicKey.(*ecdsa.PublicKey); !ok {
		return fmt.Errorf("a key of type %T is not used for nodes", request.PublicKey)
	}
	if request.Subject.CommonName != identity.Node(node) || !slices.Equal(request.Subject.Organization, []string{identity.NodeGroup}) {
		return fmt.Errorf("the token is of node %s, which may not have a certificate of %q in %q", node, request.Subject.CommonName, request.Subject.Organization)
	}
	if len(request.EmailAddresses) > 0 || len(request.URIs) > 0 {
		return errors.New("a node's certificate has no email addresses and no URIs")
	}
	for _, name := range request.DNSNames {
		if name != "localhost" {
			return fmt.Errorf("node %s may not serve as %s", node, name)
		}
	}
	allowed := slices.Concat(localHosts, addresses)
	for _, ip := range request.IPAddresses {
		if !slices.ContainsFunc(allowed, func(a string) bool { return ip.Equal(net.ParseIP(a)) }) {
			return fmt.Errorf("node %s may not serve as %s: it is not an address of its pod", node, ip)
		}
	}
	return nil
}

// claim returns what the API server says of the requester's token. A token that is not bound to a pod on a node has no such claims.
func claim(csr *certificatesv1.CertificateSigningRequest, name string) (string, error) {
	values := csr.Spec.Extra[name]
	if len(values) != 1 || values[0] == "" {
		return "", fmt.Errorf("the requester's token has no claim %s: it is not bound to a pod on a node", name)
	}
	return values[0], nil
}
