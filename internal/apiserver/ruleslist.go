package apiserver

import (
	"context"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

// allVerbs in the order in which they are listed.
var allVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// rulesOf lists what a user may do by asking the authorizer about every resource, so that the list agrees with its decisions.
type rulesOf struct {
	roots  *discovery
	policy policy
}

// RulesFor implements authorizer.RuleResolver.
func (r rulesOf) RulesFor(_ context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if mayEverything(who) {
		return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}},
			[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}}, false, nil
	}
	resources, err := r.roots.resources()
	var rules []authorizer.ResourceRuleInfo
	for _, resource := range resources {
		rules = append(rules, r.rulesAbout(who, namespace, resource)...)
	}
	return rules, r.pathRules(who), err != nil, err
}

// rulesAbout are a user's rules about one resource: about any object of it, and about those whose name makes a difference.
func (r rulesOf) rulesAbout(who user.Info, namespace string, of schema.GroupResource) []authorizer.ResourceRuleInfo {
	resource, subresource, _ := strings.Cut(of.Resource, "/")
	verbs := func(name string, but []string) []string {
		return slices.DeleteFunc(slices.Clone(allVerbs), func(verb string) bool {
			return slices.Contains(but, verb) || !r.policy.allowed(authorizer.AttributesRecord{
				User: who, Verb: verb, Namespace: namespace, APIGroup: of.Group, Resource: resource, Subresource: subresource, Name: name, ResourceRequest: true,
			})
		})
	}
	var rules []authorizer.ResourceRuleInfo
	add := func(verbs []string, names ...string) {
		if len(verbs) > 0 {
			rules = append(rules, &authorizer.DefaultResourceRuleInfo{Verbs: verbs, APIGroups: []string{of.Group}, Resources: []string{of.Resource}, ResourceNames: names})
		}
	}
	always := verbs("", nil)
	add(always)
	if node, ok := identity.NodeName(who.GetName()); ok {
		for _, own := range []string{node, lease.NameOf(node)} {
			add(verbs(own, always), own)
		}
	}
	return rules
}

func (r rulesOf) pathRules(who user.Info) []authorizer.NonResourceRuleInfo {
	var paths []string
	for _, path := range append(slices.Clone(openPaths), "/metrics") {
		if !r.policy.allowed(authorizer.AttributesRecord{User: who, Verb: "get", Path: path}) {
			continue
		}
		paths = append(paths, path)
		if path != "/metrics" {
			paths = append(paths, path+"/*")
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return []authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: []string{"get"}, NonResourceURLs: paths}}
}

// resources are all that the server serves, sorted.
func (d *discovery) resources() ([]schema.GroupResource, error) {
	all := sets.New(
		schema.GroupResource{Resource: "namespaces"}, schema.GroupResource{Resource: "namespaces/status"}, schema.GroupResource{Resource: "namespaces/finalize"},
		schema.GroupResource{Resource: "secrets"}, schema.GroupResource{Resource: "configmaps"}, schema.GroupResource{Resource: "events"},
		schema.GroupResource{Group: groupEvents, Resource: "events"},
		schema.GroupResource{Group: groupLogin, Resource: "selfsubjectreviews"},
		schema.GroupResource{Group: groupAccess, Resource: "selfsubjectaccessreviews"}, schema.GroupResource{Group: groupAccess, Resource: "selfsubjectrulesreviews"},
		schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"},
	)
	crds, err := d.crds.List(labels.Everything())
	for _, crd := range crds {
		of := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
		all.Insert(of)
		for _, v := range crd.Spec.Versions {
			if v.Subresources != nil && v.Subresources.Status != nil {
				all.Insert(schema.GroupResource{Group: of.Group, Resource: of.Resource + "/status"})
			}
		}
	}
	return slices.SortedFunc(slices.Values(all.UnsortedList()), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) }), err
}
