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

// The actions, by the names that tests know them under.
const (
	// CreateMember creates Action.Member.
	CreateMember Do = "create-member"
	// WishMember writes the spec of Action.Member.
	WishMember Do = "wish-member"
	// ReleaseMember lets the object Action.Member go: nothing of the member is left, or nobody is left to tell.
	ReleaseMember Do = "release-member"
	// AddLearner adds Action.Member to etcd's list, as a learner.
	AddLearner Do = "add-learner"
	// PromoteLearner makes Action.Member a voter.
	PromoteLearner Do = "promote-learner"
	// RemovePeer takes Action.Peer out of etcd's list.
	RemovePeer Do = "remove-peer"
	// MoveLeader hands leadership to Action.Peer.
	MoveLeader Do = "move-leader"
	// CreateSnapshot creates Action.Snapshot.
	CreateSnapshot Do = "create-snapshot"
	// PlaceSnapshot writes the spec and the finalizer of Action.Snapshot.
	PlaceSnapshot Do = "place-snapshot"
	// DeleteSnapshot asks for the deletion of Action.Snapshot.
	DeleteSnapshot Do = "delete-snapshot"
	// ReleaseSnapshot lets the object Action.Snapshot go: its copies are gone.
	ReleaseSnapshot Do = "release-snapshot"
	// HoldCluster writes the finalizer of the cluster.
	HoldCluster Do = "hold-cluster"
	// ReleaseCluster lets the cluster go.
	ReleaseCluster Do = "release-cluster"
)

// Action is one thing to do, after the status was written.
type Action struct {
	Do       Do
	Member   *v1alpha1.EtcdMember
	Snapshot *v1alpha1.EtcdSnapshot
	Peer     etcd.Peer
}

// Notice is an event to be told once.
type Notice struct {
	Warning     bool
	Reason, Key string
	Note        string
}

// Decision is what follows from a World: first the status is written, then the actions are taken in their order.
type Decision struct {
	Status  v1alpha1.EtcdClusterStatus
	Actions []Action
	Notices []Notice
	// Transitions of the cluster's stage that Status makes, in their order.
	Transitions []Transition
	// Changing: something is under way, so look at etcd again soon.
	Changing bool
}

// planner holds a decision while it is made.
type planner struct {
	World
	status v1alpha1.EtcdClusterStatus
	moves  []Transition
	acts   []Action
	events []Notice

	ours    []memberView // of this incarnation and meant to be there
	going   []memberView // told to delete their data
	old     []memberView // of a former incarnation and not told to go yet
	unknown []etcd.Peer  // that etcd lists and no object knows

	// what the conditions will say
	phase      v1alpha1.EtcdClusterPhase
	reason     string
	message    string
	changing   bool
	quorumLost string
	missing    string
	snapFailed string
}

// Plan decides what to do next about a cluster. It is level-triggered: what it decides depends on the world alone, and what it decided
// before and was not done is decided again.
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
	p.tidyMembers()
	p.tidySnapshots()
	p.fillStatus()
	return Decision{Status: p.status, Transitions: p.moves, Actions: p.acts, Notices: p.events, Changing: p.changing}
}

func newPlanner(w World) *planner {
	p := &planner{World: w, status: *w.Cluster.Status.DeepCopy()}
	p.sortMembers()
	return p
}

// sortMembers says of every member what it is to the present incarnation.
func (p *planner) sortMembers() {
	p.ours, p.going, p.old, p.unknown = nil, nil, nil, nil
	known := map[string]bool{}
	for _, m := range p.Members {
		j := p.join(m)
		known[m.Status.PeerURL] = true
		switch {
		case m.Spec.Want == v1alpha1.EtcdMemberDelete:
			p.going = append(p.going, j)
		case m.Spec.Incarnation < p.status.Incarnation:
			p.old = append(p.old, j)
		default:
			p.ours = append(p.ours, j)
		}
	}
	for _, list := range [][]memberView{p.ours, p.going, p.old} {
		slices.SortFunc(list, func(a, b memberView) int {
			return cmp.Or(numberOf(a.EtcdMember)-numberOf(b.EtcdMember), cmp.Compare(a.Name, b.Name))
		})
	}
	for _, peer := range p.View.Peers {
		if !known[peer.PeerURL] {
			p.unknown = append(p.unknown, peer)
		}
	}
}

// drive continues what is under way, or begins what the spec asks for.
func (p *planner) drive() {
	p.restoreIfAsked()
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
		p.change(size)
	case stage == StageStarting && size == 0:
		p.callOffStart()
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

// wish tells a member to be something else.
func (p *planner) wish(m memberView, want v1alpha1.EtcdMemberWish, change ...func(*v1alpha1.EtcdMemberSpec)) {
	next := m.DeepCopy()
	next.Spec.Want = want
	for _, c := range change {
		c(&next.Spec)
	}
	if next.Spec.Want == m.Spec.Want && next.Spec.DataRequired == m.Spec.DataRequired && (next.Spec.Begin == nil) == (m.Spec.Begin == nil) {
		return
	}
	p.act(Action{Do: WishMember, Member: next})
}

// create makes the object of a new member; its number is written down first.
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
			ClientTLS: orTrue(c.Spec.TLS.Client), PeerTLS: orTrue(c.Spec.TLS.Peer),
		},
	}
	if q := c.Spec.Storage.Quota; q != nil {
		m.Spec.QuotaBytes = q.Value()
	}
	p.act(Action{Do: CreateMember, Member: m})
}

func (p *planner) memberName(n int64) string { return fmt.Sprintf("%s-%d", p.Cluster.Name, n) }

// token sets an incarnation of a cluster apart from all others.
func (p *planner) token() string {
	return fmt.Sprintf("%s-%d", p.Cluster.UID, p.status.Incarnation)
}

func orTrue(b *bool) bool { return b == nil || *b }

// numberOf is the number at the end of a member's name.
func numberOf(m *v1alpha1.EtcdMember) int {
	n, err := strconv.Atoi(m.Name[strings.LastIndex(m.Name, "-")+1:])
	if err != nil {
		return 0
	}
	return n
}

// tidyMembers deletes what is left of members that are not wanted any more.
func (p *planner) tidyMembers() {
	var absent []v1alpha1.EtcdAbsentData
	for _, m := range p.going {
		switch {
		case m.is(v1alpha1.EtcdMemberDeleted) || p.Nodes[m.Spec.Node] == nil && !p.live(m.Spec.Node):
			p.act(Action{Do: ReleaseMember, Member: m.EtcdMember})
		case !p.live(m.Spec.Node):
			absent = append(absent, v1alpha1.EtcdAbsentData{Member: m.Name, Node: m.Spec.Node, Incarnation: m.Spec.Incarnation})
		default:
			p.changing = true
		}
	}
	p.status.AbsentData = absent
	for _, m := range p.old {
		if p.hasRun() || m.Spec.Begin == nil {
			p.wish(m, v1alpha1.EtcdMemberDelete)
		} else {
			// What the new incarnation begins from may turn out to be bad: nothing is deleted before it runs.
			p.wish(m, v1alpha1.EtcdMemberStop)
		}
	}
}

// pending are members that are going and whose nodes can still say so.
func (p *planner) pending() []memberView {
	return slices.DeleteFunc(slices.Clone(p.going), func(m memberView) bool {
		return m.is(v1alpha1.EtcdMemberDeleted) || !p.live(m.Spec.Node)
	})
}

// remove takes a cluster away with all it has: someone asked for exactly that.
func (p *planner) remove() {
	p.phase, p.reason, p.message = p.status.Phase, v1alpha1.ReasonEtcdStopping, "Deleting cluster"
	p.changing = true
	for _, m := range append(p.ours, p.old...) {
		p.wish(m, v1alpha1.EtcdMemberDelete)
	}
	p.ours, p.old = nil, nil
	left := false
	for _, m := range p.Members {
		left = left || m.Spec.Want != v1alpha1.EtcdMemberDelete || p.live(m.Spec.Node) && !reached(m, v1alpha1.EtcdMemberDeleted)
	}
	for _, s := range p.Snapshots {
		if s.DeletionTimestamp.IsZero() {
			p.act(Action{Do: DeleteSnapshot, Snapshot: s})
			left = true
		} else if !p.copiesGone(s) {
			left = true
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
