package datadir_test

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
)

const url = "https://127.0.0.1:6443"

// cluster is a data directory with the cluster's credentials.
func cluster(t *testing.T) (datadir.Dir, *pki.Authority) {
	t.Helper()
	dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.LoadOrCreate(dir.PKI())
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.IssueCluster(ca, url); err != nil {
		t.Fatal(err)
	}
	return dir, ca
}

func issueNode(t *testing.T, dir datadir.Dir, name string, hosts ...string) datadir.NodeDir {
	t.Helper()
	if err := dir.IssueNode(dir.Node(name), name, hosts); err != nil {
		t.Fatal(err)
	}
	return dir.Node(name)
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCredentialsSayWhoTheyAreForAndWhereTheServerIs(t *testing.T) {
	dir, ca := cluster(t)
	node := issueNode(t, dir, "n1", "127.0.0.1")
	for path, p := range map[string]pki.Profile{
		dir.Kubeconfig():             {User: identity.Admin, Groups: []string{identity.AdminGroup}},
		dir.ViewerKubeconfig():       {User: identity.Viewer, Groups: []string{identity.ViewerGroup}},
		node.Kubeconfig():            {User: identity.Node("n1"), Groups: []string{identity.NodeGroup}},
		node.CoordinatorKubeconfig(): {User: identity.Coordinator("n1")},
	} {
		cfg, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Host != url || !bytes.Equal(cfg.CAData, ca.CertPEM) {
			t.Errorf("%s: server %s", path, cfg.Host)
		}
		if !ca.Fits(cfg.CertData, p) || !pki.Matches(cfg.CertData, cfg.KeyData) {
			t.Errorf("%s is not for %s", path, p.User)
		}
	}
	if has, err := node.HasCredentials(true, true); err != nil || !has {
		t.Errorf("the node cannot start from its directory: %v", err)
	}
	if got, want := read(t, node.Token()), read(t, dir.Token()); !bytes.Equal(got, want) || len(bytes.TrimSpace(got)) != 64 {
		t.Errorf("the node's token is %q, the cluster's %q", got, want)
	}
}

func TestGoodCredentialsStay(t *testing.T) {
	dir, ca := cluster(t)
	node := issueNode(t, dir, "n1", "127.0.0.1")
	files := []string{dir.Kubeconfig(), dir.ViewerKubeconfig(), dir.Token(), node.Kubeconfig(), node.CoordinatorKubeconfig(), node.TLSCert(), node.TLSKey(), node.Token()}
	before := map[string][]byte{}
	for _, path := range files {
		before[path] = read(t, path)
	}
	if err := dir.IssueCluster(ca, url); err != nil {
		t.Fatal(err)
	}
	issueNode(t, dir, "n1", "127.0.0.1")
	for _, path := range files {
		if !bytes.Equal(read(t, path), before[path]) {
			t.Errorf("%s was written anew", path)
		}
	}
}

func TestCredentialsFollowTheServersAddressAndTheNodesHosts(t *testing.T) {
	dir, ca := cluster(t)
	node := issueNode(t, dir, "n1", "127.0.0.1")
	if err := dir.IssueCluster(ca, "https://127.0.0.1:7443"); err != nil {
		t.Fatal(err)
	}
	issueNode(t, dir, "n1", "127.0.0.1", "n1.example.com")
	for _, path := range []string{dir.Kubeconfig(), dir.ViewerKubeconfig(), node.Kubeconfig(), node.CoordinatorKubeconfig()} {
		if cfg, err := clientcmd.BuildConfigFromFlags("", path); err != nil || cfg.Host != "https://127.0.0.1:7443" {
			t.Errorf("%s still points to %v: %v", path, cfg, err)
		}
	}
	pair, err := tls.LoadX509KeyPair(node.TLSCert(), node.TLSKey())
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Leaf.VerifyHostname("n1.example.com"); err != nil {
		t.Errorf("the node's certificate: %v", err)
	}
}

func TestAPairCutOffWhileItWasWrittenIsIssuedAnew(t *testing.T) {
	dir, ca := cluster(t)
	node := issueNode(t, dir, "n1", "127.0.0.1")
	for what, spoil := range map[string]func() error{
		"a new key beside the old certificate": func() error {
			other, err := ca.Issue(pki.Profile{User: "u"})
			if err != nil {
				return err
			}
			return atomicfile.WriteSecret(node.TLSKey(), other.Key)
		},
		"a key alone":         func() error { return os.Remove(node.TLSCert()) },
		"a certificate alone": func() error { return os.Remove(node.TLSKey()) },
		"half a certificate":  func() error { return os.Truncate(node.TLSCert(), 100) },
		"half a key":          func() error { return os.Truncate(node.TLSKey(), 50) },
	} {
		t.Run(what, func(t *testing.T) {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			issueNode(t, dir, "n1", "127.0.0.1")
			if _, err := tls.LoadX509KeyPair(node.TLSCert(), node.TLSKey()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("half a kubeconfig", func(t *testing.T) {
		if err := os.Truncate(node.Kubeconfig(), 300); err != nil {
			t.Fatal(err)
		}
		issueNode(t, dir, "n1", "127.0.0.1")
		if cfg, err := clientcmd.BuildConfigFromFlags("", node.Kubeconfig()); err != nil || !pki.Matches(cfg.CertData, cfg.KeyData) {
			t.Error(err)
		}
	})
}

func TestOnlyWhereTheAuthorityIsCanANodeBeGivenCredentials(t *testing.T) {
	dir, _ := cluster(t)
	if !dir.CanIssue() {
		t.Error("the cluster's own directory cannot issue")
	}
	other := datadir.Dir(t.TempDir())
	if other.CanIssue() {
		t.Error("an empty directory can issue")
	}
	if err := other.IssueNode(other.Node("n1"), "n1", nil); err == nil {
		t.Error("an empty directory issued credentials")
	}
	if has, err := other.Node("n1").HasCredentials(true, true); err != nil || has {
		t.Errorf("an empty directory has credentials: %v, %v", has, err)
	}
	node := issueNode(t, dir, "n1")
	if err := os.Remove(node.Token()); err != nil {
		t.Fatal(err)
	}
	if has, err := node.HasCredentials(true, true); err != nil || has {
		t.Errorf("without its token a node has credentials: %v, %v", has, err)
	}
}

func TestATokenIsReadWithoutItsLineEnd(t *testing.T) {
	dir, _ := cluster(t)
	token, err := datadir.ReadToken(dir.Token())
	if err != nil || len(token) != 64 || strings.TrimSpace(token) != token {
		t.Errorf("token %q, %v", token, err)
	}
	empty := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := datadir.ReadToken(empty); err == nil || err.Error() != "bearer token: "+empty+" is empty" {
		t.Errorf("an empty file: %v", err)
	}
}

func TestANodeOnAnotherMachineLearnsWhatIsWrongWithItsCredentials(t *testing.T) {
	dir, _ := cluster(t)
	node := issueNode(t, dir, "n4", "localhost", "10.0.0.4", "n4.example.com")
	now := time.Now()
	_, until, err := pki.Life(read(t, node.TLSCert()))
	if err != nil {
		t.Fatal(err)
	}
	const remedy = " on the machine of the API server, copy DIR here, and restart the node"
	for _, c := range []struct {
		host string
		now  time.Time
		want string
	}{
		{host: "10.0.0.4", now: now},
		{host: "n4.example.com", now: now.AddDate(1, 0, 0)},
		{host: "10.0.0.5", now: now, want: "the certificate of node n4 is not valid for 10.0.0.5, under which others reach its HTTP API: run `ebb credentials n4 --out DIR --host 10.0.0.5`" + remedy},
		{host: "10.0.0.4", now: until.AddDate(0, -1, 0), want: "the credentials of node n4 expire at " + until.UTC().Format(time.RFC3339) + ": run `ebb credentials n4 --out DIR --host 10.0.0.4`" + remedy},
	} {
		got := ""
		if err := node.CheckNode("n4", c.host, c.now); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s at %s: %q, want %q", c.host, c.now, got, c.want)
		}
	}
}
