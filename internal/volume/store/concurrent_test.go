package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/ebb-dev/ebb/internal/testlength"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

// crashAtOnce lets many write with FUA, each to its own sectors, until the machine crashes: every write that was acknowledged is there, in
// chunks that are marked.
func crashAtOnce(dir string, seed uint64, how breakage) error {
	const workers, each = 8, 6
	w, err := newWorld(dir, seed, how)
	if err != nil {
		return err
	}
	defer w.fs.Close()
	if err := w.s.Commit(ctx, block.Membership{Generation: 1, Members: []string{"r", "b"}}); err != nil {
		return err
	}
	w.state.Generation = 1
	w.fs.CrashAfter(20 + w.rng.IntN(200))
	type sent struct{ acked, tried uint64 }
	var results [workers][each]sent
	var broken [workers]error
	at := func(worker, i int) int64 { return int64(i)*block.ChunkSize/sector + int64(worker) }
	var wg sync.WaitGroup
	for worker := range workers {
		wg.Go(func() {
			for tag := uint64(1); broken[worker] == nil; tag++ {
				i := int(tag) % each
				r := &results[worker][i]
				r.tried = tag
				broken[worker] = w.s.WriteAt(ctx, 1, pattern(sector, byte(tag)), at(worker, i)*sector, true)
				if broken[worker] == nil {
					r.acked = tag
				}
			}
		})
	}
	wg.Wait()
	for _, err := range broken {
		if !errors.Is(err, lossy.ErrCrashed) && !errors.Is(err, block.ErrDamaged) {
			return err
		}
	}
	if err := w.fs.Crash(); err != nil {
		return err
	}
	w.state.Clean, w.tried[w.bootID()] = false, true
	w.state.Members, w.state.MemberAt = []string{"r", "b"}, 1
	if err := w.reopen(); err != nil {
		return err
	}
	intent, err := w.s.Intent(ctx, 1)
	if err != nil {
		return err
	}
	for worker := range workers {
		for i, r := range results[worker] {
			tag, err := w.read(at(worker, i))
			if err != nil {
				return err
			}
			if got := tag & 0xff; got != r.acked&0xff && got != r.tried&0xff {
				return fmt.Errorf("seed %d: sector %d has %d, but %d was acknowledged and %d tried", seed, at(worker, i), got, r.acked, r.tried)
			}
			if (r.acked > 0 || tag > 0) && !intent.Has(int64(i)) {
				return fmt.Errorf("seed %d: chunk %d was written, but is not marked", seed, i)
			}
		}
	}
	return nil
}

func TestManyWritersAndACrash(t *testing.T) {
	for seed := range testlength.Seeds(30, 1000) {
		if err := crashAtOnce(t.TempDir(), seed, sound); err != nil {
			t.Fatal(err)
		}
	}
}

func TestManyWritersNoticeBrokenStores(t *testing.T) {
	for _, how := range []breakage{dataNotSynced, marksNotSynced} {
		noticed := false
		for seed := uint64(0); seed < 100 && !noticed; seed++ {
			err := crashAtOnce(t.TempDir(), seed, how)
			if noticed = err != nil; noticed {
				t.Logf("%s: %v", how, err)
			}
		}
		if !noticed {
			t.Errorf("nobody noticed that %s", how)
		}
	}
}
