package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

const (
	mib     = 1 << 20
	holdEnv = "EBB_TEST_HOLD_REPLICA"
)

var (
	ctx = context.Background()
	id  = store.Identity{Volume: "ns/v", VolumeUID: "0123456789", Replica: "v-1", Size: 5*mib + 4096}
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdEnv); dir != "" {
		hold(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// hold opens a replica in another process until its standard input ends.
func hold(dir string) {
	if _, err := store.Open(store.OS{}, dir, id, "boot"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the test
}

// fixture is a replica on a file system that can fail.
type fixture struct {
	*testing.T
	fs  *lossy.FS
	dir string
	s   *store.Store
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	root := t.TempDir()
	fsys, err := lossy.New(root, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fsys.Close)
	f := &fixture{T: t, fs: fsys, dir: filepath.Join(root, "replicas", "ns-v-01234567", "v-1")}
	f.must(store.Create(fsys, f.dir, id, "boot-0"))
	f.open("boot-0")
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) want(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("error %v, want %v", err, want)
	}
}

func (f *fixture) open(boot string) {
	f.Helper()
	s, err := store.Open(f.fs, f.dir, id, boot)
	f.must(err)
	f.s = s
}

func (f *fixture) commit(generation int64, members, away []string) {
	f.Helper()
	f.must(f.s.Commit(ctx, block.Membership{Generation: generation, Members: members, Away: away}))
}

func (f *fixture) write(generation, off int64, fua bool) {
	f.Helper()
	f.must(f.s.WriteAt(ctx, generation, pattern(4096, byte(off>>12)+1), off, fua))
}

func (f *fixture) intent(generation int64) []int64 {
	f.Helper()
	b, err := f.s.Intent(ctx, generation)
	f.must(err)
	return chunks(b)
}

func (f *fixture) missed(generation int64, replica string) []int64 {
	f.Helper()
	b, ok, err := f.s.Missed(ctx, generation, replica, 0)
	f.must(err)
	if !ok {
		return []int64{-1}
	}
	return chunks(b)
}

// count counts operations while a function runs.
func (f *fixture) count(kind lossy.Kind, base string, run func()) int {
	f.Helper()
	var n atomic.Int64
	f.fs.Inject(func(op lossy.Op) error {
		if op.Kind == kind && filepath.Base(op.Path) == base {
			n.Add(1)
		}
		return nil
	})
	run()
	f.fs.Inject(nil)
	return int(n.Load())
}

// failing makes operations fail.
func (f *fixture) failing(kind lossy.Kind, base string, err error) {
	f.fs.Inject(func(op lossy.Op) error {
		if op.Kind == kind && filepath.Base(op.Path) == base {
			return err
		}
		return nil
	})
}

func pattern(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }

func chunks(b block.Bitmap) []int64 {
	list := []int64{}
	for i := range int64(len(b) * 64) {
		if b.Has(i) {
			list = append(list, i)
		}
	}
	return list
}

func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func TestAReplicaKeepsWhatItIsTold(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "replicas", "v", "v-1")
	if err := store.Create(store.OS{}, dir, id, "boot-0"); err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, dir: dir}
	reopen := func(boot string) {
		s, err := store.Open(store.OS{}, dir, id, boot)
		f.must(err)
		f.s = s
	}
	reopen("boot-0")
	equal(t, "a new replica", f.s.State(), block.State{BootID: "boot-0", CurrentBootID: "boot-0", Clean: true})
	m := block.Membership{Generation: 7, Members: []string{"v-1", "v-2"}, Away: []string{"v-3"}}
	f.must(f.s.Commit(ctx, m))
	m.Syncing = true
	f.must(f.s.Commit(ctx, m))
	f.write(7, 2*mib, false)
	f.write(7, 5*mib, true)
	got := make([]byte, 8192)
	f.must(f.s.ReadAt(ctx, 7, got, 2*mib))
	if want := append(pattern(4096, 1+byte((2*mib>>12)&0xff)), make([]byte, 4096)...); !bytes.Equal(got, want) {
		t.Error("another content was read than was written")
	}
	f.must(f.s.Close())
	f.must(f.s.Close())
	f.want(f.s.Ping(ctx, 7), os.ErrClosed)
	f.want(f.s.WriteAt(ctx, 7, got, 0, false), os.ErrClosed)

	in, err := store.Inspect(store.OS{}, dir)
	f.must(err)
	want := block.State{Generation: 7, Members: []string{"v-1", "v-2"}, Away: []string{"v-3"}, Syncing: true, MemberAt: 7, BootID: "boot-0", Clean: true}
	equal(t, "inspection", in, store.Inspection{Identity: id, State: want, Used: true, Allocated: 8192})
	reopen("boot-1")
	want.CurrentBootID = "boot-1"
	equal(t, "state", f.s.State(), want)
	equal(t, "intent", f.intent(7), []int64{2, 5})
	equal(t, "missed", f.missed(7, "v-3"), []int64{2, 5})
	f.must(f.s.Close())
}

func TestOpenTellsWhatIsWrong(t *testing.T) {
	other := func(change func(*store.Identity)) store.Identity {
		o := id
		change(&o)
		return o
	}
	write := func(name string, off int64, b ...byte) func(string) error {
		return func(dir string) error {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(b, off)
			return errors.Join(err, f.Close())
		}
	}
	remove := func(name string) func(string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
	}
	resize := func(name string, size int64) func(string) error {
		return func(dir string) error { return os.Truncate(filepath.Join(dir, name), size) }
	}
	for _, c := range []struct {
		name   string
		id     store.Identity
		damage func(dir string) error
		want   error
	}{
		{"nothing", id, nil, nil},
		{"no lock file", id, remove("lock"), nil},
		{"no directory", id, remove(""), block.ErrMissing},
		{"no data", id, remove("data"), block.ErrMissing},
		{"no metadata", id, remove("meta"), block.ErrMissing},
		{"another volume", other(func(i *store.Identity) { i.Volume = "ns/w" }), nil, block.ErrForeign},
		{"another volume of the same name", other(func(i *store.Identity) { i.VolumeUID = "x" }), nil, block.ErrForeign},
		{"another replica", other(func(i *store.Identity) { i.Replica = "v-2" }), nil, block.ErrForeign},
		{"another size", other(func(i *store.Identity) { i.Size = mib }), nil, block.ErrForeign},
		{"a damaged header", id, write("meta", 30, 0xff), block.ErrDamaged},
		{"a damaged magic number", id, write("meta", 0, 0xff), block.ErrDamaged},
		{"a damaged state", id, write("meta", store.StateAt(1)+25, 0xff), block.ErrDamaged},
		{"short data", id, resize("data", mib), block.ErrDamaged},
		{"empty data", id, resize("data", 0), block.ErrDamaged},
		{"long data", id, resize("data", 10*mib), block.ErrDamaged},
		{"short metadata", id, resize("meta", 8192), block.ErrDamaged},
		{"metadata that ends in a bitmap", id, resize("meta", store.MetaSize(id.Size)-4096), block.ErrDamaged},
		{"metadata without bitmaps", id, resize("meta", 128<<10), block.ErrDamaged},
		{"empty metadata", id, resize("meta", 0), block.ErrDamaged},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "v", "v-1")
			f := &fixture{T: t}
			f.must(store.Create(store.OS{}, dir, id, "boot"))
			if c.damage != nil {
				f.must(c.damage(dir))
			}
			s, err := store.Open(store.OS{}, dir, c.id, "boot")
			if c.want == nil {
				f.must(err)
				f.must(s.Close())
				return
			}
			f.want(err, c.want)
			if !bytes.Contains([]byte(err.Error()), []byte(dir)) {
				t.Errorf("%q does not name the directory", err)
			}
		})
	}
}

func TestCreateTwice(t *testing.T) {
	f := newFixture(t)
	f.want(second(store.Open(f.fs, f.dir, id, "boot-0")), store.ErrLocked)
	f.must(f.s.Close())
	f.must(store.Create(f.fs, f.dir, id, "boot-0"))
	foreign := id
	foreign.VolumeUID = "another"
	f.want(store.Create(f.fs, f.dir, foreign, "boot-0"), block.ErrForeign)
	f.open("boot-0")
	f.commit(1, []string{"v-1"}, nil)
	f.must(f.s.Close())
	f.want(store.Create(f.fs, f.dir, id, "boot-0"), fs.ErrExist)
	f.must(store.Remove(f.fs, f.dir))
	f.must(store.Remove(f.fs, f.dir))
	f.must(store.Create(f.fs, f.dir, id, "boot-0"))
	f.open("boot-0")
	equal(t, "generation", f.s.State().Generation, 0)
}

// syncless does not sync directories.
type syncless struct{ store.FS }

func (syncless) SyncDir(string) error { return nil }

// crashCreate creates a replica and crashes at an operation. It returns whether Create got that far, and what is wrong afterwards.
func crashCreate(dir string, n int, seed uint64, wrap func(store.FS) store.FS) (crashed bool, err error) {
	fsys, err := lossy.New(dir, seed)
	if err != nil {
		return false, err
	}
	defer fsys.Close()
	path := filepath.Join(dir, "replicas", "v", "v-1")
	fsys.CrashAfter(n)
	created := store.Create(wrap(fsys), path, id, "boot-0")
	if created != nil && !errors.Is(created, lossy.ErrCrashed) {
		return false, created
	}
	if err := fsys.Crash(); err != nil {
		return false, err
	}
	s, err := store.Open(fsys, path, id, "boot-1")
	if err == nil {
		err = s.Close()
	} else if created != nil && errors.Is(err, block.ErrMissing) {
		err = nil
	}
	if err != nil {
		return created != nil, fmt.Errorf("open after Create returned %v: %w", created, err)
	}
	if err := store.Create(fsys, path, id, "boot-1"); err != nil {
		return created != nil, fmt.Errorf("create again: %w", err)
	}
	if s, err = store.Open(fsys, path, id, "boot-1"); err != nil {
		return created != nil, fmt.Errorf("open after creating again: %w", err)
	}
	return created != nil, s.Close()
}

func TestACrashDuringCreateLeavesNothingThatOpens(t *testing.T) {
	for seed := range uint64(5) {
		for n := 0; ; n++ {
			crashed, err := crashCreate(t.TempDir(), n, seed, func(f store.FS) store.FS { return f })
			if err != nil {
				t.Fatalf("seed %d, crash at operation %d: %v", seed, n, err)
			}
			if !crashed {
				break
			}
		}
	}
}

func TestACreateThatDoesNotSyncNamesIsNoticed(t *testing.T) {
	for seed := range uint64(50) {
		if _, err := crashCreate(t.TempDir(), 1000, seed, func(f store.FS) store.FS { return syncless{f} }); err != nil {
			return
		}
	}
	t.Error("nobody noticed")
}

func TestACrashDuringRemoveLeavesNoHalfReplica(t *testing.T) {
	for seed := range uint64(5) {
		for n, crashed := 0, true; crashed; n++ {
			f := newFixture(t)
			f.commit(3, []string{"v-1", "v-2"}, nil)
			f.write(3, 0, true)
			f.want(store.Remove(f.fs, f.dir), store.ErrLocked)
			f.must(f.s.Close())
			f.fs.CrashAfter(n)
			err := store.Remove(f.fs, f.dir)
			if crashed = err != nil; crashed {
				f.want(err, lossy.ErrCrashed)
			}
			f.must(f.fs.Crash())
			s, err := store.Open(f.fs, f.dir, id, "boot-1")
			if err == nil {
				equal(t, "generation", s.State().Generation, 3)
				f.must(s.Close())
			} else {
				f.want(err, block.ErrMissing)
			}
			if _, gone := os.Stat(f.dir); err != nil && gone == nil {
				t.Fatalf("seed %d, crash at operation %d: half a directory is left", seed, n)
			}
			f.must(store.Remove(f.fs, f.dir))
			entries, err := os.ReadDir(filepath.Dir(f.dir))
			f.must(err)
			if len(entries) > 0 {
				t.Fatalf("seed %d, crash at operation %d: %v is left", seed, n, entries)
			}
		}
	}
}

func TestOlderGenerationsAreRefused(t *testing.T) {
	f := newFixture(t)
	f.commit(5, []string{"v-1", "v-2"}, nil)
	p := make([]byte, 4096)
	for _, c := range []struct {
		name string
		call func(generation int64) error
	}{
		{"open", func(g int64) error { return second(f.s.Open(ctx, g)) }},
		{"commit", func(g int64) error {
			return f.s.Commit(ctx, block.Membership{Generation: g, Members: []string{"v-1", "v-2"}})
		}},
		{"read", func(g int64) error { return f.s.ReadAt(ctx, g, p, 0) }},
		{"write", func(g int64) error { return f.s.WriteAt(ctx, g, p, 0, true) }},
		{"zero", func(g int64) error { return f.s.Zero(ctx, g, 0, 4096, block.Zero{}) }},
		{"flush", func(g int64) error { return f.s.Flush(ctx, g) }},
		{"extents", func(g int64) error { return second(f.s.Extents(ctx, g, 0, 4096)) }},
		{"intent", func(g int64) error { return second(f.s.Intent(ctx, g)) }},
		{"missed", func(g int64) error { _, _, err := f.s.Missed(ctx, g, "v-3", 0); return err }},
		{"clear", func(g int64) error { return f.s.Clear(ctx, g, nil) }},
		{"ping", func(g int64) error { return f.s.Ping(ctx, g) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fixture{T: t}
			f.want(c.call(4), block.ErrStale)
			f.must(c.call(5))
		})
	}
	equal(t, "generation", f.s.State().Generation, 5)
	if err := f.s.WriteAt(ctx, 6, p, 0, false); err == nil || errors.Is(err, block.ErrStale) {
		t.Errorf("a generation that was not opened: %v", err)
	}
	before, err := f.s.Open(ctx, 6)
	f.must(err)
	equal(t, "generation before", before.Generation, 5)
	f.want(f.s.ReadAt(ctx, 5, p, 0), block.ErrStale)
	f.must(f.s.ReadAt(ctx, 6, p, 0))
	f.must(f.fs.Crash())
	f.open("boot-1")
	equal(t, "generation after a crash", f.s.State().Generation, 6)
}

func TestOpenWaitsForCallsOfAnOlderGeneration(t *testing.T) {
	f := newFixture(t)
	f.commit(1, []string{"v-1"}, nil)
	writing, goOn := make(chan struct{}), make(chan struct{})
	f.fs.Inject(func(op lossy.Op) error {
		if op.Kind == lossy.Write && filepath.Base(op.Path) == "data" {
			close(writing)
			<-goOn
		}
		return nil
	})
	var order []string
	var wg sync.WaitGroup
	var mu sync.Mutex
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	wg.Go(func() {
		if err := f.s.WriteAt(ctx, 1, pattern(4096, 1), 0, false); err != nil {
			t.Error(err)
		}
		note("write")
	})
	<-writing
	wg.Go(func() {
		if _, err := f.s.Open(ctx, 2); err != nil {
			t.Error(err)
		}
		note("open")
	})
	time.Sleep(20 * time.Millisecond) // Open cannot show that it waits
	f.must(f.s.Ping(ctx, 1))          // and a ping does not wait for it
	note("go on")
	close(goOn)
	wg.Wait()
	f.fs.Inject(nil)
	if slices.Index(order, "open") < slices.Index(order, "go on") {
		t.Errorf("order %v: the open returned while an older write was under way", order)
	}
	f.want(f.s.WriteAt(ctx, 1, pattern(4096, 2), 0, false), block.ErrStale)
	f.want(f.s.Ping(ctx, 1), block.ErrStale)
	p := make([]byte, 4096)
	f.must(f.s.ReadAt(ctx, 2, p, 0))
	equal(t, "content", p[0], 1)
}

func TestChunksAreMarkedBeforeTheyAreWritten(t *testing.T) {
	f := newFixture(t)
	syncs := func(run func()) int { return f.count(lossy.Sync, "meta", run) }

	f.commit(1, []string{"v-1"}, nil)
	f.write(1, 0, false) // notes that the replica is not clean
	equal(t, "syncs while the replica is alone", syncs(func() { f.write(1, mib, false) }), 0)
	equal(t, "intent while it is alone", f.intent(1), []int64{})

	f.commit(2, []string{"v-1", "v-2"}, nil)
	equal(t, "syncs of a first write", syncs(func() { f.write(2, mib, false) }), 1)
	equal(t, "syncs of a second one", syncs(func() { f.write(2, mib+4096, false) }), 0)
	equal(t, "syncs of a write to two chunks", syncs(func() { f.must(f.s.WriteAt(ctx, 2, pattern(8192, 9), 3*mib-4096, false)) }), 1)
	equal(t, "syncs of a zero", syncs(func() { f.must(f.s.Zero(ctx, 2, 4*mib, mib, block.Zero{Hole: true})) }), 1)
	equal(t, "intent", f.intent(2), []int64{1, 2, 3, 4})

	f.commit(3, []string{"v-1"}, []string{"v-2"})
	equal(t, "missed at first", f.missed(3, "v-2"), []int64{1, 2, 3, 4})
	cleared := block.NewBitmap(6)
	cleared.Set(1)
	cleared.Set(2)
	cleared.Set(5)
	f.must(f.s.Clear(ctx, 3, cleared))
	equal(t, "intent after clearing", f.intent(3), []int64{3, 4})
	equal(t, "missed after clearing", f.missed(3, "v-2"), []int64{1, 2, 3, 4})
	equal(t, "syncs of a write to a chunk that was cleared", syncs(func() { f.write(3, mib, false) }), 1)
	equal(t, "syncs of clearing nothing", syncs(func() { f.must(f.s.Clear(ctx, 3, block.NewBitmap(6))) }), 0)

	f.commit(4, []string{"v-1", "v-3"}, []string{"v-2"})
	f.commit(4, []string{"v-1"}, []string{"v-2", "v-3"})
	equal(t, "missed by the second", f.missed(4, "v-3"), []int64{1, 3, 4})
	f.write(4, 5*mib, false)
	equal(t, "missed by the first", f.missed(4, "v-2"), []int64{1, 2, 3, 4, 5})
	equal(t, "missed by the second", f.missed(4, "v-3"), []int64{1, 3, 4, 5})
	f.commit(5, []string{"v-1", "v-2"}, []string{"v-3"})
	equal(t, "missed by one that is forgotten", f.missed(5, "v-2"), []int64{-1})
	f.must(f.fs.Crash())
	f.open("boot-1")
	equal(t, "intent after a crash", f.intent(5), []int64{1, 3, 4, 5})
	equal(t, "missed after a crash", f.missed(5, "v-3"), []int64{1, 3, 4, 5})
}

func TestTheOldestAwayIsForgotten(t *testing.T) {
	f := newFixture(t)
	members, away := []string{"v-1"}, []string{}
	for i := range 10 {
		members = append(members, fmt.Sprintf("away-%d", i))
	}
	f.commit(1, members, nil)
	for i := range 10 {
		away = append(away, members[1])
		members = append([]string{"v-1"}, members[2:]...)
		f.commit(int64(i+2), members, away)
		f.write(int64(i+2), int64(i%5)*mib, false)
	}
	equal(t, "away", f.s.State().Away, away[2:])
	equal(t, "the oldest", f.missed(11, "away-1"), []int64{-1})
	equal(t, "the next", f.missed(11, "away-2"), []int64{0, 1, 2, 3, 4})

	// What was forgotten is not known again when there is room.
	f.commit(12, members, []string{"away-0", "away-9"})
	equal(t, "away", f.s.State().Away, []string{"away-9"})
	f.must(f.fs.Crash())
	f.open("boot-1")
	equal(t, "away after a crash", f.s.State().Away, []string{"away-9"})
	f.commit(12, members, []string{"away-0", "away-9"})
	equal(t, "away after another commit", f.s.State().Away, []string{"away-9"})
	f.commit(13, []string{"v-1", "away-0"}, []string{"away-9"})
	f.commit(14, []string{"v-1"}, []string{"away-0", "away-9"})
	equal(t, "away after it was a member again", f.s.State().Away, []string{"away-9", "away-0"})
}

func TestWhatIsNotKnownIsNotSaid(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after block.Membership
		known         bool
	}{
		{"a member that leaves", block.Membership{Members: []string{"v-1", "x"}}, block.Membership{Members: []string{"v-1"}}, true},
		{"one that was no member", block.Membership{Members: []string{"v-1", "v-2"}}, block.Membership{Members: []string{"v-1"}}, false},
		{"one that nobody told of", block.Membership{Members: []string{"v-1"}}, block.Membership{Members: []string{"v-1"}}, false},
		{"while it is built", block.Membership{Members: []string{"v-2", "x"}, Syncing: true},
			block.Membership{Members: []string{"v-2"}, Syncing: true}, false},
		{"when it has been built", block.Membership{Members: []string{"v-2", "x"}, Syncing: true},
			block.Membership{Members: []string{"v-2", "v-1"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			c.before.Generation, c.after.Generation, c.after.Away = 1, 2, []string{"x"}
			f.must(f.s.Commit(ctx, c.before))
			f.write(1, 0, false)
			f.must(f.s.Commit(ctx, c.after))
			_, ok, err := f.s.Missed(ctx, 2, "x", 0)
			f.must(err)
			equal(t, "known", ok, c.known)
			equal(t, "named", slices.Contains(f.s.State().Away, "x"), c.known)
		})
	}
}

func TestConcurrentSyncsAreShared(t *testing.T) {
	f := newFixture(t)
	f.commit(1, []string{"v-1", "v-2"}, nil)
	f.write(1, 0, false)
	for name, c := range map[string]struct {
		file string
		call func(i int64) error
	}{
		"flushes": {"data", func(int64) error { return f.s.Flush(ctx, 1) }},
		"fua":     {"data", func(i int64) error { return f.s.WriteAt(ctx, 1, pattern(512, 1), i*512, true) }},
		"marks":   {"meta", func(i int64) error { return f.s.WriteAt(ctx, 1, pattern(512, 1), (1+i%4)*mib, false) }},
	} {
		t.Run(name, func(t *testing.T) {
			f.must(f.s.Clear(ctx, 1, block.Bitmap{0b11110}))
			var syncs atomic.Int64
			first, goOn := make(chan struct{}), make(chan struct{})
			f.fs.Inject(func(op lossy.Op) error {
				if op.Kind == lossy.Sync && filepath.Base(op.Path) == c.file && syncs.Add(1) == 1 {
					close(first)
					<-goOn
				}
				return nil
			})
			var wg sync.WaitGroup
			call := func(i int64) {
				if err := c.call(i); err != nil {
					t.Error(err)
				}
			}
			wg.Go(func() { call(0) })
			<-first
			for i := range int64(16) {
				wg.Go(func() { call(i) })
			}
			time.Sleep(50 * time.Millisecond) // let them wait for the first
			close(goOn)
			wg.Wait()
			f.fs.Inject(nil)
			if n := syncs.Load(); n < 2 || n > 8 {
				t.Errorf("%d syncs for 17 calls", n)
			}
		})
	}
}

// TestASyncCoversWhatWasWrittenBeforeIt lets a write end while a sync runs: the flush after it needs a sync of its own.
func TestASyncCoversWhatWasWrittenBeforeIt(t *testing.T) {
	f := newFixture(t)
	f.commit(1, []string{"v-1"}, nil)
	f.write(1, 0, false)
	first, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.fs.Inject(func(op lossy.Op) error {
		if op.Kind == lossy.Sync {
			once.Do(func() { close(first); <-goOn })
		}
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() { _ = f.s.Flush(ctx, 1) })
	<-first
	f.write(1, mib, false)
	flushed := make(chan error, 1)
	wg.Go(func() { flushed <- f.s.Flush(ctx, 1) })
	time.Sleep(20 * time.Millisecond) // let it join, if it wrongly would
	close(goOn)
	f.must(<-flushed)
	wg.Wait()
	f.fs.Inject(nil)
	f.must(f.fs.Crash())
	f.open("boot-1")
	p := make([]byte, 4096)
	f.must(f.s.ReadAt(ctx, 1, p, mib))
	if p[0] == 0 {
		t.Error("a flushed write was lost")
	}
}

func TestAFailedSyncEndsWriting(t *testing.T) {
	for _, c := range []struct {
		name string
		file string
		call func(s *store.Store) error
		// boot is the boot ID that is left: another than the current one if acknowledged data may be gone.
		boot string
	}{
		{"flush", "data", func(s *store.Store) error { return s.Flush(ctx, 1) }, ""},
		{"fua", "data", func(s *store.Store) error { return s.WriteAt(ctx, 1, pattern(512, 7), mib, true) }, ""},
		{"zero", "data", func(s *store.Store) error { return s.Zero(ctx, 1, mib, 512, block.Zero{FUA: true}) }, ""},
		{"mark", "meta", func(s *store.Store) error { return s.WriteAt(ctx, 1, pattern(512, 7), 2*mib, false) }, "boot-0"},
		{"clear", "meta", func(s *store.Store) error { return s.Clear(ctx, 1, block.Bitmap{0b10}) }, "boot-0"},
		{"open", "meta", func(s *store.Store) error { return second(s.Open(ctx, 2)) }, "boot-0"},
		{"commit", "meta", func(s *store.Store) error { return s.Commit(ctx, block.Membership{Generation: 2}) }, "boot-0"},
		{"close", "data", func(s *store.Store) error { return s.Close() }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			f.commit(1, []string{"v-1", "v-2"}, []string{"v-3"})
			f.write(1, mib, false)
			f.failing(lossy.Sync, c.file, unix.EIO)
			err := c.call(f.s)
			f.want(err, block.ErrDamaged)
			f.want(err, unix.EIO)
			f.fs.Inject(nil)
			if c.name != "close" {
				f.want(f.s.WriteAt(ctx, 1, pattern(512, 8), 0, false), block.ErrDamaged)
				f.want(f.s.Zero(ctx, 1, 0, 512, block.Zero{}), block.ErrDamaged)
				f.want(f.s.Flush(ctx, 1), block.ErrDamaged)
				f.want(f.s.Failure(), block.ErrDamaged)
				f.must(f.s.Ping(ctx, 1))
				p := make([]byte, 512)
				f.must(f.s.ReadAt(ctx, 1, p, mib))
				f.want(f.s.Close(), block.ErrDamaged)
			}
			f.open("boot-0")
			equal(t, "boot ID", f.s.State().BootID, c.boot)
			equal(t, "clean", f.s.State().Clean, false)
			generation := f.s.State().Generation
			if got := f.intent(generation); c.name != "clear" && !slices.Contains(got, 1) {
				t.Errorf("intent %v lacks chunk 1", got)
			}
			f.must(f.s.WriteAt(ctx, generation, pattern(512, 8), 0, true))
			f.must(f.s.Close())
		})
	}
}

// TestMetadataThatASyncDroppedIsWrittenAgain: what a failed sync leaves in the cache is read, and must be durable before it counts.
func TestMetadataThatASyncDroppedIsWrittenAgain(t *testing.T) {
	f := newFixture(t)
	f.commit(1, []string{"v-1", "v-2"}, nil)
	f.failing(lossy.Sync, "meta", unix.EIO)
	f.want(f.s.Commit(ctx, block.Membership{Generation: 2, Members: []string{"v-1"}, Away: []string{"v-2"}}), block.ErrDamaged)
	f.fs.Inject(nil)
	f.fs.Kill()
	f.open("boot-0")
	known := f.s.State()
	for range 3 {
		f.must(f.fs.Crash())
		f.open("boot-1")
		if got := f.s.State(); got.Generation != known.Generation {
			t.Fatalf("generation %d was known, and is %d after a power failure", known.Generation, got.Generation)
		}
	}
}

func TestAFullDisk(t *testing.T) {
	f := newFixture(t)
	f.commit(1, []string{"v-1", "v-2", "v-3", "v-4", "v-5", "v-6", "v-7", "v-8", "v-9"}, nil)
	f.write(1, 0, true)
	f.fs.SetFree(8192)
	f.want(f.s.WriteAt(ctx, 1, pattern(16384, 1), mib, false), block.ErrNoSpace)
	f.want(f.s.WriteAt(ctx, 1, pattern(512, 1), 2*mib, true), block.ErrNoSpace)
	f.want(f.s.Zero(ctx, 1, 3*mib, 4096, block.Zero{}), block.ErrNoSpace)
	f.want(store.Create(f.fs, f.dir+"-2", id, "boot-0"), block.ErrNoSpace)

	// Metadata has its space, and so have blocks that were written before.
	equal(t, "intent", f.intent(1), []int64{0, 1, 2, 3})
	f.must(f.s.Flush(ctx, 1))
	f.write(1, 0, true)
	f.commit(2, []string{"v-1"}, []string{"v-2", "v-3", "v-4", "v-5", "v-6", "v-7", "v-8", "v-9"})
	equal(t, "missed", f.missed(2, "v-9"), []int64{0, 1, 2, 3})
	f.must(f.s.Clear(ctx, 2, block.Bitmap{0b1111}))
	f.must(f.s.Zero(ctx, 2, 0, mib, block.Zero{Hole: true}))
	f.must(second(f.s.Open(ctx, 3)))

	f.fs.SetFree(mib)
	f.must(f.s.WriteAt(ctx, 3, pattern(16384, 1), mib, true))
	f.must(f.s.Close())
	entries, err := os.ReadDir(filepath.Dir(f.dir))
	f.must(err)
	equal(t, "directories", len(entries), 1)
}

func TestReadErrorsAreReported(t *testing.T) {
	f := newFixture(t)
	f.failing(lossy.Read, "data", unix.EIO)
	f.want(f.s.ReadAt(ctx, 0, make([]byte, 512), 0), unix.EIO)
	f.fs.Inject(nil)
	f.must(f.s.ReadAt(ctx, 0, make([]byte, 512), 0))
	f.must(f.s.Failure())
	f.must(f.s.Close())
	f.failing(lossy.Read, "meta", unix.EIO)
	if _, err := store.Open(f.fs, f.dir, id, "boot-0"); err == nil {
		t.Error("metadata that cannot be read was opened")
	}
}

func TestRangesOutsideAreRefused(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ off, length int64 }{{-512, 512}, {id.Size, 512}, {id.Size - 512, 1024}, {1 << 62, 512}} {
		p := make([]byte, c.length)
		if err := f.s.WriteAt(ctx, 0, p, c.off, false); err == nil {
			t.Errorf("write at %d of %d bytes was accepted", c.off, c.length)
		}
		if err := f.s.Zero(ctx, 0, c.off, c.length, block.Zero{}); err == nil {
			t.Errorf("zero at %d of %d bytes was accepted", c.off, c.length)
		}
		if err := f.s.ReadAt(ctx, 0, p, c.off); err == nil {
			t.Errorf("read at %d of %d bytes was accepted", c.off, c.length)
		}
		if _, err := f.s.Extents(ctx, 0, c.off, c.length); err == nil {
			t.Errorf("extents at %d of %d bytes were listed", c.off, c.length)
		}
	}
	f.must(f.s.WriteAt(ctx, 0, nil, id.Size, false))
	equal(t, "intent", f.intent(0), []int64{})
}

// TestTornStates cuts the write of a state at every byte, and fills the rest with the old content, zeros or garbage.
func TestTornStates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v", "v-1")
	f := &fixture{T: t, dir: dir}
	f.must(store.Create(store.OS{}, dir, id, "boot-0"))
	s, err := store.Open(store.OS{}, dir, id, "boot-0")
	f.must(err)
	for g := range int64(3) {
		f.must(s.Commit(ctx, block.Membership{Generation: g + 1, Members: []string{"v-1", fmt.Sprint("v-", g)}, Away: []string{"a", "b"}}))
	}
	path := filepath.Join(dir, "meta")
	before, err := os.ReadFile(path)
	f.must(err)
	f.must(s.Commit(ctx, block.Membership{Generation: 4, Members: []string{"v-1", "v-x", "v-y"}, Away: []string{"b"}}))
	after, err := os.ReadFile(path)
	f.must(err)
	at := store.StateAt(s.Seq())
	f.must(s.Close())
	end := at + store.StateSize
	for end > at && after[end-1] == before[end-1] {
		end--
	}
	if end-at < 60 {
		t.Fatalf("the state has only %d bytes", end-at)
	}
	meta := slices.Clone(before)
	check := func(what string, cut int64, want ...int64) {
		t.Helper()
		f.must(os.WriteFile(path, meta, 0o600))
		in, err := store.Inspect(store.OS{}, dir)
		f.must(err)
		if !slices.Contains(want, in.State.Generation) || len(in.State.Members) != int(in.State.Generation/4)+2 {
			t.Fatalf("cut after %d bytes, then %s: %+v", cut-at, what, in.State)
		}
	}
	for cut := at; cut < end; cut++ {
		copy(meta, before)
		copy(meta[at:cut], after[at:cut])
		check("as before", cut, 3)
		clear(meta[cut : at+store.StateSize])
		check("zeros", cut, 3, 4) // zeros that were zero
		copy(meta[cut:], pattern(int(at+store.StateSize-cut), 0xa5))
		check("garbage", cut, 3)
	}
	copy(meta, after)
	check("whole", end, 4)
}

func TestCleanAndBootID(t *testing.T) {
	f := newFixture(t)
	check := func(what, boot string, clean bool) {
		t.Helper()
		got := f.s.State()
		if got.BootID != boot || got.Clean != clean {
			t.Errorf("%s: boot %q, clean %v; want %q, %v", what, got.BootID, got.Clean, boot, clean)
		}
	}
	reopen := func(boot string) {
		t.Helper()
		f.must(f.s.Close())
		f.open(boot)
	}
	check("new", "boot-0", true)
	f.commit(1, []string{"v-1"}, nil)
	f.must(second(f.s.Open(ctx, 2)))
	f.must(f.s.Flush(ctx, 2))
	check("opened", "boot-0", true)
	f.write(2, 0, false)
	check("written", "boot-0", false)
	reopen("boot-1")
	check("closed", "boot-0", true)
	f.write(2, 0, false)
	check("written after another boot", "boot-1", false)
	f.fs.Kill()
	f.open("boot-1")
	check("killed", "boot-1", false)
	reopen("boot-1")
	check("closed in the same boot", "boot-1", true)
	f.write(2, 0, false)
	f.must(f.fs.Crash())
	f.open("boot-2")
	check("crashed", "boot-1", false)
	reopen("boot-2")
	check("closed without a write after a crash", "boot-1", false)
	f.write(2, 0, false)
	reopen("boot-3")
	check("written and closed after a crash", "boot-2", true)
}

func TestZerosAndExtents(t *testing.T) {
	f := newFixture(t)
	f.must(f.s.WriteAt(ctx, 0, pattern(mib, 1), mib, false))
	f.must(f.s.Zero(ctx, 0, mib+4096, 8192, block.Zero{Hole: true}))
	f.must(f.s.Zero(ctx, 0, mib+100, 1000, block.Zero{}))
	f.must(f.s.Flush(ctx, 0))
	got, err := f.s.Extents(ctx, 0, 0, id.Size)
	f.must(err)
	equal(t, "extents", got, []block.Extent{
		{Length: mib, Hole: true}, {Length: 4096}, {Length: 8192, Hole: true}, {Length: mib - 12288}, {Length: 3*mib + 4096, Hole: true},
	})
	got, err = f.s.Extents(ctx, 0, mib+8192, 8192)
	f.must(err)
	equal(t, "extents of a part", got, []block.Extent{{Length: 4096, Hole: true}, {Length: 4096}})
	want := pattern(mib, 1)
	clear(want[4096:12288])
	clear(want[100:1100])
	p := make([]byte, mib)
	f.must(f.s.ReadAt(ctx, 0, p, mib))
	if !bytes.Equal(p, want) {
		t.Error("another content was read than was written")
	}
}

func TestZerosWhereTheFileSystemCannot(t *testing.T) {
	f := newFixture(t)
	f.must(f.s.WriteAt(ctx, 0, pattern(2*mib, 1), mib, false))
	f.failing(lossy.Allocate, "data", unix.EOPNOTSUPP)
	f.must(f.s.Zero(ctx, 0, mib+512, mib, block.Zero{}))
	f.must(f.s.Zero(ctx, 0, 3*mib-512, 512, block.Zero{Hole: true, FUA: true}))
	want := pattern(2*mib, 1)
	clear(want[512 : mib+512])
	clear(want[2*mib-512:])
	p := make([]byte, 2*mib)
	f.must(f.s.ReadAt(ctx, 0, p, mib))
	if !bytes.Equal(p, want) {
		t.Error("another content was read than was written")
	}
}

func TestTwoProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v", "v-1")
	f := &fixture{T: t}
	f.must(store.Create(store.OS{}, dir, id, "boot"))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	in, err := cmd.StdinPipe()
	f.must(err)
	out, err := cmd.StdoutPipe()
	f.must(err)
	f.must(cmd.Start())
	said := make([]byte, 5)
	n, err := io.ReadFull(out, said)
	if string(said[:n]) != "open\n" {
		t.Fatalf("the other process said %q: %v", said[:n], err)
	}
	f.want(second(store.Open(store.OS{}, dir, id, "boot")), store.ErrLocked)
	f.want(store.Remove(store.OS{}, dir), store.ErrLocked)
	_, err = store.Inspect(store.OS{}, dir)
	f.must(err)
	f.must(in.Close())
	f.must(cmd.Wait())
	s, err := store.Open(store.OS{}, dir, id, "boot")
	f.must(err)
	f.must(s.Close())
}

func TestALargeVolume(t *testing.T) {
	large := id
	large.Size = 8<<40 - 4096
	dir := filepath.Join(t.TempDir(), "v", "v-1")
	f := &fixture{T: t}
	f.must(store.Create(store.OS{}, dir, large, "boot"))
	s, err := store.Open(store.OS{}, dir, large, "boot")
	f.must(err)
	f.s = s
	f.commit(1, []string{"v-1", "v-2"}, nil)
	last := block.Chunks(large.Size) - 1
	f.write(1, 0, false)
	f.write(1, large.Size-4096, false)
	f.write(1, 4<<40, false)
	f.must(s.Zero(ctx, 1, 6<<40, 1<<40, block.Zero{Hole: true}))
	f.commit(2, []string{"v-1"}, []string{"v-2"})
	f.must(s.Close())
	f.s, err = store.Open(store.OS{}, dir, large, "boot")
	f.must(err)
	want := []int64{0, 4 << 20}
	for i := int64(6 << 20); i < 7<<20; i++ {
		want = append(want, i)
	}
	want = append(want, last)
	if got := f.missed(2, "v-2"); !slices.Equal(got, want) {
		t.Errorf("%d chunks are missed, want %d", len(got), len(want))
	}
	f.must(f.s.Close())
}

func TestManyAtOnce(t *testing.T) {
	f := newFixture(t)
	f.commit(1, []string{"v-1", "v-2"}, nil)
	var generation atomic.Int64
	generation.Store(1)
	var wg sync.WaitGroup
	for worker := range int64(8) {
		wg.Go(func() {
			p := make([]byte, 4096)
			off := worker % 5 * mib
			for i := range 60 {
				off = (off + mib + 4096) % (5 * mib)
				off -= off % 4096
				g := generation.Load()
				var err error
				switch i % 6 {
				case 0, 1:
					err = f.s.WriteAt(ctx, g, pattern(4096, byte(i)), off, i%12 == 0)
				case 2:
					err = f.s.ReadAt(ctx, g, p, off)
				case 3:
					err = f.s.Flush(ctx, g)
				case 4:
					err = f.s.Zero(ctx, g, off, 4096, block.Zero{Hole: i%2 == 0})
				default:
					err = f.s.Clear(ctx, g, block.Bitmap{1 << (worker % 6)})
				}
				if err != nil && !errors.Is(err, block.ErrStale) {
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		g := generation.Load() + 1
		f.commit(g, []string{"v-1", "v-2"}, []string{fmt.Sprint("away-", g%3)})
		generation.Store(g)
	}
	wg.Wait()
	f.must(f.s.Close())
}

func TestBootIDIsThatOfTheMachine(t *testing.T) {
	a, err := store.BootID()
	if err != nil || len(a) != 36 {
		t.Errorf("boot ID %q: %v", a, err)
	}
}

func TestLeftovers(t *testing.T) {
	for name, want := range map[string]bool{".v-1.creating": true, ".v-1.removed": true, "v-1": false, ".hidden": false, "v.removed": false} {
		equal(t, name, store.IsLeftover(name), want)
	}
}

// What a replica missed is known as long as it was no member since.
func TestWhatAReplicaMissedThatWentOnIsNotKnown(t *testing.T) {
	f := newFixture(t)
	f.commit(5, []string{"v-1", "v-2", "v-3"}, nil)
	f.commit(7, []string{"v-1", "v-2"}, []string{"v-3"})
	f.commit(9, []string{"v-1", "v-2"}, []string{"v-3"})
	for range 2 {
		for memberAt, want := range map[int64]bool{0: true, 5: true, 6: true, 7: false, 8: false, 9: false} {
			if _, known, err := f.s.Missed(ctx, 9, "v-3", memberAt); err != nil || known != want {
				t.Errorf("a member in generation %d: known %t, %v", memberAt, known, err)
			}
		}
		f.must(f.s.Close())
		f.open("boot-0")
	}
}

// A replica is whole when it is told that it is not being built any more, also if the engine dies before it is told that it is a member.
func TestWhenAReplicaWasLastAMember(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct {
		m    block.Membership
		want int64
	}{
		{block.Membership{Generation: 2, Members: []string{"v-1", "v-2"}}, 2},
		{block.Membership{Generation: 4, Members: []string{"v-2"}}, 2},
		{block.Membership{Generation: 5, Members: []string{"v-2"}, Syncing: true}, 2},
		{block.Membership{Generation: 6, Members: []string{"v-2"}}, 6},
		{block.Membership{Generation: 7, Members: []string{"v-2"}}, 6},
		{block.Membership{Generation: 8, Members: []string{"v-1", "v-2"}}, 8},
	} {
		f.must(f.s.Commit(ctx, c.m))
		equal(t, fmt.Sprintf("%+v", c.m), f.s.State().MemberAt, c.want)
	}
}
