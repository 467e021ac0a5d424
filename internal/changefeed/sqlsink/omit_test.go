package sqlsink_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// omittingSink opens a sink that leaves something out. Tables have other names there if they are routed.
func omittingSink(t testing.TB, server *testenv.MariaDB, routed bool, rules ...omission.Rule) stream.Sink {
	t.Helper()
	omits, err := omission.Parse(rules)
	if err != nil {
		t.Fatal(err)
	}
	names := &route.Map{}
	if routed {
		names = parseRoutes(t, everyName...)
	}
	return sqlsink.Route(openSinkAs(t, server, true), names, omits, nil)
}

func parseRoutes(t testing.TB, rules ...route.Rule) *route.Map {
	t.Helper()
	m, err := route.Parse(rules)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// secretRules leave out a column everywhere, and rows of some tables.
var secretRules = []omission.Rule{
	{Match: "d.*", Columns: []string{"secret"}}, {Match: "d.rows*", Rows: "region = 7 OR id > 900 AND region IS NOT NULL"}, {Match: "d.*", Columns: []string{"PIN"}},
	{Match: "d.rowsloose", Rows: "secret IN ('x', 'y')"},
}

// left is the condition for rows that stay, and what a table has at the source otherwise.
func left(table string) string {
	switch {
	case strings.HasPrefix(table, "d.rowsloose"):
		return " WHERE NOT COALESCE(region = 7 OR id > 900 AND region IS NOT NULL, 0) AND NOT COALESCE(secret IN ('x', 'y'), 0)"
	case strings.HasPrefix(table, "d.rows"):
		return " WHERE NOT COALESCE(region = 7 OR id > 900 AND region IS NOT NULL, 0)"
	}
	return ""
}

// equalWithout compares what tables have at the sink with what they have at the source, without what is left out.
func equalWithout(t *testing.T, source, sink *testenv.MariaDB, suffix string) {
	t.Helper()
	a, b := source.Open(""), sink.Open("")
	defer a.Close()
	defer b.Close()
	tables := list(t, a)
	if len(list(t, b)) != len(tables) {
		t.Errorf("the source has tables\n%v\nthe sink\n%v", tables, list(t, b))
	}
	for _, table := range tables {
		other := strings.Replace(table, ".", suffix+".", 1) + suffix
		columns := func(m *testenv.MariaDB, name string) string {
			schema, name, _ := strings.Cut(name, ".")
			return m.Value(fmt.Sprintf("SELECT COALESCE(GROUP_CONCAT(CONCAT('`', COLUMN_NAME, '`') ORDER BY ORDINAL_POSITION), '') FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = '%s' AND TABLE_NAME = '%s' AND COLUMN_NAME NOT IN ('secret', 'pin')", schema, name))
		}
		names := columns(source, table)
		if got := columns(sink, other); got != names {
			t.Errorf("table %s has the columns %s at the source and %s at the sink", table, names, got)
			continue
		}
		rows := func(m *testenv.MariaDB, name, where string) string {
			return m.Value(fmt.Sprintf("SELECT CONCAT(COUNT(*), ' rows, ', COALESCE(SUM(CRC32(CONCAT_WS('|', %s))), 0)) FROM (SELECT * FROM %s%s) x", quotedNulls(names), quoted(name), where))
		}
		if x, y := rows(source, table, left(table)), rows(sink, other, ""); x != y {
			t.Errorf("table %s has %s at the source and %s at the sink", table, x, y)
		}
	}
	if n := sink.Value("SELECT COUNT(*) FROM information_schema.COLUMNS WHERE COLUMN_NAME IN ('secret', 'pin')"); n != "0" {
		t.Errorf("the sink has %s columns that are left out", n)
	}
}

func quotedNulls(names string) string {
	parts := strings.Split(names, ",")
	for i, n := range parts {
		parts[i] = "COALESCE(HEX(" + n + "), 'NULL')"
	}
	return strings.Join(parts, ", ")
}

// secrets are tables with columns and rows that are left out, and DDL about them.
var secrets = []string{
	"CREATE DATABASE d CHARACTER SET utf8mb4",
	"CREATE TABLE d.users (id INT PRIMARY KEY, secret VARCHAR(20) NOT NULL, name VARCHAR(20), pin INT CHECK (pin > 0), KEY by_secret (secret, name), KEY by_name (name))",
	"INSERT INTO d.users VALUES (1, 'a', 'A', 1), (2, 'b', 'B', NULL)",
	"ALTER TABLE d.users ADD mail VARCHAR(20) AFTER name, MODIFY secret VARCHAR(30) NOT NULL, ADD KEY secrets (secret)",
	"UPDATE d.users SET secret = 'c', mail = 'm' WHERE id = 1", "UPDATE d.users SET secret = 'only'",
	"ALTER TABLE d.users DROP KEY by_secret, DROP KEY by_name", "DROP INDEX secrets ON d.users", "CREATE INDEX secrets ON d.users (secret)",
	"ALTER TABLE d.users DROP COLUMN secret", "INSERT INTO d.users VALUES (3, 'C', NULL, 3)", "ALTER TABLE d.users ADD secret BLOB FIRST", "INSERT INTO d.users VALUES ('x', 4, 'D', NULL, 4)",
	"DELETE FROM d.users WHERE id = 2", "CREATE TABLE d.copies LIKE d.users", "INSERT INTO d.copies SELECT * FROM d.users", "RENAME TABLE d.copies TO d.copied",
	"CREATE TABLE d.loose (secret INT, v INT)", "INSERT INTO d.loose VALUES (1, 1), (2, 1), (3, 2)", "UPDATE d.loose SET secret = secret + 1", "DELETE FROM d.loose WHERE v = 1 LIMIT 1", "UPDATE d.loose SET v = 9 WHERE v = 2",
	"CREATE TABLE d.every AS SELECT 5 AS id, 'x' AS secret, 6 AS v",
	"CREATE TABLE d.rows_key (id INT, region INT, v VARCHAR(10), secret INT, PRIMARY KEY (id, region))",
	"CREATE TABLE d.rows_fixed (id INT PRIMARY KEY, region BIGINT UNSIGNED, v VARCHAR(10))",
	"CREATE TABLE d.rowsloose (id INT, region DECIMAL(9,2), secret VARCHAR(9) COLLATE utf8mb4_bin)",
	"INSERT INTO d.rowsloose VALUES (1, 7, 'a'), (1, 7.01, 'a'), (2, NULL, 'x'), (3, NULL, 'X'), (950, NULL, 'a'), (950, 8, 'a'), (4, 8, NULL)",
	"DELETE FROM d.rowsloose WHERE id = 4",
	"CREATE SEQUENCE d.numbers", "SELECT NEXTVAL(d.numbers)",
}

// changeRows changes rows at random, also the keys by which some are left out.
func changeRows(t *testing.T, m *testenv.MariaDB, r *rand.Rand, count int) {
	t.Helper()
	db := m.Open("d")
	defer db.Close()
	id := func() int { return r.IntN(20) + 890*r.IntN(2) }
	for range count {
		text := []string{
			fmt.Sprintf("INSERT IGNORE INTO rows_key VALUES (%d, %d, 'v%d', 1), (%d, 7, 'w', 2)", id(), 5+r.IntN(4), r.IntN(9), id()),
			fmt.Sprintf("UPDATE IGNORE rows_key SET region = %d WHERE id = %d", 5+r.IntN(4), id()),
			fmt.Sprintf("UPDATE IGNORE rows_key SET id = %d, v = 'moved' WHERE id = %d LIMIT 2", id(), id()),
			fmt.Sprintf("DELETE FROM rows_key WHERE id < %d LIMIT 3", id()),
			fmt.Sprintf("UPDATE rows_key SET secret = secret + 1 WHERE id = %d", id()),
			fmt.Sprintf("INSERT IGNORE INTO rows_fixed VALUES (%d, %s, 'a')", id(), []string{"NULL", "7", "8", "18446744073709551615"}[r.IntN(4)]),
			fmt.Sprintf("UPDATE IGNORE rows_fixed SET id = %d, v = 'b%d' WHERE id = %d", id(), r.IntN(9), id()),
			fmt.Sprintf("REPLACE INTO rows_fixed SELECT id, region, 'c' FROM rows_fixed WHERE id > %d LIMIT 3", id()),
			fmt.Sprintf("DELETE FROM rows_fixed WHERE id = %d", id()),
		}[r.IntN(9)]
		if _, err := db.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
}

func TestColumnsAndRowsAreLeftOut(t *testing.T) {
	for _, routed := range []bool{false, true} {
		t.Run(fmt.Sprintf("routed=%v", routed), func(t *testing.T) {
			a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
			suffix := ""
			if routed {
				suffix = affix
			}
			a.Exec(secrets...)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 1))
			source := openSourceAs(t, a, true)
			p := newPipe(source, omittingSink(t, b, routed, secretRules...), stream.Epoch{Placement: 1}, 10)
			p.sync(t)
			equalWithout(t, a, b, suffix)
			for i := range 3 {
				changeRows(t, a, r, 60)
				p = newPipe(source, omittingSink(t, b, routed, secretRules...), stream.Epoch{Placement: int64(2 + i)}, 1+r.IntN(10))
				p.sync(t)
				equalWithout(t, a, b, suffix)
				if n := p.sink.(interface{ Forwarded() int64 }).Forwarded(); n != 0 {
					t.Errorf("%d rows were forwarded with all their columns", n)
				}
			}
		})
	}
}

func TestAnInitialCopyLeavesOutTheSame(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec(secrets...)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	changeRows(t, a, r, 100)
	source, sink := openSource(t, a), omittingSink(t, b, true, secretRules...)
	plan := planned(t, source, sink.(snapshot.Sink))
	for _, d := range plan.Tables {
		w, _, err := sink.Acquire(t.Context(), d.Table.Since(0), stream.Epoch{Placement: 1}, plan.Position)
		if err != nil {
			t.Fatal(err)
		}
		for to := w.(snapshot.Writer); to.Snapshot() != nil; {
			s, err := source.OpenSnapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			l, _, err := s.Describe(t.Context(), d.Table)
			if err == nil {
				l, err = to.Copies(l)
			}
			if err != nil {
				t.Fatal(err)
			}
			copyChunk(t, s, l, to, 1+r.IntN(3))
			s.Close()
		}
	}
	equalWithout(t, a, b, affix)
	changeRows(t, a, r, 50)
	p := newPipe(source, omittingSink(t, b, true, secretRules...), stream.Epoch{Placement: 2}, 5)
	p.at = plan.Position
	p.sync(t)
	equalWithout(t, a, b, affix)
}

func TestWhatCannotBeLeftOutIsRefusedBeforeItIsWritten(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d")
	b.Exec("CREATE DATABASE d")
	source := openSource(t, a)
	for i, c := range []struct {
		name         string
		rule         omission.Rule
		source, sink []string // %s is the table
		changes      []string
		want         string
		rows         string // that the sink has in the end
	}{
		{"a column that changes", omission.Rule{Rows: "region = 7"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, region INT)"}, nil,
			[]string{"INSERT INTO %s VALUES (1, 7), (2, 8), (3, NULL)", "UPDATE %s SET region = 7 WHERE id = 2"}, "column region of a row has changed, and rows are left out by it (region = 7); only columns of the key may change", "2"},
		{"a column that becomes NULL", omission.Rule{Rows: "region = 7"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, region INT)"}, nil,
			[]string{"INSERT INTO %s VALUES (1, 7), (2, 8)", "UPDATE %s SET region = NULL"}, "column region of a row has changed", "1"},
		{"a column that the table does not have", omission.Rule{Rows: "zone = 7"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY)"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY)"},
			[]string{"INSERT INTO %s VALUES (1)"}, `rows "zone = 7": the table has no column zone`, "0"},
		{"text by a collation", omission.Rule{Rows: "name = 'x'"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, name VARCHAR(9) COLLATE utf8mb4_general_ci)"}, nil,
			[]string{"INSERT INTO %s VALUES (1, 'X')"}, "column name: its collation is utf8mb4_general_ci, by which different texts may be equal", "0"},
		{"a column of the key", omission.Rule{Columns: []string{"id"}}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, v INT)"}, []string{"CREATE TABLE %s (v INT)"},
			[]string{"INSERT INTO %s VALUES (1, 1)"}, "column id is of its key, by which rows are found", "0"},
		{"a column that the sink needs", omission.Rule{Columns: []string{"v"}}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, v INT)"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, v INT NOT NULL)"},
			[]string{"INSERT INTO %s VALUES (1, 1)"}, "column v has no default at the sink and cannot be NULL; drop the column at the sink, or give it a default", "0"},
		{"a column that is unique at the sink", omission.Rule{Columns: []string{"v"}}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, v INT)"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, v INT DEFAULT 5, UNIQUE (v))"},
			[]string{"INSERT INTO %s VALUES (1, 1)"}, "column v is of a unique key at the sink", "0"},
		{"a column that the sink has", omission.Rule{Columns: []string{"v"}}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, v INT)"}, []string{"CREATE TABLE %s (id INT PRIMARY KEY, v INT NOT NULL DEFAULT 5)"},
			[]string{"INSERT INTO %s VALUES (1, 1)", "UPDATE %s SET v = 2"}, "", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := fmt.Sprintf("d.t%d", i)
			for _, s := range c.source {
				a.Exec(fmt.Sprintf(s, table))
			}
			head, err := source.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.sink == nil {
				c.sink = c.source
			}
			for _, s := range c.sink {
				b.Exec(fmt.Sprintf(s, table))
			}
			for _, s := range c.changes {
				a.Exec(fmt.Sprintf(s, table))
			}
			c.rule.Match = table
			p := newPipe(source, omittingSink(t, b, false, c.rule), stream.Epoch{Placement: int64(i + 1)}, 1)
			end, err := source.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			switch err = p.copy(t.Context(), head, end); {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "":
				refused(t, err, c.want)
				if !strings.Contains(err.Error(), "table "+table) {
					t.Errorf("it does not name the table: %v", err)
				}
			}
			if n := b.Value("SELECT COUNT(*) FROM " + table); n != c.rows {
				t.Errorf("the sink has %s rows, not %s", n, c.rows)
			}
		})
	}
}

func TestRowsOfTablesThatCascadeAreNotLeftOut(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	source := openSource(t, a)
	a.Exec("CREATE DATABASE d", "CREATE TABLE d.p (id INT PRIMARY KEY, secret INT)", "CREATE TABLE d.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES d.p (id) ON DELETE CASCADE)")
	newPipe(source, omittingSink(t, b, false, secretRules...), stream.Epoch{Placement: 1}, 1).sync(t)
	sink := omittingSink(t, b, false, secretRules[0], omission.Rule{Match: "d.p", Rows: "id = 7"}).(stream.GroupSink)
	tables := []stream.Table{{Schema: "d", Name: "c"}, {Schema: "d", Name: "p"}}
	_, _, err := sink.AcquireGroup(t.Context(), asNamed(tables), stream.Epoch{Placement: 2}, 1)
	refused(t, err, "rows of table d.p are left out, and foreign keys that cascade join it with others")
	start, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.Exec("INSERT INTO d.p VALUES (1, 1), (2, 2)", "INSERT INTO d.c VALUES (1, 1), (2, 2)", "UPDATE d.p SET secret = 5", "DELETE FROM d.p WHERE id = 1")
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	columns := omittingSink(t, b, false, secretRules...).(stream.GroupSink)
	if err := copyGroup(t.Context(), rand.New(rand.NewPCG(1, 1)), source, columns, tables, stream.Epoch{Placement: 3}, start, head, false); err != nil {
		t.Fatal(err)
	}
	equalWithout(t, a, b, "")
}
