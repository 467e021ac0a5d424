package shim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// What the first version of the shim wrote: before PID namespaces, users of their own, and log formats. There is no number of a version anywhere: a
// shim knows its four requests, ignores fields that it does not know, and leaves out those that came later.
const (
	firstSpec = `{"instance":"uid-1/rev-1","command":"/bin/app","args":["serve"],"env":["PATH=/bin"],"log":{"path":"out.log","maxBytes":10485760,"maxFiles":3},"grace":10000000000,` +
		`"deadline":{"termAt":5000000000,"killAt":6000000000}}`
	firstState = `{"instance":"uid-1/rev-1","phase":"%s","bootID":"%s","shim":{"pid":%d,"startTicks":%d},"program":{"pid":1234567,"startTicks":42},"startedBoot":1000000000,` +
		`"startedAt":"2026-11-15T10:00:00Z"%s}`
	firstExit = `,"finishedBoot":2000000000,"finishedAt":"2026-11-15T11:00:00Z","exit":{"reason":"Stopped","code":0,"message":"stopped"}`
)

// olderShim is what is left of a first version in a directory: its lock, its files, and its answers on the socket.
type olderShim struct {
	t    *testing.T
	dir  string
	self procInfo

	mu     sync.Mutex
	heard  []string
	exited bool
}

func newOlderShim(t *testing.T) *olderShim {
	t.Helper()
	s := &olderShim{t: t, dir: t.TempDir()}
	for _, p := range processes() {
		if p.PID == os.Getpid() {
			s.self = p
		}
	}
	lock, err := acquireLock(s.dir)
	s.must(err)
	t.Cleanup(func() { releaseLock(lock) })
	s.must(os.WriteFile(filepath.Join(s.dir, specName), []byte(firstSpec), 0o600))
	s.must(os.WriteFile(filepath.Join(s.dir, stateName), []byte(s.state("Running", "")), 0o600))
	t.Chdir(s.dir) // paths of sockets are short
	l, err := net.Listen("unix", socketName)
	s.must(err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.answer(conn)
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
	})
	return s
}

func (s *olderShim) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *olderShim) state(phase, more string) string {
	return fmt.Sprintf(firstState, phase, bootID(), s.self.PID, s.self.StartTicks, more)
}

// answer answers one request as the first version did.
func (s *olderShim) answer(conn net.Conn) {
	defer conn.Close()
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	line = strings.TrimSpace(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, line)
	phase, more := "Running", ""
	switch {
	case strings.Contains(line, `"op":"stop"`):
		phase, s.exited = "Stopping", true
	case strings.Contains(line, `"op":"wait"`) && s.exited:
		phase, more = "Exited", firstExit
	case strings.Contains(line, `"op":"extend"`) && s.exited:
		fmt.Fprintln(conn, `{"code":"DeadlinePassed","error":"the deadline has passed: instance uid-1/rev-1 ends and cannot be kept"}`)
		return
	}
	state := strings.TrimSuffix(s.state(phase, more), "}")
	fmt.Fprintln(conn, `{"status":`+state+`,"deadline":{"termAt":5000000000,"killAt":6000000000}}}`)
}

func (s *olderShim) lines() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.heard, "\n")
}

// A node that was upgraded finds shims that its former version started. They must understand all that it asks of them.
func TestANodeAttachesToAShimOfTheFirstVersion(t *testing.T) {
	s := newOlderShim(t)
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	st, err := ReadState(s.dir)
	if err != nil || st.Phase != Running || st.Instance != "uid-1/rev-1" || st.Init != (Process{}) {
		t.Fatalf("its state is read as %+v, %v", st, err)
	}
	h, err := Attach(ctx, s.dir)
	s.must(err)
	defer h.Close()
	if h.Instance() != "uid-1/rev-1" {
		t.Errorf("attached to %q", h.Instance())
	}
	status, err := h.Status(ctx)
	if err != nil || status.Program.PID != 1234567 || status.Deadline != (Deadline{TermAt: BootTime(5 * time.Second), KillAt: BootTime(6 * time.Second)}) || status.Deadline.Never() {
		t.Errorf("its status is read as %+v, %v", status, err)
	}
	s.must(h.Extend(ctx, Deadline{TermAt: BootTime(7 * time.Second), KillAt: BootTime(8 * time.Second)}))
	s.must(h.Stop(ctx, 3*time.Second))
	if err := h.Extend(ctx, Deadline{TermAt: BootTime(9 * time.Second), KillAt: BootTime(9 * time.Second)}); !errors.Is(err, ErrDeadlinePassed) {
		t.Errorf("its refusal is read as %v", err)
	}
	exit, err := h.Wait(ctx)
	if err != nil || exit.Reason != ReasonStopped || exit.Code != 0 {
		t.Errorf("its exit is read as %+v, %v", exit, err)
	}
	const want = `{"op":"status"}
{"op":"status","instance":"uid-1/rev-1"}
{"op":"extend","instance":"uid-1/rev-1","deadline":{"termAt":7000000000,"killAt":8000000000}}
{"op":"stop","instance":"uid-1/rev-1","grace":3000000000}
{"op":"extend","instance":"uid-1/rev-1","deadline":{"termAt":9000000000,"killAt":9000000000}}
{"op":"wait","instance":"uid-1/rev-1"}`
	if got := s.lines(); got != want {
		t.Errorf("the node asks\n%s\nwant what the first version knows:\n%s", got, want)
	}
}
