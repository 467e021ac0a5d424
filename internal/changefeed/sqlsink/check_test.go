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
