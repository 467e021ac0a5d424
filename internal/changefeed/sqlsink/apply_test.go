package sqlsink_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestAnyBatchEndsInTheSourcesState(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	makeWorkloadTables(a)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorkload(t, a, seed)
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 1)
	for _, batch := range []int{1, 7, 50, 1000} {
		p.batch = batch
		w.run(t, 400)
		p.sync(t)
		equal(t, a, b)
	}
}

func TestLongRowsAreSplitIntoSeveralStatements(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--max-allowed-packet=1M")
	a.Exec("CREATE DATABASE w", "USE w", "CREATE TABLE w.long (id INT PRIMARY KEY, b LONGBLOB)",
		"INSERT INTO w.long SELECT seq, REPEAT(CHAR(39), 1000 * seq) FROM seq_1_to_60", "UPDATE w.long SET id = id + 9000", "INSERT INTO w.long SELECT seq, '' FROM seq_1_to_3000", "DELETE FROM w.long WHERE id < 2500")
	newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 2).sync(t)
	equal(t, a, b)
}

func TestAMissingRowOfATableWithoutKeyIsNamed(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", "CREATE TABLE w.none (id INT)", "INSERT INTO w.none VALUES (1)")
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 1)
	p.sync(t)
	b.Exec("DELETE FROM w.none")
	a.Exec("UPDATE w.none SET id = 2")
	head, _ := p.source.Head(t.Context())
	err := p.copy(t.Context(), p.at, head)
	if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "table w.none has no key: a row that was changed at the source is not at the sink") {
		t.Fatal(err)
	}
}

func TestAPreparedWriteIsUsedForItsRowsOnly(t *testing.T) {
	b := testenv.StartMariaDB(t)
	makeCounter(b)
	w, _, err := openSinkAs(t, b, false).Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	ahead := w.(stream.AheadWriter)
	write := func(at stream.Position, rows ...*stream.Rows) {
		t.Helper()
		if err := w.Write(t.Context(), rows, at); err != nil {
			t.Fatal(err)
		}
	}
	first := rowsOf(counterTable, 1, counterSchema, int64(1))
	ahead.Prepare([]*stream.Rows{first}) // the table is not known yet
	write(1, first)
	second := rowsOf(counterTable, 2, counterSchema, int64(2))
	ahead.Prepare([]*stream.Rows{second})
	second.Changes[0].After[0] = int64(20) // shows that the statement was made before
	write(2, second)
	third := rowsOf(counterTable, 3, counterSchema, int64(3))
	ahead.Prepare([]*stream.Rows{third})
	write(3, rowsOf(counterTable, 3, counterSchema, int64(30)))
	altered := &stream.Schema{Columns: slices.Clone(counterSchema.Columns)}
	b.Exec("ALTER TABLE w.counter ADD COLUMN v INT")
	altered.Columns = append(altered.Columns, stream.Column{Name: "v", Type: "int"})
	fourth := rowsOf(counterTable, 4, altered, int64(4), int64(44))
	ahead.Prepare([]*stream.Rows{fourth}) // its columns are not known yet
	write(4, fourth)
	if got, want := b.Value("SELECT GROUP_CONCAT(n, '/', COALESCE(v, '-') ORDER BY n) FROM w.counter"), "1/-,2/-,4/44,30/-"; got != want {
		t.Errorf("the sink has %s, want %s", got, want)
	}
}

// rowsOf makes the rows of one inserted row.
func rowsOf(table stream.Table, position stream.Position, schema *stream.Schema, values ...any) *stream.Rows {
	return &stream.Rows{Position: position, Table: table, Schema: schema, Changes: []stream.Change{{Kind: stream.Insert, After: values}}}
}

var counterTable = stream.Table{Schema: "w", Name: "counter"}
var counterSchema = &stream.Schema{Columns: []stream.Column{{Name: "n", Type: "bigint"}}, Key: nil}

func makeCounter(server *testenv.MariaDB) {
	// Without a key, what is written twice is there twice.
	server.Exec("CREATE DATABASE w", "CREATE TABLE w.counter (n BIGINT)")
}

// counted checks that each of the numbers up to n is there once.
func counted(t *testing.T, server *testenv.MariaDB, n int) {
	t.Helper()
	got := server.Value("SELECT CONCAT(COUNT(*), ' rows, ', COUNT(DISTINCT n), ' different, up to ', MAX(n)) FROM w.counter")
	if want := fmt.Sprintf("%d rows, %d different, up to %d", n, n, n); got != want {
		t.Errorf("the sink has %s, want %s", got, want)
	}
}

func TestAnOldOwnerIsWaitedOutAndThenRefused(t *testing.T) {
	b := testenv.StartMariaDB(t)
	makeCounter(b)
	ctx := t.Context()
	sink := openSink(t, b)
	old, at, err := sink.Acquire(ctx, counterTable.Since(0), stream.Epoch{Placement: 1, Counter: 9}, 10)
	if err != nil || at != 10 {
		t.Fatal(at, err)
	}
	if err := old.Write(ctx, []*stream.Rows{rowsOf(counterTable, 11, counterSchema, int64(1))}, 12); err != nil {
		t.Fatal(err)
	}
	fresh, at, err := sink.Acquire(ctx, counterTable.Since(0), stream.Epoch{Placement: 2, Counter: 1}, 0)
	if err != nil || at != 12 {
		t.Fatal(at, err)
	}
	if err := old.Write(ctx, []*stream.Rows{rowsOf(counterTable, 13, counterSchema, int64(666))}, 13); !errors.Is(err, stream.ErrNotOwner) ||
		!strings.Contains(err.Error(), "table w.counter belongs to epoch 2.1 at position 12, not to epoch 1.9") {
		t.Errorf("an old owner wrote: %v", err)
	}
	if _, _, err := sink.Acquire(ctx, counterTable.Since(0), stream.Epoch{Placement: 1, Counter: 10}, 0); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("an older epoch acquired the table: %v", err)
	}
	if _, at, err := sink.Acquire(ctx, counterTable.Since(0), stream.Epoch{Placement: 2, Counter: 1}, 0); err != nil || at != 12 {
		t.Errorf("the owner could not acquire its table again: %v", err)
	}
	// A newer owner within the same placement counts as well, though it has written nothing yet.
	newest, _, err := sink.Acquire(ctx, counterTable.Since(0), stream.Epoch{Placement: 2, Counter: 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := fresh.Write(ctx, []*stream.Rows{rowsOf(counterTable, 13, counterSchema, int64(666))}, 13); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("an old owner wrote: %v", err)
	}
	if err := newest.Write(ctx, []*stream.Rows{rowsOf(counterTable, 13, counterSchema, int64(2))}, 13); err != nil {
		t.Fatal(err)
	}
	counted(t, b, 2)
}

func TestOwnersThatRaceNeitherDoubleNorLose(t *testing.T) {
	b := testenv.StartMariaDB(t)
	makeCounter(b)
	sink := openSink(t, b)
	const last = 400
	var epochs sync.Mutex
	epoch := stream.Epoch{Placement: 1}
	next := func() stream.Epoch {
		epochs.Lock()
		defer epochs.Unlock()
		epoch.Counter++
		return epoch
	}
	// Each owner writes where the sink says it is, until another takes the table from it; then it takes it back.
	owner := func() error {
		for {
			w, at, err := sink.Acquire(t.Context(), counterTable.Since(0), next(), 0)
			if errors.Is(err, stream.ErrNotOwner) {
				continue
			}
			if err != nil {
				return err
			}
			for i := 0; err == nil && at < last; i++ {
				to := min(at+3, last)
				var rows []*stream.Rows
				for n := at + 1; n <= to; n++ {
					rows = append(rows, rowsOf(counterTable, n, counterSchema, int64(n)))
				}
				if err = w.Write(t.Context(), rows, to); err == nil {
					at = to
				}
			}
			if err == nil {
				return nil
			}
			if !errors.Is(err, stream.ErrNotOwner) {
				return err
			}
			time.Sleep(3 * time.Millisecond) // let the other write something
		}
	}
	done := make(chan error, 4)
	for range cap(done) {
		go func() { done <- owner() }()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	counted(t, b, last)
}

// An owner that vanished with a transaction open holds its locks; the server must end it for the next to go on.
func TestAVanishedOwnerDoesNotHoldTheTable(t *testing.T) {
	b := testenv.StartMariaDB(t)
	makeCounter(b)
	line := newLine(t, b.Address)
	gone := openSinkAt(t, b, line.address)
	w, _, err := gone.Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(t.Context(), []*stream.Rows{rowsOf(counterTable, 1, counterSchema, int64(1))}, 1); err != nil {
		t.Fatal(err)
	}
	line.freezeAt("COMMIT")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Write(ctx, []*stream.Rows{rowsOf(counterTable, 2, counterSchema, int64(666))}, 2) }()
	<-line.frozen
	sink := openSink(t, b)
	started := time.Now()
	next, at, err := sink.Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 2}, 0)
	if err != nil || at != 1 {
		t.Fatal(at, err)
	}
	t.Logf("the next owner waited %v", time.Since(started).Round(time.Millisecond))
	if err := next.Write(t.Context(), []*stream.Rows{rowsOf(counterTable, 2, counterSchema, int64(2))}, 2); err != nil {
		t.Fatal(err)
	}
	line.thaw()
	if err := <-ended; !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("the old owner ended with %v", err)
	}
	cancel()
	counted(t, b, 2)
}

// Every command of a write is cut off once, before it reaches the server and after it did.
func TestAWriteCutAtAnyPointHappensOnce(t *testing.T) {
	b := testenv.StartMariaDB(t)
	makeCounter(b)
	at := cutEverywhere(t, b, counterTable, 4, func(to stream.Position) *stream.Rows {
		return rowsOf(counterTable, to, counterSchema, int64(to))
	})
	counted(t, b, int(at))
}

// What a statement finds in a table without a key has to be looked at, so each is sent by itself.
func TestAWriteWithoutAKeyCutAtAnyPointHappensOnce(t *testing.T) {
	b := testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w", "CREATE TABLE w.loose (n BIGINT)", "INSERT INTO w.loose VALUES (0)")
	table, schema := stream.Table{Schema: "w", Name: "loose"}, &stream.Schema{Columns: []stream.Column{{Name: "n", Type: "bigint"}}}
	at := cutEverywhere(t, b, table, 8, func(to stream.Position) *stream.Rows {
		return &stream.Rows{Position: to, Table: table, Schema: schema, Changes: []stream.Change{{Kind: stream.Update, Before: []any{int64(to - 1)}, After: []any{int64(to)}}}}
	})
	if got := b.Value("SELECT GROUP_CONCAT(n) FROM w.loose"); got != fmt.Sprint(at) {
		t.Errorf("the row is %s at position %d", got, at)
	}
}

// cutEverywhere writes one position after the other, with the connection cut at another command each time, and says how far it came.
func cutEverywhere(t *testing.T, b *testenv.MariaDB, table stream.Table, least int, rows func(to stream.Position) *stream.Rows) stream.Position {
	line := newLine(t, b.Address)
	sink := openSinkAt(t, b, line.address)
	w, at, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	points := 0
	for command := 1; ; command++ {
		cut := false
		for _, deliver := range []bool{false, true} {
			line.cutAt(command, deliver)
			to := at + 1
			if err := w.Write(t.Context(), []*stream.Rows{rows(to)}, to); err != nil {
				t.Fatalf("cut at command %d (delivered %v): %v", command, deliver, err)
			}
			at = to
			if line.wasCut() {
				cut = true
				points++
			}
		}
		if !cut {
			break
		}
	}
	line.cutAt(0, false)
	t.Logf("%d points", points)
	if points < least {
		t.Errorf("only %d points were cut", points)
	}
	return at
}
