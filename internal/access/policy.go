package access

import (
	"fmt"
	"strings"
)

// Rule is an expression in CEL that must hold for a write of a node, and what to say if it does not. It sees object, oldObject, request and
// variables.node, the node that writes.
//
// Rules are how a Kubernetes cluster enforces the declarations. A policy cannot read a Lease, so what rests on epochs is not in them.
type Rule struct {
	Expression, Message string
}

// Rules are the declaration in CEL. They say the same as Judge, without epochs.
func (n *NodeWrites) Rules() []Rule {
	if n.Check != nil {
		return n.Policy
	}
	rules := []Rule{{Expression: "request.subResource == 'status'", Message: "a node may write the status of the object only"}}
	for _, path := range n.Fixed {
		rules = append(rules, Rule{Expression: unchanged(path), Message: "a node may not change " + path})
	}
	for _, o := range n.Owned {
		for _, path := range o.Paths {
			rules = append(rules, Rule{
				Expression: fmt.Sprintf("%s || %s", names(o.Node), unchanged(path)),
				Message:    fmt.Sprintf("only the node that %s names may change %s", o.Node, path),
			})
		}
	}
	if n.Entries != "" {
		return append(rules, entryRules(n.Entries)...)
	}
	bound := make([]string, 0, len(n.Bindings))
	for _, b := range n.Bindings {
		bound = append(bound, names(b.Node))
	}
	return append(rules, Rule{Expression: strings.Join(bound, " || "), Message: "the object is not bound to the node"})
}

func entryRules(path string) []Rule {
	is, was := fieldOf("object", path)+".orValue([])", fieldOf("oldObject", path)+".orValue([])"
	return []Rule{
		{
			Expression: fmt.Sprintf("%s.all(e, e.node == variables.node || %s.exists(o, o == e))", is, was),
			Message:    "a node may write its own entry in " + path + " only",
		},
		{
			Expression: fmt.Sprintf("%s.all(o, o.node == variables.node || %s.exists(e, e.node == o.node))", was, is),
			Message:    "a node may remove its own entry from " + path + " only",
		},
	}
}

// names is that the written object names the node that writes.
func names(path string) string { return fieldOf("object", path) + ".orValue('') == variables.node" }

// unchanged is that a write leaves a field as it is.
func unchanged(path string) string {
	return fieldOf("object", path) + " == " + fieldOf("oldObject", path)
}

// fieldOf is the optional value at a path.
func fieldOf(root, path string) string { return root + ".?" + strings.ReplaceAll(path, ".", ".?") }
