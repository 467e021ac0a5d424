package etcdcluster

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A restore order is carried out once. status.restore has how far it is:
//
//	                       snapshot, or none
//	Waiting ──────────────────────────────────────────▶ Starting ──▶ Done
//	   │ │   member      every reachable one stopped       ▲
//	   │ └──▶ Reading ──▶ a verified snapshot of its data ─┘
//	   │         ├──▶ Waiting: nodes were lost before their members had stopped; the members run again
//	   │         └──▶ Refused, Canceled: the members run again, even if the cluster is to be stopped
//	   └──▶ Refused, Expired, Canceled
//
// Nothing is deleted for it. What the new incarnation may lack is set aside until somebody discards it by name.

// followOrder carries out spec.restore. It returns whether the members are stopped for it, so that no other step may touch them.
func (p *planner) followOrder() (busy bool) {
	order := p.Cluster.Spec.Restore
	if was := p.status.Restore; was != nil && !was.Phase.Final() && was.Phase != v1alpha1.EtcdRestoreStarting && (order == nil || order.ID != was.ID) {
		p.setRestore(v1alpha1.EtcdRestoreCanceled, "The order was withdrawn before it was carried out.")
	}
	if order == nil {
		return false
	}
	if p.status.Restore == nil || p.status.Restore.ID != order.ID {
		p.status.Restore = &v1alpha1.EtcdRestoreState{ID: order.ID, Phase: v1alpha1.EtcdRestoreWaiting, Since: *micro(p.Now)}
	}
	state := p.status.Restore
	switch {
	case state.Phase.Final() || state.Phase == v1alpha1.EtcdRestoreStarting:
		return false
	case p.Cluster.Size() == 0 && order.Member != "":
		p.refuseRestore(fmt.Sprintf("The cluster is being stopped, and its members run again for that. To restore it set a size other than 0, or run `ebb etcd resume %s` if its schedule has stopped it; then order the restore again.", p.commandName()))
		return false
	case p.Cluster.Size() == 0:
		p.refuseRestore("The cluster is stopped or being stopped. Set spec.restoreFrom instead: the next start obeys it.")
		return false
	case state.Phase == v1alpha1.EtcdRestoreWaiting && p.Now.After(order.Expires.Time):
		p.setRestore(v1alpha1.EtcdRestoreExpired, "The order expired before it could be carried out. "+state.Message)
		return false
	case order.Member != "":
		if p.stage() == StageEvacuating {
			p.cancelStop() // it is to run again, and the order may stop its members before it does
		}
		return p.restoreFromMember(order)
	case p.serves() && !order.Force:
		p.refuseRestore("The cluster serves clients; a restore would lose what they wrote since. Order it with --force to restore anyway.")
		return false
	}
	from := &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdDelete}
	if order.Snapshot != v1alpha1.EtcdFromNothing {
		if why := p.unavailable(order.Snapshot); why != "" {
			p.awaitRestore(why)
			return false
		}
		from = &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: order.Snapshot}
	}
	p.setAside(func(memberView) string {
		return "Restored from " + describeSource(order.Snapshot) + "; it may have newer keys"
	})
	p.beginRestore(from)
	return false
}

// serves returns whether a quorum of the voters serves clients, whatever the desired size is.
func (p *planner) serves() bool {
	return p.View.Listed && (p.stage() == StageRunning || p.stage() == StageStopping)
}

func describeSource(snapshot string) string {
	if snapshot == v1alpha1.EtcdFromNothing {
		return "nothing"
	}
	return "snapshot " + snapshot
}

// setRestore records how far an order is.
func (p *planner) setRestore(phase v1alpha1.EtcdRestorePhase, message string) {
	if p.status.Restore.Phase != phase {
		p.status.Restore.Phase, p.status.Restore.Since = phase, *micro(p.Now)
	}
	p.status.Restore.Message = message
}

func (p *planner) refuseRestore(why string) { p.setRestore(v1alpha1.EtcdRestoreRefused, why) }

// awaitRestore reports what an order waits for.
func (p *planner) awaitRestore(what string) { p.setRestore(p.status.Restore.Phase, what) }

// restoreFromMember stops all reachable members, compares their logs, orders a snapshot of the data of the named member, and starts a new
// incarnation from that.
func (p *planner) restoreFromMember(order *v1alpha1.EtcdRestoreOrder) (busy bool) {
	begun := p.begun()
	at := slices.IndexFunc(begun, func(m memberView) bool { return m.Name == order.Member })
	reading := p.status.Restore.Phase == v1alpha1.EtcdRestoreReading
	switch {
	case at < 0:
		p.refuseRestore(fmt.Sprintf("Member %s has no data of the present cluster.", order.Member))
		return false
	case p.serves() && !reading:
		p.refuseRestore("A quorum of the members serves clients, and has every key. Nothing needs to be restored.")
		return false
	case !p.Live(begun[at].Spec.Node):
		p.awaitRestore(fmt.Sprintf("Node %s, which has the data of member %s, is absent: start it.", begun[at].Spec.Node, order.Member))
		return reading
	}
	if why := p.mayServeElsewhere(begun, order); why != "" {
		p.setRestore(v1alpha1.EtcdRestoreWaiting, why) // also if a node was lost since: its lease was held when the order began
		return false
	}
	p.setRestore(v1alpha1.EtcdRestoreReading, "Waiting until every member that can be reached has stopped.")
	p.reportScaling("Restoring the cluster from the data of member %s on %s", order.Member, begun[at].Spec.Node)
	if !p.stopAll(begun, order) {
		return true
	}
	if why := p.unfitSource(begun, begun[at], order); why != "" {
		p.refuseRestore(why)
		return false
	}
	return p.readMember(begun, begun[at], order)
}

// begun returns the present members that may have data.
func (p *planner) begun() []memberView {
	return slices.DeleteFunc(slices.Clone(p.current), func(m memberView) bool { return m.Spec.Begin == nil })
}

// voted returns whether a member is a voter; without a quorum, whether it was one when a quorum last confirmed the list, or when the cluster
// stopped. A learner may have become a voter since.
func (p *planner) voted(m memberView) bool {
	if p.View.Listed {
		return m.voter()
	}
	switch p.formerRole(m.Name) {
	case v1alpha1.EtcdVoter:
		return true
	case v1alpha1.EtcdLearner:
		return false
	}
	rest := p.status.Rest
	return rest != nil && slices.ContainsFunc(rest.Members, func(was v1alpha1.EtcdMemberInfo) bool { return was.Name == m.Name })
}

// mayServeElsewhere returns why members on absent nodes may serve clients now or later. A fence does not end a process of etcd: as long as the
// cut off members are a quorum among themselves, somebody has to confirm that they are gone. The quorum is one of the voters that are
// known; a learner that is cut off counts as if it had become one.
func (p *planner) mayServeElsewhere(begun []memberView, order *v1alpha1.EtcdRestoreOrder) string {
	var cutOff []string
	voters := 0
	for _, m := range begun {
		if p.voted(m) {
			voters++
		}
		node := m.Spec.Node
		lease := p.Leases[node]
		released := lease.Epoch > 0 && !lease.Held() && lease.Fenced < lease.Epoch // in order, after its processes ended
		if m.Name == order.Member || p.Live(node) || p.Nodes[node] == nil || released || m.stoppedForRestore() || slices.Contains(order.Gone, node) {
			continue
		}
		cutOff = append(cutOff, node)
	}
	if len(cutOff) < quorum(voters) {
		return ""
	}
	slices.Sort(cutOff)
	cutOff = slices.Compact(cutOff)
	return fmt.Sprintf("Members on %s cannot be reached, and may still serve clients among themselves: bring the nodes back, or, if they are gone for good, order the restore with --gone %s.",
		strings.Join(cutOff, " and "), strings.Join(cutOff, ","))
}

// stoppedForRestore returns whether a member's node reported that the process ended, and with which log. It does not start again until that is
// desired.
func (m memberView) stoppedForRestore() bool {
	return m.Spec.Want == v1alpha1.EtcdMemberStop && m.Spec.ReportLog && m.is(v1alpha1.EtcdMemberStopped) && (m.Status.Log != nil || !m.Status.Data)
}

// stopAll orders every member to stop and to report its log, and returns whether all reachable ones have done so.
func (p *planner) stopAll(begun []memberView, order *v1alpha1.EtcdRestoreOrder) bool {
	all := true
	for _, m := range begun {
		p.setDesired(m, v1alpha1.EtcdMemberStop, func(s *v1alpha1.EtcdMemberSpec) { s.ReportLog = true })
		if !p.Live(m.Spec.Node) {
			continue
		}
		if !(m.is(v1alpha1.EtcdMemberStopped) || m.is(v1alpha1.EtcdMemberFailed)) || !m.Spec.ReportLog || m.Status.Data && m.Status.Log == nil {
			ended := m.Status.ObservedGeneration == m.Generation && m.Spec.Want == v1alpha1.EtcdMemberStop && m.Status.PID == 0
			if ended && m.Status.Error != "" && slices.Contains(order.Gone, m.Spec.Node) && m.Name != order.Member {
				continue // its log or its marker cannot be read, and somebody confirmed that nothing is expected of it; its data is set aside
			}
			all = false
			if m.Status.Error != "" {
				p.awaitRestore(fmt.Sprintf("Waiting for member %s on %s to stop and to report its log (%s). If its data is lost, order the restore with --gone %s.", m.Name, m.Spec.Node, m.Status.Error, m.Spec.Node))
			}
		}
	}
	return all
}

// unfitSource returns why the cluster must not be restored from the data of a member: the member has none, another member is known to have newer
// entries, or it is a learner and a voter may have newer ones. A learner may lack entries that a quorum has acknowledged.
func (p *planner) unfitSource(begun []memberView, source memberView, order *v1alpha1.EtcdRestoreOrder) string {
	if !source.Status.Data || source.Status.Log == nil {
		return fmt.Sprintf("Member %s on %s has no data.", source.Name, source.Spec.Node)
	}
	if m, there := p.newerLog(begun, source, order); there {
		return p.hasNewerLog(m, source, order)
	}
	if p.voted(source) {
		return ""
	}
	if unknown := p.unknownVoters(begun, order); len(unknown) > 0 {
		return fmt.Sprintf("Member %s on %s was not a voter yet and may lack keys, and the logs of the voters on %s are not known: bring the nodes back with their data, or, if it is lost for good, order the restore with --gone %s.",
			source.Name, source.Spec.Node, strings.Join(unknown, " and "), strings.Join(unknown, ","))
	}
	return ""
}

// newerLog returns the member with the newest log, if that is newer than the source's; one that can be reached counts first. A log that was reported
// counts though the node is absent now: a log never loses entries, they are only replaced by those of a later term. It does not
// count if somebody has confirmed that the node is gone.
func (p *planner) newerLog(begun []memberView, source memberView, order *v1alpha1.EtcdRestoreOrder) (newest memberView, there bool) {
	for _, m := range begun {
		live := p.Live(m.Spec.Node)
		if !m.Status.Data || m.Status.Log == nil || !m.Status.Log.Newer(*source.Status.Log) || !live && slices.Contains(order.Gone, m.Spec.Node) {
			continue
		}
		if !there || live && !p.Live(newest.Spec.Node) || live == p.Live(newest.Spec.Node) && m.Status.Log.Newer(*newest.Status.Log) {
			newest, there = m, true
		}
	}
	return newest, there
}

// hasNewerLog returns the message that a member has a newer log than the source of a restore, and what to do.
func (p *planner) hasNewerLog(m, source memberView, order *v1alpha1.EtcdRestoreOrder) string {
	text := fmt.Sprintf("Member %s on %s has a newer log (term %d, index %d) than %s on %s (term %d, index %d). ",
		m.Name, m.Spec.Node, m.Status.Log.Term, m.Status.Log.Index, source.Name, source.Spec.Node, source.Status.Log.Term, source.Status.Log.Index)
	instead := fmt.Sprintf("`ebb etcd restore %s --from-member %s`", p.commandName(), m.Spec.Node)
	if p.Live(m.Spec.Node) {
		return text + "Restore from it instead: " + instead + "."
	}
	gone := append(slices.Clone(order.Gone), m.Spec.Node)
	slices.Sort(gone)
	return text + fmt.Sprintf("Node %s is absent: start it and restore from that member instead (%s), or, if its data is lost for good, order the restore with --gone %s.",
		m.Spec.Node, instead, strings.Join(gone, ","))
}

// unknownVoters returns the nodes of voters that reported no log and were not confirmed to be gone.
func (p *planner) unknownVoters(begun []memberView, order *v1alpha1.EtcdRestoreOrder) []string {
	var nodes []string
	for _, m := range begun {
		node := m.Spec.Node
		reported := p.Live(node) && m.Status.Data && m.Status.Log != nil
		if p.voted(m) && !reported && p.Nodes[node] != nil && !slices.Contains(order.Gone, node) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// readMember orders a snapshot of a stopped member's data, and begins the new incarnation once it is verified.
func (p *planner) readMember(begun []memberView, source memberView, order *v1alpha1.EtcdRestoreOrder) (busy bool) {
	// Named by the end of the log: the members may have run and served clients after the order had begun, and a snapshot of before lacks what they wrote.
	name := SnapshotName(p.Cluster, fmt.Sprintf("r-%s-%d-%d", order.ID, source.Status.Log.Term, source.Status.Log.Index))
	p.status.Restore.Snapshot = name
	s := p.find(name)
	switch {
	case s == nil:
		p.awaitRestore("Taking snapshot " + name + " of the data of member " + source.Name + ".")
		p.createDataSnapshot(name, source)
		return true
	case s.Status.Error != "" || !s.DeletionTimestamp.IsZero():
		p.refuseRestore(fmt.Sprintf("Snapshot %s of the data of member %s on %s could not be taken%s. Nothing was deleted.", name, source.Name, source.Spec.Node, because(s.Status.Error)))
		return false
	case s.Status.Facts == nil || !p.available(s):
		p.awaitRestore("Taking snapshot " + name + " of the data of member " + source.Name + ".")
		return true
	}
	p.setAside(func(m memberView) string { return p.leftBehind(m, source) })
	p.beginRestore(&v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: name})
	return false
}

// leftBehind returns why the data of a member is set aside when the cluster is restored from another one; empty if everything that it has is in the
// snapshot.
func (p *planner) leftBehind(m, source memberView) string {
	switch log := m.Status.Log; {
	case log != nil && p.Live(m.Spec.Node):
		return "" // its log is not newer
	case log != nil && log.Newer(*source.Status.Log):
		return fmt.Sprintf("Its log (term %d, index %d) was newer when the cluster was restored from member %s, and its node was confirmed to be gone; it may have newer keys", log.Term, log.Index, source.Name)
	case m.stoppedForRestore():
		return "Its node was absent when the cluster was restored from member " + source.Name + "; its log was not newer"
	}
	return "Its log was not known when the cluster was restored from member " + source.Name + "; it may have newer keys"
}

func (p *planner) createDataSnapshot(name string, source memberView) {
	c := p.Cluster
	s := &v1alpha1.EtcdSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: name, Labels: map[string]string{v1alpha1.EtcdClusterLabel: c.Name}, Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer},
		},
		Spec: v1alpha1.EtcdSnapshotSpec{
			Cluster: c.Name, ClusterUID: string(c.UID), Incarnation: p.status.Incarnation, Generation: c.Generation, Member: source.Name, MemberNode: source.Spec.Node,
			FromData: true, Dir: c.Spec.Snapshot.Dir, FormerMembers: p.infos(p.current),
		},
	}
	s.Spec.Nodes = p.copyTargets(s, []string{source.Spec.Node}, false)
	p.act(Action{Do: CreateSnapshot, Snapshot: s})
}

// setAside records the data of present members that the next incarnation may lack, with the reason; without a reason it is not kept.
func (p *planner) setAside(why func(memberView) string) {
	for _, m := range p.begun() {
		if p.Live(m.Spec.Node) && !m.Status.Data || !p.hasRun() && !p.resumes() {
			continue // there is nothing, or nothing that clients ever wrote
		}
		if reason := why(m); reason != "" {
			p.status.SetAside = append(p.status.SetAside, v1alpha1.EtcdSetAside{Member: m.Name, Node: m.Spec.Node, Reason: reason})
		}
	}
}

// isSetAside returns whether the data of a former member is kept until somebody discards it.
func (p *planner) isSetAside(m memberView) bool {
	return slices.ContainsFunc(p.status.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Member == m.Name })
}

// forgetDiscarded drops what is not there any more from the list of data that is set aside.
func (p *planner) forgetDiscarded() {
	p.status.SetAside = slices.DeleteFunc(p.status.SetAside, func(a v1alpha1.EtcdSetAside) bool {
		return !slices.ContainsFunc(p.Members, func(m *v1alpha1.EtcdMember) bool {
			return m.Name == a.Member && m.Spec.Want != v1alpha1.EtcdMemberDelete
		})
	})
	if len(p.status.SetAside) == 0 {
		p.status.SetAside = nil
	}
}

// restorePending returns what a restore order waits for; empty if there is none that waits.
func (p *planner) restorePending() string {
	state, order := p.status.Restore, p.Cluster.Spec.Restore
	if state == nil || order == nil || state.ID != order.ID || state.Phase.Final() || state.Phase == v1alpha1.EtcdRestoreStarting {
		return ""
	}
	text := fmt.Sprintf("Restore %s: %s", state.ID, state.Message)
	if state.Phase == v1alpha1.EtcdRestoreWaiting {
		text += fmt.Sprintf(" The order expires at %s; `ebb etcd restore %s --cancel` withdraws it.", order.Expires.UTC().Format("2006-01-02 15:04:05 MST"), p.commandName())
	}
	return text
}
