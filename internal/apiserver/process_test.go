package apiserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// process is a real `ebb apiserver`.
type process struct {
	running
	cmd   *exec.Cmd
	ended chan struct{} // closed once it was waited for
}

// launch starts `ebb apiserver` on a data directory and waits until it is ready.
func launch(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(testenv.Ebb(t), append([]string{"apiserver", "--data-dir", dir}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{running: running{dir: datadir.Dir(dir)}, cmd: cmd, ended: make(chan struct{})}
	ready := make(chan string, 1)
	go func() {
		defer close(p.ended)
		p.follow(stderr, ready)
		_ = cmd.Wait()
	}()
	t.Cleanup(p.kill)
	select {
	case p.url = <-ready:
	case <-time.After(2 * time.Minute):
		t.Fatal("not ready within two minutes")
	}
	if p.url == "" {
		t.Fatal("ended before it was ready")
	}
	return p
}

// follow copies the process's log to the test's and sends the URL once it is ready, or nothing if it never was.
func (p *process) follow(stderr io.Reader, ready chan<- string) {
	defer close(ready)
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if _, rest, ok := strings.Cut(lines.Text(), "msg=ready url="); ok {
			url, _, _ := strings.Cut(rest, " ")
			ready <- url
			continue
		}
		fmt.Fprintln(os.Stderr, "ebb apiserver:", lines.Text())
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// ledger is what was acknowledged.
type ledger struct {
	mu      sync.Mutex
	created map[string]bool
	deleted map[string]bool
	counted map[string]int // the number last written to an object
}

func (l *ledger) note(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// write creates, counts up and deletes until the server is gone, and notes whatever was acknowledged.
func (l *ledger) write(ctx context.Context, c caller, acknowledged func()) error {
	counter := fresh("counter")
	if a, err := c.try(ctx, http.MethodPost, nodes, nodeObject(counter)); err != nil || a.code != http.StatusCreated {
		return fmt.Errorf("create the counter: %v %w", a, err)
	}
	for n := 1; ; n++ {
		kept, gone := fresh("kept"), fresh("gone")
		for _, w := range []struct {
			method, path string
			body         any
			note         func()
		}{
			{http.MethodPost, drains, drainObject(kept), func() { l.created[kept] = true }},
			{http.MethodPost, drains, drainObject(gone), func() {}},
			{http.MethodPatch, nodes + "/" + counter + "/status", object{"status": object{"epoch": n}}, func() { l.counted[counter] = n }},
			{http.MethodDelete, drains + "/" + gone, nil, func() { l.deleted[gone] = true }},
		} {
			a, err := c.try(ctx, w.method, w.path, w.body)
			if err != nil {
				return nil // killed: whether this one was written nobody knows
			}
			if a.code/100 != 2 {
				return fmt.Errorf("%s %s: %s", w.method, w.path, a)
			}
			l.note(w.note)
			acknowledged()
		}
	}
}

func (l *ledger) check(t *testing.T, c caller) {
	t.Helper()
	have := map[string]bool{}
	for _, item := range c.must(t, http.MethodGet, drains, nil).object(t)["items"].([]any) {
		have[item.(map[string]any)["metadata"].(map[string]any)["name"].(string)] = true
	}
	for name := range l.created {
		if !have[name] {
			t.Errorf("drain %s was acknowledged and is lost", name)
		}
	}
	for name := range l.deleted {
		if have[name] {
			t.Errorf("drain %s was deleted and is back", name)
		}
	}
	for name, n := range l.counted {
		status, _ := c.must(t, http.MethodGet, nodes+"/"+name, nil).object(t)["status"].(map[string]any)
		if epoch, _ := status["epoch"].(float64); int(epoch) < n {
			t.Errorf("node %s is at %v, %d was acknowledged", name, status["epoch"], n)
		}
	}
}

func TestWhatWasAcknowledgedSurvivesKill9(t *testing.T) {
	t.Parallel()
	const rounds, writers, enough = 3, 6, 60
	dir := t.TempDir()
	l := &ledger{created: map[string]bool{}, deleted: map[string]bool{}, counted: map[string]int{}}
	p := launch(t, dir)
	url := p.url
	for range rounds {
		var acknowledged atomic.Int64
		done := make(chan error, writers)
		for range writers {
			c := p.admin(t)
			go func() {
				done <- l.write(t.Context(), c, func() {
					if acknowledged.Add(1) == enough {
						_ = p.cmd.Process.Kill()
					}
				})
			}()
		}
		for range writers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		<-p.ended
		if p = launch(t, dir); p.url != url {
			t.Fatalf("served at %s before and at %s after", url, p.url)
		}
		l.check(t, p.admin(t))
	}
	if len(l.created) < rounds || len(l.deleted) < rounds {
		t.Errorf("only %d were created and %d deleted: that proves nothing", len(l.created), len(l.deleted))
	}
}

func TestASecondServerOnADirectoryIsRefusedAndTheFirstGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := launch(t, dir)
	pid, err := os.ReadFile(p.dir.PIDFile("apiserver"))
	if err != nil {
		t.Fatal(err)
	}
	p.admin(t).must(t, http.MethodPost, nodes, nodeObject("n1"))
	for _, listen := range []string{"127.0.0.1:0", "127.0.0.2:0", strings.TrimPrefix(p.url, "https://")} {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		out, err := exec.CommandContext(ctx, testenv.Ebb(t), "apiserver", "--data-dir", dir, "--listen", listen).CombinedOutput()
		cancel()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("--listen %s: %v, want exit code 1", listen, err)
		}
		equal(t, string(out), "ebb: data directory "+dir+": another process holds the lock: stop the API server that uses it, or set another directory with --data-dir\n")
	}
	p.viewer(t).must(t, http.MethodGet, nodes+"/n1", nil)
	p.admin(t).must(t, http.MethodPost, nodes, nodeObject("n2"))
	if now, err := os.ReadFile(p.dir.PIDFile("apiserver")); err != nil || string(now) != string(pid) {
		t.Errorf("its pid file says %q, %v; it said %q", now, err, pid)
	}
	t.Run("SIGTERM ends it in order", func(t *testing.T) {
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.ended:
		case <-time.After(testenv.Patience):
			t.Fatal("still running after " + testenv.Patience.String())
		}
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if _, err := os.Stat(p.dir.PIDFile("apiserver")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("its pid file: %v", err)
		}
	})
}
