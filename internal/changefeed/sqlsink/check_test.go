package sqlsink_test

import (
	"errors"
	"strings"
	"testing"

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
	w, _, err := sink.Acquire(t.Context(), counterTable, stream.Epoch{Placement: 1}, 0)
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
		_, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "w", Name: name}, stream.Epoch{Placement: 1}, 0)
		return err
	}
	for _, fine := range []string{"parent", "kept", "part", "missing"} {
		if err := acquire(fine); err != nil {
			t.Error(err)
		}
	}
	refused(t, acquire("child"), "table w.child has foreign key falls, which changes rows by cascade, and these changes are not in the log of the source; drop the key or make it RESTRICT")
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
	_, _, err = other.Acquire(t.Context(), stream.Table{Schema: "w", Name: "parent"}, stream.Epoch{Placement: 1}, 0)
	refused(t, err, "table w.parent is written by changefeed default/copy, and two would overwrite each other's rows; exclude the table from one of them")
	successor, err := sqlsink.Open(sqlsink.Options{Address: m.Address, User: m.User, Password: m.Password, Changefeed: "default/copy/77"})
	if err != nil {
		t.Fatal(err)
	}
	defer successor.Close()
	if _, _, err = successor.Acquire(t.Context(), stream.Table{Schema: "w", Name: "parent"}, stream.Epoch{Placement: 1}, 0); err != nil {
		t.Errorf("a changefeed that was removed and created again: %v", err)
	}
}

func TestMySQLIsRefusedAsASink(t *testing.T) {
	m := testenv.StartMariaDB(t, "--version=8.0.36")
	refused(t, openSink(t, m).Check(t.Context()), "version 8.0.36 is not MariaDB, and DDL of MariaDB means something else to MySQL; use MariaDB as the sink")
}

func TestASinkThatWentBackIsNoticed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	sink := openSink(t, m)
	if at, ok, err := sink.Checkpoint(t.Context()); at != 0 || ok || err != nil {
		t.Error(at, ok, err)
	}
	for _, step := range []struct{ before, to stream.Position }{{0, 5}, {5, 9}, {9, 9}} {
		if err := sink.SaveCheckpoint(t.Context(), step.before, step.to); err != nil {
			t.Error(err)
		}
	}
	if at, ok, err := sink.Checkpoint(t.Context()); at != 9 || !ok || err != nil {
		t.Error(at, ok, err)
	}
	if known, err := sink.Known(t.Context()); err != nil || len(known) != 0 {
		t.Errorf("the checkpoint counts as a table: %v %v", known, err)
	}
	m.Exec("UPDATE ebb.progress SET position = 7") // an earlier state is restored
	if err := sink.SaveCheckpoint(t.Context(), 9, 12); !errors.Is(err, stream.ErrWentBack) {
		t.Error(err)
	}
	m.Exec("DELETE FROM ebb.progress")
	if err := sink.SaveCheckpoint(t.Context(), 9, 12); !errors.Is(err, stream.ErrWentBack) {
		t.Error(err)
	}
}
