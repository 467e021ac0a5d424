package child

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// Nursery starts child processes that get SIGTERM when this process dies. The kernel ties the signal to the thread that started them,
// so one thread starts all of them and lives as long as this process.
type Nursery struct {
	requests chan func()
}

// NewNursery returns a nursery that can start processes.
func NewNursery() *Nursery {
	n := &Nursery{requests: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for request := range n.requests {
			request()
		}
	}()
	return n
}

// Start runs a command, known to people by a name, with its output in a log file.
func (n *Nursery) Start(name, logPath string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	var p *Process
	started := make(chan error)
	n.requests <- func() {
		var err error
		p, err = Start(cmd, nil)
		started <- err
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Ended describes how the child ended.
func (p *Process) Ended() string {
	if err := p.Err(); err != nil {
		return "ended: " + err.Error()
	}
	return "exited 0"
}
