package coordinator

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// The tests share one API and so one election: they run one after the other.
func TestElection(t *testing.T) {
	api := testenv.StartAPI(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *testenv.API)
	}{
		{"one of three is elected and its manager runs", oneIsElected},
		{"resigning hands over to another", resigningHandsOver},
		{"a lone node cannot resign", aLoneNodeCannotResign},
		{"a node that the drain slot names does not stand", theNamedDoesNotStand},
		{"a node that is named between winning and leading steps back", theNamedStepsBack},
		{"a node that the slot names goes back to work and leads when it is alone, though it never heard of its drain", theNamedSurvivesAlone},
		{"a node that the slot names goes back to work when two others died at once", theNamedSurvivesTwo},
		{"a coordinator that becomes Draining gives up its term", theDrainingGivesUp},
		{"a coordinator that leaves hands over", theLeavingHandsOver},
		{"a term that is over writes nothing", aTermThatIsOver},
		{"a term that ends at its beginning is followed by another", aTermThatEndsAtItsBeginning},
		{"a term that lost the election ends", aTermThatLost},
		{"a Term that was deleted or changed is written again", theTermComesBack},
		{"lost nodes are marked, whatever their clocks said", lostNodesAreMarked},
		{"nothing of a term outlives its node", nothingOutlives},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, api) }) {
			t.FailNow()
		}
	}
}

func oneIsElected(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"a1", "a2", "a3"})
	leader, term := c.leader()
	for _, m := range c.others(leader) {
		if m.campaign.Leading() || m.object(c).Status.Coordinator {
			t.Errorf("%s leads too", m.name)
		}
		if err := m.campaign.Resign(context.Background()); !errors.Is(err, ErrNotCoordinator) {
			t.Errorf("resigning on %s: %v", m.name, err)
		}
	}
	if err := term.CheckTerm(context.Background()); err != nil {
		t.Errorf("the term does not stand: %v", err)
	}
	if got := NodeOf(term.Identity); got != leader.name {
		t.Errorf("the term is of %s, not of %s", got, leader.name)
	}
	u, err := URL(context.Background(), c.admin)
	if err != nil || u.String() != "https://"+leader.name+".example:1" {
		t.Errorf("URL of the coordinator: %v, %v", u, err)
	}
}

func resigningHandsOver(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"b1", "b2", "b3"})
	before, term := c.leader()
	began := time.Now()
	if err := before.campaign.Resign(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := term.CheckTerm(context.Background()); !errors.Is(err, ErrTermOver) {
		t.Errorf("the term of the one that resigned: %v", err)
	}
	after, _ := c.leader()
	if after == before {
		t.Errorf("%s won again at once", before.name)
	}
	c.noOverlap()
	journal := c.entries()
	took := journal[len(journal)-1].at.Sub(began)
	t.Logf("handed over in %s", took)
	if took >= after.campaign.duration() {
		t.Errorf("the election lapsed: handing over took %s", took)
	}
}

func aLoneNodeCannotResign(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"c1"})
	m, term := c.leader()
	err := m.campaign.Resign(context.Background())
	if !errors.Is(err, ErrNoSuccessor) || err.Error() != "no other node can take over: none is Alive, Ready and not being drained" {
		t.Errorf("resigning: %v", err)
	}
	if c.holder() != term.Identity || !m.campaign.Leading() {
		t.Error("it resigned all the same")
	}
}

// asked counts how often a campaign asked whether its node may lead, and does something when it does.
func asked(n *atomic.Int32, at int32, do func(name string)) func(*Campaign, string) {
	return func(c *Campaign, name string) {
		read := c.eligible
		c.eligible = func(ctx context.Context, e *node.Epoch) error {
			if n.Add(1) == at {
				do(name)
			}
			return read(ctx, e)
		}
	}
}

// neverAlone keeps a node from surviving alone, as it rightly would while another one is slow to join.
func neverAlone(c *Campaign, _ string) {
	c.alone = func(context.Context, *node.Epoch) error { return errors.New("others will join") }
}

// The coordinator dies for good between taking the slot and telling the node.
func theNamedSurvivesAlone(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"l1", "l2"})
	leader, _ := c.leader()
	named := c.others(leader)[0]
	d := c.drain(named.name)
	if got := named.object(c).Status.Liveness; got != v1alpha1.Alive {
		t.Fatalf("it is %s", got)
	}
	leader.stop() // what it decided last is all that is left of it
	until(t, "the drain to be cancelled", func() bool {
		err := c.admin.Get(context.Background(), types.NamespacedName{Name: d.Name}, d)
		return err == nil && d.Status.Phase == v1alpha1.DrainCancelled
	})
	if end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); end == nil || end.Reason != v1alpha1.ReasonLoneSurvivor {
		t.Errorf("it ended with %+v", end)
	}
	after, _ := c.leader(leader)
	if n := after.object(c); after != named || n.Status.Liveness != v1alpha1.Alive || n.Status.Epoch != 2 {
		t.Errorf("%s leads in epoch %d as %s", after.name, n.Status.Epoch, n.Status.Liveness)
	}
}

// Nobody was left to fence the others when the named node began.
func theNamedSurvivesTwo(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, nil)
	d := c.drain("m1")
	c.join("m2", time.Now())
	c.join("m3", time.Now())
	c.members = append(c.members, c.start("m1"))
	until(t, "both others to be fenced", func() bool { return c.record("m2").Fenced == 1 && c.record("m3").Fenced == 1 })
	until(t, "the drain to be cancelled", func() bool {
		err := c.admin.Get(context.Background(), types.NamespacedName{Name: d.Name}, d)
		return err == nil && d.Status.Phase == v1alpha1.DrainCancelled
	})
	if leader, _ := c.leader(); leader.object(c).Status.Liveness != v1alpha1.Alive {
		t.Errorf("it leads as %s", leader.object(c).Status.Liveness)
	}
}

func theNamedDoesNotStand(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"d1", "d2"})
	c.drain("d3")
	var asks atomic.Int32
	c.members = append(c.members, c.start("d3", asked(&asks, 0, nil)))
	until(t, "d3 to ask", func() bool { return asks.Load() > 2 })
	before, _ := c.leader()
	if err := before.campaign.Resign(context.Background()); err != nil {
		t.Fatal(err)
	}
	after, _ := c.leader(before)
	before.stop()
	if err := after.campaign.Resign(context.Background()); !errors.Is(err, ErrNoSuccessor) {
		t.Errorf("resigning to a node that drains: %v", err)
	}
	if led := c.ledBy(); slices.Contains(led, "d3") {
		t.Errorf("led by %v", led)
	}
}

func theNamedStepsBack(t *testing.T, api *testenv.API) {
	slot := newCluster(t, api, nil)
	var asks atomic.Int32
	var won atomic.Value
	c := newCluster(t, api, []string{"e1"}, asked(&asks, 2, func(name string) {
		won.Store(slot.holder())
		slot.drain(name)
	}), neverAlone)
	until(t, "e1 to ask once more", func() bool { return asks.Load() > 2 })
	if identity, _ := won.Load().(string); NodeOf(identity) != "e1" {
		t.Errorf("%q had won when e1 asked again", identity)
	}
	if c.holder() != "" {
		t.Errorf("the election is held by %s", c.holder())
	}
	c.members = append(c.members, c.start("e2"))
	c.leader()
	if led := c.ledBy(); !slices.Equal(led, []string{"e2"}) {
		t.Errorf("led by %v", led)
	}
}

func theDrainingGivesUp(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"f1", "f2"})
	before, _ := c.leader()
	d := c.drain(before.name)
	until(t, "the wish to be written", func() bool {
		n := before.object(c)
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Draining, Epoch: n.Status.Epoch, DrainUID: string(d.UID)}
		return c.admin.Update(context.Background(), n) == nil
	})
	c.leader(before)
	c.noOverlap()
	until(t, "the status to follow", func() bool { return !before.object(c).Status.Coordinator })
	if before.Epoch() == nil {
		t.Error("the draining node left")
	}
}

func theLeavingHandsOver(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"g1", "g2"})
	before, term := c.leader()
	before.stop()
	after, _ := c.leader()
	c.noOverlap()
	if after == before || term.ctx.Err() == nil {
		t.Errorf("%s leads after %s left", after.name, before.name)
	}
}

// nothingOutlives is the last: no other node runs.
func nothingOutlives(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"z1", "z2"})
	leader, _ := c.leader()
	if err := leader.campaign.Resign(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.leader()
	for _, m := range c.members {
		m.stop()
	}
	var left []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("left:\n%s", strings.Join(left, "\n\n"))
		}
	})
	until(t, "every goroutine of nodes and managers to end", func() bool {
		buffer := make([]byte, 16<<20)
		stacks := strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n")
		left = slices.DeleteFunc(stacks, func(stack string) bool {
			return !slices.ContainsFunc([]string{"controller-runtime/pkg/", "coordinator.(*Campaign)", "leaderelection.(", "internal/node.("},
				func(part string) bool { return strings.Contains(stack, part) })
		})
		return len(left) == 0
	})
}
