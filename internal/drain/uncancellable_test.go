package drain_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// A failed drain is cancelled by releasing its node, which does not happen to a node that was ordered to stop, nor after the slot was freed. Whoever
// asks is told so, and does not wait for ever.
func TestTheCancellationOfAFailedDrainIsAnswered(t *testing.T) {
	const stopping = "too late to cancel: drain d is Failed: node n2 was asked to stop and is shutting down; start it again to bring it back"
	const over = "too late to cancel: drain d has ended: it is Failed. `ebb explain n2` shows the state of the node"
	ordered := func(n *v1alpha1.Node) {
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Stopping, Epoch: 1, DrainUID: "u"}
	}
	for _, c := range []struct {
		what string
		node func(*v1alpha1.Node)
		then func(context.Context, *testing.T, client.Client) // once the cancellation is requested
		want string                                           // empty if it is cancelled
	}{
		{what: "its node was ordered to stop", node: ordered, want: stopping},
		{what: "its node was ordered to stop in an earlier epoch", node: func(n *v1alpha1.Node) {
			ordered(n)
			n.Spec.Desired.Epoch = 0
		}, then: releaseNode},
		{what: "its node is released", then: releaseNode},
		{what: "its node is released, and the slot is free at once", then: func(ctx context.Context, t *testing.T, api client.Client) {
			releaseNode(ctx, t, api)
			freeSlot(ctx, t, api)
		}},
		{what: "its node leaves at the same time", then: freeSlot, want: over},
		{what: "its node is ordered to stop at the same time", then: func(ctx context.Context, t *testing.T, api client.Client) {
			n := &v1alpha1.Node{}
			if err := api.Get(ctx, types.NamespacedName{Name: "n2"}, n); err != nil {
				t.Error(err)
			}
			ordered(n)
			if err := api.Update(ctx, n); err != nil {
				t.Error(err)
			}
		}, want: stopping},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
			if c.node != nil {
				c.node(n)
			}
			settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
			settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "d", UID: "u", Node: "n2", NodeEpoch: 1}
			d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "u"}, Spec: v1alpha1.DrainSpec{NodeName: "n2"}, Status: v1alpha1.DrainStatus{Phase: v1alpha1.DrainFailed}}
			asked := false
			api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithStatusSubresource(d, settings).WithObjects(n, settings, d).
				WithInterceptorFuncs(interceptor.Funcs{Update: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
					err := to.Update(ctx, o, opts...)
					if _, drains := o.(*v1alpha1.Drain); drains && err == nil && !asked && c.then != nil {
						asked = true
						c.then(ctx, t, to)
					}
					return err
				}}).Build()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			got, err := drain.Cancel(ctx, api, "n2")
			switch {
			case c.want == "" && (err != nil || got.Name != "d"):
				t.Errorf("not cancelled: %v, %v", got, err)
			case c.want != "" && (!errors.Is(err, drain.ErrTooLate) || err.Error() != c.want):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func releaseNode(ctx context.Context, t *testing.T, api client.Client) {
	d := &v1alpha1.Drain{}
	if err := api.Get(ctx, types.NamespacedName{Name: "d"}, d); err != nil {
		t.Error(err)
	}
	meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainReleased, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonCancelRequested})
	if err := api.Status().Update(ctx, d); err != nil {
		t.Error(err)
	}
}

func freeSlot(ctx context.Context, t *testing.T, api client.Client) {
	settings := &v1alpha1.Settings{}
	if err := api.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		t.Error(err)
	}
	settings.Status.ActiveDrain = nil
	if err := api.Status().Update(ctx, settings); err != nil {
		t.Error(err)
	}
}
