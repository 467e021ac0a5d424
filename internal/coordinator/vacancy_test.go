package coordinator

import (
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// leaseOf is a Lease that its holder renewed some time before noon.
func leaseOf(name, holder string, renewedAgo time.Duration, epoch, fenced int64) *coordinationv1.Lease {
	renewed := metav1.NewMicroTime(noon.Add(-renewedAgo))
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
		lease.EpochAnnotation: strconv.FormatInt(epoch, 10), lease.FencedAnnotation: strconv.FormatInt(fenced, 10),
	}}}
	l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &holder, &renewed, new(int32(10))
	return l
}

func TestThatNobodyLeadsIsExplained(t *testing.T) {
	node := func(name string, liveness v1alpha1.Liveness) v1alpha1.Node {
		n := v1alpha1.Node{Status: v1alpha1.NodeStatus{Liveness: liveness, Epoch: 1}}
		n.Name = name
		return n
	}
	held := func(names ...string) map[string]*coordinationv1.Lease {
		leases := map[string]*coordinationv1.Lease{}
		for _, name := range names {
			leases[name] = leaseOf(lease.NameOf(name), name+"/x", time.Second, 1, 0)
		}
		return leases
	}
	slot := &v1alpha1.ActiveDrain{Name: "n2-abc", Node: "n2", NodeEpoch: 1}
	for _, c := range []struct {
		name  string
		facts vacancyFacts
		want  string
	}{
		{
			"somebody leads",
			vacancyFacts{election: leaseOf(lease.CoordinatorName, "n1/1/x.1", 2*time.Second, 0, 0)},
			"",
		},
		{
			"the wedge of two nodes: the coordinator is dead, and the other is named by the slot",
			vacancyFacts{
				election: leaseOf(lease.CoordinatorName, "n1/1/x.1", 13*time.Second, 0, 0),
				nodes:    []v1alpha1.Node{node("n2", v1alpha1.Alive), node("n1", v1alpha1.Alive)},
				leases:   map[string]*coordinationv1.Lease{"n1": leaseOf("node-n1", "n1/x", 13*time.Second, 1, 0), "n2": held("n2")["n2"]},
				slot:     slot,
			},
			"There is no coordinator: node n1 was elected and has not renewed its election for 13s. Drains and placements wait until there is one.\n" +
				"Node n1 has not renewed its lease for 13s: it may be dead, frozen or cut off, and is lost after 10s.\n" +
				"Node n2 cannot become coordinator while drain n2-abc drains it. Once every other node has left or is lost, it cancels that drain and becomes coordinator; it waits for n1.\n",
		},
		{
			"the coordinator has been silent for a moment",
			vacancyFacts{
				election: leaseOf(lease.CoordinatorName, "n1/1/x.1", 5*time.Second, 0, 0),
				nodes:    []v1alpha1.Node{node("n1", v1alpha1.Alive), node("n2", v1alpha1.Alive)},
				leases:   map[string]*coordinationv1.Lease{"n1": leaseOf("node-n1", "n1/x", 6*time.Second, 1, 0), "n2": held("n2")["n2"]},
			},
			"The coordinator, node n1, has not renewed its election for 5s. Another node can be elected after 10s.\n" +
				"Node n1 has not renewed its lease for 6s: it may be dead, frozen or cut off, and is lost after 10s.\n" +
				"Node n2 can become coordinator: a node is elected within the duration of a lease.\n",
		},
		{
			"a node is parked",
			vacancyFacts{
				nodes: []v1alpha1.Node{func() v1alpha1.Node {
					n := node("n1", v1alpha1.Stopping)
					n.Spec.Cordoned, n.Status.Parked = true, &v1alpha1.Parked{DrainUID: "d", Epoch: 1}
					return n
				}()},
				leases: map[string]*coordinationv1.Lease{"n1": leaseOf("node-n1", "", time.Minute, 1, 0)},
			},
			"There is no coordinator: none has been elected yet. Drains and placements wait until there is one.\n" +
				"Node n1 cannot become coordinator: it is parked; `ebb uncordon n1` brings it back.\n",
		},
		{
			"nobody was ever elected",
			vacancyFacts{nodes: []v1alpha1.Node{node("n1", v1alpha1.Alive)}, leases: held("n1")},
			"There is no coordinator: none has been elected yet. Drains and placements wait until there is one.\n" +
				"Node n1 can become coordinator: a node is elected within the duration of a lease.\n",
		},
		{
			"one has left, one is lost, one never joined, one is stopping",
			vacancyFacts{
				election: leaseOf(lease.CoordinatorName, "", 3*time.Second, 0, 0),
				nodes:    []v1alpha1.Node{node("n1", v1alpha1.Stopping), node("n2", v1alpha1.Alive), node("n3", v1alpha1.Alive), node("n4", v1alpha1.Stopping)},
				leases: map[string]*coordinationv1.Lease{
					"n1": leaseOf("node-n1", "", time.Minute, 1, 0), "n2": leaseOf("node-n2", "", time.Minute, 1, 1), "n4": held("n4")["n4"],
				},
			},
			"There is no coordinator: the election was released 3s ago. Drains and placements wait until there is one.\n" +
				"Node n1 cannot become coordinator: it has left.\nNode n2 cannot become coordinator: it is lost.\nNode n3 cannot become coordinator: it has no lease.\nNode n4 cannot become coordinator: it is Stopping.\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.facts.now = noon
			got := ""
			if _, silent, _ := c.facts.state(); silent {
				got = c.facts.explain()
			}
			if got != c.want {
				t.Errorf("it says:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}
