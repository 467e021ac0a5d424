package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"sync/atomic"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// ErrStoreWentBack: the store does not have what this node last wrote to it. It was restored from a backup, or is another one, and does not
// know what was made since.
var ErrStoreWentBack = errors.New("the store does not have what this node last wrote to it; it was restored from a backup or is another one")

// ErrNotRemembered: the node could not write to its own disk what it has to remember of the store.
var ErrNotRemembered = errors.New("could not write what the node remembers of the store")

// History tells a node whether the store is still the one that the node has seen, with everything that the node has seen in it. The numbers
// of the store (resourceVersions) do not tell: a store that was restored from a backup grows past them again.
//
// The node writes a mark, a random text, on its Node object, and remembers it on its own disk. Before a runtime keeps data on this machine
// that belongs to an object, it calls Cover, which writes a new mark: the object is older than the mark. A store that shows the
// newest mark therefore knows, or knew and has deleted, every object whose data is here. A store that does not show it has gone back: what
// it does not know is then kept. Another generation of the store begins then.
type History struct {
	node   string
	path   string
	client client.Client
	log    *slog.Logger

	generation atomic.Int64 // of memory, for who does not want to wait for the lock

	begun atomic.Int64 // calls of Cover that have begun to write

	turn   chan struct{} // has a place for whoever reads and writes the mark; the fields below are theirs
	done   int64         // the newest call of Cover whose mark is stored
	memory storeMemory
}

// storeMemory is what a node remembers of the store, on its disk.
type storeMemory struct {
	// Generation is a random number that names the history since the store was last found to have gone back; 0 before the first. It is no
	// count: a node that lost this file must not come upon a number that was trusted before.
	Generation int64 `json:"generation"`
	// Mark is the newest that the store had.
	Mark string `json:"mark,omitempty"`
	// Next is being written. The store may have it, and nothing depends on it yet.
	Next string `json:"next,omitempty"`
}

// NewHistory reads what the node remembers. A node that remembers nothing is in generation 0 and trusts no store yet.
func NewHistory(node, path string, c client.Client, log *slog.Logger) (*History, error) {
	h := &History{node: node, path: path, client: c, log: log, turn: make(chan struct{}, 1)}
	memory, err := atomicfile.ReadJSON[storeMemory](os.ReadFile, path)
	if err != nil {
		return nil, fmt.Errorf("%w: remove the file if it cannot be repaired; data of objects that the store does not know is then kept", err)
	}
	if memory != nil {
		h.memory = *memory
		h.generation.Store(memory.Generation)
	}
	return h, nil
}

// Generation is that of the store as this node knows it. Another one begins when the store is found to have gone back.
func (h *History) Generation() int64 { return h.generation.Load() }

// Begin compares the store with what the node remembers, before an epoch rests on it.
func (h *History) Begin(ctx context.Context) error {
	err := h.Check(ctx, h.Generation())
	if errors.Is(err, ErrStoreWentBack) {
		return h.Cover(ctx)
	}
	return err
}

// Check reads live whether the store is still in a generation. It fails with ErrStoreWentBack if it is not. What was read from the store
// before the check, and was missing there, was deleted if the check succeeds.
func (h *History) Check(ctx context.Context, generation int64) error {
	if err := h.lock(ctx); err != nil {
		return err
	}
	defer h.unlock()
	n, err := h.read(ctx)
	if err != nil {
		return err
	}
	if err := h.compare(n); err != nil {
		return err
	}
	if h.memory.Generation != generation {
		return ErrStoreWentBack
	}
	return nil
}

// Cover returns when the store has a mark that is newer than everything that was read from it before. Data that belongs to an object is made
// after that. It succeeds in a store that went back, too.
func (h *History) Cover(ctx context.Context) error {
	before := h.begun.Load()
	if err := h.lock(ctx); err != nil {
		return err
	}
	defer h.unlock()
	if h.done > before { // meanwhile another call has begun to write, and has written
		return nil
	}
	begun := h.begun.Add(1)
	for {
		n, err := h.read(ctx)
		if err != nil {
			return err
		}
		if err := h.compare(n); err != nil && !errors.Is(err, ErrStoreWentBack) {
			return err
		}
		next := h.memory
		if next.Next == "" { // otherwise a write whose answer was lost may still arrive, and must not be taken for that of another
			next.Next = uuid.NewString()
		}
		if err := h.remember(next); err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.StoreMarkAnnotation, next.Next)
		if err = h.client.Update(ctx, n); apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := h.remember(storeMemory{Generation: next.Generation, Mark: next.Next}); err != nil {
			return err
		}
		h.done = begun
		return nil
	}
}

// lock waits until nobody else reads and writes the mark. Others may wait for a store that does not answer.
func (h *History) lock(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (h *History) unlock() { <-h.turn }

func (h *History) read(ctx context.Context) (*v1alpha1.Node, error) {
	n := &v1alpha1.Node{}
	return n, h.client.Get(ctx, types.NamespacedName{Name: h.node}, n)
}

// compare finds out whether the store has the mark that this node remembers. If it does not, another generation begins. The caller holds the lock.
func (h *History) compare(n *v1alpha1.Node) error {
	shown := n.Annotations[v1alpha1.StoreMarkAnnotation]
	if shown != "" && (shown == h.memory.Mark || shown == h.memory.Next) {
		if shown != h.memory.Mark {
			return h.remember(storeMemory{Generation: h.memory.Generation, Mark: shown})
		}
		return nil
	}
	known := h.memory.Mark != "" || h.memory.Next != ""
	if h.memory.Generation != 0 && !known {
		return ErrStoreWentBack // that is known already, and no mark was written since
	}
	// The generation is on the disk before a mark of it is in the store.
	if err := h.remember(storeMemory{Generation: 1 + rand.Int64N(math.MaxInt64)}); err != nil {
		return err
	}
	if known {
		h.log.Error("the store went back: it does not have what this node last wrote to it, because it was restored from a backup, is another one, or the Node was created again; "+
			"data of objects that it does not know is kept", "generation", h.memory.Generation)
	}
	return ErrStoreWentBack
}

func (h *History) remember(m storeMemory) error {
	if m == h.memory {
		return nil
	}
	data, err := json.Marshal(m)
	if err == nil {
		err = atomicfile.WriteSecret(h.path, data)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRemembered, err)
	}
	h.memory = m
	h.generation.Store(m.Generation)
	return nil
}
