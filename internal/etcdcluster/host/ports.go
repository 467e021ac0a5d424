package host

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// DefaultPorts is the default of --etcd-ports.
const DefaultPorts = "23800-29999"

// PortRange is the range of ports for members on a node, both ends included.
type PortRange struct{ First, Last int }

// ParsePorts reads a range such as 23800-29999.
func ParsePorts(text string) (PortRange, error) {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		return PortRange{}, fmt.Errorf("%q is not a range of ports such as %s", text, DefaultPorts)
	}
	var r PortRange
	var err error
	if r.First, err = strconv.Atoi(first); err == nil {
		r.Last, err = strconv.Atoi(last)
	}
	if err != nil {
		return PortRange{}, fmt.Errorf("%q is not a range of ports such as %s", text, DefaultPorts)
	}
	if r.First < 1 || r.Last > 65535 || r.pairs() < 1 {
		return PortRange{}, fmt.Errorf("%q has no room for the two ports of a member: give a range within 1-65535", text)
	}
	return r, nil
}

// pairs returns how many members have room in the range.
func (r PortRange) pairs() int { return (r.Last - r.First + 1) / 2 }

var errNoPorts = errors.New("no two ports are free")

// pick finds two free ports that no other member uses, and holds them. Where it begins to look depends on the member, so that nodes on
// one machine rarely want the same.
func (r PortRange) pick(host, uid string, used map[int]bool) (peer, client int, held *portHold, err error) {
	h := fnv.New32a()
	h.Write([]byte(uid))
	begin := int(h.Sum32() % uint32(r.pairs()))
	for i := range r.pairs() {
		peer = r.First + (begin+i)%r.pairs()*2
		if used[peer] || used[peer+1] {
			continue
		}
		if held, err = holdPorts(host, peer, peer+1); err == nil {
			return peer, peer + 1, held, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) {
			return 0, 0, nil, err
		}
	}
	return 0, 0, nil, fmt.Errorf("%w from %d to %d: give the node more with --etcd-ports", errNoPorts, r.First, r.Last)
}

// portHold reserves ports without listening on them. Connections are refused, as on a port that nobody has.
type portHold struct{ sockets []int }

func holdPorts(host string, ports ...int) (*portHold, error) {
	ip := net.ParseIP(host)
	if ip == nil {
		return nil, fmt.Errorf("%q is not an address to listen on", host)
	}
	h := &portHold{}
	for _, port := range ports {
		fd, err := bind(ip, port)
		if err != nil {
			h.release()
			return nil, fmt.Errorf("port %d: %w", port, err)
		}
		h.sockets = append(h.sockets, fd)
	}
	return h, nil
}

// bind binds a socket without listening. It does not set SO_REUSEADDR, or a listener that sets it could take the port.
func bind(ip net.IP, port int) (int, error) {
	family, address := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Port: port, Addr: [16]byte(ip.To16())})
	if v4 := ip.To4(); v4 != nil {
		family, address = syscall.AF_INET, &syscall.SockaddrInet4{Port: port, Addr: [4]byte(v4)}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := syscall.Bind(fd, address); err != nil {
		syscall.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

func (h *portHold) release() {
	if h == nil {
		return
	}
	for _, fd := range h.sockets {
		syscall.Close(fd)
	}
	h.sockets = nil
}
