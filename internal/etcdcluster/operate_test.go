package etcdcluster

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func withMembers(members ...v1alpha1.EtcdMemberInfo) *v1alpha1.EtcdCluster {
	return &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}, Status: v1alpha1.EtcdClusterStatus{Members: members}}
}

func TestClientsGetTheVotersTheHealthyOnesFirst(t *testing.T) {
	ec := withMembers(
		v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdVoter, ClientURL: "http://1"},
		v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdLeader, ClientURL: "http://2", Healthy: true},
		v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdLearner, ClientURL: "http://3", Healthy: true},
		v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdVoter, Healthy: true},
		v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdVoter, ClientURL: "http://5", Healthy: true},
	)
	if got, err := Endpoints(ec); err != nil || !slices.Equal(got, []string{"http://2", "http://5", "http://1"}) {
		t.Errorf("%v, %v", got, err)
	}
	for phase, want := range map[v1alpha1.EtcdClusterPhase]string{
		"":                               "etcd cluster demo has no endpoints: it is not created yet",
		v1alpha1.EtcdClusterPhaseRunning: "etcd cluster demo has no endpoints: it is running",
		v1alpha1.EtcdClusterPhaseStopped: "etcd cluster demo has no endpoints: it is stopped; `kubectl scale etcdcluster demo --replicas=N` starts it",
	} {
		ec := withMembers()
		ec.Status.Phase = phase
		if _, err := Endpoints(ec); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", phase, err, want)
		}
	}
}

// A command without the namespace would mean a cluster of the same name in another one.
func TestCommandsNameTheNamespace(t *testing.T) {
	size := int32(3)
	ec := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "demo"}, Spec: v1alpha1.EtcdClusterSpec{Size: &size}}
	ec.Status.Phase = v1alpha1.EtcdClusterPhaseStopped
	if got, want := DescribePhase(ec), "stopped; `kubectl scale etcdcluster demo --replicas=N -n team` starts it"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	ec.Status.Suspended = &v1alpha1.EtcdSuspension{Size: 3}
	if got, want := DescribePhase(ec), "stopped; `ebb etcd resume demo -n team` starts it"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := DiscardCommand(ec, "demo-2"), "ebb etcd discard demo demo-2 -n team"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The next start obeys an order for a stopped cluster, also if an earlier one has obeyed the same.
func TestAStoppedClusterIsRestoredAgainFromTheSame(t *testing.T) {
	api := testenv.StartAPI(t)
	c := api.Admin()
	zero := int32(0)
	ec := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}, Spec: v1alpha1.EtcdClusterSpec{Size: &zero, RestoreFrom: "none"}}
	if err := c.Create(t.Context(), ec); err != nil {
		t.Fatal(err)
	}
	ec.Status.ObservedRestoreFrom, ec.Status.RestoreFromTracked, ec.Status.Members = "none", true, []v1alpha1.EtcdMemberInfo{}
	if err := c.Status().Update(t.Context(), ec); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(t.Context(), c, ec.DeepCopy(), RestoreOptions{Snapshot: "none"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: "demo"}, ec); err != nil {
		t.Fatal(err)
	}
	if ec.Spec.RestoreFrom != "none" || ec.Status.ObservedRestoreFrom != "" || !ec.Status.RestoreFromTracked {
		t.Errorf("the next start is to begin from %q, and %q was obeyed", ec.Spec.RestoreFrom, ec.Status.ObservedRestoreFrom)
	}
	ec.Status.Phase, ec.Status.Suspended = v1alpha1.EtcdClusterPhaseStopped, &v1alpha1.EtcdSuspension{Size: 0}
	if err := Resume(t.Context(), c, ec); err == nil || !strings.Contains(err.Error(), "was not stopped by its schedule: its size is 0") {
		t.Errorf("a cluster that people have stopped is resumed: %v", err)
	}
}

func TestASnapshotIsTakenOfAHealthyMemberIfPossibleNotTheLeader(t *testing.T) {
	leader := v1alpha1.EtcdMemberInfo{Name: "leader", Role: v1alpha1.EtcdLeader, Healthy: true}
	voter := v1alpha1.EtcdMemberInfo{Name: "voter", Role: v1alpha1.EtcdVoter, Healthy: true}
	sick := v1alpha1.EtcdMemberInfo{Name: "sick", Role: v1alpha1.EtcdVoter}
	learner := v1alpha1.EtcdMemberInfo{Name: "learner", Role: v1alpha1.EtcdLearner, Healthy: true}
	for _, c := range []struct {
		members []v1alpha1.EtcdMemberInfo
		want    string
	}{
		{nil, ""}, {[]v1alpha1.EtcdMemberInfo{sick, learner}, ""}, {[]v1alpha1.EtcdMemberInfo{sick, leader, learner}, "leader"},
		{[]v1alpha1.EtcdMemberInfo{leader, voter}, "voter"}, {[]v1alpha1.EtcdMemberInfo{voter, leader, sick}, "voter"},
	} {
		got := ""
		if from := snapshotSource(withMembers(c.members...)); from != nil {
			got = from.Name
		}
		if got != c.want {
			t.Errorf("of %v it is taken of %q, want %q", c.members, got, c.want)
		}
	}
	if _, err := TakeSnapshot(t.Context(), nil, withMembers(sick), time.Second); err == nil || !strings.Contains(err.Error(), "no healthy member") {
		t.Errorf("without a healthy member: %v", err)
	}
}

func TestASnapshotThatIsDeletedBeforeItIsVerifiedFails(t *testing.T) {
	c := testenv.StartAPI(t).Admin()
	ec := withMembers(v1alpha1.EtcdMemberInfo{Name: "demo-1", Node: "n1", Role: v1alpha1.EtcdLeader, Healthy: true})
	ec.UID = "12345678-90"
	done := make(chan error, 1)
	go func() {
		_, err := TakeSnapshot(t.Context(), c, ec, time.Minute)
		done <- err
	}()
	for deleted := false; !deleted; {
		var list v1alpha1.EtcdSnapshotList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			s := &list.Items[i]
			s.Finalizers = nil
			if err := errors.Join(c.Update(t.Context(), s), c.Delete(t.Context(), s)); err != nil {
				t.Fatal(err)
			}
			deleted = true
		}
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "was deleted before it was verified; if it could not be taken, the log of node n1 says why") {
		t.Errorf("%v", err)
	}
}

func TestARestoreThatWouldLoseKeysIsRefused(t *testing.T) {
	ec := withMembers()
	if _, _, err := Restore(t.Context(), nil, ec, RestoreOptions{}); err == nil || !strings.Contains(err.Error(), "has no verified snapshot") {
		t.Errorf("without a snapshot: %v", err)
	}
	// Three of seven desired members serve: it is not Ready, and clients write all the same.
	ec = withMembers(
		v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdVoter, Healthy: true}, v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdLeader, Healthy: true},
		v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdVoter, Healthy: true}, v1alpha1.EtcdMemberInfo{Role: v1alpha1.EtcdLearner},
	)
	ec.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EtcdReady, Status: metav1.ConditionFalse}}
	if _, _, err := Restore(t.Context(), nil, ec, RestoreOptions{Snapshot: "none"}); err == nil || !strings.Contains(err.Error(), "serves clients: 3 of its voters are healthy") {
		t.Errorf("a cluster that serves clients: %v", err)
	}
	if _, _, err := Restore(t.Context(), nil, ec, RestoreOptions{FromMember: "n1"}); err == nil || !strings.Contains(err.Error(), "nothing needs to be restored from a member") {
		t.Errorf("from a member of a cluster that serves clients: %v", err)
	}
	for want, o := range map[string]RestoreOptions{
		"--snapshot and --from-member cannot be combined": {Snapshot: "s", FromMember: "n1"}, "--gone can only be combined with --from-member": {Gone: []string{"n1"}}, "--expires must not be negative": {Expires: -1},
	} {
		if _, _, err := Restore(t.Context(), nil, ec, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestARestoreIsOrderedInTheObject(t *testing.T) {
	api := testenv.StartAPI(t)
	c := api.Admin()
	three, zero := int32(3), int32(0)
	for name, size := range map[string]*int32{"runs": &three, "stopped": &zero} {
		ec := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: v1alpha1.EtcdClusterSpec{Size: size}}
		if err := c.Create(t.Context(), ec); err != nil {
			t.Fatal(err)
		}
		stale := ec.DeepCopy()
		ec.Labels = map[string]string{"changed": "meanwhile"}
		if err := c.Update(t.Context(), ec); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Restore(t.Context(), c, stale, RestoreOptions{Snapshot: "none"}); err != nil {
			t.Fatal(err)
		}
		read := func() {
			if err := c.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, ec); err != nil {
				t.Fatal(err)
			}
		}
		read()
		ordered := ec.Spec.Restore != nil && ec.Spec.Restore.Snapshot == "none" && ec.Spec.Restore.ID != "" && time.Until(ec.Spec.Restore.Expires.Time) > 0
		if ordered != (*size > 0) || (ec.Spec.RestoreFrom == "none") != (*size == 0) || ec.Labels["changed"] == "" {
			t.Errorf("%s: order %v, restoreFrom %q", name, ec.Spec.Restore, ec.Spec.RestoreFrom)
		}
		if _, _, err := Restore(t.Context(), c, ec, RestoreOptions{Snapshot: "another"}); err == nil {
			t.Error("a snapshot that is not there was accepted")
		}
		if _, _, err := Restore(t.Context(), c, ec, RestoreOptions{FromMember: "n1"}); err == nil || !strings.Contains(err.Error(), "has no member on node n1") {
			t.Errorf("a node without a member: %v", err)
		}
		if err := CancelRestore(t.Context(), c, ec); err != nil {
			t.Fatal(err)
		}
		if read(); ec.Spec.Restore != nil || ec.Spec.RestoreFrom != "" {
			t.Errorf("canceled, and %+v", ec.Spec)
		}
		if err := CancelRestore(t.Context(), c, ec); err == nil || !strings.Contains(err.Error(), "no restore order that waits") {
			t.Errorf("canceled twice: %v", err)
		}
		if err := Discard(t.Context(), c, ec, "runs-1"); err == nil || !strings.Contains(err.Error(), "set aside: nothing") {
			t.Errorf("discarded what is not set aside: %v", err)
		}
	}
	bad := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bad"}}
	bad.Spec.Restore = &v1alpha1.EtcdRestoreOrder{ID: "1", Expires: metav1.Now()}
	if err := c.Create(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "either a snapshot or a member") {
		t.Errorf("an order from nothing: %v", err)
	}
}
