package volume

import (
	"slices"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A replica is given up in steps. Each depends on the one before, as it is stored:
//
//	kept ──▶ released (a CAS on the Volume) ──▶ no member (by the engine, or here if there is none) ──▶ deleted ──▶ forgotten
//	  ▲          │
//	  └──────────┘ revoked, while it is a member
//
// A replica that is released for a drain stays on its disk when its node leaves.

// release decides which replicas are released, and why. A replica that is released here protects no other in the decisions that follow.
func (p *planner) release() {
	p.status.Released = slices.DeleteFunc(p.status.Released, func(e v1alpha1.ReleasedReplica) bool {
		return p.replica(e.Replica) == nil && !slices.Contains(p.status.Members, e.Replica)
	})
	for _, r := range p.Replicas {
		if !released(p.Volume, r) || p.revocable(r) {
			p.setRelease(r.Name, p.releaseForDrain(r))
		}
	}
	// Copies that leave with their node are known now: what is deleted counts on none of them.
	for _, r := range p.Replicas {
		if released(p.Volume, r) {
			continue
		}
		reason := p.leaves(r)
		if reason == "" {
			continue
		}
		before := slices.Clone(p.status.Released)
		p.setRelease(r.Name, &v1alpha1.ReleasedReplica{Replica: r.Name, Reason: reason})
		if p.Healthy(r) && p.restedOn() {
			p.status.Released = before // it is what lets another one go with its node: it leaves after that one
		}
	}
}

// restedOn reports whether the policy would no longer release a replica that was released for a drain.
func (p *planner) restedOn() bool {
	return slices.ContainsFunc(p.Replicas, func(r *v1alpha1.Replica) bool {
		e := p.Volume.ReleaseOf(r.Name)
		return e != nil && e.Reason == v1alpha1.ReleaseForDrain && !p.MayGo(r).Allowed
	})
}

// setRelease writes how a replica is released; nil for not at all.
func (p *planner) setRelease(name string, want *v1alpha1.ReleasedReplica) {
	at := slices.IndexFunc(p.status.Released, func(e v1alpha1.ReleasedReplica) bool { return e.Replica == name })
	switch {
	case at < 0 && want != nil:
		p.status.Released = append(p.status.Released, *want)
	case at >= 0 && want == nil:
		p.status.Released = slices.Delete(p.status.Released, at, at+1)
	case at >= 0:
		p.status.Released[at] = *want
	}
}

// revocable reports whether the volume may count on a released replica again: it is still a member, and either nobody wants it gone any more
// or it is the last one.
func (p *planner) revocable(r *v1alpha1.Replica) bool {
	return p.Healthy(r) && (p.othersKept(r) == 0 || !deleting(r) && !p.isEvicting(r))
}

// leaves says why a replica is to be deleted now; empty if it is not. The last healthy one never is.
func (p *planner) leaves(r *v1alpha1.Replica) v1alpha1.ReleaseReason {
	others := p.othersKept(r)
	if p.Healthy(r) && others == 0 {
		return ""
	}
	replaced := p.replaced(r, others)
	switch {
	case deleting(r) || p.abandoned(r):
		return v1alpha1.ReleaseToRemove
	case p.isEvicting(r) && p.Healthy(r) && replaced:
		return v1alpha1.ReleaseToEvict
	case p.isEvicting(r) && replaced || p.Failed(r) && replaced:
		return v1alpha1.ReleaseToRemove
	}
	return ""
}

// replaced reports whether the volume has enough replicas without this one: as many as it should have, or, for a replica that is being evicted,
// its healthy replacement and otherwise only failed ones. Failed replicas must not hold up an eviction, and an eviction must not add to them.
func (p *planner) replaced(r *v1alpha1.Replica, others int) bool {
	count := int(p.Volume.Spec.Replicas)
	if others >= count {
		return true
	}
	other := p.replacement(r)
	if !p.isEvicting(r) || other == nil || !p.kept(other) {
		return false
	}
	for _, f := range p.Replicas {
		if f.Name != r.Name && !p.Unused(f) && !p.kept(f) && !deleting(f) && !released(p.Volume, f) {
			count--
		}
	}
	return others >= count
}

// releaseForDrain releases a replica that may leave with its node under the policy. If the policy no longer allows that, the release is revoked,
// until the node is ordered to stop.
func (p *planner) releaseForDrain(r *v1alpha1.Replica) *v1alpha1.ReleasedReplica {
	node := r.Spec.NodeName
	if !p.drains(node) {
		return nil
	}
	want := &v1alpha1.ReleasedReplica{Replica: r.Name, Reason: v1alpha1.ReleaseForDrain, NodeEpoch: p.Slot.NodeEpoch, DrainUID: p.Slot.UID}
	if has := p.Volume.ReleaseOf(r.Name); has != nil && *has == *want && p.stopping(node) {
		return want
	}
	verdict := p.MayGo(r)
	if p.Volume.EngineNode() == node || !verdict.Allowed {
		return nil
	}
	if verdict.Reason == AllowedStopped && p.read.EngineNode() != "" {
		return nil // it is being detached by this very write, and the engine does not know yet
	}
	return want
}

// drains reports whether the drain in the slot is emptying a node, in the epoch that the slot names.
func (w World) drains(node string) bool {
	if w.Slot == nil || w.Slot.Node != node || w.Drain == nil || string(w.Drain.UID) != w.Slot.UID || w.down(node) || w.Over(node, w.Slot.NodeEpoch) {
		return false
	}
	return w.Drain.Status.Phase == v1alpha1.DrainDraining || w.Drain.Status.Phase == v1alpha1.DrainStopping
}

// stopping reports whether the node that is drained was ordered to stop, or is stopping.
func (w World) stopping(node string) bool {
	n := w.Nodes[node]
	told := n.Spec.Desired != nil && n.Spec.Desired.Liveness == v1alpha1.Stopping && n.Spec.Desired.Epoch == w.Slot.NodeEpoch
	return told || n.Status.Epoch == w.Slot.NodeEpoch && n.Status.Liveness == v1alpha1.Stopping
}

// takeOut takes replicas that are to be deleted out of the members, while there is no engine that does. The last member is never taken out.
func (p *planner) takeOut() {
	if p.read.EngineNode() != "" || p.Volume.EngineNode() != "" {
		return
	}
	stays := func(name string) bool {
		r := p.replica(name)
		return r != nil && !released(p.Volume, r)
	}
	if !slices.ContainsFunc(p.Replicas, p.kept) {
		return
	}
	if left := slices.DeleteFunc(slices.Clone(p.status.Members), func(name string) bool { return !stays(name) }); len(left) != len(p.status.Members) {
		p.status.Members = left
		p.raise()
	}
}

// deleteReplicas deletes what is released and no member, as it is stored. A copy that was healthy once stays while the volume counts on none:
// it may be all that is left.
func (p *planner) deleteReplicas() {
	safe := slices.ContainsFunc(p.Replicas, p.kept)
	for _, r := range p.Replicas {
		if !released(p.read, r) || slices.Contains(p.read.Status.Members, r.Name) || !released(p.Volume, r) || r.Status.HealthyAt != nil && !safe {
			continue
		}
		switch {
		case !deleting(r):
			p.act(DeleteReplica, r)
		case p.forgettable(r):
			p.act(ForgetReplica, r)
		}
	}
}
