package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// stopProcess ends the process and leaves the node's gate.
func (w *memberWorker) stopProcess() {
	if w.child != nil {
		w.child.Stop(context.Background())
		w.child = nil
	}
	w.discardRestore()
	if w.pass != nil {
		w.pass.Leave()
		w.pass = nil
	}
}

// leaveData ends the process of a member whose object is gone. Nobody asked to delete its data, so it stays.
func (w *memberWorker) leaveData(m *v1alpha1.EtcdMember) {
	w.stopProcess()
	if w.dir != "" && hasData(w.dir) {
		w.host.opts.Log.Warn("EtcdMember is gone but its data is still on this node; `ebb etcd orphans` lists it",
			"etcdcluster", clusterOf(m), "member", m.Name, "dir", w.dir)
	}
}

// stop ends the process. The data stays, and the ports stay held.
func (w *memberWorker) stop(epoch *epochRun, m *v1alpha1.EtcdMember) error {
	w.stopProcess()
	w.removed, w.failures, w.notBefore, w.ranBefore = false, 0, time.Time{}, false
	if err := w.checkUnlocked(); err != nil {
		return err
	}
	mark, err := readMarker(w.dir)
	if err == nil {
		err = mark.check(m, w.dir)
	}
	if err != nil {
		w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) { s.PID = 0 })
		return err
	}
	if mark != nil && w.hold == nil {
		w.hold, _ = holdPorts(w.host.opts.Address, mark.PeerPort, mark.ClientPort) // lingering connections keep them too; tried again later
	}
	was := w.reported()
	if was.Phase == v1alpha1.EtcdMemberStopped && was.ObservedGeneration == m.Generation && was.Data == hasData(w.dir) {
		return nil
	}
	log, unread := w.logEnd(m)
	w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Log, s.Error = v1alpha1.EtcdMemberStopped, 0, log, ""
		if unread != nil {
			s.Error = short(unread.Error(), 4096)
		}
		s.Data, s.DataBytes = hasData(w.dir), member.DataBytes(w.dir)
	})
	return nil
}

// logEnd reads how far the member's log goes, if the coordinator asks for that.
func (w *memberWorker) logEnd(m *v1alpha1.EtcdMember) (*v1alpha1.EtcdLog, error) {
	if !m.Spec.ReportLog || !hasData(w.dir) {
		return nil, nil
	}
	end, err := member.ReadLogEnd(w.dir)
	if err != nil {
		return nil, err
	}
	return &v1alpha1.EtcdLog{Term: int64(end.Term), Index: int64(end.Index), Commit: int64(end.Commit)}, nil
}

// checkUnlocked fails while a process that an earlier process of the node started still has the directory.
func (w *memberWorker) checkUnlocked() error {
	lock, err := member.TryLock(w.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return lock.Close()
}

// erase ends the process and deletes the member's directory, if the object as it is now still asks for that.
func (w *memberWorker) erase(epoch *epochRun, m *v1alpha1.EtcdMember) error {
	if w.child != nil {
		w.child.Kill() // what it has not written yet is deleted anyway
	}
	w.stopProcess()
	live := &v1alpha1.EtcdMember{}
	ctx, cancel := context.WithTimeout(epoch.ctx, nodeWriteLimit)
	defer cancel()
	if err := epoch.epoch.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, live); err != nil {
		if kubeclient.IsMissing(err) {
			return nil // the watch reports its deletion
		}
		return err
	}
	if live.UID != m.UID || live.Spec.Want != v1alpha1.EtcdMemberDelete || live.Spec.Node != w.host.opts.Node {
		return nil
	}
	if err := w.eraseDir(live); err != nil {
		if !errors.Is(err, member.ErrLocked) {
			w.report(live, epoch, func(s *v1alpha1.EtcdMemberStatus) { s.Phase, s.PID = v1alpha1.EtcdMemberStopped, 0 }) // the coordinator goes on with other members
		}
		return err
	}
	w.hold.release()
	w.hold, w.mark = nil, nil
	w.report(live, epoch, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Error, s.Data, s.DataBytes = v1alpha1.EtcdMemberDeleted, 0, "", false, 0
	})
	return nil
}

// eraseDir deletes the directory if it is this member's and no process has it. One that is another's, or of which nobody knows whose it is, stays:
// then there is nothing that is known to be this member's.
func (w *memberWorker) eraseDir(m *v1alpha1.EtcdMember) error {
	if _, err := os.Stat(w.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := member.TryLock(w.dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	mark, err := readMarker(w.dir)
	if err == nil {
		err = mark.check(m, w.dir)
	}
	if errors.Is(err, errForeign) {
		w.host.opts.Log.Warn("the directory of a deleted etcd member stays, because its marker is lost or another one's; `ebb etcd orphans` lists it",
			"etcdcluster", clusterOf(m), "member", m.Name, "error", err)
		return nil
	}
	if err != nil {
		return err
	}
	if w.host.current() == nil {
		return fleet.ErrLeaseInDoubt
	}
	return removeMember(w.host.opts.Dir, w.dir)
}
