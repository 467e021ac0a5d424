package sqlsink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// planned plans the copy of all tables, and makes them at the sink.
func planned(t testing.TB, source snapshot.Source, sink snapshot.Sink) *snapshot.Plan {
	t.Helper()
	ctx := context.Background()
	plan, err := source.PlanSnapshot(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Check(1 << 30); err != nil {
		t.Fatal(err)
	}
	if err := sink.SaveSnapshotPlan(ctx, plan); err != nil {
		t.Fatal(err)
	}
	if err := sink.MakeSnapshotTables(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if at, ok, err := sink.SnapshotPosition(ctx); err != nil || !ok || at != plan.Position {
		t.Fatalf("the plan is at %d, and the sink has %d, %v, %v", plan.Position, at, ok, err)
	}
	return plan
}

// copyStill copies all tables of a source that does not change, in chunks of so many rows.
func copyStill(t *testing.T, a, b *testenv.MariaDB, rows int) {
	t.Helper()
	ctx := context.Background()
	source, sink := openSource(t, a), openSink(t, b)
	plan := planned(t, source, sink)
	for _, d := range plan.Tables {
		w, _, err := sink.Acquire(ctx, d.Table.Since(0), stream.Epoch{Placement: 1}, plan.Position)
		if err != nil {
			t.Fatal(err)
		}
		copier := w.(snapshot.Writer)
		s, err := source.OpenSnapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := s.Describe(ctx, d.Table)
		if err != nil {
			t.Fatal(err)
		}
		if (len(l.Key) > 0) != d.Keyed {
			t.Fatalf("table %s: keyed is %v in the plan", d.Table, d.Keyed)
		}
		for copier.Snapshot() != nil {
			copyChunk(t, s, l, copier, rows)
		}
		s.Close()
	}
	equal(t, a, b)
	p, err := sink.SnapshotProgress(ctx)
	if err != nil || p.TablesDone != int64(len(plan.Tables)) || p.Tables != p.TablesDone || p.Rows != p.Estimate {
		t.Fatalf("progress is %+v, %v, and there are %d tables", p, err, len(plan.Tables))
	}
}

// A server has settings for all sessions that do not have their own. They must neither cut what is read nor undo what is written.
func TestServersHaveOtherSettingsForAllSessions(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d", "CREATE TABLE d.k (id INT PRIMARY KEY)", "CREATE TABLE d.n (id INT)", "INSERT INTO d.k VALUES (1), (2), (3)", "INSERT INTO d.n VALUES (1), (2), (3)",
		"SET GLOBAL sql_select_limit=1, autocommit=0, sql_mode='EMPTY_STRING_IS_NULL,ORACLE'")
	b.Exec("SET GLOBAL sql_select_limit=1, autocommit=0, completion_type=1, sql_safe_updates=1, sql_mode='EMPTY_STRING_IS_NULL,ORACLE'")
	source, sink := openSource(t, a), openSink(t, b)
	plan := planned(t, source, sink)
	if len(plan.Tables) != 2 {
		t.Fatalf("%d tables are planned", len(plan.Tables))
	}
	for _, d := range plan.Tables {
		w, _, err := sink.Acquire(t.Context(), d.Table.Since(0), stream.Epoch{Placement: 1}, plan.Position)
		if err != nil {
			t.Fatal(err)
		}
		chunkOf(t, source, d.Table, w, 10)
		if w.(snapshot.Writer).Snapshot() != nil {
			t.Errorf("table %s is not whole", d.Table)
		}
	}
	b.Exec("SET GLOBAL sql_select_limit=DEFAULT, autocommit=1, sql_mode=DEFAULT")
	if rows := b.Value("SELECT CONCAT((SELECT COUNT(*) FROM d.k), ' and ', (SELECT COUNT(*) FROM d.n))"); rows != "3 and 3" {
		t.Errorf("the sink has %s of 3 rows", rows)
	}
}

// copyChunk copies the next chunk, or the whole table if it has no key.
func copyChunk(t *testing.T, s snapshot.Session, l *snapshot.Layout, to snapshot.Writer, rows int) {
	t.Helper()
	after, _ := to.Snapshot().Next(l)
	var parts []*snapshot.Chunk
	if err := s.Read(t.Context(), l, after, rows, 1<<20, func(c *snapshot.Chunk) error { parts = append(parts, c); return nil }); err != nil {
		t.Fatalf("table %s: %v", l.Table, err)
	}
	if err := to.WriteChunk(t.Context(), func(yield func(*snapshot.Chunk, error) bool) {
		for _, c := range parts {
			if !yield(c, nil) {
				return
			}
		}
	}, s.Position()); err != nil {
		t.Fatalf("table %s: %v", l.Table, err)
	}
}

func TestEveryTypeIsCopiedAsItIs(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec(append(everyType, "CREATE TABLE d.nokey LIKE d.every", "ALTER TABLE d.nokey DROP PRIMARY KEY",
		"SET sql_mode='ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO'",
		"INSERT INTO d.nokey (id,v,tc,g,p,f1,f2,d1,e,el,s,ip6,uu,j,t2,ts6,b64,cl,cu,cs,bi,vb,inv) SELECT id,v,tc,g,p,f1,f2,d1,e,el,s,ip6,uu,j,t2,ts6,b64,cl,cu,cs,bi,vb,inv FROM d.every",
		"INSERT INTO d.nokey (id, v) VALUES (1, 'twice'), (1, 'twice'), (1, 'TWICE')",
		"CREATE TABLE d.shape (id INT PRIMARY KEY, g GEOMETRY NOT NULL, n INT)", "INSERT IGNORE INTO d.shape (id, n) VALUES (1, 1), (2, 2)", "INSERT INTO d.shape VALUES (3, POINT(1,1), 3)",
		"CREATE TABLE d.defaults (id INT AUTO_INCREMENT PRIMARY KEY, d DATE DEFAULT '0000-00-00', q VARCHAR(20) DEFAULT 'it''s \\\\ \"x\"' COMMENT 'a \\\\ ''b''') PARTITION BY HASH (id) PARTITIONS 3",
	)...)
	a.Exec("CREATE TABLE d.`a` (id INT PRIMARY KEY, p INT)", "CREATE TABLE d.`a child` (id INT PRIMARY KEY, p INT, KEY (p), CONSTRAINT fk FOREIGN KEY (p) REFERENCES d.a (id))",
		"INSERT INTO d.a VALUES (1, 1)", "INSERT INTO d.`a child` VALUES (7, 1)",
		"CREATE TABLE d.`tür``x` (`ö id` INT PRIMARY KEY, `sp ace` INT)", "INSERT INTO d.`tür``x` VALUES (1, 2)")
	copyStill(t, a, b, 2)
}

// keyTexts are texts that collations treat differently: by case, accents, spaces at the end, and length.
var keyTexts = []string{"''", "' '", "'a'", "'A'", "'a '", "'aa'", "'ä'", "'ae'", "'b'", "'ß'", "'ss'", "'it''s'", "'\\\\'", "'z'", "'Z\t'", "'😀'", "'€'", "'%'", "'_'", "'0'", "'10'", "'9'", "X'01'", "X'7F'"}

func TestEveryKeyIsCopiedInChunks(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	statements := []string{"CREATE DATABASE k CHARACTER SET utf8mb4", "SET sql_mode='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'"}
	for i, s := range sampleTypes {
		typ := strings.TrimSuffix(s.typ, " NULL")
		if strings.Contains(typ, "TEXT") || strings.Contains(typ, "BLOB") || typ == "JSON" || typ == "POINT" || typ == "GEOMETRY" {
			continue
		}
		// the key alone; the key before and after another; a unique key
		statements = append(statements, fmt.Sprintf("CREATE TABLE k.a%d (k %s NOT NULL PRIMARY KEY, n INT)", i, typ), fmt.Sprintf("INSERT INTO k.a%d VALUES (%s, 1), (%s, 2)", i, s.low, s.high),
			fmt.Sprintf("CREATE TABLE k.b%d (k %s NOT NULL, n INT NOT NULL, m INT, PRIMARY KEY (k, n))", i, typ), fmt.Sprintf("CREATE TABLE k.c%d (k %s NOT NULL, n INT NOT NULL, m INT, UNIQUE (n, k), KEY (m))", i, typ))
		for n := range 4 {
			statements = append(statements, fmt.Sprintf("INSERT INTO k.b%d VALUES (%s, %d, 1), (%s, %d, 2)", i, s.low, n, s.high, n), fmt.Sprintf("INSERT INTO k.c%d VALUES (%s, %d, 1), (%s, %d, 2)", i, s.low, n, s.high, n))
		}
	}
	for i, collation := range []string{"utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_bin", "utf8mb4_unicode_520_nopad_ci", "utf8mb4_nopad_bin", "utf8mb4_general_nopad_ci", "latin1_german2_ci", "latin1_swedish_ci", "utf16_general_ci", "sjis_japanese_ci", "uca1400_german2_as_cs", "utf8mb3_german2_ci"} {
		charset, _, _ := strings.Cut(collation, "_")
		if strings.HasPrefix(collation, "uca") {
			charset = "utf8mb4"
		}
		for j, typ := range []string{"VARCHAR(9)", "CHAR(9)"} {
			table := fmt.Sprintf("k.text%d%d", i, j)
			statements = append(statements, fmt.Sprintf("CREATE TABLE %s (k %s CHARACTER SET %s COLLATE %s, n INT, PRIMARY KEY (k))", table, typ, charset, collation),
				fmt.Sprintf("CREATE TABLE %sp (k %s CHARACTER SET %s COLLATE %s, n INT, PRIMARY KEY (k, n))", table, typ, charset, collation))
			for n, text := range keyTexts {
				statements = append(statements, fmt.Sprintf("INSERT IGNORE INTO %s VALUES (%s, %d)", table, text, n), fmt.Sprintf("INSERT IGNORE INTO %sp VALUES (%s, 1), (%s, 2)", table, text, text))
			}
		}
	}
	statements = append(statements, "CREATE TABLE k.bytes (k VARBINARY(4) PRIMARY KEY)", "INSERT INTO k.bytes VALUES (''), (X'00'), (X'0000'), (X'FF'), (X'27'), (X'5C'), ('a'), ('A'), ('a ')",
		"CREATE TABLE k.float (k FLOAT PRIMARY KEY, d DOUBLE)", "INSERT INTO k.float VALUES (0.1, 0.1), (0.2, 1), (0.3, 1), (-0.1, 1), (16777217, 1), (1e-30, 1), (1e30, 1)",
		"CREATE TABLE k.enum (k ENUM('z', 'a', '', 'm'), n INT, PRIMARY KEY (k, n))", "INSERT IGNORE INTO k.enum VALUES ('z', 1), ('z', 2), ('a', 1), ('', 1), ('m', 3), ('none', 1), ('none', 2)",
		"CREATE TABLE k.zero (k DATETIME(3), PRIMARY KEY (k))", "INSERT INTO k.zero VALUES ('0000-00-00'), ('2023-02-31 00:00:00'), ('2023-02-28 23:59:59.999'), ('2024-00-00')",
		"CREATE TABLE k.prefix (k TEXT, PRIMARY KEY (k(3)))", "INSERT INTO k.prefix VALUES ('abc'), ('abd'), ('')",
		"CREATE TABLE k.down (x INT, y INT, PRIMARY KEY (x DESC, y))", "INSERT INTO k.down VALUES (1, 1), (1, 2), (2, 1), (2, 2), (3, 1)", "SET sql_mode=DEFAULT")
	a.Exec(statements...)
	copyStill(t, a, b, 1) // so that every row is a cursor
}

func TestATargetThatIsNotEmptyOrDiffersIsRefused(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	ctx := context.Background()
	a.Exec("CREATE DATABASE d CHARACTER SET utf8mb4", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)")
	source, sink := openSource(t, a), openSink(t, b)
	plan, err := source.PlanSnapshot(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Exec("CREATE DATABASE d CHARACTER SET latin1")
	refused(t, sink.SaveSnapshotPlan(ctx, plan), "database d has the default collation latin1_swedish_ci at the sink, and utf8mb4_general_ci at the source")
	b.Exec("ALTER DATABASE d CHARACTER SET utf8mb4", "CREATE TABLE d.t (id INT PRIMARY KEY, more INT)")
	refused(t, sink.SaveSnapshotPlan(ctx, plan), "table d.t exists at the sink and is not as it is at the source")
	b.Exec("ALTER TABLE d.t DROP COLUMN more", "INSERT INTO d.t VALUES (5)")
	refused(t, sink.SaveSnapshotPlan(ctx, plan), "table d.t has rows at the sink, and a snapshot is copied to empty tables only")
	b.Exec("DELETE FROM d.t")
	if err := sink.SaveSnapshotPlan(ctx, plan); err != nil {
		t.Fatal(err)
	}
	if err := sink.MakeSnapshotTables(ctx, nil); err != nil {
		t.Fatal(err)
	}
}

func TestWhatCannotBeCopiedIsRefusedWithTheRemedy(t *testing.T) {
	a := testenv.StartMariaDB(t)
	source := openSource(t, a)
	a.Exec("CREATE DATABASE d")
	for _, c := range []struct{ create, words string }{
		{"CREATE TABLE d.t (id INT) ENGINE=Aria", "its engine is Aria, which has no consistent snapshot; ALTER TABLE … ENGINE=InnoDB"},
		{"CREATE TABLE d.t (id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "it has system versioning"},
		{"CREATE TABLE d.t (id INT) AS SELECT 1 AS id", "it has no primary key, and no unique key of whole columns that are not NULL"},
	} {
		a.Exec(c.create)
		plan, err := source.PlanSnapshot(context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		refused(t, plan.Check(0), c.words)
		a.Exec("DROP TABLE d.t")
	}
}

// copier is a node that copies and replicates.
func newCopier(t *testing.T, a, b *testenv.MariaDB, rate int) (*dispatch.Engine, dispatch.Config) {
	t.Helper()
	return newCopierOf(t, openSource(t, a), b, rate)
}

func newCopierOf(t *testing.T, source stream.Source, b *testenv.MariaDB, rate int) (*dispatch.Engine, dispatch.Config) {
	t.Helper()
	e := dispatch.New(dispatch.Options{
		OpenSource: func(dispatch.Config) (stream.Source, error) { return source, nil },
		OpenSink:   func(dispatch.FeedKey, dispatch.Config) (stream.Sink, error) { return openSink(t, b), nil },
		Enter:      func() (func(), error) { return func() {}, nil },
		Memory:     64 << 20,
	})
	t.Cleanup(func() { _ = e.Close(context.Background(), copierKey) })
	return e, dispatch.Config{Workers: 4, BatchRows: 20, DDL: true, SnapshotRate: rate}
}

var copierKey = dispatch.FeedKey{Namespace: "default", Name: "copy", UID: "0c5f"}

// Rows are changed while they are copied, tables are altered and emptied, and owners take over from each other, some of which do not
// know it yet.
func TestTablesAreCopiedWhileTheyChange(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	makeWorkloadTables(a)
	load := newWorkload(t, a, 7)
	load.run(t, 200)
	ctx := context.Background()
	source, sink := openSource(t, a), openSink(t, b)
	plan := planned(t, source, sink)
	var stopped atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !stopped.Load() {
			if err := load.transaction(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	ddl := []string{"ALTER TABLE w.one ADD COLUMN x INT DEFAULT 5", "TRUNCATE TABLE w.pair", "ALTER TABLE w.uniq ADD COLUMN n INT NOT NULL AUTO_INCREMENT UNIQUE", "ALTER TABLE w.text MODIFY v VARCHAR(40) COLLATE utf8mb4_bin NOT NULL",
		"ALTER TABLE w.second ADD COLUMN p INT AUTO_INCREMENT PRIMARY KEY FIRST", "ALTER TABLE w.gen DROP PRIMARY KEY, ADD PRIMARY KEY (id)", "TRUNCATE TABLE w.none"}
	deadline := time.Now().Add(5 * time.Minute)
	for round := int64(1); ; round++ {
		p, err := sink.SnapshotProgress(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if p.TablesDone == p.Tables {
			t.Logf("copied in %d rounds, %+v", round-1, p)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not copied in time: %+v", p)
		}
		e, config := newCopier(t, a, b, 40)
		var orders []dispatch.Order
		for _, d := range plan.Tables {
			orders = append(orders, dispatch.Order{Table: d.Table, Epoch: stream.Epoch{Placement: 1, Counter: round}, Position: plan.Position})
		}
		if failed := e.Start(ctx, copierKey, 1, config, orders); len(failed) > 0 {
			t.Fatal(failed)
		}
		if len(ddl) > 0 {
			a.Exec(ddl[0])
			ddl = ddl[1:]
		}
		// The sequence does not change and stays where it was planned: every owner reads the whole log again, which grows.
		time.Sleep(400*time.Millisecond + time.Duration(round)*50*time.Millisecond)
		if round%2 == 0 {
			if err := e.Close(ctx, copierKey); err != nil {
				t.Fatal(err)
			}
		} // else the next owner takes over from one that still runs
	}
	stopped.Store(true)
	wg.Wait()
	if t.Failed() {
		return
	}
	// The rest of the log.
	e, config := newCopier(t, a, b, 0)
	var orders []dispatch.Order
	for _, d := range plan.Tables {
		orders = append(orders, dispatch.Order{Table: d.Table, Epoch: stream.Epoch{Placement: 2}, Position: plan.Position})
	}
	if failed := e.Start(ctx, copierKey, 2, config, orders); len(failed) > 0 {
		t.Fatal(failed)
	}
	a.Exec(ddl...)
	head, err := source.Head(ctx)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		r := e.Report(copierKey)
		if r.Err != nil {
			t.Log(r.Err)
		}
		return r.Running == len(orders) && r.Checkpoint >= head
	})
	equal(t, a, b)
}

// slow is a source that says at which position a snapshot is only when the table is past it, or has waited for a while.
type slow struct {
	*mariadb.Source
	sink  *testenv.MariaDB
	taken atomic.Int64
}

func (s *slow) OpenSnapshot(ctx context.Context) (snapshot.Session, error) {
	session, err := s.Source.OpenSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	s.taken.Add(1)
	for began := time.Now(); time.Since(began) < time.Second && ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if s.sink.Value(fmt.Sprintf("SELECT COUNT(*) FROM ebb.progress WHERE table_name = 't' AND position > %d", session.Position())) != "0" {
			break
		}
	}
	return session, nil
}

func TestABusyTableIsCopiedAlthoughSnapshotsTakeLong(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY, n INT)", "INSERT INTO w.t SELECT seq, 0 FROM w.seq_1_to_5000")
	source, sink := &slow{Source: openSource(t, a), sink: b}, openSink(t, b)
	plan := planned(t, source, sink)
	e, config := newCopierOf(t, source, b, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		db := a.Open("w")
		defer db.Close()
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := db.Exec("UPDATE t SET n = n + 1 WHERE id = ?", i%5000); err != nil {
				t.Error(err)
				return
			}
		}
	})
	if failed := e.Start(t.Context(), copierKey, 1, config, []dispatch.Order{{Table: plan.Tables[0].Table, Epoch: stream.Epoch{Placement: 1}, Position: plan.Position}}); len(failed) > 0 {
		t.Fatal(failed)
	}
	waitFor(t, func() bool {
		p, err := sink.SnapshotProgress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p.TablesDone == 1
	})
	cancel()
	wg.Wait()
	t.Logf("%d snapshots were taken", source.taken.Load())
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return e.Report(copierKey).Checkpoint >= head })
	equal(t, a, b)
}

// Changes of a table that begins again are dropped until its first chunk, so that what was copied before may not fit a statement that fits
// the rows of the source.
func TestWhatWasCopiedIsNotInTheWayOfAnAlter(t *testing.T) {
	b := testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY, u INT)", "INSERT INTO w.t VALUES (1, 7), (2, 7)")
	sink := openSink(t, b)
	if _, _, err := sink.SnapshotPosition(t.Context()); err != nil { // it makes its own tables
		t.Fatal(err)
	}
	b.Exec("INSERT INTO ebb.snapshot (changefeed, table_schema, table_name, position, made, definition) VALUES ('" + changefeed + "', 'w', 't', 5, TRUE, '')")
	ddl := &stream.DDL{Kind: stream.AlterTable, Schema: "w", Statement: "ALTER TABLE t ADD UNIQUE (u)", Tables: []stream.Table{{Schema: "w", Name: "t"}}}
	if err := sink.ExecuteDDL(t.Context(), 7, ddl, stream.Epoch{Placement: 1}); err != nil {
		t.Fatal(err)
	}
	if rows := b.Value("SELECT COUNT(*) FROM w.t"); rows != "0" {
		t.Errorf("%s rows are left, and the copy begins again", rows)
	}
}

// oddDefinitions are tables whose definitions a server shows in a way that is easily misread.
var oddDefinitions = []string{
	"CREATE DATABASE d CHARACTER SET utf8mb4", "SET GLOBAL time_zone = '+05:00'",
	"CREATE TABLE d.times (id INT PRIMARY KEY, ts TIMESTAMP DEFAULT '2024-01-01 12:00:00', dt DATETIME DEFAULT '2024-01-01 12:00:00')", "INSERT INTO d.times (id) VALUES (1), (2), (3)",
	"CREATE TABLE d.stamps (id INT PRIMARY KEY, a TIMESTAMP NOT NULL, b TIMESTAMP NOT NULL, c TIMESTAMP NULL)", "INSERT INTO d.stamps VALUES (1, '2024-01-01', '2025-01-01', NULL)",
	`CREATE TABLE d.escaped (id INT PRIMARY KEY COMMENT 'a\\b\n''c', e ENUM('x\\y', 'it''s', 'z'), s SET('p\\q', 'r'), g VARCHAR(20) AS (CONCAT('h\\i\'', id)) VIRTUAL,
		v VARCHAR(9) DEFAULT 'j\\k\n\0', w VARCHAR(9) DEFAULT (CONCAT('l\\m')), CHECK (v <> 'n\\o\n')) COMMENT='t\\u'`,
	`INSERT INTO d.escaped (id, e, s) VALUES (1, 'x\\y', 'p\\q'), (2, 'it''s', 'r')`,
	"CREATE TABLE d.bytes (id INT PRIMARY KEY, `it's` VARBINARY(6) DEFAULT X'FF005C27FE', b BINARY(3) DEFAULT X'80', u VARCHAR(9) DEFAULT 'é', l VARCHAR(9) CHARACTER SET latin1 DEFAULT 'é', z BINARY(2) DEFAULT X'0000')",
	"INSERT INTO d.bytes (id) VALUES (1), (2)",
	"CREATE SEQUENCE d.seq",
	"CREATE TABLE d.before_its_sequence (id INT PRIMARY KEY, n BIGINT DEFAULT NEXTVAL(d.seq))",
	"INSERT INTO d.before_its_sequence (id) VALUES (1), (2), (3), (4)",
	"CREATE TABLE d.overlaps (id INT, s DATE, e DATE, n INT, PERIOD FOR p (s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))",
	"INSERT INTO d.overlaps VALUES (1, '2020-01-01', '2021-01-01', 1), (1, '2021-01-01', '2022-01-01', 2), (2, '2020-01-01', '2021-01-01', 3), (3, '2020-01-01', '2021-01-01', 4), (4, '2020-01-01', '2021-01-01', 5)",
	"CREATE TABLE d.ignored (a INT NOT NULL, b INT NOT NULL, c INT NOT NULL, UNIQUE u1 (a, b), UNIQUE u2 (c) IGNORED)",
	"INSERT INTO d.ignored VALUES (1, 1, 1), (1, 2, 2), (2, 1, 3), (2, 2, 4), (3, 1, 5)",
}

// sameDefinitions fails the test if a table of a schema is shown differently by two servers.
func sameDefinitions(t *testing.T, a, b *testenv.MariaDB, schema string) {
	t.Helper()
	from, to := a.Open(""), b.Open("")
	defer from.Close()
	defer to.Close()
	for _, table := range list(t, from) {
		if !strings.HasPrefix(table, schema+".") {
			continue
		}
		var name, x, y string
		show := "SET STATEMENT character_set_results=binary, time_zone='+00:00' FOR SHOW CREATE TABLE " + strings.Replace(table, ".", ".`", 1) + "`"
		if err := from.QueryRow(show).Scan(&name, &x); err != nil {
			t.Fatal(err)
		}
		if err := to.QueryRow(show).Scan(&name, &y); err != nil {
			t.Fatal(err)
		}
		if x != y {
			t.Errorf("source %s\nsink   %s", x, y)
		}
	}
}

func TestDefinitionsAreCopiedAsTheyAre(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--explicit-defaults-for-timestamp=OFF")
	a.Exec(oddDefinitions...)
	b.Exec("SET GLOBAL time_zone = '+05:00'") // rows are compared in the zone of each server
	copyStill(t, a, b, 2)
	sameDefinitions(t, a, b, "d")
}

// A maintainer that ends after it has made a table, and before it has recorded that, leaves the table as its successor would make it.
func TestTablesThatWereMadeAreFoundAgain(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec(oddDefinitions...)
	sink := openSink(t, b)
	planned(t, openSource(t, a), sink)
	b.Exec("UPDATE ebb.snapshot SET made = FALSE")
	if err := sink.MakeSnapshotTables(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	sameDefinitions(t, a, b, "d")
}

// The rows that are copied are numbered as if there were no others.
func TestATableThatIsAlteredAndRenamedBeginsAgain(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", "CREATE TABLE w.t (a INT NOT NULL, c INT NOT NULL, UNIQUE (a, c), UNIQUE (c))", "INSERT INTO w.t SELECT 11 - seq, seq FROM w.seq_1_to_10")
	source, sink := openSource(t, a), openSink(t, b)
	plan := planned(t, source, sink)
	from, to := stream.Table{Schema: "w", Name: "t"}, stream.Table{Schema: "w", Name: "u"}
	w, _, err := sink.Acquire(t.Context(), from.Since(0), stream.Epoch{Placement: 1}, plan.Position)
	if err != nil {
		t.Fatal(err)
	}
	at := chunkOf(t, source, from, w, 3)
	a.Exec("DELETE FROM w.t WHERE c = 9", "ALTER TABLE w.t ADD n INT AUTO_INCREMENT UNIQUE, RENAME TO w.u")
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = source.Read(t.Context(), at, func(tx *stream.Transaction) error {
		for _, rows := range tx.Rows {
			if err := w.Write(t.Context(), []*stream.Rows{rows}, tx.Position); err != nil {
				return err
			}
		}
		if tx.DDL != nil {
			if err := sink.ExecuteDDL(t.Context(), tx.Position, tx.DDL, stream.Epoch{Placement: 1}); err != nil {
				return err
			}
		}
		if tx.Position >= head {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	if w, _, err = sink.Acquire(t.Context(), to.Since(stream.AnySince), stream.Epoch{Placement: 2}, head); err != nil {
		t.Fatal(err)
	}
	for w.(snapshot.Writer).Snapshot() != nil {
		chunkOf(t, source, to, w, 3)
	}
	equal(t, a, b)
}

// The server inserts no row of such a table while its sequence is missing, so its rows may be updated and deleted where they are. Rows that are
// not copied yet are not there.
func TestRowsOfATableWithASequenceChangeBeforeTheyAreCopied(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", "CREATE SEQUENCE w.s", "CREATE TABLE w.t (id INT DEFAULT NEXTVAL(w.s) PRIMARY KEY, v INT)", "INSERT INTO w.t SELECT seq, 0 FROM w.seq_1_to_10")
	source, sink := openSource(t, a), openSink(t, b)
	plan := planned(t, source, sink)
	table := stream.Table{Schema: "w", Name: "t"}
	w, _, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, plan.Position)
	if err != nil {
		t.Fatal(err)
	}
	at := chunkOf(t, source, table, w, 3)
	for _, change := range []string{"UPDATE w.t SET v = 1 WHERE id = 9", "DELETE FROM w.t WHERE id = 8", "UPDATE w.t SET id = 0 WHERE id = 10", "UPDATE w.t SET id = 20 WHERE id = 2", "INSERT INTO w.t VALUES (-1, 5), (30, 5)"} {
		a.Exec(change)
		at = writeTo(t, source, at, w)
	}
	b.Exec("RENAME TABLE w.s TO w.moved")
	a.Exec("UPDATE w.t SET id = 1000 WHERE id = 7")
	_, err = tryWrite(t, source, at, w)
	refused(t, err, "or the sequence of a default is missing")
	b.Exec("RENAME TABLE w.moved TO w.s")
	writeTo(t, source, at, w)
	s, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "w", Name: "s"}.Since(0), stream.Epoch{Placement: 1}, plan.Position)
	if err != nil {
		t.Fatal(err)
	}
	chunkOf(t, source, stream.Table{Schema: "w", Name: "s"}, s, 3)
	for w.(snapshot.Writer).Snapshot() != nil {
		at = chunkOf(t, source, table, w, 3)
	}
	equal(t, a, b)
	for _, m := range []*testenv.MariaDB{a, b} {
		m.Exec("RENAME TABLE w.s TO w.moved")
	}
	for _, change := range []string{"UPDATE w.t SET v = 2 WHERE id IN (3, 9)", "DELETE FROM w.t WHERE id = 9", "UPDATE w.t SET id = 9 WHERE id = 3"} {
		a.Exec(change)
		at = writeTo(t, source, at, w)
	}
	equal(t, a, b)
	b.Exec("DELETE FROM w.t WHERE id = 9")
	a.Exec("UPDATE w.t SET v = 3 WHERE id = 9")
	_, err = tryWrite(t, source, at, w)
	refused(t, err, "table w.t: a row that was changed at the source is not at the sink")
}

// writeTo writes the rows that a source has logged after a position, prepared first, and returns the position after them.
func writeTo(t *testing.T, source stream.Source, after stream.Position, w stream.Writer) stream.Position {
	t.Helper()
	at, err := tryWrite(t, source, after, w)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func tryWrite(t *testing.T, source stream.Source, after stream.Position, w stream.Writer) (stream.Position, error) {
	t.Helper()
	head := head(t, source)
	err := source.Read(t.Context(), after, func(tx *stream.Transaction) error {
		for _, rows := range tx.Rows {
			w.(stream.AheadWriter).Prepare([]*stream.Rows{rows})
			if err := w.Write(t.Context(), []*stream.Rows{rows}, tx.Position); err != nil {
				return err
			}
		}
		if tx.Position >= head {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return head, err
}

// chunkOf copies the next chunk of a table in a snapshot of its own, and returns the position of that.
func chunkOf(t *testing.T, source snapshot.Source, table stream.Table, to stream.Writer, rows int) stream.Position {
	t.Helper()
	s, err := source.OpenSnapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, _, err := s.Describe(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	copyChunk(t, s, l, to.(snapshot.Writer), rows)
	return s.Position()
}

// A snapshot may be taken before a large transaction that the log has already, and of which a part is written.
func TestAChunkIsNotWrittenInTheMiddleOfALargeTransaction(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY)", "INSERT INTO w.t VALUES (1)")
	source, sink := openSource(t, a), openSink(t, b)
	plan := planned(t, source, sink)
	table := stream.Table{Schema: "w", Name: "t"}
	w, _, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1}, plan.Position)
	if err != nil {
		t.Fatal(err)
	}
	schema := &stream.Schema{Columns: []stream.Column{{Name: "id", Type: "int"}}, Key: []int{0}}
	part := &stream.Rows{Position: plan.Position + 1, Table: table, Schema: schema, Changes: []stream.Change{{Kind: stream.Insert, After: []any{int64(2)}}}, Total: 2, More: true}
	if err := w.Write(t.Context(), []*stream.Rows{part}, part.To()); err != nil {
		t.Fatal(err)
	}
	if w, _, err = sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 2}, plan.Position); err != nil {
		t.Fatal(err)
	}
	err = w.(snapshot.Writer).WriteChunk(t.Context(), func(yield func(*snapshot.Chunk, error) bool) {
		yield(&snapshot.Chunk{First: true, Last: true}, nil)
	}, plan.Position)
	if err == nil {
		t.Error("a chunk of the position before the transaction was written, and the part is forgotten")
	}
}

// REPLACE cannot write rows of such a table, neither those that are copied nor those that are changed.
func TestATableWithoutOverlapsIsReplicated(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	for _, m := range []*testenv.MariaDB{a, b} {
		m.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT, s DATE, e DATE, n INT, PERIOD FOR p (s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))")
	}
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 10)
	p.at = head(t, p.source)
	a.Exec("INSERT INTO w.t VALUES (1, '2020-01-01', '2021-01-01', 1), (1, '2021-01-01', '2022-01-01', 2), (2, '2020-01-01', '2021-01-01', 3)")
	p.sync(t)
	a.Exec("UPDATE w.t SET n = n + 10")
	p.sync(t)
	a.Exec("UPDATE w.t FOR PORTION OF p FROM '2020-03-01' TO '2020-06-01' SET n = 7", "DELETE FROM w.t FOR PORTION OF p FROM '2021-03-01' TO '2021-04-01'")
	p.sync(t)
	equal(t, a, b)
}

func head(t *testing.T, source stream.Source) stream.Position {
	t.Helper()
	at, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// The error about a table that cannot be created says to exclude it by the filter.
func TestATableThatTheFilterExcludesLaterIsNotCopied(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d", "CREATE SEQUENCE d.s", "CREATE TABLE d.broken (id INT PRIMARY KEY, n BIGINT DEFAULT NEXTVAL(d.s))", "DROP SEQUENCE d.s", "CREATE TABLE d.t (id INT PRIMARY KEY)")
	sink := openSink(t, b)
	plan, err := openSource(t, a).PlanSnapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.SaveSnapshotPlan(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	refused(t, sink.MakeSnapshotTables(t.Context(), nil), "table d.broken cannot be created as it is at the source; create it by hand, or exclude it by the filter")
	if err := sink.MakeSnapshotTables(t.Context(), stream.Filter{"d.*", "!d.broken"}); err != nil {
		t.Fatal(err)
	}
	if p, err := sink.SnapshotProgress(t.Context()); err != nil || p.Tables != 1 {
		t.Errorf("%+v, %v: only d.t is copied", p, err)
	}
}

// Changes of a table wait while a snapshot of it is opened. A table that is locked must not keep them waiting.
func TestASnapshotDoesNotWaitForALockedTable(t *testing.T) {
	a := testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY)")
	session, err := openSource(t, a).OpenSnapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	db := a.Open("w")
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("LOCK TABLES w.t WRITE"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, _, err = session.Describe(t.Context(), stream.Table{Schema: "w", Name: "t"})
	if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "table w.t is locked by DDL or LOCK TABLES") || dispatch.Hopeless(err) || took > 10*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
}

// A snapshot locks the definition of its table. While the sink cannot write what was read, it ends, so that DDL of the source does not wait.
func TestASlowSinkDoesNotHoldUpDDLOfTheSource(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY, v TEXT)", "INSERT INTO w.t SELECT seq, REPEAT('x', 2000) FROM w.seq_1_to_8000")
	source, sink := openSource(t, a), openSink(t, b)
	plan := planned(t, source, sink)
	locker := b.Open("w")
	defer locker.Close()
	locker.SetMaxOpenConns(1)
	if _, err := locker.Exec("LOCK TABLES w.t WRITE"); err != nil {
		t.Fatal(err)
	}
	e, config := newCopierOf(t, source, b, 0)
	if failed := e.Start(t.Context(), copierKey, 1, config, []dispatch.Order{{Table: plan.Tables[0].Table, Epoch: stream.Epoch{Placement: 1}, Position: plan.Position}}); len(failed) > 0 {
		t.Fatal(failed)
	}
	waitFor(t, func() bool {
		return b.Value("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock%'") != "0"
	})
	db := a.Open("w")
	defer db.Close()
	if _, err := db.Exec("SET STATEMENT lock_wait_timeout=20 FOR ALTER TABLE w.t ADD n INT"); err != nil {
		t.Errorf("DDL of the source waits for the sink: %v", err)
	}
	if _, err := locker.Exec("UNLOCK TABLES"); err != nil {
		t.Fatal(err)
	}
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		p, err := sink.SnapshotProgress(t.Context())
		return err == nil && p.TablesDone == 1 && e.Report(copierKey).Checkpoint >= head
	})
	equal(t, a, b)
}
