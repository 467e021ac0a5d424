package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// A program whose object is gone was deleted, unless the store was: one that was restored from a backup does not know what is newer. The node
// remembers the newest version that it has seen, and keeps what an older store does not know, since the homes of programs are data.

// keptDir is where directories are moved that an older store does not know, beside the directory of all programs.
func (r *Runtime) keptDir() string { return r.opts.Dir + "-kept" }

func (r *Runtime) seenFile() string { return r.opts.Dir + "-seen.json" }

// seenVersion is the newest version of the store that a node has seen, as it is on the disk.
type seenVersion struct {
	Version uint64 `json:"version"`
}

// note remembers the version of an object. The caller holds the lock.
func (r *Runtime) note(version string) {
	if v, err := strconv.ParseUint(version, 10, 64); err == nil && v > r.seen {
		r.seen = v
	}
}

// writeSeen writes the newest version down, if it is new.
func (r *Runtime) writeSeen() error {
	r.mu.Lock()
	seen := r.seen
	r.mu.Unlock()
	if seen == r.seenOnDisk {
		return nil
	}
	data, err := json.Marshal(seenVersion{Version: seen})
	if err == nil {
		err = atomicfile.WriteSecret(r.seenFile(), data)
	}
	if err != nil {
		return fmt.Errorf("remember the version of the store: %w", err)
	}
	r.seenOnDisk = seen
	return nil
}

// compareStore finds out whether the store is older than what this node has seen before. From then on the node keeps what the store does not
// know, and counts from the version of this store.
func (r *run) compareStore(ctx context.Context) error {
	before := seenVersion{}
	data, err := os.ReadFile(r.seenFile())
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(data, &before); err != nil {
			return fmt.Errorf("%s: %w", r.seenFile(), err)
		}
	}
	var list v1alpha1.DeploymentList
	if err := r.e.Client.List(ctx, &list, client.Limit(1)); err != nil {
		return err
	}
	now, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("version of the store: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now < before.Version {
		r.older = true
		r.opts.Log.Error("the store is older than what this node has seen: programs that it does not know are stopped, and their files are kept",
			"version", now, "seen", before.Version, "kept", r.keptDir())
	}
	r.seen, r.seenOnDisk = now, before.Version
	return nil
}

// keep moves a directory of a program aside.
func (r *Runtime) keep(key types.NamespacedName, dir string) error {
	to := filepath.Join(r.keptDir(), key.Namespace, fmt.Sprintf("%s-%d", key.Name, time.Now().UnixNano()))
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Rename(dir, to); err != nil {
		return err
	}
	r.opts.Log.Warn("kept the files of a program that the store does not know; remove them when nobody needs them", "deployment", key.String(), "files", to)
	return nil
}

// keptUsers are the user ids of what was kept.
func (r *Runtime) keptUsers(taken map[uint32]bool) {
	dirs, _ := filepath.Glob(filepath.Join(r.keptDir(), "*", "*"))
	for _, dir := range dirs {
		if o := readOwnUser(dir); o != nil {
			taken[o.UID] = true
		}
	}
}
