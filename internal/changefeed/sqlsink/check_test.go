package sqlsink_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func refused(t *testing.T, err error, words string) {
	t.Helper()
	if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), words) {
		t.Errorf("got %v\nwant … %s …", err, words)
	}
}

func TestAnUnusableSinkIsNamed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE USER poor IDENTIFIED BY 'p'", "GRANT USAGE ON *.* TO poor")
	as := func(password, schema string) *sqlsink.Sink {
		s, err := sqlsink.Open(sqlsink.Options{Address: m.Address, User: "poor", Password: password, Changefeed: changefeed, Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	refused(t, as("wrong", "").Check(t.Context()), `access is denied for user "poor"; check the password`)
	refused(t, as("p", "").Check(t.Context()), `user "poor" lacks a privilege to create the tables for the progress in schema ebb; run GRANT ALL ON *.* TO 'poor'`)
	m.Exec("GRANT ALL ON `my``own`.* TO poor")
	if err := as("p", "my`own").Check(t.Context()); err != nil {
		t.Error(err)
	}
	m.Exec("SET GLOBAL read_only=ON")
	refused(t, as("p", "my`own").Check(t.Context()), "the server is read-only; SET GLOBAL read_only=OFF")
	_, err := sqlsink.Open(sqlsink.Options{Address: m.Address})
	refused(t, err, "the name of the changefeed must have 1 to 512 bytes")
}

func TestATableThatIsMissingOrDifferentIsNamed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w")
	sink := openSink(t, m)
	w, _, err := sink.Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	rows := []*stream.Rows{rowsOf(counterTable, 1, counterSchema, int64(1))}
	refused(t, w.Write(t.Context(), rows, 1), "table w.counter does not exist")
	m.Exec("CREATE TABLE w.counter (other INT)")
	refused(t, w.Write(t.Context(), rows, 1), "table w.counter has no column n at the sink; alter it to be as it is at the source")
	m.Exec("DROP TABLE w.counter", "CREATE TABLE w.counter (n INT PRIMARY KEY)", "INSERT INTO w.counter VALUES (1)")
	refused(t, w.Write(t.Context(), rows, 1), "a row that is new at the source exists at the sink already")
	m.Exec("DELETE FROM w.counter")
	if err := w.Write(t.Context(), rows, 1); err != nil {
		t.Error(err)
	}
}

// What the server refuses to the user, or to all, is not about the table.
func TestAServerThatRefusesRowsIsNamed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.counter (n INT PRIMARY KEY)", "CREATE USER poor IDENTIFIED BY 'p'", "GRANT ALL ON ebb.* TO poor", "GRANT SELECT ON w.* TO poor")
	adopt(t, m)
	sink, err := sqlsink.Open(sqlsink.Options{Address: m.Address, User: "poor", Password: "p", Changefeed: changefeed})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	w, _, err := sink.Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	rows := []*stream.Rows{rowsOf(counterTable, 1, counterSchema, int64(1))}
	ddl := &stream.DDL{Kind: stream.TruncateTable, Statement: "TRUNCATE TABLE w.counter", Tables: []stream.Table{counterTable}}
	refused(t, w.Write(t.Context(), rows, 1), `user "poor" lacks a privilege to write table w.counter; run GRANT ALL ON *.* TO 'poor'`)
	refused(t, sink.ExecuteDDL(t.Context(), 2, ddl, stream.Epoch{Placement: 1}), `user "poor" lacks a privilege to execute the DDL at position 2 (TRUNCATE TABLE w.counter); run GRANT ALL ON *.* TO 'poor'`)
	m.Exec("GRANT ALL ON w.* TO poor", "SET GLOBAL read_only=ON")
	refused(t, w.Write(t.Context(), rows, 1), "the server is read-only; SET GLOBAL read_only=OFF")
	refused(t, sink.ExecuteDDL(t.Context(), 2, ddl, stream.Epoch{Placement: 1}), "the server is read-only; SET GLOBAL read_only=OFF")
	m.Exec("SET GLOBAL read_only=OFF")
	if err := errors.Join(w.Write(t.Context(), rows, 1), sink.ExecuteDDL(t.Context(), 2, ddl, stream.Epoch{Placement: 1})); err != nil {
		t.Error(err)
	}
}

// A table that somebody else has made at the sink may have another key. Rows that would take each other's place are not lost.
func TestAKeyThatIsNoneAtTheSourceIsRefused(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.t (a INT PRIMARY KEY, b INT)")
	table := stream.Table{Schema: "w", Name: "t"}
	schema := &stream.Schema{Columns: []stream.Column{{Name: "a", Type: "int"}, {Name: "b", Type: "int"}}, Key: []int{0, 1}}
	row := func(a, b int64) []any { return []any{a, b} }
	write := func(changes ...stream.Change) error {
		w, _, err := openSinkAs(t, m, false).Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return w.Write(t.Context(), []*stream.Rows{{Position: 1, Table: table, Schema: schema, Changes: changes}}, 1)
	}
	const words = "table w.t: two rows of the source have the same values in the columns that are its key at the sink, where only one of them has room; give the table the primary and unique keys"
	refused(t, write(stream.Change{Kind: stream.Insert, After: row(1, 1)}, stream.Change{Kind: stream.Insert, After: row(1, 2)}), words)
	refused(t, write(stream.Change{Kind: stream.Insert, After: row(1, 1)}, stream.Change{Kind: stream.Update, Before: row(2, 1), After: row(1, 2)}), words)
	if n := m.Value("SELECT COUNT(*) FROM w.t"); n != "0" {
		t.Errorf("%s rows are written", n)
	}
	if err := write(stream.Change{Kind: stream.Insert, After: row(1, 1)}, stream.Change{Kind: stream.Update, Before: row(1, 1), After: row(1, 2)},
		stream.Change{Kind: stream.Delete, Before: row(1, 2)}, stream.Change{Kind: stream.Insert, After: row(1, 3)}); err != nil {
		t.Error(err)
	}
}

// The server rounds some values without an error, however strict it is.
func TestAColumnThatRoundsValuesIsRefused(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d", "SET GLOBAL time_zone='+00:00'")
	b.Exec("CREATE DATABASE d", "SET GLOBAL time_zone='+00:00'")
	source, sink := openSource(t, a), openSink(t, b)
	for i, c := range []struct{ here, there, value, want string }{
		{"DATETIME(6)", "DATETIME", "'2026-01-01 00:00:00.6'", "column c has 0 digits of a second there, and 6 at the source"},
		{"TIME(3)", "TIME(2)", "'00:00:00.123'", "column c has 2 digits of a second there, and 3 at the source"},
		{"DATETIME", "DATE", "'2026-01-01 10:00:00'", "column c is date there, and datetime at the source"},
		{"DECIMAL(10,4)", "DECIMAL(10,2)", "1.2345", "column c has 2 digits of a fraction there, and 4 at the source"},
		{"DECIMAL(10,1)", "INT", "1.5", "column c has 0 digits of a fraction there, and 1 at the source"},
		{"DECIMAL(20,0)", "DOUBLE", "12345678901234567890", "column c is double there, and decimal at the source"},
		{"DOUBLE", "FLOAT", "0.1", "column c is float there, and double at the source"},
		{"FLOAT", "INT", "1.5", "column c is int there, and float at the source"},
		{"BIGINT", "DOUBLE", "9007199254740993", "column c is double there, and bigint at the source"},
		{"DATETIME", "DATETIME(6)", "'2026-01-01 10:00:00'", ""},
		{"TIMESTAMP NULL", "DATETIME", "'2026-01-01 10:00:00'", ""},
		{"DECIMAL(10,2)", "DECIMAL(12,4)", "1.25", ""},
		{"DECIMAL(10,0)", "BIGINT", "25", ""},
		{"FLOAT", "DOUBLE", "1.5", ""},
		{"INT", "BIGINT UNSIGNED", "5", ""},
	} {
		table := fmt.Sprintf("d.t%d", i)
		a.Exec("CREATE TABLE " + table + " (id INT PRIMARY KEY, c " + c.here + ")")
		b.Exec("CREATE TABLE " + table + " (id INT PRIMARY KEY, c " + c.there + ")")
		p := newPipe(source, sink, stream.Epoch{Placement: 1}, 10)
		p.at = head(t, source)
		a.Exec("INSERT INTO " + table + " VALUES (1, " + c.value + ")")
		err := p.copy(t.Context(), p.at, head(t, source))
		if c.want != "" {
			refused(t, err, "table "+table+": "+c.want)
			continue
		}
		x, y := a.Value("SELECT c + 0 FROM "+table), b.Value("SELECT c + 0 FROM "+table)
		if err != nil || strings.TrimRight(x, ".0") != strings.TrimRight(y, ".0") {
			t.Errorf("%s as %s: %s became %s, %v", c.here, c.there, x, y, err)
		}
	}
}

// Tables whose rows could differ in silence are refused before anything is written, each with what to do.
func TestATableThatCannotBeWrittenExactlyIsRefused(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.parent (id INT PRIMARY KEY)", "CREATE TABLE w.part (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2",
		"CREATE TABLE w.child (id INT PRIMARY KEY, CONSTRAINT falls FOREIGN KEY (id) REFERENCES w.parent (id) ON DELETE CASCADE)",
		"CREATE TABLE w.kept (id INT PRIMARY KEY, CONSTRAINT stays FOREIGN KEY (id) REFERENCES w.parent (id))",
		"CREATE TABLE w.fires (id INT PRIMARY KEY)", "CREATE TRIGGER w.tr BEFORE INSERT ON w.fires FOR EACH ROW SET NEW.id = 1",
		"CREATE TABLE w.myisam (id INT PRIMARY KEY) ENGINE=MyISAM", "CREATE TABLE w.aria (id INT PRIMARY KEY) ENGINE=Aria", "CREATE TABLE w.memory (id INT PRIMARY KEY) ENGINE=MEMORY")
	sink := openSink(t, m)
	acquire := func(name string) error {
		_, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "w", Name: name}.Since(0), stream.Epoch{Placement: 1}, 0)
		return err
	}
	for _, fine := range []string{"parent", "kept", "part", "missing"} {
		if err := acquire(fine); err != nil {
			t.Error(err)
		}
	}
	refused(t, acquire("child"), "table w.child has foreign key falls, which changes rows by cascade, and was added at the sink by somebody else; pause and resume the changefeed")
	refused(t, acquire("fires"), "table w.fires has trigger tr, which would change rows that are replicated anyway; DROP TRIGGER `w`.`tr` at the sink, or exclude")
	for _, engine := range []string{"MyISAM", "Aria", "MEMORY"} {
		refused(t, acquire(strings.ToLower(engine)), "has the engine "+engine+", which has no transactions, so that its rows could be written twice; ALTER TABLE `w`.`"+strings.ToLower(engine)+"` ENGINE=InnoDB at the source and at the sink")
	}
	m.Exec("ALTER TABLE w.kept DROP FOREIGN KEY stays", "ALTER TABLE w.kept ENGINE=Aria")
	refused(t, acquire("kept"), "has the engine Aria")

	other, err := sqlsink.Open(sqlsink.Options{Address: m.Address, User: m.User, Password: m.Password, Changefeed: "default/other/77"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, _, err = other.Acquire(t.Context(), stream.Table{Schema: "w", Name: "parent"}.Since(0), stream.Epoch{Placement: 1}, 0)
	refused(t, err, "table w.parent is written by changefeed default/copy, and two would overwrite each other's rows; exclude the table from one of them")
	successor, err := sqlsink.Open(sqlsink.Options{Address: m.Address, User: m.User, Password: m.Password, Changefeed: "default/copy/77"})
	if err != nil {
		t.Fatal(err)
	}
	defer successor.Close()
	if err := adoptAt(t.Context(), successor); err != nil {
		t.Fatal(err)
	}
	if _, _, err = successor.Acquire(t.Context(), stream.Table{Schema: "w", Name: "parent"}.Since(0), stream.Epoch{Placement: 1}, 0); err != nil {
		t.Errorf("a changefeed that was removed and created again: %v", err)
	}
}

// A changefeed is removed while one of its nodes is frozen, and another one of the same name is created. The node must not write any more.
func TestAChangefeedThatWasRemovedWritesNothingOnceItsSuccessorDoes(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.counter (n INT PRIMARY KEY)")
	frozen, _, err := openSinkAs(t, m, false).Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 5}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := frozen.Write(t.Context(), []*stream.Rows{rowsOf(counterTable, 1, counterSchema, int64(1))}, 1); err != nil {
		t.Fatal(err)
	}
	successor, err := sqlsink.Open(sqlsink.Options{Address: m.Address, User: m.User, Password: m.Password, Changefeed: "default/copy/77"})
	if err != nil {
		t.Fatal(err)
	}
	defer successor.Close()
	if err := adoptAt(t.Context(), successor); err != nil {
		t.Fatal(err)
	}
	w, at, err := successor.Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 1}, 1)
	if err != nil || at != 1 {
		t.Fatal(at, err)
	}
	if err := frozen.Write(t.Context(), []*stream.Rows{rowsOf(counterTable, 2, counterSchema, int64(2))}, 2); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("the changefeed that was removed writes: %v", err)
	}
	if err := w.Write(t.Context(), []*stream.Rows{rowsOf(counterTable, 2, counterSchema, int64(2))}, 2); err != nil {
		t.Error(err)
	}
}

// A table with a trigger cannot be renamed into another schema. The error names the trigger.
func TestARenameThatATriggerKeepsFromRunningNamesTheTrigger(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE DATABASE v", "CREATE TABLE w.plain (id INT)", "CREATE TABLE w.fires (id INT)", "CREATE TRIGGER w.tr BEFORE INSERT ON w.fires FOR EACH ROW SET NEW.id = 1")
	in := func(schema, name string) stream.Table { return stream.Table{Schema: schema, Name: name} }
	ddl := &stream.DDL{Kind: stream.RenameTable, Statement: "RENAME TABLE w.plain TO v.plain, w.fires TO v.fires",
		Tables: []stream.Table{in("w", "plain"), in("w", "fires")}, Becomes: []stream.Table{in("v", "plain"), in("v", "fires")}}
	sink := openSink(t, m)
	refused(t, sink.ExecuteDDL(t.Context(), 7, ddl, stream.Epoch{Placement: 1}), "table w.fires has trigger tr, which would change rows that are replicated anyway; DROP TRIGGER `w`.`tr` at the sink")
	m.Exec("DROP TRIGGER w.tr")
	if err := sink.ExecuteDDL(t.Context(), 7, ddl, stream.Epoch{Placement: 1}); err != nil {
		t.Error(err)
	}
}

// A trigger that is created after the table was acquired is found by a write, which is rolled back and does not hang.
func TestAWriteThatExecutesATriggerIsRolledBack(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.loose (id INT)", "CREATE TABLE w.keyed (id INT PRIMARY KEY)", "CREATE TABLE w.log (id INT)", "INSERT INTO w.loose VALUES (1)", "INSERT INTO w.keyed VALUES (1)")
	sink := openSink(t, m)
	for name, key := range map[string][]int{"loose": nil, "keyed": {0}} {
		table := stream.Table{Schema: "w", Name: name}
		w, _, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		m.Exec("CREATE TRIGGER w.tr AFTER DELETE ON " + table.String() + " FOR EACH ROW INSERT INTO w.log VALUES (OLD.id)")
		rows := []*stream.Rows{{Position: 1, Table: table, Schema: &stream.Schema{Columns: []stream.Column{{Name: "id", Type: "int"}}, Key: key}, Changes: []stream.Change{{Kind: stream.Delete, Before: []any{int64(1)}}}}}
		written := make(chan error, 1)
		go func() { written <- w.Write(t.Context(), rows, 1) }()
		select {
		case err := <-written:
			refused(t, err, "table w."+name+" has trigger tr")
		case <-time.After(testenv.Patience):
			t.Fatalf("the write of table %s hangs", table)
		}
		if got := m.Value("SELECT CONCAT((SELECT COUNT(*) FROM " + table.String() + "), (SELECT COUNT(*) FROM w.log), (SELECT position FROM ebb.progress WHERE table_name = '" + name + "'))"); got != "100" {
			t.Errorf("table %s: %s", table, got)
		}
		m.Exec("DROP TRIGGER w.tr")
		if err := w.Write(t.Context(), rows, 1); err != nil {
			t.Errorf("table %s without the trigger: %v", table, err)
		}
	}
}

func TestMySQLIsRefusedAsASink(t *testing.T) {
	m := testenv.StartMariaDB(t, "--version=8.0.36")
	refused(t, openSink(t, m).Check(t.Context()), "version 8.0.36 is not MariaDB, and DDL of MariaDB means something else to MySQL; use MariaDB as the sink")
}

func TestASinkThatWentBackIsNoticed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	sink := openNewSink(t, m, forwardAll)
	if c, err := sink.Checkpoint(t.Context()); c != nil || err != nil {
		t.Error(c, err)
	}
	now, err := sink.Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := stream.Checkpoint{Position: 5, Incarnation: now, Transaction: "0-1-4"}
	if err := sink.AdoptCheckpoint(t.Context(), nil, c); err != nil {
		t.Error(err)
	}
	for range 2 {
		before := c.Position
		c.Position = 9
		if err := sink.SaveCheckpoint(t.Context(), before, c); err != nil {
			t.Error(err)
		}
	}
	if found, err := sink.Checkpoint(t.Context()); err != nil || *found != c {
		t.Error(found, err)
	}
	if known, err := sink.Known(t.Context()); err != nil || len(known) != 0 {
		t.Errorf("the checkpoint counts as a table: %v %v", known, err)
	}
	m.Exec("UPDATE ebb.progress SET position = 7") // an earlier state is restored
	c.Position = 12
	if err := sink.SaveCheckpoint(t.Context(), 9, c); !errors.Is(err, stream.ErrWentBack) {
		t.Error(err)
	}
	m.Exec("DELETE FROM ebb.progress")
	if err := sink.SaveCheckpoint(t.Context(), 9, c); !errors.Is(err, stream.ErrWentBack) {
		t.Error(err)
	}
}

// A server that crashes may have lost commits after a checkpoint that it has kept.
func TestACheckpointDoesNotAdvanceAfterARestartOfTheSink(t *testing.T) {
	m := testenv.StartMariaDB(t, "--server-id=2")
	sink := openNewSink(t, m, forwardAll)
	first, err := sink.Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := openNewSink(t, m, forwardAll).Incarnation(t.Context()); again != first || err != nil {
		t.Errorf("another changefeed sees incarnation %d instead of %d: %v", again, first, err)
	}
	c := stream.Checkpoint{Position: 5, Incarnation: first}
	if err := sink.AdoptCheckpoint(t.Context(), nil, c); err != nil {
		t.Error(err)
	}
	m.Kill()
	m.Restart()
	after := openNewSink(t, m, forwardAll)
	if err := after.SaveCheckpoint(t.Context(), 5, stream.Checkpoint{Position: 6, Incarnation: first}); !errors.Is(err, stream.ErrWentBack) {
		t.Errorf("before anybody asked: %v", err)
	}
	second, err := after.Incarnation(t.Context())
	if err != nil || second == first {
		t.Errorf("%d after %d: %v", second, first, err)
	}
	if err := after.SaveCheckpoint(t.Context(), 5, stream.Checkpoint{Position: 6, Incarnation: first}); !errors.Is(err, stream.ErrWentBack) {
		t.Error(err)
	}
	if err := after.AdoptCheckpoint(t.Context(), &c, c); !errors.Is(err, stream.ErrWentBack) {
		t.Errorf("an incarnation that is over was adopted: %v", err)
	}
	if err := after.AdoptCheckpoint(t.Context(), &c, stream.Checkpoint{Position: 5, Incarnation: second}); err != nil {
		t.Error(err)
	}
	if err := after.SaveCheckpoint(t.Context(), 5, stream.Checkpoint{Position: 6, Incarnation: second}); err != nil {
		t.Error(err)
	}
}

// An idle table is behind the checkpoint, and so is one whose last rows were lost. The owner of the latter knows.
func TestAnOwnerThatFindsItsWritesLostSetsTheCheckpointBack(t *testing.T) {
	m := testenv.StartMariaDB(t)
	makeCounter(m)
	sink := openNewSink(t, m, forwardAll)
	now, err := sink.Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, lose := range []string{"UPDATE ebb.progress SET position = 10 WHERE table_name = 'counter'", "DELETE FROM ebb.progress WHERE table_name = 'counter'"} {
		found, err := sink.Checkpoint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := sink.AdoptCheckpoint(t.Context(), found, stream.Checkpoint{Position: 40, Incarnation: now}); err != nil {
			t.Fatal(err)
		}
		w, _, err := sink.Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 1}, 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(t.Context(), nil, 20); err != nil {
			t.Fatal(err)
		}
		m.Exec(lose)
		if err := w.Write(t.Context(), nil, 50); !errors.Is(err, stream.ErrNotOwner) {
			t.Error(err)
		}
		if c, err := sink.Checkpoint(t.Context()); err != nil || c.Position != 10 || c.Incarnation != 0 {
			t.Errorf("%s: %+v %v", lose, c, err)
		}
		if err := sink.SaveCheckpoint(t.Context(), 10, stream.Checkpoint{Position: 60, Incarnation: now}); !errors.Is(err, stream.ErrWentBack) {
			t.Errorf("%s: a checkpoint after lost writes is saved: %v", lose, err)
		}
	}
}

// After a crash the checkpoint that the server has is enough, also if a table was written long before it, and of two owners each finds it so.
func TestAfterACrashTheCheckpointStaysWhereItIs(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.a (id INT PRIMARY KEY)", "CREATE TABLE w.b (id INT PRIMARY KEY)")
	sink := openNewSink(t, m, forwardAll)
	if err := adoptAt(t.Context(), sink); err != nil {
		t.Fatal(err)
	}
	var writers []stream.Writer
	for _, name := range []string{"a", "b"} {
		w, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "w", Name: name}.Since(0), stream.Epoch{Placement: 1}, 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(t.Context(), nil, 50); err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
	}
	m.Exec("UPDATE ebb.progress SET position = IF(table_name = '', 40, 10)", "DELETE FROM ebb.incarnation")
	for _, w := range writers {
		if err := w.Write(t.Context(), nil, 60); !errors.Is(err, stream.ErrNotOwner) {
			t.Error(err)
		}
		if c, err := sink.Checkpoint(t.Context()); err != nil || c.Position != 40 || c.Incarnation == 0 {
			t.Errorf("%+v %v", c, err)
		}
		if _, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "w", Name: "a"}.Since(0), stream.Epoch{Placement: 2}, 50); !errors.Is(err, stream.ErrWentBack) {
			t.Error(err)
		}
		if _, err := sink.Incarnation(t.Context()); err != nil { // a maintainer of any changefeed asks
			t.Fatal(err)
		}
	}
}

// Two tables that were lost without a restart: everything is read again from the earlier one.
func TestTheEarliestOfSeveralLostTablesCounts(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE TABLE w.a (id INT PRIMARY KEY)", "CREATE TABLE w.b (id INT PRIMARY KEY)")
	sink := openNewSink(t, m, forwardAll)
	if err := adoptAt(t.Context(), sink); err != nil {
		t.Fatal(err)
	}
	var writers []stream.Writer
	for _, name := range []string{"a", "b"} {
		w, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "w", Name: name}.Since(0), stream.Epoch{Placement: 1}, 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(t.Context(), nil, 50); err != nil {
			t.Fatal(err)
		}
		writers = append(writers, w)
	}
	m.Exec("UPDATE ebb.progress SET position = CASE table_name WHEN 'a' THEN 20 WHEN 'b' THEN 15 ELSE 40 END")
	for i, want := range []stream.Position{20, 15} {
		if err := writers[i].Write(t.Context(), nil, 60); !errors.Is(err, stream.ErrNotOwner) {
			t.Error(err)
		}
		if c, err := sink.Checkpoint(t.Context()); err != nil || c.Position != want || c.Incarnation != 0 {
			t.Errorf("%+v %v", c, err)
		}
	}
}

// A backup may be of an earlier version, or without the sink's own tables.
func TestTheOwnTablesOfASinkAreMadeAgainAfterARestore(t *testing.T) {
	m := testenv.StartMariaDB(t)
	makeCounter(m)
	sink := openNewSink(t, m, forwardAll)
	now, err := sink.Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.AdoptCheckpoint(t.Context(), nil, stream.Checkpoint{Position: 5, Incarnation: now}); err != nil {
		t.Fatal(err)
	}
	// twice returns the error of the second attempt.
	twice := func(try func() error) error {
		if err := try(); err == nil {
			t.Error("the first attempt succeeded")
		}
		return try()
	}
	w, at, err := sink.Acquire(t.Context(), counterTable.Since(0), stream.Epoch{Placement: 1}, 5)
	if err != nil {
		t.Fatal(err)
	}
	m.Exec("ALTER TABLE ebb.progress DROP COLUMN part_at, DROP COLUMN gtid")
	if err := twice(func() error { return w.Write(t.Context(), nil, at+1) }); err != nil {
		t.Error(err)
	}
	m.Exec("ALTER TABLE ebb.progress DROP COLUMN gtid")
	if err := twice(func() error {
		return sink.SaveCheckpoint(t.Context(), 5, stream.Checkpoint{Position: 6, Incarnation: now})
	}); err != nil {
		t.Error(err)
	}
	m.Exec("DROP TABLE ebb.incarnation")
	if err := twice(func() error {
		return sink.SaveCheckpoint(t.Context(), 6, stream.Checkpoint{Position: 7, Incarnation: now})
	}); !errors.Is(err, stream.ErrWentBack) {
		t.Error(err)
	}
	m.Exec("DROP DATABASE ebb")
	if err := twice(func() error { return w.Write(t.Context(), nil, at+2) }); !errors.Is(err, stream.ErrNotOwner) {
		t.Error(err)
	}
	m.Exec("DROP DATABASE ebb")
	if err := twice(func() error { _, err := sink.Known(t.Context()); return err }); err != nil {
		t.Error(err)
	}
}

// A maintainer that read the checkpoint before its successor did must not set it back, and not hide that a writer has set it back.
func TestACheckpointThatChangedSinceItWasReadIsNotAdopted(t *testing.T) {
	m := testenv.StartMariaDB(t)
	sink := openNewSink(t, m, forwardAll)
	now, err := sink.Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first, later := stream.Checkpoint{Position: 40, Incarnation: now}, stream.Checkpoint{Position: 50, Incarnation: now}
	adopt := func(found *stream.Checkpoint, c stream.Checkpoint) error {
		return sink.AdoptCheckpoint(t.Context(), found, c)
	}
	if err := adopt(&first, later); !errors.Is(err, stream.ErrWentBack) {
		t.Errorf("there is none: %v", err)
	}
	if err := adopt(nil, first); err != nil {
		t.Fatal(err)
	}
	if err := adopt(nil, later); !errors.Is(err, stream.ErrWentBack) {
		t.Errorf("there is one: %v", err)
	}
	if err := adopt(&first, first); err != nil {
		t.Error(err)
	}
	if err := sink.SaveCheckpoint(t.Context(), 40, later); err != nil {
		t.Fatal(err)
	}
	if err := adopt(&first, first); !errors.Is(err, stream.ErrWentBack) {
		t.Errorf("it has advanced: %v", err)
	}
	if found, err := sink.Checkpoint(t.Context()); err != nil || *found != later {
		t.Errorf("%+v %v", found, err)
	}
	m.Exec("UPDATE ebb.progress SET counter = 0 WHERE table_name = ''") // as a writer does that finds its writes lost
	if err := adopt(&later, later); !errors.Is(err, stream.ErrWentBack) {
		t.Errorf("a writer has set it back: %v", err)
	}
}
