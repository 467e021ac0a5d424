package apiserver

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leaving is a definition that is being deleted, as it is in one version.
func leaving(uid, version, reason string) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{
			Name: "things.test", UID: types.UID(uid), ResourceVersion: version, DeletionTimestamp: &metav1.Time{Time: time.Unix(0, 0)},
			Finalizers: []string{apiextensionsv1.CustomResourceCleanupFinalizer},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, Reason: reason},
		}},
	}
}

// asks looks every half second, and says after how much time the deletion of the definition is asked for again.
func asks(d *deletions, from, to time.Duration, crds ...*apiextensionsv1.CustomResourceDefinition) (at []time.Duration) {
	for now := from; now <= to; now += deletionLook {
		if len(d.due(crds, time.Unix(1000, 0).Add(now))) > 0 {
			at = append(at, now)
		}
	}
	return at
}

func want(t *testing.T, got []time.Duration, seconds ...float64) {
	t.Helper()
	for i, s := range seconds {
		if i >= len(got) || got[i] != time.Duration(s*float64(time.Second)) {
			t.Fatalf("asked again at %v, want %v s", got, seconds)
		}
	}
	if len(got) != len(seconds) {
		t.Errorf("asked again at %v, want %v s", got, seconds)
	}
}

func TestADeletionThatFailedIsAskedForAgainLaterAndLater(t *testing.T) {
	for _, reason := range []string{"InstanceDeletionFailed", "InstanceDeletionCheck"} {
		want(t, asks(&deletions{}, 0, time.Minute, leaving("u", "1", reason)), 1, 3, 7, 15, 30, 45, 60)
	}
}

func TestADeletionThatIsWorkedOnIsLeftAlone(t *testing.T) {
	for _, reason := range []string{"InstanceDeletionPending", "InstanceDeletionInProgress"} {
		want(t, asks(&deletions{}, 0, 2*time.Minute, leaving("u", "1", reason)), 90)
	}
}

func TestADeletionThatMovesIsLeftAlone(t *testing.T) {
	d := &deletions{}
	for i, version := range []string{"1", "2", "3", "4"} {
		from := time.Duration(i) * time.Second
		want(t, asks(d, from, from+500*time.Millisecond, leaving("u", version, "InstanceDeletionFailed")))
	}
}

func TestANewDefinitionOfTheSameNameIsAnother(t *testing.T) {
	d := &deletions{}
	want(t, asks(d, 0, 7*time.Second, leaving("u", "1", "InstanceDeletionFailed")), 1, 3, 7)
	want(t, asks(d, 8*time.Second, 9*time.Second, leaving("v", "9", "InstanceDeletionFailed")), 9)
	if d.seen["u"] != nil {
		t.Error("the one that is gone is remembered")
	}
}

func TestADefinitionThatIsNotDeletedOrWaitsForOthersIsLeftAlone(t *testing.T) {
	stays, waits := leaving("u", "1", "InstanceDeletionFailed"), leaving("v", "1", "InstanceDeletionFailed")
	stays.DeletionTimestamp = nil
	waits.Finalizers = []string{"somebody/else"}
	want(t, asks(&deletions{}, 0, time.Minute, stays, waits))
}

func TestARetryNamesTheDefinitionAndChangesNothingElse(t *testing.T) {
	const text = `{"metadata":{"uid":"u","annotations":{"ebb.dev/deletion-retries":"2"}}}`
	if got := string(retryPatch(leaving("u", "1", ""), 2)); got != text {
		t.Errorf("got %s, want %s", got, text)
	}
}
