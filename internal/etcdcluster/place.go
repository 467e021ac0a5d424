package etcdcluster

import (
	"cmp"
	"slices"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// place picks the node for a new member: the one with the fewest members of this cluster, then one where none failed, then in the zone with the
// fewest, then one of the preferred, then with the fewest members of any cluster. It picks none if no node is schedulable. While a drain waits for
// a member to leave, a node where none failed comes first, even if two members share it: otherwise the drain would wait until the other node is
// mended. beginChange spreads them again later.
func (p *planner) place(staying []memberView, preferred []string) (string, bool) {
	nodes := p.SchedulableNodes()
	if len(nodes) == 0 {
		return "", false
	}
	onNode, inZone := p.countByPlace(staying)
	rank := func(node string) int {
		if slices.Contains(preferred, node) {
			return 0
		}
		return 1
	}
	return slices.MinFunc(nodes, func(a, b string) int {
		reluctance := p.reluctance(a) - p.reluctance(b)
		if p.drainWaits() && reluctance != 0 {
			return reluctance
		}
		return cmp.Or(onNode[a]-onNode[b], reluctance, inZone[p.zone(a)]-inZone[p.zone(b)], rank(a)-rank(b), p.Load[a]-p.Load[b], cmp.Compare(a, b))
	}), true
}

// countByPlace counts members by node and by zone. A node without a zone counts in no zone.
func (w World) countByPlace(members []memberView) (onNode, inZone map[string]int) {
	onNode, inZone = map[string]int{}, map[string]int{}
	for _, m := range members {
		onNode[m.Spec.Node]++
		if z := w.zone(m.Spec.Node); z != "" {
			inZone[z]++
		}
	}
	return onNode, inZone
}

// crowded returns whether two members share a node while a schedulable one that is not avoided has none.
func (p *planner) crowded(members []memberView) bool {
	onNode, _ := p.countByPlace(members)
	double := slices.ContainsFunc(members, func(m memberView) bool { return onNode[m.Spec.Node] > 1 })
	free := slices.ContainsFunc(p.SchedulableNodes(), func(node string) bool { return onNode[node] == 0 && !p.avoided(node) })
	return double && free
}

// victim picks the voter to remove: one that has to leave, then one whose data differs from the others', then one that is not healthy, then one on a
// node that is not schedulable, then one that shares its node or its zone; of those rather not the leader, and rather the newest.
func (p *planner) victim(voters []memberView) memberView {
	w := p.World
	onNode, inZone := w.countByPlace(voters)
	return slices.MaxFunc(voters, func(a, b memberView) int {
		return cmp.Or(
			yes(p.leaving(a))-yes(p.leaving(b)),
			yes(p.differs(a))-yes(p.differs(b)),
			yes(!a.healthy())-yes(!b.healthy()),
			yes(!w.Schedulable(a.Spec.Node))-yes(!w.Schedulable(b.Spec.Node)),
			onNode[a.Spec.Node]-onNode[b.Spec.Node],
			inZone[w.zone(a.Spec.Node)]-inZone[w.zone(b.Spec.Node)],
			yes(!a.leads())-yes(!b.leads()),
			numberOf(a.EtcdMember)-numberOf(b.EtcdMember),
		)
	})
}

func yes(b bool) int {
	if b {
		return 1
	}
	return 0
}

// leaving returns whether a voter has to be replaced: its node gives its work away, is gone for good, or cannot run it, another member
// has its address, or somebody deletes its object.
func (w World) leaving(m memberView) bool {
	return !m.DeletionTimestamp.IsZero() || w.Leaving(m.Spec.Node) || w.goneForGood(m.Spec.Node) || m.is(v1alpha1.EtcdMemberFailed) && !w.relists(m) || w.addressTaken(m)
}
