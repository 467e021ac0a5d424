package node_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
)

// annals is a store with one Node, and the disk of that node.
type annals struct {
	t     *testing.T
	store client.WithWatch
	path  string
	lost  bool          // answers to writes are lost
	slow  chan struct{} // if set, answers to writes come when it is closed
	sent  int           // writes
}

func newAnnals(t *testing.T) *annals {
	a := &annals{t: t, path: filepath.Join(t.TempDir(), "store.json")}
	a.store = fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(&v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}).
		WithInterceptorFuncs(interceptor.Funcs{Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			a.sent++
			err := c.Update(ctx, o, opts...)
			if a.slow != nil {
				<-a.slow
			}
			if a.lost {
				return errors.New("the answer was lost")
			}
			return err
		}}).Build()
	return a
}

// process is the history as a new process of the node finds it.
func (a *annals) process() *node.History {
	a.t.Helper()
	h, err := node.NewHistory("n1", a.path, a.store, slog.New(slog.DiscardHandler))
	a.must(err)
	return h
}

func (a *annals) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *annals) node() *v1alpha1.Node {
	a.t.Helper()
	n := &v1alpha1.Node{}
	a.must(a.store.Get(a.t.Context(), types.NamespacedName{Name: "n1"}, n))
	return n
}

func (a *annals) mark() string { return a.node().Annotations[v1alpha1.StoreMarkAnnotation] }

// restore makes the store show a mark of before.
func (a *annals) restore(mark string) {
	a.t.Helper()
	n := a.node()
	n.Annotations[v1alpha1.StoreMarkAnnotation] = mark
	if mark == "" {
		n.Annotations = nil
	}
	a.must(a.store.Update(a.t.Context(), n))
}

func TestAStoreThatWentBackIsNoticed(t *testing.T) {
	ctx := t.Context()
	a := newAnnals(t)
	h := a.process()
	a.must(h.Begin(ctx))
	if h.Generation() == 0 {
		t.Error("a node that has seen a store is in no generation of it")
	}
	first := a.mark()
	a.must(h.Cover(ctx))
	second := a.mark()
	if first == "" || second == first {
		t.Fatalf("marks %q and %q", first, second)
	}
	again := a.process()
	a.must(again.Begin(ctx))
	a.must(again.Check(ctx, h.Generation()))
	if a.mark() != second {
		t.Error("a store that is as it was gets another mark")
	}
	for _, mark := range []string{first, "of another store", ""} {
		before := again.Generation()
		a.restore(mark)
		if err := again.Check(ctx, before); !errors.Is(err, node.ErrStoreWentBack) {
			t.Errorf("a store with mark %q: %v", mark, err)
		}
		again = a.process() // it dies before it has written another mark
		a.must(again.Begin(ctx))
		if again.Generation() == before {
			t.Errorf("a store with mark %q is in the generation that it was in", mark)
		}
		a.must(again.Check(ctx, again.Generation()))
		if err := again.Check(ctx, before); !errors.Is(err, node.ErrStoreWentBack) {
			t.Errorf("the generation before: %v", err)
		}
	}
}

// Runtimes remember in which generation they have moved aside what the store does not know, so no generation may come a second time.
func TestANodeThatForgotTheStoreIsInAnotherGeneration(t *testing.T) {
	ctx := t.Context()
	a := newAnnals(t)
	a.must(os.WriteFile(a.path, []byte(`{"generation":1}`), 0o600)) // as it was when generations were counted
	seen := map[int64]bool{}
	for range 3 {
		h := a.process()
		a.must(h.Begin(ctx))
		if seen[h.Generation()] {
			t.Errorf("generation %d once more", h.Generation())
		}
		seen[h.Generation()] = true
		for before := range seen {
			if err := h.Check(ctx, before); before != h.Generation() && !errors.Is(err, node.ErrStoreWentBack) {
				t.Errorf("what was seen in generation %d is trusted in %d: %v", before, h.Generation(), err)
			}
		}
		a.must(os.Remove(a.path))
	}
	if !seen[1] {
		t.Error("a file from before was not read")
	}
}

func TestAMarkWhoseAnswerWasLostIsKnown(t *testing.T) {
	ctx := t.Context()
	a := newAnnals(t)
	h := a.process()
	a.must(h.Begin(ctx))
	before := a.mark()
	a.lost = true
	if h.Cover(ctx) == nil {
		t.Error("an object is covered by a mark that may not have been stored")
	}
	a.lost = false
	if a.mark() == before {
		t.Fatal("this shows nothing")
	}
	a.must(a.process().Check(ctx, h.Generation()))
	a.must(h.Check(ctx, h.Generation()))
	a.must(h.Cover(ctx))
	// Nothing depends on the mark whose answer was lost: a store that does not have it has not lost anything either, until the next.
	a.restore(before)
	if err := h.Check(ctx, h.Generation()); !errors.Is(err, node.ErrStoreWentBack) {
		t.Errorf("a store without the newest mark: %v", err)
	}
}

// What a call read before it may be newer than a write that was already under way, so that only a later write covers it. One is enough for
// all that wait.
func TestCallsAtOnceAreAllCovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		a := newAnnals(t)
		h := a.process()
		a.must(h.Begin(ctx))
		a.sent, a.slow = 0, make(chan struct{})
		var all sync.WaitGroup
		cover := func() {
			before := a.mark()
			if err := h.Cover(ctx); err != nil {
				t.Error(err)
			}
			if a.mark() == before {
				t.Error("a call ended with the mark that the store had before it")
			}
		}
		all.Go(cover)
		synctest.Wait() // the first mark is stored, and its answer is on its way
		for range 49 {
			all.Go(cover)
		}
		synctest.Wait()
		close(a.slow)
		all.Wait()
		if a.sent != 2 {
			t.Errorf("%d writes for 50 calls", a.sent)
		}
		a.must(a.process().Check(ctx, h.Generation()))
	})
}

func TestACallDoesNotWaitLongerThanItMayForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnnals(t)
		h := a.process()
		a.must(h.Begin(t.Context()))
		a.slow = make(chan struct{})
		var first sync.WaitGroup
		first.Go(func() { a.must(h.Cover(t.Context())) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Check(ctx, h.Generation()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a check behind a write that is not answered: %v", err)
		}
		if err := h.Cover(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a write behind a write that is not answered: %v", err)
		}
		close(a.slow)
		first.Wait()
	})
}
