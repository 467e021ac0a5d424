package child_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long is far more than any of these children live.
const long = time.Minute

// start runs a shell script, and returns when it has said that it is ready.
func start(t *testing.T, script string) *child.Process {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script+"\n")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	p, err := child.Start(cmd, func() {
		lines := bufio.NewScanner(out)
		lines.Scan()
		close(ready)
		_, _ = io.Copy(io.Discard, out)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	<-ready
	return p
}

func signalOf(err error) syscall.Signal {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}

const (
	obedient = `trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`
	stubborn = `trap '' TERM; echo ready; while :; do sleep 0.01; done`
)

func TestAChildThatObeysEndsInOrder(t *testing.T) {
	p := start(t, obedient)
	if err := p.Err(); err != nil {
		t.Errorf("it runs, but Err says %v", err)
	}
	p.Stop(t.Context(), long)
	select {
	case <-p.Done():
	default:
		t.Error("Stop returned before the child had ended")
	}
	if err := p.Err(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	p.Stop(t.Context(), long) // there is nothing to do any more
}

func TestAChildThatDoesNotObeyIsKilled(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for what, stop := range map[string]func(*child.Process){
		"after the grace":       func(p *child.Process) { p.Stop(t.Context(), 20*time.Millisecond) },
		"when the context ends": func(p *child.Process) { p.Stop(ended, long) },
		"at once":               (*child.Process).Kill,
	} {
		t.Run(what, func(t *testing.T) {
			p := start(t, stubborn)
			stop(p)
			if got := signalOf(p.Err()); got != syscall.SIGKILL {
				t.Errorf("it ended with %v", p.Err())
			}
		})
	}
}

func TestHowAChildEndedIsKnown(t *testing.T) {
	p := start(t, `echo ready; exit 3`)
	<-p.Done()
	var exit *exec.ExitError
	if err := p.Err(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("it ended with %v", err)
	}
}

func TestAChildHasEndedOnlyWhenItsLastWordsAreRead(t *testing.T) {
	cmd := exec.Command("/bin/sh", "-c", "echo one; echo two")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var heard []byte
	p, err := child.Start(cmd, func() {
		time.Sleep(20 * time.Millisecond) // the process is gone by now
		heard, _ = io.ReadAll(out)
	})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if string(heard) != "one\ntwo\n" || p.Err() != nil {
		t.Errorf("heard %q, %v", heard, p.Err())
	}
}

func TestAChildHasAProcessGroupOfItsOwn(t *testing.T) {
	p := start(t, obedient)
	if group, err := syscall.Getpgid(p.PID()); err != nil || group != p.PID() {
		t.Errorf("it is %d, in group %d, %v", p.PID(), group, err)
	}
}

func TestAProgramThatIsMissingDoesNotStart(t *testing.T) {
	if p, err := child.Start(exec.Command("/nowhere/program"), nil); err == nil {
		p.Kill()
		t.Error("it started")
	}
}
