package volume

import (
	"fmt"
	"slices"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// beforeDeadline is how long before the deadline of a drain clients are disconnected at the latest.
const beforeDeadline = 10 * time.Second

// attach decides which node may run the engine that serves the volume. Every change raises the generation: whoever had the volume before is
// refused by the replicas once its successor has opened them.
func (p *planner) attach() {
	want, at := p.Volume.Spec.AttachTo, p.status.AttachedTo
	forDrain := at != "" && at == want && p.detachForDrain(at)
	switch {
	case at != "" && (at != want || p.down(at)):
		p.setEngineNode("", "")
	case forDrain:
		p.setEngineNode("", "")
		p.status.DetachedFor = p.Slot.UID
	}
	if want == "" {
		p.status.DetachedFor = ""
		return
	}
	if p.status.AttachedTo == "" && p.Schedulable(want) && len(p.status.Members) > 0 {
		p.setEngineNode(want, "")
		p.status.DetachedFor = ""
	}
}

// setEngineNode writes which node may run an engine, to serve the volume or only to build replicas.
func (p *planner) setEngineNode(attachedTo, rebuildOn string) {
	s := p.status
	if s.AttachedTo == attachedTo && s.RebuildOn == rebuildOn {
		return
	}
	s.AttachedTo, s.RebuildOn = attachedTo, rebuildOn
	s.NBDURI, s.Engine = "", nil
	p.raise()
}

// detachForDrain reports whether the drain of a node must detach the volume from it now. While clients may still stay, it asks for another look
// later.
func (p *planner) detachForDrain(node string) bool {
	if !p.drains(node) {
		return false
	}
	if p.clients(node) == 0 {
		return true
	}
	at, ok := p.disconnectAt()
	if !ok {
		return false
	}
	if left := at.Sub(p.Now); left > 0 {
		p.later(left)
		return false
	}
	return true
}

// clients is how many clients the engine on a node reports.
func (w World) clients(node string) int32 {
	if e := w.Volume.Status.Engine; e != nil && e.Node == node {
		return e.Clients
	}
	return 0
}

// disconnectAt is when clients of a volume on the node in the slot are disconnected.
func (w World) disconnectAt() (time.Time, bool) {
	if w.Drain == nil || w.Drain.Status.StartedAt == nil {
		return time.Time{}, false
	}
	began := w.Drain.Status.StartedAt.Time
	at := began.Add(w.clientGrace())
	if d := w.Drain.Spec.Deadline; d != nil && began.Add(d.Duration-beforeDeadline).Before(at) {
		at = began.Add(d.Duration - beforeDeadline)
	}
	return at, true
}

// chooseRebuilder decides which node runs an engine for a detached volume that has replicas to build: the node of such a replica.
func (p *planner) chooseRebuilder() {
	if p.status.AttachedTo != "" {
		return
	}
	node := ""
	for _, r := range p.Replicas {
		if !p.buildable(r) {
			continue
		}
		if r.Spec.NodeName == p.status.RebuildOn {
			node = p.status.RebuildOn
		}
		if node == "" {
			node = r.Spec.NodeName
		}
	}
	p.setEngineNode("", node)
}

// buildable reports whether an engine could build a replica now.
func (p *planner) buildable(r *v1alpha1.Replica) bool {
	node := r.Spec.NodeName
	if p.member(r) || deleting(r) || p.Volume.ReleaseOf(r.Name) != nil || r.Status.State != v1alpha1.ReplicaReady || p.down(node) || p.draining(node) {
		return false
	}
	// A source that will leave with its node is not used: the volume counts as stopped, which an engine would end.
	return slices.ContainsFunc(p.Replicas, func(s *v1alpha1.Replica) bool { return p.source(s) && p.Volume.ReleaseOf(s.Name) == nil })
}

// detachedBecause returns why a volume that should be attached is not.
func (w World) detachedBecause() string {
	want := w.Volume.Spec.AttachTo
	switch why := w.Ineligible(want); {
	case w.Nodes[want] == nil:
		return fmt.Sprintf("node %s does not exist: attach the volume to another one", want)
	case why != "":
		return fmt.Sprintf("node %s cannot take it (%s): it is attached again once the node is schedulable", want, why)
	case len(w.Volume.Status.Members) == 0:
		return "its first replicas are not ready yet" + w.notCreated()
	}
	return "it is being attached"
}

// notCreated returns why a replica is not created yet, as the end of a sentence; empty if nothing is known.
func (w World) notCreated() string {
	for _, r := range w.Replicas {
		if r.Status.State == v1alpha1.ReplicaPending && r.Status.Message != "" && !deleting(r) {
			return fmt.Sprintf(" (%s on node %s: %s)", r.Name, r.Spec.NodeName, r.Status.Message)
		}
	}
	return ""
}
