// Package kind is the frame around every kind of work. A kind declares one Kind in its kind.go; whatever places, counts, drains, guards and
// shows work goes through that declaration and knows no kind by name.
package kind

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

// Kind is one kind of work.
type Kind struct {
	// Name in the plural.
	Name string
	// Objects of the API that belong to it, and who may write them.
	Objects []access.Object
	// Tenants are what a drain counts and waits for, read through r when a drain first asks.
	Tenants func(r client.Reader) []drain.Tenant
	// New makes its part of one `ebb node` process.
	New func() Part
	// Summaries are its lines of `ebb status`.
	Summaries func(ctx context.Context, r client.Reader, now time.Time) ([]*Summary, error)
	// Samples are small objects for `ebb up --samples`.
	Samples func() []client.Object
}

// Part is a kind in one `ebb node` process. Its methods are called in the order in which they are declared here.
type Part interface {
	// AddFlags adds its flags to `ebb node`.
	AddFlags(*pflag.FlagSet)
	// Validate refuses flags that would only show later to be wrong.
	Validate() error
	// Host makes what runs on the node, and registers its metrics.
	Host(Env) (Hosted, error)
	// Setup adds its controllers to a term of the coordinator. It is called for every term.
	Setup(Term) error
}

// Env is what a part finds on its node.
type Env struct {
	// Node is the node's name.
	Node string
	// Dir is the node's own directory, and Shared the data directory that it is in.
	Dir    datadir.NodeDir
	Shared datadir.Dir
	// Exe is the running program, for parts that run some of their work in processes of their own.
	Exe string
	// Gate that new work on this node passes.
	Gate *node.Gate
	// Host is the address under which other nodes reach this one, without a port, and Files what it shows them.
	Host  string
	Files peer.Files
	// Objects reads and writes live, as the node.
	Objects client.Client
	// Drains is what the file of --drain-config says.
	Drains *drainconfig.Config
	// Registry of the node's metrics.
	Registry prometheus.Registerer
	// Log of the node.
	Log *slog.Logger
	// LogFormat, LogArgs and LibraryLogLevel are how the processes that a part starts log: as a word, as flags of ebb, and how much of what
	// libraries say.
	LogFormat       string
	LogArgs         []string
	LibraryLogLevel string
}

// Hosted is what a part runs on a node.
type Hosted struct {
	// Runtimes of the part.
	Runtimes []node.Hosted
	// Services that it offers to other nodes.
	Services []peer.Service
	// Protocols that it offers to other nodes beside gRPC.
	Protocols []peer.Protocol
}

// Term is one node's time as coordinator.
type Term struct {
	// Leader is the node that leads.
	Leader string
	// Manager runs the controllers.
	Manager ctrl.Manager
	// CheckTerm fails unless the term does, read live. Irreversible steps ask it last.
	CheckTerm func(context.Context) error
	// Resign lets another node become the coordinator. It returns before the term has ended.
	Resign func(context.Context) error
	// Drains is what the file of --drain-config says.
	Drains *drainconfig.Config
	// Tenants of all kinds.
	Tenants func(client.Reader) []drain.Tenant
	// Log of the term.
	Log *slog.Logger
	// AtStep is called before and after every step, by tests that crash there.
	AtStep func(point string)
}

// Kinds are all kinds of work that a program knows.
type Kinds []Kind

// Objects are the objects of all kinds.
func (ks Kinds) Objects() []access.Object {
	var list []access.Object
	for _, k := range ks {
		list = append(list, k.Objects...)
	}
	return list
}

// Tenants are the tenants of all kinds.
func (ks Kinds) Tenants(r client.Reader) []drain.Tenant {
	var list []drain.Tenant
	for _, k := range ks {
		list = append(list, k.Tenants(r)...)
	}
	return list
}

// Works are what the tenants of all kinds declare.
func (ks Kinds) Works() drain.Works {
	var list drain.Works
	for _, t := range ks.Tenants(nil) {
		list = append(list, t.Work())
	}
	return list
}

// Samples are the samples of all kinds.
func (ks Kinds) Samples() []client.Object {
	var list []client.Object
	for _, k := range ks {
		list = append(list, k.Samples()...)
	}
	return list
}

// Summaries are the lines of all kinds that have objects.
func (ks Kinds) Summaries(ctx context.Context, r client.Reader, now time.Time) ([]*Summary, error) {
	list := []*Summary{}
	for _, k := range ks {
		lines, err := k.Summaries(ctx, r, now)
		if err != nil {
			return nil, err
		}
		for _, line := range lines {
			if line.Total > 0 {
				line.Sort()
				list = append(list, line)
			}
		}
	}
	return list, nil
}

// Parts make every kind's part of one process.
func (ks Kinds) Parts() Parts {
	var list Parts
	for _, k := range ks {
		list = append(list, k.New())
	}
	return list
}

// Parts are the parts of all kinds in one process.
type Parts []Part

// AddFlags adds the flags of every part.
func (ps Parts) AddFlags(fs *pflag.FlagSet) {
	for _, p := range ps {
		p.AddFlags(fs)
	}
}

// Validate refuses what any part refuses.
func (ps Parts) Validate() error {
	var all []error
	for _, p := range ps {
		all = append(all, p.Validate())
	}
	return errors.Join(all...)
}

// Drains is what the file of --drain-config says, once it was validated: the part that reads it has it.
func (ps Parts) Drains() *drainconfig.Config {
	for _, p := range ps {
		if reads, ok := p.(interface{ Drains() *drainconfig.Config }); ok {
			return reads.Drains()
		}
	}
	return drainconfig.Default()
}

// Host makes what all parts run on a node.
func (ps Parts) Host(env Env) (Hosted, error) {
	var all Hosted
	for _, p := range ps {
		h, err := p.Host(env)
		if err != nil {
			return all, err
		}
		all.Runtimes, all.Services = append(all.Runtimes, h.Runtimes...), append(all.Services, h.Services...)
		all.Protocols = append(all.Protocols, h.Protocols...)
	}
	return all, nil
}

// Setup adds the controllers of all parts to a term.
func (ps Parts) Setup(t Term) error {
	for _, p := range ps {
		if err := p.Setup(t); err != nil {
			return err
		}
	}
	return nil
}
