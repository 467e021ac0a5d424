package store_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

const (
	benchSize = 256 * mib
	benchIO   = 4096
)

// benchStore opens a replica whose data is written and synced, with generation 2, and its data file beside it.
func benchStore(b *testing.B, members, away []string) (*store.Store, *os.File) {
	b.Helper()
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	id := store.Identity{Volume: "ns/v", VolumeUID: "uid", Replica: "r", Size: benchSize}
	dir := filepath.Join(b.TempDir(), "r")
	check(store.Create(store.OS{}, dir, id, "boot"))
	s, err := store.Open(store.OS{}, dir, id, "boot")
	check(err)
	b.Cleanup(func() { _ = s.Close() })
	check(s.Commit(ctx, block.Membership{Generation: 1, Members: slices.Concat(members, away)}))
	check(s.Commit(ctx, block.Membership{Generation: 2, Members: members, Away: away}))
	for off := int64(0); off < benchSize; off += mib {
		check(s.WriteAt(ctx, 2, pattern(mib, 1), off, false))
	}
	check(s.Flush(ctx, 2))
	f, err := os.OpenFile(filepath.Join(dir, "data"), os.O_RDWR, 0)
	check(err)
	b.Cleanup(func() { _ = f.Close() })
	return s, f
}

type operation func(p []byte, off int64) error

// compare does the same on the store and on its data file, in turns, so that whatever else the machine does meets both. It reports medians.
func compare(b *testing.B, onStore, onFile operation) {
	rng, p := rand.New(rand.NewPCG(1, 1)), pattern(benchIO, 2)
	var took [2][]time.Duration
	b.ResetTimer()
	for range b.N {
		for i, op := range []operation{onStore, onFile} {
			off := rng.Int64N(benchSize/benchIO) * benchIO
			start := time.Now()
			if err := op(p, off); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(start))
		}
	}
	for i, name := range []string{"store-ns", "file-ns"} {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2].Nanoseconds()), name)
	}
	b.ReportMetric(0, "ns/op")
}

func BenchmarkRead(b *testing.B) {
	s, f := benchStore(b, []string{"r", "x"}, nil)
	compare(b, func(p []byte, off int64) error { return s.ReadAt(ctx, 2, p, off) },
		func(p []byte, off int64) error { return second(f.ReadAt(p, off)) })
}

func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct {
		name          string
		members, away []string
	}{{"alone", []string{"r"}, nil}, {"marked", []string{"r", "x"}, nil}, {"marked with two away", []string{"r", "x"}, []string{"y", "z"}}} {
		b.Run(c.name, func(b *testing.B) {
			s, f := benchStore(b, c.members, c.away)
			compare(b, func(p []byte, off int64) error { return s.WriteAt(ctx, 2, p, off, false) },
				func(p []byte, off int64) error { return second(f.WriteAt(p, off)) })
		})
	}
	b.Run("unmarked", func(b *testing.B) {
		s, f := benchStore(b, []string{"r", "x"}, nil)
		compare(b, func(p []byte, off int64) error {
			one := block.NewBitmap(benchSize / mib)
			one.Set(off / mib)
			if err := s.Clear(ctx, 2, one); err != nil { // costs a sync as well
				return err
			}
			return s.WriteAt(ctx, 2, p, off, false)
		}, func(p []byte, off int64) error { return second(f.WriteAt(p, off)) })
	})
}

func BenchmarkFUA(b *testing.B) {
	b.Run("one", func(b *testing.B) {
		s, f := benchStore(b, []string{"r"}, nil)
		compare(b, func(p []byte, off int64) error { return s.WriteAt(ctx, 2, p, off, true) },
			func(p []byte, off int64) error { return writeSync(f, p, off) })
	})
	for _, on := range []string{"store", "file"} {
		b.Run("32 at once/"+on, func(b *testing.B) {
			s, f := benchStore(b, []string{"r"}, nil)
			op := func(p []byte, off int64) error { return s.WriteAt(ctx, 2, p, off, true) }
			if on == "file" {
				op = func(p []byte, off int64) error { return writeSync(f, p, off) }
			}
			var seed atomic.Uint64
			b.SetParallelism(16)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				rng, p := rand.New(rand.NewPCG(seed.Add(1), 1)), pattern(benchIO, 2)
				for pb.Next() {
					if err := op(p, rng.Int64N(benchSize/benchIO)*benchIO); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

func writeSync(f *os.File, p []byte, off int64) error {
	if _, err := f.WriteAt(p, off); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}
