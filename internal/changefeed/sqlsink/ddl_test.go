package sqlsink_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// statements has every kind of DDL, with changes of rows between them.
var statements = []string{
	"CREATE DATABASE d CHARACTER SET latin1", "USE d",
	"CREATE TABLE plain (id INT PRIMARY KEY, v VARCHAR(20))", // in the schema's character set
	"INSERT INTO plain VALUES (1, 'ä')",
	"CREATE TABLE `odd``name` (`id col` INT PRIMARY KEY, `ü` TEXT COMMENT 'it''s; # -- /* */')",
	"INSERT INTO `odd``name` VALUES (1, 'x')",
	"CREATE TABLE copied LIKE plain", "INSERT INTO copied SELECT * FROM plain",
	"CREATE TABLE selected AS SELECT id + 1 AS n, v FROM plain",
	"CREATE OR REPLACE TABLE selected (n INT PRIMARY KEY) SELECT seq AS n FROM seq_1_to_5",
	"ALTER TABLE plain ADD COLUMN at DATETIME DEFAULT NOW(), ADD UNIQUE (v)",                                                // the time of the statement at the source
	"ALTER TABLE plain ADD COLUMN at6 DATETIME(6) DEFAULT NOW(6), ADD COLUMN ts6 TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6)", // with its fraction
	"ALTER TABLE plain ADD COLUMN ts TIMESTAMP, ADD COLUMN g INT AS (id * 2) VIRTUAL",
	"INSERT INTO plain (id, v) VALUES (2, 'b')",
	"SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
	`CREATE TABLE "quoted" (id INT PRIMARY KEY, v VARCHAR(9) DEFAULT 'a\')`,
	"INSERT INTO quoted (id) VALUES (1)",
	"SET sql_mode = DEFAULT",
	"SET NAMES latin1", "CREATE TABLE l\xe4tin (id INT PRIMARY KEY, v VARCHAR(9) DEFAULT '\xfc')", "INSERT INTO l\xe4tin (id) VALUES (1)", "SET NAMES utf8mb4",
	"CREATE INDEX i ON copied (v)", "DROP INDEX i ON copied",
	"RENAME TABLE copied TO tmp, selected TO copied, tmp TO selected",
	"INSERT INTO selected VALUES (7, 'new')", "UPDATE copied SET n = n + 10",
	"ALTER TABLE copied RENAME TO moved, ADD COLUMN extra INT DEFAULT 3",
	"INSERT INTO moved VALUES (99, 4)",
	"CREATE TABLE copied (other INT PRIMARY KEY)", "INSERT INTO copied VALUES (1)", // a second life of the name
	"TRUNCATE moved", "INSERT INTO moved VALUES (1, 1)",
	"CREATE TABLE part (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
	"INSERT INTO part VALUES (1, 1), (11, 1)",
	"ALTER TABLE part ADD PARTITION (PARTITION p2 VALUES LESS THAN (30))", "INSERT INTO part VALUES (21, 1)", "ALTER TABLE part DROP PARTITION p0", "ALTER TABLE part TRUNCATE PARTITION p1",
	"CREATE TABLE swapped (id INT PRIMARY KEY, v INT)", "INSERT INTO swapped VALUES (25, 9)", "ALTER TABLE part EXCHANGE PARTITION p2 WITH TABLE swapped",
	"UPDATE swapped SET v = 5", "INSERT INTO part VALUES (26, 1)",
	"CREATE SEQUENCE numbers START WITH 100", "CREATE TABLE numbered (id INT DEFAULT NEXTVAL(numbers) PRIMARY KEY, v INT)", "INSERT INTO numbered (v) VALUES (1), (2)",
	"UPDATE numbered SET v = v + 1, id = id + 50 WHERE v = 2", "RENAME TABLE numbers TO renamed", "UPDATE numbered SET v = 9 WHERE v = 1", "DELETE FROM numbered WHERE v = 3", "RENAME TABLE renamed TO numbers", "INSERT INTO numbered (v) VALUES (4)",
	"CREATE TABLE gone1 (id INT)", "CREATE TABLE gone2 (id INT)", "CREATE TABLE stays (id INT)", "INSERT INTO gone1 VALUES (1)",
	"/* a comment */ DROP TABLE IF EXISTS gone1, /*!50000 gone2 */, never",
	"CREATE VIEW seen AS SELECT * FROM plain", "CREATE TRIGGER tr BEFORE INSERT ON stays FOR EACH ROW SET NEW.id = NEW.id + 1", "INSERT INTO stays VALUES (1)",
	"CREATE USER somebody IDENTIFIED BY 'x'", "ANALYZE TABLE plain",
	"SET explicit_defaults_for_timestamp = 0", "CREATE TABLE implicit (a TIMESTAMP, b TIMESTAMP)", "SET explicit_defaults_for_timestamp = 1",
	"SET time_zone = '+05:00'", "ALTER TABLE implicit ADD COLUMN c TIMESTAMP DEFAULT '2024-01-01 00:00:00'", "INSERT INTO implicit (b) VALUES (NULL)", "SET time_zone = DEFAULT",
	"CREATE TABLE utf (id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET utf8)", "INSERT INTO utf VALUES (1, 'ä')", // which utf8 that is depends on the server
	"SET auto_increment_increment = 7, auto_increment_offset = 3, lc_time_names = 'de_DE'",
	"ALTER TABLE utf ADD COLUMN n INT AUTO_INCREMENT UNIQUE, ADD COLUMN m VARCHAR(9) DEFAULT (DATE_FORMAT('2024-05-01', '%M'))",
	"SET auto_increment_increment = 1, auto_increment_offset = 1, lc_time_names = 'en_US'",
	"SET innodb_strict_mode = 0", "CREATE TABLE unstrict (id INT PRIMARY KEY) ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=64", "INSERT INTO unstrict VALUES (1)", "SET innodb_strict_mode = 1",
	"ALTER TABLE plain ALTER v SET DEFAULT 'x', DEFAULT CHARACTER SET = DEFAULT", "CREATE SEQUENCE later", "ALTER TABLE plain ADD nn INT", "ALTER TABLE plain ALTER nn SET DEFAULT NEXTVAL(later)",
	"/* first */ CREATE DATABASE e", "CREATE TABLE e.t (id INT PRIMARY KEY)", "INSERT INTO e.t VALUES (1)", "RENAME TABLE e.t TO d.came", "CREATE TABLE e.t (x INT PRIMARY KEY)", "INSERT INTO e.t VALUES (2)",
	"DROP DATABASE e", "CREATE DATABASE e", "CREATE TABLE e.t (y INT PRIMARY KEY)", "INSERT INTO e.t VALUES (3)",
}

func TestDDLIsExecutedInOrderWithRows(t *testing.T) {
	a, b := testenv.StartMariaDB(t, "--old-mode="), testenv.StartMariaDB(t, "--character-set-server=utf8mb4", "--sql-mode=")
	a.Exec(statements...)
	time.Sleep(time.Second) // so that a time taken at the sink would show
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 10)
	p.sync(t)
	equal(t, a, b)
	sameTables(t, a, b)

	t.Run("and once more changes nothing", func(t *testing.T) {
		again := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 2}, 10)
		again.sync(t)
		equal(t, a, b)
	})
}

func sameTables(t *testing.T, a, b *testenv.MariaDB) {
	t.Helper()
	x, y := a.Open(""), b.Open("")
	defer x.Close()
	defer y.Close()
	for _, table := range list(t, x) {
		query := "SHOW CREATE TABLE " + quoted(table)
		var n, one, two string
		if err := x.QueryRow(query).Scan(&n, &one); err != nil {
			t.Fatal(err)
		}
		if err := y.QueryRow(query).Scan(&n, &two); err != nil {
			t.Fatal(err)
		}
		if one != two {
			t.Errorf("table %s is\n%s\nat the source and\n%s\nat the sink", table, one, two)
		}
	}
}

// What a TIME is as a DATETIME is a setting of the server, too.
func TestTheOldModeOfTheSourceCounts(t *testing.T) {
	a, b := testenv.StartMariaDB(t, "--old-mode=ZERO_DATE_TIME_CAST,UTF8_IS_UTF8MB3"), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d", "USE d", "CREATE TABLE t (id INT PRIMARY KEY, x TIME)", "INSERT INTO t VALUES (1, '10:00:00')", "ALTER TABLE t MODIFY x DATETIME, ADD u VARCHAR(9) CHARACTER SET utf8")
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 10)
	p.sync(t)
	equal(t, a, b)
	sameTables(t, a, b)
}

// A process ends after every command that it sends for a DDL, without seeing the answer; the next owner continues.
func TestADDLCutAtAnyPointIsExecutedOnce(t *testing.T) {
	b := testenv.StartMariaDB(t)
	tables := []stream.Table{{Schema: "w", Name: "t"}}
	var position stream.Position
	for _, c := range []struct {
		name, before string
		ddl          stream.DDL
		check, want  string
	}{
		{"add a column", "CREATE TABLE w.t (id INT)", stream.DDL{Kind: stream.AlterTable, Schema: "w", Statement: "ALTER TABLE t ADD COLUMN v INT DEFAULT 1", Tables: tables}, "SELECT GROUP_CONCAT(COLUMN_NAME) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA='w'", "id,v"},
		{"create", "DO 0", stream.DDL{Kind: stream.CreateTable, Schema: "w", Statement: "CREATE TABLE t (id INT)", Tables: tables}, "SELECT COUNT(*) FROM w.t", "0"},
		{"create or replace", "CREATE TABLE w.t (id INT); INSERT INTO w.t VALUES (1)", stream.DDL{Kind: stream.CreateTable, Schema: "w", Statement: "CREATE OR REPLACE TABLE t (id INT)", Tables: tables}, "SELECT COUNT(*) FROM w.t", "0"},
		{"truncate", "CREATE TABLE w.t (id INT); INSERT INTO w.t VALUES (1)", stream.DDL{Kind: stream.TruncateTable, Schema: "w", Statement: "TRUNCATE t", Tables: tables}, "SELECT COUNT(*) FROM w.t", "0"},
		{"swap names", "CREATE TABLE w.t (a INT); CREATE TABLE w.u (b INT)", stream.DDL{Kind: stream.RenameTable, Schema: "w", Statement: "RENAME TABLE t TO x, u TO t, x TO u",
			Tables: []stream.Table{{Schema: "w", Name: "t"}, {Schema: "w", Name: "u"}}, Becomes: []stream.Table{{Schema: "w", Name: "u"}, {Schema: "w", Name: "t"}}},
			"SELECT GROUP_CONCAT(TABLE_NAME, COLUMN_NAME ORDER BY TABLE_NAME) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA='w'", "tb,ua"},
		{"swap equal tables", "CREATE TABLE w.`t-1` (a INT); CREATE TABLE w.u (a INT); INSERT INTO w.u VALUES (1)", stream.DDL{Kind: stream.RenameTable, Schema: "w", Statement: "RENAME TABLE `t-1` TO x, u TO `t-1`, x TO u",
			Tables: []stream.Table{{Schema: "w", Name: "t-1"}, {Schema: "w", Name: "u"}}, Becomes: []stream.Table{{Schema: "w", Name: "u"}, {Schema: "w", Name: "t-1"}}},
			"SELECT COUNT(*) FROM w.`t-1`", "1"},
		{"drop two", "CREATE TABLE w.t (a INT); CREATE TABLE w.u (b INT)", stream.DDL{Kind: stream.DropTable, Schema: "w", Statement: "DROP TABLE t, u", Tables: []stream.Table{{Schema: "w", Name: "t"}, {Schema: "w", Name: "u"}}},
			"SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA='w'", "0"},
		{"exchange a partition", "CREATE TABLE w.t (id INT) PARTITION BY HASH (id) PARTITIONS 1; CREATE TABLE w.u (id INT); INSERT INTO w.t VALUES (1)",
			stream.DDL{Kind: stream.AlterTable, Schema: "w", Statement: "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u", Tables: []stream.Table{{Schema: "w", Name: "t"}, {Schema: "w", Name: "u"}}}, "SELECT COUNT(*) FROM w.u", "1"},
		{"create a schema", "DROP DATABASE w", stream.DDL{Kind: stream.SetSchema, Schema: "w", Statement: "CREATE DATABASE w"}, "SELECT COUNT(*) FROM information_schema.SCHEMATA WHERE SCHEMA_NAME='w'", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			points := 0
			for command := 1; ; command++ {
				b.Exec("DROP DATABASE IF EXISTS w; CREATE DATABASE w; " + c.before)
				position++
				cut := executeCut(t, b, position, &c.ddl, command)
				if got := b.Value(c.check); got != c.want {
					t.Fatalf("cut at command %d: got %s, want %s", command, got, c.want)
				}
				if !cut {
					break
				}
				points++
			}
			if points < 10 {
				t.Errorf("only %d commands were cut", points)
			}
		})
	}
}

// executeCut ends a process at a command, and lets the next owner execute the DDL.
func executeCut(t *testing.T, b *testenv.MariaDB, position stream.Position, ddl *stream.DDL, command int) bool {
	t.Helper()
	line := newLine(t, b.Address)
	dying := openSinkAt(t, b, line.address)
	if err := dying.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	line.cutAt(command, true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !line.wasCut() && ctx.Err() == nil {
			time.Sleep(time.Millisecond / 4)
		}
		cancel()
	}()
	err := dying.ExecuteDDL(ctx, position, ddl, stream.Epoch{Placement: 1})
	cut := line.wasCut()
	cancel()
	<-ended
	if !cut && err != nil {
		t.Fatal(err)
	}
	if err := openSink(t, b).ExecuteDDL(t.Context(), position, ddl, stream.Epoch{Placement: 2}); err != nil {
		t.Fatalf("the next owner, cut at command %d: %v", command, err)
	}
	return cut
}

// The statement of a dead owner that waits for a table must not run after the next owner has continued.
func TestAStatementOfADeadOwnerIsWaitedFor(t *testing.T) {
	b := testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT)", "INSERT INTO w.t VALUES (1)")
	reader := b.Open("w")
	defer reader.Close()
	tx, err := reader.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("SELECT * FROM t"); err != nil { // holds the table's metadata
		t.Fatal(err)
	}
	ddl := &stream.DDL{Kind: stream.AlterTable, Schema: "w", Statement: "ALTER TABLE t ADD COLUMN v INT", Tables: []stream.Table{{Schema: "w", Name: "t"}}}
	line := newLine(t, b.Address)
	dying := openSinkAt(t, b, line.address)
	ctx, cancel := context.WithCancel(t.Context())
	died := make(chan struct{})
	go func() { defer close(died); dying.ExecuteDDL(ctx, 7, ddl, stream.Epoch{Placement: 1}) }()
	waitFor(t, func() bool {
		return b.Value("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock'") == "1"
	})
	cancel()
	<-died
	next := make(chan error, 1)
	go func() { next <- openSink(t, b).ExecuteDDL(t.Context(), 7, ddl, stream.Epoch{Placement: 2}) }()
	select {
	case err := <-next:
		t.Fatalf("the next owner did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	tx.Rollback()
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	if got := b.Value("SELECT GROUP_CONCAT(COLUMN_NAME) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA='w'"); got != "id,v" {
		t.Error(got)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen within 30 s")
		}
	}
}

func TestADDLOfANewerEpochIsLeftAlone(t *testing.T) {
	b := testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w")
	sink := openSink(t, b)
	bad := &stream.DDL{Kind: stream.AlterTable, Schema: "w", Statement: "ALTER TABLE t ADD COLUMN v INT", Tables: []stream.Table{{Schema: "w", Name: "t"}}}
	err := sink.ExecuteDDL(t.Context(), 7, bad, stream.Epoch{Placement: 3})
	if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "the DDL at position 7 fails") {
		t.Fatal(err)
	}
	if err := sink.ExecuteDDL(t.Context(), 7, bad, stream.Epoch{Placement: 2, Counter: 9}); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("an older epoch went on: %v", err)
	}
	b.Exec("CREATE TABLE w.t (id INT)")
	if err := sink.ExecuteDDL(t.Context(), 7, bad, stream.Epoch{Placement: 3}); err != nil {
		t.Error(err)
	}
}

// A schema that has tables outside the filter stays, and may be created again at the source with other defaults.
func TestASchemaThatExistsGetsTheDefaultsOfItsStatement(t *testing.T) {
	b := testenv.StartMariaDB(t, "--character-set-server=utf8mb4")
	b.Exec("CREATE DATABASE `w x` CHARACTER SET latin1", "CREATE TABLE `w x`.mine (id INT)", "CREATE TABLE `w x`.theirs (id INT)")
	sink := openSink(t, b)
	for i, c := range []struct{ kind, statement, want string }{
		{"drop schema", "DROP DATABASE `w x`", "latin1"},
		{"schema", "CREATE DATABASE `w x` CHARACTER SET koi8r", "koi8r"},
		{"schema", "create schema `w x`", "utf8mb4"},
	} {
		ddl := &stream.DDL{Kind: stream.DDLKind(c.kind), Schema: "w x", Statement: c.statement, Filter: stream.Filter{"w x.*", "!w x.theirs"}}
		if err := sink.ExecuteDDL(t.Context(), stream.Position(i+1), ddl, stream.Epoch{Placement: 1}); err != nil {
			t.Fatal(err)
		}
		if got := b.Value("SELECT DEFAULT_CHARACTER_SET_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'w x'"); got != c.want {
			t.Errorf("after %s: %s, want %s", c.statement, got, c.want)
		}
	}
	if got := b.Value("SELECT GROUP_CONCAT(TABLE_NAME) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'w x'"); got != "theirs" {
		t.Error(got)
	}
}

// With one connection, the session of the statement is the only one.
func TestATriggerThatKeepsATableFromBeingRenamedIsNamedWithOneConnection(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE w", "CREATE DATABASE v", "CREATE TABLE w.a (id INT PRIMARY KEY)", "CREATE TRIGGER w.tr AFTER DELETE ON w.a FOR EACH ROW SET @x = 1")
	sink, err := sqlsink.Open(sqlsink.Options{Address: m.Address, User: m.User, Password: m.Password, Changefeed: changefeed, MaxConnections: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if err := adoptAt(t.Context(), sink); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	refused(t, sink.ExecuteDDL(ctx, 7, &stream.DDL{
		Kind: stream.RenameTable, Schema: "w", Tables: []stream.Table{{Schema: "w", Name: "a"}}, Becomes: []stream.Table{{Schema: "v", Name: "a"}}, Statement: "RENAME TABLE w.a TO v.a",
	}, stream.Epoch{Placement: 1}), "table w.a has trigger tr")
}

// The source numbers the rows of a table without a key in the order in which they were inserted, and the sink has them in the order in which
// their transactions were committed.
func TestRowsWithoutAnOrderAreNotNumbered(t *testing.T) {
	for name, c := range map[string]struct {
		columns, alter string
		refused        bool
	}{
		"a new column":                 {"v CHAR(1)", "ADD id INT AUTO_INCREMENT PRIMARY KEY", true},
		"a new column of a keyed one":  {"v CHAR(1) PRIMARY KEY", "ADD id INT AUTO_INCREMENT UNIQUE", false},
		"a column with zeros":          {"v CHAR(1), id INT DEFAULT 0, KEY (id)", "MODIFY id INT AUTO_INCREMENT", true},
		"a column without zeros":       {"v CHAR(1), id INT DEFAULT (ASCII(v)), KEY (id)", "MODIFY id INT AUTO_INCREMENT", false},
		"one row of several is kept":   {"v CHAR(1), id INT DEFAULT 5", "ADD UNIQUE (id)", true},
		"another column, and a rename": {"v CHAR(1)", "ADD id SERIAL, RENAME TO d.u", true},
		"a new column named serial":    {"v CHAR(1)", "ADD serial VARCHAR(9)", false},
		"a key of a column serial":     {"v CHAR(1), serial VARCHAR(9)", "ADD KEY (serial)", false},
		"a longer column serial":       {"v CHAR(1), serial VARCHAR(9)", "MODIFY serial VARCHAR(60)", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
			a.Exec("CREATE DATABASE d", "CREATE TABLE d.t ("+c.columns+")")
			late := a.Open("d")
			defer late.Close()
			tx, err := late.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			if _, err := tx.ExecContext(t.Context(), "INSERT INTO t (v) VALUES ('a')"); err != nil {
				t.Fatal(err)
			}
			a.Exec("INSERT INTO d.t (v) VALUES ('b')")
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 10)
			p.sync(t)
			a.Exec("ALTER IGNORE TABLE d.t " + c.alter)
			head, err := p.source.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = p.copy(t.Context(), p.at, head)
			switch {
			case !c.refused && err == nil:
				equal(t, a, b)
			case !c.refused:
				t.Error(err)
			case !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "ALTER IGNORE TABLE d.t "+c.alter) || !strings.Contains(err.Error(), "table d.t has no key, and which row gets which number"):
				t.Error(err)
			}
		})
	}
}

// SYSTEM is the time zone of the machine, which the log does not name.
func TestTheTimeZoneOfTheSourcesMachineCounts(t *testing.T) {
	const berlin = "CET-1CEST,M3.5.0,M10.5.0/3"
	for name, c := range map[string]struct {
		source, sink string
		refused      bool
	}{
		"a fixed offset":        {"XYZ-5:30", berlin, false},
		"the same rules":        {berlin, berlin, false},
		"other rules":           {berlin, "EST5EDT,M3.2.0,M11.1.0", true},
		"rules and an offset":   {berlin, "XYZ-1", true},
		"an offset and nothing": {"XYZ+3", "UTC0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TZ", c.source)
			a := testenv.StartMariaDB(t, "--port-open-timeout=0")
			t.Setenv("TZ", c.sink)
			b := testenv.StartMariaDB(t, "--port-open-timeout=0")
			a.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, ts TIMESTAMP)", "INSERT INTO d.t VALUES (1, '2026-01-15 12:00:00'), (2, '2026-07-15 12:00:00')", "ALTER TABLE d.t MODIFY ts DATETIME, ADD at TIMESTAMP DEFAULT '2026-07-01 00:00:00'")
			source := openSource(t, a)
			p := newPipe(source, openSink(t, b), stream.Epoch{Placement: 1}, 10)
			head, err := source.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = p.copy(t.Context(), 0, head)
			switch {
			case !c.refused && err == nil:
				const sums = "SELECT GROUP_CONCAT(id, ' ', ts, ' ', UNIX_TIMESTAMP(at) ORDER BY id) FROM d.t"
				if x, y := a.Value(sums), b.Value(sums); x != y {
					t.Errorf("the source has %s and the sink %s", x, y)
				}
			case !c.refused:
				t.Error(err)
			case !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "MODIFY ts DATETIME") || !strings.Contains(err.Error(), "the sink's machine has another"):
				t.Error(err)
			}
		})
	}
}
