package host

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

// maxOrphans is how many orphans of a disk are listed.
const maxOrphans = 64

// lookForOrphans lists directories of replicas that no object knows, and removes those that a person named on the Node.
func (r *epochRun) lookForOrphans(ctx context.Context, own *v1alpha1.Node) error {
	asked := strings.Split(own.Annotations[v1alpha1.RemoveOrphansAnnotation], ",")
	r.mu.Lock()
	var disks []*disk
	for _, d := range r.disks {
		if d.Ready {
			disks = append(disks, d)
		}
	}
	r.mu.Unlock()
	for _, d := range disks {
		orphans, err := r.orphans(ctx, d)
		if err != nil {
			return err
		}
		kept, unwanted := split(orphans, d.Name, asked)
		for _, name := range unwanted {
			if err := r.removeOrphan(d, name); err != nil {
				return err
			}
		}
		r.mu.Lock()
		d.Orphans = kept[:min(len(kept), maxOrphans)]
		r.mu.Unlock()
	}
	return nil
}

// split separates the orphans of a disk that a person named from the others.
func split(orphans []string, disk string, asked []string) (kept, unwanted []string) {
	for _, name := range orphans {
		if slices.Contains(asked, disk+"/"+name) {
			unwanted = append(unwanted, name)
		} else {
			kept = append(kept, name)
		}
	}
	return kept, unwanted
}

// orphans are the directories of a disk that no Replica knows, read live: a Replica that was made a moment ago may not have been seen yet.
func (r *epochRun) orphans(ctx context.Context, d *disk) ([]string, error) {
	found, err := replicaDirs(d.Path)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	known := func(list []v1alpha1.Replica) []string {
		return slices.DeleteFunc(slices.Clone(found), func(name string) bool {
			return slices.ContainsFunc(list, func(o v1alpha1.Replica) bool {
				return o.Spec.NodeName == r.opts.Node && dir(d.Path, &o) == filepath.Join(d.Path, replicasDir, name)
			})
		})
	}
	r.mu.Lock()
	var seen []v1alpha1.Replica
	for _, o := range r.others {
		seen = append(seen, *o)
	}
	r.mu.Unlock()
	if len(known(seen)) == 0 {
		return nil, nil
	}
	var live v1alpha1.ReplicaList
	if err := r.epoch.Client.List(ctx, &live); err != nil {
		return nil, err
	}
	return known(live.Items), nil
}

// replicaDirs are the directories of replicas on a disk, as VOLUME/REPLICA, sorted.
func replicaDirs(path string) ([]string, error) {
	volumes, err := os.ReadDir(filepath.Join(path, replicasDir))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []string
	for _, v := range volumes {
		entries, err := os.ReadDir(filepath.Join(path, replicasDir, v.Name()))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() && !store.IsLeftover(e.Name()) {
				list = append(list, v.Name()+"/"+e.Name())
			}
		}
	}
	return list, nil
}

func (r *epochRun) removeOrphan(d *disk, name string) error {
	if !r.epoch.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	path := filepath.Join(d.Path, replicasDir, name)
	if err := store.Remove(r.opts.FS, path); err != nil {
		return fmt.Errorf("remove orphan %s: %w", path, err)
	}
	r.opts.Log.Info("volume: orphan removed because a person asked for it", "path", path)
	return nil
}
