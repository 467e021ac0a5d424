package httpapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "0123456789abcdef"

// election is the election as one node sees it.
type election struct {
	leading bool
	resign  func(context.Context) error

	resigned atomic.Int32
}

func (e *election) Leading() bool { return e.leading }

func (e *election) Resign(ctx context.Context) error {
	e.resigned.Add(1)
	if e.resign == nil {
		return nil
	}
	return e.resign(ctx)
}

// authority of a test, and the directory it keeps everything in.
type authority struct {
	*pki.Authority
	dir string
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	return authority{ca, dir}
}

// served is a server that runs on a port of its own until the end of the test.
type served struct {
	url   *url.URL
	stop  context.CancelFunc
	ended chan error
}

func (a authority) issue(t *testing.T, name string) pki.Pair {
	t.Helper()
	pair, err := a.Issue(pki.Profile{User: "ebb:node:" + name, Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// certificate of some other server.
func (a authority) certificate(t *testing.T) tls.Certificate {
	t.Helper()
	pair := a.issue(t, "other")
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// serve runs a node's server. Without a change it leads nothing and knows no coordinator.
func (a authority) serve(t *testing.T, name string, e *election, change ...func(*Options)) served {
	t.Helper()
	return a.serveWith(t, name, e, func(*Server) {}, change...)
}

// serveWith runs a node's server that was changed before it began.
func (a authority) serveWith(t *testing.T, name string, e *election, adjust func(*Server), change ...func(*Options)) served {
	t.Helper()
	pair := a.issue(t, name)
	cert, key := filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
	for path, data := range map[string][]byte{cert: pair.Cert, key: pair.Key} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{
		Node: name, Token: token, CertFile: cert, KeyFile: key, CAFile: filepath.Join(a.dir, "ca.crt"), Election: e,
		Ready: func() error { return nil }, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Coordinator: func(context.Context) (*url.URL, error) { return nil, coordinator.ErrNone },
		Drains:      func() Drains { return nil },
	}
	for _, c := range change {
		c(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	adjust(s)
	return run(t, s)
}

func run(t *testing.T, s *Server) served {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := served{url: &url.URL{Scheme: "https", Host: l.Addr().String()}, stop: cancel, ended: make(chan error, 1)}
	go func() { r.ended <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-r.ended; err != nil {
			t.Errorf("server: %v", err)
		}
		close(r.ended)
	})
	return r
}

// at lets a node know where the coordinator is.
func at(s served) func(*Options) {
	return func(o *Options) {
		o.Coordinator = func(context.Context) (*url.URL, error) { return s.url, nil }
	}
}

// answer is what a client got.
type answer struct {
	code   int
	header http.Header
	body   string
}

// client trusts the authority and keeps no connections.
func (a authority) client(t *testing.T) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(a.CertPEM) {
		t.Fatal("no certificate authority")
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}}
}

// do asks with the right token, unless a header says otherwise.
func (a authority) do(t *testing.T, method string, to served, path string, body io.Reader, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequest(method, to.url.String()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := a.client(t).Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(data)}
}

// want compares an answer word for word.
func want(t *testing.T, got answer, code int, body string) {
	t.Helper()
	if got.code != code || got.body != body {
		t.Errorf("got %d %q\nwant %d %q", got.code, got.body, code, body)
	}
	if strings.HasPrefix(body, "{") && got.header.Get("Content-Type") != "application/json" {
		t.Errorf("content type %q", got.header.Get("Content-Type"))
	}
}

// problem is the body of an error.
func problem(code, message string) string {
	return `{"error_code":"` + code + `","error_msg":"` + message + `"}` + "\n"
}
