package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// The tables of a family: cascades of every kind through three levels, a table that refers to itself, tables with and without keys,
// text that is equal without being the same, and a key that is only checked.
var family = []string{
	"CREATE TABLE w.root (id INT PRIMARY KEY, u VARCHAR(9) COLLATE utf8mb4_general_ci, n INT, UNIQUE (u))",
	"CREATE TABLE w.mid (id INT PRIMARY KEY, root INT, n INT, KEY (n), FOREIGN KEY (root) REFERENCES w.root (id) ON DELETE CASCADE ON UPDATE CASCADE)",
	"CREATE TABLE w.leaf (mid INT, n INT, FOREIGN KEY (mid) REFERENCES w.mid (id) ON DELETE SET NULL ON UPDATE CASCADE)",
	"CREATE TABLE w.text (id INT PRIMARY KEY, u VARCHAR(9) COLLATE utf8mb4_general_ci, n INT, FOREIGN KEY (u) REFERENCES w.root (u) ON UPDATE CASCADE ON DELETE SET NULL)",
	"CREATE TABLE w.tree (id INT PRIMARY KEY, up INT, n INT, FOREIGN KEY (up) REFERENCES w.tree (id) ON DELETE CASCADE)",
	"CREATE TABLE w.held (id INT PRIMARY KEY, mid INT, n INT, FOREIGN KEY (mid) REFERENCES w.mid (id))",
	"CREATE TABLE w.pair (root INT, mid INT, n INT, PRIMARY KEY (root, mid), FOREIGN KEY (root) REFERENCES w.root (id) ON DELETE CASCADE ON UPDATE CASCADE, FOREIGN KEY (mid) REFERENCES w.mid (id) ON DELETE CASCADE)",
}

// familyStatement is a random change of one of them.
func familyStatement(r *rand.Rand) string {
	id, other, n, u := r.IntN(20), r.IntN(20), r.IntN(1000), []string{"a", "A", "b", "ä", "a ", "c"}[r.IntN(6)]
	switch r.IntN(20) {
	case 0, 1, 2:
		return fmt.Sprintf("INSERT INTO w.root VALUES (%d, '%s%d', %d)", id, u, r.IntN(9), n)
	case 3, 4, 5:
		return fmt.Sprintf("INSERT INTO w.mid (id, root, n) VALUES (%d, %d, %d), (%d, NULL, 0)", id, other, n, id+100)
	case 6, 7:
		return fmt.Sprintf("INSERT INTO w.leaf VALUES (%d, %d), (NULL, %d)", id, n, n%5)
	case 8:
		return fmt.Sprintf("INSERT INTO w.text SELECT %d, u, %d FROM w.root ORDER BY RAND() LIMIT 1", id, n)
	case 9, 10:
		return fmt.Sprintf("INSERT INTO w.tree VALUES (%d, NULL, %d), (%d, %d, 0)", id, n, other+100, id)
	case 11:
		return fmt.Sprintf("INSERT INTO w.held VALUES (%d, %d, %d)", id, other, n)
	case 12:
		return fmt.Sprintf("INSERT IGNORE INTO w.pair SELECT root, id, %d FROM w.mid WHERE root IS NOT NULL", n)
	case 13:
		return fmt.Sprintf("DELETE FROM w.%s WHERE id IN (%d, %d)", []string{"root", "mid", "tree", "held", "text"}[r.IntN(5)], id, other)
	case 14:
		return fmt.Sprintf("UPDATE w.%s SET id = %d WHERE id = %d", []string{"root", "mid", "held", "text"}[r.IntN(4)], id, other)
	case 15:
		return fmt.Sprintf("UPDATE w.root SET u = '%s%d' WHERE id = %d", u, r.IntN(9), id)
	case 16:
		return fmt.Sprintf("UPDATE w.%s SET n = n + 1 WHERE n < %d", []string{"root", "mid", "leaf", "text", "tree", "held", "pair"}[r.IntN(7)], n)
	case 17:
		return fmt.Sprintf("REPLACE INTO w.root VALUES (%d, '%s%d', %d)", id, u, r.IntN(9), n)
	case 18:
		return fmt.Sprintf("DELETE w.root, w.mid FROM w.root JOIN w.mid ON mid.root = root.id WHERE root.id = %d", id)
	}
	return fmt.Sprintf("INSERT INTO w.root VALUES (%d, '%s', %d) ON DUPLICATE KEY UPDATE id = %d, u = VALUES(u)", id, u, n, other)
}

// errStopped: the copy stops in the middle, as a process that is killed.
var errStopped = errors.New("stopped")

// copyGroup copies what the source has to the tables of a group, some transactions at a time. It may stop in the middle.
func copyGroup(ctx context.Context, r *rand.Rand, source stream.Source, sink stream.GroupSink, group []stream.Table, epoch stream.Epoch, start, to stream.Position, stops bool) error {
	w, at, err := sink.AcquireGroup(ctx, asNamed(group), epoch, start)
	if err != nil {
		return err
	}
	defer w.Close()
	var waiting []*stream.Rows
	if at = max(at, start); at >= to {
		return nil
	}
	err = source.Read(ctx, at, func(tx *stream.Transaction) error {
		if rows := tx.Merge(group[0], group); rows != nil {
			waiting = append(waiting, rows)
		}
		if stops && r.IntN(30) == 0 {
			return errStopped
		}
		if r.IntN(6) != 0 && (tx.More || tx.Position < to) || len(waiting) == 0 && tx.Position < to {
			return nil
		}
		end := tx.Position
		if tx.More {
			end--
		}
		if err := w.Write(ctx, waiting, end); err != nil {
			return err
		}
		if waiting = nil; tx.Position >= to && !tx.More {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func TestCascadesAreMadeAtTheSink(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	for _, m := range []*testenv.MariaDB{a, b} {
		m.Exec(append([]string{"CREATE DATABASE w CHARACTER SET utf8mb4"}, family...)...)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	// Transactions of more than a few rows are read in parts.
	source, err := mariadb.Open(mariadb.Options{Address: a.Address, User: a.User, Password: a.Password, LargeBytes: 6000})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	start, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sink := openSink(t, b)
	keys, err := sink.ForeignKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db := a.Open("w")
	defer db.Close()
	db.SetMaxOpenConns(1)
	epoch := stream.Epoch{Placement: 1}
	for range 5 {
		changeFamily(t, r, db)
		head, err := source.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range stream.CascadeGroups(keys) {
			for stops := true; ; stops = r.IntN(3) != 0 {
				epoch.Counter++
				err := copyGroup(t.Context(), r, source, sink, group, epoch, start, head, stops)
				if err == nil {
					break
				}
				if !errors.Is(err, errStopped) {
					t.Fatal(err)
				}
			}
		}
		equal(t, a, b)
	}
	if groups := stream.CascadeGroups(keys); len(groups) != 2 || !slices.ContainsFunc(groups, func(g []stream.Table) bool { return len(g) == 1 }) {
		t.Fatal(groups)
	}
}

// changeFamily executes random transactions. Those statements that fail are part of them.
func changeFamily(t *testing.T, r *rand.Rand, db *sql.DB) {
	t.Helper()
	execute := func(text string) {
		_, err := db.Exec(text)
		var e *mysql.MySQLError
		if err != nil && !errors.As(err, &e) {
			t.Fatal(err)
		}
	}
	for range 40 {
		execute(fmt.Sprintf("SET foreign_key_checks = %d", min(1, r.IntN(12))))
		execute("BEGIN")
		for range 1 + r.IntN(12) {
			execute(familyStatement(r))
		}
		execute([]string{"COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}[r.IntN(4)])
	}
}

// An owner that was replaced writes to no table of the group, and a table that another owner has taken keeps the whole group from being
// written.
func TestAGroupHasOneOwner(t *testing.T) {
	b := testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w", "CREATE TABLE w.p (id INT PRIMARY KEY)", "CREATE TABLE w.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES w.p (id) ON DELETE CASCADE)")
	sink, err := sqlsink.Open(sqlsink.Options{Address: b.Address, User: b.User, Password: b.Password, Changefeed: changefeed, MaxConnections: 1}) // none is held while another is needed
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if err := adoptAt(t.Context(), sink); err != nil {
		t.Fatal(err)
	}
	p, c := stream.Table{Schema: "w", Name: "p"}, stream.Table{Schema: "w", Name: "c"}
	group := []stream.Table{c, p, {Schema: "w", Name: "later"}}
	schema := &stream.Schema{Columns: []stream.Column{{Name: "id", Type: "int"}}, Key: []int{0}}
	rows := func(at stream.Position, id int) []*stream.Rows {
		tx := &stream.Transaction{Position: at, Rows: []*stream.Rows{rowsOf(p, at, schema, int64(id))}}
		return []*stream.Rows{tx.Merge(c, group)}
	}
	first, at, err := sink.AcquireGroup(t.Context(), asNamed(group), stream.Epoch{Placement: 1}, 7)
	if err != nil || at != 7 {
		t.Fatal(at, err)
	}
	if err := first.Write(t.Context(), rows(8, 1), 8); err != nil {
		t.Fatal(err)
	}
	if err := first.Write(t.Context(), rows(8, 1), 8); err != nil { // it is skipped
		t.Fatal(err)
	}
	if _, _, err := sink.AcquireGroup(t.Context(), asNamed([]stream.Table{c}), stream.Epoch{Placement: 2}, 0); err != nil {
		t.Fatal(err)
	}
	if err := first.Write(t.Context(), rows(9, 2), 9); !errors.Is(err, stream.ErrNotOwner) {
		t.Fatalf("it wrote although table %s has another owner: %v", c, err)
	}
	second, at, err := sink.AcquireGroup(t.Context(), asNamed(group), stream.Epoch{Placement: 3}, 0)
	if err != nil || at != 8 {
		t.Fatal(at, err)
	}
	if err := second.Write(t.Context(), rows(9, 3), 9); err != nil {
		t.Fatal(err)
	}
	db := b.Open("")
	defer db.Close()
	var ids, positions string
	if err := db.QueryRow("SELECT (SELECT GROUP_CONCAT(id ORDER BY id) FROM w.p), (SELECT GROUP_CONCAT(position) FROM ebb.progress WHERE table_name <> '')").Scan(&ids, &positions); err != nil || ids != "1,3" || positions != "9,9" {
		t.Fatal(ids, positions, err)
	}
	// A table of the group that is further than a change that cascades: its rows may be there already, or not.
	b.Exec("UPDATE ebb.progress SET position = 20 WHERE table_name = 'c'")
	third, at, err := sink.AcquireGroup(t.Context(), asNamed(group), stream.Epoch{Placement: 4}, 0)
	if err != nil || at != 9 {
		t.Fatal(at, err)
	}
	gone := rowsOf(p, 12, schema, 1)
	gone.Changes = []stream.Change{{Kind: stream.Delete, Before: []any{int64(1)}}}
	tx := &stream.Transaction{Position: 12, Rows: []*stream.Rows{gone}}
	if err := third.Write(t.Context(), []*stream.Rows{tx.Merge(c, group)}, 12); !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "which is at position 20 already") {
		t.Errorf("a change cascaded into a table that is further: %v", err)
	}
	// A table whose initial copy is not whole.
	b.Exec("INSERT INTO ebb.snapshot (changefeed, table_schema, table_name, position, made, definition) VALUES ('" + changefeed + "', 'w', 'p', 9, TRUE, '')")
	if _, _, err := sink.AcquireGroup(t.Context(), asNamed(group), stream.Epoch{Placement: 5}, 0); !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "before its initial copy was whole") {
		t.Errorf("a table that is being copied was acquired: %v", err)
	}
}
