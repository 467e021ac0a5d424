package signer

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
)

const account = "system:serviceaccount:ebb-system:ebb-node"

// request is the signing request that node n1 makes, as the API server stores it.
func request(t *testing.T, p pki.Profile) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	data, _, err := pki.NewRequest(p)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: data, SignerName: SignerName, Usages: usages, Username: account,
		Extra: map[string]certificatesv1.ExtraValue{NodeClaim: {"n1"}},
	}}
}

func ofNode(name string, hosts ...string) pki.Profile {
	return pki.Profile{User: identity.Node(name), Groups: []string{identity.NodeGroup}, Hosts: hosts}
}

func TestANodeGetsACertificateOfItsOwnOnly(t *testing.T) {
	type csr = *certificatesv1.CertificateSigningRequest
	for _, c := range []struct {
		name    string
		profile pki.Profile
		change  func(csr)
		want    string // part of the refusal
	}{
		{name: "its own", profile: ofNode("n1", "localhost", "127.0.0.1", "::1", "10.0.0.7")},
		{name: "another node's", profile: ofNode("n2"), want: `may not have a certificate of "ebb:node:n2"`},
		{name: "an administrator's", profile: pki.Profile{User: identity.Admin, Groups: []string{identity.AdminGroup}}, want: "may not have a certificate of"},
		{name: "a group more", profile: pki.Profile{User: identity.Node("n1"), Groups: []string{identity.NodeGroup, identity.AdminGroup}}, want: "may not have a certificate of"},
		{name: "no group", profile: pki.Profile{User: identity.Node("n1")}, want: "may not have a certificate of"},
		{name: "an address of another pod", profile: ofNode("n1", "10.0.0.8"), want: "may not serve as 10.0.0.8: it is not an address of its pod"},
		{name: "a name", profile: ofNode("n1", "kubernetes.default.svc"), want: "may not serve as kubernetes.default.svc"},
		{name: "by another account", profile: ofNode("n1"), change: func(r csr) { r.Spec.Username = "system:serviceaccount:default:ebb-node" }, want: "the requester is system:serviceaccount:default:ebb-node"},
		{name: "without a claim", profile: ofNode("n1"), change: func(r csr) { r.Spec.Extra = nil }, want: "has no claim " + NodeClaim},
		{name: "with an empty claim", profile: ofNode("n1"), change: func(r csr) { r.Spec.Extra[NodeClaim] = []string{""} }, want: "has no claim " + NodeClaim},
		{name: "with two claims", profile: ofNode("n1"), change: func(r csr) { r.Spec.Extra[NodeClaim] = []string{"n1", "n2"} }, want: "has no claim " + NodeClaim},
		{name: "for code", profile: ofNode("n1"), change: func(r csr) { r.Spec.Usages = append(r.Spec.Usages, certificatesv1.UsageCodeSigning) }, want: `usage "code signing"`},
		{name: "no request", profile: ofNode("n1"), change: func(r csr) { r.Spec.Request = []byte("?") }, want: "is not PEM encoded"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(t, c.profile)
			if c.change != nil {
				r = r.DeepCopy()
				c.change(r)
			}
			_, err := judge(r, account, []string{"10.0.0.7"})
			check(t, err, c.want)
		})
	}
}

func TestAPersonsCertificateIsForAClientOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		profile pki.Profile
		usages  []certificatesv1.KeyUsage
		want    string
	}{
		{name: "a client", profile: pki.Profile{User: identity.Client}, usages: clientUsages},
		{name: "a node", profile: ofNode("n1"), usages: clientUsages, want: `not of "ebb:node:n1"`},
		{name: "an administrator", profile: pki.Profile{User: identity.Admin}, usages: clientUsages, want: `not of "ebb:admin"`},
		{name: "a group", profile: pki.Profile{User: identity.Client, Groups: []string{identity.AdminGroup}}, usages: clientUsages, want: "not of"},
		{name: "a server", profile: pki.Profile{User: identity.Client, Hosts: []string{"127.0.0.1"}}, usages: clientUsages, want: "has no names to serve as"},
		{name: "the usage of a server", profile: pki.Profile{User: identity.Client}, usages: usages, want: `usage "server auth"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(t, c.profile)
			r.Spec.Usages = c.usages
			_, err := judgeClient(r)
			check(t, err, c.want)
		})
	}
}

func check(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Error(err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%v, want %q", err, want)
	}
}
