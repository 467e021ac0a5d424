package host

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/fleet"
)

const (
	// orphansEvery is how often a node looks for data that no object knows.
	orphansEvery = 5 * time.Second
	// maxOrphans is how much of it is listed.
	maxOrphans = 64
)

// orphan is a directory of a member or a file of a snapshot that no object knows. The objects may be what is out of date, so it is kept until
// a person names it. Its name has the time at which it was made, so that what gets the same path later is not meant.
type orphan struct {
	name string
	path string
	key  snapshot.Key // of a snapshot
}

func orphanName(kind, path string, written time.Time) string {
	return fmt.Sprintf("%s/%s@%d", kind, path, written.Unix())
}

// watchOrphans lists orphans until ctx ends.
func (r *epochRun) watchOrphans(ctx context.Context) {
	for {
		if err := r.lookForOrphans(ctx); err != nil && ctx.Err() == nil {
			r.opts.Log.Warn("could not look for data of etcd clusters that no object knows", "error", err)
		}
		if backoff.Sleep(ctx, orphansEvery) != nil {
			return
		}
	}
}

// lookForOrphans lists what no object knows, and removes what a person named on the Node.
func (r *epochRun) lookForOrphans(ctx context.Context) error {
	found, err := r.findOrphans(ctx)
	if err != nil {
		return err
	}
	var asked []string
	if len(found) > 0 {
		own := &v1alpha1.Node{}
		if err := r.epoch.Client.Get(ctx, types.NamespacedName{Name: r.opts.Node}, own); err != nil {
			return err
		}
		asked = strings.Split(own.Annotations[v1alpha1.RemoveEtcdOrphansAnnotation], ",")
	}
	var kept []string
	for _, o := range found {
		if !slices.Contains(asked, o.name) {
			kept = append(kept, o.name)
			continue
		}
		if err := r.removeOrphan(o); err != nil {
			return fmt.Errorf("remove %s: %w", o.path, err)
		}
		r.opts.Log.Info("removed data that no object knows, because a person asked for it", "path", o.path)
	}
	slices.Sort(kept)
	r.Host.mu.Lock()
	r.Host.orphans = kept[:min(len(kept), maxOrphans)]
	r.Host.mu.Unlock()
	return nil
}

// findOrphans compares what is on the disk with the objects: first as they were last seen, and if anything is missing there, read live.
func (r *epochRun) findOrphans(ctx context.Context) ([]orphan, error) {
	list, err := r.unknown(ctx, r.epoch.Cache)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return r.unknown(ctx, r.epoch.Client)
}

func (r *epochRun) unknown(ctx context.Context, objects client.Reader) ([]orphan, error) {
	var members v1alpha1.EtcdMemberList
	if err := objects.List(ctx, &members); err != nil {
		return nil, err
	}
	var snapshots v1alpha1.EtcdSnapshotList
	if err := objects.List(ctx, &snapshots); err != nil {
		return nil, err
	}
	list, err := r.unknownMembers(members.Items)
	if err != nil {
		return nil, err
	}
	files, err := r.store.List()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		known := f.Temp || slices.ContainsFunc(snapshots.Items, func(s v1alpha1.EtcdSnapshot) bool { return keyOfSnapshot(&s) == f.Key })
		if !known {
			path := filepath.Join(f.Key.Dir, f.Key.ClusterUID, f.Key.Name)
			list = append(list, orphan{name: orphanName("snapshot", path, f.Written), path: f.Path, key: f.Key})
		}
	}
	return list, nil
}

// unknownMembers are the directories of members that have no object. One without a marker that says whose it is belongs to nobody only while no object
// has the path.
func (r *epochRun) unknownMembers(members []v1alpha1.EtcdMember) (list []orphan, err error) {
	for _, pattern := range []string{"*/*", "*/*/*"} {
		dirs, err := fs.Glob(os.DirFS(r.opts.Dir), pattern)
		if err != nil {
			return nil, err
		}
		for _, rel := range dirs {
			dir := filepath.Join(r.opts.Dir, rel)
			written, there := memberWritten(dir)
			if !there {
				continue
			}
			mark, err := readMarker(dir)
			known := slices.ContainsFunc(members, func(m v1alpha1.EtcdMember) bool {
				own, failed := memberDir(r.opts.Dir, &m)
				return failed == nil && own == dir && m.Spec.Node == r.opts.Node && (mark == nil || err == nil && mark.check(&m, dir) == nil)
			})
			if !known {
				list = append(list, orphan{name: orphanName("member", rel, written), path: dir})
			}
		}
	}
	return list, nil
}

// memberWritten returns when the directory of a member was made, and whether it is one: it has a marker, or data.
func memberWritten(dir string) (at time.Time, there bool) {
	for _, path := range []string{filepath.Join(dir, markerName), filepath.Join(member.Data(dir), "member", "wal")} {
		if info, err := os.Stat(path); err == nil && (filepath.Base(path) == markerName || hasData(dir)) {
			return info.ModTime(), true
		}
	}
	return time.Time{}, false
}

// removeOrphan deletes an orphan, unless a process has it.
func (r *epochRun) removeOrphan(o orphan) error {
	if !r.epoch.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	if o.key != (snapshot.Key{}) {
		return r.store.Delete(o.key)
	}
	lock, err := member.TryLock(o.path)
	if err != nil {
		return err
	}
	defer lock.Close()
	return removeMember(r.opts.Dir, o.path)
}

// Report implements node.Reporter.
func (d data) Report(status *v1alpha1.NodeStatus) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running != nil {
		status.EtcdOrphans = slices.Clone(d.orphans)
	}
}

// uidOf is the UID of the object that a marker was written for; those of former versions have none.
func (k *marker) uidOf(m *v1alpha1.EtcdMember) string { return cmp.Or(k.UID, string(m.UID)) }
