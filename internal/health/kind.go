package health

import (
	"sync/atomic"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health/render"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kube"
)

// Name of the kind.
const Name = "healthevents"

// Kind declares health events. They are no work of their own; a drain that a person requested waits for the custom drain of its node.
func Kind() kind.Kind {
	custom := &atomic.Bool{} // whether this process has a custom drain
	return kind.Kind{
		Name:    Name,
		Objects: []access.Object{{Resource: Name, Coordinator: access.Both}},
		Tenants: func(r client.Reader) []drain.Tenant {
			if !custom.Load() && r != nil { // without a reader somebody asks for the names
				return nil
			}
			return []drain.Tenant{Tenant{Reader: r}}
		},
		New:       func() kind.Part { return &part{custom: custom} },
		Summaries: readSummaries,
		Samples:   func() []client.Object { return nil },
	}
}

// part is the part of this kind in an `ebb node` process.
type part struct {
	custom *atomic.Bool
	path   string

	loaded  *Loaded
	metrics *Metrics
}

// Loaded is what the file of --drain-config says, ready for use.
type Loaded struct {
	Config   *drainconfig.Config
	Rules    *Rules
	Template *render.Template
}

// Load reads the file of --drain-config, compiles its rules and renders a sample of its template. Without a file everything is as by default.
func Load(path string) (*Loaded, error) {
	if path == "" {
		return Prepare(drainconfig.Default())
	}
	config, err := drainconfig.Load(path)
	if err != nil {
		return nil, err
	}
	return Prepare(config)
}

// Prepare compiles the rules of a configuration and renders a sample of its template.
func Prepare(config *drainconfig.Config) (*Loaded, error) {
	l := &Loaded{Config: config}
	var err error
	if l.Rules, err = CompileRules(config.Rules); err != nil {
		return nil, err
	}
	if c := config.CustomDrain; c != nil {
		l.Template, err = render.Parse(c.TemplatePath, c.Template, c.GVK, c.Namespace)
	}
	return l, err
}

// AddDrainConfigFlag adds --drain-config to a command.
func AddDrainConfigFlag(fs *pflag.FlagSet, path *string) {
	fs.StringVar(path, "drain-config", "", "TOML file about quarantines and drains of unhealthy nodes (docs/health-events.md)")
}

// AddFlags implements kind.Part.
func (p *part) AddFlags(fs *pflag.FlagSet) { AddDrainConfigFlag(fs, &p.path) }

// Validate implements kind.Part.
func (p *part) Validate() (err error) {
	if p.loaded, err = Load(p.path); err != nil {
		return err
	}
	p.custom.Store(p.loaded.Config.CustomDrain != nil)
	return nil
}

// Drains is what the file says, for the kinds of work whose modes it has.
func (p *part) Drains() *drainconfig.Config {
	if p.loaded == nil {
		return drainconfig.Default()
	}
	return p.loaded.Config
}

// Host implements kind.Part.
func (p *part) Host(env kind.Env) (kind.Hosted, error) {
	p.metrics = NewMetrics(env.Registry)
	return kind.Hosted{}, nil
}

// MetricsOf are the metrics of health events of a process, which Host has made; nil without them.
func MetricsOf(parts kind.Parts) *Metrics {
	for _, p := range parts {
		if mine, ok := p.(*part); ok {
			return mine.metrics
		}
	}
	return nil
}

// Setup implements kind.Part.
func (p *part) Setup(t kind.Term) error {
	pods, err := kube.HasNodes(t.Manager.GetConfig())
	if err != nil {
		return err
	}
	return (&Controller{
		Core:   pods,
		Pods:   pods && p.loaded.Config.CustomDrain == nil,
		Leader: t.Leader, CheckTerm: t.CheckTerm, Resign: t.Resign, Tenants: t.Tenants, Config: p.loaded.Config, Rules: p.loaded.Rules, Template: p.loaded.Template,
		Metrics: p.metrics, Log: t.Log, AtStep: t.AtStep,
	}).SetupWithManager(t.Manager)
}

// CustomResources is what the coordinator may write for custom drains, besides the objects of Ebb.
func CustomResources(c *drainconfig.Config) []access.Object {
	if c.CustomDrain == nil {
		return nil
	}
	return []access.Object{{Resource: access.AnyResource, Group: c.CustomDrain.GVK.Group, Namespace: c.CustomDrain.Namespace, Coordinator: access.Both}}
}
