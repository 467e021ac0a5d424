package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// takeStall is how long a snapshot may make no progress. A member that computes its hash does not say how far it is: it has compareRate bytes
	// in a second besides.
	takeStall   = 10 * time.Minute
	compareRate = 4 << 20
	// memberLimit is how long the worker waits for a member that does not run.
	memberLimit = 15 * time.Second
)

// snapshotWorker does on this node what one EtcdSnapshot asks for, in one epoch. It takes the snapshot, keeps a verified copy, or
// deletes its copy.
type snapshotWorker struct {
	*epochRun
	*worker.Worker[*v1alpha1.EtcdSnapshot]
	key snapshot.Key

	// Only run uses what follows.
	checked bool      // the file was verified in this epoch
	waits   time.Time // since when the member does not run
}

func keyOfSnapshot(s *v1alpha1.EtcdSnapshot) snapshot.Key {
	return snapshot.Key{Dir: s.Spec.Dir, ClusterUID: s.Spec.ClusterUID, Name: s.Name}
}

// logged names a snapshot in logs.
func logged(s *v1alpha1.EtcdSnapshot) []any {
	return []any{"etcdcluster", s.Namespace + "/" + s.Spec.Cluster, "snapshot", s.Name}
}

func (r *epochRun) seeSnapshot(s *v1alpha1.EtcdSnapshot) {
	r.Host.mu.Lock()
	current := r.Host.running == r
	if current {
		r.snapshots[client.ObjectKeyFromObject(s)] = s
	}
	r.Host.mu.Unlock()
	if !current {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	w := r.workers[s.UID]
	if w == nil {
		w = &snapshotWorker{epochRun: r, Worker: worker.New[*v1alpha1.EtcdSnapshot](), key: keyOfSnapshot(s)}
		r.workers[s.UID] = w
		w.See(s)
		r.tasks.Go(func() { w.run(r.ctx, s.UID) })
	}
	w.See(s)
}

// forgetSnapshot ends the worker of a snapshot whose object is gone. The worker deletes the file if somebody asked for that.
func (r *epochRun) forgetSnapshot(s *v1alpha1.EtcdSnapshot) {
	r.Host.mu.Lock()
	if old := r.snapshots[client.ObjectKeyFromObject(s)]; old != nil && old.UID == s.UID {
		delete(r.snapshots, client.ObjectKeyFromObject(s))
	}
	r.Host.mu.Unlock()
	r.mu.Lock()
	w := r.workers[s.UID]
	delete(r.workers, s.UID)
	r.mu.Unlock()
	if w != nil {
		w.Delete(s.UID)
	}
}

// copyRetries are the delays before a copy that failed is tried again.
var copyRetries = backoff.Policy{First: 500 * time.Millisecond, Longest: 30 * time.Second}

func (w *snapshotWorker) run(ctx context.Context, uid types.UID) {
	defer w.setWorking(uid, false)
	w.Run(ctx, copyRetries, func() worker.Next {
		s, gone := w.Newest()
		if !gone {
			return worker.Next{In: worker.Forever, Err: w.step(ctx, s)}
		}
		if s.DeletionTimestamp == nil {
			// Nobody asked to delete it: somebody took the object away by force, or the API was restored from a backup that does not know it.
			w.opts.Log.Warn("EtcdSnapshot is gone but its file is kept on this node", logged(s)...)
			return worker.Next{Done: true}
		}
		if err := w.deleteFile(); err != nil && ctx.Err() == nil {
			w.opts.Log.Warn("could not delete a snapshot whose EtcdSnapshot is gone", append(logged(s), "error", err)...)
		}
		return worker.Next{Done: true}
	})
}

// step does what the object asks of this node now. After an error it is tried again.
func (w *snapshotWorker) step(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	switch {
	case s.DeletionTimestamp != nil:
		return w.delete(ctx, s)
	case s.Spec.TrialBytes > 0:
		return w.try(ctx, s)
	case s.Status.Facts == nil:
		return w.takeIfLocal(ctx, s)
	case slices.Contains(s.Spec.Nodes, w.opts.Node):
		return w.keep(ctx, s)
	}
	return w.dropSuperfluous(ctx, s)
}

// writeSnapshot changes the object's status.
func (r *epochRun) writeSnapshot(ctx context.Context, s *v1alpha1.EtcdSnapshot, change func(*v1alpha1.EtcdSnapshot) bool) error {
	err := update(ctx, r, s.DeepCopy(), change)
	if kubeclient.IsMissing(err) {
		return nil // the watch reports its deletion
	}
	return err
}

// writeCopy writes this node's entry in the object's copies: that its copy is verified, or why it is not.
func (r *epochRun) writeCopy(ctx context.Context, s *v1alpha1.EtcdSnapshot, bad error) error {
	entry := v1alpha1.EtcdSnapshotCopy{Node: r.opts.Node}
	if bad == nil {
		now := metav1.NowMicro()
		entry.Verified = &now
	} else {
		entry.Error = short(bad.Error(), 1024)
	}
	return r.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool { return setCopy(o, entry) })
}

// writeReceived writes how much of a copy has arrived on this node. What was wrong with it before stays.
func (r *epochRun) writeReceived(ctx context.Context, s *v1alpha1.EtcdSnapshot, bytes int64) {
	err := r.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
		entry, _ := o.Copy(r.opts.Node)
		entry.Node, entry.Received = r.opts.Node, bytes
		return setCopy(o, entry)
	})
	if err != nil {
		r.opts.Log.Debug("could not report how much of a snapshot has arrived", append(logged(s), "error", err)...)
	}
}

func setCopy(o *v1alpha1.EtcdSnapshot, entry v1alpha1.EtcdSnapshotCopy) bool {
	for i, c := range o.Status.Copies {
		if c.Node == entry.Node {
			if c.Error == entry.Error && (c.Room == nil) == (entry.Room == nil) && c.Received == entry.Received && (c.Verified == nil) == (entry.Verified == nil) && entry.Verified == nil {
				return false
			}
			o.Status.Copies[i] = entry
			return true
		}
	}
	o.Status.Copies = append(o.Status.Copies, entry)
	return true
}

// removeCopy removes this node's entry from the object's copies.
func (r *epochRun) removeCopy(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	return r.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
		before := len(o.Status.Copies)
		o.Status.Copies = slices.DeleteFunc(o.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return c.Node == r.opts.Node })
		return len(o.Status.Copies) != before
	})
}

// delete deletes this node's copy of a snapshot whose deletion was asked for.
func (w *snapshotWorker) delete(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	w.setWorking(s.UID, false)
	if err := w.deleteFile(); errors.Is(err, fleet.ErrLeaseInDoubt) {
		return err
	} else if err != nil {
		return errors.Join(err, w.writeCopy(ctx, s, err)) // whoever waits for the deletion sees why
	}
	return w.removeCopy(ctx, s)
}

// deleteFile deletes the file of a snapshot whose object is being deleted or is gone.
func (w *snapshotWorker) deleteFile() error {
	if !w.epoch.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	return w.store.Delete(w.key)
}

// acquireHeavy waits for one of the few places for tasks that read or write whole files.
func (r *epochRun) acquireHeavy(ctx context.Context) (release func(), err error) {
	select {
	case r.heavy <- struct{}{}:
		return func() { <-r.heavy }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// runHeavy runs such a task in a goroutine of its own and stops waiting for it when ctx ends: a slow disk must not delay a node whose
// lease is in doubt. From then on the task only writes to a temporary file that was deleted.
func (r *epochRun) runHeavy(ctx context.Context, work func() error) error {
	release, err := r.acquireHeavy(ctx)
	if err != nil {
		return err
	}
	return runAside(ctx, func() error {
		defer release()
		return work()
	})
}

// runAside does work that reads or writes a disk, and does not wait for it when the epoch ends: the disk may hang.
func runAside(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errMemberDown: the member of which a snapshot should be taken does not run on this node now.
var errMemberDown = errors.New("the member does not run")

// errMemberUp: the member of whose data a snapshot should be made still runs.
var errMemberUp = errors.New("the member has not stopped")

// takeIfLocal takes the snapshot if its member is on this node. It reports a failure and does not try again: the coordinator asks for
// another snapshot.
func (w *snapshotWorker) takeIfLocal(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	if s.Status.Error != "" {
		return nil
	}
	m := &v1alpha1.EtcdMember{}
	if err := w.epoch.Cache.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: s.Spec.Member}, m); err != nil {
		if kubeclient.IsMissing(err) {
			return nil // a newer version of the snapshot follows once the member is seen
		}
		return err
	}
	if m.Spec.Node != w.opts.Node || m.Spec.ClusterUID != s.Spec.ClusterUID {
		return nil
	}
	// The version that was last seen may be older than what this node wrote. A file must never be replaced once its facts are published.
	live := &v1alpha1.EtcdSnapshot{}
	if err := w.epoch.Client.Get(ctx, client.ObjectKeyFromObject(s), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	if live.UID != s.UID || live.Status.Facts != nil || live.Status.Error != "" || live.DeletionTimestamp != nil {
		return nil // the watch brings that version
	}
	s = live
	w.setWorking(s.UID, true)
	facts, err := w.take(ctx, s, m)
	if ctx.Err() != nil {
		w.setWorking(s.UID, false)
		return ctx.Err()
	}
	if errors.Is(err, errMemberDown) || errors.Is(err, errMemberUp) {
		if w.waits.IsZero() {
			w.waits = time.Now()
		}
		if time.Since(w.waits) < memberLimit {
			return err
		}
	}
	if err != nil {
		w.opts.Metrics.failed.WithLabelValues(stepTake).Inc()
		w.opts.Log.Warn("could not take snapshot", append(logged(s), "member", s.Spec.Member, "error", err)...)
		defer w.awaitOwnWrite(ctx, s.UID)
		return w.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
			if o.Status.Facts != nil || o.Status.Error != "" {
				return false
			}
			o.Status.Error, o.Status.Taking = short(err.Error(), 1024), nil
			return true
		})
	}
	w.checked = true
	now := metav1.NowMicro()
	err = w.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
		if o.Status.Facts != nil || o.DeletionTimestamp != nil {
			return false
		}
		o.Status.Facts, o.Status.Error, o.Status.Taking = facts, "", nil
		setCopy(o, v1alpha1.EtcdSnapshotCopy{Node: w.opts.Node, Verified: &now})
		return true
	})
	if err != nil {
		return err // the next step takes it again
	}
	w.opts.Log.Info("took snapshot", append(logged(s), "member", s.Spec.Member, "revision", facts.Revision, "bytes", facts.Size)...)
	w.awaitOwnWrite(ctx, s.UID)
	return nil
}

// awaitOwnWrite waits until the watch brings what this worker has just written. Until then the snapshot counts as being taken, so that
// Held never misses the only copy.
func (w *snapshotWorker) awaitOwnWrite(ctx context.Context, uid types.UID) {
	ctx, cancel := context.WithTimeout(ctx, nodeWriteLimit)
	defer cancel()
	w.Run(ctx, copyRetries, func() worker.Next {
		s, gone := w.Newest()
		return worker.Next{In: worker.Forever, Done: gone || s.Status.Facts != nil || s.Status.Error != "" || s.DeletionTimestamp != nil}
	})
	w.setWorking(uid, false)
	w.Wake()
}

func (h *Host) setWorking(uid types.UID, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if on {
		h.working[uid] = true
	} else {
		delete(h.working, uid)
	}
}

// take takes the snapshot through the member's private socket, verifies it and moves it to its final name.
func (w *snapshotWorker) take(ctx context.Context, s *v1alpha1.EtcdSnapshot, m *v1alpha1.EtcdMember) (*v1alpha1.EtcdSnapshotFacts, error) {
	began := time.Now()
	dir, err := memberDir(w.opts.Dir, m)
	if err != nil {
		return nil, err
	}
	from := w.takeLive
	if s.Spec.FromData {
		from = w.takeStopped
	}
	temp, err := w.store.Temp(w.key)
	if err != nil {
		return nil, fmt.Errorf("snapshot store: %w", err)
	}
	defer w.store.Discard(temp)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(takeStall, func() { cancel(fmt.Errorf("no progress for %s", takeStall)) })
	defer stall.Stop()
	facts := make(chan snapshot.Facts, 1)
	err = w.runHeavy(ctx, func() error {
		f, err := from(ctx, m, take{dir: dir, temp: temp, revision: s.Spec.Revision, tell: w.tellTaking(ctx, s, stall)})
		facts <- f
		return err
	})
	if err != nil {
		return nil, err
	}
	f := <-facts
	if err := w.store.Keep(w.key, temp); err != nil {
		return nil, fmt.Errorf("snapshot store: %w", err)
	}
	since(w.opts.Metrics.taken, began)
	return &v1alpha1.EtcdSnapshotFacts{
		Revision: f.Revision, Hash: int64(f.Hash), TotalKeys: f.TotalKeys, Size: f.Size, SHA256: f.SHA256, At: metav1.NewMicroTime(f.At),
	}, nil
}

// take is how one snapshot is taken.
type take struct {
	dir, temp string // of the member, and the file
	revision  int64  // that it must have, unless it is 0
	tell      snapshot.Progress
}

// tellTaking returns what a snapshot tells how far it is: it has time for more then, and now and then the object says so.
func (w *snapshotWorker) tellTaking(ctx context.Context, s *v1alpha1.EtcdSnapshot, stall *time.Timer) snapshot.Progress {
	began := time.Now()
	reported := began
	return func(step snapshot.Step, done, total int64) {
		limit, last := takeStall, reported
		if step == snapshot.Comparing { // it is told once
			limit += time.Duration(total/compareRate) * time.Second
			last = began
		}
		stall.Reset(limit)
		if time.Since(last) < cmp.Or(w.opts.ReceivedEvery, receivedEvery) {
			return
		}
		reported = time.Now()
		w.writeTaking(ctx, s, v1alpha1.EtcdSnapshotProgress{Step: string(step), Done: done, Total: total})
	}
}

// writeTaking writes how far a snapshot is.
func (r *epochRun) writeTaking(ctx context.Context, s *v1alpha1.EtcdSnapshot, p v1alpha1.EtcdSnapshotProgress) {
	err := r.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
		if o.Status.Facts != nil || o.Status.Error != "" || o.Status.Taking != nil && *o.Status.Taking == p {
			return false
		}
		o.Status.Taking = &p
		return true
	})
	if err != nil {
		r.opts.Log.Debug("could not report how far a snapshot is", append(logged(s), "error", err)...)
	}
}

// takeLive takes a snapshot of a member that runs.
func (w *snapshotWorker) takeLive(ctx context.Context, m *v1alpha1.EtcdMember, t take) (snapshot.Facts, error) {
	if !w.serves(m.UID) {
		return snapshot.Facts{}, errMemberDown
	}
	cli, err := member.Dial(t.dir)
	if err != nil {
		return snapshot.Facts{}, err
	}
	defer cli.Close()
	return snapshot.Take(ctx, cli, t.temp, t.revision, t.tell)
}

// takeStopped makes a snapshot of the data of a member that is stopped, in a process of its own: etcd's code ends the process when it cannot
// write.
func (w *snapshotWorker) takeStopped(ctx context.Context, m *v1alpha1.EtcdMember, t take) (snapshot.Facts, error) {
	if !w.rests(m.UID) {
		return snapshot.Facts{}, errMemberUp
	}
	child, err := member.Start(w.opts.Exe, member.Config{
		Dir: t.dir, Name: m.Name, ClusterUID: m.Spec.ClusterUID, Salvage: &member.Salvage{Work: filepath.Join(t.dir, member.SalvageName), Output: t.temp},
	}, w.opts.MemberArgs...)
	if err != nil {
		return snapshot.Facts{}, err
	}
	for running := true; running; {
		report, changed := child.Report()
		if p := report.Progress; p != nil {
			t.tell(p.Step, p.Done, p.Total)
		}
		select {
		case <-changed:
		case <-child.Done():
			running = false
		case <-ctx.Done():
			child.Kill()
			return snapshot.Facts{}, context.Cause(ctx)
		}
	}
	if r, _ := child.Report(); r.Facts != nil {
		return *r.Facts, nil
	}
	return snapshot.Facts{}, cmp.Or(child.Err(), errors.New("the process that read the member's data ended"))
}

// rests returns whether a member of this node is stopped.
func (h *Host) rests(uid types.UID) bool {
	h.mu.Lock()
	w := h.members[uid]
	h.mu.Unlock()
	return w != nil && w.reported().Phase == v1alpha1.EtcdMemberStopped
}

// serves returns whether a member runs on this node and is part of its cluster.
func (h *Host) serves(uid types.UID) bool {
	h.mu.Lock()
	w := h.members[uid]
	h.mu.Unlock()
	if w == nil {
		return false
	}
	phase := w.reported().Phase
	return phase == v1alpha1.EtcdMemberRunning || phase == v1alpha1.EtcdMemberSealed
}
