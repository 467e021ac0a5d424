package lossy_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFS(t *testing.T, seed uint64) (*lossy.FS, string) {
	t.Helper()
	dir := t.TempDir()
	f, err := lossy.New(dir, seed)
	must(t, err)
	t.Cleanup(f.Close)
	return f, dir
}

// newFile makes a file of 8 KiB, durably.
func newFile(t *testing.T, f *lossy.FS, path string) store.File {
	t.Helper()
	h, err := f.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	must(t, err)
	must(t, h.Truncate(8192))
	must(t, h.Datasync())
	must(t, f.SyncDir(filepath.Dir(path)))
	return h
}

func put(t *testing.T, h store.File, b byte, off int64, n int) {
	t.Helper()
	_, err := h.WriteAt(bytes.Repeat([]byte{b}, n), off)
	must(t, err)
}

// sectors returns the first byte of each sector of a file, none of which is torn.
func sectors(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	var first []byte
	for ; len(b) > 0; b = b[512:] {
		if !bytes.Equal(b[:512], bytes.Repeat(b[:1], 512)) {
			t.Fatal("a sector is torn")
		}
		first = append(first, b[0])
	}
	return first
}

func TestOnlyUnsyncedWritesAreLost(t *testing.T) {
	seen := map[byte]bool{}
	mixed := false
	for seed := range uint64(50) {
		f, dir := newFS(t, seed)
		path := filepath.Join(dir, "file")
		h := newFile(t, f, path)
		put(t, h, 1, 0, 4096)
		must(t, h.Datasync())
		put(t, h, 2, 0, 2048)
		put(t, h, 3, 0, 2048)
		must(t, f.Crash())
		got := sectors(t, path)
		for _, b := range got[:4] {
			seen[b] = true
			mixed = mixed || b != got[0]
		}
		if want := append(bytes.Repeat([]byte{1}, 4), make([]byte, 8)...); !bytes.Equal(got[4:], want) {
			t.Fatalf("synced sectors have %v", got[4:])
		}
		if _, err := h.WriteAt([]byte{1}, 0); !errors.Is(err, lossy.ErrCrashed) {
			t.Fatalf("a file that was open before the crash: %v", err)
		}
	}
	if len(seen) != 3 || !seen[1] || !seen[2] || !seen[3] || !mixed {
		t.Errorf("sectors had only %v, mixed %v", seen, mixed)
	}
}

func TestAKillLosesNothing(t *testing.T) {
	f, dir := newFS(t, 1)
	path := filepath.Join(dir, "file")
	h := newFile(t, f, path)
	put(t, h, 1, 0, 8192)
	lock, err := f.Lock(filepath.Join(dir, "lock"))
	must(t, err)
	defer lock.Close()
	f.Kill()
	if got := sectors(t, path); !bytes.Equal(got, bytes.Repeat([]byte{1}, 16)) {
		t.Errorf("sectors have %v", got)
	}
	if _, err := h.ReadAt(make([]byte, 1), 0); !errors.Is(err, lossy.ErrCrashed) {
		t.Errorf("a file that was open before: %v", err)
	}
	again, err := f.Lock(filepath.Join(dir, "lock"))
	must(t, err)
	must(t, again.Close())
}

func TestWhatAFailedSyncDropsIsNotSyncedLater(t *testing.T) {
	lost := 0
	for seed := range uint64(50) {
		f, dir := newFS(t, seed)
		path := filepath.Join(dir, "file")
		h := newFile(t, f, path)
		put(t, h, 1, 0, 1024)
		f.Inject(func(op lossy.Op) error {
			if op.Kind == lossy.Sync {
				return unix.EIO
			}
			return nil
		})
		if err := h.Datasync(); !errors.Is(err, unix.EIO) {
			t.Fatal(err)
		}
		f.Inject(nil)
		put(t, h, 1, 512, 512) // written again
		must(t, h.Datasync())
		must(t, f.Crash())
		got := sectors(t, path)
		if got[1] != 1 {
			t.Fatal("what was written again and synced is lost")
		}
		if got[0] == 0 {
			lost++
		}
	}
	if lost == 0 || lost == 50 {
		t.Errorf("lost %d times of 50", lost)
	}
}

func TestNamesThatWereNotSyncedMayBeLost(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *lossy.FS, dir string) error
		before string // what is there if the change is lost
		after  string
	}{
		{"create", func(f *lossy.FS, dir string) error {
			_, err := f.OpenFile(filepath.Join(dir, "new"), os.O_CREATE|os.O_RDWR, 0o600)
			return err
		}, "", "new"},
		{"mkdir", func(f *lossy.FS, dir string) error { return f.Mkdir(filepath.Join(dir, "new"), 0o700) }, "", "new"},
		{"rename", func(f *lossy.FS, dir string) error {
			return f.Rename(filepath.Join(dir, "old"), filepath.Join(dir, "new"))
		}, "old", "new"},
		{"remove", func(f *lossy.FS, dir string) error { return f.RemoveAll(filepath.Join(dir, "old")) }, "old", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var lost, kept int
			for seed := range uint64(40) {
				f, dir := newFS(t, seed)
				if c.before != "" {
					newFile(t, f, filepath.Join(dir, c.before))
				}
				must(t, c.change(f, dir))
				synced := seed%2 == 0
				if synced {
					must(t, f.SyncDir(dir))
				}
				must(t, f.Crash())
				is := func(name string) bool {
					_, err := os.Stat(filepath.Join(dir, name))
					return name == "" || err == nil
				}
				isNot := func(name string) bool { return name == "" || !is(name) }
				switch {
				case is(c.after) && isNot(c.before):
					kept++
				case is(c.before) && isNot(c.after) && !synced:
					lost++
				default:
					t.Fatalf("seed %d, synced %v: neither as before nor as after", seed, synced)
				}
			}
			if lost == 0 || kept <= 20 {
				t.Errorf("lost %d times, kept %d times", lost, kept)
			}
		})
	}
}

func TestAFullDiskTakesWhatFits(t *testing.T) {
	f, dir := newFS(t, 1)
	h := newFile(t, f, filepath.Join(dir, "file"))
	f.SetFree(4096)
	if n, err := h.WriteAt(make([]byte, 8192), 0); n != 4096 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("wrote %d: %v", n, err)
	}
	put(t, h, 1, 0, 4096)
	if _, err := h.WriteAt([]byte{1}, 4096); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("write to a new block: %v", err)
	}
	must(t, h.Allocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096))
	put(t, h, 1, 4096, 1)
}

func TestTheCrashComesAtTheOperation(t *testing.T) {
	f, dir := newFS(t, 1)
	h := newFile(t, f, filepath.Join(dir, "file"))
	f.CrashAfter(2)
	put(t, h, 1, 0, 512)
	must(t, h.Datasync())
	for range 3 {
		if _, err := h.WriteAt([]byte{1}, 0); !errors.Is(err, lossy.ErrCrashed) {
			t.Fatalf("after the crash: %v", err)
		}
	}
	if _, err := f.Stat(dir); !errors.Is(err, lossy.ErrCrashed) {
		t.Errorf("stat after the crash: %v", err)
	}
	must(t, f.Crash())
	if _, err := f.Stat(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat after the restart: %v", err)
	}
}
