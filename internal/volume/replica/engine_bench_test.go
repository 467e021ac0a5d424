package replica

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

// BenchmarkEngine measures writes to three replicas, of which two are reached over TLS on the loopback interface.
func BenchmarkEngine(b *testing.B) {
	const size = 256 << 20
	e := benchEngine(b, size)
	for _, load := range []struct{ size, depth int }{{4 << 10, 1}, {4 << 10, 32}, {1 << 20, 4}} {
		b.Run(fmt.Sprintf("write/%dk/depth%d", load.size>>10, load.depth), func(b *testing.B) {
			run(b, load.size, load.depth, func(p []byte) error {
				return e.WriteAt(context.Background(), p, rand.Int64N(int64(size/load.size))*int64(load.size), false)
			})
		})
	}
}

// benchEngine runs an engine with one replica in this process and two beyond a connection.
func benchEngine(b *testing.B, size int64) *engine.Engine {
	replicas := map[string]func() (block.Replica, bool, error){}
	members := []string{"r0", "r1", "r2"}
	for i, name := range members {
		id := store.Identity{Volume: testVolume, VolumeUID: testUID, Replica: name, Size: size}
		dir := filepath.Join(b.TempDir(), name)
		if err := store.Create(store.OS{}, dir, id, "boot"); err != nil {
			b.Fatal(err)
		}
		s, err := store.Open(store.OS{}, dir, id, "boot")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close() })
		if i == 0 {
			replicas[name] = func() (block.Replica, bool, error) { return kept{s}, true, nil }
			continue
		}
		dial := overTLS(b, s)
		replicas[name] = func() (block.Replica, bool, error) {
			c, err := NewClient(context.Background(), dial(), testVolume, testUID, testReplica)
			return c, false, err
		}
	}
	began := time.Now()
	e := engine.New(engine.Options{
		Volume: testVolume, Size: size, Generation: 1, Members: members,
		Dial:    func(_ context.Context, name string) (block.Replica, bool, error) { return replicas[name]() },
		Persist: func(context.Context, engine.Record) error { return nil },
		Clock:   func() time.Duration { return time.Since(began) + time.Hour }, Timing: engine.DefaultTiming(), Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := e.Run(ctx); err != nil {
			b.Log(err)
		}
	}()
	b.Cleanup(func() {
		cancel()
		<-ended
	})
	return e
}

// kept is a store that an engine does not close.
type kept struct{ block.Replica }

func (kept) Close() error { return nil }
