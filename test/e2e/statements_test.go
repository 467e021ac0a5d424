package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// statementHistory is what a source executes, in a schema of its own that is called %[1]s. The changefeed replicates the tables of this
// schema, except those whose names begin with hidden.
type statementHistory struct {
	name       string
	statements []string
	// copied is executed at the source and at the sink; the changefeed starts from there, but is created after early was executed.
	copied, early []string
	// fails are words of the error that the changefeed must fail with; empty if the sink must end equal.
	fails string
	// atSink is executed at the sink before, and stays are tables that the sink must still have, as schema.table=rows.
	atSink, stays []string
}

func repeated(n int, statements ...string) (all []string) {
	for i := range n {
		for _, s := range statements {
			all = append(all, strings.ReplaceAll(s, "$i", fmt.Sprint(i)))
		}
	}
	return all
}

var statementHistories = []statementHistory{
	{name: "a name used again and again", statements: repeated(30,
		"CREATE TABLE log (id INT AUTO_INCREMENT PRIMARY KEY, v INT)", "INSERT INTO log (v) VALUES ($i), ($i + 1)", "INSERT INTO log (v) SELECT v FROM log", "RENAME TABLE log TO log_$i")},
	{name: "statements with settings and waits", statements: []string{
		"CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE v (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", "INSERT INTO v VALUES (1)",
		"SET STATEMENT max_statement_time=0 FOR TRUNCATE TABLE v", "ALTER TABLE t NOWAIT RENAME TO u", "ALTER TABLE u WAIT 5 ADD c INT DEFAULT 7", "INSERT INTO u VALUES (2, 2)",
		"TRUNCATE TABLE v WAIT 1", "/* x */ INSERT INTO v VALUES (3)", "DROP TABLE IF EXISTS v, none /*! WAIT 3 */"}},
	{name: "partitions that become tables and tables that become partitions", statements: []string{
		"CREATE TABLE p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
		"CREATE TABLE u (id INT PRIMARY KEY, v INT)", "INSERT INTO p VALUES (1, 1), (11, 1)", "INSERT INTO u VALUES (5, 5)",
		"ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE u", "UPDATE p SET v = v + 1", "UPDATE u SET v = v + 1", "INSERT INTO u VALUES (100, 1)",
		"ALTER TABLE p CONVERT PARTITION p1 TO TABLE q", "UPDATE q SET v = 9", "INSERT INTO q VALUES (200, 2)", "DELETE FROM q WHERE id = 200",
		"ALTER TABLE p CONVERT TABLE q TO PARTITION p1 VALUES LESS THAN (20)", "UPDATE p SET v = v * 10"}},
	{name: "a table like one that was just altered", statements: repeated(5,
		"CREATE TABLE b$i (id INT PRIMARY KEY)", "INSERT INTO b$i VALUES (1)", "ALTER TABLE b$i ADD c INT DEFAULT 5", "CREATE TABLE a$i LIKE b$i", "ALTER TABLE b$i ADD d INT", "INSERT INTO a$i VALUES (1, 2)", "INSERT INTO b$i VALUES (2, 2, 2)")},
	{name: "a flowing table replaced", statements: repeated(8,
		"CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, v INT) AS SELECT seq AS id, $i AS v FROM seq_1_to_50", "UPDATE t SET v = v + 1", "INSERT INTO t VALUES (1000 + $i, 1)", "CREATE TABLE IF NOT EXISTS t (x INT)", "DELETE FROM t WHERE id = 7")},
	{name: "a schema used again", statements: repeated(5,
		"CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES ($i, 1), (100, 2)", "UPDATE t SET v = 5", "DROP DATABASE %[1]s", "CREATE DATABASE %[1]s", "USE %[1]s",
		"CREATE TABLE t (x VARCHAR(9) PRIMARY KEY)", "INSERT INTO t VALUES ('new'), ('$i')", "RENAME TABLE t TO old_$i")},
	{name: "a drop of tables inside and outside", statements: []string{
		"CREATE TABLE x (id INT PRIMARY KEY)", "CREATE TABLE hidden_y (id INT PRIMARY KEY)", "INSERT INTO x VALUES (1)", "DROP TABLE x, hidden_y", "CREATE TABLE z (id INT PRIMARY KEY)"},
		atSink: []string{"CREATE TABLE hidden_y (id INT)", "INSERT INTO hidden_y VALUES (1)"}, stays: []string{"hidden_y=1"}},
	{name: "a dropped schema with tables outside", statements: []string{
		"CREATE TABLE x (id INT PRIMARY KEY)", "INSERT INTO x VALUES (1)", "DROP DATABASE %[1]s", "CREATE DATABASE IF NOT EXISTS %[1]s", "USE %[1]s", "CREATE TABLE w (id INT PRIMARY KEY)", "INSERT INTO w VALUES (1)"},
		atSink: []string{"CREATE TABLE hidden_y (id INT)", "INSERT INTO hidden_y VALUES (1)"}, stays: []string{"hidden_y=1"}},
	{name: "a table renamed out of the filter", statements: []string{
		"CREATE TABLE x (id INT PRIMARY KEY)", "INSERT INTO x VALUES (1)", "RENAME TABLE x TO hidden_x", "INSERT INTO hidden_x VALUES (2)", "CREATE TABLE z (id INT PRIMARY KEY)", "INSERT INTO z VALUES (1)"},
		stays: []string{"x=1"}},
	{name: "XA outside the filter", statements: []string{
		"CREATE TABLE x (id INT PRIMARY KEY)", "CREATE TABLE hidden_y (id INT PRIMARY KEY)", "XA START 'o%[1]s'; INSERT INTO hidden_y VALUES (1); XA END 'o%[1]s'; XA PREPARE 'o%[1]s'; XA COMMIT 'o%[1]s'", "INSERT INTO x VALUES (1)"}},
	{name: "tables renamed between the start position and the start",
		copied: []string{"CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE c (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)", "INSERT INTO c VALUES (1)", "CREATE TABLE b (id INT PRIMARY KEY)"},
		early: []string{"INSERT INTO a VALUES (2)", "RENAME TABLE a TO x", "INSERT INTO x VALUES (3)", "INSERT INTO c VALUES (2)", "ALTER TABLE c ADD v INT DEFAULT 4", "INSERT INTO c VALUES (3, 3)",
			"RENAME TABLE c TO d", "RENAME TABLE d TO e", "INSERT INTO e VALUES (4, 4)", "INSERT INTO b VALUES (1)", "ALTER TABLE b ADD w INT", "CREATE TABLE l LIKE b", "RENAME TABLE b TO m", "INSERT INTO l VALUES (1, 1)", "CREATE TABLE a (id INT PRIMARY KEY, again INT)", "INSERT INTO a VALUES (1, 1)"},
		statements: []string{"INSERT INTO x VALUES (5)", "INSERT INTO e VALUES (5, 5)"}},
	{name: "a table renamed into the filter", statements: []string{
		"CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE hidden_t (id INT PRIMARY KEY)", "RENAME TABLE t TO hidden_old, hidden_t TO t", "INSERT INTO t VALUES (1)"},
		fails: "hidden_t is outside the filter and becomes"},
	{name: "XA inside the filter", statements: []string{
		"CREATE TABLE x (id INT PRIMARY KEY)", "XA START 'i%[1]s'; INSERT INTO x VALUES (1); XA END 'i%[1]s'; XA PREPARE 'i%[1]s'; XA COMMIT 'i%[1]s'"},
		fails: "is an XA transaction on table"},
	{name: "a statement that is not known", statements: []string{
		"CREATE TABLE t (id INT PRIMARY KEY)", "ALTER TABLE t ADD c INT /*M!101000 , ADD d INT */", "INSERT INTO t (id) VALUES (1)"},
		fails: `it is not known what this statement does to tables`},
}

// Histories of statements that name tables in every way, each in a schema and with a changefeed of its own. The sink ends equal, or
// the changefeed fails with the reason.
func TestEveryStatementIsExecutedOrRefused(t *testing.T) {
	beside(t, heavy)
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 3)
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*testenv.MariaDB{"source": source, "sink": sink} {
		if err := os.WriteFile(filepath.Join(c.dir.Credentials(), name), []byte(m.Password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i, h := range statementHistories {
		schema := fmt.Sprintf("h%d", i)
		source.Exec("CREATE DATABASE " + schema)
		sink.Exec(append([]string{"CREATE DATABASE " + schema, "USE " + schema}, h.atSink...)...)
		start := []string{}
		if h.copied != nil {
			both := append([]string{"USE " + schema}, h.copied...)
			source.Exec(both...)
			sink.Exec(both...)
			start = []string{"--start-position", source.Value("SELECT @@GLOBAL.gtid_binlog_pos")}
			source.Exec(append([]string{"USE " + schema}, h.early...)...)
		}
		c.must(append([]string{"changefeed", "create", schema, "--source", "mysql://" + source.User + "@" + source.Address, "--source-password-file", "source",
			"--sink", "mysql://" + sink.User + "@" + sink.Address, "--sink-password-file", "sink", "--filter", schema + ".*", "--filter", "!" + schema + ".hidden*"}, start...)...)
	}
	for i := range statementHistories {
		name := fmt.Sprintf("h%d", i)
		until(t, name+" to run", func() bool { return feedState(c, name) == v1alpha1.ChangefeedRunning })
	}
	t.Run("a sink that went back is read again", func(t *testing.T) { wentBack(t, c, source, sink, "h0") })
	// Those that fail come last, one after the other: a statement that is not known stops every changefeed of its source.
	for _, fails := range []bool{false, true} {
		for i, h := range statementHistories {
			if !fails && h.fails == "" {
				runStatements(source, i)
			}
		}
		for i, h := range statementHistories {
			if fails != (h.fails != "") {
				continue
			}
			if fails {
				runStatements(source, i)
			}
			if !t.Run(h.name, func(t *testing.T) { h.check(t, c, source, sink, fmt.Sprintf("h%d", i)) }) {
				t.FailNow() // the others would wait for long
			}
		}
	}
}

// wentBack restores an earlier state of a table and of the changefeed's progress at the sink, while the changefeed runs.
func wentBack(t *testing.T, c *cluster, source, sink *testenv.MariaDB, schema string) {
	source.Exec("CREATE TABLE "+schema+".back (id INT PRIMARY KEY)", "CREATE TABLE "+schema+".quiet (id INT PRIMARY KEY)", "INSERT INTO "+schema+".back VALUES (1)", "INSERT INTO "+schema+".quiet VALUES (1)")
	rows := func(table string) string { return sink.Value("SELECT COUNT(*) FROM " + schema + "." + table) }
	until(t, "the tables to arrive", func() bool {
		return sink.Value("SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '"+schema+"' AND table_name IN ('back', 'quiet')") == "2" && rows("back") == "1" && rows("quiet") == "1"
	})
	position := source.Value("SELECT SUBSTRING_INDEX(@@GLOBAL.gtid_binlog_pos, '-', -1)")
	until(t, "the checkpoint to be recorded at the sink", func() bool {
		return sink.Value("SELECT COALESCE(MAX(position), 0) >= "+position+" FROM ebb.progress WHERE feed LIKE 'default/"+schema+"/%' AND table_name = ''") == "1"
	})
	source.Exec("INSERT INTO "+schema+".back VALUES (2)", "INSERT INTO "+schema+".quiet VALUES (2)")
	late := source.Value("SELECT SUBSTRING_INDEX(@@GLOBAL.gtid_binlog_pos, '-', -1)")
	until(t, "the checkpoint to be recorded again", func() bool {
		return rows("back") == "2" && sink.Value("SELECT COALESCE(MAX(position), 0) >= "+late+" FROM ebb.progress WHERE feed LIKE 'default/"+schema+"/%' AND table_name = ''") == "1"
	})
	sink.Exec("DELETE FROM " + schema + ".back WHERE id = 2; DELETE FROM " + schema + ".quiet WHERE id = 2; UPDATE ebb.progress SET position = LEAST(position, " + position + ") WHERE feed LIKE 'default/" + schema + "/%'")
	source.Exec("INSERT INTO " + schema + ".back VALUES (3)")
	until(t, "the rows to be read again", func() bool { return rows("back") == "3" && rows("quiet") == "2" })
}

func runStatements(source *testenv.MariaDB, i int) {
	schema := fmt.Sprintf("h%d", i)
	all := []string{"USE " + schema}
	for _, s := range statementHistories[i].statements {
		if strings.Contains(s, "%[1]s") {
			s = fmt.Sprintf(s, schema)
		}
		all = append(all, s)
	}
	source.Exec(all...)
}

func (h statementHistory) check(t *testing.T, c *cluster, source, sink *testenv.MariaDB, schema string) {
	from, to := source.Open(""), sink.Open("")
	defer from.Close()
	defer to.Close()
	status := func() v1alpha1.ChangefeedStatus {
		cf := &v1alpha1.Changefeed{}
		if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: schema}, cf); err != nil {
			t.Fatal(err)
		}
		return cf.Status
	}
	want := schemaContents(t, from, schema)
	for name := range want {
		if strings.HasPrefix(name, "hidden") {
			delete(want, name)
		}
	}
	for _, stays := range h.stays {
		name, rows, _ := strings.Cut(stays, "=")
		want[name] = rows + " rows at the sink"
	}
	var last []string
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		s := status()
		if h.fails != "" {
			if s.State == v1alpha1.ChangefeedFailed && strings.Contains(s.Error, h.fails) {
				return
			}
		} else {
			got := schemaContents(t, to, schema)
			for _, stays := range h.stays {
				name, _, _ := strings.Cut(stays, "=")
				if _, ok := got[name]; ok {
					var n string
					if err := to.QueryRow("SELECT COUNT(*) FROM " + schema + "." + name).Scan(&n); err == nil {
						got[name] = n + " rows at the sink"
					}
				}
			}
			if last = differences(want, got); len(last) == 0 && s.State == v1alpha1.ChangefeedRunning && s.Error == "" {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("state %s, error %q, slowest %q\n%s", s.State, s.Error, s.Slowest, strings.Join(last, "\n"))
		}
	}
}

var counts = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// schemaContents is SHOW CREATE TABLE and the rows of every table of a schema.
func schemaContents(t *testing.T, db *sql.DB, schema string) map[string]string {
	t.Helper()
	names, err := column(db, "SELECT table_name FROM information_schema.tables WHERE table_schema = '"+schema+"' AND table_type = 'BASE TABLE'")
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{}
	for _, name := range names {
		var ignored, create string
		if db.QueryRow("SHOW CREATE TABLE "+schema+"."+name).Scan(&ignored, &create) != nil {
			continue // it was dropped meanwhile
		}
		rows, err := db.Query("SELECT * FROM " + schema + "." + name)
		if err != nil {
			continue
		}
		var lines []string
		columns, _ := rows.Columns()
		values := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		for rows.Next() {
			if rows.Scan(into...) == nil {
				lines = append(lines, fmt.Sprint(values))
			}
		}
		rows.Close()
		slices.Sort(lines)
		tables[name] = counts.ReplaceAllString(create, "") + "\n" + strings.Join(lines, "\n")
	}
	return tables
}
