package volume

import (
	"slices"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// referee looks at the world after every step.
func (s *sim) referee() {
	v := s.volume.Status
	for _, m := range v.Members {
		if c := s.copies[m]; c != nil && c.has != s.acked {
			s.breach("member %s has %d of %d acknowledged writes", m, c.has, s.acked)
		}
	}
	if v.Generation > 0 && len(v.Members) == 0 {
		s.breach("nobody is a member any more")
	}
	healthy := len(v.Members) >= int(s.volume.Spec.Replicas)
	if s.wasHealthy && !s.trouble && s.policy == v1alpha1.BlockForEviction && !healthy {
		s.breach("degraded: only %v are members", v.Members)
	}
	s.wasHealthy = s.wasHealthy || healthy
}

// safePeer says, from the machines alone, whether the volume has another copy that may be rested on.
func (s *sim) safePeer(w World, r string, next v1alpha1.VolumeStatus) bool {
	mine := w.replica(r)
	for _, other := range w.Replicas {
		n := w.Nodes[other.Spec.NodeName]
		up := w.Leases[other.Spec.NodeName].Holder != "" && n.Status.Liveness == v1alpha1.Alive && !n.Spec.Cordoned && (w.Slot == nil || w.Slot.Node != n.Name)
		let := slices.ContainsFunc(next.Released, func(e v1alpha1.ReleasedReplica) bool { return e.Replica == other.Name })
		if other.Spec.NodeName != mine.Spec.NodeName && up && !let && !deleting(other) && other.Status.State != v1alpha1.ReplicaFailed && slices.Contains(next.Members, other.Name) {
			return true
		}
	}
	return false
}

// refereeStatus looks at what the coordinator writes over what it read.
func (s *sim) refereeStatus(w World, is v1alpha1.VolumeStatus) {
	was := w.Volume.Status
	moved := was.AttachedTo != is.AttachedTo || was.RebuildOn != is.RebuildOn
	changed := !slices.Equal(was.Members, is.Members)
	if is.Generation < was.Generation || (moved || changed) && is.Generation == was.Generation {
		s.breach("generation %d to %d, moved %v, members changed %v", was.Generation, is.Generation, moved, changed)
	}
	if changed && w.Volume.EngineNode() != "" {
		s.breach("the coordinator changes members while node %s has the engine", w.Volume.EngineNode())
	}
	if is.NextReplica < was.NextReplica {
		s.breach("next replica %d to %d", was.NextReplica, is.NextReplica)
	}
	if is.AttachedTo != "" && is.AttachedTo != was.AttachedTo && !w.Schedulable(is.AttachedTo) {
		s.breach("attached to %s, which is not schedulable", is.AttachedTo)
	}
	stopped := was.AttachedTo == "" && was.RebuildOn == "" && was.Engine == nil && is.DetachedFor == ""
	for _, e := range is.Released {
		if slices.Contains(was.Released, e) || !slices.Contains(was.Members, e.Replica) {
			continue
		}
		policy := w.Settings.NodeDrainPolicy
		switch {
		case e.Reason != v1alpha1.ReleaseForDrain:
			if !slices.ContainsFunc(is.Members, func(m string) bool {
				return m != e.Replica && !slices.ContainsFunc(is.Released, func(o v1alpha1.ReleasedReplica) bool { return o.Replica == m })
			}) {
				s.breach("the last healthy copy %s is released: %s", e.Replica, e.Reason)
			}
		case policy == v1alpha1.AlwaysAllow || policy == v1alpha1.AllowIfReplicaIsStopped && stopped:
		case policy == v1alpha1.BlockForEviction:
			s.breach("policy %s lets %s go", policy, e.Replica)
		case !s.safePeer(w, e.Replica, is) && w.replica(e.Replica).Status.State != v1alpha1.ReplicaFailed:
			s.breach("policy %s lets the last healthy copy %s go", policy, e.Replica)
		}
	}
}

// refereeDelete: what is deleted is no member, as the volume is stored.
func (s *sim) refereeDelete(r *v1alpha1.Replica) {
	if slices.Contains(s.volume.Status.Members, r.Name) {
		s.breach("member %s is deleted", r.Name)
	}
}

// refereeErase: another copy has every acknowledged write when a directory goes.
func (s *sim) refereeErase(name string) {
	if s.current(name) == 0 && s.volume.Status.Generation > 0 {
		s.breach("%s is erased and no other copy has every write", name)
	}
}

// refereeLeave: a node that leaves takes no last copy along, unless the policy lets it or something broke since the coordinator looked.
func (s *sim) refereeLeave(n *simNode) {
	v := s.volume.Status
	stopped := v.AttachedTo == "" && v.RebuildOn == "" && v.Engine == nil && v.DetachedFor == ""
	if s.unseen || s.policy == v1alpha1.AlwaysAllow || s.policy == v1alpha1.AllowIfReplicaIsStopped && stopped {
		return
	}
	has, elsewhere := false, false
	for name, c := range s.copies {
		if c.has != s.acked || !slices.Contains(v.Members, name) {
			continue
		}
		has = has || c.node == n.name
		elsewhere = elsewhere || c.node != n.name && s.node(c.node).up
	}
	if has && !elsewhere {
		s.breach("%s leaves with the last healthy copy under %s", n.name, s.policy)
	}
	if has && s.policy == v1alpha1.BlockForEviction {
		s.breach("%s leaves with a replica under %s", n.name, s.policy)
	}
}
