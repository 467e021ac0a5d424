package mariadb

import (
	"context"
	"net"
	"sync"
	"time"
)

// socketKeeper opens sockets until it is closed, and then closes them all.
type socketKeeper struct {
	mu     sync.Mutex
	closed bool
	open   []net.Conn
}

func (k *socketKeeper) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if k.isClosed() {
		return nil, errClosed
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	// The handshake must not block forever; every read and write sets another deadline.
	if err := conn.SetDeadline(time.Now().Add(readTimeout)); err != nil {
		conn.Close()
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		conn.Close()
		return nil, errClosed
	}
	k.open = append(k.open, conn)
	return &reading{conn}, nil
}

func (k *socketKeeper) isClosed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed
}

func (k *socketKeeper) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for _, conn := range k.open {
		conn.Close()
	}
}

// reading sets a deadline for every read: a server that has nothing else to send sends heartbeats, so that silence means that the
// connection is lost.
type reading struct{ net.Conn }

func (r *reading) Read(p []byte) (int, error) {
	if err := r.Conn.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
		return 0, err
	}
	return r.Conn.Read(p)
}

func (r *reading) Write(p []byte) (int, error) {
	if err := r.Conn.SetWriteDeadline(time.Now().Add(readTimeout)); err != nil {
		return 0, err
	}
	return r.Conn.Write(p)
}
