package testenv

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Port holds a port of 127.0.0.1 while nobody listens on it, so that no other process gets it. Connections to it are refused.
type Port struct{ socket int }

// HoldPort holds a port on which nobody listens any more.
func HoldPort(port int) (*Port, error) {
	socket, err := bound(port, false)
	if errors.Is(err, syscall.EADDRINUSE) {
		// Connections of the last listener wait for their end. A socket may join them only if it shares the port; it keeps others out once it does
		// not share it any more.
		if socket, err = bound(port, true); err == nil {
			err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("hold port %d: %w", port, err)
	}
	return &Port{socket}, nil
}

// Release lets the port go, to whoever listens next.
func (p *Port) Release() { _ = syscall.Close(p.socket) }

func bound(port int, share bool) (int, error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if share {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1))
	}
	if err == nil {
		err = os.NewSyscallError("bind", syscall.Bind(socket, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}))
	}
	if err != nil {
		_ = syscall.Close(socket)
		return -1, err
	}
	return socket, nil
}
