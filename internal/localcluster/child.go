package localcluster

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// child is one process of the cluster.
type child struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, once done
}

// nursery starts children that are told to stop when this process dies. The kernel ties that to the thread that started
// them, so one thread starts all of them and lives as long as this process does.
type nursery struct {
	requests chan func()
}

func newNursery() *nursery {
	n := &nursery{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for request := range n.requests {
			request()
		}
	}()
	return n
}

// start runs a program with its output in a log file. It gets a process group of its own, so that a Ctrl-C in the
// terminal reaches only us: we stop the children in order.
func (n *nursery) start(name, logPath, exe string, args ...string) (*child, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	c := &child{name: name, cmd: exec.Command(exe, args...), done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	n.requests <- func() { started <- c.cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// ended says how the child ended, in words.
func (c *child) ended() string {
	if c.err == nil {
		return "exited 0"
	}
	return "ended: " + c.err.Error()
}

// stop asks the child to leave in order and makes it leave when it takes too long.
func (c *child) stop(patience time.Duration) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-c.done:
	case <-time.After(patience):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}
