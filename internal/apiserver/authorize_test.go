package apiserver

import (
	"context"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/identity"
)

// rulebook has an object of each sort that a kind can declare.
var rulebook = newPolicy([]access.Object{
	{Resource: "parents"},
	{Resource: "parts", Coordinator: access.Both, Node: &access.NodeWrites{Runtime: "parts"}},
	{Resource: "claims", Node: &access.NodeWrites{Runtime: "claims", Check: func(context.Context, access.Write) error { return nil }}},
})

var everyone = []*user.DefaultInfo{
	{Name: identity.Viewer, Groups: []string{identity.ViewerGroup}},
	{Name: identity.Coordinator("n1")},
	{Name: identity.Node("n1"), Groups: []string{identity.NodeGroup}},
	{Name: identity.Node(""), Groups: []string{identity.NodeGroup}},
	{Name: identity.Admin},                             // a name is not a group
	{Name: identity.Viewer},                            // likewise
	{Name: "n1", Groups: []string{identity.NodeGroup}}, // being some node is not being one
	{Name: "mallory", Groups: []string{"system:authenticated", "ebb:admin", "ebb:viewer", "admins"}},
}

// requests is every request there is, as far as rules can tell them apart.
func requests(who user.Info, visit func(authorizer.AttributesRecord)) {
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate", "bind", "escalate", "*", ""}
	resources := append(slices.Sorted(maps.Keys(rulebook.objects)), "nodes", "drains", "settings", "leases", "events", "customresourcedefinitions", "users", "secrets", "configmaps", "namespaces", "selfsubjectreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews", "subjectaccessreviews", "*")
	for _, group := range []string{groupEbb, groupLeases, groupEvents, "apiextensions.k8s.io", groupCore, groupLogin, groupAccess, "*"} {
		for _, resource := range resources {
			for _, subresource := range []string{"", "status", "scale"} {
				for _, namespace := range []string{"", "default", "ebb-system"} {
					for _, name := range []string{"", "n1", "n2", "node-n1", "node-n2", "node-", "coordinator", "cluster"} {
						for _, verb := range verbs {
							visit(authorizer.AttributesRecord{User: who, Verb: verb, APIGroup: group, Resource: resource,
								Subresource: subresource, Namespace: namespace, Name: name, ResourceRequest: true})
						}
					}
				}
			}
		}
	}
}

// What no certificate but an admin's gives, whatever the object and the verb.
func TestNoRequestOfAnyoneButAdminsGoesBeyondTheRules(t *testing.T) {
	ours := sets.New(groupEbb, groupLeases, groupEvents)
	for _, who := range everyone {
		node, isNode := identity.NodeName(who.Name)
		isViewer := len(who.Groups) == 1 && who.Groups[0] == identity.ViewerGroup
		isCoordinator := who.Name == identity.Coordinator("n1")
		seen := 0
		requests(who, func(a authorizer.AttributesRecord) {
			if !rulebook.allowed(a) {
				return
			}
			seen++
			reads := reading.Has(a.Verb)
			asks := a.Verb == "create" && a.Subresource == "" && isReview(a.APIGroup, a.Resource)
			aboutSecrets := (a.APIGroup == "" || a.APIGroup == "*") && (a.Resource == "secrets" || a.Resource == "*")
			switch {
			case !isNode && !isViewer && !isCoordinator:
				t.Errorf("%s %v may %+v", who.Name, who.Groups, a)
			case !reads && !writing.Has(a.Verb):
				t.Errorf("%s may %s %s", who.Name, a.Verb, a.Resource)
			case aboutSecrets && !(isNode && a.Verb == "get" && a.Resource == "secrets" && a.Subresource == ""):
				t.Errorf("%s may %s %s of group %q", who.Name, a.Verb, a.Resource, a.APIGroup)
			case asks, aboutSecrets:
			case !isViewer && !ours.Has(a.APIGroup) && !(a.APIGroup == groupCore && a.Resource == "events"):
				t.Errorf("%s may %s %s of group %q", who.Name, a.Verb, a.Resource, a.APIGroup)
			case isViewer && !reads:
				t.Errorf("a viewer may %s %s", a.Verb, a.Resource)
			case isNode && !reads && a.APIGroup == groupEbb && (a.Resource == "drains" || a.Resource == "settings"):
				t.Errorf("a node may %s %s/%s", a.Verb, a.Resource, a.Subresource)
			case isNode && !reads && a.APIGroup == groupEbb && a.Resource == "nodes" && a.Verb != "create" && a.Name != node:
				t.Errorf("node %q may %s node %q", node, a.Verb, a.Name)
			case isNode && !reads && a.APIGroup == groupEbb && a.Resource != "nodes" && (a.Verb == "create" || a.Verb == "delete"):
				t.Errorf("a node may %s %s", a.Verb, a.Resource)
			case isNode && !reads && a.APIGroup == groupEbb && a.Resource != "nodes" && rulebook.objects[a.Resource].Node == nil:
				t.Errorf("a node may %s %s", a.Verb, a.Resource)
			case isCoordinator && a.APIGroup == groupEbb && a.Resource == "parents" && (a.Verb == "create" || a.Verb == "delete"):
				t.Errorf("the coordinator may %s what people own", a.Verb)
			case isNode && !reads && a.APIGroup == groupLeases && (a.Namespace != "ebb-system" || a.Verb != "create" && a.Name != "node-"+node):
				t.Errorf("node %q may %s lease %s/%s", node, a.Verb, a.Namespace, a.Name)
			case a.Verb == "delete" && (a.APIGroup == groupLeases || a.APIGroup == groupEbb && (a.Resource == "nodes" || a.Resource == "settings")):
				t.Errorf("%s may delete %s", who.Name, a.Resource)
			case isCoordinator && !reads && a.Resource == "settings" && a.APIGroup == groupEbb && a.Subresource != "status":
				t.Errorf("the coordinator may %s settings/%s", a.Verb, a.Subresource)
			}
		})
		if (isNode || isViewer || isCoordinator) && seen == 0 {
			t.Errorf("%s may nothing at all", who.Name)
		}
	}
}

func TestAdminsMayEverything(t *testing.T) {
	for _, group := range []string{identity.AdminGroup, user.SystemPrivilegedGroup} {
		requests(&user.DefaultInfo{Name: "anyone", Groups: []string{group}}, func(a authorizer.AttributesRecord) {
			if !rulebook.allowed(a) {
				t.Errorf("%s may not %s %s", group, a.Verb, a.Resource)
			}
		})
	}
}

func TestPathsThatAreNoResources(t *testing.T) {
	viewer, node := everyone[0], everyone[2]
	for _, c := range []struct {
		who  user.Info
		verb string
		path string
		want bool
	}{
		{node, "get", "/apis", true},
		{node, "get", "/apis/ebb.dev", true},
		{node, "get", "/openapi/v3/apis/ebb.dev/v1alpha1", true},
		{node, "get", "/readyz", true},
		{node, "get", "/apisx", false},
		{node, "get", "/healthzx", false},
		{node, "get", "/", false},
		{node, "get", "", false},
		{node, "get", "/metrics", false},
		{node, "get", "/debug/pprof/heap", false},
		{node, "post", "/apis", false},
		{node, "delete", "/version", false},
		{viewer, "get", "/metrics", true},
		{viewer, "get", "/metrics/slis", false},
		{viewer, "get", "/debug/pprof/heap", false},
		{viewer, "put", "/metrics", false},
	} {
		a := authorizer.AttributesRecord{User: c.who, Verb: c.verb, Path: c.path}
		if got := rulebook.allowed(a); got != c.want {
			t.Errorf("%s %s %q: %v, want %v", c.who.GetName(), c.verb, c.path, got, c.want)
		}
	}
}
