package volume

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Do is one kind of action.
type Do string

// The actions. Logs and crash points name them so.
const (
	// HoldVolume adds the finalizer of the volume, before anything of it is made.
	HoldVolume Do = "hold-volume"
	// CreateReplica creates Action.Replica. Its number is in the status already.
	CreateReplica Do = "create-replica"
	// SetEviction writes spec.evictionRequested of Action.Replica. Nothing else does.
	SetEviction Do = "set-eviction"
	// RecordReplica writes the times and conditions of Action.Replica.
	RecordReplica Do = "record-replica"
	// DeleteReplica asks for the deletion of Action.Replica, which was released and is no member.
	DeleteReplica Do = "delete-replica"
	// ForgetReplica removes the finalizer of Action.Replica: its node removed the directory, or is dead.
	ForgetReplica Do = "forget-replica"
	// ForgetVolume removes the finalizer of the volume, which has no replica left.
	ForgetVolume Do = "forget-volume"
)

// Action is one thing to do after the status was written.
type Action struct {
	Do      Do
	Replica *v1alpha1.Replica
	// Eviction is why a SetEviction is done.
	Eviction Eviction
}

// Decision is what follows from a World. The controller first writes the status of the version that was read, then takes the actions in
// their order.
type Decision struct {
	Status  v1alpha1.VolumeStatus
	Actions []Action
	// LookAfter is when something is due by time alone; 0 if nothing is.
	LookAfter time.Duration
}

// Irreversible reports whether a decision gives up a copy, so that what it is based on has to be read live.
func (d Decision) Irreversible(was v1alpha1.VolumeStatus) bool {
	if slices.ContainsFunc(d.Status.Released, func(e v1alpha1.ReleasedReplica) bool { return !slices.Contains(was.Released, e) }) {
		return true
	}
	if slices.ContainsFunc(was.Members, func(m string) bool { return !slices.Contains(d.Status.Members, m) }) {
		return true
	}
	return slices.ContainsFunc(d.Actions, func(a Action) bool { return a.Do == DeleteReplica || a.Do == ForgetReplica || a.Do == ForgetVolume })
}

// planner is the state of one Plan. Its World.Volume is a copy, whose status becomes the decision: what was decided first counts for what
// is decided next.
type planner struct {
	World
	read     *v1alpha1.Volume // as it is stored
	status   *v1alpha1.VolumeStatus
	evicting map[string]Eviction
	created  []*v1alpha1.Replica
	refused  Refusals // why a replica that is missing could not be placed
	short    int      // how many replicas could not be placed
	acts     []Action
	after    time.Duration
}

// Plan decides what to do next about a volume. It is level-triggered: what was decided before and not done is decided again. It changes
// nothing in the world.
func Plan(w World) Decision {
	p := newPlanner(w)
	switch {
	case deleting(p.read):
		p.remove()
	case !controllerutil.ContainsFinalizer(p.read, v1alpha1.VolumeFinalizer):
		p.act(HoldVolume, nil)
	case p.storeIsOlder() != "":
		p.setConditions() // whatever the store says now is not the last word: nothing is let go, and nothing is opened
	default:
		p.drive()
	}
	return Decision{Status: *p.status, Actions: p.acts, LookAfter: p.after}
}

func newPlanner(w World) *planner {
	p := &planner{World: w, read: w.Volume, evicting: map[string]Eviction{}}
	p.Volume = w.Volume.DeepCopy()
	p.status = &p.Volume.Status
	return p
}

// drive brings the volume closer to its spec.
func (p *planner) drive() {
	p.decideEvictions()
	p.attach()
	p.release()
	p.takeOut()
	p.deleteReplicas()
	p.create()
	p.beginMembership()
	p.chooseRebuilder()
	p.status.ObservedGeneration = p.read.Generation
	p.status.Robustness = p.robustness()
	p.setConditions()
	p.recordReplicas()
}

func (p *planner) act(do Do, r *v1alpha1.Replica) {
	p.acts = append(p.acts, Action{Do: do, Replica: r})
}

// later asks for another look after a time.
func (p *planner) later(d time.Duration) {
	if p.after == 0 || d < p.after {
		p.after = max(d, time.Millisecond)
	}
}

// raise raises the generation, once for one write.
func (p *planner) raise() { p.status.Generation = p.read.Status.Generation + 1 }

// decideEvictions decides about every replica whether it should leave its node.
func (p *planner) decideEvictions() {
	for _, r := range p.Replicas {
		if deleting(r) {
			continue
		}
		e := p.Eviction(r)
		if e.Requested {
			p.evicting[r.Name] = e
		}
		if e.Requested != r.Spec.EvictionRequested {
			next := r.DeepCopy()
			next.Spec.EvictionRequested = e.Requested
			p.acts = append(p.acts, Action{Do: SetEviction, Replica: next, Eviction: e})
		}
	}
}

func (p *planner) isEvicting(r *v1alpha1.Replica) bool { return p.evicting[r.Name].Requested }

// released returns whether a replica is on its way to be deleted, in a version of the volume.
func released(v *v1alpha1.Volume, r *v1alpha1.Replica) bool {
	e := v.ReleaseOf(r.Name)
	return e != nil && e.Reason != v1alpha1.ReleaseForDrain
}

// create creates as many replicas as are missing. A replica that is to leave does not count; one that is away with its node counts until it
// has been away for too long.
func (p *planner) create() {
	have := 0
	for _, r := range p.Replicas {
		if p.counts(r) {
			have++
		}
	}
	evicting := map[string]bool{}
	for name := range p.evicting {
		evicting[name] = true
	}
	unreplaced := p.unreplaced()
	for missing := int(p.Volume.Spec.Replicas) - have; missing > 0; missing-- {
		if p.status.Generation > 0 && !slices.ContainsFunc(p.Replicas, p.source) {
			return // there is nothing to build it from
		}
		where, refused := p.place(evicting, p.created)
		if refused != nil || where == (Place{}) {
			p.refused, p.short = refused, missing
			return
		}
		replaces := ""
		if len(unreplaced) > 0 {
			replaces, unreplaced = unreplaced[0], unreplaced[1:]
		}
		p.createAt(where, replaces)
	}
}

// unreplaced are the replicas that are to leave and have no replacement, sorted.
func (p *planner) unreplaced() []string {
	var names []string
	for _, r := range p.Replicas {
		other := p.replacement(r)
		if p.isEvicting(r) && !released(p.Volume, r) && (other == nil || !p.counts(other)) {
			names = append(names, r.Name)
		}
	}
	return names
}

// counts reports whether the volume needs no other replica in the place of this one.
func (p *planner) counts(r *v1alpha1.Replica) bool {
	node := r.Spec.NodeName
	switch {
	case deleting(r) || released(p.Volume, r) || p.isEvicting(r) || r.Status.State == v1alpha1.ReplicaFailed:
		return false
	case p.Unused(r):
		return !p.abandoned(r)
	case p.Healthy(r):
		return p.present(p.goneFor(node)) // nobody drops it while the volume is detached
	case !p.down(node) && !p.draining(node) && r.Status.State == v1alpha1.ReplicaReady && !p.standsStill(r):
		return true // the engine brings it up to date
	case r.Status.FailedAt == nil:
		return true // it has just failed
	}
	return p.Nodes[node] != nil && p.present(p.Now.Sub(r.Status.FailedAt.Time))
}

// present reports whether something that has been away for so long may still come back.
func (p *planner) present(away time.Duration) bool {
	if away == 0 {
		return true
	}
	if left := p.replenishmentWait() - away; left > 0 {
		p.later(left)
		return true
	}
	return false
}

func (p *planner) standsStill(r *v1alpha1.Replica) bool {
	b := p.rebuild(r.Name)
	return b != nil && b.Error != ""
}

// abandoned reports whether a replica that was never healthy is given up: its node leaves, is dead, or lost it, or could not create it for too
// long.
func (p *planner) abandoned(r *v1alpha1.Replica) bool {
	node := r.Spec.NodeName
	return p.Unused(r) && (p.down(node) || p.draining(node) || r.Status.State == v1alpha1.ReplicaFailed || p.cannotBeCreated(r))
}

// cannotBeCreated reports whether a replica could not be created for as long as others may be away: its disk is not there, or its node says what
// fails.
func (p *planner) cannotBeCreated(r *v1alpha1.Replica) bool {
	if r.Status.State != v1alpha1.ReplicaPending || r.Status.Created || r.CreationTimestamp.IsZero() {
		return false
	}
	ready := slices.ContainsFunc(disksOf(p.Nodes[r.Spec.NodeName]), func(d disk) bool { return d.Name == r.Spec.Disk && d.reported && d.is.Ready })
	return (!ready || r.Status.Message != "") && !p.present(p.Now.Sub(r.CreationTimestamp.Time))
}

// createAt creates a replica. The status has its number first, so that no number is used twice.
func (p *planner) createAt(where Place, replaces string) {
	v, n := p.Volume, max(p.status.NextReplica, 1)
	taken := func(name string) bool {
		return slices.ContainsFunc(p.Everyone, func(r *v1alpha1.Replica) bool { return r.Namespace == v.Namespace && r.Name == name })
	}
	for taken(replicaName(v, n)) {
		n++
	}
	p.status.NextReplica = n + 1
	r := &v1alpha1.Replica{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v.Namespace, Name: replicaName(v, n), Labels: map[string]string{v1alpha1.VolumeLabel: v.Name}, Finalizers: []string{v1alpha1.ReplicaFinalizer},
		},
		Spec: v1alpha1.ReplicaSpec{
			VolumeName: v.Name, VolumeUID: string(v.UID), NodeName: where.Node, Disk: where.Disk, SizeBytes: v.Spec.Size.Value(), Replaces: replaces,
		},
	}
	p.created = append(p.created, r)
	p.act(CreateReplica, r)
}

func replicaName(v *v1alpha1.Volume, n int64) string { return fmt.Sprintf("%s-r%d", v.Name, n) }

// beginMembership makes the first replicas members, once: all of them are empty and so the same.
func (p *planner) beginMembership() {
	if p.read.Status.Generation != 0 || len(p.read.Status.Members) > 0 || p.read.EngineNode() != "" || len(p.created) > 0 {
		return
	}
	var first []string
	for _, r := range p.Replicas {
		switch {
		case deleting(r) || released(p.Volume, r) || p.down(r.Spec.NodeName):
		case r.Status.State != v1alpha1.ReplicaReady:
			return // not all are there
		default:
			first = append(first, r.Name)
		}
	}
	if len(first) > 0 {
		slices.Sort(first)
		p.status.Members = first
		p.raise()
	}
}

// remove deletes the volume: it is detached, then nobody is a member, then the replicas are deleted.
func (p *planner) remove() {
	if p.read.EngineNode() != "" {
		p.setEngineNode("", "")
		return
	}
	if len(p.read.Status.Members) > 0 {
		p.status.Members = nil
		p.raise()
		return
	}
	for _, r := range p.Replicas {
		switch {
		case !deleting(r):
			p.act(DeleteReplica, r)
		case p.forgettable(r):
			p.act(ForgetReplica, r)
		}
	}
	if len(p.Replicas) == 0 && controllerutil.ContainsFinalizer(p.read, v1alpha1.VolumeFinalizer) {
		p.act(ForgetVolume, nil)
	}
}

// forgettable reports whether nothing of a replica that is being deleted is left, or nobody is there to remove it.
func (w World) forgettable(r *v1alpha1.Replica) bool {
	return controllerutil.ContainsFinalizer(r, v1alpha1.ReplicaFinalizer) && (r.Status.State == v1alpha1.ReplicaRemoved || w.down(r.Spec.NodeName))
}
