package maintainer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/blackhole"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// scripted is a source whose log has a transaction every millisecond, and a DDL at every tenth position.
type scripted struct {
	stream.Source
	began time.Time

	mu      sync.Mutex
	readers int // of DDL alone
	reads   int
}

var (
	errBroken = errors.New("the connection broke")
	quiet     = stream.Table{Schema: "s", Name: "quiet"}
)

func (s *scripted) Close() error { return nil }

func (s *scripted) ReadOf(ctx context.Context, after stream.Position, wants func(stream.Table) bool, visit func(*stream.Transaction) error) error {
	if !wants(quiet) {
		s.mu.Lock()
		s.readers++
		s.reads++
		s.mu.Unlock()
		defer func() {
			s.mu.Lock()
			s.readers--
			s.mu.Unlock()
		}()
	}
	for p := after + 1; ; p++ {
		if wait := time.Until(s.began.Add(time.Duration(p) * time.Millisecond)); wait > 0 {
			time.Sleep(wait)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if p%2600 == 700 && wants(quiet) && time.Until(s.began.Add(time.Duration(p+50)*time.Millisecond)) > 0 {
			return errBroken
		}
		tx := &stream.Transaction{Position: p, ID: "id"}
		if p%10 == 0 {
			tx.DDL = &stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{{Schema: "s", Name: "other"}}}
		}
		if err := visit(tx); err != nil {
			return err
		}
	}
}

// The table trigger follows the reader of the node while that reads, and reads the log itself otherwise. DDL must neither be lost nor come
// twice when it changes over.
func TestTheTableTriggerFollowsTheReaderOfItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &scripted{began: time.Now()}
		engine := dispatch.New(dispatch.Options{
			OpenSource: func(dispatch.Config) (stream.Source, error) { return source, nil },
			OpenSink:   func(dispatch.FeedKey, dispatch.Config) (stream.Sink, error) { return blackhole.New(), nil },
			Memory:     1 << 20, Enter: func() (func(), error) { return func() {}, nil },
		})
		m := New(Options{Log: slog.New(slog.DiscardHandler), Tap: engine.Tap}, &v1alpha1.Changefeed{})
		m.ddlDone = new(stream.Position)
		ctx, cancel := context.WithCancel(t.Context())
		var ddl []stream.Position
		ended := make(chan error)
		go func() {
			ended <- m.followLog(ctx, source, func(tx *stream.Transaction) error {
				if tx.DDL != nil {
					ddl = append(ddl, tx.Position)
					time.Sleep(3 * time.Millisecond) // it is executed
				}
				m.mu.Lock()
				defer m.mu.Unlock()
				*m.ddlDone = tx.Position
				return nil
			})
		}()
		if err := engine.Accept(m.key, 1); err != nil {
			t.Fatal(err)
		}
		for round := range int64(20) {
			time.Sleep(300 * time.Millisecond)
			m.mu.Lock()
			at := *m.ddlDone
			m.mu.Unlock()
			order := dispatch.Order{Table: quiet, Epoch: stream.Epoch{Placement: 1, Counter: round + 1}, Position: at - stream.Position(round*7)}
			if failed := engine.Start(t.Context(), m.key, 1, dispatch.Config{Workers: 1, BatchRows: 1, DDL: true}, []dispatch.Order{order}); len(failed) > 0 {
				t.Fatal(failed)
			}
			time.Sleep(time.Second)
			source.mu.Lock()
			readers := source.readers
			source.mu.Unlock()
			if readers != 0 {
				t.Errorf("round %d: the table trigger reads the log itself", round)
			}
			if _, failed := engine.Stop(t.Context(), m.key, 1, []dispatch.Order{order}); len(failed) > 0 {
				t.Fatal(failed)
			}
		}
		time.Sleep(time.Second)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		var want []stream.Position
		for p := stream.Position(10); p <= ddl[len(ddl)-1]; p += 10 {
			want = append(want, p)
		}
		if !slices.Equal(ddl, want) || len(ddl) < 2600 {
			t.Errorf("%d DDL were visited, want %d", len(ddl), len(want))
		}
		if err := engine.Close(context.Background(), m.key); err != nil {
			t.Error(err)
		}
	})
}

// Until it is known which tables the changefeed begins with, the checkpoint waits for DDL, so that it is read ahead of the changes.
func TestTheTableTriggerReadsAheadWhileTablesAreNotKnown(t *testing.T) {
	asked := 0
	m := New(Options{Log: slog.New(slog.DiscardHandler), Tap: func(dispatch.FeedKey, stream.Position) *dispatch.Tap { asked++; return nil }}, &v1alpha1.Changefeed{})
	m.missingUntil = 10
	for _, c := range []struct {
		unsure bool
		at     stream.Position
		want   int
	}{{true, 9, 0}, {true, 10, 1}, {false, 0, 1}} {
		asked, m.unsure = 0, c.unsure
		if m.tap(c.at); asked != c.want {
			t.Errorf("%+v: it was asked for %d times", c, asked)
		}
	}
}

// A changefeed that begins waits for DDL only if the tables at the sink are not those at the source.
func TestACheckpointWaitsForDDLOnlyWhileTablesAreNotKnown(t *testing.T) {
	for _, unsure := range []bool{true, false} {
		m := New(Options{Log: slog.New(slog.DiscardHandler), Reports: reported{}}, &v1alpha1.Changefeed{})
		start, done := stream.Position(5), stream.Position(8)
		m.checkpoint, m.started, m.missingFrom, m.missingUntil, m.ddlDone, m.unsure = start, &start, start, 10, &done, unsure
		m.tables[logTable] = &table{floor: 7}
		m.advance()
		if want := map[bool]stream.Position{true: 5, false: 7}[unsure]; m.checkpoint != want {
			t.Errorf("unsure %v: the checkpoint is %d, want %d", unsure, m.checkpoint, want)
		}
	}
}
