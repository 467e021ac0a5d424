package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/httpapi"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/signer"
)

// cluster is how a client command finds the cluster.
type cluster struct {
	kubeconfig string
	tokenFile  string

	// ahead is how far the clock of the API server was ahead of this machine's at its last answer.
	ahead *atomic.Int64
}

func (c *cluster) addFlags(f *pflag.FlagSet) {
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file of the cluster (default $KUBECONFIG, then kubeconfig in $"+envDataDir+")")
}

func (c *cluster) addTokenFlag(f *pflag.FlagSet) {
	f.StringVar(&c.tokenFile, "token-file", "", "file with the bearer token of /api/v2 (default: token beside the kubeconfig file)")
}

var errNoCluster = errors.New("no cluster: set --kubeconfig, KUBECONFIG or " + envDataDir)

// path is the kubeconfig file to use.
func (c *cluster) path() (string, error) {
	if c.kubeconfig != "" {
		return c.kubeconfig, nil
	}
	if env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); env != "" {
		return env, nil
	}
	if dir := os.Getenv(envDataDir); dir != "" {
		return datadir.Dir(dir).Kubeconfig(), nil
	}
	return "", errNoCluster
}

func (c *cluster) config() (*rest.Config, error) {
	quietLibraries()
	path, err := c.path()
	if err != nil {
		return nil, err
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(path)}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	cfg.Timeout = 30 * time.Second
	if c.ahead == nil {
		c.ahead = &atomic.Int64{}
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return noteClock{next, c.ahead} })
	return kubeclient.Tune(cfg), nil
}

// now is the time of the API server, as its answers tell. Times in objects were written by the machines of the cluster, and the clock of a person's
// machine may be wrong: a coordinator that renews its election would seem to be dead.
func (c *cluster) now() time.Time {
	if c.ahead == nil {
		return time.Now()
	}
	return time.Now().Add(time.Duration(c.ahead.Load()))
}

// noteClock notes how far the clock of a server is ahead. It tells whole seconds: less than two are no difference.
type noteClock struct {
	next  http.RoundTripper
	ahead *atomic.Int64
}

// RoundTrip implements http.RoundTripper.
func (n noteClock) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := n.next.RoundTrip(r)
	if err != nil {
		return resp, err
	}
	if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		ahead := time.Until(at)
		if ahead.Abs() < 2*time.Second {
			ahead = 0
		}
		n.ahead.Store(int64(ahead))
	}
	return resp, nil
}

// WrappedRoundTripper implements net.RoundTripperWrapper, by which client-go finds the transport.
func (n noteClock) WrappedRoundTripper() http.RoundTripper { return n.next }

// client reads and writes live.
func (c *cluster) client() (client.Client, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	return kubeclient.New(cfg)
}

// token of /api/v2.
func (c *cluster) token() (string, error) {
	if c.tokenFile != "" {
		return datadir.ReadToken(c.tokenFile)
	}
	path, err := c.path()
	if err != nil {
		return "", err
	}
	token, err := datadir.ReadToken(filepath.Join(filepath.Dir(path), "token"))
	if errors.Is(err, fs.ErrNotExist) {
		if token, installed, readErr := c.installedToken(); readErr != nil || installed {
			return token, readErr
		}
	}
	if err != nil {
		return "", fmt.Errorf("%w; set the file with --token-file", err)
	}
	return token, nil
}

// installedToken is the token of an installation on Kubernetes, and whether this is one.
func (c *cluster) installedToken() (token string, installed bool, err error) {
	cfg, err := c.config()
	if err != nil {
		return "", false, err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return "", false, err
	}
	return signer.Token(context.Background(), kube, lease.Namespace)
}

// post sends a request to a node's HTTP API and decodes the answer into out.
func (c *cluster) post(ctx context.Context, base *url.URL, path string, out any) error {
	api, err := c.api()
	if err != nil {
		return err
	}
	return api.Do(ctx, http.MethodPost, base, path, out)
}

// api is a client of the nodes' HTTP API.
func (c *cluster) api() (*httpapi.Client, error) {
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	cfg, err := c.config()
	if err != nil {
		return nil, err
	}
	ca, err := c.authority(cfg)
	if err != nil {
		return nil, err
	}
	return httpapi.NewClient(ca, token)
}

// authority is the certificate authority of the nodes: ca.crt beside the kubeconfig file, or the one that the signer published, because a
// Kubernetes API has an authority of its own. Otherwise it is the authority of the API.
func (c *cluster) authority(cfg *rest.Config) ([]byte, error) {
	path, err := c.path()
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(filepath.Dir(path), "ca.crt"))
	if !errors.Is(err, fs.ErrNotExist) {
		return ca, err
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	if ca, installed, err := signer.Authority(context.Background(), kube, lease.Namespace); err != nil || installed {
		return ca, err
	}
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return nil, err
	}
	return cfg.CAData, nil
}
