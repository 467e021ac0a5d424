package sqlsink_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A server that may have lost commits gives nobody a table, and executes no DDL, before its checkpoint is adopted again.
func TestNothingIsAcquiredFromASinkThatMayHaveLostCommits(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.old (id INT PRIMARY KEY)", "CREATE TABLE w.fresh (id INT PRIMARY KEY)")
	sink := openSink(t, m)
	old, fresh := stream.Table{Schema: "w", Name: "old"}, stream.Table{Schema: "w", Name: "fresh"}
	if _, _, err := sink.Acquire(t.Context(), old.Since(0), stream.Epoch{Placement: 1}, 5); err != nil {
		t.Fatal(err)
	}
	paths := map[string]func() error{
		"a table with a position": func() error {
			_, _, err := sink.Acquire(t.Context(), old.Since(0), stream.Epoch{Placement: 2}, 9)
			return err
		},
		"a table without one": func() error {
			_, _, err := sink.Acquire(t.Context(), fresh.Since(0), stream.Epoch{Placement: 2}, 9)
			return err
		},
		"a group": func() error {
			_, _, err := sink.AcquireGroup(t.Context(), asNamed([]stream.Table{old, fresh}), stream.Epoch{Placement: 2}, 9)
			return err
		},
		"an ALTER": func() error {
			return sink.ExecuteDDL(t.Context(), 9, &stream.DDL{Kind: stream.AlterTable, Schema: "w", Tables: []stream.Table{old}, Statement: "ALTER TABLE w.old ADD n INT"}, stream.Epoch{Placement: 2})
		},
		"a RENAME": func() error {
			return sink.ExecuteDDL(t.Context(), 10, &stream.DDL{Kind: stream.RenameTable, Schema: "w", Tables: []stream.Table{old}, Becomes: []stream.Table{{Schema: "w", Name: "new"}}, Statement: "RENAME TABLE w.old TO w.new"}, stream.Epoch{Placement: 2})
		},
	}
	state := "SELECT CONCAT((SELECT GROUP_CONCAT(table_name, placement, '@', position ORDER BY table_name) FROM ebb.progress WHERE table_name <> ''), ' ', (SELECT COUNT(*) FROM ebb.ddl), ' ', " +
		"(SELECT GROUP_CONCAT(TABLE_NAME, COLUMN_NAME ORDER BY 1) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'w'))"
	before := m.Value(state)
	for lost, statement := range map[string]string{
		"the server was started again":              "DELETE FROM ebb.incarnation",
		"it is another server":                      "UPDATE ebb.incarnation SET token = token + 1",
		"an owner has found its writes lost":        "UPDATE ebb.progress SET counter = 0 WHERE table_name = ''",
		"it was restored from before the first one": "DELETE FROM ebb.progress WHERE table_name = ''",
	} {
		m.Exec(statement)
		for name, acquire := range paths {
			if err := acquire(); !errors.Is(err, stream.ErrWentBack) || errors.Is(err, stream.ErrUnusable) {
				t.Errorf("%s: %s: %v", lost, name, err)
			}
		}
		if now := m.Value(state); now != before {
			t.Errorf("%s: it was %s and is %s", lost, before, now)
		}
		if err := adoptAt(t.Context(), sink); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a table with a position", "a table without one", "a group", "an ALTER", "a RENAME"} {
		if err := paths[name](); err != nil {
			t.Errorf("once it is adopted: %s: %v", name, err)
		}
	}
}

// losing is a table whose last rows a sink has lost, with the checkpoint after them.
type losing struct {
	*testing.T
	a, b   *testenv.MariaDB
	source stream.Source
	sink   *sqlsink.Sink
	engine *dispatch.Engine
	config dispatch.Config
	table  stream.Table
	epoch  int64
	// kept and lost are the positions of the table before and after the rows that were lost.
	kept, lost stream.Position
}

// newLosing lets a node write rows, and takes the last of them away from the sink. What is recorded with them goes back, too.
func newLosing(t *testing.T) *losing {
	l := &losing{T: t, a: testenv.StartMariaDB(t), b: testenv.StartMariaDB(t), table: stream.Table{Schema: "w", Name: "t"}}
	for _, m := range []*testenv.MariaDB{l.a, l.b} {
		m.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY)")
	}
	l.source, l.sink = openSource(t, l.a), openSink(t, l.b)
	l.engine, l.config = newCopierOf(t, l.source, l.b, 0)
	l.must(l.start(l.head()))
	l.a.Exec("INSERT INTO w.t VALUES (1)")
	l.kept = l.flows()
	if err := l.adopt(l.kept); err != nil {
		t.Fatal(err)
	}
	l.a.Exec("INSERT INTO w.t VALUES (2)")
	l.lost = l.flows()
	return l
}

// crash takes the last row away, and what else a server loses when it crashes.
func (l *losing) crash() {
	l.Helper()
	l.goBack()
	l.b.Exec("DELETE FROM ebb.incarnation")
}

// goBack takes the last row away, as if an earlier state of the table was restored while the server ran.
func (l *losing) goBack() {
	l.Helper()
	l.b.Exec("DELETE FROM w.t WHERE id = 2", fmt.Sprintf("UPDATE ebb.progress SET position = %d WHERE table_name = 't'", l.kept))
}

func (l *losing) head() stream.Position {
	l.Helper()
	head, err := l.source.Head(l.Context())
	if err != nil {
		l.Fatal(err)
	}
	return head
}

// flows waits until everything is written.
func (l *losing) flows() stream.Position {
	l.Helper()
	head := l.head()
	waitFor(l.T, func() bool { r := l.engine.Report(copierKey); return r.Running == 1 && r.Checkpoint >= head })
	return head
}

func (l *losing) adopt(at stream.Position) error {
	now, err := l.sink.Incarnation(l.Context())
	if err != nil {
		return err
	}
	found, err := l.sink.Checkpoint(l.Context())
	if err != nil {
		return err
	}
	return l.sink.AdoptCheckpoint(l.Context(), found, stream.Checkpoint{Position: at, Incarnation: now})
}

func (l *losing) order(at stream.Position) []dispatch.Order {
	return []dispatch.Order{{Table: l.table, Epoch: stream.Epoch{Placement: 1, Counter: l.epoch}, Position: at}}
}

// start starts another dispatcher.
func (l *losing) start(at stream.Position) error {
	l.epoch++
	return l.engine.Start(l.Context(), copierKey, 1, l.config, l.order(at))[l.table]
}

func (l *losing) stop() error {
	_, failed := l.engine.Stop(l.Context(), copierKey, 1, l.order(0))
	return failed[l.table]
}

func (l *losing) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// ends continues as a maintainer does at the checkpoint that the sink has, and compares.
func (l *losing) ends() {
	l.Helper()
	c, err := l.sink.Checkpoint(l.Context())
	l.must(err)
	l.must(l.adopt(c.Position))
	l.must(l.start(c.Position))
	l.flows()
	equal(l.T, l.a, l.b)
}

func TestATableThatMovesAfterACrashOfTheSinkLosesNothing(t *testing.T) {
	l := newLosing(t)
	l.crash()
	l.must(l.stop()) // it has written nothing since
	if err := l.start(l.lost); !errors.Is(err, stream.ErrWentBack) {
		t.Errorf("it is started: %v", err)
	}
	l.a.Exec("INSERT INTO w.t VALUES (3)")
	l.ends()
}

func TestATableThatIsAlteredAfterACrashOfTheSinkLosesNothing(t *testing.T) {
	for name, lose := range map[string]func(*losing){"a crash": (*losing).crash, "a restore": (*losing).goBack} {
		t.Run(name, func(t *testing.T) {
			l := newLosing(t)
			lose(l)
			l.a.Exec("ALTER TABLE w.t ADD n INT", "INSERT INTO w.t VALUES (3, 3)")
			waitFor(t, func() bool { return len(l.engine.Report(copierKey).Lost) == 1 })
			if n := l.b.Value("SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'w'"); n != "1" {
				t.Errorf("the table has %s columns", n)
			}
			if err := l.stop(); !errors.Is(err, dispatch.ErrLost) {
				t.Errorf("it is stopped: %v", err)
			}
			l.ends()
		})
	}
}
