package volume

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/host"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

// Kind declares volumes as a kind of work.
func Kind() kind.Kind {
	return kind.Kind{
		Name:      "volumes",
		Objects:   Objects(),
		Tenants:   Tenants,
		New:       func() kind.Part { return &part{} },
		Summaries: readSummaries,
		Samples: func() []client.Object {
			return []client.Object{&v1alpha1.Volume{
				ObjectMeta: metav1.ObjectMeta{Namespace: kind.DefaultNamespace, Name: "demo"},
				Spec:       v1alpha1.VolumeSpec{Size: resource.MustParse("64Mi"), Replicas: 2},
			}}
		},
	}
}

// Objects are the objects of volumes, and who may write them.
func Objects() []access.Object {
	return []access.Object{
		{Resource: "volumes", Node: &access.NodeWrites{Runtime: host.KindEngines, Check: checkEngineWrite, Policy: engineWritePolicy()}},
		{Resource: "replicas", Coordinator: access.Both, Node: &access.NodeWrites{
			Runtime: host.KindReplicas, Bindings: []access.Binding{{Node: "spec.nodeName", Epoch: "status.nodeEpoch"}},
			Fixed: []string{"status.healthyAt", "status.failedAt", "status.conditions"},
		}},
	}
}

// engineFields are what the engine of a volume writes of its status.
var engineFields = []string{"generation", "members", "nbdURI", "engine"}

// checkEngineWrite admits writes of the node that may run the engine, as the stored object has it. No epoch is needed: an engine is bound to the
// name of its node and to the generation of the volume, and every write is over the version that the engine read.
func checkEngineWrite(_ context.Context, w access.Write) error {
	if !w.Status {
		return fmt.Errorf("node %s may write the status of the volume only", w.Node)
	}
	was, is := statusFields(w.Old), statusFields(w.New)
	engine, _ := was["attachedTo"].(string)
	if engine == "" {
		engine, _ = was["rebuildOn"].(string)
	}
	if engine != w.Node {
		return fmt.Errorf("the engine of the volume is on node %q, not on node %s", engine, w.Node)
	}
	before, _ := was["generation"].(int64)
	if after, _ := is["generation"].(int64); after < before {
		return fmt.Errorf("node %s may not lower the generation of the volume from %d to %d", w.Node, before, after)
	}
	for _, field := range slices.Sorted(maps.Keys(merged(was, is))) {
		if !slices.Contains(engineFields, field) && !equality.Semantic.DeepEqual(was[field], is[field]) {
			return fmt.Errorf("node %s may not change status.%s", w.Node, field)
		}
	}
	return nil
}

// engineWritePolicy is checkEngineWrite for the policies of Kubernetes.
func engineWritePolicy() []access.Rule {
	written := "['" + strings.Join(engineFields, "', '") + "']"
	is, was := "object.?status.orValue({})", "oldObject.?status.orValue({})"
	return []access.Rule{
		{Expression: "request.subResource == 'status'", Message: "a node may write the status of the volume only"},
		{
			Expression: "(oldObject.?status.?attachedTo.orValue('') == '' ? oldObject.?status.?rebuildOn.orValue('') : oldObject.status.attachedTo) == variables.node",
			Message:    "the engine of the volume is on another node",
		},
		{Expression: is + ".?generation.orValue(0) >= " + was + ".?generation.orValue(0)", Message: "a node may not lower the generation of the volume"},
		{
			Expression: fmt.Sprintf("%[1]s.all(k, k in %[3]s || k in %[2]s && %[1]s[k] == %[2]s[k]) && %[2]s.all(k, k in %[3]s || k in %[1]s)", is, was, written),
			Message:    "a node may change only what the engine writes of a volume's status: " + strings.Join(engineFields, ", "),
		},
	}
}

func statusFields(o *unstructured.Unstructured) map[string]any {
	if o == nil {
		return nil
	}
	fields, _, _ := unstructured.NestedMap(o.Object, "status")
	return fields
}

func merged(a, b map[string]any) map[string]any {
	all := map[string]any{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// part is what an `ebb node` process has of volumes.
type part struct {
	dir, sockets string

	metrics *Metrics
}

// AddFlags implements kind.Part.
func (p *part) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.dir, "volume-dir", "", "directory of the disk that holds replicas of volumes if the Node declares no disks, an absolute path (default: volumes in the node's directory)")
	fs.StringVar(&p.sockets, "volume-sockets", "", "directory of the NBD sockets of volumes that are attached to the node, an absolute path (default: nbd in the node's directory)")
}

// Validate implements kind.Part.
func (p *part) Validate() error {
	if p.dir != "" && !filepath.IsAbs(p.dir) {
		return fmt.Errorf("--volume-dir %q: give an absolute path", p.dir)
	}
	if p.sockets != "" && !filepath.IsAbs(p.sockets) {
		return fmt.Errorf("--volume-sockets %q: give an absolute path", p.sockets)
	}
	return nil
}

// Host implements kind.Part.
func (p *part) Host(env kind.Env) (kind.Hosted, error) {
	boot, err := store.BootID()
	if err != nil {
		return kind.Hosted{}, err
	}
	p.metrics = NewMetrics(env.Registry)
	h, err := host.New(host.Options{
		Node: env.Node, Gate: env.Gate, Dir: cmp.Or(p.dir, env.Dir.Volumes()), Sockets: cmp.Or(p.sockets, env.Dir.NBDSockets()), Files: env.Files, Objects: env.Objects, FS: store.OS{}, BootID: boot,
		Clock: func() time.Duration { return time.Duration(node.BootTime()) }, Timing: engine.DefaultTiming(), Metrics: host.NewMetrics(env.Registry, env.Node), Log: env.Log,
	})
	if err != nil {
		return kind.Hosted{}, err
	}
	return kind.Hosted{Runtimes: []node.Hosted{h.Replicas(), h.Engines()}, Protocols: []peer.Protocol{h.Protocol()}}, nil
}

// Setup implements kind.Part.
func (p *part) Setup(t kind.Term) error {
	c := &Controller{Leader: t.Leader, CheckTerm: t.CheckTerm, Metrics: p.metrics, Log: t.Log, AtStep: t.AtStep}
	return c.SetupWithManager(t.Manager)
}

func readSummaries(ctx context.Context, r client.Reader, _ time.Time) ([]*kind.Summary, error) {
	var list v1alpha1.VolumeList
	if err := r.List(ctx, &list); err != nil {
		return nil, err
	}
	return []*kind.Summary{Summarize(list.Items)}, nil
}
