package etcdcluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

const (
	// quorumLostAfter is how long a cluster may be without quorum before that is reported: an election takes a moment.
	quorumLostAfter = 5 * time.Second
	// eventWindow is how long after a change its event is emitted again, in case the first time failed.
	eventWindow = time.Minute
)

// fillStatus writes the status after everything was decided.
func (p *planner) fillStatus() {
	s, c := &p.status, p.Cluster
	s.ObservedGeneration = c.Generation
	s.Selector = v1alpha1.EtcdClusterLabel + "=" + c.Name
	s.Members = []v1alpha1.EtcdMemberInfo{}
	s.ReadyReplicas = 0
	if p.phase != v1alpha1.EtcdClusterPhaseStopped {
		s.Members = p.infos(p.current)
		s.ReadyReplicas = int32(p.readyVoters())
	}
	s.Nodes = nil
	for _, m := range s.Members {
		s.Nodes = append(s.Nodes, m.Node)
	}
	slices.Sort(s.Nodes)
	if newest := p.newest(anySnapshot); newest != nil {
		s.Snapshot = newest.Name
	} else {
		s.Snapshot = ""
	}
	p.finishStart()
	p.reportQuorum()
	p.setConditions()
	p.addEvents()
}

// startWaits separates the message of a start from what it waits for.
const startWaits = ". "

// finishStart records how long a start took once every member is healthy.
func (p *planner) finishStart() {
	s := &p.status
	if s.Starting == nil || p.phase == v1alpha1.EtcdClusterPhaseStopped || p.phase == v1alpha1.EtcdClusterPhaseFailed {
		return
	}
	if p.phase == v1alpha1.EtcdClusterPhaseRunning && p.readyVoters() >= p.Cluster.Size() {
		s.LastStart = roundedSince(p.Now, s.Starting.Time)
		s.Starting = nil
		return
	}
	if p.reason == v1alpha1.ReasonEtcdStopping {
		return
	}
	// Until every member is healthy, the message of the start stays.
	message := v1alpha1.MessageEtcdBootstrap
	if was := meta.FindStatusCondition(p.Cluster.Status.Conditions, v1alpha1.EtcdProgressing); was != nil && was.Reason == v1alpha1.ReasonEtcdCreating {
		message, _, _ = strings.Cut(was.Message, startWaits)
	}
	if p.Cluster.Status.Starting == nil || p.restoring {
		message = p.startMessage()
	}
	if p.stuck != "" {
		message += startWaits + p.stuck
	}
	p.phase, p.reason, p.message, p.changing = v1alpha1.EtcdClusterPhaseCreating, v1alpha1.ReasonEtcdCreating, message, true
}

// startMessage returns the message of a start that begins.
func (p *planner) startMessage() string {
	switch {
	case p.restoring:
		if p.status.Rest != nil && p.status.Rest.Snapshot != "" {
			return "Restoring cluster from snapshot " + p.status.Rest.Snapshot
		}
		return "Starting an empty cluster"
	case p.Cluster.Status.Incarnation == 0 || p.Cluster.Status.Rest == nil && p.Cluster.Status.ClusterID == "":
		return v1alpha1.MessageEtcdBootstrap
	}
	return v1alpha1.MessageEtcdRestarting
}

// infos returns members as the status shows them.
func (p *planner) infos(members []memberView) []v1alpha1.EtcdMemberInfo {
	list := []v1alpha1.EtcdMemberInfo{}
	for _, m := range members {
		info := v1alpha1.EtcdMemberInfo{
			Name: m.Name, Node: m.Spec.Node, ID: m.Status.ID, Healthy: m.healthy(), Message: m.Status.Error,
			DBSize: m.health.DBSize, PeerURL: m.Status.PeerURL,
		}
		if p.hasRun() {
			info.ClientURL = m.Status.ClientURL // before, the member may still be given up and no client may write to it
		}
		switch {
		case m.peer != nil && m.peer.Learner:
			info.Role = v1alpha1.EtcdLearner
		case m.leads():
			info.Role = v1alpha1.EtcdLeader
		case m.peer != nil:
			info.Role = v1alpha1.EtcdVoter
		case !p.View.Listed:
			info.Role = p.formerRole(m.Name)
		}
		if m.peer != nil {
			info.ID = etcd.HexID(m.peer.ID)
		}
		if lag := p.View.Revision - m.health.Revision; m.health.Answered && lag > 0 {
			info.RevisionLag = lag
		}
		if info.Message == "" && !info.Healthy {
			info.Message = p.whyUnhealthy(m)
		}
		list = append(list, info)
	}
	return list
}

// formerRole returns the role that a member had when a quorum last confirmed the list. Without a quorum nobody leads.
func (p *planner) formerRole(name string) v1alpha1.EtcdMemberRole {
	for _, was := range p.Cluster.Status.Members {
		if was.Name == name && was.Role == v1alpha1.EtcdLearner {
			return v1alpha1.EtcdLearner
		} else if was.Name == name && was.Role != "" {
			return v1alpha1.EtcdVoter
		}
	}
	return ""
}

func (p *planner) whyUnhealthy(m memberView) string {
	switch {
	case !p.Live(m.Spec.Node):
		return "node " + m.Spec.Node + " is absent"
	case m.Status.Phase != v1alpha1.EtcdMemberRunning && m.Status.Phase != v1alpha1.EtcdMemberSealed && m.Status.Phase != "":
		return string(m.Status.Phase)
	case m.health.Answered:
		return "knows no leader"
	case m.health.Error != "":
		return m.health.Error
	}
	return "does not answer"
}

// reportQuorum reports that quorum is lost, after quorumLostAfter.
func (p *planner) reportQuorum() {
	stage := p.stage()
	reading := p.status.Restore != nil && p.status.Restore.Phase == v1alpha1.EtcdRestoreReading
	if stage != StageRunning && stage != StageStopping || p.View.Listed || p.missing != "" || reading {
		return
	}
	voters, answering, silent, why := 0, 0, []string{}, ""
	for _, m := range p.status.Members {
		switch {
		case m.Role != v1alpha1.EtcdVoter && m.Role != v1alpha1.EtcdLeader:
			continue
		case p.View.Health[m.Name].Answered:
			answering++
		default:
			silent = append(silent, m.Name)
			if err := p.errorOf(m.Name); err != "" && why == "" {
				why = fmt.Sprintf(" (%s: %s)", m.Name, shortened(err))
			}
		}
		voters++
	}
	p.changing = true
	ready := meta.FindStatusCondition(p.Cluster.Status.Conditions, v1alpha1.EtcdReady)
	if ready == nil || ready.Status == metav1.ConditionTrue || p.Now.Sub(ready.LastTransitionTime.Time) < quorumLostAfter {
		return
	}
	if p.View.Error != "" && answering >= quorum(voters) {
		p.quorumLost = fmt.Sprintf("%d of %d voters answer, and none lists the members: %s. If etcd's auth is enabled, disable it: members that were created with spec.tls.client false cannot identify the coordinator.",
			answering, voters, p.View.Error)
		p.phase = v1alpha1.EtcdClusterPhaseFailed
		return
	}
	p.quorumLost = fmt.Sprintf("%d of %d voters answer, %d are needed: bring %s back%s. If they are lost for good: %s",
		answering, voters, quorum(voters), orOthers(silent), why, p.restoreAdvice())
	p.phase = v1alpha1.EtcdClusterPhaseFailed
}

// errorOf returns what the node reported to be wrong with a member.
func (p *planner) errorOf(member string) string {
	for _, m := range p.current {
		if m.Name == member {
			return m.Status.Error
		}
	}
	return ""
}

// setConditions writes the phase and the conditions.
func (p *planner) setConditions() {
	s := &p.status
	if p.phase == "" {
		p.phase = v1alpha1.EtcdClusterPhaseCreating
	}
	s.Phase = p.phase
	stopped := p.phase == v1alpha1.EtcdClusterPhaseStopped
	noSpace, corrupt := p.alarmMessages()
	p.setReady(stopped, noSpace+corrupt)
	progressing := metav1.ConditionFalse
	switch {
	case stopped:
	case p.phase == v1alpha1.EtcdClusterPhaseFailed:
		p.reason, p.message = v1alpha1.ReasonEtcdFailed, p.missing+p.quorumLost
	case p.phase != v1alpha1.EtcdClusterPhaseRunning:
		progressing = metav1.ConditionTrue
	}
	p.set(v1alpha1.EtcdProgressing, progressing, p.reason, p.message)
	p.setOrClear(v1alpha1.EtcdQuorumLost, p.quorumLost)
	p.setOrClear(v1alpha1.EtcdDataMissing, p.missing)
	p.setOrClear(v1alpha1.EtcdSnapshotFailed, p.snapFailed)
	p.setOrClear(v1alpha1.EtcdNoSpace, noSpace)
	p.setOrClear(v1alpha1.EtcdCorrupt, corrupt)
	p.setOrClear(v1alpha1.EtcdMemberFailing, p.failingMessage())
	p.setOrClear(v1alpha1.EtcdRestorePending, p.restorePending())
}

func (p *planner) setReady(stopped bool, alarm string) {
	size, ready := p.Cluster.Size(), p.readyVoters()
	stage := p.stage()
	sealed := stage == StageReleasing || stage == StageStopping && slices.ContainsFunc(p.current, func(m memberView) bool { return m.Spec.Want == v1alpha1.EtcdMemberSeal })
	serves := (stage == StageRunning || stage == StageStopping) && p.View.Listed && ready >= quorum(max(size, 1))
	switch {
	case stopped:
		p.set(v1alpha1.EtcdReady, metav1.ConditionFalse, v1alpha1.ReasonEtcdStopped, v1alpha1.MessageEtcdStopped)
	case sealed:
		p.set(v1alpha1.EtcdReady, metav1.ConditionFalse, v1alpha1.ReasonEtcdStopping, "The cluster serves no clients while it stops")
	case serves && alarm != "":
		p.set(v1alpha1.EtcdReady, metav1.ConditionFalse, v1alpha1.ReasonEtcdAlarm, alarm)
	case serves:
		p.set(v1alpha1.EtcdReady, metav1.ConditionTrue, v1alpha1.ReasonEtcdRunning, fmt.Sprintf("%d of %d members healthy", ready, max(size, len(p.voters()))))
	default:
		p.set(v1alpha1.EtcdReady, metav1.ConditionFalse, p.notReadyReason(), fmt.Sprintf("%d of %d members healthy", ready, max(size, len(p.voters()))))
	}
}

func (p *planner) notReadyReason() string {
	switch p.phase {
	case v1alpha1.EtcdClusterPhaseCreating:
		return v1alpha1.ReasonEtcdCreating
	case v1alpha1.EtcdClusterPhaseFailed:
		return v1alpha1.ReasonEtcdFailed
	}
	return v1alpha1.ReasonEtcdScaling
}

// set sets a condition. Its time is the world's, and changes only with the status.
func (p *planner) set(kind string, status metav1.ConditionStatus, reason, message string) {
	if reason == "" {
		reason = v1alpha1.ReasonEtcdCreating
	}
	next := metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: p.Cluster.Generation}
	was := meta.FindStatusCondition(p.status.Conditions, kind)
	if was == nil || was.Status != status {
		next.LastTransitionTime = metav1.NewTime(p.Now)
	}
	meta.SetStatusCondition(&p.status.Conditions, next)
}

func (p *planner) setOrClear(kind, message string) {
	if message == "" {
		meta.RemoveStatusCondition(&p.status.Conditions, kind)
		return
	}
	p.set(kind, metav1.ConditionTrue, kind, message)
}

// addEvents adds the events of what the status records. For eventWindow they are added again under the same key, in case the
// coordinator that wrote the status died before it emitted them.
func (p *planner) addEvents() {
	was, is := p.Cluster.Status, p.status
	progressing := meta.FindStatusCondition(is.Conditions, v1alpha1.EtcdProgressing)
	switch {
	case is.Phase == v1alpha1.EtcdClusterPhaseStopped && is.Rest != nil && is.Rest.Stopped != nil && is.Stop == nil && p.Now.Sub(is.Rest.Stopped.Time) < eventWindow:
		p.addNotice(false, v1alpha1.EventEtcdClusterStopped, fmt.Sprint(is.Rest.Stopped.Unix()), v1alpha1.MessageEtcdScaledTo0)
	case is.Starting != nil && is.Phase == v1alpha1.EtcdClusterPhaseCreating && p.Now.Sub(is.Starting.Time) < eventWindow:
		p.addNotice(false, v1alpha1.EventEtcdClusterCreated, fmt.Sprint(is.Starting.UnixMicro()), progressing.Message)
	case was.Phase == v1alpha1.EtcdClusterPhaseScaling && is.Phase == v1alpha1.EtcdClusterPhaseRunning:
		p.addNotice(false, v1alpha1.EventEtcdClusterScaled, fmt.Sprint(p.Now.UnixMicro()), fmt.Sprintf("Cluster has %d members", p.votes()))
	}
	if r := is.Restore; r != nil && r.Phase.Final() && p.Now.Sub(r.Since.Time) < eventWindow {
		p.addNotice(r.Phase != v1alpha1.EtcdRestoreDone, "Restore"+string(r.Phase), r.ID, fmt.Sprintf("Restore %s: %s", r.ID, r.Message))
	}
	for _, kind := range []string{v1alpha1.EtcdQuorumLost, v1alpha1.EtcdDataMissing, v1alpha1.EtcdSnapshotFailed, v1alpha1.EtcdMemberFailing, v1alpha1.EtcdNoSpace, v1alpha1.EtcdCorrupt} {
		if c := meta.FindStatusCondition(is.Conditions, kind); c != nil && p.Now.Sub(c.LastTransitionTime.Time) < eventWindow {
			p.addNotice(true, kind, fmt.Sprint(c.LastTransitionTime.Unix()), c.Message)
		}
	}
}

func (p *planner) addNotice(warning bool, reason, key, note string) {
	p.events = append(p.events, Notice{Warning: warning, Reason: reason, Key: key, Note: note})
}
