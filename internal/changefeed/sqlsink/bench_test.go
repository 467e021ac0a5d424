package sqlsink_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

var benchSchema = &stream.Schema{
	Columns: []stream.Column{{Name: "id", Type: "bigint"}, {Name: "k", Type: "int"}, {Name: "v", Type: "varchar"}},
	Key:     []int{0},
}

// benchTable makes transactions of six rows: two come, three change, one goes.
type benchTable struct {
	table    stream.Table
	random   *rand.Rand
	position stream.Position
	live     []int64
	last     int64
}

func (b *benchTable) row(id int64) []any {
	return []any{id, int64(b.random.IntN(1 << 30)), fmt.Sprintf("%0100d", b.random.Uint64())}
}

func (b *benchTable) transaction() *stream.Rows {
	b.position++
	r := &stream.Rows{Position: b.position, Table: b.table, Schema: benchSchema}
	for range 2 {
		b.last++
		b.live = append(b.live, b.last)
		r.Changes = append(r.Changes, stream.Change{Kind: stream.Insert, After: b.row(b.last)})
	}
	for range 3 {
		id := b.live[b.random.IntN(len(b.live))]
		r.Changes = append(r.Changes, stream.Change{Kind: stream.Update, Before: b.row(id), After: b.row(id)})
	}
	i := b.random.IntN(len(b.live))
	r.Changes = append(r.Changes, stream.Change{Kind: stream.Delete, Before: b.row(b.live[i])})
	b.live[i] = b.live[len(b.live)-1]
	b.live = b.live[:len(b.live)-1]
	return r
}

// BenchmarkApply is how many changed rows a second reach the sink. Each table's batches are of many transactions, as when
// a dispatcher has fallen behind.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct{ tables, batch, workers int }{{1, 1, 1}, {1, 1000, 1}, {100, 100, 8}} {
		b.Run(fmt.Sprintf("tables=%d/batch=%d", c.tables, c.batch), func(b *testing.B) { benchApply(b, c.tables, c.batch, c.workers) })
	}
}

func benchApply(b *testing.B, tables, batch, workers int) {
	m := testenv.StartMariaDB(b, "--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M", "--skip-log-bin")
	m.Exec("CREATE DATABASE w")
	sink := openSink(b, m)
	work := make(chan func() error)
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for do := range work {
				if err := do(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	var sources []*benchTable
	var writers []stream.Writer
	for i := range tables {
		t := &benchTable{table: stream.Table{Schema: "w", Name: fmt.Sprintf("t%d", i)}, random: rand.New(rand.NewPCG(uint64(i), 1))}
		m.Exec("CREATE TABLE " + t.table.String() + " (id BIGINT PRIMARY KEY, k INT, v VARCHAR(200))")
		w, _, err := sink.Acquire(b.Context(), t.table.Since(0), stream.Epoch{Placement: 1}, 0)
		if err != nil {
			b.Fatal(err)
		}
		sources, writers = append(sources, t), append(writers, w)
	}
	rows := 0
	var spent time.Duration
	b.ResetTimer()
	for b.Loop() {
		b.StopTimer()
		batches := make([][]*stream.Rows, tables)
		for i, t := range sources {
			for range batch {
				batches[i] = append(batches[i], t.transaction())
			}
			rows += 6 * batch
		}
		b.StartTimer()
		started := time.Now()
		var round sync.WaitGroup
		round.Add(tables)
		for i := range tables {
			work <- func() error {
				defer round.Done()
				return writers[i].Write(b.Context(), batches[i], sources[i].position)
			}
		}
		round.Wait()
		spent += time.Since(started)
	}
	b.ReportMetric(float64(rows)/spent.Seconds(), "rows/s")
	close(work)
	all.Wait()
}
