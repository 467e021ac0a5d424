package host_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/etcdcluster/host"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/testenv"
)

const (
	// patience bounds every wait for something that should come.
	patience = 4 * time.Minute
	// glance is how often somebody looks whether it has: every look is a request.
	glance = 50 * time.Millisecond
)

// calm is a timing that is kept whatever else the machine does.
func calm() lease.Timing {
	return lease.Timing{Renew: 3 * time.Second, Timeout: 3 * time.Second, Fence: 20 * time.Second, Dead: 24 * time.Second, Lost: 30 * time.Second}
}

// until polls for a condition that an API object or another process reaches in its own time.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(glance) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// A server takes seconds to start under the race detector, so tests share one.
var sharedAPI = sync.OnceValue(func() *testenv.API { return testenv.StartAPI(&all, etcdcluster.Kind().Objects...) })

var yards atomic.Int64

// yard is a real embedded API, and the nodes, members and snapshots of one test, in a namespace of their own.
type yard struct {
	t         testing.TB
	api       *testenv.API
	admin     client.WithWatch
	namespace string
	uid       string // of the cluster, which is only a name here
}

func newYard(t testing.TB) *yard {
	t.Helper()
	return yardOn(t, sharedAPI())
}

// newYardAlone is a yard on an API of its own.
func newYardAlone(t testing.TB) *yard {
	t.Helper()
	return yardOn(t, testenv.StartAPI(t, etcdcluster.Kind().Objects...))
}

func yardOn(t testing.TB, api *testenv.API) *yard {
	n := yards.Add(1)
	y := &yard{t: t, api: api, admin: api.Admin(), namespace: fmt.Sprintf("yard-%d", n), uid: fmt.Sprintf("uid-%d", n)}
	y.must(y.admin.Create(context.Background(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: y.namespace}}))
	t.Cleanup(y.clear)
	return y
}

func (y *yard) must(err error) {
	y.t.Helper()
	if err != nil {
		y.t.Fatal(err)
	}
}

// clear removes the objects, once nobody looks after them any more.
func (y *yard) clear() {
	ctx := context.Background()
	in := client.InNamespace(y.namespace)
	var members v1alpha1.EtcdMemberList
	y.must(y.admin.List(ctx, &members, in))
	for i := range members.Items {
		y.must(client.IgnoreNotFound(y.admin.Delete(ctx, &members.Items[i])))
	}
	var snapshots v1alpha1.EtcdSnapshotList
	y.must(y.admin.List(ctx, &snapshots, in))
	for i := range snapshots.Items {
		s := &snapshots.Items[i]
		y.must(client.IgnoreNotFound(y.admin.Delete(ctx, s)))
		until(y.t, s.Name+" to be gone", func() bool {
			err := y.admin.Get(ctx, client.ObjectKeyFromObject(s), s)
			if err == nil && len(s.Finalizers) > 0 {
				s.Finalizers = nil
				_ = y.admin.Update(ctx, s) // seen in the next round
			}
			return kubeclient.IsMissing(err)
		})
	}
}

// machine is a node with its runtimes in the test's own process, against a real API.
type machine struct {
	t     testing.TB
	yard  *yard
	name  string
	dir   datadir.NodeDir
	opts  node.Options
	etcds host.Options

	host   *host.Host
	node   *node.Node
	peers  net.Listener
	listen func(net.Listener) net.Listener // what is between the node and those that connect to it; nil if nothing
	cancel context.CancelFunc
	ended  chan error
}

// machine starts a node and waits until it is Ready.
func (y *yard) machine(name string, changes ...func(*machine)) *machine {
	y.t.Helper()
	name += "-" + y.namespace
	dir := y.api.Node(name)
	registry := prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(logWriter{y.t}, nil))
	exe, err := os.Executable()
	y.must(err)
	ports, err := host.ParsePorts(host.DefaultPorts)
	y.must(err)
	m := &machine{t: y.t, yard: y, name: name, dir: dir}
	m.opts = node.Options{
		Name: name, Dir: dir, Config: y.api.Config(dir.Kubeconfig()), Timing: calm(), Clock: node.BootTime, HTTPAddress: "https://127.0.0.1:1", Version: "test",
		Metrics: node.NewMetrics(registry, name), Log: log, Die: func(reason string) { y.t.Error(reason) },
	}
	m.etcds = host.Options{
		Node: name, Exe: exe, Dir: dir.Etcd(), Snapshots: dir.EtcdSnapshots(), Address: "127.0.0.1", Ports: ports,
		Files:   peer.Files{Cert: dir.TLSCert(), Key: dir.TLSKey(), CA: dir.CA()},
		Metrics: host.NewMetrics(registry, name), Log: log.With("node", name), ReachLimit: patience, // a machine that is busy with other tests answers late
	}
	for _, change := range changes {
		change(m)
	}
	m.start()
	return m
}

type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	defer func() { _ = recover() }() // a line after the test's end is nobody's concern
	w.t.Logf("%s", p)
	return len(p), nil
}

// start runs the node until stop.
func (m *machine) start() {
	m.t.Helper()
	var err error
	m.opts.Gate = node.NewGate(m.opts.Metrics.Refused)
	m.etcds.Gate = m.opts.Gate
	m.host, err = host.New(m.etcds)
	m.yard.must(err)
	m.peers, err = net.Listen("tcp", "127.0.0.1:0")
	m.yard.must(err)
	if m.listen != nil {
		m.peers = m.listen(m.peers)
	}
	m.opts.Address = m.peers.Addr().String()
	m.opts.Runtimes = []node.Hosted{m.host.Data(), m.host.Members()}
	m.opts.Peers = node.Peers{Listener: m.peers, Files: m.etcds.Files, Services: []peer.Service{m.host.Service()}}
	m.node, err = node.New(m.opts)
	m.yard.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.ended = cancel, make(chan error, 1)
	go func(n *node.Node, ended chan error) { ended <- n.Run(ctx) }(m.node, m.ended)
	m.t.Cleanup(m.stop)
	until(m.t, m.name+" to be Ready", func() bool {
		e := m.node.Epoch()
		if e == nil {
			return false
		}
		n := m.object()
		return n.Status.Epoch == e.Number && n.IsReady()
	})
}

// stop is SIGTERM: the node leaves in order.
func (m *machine) stop() {
	m.t.Helper()
	if m.cancel == nil {
		return
	}
	m.cancel()
	m.cancel = nil
	select {
	case err := <-m.ended:
		if err != nil {
			m.t.Errorf("node %s: %v", m.name, err)
		}
	case <-time.After(patience):
		m.t.Fatalf("node %s did not end", m.name)
	}
	_ = m.peers.Close() // it may be closed
}

func (m *machine) object() *v1alpha1.Node {
	m.t.Helper()
	n := &v1alpha1.Node{}
	m.yard.must(m.yard.admin.Get(context.Background(), types.NamespacedName{Name: m.name}, n))
	return n
}

// update changes the Node as an admin would.
func (m *machine) update(change func(*v1alpha1.Node)) {
	m.t.Helper()
	until(m.t, m.name+" to be updated", func() bool {
		n := m.object()
		change(n)
		return m.yard.admin.Update(context.Background(), n) == nil
	})
}

// held is what the node says it holds of a kind.
func (m *machine) held(kind string) int64 { return m.object().Status.Held[kind] }

// memberDir is where the node keeps a member.
func (m *machine) memberDir(name string) string {
	return filepath.Join(m.etcds.Dir, m.yard.uid, name)
}

// snapshotFile is where the node keeps a snapshot.
func (m *machine) snapshotFile(name string) string {
	return filepath.Join(m.etcds.Snapshots, m.yard.uid, name+".db")
}

// reserve makes a member on a node and waits for its URLs.
func (y *yard) reserve(name string, on *machine, changes ...func(*v1alpha1.EtcdMember)) *v1alpha1.EtcdMember {
	y.t.Helper()
	m := &v1alpha1.EtcdMember{
		ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name, Labels: map[string]string{v1alpha1.EtcdClusterLabel: "c"}},
		Spec: v1alpha1.EtcdMemberSpec{
			Cluster: "c", ClusterUID: y.uid, Incarnation: 1, Node: on.name, Want: v1alpha1.EtcdMemberReserve, ClientTLS: true, PeerTLS: true,
			Options: v1alpha1.EtcdOptions{HeartbeatMilliseconds: 50, ElectionMilliseconds: 500},
		},
	}
	for _, change := range changes {
		change(m)
	}
	y.must(y.admin.Create(context.Background(), m))
	return y.awaitPhase(m, v1alpha1.EtcdMemberReserved)
}

// want changes what is wanted of a member.
func (y *yard) want(m *v1alpha1.EtcdMember, want v1alpha1.EtcdMemberWish, changes ...func(*v1alpha1.EtcdMember)) *v1alpha1.EtcdMember {
	y.t.Helper()
	until(y.t, m.Name+" to be changed", func() bool {
		y.must(y.admin.Get(context.Background(), client.ObjectKeyFromObject(m), m))
		m.Spec.Want = want
		for _, change := range changes {
			change(m)
		}
		err := y.admin.Update(context.Background(), m)
		if err != nil && !apierrors.IsConflict(err) {
			y.t.Fatal(err)
		}
		return err == nil
	})
	return m
}

// awaitPhase waits until a member is so for what is wanted of it.
func (y *yard) awaitPhase(m *v1alpha1.EtcdMember, phase v1alpha1.EtcdMemberPhase) *v1alpha1.EtcdMember {
	y.t.Helper()
	got := &v1alpha1.EtcdMember{}
	defer func() {
		if y.t.Failed() {
			y.t.Logf("%s: %+v", m.Name, got.Status)
		}
	}()
	until(y.t, fmt.Sprintf("%s to be %s", m.Name, phase), func() bool {
		y.must(y.admin.Get(context.Background(), client.ObjectKeyFromObject(m), got))
		return got.Status.Phase == phase && got.Status.ObservedGeneration == got.Generation
	})
	return got
}

// begins says how a member that is the first of a new cluster begins.
func begins(m *v1alpha1.EtcdMember) {
	m.Spec.Begin = &v1alpha1.EtcdBegin{InitialCluster: m.Name + "=" + m.Status.PeerURL, Token: "token"}
}

// running is a member that runs as a cluster of its own.
func (y *yard) running(name string, on *machine) *v1alpha1.EtcdMember {
	y.t.Helper()
	m := y.reserve(name, on)
	return y.awaitPhase(y.want(m, v1alpha1.EtcdMemberRun, begins), v1alpha1.EtcdMemberRunning)
}

// client reaches a member at its client URL as an admin.
func (y *yard) client(m *v1alpha1.EtcdMember) *clientv3.Client {
	y.t.Helper()
	cfg := y.api.Config(y.api.Dir.Kubeconfig())
	pair, err := tls.X509KeyPair(cfg.CertData, cfg.KeyData)
	y.must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cfg.CAData)
	cli, err := clientv3.New(clientv3.Config{
		Endpoints: []string{m.Status.ClientURL}, TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}, Logger: zap.NewNop(),
	})
	y.must(err)
	y.t.Cleanup(func() { cli.Close() })
	return cli
}

// private reaches a member on its private socket.
func (m *machine) private(name string) *clientv3.Client {
	m.t.Helper()
	cli, err := member.Dial(m.memberDir(name))
	m.yard.must(err)
	m.t.Cleanup(func() { cli.Close() })
	return cli
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// snapshot asks for a snapshot of a member, to be kept on nodes.
func (y *yard) snapshot(name, of string, revision int64, on ...*machine) *v1alpha1.EtcdSnapshot {
	y.t.Helper()
	s := &v1alpha1.EtcdSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name, Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer}},
		Spec:       v1alpha1.EtcdSnapshotSpec{Cluster: "c", ClusterUID: y.uid, Incarnation: 1, Generation: 1, Member: of, Revision: revision},
	}
	m := &v1alpha1.EtcdMember{}
	y.must(client.IgnoreNotFound(y.admin.Get(context.Background(), client.ObjectKey{Namespace: y.namespace, Name: of}, m)))
	s.Spec.MemberNode, s.Spec.FromData = m.Spec.Node, m.Spec.Want == v1alpha1.EtcdMemberStop
	for _, m := range on {
		s.Spec.Nodes = append(s.Spec.Nodes, m.name)
	}
	y.must(y.admin.Create(context.Background(), s))
	return s
}

// awaitSnapshot waits until a snapshot is so.
func (y *yard) awaitSnapshot(s *v1alpha1.EtcdSnapshot, what string, is func(*v1alpha1.EtcdSnapshot) bool) *v1alpha1.EtcdSnapshot {
	y.t.Helper()
	got := &v1alpha1.EtcdSnapshot{}
	defer func() {
		if y.t.Failed() {
			y.t.Logf("%s: %+v", s.Name, got.Status)
		}
	}()
	until(y.t, s.Name+": "+what, func() bool {
		y.must(y.admin.Get(context.Background(), client.ObjectKeyFromObject(s), got))
		return is(got)
	})
	return got
}

// kept says that exactly these nodes have verified copies.
func kept(on ...*machine) func(*v1alpha1.EtcdSnapshot) bool {
	return func(s *v1alpha1.EtcdSnapshot) bool {
		verified := map[string]bool{}
		for _, n := range s.Verified() {
			verified[n] = true
		}
		for _, m := range on {
			if !verified[m.name] {
				return false
			}
		}
		return len(verified) == len(on)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// fence calls a node lost though it lives, as the coordinator does, and waits until it is back with its next epoch.
func (y *yard) fence(m *machine) {
	y.t.Helper()
	ctx := context.Background()
	before := m.object().Status.Epoch
	until(y.t, m.name+" to be marked", func() bool {
		l := &coordinationv1.Lease{}
		y.must(y.admin.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(m.name)}, l))
		rec, err := lease.Read(l)
		y.must(err)
		marked, err := lease.Fence(l, rec)
		y.must(err)
		return y.admin.Update(ctx, marked) == nil
	})
	until(y.t, "the next epoch of "+m.name, func() bool {
		n := m.object()
		return n.Status.Epoch > before && n.IsReady()
	})
}
