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
	// NodeClaim and PodClaim are what the API server says of a token that is bound to a pod: its node and its name.
	NodeClaim = "authentication.kubernetes.io/node-name"
	PodClaim  = "authentication.kubernetes.io/pod-name"
)

// usages are what a node's certificate is for.
var usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth}

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
	for _, usage := range csr.Spec.Usages {
		if !slices.Contains(usages, usage) {
			return nil, fmt.Errorf("usage %q is not one of a node's certificate", usage)
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
	return request, judgeContent(request, node, addresses)
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
