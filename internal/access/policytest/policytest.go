// Package policytest evaluates the rules of declarations as a Kubernetes API server does.
package policytest

import (
	"cmp"
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/ebb-dev/ebb/internal/access"
)

type fields = map[string]any

// Request is a write, as a policy sees it.
type Request struct {
	// Node that writes, and the Name of the object.
	Node, Name string
	// Operation is UPDATE unless it is set.
	Operation string
	// Status says that only the status is written.
	Status bool
	// Before and After are the object.
	Before, After fields
}

// Holds evaluates rules for an update, as the admission of Kubernetes does, and returns whether all hold.
func Holds(t *testing.T, rules []access.Rule, node string, before, after fields, status bool) bool {
	t.Helper()
	return Allows(t, rules, Request{Node: node, Status: status, Before: before, After: after})
}

// Allows evaluates rules as the admission of Kubernetes does, and returns whether all hold.
func Allows(t *testing.T, rules []access.Rule, r Request) bool {
	t.Helper()
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: environment.DefaultCompatibilityVersion(),
		EnvOptions: []cel.EnvOption{
			cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType), cel.Variable("variables", cel.DynType),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	env := set.StoredExpressionsEnv()
	all := true
	for _, rule := range rules {
		ast, issues := env.Compile(rule.Expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", rule.Expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatalf("%s: %v", rule.Expression, err)
		}
		out, _, err := program.Eval(fields{
			"object": r.After, "oldObject": r.Before, "request": fields{"operation": cmp.Or(r.Operation, "UPDATE")},
			"variables": fields{"node": r.Node, "name": r.Name, "status": r.Status},
		})
		if err != nil {
			t.Fatalf("%s: %v", rule.Expression, err)
		}
		all = all && out.Value() == true
	}
	return all
}
