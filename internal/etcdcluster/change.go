package etcdcluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// change brings a running cluster to its size, one member at a time:
//
//	object, ports reserved ──▶ learner in etcd's list ──▶ runs ──▶ in sync: voter      (a member that comes)
//	leadership elsewhere ──▶ out of etcd's list ──▶ process ended, data deleted ──▶ object gone      (a member that goes)
//
// Whatever is under way is finished or undone before anything else is begun. A member that must leave is replaced first.
func (p *planner) change(size int) {
	if len(p.ours) == 0 {
		p.failNoMembers()
		return
	}
	p.phase = v1alpha1.EtcdClusterPhaseRunning
	p.reason, p.message = v1alpha1.ReasonEtcdRunning, v1alpha1.MessageEtcdRunning
	for _, m := range p.ours {
		if m.Spec.Want == v1alpha1.EtcdMemberSeal || m.Spec.Want == v1alpha1.EtcdMemberStop && m.Spec.Begin != nil {
			p.wish(m, v1alpha1.EtcdMemberRun) // a stop that was called off
		}
	}
	if !p.View.Listed {
		p.message, p.changing = "Waiting for a quorum of the members", true
		if len(p.ours) != size || len(p.pending()) > 0 {
			p.scaling("%s", p.message)
		}
		return
	}
	p.requireData()
	if p.dropUnknown() || p.finishChange(size) || p.beginChange(size) {
		return
	}
	if p.status.Starting != nil && p.readyVoters() < size {
		p.scaling("Waiting for every member to be healthy")
	}
}

// dropUnknown takes out of etcd's list whom no object knows: its object was taken away by force, nobody runs it any more.
func (p *planner) dropUnknown() bool {
	if len(p.unknown) == 0 {
		return false
	}
	u := p.unknown[0]
	p.scaling("Removing %s, of which there is no EtcdMember any more", cmp.Or(u.Name, etcd.HexID(u.ID)))
	switch {
	case u.Learner:
		p.act(Action{Do: RemovePeer, Peer: u})
	case p.readyVoters() >= quorum(p.votes()-1):
		p.act(Action{Do: RemovePeer, Peer: u})
	default:
		p.scaling("%s; removing %s, of which there is no EtcdMember any more, would lose quorum; bring %s back", p.arithmetic(), u.Name, p.unhealthyNames())
	}
	return true
}

// scaling says that something is under way.
func (p *planner) scaling(message string, args ...any) {
	p.phase, p.reason, p.message = v1alpha1.EtcdClusterPhaseScaling, v1alpha1.ReasonEtcdScaling, fmt.Sprintf(message, args...)
	p.changing = true
}

// failNoMembers reports that no member is left of a cluster that ran. The planner never starts a new cluster in its place.
func (p *planner) failNoMembers() {
	p.fail("No member of cluster " + p.status.ClusterID + " is left. " + p.restoreAdvice())
}

// restoreAdvice is what a person can do about lost data.
func (p *planner) restoreAdvice() string {
	if s := p.newest(); s != nil {
		return fmt.Sprintf("`ebb etcd restore %s --snapshot %s` begins again from the newest verified snapshot; keys written after it are lost.", p.called(), s.Name)
	}
	return fmt.Sprintf("There is no verified snapshot; `ebb etcd restore %s --snapshot none` begins empty.", p.called())
}

// called is the cluster on a command line.
func (p *planner) called() string {
	if p.Cluster.Namespace == "default" {
		return p.Cluster.Name
	}
	return p.Cluster.Name + " -n " + p.Cluster.Namespace
}

// requireData notes of every voter that has joined that it must never begin anew.
func (p *planner) requireData() {
	for _, m := range p.ours {
		if m.voter() && m.healthy() && m.is(v1alpha1.EtcdMemberRunning) && !m.Spec.DataRequired {
			next := m.DeepCopy()
			next.Spec.DataRequired = true
			p.acts = append(p.acts, Action{Do: WishMember, Member: next})
		}
	}
}

func (p *planner) voters() []memberView {
	return slices.DeleteFunc(slices.Clone(p.ours), func(m memberView) bool { return !m.voter() })
}

func (p *planner) readyVoters() int {
	n := 0
	for _, m := range p.voters() {
		if m.healthy() {
			n++
		}
	}
	return n
}

// votes counts etcd's voters, those that no object knows included.
func (p *planner) votes() int {
	n := 0
	for _, peer := range p.View.Peers {
		if !peer.Learner {
			n++
		}
	}
	return n
}

// finishChange goes on with the member that is on its way, and says whether there is one.
func (p *planner) finishChange(size int) bool {
	for _, m := range p.ours {
		if !m.voter() {
			p.finishMember(m, size)
			return true
		}
	}
	if going := p.pending(); len(going) > 0 {
		p.scaling("Member %s on %s is being deleted", going[0].Name, going[0].Spec.Node)
		return true
	}
	return false
}

// finishMember goes on with a member that is no voter yet, or not any more.
func (p *planner) finishMember(m memberView, size int) {
	good := len(slices.DeleteFunc(p.voters(), p.leaving))
	unwanted := good >= size && !p.spreads(m, size)
	misplaced := p.giving(m.Spec.Node) || !p.live(m.Spec.Node) || m.is(v1alpha1.EtcdMemberFailed)
	switch {
	case !m.learner() && m.Spec.Begin != nil:
		// It was in the list once: begin is written after it is. It is out of it for good.
		p.wish(m, v1alpha1.EtcdMemberDelete)
		p.scaling("Member %s on %s was removed; its data is being deleted", m.Name, m.Spec.Node)
	case unwanted || misplaced:
		p.undo(m)
	case !m.learner() && !m.is(v1alpha1.EtcdMemberReserved):
		p.scaling("Adding member %s: waiting for node %s to reserve its ports%s", m.Name, m.Spec.Node, because(m.Status.Error))
	case !m.learner():
		p.scaling("Adding member %s on %s as a learner", m.Name, m.Spec.Node)
		p.act(Action{Do: AddLearner, Member: m.EtcdMember})
	case m.Spec.Begin == nil:
		p.scaling("Adding member %s on %s: starting it", m.Name, m.Spec.Node)
		p.wish(m, v1alpha1.EtcdMemberRun, func(s *v1alpha1.EtcdMemberSpec) {
			s.Begin = &v1alpha1.EtcdBegin{InitialCluster: p.initialCluster(m), Existing: true, Token: p.token()}
		})
	case !m.healthy():
		p.scaling("Adding member %s on %s: waiting for it to answer%s", m.Name, m.Spec.Node, because(m.Status.Error))
	case p.readyVoters()+1 < quorum(p.votes()+1):
		p.scaling("Adding member %s on %s: %d of %d voters healthy; it is promoted when a quorum is", m.Name, m.Spec.Node, p.readyVoters(), p.votes())
	default:
		p.scaling("Adding member %s on %s: it becomes a voter when it is in sync", m.Name, m.Spec.Node)
		p.act(Action{Do: PromoteLearner, Member: m.EtcdMember, Peer: *m.peer})
	}
}

// spreads says whether a member is there to take the place of one that shares its node.
func (p *planner) spreads(m memberView, size int) bool {
	voters := p.voters()
	onNode, _ := p.crowds(voters)
	return len(voters) == size && onNode[m.Spec.Node] == 0 && slices.ContainsFunc(voters, func(v memberView) bool { return onNode[v.Spec.Node] > 1 })
}

// undo takes back a member that is no voter yet.
func (p *planner) undo(m memberView) {
	p.scaling("Member %s on %s is not needed any more", m.Name, m.Spec.Node)
	if m.learner() {
		p.act(Action{Do: RemovePeer, Peer: *m.peer})
		return
	}
	p.wish(m, v1alpha1.EtcdMemberDelete)
}

// initialCluster is every member as etcd takes it. Names of those that have not started yet are empty in etcd's list.
func (p *planner) initialCluster(joining memberView) string {
	var parts []string
	for _, peer := range p.View.Peers {
		name := peer.Name
		if peer.PeerURL == joining.Status.PeerURL {
			name = joining.Name
		}
		if name != "" {
			parts = append(parts, name+"="+peer.PeerURL)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// beginChange begins the next change of members, and says whether one is needed.
func (p *planner) beginChange(size int) bool {
	voters := p.voters()
	staying := slices.DeleteFunc(slices.Clone(voters), p.leaving)
	switch {
	case len(staying) < size:
		p.grow(staying, size)
	case p.votes() > size && len(voters) > 0:
		p.shrink(voters, size)
	case p.Slot == nil && p.readyVoters() == len(voters) && p.crowded(voters):
		p.grow(staying, size)
		p.message += ", so that no two share a node"
	default:
		return false
	}
	return true
}

// grow adds a member.
func (p *planner) grow(staying []memberView, size int) {
	if p.readyVoters() < quorum(p.votes()) {
		p.scaling("%s; no member is added before a quorum is", p.arithmetic())
		return
	}
	node, ok := p.place(staying, nil)
	if !ok {
		p.scaling("%d of %d members: no node may take another one; start or uncordon a node", len(staying), size)
		return
	}
	p.scaling("Adding a member on %s", node)
	p.create(node)
}

// shrink removes a member.
func (p *planner) shrink(voters []memberView, size int) {
	v := p.victim(voters)
	after := p.readyVoters()
	if v.healthy() {
		after--
	}
	switch {
	case after < quorum(p.votes()-1):
		p.scaling("%s; removing %s would lose quorum; start a node or bring %s back", p.arithmetic(), v.Name, p.unhealthyNames())
	case v.leads() && p.heir(v) != nil:
		p.scaling("Moving leadership from %s before it is removed", v.Name)
		p.act(Action{Do: MoveLeader, Peer: *p.heir(v).peer})
	default:
		p.scaling("Removing member %s on %s", v.Name, v.Spec.Node)
		p.act(Action{Do: RemovePeer, Peer: *v.peer})
	}
}

// heir is the voter that takes over leadership.
func (p *planner) heir(from memberView) *memberView {
	for _, m := range p.voters() {
		if m.Name != from.Name && m.healthy() && !p.leaving(m) {
			return &m
		}
	}
	return nil
}

// arithmetic is how many voters are healthy.
func (p *planner) arithmetic() string {
	return fmt.Sprintf("%d of %d voters healthy", p.readyVoters(), p.votes())
}

// unhealthyNames are the voters that do not answer.
func (p *planner) unhealthyNames() string {
	var names []string
	for _, m := range p.ours {
		if !m.healthy() && m.Status.ID != "" {
			names = append(names, m.Name)
		}
	}
	for _, u := range p.unknown {
		names = append(names, u.Name)
	}
	if len(names) == 0 {
		return "the others"
	}
	return strings.Join(names, " and ")
}

func because(err string) string {
	if err == "" {
		return ""
	}
	return " (" + err + ")"
}
