package deployment

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
)

// keeping is a runtime that only has files.
func keeping(t *testing.T) *Runtime {
	return &Runtime{opts: Options{Dir: filepath.Join(t.TempDir(), "programs"), Log: slog.New(slog.DiscardHandler)}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, parts ...string) {
	t.Helper()
	path := filepath.Join(parts...)
	must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must(t, os.WriteFile(path, nil, 0o600))
}

// countdown is a context that ends when it has been asked often enough.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// filesBelow counts the files of a tree.
func filesBelow(t *testing.T, dir string) (n int) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	}))
	return n
}

// A deleted program may have left millions of files. The node dies if its work does not stop before the lease expires.
func TestRemovingFilesEndsWithTheEpoch(t *testing.T) {
	r := keeping(t)
	outside := t.TempDir()
	writeFile(t, outside, "data")
	dir := filepath.Join(r.opts.Dir, "ns", "w")
	for i := range 40 {
		for k := range 10 {
			writeFile(t, dir, "home-1", fmt.Sprint(i), fmt.Sprint(k))
		}
	}
	must(t, os.Symlink(outside, filepath.Join(dir, "home-1", "link")))
	must(t, r.throwAway(t.Context(), dir))
	if err := r.emptyTrash(&countdown{Context: t.Context(), left: 100}); !errors.Is(err, context.Canceled) {
		t.Errorf("emptying the trash past the end: %v", err)
	}
	if left := filesBelow(t, r.trashDir()); left < 300 || left >= 400 {
		t.Errorf("%d of 400 files are left", left)
	}
	must(t, r.emptyTrash(t.Context()))
	if left, err := os.ReadDir(r.trashDir()); err != nil || len(left) > 0 {
		t.Errorf("left in the trash: %v, %v", left, err)
	}
	if filesBelow(t, outside) != 1 {
		t.Error("what a link of a program names was removed")
	}
}

func TestDirectoriesAreThrownAwayWhileTheTrashIsEmptied(t *testing.T) {
	r := keeping(t)
	var over atomic.Bool
	var emptying sync.WaitGroup
	emptying.Go(func() {
		for !over.Load() {
			if err := r.emptyTrash(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 300 {
		dir := filepath.Join(r.opts.Dir, "ns", fmt.Sprint("w", i))
		writeFile(t, dir, "out.log")
		if err := r.throwAway(t.Context(), dir); err != nil {
			t.Error(err)
			break
		}
	}
	over.Store(true)
	emptying.Wait()
}

// A home is removed if the store says that it is the one that the node knows, and kept if it is not. If it says nothing, the home stays.
func TestAHomeIsTakenAwayOnlyWhenTheStoreAnswers(t *testing.T) {
	ctx := t.Context()
	var silent atomic.Bool
	store := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(&v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if silent.Load() {
				return context.DeadlineExceeded
			}
			return c.Get(ctx, key, o, opts...)
		}}).Build()
	r := keeping(t)
	var err error
	r.history, err = node.NewHistory("n", filepath.Join(t.TempDir(), "store.json"), store, r.opts.Log)
	must(t, err)
	must(t, r.history.Begin(ctx))
	r.generation = r.history.Generation()
	must(t, r.settle(r.generation, nil))

	key := types.NamespacedName{Namespace: "ns", Name: "w"}
	home := filepath.Join(r.dir(key), home("1"))
	where := func() (here, kept, trash int) {
		for pattern, n := range map[string]*int{
			home: &here, filepath.Join(r.keptDir(), "ns", "w-*", filepath.Base(home)): &kept, filepath.Join(r.trashDir(), "*"): &trash,
		} {
			found, err := filepath.Glob(pattern)
			must(t, err)
			*n = len(found)
		}
		return here, kept, trash
	}
	writeFile(t, home, "data")
	silent.Store(true)
	if err := r.takeAway(ctx, key, home, r.keepHome); !errors.Is(err, errStoreUnknown) {
		t.Errorf("a store that does not answer: %v", err)
	}
	if here, kept, trash := where(); here != 1 || kept+trash > 0 {
		t.Errorf("a store that does not answer: here %d, kept %d, removed %d", here, kept, trash)
	}
	silent.Store(false)
	must(t, r.takeAway(ctx, key, home, r.keepHome))
	if here, kept, trash := where(); trash != 1 || here+kept > 0 {
		t.Errorf("the store that it was: here %d, kept %d, removed %d", here, kept, trash)
	}
	must(t, r.emptyTrash(ctx))

	// A directory that could not be looked into when the store was settled is in doubt by itself, until its home is kept.
	must(t, r.settle(r.generation, []string{"ns/v", "ns/w"}))
	for _, wantKept := range []int{1, 1} {
		writeFile(t, home, "data")
		must(t, r.takeAway(ctx, key, home, r.keepHome))
		if here, kept, _ := where(); here != 0 || kept != wantKept {
			t.Errorf("a directory in doubt: here %d, kept %d", here, kept)
		}
	}

	n := &v1alpha1.Node{}
	must(t, store.Get(ctx, types.NamespacedName{Name: "n"}, n))
	n.Annotations[v1alpha1.StoreMarkAnnotation] = "of before"
	must(t, store.Update(ctx, n))
	writeFile(t, home, "data")
	must(t, r.takeAway(ctx, key, home, r.keepHome))
	if here, kept, _ := where(); here != 0 || kept != 2 {
		t.Errorf("a store that went back: here %d, kept %d", here, kept)
	}
}

// A worker that has left its program to the next epoch may be asked once more before it ends. The program runs, and must not be released.
func TestAProgramThatWasLeftToTheNextEpochIsAttachedToAgain(t *testing.T) {
	pw := &programWorker{program: &program{detach: func() {}}}
	if _, over := pw.do(t.Context(), Facts{}, Step{Do: Detach}); !over || pw.running() != nil || !pw.stray {
		t.Errorf("over %t, program %v, something may run: %t", over, pw.running(), pw.stray)
	}
}

func TestIdsOfKeptHomesAreTakenWhateverTheDirectoryIsCalled(t *testing.T) {
	r := &Runtime{opts: Options{Dir: filepath.Join(t.TempDir(), "data [1]*", "programs"), Log: slog.New(slog.DiscardHandler)}}
	writeFile(t, r.keptDir(), "default", "w-1", home("2000000000"), "data")
	taken := map[uint32]bool{}
	must(t, r.keptUsers(taken))
	must(t, r.listKept())
	if !taken[uint32(os.Geteuid())] || len(r.kept) != 1 || r.kept[0] != filepath.Join("default", "w-1") {
		t.Errorf("taken %v, kept %q", taken, r.kept)
	}
}
