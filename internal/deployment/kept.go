package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/worker"
)

// A program whose object is gone was deleted, unless the store went back: one that was restored from a backup, or is another one, does not
// know what is newer. The node's History tells. What such a store does not know is kept: the homes of programs are data.

// keptDir is where the directories are moved that the store does not know, and trashDir where those wait that are removed. Both are beside
// the directory of all programs.
func (r *Runtime) keptDir() string  { return r.opts.Dir + "-kept" }
func (r *Runtime) trashDir() string { return r.opts.Dir + "-trash" }
func (r *Runtime) seenFile() string { return r.opts.Dir + "-seen.json" }

// maxKept is how much of what is kept is listed.
const maxKept = 16

// seenStore is what the programs of a node have to do with the store, on its disk.
type seenStore struct {
	// Generation of the store, in which everything was moved aside that the store does not know. Until then it is in doubt what was deleted.
	Generation int64 `json:"generation"`
}

// readSeen reads which generation of the store has been settled.
func (r *run) readSeen() error {
	seen, err := atomicfile.ReadJSON[seenStore](os.ReadFile, r.seenFile())
	if err != nil {
		return fmt.Errorf("%w: remove the file if it cannot be repaired; directories of programs that the store does not know are then kept", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history, r.generation, r.settled = r.e.History, r.e.Generation, 0
	if seen != nil {
		r.settled = seen.Generation
	}
	return nil
}

// settle records that nothing is left that the store does not know.
func (r *Runtime) settle(generation int64) error {
	data, err := json.Marshal(seenStore{Generation: generation})
	if err == nil {
		err = atomicfile.WriteSecret(r.seenFile(), data)
	}
	if err != nil {
		return fmt.Errorf("remember the store: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settled = generation
	return nil
}

// doubted reports whether the store may lack what is newer than itself. The caller holds the lock.
func (r *Runtime) doubted() bool { return r.settled != r.generation }

// inDoubt reports whether the store may lack what is newer than itself, and asks the store.
func (r *Runtime) inDoubt(ctx context.Context) bool {
	r.mu.Lock()
	doubted, history, generation := r.doubted(), r.history, r.generation
	r.mu.Unlock()
	return doubted || history == nil || history.Check(ctx, generation) != nil
}

// cover makes sure that the store will be known to have gone back if it does not know an object, before there are files that belong to it.
func (r *Runtime) cover(ctx context.Context, object types.UID) error {
	r.mu.Lock()
	covered, history := r.covered[object], r.history
	r.mu.Unlock()
	if covered {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := history.Cover(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.covered[object] = true
	return nil
}

// goneObject is an object whose program has a directory here.
type goneObject struct {
	uid types.UID // empty if it is not known
	// deleted: the watch showed that it was deleted. That it was missing when the watch began may have another cause.
	deleted bool
}

// discard lets the directory of a program be removed or kept, whose object is gone. The caller holds the lock, and the program has no worker,
// so that no process of it runs.
func (r *Runtime) discard(key types.NamespacedName, o goneObject) {
	if _, err := os.Lstat(r.dir(key)); errors.Is(err, fs.ErrNotExist) {
		delete(r.undiscarded, key)
		return
	}
	r.undiscarded[key] = o
	r.discards.Wake()
}

// discardLoop removes and keeps directories until ctx ends. What fails is tried again; the next epoch finds what is left.
func (r *run) discardLoop(ctx context.Context) {
	var said string
	for ctx.Err() == nil {
		if err := r.emptyTrash(); err != nil {
			r.opts.Log.Warn("could not remove the files of deleted programs; trying again", "error", err)
		}
		err := r.discardAll(ctx)
		if err == nil {
			err = r.settleAll(ctx)
		}
		if err == nil {
			err = r.listKept()
		}
		switch {
		case err == nil:
			said = ""
		case ctx.Err() == nil && err.Error() != said:
			said = err.Error()
			r.opts.Log.Warn("could not remove or keep the directories of programs that are gone; trying again", "error", err)
		}
		_ = backoff.Sleep(ctx, discardPause) // what comes at once is done at once
		r.discards.Wait(ctx, discardEvery, worker.On{})
	}
}

// discardAll removes or keeps the directories of programs whose objects are gone. Removing cannot be undone, so it rests on live reads: first that
// there is no object, then that the store has not gone back.
func (r *run) discardAll(ctx context.Context) error {
	r.mu.Lock()
	queue := maps.Clone(r.undiscarded)
	r.mu.Unlock()
	var failed error
	for key, o := range queue {
		missing, err := r.missing(ctx, key, o)
		if err != nil {
			failed = err
		}
		if err != nil || !missing {
			delete(queue, key)
		}
	}
	if len(queue) == 0 {
		return failed
	}
	ask, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	went := r.e.History.Check(ask, r.e.Generation)
	if went != nil && !errors.Is(went, node.ErrStoreWentBack) {
		return errors.Join(failed, went)
	}
	for key, o := range queue {
		if err := r.removeOrKeep(key, o, went != nil); err != nil {
			failed = fmt.Errorf("%s: %w", key, err)
		}
	}
	return failed
}

// missing reads live whether an object is missing. One that is there needs its directory, unless it only has the name of the deleted one.
func (r *run) missing(ctx context.Context, key types.NamespacedName, o goneObject) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	d := &v1alpha1.Deployment{}
	err := r.e.Client.Get(ctx, key, d)
	if kubeclient.IsMissing(err) {
		return true, nil
	}
	if err != nil || o.deleted && o.uid != "" && d.UID != o.uid {
		return err == nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.undiscarded[key] == o {
		delete(r.undiscarded, key)
	}
	return false, nil
}

// removeOrKeep removes a program's directory, or moves it aside if the store went back, or is in doubt and the node has not seen that the object
// was deleted.
func (r *run) removeOrKeep(key types.NamespacedName, o goneObject, wentBack bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, ok := r.undiscarded[key]; !ok || now != o || r.workers[key] != nil {
		return nil // the directory belongs to another program now
	}
	discard := r.throwAway
	if wentBack || !o.deleted && r.doubted() {
		discard = func(dir string) error { return r.keep(key, dir) }
	}
	if err := discard(r.dir(key)); err != nil {
		return err
	}
	delete(r.undiscarded, key)
	return nil
}

// settleAll ends the doubt about a store that went back, once everything is kept that it does not know.
func (r *run) settleAll(ctx context.Context) error {
	r.mu.Lock()
	doubted, waiting := r.doubted(), len(r.undiscarded)
	r.mu.Unlock()
	if !doubted || waiting > 0 {
		return nil
	}
	left, err := r.discardOld(ctx)
	if err != nil || left {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := r.e.History.Check(ask, r.e.Generation); errors.Is(err, node.ErrStoreWentBack) {
		return nil // again; the next epoch has a cache of what it is now
	} else if err != nil {
		return err
	}
	return r.settle(r.e.Generation)
}

// listKept finds out what is kept.
func (r *Runtime) listKept() error {
	dirs, err := filepath.Glob(filepath.Join(r.keptDir(), "*", "*"))
	if err != nil {
		return err
	}
	var names []string
	for _, dir := range dirs {
		names = append(names, filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept = names
	return nil
}

// reportKept adds the condition ProgramFilesKept while there is anything to report.
func (r *Runtime) reportKept(s *v1alpha1.NodeStatus) {
	r.mu.Lock()
	names := r.kept
	r.mu.Unlock()
	if len(names) == 0 {
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.NodeProgramFilesKept)
		return
	}
	list := strings.Join(names[:min(len(names), maxKept)], ", ")
	if more := len(names) - maxKept; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: v1alpha1.NodeProgramFilesKept, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonStoreWentBack,
		Message: fmt.Sprintf("The store was restored from a backup or is another one, and does not know the programs of these directories below %s: %s. Remove them when nobody needs them.",
			r.keptDir(), list),
	})
}

// keep moves the directory of a program aside.
func (r *Runtime) keep(key types.NamespacedName, dir string) error { return r.keepAs(key, dir, "") }

// keepHome moves a home aside, into a directory like that of its program.
func (r *Runtime) keepHome(key types.NamespacedName, dir string) error {
	return r.keepAs(key, dir, filepath.Base(dir))
}

func (r *Runtime) keepAs(key types.NamespacedName, dir, name string) error {
	to := filepath.Join(r.keptDir(), key.Namespace, fmt.Sprintf("%s-%d", key.Name, time.Now().UnixNano()), name)
	if err := move(dir, to); err != nil {
		return err
	}
	r.opts.Log.Warn("kept the files of a program that the store does not know; remove them when nobody needs them", "deployment", key.String(), "files", to)
	return nil
}

// keepHomeOfAnother moves a home aside that belongs to an object of the same name that the store does not know.
func (r *Runtime) keepHomeOfAnother(key types.NamespacedName, uid types.UID, dir string) error {
	o, err := readOwnUser(dir)
	if err != nil || o == nil || o.Object == uid {
		return err
	}
	return r.keepHome(key, filepath.Join(dir, home(o.UID)))
}

// throwAway moves a directory to where emptyTrash removes it: that may take long, and nobody can wait for it with the lock.
// A directory that is a file system of its own cannot be moved, and is removed here.
func (r *Runtime) throwAway(dir string) error {
	err := move(dir, filepath.Join(r.trashDir(), strconv.FormatInt(time.Now().UnixNano(), 10)))
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EBUSY) {
		return os.RemoveAll(dir)
	}
	return err
}

// emptyTrash removes what was thrown away. A file that a shim has just written may be in the way; the next time finds it.
func (r *Runtime) emptyTrash() error { return os.RemoveAll(r.trashDir()) }

// move gives a directory another name, whose parent is made, and does nothing if there is none.
func move(from, to string) error {
	if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// keptUsers adds the user ids of what was kept. What the files of a program say does not count: the program has written them.
func (r *Runtime) keptUsers(taken map[uint32]bool) error {
	for _, pattern := range []string{filepath.Join("*", "*"), filepath.Join("*", "*", home("*"))} { // a home alone was kept as the first, once
		dirs, err := filepath.Glob(filepath.Join(r.keptDir(), pattern))
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			info, err := os.Lstat(dir)
			if err != nil {
				return err
			}
			if owner, ok := info.Sys().(*syscall.Stat_t); ok {
				taken[owner.Uid] = true
			}
		}
	}
	return nil
}
