package testkube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAReservedPortIsForThoseWhoShareIt(t *testing.T) {
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer p.release()
	address := fmt.Sprintf("127.0.0.1:%d", p.number)
	sharing := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, failed)
	}}
	for range 2 { // a server that is started again finds connections of the one before
		if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection while nobody listens: %v, %v", c, err)
		}
		if l, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a stranger listens: %v, %v", l, err)
		}
		l, err := sharing.Listen(context.Background(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			s.Close() // first, so that the port waits for the end of the connection
			c.Close()
		}
		l.Close()
	}
}
