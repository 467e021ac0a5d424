package pod

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kube"
)

// Kind declares pods. They are objects of Kubernetes and not Ebb's: no node of Ebb hosts them, and where the API has none this is nothing.
func Kind() kind.Kind {
	present := &atomic.Bool{} // whether this process moves pods
	return kind.Kind{
		Name: Name,
		Tenants: func(r client.Reader) []drain.Tenant {
			if !present.Load() && r != nil { // without a reader somebody asks for the names
				return nil
			}
			return []drain.Tenant{Tenant{Reader: r}}
		},
		New:       func() kind.Part { return &part{present: present, limits: DefaultLimits()} },
		Summaries: readSummaries,
		Samples:   func() []client.Object { return nil },
	}
}

// part is the part of this kind in an `ebb node` process.
type part struct {
	present *atomic.Bool
	limits  Limits
	metrics *Metrics
}

// AddFlags implements kind.Part.
func (p *part) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&p.limits.Parallel, "evictions-parallel", p.limits.Parallel, "on Kubernetes, how many evictions of pods the coordinator sends at once; at most half of them for one node")
	fs.IntVar(&p.limits.PerSecond, "evictions-per-second", p.limits.PerSecond, "on Kubernetes, how many requests about pods the coordinator sends per second")
	fs.DurationVar(&p.limits.TerminatingFor, "terminating-pods-after", p.limits.TerminatingFor, "on Kubernetes, how long a drain waits for a pod after the pod's grace period")
}

// Validate implements kind.Part.
func (p *part) Validate() error { return p.limits.Validate() }

// Host implements kind.Part.
func (p *part) Host(env kind.Env) (kind.Hosted, error) {
	p.metrics = NewMetrics(env.Registry)
	return kind.Hosted{}, nil
}

// Setup implements kind.Part. Where a custom drain is set up, another controller moves the pods.
func (p *part) Setup(t kind.Term) error {
	has, err := kube.HasNodes(t.Manager.GetConfig())
	if err != nil {
		return err
	}
	if p.present.Store(has && t.Drains.CustomDrain == nil); !p.present.Load() {
		return nil
	}
	return (&Controller{
		CheckTerm: t.CheckTerm, Tenants: t.Tenants, Config: t.Drains, Limits: p.limits, Metrics: p.metrics, Log: t.Log, AtStep: t.AtStep,
	}).SetupWithManager(t.Manager)
}

// readSummaries: pods have no line of their own; drains show them.
func readSummaries(context.Context, client.Reader, time.Time) ([]*kind.Summary, error) {
	return nil, nil
}
