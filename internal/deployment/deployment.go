// Package deployment runs programs: a deployment on the one node that claimed it, a daemon on every node whose labels match.
//
//	spec.address    who should run a deployment      claimed by compare-and-swap, or written by people
//	status.holder   who may run it                   taken from nobody or from an epoch that is over, only then it starts
//	status.nodes    where something of it may run    written before it starts, removed when nothing of it is left
//
//	UNASSIGNED ──claim──▶ ASSIGNED ──lease of the address over──▶ LOST ──claim──▶ ASSIGNED
//	     ▲                   │
//	     └──── DISABLED ◀────┘        (the address stays)            daemons: ENABLED ◀──▶ DISABLED
//
// Each node claims its slice of one assignment that all nodes compute alike (assign.go), runs what is addressed to it
// under shims that end with the node's lease (program_worker.go, program.go), and never starts what another may still run (plan.go).
package deployment

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Kinds by which programs are counted.
const (
	// Name is the key of deployments in a node's counts: they have to leave before the node may.
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
	// envNode and envDeployment tell a program where and what it is.
	envNode       = "EBB_NODE"
	envDeployment = "EBB_DEPLOYMENT"
)

// ParseClaimPolicy reads a policy as people write it: case and spaces around it do not matter, and empty is the default.
// Anything else is refused: a node must not claim because somebody mistyped "none".
func ParseClaimPolicy(text string) (v1alpha1.ClaimPolicy, error) {
	switch p := v1alpha1.ClaimPolicy(strings.ToLower(strings.TrimSpace(text))); p {
	case "":
		return v1alpha1.ClaimByCount, nil
	case v1alpha1.ClaimByCount, v1alpha1.ClaimByUsage, v1alpha1.ClaimNone:
		return p, nil
	}
	return "", fmt.Errorf("unknown claim policy %q: use %s, %s or %s", text, v1alpha1.ClaimByCount, v1alpha1.ClaimByUsage, v1alpha1.ClaimNone)
}

// Trust decides which commands a node runs. The zero Trust trusts all.
type Trust struct{ expression *regexp.Regexp }

// ParseTrust reads the expression that commands must match; empty trusts all.
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

// Allows says whether the node may run the program of a spec. What is matched is the path that would be executed, not how it
// was spelled; a bare name is trusted only as long as the spec does not say where to look it up.
func (t Trust) Allows(spec *v1alpha1.DeploymentSpec) bool {
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
