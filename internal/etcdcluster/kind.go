package etcdcluster

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/etcdcluster/host"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

// Kind declares etcd clusters as a kind of work.
func Kind() kind.Kind {
	return kind.Kind{
		Name: "etcdclusters",
		Objects: []access.Object{
			{Resource: "etcdclusters"},
			{Resource: "etcdmembers", Coordinator: access.Both, Node: &access.NodeWrites{
				Runtime: host.KindMembers, Bindings: []access.Binding{{Node: "spec.node", Epoch: "status.nodeEpoch"}},
			}},
			// Every node that keeps a copy of a snapshot writes so. What was taken is written by the node that takes it.
			{Resource: "etcdsnapshots", Coordinator: access.Both, Node: &access.NodeWrites{
				Runtime: host.KindData, Entries: "status.copies",
				Owned: []access.Owned{{Node: "spec.memberNode", Paths: []string{"status.facts", "status.error", "status.taking"}}},
			}},
		},
		Tenants:   Tenants,
		New:       func() kind.Part { return &part{} },
		Summaries: readSummaries,
		Samples: func() []client.Object {
			return []client.Object{&v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: kind.DefaultNamespace, Name: "demo"}}}
		},
	}
}

// part is what an `ebb node` process has of etcd clusters.
type part struct {
	dir, snapshots, ports string

	files   peer.Files
	metrics *Metrics
}

// AddFlags implements kind.Part.
func (p *part) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.dir, "etcd-dir", "", "directory in which members of etcd clusters keep their data, an absolute path (default: etcd in the node's directory)")
	fs.StringVar(&p.snapshots, "etcd-snapshot-dir", "", "directory in which snapshots of etcd clusters are kept, an absolute path (default: etcd-snapshots in the node's directory)")
	fs.StringVar(&p.ports, "etcd-ports", host.DefaultPorts, "ports for members of etcd clusters, two for each")
}

// Validate implements kind.Part.
func (p *part) Validate() error {
	if p.dir != "" && !filepath.IsAbs(p.dir) {
		return fmt.Errorf("--etcd-dir %q: give an absolute path", p.dir)
	}
	if p.snapshots != "" && !filepath.IsAbs(p.snapshots) {
		return fmt.Errorf("--etcd-snapshot-dir %q: give an absolute path", p.snapshots)
	}
	if _, err := host.ParsePorts(p.ports); err != nil {
		return fmt.Errorf("--etcd-ports: %w", err)
	}
	return nil
}

// Host implements kind.Part.
func (p *part) Host(env kind.Env) (kind.Hosted, error) {
	ports, err := host.ParsePorts(p.ports)
	if err != nil {
		return kind.Hosted{}, err
	}
	data, snapshots := p.dir, p.snapshots
	if data == "" {
		data = env.Dir.Etcd()
	}
	if snapshots == "" {
		snapshots = env.Dir.EtcdSnapshots()
	}
	p.files, p.metrics = env.Files, NewMetrics(env.Registry)
	h, err := host.New(host.Options{
		Node: env.Node, Gate: env.Gate, Exe: env.Exe, Dir: data, Snapshots: snapshots, Address: env.Host, Ports: ports, Files: env.Files,
		Metrics: host.NewMetrics(env.Registry, env.Node), Log: env.Log, MemberArgs: env.LogArgs, MemberLogLevel: env.LibraryLogLevel,
	})
	if err != nil {
		return kind.Hosted{}, err
	}
	return kind.Hosted{Runtimes: []node.Hosted{h.Data(), h.Members()}, Services: []peer.Service{h.Service()}}, nil
}

// Setup implements kind.Part.
func (p *part) Setup(t kind.Term) error {
	c := &Controller{Leader: t.Leader, CheckTerm: t.CheckTerm, Files: p.files, Metrics: p.metrics, Log: t.Log, AtStep: t.AtStep}
	return c.SetupWithManager(t.Manager)
}

func readSummaries(ctx context.Context, r client.Reader, _ time.Time) ([]*kind.Summary, error) {
	var list v1alpha1.EtcdClusterList
	if err := r.List(ctx, &list); err != nil {
		return nil, err
	}
	return []*kind.Summary{Summarize(list.Items)}, nil
}
