package etcdcluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
)

// The steps of StageStopping and StageEvacuating. Each is recorded in status.stop.step before it takes effect:
//
//	Sealing ──▶ Snapshotting ──▶ Copying ──▶ Released ──▶ phase Stopped
//	   │             all sealed, revision known     verified, on enough nodes
//	   └──────────────────────── Retain, Delete ──────▶ Released
//
// Sealing begins with a trial, while clients are served: whether enough nodes have room for a copy (trial.go).
// Until Released the stop can be canceled, which unseals the members. From Released on their data may be deleted, and a cluster that is
// wanted again starts from what was kept.

const (
	// retryFirst and retryMost bound the delay before another snapshot is taken after one that failed.
	retryFirst = 2 * time.Second
	retryMost  = 30 * time.Second
	// sealedTries bounds the snapshots that are taken in a row while the revision changes though the members are sealed.
	sealedTries = 30
	// pauseFirst and pauseMost bound the time for which clients are served after a stop that could not be completed.
	pauseFirst = 10 * time.Second
	pauseMost  = 10 * time.Minute
	// trialMost bounds the time until nodes are asked for room again. Clients are served meanwhile.
	trialMost = time.Minute

	defaultStopTimeout = 5 * time.Minute
)

// reportStopped reports that nothing runs.
func (p *planner) reportStopped() {
	p.phase, p.reason, p.message = v1alpha1.EtcdClusterPhaseStopped, v1alpha1.ReasonEtcdStopped, v1alpha1.MessageEtcdStopped
	p.quorumLost = ""
}

// reportStopping reports that the cluster is being stopped. One that is stopped, and of which only the data moves, stays Stopped.
func (p *planner) reportStopping(message string) {
	p.reportScaling("%s", message)
	p.reason = v1alpha1.ReasonEtcdStopping
	if p.Cluster.Status.Phase == v1alpha1.EtcdClusterPhaseStopped {
		p.reportStopped()
		p.changing = true
	}
}

// stop begins to stop a running cluster, once no other change is under way and a quorum can take part.
func (p *planner) stop() {
	onStop := cmp.Or(p.Cluster.Spec.Storage.OnStop, v1alpha1.EtcdSnapshotThenDelete)
	p.reportStopping("Stopping cluster")
	if onStop == v1alpha1.EtcdDelete {
		p.beginStop(onStop)
		p.release(&v1alpha1.EtcdStoppedState{})
		p.endMembers()
		return
	}
	if len(p.current) == 0 {
		p.failNoMembers()
		return
	}
	for _, m := range p.current {
		if m.Spec.Want != v1alpha1.EtcdMemberSeal && m.Spec.Begin != nil {
			p.wake(m) // a restore, the cancellation of a start or a person had stopped it, and the quorum needs it
		}
	}
	if !p.View.Listed || p.readyVoters() < quorum(p.votes()) {
		p.message = "Waiting for a quorum before stopping, so that every key is kept" + because(p.View.Error)
		return
	}
	for _, m := range p.current {
		if !m.voter() {
			p.finishMember(m, 0) // undone, or out of the list already
			p.reason = v1alpha1.ReasonEtcdStopping
			return
		}
	}
	p.beginStop(onStop)
}

// continueStop takes a stop or an evacuation one step further, or cancels it.
func (p *planner) continueStop(stage Stage, size int) {
	stop, onStop := p.status.Stop, p.Cluster.Spec.Storage.OnStop
	switch {
	case size > 0 && stage == StageEvacuating:
		p.cancelStop()
		p.start()
	case stage == StageEvacuating && !p.drainWaits():
		p.cancelStop() // the drain was cancelled
		p.reportStopped()
		p.rest()
	case size > 0:
		p.cancelStop()
		p.adjustMembers(size)
	case stage == StageStopping && onStop != "" && onStop != stop.OnStop:
		p.cancelStop()
		p.stop()
	case p.pausing():
		p.pauseLonger()
	case stage == StageStopping && p.sealedTooLong():
		p.pause(fmt.Sprintf("The stop kept clients out for %s and its data is not safe yet: %s.", p.stopTimeout(), p.stuckOn()))
	case stop.Step == v1alpha1.EtcdSealing:
		p.seal()
	case stop.Step == v1alpha1.EtcdSnapshotting:
		p.snapshot()
	case stop.Step == v1alpha1.EtcdCopying:
		p.copy()
	}
}

// pausing returns whether clients are served because the stop could not be completed.
func (p *planner) pausing() bool {
	until := p.status.Stop.PausedUntil
	return until != nil && p.Now.Before(until.Time)
}

// sealedTooLong returns whether clients have been kept out for too long.
func (p *planner) sealedTooLong() bool {
	since := p.status.Stop.SealedSince
	return since != nil && p.Now.Sub(since.Time) > p.stopTimeout()
}

func (p *planner) stopTimeout() time.Duration {
	if d := p.Cluster.Spec.Storage.StopTimeout; d != nil && d.Duration > 0 {
		return d.Duration
	}
	return defaultStopTimeout
}

// stuckOn returns what a stop that takes too long waits for.
func (p *planner) stuckOn() string {
	stop := p.status.Stop
	s := p.find(stop.Snapshot)
	switch {
	case stop.Step == v1alpha1.EtcdSealing:
		var names []string
		for _, m := range p.current {
			if !m.is(v1alpha1.EtcdMemberSealed) {
				names = append(names, m.Name)
			}
		}
		if len(names) > 0 {
			return "members that do not stop serving clients: " + strings.Join(names, ", ")
		}
		return "the revision of the cluster is not known"
	case s == nil || s.Status.Facts == nil:
		return "snapshot " + stop.Snapshot + " was not taken"
	}
	return p.copyProgress(s)
}

// copyProgress returns on how many nodes a snapshot is, and why it is not on more.
func (p *planner) copyProgress(s *v1alpha1.EtcdSnapshot) string {
	text := fmt.Sprintf("snapshot %s is on %d of %d nodes", s.Name, len(p.goodCopies(s)), p.copiesNeeded())
	if errs := copyErrors(p.status.Stop.CopyFailures); errs != "" {
		text += " (" + errs + ")"
	}
	return text
}

// pause lets clients in, and tries the stop again later: the longer, the more often it has failed.
func (p *planner) pause(why string) { p.pauseAtMost(pauseMost, why) }

func (p *planner) pauseAtMost(most time.Duration, why string) {
	stop := p.status.Stop
	stop.Attempt++
	wait := backoff.Policy{First: pauseFirst, Longest: most}.After(stop.Attempt)
	stop.Step, stop.SealedSince, stop.Trial, stop.PausedUntil = v1alpha1.EtcdSealing, nil, "", micro(p.Now.Add(wait))
	p.snapFailed = fmt.Sprintf("%s Nothing was deleted, and clients are served. The stop is tried again in %s.", why, wait)
	p.serveMeanwhile()
}

// pauseOf is the longest pause after so many attempts.
func pauseOf(attempt int64) time.Duration {
	return backoff.Policy{First: pauseFirst, Longest: pauseMost}.After(attempt)
}

// pauseLonger waits for the end of a pause.
func (p *planner) pauseLonger() {
	p.snapFailed = p.lastFailure()
	p.serveMeanwhile()
}

// serveMeanwhile lets members serve clients until the next try.
func (p *planner) serveMeanwhile() {
	p.reportWaiting("waiting to try again; clients are served meanwhile")
	p.unsealAll()
}

// keepOut records since when clients are kept out.
func (p *planner) keepOut() {
	stop := p.status.Stop
	stop.PausedUntil = nil
	if stop.SealedSince == nil {
		stop.SealedSince = micro(p.Now)
	}
}

// seal waits until no member serves clients, and records the revision of the cluster then.
func (p *planner) seal() {
	if p.needsTrial() && !p.checkRoom() {
		return
	}
	p.keepOut()
	p.snapFailed = p.lastFailure()
	p.reportWaiting("waiting until no member serves clients")
	p.recordFailures()
	all := true
	for _, m := range p.current {
		if p.View.Listed && p.removedFailed(m) {
			p.setAsideFailed(m)
			continue
		}
		if m.peer == nil && p.View.Listed {
			p.setDesired(m, v1alpha1.EtcdMemberDelete) // it was removed from the list
			continue
		}
		p.setDesired(m, v1alpha1.EtcdMemberSeal, func(s *v1alpha1.EtcdMemberSpec) { s.DataRequired = true })
		all = all && m.is(v1alpha1.EtcdMemberSealed)
	}
	if !p.View.Listed {
		p.reportWaiting("waiting until no member serves clients" + because(p.View.Error))
		p.missesQuorum()
		return
	}
	for _, m := range p.voters() {
		if p.Live(m.Spec.Node) && !m.is(v1alpha1.EtcdMemberFailed) && !p.replacesFailed(m) {
			continue
		}
		// Its node cannot seal it, or its process does not stay up. When it comes back it could pass on writes of clients, unless it is out of the list.
		if p.lastGood(m) {
			p.reportWaiting(fmt.Sprintf("%s cannot be sealed, and has the only data that does not differ; bring it back", m.Name))
			return
		}
		if p.readyVoters() < quorum(p.votes()-1) {
			p.reportWaiting(fmt.Sprintf("%s; %s cannot be sealed, and removing it would lose quorum; bring it back", p.healthyVoters(), m.Name))
			return
		}
		p.act(Action{Do: RemovePeer, Peer: *m.peer})
		return
	}
	if !all || p.dropUnknown() {
		return
	}
	stop := p.status.Stop
	stop.Revision = p.View.Revision
	if stop.OnStop == v1alpha1.EtcdRetain {
		p.release(&v1alpha1.EtcdStoppedState{Revision: p.View.Revision, Hash: p.View.Hash})
		p.endMembers()
		return
	}
	p.attempt()
}

// pauseAfter lets members serve clients until the next snapshot is tried.
func (p *planner) pauseAfter(failed *v1alpha1.EtcdSnapshot) {
	p.reportFailed(failed)
	stop := p.status.Stop
	stop.Step, stop.SealedSince, stop.Trial, stop.PausedUntil = v1alpha1.EtcdSealing, nil, "", micro(p.Now.Add(retryAfter(stop.Attempt)))
	p.serveMeanwhile()
}

// unsealAll lets all voters serve clients, also if somebody stopped so many of them that nobody lists them.
func (p *planner) unsealAll() {
	for _, m := range p.current {
		if m.voter() || !p.View.Listed && m.Spec.Begin != nil {
			p.unseal(m)
		}
	}
}

// unseal lets a member serve clients again. Members of a stopped cluster were woken for their data only, and serve nobody.
func (p *planner) unseal(m memberView) {
	if p.Cluster.Status.Phase != v1alpha1.EtcdClusterPhaseStopped {
		p.wake(m)
	}
}

// reportFailed reports that a snapshot could not be taken.
func (p *planner) reportFailed(s *v1alpha1.EtcdSnapshot) {
	why := s.Status.Error
	if why == "" && s.Status.Facts != nil {
		why = fmt.Sprintf("it is at revision %d, not %d", s.Status.Facts.Revision, s.Spec.Revision)
	}
	p.snapFailed = fmt.Sprintf("Snapshot %s could not be taken%s. Nothing was deleted; another one is taken soon.", s.Name, because(why))
}

// lastFailure returns what was reported of the last snapshot that failed. It is reported until a snapshot succeeds.
func (p *planner) lastFailure() string {
	if c := meta.FindStatusCondition(p.Cluster.Status.Conditions, v1alpha1.EtcdSnapshotFailed); c != nil {
		return c.Message
	}
	return ""
}

// reportWaiting reports what the stop waits for. An evacuation reports nothing: for people the cluster is stopped.
func (p *planner) reportWaiting(what string) {
	if p.phase != v1alpha1.EtcdClusterPhaseStopped {
		p.message = "Stopping cluster: " + what
	}
}

// attempt asks for a snapshot at the revision that was just read.
func (p *planner) attempt() {
	stop := p.status.Stop
	from, ok := p.source()
	if !ok {
		return
	}
	stop.Step, stop.Revision = v1alpha1.EtcdSnapshotting, p.View.Revision
	if stop.Trial == "" {
		stop.CopyFailures = nil
	}
	stop.Trial = "" // the nodes that had no room are known to this attempt, and asked last
	for {
		stop.Attempt++
		stop.Snapshot = p.snapshotName(stop)
		if !slices.ContainsFunc(p.Snapshots, func(s *v1alpha1.EtcdSnapshot) bool { return s.Name == stop.Snapshot }) {
			break
		}
	}
	p.createSnapshot(stop, from)
}

func (p *planner) createSnapshot(stop *v1alpha1.EtcdStop, from memberView) {
	c := p.Cluster
	s := &v1alpha1.EtcdSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: stop.Snapshot,
			Labels: map[string]string{v1alpha1.EtcdClusterLabel: c.Name}, Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer},
		},
		Spec: v1alpha1.EtcdSnapshotSpec{
			Cluster: c.Name, ClusterUID: string(c.UID), Incarnation: p.status.Incarnation, Generation: stop.Generation, Member: from.Name, MemberNode: from.Spec.Node,
			Revision: stop.Revision, Dir: c.Spec.Snapshot.Dir, FormerMembers: p.infos(p.voters()),
		},
	}
	s.Spec.Nodes = p.copyTargets(s, []string{from.Spec.Node}, false)
	p.reportWaiting("taking snapshot " + stop.Snapshot)
	p.act(Action{Do: CreateSnapshot, Snapshot: s})
}

func (p *planner) snapshotName(stop *v1alpha1.EtcdStop) string {
	return SnapshotName(p.Cluster, fmt.Sprintf("%d-%d", stop.Generation, stop.Attempt))
}

// SnapshotName returns the name of a snapshot: the name of the cluster, the beginning of its UID, and what the snapshot is for.
func SnapshotName(c *v1alpha1.EtcdCluster, what string) string {
	uid := string(c.UID)
	return fmt.Sprintf("%s-%s-%s", c.Name, uid[:min(8, len(uid))], what)
}

// snapshot waits for the snapshot to be taken and verified.
func (p *planner) snapshot() {
	stop := p.status.Stop
	s := p.find(stop.Snapshot)
	if s == nil {
		p.keepSealed()
		// The status was written and the object was not created.
		if from, ok := p.source(); ok && p.View.Listed {
			if p.View.Revision != stop.Revision {
				p.attempt()
				return
			}
			p.createSnapshot(stop, from)
		}
		return
	}
	p.reportWaiting("taking snapshot " + s.Name + taken(s))
	p.snapFailed = p.lastFailure()
	taker := p.nodeOf(s.Spec.Member)
	switch {
	case s.Status.Facts != nil && s.Status.Facts.Revision == stop.Revision && len(s.Verified()) > 0:
		p.keepSealed()
		if !p.View.Listed {
			return
		}
		if p.View.Revision != stop.Revision {
			p.attempt() // the revision changed after the snapshot
			return
		}
		stop.Step, p.snapFailed = v1alpha1.EtcdCopying, ""
		p.copy()
	case s.Status.Facts != nil && s.Status.Facts.Revision != stop.Revision || s.Status.Error != "" || !s.DeletionTimestamp.IsZero():
		if p.moved() {
			p.keepSealed()
			p.attempt()
			return
		}
		p.pauseAfter(s)
	case !p.Live(taker):
		p.keepSealed()
		if p.View.Listed {
			p.attempt()
		}
	default:
		p.keepSealed()
	}
}

// moved returns whether the revision changed while the members are sealed, so that another snapshot is taken at once. Nobody can keep
// leases alive under the seal: they expire, and etcd deletes their keys. No new leases come, so that a later snapshot succeeds; with
// clients served in between it might never. In case something else writes, clients are served again after every sealedTries attempts.
func (p *planner) moved() bool {
	stop := p.status.Stop
	return p.View.Listed && p.View.Revision > stop.Revision && stop.Attempt%sealedTries != 0
}

// keepSealed asks for the seal again: the coordinator may have died after it wrote the status and before it wrote the members.
func (p *planner) keepSealed() {
	for _, m := range p.current {
		if m.voter() || !p.View.Listed {
			p.setDesired(m, v1alpha1.EtcdMemberSeal)
		}
	}
}

func retryAfter(attempt int64) time.Duration {
	return backoff.Policy{First: retryFirst, Longest: retryMost}.After(max(attempt, 1))
}

// copy waits until enough nodes have a verified copy.
func (p *planner) copy() {
	stop := p.status.Stop
	s := p.find(stop.Snapshot)
	if s == nil || !s.DeletionTimestamp.IsZero() {
		p.keepSealed()
		stop.Step = v1alpha1.EtcdSealing // somebody deleted it: begin again
		return
	}
	p.recordCopyFailures(s)
	good := p.goodCopies(s)
	need := p.copiesNeeded()
	if len(good) < need && p.phase != v1alpha1.EtcdClusterPhaseStopped && p.everyCopyFails(s) {
		p.pause("Every node that could keep a copy was tried: " + p.copyProgress(s) + ".")
		return
	}
	p.keepSealed()
	if len(good) < need {
		p.reportWaiting(fmt.Sprintf("%d of %d copies of snapshot %s are verified%s", len(good), need, s.Name, arriving(s)))
		if len(stop.CopyFailures) > 0 {
			p.snapFailed = "The copies are not complete: " + p.copyProgress(s) + ". Nothing was deleted."
		}
		return
	}
	p.release(&v1alpha1.EtcdStoppedState{Snapshot: s.Name, Revision: s.Status.Facts.Revision, Hash: s.Status.Facts.Hash})
	p.endMembers()
}

// recordCopyFailures remembers which nodes could not make a copy: one that is not asked any more forgets it.
func (p *planner) recordCopyFailures(s *v1alpha1.EtcdSnapshot) {
	stop := p.status.Stop
	for _, c := range s.Status.Copies {
		at := slices.IndexFunc(stop.CopyFailures, func(known v1alpha1.EtcdSnapshotCopy) bool { return known.Node == c.Node })
		switch {
		case (c.Verified != nil || c.Room != nil) && at >= 0:
			stop.CopyFailures = slices.Delete(stop.CopyFailures, at, at+1)
		case c.Verified == nil && c.Room == nil && c.Error != "" && at < 0:
			stop.CopyFailures = append(stop.CopyFailures, c)
		}
	}
}

// endMembers ends the members, with or without their data, and then the stop. A member that only has to stop has done so, too, if its node says that its
// data cannot be used: the next start reports that.
func (p *planner) endMembers() {
	stop := p.status.Stop
	want, reachedPhase := v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberDeleted
	if stop.OnStop == v1alpha1.EtcdRetain {
		want, reachedPhase = v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberStopped
	}
	p.reportWaiting("waiting for its processes to end" + p.troubleOf(append(p.pending(), p.current...)))
	unsafe := p.restUnavailable()
	done := true
	for _, m := range p.current {
		ended := m.is(reachedPhase) || want == v1alpha1.EtcdMemberStop && m.is(v1alpha1.EtcdMemberFailed)
		if m.Spec.Want == want && (ended || !p.Live(m.Spec.Node)) {
			continue
		}
		done = false
		if unsafe == "" {
			p.setDesired(m, want)
			continue
		}
		p.snapFailed = fmt.Sprintf("%s Until then the data of the members is kept. To go on without it, set the size of the cluster first (`%s`). %s",
			unsafe, startCommand(p.Cluster), p.restoreAdvice())
		p.reportWaiting("waiting for a node with a copy of its snapshot")
	}
	left := func(m memberView) bool { return p.Live(m.Spec.Node) && !p.isSetAside(m) }
	going := p.pending()
	if p.Cluster.Size() > 0 {
		going = slices.DeleteFunc(going, memberView.undeletable) // somebody wants it to start, and a disk that fails must not keep it from that
	}
	if !done || len(going) > 0 || !p.formerStopped() || slices.ContainsFunc(p.former, left) {
		return
	}
	p.endStop()
}

// troubleOf names the members whose nodes report an error now; empty if there is none.
func (p *planner) troubleOf(members []memberView) string {
	var list []string
	for _, m := range members {
		if m.trouble() != "" && p.Live(m.Spec.Node) {
			list = append(list, m.Name+" on "+m.Spec.Node+": "+m.trouble())
		}
	}
	return because(strings.Join(list, "; "))
}

// restUnavailable returns why the data of members must not be deleted though their keys are in a snapshot: no node that is there has it any more.
func (p *planner) restUnavailable() string {
	switch {
	case p.status.Stop.OnStop != v1alpha1.EtcdSnapshotThenDelete:
		return ""
	case p.status.Rest == nil:
		return "The status does not say which snapshot has the keys."
	}
	why, _ := p.lacks(p.status.Rest.Snapshot)
	return why
}

// evacuateRetainedData turns data that a stopped cluster retained on a draining node into a snapshot on other nodes.
func (p *planner) evacuateRetainedData() {
	rest := p.status.Rest
	switch {
	case rest == nil || rest.OnStop != v1alpha1.EtcdRetain:
	case p.drainWaits() && p.Cluster.Status.Phase == v1alpha1.EtcdClusterPhaseStopped: // the stage depends on the phase
		p.beginEvacuation()
	default:
		p.rest()
	}
}

// drainWaits returns whether a drain waits for the cluster to leave its node.
func (p *planner) drainWaits() bool {
	return p.Slot != nil && slices.ContainsFunc(p.current, func(m memberView) bool { return m.Spec.Node == p.Slot.Node })
}

// rest stops members that retain their data, and that an evacuation, a restore order or a person had woken. The phase is Stopped again only when no
// process is left; during an evacuation it stays Stopped, because its members serve nobody.
func (p *planner) rest() {
	for _, m := range p.current {
		if m.Spec.Begin == nil {
			continue
		}
		p.setDesired(m, v1alpha1.EtcdMemberStop)
		ended := m.Spec.Want == v1alpha1.EtcdMemberStop && (m.is(v1alpha1.EtcdMemberStopped) || m.is(v1alpha1.EtcdMemberFailed))
		if !ended && p.Live(m.Spec.Node) && p.Cluster.Status.Phase != v1alpha1.EtcdClusterPhaseStopped {
			p.reportStopping("Stopping cluster: waiting for its processes to end" + p.troubleOf(p.current))
		}
	}
}

// missesQuorum reports which nodes an evacuation needs: a snapshot can be taken only of a quorum.
func (p *planner) missesQuorum() {
	var absent []string
	for _, m := range p.current {
		if !p.Live(m.Spec.Node) {
			absent = append(absent, m.Spec.Node)
		}
	}
	if there := len(p.current) - len(absent); p.stage() == StageEvacuating && there < quorum(len(p.current)) {
		p.missing = fmt.Sprintf("It is stopped and retained its data, of which a snapshot can be taken only with %d of %d members; %d can run. Start %s, or cancel the drain.",
			quorum(len(p.current)), len(p.current), there, strings.Join(absent, " and "))
	}
}
