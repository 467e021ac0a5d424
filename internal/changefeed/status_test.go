package changefeed_test

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestTheStatusOfChangefeeds(t *testing.T) {
	c := testenv.StartAPI(t).Admin()
	at := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	on := func(node string) *v1alpha1.ChangefeedPlacement {
		return &v1alpha1.ChangefeedPlacement{Node: node, NodeEpoch: 1, Epoch: 2, Phase: v1alpha1.PlacementRunning}
	}
	committed := func(ago time.Duration) *metav1.Time { return &metav1.Time{Time: at.Add(-ago)} }
	for name, status := range map[string]v1alpha1.ChangefeedStatus{
		"new":    {},
		"failed": {State: v1alpha1.ChangefeedFailed, Error: "no such table", Slowest: "waits for t1", CheckpointTime: committed(time.Hour)},
		"moving": {State: v1alpha1.ChangefeedRunning, Slowest: "waits for t1", CheckpointTime: committed(time.Hour)},
		"late":   {State: v1alpha1.ChangefeedRunning, Slowest: "waits for t1", CheckpointTime: committed(time.Hour)},
		"prompt": {State: v1alpha1.ChangefeedRunning, Slowest: "waits for t1", CheckpointTime: committed(time.Second)},
	} {
		cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.ChangefeedSpec{Source: "datagen://?tables=1", Sink: "blackhole://"}}
		if err := c.Create(t.Context(), cf); err != nil {
			t.Fatal(err)
		}
		cf.Status = status
		if name != "new" {
			cf.Status.Placement = on("n1")
		}
		if name == "moving" {
			cf.Status.Placement.From = &v1alpha1.PlacementOrigin{Node: "n2", NodeEpoch: 1}
		}
		if err := c.Status().Update(t.Context(), cf); err != nil {
			t.Fatal(err)
		}
	}
	list, err := changefeed.ReadStatus(t.Context(), c, "default", at)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range list {
		got = append(got, s.Name+" "+string(s.State)+" "+s.Maintainer+": "+s.Note())
	}
	want := []string{
		"failed Failed n1: no such table", "late Running n1: waits for t1", "moving Running n1: moving from n2", "new Pending : ", "prompt Running n1: ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	if list, err := changefeed.ReadStatus(t.Context(), c, "other", at); err != nil || list == nil || len(list) != 0 {
		t.Errorf("of another namespace: %v, %v", list, err)
	}
}

func TestAFailedChangefeedIsResumedWithoutItsError(t *testing.T) {
	c := testenv.StartAPI(t).Admin()
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "resumed"}, Spec: v1alpha1.ChangefeedSpec{Source: "datagen://?tables=1", Sink: "blackhole://"}}
	if err := c.Create(t.Context(), cf); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKeyFromObject(cf)
	cf.Status.State, cf.Status.Error = v1alpha1.ChangefeedFailed, "no such table"
	if err := c.Status().Update(t.Context(), cf); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		state v1alpha1.ChangefeedWish
		want  v1alpha1.ChangefeedStatus
	}{
		{v1alpha1.ChangefeedPause, v1alpha1.ChangefeedStatus{State: v1alpha1.ChangefeedFailed, Error: "no such table"}},
		{v1alpha1.ChangefeedRun, v1alpha1.ChangefeedStatus{State: v1alpha1.ChangefeedPending}},
	} {
		if _, err := changefeed.SetState(t.Context(), c, key, step.state); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), key, cf); err != nil || cf.Spec.State != step.state || cf.Status.State != step.want.State || cf.Status.Error != step.want.Error {
			t.Errorf("%s: %v, %+v, %+v", step.state, err, cf.Spec.State, cf.Status)
		}
	}
	if _, err := changefeed.SetState(t.Context(), c, types.NamespacedName{Namespace: "default", Name: "none"}, v1alpha1.ChangefeedRun); err == nil {
		t.Error("a changefeed that does not exist was resumed")
	}
}
