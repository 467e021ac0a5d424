package deployment_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
)

// numbered are names with a number each.
func numbered(prefix string, count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s%d", prefix, i+1)
	}
	return names
}

// programs are deployments without an address.
func programs(prefix string, count int, changes ...change) []*v1alpha1.Deployment {
	var list []*v1alpha1.Deployment
	for _, name := range numbered(prefix, count) {
		list = append(list, program(name, changes...))
	}
	return list
}

// assigned is a plan by name.
func assigned(w cluster, list []*v1alpha1.Deployment) map[string]string {
	plan := map[string]string{}
	for d, node := range deployment.Assign(w.World, list) {
		plan[d.Name] = node
	}
	return plan
}

// loads are how many deployments each node has after a plan.
func loads(w cluster, list []*v1alpha1.Deployment, plan map[string]string) map[string]int {
	count := map[string]int{}
	for _, d := range list {
		if node := plan[d.Name]; node != "" {
			count[node]++
		} else if d.IsEnabled() && w.Nodes[d.Spec.Address] != nil {
			count[d.Spec.Address]++
		}
	}
	return count
}

func TestWithoutClaimersOrClaimsNothingIsAssigned(t *testing.T) {
	w := newCluster("n1")
	if plan := deployment.Assign(w.World, programs("d", 3, addressed("n1"))); len(plan) > 0 {
		t.Errorf("what has an address is assigned: %v", plan)
	}
	if plan := deployment.Assign(w.World, programs("d", 3, daemon)); len(plan) > 0 {
		t.Errorf("daemons are assigned: %v", plan)
	}
	if plan := deployment.Assign(w.World, programs("d", 3, badSelector)); len(plan) > 0 {
		t.Errorf("what selects nothing is assigned: %v", plan)
	}
	w.claims("n1", v1alpha1.ClaimNone)
	if plan := deployment.Assign(w.World, programs("d", 3)); len(plan) > 0 {
		t.Errorf("a node that claims nothing is assigned %v", plan)
	}
}

func TestAssignLeavesWhatItIsGivenAsItIs(t *testing.T) {
	w, list := newCluster("n1", "n2", "n3"), append(programs("d", 5), programs("a", 2, addressed("n1"))...)
	var before []*v1alpha1.Deployment
	for _, d := range list {
		before = append(before, d.DeepCopy())
	}
	nodes := map[string]*v1alpha1.Node{}
	for name, n := range w.Nodes {
		nodes[name] = n.DeepCopy()
	}
	deployment.Assign(w.World, list)
	if diff := cmp.Diff(before, list) + cmp.Diff(nodes, w.Nodes); diff != "" {
		t.Errorf("Assign changed what it was given:\n%s", diff)
	}
}

// A node that cannot claim gets nothing, and the others get all: it does not count as the one with the fewest.
func TestANodeThatCannotClaimStarvesNobody(t *testing.T) {
	for i, o := range obstacles {
		t.Run(fmt.Sprintf("%d %s", i, o.why), func(t *testing.T) {
			w := newCluster("n1", "n2", "n3")
			for name := range w.Nodes {
				w.label(name, "disk", "fast")
			}
			o.raise(w, "n1")
			list := programs("d", 7, fastDisk)
			got := loads(w, list, assigned(w, list))
			if got["n1"] != 0 || got["n2"]+got["n3"] != 7 || got["n2"] < 3 || got["n3"] < 3 {
				t.Errorf("the nodes get %v", got)
			}
		})
	}
}

func TestWhatANodeThatCannotClaimHasStaysThere(t *testing.T) {
	w := newCluster("n1", "n2")
	w.claims("n1", v1alpha1.ClaimNone)
	w.Nodes["n2"].Spec.Cordoned = true
	list := append(programs("a", 3, addressed("n1")), programs("b", 3, addressed("n2"))...)
	if plan := assigned(w, list); len(plan) > 0 {
		t.Errorf("these are moved: %v", plan)
	}
}

func TestWhatADrainingOrDeadNodeHadIsSharedOut(t *testing.T) {
	w := newCluster("n1", "n2", "n3", "n4")
	w.drains("n3")
	w.dies("n4")
	list := slices.Concat(programs("a", 4, addressed("n1")), programs("b", 3, addressed("n3")), programs("c", 3, addressed("n4")))
	if diff := cmp.Diff(map[string]int{"n1": 5, "n2": 5}, loads(w, list, assigned(w, list))); diff != "" {
		t.Errorf("the loads (-want +got):\n%s", diff)
	}
}

func TestWhatDoesNotRunIsNoLoad(t *testing.T) {
	w := newCluster("n1", "n2")
	list := slices.Concat(
		programs("a", 4, addressed("n1"), disabled),
		programs("b", 4, addressed("n1"), daemon),
		programs("c", 4, addressed("n1"), typed("x")),
		programs("e", 4, addressed("n1"), deleted),
		programs("d", 4),
	)
	got := map[string]int{}
	for _, node := range assigned(w, list) {
		got[node]++
	}
	if diff := cmp.Diff(map[string]int{"n1": 2, "n2": 2}, got); diff != "" {
		t.Errorf("the plan (-want +got):\n%s", diff)
	}
}

// Those that could go anywhere leave room for those that can go to one node only.
func TestWhatFewNodesMayClaimComesFirst(t *testing.T) {
	for round := range 20 {
		w := newCluster("n1", "n2", "n3")
		w.label("n2", "disk", "fast")
		any, picky := programs(fmt.Sprintf("any-%d-", round), 8), programs(fmt.Sprintf("picky-%d-", round), 4, fastDisk)
		list := slices.Concat(any, picky)
		plan := assigned(w, list)
		for _, d := range picky {
			if plan[d.Name] != "n2" {
				t.Errorf("%s goes to %s", d.Name, plan[d.Name])
			}
		}
		if diff := cmp.Diff(map[string]int{"n1": 4, "n2": 4, "n3": 4}, loads(w, list, plan)); diff != "" {
			t.Errorf("the loads (-want +got):\n%s", diff)
		}
	}
}

func TestTheLeastUsedNodeClaims(t *testing.T) {
	usage := func(names ...string) cluster {
		w := newCluster(names...)
		for _, name := range names {
			w.claims(name, v1alpha1.ClaimByUsage)
		}
		return w
	}
	for _, c := range []struct {
		name  string
		world func() cluster
		list  []*v1alpha1.Deployment
		want  map[string]int
	}{
		{"the lowest score", func() cluster {
			w := usage("n1", "n2", "n3")
			w.use("n1", 500, 0)
			w.use("n2", 100, 0)
			w.use("n3", 900, 0)
			return w
		}, programs("d", 4), map[string]int{"n2": 4}},
		{"what was claimed since the sample counts", func() cluster {
			w := usage("n1", "n2")
			w.use("n1", 100, 0)
			w.use("n2", 115, 0)
			return w
		}, programs("d", 4), map[string]int{"n1": 3, "n2": 1}},
		{"what the sample has seen does not count again", func() cluster {
			w := usage("n1", "n2")
			w.use("n1", 100, 3)
			w.use("n2", 105, 0)
			return w
		}, append(programs("a", 3, addressed("n1")), programs("d", 1)...), map[string]int{"n1": 4}},
		{"a sample from before the node lost some gives no credit", func() cluster {
			w := usage("n1", "n2")
			w.use("n1", 100, 50)
			w.use("n2", 99, 0)
			return w
		}, programs("d", 1), map[string]int{"n2": 1}},
		{"unknown use comes last", func() cluster {
			w := usage("n1", "n2", "n3")
			w.use("n2", 1000, 0)
			return w
		}, programs("d", 50), map[string]int{"n2": 50}},
		{"unknown use is better than nothing", func() cluster {
			w := usage("n1", "n2", "n3")
			w.use("n2", 10, 0)
			w.drains("n2")
			return w
		}, programs("d", 4), map[string]int{"n1": 2, "n3": 2}},
		{"unknown use is better than labels that do not match", func() cluster {
			w := usage("n1", "n2")
			w.label("n1", "disk", "fast")
			w.use("n2", 10, 0)
			return w
		}, programs("d", 4, fastDisk), map[string]int{"n1": 4}},
		{"all count where one counts", func() cluster {
			w := usage("n1", "n2", "n3")
			w.use("n1", 10, 0)
			w.use("n2", 900, 0)
			w.claims("n3", v1alpha1.ClaimByCount)
			return w
		}, programs("d", 6), map[string]int{"n1": 2, "n2": 2, "n3": 2}},
		{"a node that claims nothing does not say how to compare", func() cluster {
			w := usage("n1", "n2", "n3")
			w.use("n1", 10, 0)
			w.use("n2", 900, 0)
			w.claims("n3", v1alpha1.ClaimNone)
			return w
		}, programs("d", 6), map[string]int{"n1": 6}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.world()
			if diff := cmp.Diff(c.want, loads(w, c.list, assigned(w, c.list))); diff != "" {
				t.Errorf("the loads (-want +got):\n%s", diff)
			}
		})
	}
}

// drawnCluster is a cluster in which anything may keep a node from claiming, and what it may be given.
func drawnCluster(t *rapid.T) (cluster, []*v1alpha1.Deployment) {
	names := numbered("n", rapid.IntRange(1, 6).Draw(t, "nodes"))
	w := newCluster(names...)
	policies := []v1alpha1.ClaimPolicy{v1alpha1.ClaimByCount, v1alpha1.ClaimByUsage, v1alpha1.ClaimNone}
	for _, name := range names {
		w.claims(name, rapid.SampledFrom(policies).Draw(t, "policy"))
		w.label(name, "disk", rapid.SampledFrom([]string{"fast", "slow"}).Draw(t, "disk"))
		if rapid.Bool().Draw(t, "known") {
			w.use(name, rapid.Int32Range(0, 1000).Draw(t, "score"), rapid.Int32Range(0, 5).Draw(t, "sampled"))
		}
		if i := rapid.IntRange(0, 3*len(obstacles)).Draw(t, "obstacle"); i < len(obstacles) {
			obstacles[i].raise(w, name)
		}
	}
	list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) change {
		return rapid.SampledFrom([]change{
			func(*v1alpha1.Deployment) {}, fastDisk, disabled, daemon, badSelector,
			func(d *v1alpha1.Deployment) { d.Spec.Command = "/usr/app" },
		}).Draw(t, "change")
	}), 0, 30).Draw(t, "programs")
	var made []*v1alpha1.Deployment
	for i, c := range list {
		d := program(fmt.Sprintf("d%d", i), c)
		if rapid.Bool().Draw(t, "addressed") {
			d.Spec.Address = rapid.SampledFrom(append(names, "n9")).Draw(t, "address")
		}
		made = append(made, d)
	}
	return w, made
}

func TestAssignGivesWhatCanBeClaimedToThoseWhoMay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, list := drawnCluster(t)
		plan := assigned(w, list)
		for _, d := range list {
			free := false
			for name := range w.Nodes {
				free = free || w.IneligibleReason(d, name) == ""
			}
			node, ok := plan[d.Name]
			if want := w.Claimable(d) && free; ok != want {
				t.Fatalf("%s is assigned: %t, want %t", d.Name, ok, want)
			}
			if ok && w.IneligibleReason(d, node) != "" {
				t.Fatalf("%s goes to %s: %s", d.Name, node, w.IneligibleReason(d, node))
			}
		}
	})
}

func TestAssignDoesNotCareForTheOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, list := drawnCluster(t)
		if diff := cmp.Diff(assigned(w, list), assigned(w, rapid.Permutation(list).Draw(t, "order"))); diff != "" {
			t.Fatalf("two orders make two plans:\n%s", diff)
		}
	})
}

func TestUnknownUseIsNeverChosenBeforeKnownUse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, list := drawnCluster(t)
		for _, n := range w.Nodes {
			if n.Status.ClaimPolicy == v1alpha1.ClaimByCount {
				n.Status.ClaimPolicy = v1alpha1.ClaimByUsage
			}
		}
		plan := deployment.Assign(w.World, list)
		for d, node := range plan {
			for name, n := range w.Nodes {
				if n.Status.Usage != nil && w.Nodes[node].Status.Usage == nil && w.IneligibleReason(d, name) == "" {
					t.Fatalf("%s goes to %s, whose use is unknown, though %s may claim it", d.Name, node, name)
				}
			}
		}
	})
}

// drawnEven is a cluster whose nodes may all claim everything, by count, and some of which have something already.
func drawnEven(t *rapid.T) (w cluster, had map[string]int, list []*v1alpha1.Deployment) {
	names := numbered("n", rapid.IntRange(1, 8).Draw(t, "nodes"))
	had = map[string]int{}
	for _, name := range names {
		had[name] = rapid.IntRange(0, 6).Draw(t, "load of "+name)
		list = append(list, programs("of-"+name+"-", had[name], addressed(name))...)
	}
	return newCluster(names...), had, append(list, programs(rapid.StringMatching(`[a-z]{4}`).Draw(t, "prefix"), rapid.IntRange(0, 60).Draw(t, "items"))...)
}

// Nobody is given anything while somebody else would have two fewer; so those who are given something end up even, and
// nobody else has less.
func TestTheLoadsComeOutEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, had, list := drawnEven(t)
		plan := assigned(w, list)
		got := loads(w, list, plan)
		least := len(list)
		for name := range w.Nodes {
			least = min(least, got[name])
		}
		for name := range w.Nodes {
			if got[name] > max(had[name], least+1) {
				t.Fatalf("%s had %d and gets %d, though another has %d: %v", name, had[name], got[name]-had[name], least, got)
			}
		}
	})
}

// Two views differ by claims that one has seen and the other has not. They agree on all that is left.
func TestClaimsOnTheWayDoNotChangeThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, _, list := drawnEven(t)
		plan := assigned(w, list)
		open := map[string]string{}
		var later []*v1alpha1.Deployment
		for _, d := range list {
			d = d.DeepCopy()
			if node, ok := plan[d.Name]; ok {
				if rapid.Bool().Draw(t, d.Name+" is claimed") {
					d.Spec.Address = node
				} else {
					open[d.Name] = node
				}
			}
			later = append(later, d)
		}
		if diff := cmp.Diff(open, assigned(w, later)); diff != "" {
			t.Fatalf("what is left goes elsewhere (-before +after):\n%s", diff)
		}
	})
}

// moved is how many of the deployments of one plan another gives to another node.
func moved(before, after map[string]string) (n int) {
	for name, node := range before {
		if after[name] != node {
			n++
		}
	}
	return n
}

// One more deployment takes a place that another would have had, and that one another's. The chain does not grow with the
// number of deployments, and rarely passes through every node.
func TestOneMoreDeploymentMovesFewOthers(t *testing.T) {
	t.Parallel()
	const rounds = 40
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct{ nodes, items int }{{2, 50}, {5, 50}, {5, 500}, {20, 100}, {20, 500}} {
		total, most := 0, 0
		for range rounds {
			w, list := newCluster(numbered("n", c.nodes)...), programs(fmt.Sprintf("d%d-", r.Uint32()), c.items)
			n := moved(assigned(w, list), assigned(w, append(list, program(fmt.Sprintf("new%d", r.Uint32())))))
			total, most = total+n, max(most, n)
		}
		text := fmt.Sprintf("of %d deployments on %d nodes one more moves %.1f on average and %d at most", c.items, c.nodes, float64(total)/rounds, most)
		t.Log(text)
		if 3*total > rounds*c.nodes || most >= c.nodes {
			t.Error(text)
		}
	}
}
