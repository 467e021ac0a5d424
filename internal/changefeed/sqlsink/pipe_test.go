package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.EndMariaDB()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const changefeed = "default/copy/0c5f"

// forwardAll makes all tests of the package forward rows, where they can be: EBB_FORWARD=1.
var forwardAll = os.Getenv("EBB_FORWARD") == "1"

func openSource(t testing.TB, server *testenv.MariaDB) *mariadb.Source {
	t.Helper()
	return openSourceAs(t, server, forwardAll)
}

func openSourceAs(t testing.TB, server *testenv.MariaDB, forward bool) *mariadb.Source {
	t.Helper()
	s, err := mariadb.Open(mariadb.Options{Address: server.Address, User: server.User, Password: server.Password, Raw: forward})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func openSink(t testing.TB, server *testenv.MariaDB) *sqlsink.Sink {
	t.Helper()
	return openSinkAs(t, server, forwardAll)
}

func openSinkAs(t testing.TB, server *testenv.MariaDB, forward bool) *sqlsink.Sink {
	t.Helper()
	adopt(t, server)
	return openNewSink(t, server, forward)
}

// adopt adopts the checkpoint of a sink as a maintainer does before any table is acquired, if the server can be one.
func adopt(t testing.TB, server *testenv.MariaDB) {
	t.Helper()
	s, err := sqlsink.Open(sqlsink.Options{Address: server.Address, User: server.User, Password: server.Password, Changefeed: changefeed})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_ = adoptAt(context.Background(), s)
}

// checkpointed is a sink that records a checkpoint.
type checkpointed interface {
	Incarnation(ctx context.Context) (int64, error)
	Checkpoint(ctx context.Context) (*stream.Checkpoint, error)
	AdoptCheckpoint(ctx context.Context, found *stream.Checkpoint, c stream.Checkpoint) error
}

// adoptAt adopts the checkpoint that a sink has, in the incarnation that it has now.
func adoptAt(ctx context.Context, s checkpointed) error {
	now, err := s.Incarnation(ctx)
	if err != nil {
		return err
	}
	found, err := s.Checkpoint(ctx)
	if err != nil {
		return err
	}
	var c stream.Checkpoint
	if found != nil {
		c = *found
	}
	c.Incarnation = now
	return s.AdoptCheckpoint(ctx, found, c)
}

// openNewSink opens a sink whose checkpoint nobody has adopted.
func openNewSink(t testing.TB, server *testenv.MariaDB, forward bool) *sqlsink.Sink {
	t.Helper()
	s, err := sqlsink.Open(sqlsink.Options{Address: server.Address, User: server.User, Password: server.Password, Changefeed: changefeed, Forward: forward})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// pipe copies a source to a sink as the dispatchers of a node do, all tables in one goroutine.
type pipe struct {
	source stream.Source
	sink   stream.Sink
	epoch  stream.Epoch
	// batch is how many transactions at most are put together.
	batch int

	at      stream.Position
	writers map[stream.Table]stream.Writer
	waiting map[stream.Table][]*stream.Rows
	count   int
	flushes int
}

func newPipe(source stream.Source, sink stream.Sink, epoch stream.Epoch, batch int) *pipe {
	return &pipe{source: source, sink: sink, epoch: epoch, batch: batch, writers: map[stream.Table]stream.Writer{}, waiting: map[stream.Table][]*stream.Rows{}}
}

var errEnough = errors.New("enough")

// asNamed are the tables that have some names when they are acquired.
func asNamed(names []stream.Table) []stream.Identity {
	var tables []stream.Identity
	for _, name := range names {
		tables = append(tables, name.Since(stream.AnySince))
	}
	return tables
}

// copy copies what comes after a position up to another.
func (p *pipe) copy(ctx context.Context, from, to stream.Position) error {
	if from >= to {
		return nil
	}
	p.at = from
	err := p.source.Read(ctx, from, func(tx *stream.Transaction) error {
		if err := p.take(ctx, tx); err != nil {
			return err
		}
		if tx.Position >= to && !tx.More {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		return err
	}
	return p.flush(ctx)
}

func (p *pipe) take(ctx context.Context, tx *stream.Transaction) error {
	if tx.DDL != nil {
		if err := p.flush(ctx); err != nil {
			return err
		}
		if tx.DDL.Kind == stream.UnreadableRows {
			return fmt.Errorf("%s: %w", tx.DDL.Statement, stream.ErrUnusable)
		}
		if err := p.adopting(ctx, func() error { return p.sink.ExecuteDDL(ctx, tx.Position, tx.DDL, p.epoch) }); err != nil {
			return err
		}
		for _, table := range tx.DDL.Names() {
			delete(p.writers, table)
		}
	}
	for _, rows := range tx.Rows {
		if rows.DDL != nil {
			return errors.Join(p.flush(ctx), fmt.Errorf("%s: %w", rows.DDL.Statement, stream.ErrUnusable))
		}
		if err := p.acquire(ctx, rows.Table, tx.Position-1); err != nil {
			return err
		}
		p.waiting[rows.Table] = append(p.waiting[rows.Table], rows)
	}
	if !tx.More {
		p.at = tx.Position
	}
	if p.count++; p.count >= p.batch {
		return p.flush(ctx)
	}
	return nil
}

func (p *pipe) acquire(ctx context.Context, table stream.Table, start stream.Position) error {
	if p.writers[table] != nil {
		return nil
	}
	return p.adopting(ctx, func() error {
		w, _, err := p.sink.Acquire(ctx, table.Since(stream.AnySince), p.epoch, start)
		if err == nil {
			p.writers[table] = w
		}
		return err
	})
}

// adopting does something, and adopts the checkpoint if the server was started again. The pipe knows that the server has lost nothing.
func (p *pipe) adopting(ctx context.Context, do func() error) error {
	for {
		err := do()
		if s, ok := p.sink.(checkpointed); !ok || !errors.Is(err, stream.ErrWentBack) {
			return err
		} else if adoptAt(ctx, s) != nil && ctx.Err() != nil { // the server may be starting again
			return ctx.Err()
		}
	}
}

// flush writes what is waiting, every other time with all tables together.
func (p *pipe) flush(ctx context.Context) error {
	p.flushes++
	var parts []stream.Part
	var results []error
	var mu sync.Mutex
	for table, rows := range p.waiting {
		done := func(err error) {
			if err != nil && !strings.Contains(err.Error(), "cannot go back") { // a table may be further than what is read again
				mu.Lock()
				results = append(results, err)
				mu.Unlock()
			}
		}
		parts = append(parts, stream.Part{Writer: p.writers[table], Rows: rows, To: rows[len(rows)-1].To(), Done: done})
	}
	for _, part := range parts {
		if ahead, ok := part.Writer.(stream.AheadWriter); ok {
			switch p.flushes % 5 {
			case 0, 1:
				ahead.Prepare(part.Rows)
			case 2:
				ahead.Prepare(part.Rows[1:]) // it turns out to be another batch
			}
		}
	}
	if together, ok := p.sink.(stream.Together); ok && p.flushes%2 == 0 {
		together.WriteTogether(ctx, parts)
	} else {
		for _, part := range parts {
			part.Done(part.Writer.Write(ctx, part.Rows, part.To))
		}
	}
	clear(p.waiting)
	p.count = 0
	return errors.Join(results...)
}

// sync copies everything that the source has and a test has not copied yet.
func (p *pipe) sync(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	head, err := p.source.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.copy(ctx, p.at, head); err != nil {
		t.Fatal(err)
	}
}

// dump is every row of a table in a form that shows every byte, in the order of the columns' text.
func dump(t testing.TB, db *sql.DB, table string) []string {
	t.Helper()
	schema, name, _ := strings.Cut(table, ".")
	var columns []string
	rows, err := db.Query("SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION", schema, name)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var c string
		if err := rows.Scan(&c); err != nil {
			t.Fatal(err)
		}
		columns = append(columns, c)
	}
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = fmt.Sprintf("COALESCE(HEX(`%s`), 'NULL'), '/', COALESCE(`%s`, 'NULL')", c, c)
	}
	query := fmt.Sprintf("SELECT CONCAT_WS('|', %s) AS line FROM %s ORDER BY line", strings.Join(parts, ", "), quoted(table))
	rows, err = db.Query(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	lines := columns
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

// equal compares all tables of both servers outside the sink's own schema, by SHOW CREATE TABLE, row by row, and by checksum.
func equal(t testing.TB, source, sink *testenv.MariaDB) {
	t.Helper()
	a, b := source.Open(""), sink.Open("")
	defer a.Close()
	defer b.Close()
	tables := list(t, a)
	if other := list(t, b); strings.Join(tables, " ") != strings.Join(other, " ") {
		t.Fatalf("the source has tables\n%v\nthe sink\n%v", tables, other)
	}
	for _, table := range tables {
		x, y := dump(t, a, table), dump(t, b, table)
		if len(x) != len(y) {
			t.Errorf("table %s has %d rows at the source and %d at the sink", table, len(x), len(y))
		}
		for i := range min(len(x), len(y)) {
			if x[i] != y[i] {
				t.Fatalf("table %s differs\nsource %s\nsink   %s", table, x[i], y[i])
			}
		}
		if c, d := checksum(t, a, table), checksum(t, b, table); c != d {
			t.Errorf("table %s: checksums are %s and %s", table, c, d)
		}
	}
}

func list(t testing.TB, db *sql.DB) []string {
	t.Helper()
	rows, err := db.Query("SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME) FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema', 'ebb') ORDER BY 1")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var n string
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		names = append(names, n)
	}
	return names
}

func checksum(t testing.TB, db *sql.DB, table string) string {
	t.Helper()
	var ignored, sum string
	if err := db.QueryRow("CHECKSUM TABLE "+quoted(table)+" EXTENDED").Scan(&ignored, &sum); err != nil {
		t.Fatal(err)
	}
	return sum
}

func quoted(table string) string {
	schema, name, _ := strings.Cut(table, ".")
	return "`" + schema + "`.`" + strings.ReplaceAll(name, "`", "``") + "`"
}
