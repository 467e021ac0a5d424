package changefeed

import (
	"log/slog"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// A maintainer may write a checkpoint, or its first filter, just before the coordinator writes that it has to stop. The filter, spec.skip and
// spec.resumeFrom are taken up by what was stopped only.
func TestAStopIsRecordedOverAConflictingWriteOfTheMaintainer(t *testing.T) {
	for name, first := range map[string]*v1alpha1.ChangefeedFilter{"a checkpoint": {Patterns: []string{"a.*"}}, "its first filter": nil} {
		cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: types.UID("1")}}
		cf.Spec.State = v1alpha1.ChangefeedPause
		cf.Status.Placement = &v1alpha1.ChangefeedPlacement{Node: "n1", NodeEpoch: 1, Epoch: 3, Phase: v1alpha1.PlacementRunning}
		cf.Status.State, cf.Status.Filter = v1alpha1.ChangefeedRunning, first
		api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithStatusSubresource(cf).WithObjects(cf).Build()
		seen := &v1alpha1.Changefeed{}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(cf), seen); err != nil {
			t.Fatal(err)
		}
		newer := seen.DeepCopy()
		newer.Status.Checkpoint, newer.Status.Filter = 9, &v1alpha1.ChangefeedFilter{Patterns: []string{"a.*"}}
		if err := api.Status().Update(t.Context(), newer); err != nil {
			t.Fatal(err)
		}
		w := World{Fleet: fleet.New(), Changefeeds: []*v1alpha1.Changefeed{seen}}
		c := &Controller{client: api, live: api, newest: map[types.UID]*v1alpha1.Changefeed{}, Log: slog.New(slog.DiscardHandler)}
		if err := c.writeAll(t.Context(), w, Place(w)); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(cf), cf); err != nil {
			t.Fatal(err)
		}
		if s := cf.Status; s.Placement.Phase != v1alpha1.PlacementStopping || s.State != v1alpha1.ChangefeedPaused || s.Checkpoint != 9 || !s.Filter.Stopped {
			t.Errorf("after %s: %+v, filter %+v", name, s, s.Filter)
		}
	}
}
