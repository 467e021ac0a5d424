package apiserver

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

const (
	groupCore   = ""
	groupEbb    = "ebb.dev"
	groupLeases = "coordination.k8s.io"
	groupEvents = "events.k8s.io"
	groupAccess = "authorization.k8s.io"
	groupLogin  = "authentication.k8s.io"
)

var (
	reading = sets.New("get", "list", "watch")
	writing = sets.New("create", "update", "patch", "delete")

	// Discovery and health, which every identity may read.
	openPaths = []string{"/api", "/apis", "/openapi", "/version", "/healthz", "/livez", "/readyz"}
)

// policy decides who may do what: the table of verbs of Ebb's own objects, by resource and subresource, and the declarations of the kinds of work
// by resource, those of groups that are not Ebb's by group.
type policy struct {
	verbs            map[string]access.Verbs
	objects, foreign map[string]access.Object
}

func newPolicy(objects []access.Object) policy {
	p := policy{verbs: map[string]access.Verbs{}, objects: map[string]access.Object{}, foreign: map[string]access.Object{}}
	for _, v := range access.Table(objects) {
		p.verbs[v.Resource] = v
	}
	for _, o := range objects {
		if o.Group != "" {
			p.foreign[o.Group] = o
			continue
		}
		p.objects[o.Resource] = o
	}
	return p
}

// of are the verbs of the resource that a request of Ebb's group is about.
func (p policy) of(a authorizer.Attributes) access.Verbs {
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	return p.verbs[resource]
}

// permit reports whether a verb is among those that the table has for one of the identities.
func permit(of access.Verbs, verbs []string, verb string) bool {
	return slices.Contains(verbs, verb) || verb == "patch" && !of.Whole && slices.Contains(verbs, "update")
}

// authorize implements authorizer.AuthorizerFunc. Whatever is not allowed here is refused; what depends on the content of an object is
// the admission plugin's (admission.go).
func (p policy) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if p.allowed(a) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func mayEverything(who user.Info) bool {
	return slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) || slices.Contains(who.GetGroups(), identity.AdminGroup)
}

func (p policy) allowed(a authorizer.Attributes) bool {
	who := a.GetUser()
	if mayEverything(who) {
		return true
	}
	if !a.IsResourceRequest() {
		return reading.Has(a.GetVerb()) && mayReadPath(who, a.GetPath())
	}
	if slices.Contains(who.GetGroups(), identity.ViewerGroup) {
		return reading.Has(a.GetVerb()) && !coversSecrets(a) || mayAsk(a)
	}
	if _, ok := identity.CoordinatorName(who.GetName()); ok {
		return p.coordinatorMay(a)
	}
	if node, ok := identity.NodeName(who.GetName()); ok {
		return p.nodeMay(node, a)
	}
	return false
}

func mayReadPath(who user.Info, path string) bool {
	if path == "/metrics" {
		return slices.Contains(who.GetGroups(), identity.ViewerGroup)
	}
	return slices.ContainsFunc(openPaths, func(open string) bool {
		return path == open || len(path) > len(open) && path[:len(open)+1] == open+"/"
	})
}

// coversSecrets reports whether a request is about Secrets or may be: a review may name every group or resource with *.
func coversSecrets(a authorizer.Attributes) bool {
	group, resource := a.GetAPIGroup(), a.GetResource()
	return (group == groupCore || group == "*") && (resource == "secrets" || resource == "*")
}

// mayAsk: every authenticated user may ask who they are and what they may do.
func mayAsk(a authorizer.Attributes) bool {
	return a.GetVerb() == "create" && a.GetSubresource() == "" && isReview(a.GetAPIGroup(), a.GetResource())
}

func isReview(group, resource string) bool {
	return group == groupLogin && resource == "selfsubjectreviews" ||
		group == groupAccess && (resource == "selfsubjectaccessreviews" || resource == "selfsubjectrulesreviews")
}

// coordinatorMay: update every object of Ebb, but create and delete only those that people do not create.
func (p policy) coordinatorMay(a authorizer.Attributes) bool {
	verb := a.GetVerb()
	switch a.GetAPIGroup() {
	case groupEbb:
		return reading.Has(verb) || permit(p.of(a), p.of(a).Coordinator, verb)
	case groupLeases:
		return reading.Has(verb) || verb == "update" || verb == "patch" || verb == "create"
	case groupEvents, groupCore:
		return a.GetResource() == "events" && (reading.Has(verb) || writing.Has(verb))
	}
	if object, ok := p.foreign[a.GetAPIGroup()]; ok && (a.GetNamespace() == object.Namespace || a.GetNamespace() == "") {
		return reading.Has(verb) || writing.Has(verb)
	}
	return mayAsk(a)
}

// nodeMay: read every object of Ebb, and a Secret by its name; write the status of its own Node, its own Lease, and the objects of work
// that are placed on it. Admission checks the names of created objects and what an update changes.
func (p policy) nodeMay(node string, a authorizer.Attributes) bool {
	verb := a.GetVerb()
	switch a.GetAPIGroup() {
	case groupEbb:
		switch {
		case reading.Has(verb):
			return true
		case a.GetResource() == "nodes" && verb != "create" && a.GetName() != node:
			return false // it has one object alone
		}
		return permit(p.of(a), p.of(a).Node, verb)
	case groupLeases:
		switch {
		case reading.Has(verb):
			return true
		case a.GetNamespace() != lease.Namespace:
			return false
		case verb == "create":
			return true
		}
		return a.GetName() == lease.NameOf(node) && (verb == "update" || verb == "patch")
	case groupCore:
		// Sources and sinks are opened on nodes, and changefeeds name the Secrets with their passwords.
		if a.GetResource() == "secrets" {
			return verb == "get" && a.GetSubresource() == ""
		}
		return nodeMayEvents(a)
	case groupEvents:
		return nodeMayEvents(a)
	}
	return mayAsk(a)
}

func nodeMayEvents(a authorizer.Attributes) bool {
	verb := a.GetVerb()
	return a.GetResource() == "events" && (reading.Has(verb) || verb == "create" || verb == "patch")
}
