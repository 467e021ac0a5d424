package deployment

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// usageStep is the assumed score of a deployment that was claimed after the node's last sample, in thousandths.
const usageStep = 10

// claimer is a node that takes part in the assignment.
type claimer struct {
	node  *v1alpha1.Node
	trust Trust
	hash  uint64
	load  int // deployments addressed to it, those of this plan included
	quota int // how many more it gets in an even assignment
}

// item is a deployment to be claimed.
type item struct {
	deployment *v1alpha1.Deployment
	hash       uint64
	eligible   []*claimer
}

// Assign assigns every claimable deployment to one of the nodes that may claim it. Every node computes the same assignment and
// claims only its own part, so that conflicts are rare. Two nodes may see slightly different objects, because one has seen a
// claim or a new deployment before the other. They still agree on nearly all of it: which node a deployment prefers depends only
// on the two of them, and how many deployments a node gets depends on the final balance, which does not change while claims are made.
func Assign(w World, deployments []*v1alpha1.Deployment) map[*v1alpha1.Deployment]string {
	claimers := w.claimers()
	if len(claimers) == 0 {
		return nil
	}
	items := w.items(deployments, claimers)
	if len(items) == 0 {
		return nil
	}
	pick := pickByCount
	if byUsage(claimers) {
		pick = pickByUsage
	} else {
		spread(claimers, len(items))
	}
	plan := make(map[*v1alpha1.Deployment]string, len(items))
	for i := range items {
		best := pick(&items[i])
		best.load++
		best.quota--
		plan[items[i].deployment] = best.node.Name
	}
	return plan
}

// claimers returns the nodes that may claim anything, sorted by name.
func (w World) claimers() []*claimer {
	var list []*claimer
	for _, n := range w.Nodes {
		if w.ineligibleReason(n) == "" {
			list = append(list, &claimer{node: n, trust: trustOf(n), hash: hash(n.Name)})
		}
	}
	slices.SortFunc(list, func(a, b *claimer) int { return cmp.Compare(a.node.Name, b.node.Name) })
	return list
}

// items returns the deployments to be claimed, those with the fewest eligible nodes first. The others count as load.
func (w World) items(deployments []*v1alpha1.Deployment, claimers []*claimer) []item {
	byName := make(map[string]*claimer, len(claimers))
	for _, c := range claimers {
		byName[c.node.Name] = c
	}
	var items []item
	for _, d := range deployments {
		if w.Claimable(d) {
			if e := eligible(d, claimers); len(e) > 0 {
				items = append(items, item{deployment: d, hash: hash(string(d.UID)), eligible: e})
			}
			continue
		}
		if c := byName[d.Spec.Address]; c != nil && d.Spec.Type == v1alpha1.TypeDeployment && d.IsEnabled() {
			c.load++
		}
	}
	slices.SortFunc(items, func(a, b item) int {
		return cmp.Or(cmp.Compare(len(a.eligible), len(b.eligible)), cmp.Compare(a.hash, b.hash), cmp.Compare(a.deployment.UID, b.deployment.UID))
	})
	return items
}

// eligible returns the claimers that may claim a deployment. It checks labels and trusted commands, because a node does not run a
// deployment that does not match them.
func eligible(d *v1alpha1.Deployment, claimers []*claimer) []*claimer {
	s, err := selector(d)
	if err != nil {
		return nil
	}
	all := true
	ok := func(c *claimer) bool {
		return (d.Spec.Selector == nil || s.Matches(labels.Set(c.node.Labels))) && c.trust.Refuses(d) == ""
	}
	for _, c := range claimers {
		all = all && ok(c)
	}
	if all && len(d.Status.Avoid) == 0 {
		return claimers // the usual case shares one slice
	}
	var list []*claimer
	for _, c := range claimers {
		if ok(c) {
			list = append(list, c)
		}
	}
	preferred := slices.DeleteFunc(slices.Clone(list), func(c *claimer) bool { return Avoids(d, c.node.Name) })
	if len(preferred) > 0 {
		return preferred
	}
	return list // better a node on which it failed than none
}

// spread sets the quotas so that the loads are as even as possible. The remainder goes to the nodes that are first by name.
func spread(claimers []*claimer, items int) {
	byLoad := slices.Clone(claimers)
	slices.SortStableFunc(byLoad, func(a, b *claimer) int { return cmp.Compare(a.load, b.load) })
	// The load that the least loaded nodes are filled up to, and the number of these nodes.
	level, n := byLoad[0].load, 1
	for left := items; ; {
		for n < len(byLoad) && byLoad[n].load <= level {
			n++
		}
		room := math.MaxInt
		if n < len(byLoad) {
			room = (byLoad[n].load - level) * n
		}
		if left >= room {
			left -= room
			level = byLoad[n].load
			continue
		}
		level += left / n
		rest := left % n
		filled := slices.Clone(byLoad[:n])
		slices.SortFunc(filled, func(a, b *claimer) int { return cmp.Compare(a.node.Name, b.node.Name) })
		for i, c := range filled {
			c.quota = level - c.load
			if i < rest {
				c.quota++
			}
		}
		return
	}
}

// pickByCount returns the preferred claimer among those with quota left, or else the least loaded one.
func pickByCount(i *item) *claimer {
	var best *claimer
	var weight uint64
	for _, c := range i.eligible {
		if w := mix(i.hash ^ c.hash); c.quota > 0 && (best == nil || w > weight) {
			best, weight = c, w
		}
	}
	if best != nil {
		return best
	}
	return slices.MinFunc(i.eligible, func(a, b *claimer) int {
		return cmp.Or(cmp.Compare(a.load, b.load), cmp.Compare(mix(i.hash^b.hash), mix(i.hash^a.hash)))
	})
}

// byUsage reports whether nodes are compared by resource usage. That takes all of them: if one node counts deployments, all are
// compared by count, or two nodes could each leave a deployment to the other.
func byUsage(claimers []*claimer) bool {
	return !slices.ContainsFunc(claimers, func(c *claimer) bool { return c.node.Status.ClaimPolicy != v1alpha1.ClaimByUsage })
}

// pickByUsage returns the claimer with the lowest usage. A claimer with unknown usage comes last.
func pickByUsage(i *item) *claimer {
	return slices.MinFunc(i.eligible, func(a, b *claimer) int {
		return cmp.Or(cmp.Compare(a.use(), b.use()), cmp.Compare(mix(i.hash^b.hash), mix(i.hash^a.hash)))
	})
}

// use returns the claimer's score, including the deployments it has got since the sample was taken.
func (c *claimer) use() int {
	u := c.node.Status.Usage
	if u == nil {
		return math.MaxInt/2 + c.load
	}
	return int(u.Score) + usageStep*max(c.load-int(u.Deployments), 0)
}

func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum64()
}

// mix spreads the bits of a number, so that each pair of a deployment and a node has its own weight.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
