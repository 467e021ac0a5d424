package member

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/ebb-dev/ebb/internal/child"
)

// stopLimit is how long a member may take to stop before it is killed.
const stopLimit = 5 * time.Second

// Child is a running member as its node sees it.
type Child struct {
	process *child.Process
	stdin   io.WriteCloser

	mu      sync.Mutex
	number  int64 // of the last order
	last    Report
	changed chan struct{} // closed and replaced with every report
}

// Start starts a member with the ebb program at exe and further arguments. The child ends with this process.
func Start(exe string, c Config, args ...string) (*Child, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, append([]string{Command}, args...)...)
	stderr, err := os.OpenFile(filepath.Join(c.Dir, LogName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m := &Child{stdin: stdin, last: Report{State: Starting}, changed: make(chan struct{})}
	if m.process, err = child.Start(cmd, func() { m.listen(stdout) }); err != nil {
		return nil, err
	}
	go func() {
		<-m.process.Done()
		m.set(func() {})
	}()
	if _, err := stdin.Write(append(config, '\n')); err != nil {
		m.Kill()
		return nil, fmt.Errorf("send the member its configuration: %w", err)
	}
	return m, nil
}

// listen takes reports until the child closes its output.
func (c *Child) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r Report
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			c.set(func() { c.last = r })
		}
	}
}

func (c *Child) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Report returns the last report of the child, and a channel that is closed with the next report or when the child ends.
func (c *Child) Report() (Report, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.changed
}

// PID of the child.
func (c *Child) PID() int { return c.process.PID() }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.process.Done() }

// Err returns why the child ended; nil if it ended in order.
func (c *Child) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.State == Failed {
		return errors.New(c.last.Error)
	}
	if err := c.process.Err(); err != nil {
		return fmt.Errorf("the member's process ended: %w", err)
	}
	return nil
}

// Removed returns whether etcd removed the member from its cluster.
func (c *Child) Removed() bool { return c.ended(Removed) }

// Unheard returns whether the child ended to be started again at once.
func (c *Child) Unheard() bool { return c.ended(Unheard) }

func (c *Child) ended(s State) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last.State == s
}

// Order sends an order and returns its number. The order is carried out when a report has that number.
func (c *Child) Order(o Order) (int64, error) {
	c.mu.Lock()
	c.number++
	number := c.number
	c.mu.Unlock()
	line, err := json.Marshal(request{Number: number, Order: o})
	if err != nil {
		return 0, err
	}
	_, err = c.stdin.Write(append(line, '\n'))
	return number, err
}

// Stop ends the child in order, or kills it if that takes too long or ctx ends, and returns when it has ended.
func (c *Child) Stop(ctx context.Context) { c.process.Stop(ctx, stopLimit) }

// Kill ends the child at once, and returns when it has ended.
func (c *Child) Kill() { c.process.Kill() }

// Dial reaches a running member on its private socket. The caller closes the client.
func Dial(dir string) (*clientv3.Client, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		// The path may be too long for a socket's: see server.socketURL.
		open, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer open.Close()
		return (&net.Dialer{}).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", open.Fd(), socketName))
	}
	return clientv3.New(clientv3.Config{
		Endpoints: []string{"passthrough:///member"}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
		Logger: zap.NewNop(), MaxCallSendMsgSize: 16 << 20, MaxCallRecvMsgSize: 64 << 20,
	})
}
