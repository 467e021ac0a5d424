package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// island is a network of its own for one node. Its bridge to the other processes can be taken away: packets are lost then, and no connection is
// closed.
type island struct {
	t          *testing.T
	name       string
	here       string // address of the other processes
	there      string // address of the node
	outer      string // interface on this side
	apiAddress string // where the node reaches the API server
}

// newIsland makes a network, or skips the test where that is not allowed.
func newIsland(t *testing.T) *island {
	t.Helper()
	pid := os.Getpid()
	prefix := fmt.Sprintf("10.231.%d.", pid>>6&255)
	i := &island{t: t, name: fmt.Sprintf("ebb%d", pid), here: prefix + fmt.Sprint(pid&63*4+1), there: prefix + fmt.Sprint(pid&63*4+2)}
	i.outer = i.name + "h"
	inner := i.name + "n"
	need.Programs(t, "ip")
	if out, err := exec.Command("ip", "netns", "add", i.name).CombinedOutput(); err != nil {
		need.Missing(t, "a network cannot be made, which needs root: ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() { i.ip("netns", "del", i.name) })
	i.ip("link", "add", i.outer, "type", "veth", "peer", "name", inner)
	i.ip("link", "set", inner, "netns", i.name)
	i.ip("addr", "add", i.here+"/30", "dev", i.outer)
	i.ip("link", "set", i.outer, "up")
	i.ip("-n", i.name, "addr", "add", i.there+"/30", "dev", inner)
	i.ip("-n", i.name, "link", "set", inner, "up")
	i.ip("-n", i.name, "link", "set", "lo", "up")
	return i
}

func (i *island) ip(args ...string) {
	i.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		i.t.Errorf("ip %v: %v: %s", args, err, out)
	}
}

// cut takes the bridge away, and heal puts it back.
func (i *island) cut()  { i.ip("link", "set", i.outer, "down") }
func (i *island) heal() { i.ip("link", "set", i.outer, "up") }

// forward lets the node reach an address of this machine's loopback interface.
func (i *island) forward(to string) {
	i.t.Helper()
	l, err := net.Listen("tcp", i.here+":0")
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = l.Close() })
	i.apiAddress = l.Addr().String()
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go func() {
					defer out.Close()
					_, _ = io.Copy(out, in) // ends with either connection
				}()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

// startOn runs a node on the island.
func (c *cluster) startOn(i *island, name string) {
	c.t.Helper()
	dir := c.dir.Node(name)
	if err := c.dir.IssueNode(dir, name, []string{i.there}); err != nil {
		c.t.Fatal(err)
	}
	through := func(path string) string {
		cfg, err := clientcmd.LoadFromFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, cluster := range cfg.Clusters {
			server, err := url.Parse(cluster.Server)
			if err != nil {
				c.t.Fatal(err)
			}
			if i.apiAddress == "" {
				i.forward(server.Host)
			}
			cluster.Server, cluster.TLSServerName = "https://"+i.apiAddress, server.Hostname()
		}
		path = filepath.Join(filepath.Dir(path), "island-"+filepath.Base(path))
		if err := clientcmd.WriteToFile(*cfg, path); err != nil {
			c.t.Fatal(err)
		}
		return path
	}
	args := []string{"netns", "exec", i.name, c.ebb, "node", "--name", name, "--data-dir", string(c.dir), "--listen", i.there + ":0", "--http-listen", i.there + ":0",
		"--kubeconfig", through(dir.Kubeconfig()), "--coordinator-kubeconfig", through(dir.CoordinatorKubeconfig())}
	c.launch("ip", append(args, leaseArgs(c.timing)...)...)
	c.awaitReady(name, 1)
}

// An engine that is cut off from the API and from its peers goes on to be read and written by clients beside it, while the volume is attached
// elsewhere and written there. It has a copy of its own, which is stale from then on.
func TestAPartitionedEngineReturnsNothingStale(t *testing.T) {
	beside(t, light)
	i := newIsland(t)
	c := newCluster(t, testenv.Ebb(t))
	startNodes(t, c, 0)
	for _, name := range []string{"n2", "n3"} {
		c.startNode(name, "--listen", i.here+":0")
		c.awaitReady(name, 1)
	}
	c.startOn(i, "n1")
	c.must("cordon", "n3") // n1 and n2 have the replicas
	v := c.createVolume("cut", 2)
	v.attach("n1")
	const readAt, writeAt = 0, 1 << 20
	reader, writer, lateReader, lateWriter := v.dial(), v.dial(), v.dial(), v.dial()
	if err := reader.writeAt(sectorOf(1), readAt); err != nil {
		t.Fatal(err)
	}
	var replaced atomic.Pointer[time.Time] // when another engine had acknowledged a write
	var served atomic.Int64
	use := func(what string, once func() error) <-chan error {
		ended := make(chan error, 1)
		go func() {
			for {
				began := time.Now()
				if err := once(); err != nil {
					ended <- err
					return
				}
				served.Add(1)
				if at := replaced.Load(); at != nil && began.After(*at) {
					ended <- fmt.Errorf("a %s succeeded %s after another engine had taken over", what, began.Sub(*at))
					return
				}
			}
		}()
		return ended
	}
	got := make([]byte, loadSector)
	reads := use("read", func() error { return reader.readAt(got, readAt) })
	writes := use("write", func() error { return writer.writeAt(sectorOf(7), writeAt) })
	until(t, "the engine to be used", func() bool { return served.Load() > 100 })
	i.cut()
	t.Cleanup(i.heal)
	v.attach("n2")
	next := v.dial()
	for _, at := range []int64{readAt, writeAt} {
		if err := next.writeAt(sectorOf(2), at); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	replaced.Store(&now)
	if members := v.get().Status.Members; !slices.Equal(members, []string{v.replicas()["n2"].Name}) {
		t.Errorf("the members are %v", members)
	}
	ends := map[string]<-chan error{
		"reads": reads, "writes": writes,
		"later reads":  use("read", func() error { return lateReader.readAt(make([]byte, loadSector), readAt) }),
		"later writes": use("write", func() error { return lateWriter.writeAt(sectorOf(7), writeAt) }),
	}
	i.heal()
	for what, ended := range ends {
		select {
		case err := <-ended:
			var refused nbdError
			t.Logf("%s of the engine that was replaced ended with: %v", what, err)
			if !errors.As(err, &refused) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(patience):
			t.Errorf("%s of the engine that was replaced are not answered", what)
		}
	}
	for _, at := range []int64{readAt, writeAt} {
		if err := next.readAt(got, at); err != nil || !slices.Equal(got, sectorOf(2)) {
			t.Errorf("at %d the new engine returns %x (%v)", at, got[:8], err)
		}
	}
	v.settle()
	v.sameCopies()
}

// dial connects to the volume where it is served now.
func (v *testVolume) dial() *nbdConn {
	v.t.Helper()
	var conn *nbdConn
	var err error
	untilSo(v.t, func() string { return fmt.Sprintf("a connection to volume %s: %v", v.name, err) }, func() bool {
		conn, err = dialNBD(v.get().Status.NBDURI)
		return err == nil
	})
	v.whole.Cleanup(func() { conn.Close() })
	return conn
}
