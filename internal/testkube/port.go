package testkube

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// port is one of 127.0.0.1 that belongs to a cluster, also while no kube-apiserver listens on it. It is shared with sockets of the same user
// that ask for it (SO_REUSEPORT), as kube-apiserver does with --permit-port-sharing. Others do not get it. It never listens, so that
// connections go to kube-apiserver or are refused.
type port struct{ socket, number int }

// reservePort reserves a free port.
func reservePort() (p port, err error) {
	p.socket, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return p, fmt.Errorf("reserve a port: %w", os.NewSyscallError("socket", err))
	}
	if err = p.bind(); err != nil {
		p.release()
		return p, fmt.Errorf("reserve a port: %w", err)
	}
	return p, nil
}

func (p *port) bind() error {
	if err := syscall.SetsockoptInt(p.socket, syscall.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(p.socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	address, err := syscall.Getsockname(p.socket)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	p.number = address.(*syscall.SockaddrInet4).Port
	return nil
}

func (p port) release() { _ = syscall.Close(p.socket) }
