package peer_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/pki"
)

// nodes is the service of changefeeds.
func nodes(impl wire.NodeServer) peer.Service {
	return func(r grpc.ServiceRegistrar) { wire.RegisterNodeServer(r, impl) }
}

// cluster is an authority and the files of who it knows.
type cluster struct {
	t   *testing.T
	ca  *pki.Authority
	dir string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.LoadOrCreate(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, ca: ca, dir: dir}
	c.write("ca.crt", ca.CertPEM)
	return c
}

func (c *cluster) write(name string, data []byte) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// files are those of a user. With hosts it may serve.
func (c *cluster) files(user string, hosts ...string) peer.Files {
	c.t.Helper()
	pair, err := c.ca.Issue(pki.Profile{User: user, Hosts: hosts})
	if err != nil {
		c.t.Fatal(err)
	}
	name := strings.ReplaceAll(user, ":", "-")
	return peer.Files{Cert: c.write(name+".crt", pair.Cert), Key: c.write(name+".key", pair.Key), CA: filepath.Join(c.dir, "ca.crt")}
}

func (c *cluster) node(name string) peer.Files { return c.files(identity.Node(name), "127.0.0.1") }

// here answers everything, says in which epoch, and counts.
type here struct {
	wire.UnimplementedNodeServer
	heard *atomic.Int64
}

func (h here) Bootstrap(context.Context, *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	h.heard.Add(1)
	return &wire.BootstrapReply{NodeEpoch: 7}, nil
}

func (h here) Order(context.Context, *wire.OrderRequest) (*wire.OrderReply, error) {
	h.heard.Add(1)
	return &wire.OrderReply{NodeEpoch: 7}, nil
}

func (h here) Report(context.Context, *wire.ReportRequest) (*wire.ReportReply, error) {
	h.heard.Add(1)
	return &wire.ReportReply{NodeEpoch: 7}, nil
}

// serve serves with files and returns the address.
func serve(t *testing.T, f peer.Files) string {
	t.Helper()
	address, _ := serveCounting(t, f)
	return address
}

// serveCounting also returns how many requests were let in.
func serveCounting(t *testing.T, f peer.Files) (string, *atomic.Int64) {
	t.Helper()
	heard := &atomic.Int64{}
	s, err := peer.NewServer(f, nodes(here{heard: heard}))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return l.Addr().String(), heard
}

func dial(t *testing.T, f peer.Files, address, node string) wire.NodeClient {
	t.Helper()
	conn, err := peer.Dial(f, address, node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return wire.NewNodeClient(conn)
}

// calls are all that may be asked, by a caller.
func calls(c wire.NodeClient, caller *wire.Caller) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"bootstrap": func(ctx context.Context) error {
			_, err := c.Bootstrap(ctx, &wire.BootstrapRequest{Caller: caller})
			return err
		},
		"order": func(ctx context.Context) error {
			_, err := c.Order(ctx, &wire.OrderRequest{Caller: caller})
			return err
		},
		"report": func(ctx context.Context) error {
			_, err := c.Report(ctx, &wire.ReportRequest{Caller: caller})
			return err
		},
	}
}

// want wants all calls to end with a code, and the words to be in what they say.
func want(t *testing.T, c wire.NodeClient, caller *wire.Caller, code codes.Code, words string) {
	t.Helper()
	for name, call := range calls(c, caller) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := call(ctx)
		cancel()
		if status.Code(err) != code || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v\nwant %s: %s", name, err, code, words)
		}
	}
}

func n1() *wire.Caller { return &wire.Caller{Node: "n1", NodeEpoch: 1} }

func TestNodesSpeakToEachOther(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
	c := newCluster(t)
	address := serve(t, c.node("n2"))
	client := dial(t, c.node("n1"), address, "n2")
	want(t, client, n1(), codes.OK, "")
	reply, err := client.Bootstrap(context.Background(), &wire.BootstrapRequest{Caller: n1()})
	if err != nil || reply.NodeEpoch != 7 {
		t.Errorf("answered %v, %v", reply, err)
	}
}

func TestANodeSpeaksForItselfAlone(t *testing.T) {
	c := newCluster(t)
	client := dial(t, c.node("n1"), serve(t, c.node("n2")), "n2")
	for name, caller := range map[string]*wire.Caller{
		"another node": {Node: "n3", NodeEpoch: 1}, "the node it speaks to": {Node: "n2", NodeEpoch: 1}, "nobody": {}, "no caller": nil, "a longer name": {Node: "n11"}, "another case": {Node: "N1"},
	} {
		t.Run(name, func(t *testing.T) {
			want(t, client, caller, codes.PermissionDenied, "node n1 may not speak for another")
		})
	}
}

func TestOnlyNodesSpeak(t *testing.T) {
	c := newCluster(t)
	address, heard := serveCounting(t, c.node("n2"))
	for _, user := range []string{identity.Admin, identity.Viewer, identity.Coordinator("n1"), "n1", "ebb:nodes", "EBB:NODE:n1"} {
		t.Run(user, func(t *testing.T) {
			want(t, dial(t, c.files(user), address, "n2"), n1(), codes.PermissionDenied, "only nodes speak here")
		})
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("%d requests were let in", n)
	}
}

func TestWhoShowsNoCertificateOfThisClusterIsNotHeard(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	address, heard := serveCounting(t, c.node("n2"))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.ca.CertPEM)
	raw := func(creds credentials.TransportCredentials) wire.NodeClient {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return wire.NewNodeClient(conn)
	}
	t.Run("no certificate", func(t *testing.T) {
		want(t, raw(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})), n1(), codes.Unavailable, "")
	})
	t.Run("no TLS", func(t *testing.T) { want(t, raw(insecure.NewCredentials()), n1(), codes.Unavailable, "") })
	t.Run("an old TLS", func(t *testing.T) {
		cert := c.node("n1")
		pair, err := tls.LoadX509KeyPair(cert.Cert, cert.Key)
		if err != nil {
			t.Fatal(err)
		}
		want(t, raw(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: "127.0.0.1", Certificates: []tls.Certificate{pair}, MaxVersion: tls.VersionTLS12})), n1(), codes.Unavailable, "protocol version")
	})
	t.Run("another cluster's node", func(t *testing.T) {
		f := other.node("n1")
		f.CA = filepath.Join(c.dir, "ca.crt") // it trusts this one
		want(t, dial(t, f, address, "n2"), n1(), codes.Unavailable, "")
	})
	if n := heard.Load(); n != 0 {
		t.Errorf("%d requests were let in", n)
	}
}

// An address says nothing: whoever answers there must be the node that is meant.
func TestADialReachesTheNodeThatIsMeantOrNobody(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	mine := c.node("n1")
	t.Run("another node", func(t *testing.T) {
		want(t, dial(t, mine, serve(t, c.node("n3")), "n2"), n1(), codes.Unavailable, "is ebb:node:n3, not node n2")
	})
	t.Run("the coordinator's certificate", func(t *testing.T) {
		want(t, dial(t, mine, serve(t, c.files(identity.Coordinator("n1"), "127.0.0.1")), "n2"), n1(), codes.Unavailable, "is ebb:coordinator:n1, not node n2")
	})
	t.Run("a certificate that is for clients only", func(t *testing.T) {
		want(t, dial(t, mine, serve(t, c.files(identity.Node("n2"))), "n2"), n1(), codes.Unavailable, "incompatible key usage")
	})
	t.Run("another cluster's node of that name", func(t *testing.T) {
		f := other.node("n2")
		f.CA = filepath.Join(c.dir, "ca.crt") // it lets this one in
		want(t, dial(t, mine, serve(t, f), "n2"), n1(), codes.Unavailable, "unknown authority")
	})
	t.Run("the node that is meant", func(t *testing.T) {
		want(t, dial(t, mine, serve(t, c.node("n2")), "n2"), n1(), codes.OK, "")
	})
}

func TestFilesThatCannotBeUsedAreNamed(t *testing.T) {
	c := newCluster(t)
	good := c.node("n1")
	empty := c.write("empty", nil)
	for name, f := range map[string]peer.Files{
		"no certificate": {Cert: filepath.Join(c.dir, "none"), Key: good.Key, CA: good.CA},
		"another's key":  {Cert: good.Cert, Key: c.node("n2").Key, CA: good.CA},
		"no authority":   {Cert: good.Cert, Key: good.Key, CA: filepath.Join(c.dir, "none")},
		"an empty one":   {Cert: good.Cert, Key: good.Key, CA: empty},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := peer.NewServer(f, nodes(here{})); err == nil {
				t.Error("it serves")
			}
			if conn, err := peer.Dial(f, "127.0.0.1:1", "n2"); err == nil {
				_ = conn.Close()
				t.Error("it dials")
			}
		})
	}
}
