package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/worker"
)

// lookEvery is how often a worker looks at a replica though nothing woke it.
const lookEvery = 5 * time.Second

// replicaWorker looks after one replica on this node.
type replicaWorker struct {
	*worker.Worker[*v1alpha1.Replica]
	h *Host

	mu    sync.Mutex
	store *store.Store // nil while it is not open
}

// replicasDir is the directory of all replicas on a disk.
const replicasDir = "replicas"

// dir is where a replica is on its disk.
func dir(root string, r *v1alpha1.Replica) string {
	return filepath.Join(root, replicasDir, r.Namespace+"-"+r.Spec.VolumeName+"-"+r.Spec.VolumeUID[:min(8, len(r.Spec.VolumeUID))], r.Name)
}

func identity(r *v1alpha1.Replica) store.Identity {
	return store.Identity{Volume: r.Namespace + "/" + r.Spec.VolumeName, VolumeUID: r.Spec.VolumeUID, Replica: r.Name, Size: r.Spec.SizeBytes}
}

// follow looks after the replica in one epoch.
func (w *replicaWorker) follow(ctx context.Context, r *epochRun) {
	w.Run(ctx, backoff.Policy{First: 100 * time.Millisecond, Longest: lookEvery}, func() worker.Next {
		err := w.look(ctx, r)
		if err != nil && ctx.Err() == nil {
			w.h.opts.Log.Warn("volume: replica not brought up to date", "replica", key(w.newest()), "error", err)
		}
		return worker.Next{In: lookEvery, Err: err}
	})
}

func (w *replicaWorker) newest() *v1alpha1.Replica {
	r, _ := w.Newest()
	return r
}

// look does what the object asks for, and reports how the replica is.
func (w *replicaWorker) look(ctx context.Context, r *epochRun) error {
	object := w.newest()
	if object.DeletionTimestamp != nil {
		return w.remove(ctx, r, object)
	}
	next := object.Status
	d := w.h.disk(object.Spec.Disk)
	switch {
	case d == nil:
		w.failed(&next, fmt.Sprintf("node %s has no disk %s", w.h.opts.Node, object.Spec.Disk))
	case !d.Ready:
		w.failed(&next, fmt.Sprintf("disk %s: %s", d.Name, d.Message))
	case next.DiskUUID != "" && next.DiskUUID != d.UUID:
		w.failed(&next, fmt.Sprintf("disk %s is not the one on which the replica was created: its UUID is %s, and was %s", d.Name, d.UUID, next.DiskUUID))
	default:
		if err := w.ensure(ctx, r, object, d, &next); err != nil {
			return err
		}
	}
	return w.report(ctx, r, object, next)
}

// failed notes that the replica cannot be used. One that was never made only waits.
func (w *replicaWorker) failed(status *v1alpha1.ReplicaStatus, message string) {
	status.State, status.Message = v1alpha1.ReplicaFailed, shortened(message)
	if !status.Created {
		status.State = v1alpha1.ReplicaPending
	}
}

// ensure makes the directory of a replica that was never made, and opens it.
func (w *replicaWorker) ensure(ctx context.Context, r *epochRun, object *v1alpha1.Replica, d *disk, next *v1alpha1.ReplicaStatus) error {
	path := dir(d.Path, object)
	if !next.Created {
		if err := w.create(ctx, r, path, object); err != nil {
			w.failed(next, err.Error())
			return nil
		}
		next.Created, next.DiskUUID = true, d.UUID
	}
	s, err := w.open(path, object)
	if err == nil {
		err = store.Present(w.h.opts.FS, path) // it is not closed: what it has is lost then, and it may be the last copy
	}
	if err != nil {
		w.failed(next, err.Error())
		return nil
	}
	is := s.State()
	next.State, next.Message, next.Generation, next.Incomplete = v1alpha1.ReplicaReady, "", is.Generation, is.Syncing
	return nil
}

// create makes the directory. A node that takes no new work refuses.
func (w *replicaWorker) create(_ context.Context, r *epochRun, path string, object *v1alpha1.Replica) error {
	pass, err := w.h.opts.Gate.Enter(KindReplicas)
	if err != nil {
		return err
	}
	defer pass.Leave() // from here on the object counts
	if !r.epoch.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	err = store.Create(w.h.opts.FS, path, identity(object), w.h.opts.BootID)
	if errors.Is(err, fs.ErrExist) {
		return nil // made before by a node whose report is lost; what is in there says the rest
	}
	return err
}

// open opens the store, or returns the one that is open. One on which a sync failed is opened anew.
func (w *replicaWorker) open(path string, object *v1alpha1.Replica) (*store.Store, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.store != nil && w.store.Failure() == nil {
		return w.store, nil
	}
	if w.store != nil {
		_ = w.store.Close() // its failure was told already
		w.store = nil
	}
	s, err := store.Open(w.h.opts.FS, path, identity(object), w.h.opts.BootID)
	if err != nil {
		return nil, err
	}
	w.store = s
	return s, nil
}

// close lets the store go.
func (w *replicaWorker) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.store == nil {
		return nil
	}
	err := w.store.Close()
	w.store = nil
	return err
}

// opened returns the store if it is open.
func (w *replicaWorker) opened() *store.Store {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.store
}

// remove removes the directory of a replica that is being deleted, unless its volume still counts on it.
func (w *replicaWorker) remove(ctx context.Context, r *epochRun, object *v1alpha1.Replica) error {
	if object.Status.State == v1alpha1.ReplicaRemoved {
		return nil
	}
	volume := &v1alpha1.Volume{}
	err := r.epoch.Client.Get(ctx, types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.VolumeName}, volume)
	if err != nil && !kubeclient.IsMissing(err) {
		return err
	}
	if err != nil {
		volume = nil
	}
	if err := mayRemove(volume, object, object.Status.Generation); err != nil {
		return err
	}
	next := object.Status
	d := w.h.disk(object.Spec.Disk)
	if (d == nil || !d.Ready) && !next.Created {
		next.State, next.Message = v1alpha1.ReplicaRemoved, "" // it was never made; if its report was lost, the directory is an orphan
		return w.report(ctx, r, object, next)
	}
	if d == nil || !d.Ready {
		next.Message = fmt.Sprintf("disk %s is not there: the directory of the replica cannot be removed", object.Spec.Disk)
		return w.report(ctx, r, object, next)
	}
	path := dir(d.Path, object)
	found, err := store.Inspect(w.h.opts.FS, path)
	if err == nil && found.Identity != identity(object) {
		return fmt.Errorf("%w: %s", block.ErrForeign, path)
	}
	if err := mayRemove(volume, object, found.State.Generation); err != nil {
		next.Generation, next.Message = found.State.Generation, shortened(err.Error())
		return errors.Join(err, w.report(ctx, r, object, next))
	}
	if err := w.close(); err != nil {
		w.h.opts.Log.Warn("volume: closing a replica that is being removed", "replica", key(object), "error", err)
	}
	if !r.epoch.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	if err := store.Remove(w.h.opts.FS, path); err != nil {
		return err
	}
	w.h.opts.Log.Info("volume: replica removed", "replica", key(object), "path", path)
	next.State, next.Message = v1alpha1.ReplicaRemoved, ""
	return w.report(ctx, r, object, next)
}

// mayRemove fails if the data of a replica has to stay although the replica is being deleted: its volume counts on it, or the store is older than the
// data. Who deletes the whole volume wants none of it. The volume is nil if it is gone.
func mayRemove(v *v1alpha1.Volume, r *v1alpha1.Replica, generation int64) error {
	switch {
	case v == nil || string(v.UID) != r.Spec.VolumeUID:
	case slices.Contains(v.Status.Members, r.Name):
		return fmt.Errorf("volume %s still has replica %s as a member", key(v), r.Name)
	case v.DeletionTimestamp == nil && generation > v.Status.Generation:
		return fmt.Errorf("replica %s has generation %d, and volume %s only generation %d: the store is older than the data, so the replica is not removed", r.Name, generation, key(v), v.Status.Generation)
	}
	return nil
}

// report writes the part of the status that belongs to the node, if it changed.
func (w *replicaWorker) report(ctx context.Context, r *epochRun, object *v1alpha1.Replica, next v1alpha1.ReplicaStatus) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	err := kubeclient.ChangeStatus(ctx, r.epoch.Client, object.DeepCopy(), func(o *v1alpha1.Replica) (bool, error) {
		s := &o.Status
		if s.State == next.State && s.Created == next.Created && s.DiskUUID == next.DiskUUID && s.Generation == next.Generation && s.Incomplete == next.Incomplete && s.Message == next.Message && s.NodeEpoch == r.epoch.Number {
			return false, nil
		}
		s.State, s.Created, s.DiskUUID, s.Generation, s.Incomplete, s.Message, s.NodeEpoch = next.State, next.Created, next.DiskUUID, next.Generation, next.Incomplete, next.Message, r.epoch.Number
		return true, r.epoch.Check()
	})
	return client.IgnoreNotFound(err)
}

// disk is one of the node's disks, or nil.
func (h *Host) disk(name string) *disk {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.disks[name]
}
