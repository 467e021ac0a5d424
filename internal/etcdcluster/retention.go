package etcdcluster

import (
	"cmp"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// keepSnapshots assigns the copies of snapshots to nodes, and deletes the snapshots that are too many.
func (p *planner) keepSnapshots() {
	doomed := p.superfluous()
	for _, s := range p.Snapshots {
		switch {
		case !s.DeletionTimestamp.IsZero():
			p.changing = p.changing || !p.copiesGone(s)
			if p.filesGone(s) {
				p.act(Action{Do: ReleaseSnapshot, Snapshot: s})
			}
		case p.stage() == StageDeleting: // remove deletes them
		case slices.Contains(doomed, s):
			p.act(Action{Do: DeleteSnapshot, Snapshot: s})
		case s.Spec.TrialBytes > 0: // checkRoom places it
		default:
			next := s.DeepCopy()
			next.Spec.Nodes = p.copyTargets(s, s.Spec.Nodes, p.status.Stop == nil || p.status.Stop.Snapshot != s.Name)
			if controllerutil.AddFinalizer(next, v1alpha1.EtcdSnapshotFinalizer) || !slices.Equal(next.Spec.Nodes, s.Spec.Nodes) {
				p.act(Action{Do: PlaceSnapshot, Snapshot: next})
			}
		}
	}
}

// copiesGone returns whether no node that holds its lease has a file of a snapshot.
func (p *planner) copiesGone(s *v1alpha1.EtcdSnapshot) bool {
	return !slices.ContainsFunc(s.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return p.Live(c.Node) })
}

// filesGone returns whether no node has a file of a snapshot: one that is absent deletes it when it is back, as long as the object tells it to.
func (w World) filesGone(s *v1alpha1.EtcdSnapshot) bool {
	return !slices.ContainsFunc(s.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return w.Nodes[c.Node] != nil || w.Live(c.Node) })
}

// superfluous returns the oldest snapshots beyond those that the policy keeps, and those that failed. Needed ones are never among them. Only
// snapshots that a start could begin from now count as kept: the others may be all that a record promises. If the cluster starts from something
// else than its last stop, only failed ones are superfluous until it runs: the start may fail, and what it leaves behind may be the last stop's.
func (p *planner) superfluous() []*v1alpha1.EtcdSnapshot {
	var good, doomed []*v1alpha1.EtcdSnapshot
	for _, s := range p.Snapshots {
		switch {
		case !s.DeletionTimestamp.IsZero() || p.needed(s.Name):
		case s.Spec.TrialBytes > 0:
			doomed = append(doomed, s)
		case s.Status.Facts != nil:
			good = append(good, s)
		case s.Status.Error != "" && p.Now.Sub(s.CreationTimestamp.Time) > retryFirst || !p.exists(s.Spec.Member):
			doomed = append(doomed, s)
		}
	}
	if !p.hasRun() && !p.exact() {
		return doomed
	}
	keep := max(int(p.Cluster.Spec.Snapshot.Keep), 1)
	for _, s := range p.Snapshots {
		if s.DeletionTimestamp.IsZero() && p.needed(s.Name) && p.available(s) {
			keep--
		}
	}
	sortOldest(good)
	for _, s := range slices.Backward(good) {
		if keep <= 0 {
			doomed = append(doomed, s)
		} else if p.available(s) {
			keep--
		}
	}
	return doomed
}

// available returns whether a node that holds its lease has a verified copy of a snapshot.
func (p *planner) available(s *v1alpha1.EtcdSnapshot) bool {
	return slices.ContainsFunc(s.Verified(), p.Live)
}

func sortOldest(list []*v1alpha1.EtcdSnapshot) {
	slices.SortFunc(list, func(a, b *v1alpha1.EtcdSnapshot) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// needed returns whether a snapshot must not be deleted: the next start begins from it, or a stop relies on it.
func (p *planner) needed(name string) bool {
	return p.status.Rest != nil && p.status.Rest.Snapshot == name || p.status.Stop != nil && (p.status.Stop.Snapshot == name || p.status.Stop.Trial == name) ||
		p.Cluster.Spec.RestoreFrom == name && p.status.ObservedRestoreFrom != name || p.status.Restore != nil && !p.status.Restore.Phase.Final() && p.orders(name)
}

// orders returns whether the restore order that is under way needs a snapshot.
func (p *planner) orders(name string) bool {
	order := p.Cluster.Spec.Restore
	return p.status.Restore.Snapshot == name || order != nil && order.Snapshot == name
}

func (p *planner) exists(member string) bool {
	return slices.ContainsFunc(p.Members, func(m *v1alpha1.EtcdMember) bool { return m.Name == member })
}

// newest returns the newest snapshot of which a node has a verified copy; nil if there is none.
func (p *planner) newest(among func(*v1alpha1.EtcdSnapshot) bool) *v1alpha1.EtcdSnapshot {
	var good []*v1alpha1.EtcdSnapshot
	for _, s := range p.Snapshots {
		if s.DeletionTimestamp.IsZero() && s.Status.Facts != nil && len(s.Verified()) > 0 && among(s) {
			good = append(good, s)
		}
	}
	if len(good) == 0 {
		return nil
	}
	sortOldest(good)
	return good[len(good)-1]
}

func anySnapshot(*v1alpha1.EtcdSnapshot) bool { return true }

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

// fails returns whether a node could not make its copy of the snapshot that a stop waits for, or has no room for it.
func (p *planner) fails(s *v1alpha1.EtcdSnapshot, node string) bool {
	stop := p.status.Stop
	return stop != nil && (stop.Snapshot == s.Name || stop.Trial == s.Name) && p.hadNoRoom(node)
}

// avoidsCopy returns whether other nodes are asked first for a copy of what a stop waits for: this one did not answer.
func (p *planner) avoidsCopy(s *v1alpha1.EtcdSnapshot, node string) bool {
	stop := p.status.Stop
	return stop != nil && (stop.Snapshot == s.Name || stop.Trial == s.Name) && p.isSilent(node)
}

// hadNoRoom returns whether a node could not make a copy for the stop that is under way.
func (p *planner) hadNoRoom(node string) bool {
	stop := p.status.Stop
	return stop != nil && slices.ContainsFunc(stop.CopyFailures, func(c v1alpha1.EtcdSnapshotCopy) bool { return c.Node == node })
}

// everyCopyFails returns whether no node is left that could still make a copy of a snapshot: all that were or could be asked failed.
func (p *planner) everyCopyFails(s *v1alpha1.EtcdSnapshot) bool {
	return len(p.status.Stop.CopyFailures) > 0 && !slices.ContainsFunc(append(p.SchedulableNodes(), s.Spec.Nodes...), func(node string) bool {
		return p.mayKeepCopy(node) && !p.fails(s, node) && !slices.Contains(s.Verified(), node)
	})
}

// mayKeepCopy returns whether a node may keep copies: it holds its lease and is not being drained. A cordoned node keeps what it has.
func (p *planner) mayKeepCopy(node string) bool { return p.Live(node) && !p.Leaving(node) }

// goodCopies returns the nodes that have a verified copy and may keep it.
func (p *planner) goodCopies(s *v1alpha1.EtcdSnapshot) []string {
	return slices.DeleteFunc(s.Verified(), func(node string) bool { return !p.mayKeepCopy(node) })
}

// copiesNeeded returns how many copies a stop waits for: as many as the policy says, or one on each schedulable node.
func (p *planner) copiesNeeded() int {
	return min(max(int(p.Cluster.Spec.Snapshot.Copies), 1), max(len(p.SchedulableNodes()), 1))
}

// copyTargets returns the nodes that should keep a copy: first those that have one and are there, then those that have one, then those that were meant to, then
// others; last those that do not answer. If patient, a node that is absent for a short time keeps its copy, but never in the place of one that is there: the
// absent one may have been taken away for good, with a record of its copy. A draining node keeps its copy until enough others have theirs.
func (p *planner) copyTargets(s *v1alpha1.EtcdSnapshot, meant []string, patient bool) []string {
	stays := func(node string) bool {
		return p.mayKeepCopy(node) || patient && !p.Live(node) && p.Nodes[node] != nil && !p.goneForGood(node)
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
	add(verified, p.mayKeepCopy)
	add(verified, stays)
	others := p.SchedulableNodes()
	slices.SortFunc(others, func(a, b string) int { return cmp.Or(p.Load[a]-p.Load[b], cmp.Compare(a, b)) })
	for _, silent := range []bool{false, true} {
		add(meant, func(node string) bool { return stays(node) && !p.fails(s, node) && p.avoidsCopy(s, node) == silent })
		add(others, func(node string) bool { return !p.fails(s, node) && p.avoidsCopy(s, node) == silent })
	}
	add(append(slices.Clone(meant), others...), stays) // one that failed may still succeed
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
