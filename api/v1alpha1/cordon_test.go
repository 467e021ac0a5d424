package v1alpha1

import (
	"slices"
	"testing"
)

func TestCordonOwners(t *testing.T) {
	node := &Node{}
	if owners := CordonOwners(node); owners != nil {
		t.Errorf("a node that nobody cordoned has the owners %v", owners)
	}
	SetCordonOwners(node, []string{"b", "a", "b"})
	if owners := CordonOwners(node); !slices.Equal(owners, []string{"a", "b"}) {
		t.Errorf("the owners are %v", owners)
	}
	SetCordonOwners(node, nil)
	if _, there := node.Annotations[CordonOwnersAnnotation]; there {
		t.Error("the annotation stays without owners")
	}
}
