package etcdcluster

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// stop ends the process. The data stays, and so do the ports.
func (k *keeper) stop(a *era, m *v1alpha1.EtcdMember) error {
	k.stopChild()
	k.removed, k.failed, k.notYet, k.was = false, 0, time.Time{}, false
	if err := k.unlocked(); err != nil {
		return err
	}
	mark, err := readMarker(k.dir)
	if err == nil {
		err = mark.check(m, k.dir)
	}
	if err != nil {
		return err
	}
	if mark != nil && k.hold == nil {
		k.hold, _ = holdPorts(k.host.opts.Address, mark.PeerPort, mark.ClientPort) // connections that linger keep them too; again later
	}
	if k.phase() == v1alpha1.EtcdMemberStopped && k.settled(m) && k.data() == hasData(k.dir) {
		return nil
	}
	k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Error = v1alpha1.EtcdMemberStopped, 0, ""
		s.Data, s.DataBytes = hasData(k.dir), dataBytes(k.dir)
	})
	return nil
}

// settled says whether the status is for what the object says now.
func (k *keeper) settled(m *v1alpha1.EtcdMember) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status.ObservedGeneration == m.Generation
}

func (k *keeper) data() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status.Data
}

// unlocked says whether a process of an earlier node process still has the directory.
func (k *keeper) unlocked() error {
	lock, err := member.TryLock(k.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return lock.Close()
}

// remove ends the process and deletes the member's directory, after everything that rests on it was read live.
func (k *keeper) remove(a *era, m *v1alpha1.EtcdMember) error {
	if k.phase() == v1alpha1.EtcdMemberDeleted && k.settled(m) {
		return nil
	}
	if k.child != nil {
		k.child.Kill() // what it still had to write goes anyway
	}
	k.stopChild()
	live := &v1alpha1.EtcdMember{}
	ctx, cancel := context.WithTimeout(a.ctx, nodeWriteLimit)
	defer cancel()
	if err := a.e.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, live); err != nil {
		if kubeclient.IsMissing(err) {
			return nil // the watch will say so
		}
		return err
	}
	if live.UID != m.UID || live.Spec.Want != v1alpha1.EtcdMemberDelete || live.Spec.Node != k.host.opts.Node {
		return nil
	}
	if err := k.erase(live); err != nil {
		return err
	}
	k.hold.release()
	k.hold, k.mark = nil, nil
	k.say(live, a, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Error, s.Data, s.DataBytes = v1alpha1.EtcdMemberDeleted, 0, "", false, 0
	})
	return nil
}

// erase deletes the directory if it is this member's and nobody has it.
func (k *keeper) erase(m *v1alpha1.EtcdMember) error {
	if _, err := os.Stat(k.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := member.TryLock(k.dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	mark, err := readMarker(k.dir)
	if err == nil {
		err = mark.check(m, k.dir)
	}
	if err != nil {
		return err
	}
	if !k.host.may() {
		return errNodeInDoubt
	}
	return removeMember(k.host.opts.Dir, k.dir)
}

func (h *Host) may() bool { return h.current() != nil }
