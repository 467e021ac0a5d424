package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/volume/block"
)

const (
	testVolume  = "shop/orders"
	testUID     = "5f1c1a52-0000-4000-8000-000000000001"
	testReplica = "orders-r1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a replica in memory. It tells what it was asked, and fails or waits as a test says.
type memory struct {
	mu    sync.Mutex
	data  []byte
	calls []string
	err   error
	// hold is called at the beginning of every call but pings.
	hold func(ctx context.Context, what string)

	state     block.State
	extents   []block.Extent
	intent    block.Bitmap
	missed    block.Bitmap
	known     bool
	cleared   block.Bitmap
	committed block.Membership
}

func newMemory(size int) *memory { return &memory{data: make([]byte, size)} }

func (m *memory) called(ctx context.Context, what string, args ...any) error {
	if m.hold != nil && what != "ping" {
		m.hold(ctx, what)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, fmt.Sprint(append([]any{what}, args...)...))
	return m.err
}

func (m *memory) seen() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

// written returns what was last committed and cleared.
func (m *memory) written() (block.Membership, block.Bitmap) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.committed, m.cleared
}

func (m *memory) setErr(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *memory) Open(ctx context.Context, generation int64) (block.State, error) {
	return m.state, m.called(ctx, "open ", generation)
}

func (m *memory) Commit(ctx context.Context, s block.Membership) error {
	m.mu.Lock()
	m.committed = s
	m.mu.Unlock()
	return m.called(ctx, "commit ", s.Generation)
}

func (m *memory) ReadAt(ctx context.Context, generation int64, p []byte, off int64) error {
	if err := m.called(ctx, "read ", generation, " ", off, "+", len(p)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if off+int64(len(p)) > int64(len(m.data)) {
		return errors.New("beyond the end")
	}
	copy(p, m.data[off:])
	return nil
}

func (m *memory) WriteAt(ctx context.Context, generation int64, p []byte, off int64, fua bool) error {
	if err := m.called(ctx, "write ", generation, " ", off, "+", len(p), " ", fua); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if off+int64(len(p)) > int64(len(m.data)) {
		return errors.New("beyond the end")
	}
	copy(m.data[off:], p)
	return nil
}

func (m *memory) Zero(ctx context.Context, generation int64, off, length int64, z block.Zero) error {
	return m.called(ctx, "zero ", generation, " ", off, "+", length, " ", z)
}

func (m *memory) Flush(ctx context.Context, generation int64) error {
	return m.called(ctx, "flush ", generation)
}

func (m *memory) Extents(ctx context.Context, generation int64, off, length int64) ([]block.Extent, error) {
	list := m.extents
	if list == nil && length > 0 {
		list = []block.Extent{{Length: length}}
	}
	return list, m.called(ctx, "extents ", generation, " ", off, "+", length)
}

func (m *memory) Intent(ctx context.Context, generation int64) (block.Bitmap, error) {
	return m.intent, m.called(ctx, "intent ", generation)
}

func (m *memory) Missed(ctx context.Context, generation int64, replica string, memberAt int64) (block.Bitmap, bool, error) {
	return m.missed, m.known, m.called(ctx, "missed ", generation, " ", replica, " of ", memberAt)
}

func (m *memory) Clear(ctx context.Context, generation int64, chunks block.Bitmap) error {
	m.mu.Lock()
	m.cleared = chunks
	m.mu.Unlock()
	return m.called(ctx, "clear ", generation)
}

func (m *memory) Ping(ctx context.Context, generation int64) error {
	return m.called(ctx, "ping", " ", generation)
}

func (m *memory) Close() error { return m.called(context.Background(), "close") }

// openAs returns a replica to whoever asks for the right one.
func openAs(r block.Replica) OpenFunc {
	return func(_ context.Context, node, volume, uid, replica string) (block.Replica, error) {
		if node != "n1" || volume != testVolume || uid != testUID || replica != testReplica {
			return nil, fmt.Errorf("node %s may not open %s of %s (%s)", node, replica, volume, uid)
		}
		return r, nil
	}
}

// pipe serves a replica over a pipe. It returns the client's end, and what Serve returned.
func pipe(t testing.TB, r block.Replica) (net.Conn, <-chan error) {
	t.Helper()
	mine, theirs := net.Pipe()
	return mine, serveOn(t, theirs, r)
}

func serveOn(t testing.TB, conn net.Conn, r block.Replica) <-chan error {
	served := make(chan error, 1)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(done)
		served <- Serve(ctx, conn, "n1", openAs(r))
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return served
}

// overTLS serves a replica on a node's listener, and returns connections to it.
func overTLS(t testing.TB, r block.Replica) func() net.Conn {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.LoadOrCreate(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	trusted := write("ca.crt", ca.CertPEM)
	files := func(node string) peer.Files {
		pair, err := ca.Issue(pki.Profile{User: identity.Node(node), Hosts: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		return peer.Files{Cert: write(node+".crt", pair.Cert), Key: write(node+".key", pair.Key), CA: trusted}
	}
	s, err := peer.NewServer(files("n2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Offer(peer.Protocol{Name: Protocol, Serve: func(ctx context.Context, conn net.Conn, node string) {
		if err := Serve(ctx, conn, node, openAs(r)); err != nil {
			t.Log(err)
		}
	}}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	mine := files("n1")
	return func() net.Conn {
		conn, err := peer.DialProtocol(context.Background(), mine, l.Addr().String(), "n2", Protocol)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
}

// newClient opens the replica of the tests over a connection.
func newClient(t testing.TB, conn net.Conn) *Client {
	t.Helper()
	c, err := NewClient(context.Background(), conn, testVolume, testUID, testReplica)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// overAll runs a test over every kind of connection.
func overAll(t *testing.T, size int, test func(t *testing.T, m *memory, c *Client)) {
	t.Run("pipe", func(t *testing.T) {
		m := newMemory(size)
		conn, _ := pipe(t, m)
		test(t, m, newClient(t, conn))
	})
	t.Run("TLS", func(t *testing.T) {
		m := newMemory(size)
		test(t, m, newClient(t, overTLS(t, m)()))
	})
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// pattern fills p with bytes that depend on their place and on a seed. They repeat after a prime number, so no two sectors are the same soon.
func pattern(p []byte, seed int) []byte {
	const period = 4099
	for i := range min(period, len(p)) {
		p[i] = byte(i*7 + i>>8 + seed)
	}
	for n := period; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
	return p
}
