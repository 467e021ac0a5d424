package testenv

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/apiserver"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// API is an embedded API in the test's own process, on a store of its own.
type API struct {
	// Dir is its data directory.
	Dir datadir.Dir

	t    testing.TB
	stop func()
}

// Quiet silences the libraries of Kubernetes: they tell of themselves, and a failing test has its own words.
var Quiet = sync.OnceFunc(func() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
})

// StartAPI starts an embedded API that ends with the test.
func StartAPI(t testing.TB) *API {
	t.Helper()
	Quiet()
	a := &API{Dir: datadir.Dir(t.TempDir()), t: t}
	a.Start()
	t.Cleanup(func() { a.Stop() })
	return a
}

// Start serves again after Stop, from the same data and on the same port.
func (a *API) Start() {
	a.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	server, err := apiserver.New(ctx, apiserver.Options{Dir: a.Dir, Listen: "127.0.0.1:0", EtcdPrefix: "/ebb"})
	if err != nil {
		cancel()
		a.t.Fatal(err)
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- server.Run(ctx, func() { close(ready) }) }()
	a.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			a.t.Errorf("embedded API: %v", err)
		}
	}
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		a.t.Fatalf("embedded API did not start: %v", err)
	case <-time.After(2 * time.Minute):
		cancel()
		a.t.Fatal("embedded API did not start within two minutes")
	}
}

// Stop ends the server and keeps its data.
func (a *API) Stop() {
	if a.stop != nil {
		a.stop()
		a.stop = nil
	}
}

// Config is the client configuration in a kubeconfig file.
func (a *API) Config(kubeconfig string) *rest.Config {
	a.t.Helper()
	cfg, err := kubeclient.Load(kubeconfig)
	if err != nil {
		a.t.Fatal(err)
	}
	return cfg
}

// Admin is a client that may do everything.
func (a *API) Admin() client.WithWatch { return a.Client(a.Dir.Kubeconfig()) }

// Client is a client with the credentials in a kubeconfig file.
func (a *API) Client(kubeconfig string) client.WithWatch {
	a.t.Helper()
	c, err := kubeclient.New(a.Config(kubeconfig))
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// Node issues the credentials of a node and returns its directory.
func (a *API) Node(name string) datadir.NodeDir {
	a.t.Helper()
	dir := a.Dir.Node(name)
	if err := a.Dir.IssueNode(dir, name, []string{"127.0.0.1"}); err != nil {
		a.t.Fatal(err)
	}
	return dir
}
