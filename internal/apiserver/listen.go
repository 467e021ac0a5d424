package apiserver

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// Ports that a free one is picked from: below the range that the kernel gives to outgoing connections, so that none of
// those sits on the port while the server is down, and below the default of --etcd-ports, which members keep while they are down.
const (
	firstPort = 20000
	lastPort  = 23800
)

// listen opens the server's port. Port 0 means the one used last time, or a free one that is then kept in dir: the
// address is written into kubeconfig files and must not change when the server starts again.
func listen(dir, address string) (*listener, error) {
	l, err := listenKept(dir, address)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, open: map[net.Conn]bool{}}, nil
}

func listenKept(dir, address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q: %w", address, err)
	}
	if port != "0" {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		return l, nil
	}
	kept := filepath.Join(dir, "port")
	if data, err := os.ReadFile(kept); err == nil {
		l, err := net.Listen("tcp", net.JoinHostPort(host, strings.TrimSpace(string(data))))
		if err != nil {
			return nil, fmt.Errorf("listen on the port of the last start: %w; stop the process that uses it, choose another with --listen, or remove %s to pick a free one", err, kept)
		}
		return l, nil
	}
	l, err := listenFree(host)
	if err != nil {
		return nil, err
	}
	if err := atomicfile.Write(kept, []byte(strconv.Itoa(l.Addr().(*net.TCPAddr).Port)+"\n"), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// listener remembers its open connections, so that they can be closed all at once.
type listener struct {
	net.Listener

	mu   sync.Mutex
	open map[net.Conn]bool
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	own := &conn{Conn: c, listener: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[own] = true
	return own, nil
}

// hangUp closes all connections.
func (l *listener) hangUp() {
	l.mu.Lock()
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// conn is a connection that its listener knows until it is closed.
type conn struct {
	net.Conn
	listener *listener
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

func listenFree(host string) (net.Listener, error) {
	var last error
	for range 100 {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if err == nil {
			return l, nil
		}
		last = err
	}
	return nil, fmt.Errorf("no free port from %d to %d on %s: %w", firstPort, lastPort, host, last)
}
