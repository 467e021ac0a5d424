package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

var errEnough = errors.New("enough")

// reading is a hub at a position with a subscriber, without a reader: the test delivers.
func reading(at stream.Position) *hub {
	h := newHub(nil, newBudget(1<<20, func() {}))
	h.count, h.position = 1, at
	h.reached.Store(uint64(at))
	return h
}

func (h *hub) mustDeliver(t *testing.T, tx *stream.Transaction) {
	t.Helper()
	if err := h.deliver(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
}

var (
	tapped = stream.Table{Schema: "s", Name: "a"}
	dropIt = &stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{tapped}}
)

// collect visits until a position, and returns the DDL and the last position of what was visited.
func collect(ctx context.Context, tap *Tap, until stream.Position) (ddl []stream.Position, last *stream.Transaction, err error) {
	err = tap.Read(ctx, func(tx *stream.Transaction) error {
		if last != nil && tx.Position < last.Position {
			return errors.New("it went back")
		}
		if last = tx; tx.DDL != nil {
			ddl = append(ddl, tx.Position)
		}
		if tx.Position >= until {
			return errEnough
		}
		return nil
	})
	return ddl, last, err
}

func TestATapGetsAllDDLAndTheLastPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := reading(5)
		tap := h.tap(7) // which is ahead of the hub
		go func() {
			for p := stream.Position(6); p <= 5000; p++ {
				tx := &stream.Transaction{Position: p, ID: "id", Rows: []*stream.Rows{{}}}
				switch {
				case p%100 == 7:
					tx.DDL = dropIt
				case p%100 == 8:
					tx.DDL = &stream.DDL{Kind: stream.TruncateTable, Tables: []stream.Table{tapped}} // its dispatcher executes it
				}
				h.mustDeliver(t, tx)
				if p%1000 == 500 {
					time.Sleep(time.Second)
				}
			}
		}()
		ddl, last, err := collect(t.Context(), tap, 5000)
		if !errors.Is(err, errEnough) || last.ID != "id" || last.Rows != nil || last.Idle {
			t.Errorf("%v, %+v", err, last)
		}
		var want []stream.Position
		for p := stream.Position(107); p <= 5000; p += 100 {
			want = append(want, p)
		}
		if !slices.Equal(ddl, want) {
			t.Errorf("it got DDL at %v", ddl)
		}
		if len(h.taps) != 0 {
			t.Errorf("%d taps are left", len(h.taps))
		}
	})
}

// The source has nothing after the position: that is told, too, because the lag is measured by it.
func TestATapSaysThatTheSourceIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := reading(5)
		tap := h.tap(5)
		now := time.Now()
		h.mustDeliver(t, &stream.Transaction{Position: 5, Idle: true, At: now})
		_, last, err := collect(t.Context(), tap, 5)
		if !errors.Is(err, errEnough) || !last.Idle || !last.At.Equal(now) {
			t.Errorf("%v, %+v", err, last)
		}
		tap = h.tap(5)
		h.mustDeliver(t, &stream.Transaction{Position: 6, ID: "six"})
		h.mustDeliver(t, &stream.Transaction{Position: 6, Idle: true, At: now})
		if _, last, err = collect(t.Context(), tap, 6); !errors.Is(err, errEnough) || last.Idle || last.ID != "six" || !last.At.Equal(now) {
			t.Errorf("%v, %+v", err, last)
		}
	})
}

func TestATapEndsWithWhatItFollows(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *hub){
		"the last subscriber leaves": func(t *testing.T, h *hub) {
			h.count = 0
			h.stop = func() {}
			h.unsubscribe(&dispatcher{})
		},
		"the hub is closed": func(t *testing.T, h *hub) { h.close() },
		"more DDL than it has room for": func(t *testing.T, h *hub) {
			for p := stream.Position(8); p < 8+2*tapRoom; p++ {
				h.mustDeliver(t, &stream.Transaction{Position: p, DDL: dropIt})
			}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := reading(5)
			tap := h.tap(5)
			h.mustDeliver(t, &stream.Transaction{Position: 6, DDL: dropIt})
			h.mustDeliver(t, &stream.Transaction{Position: 7})
			end(t, h)
			ddl, last, err := collect(t.Context(), tap, 1<<40)
			want := stream.Position(7)
			if len(ddl) > 1 {
				want = ddl[len(ddl)-1] // and everything up to there
				if len(ddl) < tapRoom/2-1 || int(want) != 6+len(ddl) {
					t.Errorf("%d DDL, the last at %d", len(ddl), want)
				}
			}
			if err != nil || ddl[0] != 6 || last.Position != want || len(h.taps) != 0 {
				t.Errorf("%s: %v, %d DDL from %d, last %d", name, err, len(ddl), ddl[0], last.Position)
			}
		})
	}
}

func TestAHubThatHasPassedThePositionOrDoesNotReadHasNoTap(t *testing.T) {
	for name, change := range map[string]func(*hub){
		"it has passed the position": func(h *hub) { h.position++ },
		"it has no subscriber":       func(h *hub) { h.count = 0 },
		"it cannot read":             func(h *hub) { h.err = errEnough },
		"it is closed":               func(h *hub) { h.closed = true },
	} {
		h := reading(5)
		if change(h); h.tap(5) != nil {
			t.Errorf("%s: it has one", name)
		}
	}
	if reading(5).tap(5) == nil {
		t.Error("a hub that reads has none")
	}
}

// The names of all tables with rows, or with DDL that their dispatchers execute, come before the DDL that comes after that.
func TestATapTellsWhichTablesHaveRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := reading(5)
		tap := h.tap(5)
		name := func(text string) stream.Table { return stream.Table{Schema: "s", Name: text} }
		for p, tx := range []*stream.Transaction{
			{Skipped: []stream.Table{name("a"), name("b")}}, {Rows: []*stream.Rows{{Table: name("c")}}}, {Skipped: []stream.Table{name("a")}},
			{DDL: dropIt, Rows: []*stream.Rows{{Table: name("d")}}}, {DDL: dropIt}, {DDL: dropIt}, {Skipped: []stream.Table{name("e")}, DDL: &stream.DDL{Kind: stream.AlterTable, Tables: []stream.Table{name("f")}}},
		} {
			tx.Position = stream.Position(6 + p)
			h.mustDeliver(t, tx)
		}
		var got []string
		err := tap.Read(t.Context(), func(tx *stream.Transaction) error {
			slices.SortFunc(tx.Skipped, stream.CompareTables)
			if got = append(got, fmt.Sprint(tx.Position, tx.DDL != nil, tx.Skipped)); tx.Position == 12 {
				return errEnough
			}
			return nil
		})
		want := "[8 false [s.a s.b s.c] 9 true [] 9 false [s.d] 10 true [] 10 false [] 11 true [] 12 false [s.e s.f]]"
		if fmt.Sprint(got) != want || !errors.Is(err, errEnough) {
			t.Errorf("%v, %v, want %s", err, got, want)
		}
	})
}

// A transaction that comes in parts has not passed before its last part, and one that is read again for a dispatcher not at all.
func TestATapGetsWholeTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := reading(5)
		tap := h.tap(5)
		d := standing(tapped, 0, 5, true)
		h.subs[tapped] = []*dispatcher{d}
		h.mustDeliver(t, &stream.Transaction{Position: 6, More: true})
		if err := h.deliver(t.Context(), &stream.Transaction{Position: 6, Skipped: []stream.Table{tapped}}); !errors.Is(err, errWanted) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, last, err := collect(ctx, tap, 6); !errors.Is(err, context.DeadlineExceeded) || last != nil {
			t.Errorf("%v, %+v", err, last)
		}
	})
}
