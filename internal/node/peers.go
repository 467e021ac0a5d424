package node

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/ebb-dev/ebb/internal/peer"
)

// Peers is where other nodes reach this one.
type Peers struct {
	// Listener for the connections of other nodes.
	Listener net.Listener
	// Files for mutual TLS.
	Files peer.Files
	// Services that the kinds of work offer to other nodes.
	Services []peer.Service
	// Protocols that the kinds of work offer to other nodes beside gRPC.
	Protocols []peer.Protocol
}

// peerServer serves other nodes while the node runs, also while its lease is in doubt: every service checks for itself what it may do.
type peerServer struct {
	Peers
	used atomic.Bool // the listener was closed when the server last ended
}

// run serves until ctx ends.
func (p *peerServer) run(ctx context.Context) error {
	server, err := peer.NewServer(p.Files, p.Services...)
	if err != nil {
		return err
	}
	if err := server.Offer(p.Protocols...); err != nil {
		return err
	}
	listener := p.Listener
	if p.used.Swap(true) {
		if listener, err = net.Listen("tcp", listener.Addr().String()); err != nil {
			return fmt.Errorf("listen for other nodes: %w", err)
		}
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
	case err := <-served:
		server.Stop()
		return fmt.Errorf("serve other nodes: %w", err)
	}
	server.Stop()
	<-served
	return nil
}
