package host

import (
	"context"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/worker"
)

func monotonic() time.Duration { return time.Since(started) }

var started = time.Now()

func TestTheURIOfASocketIsOneWhateverItsPath(t *testing.T) {
	for socket, want := range map[string]string{
		"/tmp/ebb/nodes/n2/nbd/b08486e5.sock": "nbd+unix:///data?socket=/tmp/ebb/nodes/n2/nbd/b08486e5.sock",
		"/tmp/my data/s.sock":                 "nbd+unix:///data?socket=/tmp/my%20data/s.sock",
		"/tmp/a&b;c=d/s.sock":                 "nbd+unix:///data?socket=/tmp/a%26b%3Bc%3Dd/s.sock",
		"/tmp/50%25+1#x?/s.sock":              "nbd+unix:///data?socket=/tmp/50%2525%2B1%23x%3F/s.sock",
		"/tmp/ähre/s.sock":                    "nbd+unix:///data?socket=/tmp/%C3%A4hre/s.sock",
	} {
		got := nbdURI("data", socket)
		if got != want {
			t.Errorf("the URI of %s is %s, want %s", socket, got, want)
		}
		if u, err := url.Parse(got); err != nil || u.Query().Get("socket") != socket || u.Path != "/data" {
			t.Errorf("%s is read as %v (%v)", got, u, err)
		}
	}
}

func TestTheDirectoryOfASocketIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nbd", "s.sock")
	for range 2 {
		listener, err := listen(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct {
			path string
			want os.FileMode
		}{{path, 0o600}, {filepath.Dir(path), 0o700}} {
			if info, err := os.Stat(p.path); err != nil || info.Mode().Perm() != p.want {
				t.Errorf("%s: %v, %v, want mode %v", p.path, info, err, p.want)
			}
		}
		_ = listener.Close()
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAVolumeSaysWhyClientsCannotConnectUntilTheyCan(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "nbd")
	if err := os.WriteFile(parent, nil, 0o600); err != nil { // where the directory should be
		t.Fatal(err)
	}
	h := testHost(t.TempDir())
	h.opts.Node, h.opts.Log = "n1", slog.New(slog.DiscardHandler)
	a := &attachment{h: h, changed: worker.NewSignal(), engine: engine.New(engine.Options{Clock: monotonic})}
	listeners := make(chan net.Listener, 1)
	go func() { listeners <- a.awaitListener(t.Context(), filepath.Join(parent, "s.sock")) }()
	<-a.changed
	a.mu.Lock()
	failure := a.failure
	a.mu.Unlock()
	if want := "clients cannot connect: "; !strings.HasPrefix(failure, want) || !strings.Contains(failure, parent) {
		t.Errorf("it says %q, want %q with the path", failure, want)
	}
	if err := os.Remove(parent); err != nil {
		t.Fatal(err)
	}
	listener := <-listeners
	if listener == nil {
		t.Fatal("no socket was made")
	}
	_ = listener.Close()
	if a.failure != "" {
		t.Errorf("it still says %q", a.failure)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if l := a.awaitListener(ended, "/proc/none/s.sock"); l != nil {
		t.Error("a socket was made in /proc")
	}
}

// A reason that is over is not shown any more: the next engine says what it waits for.
func TestAnEngineThatOpensShowsNoEarlierReason(t *testing.T) {
	h := testHost(t.TempDir())
	h.opts.Node = "n1"
	a := &attachment{h: h, changed: worker.NewSignal(), failure: "volume default/data has no member yet"}
	if e, _ := a.described(); e.WaitingFor != "volume default/data has no member yet" || e.Serving {
		t.Errorf("without an engine: %+v", e)
	}
	a.begin(engine.New(engine.Options{Clock: monotonic}), func() {}, 1)
	if e, _ := a.described(); e.WaitingFor != "the members to be opened" || e.Serving {
		t.Errorf("with an engine: %+v", e)
	}
	if a.failure != "" {
		t.Errorf("the earlier reason is kept: %q", a.failure)
	}
}
