package dispatch_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/blackhole"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// benchmarked is a machine that writes a tape into a blackhole.
func benchmarked(b *testing.B, tables int) (*machine, *tape, []dispatch.Order) {
	source := newTape(b, fmt.Sprintf("tables=%d", tables))
	m := newMachine(b, source, blackhole.New(), 256<<20)
	return m, source, orders(ep(1), 0, source.tables(b)...)
}

// BenchmarkFlow is how many rows a second come from datagen through the hub, the dispatchers and the workers into a
// blackhole: what the engine itself costs.
func BenchmarkFlow(b *testing.B) {
	for _, tables := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("tables=%d", tables), func(b *testing.B) {
			m, source, list := benchmarked(b, tables)
			m.mustStart(list)
			b.ReportAllocs()
			b.ResetTimer()
			source.wind(stream.Position(b.N))
			until(b, "everything is at the sink", func() bool { return m.Report(key).Rows == int64(b.N) })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkStart is how long it takes to start many tables on one machine, and how much memory each takes.
func BenchmarkStart(b *testing.B) {
	for _, tables := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("tables=%d", tables), func(b *testing.B) {
			var each int64
			for b.Loop() {
				b.StopTimer()
				m, _, list := benchmarked(b, tables)
				before := heap()
				b.StartTimer()
				m.mustStart(list)
				b.StopTimer()
				each = (heap() - before) / int64(tables)
				if n := m.Report(key).Running; n != tables {
					b.Fatalf("%d run", n)
				}
				m.finish()
				b.StartTimer()
			}
			b.ReportMetric(float64(each), "B/table")
			b.ReportMetric(float64(tables)*float64(b.N)/b.Elapsed().Seconds(), "tables/s")
		})
	}
}

// BenchmarkMove is the pause of tables that move, a batch at a time: from when the origin is told to stop until the
// destination runs.
func BenchmarkMove(b *testing.B) {
	const tables = 32
	source := newTape(b, fmt.Sprintf("tables=%d", tables))
	sink := blackhole.New()
	machines := [2]*machine{newMachine(b, source, sink, 64<<20), newMachine(b, source, sink, 64<<20)}
	names := source.tables(b)
	machines[0].mustStart(orders(ep(1), 0, names...))
	i := int64(0)
	for b.Loop() {
		i++
		from, to := machines[(i-1)%2], machines[i%2]
		b.StopTimer()
		source.wind(stream.Position(i * tables))
		until(b, "it has flowed", func() bool { return from.Report(key).Checkpoint == stream.Position(i*tables) })
		to.mustPrepare(orders(ep(i+1), stream.Position((i-1)*tables), names...))
		b.StartTimer()
		stopped, failed := from.Stop(context.Background(), key, 1, orders(ep(i), 0, names...))
		if len(failed) > 0 {
			b.Fatal(failed)
		}
		var list []dispatch.Order
		for _, name := range names {
			list = append(list, dispatch.Order{Table: name, Epoch: ep(i + 1), Position: stopped[name]})
		}
		to.mustStart(list)
	}
}

// BenchmarkReport is what one round of reports costs, which is asked for five times a second.
func BenchmarkReport(b *testing.B) {
	for _, tables := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("tables=%d", tables), func(b *testing.B) {
			m, _, list := benchmarked(b, tables)
			m.mustStart(list)
			for b.Loop() {
				m.Report(key)
			}
		})
	}
}
