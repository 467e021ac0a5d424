package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/failpoint"
	"github.com/ebb-dev/ebb/internal/httpapi"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/signer"
)

// nodeFlags are the flags of `ebb node`.
type nodeFlags struct {
	dir     datadir.Dir
	name    string
	labels  map[string]string
	listen  string
	advert  string
	timing  lease.Timing
	nodeCfg string
	coCfg   string

	// kubernetes is set if the API is a Kubernetes cluster, in which account finds the node's credentials.
	kubernetes bool
	account    inCluster

	drainOnSigterm bool
	drainTimeout   time.Duration

	peerListen string
	guardImage string

	logs  logFlags
	parts kind.Parts
}

func newNode() *cobra.Command {
	f := nodeFlags{timing: lease.DefaultTiming(), logs: newLogFlags(), parts: kinds.Parts()}
	var dir string
	var labels []string
	cmd := &cobra.Command{
		Use:   "node --name NAME --data-dir DIR",
		Short: "Run one node of the cluster",
		Long: `Run one node. It joins the cluster in a new epoch, renews its lease, runs the work that is placed on it, and takes part in the
election of the coordinator.

Its credentials are in DIR/nodes/NAME. If DIR is also the data directory of the API server, the first start creates them. For
another machine, create them with ` + "`ebb credentials`" + ` and copy them there.

With --kubernetes the API is a Kubernetes cluster on which Ebb is installed (docs/kubernetes.md). The node then uses the service account of its pod, and
` + "`ebb signer`" + ` issues its certificate.

On SIGTERM or SIGINT the node leaves the cluster: it stops its work, resigns if it is the coordinator, and releases its lease.`,
		Example: `  ebb node --name n1 --data-dir /var/lib/ebb
  ebb node --name n2 --data-dir /var/lib/ebb --label zone=a --label disk=ssd`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if f.labels, err = parseLabels(labels); err != nil {
				return err
			}
			if dir == "" {
				return errNoDataDir
			}
			if err := f.validate(); err != nil {
				return err
			}
			f.dir = datadir.Dir(dir)
			return f.logs.report(runNode(cmd.Context(), f))
		},
	}
	fs := cmd.Flags()
	addDataDir(fs, &dir)
	f.logs.addFlags(fs)
	fs.StringVar(&f.name, "name", "", "name of the node (required)")
	fs.StringArrayVar(&labels, "label", nil, "label of the node, key=value; can be repeated")
	fs.StringVar(&f.listen, "http-listen", "127.0.0.1:0", "host:port of the node's HTTP API; port 0 picks a free port")
	fs.StringVar(&f.advert, "http-advertise", "", "host name or address under which other machines reach it (default: the host of --http-listen)")
	fs.BoolVar(&f.drainOnSigterm, "drain-on-sigterm", false, "on SIGTERM drain this node before it leaves")
	fs.DurationVar(&f.drainTimeout, "drain-timeout", 10*time.Minute, "how long the drain of --drain-on-sigterm may take; after that the node leaves without it")
	fs.StringVar(&f.nodeCfg, "kubeconfig", "", "kubeconfig file of the node (default: in the data directory)")
	fs.StringVar(&f.coCfg, "coordinator-kubeconfig", "", "kubeconfig file of the coordinator, for the election and the controllers (default: in the data directory)")
	fs.BoolVar(&f.kubernetes, "kubernetes", false, "run in a pod of a Kubernetes cluster on which Ebb is installed")
	f.account.addAccount(fs)
	addLeaseTiming(fs, &f.timing)
	fs.StringVar(&f.peerListen, "listen", "127.0.0.1:0", "host:port for connections from other nodes; port 0 picks a free port")
	fs.StringVar(&f.guardImage, "guard-image", "", "on Kubernetes, image of the guards: pods that make kubectl drain wait for the work of Ebb; without it there are no guards")
	f.parts.AddFlags(fs)
	_ = cmd.MarkFlagRequired("name")
	return cmd
}

// validate refuses flags that would only fail later.
func (f nodeFlags) validate() error {
	if err := checkNodeName(f.name); err != nil {
		return err
	}
	if err := f.timing.Validate(); err != nil {
		return err
	}
	if err := f.parts.Validate(); err != nil {
		return err
	}
	if peer, _, err := net.SplitHostPort(f.peerListen); err != nil {
		return fmt.Errorf("--listen %q is not host:port: %w", f.peerListen, err)
	} else if ip := net.ParseIP(peer); peer == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("--listen %s: set the address under which other nodes reach this one", f.peerListen)
	}
	host, _, err := net.SplitHostPort(f.listen)
	if err != nil {
		return fmt.Errorf("--http-listen %q is not host:port: %w", f.listen, err)
	}
	if ip := net.ParseIP(host); f.advert == "" && (host == "" || ip != nil && ip.IsUnspecified()) {
		return fmt.Errorf("--http-listen %s listens on every address: set --http-advertise to the one under which others reach it", f.listen)
	}
	return nil
}

// checkNodeName refuses invalid names of nodes, and the name of the API server's files.
func checkNodeName(name string) error {
	if name == "apiserver" {
		return errors.New("a node cannot be named apiserver: this name is reserved for the files of the API server")
	}
	return v1alpha1.ValidateNodeName(name)
}

func parseLabels(list []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range list {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, fmt.Errorf("--label %q is not key=value", text)
		}
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			return nil, fmt.Errorf("--label %q: key %q: %s", text, key, strings.Join(errs, "; "))
		}
		if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
			return nil, fmt.Errorf("--label %q: value %q: %s", text, value, strings.Join(errs, "; "))
		}
		labels[key] = value
	}
	return labels, nil
}

// credentials ensures that the node has its credentials. On Kubernetes they are renewed until ctx ends.
func (f nodeFlags) credentials(ctx context.Context, log *slog.Logger) (datadir.NodeDir, error) {
	dir := f.dir.Node(f.name)
	if f.kubernetes {
		return dir, f.certify(ctx, dir, log)
	}
	if f.dir.CanIssue() && f.nodeCfg != "" && f.coCfg != "" {
		return dir, f.dir.IssueNodeTLS(dir, f.name, f.hosts())
	}
	if f.dir.CanIssue() {
		return dir, f.dir.IssueNode(dir, f.name, f.hosts())
	}
	ok, err := dir.HasCredentials(f.nodeCfg == "", f.coCfg == "")
	if err == nil && !ok {
		err = fmt.Errorf("node %s has no credentials in %s: run `ebb credentials %s --out DIR` on the machine of the API server and copy DIR here", f.name, dir, f.name)
	}
	if err == nil {
		if wrong := dir.CheckNode(f.name, f.reachedAt(), time.Now()); wrong != nil {
			log.Warn("credentials", "node", f.name, "error", wrong)
		}
	}
	return dir, err
}

// certify gets the node's certificate from the signer of the cluster, and keeps it valid.
func (f nodeFlags) certify(ctx context.Context, dir datadir.NodeDir, log *slog.Logger) error {
	cfg, err := f.config(f.nodeCfg, "")
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(dir), 0o700); err != nil {
		return fmt.Errorf("credentials of node %s: %w", f.name, err)
	}
	files := signer.Files{Kube: kube, Namespace: lease.Namespace, Node: f.name, Hosts: f.hosts(), Dir: dir, Log: log.With("node", f.name)}
	if err := files.Ensure(ctx); err != nil {
		return err
	}
	go files.Keep(ctx)
	return nil
}

// config is the configuration in a kubeconfig file, the one of the pod on Kubernetes, or the one in a file of the data directory.
func (f nodeFlags) config(given, own string) (*rest.Config, error) {
	if f.kubernetes && given == "" {
		return f.account.config()
	}
	return kubeclient.Load(cmp.Or(given, own))
}

func (f nodeFlags) hosts() []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	for _, listen := range []string{f.listen, f.peerListen} {
		host, _, err := net.SplitHostPort(listen)
		if err != nil || host == "" {
			continue
		}
		names := []string{host}
		if net.ParseIP(host) == nil {
			if found, err := net.LookupHost(host); err == nil {
				names = append(names, found...) // members of etcd clusters are reached by address
			}
		}
		for _, name := range names {
			if !slices.Contains(hosts, name) {
				hosts = append(hosts, name)
			}
		}
	}
	if f.advert != "" {
		hosts = append(hosts, f.advert)
	}
	return hosts
}

// reachedAt is the host under which others reach the node's HTTP API.
func (f nodeFlags) reachedAt() string {
	host, _, _ := net.SplitHostPort(f.listen) // validated
	return cmp.Or(f.advert, host)
}

// url is where others reach the node's HTTP API, once it listens.
func (f nodeFlags) url(l net.Listener) string {
	host, port, _ := net.SplitHostPort(l.Addr().String())
	if f.advert != "" {
		host = f.advert
	}
	return (&url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}).String()
}

func runNode(ctx context.Context, f nodeFlags) error {
	log := f.logs.newLogger()
	if err := f.dir.Create(); err != nil {
		return err
	}
	dir, err := f.credentials(ctx, log)
	if err != nil && f.kubernetes && ctx.Err() != nil {
		return nil // it was asked to stop while it waited for its certificate
	}
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--http-listen: %w", err)
	}
	defer listener.Close()
	registry := prometheus.NewRegistry()
	controllers := &controllers{timing: f.timing, drainMetrics: drain.NewMetrics(registry, kinds.Works()), parts: f.parts, guardImage: f.guardImage}
	campaign, err := f.campaign(dir, registry, controllers, log)
	if err != nil {
		return err
	}
	controllers.resign = campaign.RequestResign
	peers, err := net.Listen("tcp", f.peerListen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer peers.Close()
	n, err := f.node(dir, f.url(listener), peers, registry, campaign, log)
	if err != nil {
		return err
	}
	remove, err := f.dir.WritePID(f.name)
	if err != nil {
		return err
	}
	defer remove()
	server, err := f.server(dir, registry, campaign, controllers, n, log)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Run(serving, listener) }()
	living := ctx
	if f.drainOnSigterm {
		living = f.drainFirst(ctx, dir, campaign, n, log)
	}
	living, give := context.WithCancel(living)
	defer give()
	failed := make(chan error, 1)
	go func() {
		failed <- <-served
		give() // the node leaves if its HTTP server has failed
	}()
	err = n.Run(living)
	stop()
	if serveErr := <-failed; err == nil {
		err = serveErr
	}
	return err
}

func (f nodeFlags) campaign(dir datadir.NodeDir, r prometheus.Registerer, controllers *controllers, log *slog.Logger) (*coordinator.Campaign, error) {
	cfg, err := f.config(f.coCfg, dir.CoordinatorKubeconfig())
	if err != nil {
		return nil, err
	}
	return coordinator.NewCampaign(coordinator.Options{
		Config: cfg, Timing: f.timing, Log: log.With("node", f.name), Metrics: coordinator.NewMetrics(r, f.name),
		Setup: controllers.setup,
	})
}

func (f nodeFlags) node(dir datadir.NodeDir, url string, peers net.Listener, r prometheus.Registerer, campaign *coordinator.Campaign, log *slog.Logger) (*node.Node, error) {
	cfg, err := f.config(f.nodeCfg, dir.Kubeconfig())
	if err != nil {
		return nil, err
	}
	objects, err := kubeclient.New(cfg)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(peers.Addr().String())
	if err != nil {
		return nil, err
	}
	metrics := node.NewMetrics(r, f.name)
	gate := node.NewGate(metrics.Refused)
	if f.guardImage != "" {
		if err := needCoreNodes(cfg); err != nil {
			return nil, err
		}
		gate.NeedGuard()
	}
	files := peer.Files{Cert: dir.TLSCert(), Key: dir.TLSKey(), CA: dir.CA()}
	hosted, err := f.parts.Host(kind.Env{
		Node: f.name, Dir: dir, Shared: f.dir, Exe: exe, Gate: gate, Host: host, Files: files, Objects: objects, Drains: f.parts.Drains(), Registry: r,
		Log: log.With("node", f.name), LogFormat: f.logs.format.value, LogArgs: f.logs.args(), LibraryLogLevel: strings.ToLower(f.logs.libraries().String()),
	})
	if err != nil {
		return nil, err
	}
	return node.New(node.Options{
		Name: f.name, Dir: dir, Config: cfg, Timing: f.timing, Clock: node.BootTime, Labels: f.labels,
		HTTPAddress: url, Version: version, Residents: []node.Resident{campaign},
		Address:  peers.Addr().String(),
		Peers:    node.Peers{Listener: peers, Files: files, Services: hosted.Services, Protocols: hosted.Protocols},
		Runtimes: hosted.Runtimes,
		Gate:     gate, Metrics: metrics, Log: log, AtStep: failpoint.At,
		Die: func(reason string) {
			log.Error("killing this process", "reason", reason)
			os.Exit(3)
		},
	})
}

// needCoreNodes refuses guards where there is nothing to guard.
func needCoreNodes(cfg *rest.Config) error {
	has, err := kube.HasNodes(cfg)
	if err == nil && !has {
		err = errors.New("--guard-image: this API has no core Nodes, so there is nothing to guard; omit the flag")
	}
	return err
}

func (f nodeFlags) server(dir datadir.NodeDir, r prometheus.Gatherer, campaign *coordinator.Campaign, controllers *controllers, n *node.Node, log *slog.Logger) (*httpapi.Server, error) {
	token, err := datadir.ReadToken(dir.Token())
	if err != nil {
		return nil, err
	}
	healthToken, err := datadir.ReadToken(dir.HealthToken())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return httpapi.New(httpapi.Options{
		Node: f.name, Token: token, HealthToken: healthToken, CertFile: dir.TLSCert(), KeyFile: dir.TLSKey(), CAFile: dir.CA(),
		// The controllers' own registry brings the metrics of the process too.
		Ready: n.Ready, Metrics: prometheus.Gatherers{r, ctrlmetrics.Registry}, Election: campaign, Log: log,
		Coordinator: func(ctx context.Context) (*url.URL, error) { return coordinator.URL(ctx, n.Client()) },
		Captures:    func(ctx context.Context) ([]httpapi.Capture, error) { return httpapi.ListCaptures(ctx, n.Client()) },
		Drains:      controllers.drains, HealthEvents: controllers.healthEvents, Works: kinds.Works(), Logs: deployment.Logs{Dir: dir.Programs()}, Version: version,
	})
}
