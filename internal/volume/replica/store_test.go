package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

const storeSize = 2<<20 + 4096

// unsynced is the file system of the machine without the time that syncs take.
type unsynced struct{ store.OS }

func (unsynced) SyncDir(string) error { return nil }

func (u unsynced) OpenFile(path string, flag int, perm fs.FileMode) (store.File, error) {
	f, err := u.OS.OpenFile(path, flag, perm)
	return unsyncedFile{f}, err
}

type unsyncedFile struct{ store.File }

func (unsyncedFile) Datasync() error { return nil }

// newStore makes a replica in a directory.
func newStore(t testing.TB, fsys store.FS, root string) *store.Store {
	t.Helper()
	id := store.Identity{Volume: testVolume, VolumeUID: testUID, Replica: testReplica, Size: storeSize}
	dir := filepath.Join(root, "replicas", "shop-orders-5f1c1a52", testReplica)
	if err := store.Create(fsys, dir, id, "boot"); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(fsys, dir, id, "boot")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// sentinelOf is what a caller can decide on.
func sentinelOf(err error) error {
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.err
		}
	}
	return errors.New("another error")
}

// anyCall draws a call, which says what it returned. Most are of the current generation.
func anyCall(t *rapid.T, current int64) (string, func(block.Replica) string) {
	ctx := context.Background()
	generation := current + rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 1, -1}).Draw(t, "generation")
	off := rapid.Int64Range(0, storeSize/512-1).Draw(t, "sector") * 512
	length := min(storeSize-off, 512*rapid.SampledFrom([]int64{0, 1, 8, 33, 600}).Draw(t, "sectors"))
	flag := rapid.Bool().Draw(t, "flag")
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{testReplica, "orders-r2", "orders-r3"}), 0, 3, rapid.ID).Draw(t, "names")
	calls := map[string]func(r block.Replica) (any, error){
		"open": func(r block.Replica) (any, error) { return r.Open(ctx, generation) },
		"commit": func(r block.Replica) (any, error) {
			return nil, r.Commit(ctx, block.Membership{Generation: generation, Members: []string{testReplica}, Away: names, Syncing: flag})
		},
		"read": func(r block.Replica) (any, error) {
			p := pattern(make([]byte, length), 9)
			err := r.ReadAt(ctx, generation, p, off)
			return checksum(p), err
		},
		"write": func(r block.Replica) (any, error) {
			return nil, r.WriteAt(ctx, generation, pattern(make([]byte, length), int(off)), off, flag)
		},
		"zero": func(r block.Replica) (any, error) {
			return nil, r.Zero(ctx, generation, off, length, block.Zero{Hole: flag, FUA: len(names) > 1})
		},
		"flush":   func(r block.Replica) (any, error) { return nil, r.Flush(ctx, generation) },
		"extents": func(r block.Replica) (any, error) { return r.Extents(ctx, generation, off, length) },
		"intent":  func(r block.Replica) (any, error) { return r.Intent(ctx, generation) },
		"missed": func(r block.Replica) (any, error) {
			b, ok, err := r.Missed(ctx, generation, "orders-r2", off%3)
			return fmt.Sprint(b, ok), err
		},
		"clear": func(r block.Replica) (any, error) {
			b := block.NewBitmap(block.Chunks(storeSize))
			b.Set(off / block.ChunkSize)
			return nil, r.Clear(ctx, generation, b)
		},
		"ping": func(r block.Replica) (any, error) { return nil, r.Ping(ctx, generation) },
	}
	name := rapid.SampledFrom([]string{"open", "commit", "read", "write", "zero", "flush", "extents", "intent", "missed", "clear", "ping"}).Draw(t, "call")
	return name, func(r block.Replica) string {
		value, err := calls[name](r)
		if err != nil {
			return sentinelOf(err).Error()
		}
		return fmt.Sprint(value)
	}
}

// Two stores get the same calls, one of them through a connection: every answer is the same, and so is what is in them at the end.
func TestAStoreIsTheSameThroughAConnection(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		near, far := newStore(t, unsynced{}, t.TempDir()), newStore(t, unsynced{}, t.TempDir())
		conn, _ := pipe(t, far)
		c := newClient(t, conn)
		defer func() { _ = c.Close() }()
		for range rapid.IntRange(1, 30).Draw(rt, "calls") {
			name, call := anyCall(rt, near.State().Generation)
			if want, got := call(near), call(c); want != got {
				rt.Fatalf("%s: %s, want %s", name, got, want)
			}
		}
		if want, got := near.State(), far.State(); !reflect.DeepEqual(want, got) {
			rt.Fatalf("state %+v, want %+v", got, want)
		}
		want, got := make([]byte, storeSize), make([]byte, storeSize)
		generation := near.State().Generation
		if err := errors.Join(near.ReadAt(context.Background(), generation, want, 0), c.ReadAt(context.Background(), generation, got, 0)); err != nil || !bytes.Equal(got, want) {
			rt.Fatalf("the data differs: %v", err)
		}
	})
}

func TestAnOldEngineIsFencedOnItsOwnConnection(t *testing.T) {
	s := newStore(t, store.OS{}, t.TempDir())
	connect := overTLS(t, s)
	ctx := context.Background()
	old, next := newClient(t, connect()), newClient(t, connect())
	if _, err := old.Open(ctx, 3); err != nil {
		t.Fatal(err)
	}
	want := pattern(make([]byte, 64<<10), 1)
	if err := old.WriteAt(ctx, 3, want, 1<<20, false); err != nil {
		t.Fatal(err)
	}
	if state, err := next.Open(ctx, 4); err != nil || state.Generation != 3 {
		t.Fatalf("opened %+v, %v", state, err)
	}
	for name, call := range operations(old) {
		if err := call(ctx); !errors.Is(err, block.ErrStale) || errors.Is(err, block.ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	got := make([]byte, len(want))
	if err := next.ReadAt(ctx, 4, got, 1<<20); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read: %v", err)
	}
}

func TestAFullDiskIsNoSpaceForTheClient(t *testing.T) {
	root := t.TempDir()
	disk, err := lossy.New(root, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	s := newStore(t, disk, root)
	defer s.Close()
	c := newClient(t, overTLS(t, s)())
	ctx := context.Background()
	if _, err := c.Open(ctx, 1); err != nil {
		t.Fatal(err)
	}
	p := pattern(make([]byte, 8192), 1)
	if err := c.WriteAt(ctx, 1, p, 0, true); err != nil {
		t.Fatal(err)
	}
	disk.SetFree(0)
	if err := c.WriteAt(ctx, 1, p, 1<<20, false); !errors.Is(err, block.ErrNoSpace) {
		t.Errorf("written: %v", err)
	}
	disk.SetFree(-1)
	if err := c.WriteAt(ctx, 1, p, 1<<20, true); err != nil {
		t.Errorf("with space again: %v", err)
	}
}
