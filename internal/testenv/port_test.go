package testenv_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestAPortIsHeldWhileNobodyListens(t *testing.T) {
	for name, closed := range map[string]bool{"after connections that the server closed": true, "after no connection": false} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			address := l.Addr().String()
			if closed {
				c, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				s.Close() // first, so that the port waits for the end of the connection
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Fatal("the server did not close the connection")
				}
				c.Close()
			}
			l.Close()
			p, err := testenv.HoldPort(l.Addr().(*net.TCPAddr).Port)
			if err != nil {
				t.Fatal(err)
			}
			if l, err := net.Listen("tcp", address); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("another listener on a held port: %v, %v", l, err)
			}
			if c, err := net.Dial("tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a connection to a held port: %v, %v", c, err)
			}
			p.Release()
			again, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			again.Close()
		})
	}
}
