package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// tenLeft is a drain that waits for ten deployments to be claimed.
func tenLeft() *v1alpha1.Drain {
	started := metav1.NewTime(now.Add(-time.Minute))
	d := &v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: "n2"}}
	d.Status = v1alpha1.DrainStatus{
		Phase: v1alpha1.DrainDraining, StartedAt: &started, Stage: "deployments",
		Initial: map[string]int64{"deployments": 20}, Remaining: map[string]int64{"deployments": 10},
		Conditions: []metav1.Condition{{Type: v1alpha1.DrainFinished, Status: metav1.ConditionFalse}},
	}
	for i := range 10 {
		d.Status.Blockers = append(d.Status.Blockers, v1alpha1.Blocker{
			Kind: "Deployment", Name: fmt.Sprintf("p%d", i), Reason: "AwaitingClaim", Remedy: "waiting for another node to claim it", Since: started,
		})
	}
	return d
}

func TestALineOfADrainStaysReadable(t *testing.T) {
	want := "n2: Draining, 10 deployments left; 10 Deployments AwaitingClaim (p0, p1, p2 and 7 more)"
	if got := (&watcher{drain: tenLeft()}).line(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestThePictureOfADrainStaysReadable(t *testing.T) {
	want := `Draining n2: Draining, 1m0s, deployments
  deployments    ██████████░░░░░░░░░░ 10 of 20 left

10 Deployments AwaitingClaim (p0, p1, p2 and 7 more), for 1m0s
  waiting for another node to claim it

Ctrl-C stops watching; the drain continues.
`
	if diff := cmp.Diff(want, drawDrain(tenLeft(), nil, now, 60)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
