package node

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
)

// project is what the coordinator adds to a Node's status: who leads, and that an epoch was fenced, released or superseded
// when the node itself can no longer report it. rec is the node's Lease, nil if it has none.
func project(node *v1alpha1.Node, rec *lease.Record, leader string) v1alpha1.NodeStatus {
	status := node.Status
	next := *status.DeepCopy()
	next.Coordinator = node.Name == leader
	if status.Epoch == 0 || rec == nil || !rec.Over(status.Epoch) {
		return next // alive, or never joined
	}
	ready := metav1.Condition{Type: v1alpha1.NodeReady}
	if rec.Epoch > status.Epoch {
		ready.Status, ready.Reason = metav1.ConditionUnknown, v1alpha1.ReasonStarting
		ready.Message = fmt.Sprintf("Epoch %d has ended; epoch %d is starting and has not reported its status yet.", status.Epoch, rec.Epoch)
	} else if node.IsParked() {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonParked, parkedMessage(node.Name)
	} else if rec.Fenced >= status.Epoch {
		ready.Status, ready.Reason = metav1.ConditionUnknown, v1alpha1.ReasonFenced
		ready.Message = fmt.Sprintf("The lease of epoch %d expired: the node is dead, frozen or cut off. Its work may be placed on other nodes; it rejoins as epoch %d.", status.Epoch, status.Epoch+1)
	} else if c := meta.FindStatusCondition(status.Conditions, v1alpha1.NodeReady); c == nil || c.Reason != v1alpha1.ReasonLeft {
		ready.Status, ready.Reason = metav1.ConditionFalse, v1alpha1.ReasonLeft
		ready.Message = "The node released its lease."
		if status.Parked != nil {
			ready.Message = "The node was parked and is uncordoned now: it joins when its process runs."
		}
	} else {
		return next
	}
	meta.SetStatusCondition(&next.Conditions, ready)
	return next
}
