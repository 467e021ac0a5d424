package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	"github.com/ebb-dev/ebb/internal/shim"
	"github.com/ebb-dev/ebb/internal/worker"
)

// A program whose object is gone was deleted, unless the store went back: a store that was restored from a backup, or is another one, lacks newer
// objects. The node's History shows whether it went back. Files that such a store does not know are kept, because the homes of programs are data.

// keptDir has the directories that the store does not know, and trashDir those that are to be removed. Both are beside the directory of all
// programs.
func (r *Runtime) keptDir() string  { return r.opts.Dir + "-kept" }
func (r *Runtime) trashDir() string { return r.opts.Dir + "-trash" }
func (r *Runtime) seenFile() string { return r.opts.Dir + "-seen.json" }

const (
	// maxKept bounds the list of kept directories.
	maxKept = 16
	// removeAtOnce is how many names of a directory are read at a time, to remove them.
	removeAtOnce = 1024
)

// seenStore is what a node records on its disk about the store and its programs.
type seenStore struct {
	// Generation of the store in which everything that the store does not know was moved aside. Until that is done, a missing object may not
	// have been deleted.
	Generation int64 `json:"generation"`
	// Doubtful are the programs whose directories could not be read then, by namespace and name. They may have files that the store does not know.
	Doubtful []string `json:"doubtful,omitempty"`
}

// readSeen reads which generation of the store has been settled.
func (r *run) readSeen() error {
	seen, err := atomicfile.ReadJSON[seenStore](os.ReadFile, r.seenFile())
	if err != nil {
		return fmt.Errorf("%w: remove the file if it cannot be repaired; directories of programs that the store does not know are then kept", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history, r.generation, r.settled, r.doubtful = r.e.History, r.e.Generation, 0, nil
	if seen != nil {
		r.settled, r.doubtful = seen.Generation, seen.Doubtful
	}
	return nil
}

// insistSeen is readSeen until it succeeds. Programs that run go on meanwhile, and nothing is started. An epoch whose watch failed here would wait
// for the workers of these programs, and never try again.
func (r *run) insistSeen(ctx context.Context) error {
	var repeats repeatFilter
	for {
		err := r.readSeen()
		if err == nil {
			return nil
		}
		repeats.warn(ctx, r.opts.Log, "could not read what the node remembers of the store and its programs; trying again", err)
		if err := backoff.Sleep(ctx, discardEvery); err != nil {
			return err
		}
	}
}

// settle records that nothing is left that the store does not know, except in the directories of the doubtful programs.
func (r *Runtime) settle(generation int64, doubtful []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rememberSettled(generation, doubtful)
}

// clearDoubt records that nothing is left in the directory of a program that the store does not know. The caller holds the lock.
func (r *Runtime) clearDoubt(key types.NamespacedName) error {
	if !r.isDoubtful(key) {
		return nil
	}
	return r.rememberSettled(r.settled, slices.DeleteFunc(slices.Clone(r.doubtful), func(name string) bool { return name == key.String() }))
}

func (r *Runtime) rememberSettled(generation int64, doubtful []string) error {
	data, err := json.Marshal(seenStore{Generation: generation, Doubtful: doubtful})
	if err == nil {
		err = atomicfile.WriteSecret(r.seenFile(), data)
	}
	if err != nil {
		return fmt.Errorf("remember the store: %w", err)
	}
	r.settled, r.doubtful = generation, doubtful
	return nil
}

// isDoubtful reports whether the directory of a program may have what the store does not know. The caller holds the lock.
func (r *Runtime) isDoubtful(key types.NamespacedName) bool {
	return slices.Contains(r.doubtful, key.String())
}

// doubted reports whether the store may lack newer objects. The caller holds the lock.
func (r *Runtime) doubted() bool { return r.settled != r.generation }

// errStoreUnknown: the store could not be asked whether it went back, so that nothing can be removed yet.
var errStoreUnknown = errors.New("could not ask the store whether it went back")

// inDoubt asks the store, and reports whether it may lack newer objects. It fails with errStoreUnknown if the store does not answer.
func (r *Runtime) inDoubt(ctx context.Context) (bool, error) {
	r.mu.Lock()
	doubted, history, generation := r.doubted(), r.history, r.generation
	r.mu.Unlock()
	if doubted || history == nil {
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	switch err := history.Check(ctx, generation); {
	case err == nil || errors.Is(err, node.ErrStoreWentBack):
		return err != nil, nil
	default:
		return false, unlessRemembering(err)
	}
}

// unlessRemembering adds errStoreUnknown to an error, unless it was this machine that failed and not the store.
func unlessRemembering(err error) error {
	if errors.Is(err, node.ErrNotRemembered) {
		return err
	}
	return fmt.Errorf("%w: %w", errStoreUnknown, err)
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
		return unlessRemembering(err)
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

// discardFormer is discard for a directory that an earlier object of the same name left, if no program of the present one uses it. The caller holds
// the lock.
func (r *Runtime) discardFormer(key types.NamespacedName, present types.UID) {
	if former := ownerOf(r.dir(key)); former != "" && former != present && r.workers[key] == nil {
		r.discard(key, goneObject{uid: former})
	}
}

// ownerOf returns the object whose program last ran in a directory, or was to run there; empty if that is not known.
func ownerOf(dir string) types.UID {
	if st, err := shim.ReadState(dir); err == nil {
		uid, _ := parseInstance(st.Instance)
		return uid
	}
	if own, err := readOwnUser(dir); err == nil && own != nil {
		return own.Object
	}
	if f, err := readFailures(dir); err == nil && f != nil {
		return f.Object
	}
	return ""
}

// discardLoop removes and keeps directories until ctx ends, first those that are old. What fails is tried again; the next epoch finds what is left.
func (r *run) discardLoop(ctx context.Context) {
	var trash, rest repeatFilter
	for looked := false; ctx.Err() == nil; {
		trash.warn(ctx, r.opts.Log, "could not remove the files of deleted programs; trying again", r.emptyTrash(ctx))
		var err error
		if !looked {
			_, err = r.discardOld(ctx)
			looked = err == nil
		}
		err = errors.Join(err, r.discardAll(ctx))
		if err == nil {
			err = r.settleAll(ctx)
		}
		if err == nil {
			err = r.listKept()
		}
		rest.warn(ctx, r.opts.Log, "could not remove or keep the directories of programs that are gone; trying again", err)
		_ = backoff.Sleep(ctx, discardPause) // what comes at once is done at once
		r.discards.Wait(ctx, discardEvery, worker.On{})
	}
}

// repeatFilter logs the errors of what is tried again and again, each once in a row.
type repeatFilter struct{ logged string }

func (f *repeatFilter) warn(ctx context.Context, log *slog.Logger, what string, err error) {
	switch {
	case err == nil:
		f.logged = ""
	case ctx.Err() == nil && err.Error() != f.logged:
		f.logged = err.Error()
		log.Warn(what, "error", err)
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
		if err := r.removeOrKeep(ctx, key, o, went != nil); err != nil {
			failed = fmt.Errorf("%s: %w", key, err)
		}
	}
	return failed
}

// missing reads live whether an object is missing. An object that exists needs its directory, unless it only has the name of the one that is gone.
func (r *run) missing(ctx context.Context, key types.NamespacedName, o goneObject) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	d := &v1alpha1.Deployment{}
	err := r.e.Client.Get(ctx, key, d)
	if kubeclient.IsMissing(err) {
		return true, nil
	}
	if err != nil || o.uid != "" && d.UID != o.uid {
		return err == nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.undiscarded[key] == o {
		delete(r.undiscarded, key)
	}
	return false, nil
}

// removeOrKeep removes a program's directory, or moves it aside if the store went back, if it is in doubt and the node has not seen that the object
// was deleted, or if what is in the directory is in doubt.
func (r *run) removeOrKeep(ctx context.Context, key types.NamespacedName, o goneObject, wentBack bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now, ok := r.undiscarded[key]; !ok || now != o || r.workers[key] != nil {
		return nil // the directory belongs to another program now
	}
	if mayRun(r.dir(key)) {
		if !r.ended {
			r.newWorker(key, r.opts.Gate.Find(Name)) // it ends what runs there, and discards the directory then
		}
		return nil
	}
	var err error
	if wentBack || !o.deleted && r.doubted() || r.isDoubtful(key) || r.doubted() && !r.ownedBy(key, o) {
		err = r.keep(key, r.dir(key))
	} else {
		err = r.throwAway(ctx, r.dir(key))
	}
	if err != nil {
		return err
	}
	delete(r.undiscarded, key)
	return r.clearDoubt(key)
}

// ownedBy reports whether the user that is recorded in a program's directory is that of a deleted object: if the store went back, the directory
// may have the home of a later object of the same name.
func (r *run) ownedBy(key types.NamespacedName, o goneObject) bool {
	own, err := readOwnUser(r.dir(key))
	return err == nil && (own == nil || own.Object == o.uid)
}

// settleAll ends the doubt about a store that went back, once everything that the store does not know is kept. A directory that cannot be read does
// not hold this up for the others: it becomes doubtful by itself.
func (r *run) settleAll(ctx context.Context) error {
	r.mu.Lock()
	doubted, waiting := r.doubted(), len(r.undiscarded)
	r.mu.Unlock()
	if !doubted || waiting > 0 {
		return nil
	}
	old, err := r.discardOld(ctx)
	if err != nil || old.left {
		return err
	}
	ask, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := r.e.History.Check(ask, r.e.Generation); errors.Is(err, node.ErrStoreWentBack) {
		return nil // again; the next epoch has a cache of what it is now
	} else if err != nil {
		return err
	}
	if err := r.settle(r.e.Generation, old.doubtful); err != nil {
		return err
	}
	if old.unseen != nil {
		r.opts.Log.Warn("could not look for what earlier programs of the same names left; their files will be kept when these programs are deleted", "error", old.unseen)
	}
	return nil
}

// listKept finds out what is kept.
func (r *Runtime) listKept() error {
	names, err := fs.Glob(os.DirFS(r.keptDir()), "*/*")
	if err != nil {
		return err
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

// keepAnother moves aside what belongs to an object of the same name that the store does not know: all of a directory that no program uses, and
// otherwise the home. The caller holds the lock.
func (r *Runtime) keepAnother(key types.NamespacedName, uid types.UID, dir string) error {
	if former := ownerOf(dir); former != "" && former != uid && r.workers[key] == nil && !mayRun(dir) {
		return r.keep(key, dir)
	}
	o, err := readOwnUser(dir)
	if err != nil || o == nil || o.Object == uid {
		return err
	}
	return r.keepHome(key, filepath.Join(dir, home(o.UID)))
}

// throwAway moves a directory to where emptyTrash removes it: that may take long, and nobody can wait for it with the lock.
// A directory that is a file system of its own cannot be moved, and is removed here.
func (r *Runtime) throwAway(ctx context.Context, dir string) error {
	err := move(dir, filepath.Join(r.trashDir(), strconv.FormatInt(time.Now().UnixNano(), 10)))
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EBUSY) {
		return removeAll(ctx, dir)
	}
	return err
}

// emptyTrash removes the contents of the trash until ctx ends. If a shim has just written a file there, the next call removes it. The trash
// directory itself stays, because another directory may be moved into it at the same time.
func (r *Runtime) emptyTrash(ctx context.Context) error {
	trash, err := os.OpenRoot(r.trashDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer trash.Close()
	return removeIn(ctx, trash)
}

// removeAll is os.RemoveAll until ctx ends. A program may leave millions of files, and the node dies if its work does not stop in time.
func removeAll(ctx context.Context, dir string) error {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	return removeTree(ctx, parent, filepath.Base(dir))
}

// removeTree removes a file, or a directory with what is in it. The program that made them may have put links anywhere, so nothing is reached
// but through the open parent.
func removeTree(ctx context.Context, parent *os.Root, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := parent.Remove(name)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if info, failed := parent.Lstat(name); failed != nil || !info.IsDir() {
		return err
	}
	dir, err := parent.OpenRoot(name)
	if err != nil {
		return err
	}
	err = removeIn(ctx, dir)
	dir.Close()
	if err != nil {
		return err
	}
	if err := parent.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeIn removes everything in a directory. It goes on with the others if one cannot be removed, and returns the first error.
func removeIn(ctx context.Context, dir *os.Root) error {
	list, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer list.Close()
	var failed error
	for {
		names, err := list.Readdirnames(removeAtOnce)
		for _, name := range names {
			if err := removeTree(ctx, dir, name); failed == nil {
				failed = err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return failed
		case err != nil:
			return err
		}
	}
}

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
	for _, pattern := range []string{"*/*", "*/*/" + home("*")} { // a home alone was kept as the first, once
		names, err := fs.Glob(os.DirFS(r.keptDir()), pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			info, err := os.Lstat(filepath.Join(r.keptDir(), name))
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
