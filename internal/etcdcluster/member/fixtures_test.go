package member_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
)

// patience bounds every wait for something that should come.
const patience = 4 * time.Minute

// house is a certificate authority, and the directories of members.
type house struct {
	t   *testing.T
	ca  *pki.Authority
	dir string
}

func newHouse(t *testing.T) *house {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.LoadOrCreate(filepath.Join(dir, "pki"))
	must(t, err)
	h := &house{t: t, ca: ca, dir: dir}
	must(t, os.WriteFile(h.file("ca.crt"), ca.CertPEM, 0o600))
	h.issue("node", pki.Profile{User: identity.Node("n1"), Groups: []string{identity.NodeGroup}, Hosts: []string{"127.0.0.1"}})
	return h
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *house) file(name string) string { return filepath.Join(h.dir, name) }

func (h *house) issue(name string, p pki.Profile) {
	h.t.Helper()
	pair, err := h.ca.Issue(p)
	must(h.t, err)
	must(h.t, os.WriteFile(h.file(name+".crt"), pair.Cert, 0o600))
	must(h.t, os.WriteFile(h.file(name+".key"), pair.Key, 0o600))
}

// config is that of the first member of a new cluster. Its directory is too long for a socket's path.
func (h *house) config(name string) member.Config {
	h.t.Helper()
	dir := filepath.Join(h.dir, strings.Repeat("long", 30), name)
	must(h.t, os.MkdirAll(dir, 0o700))
	peer, client := "https://"+freeAddress(h.t), "https://"+freeAddress(h.t)
	return member.Config{
		Dir: dir, Name: name, ClusterUID: "uid", PeerURL: peer, ClientURL: client, InitialCluster: name + "=" + peer, Token: "token",
		TLS:                   member.TLS{Cert: h.file("node.crt"), Key: h.file("node.key"), CA: h.file("ca.crt")},
		HeartbeatMilliseconds: 50, ElectionMilliseconds: 500,
	}
}

// given are the addresses that freeAddress returned: the system may offer one that is not used yet again.
var given sync.Map

func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		address := l.Addr().String()
		must(t, l.Close())
		if _, before := given.LoadOrStore(address, true); !before {
			return address
		}
	}
}

// start starts a member that ends with the test.
func (h *house) start(c member.Config) *member.Child {
	h.t.Helper()
	exe, err := os.Executable()
	must(h.t, err)
	child, err := member.Start(exe, c)
	must(h.t, err)
	h.t.Cleanup(func() {
		child.Stop(context.Background())
		if h.t.Failed() {
			log, _ := os.ReadFile(filepath.Join(c.Dir, member.LogName))
			h.t.Logf("log of %s:\n%s", c.Name, log)
		}
	})
	return child
}

// await waits for a report.
func await(t *testing.T, c *member.Child, what string, is func(member.Report) bool) member.Report {
	t.Helper()
	late := time.After(patience)
	for {
		r, changed := c.Report()
		if is(r) {
			return r
		}
		select {
		case <-changed:
		case <-c.Done():
			if r, _ := c.Report(); is(r) {
				return r
			}
			t.Fatalf("the member ended before %s: %v", what, c.Err())
		case <-late:
			t.Fatalf("waited %s for %s, and it is %+v", patience, what, r)
		}
	}
}

func state(s member.State) func(member.Report) bool {
	return func(r member.Report) bool { return r.State == s }
}

// obeyed gives an order and waits until it is carried out.
func obeyed(t *testing.T, c *member.Child, o member.Order) {
	t.Helper()
	number, err := c.Order(o)
	must(t, err)
	await(t, c, string(o), func(r member.Report) bool { return r.Number >= number })
}

// client reaches a member at its client URL with a certificate.
func (h *house) client(c member.Config, who string) *clientv3.Client {
	h.t.Helper()
	cfg := clientv3.Config{Endpoints: []string{c.ClientURL}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second}
	if who != "" {
		pair, err := tls.LoadX509KeyPair(h.file(who+".crt"), h.file(who+".key"))
		must(h.t, err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(h.ca.CertPEM)
		cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}
	}
	cli, err := clientv3.New(cfg)
	must(h.t, err)
	h.t.Cleanup(func() { cli.Close() })
	return cli
}

// private reaches a member on its private socket.
func private(t *testing.T, c member.Config) *clientv3.Client {
	t.Helper()
	cli, err := member.Dial(c.Dir)
	must(t, err)
	t.Cleanup(func() { cli.Close() })
	return cli
}

func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func number(i int) string { return fmt.Sprintf("key-%06d", i) }

func withCluster(ctx context.Context, uid string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, member.ClusterHeader, uid)
}

// get asks for a page with a certificate.
func (h *house) get(url, who string) error {
	h.t.Helper()
	pair, err := tls.LoadX509KeyPair(h.file(who+".crt"), h.file(who+".key"))
	must(h.t, err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(h.ca.CertPEM)
	tr := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Get(url)
	if err != nil {
		return err
	}
	return r.Body.Close()
}
