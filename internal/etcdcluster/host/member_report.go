package host

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/worker"
)

// report changes the status that is published, for a version of the object in an epoch.
func (w *memberWorker) report(m *v1alpha1.EtcdMember, epoch *epochRun, change func(*v1alpha1.EtcdMemberStatus)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.status)
	w.status.ObservedGeneration, w.status.NodeEpoch = m.Generation, epoch.epoch.Number
	w.publishes.Wake()
}

// reportFailure reports an error. Where trying again does not help, the phase is Failed.
func (w *memberWorker) reportFailure(epoch *epochRun, m *v1alpha1.EtcdMember, err error) {
	final := errors.Is(err, errForeign) || errors.Is(err, errDataMissing) || errors.Is(err, errMoved)
	w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) {
		s.Error = short(err.Error(), 4096)
		switch {
		case final:
			s.Phase, s.PID = v1alpha1.EtcdMemberFailed, 0
			s.Data = hasData(w.dir)
			if s.Moved = nil; errors.Is(err, errMoved) {
				s.Moved = w.movedTo(m)
			}
		case s.Phase == "":
			s.Phase = v1alpha1.EtcdMemberPending
		case runs(m) && s.Phase != v1alpha1.EtcdMemberPending && s.Phase != v1alpha1.EtcdMemberReserved && w.child == nil:
			s.Phase, s.PID = v1alpha1.EtcdMemberStarting, 0
		}
	})
}

// progressStep is how much data has to arrive for another report while a member starts.
const progressStep = 16 << 20

// publishState reports the state of the process. Once the member is part of its cluster, that is recorded in the marker, and what was
// fetched for its start is deleted.
func (w *memberWorker) publishState(epoch *epochRun, m *v1alpha1.EtcdMember, phase v1alpha1.EtcdMemberPhase) error {
	r, _ := w.child.Report()
	joined := phase != v1alpha1.EtcdMemberStarting
	if joined {
		w.unheard = 0
		w.discardRestore()
	}
	if joined && !w.mark.Begun {
		w.mark.Begun = true
		if err := w.mark.write(w.dir); err != nil {
			w.mark.Begun = false
			return err
		}
	}
	w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Data = phase, int64(w.child.PID()), hasData(w.dir)
		if !joined {
			s.DataBytes = member.DataBytes(w.dir) / progressStep * progressStep // so that people and the coordinator see data arrive
		}
		if joined {
			s.ID, s.ClusterID, s.Error = r.ID, r.ClusterID, ""
		}
	})
	return nil
}

// publish writes the status whenever it differs from that of the object.
func (w *memberWorker) publish(ctx context.Context) {
	w.publishes.Run(ctx, publishRetries, func() worker.Next { return worker.Next{In: worker.Forever, Err: w.write(ctx)} })
}

// keepURLs leaves published URLs as they are, unless the member has moved to where the spec lets it. A worker that has not reserved the ports yet
// does not know them.
func keepURLs(next *v1alpha1.EtcdMemberStatus, o *v1alpha1.EtcdMember) {
	if o.Status.PeerURL != "" && (next.PeerURL == "" || next.PeerURL != o.Spec.PeerURL) {
		next.PeerURL, next.ClientURL = o.Status.PeerURL, o.Status.ClientURL
	}
}

func (w *memberWorker) write(ctx context.Context) error {
	m, gone := w.Newest()
	epoch := w.host.current()
	if gone || epoch == nil {
		return nil
	}
	err := update(ctx, epoch, m.DeepCopy(), func(o *v1alpha1.EtcdMember) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.status.ObservedGeneration == 0 || w.status.NodeEpoch != epoch.epoch.Number {
			return false // nothing was observed in this epoch yet
		}
		next := w.status
		keepURLs(&next, o)
		if equality.Semantic.DeepEqual(o.Status, next) {
			return false
		}
		o.Status = next
		return true
	})
	if kubeclient.IsMissing(err) {
		return nil // the watch reports its deletion
	}
	return err
}
