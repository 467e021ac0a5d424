package etcdcluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
	"github.com/ebb-dev/ebb/internal/kind"
)

// adjustMembers brings a running cluster to its size, one member at a time:
//
//	object, ports reserved ──▶ learner in etcd's list ──▶ runs ──▶ in sync: voter      (a member is added)
//	leadership elsewhere ──▶ out of etcd's list ──▶ process ended, data deleted ──▶ object gone      (a member is removed)
//
// A change that is under way is finished or undone before another one begins. A member that must leave is replaced first.
func (p *planner) adjustMembers(size int) {
	if len(p.current) == 0 {
		p.failNoMembers()
		return
	}
	p.phase = v1alpha1.EtcdClusterPhaseRunning
	p.reason, p.message = v1alpha1.ReasonEtcdRunning, v1alpha1.MessageEtcdRunning
	for _, m := range p.current {
		if m.Spec.Begin != nil {
			p.wake(m) // a stop was canceled, or somebody else wrote to the object
		}
	}
	if !p.View.Listed {
		p.message, p.changing = "Waiting for a quorum of the members"+because(p.View.Error), true
		p.stuck = p.message
		if len(p.current) != size || len(p.pending()) > 0 {
			p.reportScaling("%s", p.message)
		}
		return
	}
	p.requireData()
	p.recordFailures()
	if p.dropUnknown() || p.relistMoved() || p.finishChange(size) || p.beginChange(size) || p.applyQuota() {
		return
	}
	p.disarm()
	if left := p.pending(); len(left) > 0 {
		p.reportDeleting(left[0]) // its node cannot delete the data; no other change waits for that
	}
	if p.status.Starting != nil && p.readyVoters() < size {
		p.reportScaling("Waiting for every member to be healthy")
	}
}

// relists returns whether the member stays although its node has another address: etcd's list gets the new address.
func (w World) relists(m memberView) bool {
	return m.Status.Moved != nil && m.peer != nil && m.Status.ID != "" && !w.addressTaken(m)
}

// addressTaken returns whether etcd's list has another member where this one would be listed. etcd refuses the same peer URL twice.
func (w World) addressTaken(m memberView) bool {
	if m.peer == nil || m.Status.ID == "" {
		return false
	}
	return slices.ContainsFunc(w.View.Peers, func(other etcd.Peer) bool { return other.ID != m.peer.ID && other.PeerURL == m.address() })
}

// relistMoved keeps members whose node got another address, and returns whether there is one. First etcd's list gets the new address, which
// takes a quorum of the members; then spec.peerURL lets the node start the member there. A node that got its former address back before that
// runs its member there again, and the list follows. Before the list changes, spec.peerURL is taken back if the member has not moved there:
// otherwise the node would start it there later, where the list does not have it.
func (p *planner) relistMoved() bool {
	for _, m := range p.current {
		moved := p.relists(m) || m.peer != nil && m.Status.ID != "" && m.is(v1alpha1.EtcdMemberRunning)
		listed := m.peer != nil && m.peer.PeerURL == m.address()
		unused := m.Spec.PeerURL != "" && m.Spec.PeerURL != m.Status.PeerURL && (m.Status.Moved == nil || !listed)
		switch {
		case !moved || p.addressTaken(m) || p.Leaving(m.Spec.Node) || !p.Live(m.Spec.Node):
		case unused:
			p.reportScaling("Member %s on %s did not move to %s: keeping it from starting there", m.Name, m.Spec.Node, m.Spec.PeerURL)
			p.setDesired(m, m.Spec.Want, func(s *v1alpha1.EtcdMemberSpec) { s.PeerURL = m.Status.PeerURL })
			return true
		case !listed:
			p.reportScaling("Member %s on %s has another address: changing it from %s to %s in etcd's list%s", m.Name, m.Spec.Node, m.peer.PeerURL, m.address(), because(p.Failed[UpdatePeer]))
			p.act(Action{Do: UpdatePeer, Member: m.EtcdMember, Peer: etcd.Peer{ID: m.peer.ID, Name: m.Name, PeerURL: m.address(), Learner: m.peer.Learner}})
			return true
		case m.Status.Moved != nil && m.Spec.PeerURL != m.address():
			p.reportScaling("Member %s on %s has another address: starting it at %s", m.Name, m.Spec.Node, m.address())
			p.setDesired(m, m.Spec.Want, func(s *v1alpha1.EtcdMemberSpec) { s.PeerURL = m.address() })
			return true
		}
	}
	return false
}

// dropUnknown removes a peer that has no EtcdMember from etcd's list, or one that is to be deleted, and returns whether there is one. Somebody deleted
// its object by force, or ordered the deletion of its data, so no node runs it. As long as it is listed it counts for the quorum.
func (p *planner) dropUnknown() bool {
	if len(p.unknownPeers) == 0 {
		return false
	}
	u := p.unknownPeers[0]
	name, why := cmp.Or(u.Name, etcd.HexID(u.ID)), "which has no EtcdMember"
	if slices.ContainsFunc(p.deleting, func(m memberView) bool { return m.peer != nil && m.peer.ID == u.ID }) {
		why = "whose data is deleted"
	}
	p.reportScaling("Removing %s, %s", name, why)
	switch {
	case u.Learner:
		p.act(Action{Do: RemovePeer, Peer: u})
	case p.readyVoters() >= quorum(p.votes()-1):
		p.act(Action{Do: RemovePeer, Peer: u})
	default:
		p.reportScaling("%s; removing %s, %s, would lose quorum; bring %s back", p.healthyVoters(), name, why, p.unhealthyNames())
	}
	return true
}

// reportScaling reports a change of members that is under way.
func (p *planner) reportScaling(message string, args ...any) {
	p.phase, p.reason, p.message = v1alpha1.EtcdClusterPhaseScaling, v1alpha1.ReasonEtcdScaling, fmt.Sprintf(message, args...)
	p.changing = true
}

// reportStuck reports what a change waits for. A start adds it to its own message.
func (p *planner) reportStuck(message string, args ...any) {
	p.reportScaling(message, args...)
	p.stuck = p.message
}

// failNoMembers reports that no member is left of a cluster that ran. The planner never starts a new cluster in its place.
func (p *planner) failNoMembers() {
	p.fail("No member of cluster " + p.status.ClusterID + " is left. " + p.restoreAdvice())
}

// restoreAdvice returns how a person can restore the cluster.
func (p *planner) restoreAdvice() string {
	var advice, survivors, learners []string
	for _, m := range p.begun() {
		switch {
		case !p.Live(m.Spec.Node) || !m.Status.Data || m.lost():
		case !p.voted(m):
			learners = append(learners, m.Name+" on "+m.Spec.Node)
		case !slices.Contains(survivors, m.Spec.Node):
			survivors = append(survivors, m.Spec.Node)
		}
	}
	if len(survivors) > 0 {
		advice = append(advice, fmt.Sprintf("To continue from the data of one member run `ebb etcd restore %s --from-member NODE`, with NODE %s.", p.commandName(), strings.Join(survivors, " or ")))
	}
	there := func(s *v1alpha1.EtcdSnapshot) bool { return slices.ContainsFunc(s.Verified(), p.Live) }
	if s := cmp.Or(p.newest(there), p.newest(anySnapshot)); s != nil && !(p.stage() == StageReleasing && !there(s)) {
		advice = append(advice, fmt.Sprintf("To restore the newest verified snapshot run `ebb etcd restore %s --snapshot %s`; keys written after it are not in it.", p.commandName(), s.Name))
	}
	if len(survivors) == 0 && len(learners) > 0 {
		advice = append(advice, fmt.Sprintf("There is data of a member that was not a voter yet and may lack keys: %s. `ebb etcd restore %s --from-member` continues from it once the voters are confirmed to be gone.", strings.Join(learners, ", "), p.commandName()))
	}
	if len(advice) == 0 {
		return fmt.Sprintf("There is no verified snapshot, and no data on a reachable node; to give up every key and start empty run `ebb etcd restore %s --snapshot none`.", p.commandName())
	}
	return strings.Join(advice, " ")
}

// commandName returns the arguments that name the cluster on a command line.
func (p *planner) commandName() string { return commandName(p.Cluster.Namespace, p.Cluster.Name) }

func commandName(namespace, name string) string { return inNamespace(name, namespace) }

// inNamespace adds the namespace to a command that would otherwise mean an object of another one.
func inNamespace(command, namespace string) string {
	if namespace == kind.DefaultNamespace {
		return command
	}
	return command + " -n " + namespace
}

// requireData records of every voter that runs that it must never start without its data.
func (p *planner) requireData() {
	for _, m := range p.current {
		if m.voter() && m.healthy() && m.is(v1alpha1.EtcdMemberRunning) && !m.Spec.DataRequired {
			next := m.DeepCopy()
			next.Spec.DataRequired = true
			p.acts = append(p.acts, Action{Do: SetDesired, Member: next})
		}
	}
}

func (p *planner) voters() []memberView {
	return slices.DeleteFunc(slices.Clone(p.current), func(m memberView) bool { return !m.voter() })
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

// votes counts the voters in etcd's list, with those that have no EtcdMember.
func (p *planner) votes() int {
	n := 0
	for _, peer := range p.View.Peers {
		if !peer.Learner {
			n++
		}
	}
	return n
}

// finishChange continues with the member that is being added or deleted, and returns whether there is one.
func (p *planner) finishChange(size int) bool {
	for _, m := range p.current {
		if !m.voter() {
			p.finishMember(m, size)
			return true
		}
	}
	going := slices.DeleteFunc(p.pending(), memberView.undeletable)
	if len(going) > 0 {
		p.reportDeleting(going[0])
	}
	return len(going) > 0
}

func (p *planner) reportDeleting(m memberView) {
	p.reportScaling("Deleting member %s on %s%s", m.Name, m.Spec.Node, because(m.trouble()))
}

// finishMember continues with a member that is not a voter yet, or not any more.
func (p *planner) finishMember(m memberView, size int) {
	good := len(slices.DeleteFunc(p.voters(), p.leaving))
	unwanted := good >= size && !p.spreads(m, size)
	misplaced := p.Leaving(m.Spec.Node) || !p.Live(m.Spec.Node) || m.is(v1alpha1.EtcdMemberFailed) || !m.DeletionTimestamp.IsZero()
	switch {
	case p.removedFailed(m):
		p.setAsideFailed(m)
		p.reportScaling("Setting aside the data of member %s on %s, which failed and was replaced", m.Name, m.Spec.Node)
	case !m.learner() && m.Spec.Begin != nil:
		// spec.begin is written after the member was listed. So etcd removed it, and it never comes back.
		p.setDesired(m, v1alpha1.EtcdMemberDelete)
		p.reportScaling("Deleting the data of member %s on %s, which was removed", m.Name, m.Spec.Node)
	case unwanted || misplaced:
		p.undo(m)
	case (m.learner() || m.reserves()) && p.failedTooLong(m):
		p.giveUpNew(m)
	case !m.learner() && !m.is(v1alpha1.EtcdMemberReserved):
		p.reportStuck("Adding member %s: waiting for node %s to reserve its ports%s", m.Name, m.Spec.Node, because(m.Status.Error))
	case !m.learner():
		p.reportScaling("Adding member %s on %s as a learner", m.Name, m.Spec.Node)
		p.act(Action{Do: AddLearner, Member: m.EtcdMember})
	case m.Spec.Begin == nil:
		p.reportScaling("Adding member %s on %s: starting it", m.Name, m.Spec.Node)
		p.setDesired(m, v1alpha1.EtcdMemberRun, func(s *v1alpha1.EtcdMemberSpec) {
			s.Begin = &v1alpha1.EtcdBegin{InitialCluster: p.initialCluster(m), Existing: true, Token: p.token()}
		})
	case !m.healthy():
		p.reportStuck("Adding member %s on %s: waiting for it to answer%s", m.Name, m.Spec.Node, because(m.Status.Error))
	case p.readyVoters()+1 < quorum(p.votes()+1):
		p.reportStuck("Adding member %s on %s: %d of %d voters healthy; waiting for a quorum before promoting it", m.Name, m.Spec.Node, p.readyVoters(), p.votes())
	default:
		p.reportScaling("Adding member %s on %s: waiting for it to catch up before promoting it", m.Name, m.Spec.Node)
		p.act(Action{Do: PromoteLearner, Member: m.EtcdMember, Peer: *m.peer})
	}
}

// spreads returns whether a member was added to replace one that shares its node.
func (p *planner) spreads(m memberView, size int) bool {
	voters := p.voters()
	onNode, _ := p.countByPlace(voters)
	return len(voters) == size && onNode[m.Spec.Node] == 0 && slices.ContainsFunc(voters, func(v memberView) bool { return onNode[v.Spec.Node] > 1 })
}

// undo removes a member that is not a voter yet.
func (p *planner) undo(m memberView) {
	p.reportScaling("Removing member %s on %s, which is not needed any more", m.Name, m.Spec.Node)
	if m.learner() {
		p.act(Action{Do: RemovePeer, Peer: *m.peer})
		return
	}
	p.setDesired(m, v1alpha1.EtcdMemberDelete)
}

// initialCluster returns all members in the form that etcd's configuration takes. In etcd's list, a member that has not started yet
// has no name.
func (p *planner) initialCluster(joining memberView) string {
	var parts []string
	for _, peer := range p.View.Peers {
		name := peer.Name
		if peer.ID == joining.peer.ID {
			name = joining.Name
		}
		if name != "" {
			parts = append(parts, name+"="+peer.PeerURL)
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// beginChange begins the next change of members, and returns whether there is one.
func (p *planner) beginChange(size int) bool {
	voters := p.voters()
	staying := slices.DeleteFunc(slices.Clone(voters), p.leaving)
	switch {
	case len(staying) < size:
		p.grow(staying, size)
	case p.votes() > size && len(voters) > 0:
		p.shrink(voters, size)
	case p.Settled && p.readyVoters() == len(voters) && p.crowded(voters):
		p.grow(staying, size)
		p.message += ", so that no two share a node"
	default:
		return false
	}
	return true
}

// grow adds a member if a quorum is healthy and a node is schedulable.
func (p *planner) grow(staying []memberView, size int) {
	if p.readyVoters() < quorum(p.votes()) {
		p.reportStuck("%s; waiting for a quorum before adding a member", p.healthyVoters())
		return
	}
	node, ok := p.place(staying, nil)
	if !ok {
		p.reportStuck("%d of %d members: no node is schedulable for another one; start or uncordon a node", len(staying), size)
		return
	}
	if p.dethrone() {
		return
	}
	p.reportScaling("Adding a member on %s", node)
	p.create(node)
}

// shrink removes a voter if the remaining voters have a quorum. Leadership moves first.
func (p *planner) shrink(voters []memberView, size int) {
	v := p.victim(voters)
	after := p.readyVoters()
	if v.healthy() {
		after--
	}
	switch {
	case p.lastGood(v):
		p.reportStuck("%s on %s has the only data that does not differ: replace the other members before it is removed (`%s`)", v.Name, v.Spec.Node, p.replaceDiffering())
	case after < quorum(p.votes()-1):
		p.reportScaling("%s; removing %s would lose quorum; start a node or bring %s back", p.healthyVoters(), v.Name, p.unhealthyNames())
	case v.leads() && p.successor(v) != nil:
		p.reportScaling("Moving leadership from %s before it is removed", v.Name)
		p.act(Action{Do: MoveLeader, Peer: *p.successor(v).peer})
	default:
		p.reportScaling("Removing member %s on %s", v.Name, v.Spec.Node)
		p.act(Action{Do: RemovePeer, Peer: *v.peer})
	}
}

// successor returns a voter that can take over leadership; nil if there is none.
func (p *planner) successor(from memberView) *memberView {
	for _, m := range p.voters() {
		if m.Name != from.Name && m.healthy() && !p.leaving(m) && !p.differs(m) {
			return &m
		}
	}
	return nil
}

// dethrone moves leadership away from a member whose data differs from the others', because a new member gets its data from the leader. It returns
// whether there is one.
func (p *planner) dethrone() bool {
	voters := p.voters()
	bad := slices.IndexFunc(voters, func(m memberView) bool { return m.leads() && p.differs(m) })
	good := slices.IndexFunc(voters, func(m memberView) bool { return m.healthy() && !p.differs(m) })
	if bad < 0 || good < 0 {
		return false
	}
	p.reportScaling("Moving leadership from %s, whose data differs from the others', before a member is added", voters[bad].Name)
	p.act(Action{Do: MoveLeader, Peer: *voters[good].peer})
	return true
}

// healthyVoters formats how many voters are healthy.
func (p *planner) healthyVoters() string {
	return fmt.Sprintf("%d of %d voters healthy", p.readyVoters(), p.votes())
}

// unhealthyNames formats the names of the voters that are not healthy.
func (p *planner) unhealthyNames() string {
	var names []string
	for _, m := range p.current {
		if !m.healthy() && m.Status.ID != "" {
			names = append(names, m.Name)
		}
	}
	for _, u := range p.unknownPeers {
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
