// Package policytest evaluates the rules of declarations as a Kubernetes API server does.
package policytest

import (
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/ebb-dev/ebb/internal/access"
)

type fields = map[string]any

// Holds evaluates rules as the admission of Kubernetes does, and returns whether all hold.
func Holds(t *testing.T, rules []access.Rule, node string, before, after fields, status bool) bool {
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
	for _, r := range rules {
		ast, issues := env.Compile(r.Expression)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", r.Expression, issues.Err())
		}
		program, err := env.Program(ast)
		if err != nil {
			t.Fatalf("%s: %v", r.Expression, err)
		}
		out, _, err := program.Eval(fields{
			"object": after, "oldObject": before, "request": fields{"operation": "UPDATE"}, "variables": fields{"node": node, "status": status},
		})
		if err != nil {
			t.Fatalf("%s: %v", r.Expression, err)
		}
		all = all && out.Value() == true
	}
	return all
}
