package access

import "slices"

// Verbs are what the two identities of a node may do with one resource of Ebb, or one subresource of it, besides reading it. Both homes have
// them from here: the embedded API decides by them, and the RBAC rules of Kubernetes, where both identities share an account, are the sum of them.
// What an update may change is decided by admission.
type Verbs struct {
	// Resource is the plural name, with the subresource after a slash.
	Resource          string
	Coordinator, Node []string
	// Kubernetes is what the coordinator does on Kubernetes alone.
	Kubernetes []string
	// Whole: it is always written as a whole. Elsewhere the embedded API takes a patch for an update in another form.
	Whole bool
}

// fixedVerbs are those of the objects that every cluster has.
var fixedVerbs = []Verbs{
	// Nodes are deleted with their core Node.
	{Resource: "nodes", Coordinator: []string{"update"}, Node: []string{"create", "update"}, Kubernetes: []string{"delete"}},
	{Resource: "nodes/status", Coordinator: []string{"update"}, Node: []string{"update"}},
	{Resource: "drains", Coordinator: []string{"create", "update", "delete"}},
	{Resource: "drains/status", Coordinator: []string{"update"}},
	// The embedded API makes the Settings itself.
	{Resource: "settings", Kubernetes: []string{"create"}},
	{Resource: "settings/status", Coordinator: []string{"update"}},
	{Resource: "terms", Coordinator: []string{"create", "update"}, Whole: true},
}

// Table is the verbs of all resources of Ebb, those of the kinds of work as they are declared.
func Table(objects []Object) []Verbs {
	table := slices.Clone(fixedVerbs)
	for _, o := range objects {
		if o.Group != "" {
			continue
		}
		object, status := Verbs{Resource: o.Resource, Coordinator: []string{"update"}}, Verbs{Resource: o.Resource + "/status", Coordinator: []string{"update"}}
		if o.Coordinator == Both {
			object.Coordinator = []string{"create", "update", "delete"}
		}
		switch {
		case o.Node == nil:
		case o.Node.Check != nil: // a node takes the object from another one, by server-side apply too
			object.Node, status.Node = []string{"update", "patch"}, []string{"update", "patch"}
		default:
			status.Node = []string{"update"}
		}
		table = append(table, object, status)
	}
	return table
}
