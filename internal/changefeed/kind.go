package changefeed

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
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

// Kind declares changefeeds as a kind of work.
func Kind() kind.Kind {
	return kind.Kind{
		Name: "changefeeds",
		Objects: []access.Object{{Resource: "changefeeds", Node: &access.NodeWrites{
			Runtime: KindMaintainers,
			// The node of the maintainer, and the one that the maintainer is moving away from.
			Bindings: []access.Binding{
				{Node: "status.placement.node", Epoch: "status.placement.nodeEpoch"},
				{Node: "status.placement.from.node", Epoch: "status.placement.from.nodeEpoch"},
			},
			Fixed: []string{"status.placement.node", "status.placement.nodeEpoch", "status.placement.epoch"},
		}}},
		Tenants:   Tenants,
		New:       func() kind.Part { return &part{} },
		Summaries: readSummaries,
		Samples: func() []client.Object {
			return []client.Object{&v1alpha1.Changefeed{
				ObjectMeta: metav1.ObjectMeta{Namespace: kind.DefaultNamespace, Name: "stream"},
				Spec:       v1alpha1.ChangefeedSpec{Source: "datagen://?tables=30&rate=300", Sink: "blackhole://"},
			}}
		},
	}
}

// part is what an `ebb node` process has of changefeeds.
type part struct {
	credentials, files string
	memory             int64
}

// AddFlags implements kind.Part.
func (p *part) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.credentials, "credentials-dir", "", "directory of the password files that changefeeds name, the same on every node (default: credentials in the data directory)")
	fs.StringVar(&p.files, "file-sink-dir", "", "directory below which changefeeds may write files, an absolute path; without it they may write none")
	fs.Int64Var(&p.memory, "changefeed-memory", 256<<20, "memory in bytes for changes that were read from sources and not yet written to sinks on this node")
}

// Validate implements kind.Part.
func (p *part) Validate() error {
	if p.files != "" && !filepath.IsAbs(p.files) {
		return fmt.Errorf("--file-sink-dir %q: give an absolute path", p.files)
	}
	if p.memory < 1<<20 {
		return fmt.Errorf("--changefeed-memory %d: give at least %d bytes", p.memory, 1<<20)
	}
	return nil
}

// Host implements kind.Part.
func (p *part) Host(env kind.Env) (kind.Hosted, error) {
	credentials := p.credentials
	if credentials == "" {
		credentials = env.Shared.Credentials()
	}
	h := NewHost(Options{
		Node: env.Node, Gate: env.Gate, Files: env.Files,
		Opener: Opener{Credentials: credentials, Secret: SecretsOf(env.Objects), Files: p.files, Log: env.Log}, Memory: p.memory,
		Metrics: NewMetrics(env.Registry, env.Node), Log: env.Log,
	})
	return kind.Hosted{Runtimes: []node.Hosted{h.Maintainers(), h.Dispatchers()}, Services: []peer.Service{h.Service()}}, nil
}

// Setup implements kind.Part.
func (p *part) Setup(t kind.Term) error {
	return (&Controller{Leader: t.Leader, CheckTerm: t.CheckTerm, Log: t.Log}).SetupWithManager(t.Manager)
}

func readSummaries(ctx context.Context, r client.Reader, now time.Time) ([]*kind.Summary, error) {
	var list v1alpha1.ChangefeedList
	if err := r.List(ctx, &list); err != nil {
		return nil, err
	}
	return []*kind.Summary{Summarize(list.Items, now)}, nil
}
