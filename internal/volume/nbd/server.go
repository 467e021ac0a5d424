// Package nbd serves a block.Device to NBD clients: the kernel, qemu, libnbd, fio. It speaks the fixed newstyle handshake without TLS,
// simple and structured replies, and the metadata context base:allocation.
//
// A client can do harm to its own connection only. Every length that it sends is checked before anything is allocated for it, the
// handshake has a deadline, and a connection has a limit on requests in flight and on the bytes they hold.
//
// A request that a client has sent is finished even if the client is gone by then. Requests are cancelled only when the context of
// Serve ends, or when the patience of Shutdown or Disconnect does.
package nbd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// ErrShutdown is returned by Serve after Shutdown was called.
var ErrShutdown = errors.New("the NBD server is shut down")

// Options of a server. The zero value has the defaults.
type Options struct {
	// Log gets a line when a client comes, goes or breaks the protocol. By default nothing is logged.
	Log *slog.Logger
	// HandshakeTimeout is how long a client may take until it has chosen the export; 10 s by default.
	HandshakeTimeout time.Duration
	// MaxConnections is how many connections there may be at once; 128 by default. More are closed at once.
	MaxConnections int
	// MaxInFlight is how many requests of a connection are handled at once; 128 by default.
	MaxInFlight int
	// MaxBuffered is how many bytes of payload a connection may hold; 32 MiB by default. A single request may always be as long as the
	// protocol allows.
	MaxBuffered int
}

func (o Options) withDefaults() Options {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 10*time.Second)
	o.MaxConnections = cmp.Or(o.MaxConnections, 128)
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 128)
	o.MaxBuffered = cmp.Or(o.MaxBuffered, maxPayload)
	return o
}

// Server serves one device as one export.
type Server struct {
	device block.Device
	export string
	opts   Options

	mu        sync.Mutex
	down      bool
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
}

// New returns a server for a device. Clients reach it by the name of the export, or by the empty name.
func New(device block.Device, export string, opts Options) *Server {
	return &Server{
		device:    device,
		export:    export,
		opts:      opts.withDefaults(),
		listeners: map[net.Listener]struct{}{},
		conns:     map[*conn]struct{}{},
	}
}

// Serve accepts clients until the context ends, the listener fails, or Shutdown is called. It closes the listener. When the context
// ends, connections are closed and requests in flight are cancelled; Serve returns when none is left. The error is nil if the context
// ended, ErrShutdown after Shutdown.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	defer listener.Close()
	if !s.addListener(listener) {
		return ErrShutdown
	}
	defer s.removeListener(listener)

	var conns sync.WaitGroup
	defer conns.Wait()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	failing := false
	for {
		nc, err := listener.Accept()
		switch {
		case err == nil:
			failing = false
			s.start(ctx, nc, &conns)
		case ctx.Err() != nil:
			return nil
		case s.isDown():
			return ErrShutdown
		case errors.Is(err, net.ErrClosed):
			return err
		default: // for instance too many open files
			if !failing {
				s.opts.Log.Warn("cannot accept NBD clients; trying again", "export", s.export, "error", err)
			}
			failing = true
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// start serves a connection in the background.
func (s *Server) start(ctx context.Context, nc net.Conn, conns *sync.WaitGroup) {
	c := newConn(ctx, s, nc)
	if !s.add(c) {
		c.abort()
		return
	}
	conns.Go(func() {
		defer context.AfterFunc(ctx, c.abort)()
		c.serve()
		s.remove(c)
	})
}

// Clients returns who is connected and has chosen the export, sorted. A client with several connections is in it several times.
func (s *Server) Clients() []Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	clients := []Client{}
	for c := range s.conns {
		if c.serving.Load() {
			clients = append(clients, c.client)
		}
	}
	slices.SortFunc(clients, compareClients)
	return clients
}

// Disconnect closes the connections of all clients, each after its requests in flight were answered. New clients may come. When the
// context ends first, what is left is closed and cancelled, and the error of the context is returned.
func (s *Server) Disconnect(ctx context.Context) error {
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()

	for _, c := range conns {
		c.finish()
	}
	for i, c := range conns {
		select {
		case <-c.done:
		case <-ctx.Done():
			for _, left := range conns[i:] {
				left.abort()
			}
			return ctx.Err()
		}
	}
	return nil
}

// Shutdown stops accepting clients, and then does what Disconnect does. Serve returns.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.down = true
	for l := range s.listeners {
		l.Close()
	}
	s.mu.Unlock()
	return s.Disconnect(ctx)
}

func (s *Server) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// addListener reports whether the server still listens.
func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return false
	}
	s.listeners[l] = struct{}{}
	return true
}

func (s *Server) removeListener(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
}

// add reports whether there is room for the connection.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return false
	}
	if len(s.conns) >= s.opts.MaxConnections {
		s.opts.Log.Warn("too many NBD connections", "export", s.export, "client", c.client.String(), "connections", len(s.conns))
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}
