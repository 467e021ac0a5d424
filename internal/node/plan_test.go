package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
)

func ready(status metav1.ConditionStatus, reason string) []metav1.Condition {
	return []metav1.Condition{{Type: v1alpha1.NodeReady, Status: status, Reason: reason}}
}

func TestTheCoordinatorSaysWhatANodeCannotSayItself(t *testing.T) {
	alive := v1alpha1.NodeStatus{Epoch: 3, Liveness: v1alpha1.Alive, Conditions: ready(metav1.ConditionTrue, v1alpha1.ReasonServing)}
	with := func(s v1alpha1.NodeStatus, change func(*v1alpha1.NodeStatus)) v1alpha1.NodeStatus {
		s = *s.DeepCopy()
		change(&s)
		return s
	}
	left := with(alive, func(s *v1alpha1.NodeStatus) {
		s.Liveness, s.Conditions = v1alpha1.Stopping, ready(metav1.ConditionFalse, v1alpha1.ReasonLeft)
	})
	parked := with(left, func(s *v1alpha1.NodeStatus) {
		s.Parked, s.Conditions = &v1alpha1.Parked{DrainUID: "d", Epoch: 3}, ready(metav1.ConditionFalse, v1alpha1.ReasonParked)
	})
	tests := map[string]struct {
		status   v1alpha1.NodeStatus
		cordoned bool
		rec      *lease.Record
		leader   string
		want     v1alpha1.NodeStatus
	}{
		"a node that holds its lease speaks for itself": {
			status: alive, rec: &lease.Record{Node: "n1", Holder: "h", Epoch: 3}, leader: "n2", want: alive,
		},
		"the leader is named": {
			status: alive, rec: &lease.Record{Node: "n1", Holder: "h", Epoch: 3}, leader: "n1",
			want: with(alive, func(s *v1alpha1.NodeStatus) { s.Coordinator = true }),
		},
		"a former leader is no longer named": {
			status: with(alive, func(s *v1alpha1.NodeStatus) { s.Coordinator = true }),
			rec:    &lease.Record{Node: "n1", Holder: "h", Epoch: 3}, leader: "n2", want: alive,
		},
		"a marked epoch is Fenced": {
			status: alive, rec: &lease.Record{Node: "n1", Epoch: 3, Fenced: 3}, leader: "n2",
			want: with(alive, func(s *v1alpha1.NodeStatus) {
				s.Conditions = ready(metav1.ConditionUnknown, v1alpha1.ReasonFenced)
			}),
		},
		"a newer epoch that has not spoken yet is starting": {
			status: alive, rec: &lease.Record{Node: "n1", Holder: "h", Epoch: 4, Fenced: 3}, leader: "n2",
			want: with(alive, func(s *v1alpha1.NodeStatus) {
				s.Conditions = ready(metav1.ConditionUnknown, v1alpha1.ReasonStarting)
			}),
		},
		"a released lease means that the node left": {
			status: alive, rec: &lease.Record{Node: "n1", Epoch: 3}, leader: "n2",
			want: with(alive, func(s *v1alpha1.NodeStatus) { s.Conditions = ready(metav1.ConditionFalse, v1alpha1.ReasonLeft) }),
		},
		"a node that said that it left is left alone": {
			status: left, rec: &lease.Record{Node: "n1", Epoch: 3}, leader: "n2", want: left,
		},
		"a parked node stays Parked": {
			status: parked, cordoned: true, rec: &lease.Record{Node: "n1", Epoch: 3}, leader: "n2", want: parked,
		},
		"a parked node whose lease expired is Parked": {
			status: parked, cordoned: true, rec: &lease.Record{Node: "n1", Epoch: 3, Fenced: 3}, leader: "n2", want: parked,
		},
		"a node that was parked because it died is Parked": {
			status:   with(alive, func(s *v1alpha1.NodeStatus) { s.Parked = &v1alpha1.Parked{DrainUID: "d", Epoch: 3} }),
			cordoned: true, rec: &lease.Record{Node: "n1", Epoch: 3, Fenced: 3}, leader: "n2",
			want: with(parked, func(s *v1alpha1.NodeStatus) { s.Liveness = v1alpha1.Alive }),
		},
		"a node that was parked and is uncordoned has left until it joins": {
			status: parked, rec: &lease.Record{Node: "n1", Epoch: 3}, leader: "n2",
			want: with(parked, func(s *v1alpha1.NodeStatus) { s.Conditions = ready(metav1.ConditionFalse, v1alpha1.ReasonLeft) }),
		},
		"a node that joins again after it was parked is starting": {
			status: parked, cordoned: true, rec: &lease.Record{Node: "n1", Holder: "h", Epoch: 4}, leader: "n2",
			want: with(parked, func(s *v1alpha1.NodeStatus) { s.Conditions = ready(metav1.ConditionUnknown, v1alpha1.ReasonStarting) }),
		},
		"a node that never joined": {
			status: v1alpha1.NodeStatus{}, rec: nil, leader: "n2", want: v1alpha1.NodeStatus{},
		},
		"a node without a lease": {status: alive, rec: nil, leader: "n2", want: alive},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := tc.status.DeepCopy()
			node := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1alpha1.NodeSpec{Cordoned: tc.cordoned}, Status: tc.status}
			got := project(node, tc.rec, tc.leader)
			ignore := cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime", "Message")
			if diff := cmp.Diff(tc.want, got, ignore); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(*before, tc.status); diff != "" {
				t.Errorf("the input was changed:\n%s", diff)
			}
		})
	}
}

func TestTheMarkTellsWhatHappensNext(t *testing.T) {
	status := v1alpha1.NodeStatus{Epoch: 3, Liveness: v1alpha1.Alive}
	node := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: status}
	got := project(node, &lease.Record{Node: "n1", Epoch: 3, Fenced: 3, Duration: 10 * time.Second}, "n2")
	want := "The lease of epoch 3 expired: the node is dead, frozen or cut off. Its work may be placed on other nodes; it rejoins as epoch 4."
	if got.Conditions[0].Message != want {
		t.Errorf("message:\n%s\nwant:\n%s", got.Conditions[0].Message, want)
	}
}

func TestLabelsOfTheCommandLineComeAndGoAndLeaveOthersAlone(t *testing.T) {
	n := &v1alpha1.Node{}
	n.Labels = map[string]string{"by-hand": "x"}
	applyLabels(n, map[string]string{"zone": "a", "disk": "ssd"})
	if diff := cmp.Diff(map[string]string{"by-hand": "x", "zone": "a", "disk": "ssd"}, n.Labels); diff != "" {
		t.Error(diff)
	}
	applyLabels(n, map[string]string{"zone": "b"})
	if diff := cmp.Diff(map[string]string{"by-hand": "x", "zone": "b"}, n.Labels); diff != "" {
		t.Error(diff)
	}
	applyLabels(n, nil)
	if diff := cmp.Diff(map[string]string{"by-hand": "x"}, n.Labels); diff != "" {
		t.Error(diff)
	}
}
