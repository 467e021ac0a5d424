package main

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestCordonTakesOverTheCordonOfAQuarantine(t *testing.T) {
	api := testenv.StartAPI(t)
	c, cfg := api.Admin(), api.Config(api.Dir.Kubeconfig())
	node := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1alpha1.NodeSpec{Cordoned: true}}
	v1alpha1.AddCordonOwner(node, "uid-of-an-event")
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		changed bool
		text    string
	}{{true, "; Ebb had cordoned it, and it stays cordoned when Ebb would uncordon it"}, {false, "; Ebb had cordoned it, and it stays cordoned when Ebb would uncordon it"}} {
		got, changed, err := setCordoned(t.Context(), c, cfg, "n1", true)
		if err != nil || changed != want.changed || consequence(got) != want.text {
			t.Errorf("changed %t, %q, %v; want %+v", changed, consequence(got), err, want)
		}
	}
	if err := c.Get(t.Context(), types.NamespacedName{Name: "n1"}, node); err != nil {
		t.Fatal(err)
	}
	if owners := v1alpha1.CordonOwners(node); !node.Spec.Cordoned || !slices.Contains(owners, v1alpha1.CordonPerson) || !slices.Contains(owners, "uid-of-an-event") {
		t.Errorf("cordoned %t by %q", node.Spec.Cordoned, owners)
	}
}
