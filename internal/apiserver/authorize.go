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

// policy decides who may do what: fixed rules for the objects of every cluster, and the declarations of the kinds of work by resource.
type policy map[string]access.Object

func newPolicy(objects []access.Object) policy {
	p := policy{}
	for _, o := range objects {
		if o.Group != "" {
			p[foreign(o.Group)] = o
			continue
		}
		p[o.Resource] = o
	}
	return p
}

// foreign is the key of the resources of a group that is not Ebb's.
func foreign(group string) string { return access.AnyResource + "." + group }

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
		if reading.Has(verb) {
			return true
		}
		switch a.GetResource() {
		case "settings":
			return a.GetSubresource() == "status" && (verb == "update" || verb == "patch")
		case "nodes":
			return verb == "update" || verb == "patch"
		case "terms":
			return verb == "create" || verb == "update"
		case "drains":
			return writing.Has(verb)
		}
		object, ok := p[a.GetResource()]
		return ok && (verb == "update" || verb == "patch" || object.Coordinator == access.Both && writing.Has(verb))
	case groupLeases:
		return reading.Has(verb) || verb == "update" || verb == "patch" || verb == "create"
	case groupEvents, groupCore:
		return a.GetResource() == "events" && (reading.Has(verb) || writing.Has(verb))
	}
	if object, ok := p[foreign(a.GetAPIGroup())]; ok && (a.GetNamespace() == object.Namespace || a.GetNamespace() == "") {
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
		case a.GetResource() == "nodes" && verb == "create":
			return a.GetSubresource() == ""
		case a.GetResource() == "nodes":
			return a.GetName() == node && (verb == "update" || verb == "patch")
		}
		writes := p[a.GetResource()].Node
		return writes != nil && (verb == "update" || verb == "patch") && (writes.Check != nil || a.GetSubresource() == "status")
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
