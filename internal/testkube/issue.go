package testkube

import (
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/pki"
)

// issue writes the certificates, the key of service account tokens and the administrator's kubeconfig for a server at a port. What an earlier
// start wrote stays, so that tokens and certificates stay valid.
func (c *Cluster) issue(port int) (*rest.Config, error) {
	ca, err := pki.LoadOrCreate(c.path("certs"))
	if err != nil {
		return nil, err
	}
	server := pki.Profile{User: "kube-apiserver", Hosts: []string{"127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1"}}
	if err := c.keepPair(ca, "server", server); err != nil {
		return nil, err
	}
	if err := c.keepPair(ca, "tokens", pki.Profile{User: "service-accounts"}); err != nil {
		return nil, err
	}
	admin, err := ca.Issue(pki.Profile{User: "kubernetes-admin", Groups: []string{"system:masters"}})
	if err != nil {
		return nil, err
	}
	const name = "kube"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: fmt.Sprintf("https://127.0.0.1:%d", port), CertificateAuthorityData: ca.CertPEM}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.Cert, ClientKeyData: admin.Key}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.WriteSecret(c.Kubeconfig(), data); err != nil {
		return nil, err
	}
	return c.loadConfig()
}

func (c *Cluster) keepPair(ca *pki.Authority, name string, p pki.Profile) error {
	certPath, keyPath := c.path("certs", name+".crt"), c.path("certs", name+".key")
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
