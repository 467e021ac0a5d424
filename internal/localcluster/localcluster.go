// Package localcluster runs a whole cluster on this machine: an API server and nodes, each in a separate process that can be killed
// separately.
package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/child"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/shellword"
)

const (
	apiserver      = "apiserver"
	startTimeout   = 5 * time.Minute
	poll           = 50 * time.Millisecond
	nodePatience   = 15 * time.Second
	serverPatience = 10 * time.Second
	orphanPatience = 20 * time.Second
)

// Options make a cluster.
type Options struct {
	// Dir is the data directory.
	Dir datadir.Dir
	// Exe is the ebb program, and Command how a person calls it.
	Exe, Command string
	// Nodes is the number of nodes: n1 to nN.
	Nodes int
	// NodeArgs are passed on to every node.
	NodeArgs []string
	// ServerArgs are passed on to the API server.
	ServerArgs []string
	// Kubeconfig is the file of a Kubernetes to use as the API; empty for an API server of the cluster's own.
	Kubeconfig string
	// LogArgs are the log flags that are passed to the API server and to every node.
	LogArgs []string
	// Out gets the messages for people.
	Out io.Writer
}

// Cluster is a running cluster.
type Cluster struct {
	opts    Options
	nursery *child.Nursery
	unlock  func()
	client  client.Client
	server  *process
	nodes   []*process

	mu sync.Mutex // of Out
}

// Start starts the cluster and returns when every node is Ready.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if o.Nodes < 1 || o.Nodes > 99 {
		return nil, fmt.Errorf("--nodes %d: use 1 to 99", o.Nodes)
	}
	if err := o.Dir.CheckNobodyElses(o.Kubeconfig); err != nil {
		return nil, err
	}
	if err := o.Dir.Create(); err != nil {
		return nil, err
	}
	c := &Cluster{opts: o, nursery: child.NewNursery()}
	if err := c.takeLock(); err != nil {
		return nil, err
	}
	if err := c.bringUp(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) bringUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	if err := c.awaitOrphans(ctx); err != nil {
		return err
	}
	start := c.startServer
	if c.opts.Kubeconfig != "" {
		start = c.useKubernetes
	}
	if err := start(ctx); err != nil {
		return err
	}
	return c.startNodes(ctx)
}

// awaitOrphans waits for the child processes of an `ebb up` that was killed: they get a signal when it dies, and take some time to stop.
func (c *Cluster) awaitOrphans(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, orphanPatience)
	defer cancel()
	for _, name := range c.names() {
		for {
			err := c.free(name)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w: a process of an earlier cluster still runs; stop it first, its process ID is in one of the files run/*.pid in %s", err, c.opts.Dir)
			case <-time.After(poll):
			}
		}
	}
	return nil
}

// names are those of all processes that the cluster has.
func (c *Cluster) names() []string {
	names := []string{apiserver}
	for i := range c.opts.Nodes {
		names = append(names, nodeName(i))
	}
	return names
}

// free returns datadir.ErrLocked while a process of that name runs, whoever started it.
func (c *Cluster) free(name string) error {
	lock := c.opts.Dir.APIServerLock()
	if name != apiserver {
		lock = c.opts.Dir.Node(name).Lock()
	}
	unlock, err := datadir.Lock(lock)
	if err == nil {
		unlock()
	}
	if !errors.Is(err, datadir.ErrLocked) {
		return nil // nobody has it, or it is not there yet
	}
	return err
}

func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

func (c *Cluster) takeLock() error {
	unlock, err := datadir.Lock(filepath.Join(string(c.opts.Dir), "up.lock"))
	if errors.Is(err, datadir.ErrLocked) {
		return fmt.Errorf("a cluster already runs in %s: stop it, or set another --data-dir", c.opts.Dir)
	}
	c.unlock = unlock
	return err
}

func (c *Cluster) startServer(ctx context.Context) (err error) {
	c.say("starting the API server")
	dir := c.opts.Dir
	args := c.serverArgs()
	if c.server, err = c.start(apiserver, args); err != nil {
		return err
	}
	return c.await(ctx, "the API server", []*process{c.server}, func() error {
		cfg, err := kubeclient.Load(dir.Kubeconfig())
		if err != nil {
			return err
		}
		if c.client, err = kubeclient.New(cfg); err != nil {
			return err
		}
		return c.client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, &v1alpha1.Settings{})
	})
}

func (c *Cluster) startNodes(ctx context.Context) error {
	before, err := c.epochs(ctx)
	if err != nil {
		return err
	}
	c.say("starting %s", plural(c.opts.Nodes, "node"))
	for i := range c.opts.Nodes {
		name := nodeName(i)
		n, err := c.start(name, c.nodeArgs(name))
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	parked := map[string]bool{}
	err = c.await(ctx, "every node to be Ready", c.processes(), func() error {
		return c.allReady(ctx, before, parked)
	})
	for _, n := range c.nodes {
		if parked[n.name] && err == nil {
			c.say("%s is parked: `%s` brings it back", n.name, shellword.Join(c.opts.Command, "uncordon", n.name))
		}
	}
	return err
}

// process is one process of the cluster.
type process struct {
	*child.Process
	name string
}

// ended reports whether the process has ended. It may have been started again by somebody else.
func (p *process) ended() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// start runs the ebb program as the process of that name.
func (c *Cluster) start(name string, args []string) (*process, error) {
	p, err := c.nursery.Start(name, c.opts.Dir.LogFile(name), exec.Command(c.opts.Exe, args...))
	if err != nil {
		return nil, err
	}
	return &process{Process: p, name: name}, nil
}

// epochs returns the earlier epochs of the nodes: a Node object of an earlier run may still be Ready.
func (c *Cluster) epochs(ctx context.Context) (map[string]int64, error) {
	var nodes v1alpha1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	epochs := map[string]int64{}
	for _, n := range nodes.Items {
		epochs[n.Name] = n.Status.Epoch
	}
	return epochs, nil
}

// allReady returns nil when every node is Ready in a new epoch, or is parked: then it waits for a person. It records which are parked. On a
// Kubernetes the first coordinator makes the Settings, which every command reads.
func (c *Cluster) allReady(ctx context.Context, before map[string]int64, parked map[string]bool) error {
	var nodes v1alpha1.NodeList
	if err := c.client.List(ctx, &nodes); err != nil {
		return err
	}
	ready := map[string]bool{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		parked[n.Name] = n.IsParked()
		ready[n.Name] = n.IsReady() && n.Status.Epoch > before[n.Name] || parked[n.Name]
	}
	var waiting []string
	for _, n := range c.nodes {
		if !ready[n.name] {
			waiting = append(waiting, n.name)
		}
	}
	if len(waiting) > 0 {
		return fmt.Errorf("%s not Ready", strings.Join(waiting, ", "))
	}
	if err := c.client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, &v1alpha1.Settings{}); err != nil {
		return fmt.Errorf("no coordinator has created the Settings yet: %w", err)
	}
	return nil
}

// await polls until a condition holds, a process that is needed for it ends, or ctx ends.
func (c *Cluster) await(ctx context.Context, what string, needed []*process, holds func() error) error {
	for {
		err := holds()
		if err == nil {
			return nil
		}
		for _, p := range needed {
			select {
			case <-p.Done():
				return fmt.Errorf("%s %s while waiting for %s:\n%s", p.name, p.Ended(), what, tail(c.opts.Dir.LogFile(p.name)))
			default:
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last: %w)", what, context.Cause(ctx), err)
		case <-time.After(poll):
		}
	}
}

// Wait reports every process that ends, until ctx ends.
func (c *Cluster) Wait(ctx context.Context) {
	var watchers sync.WaitGroup
	for _, p := range c.processes() {
		watchers.Go(func() {
			select {
			case <-ctx.Done():
			case <-p.Done():
				c.say("%s %s; start it again with: %s", p.name, p.Ended(), c.commandOf(p))
			}
		})
	}
	<-ctx.Done()
	watchers.Wait()
}

// processes are all processes of the cluster.
func (c *Cluster) processes() []*process {
	if c.server == nil {
		return c.nodes
	}
	return append([]*process{c.server}, c.nodes...)
}

// nodeArgs is how a node is started.
func (c *Cluster) nodeArgs(name string) []string {
	args := []string{"node", "--name", name, "--data-dir", string(c.opts.Dir)}
	if c.opts.Kubeconfig != "" {
		args = append(args, "--kubeconfig", c.opts.Dir.Kubeconfig(), "--coordinator-kubeconfig", c.opts.Dir.Kubeconfig())
	}
	return slices.Concat(args, c.opts.NodeArgs, c.opts.LogArgs)
}

// serverArgs is how the API server is started.
func (c *Cluster) serverArgs() []string {
	return slices.Concat([]string{"apiserver", "--data-dir", string(c.opts.Dir)}, c.opts.ServerArgs, c.opts.LogArgs)
}

// commandOf is how a person starts a process again.
func (c *Cluster) commandOf(p *process) string {
	args := c.nodeArgs(p.name)
	if p == c.server {
		args = c.serverArgs()
	}
	return shellword.Join(append([]string{c.opts.Command}, args...)...)
}

// Stop stops the nodes and then the API server.
func (c *Cluster) Stop() {
	if running := c.running(); running > 0 {
		c.say("stopping %s", plural(running, "node"))
	}
	var stopping sync.WaitGroup
	for _, n := range c.nodes {
		stopping.Go(func() { n.Stop(context.Background(), nodePatience) })
	}
	stopping.Wait()
	if c.server != nil && !c.server.ended() {
		c.say("stopping the API server")
		c.server.Stop(context.Background(), serverPatience)
	}
	for _, name := range c.names() {
		if c.free(name) != nil {
			c.say("%s still runs: another command started it", name)
		}
	}
	c.unlock()
}

// running is how many nodes of the cluster have not ended.
func (c *Cluster) running() int {
	n := 0
	for _, p := range c.nodes {
		if !p.ended() {
			n++
		}
	}
	return n
}

func (c *Cluster) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.opts.Out, format+"\n", args...)
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// tail is the end of a log, for an error message.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-5):], "\n  ")
}
