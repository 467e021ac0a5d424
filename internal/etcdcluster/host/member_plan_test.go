package host

import (
	"errors"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// change changes what is observed.
type change func(*Observed)

// observed is a member that should be so, on a node that holds its lease, with no process, no data and no ports.
func observed(want v1alpha1.EtcdMemberWish, changes ...change) Observed {
	o := Observed{Certain: true, Generation: 2, Dir: "dir", Spec: v1alpha1.EtcdMemberSpec{Want: want, Begin: &v1alpha1.EtcdBegin{}}}
	for _, c := range changes {
		c(&o)
	}
	return o
}

func inDoubt(o *Observed)  { o.Certain = false }
func gone(o *Observed)     { o.Gone = true }
func admitted(o *Observed) { o.Admitted = true }
func withData(o *Observed) { o.Data = true }
func removed(o *Observed)  { o.Removed = true }
func exitedProcess(o *Observed) {
	o.Process, o.Admitted, o.Data, o.Acked = Exited, true, true, true
}

func reports(state member.State) change {
	return func(o *Observed) {
		o.Process, o.Admitted, o.Data, o.Acked, o.State = Live, true, true, true, state
	}
}
func toldToSeal(o *Observed)     { o.Sealed = true }
func unacknowledged(o *Observed) { o.Acked, o.Ordered = false, noon.Add(-time.Second) }
func hangs(o *Observed)          { o.Acked, o.Ordered = false, noon.Add(-orderLimit) }
func fromSnapshot(o *Observed)   { o.Spec.Begin.Snapshot = "s" }
func delayed(o *Observed)        { o.NotBefore = noon.Add(time.Second) }
func delayOver(o *Observed)      { o.NotBefore = noon }
func wasPart(o *Observed)        { o.Begun = true }
func phase(p v1alpha1.EtcdMemberPhase, generation int64) change {
	return func(o *Observed) { o.Phase, o.PhaseObserved = p, generation }
}

func TestTheNextStepOfAMember(t *testing.T) {
	const (
		reserve = v1alpha1.EtcdMemberReserve
		run     = v1alpha1.EtcdMemberRun
		seal    = v1alpha1.EtcdMemberSeal
		stop    = v1alpha1.EtcdMemberStop
		del     = v1alpha1.EtcdMemberDelete
	)
	foreign := func(o *Observed) { o.Foreign = errForeign }
	for _, c := range []struct {
		name string
		is   Observed
		want Step
	}{
		{"a new member gets ports", observed(reserve), Step{Do: Reserve}},
		{"a process that should not run any more ends", observed(reserve, reports(member.Serving)), Step{Do: Reserve}},

		{"a process enters the gate first", observed(run), Step{Do: Admit}},
		{"then it starts", observed(run, admitted), Step{Do: Start}},
		{"one that begins with a snapshot fetches it", observed(run, admitted, fromSnapshot), Step{Do: Fetch}},
		{"once", observed(run, admitted, fromSnapshot, func(o *Observed) { o.Fetched = true }), Step{Do: Start}},
		{"and not when it has data", observed(run, admitted, fromSnapshot, withData), Step{Do: Start}},
		{"without a beginning it fails", observed(run, func(o *Observed) { o.Spec.Begin = nil }), Step{Do: Fail, Err: errNoBegin}},
		{"data of another is not started", observed(run, foreign, withData), Step{Do: Fail, Err: errForeign}},
		{"a member does not listen at an address that its node lost", observed(run, admitted, withData, func(o *Observed) { o.Moved = errMoved }), Step{Do: Fail, Err: errMoved}},
		{"a process with another quota is started again", observed(run, reports(member.Serving), func(o *Observed) { o.Spec.QuotaBytes = 1 << 30 }), Step{Do: Renew}},
		{"required data that is missing is not made anew", observed(run, admitted, func(o *Observed) { o.Spec.DataRequired = true }), Step{Do: Fail, Err: errDataMissing}},
		{"nor that of a member whose marker has begun", observed(run, admitted, wasPart), Step{Do: Fail, Err: errDataMissing}},
		{"nor that of a member that has an ID", observed(run, admitted, func(o *Observed) { o.ID = "a1" }), Step{Do: Fail, Err: errDataMissing}},
		{"not even from a snapshot", observed(run, admitted, wasPart, fromSnapshot), Step{Do: Fail, Err: errDataMissing}},
		{"a member with its data starts again", observed(run, admitted, wasPart, withData), Step{Do: Start}},

		{"a process that starts is reported", observed(run, reports(member.Starting)), Step{Do: Publish, Phase: v1alpha1.EtcdMemberStarting}},
		{"a process that serves is reported", observed(run, reports(member.Serving)), Step{Do: Publish, Phase: v1alpha1.EtcdMemberRunning}},
		{"a process that serves is sealed", observed(seal, reports(member.Serving)), Step{Do: Seal}},
		{"the seal is reported when it is carried out", observed(seal, reports(member.Serving), toldToSeal, unacknowledged), Step{Do: Idle}},
		{"a process that hangs is started again", observed(seal, reports(member.Serving), toldToSeal, hangs), Step{Do: Renew, Err: errHangs}},
		{"also if it does not serve again", observed(run, reports(member.Sealed), hangs), Step{Do: Renew, Err: errHangs}},
		{"but not while it starts", observed(seal, reports(member.Starting), toldToSeal, hangs), Step{Do: Idle}},
		{"nor while nothing is certain", observed(seal, inDoubt, reports(member.Serving), toldToSeal, hangs), Step{Do: Idle}},
		{"and then it is", observed(seal, reports(member.Sealed), toldToSeal), Step{Do: Publish, Phase: v1alpha1.EtcdMemberSealed}},
		{"a sealed process serves again", observed(run, reports(member.Sealed), toldToSeal), Step{Do: Unseal}},
		{"a process that is about to end reports nothing", observed(run, reports(member.Failed)), Step{Do: Idle}},

		{"an exit is recorded", observed(run, exitedProcess), Step{Do: RecordExit}},
		{"the next start is delayed", observed(run, admitted, withData, delayed), Step{Do: Delay}},
		{"for as long as it was said", observed(run, admitted, withData, delayOver), Step{Do: Start}},
		{"a member that etcd removed is not started again", observed(seal, admitted, withData, removed), Step{Do: Retire}},

		{"a member stops", observed(stop, reports(member.Sealed), toldToSeal), Step{Do: Stop}},
		{"its exit counts as no failure", observed(stop, exitedProcess), Step{Do: Stop}},
		{"stopped data is looked at again", observed(stop, phase(v1alpha1.EtcdMemberStopped, 2)), Step{Do: Stop}},
		{"a member is deleted", observed(del, reports(member.Serving)), Step{Do: Erase}},
		{"for this version of the object", observed(del, phase(v1alpha1.EtcdMemberDeleted, 1)), Step{Do: Erase}},
		{"once", observed(del, phase(v1alpha1.EtcdMemberDeleted, 2)), Step{Do: Idle}},
		{"a worker without an object leaves", observed(run, gone, reports(member.Serving)), Step{Do: Leave}},
		{"whatever the lease", observed(run, gone, inDoubt), Step{Do: Leave}},

		{"in doubt what runs keeps running", observed(run, inDoubt, reports(member.Serving)), Step{Do: Idle}},
		{"in doubt nothing is sealed", observed(seal, inDoubt, reports(member.Serving)), Step{Do: Idle}},
		{"in doubt nothing is stopped", observed(stop, inDoubt, reports(member.Serving)), Step{Do: Idle}},
		{"in doubt nothing is deleted", observed(del, inDoubt, withData), Step{Do: Idle}},
		{"in doubt an exit is recorded", observed(run, inDoubt, exitedProcess), Step{Do: RecordExit}},
		{"in doubt what ran starts again", observed(run, inDoubt, admitted, withData), Step{Do: Restart}},
		{"in doubt it starts after the delay", observed(run, inDoubt, admitted, withData, delayed), Step{Do: Idle}},
		{"in doubt nothing new starts", observed(run, inDoubt, withData), Step{Do: Idle}},
		{"in doubt nothing begins", observed(run, inDoubt, admitted), Step{Do: Idle}},
		{"in doubt a removed member stays down", observed(run, inDoubt, admitted, withData, removed), Step{Do: Idle}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Next(c.is, noon)
			if got.Do != c.want.Do || got.Phase != c.want.Phase || !errors.Is(got.Err, c.want.Err) {
				t.Errorf("the next step is %+v, want %+v", got, c.want)
			}
		})
	}
}
