package drain_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// leavers is a kind whose only piece has a blocker while its node leaves.
type leavers struct{ reader client.Reader }

func (l leavers) Work() drain.Work { return drain.Work{Name: "leavers"} }

func (l leavers) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	f, err := fleet.Read(ctx, l.reader)
	if err != nil {
		return drain.Remaining{}, err
	}
	left := drain.Remaining{Count: 1}
	if f.Leaving(node) && f.Nodes[node].Status.Liveness == v1alpha1.Draining {
		left.Blockers = []v1alpha1.Blocker{{Kind: "Leaver", Name: "l", Reason: "AwaitingBus", Remedy: "call one"}}
	}
	return left, nil
}

func testPreview(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	ctx := bounded(t)
	foresee := func(node string) drain.Preview {
		t.Helper()
		w, err := drain.Gather(ctx, c.admin, "n1", nil, time.Now())
		c.must(err)
		p, err := drain.Foresee(ctx, w, c.admin, func(r client.Reader) []drain.Tenant { return []drain.Tenant{leavers{r}} }, node)
		c.must(err)
		return p
	}
	works := drain.Works{leavers{}.Work()}
	found := "It would move: 1 leaver.\nIt would wait for:\n  Leaver l: AwaitingBus\n    call one\n"
	for node, want := range map[string]string{
		"n1": "A drain of node n1 would be refused now: cannot drain coordinator node (TargetIsCoordinator): `ebb drain n1 --resign` lets another node take over first.\n" + found,
		"n2": "A drain of node n2 would begin at once.\n" + found,
		"n9": "A drain of node n9 would be refused now: capture not found (CaptureNotFound): `ebb status` lists the nodes; one that has left, is lost or is parked cannot be drained.\n",
	} {
		if diff := cmp.Diff(want, foresee(node).Describe(works, false)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", node, diff)
		}
	}
	if p := foresee("n1"); p.Begins(false) || !p.Begins(true) {
		t.Errorf("the coordinator can be drained only if it resigns first: %+v", p)
	}
	if c.slot() != nil || len(c.drains()) > 0 || c.node("n2").Status.Liveness != v1alpha1.Alive {
		t.Errorf("a preview wrote something: %v, %v", c.slot(), c.states())
	}
	c.lead("n1", nil)
	c.request("d", "n2")
	c.phase("d", v1alpha1.DrainDraining)
	want := "A drain of node n3 would be refused now: another drain operation is in progress: drain d of node n2 (DrainInProgress): `ebb drain n3 --queue` waits until it has ended.\n" + found
	if diff := cmp.Diff(want, foresee("n3").Describe(works, false)); diff != "" {
		t.Errorf("while n2 drains: (-want +got)\n%s", diff)
	}
}
