package main

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestSamplesAreAddedOnceAndStayAsPeopleChangeThem(t *testing.T) {
	api := testenv.StartAPI(t)
	if err := addSamples(t.Context(), api.Dir); err != nil {
		t.Fatal(err)
	}
	c, d := api.Admin(), &v1alpha1.Deployment{}
	key := types.NamespacedName{Namespace: "default", Name: "hello"}
	if err := c.Get(t.Context(), key, d); err != nil {
		t.Fatal(err)
	}
	d.Spec.Args = []string{"-c", "sleep 9"}
	if err := c.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if err := addSamples(t.Context(), api.Dir); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), key, d); err != nil || d.Spec.Args[1] != "sleep 9" {
		t.Errorf("args %v, %v", d.Spec.Args, err)
	}
	var list v1alpha1.DeploymentList
	if err := c.List(t.Context(), &list); err != nil || len(list.Items) != 2 {
		t.Errorf("%d samples, %v", len(list.Items), err)
	}
}
