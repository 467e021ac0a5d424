package etcdcluster

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Before a stop keeps clients out, it asks the nodes whether they could keep a copy of the snapshot that it will take: an EtcdSnapshot with
// spec.trialBytes, of which there is no file. Each of its nodes reserves as much room, gives it back, and tries to reach the node that will take the
// snapshot. Only with enough such nodes are the members sealed.

// trialLimit is how long a node has to answer. Nodes of a former version do not answer at all.
const trialLimit = 30 * time.Second

// askings are since when a coordinator has seen that the nodes of a trial are asked, by its own clock: that of the API server, which stamps the trial,
// may differ. They are kept in memory only. The next coordinator gives every node its whole time again.
type askings struct {
	trial types.UID
	since map[string]time.Time
}

// saw records which nodes the trial asks, and returns since when each is asked; nil without a trial.
func (a *askings) saw(trial *v1alpha1.EtcdSnapshot, now time.Time) map[string]time.Time {
	if trial == nil {
		*a = askings{}
		return nil
	}
	if a.since == nil || a.trial != trial.UID {
		*a = askings{trial: trial.UID, since: map[string]time.Time{}}
	}
	for _, node := range trial.Spec.Nodes {
		if _, known := a.since[node]; !known {
			a.since[node] = now
		}
	}
	return maps.Clone(a.since)
}

// trial returns the trial of the stop that is under way; nil if there is none.
func (w World) trial() *v1alpha1.EtcdSnapshot {
	if w.Cluster == nil || w.Cluster.Status.Stop == nil {
		return nil
	}
	for _, s := range w.Snapshots {
		if s.Name == w.Cluster.Status.Stop.Trial {
			return s
		}
	}
	return nil
}

// late returns whether a node was asked and had its time to answer.
func (w World) late(node string) bool {
	since, asked := w.Asked[node]
	return asked && w.Now.Sub(since) > trialLimit
}

// needsTrial returns whether the stop is about to keep clients out until its copies are made. Then nodes are first asked whether they have room.
func (p *planner) needsTrial() bool {
	stop := p.status.Stop
	return stop.SealedSince == nil && stop.OnStop == v1alpha1.EtcdSnapshotThenDelete && p.stage() == StageStopping
}

// checkRoom asks nodes whether they have room for a copy of the snapshot, and returns whether enough of them have. Clients are served meanwhile.
func (p *planner) checkRoom() bool {
	stop := p.status.Stop
	stop.PausedUntil, p.snapFailed = nil, p.lastFailure()
	p.reportWaiting("checking that nodes have room for a copy of the snapshot; clients are served meanwhile")
	p.unsealAll()
	trial := p.find(stop.Trial)
	if trial != nil && (!trial.DeletionTimestamp.IsZero() || trial.Spec.TrialBytes == 0) {
		trial, stop.Trial = nil, "" // somebody deleted it
	}
	if trial != nil {
		p.recordCopyFailures(trial)
		p.recordSilence(trial)
	}
	from, ok := p.source()
	if !ok || !p.View.Listed {
		p.reportWaiting("waiting for a healthy member to take a snapshot from" + because(p.View.Error))
		return false
	}
	if trial == nil {
		p.createTrial(from)
		return false
	}
	room, need := p.withRoom(trial), p.copiesNeeded()
	switch {
	case len(room) >= need && p.sourceHasRoom(trial):
		return true
	case len(trial.Status.Copies) == 0 && !slices.ContainsFunc(trial.Spec.Nodes, func(node string) bool { return !p.late(node) }):
		return true // no node knows what a trial is
	case len(room) < need && !p.moreToTry(trial, room) && p.unanswered(trial, trial.Spec.MemberNode):
		return false // the others may have failed to reach it: if it is silent, the next trial is of another member
	case p.fails(trial, from.Spec.Node) || len(room) < need && !p.moreToTry(trial, room):
		p.pauseAtMost(trialMost, fmt.Sprintf("%d nodes must have room for a copy of the snapshot, among them the node of a healthy member, and %d have it%s.",
			need, len(room), because(copyErrors(stop.CopyFailures))))
		return false
	}
	next := trial.DeepCopy()
	next.Spec.Nodes = p.trialTargets(trial, from)
	if !slices.Equal(next.Spec.Nodes, trial.Spec.Nodes) {
		p.act(Action{Do: PlaceSnapshot, Snapshot: next})
	}
	return false
}

func (p *planner) createTrial(from memberView) {
	c, stop := p.Cluster, p.status.Stop
	if stop.Trial == "" {
		stop.CopyFailures = nil
		for n := 1; stop.Trial == "" || p.find(stop.Trial) != nil; n++ {
			stop.Trial = SnapshotName(c, fmt.Sprintf("%d-trial-%d", stop.Generation, n))
		}
	}
	bytes := int64(1)
	for _, m := range p.voters() {
		bytes = max(bytes, m.health.DBSize)
	}
	trial := &v1alpha1.EtcdSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: stop.Trial,
			Labels: map[string]string{v1alpha1.EtcdClusterLabel: c.Name}, Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer},
		},
		Spec: v1alpha1.EtcdSnapshotSpec{
			Cluster: c.Name, ClusterUID: string(c.UID), Incarnation: p.status.Incarnation, Generation: stop.Generation, MemberNode: from.Spec.Node,
			TrialBytes: bytes, Dir: c.Spec.Snapshot.Dir,
		},
	}
	trial.Spec.Nodes = p.trialTargets(trial, from)
	p.act(Action{Do: CreateSnapshot, Snapshot: trial})
}

// trialTargets returns the nodes that are asked: those that would keep the copies, others in the place of those that have no room, and always the
// node that would take the snapshot.
func (p *planner) trialTargets(trial *v1alpha1.EtcdSnapshot, from memberView) []string {
	targets := p.copyTargets(trial, append([]string{from.Spec.Node}, trial.Spec.Nodes...), false)
	for _, node := range append([]string{from.Spec.Node}, trial.Spec.Nodes...) {
		if !slices.Contains(targets, node) {
			targets = append(targets, node) // a node that was asked stays in the list, because its answer counts
		}
	}
	slices.Sort(targets)
	return targets
}

// recordSilence counts nodes that did not answer in time as having no room, if others answered. Until they answer they are asked last, also by later
// trials of the same stop; otherwise each of these would wait for them again.
func (p *planner) recordSilence(trial *v1alpha1.EtcdSnapshot) {
	stop := p.status.Stop
	for _, node := range trial.Spec.Nodes {
		c, _ := trial.Copy(node)
		switch {
		case c.Node != "":
			stop.Silent = slices.DeleteFunc(stop.Silent, func(silent string) bool { return silent == node })
		case len(trial.Status.Copies) > 0 && p.late(node) && !p.fails(trial, node):
			stop.CopyFailures = append(stop.CopyFailures, v1alpha1.EtcdSnapshotCopy{Node: node, Error: "it did not answer for " + trialLimit.String()})
			if !p.isSilent(node) {
				stop.Silent = append(stop.Silent, node)
			}
		}
	}
	if len(stop.Silent) == 0 {
		stop.Silent = nil
	}
}

// unanswered returns whether a node was asked, has not answered, and still has time to.
func (p *planner) unanswered(trial *v1alpha1.EtcdSnapshot, node string) bool {
	c, _ := trial.Copy(node)
	return slices.Contains(trial.Spec.Nodes, node) && c.Node == "" && p.Live(node) && !p.late(node)
}

// isSilent returns whether a node did not answer when the stop that is under way asked it for room.
func (p *planner) isSilent(node string) bool {
	return p.status.Stop != nil && slices.Contains(p.status.Stop.Silent, node)
}

// withRoom returns the nodes that have room for a copy and may keep one.
func (p *planner) withRoom(trial *v1alpha1.EtcdSnapshot) []string {
	var nodes []string
	for _, c := range trial.Status.Copies {
		if c.Room != nil && p.mayKeepCopy(c.Node) {
			nodes = append(nodes, c.Node)
		}
	}
	return nodes
}

// sourceHasRoom returns whether the snapshot can be taken on a node that has room for it.
func (p *planner) sourceHasRoom(trial *v1alpha1.EtcdSnapshot) bool {
	return slices.ContainsFunc(p.voters(), func(m memberView) bool {
		c, _ := trial.Copy(m.Spec.Node)
		return c.Room != nil && m.healthy() && p.Live(m.Spec.Node)
	})
}

// moreToTry returns whether a node is left that has not said that it has no room.
func (p *planner) moreToTry(trial *v1alpha1.EtcdSnapshot, room []string) bool {
	return slices.ContainsFunc(append(p.SchedulableNodes(), trial.Spec.Nodes...), func(node string) bool {
		return p.mayKeepCopy(node) && !p.fails(trial, node) && !slices.Contains(room, node)
	})
}

// source returns the member from which a snapshot is taken: a healthy one whose data is known not to differ from the others', if possible not on the
// node where that just failed, then not on one that did not answer, then on a node that stays, then the one that reported the revision, then one that
// does not lead.
func (p *planner) source() (memberView, bool) {
	var best *memberView
	var failed *v1alpha1.EtcdSnapshot // the attempt before
	if stop := p.status.Stop; stop != nil {
		failed = p.find(stop.Snapshot)
	}
	for _, m := range p.voters() {
		if !m.healthy() || !p.Live(m.Spec.Node) || p.differs(m) || p.View.AlarmsUnknown {
			continue
		}
		score := func(m memberView) int {
			n := 0
			if !p.Leaving(m.Spec.Node) {
				n += 4
			}
			if m.Name == p.View.Via {
				n += 2
			}
			if failed != nil && failed.Spec.MemberNode == m.Spec.Node && failed.Status.Error != "" {
				n -= 16 // the disk of its node may be full
			}
			if p.hadNoRoom(m.Spec.Node) {
				n -= 32 // it is, as far as is known, and that is newer
			}
			if p.isSilent(m.Spec.Node) {
				n -= 8
			}
			if !m.leads() {
				n++
			}
			return n
		}
		if best == nil || score(m) > score(*best) {
			best = &m
		}
	}
	if best == nil {
		return memberView{}, false
	}
	return *best, true
}
