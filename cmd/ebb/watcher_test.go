package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// scripted is an API that answers with one drain after the other.
type scripted struct {
	client.Client
	drains []*v1alpha1.Drain
}

func (s *scripted) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	s.drains[0].DeepCopyInto(into.(*v1alpha1.Drain))
	if len(s.drains) > 1 {
		s.drains = s.drains[1:]
	}
	return nil
}

func TestADrainThatIsPrintedSaysWhatItWaitsFor(t *testing.T) {
	blocked := func(remedies ...string) *v1alpha1.Drain {
		d := tenLeft()
		d.Status.Blockers, d.Status.Remaining = nil, map[string]int64{"replicas": 2}
		for i, remedy := range remedies {
			d.Status.Blockers = append(d.Status.Blockers, v1alpha1.Blocker{Kind: "Replica", Name: fmt.Sprint("data-r", i+1), Reason: "Evicting", Remedy: remedy})
		}
		return d
	}
	done := tenLeft()
	done.Status.Phase, done.Status.FinishedAt = v1alpha1.DrainComplete, &metav1.Time{Time: now}
	done.Status.Conditions[0].Message = "The node has left."
	w := &watcher{client: &scripted{drains: []*v1alpha1.Drain{blocked("10% built", "wait"), blocked("10% built", "wait"), blocked("20% built", "wait"), done}}, drain: tenLeft()}
	var out strings.Builder
	if err := w.print(t.Context(), io.Discard, &out, true); err != nil {
		t.Fatal(err)
	}
	want := `n2: Draining, 2 replicas left; 2 Replicas Evicting (data-r1, data-r2)
  data-r1: 10% built
  data-r2: wait
  data-r1: 20% built
n2: The node has left. It took 1m0s.
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
