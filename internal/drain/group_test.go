package drain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// blocked makes blockers of one kind, reason and remedy.
func blocked(kind, reason, remedy string, names ...string) []v1alpha1.Blocker {
	var list []v1alpha1.Blocker
	for _, name := range names {
		list = append(list, v1alpha1.Blocker{Kind: kind, Name: name, Reason: reason, Remedy: remedy, Since: metav1.NewTime(start)})
	}
	return list
}

func TestBlockersOfOneKindAndReasonAreReadAsOne(t *testing.T) {
	ten := strings.Fields("p1 p10 p11 p12 p2 p3 p4 p5 p6 p7")
	for _, c := range []struct {
		name     string
		blockers [][]v1alpha1.Blocker
		want     []string
	}{
		{"none", nil, nil},
		{"one", [][]v1alpha1.Blocker{blocked("Volume", "LastCopy", "add a disk", "v")}, []string{"Volume v: LastCopy", "  add a disk"}},
		{"one without a remedy", [][]v1alpha1.Blocker{blocked("Volume", "Rebuilding", "", "v")}, []string{"Volume v: Rebuilding"}},
		{"two", [][]v1alpha1.Blocker{blocked("Volume", "LastCopy", "add a disk", "v", "w")}, []string{"2 Volumes LastCopy (v, w)", "  add a disk"}},
		{"as many as can be named", [][]v1alpha1.Blocker{blocked("Volume", "LastCopy", "", ten[:4]...)}, []string{"4 Volumes LastCopy (p1, p10, p11, p12)"}},
		{"one more", [][]v1alpha1.Blocker{blocked("Volume", "LastCopy", "", ten[:5]...)}, []string{"5 Volumes LastCopy (p1, p10, p11 and 2 more)"}},
		{"ten", [][]v1alpha1.Blocker{blocked("Deployment", "AwaitingClaim", "wait", ten...)}, []string{"10 Deployments AwaitingClaim (p1, p10, p11 and 7 more)", "  wait"}},
		{"other kinds and reasons stay apart", [][]v1alpha1.Blocker{
			blocked("Deployment", "AwaitingClaim", "wait", "a"), blocked("Deployment", "AwaitingStop", "wait", "b"),
			blocked("Deployment", "AwaitingClaim", "wait", "c"), blocked("Volume", "AwaitingStop", "wait", "b"),
		}, []string{"2 Deployments AwaitingClaim (a, c)", "  wait", "Deployment b: AwaitingStop", "  wait", "Volume b: AwaitingStop", "  wait"}},
		{"every remedy once, with what it is for", [][]v1alpha1.Blocker{
			blocked("Deployment", "NoEligibleNode", "label a node", "a", "c"), blocked("Deployment", "NoEligibleNode", "trust it", "b"),
		}, []string{"3 Deployments NoEligibleNode (a, c, b)", "  a, c: label a node", "  b: trust it"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var blockers []v1alpha1.Blocker
			for _, list := range c.blockers {
				blockers = append(blockers, list...)
			}
			var got []string
			for _, g := range drain.Groups(blockers) {
				got = append(got, g.String())
				for _, advice := range g.Advice() {
					got = append(got, "  "+advice)
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAGroupIsAsOldAsItsOldestBlocker(t *testing.T) {
	blockers := blocked("Volume", "LastCopy", "", "a", "b", "c")
	blockers[1].Since = metav1.NewTime(start.Add(-time.Minute))
	if got := drain.Groups(blockers)[0].Since; !got.Time.Equal(start.Add(-time.Minute)) {
		t.Errorf("since %s", got)
	}
}

func TestExplainSaysWhatHoldsANodeInGroups(t *testing.T) {
	s := newScene(t)
	var blockers []v1alpha1.Blocker
	for i := range 10 {
		blockers = append(blockers, v1alpha1.Blocker{Kind: "Deployment", Name: fmt.Sprintf("p%d", i), Reason: "AwaitingClaim", Remedy: "waiting for another node to claim it"})
	}
	s.places("n2", "deployments", 10, blockers...)
	s.begun("d", "n2")
	s.now = start.Add(time.Minute)
	s.steps()
	want := "10 Deployments block the drain: AwaitingClaim (p0, p1, p2 and 7 more), for up to 1m0s; waiting for another node to claim it.\n"
	if got := drain.Explain(s.world(), "n2"); !strings.HasSuffix(got, "\n"+want) {
		t.Errorf("got\n%s\nwant it to end\n%s", got, want)
	}
}
