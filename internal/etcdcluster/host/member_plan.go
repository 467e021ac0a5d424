package host

import (
	"errors"
	"fmt"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

// Process is what a node knows of a member's process.
type Process int

// The states of a process.
const (
	// NoProcess: none was started, or its end was recorded.
	NoProcess Process = iota
	// Live: it runs.
	Live
	// Exited: it ended by itself, and that was not recorded yet.
	Exited
)

// Observed is what a node knows of one member when it decides what to do next.
type Observed struct {
	// Gone: the object was deleted.
	Gone bool
	// Certain: the node holds its lease. Otherwise it only keeps running what runs.
	Certain bool
	// Spec and Generation of the object, and the ID that the member reported once it was part of its cluster.
	Spec       v1alpha1.EtcdMemberSpec
	Generation int64
	ID         string

	// Process of the member here, whether the last order was to seal it, and whether it has carried that order out.
	Process       Process
	Sealed, Acked bool
	// Ordered is when that order was given.
	Ordered time.Time
	// State that the process reported last.
	State member.State
	// Quota that the process was started with.
	Quota int64
	// Removed: etcd removed the member from its cluster.
	Removed bool
	// Admitted: the node's gate counts the member.
	Admitted bool
	// NotBefore is when the process may be started again.
	NotBefore time.Time

	// Data: an etcd server has begun in the member's directory. Dir is that directory.
	Data bool
	Dir  string
	// Begun: according to the marker there, the member was once part of its cluster.
	Begun bool
	// Foreign is why the directory is not this member's; nil if it is, or if there is none.
	Foreign error
	// Moved is why the member cannot listen at its URLs; nil if it can.
	Moved error
	// Fetched: the snapshot that the member begins with is here.
	Fetched bool

	// Phase that was reported last, and the generation that it was reported for.
	Phase         v1alpha1.EtcdMemberPhase
	PhaseObserved int64
}

// Do is what a node does next about one member.
type Do string

// The steps.
const (
	// Idle: wait for something to change.
	Idle Do = "Idle"
	// Leave: the object is gone; end the process, keep the data, end the worker.
	Leave Do = "Leave"
	// RecordExit: record that the process ended by itself, and when it may be started again.
	RecordExit Do = "RecordExit"
	// Reserve: end the process, pick ports and hold them.
	Reserve Do = "Reserve"
	// Admit: reserve the ports and enter the node's gate.
	Admit Do = "Admit"
	// Fetch: find the snapshot that the member begins with, here or on another node.
	Fetch Do = "Fetch"
	// Start: start the process.
	Start Do = "Start"
	// Restart: start the process again from its data, without asking anybody: the lease is in doubt.
	Restart Do = "Restart"
	// Delay: report that the process is started later.
	Delay Do = "Delay"
	// Seal and Unseal: order the process to refuse clients, or to serve them.
	Seal   Do = "Seal"
	Unseal Do = "Unseal"
	// Renew: end the process, to start it with a changed option, or because it does not carry out its order (Step.Err).
	Renew Do = "Renew"
	// Publish: report the state of the process.
	Publish Do = "Publish"
	// Retire: end the process and report that etcd removed the member.
	Retire Do = "Retire"
	// Stop: end the process and report what data is left.
	Stop Do = "Stop"
	// Erase: end the process and delete the member's directory.
	Erase Do = "Erase"
	// Fail: report Step.Err.
	Fail Do = "Fail"
)

// Step is one thing to do, with the phase to publish or the error to report.
type Step struct {
	Do    Do
	Phase v1alpha1.EtcdMemberPhase
	Err   error
}

// errNoBegin: the coordinator asks for a process and the spec does not say how it begins.
var errNoBegin = errors.New("spec.begin is missing")

// Next returns what the node does next about a member. It has no effect of its own; each step is taken and everything is observed
// again.
//
//	want     steps                                                    phase at the end
//	Reserve  Reserve                                                  Reserved
//	Run      Admit, Fetch, Start, Publish; RecordExit, Delay, Start   Running
//	Seal     as Run, and Seal                                         Sealed
//	Stop     Stop                                                     Stopped
//	Delete   Erase                                                    Deleted
func Next(o Observed, now time.Time) Step {
	runs := o.Spec.Want == v1alpha1.EtcdMemberRun || o.Spec.Want == v1alpha1.EtcdMemberSeal
	switch {
	case o.Gone:
		return Step{Do: Leave}
	case o.Process == Exited && (runs || !o.Certain):
		return Step{Do: RecordExit}
	case !o.Certain:
		if runs && o.Process == NoProcess && o.Admitted && o.Data && !o.Removed && !now.Before(o.NotBefore) {
			return Step{Do: Restart}
		}
		return Step{Do: Idle}
	case runs && o.Removed:
		return Step{Do: Retire}
	case runs && o.Process == Live:
		return o.nextLive(now)
	case runs:
		return o.nextStart(now)
	}
	switch o.Spec.Want {
	case v1alpha1.EtcdMemberReserve:
		return Step{Do: Reserve}
	case v1alpha1.EtcdMemberStop:
		return Step{Do: Stop}
	case v1alpha1.EtcdMemberDelete:
		if o.Phase != v1alpha1.EtcdMemberDeleted || o.PhaseObserved != o.Generation {
			return Step{Do: Erase}
		}
	}
	return Step{Do: Idle}
}

// orderLimit is how long a process that is part of its cluster may take to carry out an order. It cancels
// the requests of clients after ten seconds. A process that hangs would keep a stop from ending, while no client is served.
const orderLimit = 30 * time.Second

// errHangs: the process does not carry out an order.
var errHangs = fmt.Errorf("the member's process did not carry out an order for %s", orderLimit)

// nextLive is for a process that runs and should.
func (o Observed) nextLive(now time.Time) Step {
	wantSealed := o.Spec.Want == v1alpha1.EtcdMemberSeal
	switch {
	case o.Quota != o.Spec.QuotaBytes:
		return Step{Do: Renew}
	case wantSealed && !o.Sealed:
		return Step{Do: Seal}
	case !wantSealed && o.Sealed:
		return Step{Do: Unseal}
	case !o.Acked && (o.State == member.Serving || o.State == member.Sealed) && now.Sub(o.Ordered) >= orderLimit:
		return Step{Do: Renew, Err: errHangs}
	case !o.Acked:
		return Step{Do: Idle} // while it starts it takes no orders
	}
	switch o.State {
	case member.Starting:
		return Step{Do: Publish, Phase: v1alpha1.EtcdMemberStarting}
	case member.Serving:
		return Step{Do: Publish, Phase: v1alpha1.EtcdMemberRunning}
	case member.Sealed:
		return Step{Do: Publish, Phase: v1alpha1.EtcdMemberSealed}
	}
	return Step{Do: Idle} // it is about to end
}

// nextStart is for a process that should run and does not. A member that was once part of its cluster never begins without its data:
// it might vote a second time for what it has forgotten.
func (o Observed) nextStart(now time.Time) Step {
	switch {
	case o.Spec.Begin == nil:
		return Step{Do: Fail, Err: errNoBegin}
	case now.Before(o.NotBefore):
		return Step{Do: Delay}
	case o.Foreign != nil:
		return Step{Do: Fail, Err: o.Foreign}
	case o.Moved != nil:
		return Step{Do: Fail, Err: o.Moved}
	case !o.Admitted:
		return Step{Do: Admit}
	case !o.Data && (o.Spec.DataRequired || o.Begun || o.ID != ""):
		return Step{Do: Fail, Err: fmt.Errorf("%w in %s", errDataMissing, o.Dir)}
	case !o.Data && o.Spec.Begin.Snapshot != "" && !o.Fetched:
		return Step{Do: Fetch}
	}
	return Step{Do: Start}
}
