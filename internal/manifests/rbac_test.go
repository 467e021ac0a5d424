package manifests

import (
	"context"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/ebb-dev/ebb/internal/access"
)

// The RBAC rules about Ebb's own objects are those of the table that the embedded API decides by, no more and no less.
func TestTheRulesOfKubernetesAreTheTableOfTheEmbeddedAPI(t *testing.T) {
	objects := []access.Object{
		{Resource: "parents"},
		{Resource: "parts", Coordinator: access.Both, Node: &access.NodeWrites{Runtime: "parts"}},
		{Resource: "claims", Node: &access.NodeWrites{Runtime: "claims", Check: func(context.Context, access.Write) error { return nil }}},
	}
	rules := verbsByResource(nodeClusterRules(objects))
	want := map[string][]string{}
	for _, v := range access.Table(objects) {
		verbs := slices.Concat(v.Coordinator, v.Node, v.Kubernetes)
		slices.Sort(verbs)
		if verbs = slices.Compact(verbs); len(verbs) > 0 {
			want[v.Resource] = verbs
		}
	}
	for resource, verbs := range want {
		if got := rules[resource]; !slices.Equal(got, verbs) {
			t.Errorf("%s: the rules have %v, the table %v", resource, got, verbs)
		}
	}
	for resource, verbs := range rules {
		if want[resource] == nil {
			t.Errorf("%s: the rules have %v, the table nothing", resource, verbs)
		}
	}
}

// verbsByResource are the verbs that write objects of Ebb.
func verbsByResource(rules []rbacv1.PolicyRule) map[string][]string {
	found := map[string][]string{}
	for _, r := range rules {
		if !slices.Contains(r.APIGroups, groupEbb) {
			continue
		}
		for _, resource := range r.Resources {
			for _, verb := range r.Verbs {
				if !slices.Contains(reading, verb) && !slices.Contains(found[resource], verb) {
					found[resource] = append(found[resource], verb)
				}
			}
			slices.Sort(found[resource])
		}
	}
	for resource, verbs := range found {
		if len(verbs) == 0 {
			delete(found, resource)
		}
	}
	return found
}
