// Package access says who may write which objects. Every kind of work declares it once; the embedded API is guarded by these declarations.
package access

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ebb-dev/ebb/internal/lease"
)

// Object declares who may write one type of object. People with the credentials of an admin may write all of them.
type Object struct {
	// Resource is the plural name of the type, in the group of Ebb unless Group says otherwise.
	Resource string
	// Group and Namespace are those of resources that are not Ebb's: AnyResource of that group, in that namespace or in none.
	Group, Namespace string
	// Coordinator says what the coordinator may do besides updating objects and their status.
	Coordinator Making
	// Node says what nodes may write; nil for nothing. A node never creates or deletes an object of work.
	Node *NodeWrites
}

// AnyResource stands for all resources of a group that is not Ebb's.
const AnyResource = "*"

// Making is whether an identity creates and deletes objects.
type Making int

const (
	// Neither: people make and remove the objects.
	Neither Making = iota
	// Both: the objects are parts of others, or records.
	Both
)

// NodeWrites declares what a node may write of an object that is bound to it. A path is a list of field names joined by dots.
type NodeWrites struct {
	// Runtime is the name under which the node counts the work: a node that does not host it writes nothing.
	Runtime string
	// Bindings are where an object names its nodes. A write is admitted if one of them names the node that writes, in an epoch that has not
	// ended.
	Bindings []Binding
	// Entries is a list of entries of which each belongs to the node that its field `node` names: a node may change its own only. An object
	// with entries needs no binding.
	Entries string
	// Fixed are paths of the status that nodes may not change.
	Fixed []string
	// Owned are paths of the status that only one node may change.
	Owned []Owned
	// Check replaces the rules above, for objects that nodes take from each other. It may also update the object itself, not only its status.
	Check func(context.Context, Write) error
	// Policy is what Check says, in CEL and without leases. A declaration with Check needs it.
	Policy []Rule
}

// Binding is where an object names a node, and the epoch of that node in which it does.
type Binding struct {
	// Node is the path of the node's name.
	Node string
	// Epoch is the path of the epoch, in the object as it is written.
	Epoch string
}

// Owned are paths of the status that belong to the node that an object names. In an object that names none, no node changes them.
type Owned struct {
	// Node is the path of the node's name.
	Node string
	// Paths are what that node alone may change.
	Paths []string
}

// Write is one write of a node.
type Write struct {
	// Node that writes.
	Node string
	// Old and New are the object before and after. Old is empty for an object that is being created.
	Old, New *unstructured.Unstructured
	// Status says that only the status is written.
	Status bool
	// Lease reads the lease of a node from the store. A node without a lease has an empty record.
	Lease func(ctx context.Context, node string) (lease.Record, error)
}

// CheckEpoch fails unless the node that writes holds its lease in an epoch.
func (w Write) CheckEpoch(ctx context.Context, epoch int64) error {
	rec, err := w.Lease(ctx, w.Node)
	if err != nil {
		return err
	}
	if rec.Epoch != epoch || rec.Over(epoch) {
		return fmt.Errorf("node %s may not write for epoch %d: its lease is in epoch %d, fenced up to %d", w.Node, epoch, rec.Epoch, rec.Fenced)
	}
	return nil
}

func (w Write) changes(path string) bool {
	return !equality.Semantic.DeepEqual(at(w.Old, path), at(w.New, path))
}

// Judge returns why a write of a node is refused, or nil.
func (n *NodeWrites) Judge(ctx context.Context, w Write) error {
	if n.Check != nil {
		return n.Check(ctx, w)
	}
	if !w.Status {
		return fmt.Errorf("node %s may write the status of the object only", w.Node)
	}
	for _, path := range n.Fixed {
		if w.changes(path) {
			return fmt.Errorf("node %s may not change %s", w.Node, path)
		}
	}
	for _, o := range n.Owned {
		owner, _ := at(w.New, o.Node).(string)
		for _, path := range o.Paths {
			if owner != w.Node && w.changes(path) {
				return fmt.Errorf("node %s may not change %s: %s names %s", w.Node, path, o.Node, owner)
			}
		}
	}
	if n.Entries != "" {
		return n.judgeEntries(ctx, w)
	}
	refused := fmt.Errorf("the object is not bound to node %s", w.Node)
	for _, b := range n.Bindings {
		if name, _ := at(w.New, b.Node).(string); name != w.Node {
			continue
		}
		epoch, _ := at(w.New, b.Epoch).(int64)
		if refused = w.CheckEpoch(ctx, epoch); refused == nil {
			return nil
		}
	}
	return refused
}

// judgeEntries: a node changes its own entry only, and only while it holds its lease.
func (n *NodeWrites) judgeEntries(ctx context.Context, w Write) error {
	old, next := entries(w.Old, n.Entries), entries(w.New, n.Entries)
	for _, name := range slices.Sorted(maps.Keys(old)) {
		if _, ok := next[name]; !ok && name != w.Node {
			return fmt.Errorf("node %s may not remove the entry of node %s from %s", w.Node, name, n.Entries)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(next)) {
		if name != w.Node && !equality.Semantic.DeepEqual(old[name], next[name]) {
			return fmt.Errorf("node %s may not write the entry of node %s in %s", w.Node, name, n.Entries)
		}
	}
	rec, err := w.Lease(ctx, w.Node)
	if err != nil {
		return err
	}
	if !rec.Held() {
		return fmt.Errorf("node %s holds no lease: epoch %d has ended", w.Node, rec.Epoch)
	}
	return nil
}

// entries are the entries of a list by the node that each belongs to.
func entries(object *unstructured.Unstructured, path string) map[string]any {
	byNode := map[string]any{}
	list, _ := at(object, path).([]any)
	for _, e := range list {
		if fields, ok := e.(map[string]any); ok {
			name, _ := fields["node"].(string)
			byNode[name] = e
		}
	}
	return byNode
}

// at is the value at a path, or nil.
func at(object *unstructured.Unstructured, path string) any {
	if object == nil {
		return nil
	}
	value, _, err := unstructured.NestedFieldNoCopy(object.Object, strings.Split(path, ".")...)
	if err != nil {
		return nil
	}
	return value
}
