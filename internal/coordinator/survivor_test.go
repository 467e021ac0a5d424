package coordinator

import (
	"context"
	"errors"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

// notAlone keeps a test of elections among candidates from having survivors.
func notAlone(context.Context, *node.Epoch) error { return errors.New("not alone") }

// A node whose lease cannot be read may be alive: nobody is alone as long as there is one.
func TestANodeIsNotAloneBesideALeaseThatCannotBeRead(t *testing.T) {
	held := func(name string, annotations map[string]string) *coordinationv1.Lease {
		holder := "p"
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: name, Annotations: annotations}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	own := held("node-n2", map[string]string{lease.EpochAnnotation: "1"})
	election := held(lease.CoordinatorName, nil)
	for _, c := range []struct {
		what  string
		other *coordinationv1.Lease
		want  int
		fails bool
	}{
		{what: "nobody else"},
		{what: "a node that lives", other: held("node-n1", map[string]string{lease.EpochAnnotation: "3"}), want: 1},
		{what: "a node whose lease cannot be read", other: held("node-n1", map[string]string{lease.EpochAnnotation: "many"}), fails: true},
	} {
		t.Run(c.what, func(t *testing.T) {
			objects := []client.Object{own.DeepCopy(), election.DeepCopy()}
			if c.other != nil {
				objects = append(objects, c.other)
			}
			api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(objects...).Build()
			got, err := others(t.Context(), api, "n2")
			if len(got) != c.want || (err != nil) != c.fails {
				t.Errorf("%d others, %v; want %d, failed %v", len(got), err, c.want, c.fails)
			}
		})
	}
}
