package mariadb

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// allChanges are the changes of every table by position, however they were split, and how many parts there were.
func allChanges(t *testing.T, list []*stream.Transaction, limit int) (changes map[string][]stream.Change, parts int) {
	t.Helper()
	changes = map[string][]stream.Change{}
	totals := map[string]int{}
	for _, tx := range list {
		parts++
		bytes := 0
		for _, rows := range tx.Rows {
			if rows.DDL != nil {
				continue
			}
			key := fmt.Sprintf("%d %s", rows.Position, rows.Table)
			if rows.Before != len(changes[key]) || rows.More != tx.More || rows.Position != tx.Position {
				t.Fatalf("%s: a part with more=%v begins after %d of %d changes", key, rows.More, rows.Before, len(changes[key]))
			}
			changes[key] = append(changes[key], rows.Changes...)
			totals[key] = rows.Total
			bytes += rows.Bytes
		}
		if limit > 0 && bytes > limit+200_000 { // an event has up to 8 KiB, which take more in memory
			t.Errorf("a part has %d bytes", bytes)
		}
	}
	for key, total := range totals {
		if limit > 0 && total != 0 && total != len(changes[key]) {
			t.Errorf("%s: %d changes of %d", key, len(changes[key]), total)
		}
	}
	return changes, parts
}

func TestALargeTransactionIsReadInParts(t *testing.T) {
	const limit = 20_000
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "USE d", "CREATE TABLE a (id INT PRIMARY KEY, s VARCHAR(100))", "CREATE TABLE b (id INT)", "CREATE TABLE my (id INT) ENGINE=MyISAM", "CREATE TABLE bad (id INT PRIMARY KEY, n INT)", "INSERT INTO bad VALUES (1, 1)")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.Exec("USE d", "INSERT INTO b VALUES (0)",
		"BEGIN; INSERT INTO b VALUES (1); INSERT INTO a SELECT seq, MD5(seq) FROM seq_1_to_3000; INSERT INTO b SELECT seq FROM seq_1_to_1000; UPDATE a SET s = 'x' WHERE id > 1500; COMMIT",
		"CREATE TABLE made AS SELECT * FROM a", "DELETE FROM a",
		// Only the tables concerned may know of a transaction that cannot be read.
		"BEGIN; INSERT INTO a SELECT seq, MD5(seq) FROM seq_1_to_1000; SET binlog_row_image=MINIMAL; UPDATE bad SET n = 2; SET binlog_row_image=FULL; INSERT INTO a SELECT seq, MD5(seq) FROM seq_1001_to_2000; COMMIT",
		"BEGIN; INSERT INTO a SELECT seq, MD5(seq) FROM seq_10001_to_11000; INSERT INTO my SELECT seq FROM seq_1_to_10; SAVEPOINT p; INSERT INTO b VALUES (2); INSERT INTO my VALUES (99); ROLLBACK TO p; COMMIT",
		"INSERT INTO b VALUES (3)")
	want, _ := allChanges(t, collect(t, s, head), 0)
	small, err := Open(Options{Address: m.Address, User: m.User, Password: m.Password, LargeBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	list := collect(t, small, head)
	got, parts := allChanges(t, list, limit)
	if parts < 50 {
		t.Errorf("%d parts", parts)
	}
	var refused []*stream.DDL
	for _, tx := range list {
		if tx.DDL != nil && tx.DDL.Kind == stream.UnreadableRows {
			refused = append(refused, tx.DDL)
			for _, table := range tx.DDL.Tables {
				delete(want, fmt.Sprintf("%d %s", tx.Position, table))
			}
		}
	}
	if len(refused) != 1 || !slices.Contains(refused[0].Tables, stream.Table{Schema: "d", Name: "a"}) || !strings.Contains(refused[0].Statement, "rolls back to a savepoint") {
		t.Errorf("%+v", refused)
	}
	if !reflect.DeepEqual(got, want) {
		for key := range want {
			if !reflect.DeepEqual(got[key], want[key]) {
				t.Errorf("%s: %d changes instead of %d", key, len(got[key]), len(want[key]))
			}
		}
		t.Errorf("%d and %d tables", len(got), len(want))
	}
}

// A sink that knows too low a total takes a transaction as complete that is not.
func TestATableWantedAmidTheCountOfALargeTransactionIsSkipped(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "USE d", "CREATE TABLE a (id INT PRIMARY KEY, s VARCHAR(100))", "CREATE TABLE b (id INT)")
	s, err := Open(Options{Address: m.Address, User: m.User, Password: m.Password, LargeBytes: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.Exec("USE d", "BEGIN; INSERT INTO b VALUES (1), (2); INSERT INTO a SELECT seq, MD5(seq) FROM seq_1_to_2000; INSERT INTO b SELECT seq FROM seq_1_to_1000; COMMIT")
	late, wanted := stream.Table{Schema: "d", Name: "b"}, false
	wants := func(table stream.Table) bool {
		wanted = wanted || table != late // from the first row of the other table on
		return wanted
	}
	for _, skips := range []bool{true, false} {
		parts, changes := 0, 0
		err = s.ReadOf(t.Context(), head, wants, func(tx *stream.Transaction) error {
			parts++
			for _, rows := range tx.Rows {
				if rows.Table == late {
					changes += len(rows.Changes)
					if rows.Total != 1002 {
						t.Fatalf("part %d says that there are %d changes of table %s", parts, rows.Total, late)
					}
				}
			}
			if slices.Contains(tx.Skipped, late) || !tx.More {
				return errEnough // as a reader does that has a subscriber now
			}
			return nil
		})
		if !errors.Is(err, errEnough) {
			t.Fatal(err)
		}
		if skipped := changes == 0; skipped != skips || !skips && changes != 1002 || parts == 0 {
			t.Errorf("%d changes in %d parts", changes, parts)
		}
	}
}
