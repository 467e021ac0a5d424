package sqlsink_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// formerLayout is the progress table as the version before made it, and formerPrepare what such a node executes before anything else.
const formerLayout = "CREATE TABLE IF NOT EXISTS `ebb`.`progress` (changefeed VARBINARY(512) NOT NULL, table_schema VARBINARY(256) NOT NULL, table_name VARBINARY(256) NOT NULL," +
	" placement BIGINT NOT NULL COMMENT 'epoch of the placement of the changefeed that owns the table', counter BIGINT NOT NULL COMMENT 'epoch of the owner within the placement'," +
	" position BIGINT UNSIGNED NOT NULL COMMENT 'everything up to here is in the table', part BIGINT NOT NULL DEFAULT 0, part_at BIGINT UNSIGNED NOT NULL DEFAULT 0, gtid VARBINARY(64) NOT NULL DEFAULT ''," +
	" PRIMARY KEY (changefeed, table_schema, table_name), KEY by_table (table_schema, table_name)) ENGINE=InnoDB COMMENT='position and owner of each table; written by ebb'"

var formerPrepare = []string{
	"CREATE DATABASE IF NOT EXISTS `ebb`", formerLayout,
	"ALTER TABLE `ebb`.`progress` ADD COLUMN IF NOT EXISTS part BIGINT NOT NULL DEFAULT 0 COMMENT 'changes of a large transaction just after the position that are in the table' AFTER position," +
		" ADD COLUMN IF NOT EXISTS part_at BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'the position that part belongs to; part is 0 at any other' AFTER part," +
		" ADD COLUMN IF NOT EXISTS gtid VARBINARY(64) NOT NULL DEFAULT '' COMMENT 'of a transaction at the checkpoint or before it' AFTER part_at",
	"CREATE INDEX IF NOT EXISTS by_table ON `ebb`.`progress` (table_schema, table_name)",
}

// formerStatements are all that a node of the version before executes on the progress table.
var formerStatements = []string{
	"SELECT placement, counter, position, IF(part_at = position, part, 0) FROM `ebb`.`progress` WHERE changefeed = 'default/copy/0c5f' AND table_schema = 'w' AND table_name = 't' FOR UPDATE",
	"INSERT INTO `ebb`.`progress` (changefeed, table_schema, table_name, placement, counter, position) VALUES ('default/copy/0c5f', 'w', 'new', 1, 1, 5)",
	"UPDATE `ebb`.`progress` SET placement = 9, counter = 9 WHERE changefeed = 'default/copy/0c5f' AND table_schema = 'w' AND table_name = 't' AND (placement < 9 OR placement = 9 AND counter < 9)",
	"UPDATE `ebb`.`progress` SET position = 50, part = 0, part_at = 50 WHERE changefeed = 'default/copy/0c5f' AND table_schema = 'w' AND table_name = 't' AND placement = 1 AND counter = 3 AND position = 20 AND IF(part_at = position, part, 0) = 0",
	"UPDATE `ebb`.`progress` SET position = IF(counter = 0 OR counter = 1, LEAST(position, 3), position), counter = IF(counter = 1, 0, counter) WHERE changefeed = 'default/copy/0c5f' AND table_schema = '' AND table_name = ''",
	"SELECT position, counter, gtid FROM `ebb`.`progress` WHERE changefeed = 'default/copy/0c5f' AND table_schema = '' AND table_name = ''",
	"INSERT INTO `ebb`.`progress` (changefeed, table_schema, table_name, placement, counter, position, gtid) VALUES ('default/copy/2', '', '', 0, 7, 5, '')",
	"UPDATE `ebb`.`progress` SET counter = 7, position = 5, gtid = '' WHERE changefeed = 'default/copy/0c5f' AND table_schema = '' AND table_name = '' AND position = 20 AND counter = 1",
	"SELECT counter = 1 FROM `ebb`.`progress` WHERE changefeed = 'default/copy/0c5f' AND table_schema = '' AND table_name = '' LOCK IN SHARE MODE",
	"UPDATE `ebb`.`progress` SET position = GREATEST(position, 50), gtid = '' WHERE changefeed = 'default/copy/0c5f' AND table_schema = '' AND table_name = '' AND position >= 5 AND counter = 1",
	"INSERT INTO `ebb`.`progress` (changefeed, table_schema, table_name, placement, counter, position) VALUES ('default/copy/0c5f', 'w', 't', -1, 0, 50) ON DUPLICATE KEY UPDATE placement = VALUES(placement), counter = 0, position = VALUES(position), part = 0",
	"SELECT table_schema, table_name FROM `ebb`.`progress` WHERE changefeed = 'default/copy/0c5f' AND table_schema = 'w' AND table_name <> ''",
	"UPDATE `ebb`.`progress` SET position = 50, part = 0 WHERE changefeed = 'default/copy/0c5f' AND position < 50 AND table_schema = 'w'",
	"UPDATE `ebb`.`progress` SET position = 50, part = 0 WHERE changefeed = 'default/copy/0c5f' AND position < 50 AND table_schema = 'w' AND table_name = 't'",
	"SELECT p.table_schema, p.table_name FROM `ebb`.`progress` p JOIN information_schema.tables t ON t.table_schema = p.table_schema AND t.table_name = p.table_name WHERE p.changefeed = 'default/copy/0c5f' AND p.placement <> -1",
	"SELECT p.position FROM `ebb`.`progress` p JOIN information_schema.tables t ON t.table_schema = p.table_schema AND t.table_name = p.table_name WHERE p.changefeed = 'default/copy/0c5f' AND p.table_schema = 'w' AND p.table_name = 't' AND p.placement <> -1",
	"UPDATE `ebb`.`progress` SET position = 50, part = 0 WHERE changefeed = 'default/copy/0c5f' AND position < 50 AND placement <> -1 AND table_name <> ''",
	"UPDATE `ebb`.`progress` SET position = 50, gtid = '0-1-50' WHERE changefeed = 'default/copy/0c5f' AND table_schema = '' AND table_name = '' AND position < 50",
	"REPLACE INTO `ebb`.`progress` (changefeed, table_schema, table_name, placement, counter, position) VALUES ('default/copy/0c5f', 'w', 't', 0, 0, 50)",
	"SELECT changefeed FROM `ebb`.`progress` WHERE table_schema = 'w' AND table_name = 't' AND LEFT(changefeed, 13) <> 'default/copy/' LIMIT 1",
}

// progressRows are the rows of the progress table but for those of checkpoints: name, since, placement, counter, position and part.
const progressRows = "SELECT COALESCE(GROUP_CONCAT(CONCAT_WS(' ', table_name, since, placement, counter, position, IF(part_at = position, part, 0)) ORDER BY feed, table_schema, table_name, since SEPARATOR ', '), '') FROM ebb.progress WHERE table_name <> ''"

// makeFormer makes the progress table of the version before, with rows of every kind.
func makeFormer(m *testenv.MariaDB, statements ...string) {
	m.Exec(append(append([]string{"CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY)"}, formerPrepare...),
		append([]string{"INSERT INTO ebb.progress VALUES ('" + changefeed + "', '', '', 0, 1, 20, 0, 0, '0-1-20'), ('" + changefeed + "', 'w', 't', 1, 3, 20, 7, 20, ''), ('" + changefeed + "', 'w', 'left', -1, 0, 9, 0, 0, ''), ('default/other/1', 'w', 'o', 4, 5, 6, 0, 0, '')"}, statements...)...)...)
}

const migrated = "left 0 -1 0 9 0, t 0 1 3 20 7, o 0 4 5 6 0"

func TestTheProgressOfTheFormerLayoutIsKept(t *testing.T) {
	for name, earlier := range map[string][]string{
		"of the version before":           nil,
		"of one that knows of no parts":   {"UPDATE ebb.progress SET part = 0", "ALTER TABLE ebb.progress DROP COLUMN part, DROP COLUMN part_at"},
		"of one that knows of no anchors": {"ALTER TABLE ebb.progress DROP COLUMN gtid"},
		"without its second index":        {"ALTER TABLE ebb.progress DROP INDEX by_table"},
	} {
		t.Run(name, func(t *testing.T) {
			m := testenv.StartMariaDB(t)
			makeFormer(m, earlier...)
			var all sync.WaitGroup
			for range 4 { // nodes of this version begin at the same time
				sink := openNewSink(t, m, forwardAll)
				all.Go(func() {
					if err := sink.Check(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			want := migrated
			if name == "of one that knows of no parts" {
				want = strings.Replace(migrated, "20 7", "20 0", 1)
			}
			if got := m.Value(progressRows); got != want {
				t.Errorf("the rows are %s", got)
			}
			if got := m.Value("SELECT GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = 'ebb' AND TABLE_NAME = 'progress' AND INDEX_NAME = 'PRIMARY'"); got != "feed,table_schema,table_name,since" {
				t.Errorf("the key is %s", got)
			}
			fresh := testenv.StartMariaDB(t)
			if err := openNewSink(t, fresh, forwardAll).Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			columns := "SELECT GROUP_CONCAT(COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COALESCE(COLUMN_DEFAULT, '') ORDER BY ORDINAL_POSITION) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'ebb' AND TABLE_NAME = 'progress'"
			if a, b := m.Value(columns), fresh.Value(columns); a != b {
				t.Errorf("the columns are\n%s\nand of a new table\n%s", a, b)
			}
			sink := openSink(t, m)
			if c, err := sink.Checkpoint(t.Context()); err != nil || c.Position != 20 || c.Transaction != "0-1-20" && name != "of one that knows of no anchors" {
				t.Errorf("%+v %v", c, err)
			}
			table := stream.Table{Schema: "w", Name: "t"}
			if _, _, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1, Counter: 2}, 5); !errors.Is(err, stream.ErrNotOwner) {
				t.Errorf("an earlier owner than the one of that layout: %v", err)
			}
			w, at, err := sink.Acquire(t.Context(), table.Since(0), stream.Epoch{Placement: 1, Counter: 4}, 5)
			if err != nil || at != 20 {
				t.Fatal(at, err)
			}
			if err := w.Write(t.Context(), nil, 30); err != nil {
				t.Error(err)
			}
		})
	}
}

// A transaction of a node of the version before that has begun is whole in the layout that it began in. Its next one fails.
func TestALayoutWaitsForTransactionsInTheOneBefore(t *testing.T) {
	m := testenv.StartMariaDB(t)
	makeFormer(m)
	former := m.Open("")
	defer former.Close()
	tx, err := former.Begin()
	if err != nil {
		t.Fatal(err)
	}
	write := strings.Replace(formerStatements[3], ") = 0", ") = 7", 1)
	if _, err := tx.Exec(write); err != nil {
		t.Fatal(err)
	}
	sink, checked := openNewSink(t, m, forwardAll), make(chan error, 1)
	go func() { checked <- sink.Check(t.Context()) }()
	waitFor(t, func() bool {
		return m.Value("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock'") == "1"
	})
	if _, err := tx.Exec("INSERT INTO w.t VALUES (50)"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-checked; err != nil {
		t.Fatal(err)
	}
	if got := m.Value(progressRows); got != strings.Replace(migrated, "20 7", "50 0", 1) {
		t.Errorf("the rows are %s", got)
	}
	if _, err := former.Exec(write); !unknownColumn(err) {
		t.Errorf("the next transaction: %v", err)
	}
}

func unknownColumn(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && e.Number == 1054
}

// A node of the version before prepares again after such an error, and fails for ever.
func TestANodeOfTheVersionBeforeWritesNothingInThisLayout(t *testing.T) {
	m := testenv.StartMariaDB(t)
	makeFormer(m)
	if err := openNewSink(t, m, forwardAll).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	layout := "SELECT GROUP_CONCAT(COLUMN_NAME, COLUMN_TYPE ORDER BY ORDINAL_POSITION) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'ebb' AND TABLE_NAME = 'progress'"
	before := m.Value(layout)
	db := m.Open("")
	defer db.Close()
	for _, statement := range formerPrepare {
		if _, err := db.Exec(statement); err != nil {
			t.Errorf("%s: %v", statement, err) // it says what is wrong only once it writes
		}
	}
	for _, statement := range formerStatements {
		if _, err := db.Exec(statement); !unknownColumn(err) {
			t.Errorf("%s: %v", statement, err)
		}
	}
	if after := m.Value(layout); after != before {
		t.Errorf("the layout was\n%s\nand is\n%s", before, after)
	}
	if got := m.Value(progressRows); got != migrated {
		t.Errorf("the rows are %s", got)
	}
}

// The server ends while it changes the layout. There is nothing in between.
func TestAServerThatEndsWhileTheLayoutIsChangedHasOneOfBoth(t *testing.T) {
	m := testenv.StartMariaDB(t)
	makeFormer(m, "INSERT INTO ebb.progress (changefeed, table_schema, table_name, placement, counter, position) SELECT 'default/many/1', 'w', seq, 1, seq, seq FROM w.seq_1_to_100000")
	rows := "SELECT CONCAT(COUNT(*), ' ', SUM(position), ' ', SUM(counter)) FROM ebb.progress"
	want := m.Value(rows)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sink, ended := openNewSink(t, m, forwardAll), make(chan struct{})
	go func() { defer close(ended); _ = sink.Check(ctx) }()
	waitFor(t, func() bool {
		return m.Value("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'ALTER TABLE%ADD PRIMARY KEY%'") == "1" || m.Value("SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'ebb' AND TABLE_NAME = 'progress' AND COLUMN_NAME = 'since'") == "1"
	})
	m.Kill()
	cancel()
	<-ended
	m.Restart()
	t.Logf("columns named since: %s", m.Value("SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'ebb' AND TABLE_NAME = 'progress' AND COLUMN_NAME = 'since'"))
	if err := openNewSink(t, m, forwardAll).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.Value(rows); got != want {
		t.Errorf("the rows are %s, and were %s", got, want)
	}
}

// again is a table whose name is given again, with the DDL that does it.
type again struct {
	*testing.T
	m    *testenv.MariaDB
	sink *sqlsink.Sink
	t, u stream.Table
}

func newAgain(t *testing.T) *again {
	a := &again{T: t, m: testenv.StartMariaDB(t), t: stream.Table{Schema: "w", Name: "t"}, u: stream.Table{Schema: "w", Name: "u"}}
	a.m.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT)")
	a.sink = openSink(t, a.m)
	return a
}

func (a *again) rename(at stream.Position) *stream.DDL {
	return a.execute(at, &stream.DDL{Kind: stream.RenameTable, Schema: "w", Tables: []stream.Table{a.t}, Becomes: []stream.Table{a.u}, Statement: "RENAME TABLE t TO u"})
}

func (a *again) create(at stream.Position) *stream.DDL {
	return a.execute(at, &stream.DDL{Kind: stream.CreateTable, Schema: "w", Tables: []stream.Table{a.t}, Statement: "CREATE TABLE t (id INT)"})
}

func (a *again) drop(at stream.Position, t stream.Table) *stream.DDL {
	return a.execute(at, &stream.DDL{Kind: stream.DropTable, Schema: "w", Tables: []stream.Table{t}, Statement: "DROP TABLE " + t.Name})
}

func (a *again) execute(at stream.Position, d *stream.DDL) *stream.DDL {
	a.Helper()
	if err := a.sink.ExecuteDDL(a.Context(), at, d, stream.Epoch{Placement: 1}); err != nil {
		a.Fatal(err)
	}
	return d
}

func (a *again) acquire(table stream.Identity, counter int64, start, want stream.Position) stream.Writer {
	a.Helper()
	w, at, err := a.sink.Acquire(a.Context(), table, stream.Epoch{Placement: 1, Counter: counter}, start)
	if err != nil || at != want {
		a.Fatalf("table %s since %d: position %d, want %d: %v", table, table.Since, at, want, err)
	}
	return w
}

// late is a write of an owner, and an attempt to become one, of a table that does not have its name any more.
func (a *again) late(what string, w stream.Writer, table stream.Identity, at stream.Position) {
	a.Helper()
	want := a.m.Value(progressRows)
	var rows []*stream.Rows
	if a.m.Value("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'w' AND TABLE_NAME = '"+table.Name+"'") == "1" {
		rows = []*stream.Rows{inserts(table.Table, at, 0, 1, false)}
	}
	if err := w.Write(a.Context(), rows, at); !errors.Is(err, stream.ErrNotOwner) || !strings.Contains(err.Error(), "dropped or renamed") {
		a.Errorf("%s: it wrote: %v", what, err)
	}
	a.sink.WriteTogether(a.Context(), []stream.Part{{Writer: w, Rows: rows, To: at, Done: func(err error) {
		if !errors.Is(err, stream.ErrNotOwner) {
			a.Errorf("%s: it wrote with others: %v", what, err)
		}
	}}})
	for _, counter := range []int64{2, 99} { // of an order that comes late, and of one that nobody has given
		if _, _, err := a.sink.Acquire(a.Context(), table, stream.Epoch{Placement: 1, Counter: counter}, 1); !errors.Is(err, stream.ErrNotOwner) {
			a.Errorf("%s: it was acquired: %v", what, err)
		}
		if _, _, err := a.sink.AcquireGroup(a.Context(), []stream.Identity{table}, stream.Epoch{Placement: 1, Counter: counter}, 1); !errors.Is(err, stream.ErrNotOwner) && !errors.Is(err, stream.ErrUnusable) {
			a.Errorf("%s: it was acquired with others: %v", what, err)
		}
	}
	if got := a.m.Value(progressRows); got != want {
		a.Errorf("%s: the rows were %s and are %s", what, want, got)
	}
	if c, err := a.sink.Checkpoint(a.Context()); err != nil || c.Position != 0 || c.Incarnation == 0 {
		a.Errorf("%s: the sink counts as one that went back: %+v %v", what, c, err)
	}
}

func (a *again) want(what, rows string) {
	a.Helper()
	if got := a.m.Value(progressRows); got != rows {
		a.Errorf("%s: the rows are %s, want %s", what, got, rows)
	}
}

// An owner that was frozen writes when its table has another name, and another table has its name.
func TestAnOwnerOfAnEarlierTableOfTheNameWritesNothing(t *testing.T) {
	a := newAgain(t)
	old := a.acquire(a.t.Since(0), 1, 5, 5)
	if err := old.Write(t.Context(), []*stream.Rows{inserts(a.t, 6, 0, 1, false)}, 6); err != nil {
		t.Fatal(err)
	}
	a.rename(7)
	a.want("renamed", "t 0 -2 0 7 0, u 7 1 0 7 0")
	a.late("renamed", old, a.t.Since(0), 7)
	renamed := a.acquire(a.u.Since(7), 3, 1, 7)
	a.create(8)
	a.want("created again", "t 8 1 0 7 0, u 7 1 3 7 0")
	a.late("created again", old, a.t.Since(0), 8)
	a.late("with the number of DDL that did not give the name", old, a.t.Since(7), 9)
	next := a.acquire(a.t.Since(8), 4, 1, 7)
	a.late("acquired again", old, a.t.Since(0), 9)
	if err := next.Write(t.Context(), []*stream.Rows{inserts(a.t, 9, 0, 2, false)}, 9); err != nil {
		t.Fatal(err)
	}
	a.late("written again", old, a.t.Since(0), 10)
	if err := renamed.Write(t.Context(), []*stream.Rows{inserts(a.u, 10, 0, 1, false)}, 10); err != nil {
		t.Fatal(err)
	}
	a.drop(11, a.t)
	a.late("dropped", next, a.t.Since(8), 12)
	a.late("dropped, and long before", old, a.t.Since(0), 12)
	if got := a.m.Value("SELECT GROUP_CONCAT(id ORDER BY id) FROM w.u"); got != "0,0" {
		t.Errorf("the renamed table has the rows %s", got)
	}
	a.want("dropped", "t 8 -2 0 11 0, u 7 1 3 10 0")
	held, err := a.sink.Holders(t.Context())
	if err != nil || len(held) != 2 || held[a.t] != (stream.Holder{Since: 11, Over: true}) || held[a.u] != (stream.Holder{Since: 7}) {
		t.Errorf("%+v %v", held, err)
	}
	if one, err := a.sink.HoldersOf(t.Context(), []stream.Table{a.u, {Schema: "w", Name: "never"}}); err != nil || len(one) != 1 || one[a.u] != held[a.u] {
		t.Errorf("%+v %v", one, err)
	}
	// A table that got the name without DDL that is executed here: nothing of the one before it is read again.
	a.m.Exec("CREATE TABLE w.t (id INT)")
	a.acquire(a.t.Since(held[a.t].Since), 5, 3, 11)
	a.want("made by hand", "t 11 1 5 11 0, u 7 1 3 10 0")
	a.late("made by hand", next, a.t.Since(8), 12)
}

// Tables that change their names with each other are two others afterwards, and one whose schema is dropped is none.
func TestOwnersBeforeNamesWereExchangedWriteNothing(t *testing.T) {
	a := newAgain(t)
	a.m.Exec("CREATE TABLE w.u (id INT)")
	first, second := a.acquire(a.t.Since(0), 1, 5, 5), a.acquire(a.u.Since(0), 2, 5, 5)
	a.execute(7, &stream.DDL{Kind: stream.RenameTable, Schema: "w", Tables: []stream.Table{a.t, a.u}, Becomes: []stream.Table{a.u, a.t}, Statement: "RENAME TABLE t TO x, u TO t, x TO u"})
	a.want("exchanged", "t 7 1 0 7 0, u 7 1 0 7 0")
	a.late("exchanged", first, a.t.Since(0), 8)
	a.late("exchanged", second, a.u.Since(0), 8)
	third := a.acquire(a.t.Since(7), 3, 1, 7)
	a.execute(9, &stream.DDL{Kind: stream.DropSchema, Schema: "w", Statement: "DROP DATABASE w"})
	a.want("dropped", "t 7 -2 0 9 0, u 7 -2 0 9 0")
	a.late("dropped with its schema", third, a.t.Since(7), 10)
}

// A table that left the filter stays at the sink. Once it is dropped there, another may have its name.
func TestATableThatLeftTheFilterMakesRoomForAnother(t *testing.T) {
	a := newAgain(t)
	old := a.acquire(a.t.Since(0), 1, 5, 5)
	a.execute(7, &stream.DDL{Kind: stream.RenameTable, Schema: "w", Releases: []stream.Table{a.t}})
	a.want("released", "t 0 -1 0 7 0")
	create := &stream.DDL{Kind: stream.CreateTable, Schema: "w", Tables: []stream.Table{a.t}, Statement: "CREATE TABLE t (id INT)"}
	refused(t, a.sink.ExecuteDDL(t.Context(), 8, create, stream.Epoch{Placement: 1}), "table w.t was renamed out of the filter and stays at the sink")
	a.m.Exec("DROP TABLE w.t")
	a.create(8)
	a.late("made again", old, a.t.Since(0), 9)
	a.acquire(a.t.Since(8), 2, 1, 7)
}

// A process ends after every command that it sends for DDL that gives names. The rows are as they are when it does not end.
func TestNamesAreGivenOnceWhereverTheProcessEnds(t *testing.T) {
	b := testenv.StartMariaDB(t)
	at := stream.Position(100)
	for name, c := range map[string]struct {
		ddl  stream.DDL
		want string
	}{
		"create": {stream.DDL{Kind: stream.CreateTable, Tables: []stream.Table{{Schema: "w", Name: "n"}}, References: []stream.Table{{Schema: "w", Name: "u"}}, Statement: "CREATE TABLE n (id INT)"}, "n %[1]d %[3]d 0 %[2]d 0, t 0 1 1 5 0, u 0 1 1 %[1]d 0"},
		"rename": {stream.DDL{Kind: stream.RenameTable, Tables: []stream.Table{{Schema: "w", Name: "t"}}, Becomes: []stream.Table{{Schema: "w", Name: "n"}}, Statement: "RENAME TABLE t TO n"}, "n %[1]d %[3]d 0 %[1]d 0, t 0 -2 0 %[1]d 0, u 0 1 1 5 0"},
		"drop":   {stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{{Schema: "w", Name: "t"}, {Schema: "w", Name: "u"}}, Statement: "DROP TABLE t, u"}, "t 0 -2 0 %[1]d 0, u 0 -2 0 %[1]d 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c.ddl.Schema = "w"
			for command := 1; ; command++ {
				b.Exec("DROP DATABASE IF EXISTS w", "CREATE DATABASE w", "CREATE TABLE w.t (id INT)", "CREATE TABLE w.u (id INT)")
				if command > 1 || at > 100 {
					b.Exec("DELETE FROM ebb.progress WHERE table_name <> ''")
				}
				sink := openSink(t, b)
				for _, table := range []string{"t", "u"} {
					if _, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "w", Name: table}.Since(0), stream.Epoch{Placement: 1, Counter: 1}, 5); err != nil {
						t.Fatal(err)
					}
				}
				at++
				cut := executeCut(t, b, at, &c.ddl, command)
				var by int64 // who came to the end
				db := b.Open("")
				if err := db.QueryRow("SELECT placement FROM ebb.ddl WHERE position = ? AND done", uint64(at)).Scan(&by); err != nil {
					t.Fatal(err)
				}
				db.Close()
				if got, want := b.Value(progressRows), fmt.Sprintf(c.want, at, at-1, by); got != want {
					t.Fatalf("cut at command %d: the rows are %s, want %s", command, got, want)
				}
				if !cut {
					break
				}
			}
		})
	}
}

// The statement that people execute to record the position of a table that they have copied.
func TestARecordedPositionIsThatOfTheNewestTableOfTheName(t *testing.T) {
	a := newAgain(t)
	record := func(at string) { a.m.Exec(strings.ReplaceAll(a.sink.RecordPosition(a.t), "POSITION", at)) }
	record("40")
	a.want("never had", "t 0 0 0 40 0")
	a.acquire(a.t.Since(0), 1, 5, 40)
	a.drop(50, a.t)
	a.create(60)
	record("70")
	a.want("made again", "t 60 0 0 70 0")
	if at, ok, err := a.sink.TablePosition(t.Context(), a.t); at != 70 || !ok || err != nil {
		t.Error(at, ok, err)
	}
	a.acquire(a.t.Since(60), 2, 5, 70)
	record("90") // of a copy that is newer than DDL that follows, which changes nothing
	a.execute(80, &stream.DDL{Kind: stream.CreateTable, Schema: "w", Tables: []stream.Table{a.t}, Statement: "CREATE TABLE IF NOT EXISTS t (id INT)"})
	a.want("not made again", "t 80 1 0 90 0")
}
