package etcdcluster

import (
	"cmp"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Stage is how far a cluster is in its life. It is derived from the object and never stored, so that no two records can disagree.
type Stage string

// The stages.
const (
	// StageNew: the object has no finalizer yet, so nothing may be created for it.
	StageNew Stage = "New"
	// StageStopped: nothing runs. status.rest is what the next start begins from; a cluster that never ran has none.
	StageStopped Stage = "Stopped"
	// StageStarting: members are being started, and no quorum of them has run yet. Nobody knows their URLs, and what the start began
	// from is kept.
	StageStarting Stage = "Starting"
	// StageRunning: a quorum of the incarnation has run. Only its members have the newest keys.
	StageRunning Stage = "Running"
	// StageStopping: the keys are being secured before the members end; status.stop.step is how far that is. It can be canceled.
	StageStopping Stage = "Stopping"
	// StageEvacuating: a stopped cluster retained data on a draining node. Its members are woken, sealed, and their data is secured in
	// a snapshot. For people the cluster stays stopped.
	StageEvacuating Stage = "Evacuating"
	// StageReleasing: the keys are secured, or nobody wants them. Processes end and data is deleted. It cannot be canceled.
	StageReleasing Stage = "Releasing"
	// StageDeleting: somebody deleted the object. The cluster goes with all its data.
	StageDeleting Stage = "Deleting"
)

// Transition is a change of the stage.
type Transition struct{ From, To Stage }

// transitions are all changes of the stage that a plan makes, with the function that makes each.
//
//	          beginStart            establish            beginStop
//	Stopped ─────────────▶ Starting ─────────▶ Running ─────────────▶ Stopping
//	 ▲ ▲ ▲ │                   │                  ▲                     │  │
//	 │ │ │ │                   │                  └──── cancelStop ─────┘  │
//	 │ │ │ │                   │                                           │ release
//	 │ │ └─┼──── endStart ─────┘                                           ▼
//	 │ │   └─────── beginEvacuation ────▶ Evacuating ──── release ────▶ Releasing
//	 │ └─────────── cancelStop ───────────────┘                            │
//	 └──────────────────────────────── endStop ────────────────────────────┘
//
// Besides, beginRestore leads from every stage but New and Deleting to Starting. A person deletes the object (to Deleting), and
// the controller writes the finalizer (from New).
var transitions = []Transition{
	{StageStopped, StageStarting},     // beginStart, beginRestore
	{StageStarting, StageRunning},     // establish
	{StageStarting, StageStopped},     // endStart
	{StageRunning, StageStopping},     // beginStop
	{StageStopping, StageRunning},     // cancelStop
	{StageStopped, StageEvacuating},   // beginEvacuation
	{StageEvacuating, StageStopped},   // cancelStop
	{StageStopping, StageReleasing},   // release
	{StageEvacuating, StageReleasing}, // release
	{StageReleasing, StageStopped},    // endStop
	// beginRestore
	{StageStarting, StageStarting}, {StageRunning, StageStarting}, {StageStopping, StageStarting}, {StageEvacuating, StageStarting},
	{StageReleasing, StageStarting},
}

// Legal returns whether a plan may make the transition.
func (t Transition) Legal() bool { return slices.Contains(transitions, t) }

// StageOf derives the stage of a cluster.
func StageOf(c *v1alpha1.EtcdCluster) Stage { return stageWith(c, c.Status) }

// stageWith derives the stage of a cluster as it will be with a status.
func stageWith(c *v1alpha1.EtcdCluster, status v1alpha1.EtcdClusterStatus) Stage {
	stop := status.Stop
	switch {
	case !c.DeletionTimestamp.IsZero():
		return StageDeleting
	case !controllerutil.ContainsFinalizer(c, v1alpha1.EtcdClusterFinalizer):
		return StageNew
	case stop != nil && stop.Step == v1alpha1.EtcdReleased:
		return StageReleasing
	case stop != nil && status.Phase == v1alpha1.EtcdClusterPhaseStopped:
		return StageEvacuating
	case stop != nil:
		return StageStopping
	case identity(status) != "":
		return StageRunning
	case status.Starting != nil:
		return StageStarting
	}
	return StageStopped
}

// identity returns the ID that every member of a cluster that has run must report. Before the first quorum ran, and from what a
// cluster was stopped with until it runs again, it is empty: the next incarnation has an ID of its own.
func identity(status v1alpha1.EtcdClusterStatus) string {
	if status.Rest != nil {
		return ""
	}
	return status.ClusterID
}

// stage returns the stage as the plan has it now.
func (p *planner) stage() Stage { return stageWith(p.Cluster, p.status) }

// hasRun returns whether a quorum of the present incarnation has run, so that it may have keys that nobody else has.
func (p *planner) hasRun() bool {
	switch p.stage() {
	case StageRunning, StageStopping, StageEvacuating, StageReleasing:
		return true
	}
	return false
}

// move makes a transition: it changes the status, and the stage with it.
func (p *planner) move(change func(*v1alpha1.EtcdClusterStatus)) {
	from := p.stage()
	change(&p.status)
	p.moves = append(p.moves, Transition{From: from, To: p.stage()})
}

// beginStart: Stopped → Starting, from what the cluster was stopped with, or from nothing (nil). A start that does not resume
// retained data is a new incarnation.
func (p *planner) beginStart(from *v1alpha1.EtcdStoppedState) {
	if p.resumes() && from != p.status.Rest {
		p.setAside(func(memberView) string {
			return "Started from " + describeSource(cmp.Or(from.Snapshot, v1alpha1.EtcdFromNothing)) + " instead of it"
		})
	}
	p.move(func(s *v1alpha1.EtcdClusterStatus) {
		s.ObservedRestoreFrom = p.Cluster.Spec.RestoreFrom
		if former := s.Rest; from != nil && former != nil && from != former {
			from.Stopped = former.Stopped
		}
		if from == nil || from.OnStop != v1alpha1.EtcdRetain {
			s.Incarnation++
			if from == nil || from.OnStop != v1alpha1.EtcdSnapshotThenDelete {
				s.ClusterID = ""
			}
		}
		s.Rest, s.Starting = from, micro(p.Now)
	})
	p.status.Failing = nil
	p.forgetFormerIncarnation()
}

// beginRestore: any → Starting, from a snapshot or from nothing, because a person asked for it.
func (p *planner) beginRestore(from *v1alpha1.EtcdStoppedState) {
	p.restoring, p.status.Failing = true, nil
	p.status.Restore.Snapshot = from.Snapshot
	p.setRestore(v1alpha1.EtcdRestoreStarting, "Starting a new incarnation.")
	p.move(func(s *v1alpha1.EtcdClusterStatus) {
		if from.Snapshot == "" {
			s.ClusterID = ""
		}
		s.Incarnation++
		s.Rest, s.Starting, s.Stop = from, micro(p.Now), nil
	})
	p.forgetFormerIncarnation()
}

// establish: Starting → Running, with the ID of the cluster that runs. What the start began from is not needed any more.
func (p *planner) establish(id string) {
	p.missing = ""
	p.move(func(s *v1alpha1.EtcdClusterStatus) { s.ClusterID, s.Rest = id, nil })
	if r := p.status.Restore; r != nil && r.Phase == v1alpha1.EtcdRestoreStarting {
		p.setRestore(v1alpha1.EtcdRestoreDone, "The cluster runs.")
	}
}

// endStart: Starting → Stopped, after the start was canceled.
func (p *planner) endStart() {
	p.move(func(s *v1alpha1.EtcdClusterStatus) { s.Starting = nil })
	p.reportStopped()
}

// beginStop: Running → Stopping.
func (p *planner) beginStop(onStop v1alpha1.EtcdOnStop) {
	p.move(func(s *v1alpha1.EtcdClusterStatus) { s.Stop, s.Starting = p.newStop(onStop), nil })
}

// beginEvacuation: Stopped → Evacuating.
func (p *planner) beginEvacuation() {
	p.move(func(s *v1alpha1.EtcdClusterStatus) { s.Stop = p.newStop(v1alpha1.EtcdSnapshotThenDelete) })
	p.changing = true
}

func (p *planner) newStop(onStop v1alpha1.EtcdOnStop) *v1alpha1.EtcdStop {
	return &v1alpha1.EtcdStop{Generation: p.Cluster.Generation, OnStop: onStop, Step: v1alpha1.EtcdSealing, Began: *micro(p.Now)}
}

// cancelStop: Stopping → Running, Evacuating → Stopped. Nothing was deleted yet.
func (p *planner) cancelStop() {
	p.move(func(s *v1alpha1.EtcdClusterStatus) { s.Stop = nil })
}

// release: Stopping, Evacuating → Releasing. It records what the next start begins from. From now on the members' data may be
// deleted.
func (p *planner) release(kept *v1alpha1.EtcdStoppedState) {
	kept.OnStop = p.status.Stop.OnStop
	kept.Members = p.infos(p.voters())
	if former := p.status.Rest; former != nil {
		kept.Stopped = former.Stopped
		if len(kept.Members) == 0 {
			kept.Members = former.Members
		}
	}
	p.move(func(s *v1alpha1.EtcdClusterStatus) { s.Stop.Step, s.Rest = v1alpha1.EtcdReleased, kept })
}

// endStop: Releasing → Stopped.
func (p *planner) endStop() {
	p.move(func(s *v1alpha1.EtcdClusterStatus) {
		if s.Rest.Stopped == nil {
			s.Rest.Stopped = newTime(p.Now)
			s.LastStop = roundedSince(p.Now, s.Stop.Began.Time)
		}
		if s.Stop.OnStop == v1alpha1.EtcdDelete {
			s.ClusterID = "" // somebody asked that nothing be kept
		}
		s.Stop = nil
	})
	p.reportStopped()
}
