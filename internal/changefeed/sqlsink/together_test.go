package sqlsink_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// several are tables of numbers without a key, so that what is written twice is there twice, and their writers.
type several struct {
	t       *testing.T
	server  *testenv.MariaDB
	tables  []stream.Table
	writers []stream.Writer
	at      stream.Position
}

func newSeveral(t *testing.T, server *testenv.MariaDB, sink *sqlsink.Sink, n int) *several {
	t.Helper()
	s := &several{t: t, server: server}
	server.Exec("CREATE DATABASE w")
	for i := range n {
		table := stream.Table{Schema: "w", Name: fmt.Sprintf("t%d", (i*3)%n)} // not in the order of their names
		server.Exec("CREATE TABLE " + table.String() + " (n BIGINT)")
		w, _, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.tables, s.writers = append(s.tables, table), append(s.writers, w)
	}
	return s
}

// write writes the next number to every table together, and returns how each part ended.
func (s *several) write(sink *sqlsink.Sink) []error {
	s.t.Helper()
	s.at++
	parts, results := make([]stream.Part, len(s.tables)), make([]error, len(s.tables))
	done := make(chan int, 2*len(s.tables))
	for i, table := range s.tables {
		rows := rowsOf(table, s.at, counterSchema, int64(s.at))
		parts[i] = stream.Part{Writer: s.writers[i], Rows: []*stream.Rows{rows}, To: s.at, Done: func(err error) { results[i] = err; done <- i }}
	}
	sink.WriteTogether(s.t.Context(), parts)
	if len(done) != len(parts) {
		s.t.Fatalf("%d of %d parts are done", len(done), len(parts))
	}
	return results
}

// counted checks that each number up to n is once in a table.
func (s *several) counted(table stream.Table, n stream.Position) {
	s.t.Helper()
	got := s.server.Value("SELECT CONCAT(COUNT(*), ' rows, ', COUNT(DISTINCT n), ' different, up to ', COALESCE(MAX(n), 0)) FROM " + table.String())
	if want := fmt.Sprintf("%d rows, %d different, up to %d", n, n, n); got != want {
		s.t.Errorf("table %s has %s, want %s", table, got, want)
	}
}

// transactions is how many the server has committed.
func transactions(server *testenv.MariaDB) string {
	return server.Value("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_COMMIT'")
}

func TestTablesThatAreWrittenTogetherShareATransaction(t *testing.T) {
	b := testenv.StartMariaDB(t)
	sink := openSink(t, b)
	s := newSeveral(t, b, sink, 7)
	s.write(sink)
	before := transactions(b)
	if err := errors.Join(s.write(sink)...); err != nil {
		t.Fatal(err)
	}
	var was, is int
	fmt.Sscan(before, &was)
	fmt.Sscan(transactions(b), &is)
	if is != was+1 {
		t.Errorf("7 tables took %d transactions", is-was)
	}
	for _, table := range s.tables {
		s.counted(table, 2)
	}
}

// A table in the middle that has another owner is refused, and all others are written.
func TestATableOfAnotherOwnerKeepsNoOtherFromBeingWritten(t *testing.T) {
	b := testenv.StartMariaDB(t)
	sink := openSink(t, b)
	s := newSeveral(t, b, sink, 5)
	s.write(sink)
	for i, table := range s.tables {
		if _, _, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 2}, 0); err != nil {
			t.Fatal(err)
		}
		results := s.write(sink)
		for j, err := range results {
			if lost := j <= i; errors.Is(err, stream.ErrNotOwner) != lost || !lost && err != nil {
				t.Errorf("after table %d was taken, table %d ended with %v", i, j, err)
			}
		}
	}
	for i, table := range s.tables {
		s.counted(table, stream.Position(i+1))
	}
}

// A table that cannot be written, or that somebody has locked, keeps no other from being written.
func TestATableThatCannotBeWrittenKeepsNoOtherFromBeingWritten(t *testing.T) {
	b := testenv.StartMariaDB(t)
	sink := openSink(t, b)
	s := newSeveral(t, b, sink, 4)
	s.write(sink)
	b.Exec("ALTER TABLE w.t1 MODIFY n TINYINT, ADD CHECK (n < 2)", "ALTER TABLE w.t1 CHANGE n m BIGINT")
	for i, err := range s.write(sink) {
		if broken := s.tables[i].Name == "t1"; broken != errors.Is(err, stream.ErrUnusable) || !broken && err != nil {
			t.Errorf("table %s ended with %v", s.tables[i], err)
		}
	}
	for _, table := range s.tables {
		if table.Name != "t1" {
			s.counted(table, 2)
		}
	}
}

// Every command of a write of several tables is cut off once, before it reaches the server and after it did.
func TestAWriteOfSeveralTablesCutAtAnyPointHappensOnce(t *testing.T) {
	b := testenv.StartMariaDB(t)
	line := newLine(t, b.Address)
	sink := openSinkAt(t, b, line.address)
	s := newSeveral(t, b, sink, 4)
	points := 0
	for command := 1; ; command++ {
		cut := false
		for _, deliver := range []bool{false, true} {
			line.cutAt(command, deliver)
			if err := errors.Join(s.write(sink)...); err != nil {
				t.Fatalf("cut at command %d (delivered %v): %v", command, deliver, err)
			}
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
	if points < 4 {
		t.Errorf("only %d points were cut", points)
	}
	for _, table := range s.tables {
		s.counted(table, s.at)
	}
}
