package peer_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/pki"
)

// echo answers with the client's name, and then with whatever it is sent.
func echo(name string) peer.Protocol {
	return peer.Protocol{Name: name, Serve: func(_ context.Context, conn net.Conn, node string) {
		if _, err := io.WriteString(conn, name+" "+node+"\n"); err == nil {
			_, _ = io.Copy(conn, conn)
		}
	}}
}

// mixed serves gRPC and protocols, and returns the server and its address.
func mixed(t *testing.T, f peer.Files, protocols ...peer.Protocol) (*peer.Server, string) {
	t.Helper()
	s, err := peer.NewServer(f, nodes(here{heard: &atomic.Int64{}}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Offer(protocols...); err != nil {
		t.Fatal(err)
	}
	return s, start(t, s)
}

func start(t *testing.T, s *peer.Server) string {
	t.Helper()
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
	return l.Addr().String()
}

func dialProtocol(t *testing.T, f peer.Files, address, protocol string) net.Conn {
	t.Helper()
	conn, err := peer.DialProtocol(t.Context(), f, address, "n2", protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}

// wantLine wants a connection to answer with a line.
func wantLine(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	got := make([]byte, len(line))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != line {
		t.Fatalf("read %q, %v, want %q", got, err, line)
	}
}

func wantEcho(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	wantLine(t, conn, "hello\n")
}

// wantClosed wants the other side to close a connection without an answer.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v, want a closed connection", n, err)
	}
}

func noLeaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func TestOneListenerServesGRPCAndProtocols(t *testing.T) {
	noLeaks(t)
	c := newCluster(t)
	_, address := mixed(t, c.node("n2"), echo("a/1"), echo("b/1"))
	mine := c.node("n1")
	a, b := dialProtocol(t, mine, address, "a/1"), dialProtocol(t, mine, address, "b/1")
	calls := dial(t, mine, address, "n2")
	for range 3 {
		want(t, calls, n1(), codes.OK, "")
	}
	wantLine(t, a, "a/1 n1\n")
	wantLine(t, b, "b/1 n1\n")
	wantEcho(t, a)
	wantEcho(t, b)
	want(t, calls, n1(), codes.OK, "")
}

func TestAProtocolThatIsNotOfferedIsRefused(t *testing.T) {
	c := newCluster(t)
	_, address := mixed(t, c.node("n2"), echo("a/1"))
	mine := c.node("n1")
	for _, protocol := range []string{"b/1", "a/2", "http/1.1"} {
		if conn, err := peer.DialProtocol(t.Context(), mine, address, "n2", protocol); err == nil {
			_ = conn.Close()
			t.Errorf("%s was accepted", protocol)
		}
	}
	t.Run("no protocol at all", func(t *testing.T) {
		if _, err := peer.DialProtocol(t.Context(), mine, address, "n2", ""); err == nil {
			t.Error("accepted")
		}
	})
}

func TestProtocolsHaveNamesOfTheirOwn(t *testing.T) {
	s, err := peer.NewServer(newCluster(t).node("n2"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if err := s.Offer(echo("a/1")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"", "h2", "a/1"} {
		if s.Offer(echo(name)) == nil {
			t.Errorf("%q was accepted", name)
		}
	}
}

func TestOnlyNodesReachAProtocol(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	var served atomic.Int64
	_, address := mixed(t, c.node("n2"), peer.Protocol{Name: "a/1", Serve: func(context.Context, net.Conn, string) { served.Add(1) }})
	for _, user := range []string{identity.Admin, identity.Viewer, identity.Coordinator("n1"), "n1", "ebb:nodes", "EBB:NODE:n1"} {
		t.Run(user, func(t *testing.T) { wantClosed(t, dialProtocol(t, c.files(user), address, "a/1")) })
	}
	t.Run("another cluster's node", func(t *testing.T) {
		f := other.node("n1")
		f.CA = filepath.Join(c.dir, "ca.crt") // it trusts this one
		wantClosed(t, dialProtocol(t, f, address, "a/1"))
	})
	if n := served.Load(); n != 0 {
		t.Errorf("%d connections were served", n)
	}
}

func TestADialForAProtocolReachesTheNodeThatIsMeantOrNobody(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	mine := c.node("n1")
	imposter := other.node("n2")
	imposter.CA = filepath.Join(c.dir, "ca.crt")
	for words, f := range map[string]peer.Files{
		"is ebb:node:n3, not node n2":        c.node("n3"),
		"is ebb:coordinator:n1, not node n2": c.files(identity.Coordinator("n1"), "127.0.0.1"),
		"unknown authority":                  imposter,
	} {
		_, address := mixed(t, f, echo("a/1"))
		if _, err := peer.DialProtocol(t.Context(), mine, address, "n2", "a/1"); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("dialed: %v, want %s", err, words)
		}
	}
}

func TestADialForAProtocolEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it never answers
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := peer.DialProtocol(ctx, newCluster(t).node("n1"), l.Addr().String(), "n2", "a/1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dialed: %v", err)
	}
}

func TestAClientThatNeverFinishesItsHandshakeHoldsUpNobodyAndIsDropped(t *testing.T) {
	noLeaks(t)
	c := newCluster(t)
	s, err := peer.NewServer(c.node("n2"), nodes(here{heard: &atomic.Int64{}}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Offer(echo("a/1")); err != nil {
		t.Fatal(err)
	}
	s.SetHandshakeTimeout(3 * time.Second)
	address := start(t, s)
	silent := make([]net.Conn, 50)
	for i := range silent {
		if silent[i], err = net.Dial("tcp", address); err != nil {
			t.Fatal(err)
		}
		defer silent[i].Close()
		if i%2 == 0 { // the beginning of a TLS record
			_, _ = silent[i].Write([]byte{22, 3, 1, 2, 0})
		}
	}
	mine := c.node("n1")
	wantLine(t, dialProtocol(t, mine, address, "a/1"), "a/1 n1\n")
	want(t, dial(t, mine, address, "n2"), n1(), codes.OK, "")
	for _, conn := range silent {
		wantClosed(t, conn)
	}
}

func TestStopEndsEveryConnection(t *testing.T) {
	noLeaks(t)
	c := newCluster(t)
	ended := make(chan error, 2)
	s, address := mixed(t, c.node("n2"),
		peer.Protocol{Name: "reads", Serve: func(_ context.Context, conn net.Conn, _ string) {
			_, _ = io.WriteString(conn, "x")
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}},
		peer.Protocol{Name: "waits", Serve: func(ctx context.Context, conn net.Conn, _ string) {
			_, _ = io.WriteString(conn, "x")
			<-ctx.Done()
			ended <- ctx.Err()
		}})
	mine := c.node("n1")
	reads, waits := dialProtocol(t, mine, address, "reads"), dialProtocol(t, mine, address, "waits")
	wantLine(t, reads, "x")
	wantLine(t, waits, "x")
	shaking, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer shaking.Close()
	s.Stop()
	if len(ended) != 2 {
		t.Fatalf("%d of 2 protocols returned before Stop did", len(ended))
	}
	for range 2 {
		if <-ended == nil {
			t.Error("a protocol ended without an error")
		}
	}
	for _, conn := range []net.Conn{reads, waits, shaking} {
		wantClosed(t, conn)
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("it still listens")
	}
	if err := s.Serve(closedListener{}); err == nil {
		t.Error("a stopped server serves")
	}
}

type closedListener struct{ net.Listener }

func (closedListener) Close() error { return nil }

func TestAProtocolThatReturnsEndsItsConnection(t *testing.T) {
	c := newCluster(t)
	_, address := mixed(t, c.node("n2"), peer.Protocol{Name: "a/1", Serve: func(context.Context, net.Conn, string) {}})
	wantClosed(t, dialProtocol(t, c.node("n1"), address, "a/1"))
}

func TestConnectionsOfAProtocolOutliveTheRenewalOfTheWholeCluster(t *testing.T) {
	c := newCluster(t)
	served, mine := c.node("n2"), c.node("n1")
	_, address := mixed(t, served, echo("a/1"))
	early := dialProtocol(t, mine, address, "a/1")
	wantLine(t, early, "a/1 n1\n")
	ca, err := pki.LoadOrCreate(filepath.Join(c.dir, "next"))
	if err != nil {
		t.Fatal(err)
	}
	c.ca = ca
	c.write("ca.crt", ca.CertPEM)
	c.node("n1")
	c.node("n2")
	wantEcho(t, early)
	wantLine(t, dialProtocol(t, mine, address, "a/1"), "a/1 n1\n")
	want(t, dial(t, mine, address, "n2"), n1(), codes.OK, "")
}

// flaky fails its first accepts in a way that passes.
type flaky struct {
	net.Listener
	left atomic.Int64
}

type passingError struct{}

func (passingError) Error() string   { return "too many open files" }
func (passingError) Temporary() bool { return true }

func (f *flaky) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, passingError{}
	}
	return f.Listener.Accept()
}

func TestAnErrorOfTheListenerThatPassesIsSurvived(t *testing.T) {
	c := newCluster(t)
	s, err := peer.NewServer(c.node("n2"), nodes(here{heard: &atomic.Int64{}}))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{Listener: l}
	f.left.Store(2)
	done := make(chan error, 1)
	go func() { done <- s.Serve(f) }()
	want(t, dial(t, c.node("n1"), l.Addr().String(), "n2"), n1(), codes.OK, "")
	s.Stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Run("one that does not ends it", func(t *testing.T) {
		s, err := peer.NewServer(c.node("n2"))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Stop()
		_ = l.Close()
		if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
			t.Errorf("served: %v", err)
		}
	})
}
