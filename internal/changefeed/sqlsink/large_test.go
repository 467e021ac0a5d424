package sqlsink_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// Owners come and go between the parts of a large transaction, and each is given all of it.
func TestALargeTransactionIsWrittenInPartsExactlyOnce(t *testing.T) {
	eachForm(t, writeLargeTransaction)
}

func writeLargeTransaction(t *testing.T, forward bool) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	for _, m := range []*testenv.MariaDB{a, b} {
		m.Exec("CREATE DATABASE d", "CREATE TABLE d.k (id INT PRIMARY KEY, s VARCHAR(50), UNIQUE (s))", "CREATE TABLE d.n (id INT, s VARCHAR(50))")
	}
	source, err := mariadb.Open(mariadb.Options{Address: a.Address, User: a.User, Password: a.Password, LargeBytes: 20_000, Raw: forward})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	whole := openSourceAs(t, a, forward) // the transaction comes at once
	from, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.Exec("USE d", "INSERT INTO k VALUES (0, 'first')", "INSERT INTO n VALUES (0, 'first')",
		"BEGIN; INSERT INTO k SELECT seq, MD5(seq) FROM seq_1_to_1000; INSERT INTO n SELECT seq % 7, 'x' FROM seq_1_to_500; UPDATE k SET id = id + 10000 WHERE id % 2; DELETE FROM n WHERE id = 3; INSERT INTO n VALUES (1, 'x'); COMMIT",
		"INSERT INTO k VALUES (5000, 'last')", "INSERT INTO n VALUES (5000, 'last')")
	to, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sink := openSinkAs(t, b, forward)
	enough := errors.New("enough")
	handovers := 0
	for _, name := range []string{"k", "n"} {
		table := stream.Table{Schema: "d", Name: name}
		for epoch := int64(1); ; epoch++ {
			w, at, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: epoch}, from)
			if err != nil {
				t.Fatal(err)
			}
			if at >= to {
				break
			}
			writes, from := 0, source
			if forward && epoch == 3 {
				from = whole
			}
			err = from.Read(t.Context(), at, func(tx *stream.Transaction) error {
				for _, rows := range tx.Rows {
					if rows.Table != table {
						continue
					}
					if err := w.Write(t.Context(), []*stream.Rows{rows}, rows.To()); err != nil {
						return fmt.Errorf("part after %d changes: %w", rows.Before, err)
					}
					if writes++; writes > int(epoch)+1 {
						handovers++
						return enough
					}
				}
				if tx.Position >= to && !tx.More {
					return errors.Join(enough, w.Write(t.Context(), nil, to))
				}
				return nil
			})
			if !errors.Is(err, enough) {
				t.Fatal(err)
			}
		}
	}
	if handovers < 4 {
		t.Errorf("%d handovers", handovers)
	}
	equal(t, a, b)
	wasForwarded(t, sink, forward)
}

// inserts is a part of a transaction that inserts rows into a table with the column id.
func inserts(table stream.Table, at stream.Position, before, n int, more bool) *stream.Rows {
	rows := &stream.Rows{Position: at, Table: table, Schema: &stream.Schema{Columns: []stream.Column{{Name: "id", Type: "int"}}}, Before: before, More: more}
	for i := range n {
		rows.Changes = append(rows.Changes, stream.Change{Kind: stream.Insert, After: []any{int64(before + i)}})
	}
	return rows
}

// A version that knows of no parts moves the position of a table and leaves the number of changes after it as that was.
func TestThePartOfAnotherPositionIsNotTakenAsWritten(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.n (id INT)")
	table := stream.Table{Schema: "d", Name: "n"}
	if err := openSink(t, m).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.Exec("ALTER TABLE ebb.progress DROP COLUMN part_at", "ALTER TABLE ebb.progress DROP COLUMN part") // as that version has made it
	for _, c := range []struct {
		at   stream.Position
		rows *stream.Rows
		want int
	}{
		{5, inserts(table, 6, 0, 3, true), 3},
		{5, inserts(table, 6, 0, 4, true), 4},
		{7, inserts(table, 8, 0, 5, true), 9}, // the other version has completed the transaction at 6, and written 7
		{7, inserts(table, 8, 3, 4, false), 11},
	} {
		sink := openSink(t, m)
		w, at, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, 5)
		if err != nil {
			t.Fatal(err)
		}
		if at < c.at {
			m.Exec(fmt.Sprintf("UPDATE ebb.progress SET position = %d WHERE table_name = 'n'", c.at))
			if w, _, err = sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, 5); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Write(t.Context(), []*stream.Rows{c.rows}, c.rows.To()); err != nil {
			t.Fatal(err)
		}
		if got := m.Value("SELECT COUNT(*) FROM d.n"); got != fmt.Sprint(c.want) {
			t.Errorf("after the part at %d there are %s rows, want %d", c.rows.Position, got, c.want)
		}
	}
}

// A table that was parked is given the parts of a large transaction again, after those that wait to be written.
func TestPartsThatAreReadAgainInOneBatchAreWrittenOnce(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.n (id INT)")
	table := stream.Table{Schema: "d", Name: "n"}
	part := func(before, n int, more bool) *stream.Rows { return inserts(table, 9, before, n, more) }
	sink := openSink(t, m)
	for epoch, batch := range [][]*stream.Rows{
		{part(0, 2, true), part(2, 2, true), part(4, 2, true), part(0, 2, true)},
		{part(2, 2, true)},
		{part(0, 2, true), part(2, 2, true), part(4, 2, true), part(6, 2, false)},
	} {
		w, _, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1, Counter: int64(epoch)}, 5)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(t.Context(), batch, batch[len(batch)-1].To()); err != nil {
			t.Fatal(err)
		}
	}
	db := m.Open("")
	defer db.Close()
	if got := dump(t, db, "d.n"); len(got) != 1+8 {
		t.Error(got)
	}
}
