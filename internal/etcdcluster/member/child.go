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
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// stopLimit is how long a member may take to stop before it is killed.
const stopLimit = 5 * time.Second

// Child is a running member as its node sees it.
type Child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}

	mu      sync.Mutex
	number  int64 // of the last order
	last    Report
	err     error         // how it ended, once done
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
	// A Ctrl-C in the terminal reaches the node only, which stops its members in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	child := &Child{cmd: cmd, stdin: stdin, done: make(chan struct{}), last: Report{State: Starting}, changed: make(chan struct{})}
	go child.listen(stdout)
	if _, err := stdin.Write(append(config, '\n')); err != nil {
		child.Kill()
		return nil, fmt.Errorf("send the member its configuration: %w", err)
	}
	return child, nil
}

// listen takes reports until the child has ended.
func (c *Child) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r Report
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			c.set(func() { c.last = r })
		}
	}
	err := c.cmd.Wait()
	c.set(func() { c.err = err })
	close(c.done)
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
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err returns why the child ended; nil if it ended in order.
func (c *Child) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.last.State == Failed:
		return errors.New(c.last.Error)
	case c.err != nil:
		return fmt.Errorf("the member's process ended: %w", c.err)
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
func (c *Child) Stop(ctx context.Context) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	select {
	case <-c.done:
	case <-ctx.Done():
		c.Kill()
	}
}

// Kill ends the child at once, and returns when it has ended.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.done
}

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
