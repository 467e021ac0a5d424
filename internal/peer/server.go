package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/ebb-dev/ebb/internal/identity"
)

const (
	// http2 is the protocol of gRPC.
	http2 = "h2"
	// handshakeTimeout is how long a client may take for its handshake.
	handshakeTimeout = 10 * time.Second
	// unacknowledgedTimeout ends a connection whose data the other machine does not acknowledge.
	unacknowledgedTimeout = 20 * time.Second
	// acceptRetry is the pause after an error of the listener that may pass, such as no free file descriptor.
	acceptRetry = 100 * time.Millisecond
)

// Service adds what one kind of work has to say between nodes to a server.
type Service func(grpc.ServiceRegistrar)

// Protocol takes connections of a server beside gRPC. Clients choose it by ALPN.
type Protocol struct {
	// Name as ALPN knows it.
	Name string
	// Serve owns a connection of a node, whose name is the one in its certificate. It returns when it is done with it. ctx ends when the server
	// stops.
	Serve func(ctx context.Context, conn net.Conn, node string)
}

// Server is where other nodes reach this one: gRPC, and the protocols of kinds, on one listener. Whoever is not a node is refused by all.
type Server struct {
	grpc             *grpc.Server
	creds            *Credentials
	protocols        map[string]Protocol
	handshakeTimeout time.Duration

	ctx    context.Context // ends with Stop
	cancel context.CancelFunc

	mu        sync.Mutex // guards the rest; conns.Add is called under it, and not after Stop
	stopped   bool
	listeners map[net.Listener]struct{}
	open      map[net.Conn]struct{} // connections that gRPC does not own
	conns     sync.WaitGroup
}

// NewServer makes a server that only nodes of this cluster reach.
func NewServer(f Files, services ...Service) (*Server, error) {
	creds, err := Load("the node", f)
	if err != nil {
		return nil, err
	}
	s := &Server{
		creds: creds, protocols: map[string]Protocol{}, handshakeTimeout: handshakeTimeout,
		listeners: map[net.Listener]struct{}{}, open: map[net.Conn]struct{}{},
		grpc: grpc.NewServer(
			grpc.Creds(finishedHandshake{}),
			grpc.UnaryInterceptor(onlyNodes), grpc.StreamInterceptor(onlyNodesStream),
			grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
		),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for _, add := range services {
		add(s.grpc)
	}
	return s, nil
}

// Offer adds protocols. It is called before Serve.
func (s *Server) Offer(protocols ...Protocol) error {
	for _, p := range protocols {
		if _, twice := s.protocols[p.Name]; twice || p.Name == "" || p.Name == http2 {
			return fmt.Errorf("protocol %q is offered twice, or its name is reserved", p.Name)
		}
		s.protocols[p.Name] = p
	}
	return nil
}

// Serve takes connections until Stop, which makes it return nil, or until the listener fails. It closes the listener.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.add(l) {
		return grpc.ErrServerStopped
	}
	calls := &handover{addr: l.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(calls) }()
	err := s.accept(l, s.creds.MutualServer(append([]string{http2}, s.names()...)...), calls)
	_ = calls.Close()
	grpcErr := <-served
	if s.ctx.Err() != nil {
		return nil
	}
	return errors.Join(err, grpcErr)
}

// Stop closes the listeners and all connections, and waits until protocols have returned. Handlers of gRPC may still be running.
func (s *Server) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.cancel()
	for l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.grpc.Stop()
	s.conns.Wait()
}

// add remembers a listener for Stop. It returns false if the server has stopped.
func (s *Server) add(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.listeners[l] = struct{}{}
	}
	return !s.stopped
}

// accept starts a goroutine for every connection, until the listener fails or the server stops.
func (s *Server) accept(l net.Listener, config *tls.Config, calls *handover) error {
	for {
		raw, err := l.Accept()
		if err != nil {
			var passing interface{ Temporary() bool }
			if s.ctx.Err() == nil && errors.As(err, &passing) && passing.Temporary() {
				select {
				case <-time.After(acceptRetry):
				case <-s.ctx.Done():
				}
				continue
			}
			return err
		}
		s.mu.Lock()
		if s.stopped {
			_ = raw.Close()
		} else {
			s.open[raw] = struct{}{}
			s.conns.Go(func() { s.take(raw, config, calls) })
		}
		s.mu.Unlock()
	}
}

// take does the handshake of a connection and passes it on to the protocol that the client chose.
func (s *Server) take(raw net.Conn, config *tls.Config, calls *handover) {
	owned := true
	defer func() {
		s.mu.Lock()
		delete(s.open, raw)
		s.mu.Unlock()
		if owned {
			_ = raw.Close()
		}
	}()
	closeIfUnacknowledged(raw)
	conn := tls.Server(raw, config)
	ctx, cancel := context.WithTimeout(s.ctx, s.handshakeTimeout)
	err := conn.HandshakeContext(ctx)
	cancel()
	if err != nil {
		return
	}
	state := conn.ConnectionState()
	if state.NegotiatedProtocol == http2 {
		owned = !calls.pass(conn) // gRPC refuses whoever is not a node, with a status that says so
		return
	}
	// A client that names no protocol negotiates "", which no protocol has.
	if p, ok := s.protocols[state.NegotiatedProtocol]; ok {
		if node, ok := identity.NodeName(state.PeerCertificates[0].Subject.CommonName); ok {
			p.Serve(s.ctx, conn, node)
		}
	}
}

func (s *Server) names() []string {
	list := make([]string, 0, len(s.protocols))
	for name := range s.protocols {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// closeIfUnacknowledged makes the kernel end a connection to a machine that has vanished while data is on its way to it.
func closeIfUnacknowledged(conn net.Conn) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if control, err := tcp.SyscallConn(); err == nil {
		_ = control.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledgedTimeout.Milliseconds()))
		})
	}
}

// handover is the listener of the gRPC server: it accepts connections whose handshake is done.
type handover struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// pass gives a connection to whoever accepts. It returns false if nobody will.
func (h *handover) pass(conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.closed:
		return false
	}
}

// Accept implements net.Listener.
func (h *handover) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handover) Addr() net.Addr { return h.addr }

// finishedHandshake are the credentials of a gRPC server whose connections come with their handshake done.
type finishedHandshake struct{}

// ServerHandshake implements credentials.TransportCredentials.
func (finishedHandshake) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := conn.(*tls.Conn)
	if !ok {
		return nil, nil, errors.New("not a TLS connection")
	}
	return conn, credentials.TLSInfo{State: c.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (finishedHandshake) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for servers")
}

// Info implements credentials.TransportCredentials.
func (finishedHandshake) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (f finishedHandshake) Clone() credentials.TransportCredentials { return f }

// OverrideServerName implements credentials.TransportCredentials.
func (finishedHandshake) OverrideServerName(string) error { return nil }
