// Package peer is how nodes reach each other: gRPC, and the protocols of kinds, over mutual TLS in which every side shows the
// certificate of its node.
package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ebb-dev/ebb/internal/identity"
)

// maxMessage bounds one message: a batch of tables, or the dispatchers of a changefeed with a hundred thousand.
const maxMessage = 64 << 20

// Spoken is what every request is that is not a stream: it says which node speaks.
type Spoken interface{ Speaker() string }

// onlyNodes refuses whoever is not a node, or speaks for another one.
func onlyNodes(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	node, err := nodeOf(ctx)
	if err != nil {
		return nil, err
	}
	if r, ok := req.(Spoken); !ok || r.Speaker() != node {
		return nil, status.Errorf(codes.PermissionDenied, "node %s may not speak for another", node)
	}
	return next(ctx, req)
}

// onlyNodesStream refuses whoever is not a node.
func onlyNodesStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if _, err := nodeOf(stream.Context()); err != nil {
		return err
	}
	return next(srv, stream)
}

// nodeOf is the node that speaks.
func nodeOf(ctx context.Context) (string, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", status.Error(codes.Unauthenticated, "no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return "", status.Error(codes.Unauthenticated, "no certificate")
	}
	node, ok := identity.NodeName(info.State.PeerCertificates[0].Subject.CommonName)
	if !ok {
		return "", status.Error(codes.PermissionDenied, "only nodes speak here")
	}
	return node, nil
}

// Dial reaches a node by its address. The certificate must be that node's, whatever the address.
func Dial(f Files, address, node string) (*grpc.ClientConn, error) {
	config, err := clientConfig(f, address, node)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 2 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
		grpc.WithContextDialer(dialTCP),
	)
}

// DialProtocol opens a connection to a node for a protocol that it offers beside gRPC. The certificate must be that node's, whatever the
// address. A node that refuses this one's certificate closes the connection after the handshake, so that only the first read shows it.
func DialProtocol(ctx context.Context, f Files, address, node, protocol string) (net.Conn, error) {
	config, err := clientConfig(f, address, node)
	if err != nil {
		return nil, err
	}
	config.NextProtos = []string{protocol}
	raw, err := dialTCP(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("reach node %s: %w", node, err)
	}
	closeIfUnacknowledged(raw)
	conn := tls.Client(raw, config)
	shaking, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(shaking); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("handshake with node %s: %w", node, err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != protocol {
		_ = raw.Close()
		return nil, fmt.Errorf("node %s does not offer the protocol %s", node, protocol)
	}
	return conn, nil
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", address)
}

// clientConfig configures a client that reaches one node and no other.
func clientConfig(f Files, address, node string) (*tls.Config, error) {
	creds, err := Load("the node", f)
	if err != nil {
		return nil, err
	}
	config := creds.Client()
	config.MinVersion = tls.VersionTLS13
	config.DynamicRecordSizingDisabled = true // nodes are near each other: small records cost more than they save
	// The name to verify is the node's identity, not its address: VerifyConnection does what is skipped here.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("no certificate")
		}
		leaf := s.PeerCertificates[0]
		between := x509.NewCertPool()
		for _, c := range s.PeerCertificates[1:] {
			between.AddCert(c)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: creds.Authorities(), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			return err
		}
		if name, ok := identity.NodeName(leaf.Subject.CommonName); !ok || name != node {
			return fmt.Errorf("%s is %s, not node %s", address, leaf.Subject.CommonName, node)
		}
		return nil
	}
	return config, nil
}
