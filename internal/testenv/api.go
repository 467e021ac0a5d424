package testenv

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/apiserver"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// API is an embedded API in the test's own process, on a store of its own.
type API struct {
	// Dir is its data directory.
	Dir datadir.Dir

	t       testing.TB
	objects []access.Object
	stop    func()
	port    *Port // held while the server is stopped; nil otherwise
}

// prefix of every key in the store.
const prefix = "/ebb"

// Quiet silences the libraries of Kubernetes: they tell of themselves, and a failing test has its own words.
var Quiet = sync.OnceFunc(func() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
})

// StartAPI starts an embedded API that ends with the test. It guards the given objects of kinds of work.
func StartAPI(t testing.TB, objects ...access.Object) *API {
	t.Helper()
	Quiet()
	a := &API{Dir: datadir.Dir(t.TempDir()), t: t, objects: objects}
	a.Start()
	t.Cleanup(func() {
		a.end()
		a.release()
	})
	return a
}

// Start serves again after Stop, from the same data and on the same port.
func (a *API) Start() {
	a.t.Helper()
	a.release()
	ctx, cancel := context.WithCancel(context.Background())
	server, err := apiserver.New(ctx, apiserver.Options{Dir: a.Dir, Listen: "127.0.0.1:0", EtcdPrefix: prefix, Objects: a.objects})
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
	case <-time.After(5 * time.Minute):
		cancel()
		a.t.Fatal("embedded API did not start within five minutes")
	}
}

// Stop ends the server and keeps its data, and its port, which another package's test could get.
func (a *API) Stop() {
	if !a.end() {
		return
	}
	server, err := url.Parse(a.Config(a.Dir.Kubeconfig()).Host)
	if err != nil {
		a.t.Fatal(err)
	}
	port, err := strconv.Atoi(server.Port())
	if err == nil {
		a.port, err = HoldPort(port)
	}
	if err != nil {
		a.t.Fatal(err)
	}
}

// end ends the server, and reports whether it ran.
func (a *API) end() bool {
	if a.stop == nil {
		return false
	}
	a.stop()
	a.stop = nil
	return true
}

// release lets the port go that the stopped server had.
func (a *API) release() {
	if a.port != nil {
		a.port.Release()
		a.port = nil
	}
}

// Empty takes away every object but namespaces, definitions and the Settings, which become as they are at the start. Those that the rules
// keep go too: a test finds an API like a new one, which a new one takes seconds to be.
func (a *API) Empty() {
	a.t.Helper()
	etcd, err := os.Open(filepath.Join(a.Dir.APIServer(), "etcd"))
	if err != nil {
		a.t.Fatal(err)
	}
	defer etcd.Close()
	// Through the open directory, since the name of a socket must be short.
	store, err := clientv3.New(clientv3.Config{
		Endpoints: []string{fmt.Sprintf("unix:///proc/self/fd/%d/client.sock", etcd.Fd())}, DialTimeout: 5 * time.Minute, Logger: zap.NewNop(),
	})
	if err != nil {
		a.t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, group := range []string{v1alpha1.GroupVersion.Group, coordinationv1.GroupName, "events"} {
		if _, err := store.Delete(ctx, prefix+"/"+group+"/", clientv3.WithPrefix()); err != nil {
			a.t.Fatal(err)
		}
	}
	if err := a.Admin().Create(ctx, &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}); err != nil {
		a.t.Fatal(err)
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
