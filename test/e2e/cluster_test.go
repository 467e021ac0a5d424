// Package e2e runs real ebb processes, kills and freezes them, and looks at what is left.
package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/apiserver"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// patience bounds every wait for something that should come, on a machine that may be busy.
const patience = testenv.Patience

// cluster is an `ebb up` and what was started beside it.
type cluster struct {
	t      testing.TB // the step that is running
	whole  testing.TB // the test that the processes live as long as
	ebb    string
	server string // the program that serves the API
	dir    datadir.Dir
	client client.WithWatch
	up     *process
	points string // directory of points to crash at, if any
	timing lease.Timing
	kept   *remains
	// launchNode starts a node, where that is not `ebb node` in the data directory.
	launchNode func(name string, args ...string) *process
}

// testLeases last a little longer than the default ones: a busy machine may delay three renewals of a node, and a node that cannot stop what it
// must between Fence and Dead kills itself.
var testLeases = lease.Timing{Renew: 2 * time.Second, Timeout: 2 * time.Second, Fence: 9 * time.Second, Dead: 12 * time.Second, Lost: 13 * time.Second}

// calmLeases are for tests in which nobody has to be found dead: a machine that is busy for half a minute changes nothing in them.
var calmLeases = lease.Timing{Renew: 2 * time.Second, Timeout: 2 * time.Second, Fence: 50 * time.Second, Dead: 55 * time.Second, Lost: time.Minute}

// leaseArgs give a node, or the nodes of `ebb up`, a timing.
func leaseArgs(t lease.Timing) []string {
	return []string{
		"--lease-renew=" + t.Renew.String(), "--lease-renew-timeout=" + t.Timeout.String(), "--lease-fence=" + t.Fence.String(),
		"--lease-dead=" + t.Dead.String(), "--lease-duration=" + t.Lost.String(),
	}
}

// newCluster is a cluster of which nothing runs yet. Tests have leases of their own; what is measured has those that people have.
func newCluster(t testing.TB, ebb string) *cluster {
	t.Helper()
	testenv.Quiet()
	c := &cluster{t: t, whole: t, ebb: ebb, server: ebb, dir: datadir.Dir(shortDir(t)), timing: testLeases, kept: &remains{}}
	if _, measures := t.(*testing.B); measures {
		c.timing = lease.DefaultTiming()
	}
	t.Cleanup(func() { testenv.EndPrograms(c.dir, "*") })
	// It says how much room the test needs.
	t.Cleanup(func() { t.Logf("the cluster used %s of the processors", c.kept.used.Round(100*time.Millisecond)) })
	return c
}

// shortDir is a directory of the test. Unlike t.TempDir it does not have the name of the test in it: sockets of volumes are below it, and the path of
// a socket is at most 107 bytes long.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ebb-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the directory of the cluster: %v", err)
		}
	})
	return filepath.Join(dir, "data")
}

// process is one child of the test.
type process struct {
	cmd   *exec.Cmd
	out   *output
	done  chan struct{}
	ended time.Time // known when done is closed
	hung  bool      // it did not end when it was asked to; known after stop
}

// output collects what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// calm is a cluster in which no node is killed, frozen or cut off.
func (c *cluster) calm() *cluster {
	if _, measures := c.whole.(*testing.B); !measures {
		c.timing = calmLeases
	}
	return c
}

// startCluster runs `ebb up` and waits for its line `ready`. No node of it is killed.
func startCluster(t testing.TB, ebb string, nodes int) *cluster {
	t.Helper()
	c := newCluster(t, ebb).calm()
	c.runUp(nodes)
	return c
}

// startNodes runs an API server and nodes n1 to nN one by one, without `ebb up`. The race detector makes an API server do several times
// the work, most of it not Ebb's, so here it is for the nodes alone: the tests with `ebb up`, those of internal/apiserver and the long
// form have it in the API server too.
func startNodes(t testing.TB, c *cluster, nodes int) *cluster {
	t.Helper()
	if !testlength.Long() {
		c.server = testenv.EbbPlain(t)
	}
	c.startServer()
	until(t, "the API server", func() bool { return c.connect() == nil })
	for i := range nodes {
		c.startNode(fmt.Sprintf("n%d", i+1))
	}
	for i := range nodes {
		c.awaitReady(fmt.Sprintf("n%d", i+1), 1)
	}
	return c
}

// startServer runs `ebb apiserver` in the cluster's data directory.
func (c *cluster) startServer() *process {
	c.t.Helper()
	return c.launch(c.server, "apiserver", "--data-dir", string(c.dir))
}

// runUp runs `ebb up` with more arguments, if there are any, until it prints that it is ready.
func (c *cluster) runUp(nodes int, args ...string) {
	c.t.Helper()
	c.whole.Cleanup(func() {
		files, _ := filepath.Glob(c.dir.LogFile("*"))
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil {
				c.tell(strings.TrimSuffix(filepath.Base(file), ".log")+" of ebb up", string(text))
			}
		}
	})
	args = append([]string{"up", "--nodes", strconv.Itoa(nodes), "--data-dir", string(c.dir)}, args...)
	c.up = c.start(append(args, leaseArgs(c.timing)...)...)
	until(c.t, "ebb up to be ready", func() bool {
		select {
		case <-c.up.done:
			c.t.Fatalf("ebb up ended:\n%s", c.up.out)
		default:
		}
		return hasLine(c.up.out.String(), "ready")
	})
	if err := c.connect(); err != nil {
		c.t.Fatal(err)
	}
}

// connect makes a client of the API server and asks it something.
func (c *cluster) connect() error {
	cfg, err := kubeclient.Load(c.dir.Kubeconfig())
	if err != nil {
		return err
	}
	if c.client, err = kubeclient.New(cfg); err != nil {
		return err
	}
	return c.client.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, &v1alpha1.Settings{})
}

func hasLine(text, line string) bool {
	scanner := bufio.NewScanner(strings.NewReader(text))
	for scanner.Scan() {
		if scanner.Text() == line {
			return true
		}
	}
	return false
}

// start runs ebb beside the test and ends it with the test.
func (c *cluster) start(args ...string) *process {
	c.t.Helper()
	return c.launch(c.ebb, args...)
}

func (c *cluster) launch(exe string, args ...string) *process {
	c.t.Helper()
	return c.launchAt("", nil, exe, args...)
}

// launchAt is launch in another directory, unless that is empty, and with another environment, unless that is nil.
func (c *cluster) launchAt(dir string, env []string, exe string, args ...string) *process {
	c.t.Helper()
	p := &process{cmd: exec.Command(exe, args...), out: &output{}, done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = dir, env
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.points != "" {
		if env == nil {
			env = os.Environ()
		}
		p.cmd.Env = append(env, "EBB_FAILPOINTS="+c.points)
	}
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		p.ended = time.Now()
		close(p.done)
	}()
	c.whole.Cleanup(func() {
		c.keep() // while everything still runs
		p.stop()
		if p.hung {
			c.whole.Errorf("ebb %s did not end for %s after SIGTERM; its stacks are at the end of what it printed", strings.Join(args, " "), patience)
		}
		state := p.cmd.ProcessState
		c.kept.used += state.UserTime() + state.SystemTime() // with that of its children
		c.tell("ebb "+strings.Join(args, " "), fmt.Sprintf("%s[pid %d, %s, %s]\n", p.out, state.Pid(), state, p.ended.UTC().Format(time.RFC3339Nano)))
	})
	return p
}

// tell looks for what no process may ever print, and keeps what one printed in a test that failed.
func (c *cluster) tell(name, text string) {
	for _, bad := range []string{"DATA RACE", "panic:", "fatal error:", apiserver.ErrHangs.Error()} {
		if at := strings.Index(text, bad); at >= 0 {
			c.whole.Errorf("%s: %s", name, text[at:min(at+8000, len(text))])
		}
	}
	c.keepOutput(name, text)
}

// stop asks the process to end in order. One that does not is hung: it prints its stacks and is killed.
func (p *process) stop() {
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGKILL} {
		p.hung = p.hung || signal != syscall.SIGTERM // a test may have stopped it before
		_ = p.cmd.Process.Signal(signal)             // it may have ended
		select {
		case <-p.done:
			return
		case <-time.After(patience):
		}
	}
	<-p.done
}

func (p *process) awaitExit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("%s did not end", p.cmd)
		return -1
	}
}

// startNode runs `ebb node` in the cluster's data directory, with the timing of the cluster unless its arguments give another.
func (c *cluster) startNode(name string, args ...string) *process {
	c.t.Helper()
	if c.launchNode != nil {
		return c.launchNode(name, append(leaseArgs(c.timing), args...)...)
	}
	return c.start(append(append([]string{"node", "--name", name, "--data-dir", string(c.dir)}, leaseArgs(c.timing)...), args...)...)
}

// run runs a client command to its end.
func (c *cluster) run(args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	return c.runWith(nil, args...)
}

// command is the program of client commands. Tests run hundreds of them, and with the race detector, which takes longer to start than most of
// them run, only in the long form; the tests of cmd/ebb have it always.
func (c *cluster) command() string {
	if testlength.Long() {
		return c.ebb
	}
	return testenv.EbbPlain(c.whole)
}

func (c *cluster) runWith(stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.command(), args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	cmd.Env = append(os.Environ(), "KUBECONFIG=", "EBB_DATA_DIR="+string(c.dir))
	_ = cmd.Run() // the exit code tells
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must runs a client command that has to succeed.
func (c *cluster) must(args ...string) string {
	c.t.Helper()
	out, errs, code := c.run(args...)
	if code != 0 {
		c.t.Fatalf("ebb %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Kubectl(c.t), append([]string{"--kubeconfig", c.dir.Kubeconfig()}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// pid of one of the cluster's processes.
func (c *cluster) pid(name string) int {
	c.t.Helper()
	data, err := os.ReadFile(c.dir.PIDFile(name))
	if err != nil {
		c.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		c.t.Fatal(err)
	}
	return pid
}

// signal sends a signal to one of the cluster's processes.
func (c *cluster) signal(name string, sig syscall.Signal) {
	c.t.Helper()
	if err := syscall.Kill(c.pid(name), sig); err != nil {
		c.t.Fatalf("signal %s to %s: %v", sig, name, err)
	}
}

// read reads an object that exists. A server that is busy may answer that it has no time.
func (c *cluster) read(key types.NamespacedName, o client.Object) {
	c.t.Helper()
	for began := time.Now(); ; pollAgain(began) {
		err := c.client.Get(context.Background(), key, o)
		if err == nil {
			return
		}
		if apierrors.IsNotFound(err) || time.Since(began) > patience {
			c.t.Fatal(err)
		}
	}
}

func (c *cluster) node(name string) *v1alpha1.Node {
	c.t.Helper()
	n := &v1alpha1.Node{}
	c.read(types.NamespacedName{Name: name}, n)
	return n
}

func (c *cluster) record(name string) lease.Record {
	c.t.Helper()
	l := &coordinationv1.Lease{}
	c.read(types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(name)}, l)
	r, err := lease.Read(l)
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// leader is who leads, or nothing.
func (c *cluster) leader() string {
	name, err := coordinator.Locate(context.Background(), c.client)
	if err != nil {
		return ""
	}
	return name
}

// transitions counts how often the election changed hands.
func (c *cluster) transitions() int32 {
	c.t.Helper()
	l := &coordinationv1.Lease{}
	c.read(types.NamespacedName{Namespace: lease.Namespace, Name: lease.CoordinatorName}, l)
	if l.Spec.LeaseTransitions == nil {
		return 0
	}
	return *l.Spec.LeaseTransitions
}

// awaitLeader waits until a node other than not leads and its Node says so.
func (c *cluster) awaitLeader(not string) string {
	c.t.Helper()
	var name string
	until(c.t, "a coordinator other than "+strconv.Quote(not), func() bool {
		name = c.leader()
		return name != "" && name != not && c.node(name).Status.Coordinator
	})
	return name
}

// awaitReady waits until a node is Ready in an epoch or a later one: a write that takes the lease and is answered too late uses up an epoch.
func (c *cluster) awaitReady(name string, epoch int64) {
	c.t.Helper()
	until(c.t, fmt.Sprintf("node %s to be Ready in epoch %d", name, epoch), func() bool {
		n := &v1alpha1.Node{}
		err := c.client.Get(context.Background(), types.NamespacedName{Name: name}, n)
		return err == nil && n.Status.Epoch >= epoch && n.IsReady()
	})
}

// others are all nodes but one.
func others(nodes []string, not string) []string {
	var rest []string
	for _, n := range nodes {
		if n != not {
			rest = append(rest, n)
		}
	}
	return rest
}

// until polls for a condition that other processes reach in their own time.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline, began := time.Now().Add(patience), time.Now()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
		pollAgain(began)
	}
}

// pollAgain rests before somebody asks again. What comes soon is seen soon; what takes longer is not asked for so often that the asking
// is most of what the machine does.
func pollAgain(began time.Time) {
	time.Sleep(min(max(time.Since(began)/20, 20*time.Millisecond), 150*time.Millisecond))
}

func decode[T any](t testing.TB, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}
