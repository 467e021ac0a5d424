package deployment

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/node"
)

// Kind declares programs, deployments and daemons, as a kind of work.
func Kind() kind.Kind {
	drains := &atomic.Pointer[drainconfig.Config]{} // what this process read
	completes := func(namespace string) bool {
		c := drains.Load()
		if c == nil {
			return false
		}
		mode, named := c.ModeOf(namespace) // what the file does not name leaves at once, as it always has
		return named && mode == drainconfig.AllowCompletion
	}
	return kind.Kind{
		Name:      Name,
		Objects:   []access.Object{{Resource: "deployments", Node: &access.NodeWrites{Runtime: Name, Check: checkNodeWrite, Policy: nodeWritePolicy}}},
		Tenants:   func(r client.Reader) []drain.Tenant { return []drain.Tenant{Tenant{Reader: r, Completes: completes}} },
		New:       func() kind.Part { return &part{weights: DefaultWeights(), drains: drains, completes: completes} },
		Summaries: readSummaries,
		Samples:   samples,
	}
}

// part is the part of this kind in an `ebb node` process.
type part struct {
	policyText, trustText, uidsText, usersText string
	weights                                    Weights
	drains                                     *atomic.Pointer[drainconfig.Config]
	completes                                  func(namespace string) bool

	policy  v1alpha1.ClaimPolicy
	trust   Trust
	uids    UIDs
	metrics *Metrics
}

// AddFlags implements kind.Part.
func (p *part) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.policyText, "claim-policy", os.Getenv(EnvClaimPolicy),
		"how the node chooses deployments to claim: deployment_count (the default), resource_usage or none ($"+EnvClaimPolicy+")")
	fs.StringVar(&p.trustText, "trusted-command-regexp", os.Getenv(EnvTrusted),
		"regular expression that a program's command must match for the node to claim or run it; empty trusts every command ($"+EnvTrusted+")")
	fs.StringVar(&p.uidsText, "program-uids", DefaultUIDs,
		"range FIRST-LAST of user ids: a node that runs as root gives each program one of its own; with none, programs run as the node's user")
	fs.StringVar(&p.usersText, "program-users", v1alpha1.NodeUser,
		"users that programs may name in spec.user, separated by commas: names, numbers, "+v1alpha1.NodeUser+" for the node's own user, * for every user, none for no user")
	fs.Float64Var(&p.weights.CPU, "claim-cpu-weight", p.weights.CPU, "weight of CPU under the claim policy resource_usage")
	fs.Float64Var(&p.weights.Memory, "claim-memory-weight", p.weights.Memory, "weight of memory under the claim policy resource_usage")
}

// Validate implements kind.Part.
func (p *part) Validate() (err error) {
	if p.policy, err = ParseClaimPolicy(p.policyText); err != nil {
		return err
	}
	if p.trust, err = ParseTrust(p.trustText); err != nil {
		return err
	}
	users, err := ParseUsers(p.usersText)
	if err != nil {
		return err
	}
	p.trust = p.trust.As(users)
	if p.uids, err = ParseUIDs(p.uidsText); err != nil {
		return err
	}
	return p.weights.Validate()
}

// Host implements kind.Part.
func (p *part) Host(env kind.Env) (kind.Hosted, error) {
	p.metrics = NewMetrics(env.Registry, env.Node)
	p.drains.Store(env.Drains)
	env.Gate.WithoutGuard(KindDaemons) // they stay until the node stops
	r, err := NewRuntime(Options{
		Node: env.Node, Dir: env.Dir.Programs(), Exe: env.Exe, Gate: env.Gate, Policy: p.policy, Weights: p.weights, Trust: p.trust, UIDs: p.uids,
		Completes: p.completes, Metrics: p.metrics, Log: env.Log, ShimLogFormat: env.LogFormat,
	})
	if err != nil {
		return kind.Hosted{}, err
	}
	return kind.Hosted{Runtimes: []node.Hosted{{Runtime: r, OnLeaseDoubt: node.StopOnDoubt}}}, nil
}

// Setup implements kind.Part.
func (p *part) Setup(t kind.Term) error {
	return (&Controller{Leader: t.Leader, CheckTerm: t.CheckTerm, Metrics: p.metrics, Log: t.Log}).SetupWithManager(t.Manager)
}

func readSummaries(ctx context.Context, r client.Reader, _ time.Time) ([]*kind.Summary, error) {
	var list v1alpha1.DeploymentList
	if err := r.List(ctx, &list); err != nil {
		return nil, err
	}
	return Summarize(list.Items), nil
}

func samples() []client.Object {
	program := func(name string, t v1alpha1.DeploymentType, script string) client.Object {
		return &v1alpha1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: kind.DefaultNamespace, Name: name},
			Spec:       v1alpha1.DeploymentSpec{Type: t, Command: "/bin/sh", Args: []string{"-c", script}},
		}
	}
	return []client.Object{
		program("hello", v1alpha1.TypeDeployment, `while :; do echo "hello from $EBB_NODE"; sleep 3; done`),
		program("heartbeat", v1alpha1.TypeDaemon, `while :; do echo "$EBB_NODE is up"; sleep 5; done`),
	}
}
