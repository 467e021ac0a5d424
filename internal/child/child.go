// Package child runs processes that belong to this one: it starts them, asks them to stop, kills those that do not, and waits for
// their end.
package child

import (
	"context"
	"os/exec"
	"syscall"
	"time"
)

// Process is a child that was started.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended, once done
}

// Start starts a command in a process group of its own, so that a Ctrl-C in the terminal reaches this process only, which stops its
// children in order. If read is not nil it reads the command's pipes to their end, before the child counts as ended.
func Start(cmd *exec.Cmd, read func()) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if read != nil {
			read() // Wait closes the pipes
		}
		p.err = cmd.Wait()
	}()
	return p, nil
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the child ended, as [exec.Cmd.Wait] does; nil while it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Stop asks the child to end in order with SIGTERM, kills it when the grace or ctx ends first, and returns when it has ended.
func (p *Process) Stop(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Kill()
	}
}

// Kill ends the child at once, and returns when it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}
