package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// keep keeps a verified copy on this node.
func (w *snapshotWorker) keep(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	there, err := w.store.Has(w.key)
	if err != nil {
		return err
	}
	if _, verified := s.Copy(w.opts.Node); there && verified && w.checked {
		return nil
	}
	if there {
		if err = w.verify(ctx, s); err == nil {
			w.checked = true
			return w.writeCopy(ctx, s, nil)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := w.writeCopy(ctx, s, err); err != nil {
			return err
		}
	} else if copy, verified := s.Copy(w.opts.Node); verified || copy.Node == "" && len(s.Verified()) == 0 {
		err = errors.New("the file is missing")
		if werr := w.writeCopy(ctx, s, err); werr != nil {
			return werr
		}
	}
	return w.copyHere(ctx, s, err)
}

// try says whether this node could keep a copy: it reserves the room and gives it back, and reaches the node that would take the snapshot.
func (w *snapshotWorker) try(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	if c, _ := s.Copy(w.opts.Node); c.Node != "" || !slices.Contains(s.Spec.Nodes, w.opts.Node) {
		return nil
	}
	err := w.canKeep(ctx, s)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	entry := v1alpha1.EtcdSnapshotCopy{Node: w.opts.Node}
	if err != nil {
		entry.Error = short(err.Error(), 1024)
	} else {
		entry.Room = new(metav1.NowMicro())
	}
	return w.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool { return setCopy(o, entry) })
}

// canKeep returns why this node could not keep a copy; nil if it could. It does not wait for its turn among those that read and write whole files: an
// answer that is late counts as none. But trials reserve room one after another: together they could take the last of the disk from members.
func (w *snapshotWorker) canKeep(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	select {
	case w.trials <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	err := runAside(ctx, func() error {
		defer func() { <-w.trials }()
		return w.store.Reserve(w.key, s.Spec.TrialBytes)
	})
	if err != nil || s.Spec.MemberNode == w.opts.Node {
		return err
	}
	if err := w.reach(ctx, s.Spec.MemberNode, s); err != nil {
		return fmt.Errorf("node %s does not answer: %w", s.Spec.MemberNode, err)
	}
	return nil
}

// verify compares the size and the checksum of this node's file with those that were recorded.
func (r *epochRun) verify(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	path, err := r.store.Path(keyOfSnapshot(s))
	if err != nil {
		return err
	}
	err = r.runHeavy(ctx, func() error { return snapshot.Verify(path, s.Status.Facts.Size, s.Status.Facts.SHA256) })
	if errors.Is(err, snapshot.ErrTampered) {
		r.opts.Metrics.failed.WithLabelValues(stepVerify).Inc()
		r.opts.Log.Error("snapshot file differs from what was recorded", append(logged(s), "error", err)...)
	}
	return err
}

// errNoCopy: there is no node to fetch a copy from.
var errNoCopy = errors.New("no other node has a verified copy")

// copyHere fetches a copy from another node. A bad file on this node is replaced only by a verified one.
func (w *snapshotWorker) copyHere(ctx context.Context, s *v1alpha1.EtcdSnapshot, bad error) error {
	began := time.Now()
	temp, err := w.store.Temp(w.key)
	if err == nil {
		defer w.store.Discard(temp)
		err = w.runHeavy(ctx, func() error { return w.fetch(ctx, s, temp, func(n int64) { w.writeReceived(ctx, s, n) }) })
	}
	if err == nil {
		err = w.store.Keep(w.key, temp)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		w.opts.Metrics.failed.WithLabelValues(stepCopy).Inc()
		return errors.Join(err, w.writeCopy(ctx, s, errors.Join(bad, err)))
	}
	since(w.opts.Metrics.copied, began)
	w.checked = true
	w.opts.Log.Info("copied snapshot to this node", append(logged(s), "bytes", s.Status.Facts.Size)...)
	return w.writeCopy(ctx, s, nil)
}

// fetch fetches a copy from the nodes that have a verified one, in random order, until one succeeds.
func (r *epochRun) fetch(ctx context.Context, s *v1alpha1.EtcdSnapshot, temp string, arrived func(bytes int64)) error {
	from := slices.DeleteFunc(s.Verified(), func(n string) bool { return n == r.opts.Node })
	rand.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	err := errNoCopy
	for i, name := range from {
		if i == 0 {
			err = nil
		}
		one := r.fetchFrom(ctx, name, s, temp, arrived)
		if one == nil {
			return nil
		}
		err = errors.Join(err, fmt.Errorf("from node %s: %w", name, one))
	}
	return err
}

// dropSuperfluous deletes a copy that this node should not keep, once a node that should keep one has a verified copy and is there.
func (w *snapshotWorker) dropSuperfluous(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	there, err := w.store.Has(w.key)
	if err != nil {
		return err
	}
	if !there {
		return w.removeCopy(ctx, s)
	}
	live := &v1alpha1.EtcdSnapshot{}
	ask, cancel := context.WithTimeout(ctx, nodeWriteLimit)
	defer cancel()
	if err := w.epoch.Client.Get(ask, client.ObjectKeyFromObject(s), live); err != nil {
		if kubeclient.IsMissing(err) {
			return nil // the watch reports its deletion
		}
		return err
	}
	if live.UID != s.UID || slices.Contains(live.Spec.Nodes, w.opts.Node) {
		return nil // the next change is seen
	}
	if kept, err := w.keptElsewhere(ask, live); err != nil || !kept {
		return err // the next change of the copies is seen
	}
	if !w.epoch.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	if err := w.store.Delete(w.key); err != nil {
		return err
	}
	return w.removeCopy(ctx, live)
}

// errKeepersAway: the nodes that should keep a copy, and according to the record have a verified one, are absent.
var errKeepersAway = errors.New("no node that should keep a copy and has one is there")

// keptElsewhere returns whether another node that should keep a verified copy has one. It fails with errKeepersAway if none of these holds its lease:
// what is recorded of an absent node may be gone with it.
func (w *snapshotWorker) keptElsewhere(ctx context.Context, s *v1alpha1.EtcdSnapshot) (kept bool, err error) {
	for _, n := range s.Verified() {
		if n == w.opts.Node || !slices.Contains(s.Spec.Nodes, n) {
			continue
		}
		rec, failed := fleet.ReadLease(ctx, w.epoch.Client, n)
		if failed != nil {
			return false, failed
		}
		if rec.Held() {
			return true, nil
		}
		err = errKeepersAway
	}
	return false, err
}

// restoreSource returns the snapshot that a member begins with: this node's copy, or one that is fetched for the member. The caller
// calls discard after use, which deletes what was fetched.
func (r *epochRun) restoreSource(ctx context.Context, m *v1alpha1.EtcdMember, arrived func(bytes int64)) (restore *member.Restore, discard func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	s := &v1alpha1.EtcdSnapshot{}
	if err := r.epoch.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.Begin.Snapshot}, s); err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", m.Spec.Begin.Snapshot, err)
	}
	if s.Spec.ClusterUID != m.Spec.ClusterUID {
		return nil, nil, fmt.Errorf("snapshot %s belongs to another cluster", s.Name)
	}
	if s.Status.Facts == nil {
		return nil, nil, fmt.Errorf("snapshot %s has not been taken", s.Name)
	}
	path, discard, err := r.goodCopy(ctx, s, arrived)
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", s.Name, err)
	}
	return &member.Restore{Path: path, Size: s.Status.Facts.Size, SHA256: s.Status.Facts.SHA256, Exact: m.Spec.Begin.Exact}, discard, nil
}

// goodCopy returns the path of a file that is verified.
func (r *epochRun) goodCopy(ctx context.Context, s *v1alpha1.EtcdSnapshot, arrived func(bytes int64)) (path string, discard func(), err error) {
	key := keyOfSnapshot(s)
	if path, err = r.store.Path(key); err != nil {
		return "", nil, err
	}
	bad := r.verify(ctx, s)
	switch {
	case bad == nil:
		return path, func() {}, nil
	case errors.Is(bad, snapshot.ErrTampered):
		if err := r.writeCopy(ctx, s, bad); err != nil {
			return "", nil, err
		}
	case errors.Is(bad, fs.ErrNotExist):
		bad = nil
	default:
		return "", nil, bad
	}
	if path, err = r.store.Temp(key); err != nil {
		return "", nil, err
	}
	if err := r.runHeavy(ctx, func() error { return r.fetch(ctx, s, path, arrived) }); err != nil {
		r.store.Discard(path)
		return "", nil, errors.Join(bad, err)
	}
	return path, func() { r.store.Discard(path) }, nil
}
