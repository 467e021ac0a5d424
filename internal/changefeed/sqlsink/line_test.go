package sqlsink_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// line is a wire between a client and a server that can be cut at a given command or be held like a frozen machine.
type line struct {
	address string
	server  string
	// frozen is closed when the line stands still.
	frozen chan struct{}
	thawed chan struct{}

	mu      sync.Mutex
	command int // commands seen since cutAt
	at      int // where to cut; 0 never
	deliver bool
	cut     bool
	freeze  string
	conns   []net.Conn
}

func newLine(t testing.TB, server string) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{address: listener.Addr().String(), server: server, frozen: make(chan struct{}), thawed: make(chan struct{})}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { l.serve(client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		l.hangUp()
		all.Wait()
	})
	return l
}

func openSinkAt(t testing.TB, server *testenv.MariaDB, address string) *sqlsink.Sink {
	t.Helper()
	adopt(t, server)
	s, err := sqlsink.Open(sqlsink.Options{Address: address, User: server.User, Password: server.Password, Changefeed: changefeed})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// cutAt cuts the connection on which the n-th command from now on comes, after delivering the command or without.
func (l *line) cutAt(n int, deliver bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.command, l.at, l.deliver, l.cut = 0, n, deliver, false
}

func (l *line) wasCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// freezeAt holds everything before the first command that has a text.
func (l *line) freezeAt(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freeze = text
}

func (l *line) thaw() { close(l.thawed) }

func (l *line) hangUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
}

func (l *line) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer server.Close()
	l.mu.Lock()
	l.conns = append(l.conns, client, server)
	l.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		io.Copy(client, server)
		client.Close()
	})
	l.forward(client, server)
	client.Close()
	server.Close()
	back.Wait()
}

// forward passes packets on, each of which begins with its length and number; commands have number 0.
func (l *line) forward(client, server net.Conn) {
	header := make([]byte, 4)
	for {
		if _, err := io.ReadFull(client, header); err != nil {
			return
		}
		packet := make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
		if _, err := io.ReadFull(client, packet); err != nil {
			return
		}
		cut, deliver := false, true
		if header[3] == 0 {
			l.hold(packet)
			cut, deliver = l.decide()
		}
		if deliver {
			if _, err := server.Write(append(header[:4:4], packet...)); err != nil {
				return
			}
		}
		if cut {
			return
		}
	}
}

func (l *line) hold(packet []byte) {
	l.mu.Lock()
	hit := l.freeze != "" && bytes.Contains(packet, []byte(l.freeze))
	if hit {
		l.freeze = ""
	}
	l.mu.Unlock()
	if hit {
		close(l.frozen)
		<-l.thawed
	}
}

func (l *line) decide() (cut, deliver bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.command++
	if l.at == 0 || l.command != l.at {
		return false, true
	}
	l.cut = true
	return true, l.deliver
}
