package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	maxConnections = 64
	requestTimeout = 5 * time.Second  // for a peer to send its line, or to take its answer
	maxWait        = 20 * time.Second // how long a wait is held, so that dead peers do not use up connections
)

// A server takes requests from the socket to the supervisor. Its goroutines hold no state of the program.
type server struct {
	instance string
	listener *net.UnixListener
	calls    chan call
	over     chan struct{} // closed when the program has ended; final is set before
	final    Status
	slots    chan struct{}
	stopped  chan struct{} // closed when serve has returned
	active   sync.WaitGroup
}

// A call is a request on its way to the supervisor and back.
type call struct {
	request
	reply chan response
}

// listen binds the socket in the current directory: by a relative name, for paths of sockets are short. A socket
// that is there already is stale, since the caller holds the lock.
func listen(instance string) (*server, error) {
	if err := os.Remove(socketName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	mask := syscall.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketName, Net: "unix"})
	syscall.Umask(mask)
	if err != nil {
		return nil, err
	}
	return &server{
		instance: instance,
		listener: l,
		calls:    make(chan call),
		over:     make(chan struct{}),
		slots:    make(chan struct{}, maxConnections),
		stopped:  make(chan struct{}),
	}, nil
}

// serve accepts until the listener is closed.
func (s *server) serve() {
	defer close(s.stopped)
	for {
		conn, err := s.listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors or memory: the program must not die of it
			time.Sleep(50 * time.Millisecond)
			continue
		}
		select {
		case s.slots <- struct{}{}:
			s.active.Go(func() {
				defer func() { <-s.slots }()
				s.answer(conn)
			})
		default:
			conn.Close()
		}
	}
}

func (s *server) answer(conn *net.UnixConn) {
	defer conn.Close()
	if err := checkPeer(conn); err != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	var req request
	if err := readLine(conn, &req); err != nil {
		return
	}
	resp := s.handle(req)
	_ = conn.SetWriteDeadline(time.Now().Add(requestTimeout))
	_ = writeLine(conn, resp)
}

func (s *server) handle(req request) response {
	if req.Instance != "" && req.Instance != s.instance {
		return refusal(fmt.Errorf("%w: instance %s has ended; this is %s", ErrNotRunning, req.Instance, s.instance))
	}
	if req.Op == opWait {
		timeout := time.NewTimer(maxWait)
		defer timeout.Stop()
		select {
		case <-s.over:
		case <-timeout.C:
		}
	}
	c := call{request: req, reply: make(chan response, 1)}
	select {
	case s.calls <- c:
		return <-c.reply
	case <-s.over:
		return response{Status: &s.final}
	}
}

// close, after the listener was closed, answers the waiting callers, and returns when they have their answer or after a timeout.
func (s *server) close(final Status) {
	s.final = final
	close(s.over)
	finished := make(chan struct{})
	go func() {
		<-s.stopped // or a last connection could be added while the others are waited for
		s.active.Wait()
		close(finished)
	}()
	select {
	case <-finished:
	case <-time.After(time.Second):
	}
}

// checkPeer admits the shim's own user and root, but no program: one could extend its own deadline or stop another. The directory's
// mode does the same for other users, but it may be changed.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *syscall.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(err, credErr); err != nil {
		return err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d may not control a shim of user %d", cred.Uid, os.Geteuid())
	}
	if slices.ContainsFunc(descendantsOf(os.Getpid()), func(p procInfo) bool { return p.PID == int(cred.Pid) }) {
		return fmt.Errorf("process %d belongs to the program and may not control its own shim", cred.Pid)
	}
	theirs, err := os.Readlink(procPath(int(cred.Pid), "ns/pid"))
	if err != nil {
		return err // it has ended, or hides from its own user, as a node does not
	}
	if ours, err := os.Readlink("/proc/self/ns/pid"); err != nil || theirs != ours {
		return fmt.Errorf("process %d belongs to a program and may not control a shim", cred.Pid)
	}
	return nil
}
