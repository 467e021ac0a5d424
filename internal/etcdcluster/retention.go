package etcdcluster

import (
	"cmp"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// tidySnapshots keeps copies of snapshots where they should be, and takes away the snapshots that are too many.
func (p *planner) tidySnapshots() {
	doomed := p.superfluous()
	for _, s := range p.Snapshots {
		switch {
		case !s.DeletionTimestamp.IsZero():
			p.changing = true
			if p.copiesGone(s) {
				p.act(Action{Do: ReleaseSnapshot, Snapshot: s})
			}
		case p.Cluster.DeletionTimestamp != nil: // remove sees to it
		case slices.Contains(doomed, s):
			p.act(Action{Do: DeleteSnapshot, Snapshot: s})
		default:
			next := s.DeepCopy()
			next.Spec.Nodes = p.copyTargets(s, s.Spec.Nodes, p.status.Stop == nil || p.status.Stop.Snapshot != s.Name)
			if controllerutil.AddFinalizer(next, v1alpha1.EtcdSnapshotFinalizer) || !slices.Equal(next.Spec.Nodes, s.Spec.Nodes) {
				p.act(Action{Do: PlaceSnapshot, Snapshot: next})
			}
		}
	}
}

// copiesGone says whether no node that can still tell has a file of a snapshot.
func (p *planner) copiesGone(s *v1alpha1.EtcdSnapshot) bool {
	return !slices.ContainsFunc(s.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return p.live(c.Node) })
}

// superfluous are the snapshots beyond those that are kept, the oldest first, and those that failed and were followed by others. What
// the next start begins from, or a stop rests on, stays.
func (p *planner) superfluous() []*v1alpha1.EtcdSnapshot {
	var good, doomed []*v1alpha1.EtcdSnapshot
	for _, s := range p.Snapshots {
		switch {
		case !s.DeletionTimestamp.IsZero() || p.needed(s.Name):
		case s.Status.Facts != nil:
			good = append(good, s)
		case s.Status.Error != "" && p.Now.Sub(s.CreationTimestamp.Time) > retryFirst || !p.exists(s.Spec.Member):
			doomed = append(doomed, s)
		}
	}
	sortOldest(good)
	keep := max(int(p.Cluster.Spec.Snapshot.Keep), 1)
	for _, s := range p.Snapshots {
		if s.DeletionTimestamp.IsZero() && p.needed(s.Name) {
			keep--
		}
	}
	return append(doomed, good[:max(0, len(good)-max(keep, 0))]...)
}

func sortOldest(list []*v1alpha1.EtcdSnapshot) {
	slices.SortFunc(list, func(a, b *v1alpha1.EtcdSnapshot) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// needed says whether a snapshot must not go.
func (p *planner) needed(name string) bool {
	return p.status.Rest != nil && p.status.Rest.Snapshot == name || p.status.Stop != nil && p.status.Stop.Snapshot == name || p.Cluster.Spec.RestoreFrom == name
}

func (p *planner) exists(member string) bool {
	return slices.ContainsFunc(p.Members, func(m *v1alpha1.EtcdMember) bool { return m.Name == member })
}

// newest is the newest snapshot of which a node has a verified copy.
func (p *planner) newest() *v1alpha1.EtcdSnapshot {
	var good []*v1alpha1.EtcdSnapshot
	for _, s := range p.Snapshots {
		if s.DeletionTimestamp.IsZero() && s.Status.Facts != nil && len(s.Verified()) > 0 {
			good = append(good, s)
		}
	}
	if len(good) == 0 {
		return nil
	}
	sortOldest(good)
	return good[len(good)-1]
}

func (p *planner) find(snapshot string) *v1alpha1.EtcdSnapshot {
	for _, s := range p.Snapshots {
		if s.Name == snapshot {
			return s
		}
	}
	return nil
}

func (p *planner) nodeOf(member string) string {
	for _, m := range p.Members {
		if m.Name == member {
			return m.Spec.Node
		}
	}
	return ""
}

// keeper says whether a node may keep copies: it is there and stays. A cordoned node keeps what it has.
func (p *planner) keeper(node string) bool { return p.live(node) && !p.giving(node) }

// goodCopies are the nodes that have a verified copy and stay.
func (p *planner) goodCopies(s *v1alpha1.EtcdSnapshot) []string {
	return slices.DeleteFunc(s.Verified(), func(node string) bool { return !p.keeper(node) })
}

// copiesNeeded is on how many nodes a snapshot should be: as many as the policy says, as far as there are nodes.
func (p *planner) copiesNeeded() int {
	return min(max(int(p.Cluster.Spec.Snapshot.Copies), 1), max(len(p.Schedulable()), 1))
}

// copyTargets says which nodes should keep a copy: those that have one first, then those that were meant to, then others. A patient
// look leaves a copy with a node that is absent for a while only. A node that gives its work away keeps its copy until enough others
// have theirs.
func (p *planner) copyTargets(s *v1alpha1.EtcdSnapshot, meant []string, patient bool) []string {
	stays := func(node string) bool {
		return p.keeper(node) || patient && !p.live(node) && p.Nodes[node] != nil && !p.goneForGood(node)
	}
	wanted := max(int(p.Cluster.Spec.Snapshot.Copies), 1)
	var targets []string
	add := func(nodes []string, fits func(string) bool) {
		for _, node := range nodes {
			if len(targets) < wanted && fits(node) && !slices.Contains(targets, node) {
				targets = append(targets, node)
			}
		}
	}
	verified := s.Verified()
	slices.Sort(verified)
	add(verified, stays)
	add(meant, stays)
	others := p.Schedulable()
	slices.SortFunc(others, func(a, b string) int { return cmp.Or(p.Load[a]-p.Load[b], cmp.Compare(a, b)) })
	add(others, p.schedulable)
	enough := 0
	for _, node := range targets {
		if slices.Contains(verified, node) {
			enough++
		}
	}
	if enough < len(targets) || len(targets) == 0 {
		for _, node := range append(verified, meant...) { // make before break
			if !slices.Contains(targets, node) && p.Nodes[node] != nil && (slices.Contains(verified, node) || s.Status.Facts == nil && len(targets) == 0) {
				targets = append(targets, node)
			}
		}
	}
	slices.Sort(targets)
	return targets
}
