package localcluster

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/ebb-dev/ebb/internal/child"
)

// process is one process of the cluster.
type process struct {
	*child.Process
	name string
}

// nursery starts child processes that get a signal when this process dies. The kernel ties the signal to the thread that started them,
// so one thread starts all of them and lives as long as this process.
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

// start runs a program with its output in a log file.
func (n *nursery) start(name, logPath, exe string, args ...string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(exe, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	p := &process{name: name}
	started := make(chan error)
	n.requests <- func() {
		var err error
		p.Process, err = child.Start(cmd, nil)
		started <- err
	}
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// ended describes how the process ended.
func (p *process) ended() string {
	if err := p.Err(); err != nil {
		return "ended: " + err.Error()
	}
	return "exited 0"
}
