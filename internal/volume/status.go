package volume

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// maxMessage bounds the messages of conditions.
const maxMessage = 2048

// robustness is how many good copies there are. Copies that are being evicted count until they have left.
func (w World) robustness() v1alpha1.VolumeRobustness {
	healthy := 0
	for _, r := range w.Replicas {
		if w.Healthy(r) {
			healthy++
		}
	}
	switch {
	case w.Volume.Status.Generation == 0:
		return v1alpha1.VolumeUnknown
	case healthy == 0:
		return v1alpha1.VolumeFaulted
	case healthy < int(w.Volume.Spec.Replicas):
		return v1alpha1.VolumeDegraded
	}
	return v1alpha1.VolumeHealthy
}

// storeIsOlder returns the name of a replica that has a newer generation than the stored Volume; empty if there is none. If there is one, the
// store went back in time, and its list of members may be wrong.
func (p *planner) storeIsOlder() string {
	for _, r := range p.Replicas {
		if r.Status.Generation > p.read.Status.Generation {
			return r.Name
		}
	}
	return ""
}

func (p *planner) setConditions() {
	p.setAttached()
	p.setScheduled()
	p.setOpenable()
}

func (p *planner) condition(kind string, status bool, reason, message string) {
	value := metav1.ConditionFalse
	if status {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&p.status.Conditions, metav1.Condition{
		Type: kind, Status: value, Reason: reason, Message: shorten(message), ObservedGeneration: p.read.Generation,
		LastTransitionTime: metav1.NewTime(p.Now.Truncate(time.Second)),
	})
}

func shorten(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage-3], "") + "..."
}

func (p *planner) setAttached() {
	s, want := p.status, p.Volume.Spec.AttachTo
	switch e := s.Engine; {
	case s.AttachedTo != "" && e != nil && e.Node == s.AttachedTo && e.Serving:
		p.condition(v1alpha1.VolumeAttached, true, v1alpha1.ReasonAttached, "The volume is served on node "+s.AttachedTo+".")
	case s.AttachedTo != "" && e != nil && e.WaitingFor != "" && opened(s):
		p.condition(v1alpha1.VolumeAttached, false, v1alpha1.ReasonAttaching, fmt.Sprintf("I/O on node %s waits for %s.", s.AttachedTo, e.WaitingFor))
	case s.AttachedTo != "" && e != nil && e.WaitingFor != "":
		p.condition(v1alpha1.VolumeAttached, false, v1alpha1.ReasonAttaching, fmt.Sprintf("Node %s is opening the volume: %s.", s.AttachedTo, e.WaitingFor))
	case s.AttachedTo != "":
		p.condition(v1alpha1.VolumeAttached, false, v1alpha1.ReasonAttaching, fmt.Sprintf("Node %s is opening the volume.", s.AttachedTo))
	case want == "":
		p.condition(v1alpha1.VolumeAttached, false, v1alpha1.ReasonDetached, "The volume is detached: spec.attachTo is empty.")
	default:
		p.condition(v1alpha1.VolumeAttached, false, v1alpha1.ReasonNodeUnavailable, "The volume is detached: "+p.detachedBecause()+".")
	}
}

// opened reports whether an engine has its members open though it may not serve at the moment: clients can connect, or it builds a replica.
func opened(s *v1alpha1.VolumeStatus) bool {
	return s.Engine != nil && (s.NBDURI != "" || len(s.Engine.Rebuilds) > 0)
}

func (p *planner) setScheduled() {
	if p.short == 0 {
		p.condition(v1alpha1.VolumeScheduled, true, v1alpha1.ReasonScheduled, "Every replica has a disk.")
		return
	}
	p.condition(v1alpha1.VolumeScheduled, false, v1alpha1.ReasonUnschedulable, fmt.Sprintf("%d of %d replicas have no disk: %s. %s",
		p.short, p.Volume.Spec.Replicas, p.refused, "Add a node or a disk, free space, or uncordon a node."))
}

// setOpenable passes on what the engine reports, and reports a store that went back in time.
func (p *planner) setOpenable() {
	e := p.status.Engine
	switch newer := p.storeIsOlder(); {
	case newer != "":
		p.condition(v1alpha1.VolumeOpenable, false, v1alpha1.ReasonStoreIsOlder, fmt.Sprintf(
			"Replica %s has generation %d, and the store only generation %d: the store is older than the data, so nothing is opened or deleted. Restore a newer store, or accept the replicas as they are with `ebb volume salvage %s`.",
			newer, p.replica(newer).Status.Generation, p.read.Status.Generation, Argument(p.Volume.Namespace, p.Volume.Name)))
	case e != nil && (e.Serving || opened(p.status)):
		p.condition(v1alpha1.VolumeOpenable, true, v1alpha1.ReasonOpened, "The members are open.")
	case e != nil && e.WaitingFor != "":
		p.condition(v1alpha1.VolumeOpenable, false, v1alpha1.ReasonMembersMissing, "The members cannot be opened: "+e.WaitingFor+".")
	default:
		if was := meta.FindStatusCondition(p.status.Conditions, v1alpha1.VolumeOpenable); was != nil && was.Status == metav1.ConditionFalse {
			meta.RemoveStatusCondition(&p.status.Conditions, v1alpha1.VolumeOpenable) // nobody tries any more
		}
	}
}

// recordReplicas brings what the coordinator writes of replicas up to date: since when they are healthy or failed, and how far their eviction
// is.
func (p *planner) recordReplicas() {
	for _, r := range p.Replicas {
		next := r.DeepCopy()
		p.setTimes(next)
		p.setEvicting(next)
		if !equality.Semantic.DeepEqual(next.Status, r.Status) {
			p.act(RecordReplica, next)
		}
	}
}

func (p *planner) setTimes(r *v1alpha1.Replica) {
	now := metav1.NewTime(p.Now.Truncate(time.Second))
	switch s, healthy := &r.Status, p.Healthy(r); {
	case healthy && (s.HealthyAt == nil || s.FailedAt != nil):
		s.HealthyAt, s.FailedAt = &now, nil
	case !healthy && s.HealthyAt != nil && s.FailedAt == nil:
		s.FailedAt = &now
	}
}

// setEvicting writes the condition Evicting, which a cordon needs since it has no Drain with blockers.
func (p *planner) setEvicting(r *v1alpha1.Replica) {
	reason, message := p.evictingState(r)
	if reason == v1alpha1.ReasonNotEvicting && meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ReplicaEvicting) == nil {
		return
	}
	value := metav1.ConditionTrue
	if reason == v1alpha1.ReasonNotEvicting {
		value = metav1.ConditionFalse
	}
	meta.SetStatusCondition(&r.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ReplicaEvicting, Status: value, Reason: reason, Message: shorten(message), ObservedGeneration: r.Generation,
		LastTransitionTime: metav1.NewTime(p.Now.Truncate(time.Second)),
	})
}

// evictingState returns how far the eviction of a replica is.
func (p *planner) evictingState(r *v1alpha1.Replica) (reason, message string) {
	other := p.replacement(r)
	if at := slices.IndexFunc(p.created, func(c *v1alpha1.Replica) bool { return c.Spec.Replaces == r.Name }); at >= 0 {
		other = p.created[at]
	}
	switch {
	case released(p.Volume, r):
		return v1alpha1.ReasonReplaced, p.about(r) + "the volume has enough replicas without it; it is being deleted."
	case deleting(r) && p.Healthy(r):
		return v1alpha1.ReasonLastHealthyReplica, p.about(r) + "it should be deleted and " + p.whyLast(r) + ". It stays until another replica is healthy."
	case !p.isEvicting(r):
		return v1alpha1.ReasonNotEvicting, p.about(r) + "it stays."
	case other != nil:
		return v1alpha1.ReasonReplacementBuilding, p.about(r) + fmt.Sprintf("it leaves when %s on node %s is healthy.", other.Name, other.Spec.NodeName)
	case p.short > 0:
		return v1alpha1.ReasonNoReplacement, p.about(r) + fmt.Sprintf("no disk can take its replacement: %s. Add a node or a disk, free space, or uncordon a node.", p.refused)
	case !slices.ContainsFunc(p.Replicas, p.source):
		return v1alpha1.ReasonLastHealthyReplica, p.about(r) + "no healthy replica on a live node is left to build another one from. Start the node of one."
	}
	return v1alpha1.ReasonReplacementBuilding, p.about(r) + "it leaves when the volume has enough replicas without it."
}
