package apiserver_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/apiserver"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A server takes seconds to start under the race detector, so every test that does not stop it uses the same one.
// Tests give their objects fresh names and run again and again on it.
var shared = sync.OnceValues(func() (*running, error) {
	dir, err := os.MkdirTemp("", "ebb-apiserver-")
	if err != nil {
		return nil, err
	}
	sharedStarted.Store(true)
	return serve(options(dir))
})

var sharedStarted atomic.Bool

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // every refusal is a line of its own there
	log.SetLogger(logr.Discard())
	code := m.Run()
	if sharedStarted.Load() {
		if s, err := shared(); err == nil {
			err = errors.Join(s.stop(), os.RemoveAll(string(s.dir)))
			if err != nil {
				fmt.Fprintln(os.Stderr, "shared server:", err)
				code = 1
			}
		}
	}
	os.Exit(code)
}

// declared are the objects of work that the server knows: those of deployments, and crates, which have a binding.
func declared() []access.Object {
	return append(deployment.Kind().Objects, access.Object{Resource: "crates", Coordinator: access.Both, Node: &access.NodeWrites{
		Runtime: "replicas", Bindings: []access.Binding{{Node: "spec.node", Epoch: "status.nodeEpoch"}},
	}})
}

func options(dir string) apiserver.Options {
	return apiserver.Options{Dir: datadir.Dir(dir), Listen: "127.0.0.1:0", EtcdPrefix: "/ebb", Objects: declared()}
}

// running is a server in the test's own process.
type running struct {
	dir  datadir.Dir
	url  string
	stop func() error
}

func serve(o apiserver.Options) (*running, error) {
	ctx, cancel := context.WithCancel(context.Background())
	server, err := apiserver.New(ctx, o)
	if err != nil {
		cancel()
		return nil, err
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- server.Run(ctx, func() { close(ready) }) }()
	stop := sync.OnceValue(func() error { cancel(); return <-ended })
	select {
	case <-ready:
		return &running{dir: o.Dir, url: server.URL(), stop: stop}, nil
	case err := <-ended:
		cancel()
		return nil, fmt.Errorf("ended before it was ready: %w", err)
	case <-time.After(2 * time.Minute):
		return nil, errors.Join(errors.New("not ready within two minutes"), stop())
	}
}

// api is the shared server.
func api(t testing.TB) *running {
	t.Helper()
	s, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs a server of the test's own, which ends with it.
func start(t testing.TB, o apiserver.Options) *running {
	t.Helper()
	s, err := serve(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// caller talks to a server as one identity, in plain HTTP.
type caller struct {
	url    string
	client *http.Client
	header http.Header
}

// as is a caller with a certificate of the cluster's own authority.
func (s *running) as(t testing.TB, user string, groups ...string) caller {
	t.Helper()
	ca, err := pki.Load(s.dir.PKI())
	if err != nil {
		t.Fatal(err)
	}
	return s.signedBy(t, ca, user, groups...)
}

func (s *running) signedBy(t testing.TB, ca *pki.Authority, user string, groups ...string) caller {
	t.Helper()
	pair, err := ca.Issue(pki.Profile{User: user, Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	return s.with(t, rest.TLSClientConfig{CertData: pair.Cert, KeyData: pair.Key})
}

func (s *running) with(t testing.TB, tls rest.TLSClientConfig) caller {
	t.Helper()
	trusted, err := os.ReadFile(s.dir.CA())
	if err != nil {
		t.Fatal(err)
	}
	tls.CAData = trusted
	client, err := rest.HTTPClientFor(&rest.Config{Host: s.url, TLSClientConfig: tls})
	if err != nil {
		t.Fatal(err)
	}
	return caller{url: s.url, client: client, header: http.Header{}}
}

func (s *running) admin(t testing.TB) caller {
	t.Helper()
	return s.as(t, identity.Admin, identity.AdminGroup)
}

func (s *running) viewer(t testing.TB) caller {
	t.Helper()
	return s.as(t, identity.Viewer, identity.ViewerGroup)
}

func (s *running) node(t testing.TB, name string) caller {
	t.Helper()
	return s.as(t, identity.Node(name), identity.NodeGroup)
}

// coordinator writes for a term, as its node; an empty one is not named at all, and is n1's.
func (s *running) coordinator(t testing.TB, term string) caller {
	t.Helper()
	node, _, _ := strings.Cut(cmp.Or(term, "n1"), "/")
	c := s.as(t, identity.Coordinator(node))
	if term != "" {
		c = c.saying(identity.TermHeader, term)
	}
	return c
}

// saying adds a header to every request.
func (c caller) saying(key, value string) caller {
	c.header = c.header.Clone()
	c.header.Add(key, value)
	return c
}

// answer is what the server said.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.code, a.message()) }

// message is the server's explanation of an error.
func (a answer) message() string {
	var s metav1.Status
	if json.Unmarshal(a.body, &s) == nil && s.Kind == "Status" {
		return s.Message
	}
	return string(a.body)
}

func (a answer) object(t testing.TB) object {
	t.Helper()
	var o object
	if err := json.Unmarshal(a.body, &o); err != nil {
		t.Fatalf("%v in %s", err, a)
	}
	return o
}

func (c caller) do(t testing.TB, method, path string, body any) answer {
	t.Helper()
	a, err := c.try(t.Context(), method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// must is do for what has to succeed.
func (c caller) must(t testing.TB, method, path string, body any) answer {
	t.Helper()
	a := c.do(t, method, path, body)
	if a.code/100 != 2 {
		t.Fatalf("%s %s: %s", method, path, a)
	}
	return a
}

func (c caller) try(ctx context.Context, method, path string, body any) (answer, error) {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return answer{}, err
		}
	}
	// Ends a watch as soon as its headers were read.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(data))
	if err != nil {
		return answer{}, err
	}
	req.Header = c.header.Clone()
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", contentType[method])
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if req.URL.Query().Get("watch") != "" && resp.StatusCode == http.StatusOK {
		return answer{code: resp.StatusCode}, nil
	}
	data, err = io.ReadAll(resp.Body)
	return answer{code: resp.StatusCode, header: resp.Header, body: data}, err
}

var contentType = map[string]string{
	"POST": "application/json", "PUT": "application/json", "DELETE": "application/json",
	"PATCH": "application/merge-patch+json",
}

var count atomic.Int64

// fresh is a name that no other test uses.
func fresh(prefix string) string { return fmt.Sprintf("%s-%d", prefix, count.Add(1)) }

// eventually polls, for what the server does on its own.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(testenv.Patience)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s: %s", testenv.Patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

var noCertificate rest.TLSClientConfig
