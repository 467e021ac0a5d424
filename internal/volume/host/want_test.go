package host

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestWhatAnEngineShouldDoWithAReplica(t *testing.T) {
	const (
		nothing = "nothing"
		build   = "build"
		leave   = "leave, and remember what it misses"
		drop    = "leave for good"
	)
	for _, tc := range []struct {
		name     string
		member   bool
		state    v1alpha1.ReplicaState
		release  v1alpha1.ReleaseReason
		deleting bool
		stopping bool
		want     string
	}{
		{name: "a member stays", member: true, state: v1alpha1.ReplicaReady, want: nothing},
		{name: "a member whose deletion is asked for stays until it is released", member: true, state: v1alpha1.ReplicaReady, deleting: true, want: nothing},
		{name: "a member on a node that stops stays unless it is released", member: true, state: v1alpha1.ReplicaReady, stopping: true, want: nothing},
		{name: "a ready replica is built", state: v1alpha1.ReplicaReady, want: build},
		{name: "a replica that is not made yet is not built", state: v1alpha1.ReplicaPending, want: nothing},
		{name: "a replica that is damaged is not built", state: v1alpha1.ReplicaFailed, want: nothing},
		{name: "a replica that is being deleted is not built", state: v1alpha1.ReplicaReady, deleting: true, want: nothing},
		{name: "a replica on a node that stops is not built", state: v1alpha1.ReplicaReady, stopping: true, want: nothing},
		{name: "a member that was released for a drain stays while its node serves", member: true, state: v1alpha1.ReplicaReady, release: v1alpha1.ReleaseForDrain, want: nothing},
		{name: "a member that was released for a drain leaves when its node stops", member: true, state: v1alpha1.ReplicaReady, release: v1alpha1.ReleaseForDrain, stopping: true, want: leave},
		{name: "what was released for a drain is not built", state: v1alpha1.ReplicaReady, release: v1alpha1.ReleaseForDrain, want: nothing},
		{name: "an evicted member leaves for good", member: true, state: v1alpha1.ReplicaReady, release: v1alpha1.ReleaseToEvict, want: drop},
		{name: "a removed member leaves for good", member: true, state: v1alpha1.ReplicaReady, release: v1alpha1.ReleaseToRemove, deleting: true, want: drop},
		{name: "what was removed before it was built is left alone", state: v1alpha1.ReplicaReady, release: v1alpha1.ReleaseToRemove, want: drop},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := &v1alpha1.Replica{ObjectMeta: metav1.ObjectMeta{Name: "r1"}, Spec: v1alpha1.ReplicaSpec{NodeName: "n1"}, Status: v1alpha1.ReplicaStatus{State: tc.state}}
			v := &v1alpha1.Volume{Status: v1alpha1.VolumeStatus{Members: []string{"r0"}}}
			if tc.deleting {
				r.DeletionTimestamp = &metav1.Time{}
			}
			if tc.member {
				v.Status.Members = append(v.Status.Members, "r1")
			}
			if tc.release != "" {
				v.Status.Released = []v1alpha1.ReleasedReplica{{Replica: "r1", Reason: tc.release}}
			}
			want := Want(v, []*v1alpha1.Replica{r}, func(node string) bool { return node == "n1" && tc.stopping })
			got := nothing
			switch keep, leaves := want.Leave["r1"]; {
			case len(want.Build) > 0 && len(want.Leave) > 0:
				got = "build and leave"
			case len(want.Build) > 0:
				got = build
			case leaves && keep:
				got = leave
			case leaves:
				got = drop
			}
			if got != tc.want {
				t.Errorf("the engine should %s, want %s", got, tc.want)
			}
		})
	}
}

func TestReplicasAreBuiltInTheOrderOfTheirNames(t *testing.T) {
	var list []*v1alpha1.Replica
	for _, name := range []string{"r3", "r1", "r2"} {
		list = append(list, &v1alpha1.Replica{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.ReplicaStatus{State: v1alpha1.ReplicaReady}})
	}
	want := Want(&v1alpha1.Volume{}, list, func(string) bool { return false })
	if !slices.Equal(want.Build, []string{"r1", "r2", "r3"}) || len(want.Leave) != 0 {
		t.Errorf("the engine should build %v and let %v go", want.Build, want.Leave)
	}
}
