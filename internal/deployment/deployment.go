// Package deployment runs programs: a deployment on the one node that claimed it, a daemon on every node whose labels match.
//
//	spec.address    who should run a deployment      claimed by compare-and-swap, or written by people
//	status.holder   who may run it                   set when no live epoch holds it, before the program starts
//	status.nodes    where processes of it may run    written before it starts, removed when no process is left
//
//	UNASSIGNED ──claim──▶ ASSIGNED ──lease of the address ended──▶ LOST ──claim──▶ ASSIGNED
//	     ▲                   │
//	     └──── DISABLED ◀────┘        (the address stays)            daemons: ENABLED ◀──▶ DISABLED
//
// All nodes compute the same assignment, and each claims its own part (assign.go). A node runs its programs under shims that kill
// them when its lease expires (program_worker.go, program.go), and never starts what another node may still run (plan.go).
package deployment

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Kinds under which a node counts programs.
const (
	// Name is the key of deployments in a node's counts: a node leaves only when it has none.
	Name = "deployments"
	// KindDaemons are the programs that stay until the node stops.
	KindDaemons = "daemons"
)

// Environment variables.
const (
	// EnvClaimPolicy sets a node's claim policy.
	EnvClaimPolicy = "NODE_UNIT_CLAIM_POLICY"
	// EnvTrusted sets the expression that commands must match.
	EnvTrusted = "TRUSTED_PACKAGE_REGEXP"
	// envNode and envDeployment are set for a program to its node and its own name.
	envNode       = "EBB_NODE"
	envDeployment = "EBB_DEPLOYMENT"
)

// ParseClaimPolicy parses a claim policy. Case and surrounding spaces do not matter, and the empty string is the default. An unknown
// policy is an error: a node must not claim because somebody mistyped "none".
func ParseClaimPolicy(text string) (v1alpha1.ClaimPolicy, error) {
	switch p := v1alpha1.ClaimPolicy(strings.ToLower(strings.TrimSpace(text))); p {
	case "":
		return v1alpha1.ClaimByCount, nil
	case v1alpha1.ClaimByCount, v1alpha1.ClaimByUsage, v1alpha1.ClaimNone:
		return p, nil
	}
	return "", fmt.Errorf("unknown claim policy %q: use %s, %s or %s", text, v1alpha1.ClaimByCount, v1alpha1.ClaimByUsage, v1alpha1.ClaimNone)
}

// Trust decides which commands a node runs, and as whom. The zero Trust allows every command, as a user of its own or as the node's.
type Trust struct {
	expression *regexp.Regexp
	users      Users
}

// ParseTrust parses the regular expression that commands must match; empty allows every command.
func ParseTrust(expression string) (Trust, error) {
	if expression == "" {
		return Trust{}, nil
	}
	re, err := regexp.Compile(expression)
	if err != nil {
		return Trust{}, fmt.Errorf("trusted commands: %q is not a regular expression: %w", expression, err)
	}
	return Trust{expression: re}, nil
}

// String is the expression.
func (t Trust) String() string {
	if t.expression == nil {
		return ""
	}
	return t.expression.String()
}

// Why a node would not run a program.
const (
	untrustedCommand = "command not trusted"
	untrustedUser    = "user not allowed"
)

// As adds the users that programs may run as.
func (t Trust) As(u Users) Trust {
	t.users = u
	return t
}

// Refuses returns why the node does not run a program; empty if it does.
func (t Trust) Refuses(d *v1alpha1.Deployment) string {
	switch {
	case !t.allows(&d.Spec):
		return untrustedCommand
	case !t.users.Allow(d.RunsAs()):
		return untrustedUser
	}
	return ""
}

// allows reports whether the command of a spec is trusted. The expression is matched against the cleaned path that would be
// executed. A bare name is allowed only if the spec does not set PATH, which would decide where it is looked up.
func (t Trust) allows(spec *v1alpha1.DeploymentSpec) bool {
	if t.expression == nil {
		return true
	}
	if strings.ContainsRune(spec.Command, '/') {
		path := spec.Command
		if !filepath.IsAbs(path) {
			path = filepath.Join("/", spec.WorkingDir, path)
		}
		return t.expression.MatchString(filepath.Clean(path))
	}
	for _, v := range spec.Env {
		if v.Name == "PATH" {
			return false
		}
	}
	return t.expression.MatchString(spec.Command)
}
