package datagen_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/changefeed/datagen"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

func parse(text string) (*datagen.Source, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	return datagen.Parse(u)
}

type fataler interface {
	Helper()
	Fatal(args ...any)
}

func source(t fataler, query string) *datagen.Source {
	t.Helper()
	s, err := parse("datagen://?" + query)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var errEnough = errors.New("enough")

// some are the next transactions after a position.
func some(t fataler, s *datagen.Source, after stream.Position, n int) []*stream.Transaction {
	t.Helper()
	var list []*stream.Transaction
	err := s.Read(context.Background(), after, func(tx *stream.Transaction) error {
		list = append(list, tx)
		if len(list) == n {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	return list
}

// timeless are transactions without when they were, which is now for a source without a rate.
func timeless(list []*stream.Transaction) []*stream.Transaction {
	for _, tx := range list {
		tx.At = time.Time{}
		for _, r := range tx.Rows {
			r.At = time.Time{}
		}
	}
	return list
}

func TestTheSameAddressIsTheSameLog(t *testing.T) {
	const query = "tables=7&rows=5&rate=0&seed=9"
	if diff := cmp.Diff(timeless(some(t, source(t, query), 0, 500)), timeless(some(t, source(t, query), 0, 500))); diff != "" {
		t.Errorf("two sources of one address differ:\n%s", diff)
	}
	a, b := some(t, source(t, "rate=0&seed=1"), 0, 10), some(t, source(t, "rate=0&seed=2"), 0, 10)
	if cmp.Equal(a[0].Rows[0].Changes, b[0].Rows[0].Changes) {
		t.Error("two seeds give the same values")
	}
	rated := "tables=3&rate=1000"
	if diff := cmp.Diff(some(t, source(t, rated), 100, 50), some(t, source(t, rated), 100, 50)); diff != "" {
		t.Errorf("with a rate they differ, or in when they were:\n%s", diff)
	}
}

// Whoever reads from a position gets exactly what another got after it, and Transaction says the same.
func TestALogIsResumedAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		query := fmt.Sprintf("tables=%d&rows=%d&rate=0&seed=%d", rapid.IntRange(1, 9).Draw(t, "tables"), rapid.IntRange(1, 9).Draw(t, "rows"), rapid.IntRange(0, 9).Draw(t, "seed"))
		s := source(t, query)
		start := stream.Position(rapid.Uint64Range(0, 1<<40).Draw(t, "start"))
		skip := rapid.IntRange(0, 40).Draw(t, "skip")
		whole := timeless(some(t, s, start, 60))
		if rest := timeless(some(t, source(t, query), start+stream.Position(skip), 60-skip)); !reflect.DeepEqual(whole[skip:], rest) {
			t.Fatalf("the rest differs:\n%s", cmp.Diff(whole[skip:], rest))
		}
		for i, tx := range whole {
			want := start + stream.Position(i+1)
			if tx.Position != want || len(tx.Rows) != 1 || tx.Rows[0].Position != want || tx.DDL != nil || tx.Rows[0].Bytes <= 0 {
				t.Fatalf("transaction %d is %+v", want, tx)
			}
			if alone := timeless([]*stream.Transaction{s.Transaction(want)})[0]; !reflect.DeepEqual(tx, alone) {
				t.Fatalf("transaction %d read alone differs:\n%s", want, cmp.Diff(tx, alone))
			}
		}
	})
}

// Applied to an empty database the log makes sense: what is inserted is not there, what is updated or deleted is, and is as
// it was left.
func TestALogIsAConsistentHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tables, rows := rapid.IntRange(1, 8).Draw(t, "tables"), rapid.IntRange(1, 8).Draw(t, "rows")
		s := source(t, fmt.Sprintf("tables=%d&rows=%d&rate=0", tables, rows))
		names, _, err := s.Tables(context.Background())
		if err != nil || len(names) != tables {
			t.Fatal(names, err)
		}
		known, there, kinds := map[stream.Table]bool{}, map[string][]any{}, map[stream.Kind]int{}
		for _, name := range names {
			known[name] = true
		}
		for _, tx := range some(t, s, 0, 7*tables*rows) {
			r := tx.Rows[0]
			if !known[r.Table] {
				t.Fatalf("%s is not one of %v", r.Table, names)
			}
			if len(r.Schema.Columns) != 3 || len(r.Schema.Key) != 1 {
				t.Fatalf("schema %+v", r.Schema)
			}
			for _, c := range r.Changes {
				kinds[c.Kind]++
				row := c.After
				if row == nil {
					row = c.Before
				}
				id := fmt.Sprint(r.Table, row[r.Schema.Key[0]])
				was := there[id]
				switch {
				case c.Kind == stream.Insert && (was != nil || c.Before != nil || c.After == nil),
					c.Kind == stream.Update && (was == nil || c.Before == nil || c.After == nil),
					c.Kind == stream.Delete && (was == nil || c.Before == nil || c.After != nil):
					t.Fatalf("transaction %d: kind %d of row %s, which was %v: %+v", tx.Position, c.Kind, id, was, c)
				case c.Before != nil && !cmp.Equal(c.Before, was):
					t.Fatalf("transaction %d: row %s was %v, not %v", tx.Position, id, was, c.Before)
				case c.Before != nil && c.After != nil && c.Before[r.Schema.Key[0]] != c.After[r.Schema.Key[0]]:
					t.Fatalf("transaction %d changes a key: %+v", tx.Position, c)
				}
				there[id] = c.After
				if c.After == nil {
					delete(there, id)
				}
			}
		}
		if kinds[stream.Insert] == 0 || kinds[stream.Update] == 0 || kinds[stream.Delete] == 0 {
			t.Fatalf("only %v", kinds)
		}
	})
}

func TestEveryTableHasItsTurn(t *testing.T) {
	s := source(t, "tables=10&rate=0")
	var order []stream.Table
	for i, tx := range some(t, s, 0, 50) {
		if i < 10 {
			order = append(order, tx.Rows[0].Table)
		} else if tx.Rows[0].Table != order[i%10] {
			t.Errorf("transaction %d is of %s, not %s", tx.Position, tx.Rows[0].Table, order[i%10])
		}
	}
	seen := map[stream.Table]bool{}
	for _, name := range order {
		seen[name] = true
	}
	if len(seen) != 10 {
		t.Errorf("the first ten are of %d tables", len(seen))
	}
}

// In a bubble the clock goes on only while everybody waits, so the numbers are exact.
func TestTheHeadFollowsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The bubble begins in the year 2000, before the log does.
		time.Sleep(time.Until(time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)))
		s := source(t, "tables=2&rate=500")
		head := func() stream.Position {
			p, err := s.Head(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		first := head()
		if _, at, err := s.Tables(context.Background()); err != nil || at != first {
			t.Errorf("tables at %d, %v", at, err)
		}
		time.Sleep(10 * time.Second)
		if n := head() - first; n != 5000 {
			t.Errorf("%d transactions in 10 s", n)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
		defer cancel()
		start, n := head(), stream.Position(0)
		err := s.Read(ctx, start, func(tx *stream.Transaction) error {
			n++
			if tx.Position != start+n {
				return fmt.Errorf("%d after %d", tx.Position, start+n-1)
			}
			if late := time.Since(tx.At); late < -time.Microsecond || late > 20*time.Millisecond {
				return fmt.Errorf("transaction %d of %v comes %v late", tx.Position, tx.At, late)
			}
			return nil
		})
		if !errors.Is(err, context.DeadlineExceeded) || n < 1985 || n > 2000 {
			t.Errorf("%d transactions in 4 s, %v", n, err)
		}
		// A reader that begins ahead of the head waits for it.
		ahead, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.Read(ahead, head()+1000, func(tx *stream.Transaction) error { return fmt.Errorf("%d is not there yet", tx.Position) }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

func TestAReaderEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, query := range []string{"rate=0", "rate=1", "rate=100000"} {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		s := source(t, query)
		head, err := s.Head(ctx)
		if err != nil {
			t.Fatal(err)
		}
		go func() { done <- s.Read(ctx, head, func(*stream.Transaction) error { return nil }) }()
		time.Sleep(5 * time.Millisecond)
		cancel()
		select {
		case err := <-done:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", query, err)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: it reads on", query)
		}
	}
}

func TestWhatItIsToldIsChecked(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"datagen://", ""},
		{"datagen://?tables=3&rows=2&rate=0&seed=0", ""},
		{"datagen://?tables=0", "datagen: use 1 to 10000000 tables, at least 1 row and a rate of at most 100000000"},
		{"datagen://?tables=10000001", "datagen: use 1 to 10000000 tables, at least 1 row and a rate of at most 100000000"},
		{"datagen://?rows=0", "datagen: use 1 to 10000000 tables, at least 1 row and a rate of at most 100000000"},
		{"datagen://?rate=100000001", "datagen: use 1 to 10000000 tables, at least 1 row and a rate of at most 100000000"},
		{"datagen://?tables=-1", `datagen: tables="-1" is not a whole number`},
		{"datagen://?rate=fast", `datagen: rate="fast" is not a whole number`},
		{"datagen://?table=3", `datagen: unknown parameter "table": use tables, rows, rate and seed`},
	} {
		_, err := parse(c.url)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.url, got, c.want)
		}
	}
}

// A URL with a part that would be ignored is refused.
func TestNothingOfAnAddressIsIgnored(t *testing.T) {
	for _, text := range []string{"datagen://tables=3&rate=5", "datagen://host?tables=3", "datagen:///path?tables=3", "datagen://?tables=3#rate=5"} {
		s, err := parse(text)
		if err != nil {
			continue
		}
		if names, _, _ := s.Tables(context.Background()); text != "datagen://tables=3&rate=5" || len(names) != 3 {
			t.Errorf("%s was taken for %d tables", text, len(names))
		}
	}
}
