package etcdcluster

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
)

// A stop goes through these steps, each written down before it takes effect:
//
//	Sealing ──▶ Snapshotting ──▶ Copying ──▶ Released ──▶ phase Stopped
//	   │             all sealed, revision known     verified, on enough nodes
//	   └──────────────────────── Retain, Delete ──────▶ Released
//
// Until Released a change of mind unseals the members. From Released on their data may be deleted, and a change of mind starts again
// from what was kept.

const (
	// retryFirst and retryMost bound the pause before a snapshot that failed is taken again.
	retryFirst = 2 * time.Second
	retryMost  = 30 * time.Second
	// sealedTries is how many snapshots are taken in a row while the revision moves under the seal.
	sealedTries = 30
)

// beStopped stops the cluster, or keeps it stopped.
func (p *planner) beStopped() {
	switch {
	case p.established():
		p.beginStop()
	case p.status.Starting != nil:
		if p.establish() {
			p.beginStop() // it ran already: somebody may have written
			return
		}
		p.abortStart()
	default:
		p.rested()
		p.rescue()
	}
}

// rested says that nothing runs.
func (p *planner) rested() {
	p.phase, p.reason, p.message = v1alpha1.EtcdClusterPhaseStopped, v1alpha1.ReasonEtcdStopped, v1alpha1.MessageEtcdStopped
	p.quorumLost = ""
}

// beginStop writes down that the cluster stops, once nothing else is under way and a quorum can take part.
func (p *planner) beginStop() {
	onStop := p.Cluster.Spec.Storage.OnStop
	if onStop == "" {
		onStop = v1alpha1.EtcdSnapshotThenDelete
	}
	p.stopping("Stopping cluster")
	if onStop != v1alpha1.EtcdDelete {
		if p.nothingLeft() {
			return
		}
		if !p.View.Listed || p.readyVoters() < quorum(p.votes()) {
			p.message = "The stop waits for a quorum: what is kept must have every key"
			return
		}
		for _, m := range p.ours {
			if !m.voter() {
				p.finishMember(m, 0) // undone, or out already
				p.reason = v1alpha1.ReasonEtcdStopping
				return
			}
		}
	}
	p.status.Stop = &v1alpha1.EtcdStop{Generation: p.Cluster.Generation, OnStop: onStop, Step: v1alpha1.EtcdSealing, Began: *micro(p.Now)}
	p.status.Starting = nil
	if onStop == v1alpha1.EtcdDelete {
		p.release(&v1alpha1.EtcdRest{})
	}
}

// stopping says that the cluster is being stopped. One that is stopped, and of which only the data moves, stays Stopped.
func (p *planner) stopping(message string) {
	p.scaling("%s", message)
	p.reason = v1alpha1.ReasonEtcdStopping
	if p.Cluster.Status.Phase == v1alpha1.EtcdClusterPhaseStopped {
		p.rested()
		p.changing = true
	}
}

// goOnStopping takes the stop one step further.
func (p *planner) goOnStopping(size int) {
	stop := p.status.Stop
	p.stopping("Stopping cluster")
	if stop.Step == v1alpha1.EtcdReleased {
		p.end()
		return
	}
	rescue := p.Cluster.Status.Phase == v1alpha1.EtcdClusterPhaseStopped
	switch {
	case size > 0:
		p.status.Stop = nil // a change of mind
		if rescue {
			p.start()
		} else {
			p.change(size)
		}
		return
	case !rescue && p.Cluster.Spec.Storage.OnStop != stop.OnStop && p.Cluster.Spec.Storage.OnStop != "":
		p.status.Stop = nil
		p.beginStop()
		return
	}
	switch stop.Step {
	case v1alpha1.EtcdSealing:
		p.seal()
	case v1alpha1.EtcdSnapshotting:
		p.snapshot()
	case v1alpha1.EtcdCopying:
		p.copy()
	}
}

// seal waits until no client is served any more, and reads how far the cluster had come then.
func (p *planner) seal() {
	if p.pausing() {
		return
	}
	p.say("no client is served any more")
	all := true
	for _, m := range p.ours {
		if m.peer == nil && p.View.Listed {
			p.wish(m, v1alpha1.EtcdMemberDelete) // taken out below, or before
			continue
		}
		p.wish(m, v1alpha1.EtcdMemberSeal, func(s *v1alpha1.EtcdMemberSpec) { s.DataRequired = true })
		all = all && m.is(v1alpha1.EtcdMemberSealed)
	}
	if !p.View.Listed {
		return
	}
	for _, m := range p.voters() {
		if p.live(m.Spec.Node) && !m.is(v1alpha1.EtcdMemberFailed) {
			continue
		}
		// It might come back and pass on what clients write. Out of the list it cannot.
		if p.readyVoters() < quorum(p.votes()-1) {
			p.say(fmt.Sprintf("%s; %s cannot be told to serve no client, and removing it would lose quorum; bring it back", p.arithmetic(), m.Name))
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
		p.release(&v1alpha1.EtcdRest{Revision: p.View.Revision, Hash: p.View.Hash})
		return
	}
	p.attempt()
}

// pausing says whether the last snapshot failed a moment ago. Until the next is tried, clients are served.
func (p *planner) pausing() bool {
	stop := p.status.Stop
	failed := p.find(stop.Snapshot)
	if failed == nil || p.Now.Sub(failed.CreationTimestamp.Time) >= retryAfter(stop.Attempt) {
		p.snapFailed = p.lastFailure()
		return false
	}
	p.failed(failed)
	p.say("waiting to take another snapshot; clients are served meanwhile")
	for _, m := range p.ours {
		if m.voter() {
			p.unseal(m)
		}
	}
	return true
}

// unseal lets a member serve clients again.
func (p *planner) unseal(m memberView) {
	if m.Spec.Want == v1alpha1.EtcdMemberSeal && p.Cluster.Status.Phase == v1alpha1.EtcdClusterPhaseStopped {
		return // woken for its data only
	}
	p.wish(m, v1alpha1.EtcdMemberRun)
}

// failed says that a snapshot could not be taken.
func (p *planner) failed(s *v1alpha1.EtcdSnapshot) {
	why := s.Status.Error
	if why == "" && s.Status.Facts != nil {
		why = fmt.Sprintf("it is at revision %d, not %d", s.Status.Facts.Revision, s.Spec.Revision)
	}
	p.snapFailed = fmt.Sprintf("Snapshot %s could not be taken%s. Nothing was deleted; it is tried again.", s.Name, because(why))
}

// lastFailure is what was said of the last snapshot, until one is taken.
func (p *planner) lastFailure() string {
	if c := meta.FindStatusCondition(p.Cluster.Status.Conditions, v1alpha1.EtcdSnapshotFailed); c != nil {
		return c.Message
	}
	return ""
}

// say tells what the stop waits for, unless the cluster counts as stopped already.
func (p *planner) say(what string) {
	if p.phase != v1alpha1.EtcdClusterPhaseStopped {
		p.message = "Stopping cluster: " + what
	}
}

// attempt takes a snapshot.
func (p *planner) attempt() {
	stop := p.status.Stop
	from, ok := p.source()
	if !ok {
		return
	}
	stop.Step, stop.Revision = v1alpha1.EtcdSnapshotting, p.View.Revision
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
			Cluster: c.Name, ClusterUID: string(c.UID), Incarnation: p.status.Incarnation, Generation: stop.Generation, Member: from.Name,
			Revision: stop.Revision, Dir: c.Spec.Snapshot.Dir, FormerMembers: p.infos(p.voters()),
		},
	}
	s.Spec.Nodes = p.copyTargets(s, []string{from.Spec.Node}, false)
	p.say("taking snapshot " + stop.Snapshot)
	p.act(Action{Do: CreateSnapshot, Snapshot: s})
}

func (p *planner) snapshotName(stop *v1alpha1.EtcdStop) string {
	return SnapshotName(p.Cluster, fmt.Sprintf("%d-%d", stop.Generation, stop.Attempt))
}

// SnapshotName is the name of a snapshot of a cluster: that of the cluster, enough of its UID, and what it was taken for.
func SnapshotName(c *v1alpha1.EtcdCluster, what string) string {
	uid := string(c.UID)
	return fmt.Sprintf("%s-%s-%s", c.Name, uid[:min(8, len(uid))], what)
}

// source is the member from which a snapshot is taken: one that answers, that which told the revision if it may keep the copy.
func (p *planner) source() (memberView, bool) {
	var best *memberView
	for _, m := range p.voters() {
		if !m.healthy() || !p.live(m.Spec.Node) {
			continue
		}
		score := func(m memberView) int {
			n := 0
			if !p.giving(m.Spec.Node) {
				n += 4
			}
			if m.Name == p.View.Via {
				n += 2
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

// snapshot waits for the snapshot to be taken and verified.
func (p *planner) snapshot() {
	stop := p.status.Stop
	s := p.find(stop.Snapshot)
	if s == nil {
		p.keepSealed()
		// The intent was written and the object was not.
		if from, ok := p.source(); ok && p.View.Listed {
			if p.View.Revision != stop.Revision {
				p.attempt()
				return
			}
			p.createSnapshot(stop, from)
		}
		return
	}
	p.say("taking snapshot " + s.Name)
	p.snapFailed = p.lastFailure()
	taker := p.nodeOf(s.Spec.Member)
	switch {
	case s.Status.Facts != nil && s.Status.Facts.Revision == stop.Revision && len(s.Verified()) > 0:
		p.keepSealed()
		if !p.View.Listed {
			return
		}
		if p.View.Revision != stop.Revision {
			p.attempt() // something was written after all
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
		p.failed(s)
		stop.Step = v1alpha1.EtcdSealing
		p.pausing()
	case !p.live(taker):
		p.keepSealed()
		if p.View.Listed {
			p.attempt()
		}
	default:
		p.keepSealed()
	}
}

// moved says whether the revision moved though no client is served. Leases that nobody may keep alive end, and etcd deletes their keys.
// No new ones come while the seal lasts, so that another snapshot taken at once succeeds in the end; unsealed in between it might
// never. Should something else write, clients are served now and then.
func (p *planner) moved() bool {
	stop := p.status.Stop
	return p.View.Listed && p.View.Revision > stop.Revision && stop.Attempt%sealedTries != 0
}

// keepSealed repeats what sealing asked for: a status may have been written and the wish not.
func (p *planner) keepSealed() {
	for _, m := range p.ours {
		if m.voter() || !p.View.Listed {
			p.wish(m, v1alpha1.EtcdMemberSeal)
		}
	}
}

func retryAfter(attempt int64) time.Duration {
	return backoff.Policy{First: retryFirst, Longest: retryMost}.After(max(attempt, 1))
}

// copy waits until enough nodes have a verified copy.
func (p *planner) copy() {
	stop := p.status.Stop
	p.keepSealed()
	s := p.find(stop.Snapshot)
	if s == nil || !s.DeletionTimestamp.IsZero() {
		stop.Step = v1alpha1.EtcdSealing // it was taken away: begin again
		return
	}
	good := p.goodCopies(s)
	need := p.copiesNeeded()
	if len(good) < need {
		p.say(fmt.Sprintf("%d of %d copies of snapshot %s are verified", len(good), need, s.Name))
		if errs := copyErrors(s); errs != "" {
			p.snapFailed = fmt.Sprintf("Snapshot %s is on %d of %d nodes (%s). Nothing was deleted.", s.Name, len(good), need, errs)
		}
		return
	}
	p.release(&v1alpha1.EtcdRest{Snapshot: s.Name, Revision: s.Status.Facts.Revision, Hash: s.Status.Facts.Hash})
}

// release writes down what the next start begins from. From now on the members' data may be deleted.
func (p *planner) release(rest *v1alpha1.EtcdRest) {
	stop := p.status.Stop
	stop.Step = v1alpha1.EtcdReleased
	rest.OnStop = stop.OnStop
	rest.Members = p.infos(p.voters())
	if former := p.status.Rest; former != nil {
		rest.Size, rest.Stopped = former.Size, former.Stopped
		if len(rest.Members) == 0 {
			rest.Members = former.Members
		}
	} else {
		rest.Size = int32(len(rest.Members))
	}
	p.status.Rest = rest
	p.end()
}

// end stops and deletes the members, as the stop was meant, and says when nothing is left.
func (p *planner) end() {
	stop := p.status.Stop
	want, reachedPhase := v1alpha1.EtcdMemberDelete, v1alpha1.EtcdMemberDeleted
	if stop.OnStop == v1alpha1.EtcdRetain {
		want, reachedPhase = v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberStopped
	}
	p.say("ending its processes")
	done := true
	for _, m := range p.ours {
		if m.Spec.Want == want && (m.is(reachedPhase) || !p.live(m.Spec.Node)) {
			continue
		}
		p.wish(m, want)
		done = false
	}
	if !done || len(p.pending()) > 0 || slices.ContainsFunc(p.old, func(m memberView) bool { return p.live(m.Spec.Node) }) {
		return
	}
	took := metav1.Duration{Duration: p.Now.Sub(stop.Began.Time).Round(time.Millisecond)}
	if p.status.Rest.Stopped == nil {
		p.status.Rest.Stopped = newTime(p.Now)
		p.status.LastStop = &took
	}
	if stop.OnStop == v1alpha1.EtcdDelete {
		p.status.ClusterID = "" // someone asked that nothing be kept
	}
	p.status.Stop = nil
	p.rested()
}

// rescue turns data that a stopped cluster kept on a draining node into a snapshot elsewhere: the members are woken without serving
// anybody.
func (p *planner) rescue() {
	rest := p.status.Rest
	if rest == nil || rest.OnStop != v1alpha1.EtcdRetain || p.Slot == nil || !slices.ContainsFunc(p.ours, func(m memberView) bool { return m.Spec.Node == p.Slot.Node }) {
		return
	}
	p.status.Stop = &v1alpha1.EtcdStop{
		Generation: p.Cluster.Generation, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing, Began: *micro(p.Now),
	}
	p.changing = true
}
