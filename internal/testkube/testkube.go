// Package testkube runs a real Kubernetes on this machine, for tests and for trying Ebb on it: etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, and KWOK in place of kubelets. Everything listens on loopback only. test/kube builds the
// programs.
//
//	kubeconfig   an administrator's credentials (0600)   logs/<program>.log
//	certs/       certificates and keys                   etcd/
package testkube

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/child"
	"github.com/ebb-dev/ebb/internal/datadir"
)

const (
	startTimeout = 3 * time.Minute
	stopPatience = 20 * time.Second
	poll         = 50 * time.Millisecond
)

//go:embed stages.yaml
var stages []byte

// Options describe a Kubernetes.
type Options struct {
	// Dir is the directory of everything that it writes.
	Dir string
	// Programs is the directory of kube-apiserver and the others: what test/kube/build prints.
	Programs string
	// Nodes are the names of the nodes that it has when it is ready.
	Nodes []string
}

// Cluster is a running Kubernetes.
type Cluster struct {
	opts    Options
	etcd    *store
	nursery *child.Nursery
	unlock  func()
	config  *rest.Config
	port    *port      // of kube-apiserver, from the start to the end; nil before
	running []*program // in the order in which they were started

	endOnce sync.Once
	ended   chan error
}

// apiProgram is the API server.
const apiProgram = "kube-apiserver"

// program is one process of the cluster.
type program struct {
	*child.Process
	name    string
	stopped atomic.Bool // on purpose
}

// Start starts a Kubernetes and returns when it can run pods on its nodes.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	abs, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = abs
	for _, dir := range []string{"", "logs", "certs", "etcd"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, dir), 0o700); err != nil {
			return nil, err
		}
	}
	c := &Cluster{opts: o, nursery: child.NewNursery(), ended: make(chan error, 1)}
	c.unlock, err = datadir.Lock(c.path("lock"))
	if errors.Is(err, datadir.ErrLocked) {
		return nil, fmt.Errorf("a Kubernetes already runs in %s: stop it, or choose another directory", o.Dir)
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready within %s", startTimeout))
	defer cancel()
	if err := c.bringUp(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("Kubernetes in %s: %w", o.Dir, err)
	}
	return c, nil
}

// Kubeconfig is the file with an administrator's credentials.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

// Config is the same as a client configuration.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Ended yields what ended the cluster on its own.
func (c *Cluster) Ended() <-chan error { return c.ended }

// Stop ends all processes, in the reverse of the order in which they were started. The data stays.
func (c *Cluster) Stop() {
	c.endOnce.Do(func() {}) // what ends from here on was asked to
	for i := len(c.running) - 1; i >= 0; i-- {
		c.running[i].Stop(context.Background(), stopPatience)
	}
	if c.etcd != nil {
		c.etcd.stop()
	}
	if c.port != nil {
		c.port.release()
		c.port = nil
	}
	c.unlock()
}

// WithoutAPI stops kube-apiserver, calls during, and returns when it is ready again, on the same port. Everything else goes on.
func (c *Cluster) WithoutAPI(ctx context.Context, during func()) error {
	at := slices.IndexFunc(c.running, func(p *program) bool { return p.name == apiProgram })
	old := c.running[at]
	old.stopped.Store(true)
	old.Stop(ctx, stopPatience)
	during()
	api, err := c.start(apiProgram, c.apiArgs())
	if err != nil {
		return err
	}
	c.running = slices.Delete(c.running, len(c.running)-1, len(c.running))
	c.running[at] = api
	go c.watch(api)
	return c.awaitAPI(ctx)
}

// FreezeAPI suspends kube-apiserver while it calls during: requests are not answered. Unlike a restart, its length is that of during.
func (c *Cluster) FreezeAPI(during func()) error {
	at := slices.IndexFunc(c.running, func(p *program) bool { return p.name == apiProgram })
	api := c.running[at].PID()
	if err := syscall.Kill(api, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("freeze kube-apiserver: %w", err)
	}
	defer func() { _ = syscall.Kill(api, syscall.SIGCONT) }() // it may have been killed meanwhile
	during()
	return nil
}

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.opts.Dir}, parts...)...)
}

func (c *Cluster) bringUp(ctx context.Context) error {
	var err error
	if c.etcd, err = startStore(ctx, c.path("etcd")); err != nil {
		return err
	}
	if err := c.startAPI(ctx); err != nil {
		return err
	}
	if err := atomicfile.Write(c.path("stages.yaml"), stages, 0o644); err != nil {
		return err
	}
	for name, args := range map[string][]string{
		"kube-controller-manager": c.controllerManagerArgs(), "kube-scheduler": c.schedulerArgs(), "kwok": c.kwokArgs(),
	} {
		if _, err := c.start(name, args); err != nil {
			return err
		}
	}
	if err := c.awaitUsable(ctx); err != nil {
		return err
	}
	for _, p := range c.running {
		go c.watch(p)
	}
	return nil
}

// watch reports a program that ends before anybody asked it to.
func (c *Cluster) watch(p *program) {
	<-p.Done()
	if p.stopped.Load() {
		return
	}
	c.endOnce.Do(func() { c.ended <- fmt.Errorf("%s %s: see %s", p.name, p.Ended(), c.logFile(p.name)) })
}

func (c *Cluster) logFile(name string) string { return c.path("logs", name+".log") }

func (c *Cluster) start(name string, args []string) (*program, error) {
	cmd := exec.Command(filepath.Join(c.opts.Programs, name), args...)
	cmd.Env = append(os.Environ(), "HOME="+c.opts.Dir) // no configuration of the user's own
	cmd.Dir = c.opts.Dir
	process, err := c.nursery.Start(name, c.logFile(name), cmd)
	if err != nil {
		return nil, err
	}
	p := &program{Process: process, name: name}
	c.running = append(c.running, p)
	return p, nil
}

// startAPI starts kube-apiserver and returns when it is ready.
func (c *Cluster) startAPI(ctx context.Context) error {
	p, err := reservePort()
	if err != nil {
		return err
	}
	c.port = &p
	if c.config, err = c.issue(c.port.number); err != nil {
		return err
	}
	if _, err := c.start(apiProgram, c.apiArgs()); err != nil {
		return err
	}
	return c.awaitAPI(ctx)
}

// awaitAPI returns when kube-apiserver is ready.
func (c *Cluster) awaitAPI(ctx context.Context) error {
	return c.await(ctx, apiProgram+" to be ready", func() error {
		client, err := kubernetes.NewForConfig(c.config)
		if err != nil {
			return err
		}
		return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func (c *Cluster) apiArgs() []string {
	return []string{
		"--etcd-servers=" + c.etcd.endpoint, "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(c.port.number), "--permit-port-sharing",
		"--endpoint-reconciler-type=none", // an endpoint cannot be a loopback address
		"--cert-dir=" + c.path("certs"), "--tls-cert-file=" + c.path("certs", "server.crt"), "--tls-private-key-file=" + c.path("certs", "server.key"),
		"--client-ca-file=" + c.path("certs", "ca.crt"), "--anonymous-auth=false",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.path("certs", "tokens.crt"),
		"--service-account-signing-key-file=" + c.path("certs", "tokens.key"),
		"--service-cluster-ip-range=10.96.0.0/16", "--profiling=false",
	}
}

func (c *Cluster) controllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig(), "--leader-elect=false", "--secure-port=0", "--profiling=false", "--use-service-account-credentials",
		// KWOK may be starved for longer than a kubelet: its pods would stop being Ready.
		"--node-monitor-grace-period=5m", "--node-startup-grace-period=5m",
		"--root-ca-file=" + c.path("certs", "ca.crt"), "--service-account-private-key-file=" + c.path("certs", "tokens.key"),
	}
}

func (c *Cluster) schedulerArgs() []string {
	return []string{"--kubeconfig=" + c.Kubeconfig(), "--leader-elect=false", "--secure-port=0", "--profiling=false"}
}

func (c *Cluster) kwokArgs() []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig(), "--config=" + c.path("stages.yaml"), "--manage-all-nodes", "--node-lease-duration-seconds=40",
		// Pods have loopback addresses, so that their programs can be started on this machine. The port makes them different from those of other clusters.
		fmt.Sprintf("--cidr=127.%d.%d.0/24", c.port.number>>8, c.port.number&255),
	}
}

// awaitUsable returns when pods can be created and run: the default service account exists and all nodes are ready.
func (c *Cluster) awaitUsable(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.config)
	if err != nil {
		return err
	}
	for _, name := range c.opts.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}}}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return c.await(ctx, "the nodes to be ready", func() error {
		if _, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		for _, name := range c.opts.Nodes {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !ready(node) {
				return fmt.Errorf("node %s is not ready", name)
			}
		}
		return nil
	})
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0
		}
	}
	return false
}

// await polls until a condition holds, a program ends, or ctx ends.
func (c *Cluster) await(ctx context.Context, what string, holds func() error) error {
	for {
		err := holds()
		if err == nil {
			return nil
		}
		for _, p := range c.running {
			select {
			case <-p.Done():
				return fmt.Errorf("%s %s while waiting for %s:\n%s", p.name, p.Ended(), what, tail(c.logFile(p.name)))
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

// tail is the end of a log, for an error message.
func tail(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-5):], "\n  ")
}

// loadConfig reads the administrator's credentials.
func (c *Cluster) loadConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig(), err)
	}
	cfg.QPS = -1
	return cfg, nil
}
