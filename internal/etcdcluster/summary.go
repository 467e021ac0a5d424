package etcdcluster

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// Summarize counts etcd clusters by state.
func Summarize(list []v1alpha1.EtcdCluster) *kind.Summary {
	k := kind.NewSummary("etcd cluster", "etcd clusters", "ebb status etcdclusters")
	for i := range list {
		state, message := summaryState(&list[i])
		k.Add(kind.NameIn(list[i].Namespace, list[i].Name), state, message)
	}
	return k
}

// Message is what matters most about a cluster: what is wrong, or what it is doing.
func Message(ec *v1alpha1.EtcdCluster) string {
	for _, t := range []string{v1alpha1.EtcdRestorePending, v1alpha1.EtcdCorrupt, v1alpha1.EtcdNoSpace, v1alpha1.EtcdQuorumLost, v1alpha1.EtcdDataMissing, v1alpha1.EtcdSnapshotFailed, v1alpha1.EtcdMemberFailing, v1alpha1.EtcdProgressing} {
		if c := meta.FindStatusCondition(ec.Status.Conditions, t); c != nil && (c.Status == metav1.ConditionTrue || t == v1alpha1.EtcdProgressing) {
			return strings.TrimSpace(c.Message + " " + finalRestore(ec))
		}
	}
	return finalRestore(ec)
}

// finalRestore returns how the last restore order ended, if it was not carried out and is still in the spec.
func finalRestore(ec *v1alpha1.EtcdCluster) string {
	order, state := ec.Spec.Restore, ec.Status.Restore
	if order == nil || state == nil || order.ID != state.ID || !state.Phase.Final() || state.Phase == v1alpha1.EtcdRestoreDone {
		return ""
	}
	return fmt.Sprintf("restore %s %s: %s", state.ID, strings.ToLower(string(state.Phase)), state.Message)
}

// summaryState follows from a cluster's own phase and conditions.
func summaryState(ec *v1alpha1.EtcdCluster) (kind.State, string) {
	s := ec.Status
	is := func(condition string) bool { return meta.IsStatusConditionTrue(s.Conditions, condition) }
	ready := fmt.Sprintf("%d of %d members ready", s.ReadyReplicas, max(ec.Size(), len(s.Members)))
	switch {
	case !ec.DeletionTimestamp.IsZero():
		return kind.Deleting, ""
	case is(v1alpha1.EtcdQuorumLost):
		return kind.State{Name: "no quorum", One: "has no quorum", Many: "have no quorum", Rank: kind.Wrong}, Message(ec)
	case is(v1alpha1.EtcdDataMissing):
		return kind.State{Name: "data missing", One: "has data missing", Many: "have data missing", Rank: kind.Wrong}, Message(ec)
	case is(v1alpha1.EtcdSnapshotFailed):
		return kind.State{Name: "no snapshot", One: "cannot be snapshotted", Many: "cannot be snapshotted", Rank: kind.Wrong}, Message(ec)
	case is(v1alpha1.EtcdCorrupt):
		return kind.State{Name: "corrupt", One: "is corrupt", Many: "are corrupt", Rank: kind.Wrong}, Message(ec)
	case is(v1alpha1.EtcdNoSpace):
		return kind.State{Name: "full", One: "is full", Many: "are full", Rank: kind.Wrong}, Message(ec)
	case is(v1alpha1.EtcdMemberFailing):
		return kind.State{Name: "member failing", One: "has a failing member", Many: "have failing members", Rank: kind.Wrong}, Message(ec)
	case s.Phase == v1alpha1.EtcdClusterPhaseFailed:
		return kind.Failed, Message(ec)
	case s.Phase == "" || s.ObservedGeneration != ec.Generation:
		return kind.Unseen, ""
	case meta.IsStatusConditionFalse(s.Conditions, v1alpha1.EtcdScheduleValid):
		return kind.State{Name: "bad schedule", One: "has a bad schedule", Many: "have bad schedules", Rank: kind.Wrong}, meta.FindStatusCondition(s.Conditions, v1alpha1.EtcdScheduleValid).Message
	case s.Phase == v1alpha1.EtcdClusterPhaseStopped && ec.IsSuspended():
		return kind.State{Name: "suspended", Rank: kind.Wanted}, ""
	case s.Phase == v1alpha1.EtcdClusterPhaseStopped && ec.Size() == 0:
		return kind.State{Name: "stopped", Rank: kind.Wanted}, ""
	case s.Phase != v1alpha1.EtcdClusterPhaseRunning:
		return kind.State{Name: strings.ToLower(string(s.Phase)), Rank: kind.Busy}, Message(ec)
	case !is(v1alpha1.EtcdReady):
		return kind.State{Name: "not ready", Rank: kind.Wrong}, ready
	case int(s.ReadyReplicas) < ec.Size():
		return kind.State{Name: "short of members", Rank: kind.Wrong}, ready
	}
	return kind.Running, ""
}
