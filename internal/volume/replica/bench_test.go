package replica

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
)

// nothing is a replica that takes no time.
type nothing struct{ *memory }

func (nothing) ReadAt(_ context.Context, _ int64, p []byte, _ int64) error {
	if len(p) > 0 {
		p[0] = 1
	}
	return nil
}

func (nothing) WriteAt(context.Context, int64, []byte, int64, bool) error { return nil }

func (nothing) Ping(context.Context, int64) error { return nil }

// BenchmarkTLS measures the way to a replica over TLS on the loopback interface and back, without a disk.
func BenchmarkTLS(b *testing.B) {
	c := newClient(b, overTLS(b, nothing{newMemory(1)})())
	ctx := context.Background()
	b.Run("ping", func(b *testing.B) {
		for b.Loop() {
			if err := c.Ping(ctx, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, size := range []int{4 << 10, 1 << 20} {
		for _, depth := range []int{1, 32} {
			for name, call := range map[string]func(p []byte) error{
				"read":  func(p []byte) error { return c.ReadAt(ctx, 1, p, 0) },
				"write": func(p []byte) error { return c.WriteAt(ctx, 1, p, 0, false) },
			} {
				b.Run(fmt.Sprintf("%s/%dk/depth%d", name, size>>10, depth), func(b *testing.B) { run(b, size, depth, call) })
			}
		}
	}
}

// run makes calls with some of them under way at once.
func run(b *testing.B, size, depth int, call func(p []byte) error) {
	b.SetBytes(int64(size))
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	ended := make(chan error, depth)
	for range depth {
		go func() {
			p := pattern(make([]byte, size), 1)
			for left.Add(-1) >= 0 {
				if err := call(p); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
	}
	for range depth {
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
	}
}
