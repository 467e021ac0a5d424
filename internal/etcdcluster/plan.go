package etcdcluster

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// Do is one kind of action.
type Do string

// The actions. Logs and crash points name them so.
const (
	// CreateMember creates Action.Member.
	CreateMember Do = "create-member"
	// SetDesired writes the spec of Action.Member: what its node should do.
	SetDesired Do = "set-desired"
	// ReleaseMember deletes the object Action.Member: its node deleted the data, or the node is gone.
	ReleaseMember Do = "release-member"
	// AddLearner adds Action.Member to etcd's list, as a learner.
	AddLearner Do = "add-learner"
	// PromoteLearner makes Action.Member a voter.
	PromoteLearner Do = "promote-learner"
	// UpdatePeer gives a member in etcd's list the peer URL of Action.Peer.
	UpdatePeer Do = "update-peer"
	// RemovePeer removes Action.Peer from etcd's list.
	RemovePeer Do = "remove-peer"
	// MoveLeader transfers leadership to Action.Peer.
	MoveLeader Do = "move-leader"
	// DisarmNoSpace ends the alarm of Action.Peer that its database is full.
	DisarmNoSpace Do = "disarm-no-space"
	// CreateSnapshot creates Action.Snapshot.
	CreateSnapshot Do = "create-snapshot"
	// PlaceSnapshot writes the spec and the finalizer of Action.Snapshot.
	PlaceSnapshot Do = "place-snapshot"
	// DeleteSnapshot asks for the deletion of Action.Snapshot.
	DeleteSnapshot Do = "delete-snapshot"
	// ReleaseSnapshot removes the finalizer of Action.Snapshot: its copies are deleted.
	ReleaseSnapshot Do = "release-snapshot"
	// HoldCluster adds the finalizer of the cluster.
	HoldCluster Do = "hold-cluster"
	// ReleaseCluster removes the finalizer of the cluster.
	ReleaseCluster Do = "release-cluster"
)

// Action is one thing to do after the status was written.
type Action struct {
	Do       Do
	Member   *v1alpha1.EtcdMember
	Snapshot *v1alpha1.EtcdSnapshot
	Peer     etcd.Peer
}

// Notice is an event to emit once for each key.
type Notice struct {
	Warning     bool
	Reason, Key string
	Note        string
}

// Decision is what follows from a World. The controller first writes the status, then takes the actions in their order.
type Decision struct {
	Status  v1alpha1.EtcdClusterStatus
	Actions []Action
	Notices []Notice
	// Transitions of the cluster's stage that Status makes, in their order.
	Transitions []Transition
	// Changing: something is under way, so look at etcd again soon.
	Changing bool
}

// planner is the state of one Plan.
type planner struct {
	World
	status v1alpha1.EtcdClusterStatus
	moves  []Transition
	acts   []Action
	events []Notice

	current      []memberView // of the present incarnation, and not to be deleted
	deleting     []memberView // their nodes should delete their data
	former       []memberView // of a former incarnation, and not to be deleted yet
	unknownPeers []etcd.Peer  // listed by etcd, and no EtcdMember has their peer URL, or it is to be deleted

	// What the conditions will report.
	phase      v1alpha1.EtcdClusterPhase
	reason     string
	message    string
	stuck      string // what a change waits for
	changing   bool
	quorumLost string
	missing    string
	snapFailed string
	restoring  bool // this plan begins a restore
}

// Plan decides what to do next about a cluster. It is level-triggered: the decision depends on the world alone, and what was decided
// before and not done is decided again. It changes nothing in the world.
func Plan(w World) Decision {
	p := newPlanner(w)
	switch p.stage() {
	case StageDeleting:
		p.remove()
	case StageNew:
		p.act(Action{Do: HoldCluster})
		return Decision{Status: w.Cluster.Status, Actions: p.acts, Changing: true}
	default:
		p.drive()
	}
	p.releaseMembers()
	p.keepSnapshots()
	p.fillStatus()
	return Decision{Status: p.status, Transitions: p.moves, Actions: p.acts, Notices: p.events, Changing: p.changing}
}

func newPlanner(w World) *planner {
	p := &planner{World: w, status: *w.Cluster.Status.DeepCopy()}
	p.correctTimes()
	p.trackRestoreFrom()
	p.sortMembers()
	return p
}

// correctTimes brings times back that a coordinator wrote whose clock was ahead of this one's: what they limit must not last longer for that.
func (p *planner) correctTimes() {
	past := func(t *metav1.MicroTime) *metav1.MicroTime {
		if t != nil && t.After(p.Now) {
			return micro(p.Now)
		}
		return t
	}
	if stop := p.status.Stop; stop != nil {
		stop.SealedSince = past(stop.SealedSince)
		if most := p.Now.Add(pauseOf(stop.Attempt)); stop.PausedUntil != nil && stop.PausedUntil.After(most) {
			stop.PausedUntil = micro(most)
		}
	}
	for i := range p.status.Failing {
		f := &p.status.Failing[i]
		f.Since, f.HealthySince = *past(&f.Since), past(f.HealthySince)
	}
	for i := range p.status.Avoid {
		if most := p.Now.Add(avoidFor * p.failedAfter()); p.status.Avoid[i].Until.After(most) {
			p.status.Avoid[i].Until = metav1.NewTime(most)
		}
	}
}

// trackRestoreFrom keeps which spec.restoreFrom a start has obeyed. A former version kept no record and obeyed it at every start: what a cluster
// has that is not stopped when this version first sees it counts as obeyed, or its next start would go back to that.
func (p *planner) trackRestoreFrom() {
	from := p.Cluster.Spec.RestoreFrom
	stage := p.stage()
	if stopped := stage == StageStopped || stage == StageEvacuating; !p.status.RestoreFromTracked && !stopped {
		p.status.ObservedRestoreFrom = from
	}
	p.status.RestoreFromTracked = true
	if from == "" {
		p.status.ObservedRestoreFrom = "" // set again, it is obeyed again
	}
}

// sortMembers sorts members by what they are to the present incarnation.
func (p *planner) sortMembers() {
	p.current, p.deleting, p.former, p.unknownPeers = nil, nil, nil, nil
	known := map[uint64]bool{}
	for _, m := range p.Members {
		j := p.join(m)
		if j.peer != nil && m.Spec.Want != v1alpha1.EtcdMemberDelete {
			known[j.peer.ID] = true
		}
		switch {
		case m.Spec.Want == v1alpha1.EtcdMemberDelete:
			p.deleting = append(p.deleting, j)
		case m.Spec.Incarnation < p.status.Incarnation || p.isSetAside(j):
			p.former = append(p.former, j)
		default:
			p.current = append(p.current, j)
		}
	}
	for _, list := range [][]memberView{p.current, p.deleting, p.former} {
		slices.SortFunc(list, func(a, b memberView) int {
			return cmp.Or(numberOf(a.EtcdMember)-numberOf(b.EtcdMember), cmp.Compare(a.Name, b.Name))
		})
	}
	for _, peer := range p.View.Peers {
		if !known[peer.ID] {
			p.unknownPeers = append(p.unknownPeers, peer)
		}
	}
}

// drive continues what is under way, or begins what the spec asks for.
func (p *planner) drive() {
	if p.followOrder() {
		return
	}
	size := p.Cluster.Size()
	switch stage := p.stage(); {
	case stage == StageReleasing:
		p.reportStopping("Stopping cluster")
		p.endMembers()
	case stage == StageStopping || stage == StageEvacuating:
		p.reportStopping("Stopping cluster")
		p.continueStop(stage, size)
	case stage == StageRunning && size == 0:
		p.stop()
	case stage == StageRunning:
		p.adjustMembers(size)
	case stage == StageStarting && size == 0:
		p.cancelStart()
	case stage == StageStarting:
		p.continueStart()
	case size == 0:
		p.reportStopped()
		p.evacuateRetainedData()
	default:
		p.start()
	}
}

func (p *planner) act(a Action) {
	p.acts = append(p.acts, a)
	p.changing = true
}

// setDesired writes what a member's node should do, if that changes.
func (p *planner) setDesired(m memberView, want v1alpha1.EtcdMemberWish, change ...func(*v1alpha1.EtcdMemberSpec)) {
	next := m.DeepCopy()
	next.Spec.Want, next.Spec.ReportLog = want, false
	for _, c := range change {
		c(&next.Spec)
	}
	if next.Spec.Want == m.Spec.Want && next.Spec.ReportLog == m.Spec.ReportLog && next.Spec.DataRequired == m.Spec.DataRequired && next.Spec.QuotaBytes == m.Spec.QuotaBytes && next.Spec.PeerURL == m.Spec.PeerURL && (next.Spec.Begin == nil) == (m.Spec.Begin == nil) {
		return
	}
	p.act(Action{Do: SetDesired, Member: next})
}

// wake lets a member run and serve clients. One without a process whose node gives its work away is sealed first: a draining node admits members that it
// kept stopped only so, and the cluster may have no quorum without it.
func (p *planner) wake(m memberView, change ...func(*v1alpha1.EtcdMemberSpec)) {
	want := v1alpha1.EtcdMemberRun
	if p.Leaving(m.Spec.Node) && m.Status.Phase != v1alpha1.EtcdMemberRunning && m.Status.Phase != v1alpha1.EtcdMemberSealed {
		want = v1alpha1.EtcdMemberSeal
	}
	p.setDesired(m, want, change...)
}

// create creates the object of a new member. The status records its number first, so that no number is used twice.
func (p *planner) create(node string) {
	taken := map[string]bool{}
	for _, m := range p.Members {
		taken[m.Name] = true
	}
	n := max(p.status.NextMember, 1)
	for taken[p.memberName(n)] || p.Taken[p.memberName(n)] {
		n++
	}
	p.status.NextMember = n + 1
	c := p.Cluster
	m := &v1alpha1.EtcdMember{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: p.memberName(n),
			Labels: map[string]string{v1alpha1.EtcdClusterLabel: c.Name}, Finalizers: []string{v1alpha1.EtcdMemberFinalizer},
		},
		Spec: v1alpha1.EtcdMemberSpec{
			Cluster: c.Name, ClusterUID: string(c.UID), Incarnation: p.status.Incarnation, Node: node, Want: v1alpha1.EtcdMemberReserve,
			Dir: c.Spec.Storage.Dir, SnapshotDir: c.Spec.Snapshot.Dir, Options: c.Spec.Etcd,
			ClientTLS: orTrue(c.Spec.TLS.Client), PeerTLS: p.peerTLS(),
		},
	}
	m.Spec.QuotaBytes = p.quotaBytes()
	p.act(Action{Do: CreateMember, Member: m})
}

func (p *planner) memberName(n int64) string { return fmt.Sprintf("%s-%d", p.Cluster.Name, n) }

// token is different for every incarnation of every cluster, so that members of two of them never join each other.
func (p *planner) token() string {
	return fmt.Sprintf("%s-%d", p.Cluster.UID, p.status.Incarnation)
}

func orTrue(b *bool) bool { return b == nil || *b }

// peerTLS returns whether a new member and the others show each other certificates. Members that do and members that do not cannot reach each other, so
// that a changed spec takes effect with the next incarnation.
func (p *planner) peerTLS() bool {
	if begun := p.begun(); len(begun) > 0 {
		return begun[0].Spec.PeerTLS
	}
	return orTrue(p.Cluster.Spec.TLS.Peer)
}

// numberOf returns the number at the end of a member's name.
func numberOf(m *v1alpha1.EtcdMember) int {
	n, err := strconv.Atoi(m.Name[strings.LastIndex(m.Name, "-")+1:])
	if err != nil {
		return 0
	}
	return n
}

// releaseMembers deletes the objects of members whose data is deleted, lists the data that absent nodes still have, and ends members
// of former incarnations.
func (p *planner) releaseMembers() {
	var absent []v1alpha1.EtcdAbsentData
	for _, m := range p.deleting {
		switch {
		case m.is(v1alpha1.EtcdMemberDeleted) || p.Nodes[m.Spec.Node] == nil && !p.Live(m.Spec.Node):
			p.act(Action{Do: ReleaseMember, Member: m.EtcdMember})
		case !p.Live(m.Spec.Node):
			absent = append(absent, v1alpha1.EtcdAbsentData{Member: m.Name, Node: m.Spec.Node, Incarnation: m.Spec.Incarnation})
		default:
			p.changing = true
		}
	}
	p.status.AbsentData = absent
	p.forgetDiscarded()
	for _, m := range p.former {
		if (p.hasRun() || m.Spec.Begin == nil) && !p.isSetAside(m) {
			p.setDesired(m, v1alpha1.EtcdMemberDelete)
		} else {
			// The new incarnation may fail to start from its snapshot: the old data is deleted only once it runs, and what is set aside never is.
			p.setDesired(m, v1alpha1.EtcdMemberStop)
		}
	}
}

// pending returns the members that their nodes are deleting. One that never began has no process and no data, and nobody waits for it: the disk on
// which its ports could not be reserved may not let the node delete anything either.
func (p *planner) pending() []memberView {
	return slices.DeleteFunc(slices.Clone(p.deleting), func(m memberView) bool {
		return m.is(v1alpha1.EtcdMemberDeleted) || !p.Live(m.Spec.Node) || m.Spec.Begin == nil
	})
}

// remove deletes a cluster with its data and its snapshots, because somebody deleted the object.
func (p *planner) remove() {
	p.phase, p.reason, p.message = p.status.Phase, v1alpha1.ReasonEtcdStopping, "Deleting cluster"
	p.changing = true
	for _, m := range append(p.current, p.former...) {
		p.setDesired(m, v1alpha1.EtcdMemberDelete)
	}
	p.message += p.troubleOf(append(p.deleting, append(p.current, p.former...)...))
	p.current, p.former = nil, nil
	left := false
	for _, m := range p.Members {
		left = left || m.Spec.Want != v1alpha1.EtcdMemberDelete || p.Live(m.Spec.Node) && !reached(m, v1alpha1.EtcdMemberDeleted)
	}
	for _, s := range p.Snapshots {
		if s.DeletionTimestamp.IsZero() {
			p.act(Action{Do: DeleteSnapshot, Snapshot: s})
			left = true
		} else if !p.copiesGone(s) {
			left = true
			p.message += because(copyErrors(s.Status.Copies))
		}
	}
	if !left {
		p.act(Action{Do: ReleaseCluster})
	}
}

func micro(t time.Time) *metav1.MicroTime {
	m := metav1.NewMicroTime(t)
	return &m
}
