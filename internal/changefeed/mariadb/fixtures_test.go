package mariadb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.EndMariaDB()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

func open(t testing.TB, server *testenv.MariaDB) *Source { return openAt(t, server, server.Address) }

func openAt(t testing.TB, server *testenv.MariaDB, address string) *Source {
	t.Helper()
	s, err := Open(Options{Address: address, User: server.User, Password: server.Password, Raw: rawAll})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// rawAll makes all tests of the package keep rows as they were logged, and decode them afterwards: EBB_FORWARD=1.
var rawAll = os.Getenv("EBB_FORWARD") == "1"

var errEnough = errors.New("enough")

// collect reads everything after a position up to the head.
func collect(t testing.TB, s *Source, after stream.Position) []*stream.Transaction {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	head, err := s.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var all []*stream.Transaction
	if after >= head {
		return nil
	}
	err = s.Read(ctx, after, func(tx *stream.Transaction) error {
		all = append(all, tx)
		for _, rows := range tx.Rows {
			if err := rows.Decode(); err != nil {
				return err
			}
		}
		if tx.Position >= head {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	return all
}

// wire joins a client to a server that may be exchanged for another, and may be cut.
type wire struct {
	address string
	mu      sync.Mutex
	server  string
	conns   []net.Conn
}

func newWire(t testing.TB, server string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: listener.Addr().String(), server: server}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { w.serve(client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		w.cut(w.server)
		all.Wait()
	})
	return w
}

// cut ends all connections; later ones go to a server.
func (w *wire) cut(server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.server = server
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

func (w *wire) serve(client net.Conn) {
	defer client.Close()
	w.mu.Lock()
	address := w.server
	w.mu.Unlock()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	w.mu.Lock()
	w.conns = append(w.conns, client, server)
	w.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		io.Copy(client, server)
		client.Close()
	})
	io.Copy(server, client)
	server.Close()
	back.Wait()
}
