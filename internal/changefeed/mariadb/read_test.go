package mariadb

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestTransactionsAreReadAsTheyWereExecuted(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d CHARACTER SET utf8mb4", "USE d",
		"CREATE TABLE a (id INT UNSIGNED PRIMARY KEY, v VARCHAR(9) CHARACTER SET latin1, g BIGINT AS (id + 1) VIRTUAL)",
		"CREATE TABLE b (x BIGINT NOT NULL, y INT NOT NULL, UNIQUE (y, x), KEY (x))",
		"CREATE TABLE c (x DOUBLE)",
		"CREATE TABLE my (x INT) ENGINE=MyISAM")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.Exec("USE d", `BEGIN; INSERT INTO a (id, v) VALUES (4294967295, 'ä'), (1, NULL); INSERT INTO b VALUES (-5, 6); UPDATE a SET v = 'x' WHERE id = 1; DELETE FROM b; INSERT INTO c VALUES (0.5); COMMIT`,
		"BEGIN; INSERT INTO my VALUES (1); INSERT INTO c VALUES (1); SAVEPOINT s1; INSERT INTO c VALUES (2); INSERT INTO my VALUES (2); ROLLBACK TO s1; INSERT INTO c VALUES (3); COMMIT",
		"CREATE TABLE made AS SELECT 7 AS n", "CREATE SEQUENCE q; DO NEXTVAL(q)", "ANALYZE TABLE a", "CREATE USER nobody")
	var got []string
	for _, tx := range collect(t, s, head) {
		got = append(got, describe(tx))
	}
	want := []string{
		"d.a [ id:int:u:k0 v:varchar g:bigint:g ] []→[4294967295 [228] 4294967296] []→[1 <nil> 2] [1 <nil> 2]→[1 [120] 2]; d.b [ x:bigint:k1 y:int:k0 ] []→[-5 6] [-5 6]→[]; d.c [ x:double ] []→[0.5]",
		"d.my [ x:int ] []→[1]", // a table that cannot roll back goes its own way
		"d.my [ x:int ] []→[2]",
		"d.c [ x:double ] []→[1] []→[3]",
		"create d.made; d.made [ n:int ] []→[7]",
		"create d.q",
		"d.q [ next_not_cached_value:bigint minimum_value:bigint maximum_value:bigint start_value:bigint increment:bigint cache_size:bigint:u cycle_option:tinyint:u cycle_count:bigint ] []→[1001 1 9223372036854775806 1 1 1000 0 0]",
		"other",
		"other",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// describe is a transaction in one line.
func describe(tx *stream.Transaction) string {
	var parts []string
	if tx.DDL != nil {
		parts = append(parts, describeDDL(tx.DDL))
	}
	for _, r := range tx.Rows {
		text := r.Table.String() + " ["
		for i, c := range r.Schema.Columns {
			text += " " + c.Name + ":" + c.Type
			for _, flag := range []struct {
				on   bool
				text string
			}{{c.Unsigned, ":u"}, {c.Generated, ":g"}} {
				if flag.on {
					text += flag.text
				}
			}
			for n, k := range r.Schema.Key {
				if k == i {
					text += fmt.Sprintf(":k%d", n)
				}
			}
		}
		text += " ]"
		for _, c := range r.Changes {
			text += fmt.Sprintf(" %v→%v", c.Before, c.After)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func TestTablesAreListedWithThePositionAtWhichTheyExisted(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.stays (id INT PRIMARY KEY)", "CREATE VIEW d.v AS SELECT 1", "CREATE SEQUENCE d.q")
	s := open(t, m)
	tables, at, err := s.Tables(t.Context())
	if err != nil || fmt.Sprint(tables) != "[d.q d.stays]" || at != 4 {
		t.Fatal(tables, at, err)
	}
	var many sync.WaitGroup
	for range 10 { // at once, and none waits for another in vain
		many.Go(func() {
			if _, at, err := s.Tables(t.Context()); err != nil || at != 4 {
				t.Error(at, err)
			}
		})
	}
	many.Wait()
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for n := range 2 {
		busy.Go(func() {
			db := m.Open("d")
			defer db.Close()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				time.Sleep(time.Millisecond)
				db.Exec(fmt.Sprintf("INSERT INTO stays VALUES (%d)", 2*i+n))
				if i%4 == n {
					db.Exec(fmt.Sprintf("CREATE TABLE t%d_%d (id INT)", n, i))
				}
				if i%4 == 2 {
					db.Exec(fmt.Sprintf("DROP TABLE t%d_%d", n, i-2+n))
				}
			}
		})
	}
	type listed struct {
		tables []stream.Table
		at     stream.Position
	}
	var lists []listed
	for range 50 {
		tables, at, err := s.Tables(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, listed{tables, at})
	}
	close(stop)
	busy.Wait()
	log := collect(t, s, 0)
	for _, l := range lists {
		if want := tablesAt(log, l.at); !reflect.DeepEqual(l.tables, want) {
			t.Errorf("at %d the list is %v, by the log it is %v", l.at, l.tables, want)
		}
	}
}

// Only one session at a time may block DDL. When many changefeeds begin at once, one that has waited for its turn in vain must not watch for
// a moment without DDL, which a busy source does not have.
func TestTablesAreListedThoughAnotherBlocksDDLForAWhile(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.stays (id INT PRIMARY KEY)")
	s := open(t, m)
	db := m.Open("d")
	defer db.Close()
	other, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "BACKUP STAGE START"); err != nil { // it does not block DDL itself
		t.Fatal(err)
	}
	var busy sync.WaitGroup
	defer busy.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	busy.Go(func() {
		for ctx.Err() == nil {
			db.ExecContext(ctx, "CREATE OR REPLACE TABLE d.busy (id INT)")
			time.Sleep(10 * time.Millisecond)
		}
	})
	busy.Go(func() {
		time.Sleep(5500 * time.Millisecond) // longer than one attempt waits
		other.ExecContext(ctx, "BACKUP STAGE END")
	})
	began := time.Now()
	if _, _, err := s.Tables(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 5*time.Second {
		t.Fatalf("it did not have to wait: %v", took)
	}
}

// tablesAt works out from the log which tables there were.
func tablesAt(log []*stream.Transaction, at stream.Position) []stream.Table {
	there := map[stream.Table]bool{}
	for _, tx := range log {
		if tx.DDL == nil || tx.Position > at {
			continue
		}
		for _, table := range tx.DDL.Tables {
			there[table] = tx.DDL.Kind == stream.CreateTable
		}
	}
	var list []stream.Table
	for table, ok := range there {
		if ok {
			list = append(list, table)
		}
	}
	slices.SortFunc(list, func(a, b stream.Table) int { return strings.Compare(a.String(), b.String()) })
	return list
}

// Rows that nobody wants are not decoded. Skipped has their tables, also within a transaction.
func TestRowsThatNobodyWantsAreSkipped(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)", "CREATE TABLE d.b (id INT PRIMARY KEY)",
		"INSERT INTO d.a VALUES (1)", "INSERT INTO d.b VALUES (1)", "INSERT INTO d.a VALUES (2)", "INSERT INTO d.b VALUES (2)",
		"BEGIN; INSERT INTO d.a VALUES (3); INSERT INTO d.b VALUES (3); INSERT INTO d.b VALUES (4); COMMIT", "ALTER TABLE d.b ADD COLUMN n INT", "INSERT INTO d.b VALUES (5, 5)")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read := func(wants func(stream.Table) bool) (got []string) {
		t.Helper()
		enough := errors.New("enough")
		err := s.ReadOf(t.Context(), 0, wants, func(tx *stream.Transaction) error {
			text := ""
			if tx.DDL != nil {
				text = string(tx.DDL.Kind)
			}
			for _, rows := range tx.Rows {
				text += fmt.Sprintf(" %s×%d", rows.Table.Name, len(rows.Changes))
			}
			got = append(got, fmt.Sprintf("%s skipped %v", text, tx.Skipped))
			if tx.Position == head {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Fatal(err)
		}
		return got[1:] // the first makes the schema
	}
	for name, c := range map[string]struct {
		wants func(stream.Table) bool
		want  []string
	}{
		"one": {func(table stream.Table) bool { return table.Name == "a" }, []string{
			"create skipped []", "create skipped []", " a×1 skipped []", " skipped [d.b]", " a×1 skipped []", " skipped [d.b]", " a×1 skipped [d.b]", "alter skipped []", " skipped [d.b]"}},
		"none": {stream.NoTable, []string{
			"create skipped []", "create skipped []", " skipped [d.a]", " skipped [d.b]", " skipped [d.a]", " skipped [d.b]", " skipped [d.a d.b]", "alter skipped []", " skipped [d.b]"}},
	} {
		if got := read(c.wants); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// Wanted more and more: whatever a transaction has of a table, it has all of it or says that it has not.
	for from := range 12 {
		asked, count := 0, map[string]int{}
		err := s.ReadOf(t.Context(), 0, func(stream.Table) bool { asked++; return asked > from }, func(tx *stream.Transaction) error {
			for _, rows := range tx.Rows {
				count[fmt.Sprint(tx.Position, rows.Table.Name, slices.Contains(tx.Skipped, rows.Table))] = len(rows.Changes)
			}
			if tx.Position == head {
				return errors.New("enough")
			}
			return nil
		})
		if err == nil || err.Error() != "enough" {
			t.Fatalf("from question %d on: %v", from, err)
		}
		if n, ok := count[fmt.Sprint(head-2, "b", false)]; ok && n != 2 {
			t.Errorf("from question %d on: %v", from, count)
		}
	}
}

// The facts of a table are read again when a DDL names that table, and not for every DDL: with many tables and much DDL, a reader would
// do nothing else.
func TestDDLInvalidatesOnlyTheTablesThatItNames(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d")
	const tables, rounds = 20, 20
	for i := range tables {
		m.Exec(fmt.Sprintf("CREATE TABLE d.t%d (id INT PRIMARY KEY, g INT)", i))
	}
	for round := range rounds {
		m.Exec("CREATE TABLE d.other (id INT PRIMARY KEY)", "DROP TABLE d.other")
		for i := range tables {
			m.Exec(fmt.Sprintf("INSERT INTO d.t%d VALUES (%d, 1)", i, round))
		}
	}
	m.Exec("ALTER TABLE d.t1 DROP COLUMN g, ADD COLUMN g INT AS (id + 1) STORED", "INSERT INTO d.t1 (id) VALUES (1000)")
	questions := func() int {
		n, err := strconv.Atoi(m.Value("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'COM_SELECT'"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for name, test := range map[string]struct {
		wants func(stream.Table) bool
		most  int
	}{
		"all":  {func(stream.Table) bool { return true }, 3 * tables},
		"none": {stream.NoTable, tables},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, m)
			head, err := s.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			before := questions()
			var last *stream.Transaction
			err = s.ReadOf(t.Context(), 0, test.wants, func(tx *stream.Transaction) error {
				if last = tx; tx.Position == head {
					return errEnough
				}
				return nil
			})
			if !errors.Is(err, errEnough) {
				t.Fatal(err)
			}
			if asked := questions() - before; asked > test.most {
				t.Errorf("the server was asked %d times about %d tables", asked, tables)
			}
			if name == "all" && !last.Rows[0].Schema.Columns[1].Generated {
				t.Errorf("the last row is of %+v, which is how the table was before it was altered", last.Rows[0].Schema)
			}
		})
	}
}

// A table that the server closes and opens again within a transaction has two numbers there, and is still one table: a server does
// that all the time if it has more tables than its cache.
func TestATableMayGetAnotherNumberWithinATransaction(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
	db := m.Open("d")
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"INSERT INTO t VALUES (1), (2)", "SAVEPOINT s", "INSERT INTO t VALUES (3)", "ROLLBACK TO s", "DELETE FROM t WHERE id = 1"} {
		m.Exec("FLUSH TABLES")
		if _, err := tx.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	log := collect(t, open(t, m), 0)
	rows := log[len(log)-1].Rows
	if len(rows) != 1 || len(rows[0].Changes) != 3 || rows[0].Changes[2].Kind != stream.Delete {
		t.Errorf("the transaction is %s", describe(log[len(log)-1]))
	}
}

// What is rolled back to a savepoint takes its place in the order with it: what follows is not put before what came in between.
func TestTheOrderOfChangesAfterARollback(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, v INT)", "CREATE TABLE d.b (id INT PRIMARY KEY)", "CREATE TABLE d.my (id INT) ENGINE=MyISAM")
	db := m.Open("d")
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	// The log has what was rolled back, since the transaction also changed a table that cannot be.
	for _, statement := range []string{"INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1)", "SAVEPOINT s", "UPDATE a SET v = 2", "INSERT INTO my VALUES (1)", "ROLLBACK TO s", "DELETE FROM a"} {
		if _, err := tx.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	a, b := stream.Table{Schema: "d", Name: "a"}, stream.Table{Schema: "d", Name: "b"}
	var order []string
	for _, transaction := range collect(t, open(t, m), 0) {
		merged := transaction.Merge(a, []stream.Table{a, b})
		if merged == nil || merged.DDL != nil {
			continue
		}
		if err := merged.EachRun(func(run *stream.Run, changes []stream.Change) error {
			for _, c := range changes {
				order = append(order, fmt.Sprint(c.Kind, " ", run.Table.Name))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{fmt.Sprint(stream.Insert, " a"), fmt.Sprint(stream.Insert, " b"), fmt.Sprint(stream.Delete, " a")}
	if !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}

func TestAPurgedPositionIsRefusedWithTheOldestGTID(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "INSERT INTO d.t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (3)")
	s := open(t, m)
	if got := len(collect(t, s, 0)); got != 5 {
		t.Fatalf("%d transactions", got)
	}
	awaitNoDump(t, m) // what is being sent is not purged
	m.Exec("PURGE BINARY LOGS TO 'binlog.000003'")
	for _, at := range []stream.Position{0, 1, 3} {
		err := s.Read(t.Context(), at, func(*stream.Transaction) error { return errEnough })
		if !errors.Is(err, stream.ErrPurged) || !strings.Contains(err.Error(), fmt.Sprintf("position %d is purged: the log begins after GTID 0-1-4", at)) {
			t.Error(err)
		}
	}
	if got := len(collect(t, s, 4)); got != 1 {
		t.Errorf("%d transactions after what is retained", got)
	}
}

func TestAPositionMayHaveBeenWrittenByAnyServer(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "SET server_id=5", "INSERT INTO d.t VALUES (1)", "INSERT INTO d.t VALUES (2)", "SET server_id=6", "INSERT INTO d.t VALUES (3)",
		"FLUSH BINARY LOGS", "SET server_id=5", "INSERT INTO d.t VALUES (4)", "SET gtid_seq_no=100", "INSERT INTO d.t VALUES (5)", "INSERT INTO d.t VALUES (6)")
	s := open(t, m)
	all := collect(t, s, 0)
	if len(all) != 8 {
		t.Fatalf("%d transactions", len(all))
	}
	for at := stream.Position(0); at <= 101; at++ {
		want := 0
		for _, tx := range all {
			if tx.Position > at {
				want++
			}
		}
		if at > 8 && at < 98 {
			continue
		}
		if got := len(collect(t, s, at)); got != want {
			t.Errorf("after %d there are %d transactions, want %d", at, got, want)
		}
	}
}

func TestAReadMayStartAtAPositionWithoutATransaction(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "SET gtid_seq_no=100", "INSERT INTO d.t VALUES (5)", "INSERT INTO d.t VALUES (6)")
	s := open(t, m)
	for at, want := range map[stream.Position]int{1: 3, 50: 2, 100: 1} {
		if got := len(collect(t, s, at)); got != want {
			t.Errorf("after %d there are %d transactions, want %d", at, got, want)
		}
	}
}

func TestAnotherServerIsRecognised(t *testing.T) {
	m, other := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "INSERT INTO d.t VALUES (1)")
	w := newWire(t, m.Address)
	s := openAt(t, m, w.address)
	refused(t, s.Read(t.Context(), 99, nil), "position 99 is after the end of the log, GTID 0-1-3: this is another server than before")

	other.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "INSERT INTO d.t VALUES (1)", "INSERT INTO d.t VALUES (2)")
	visited := make(chan stream.Position, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- s.Read(t.Context(), 0, tell(visited))
	}()
	for range 3 {
		<-visited
	}
	w.cut(other.Address)
	refused(t, <-ended, "the server does not have GTID 0-1-3, which was read before: this is another server, or its log was reset")
	if len(visited) != 0 {
		t.Errorf("something of the other server was visited")
	}
}

// tell sends the positions of transactions.
func tell(to chan<- stream.Position) func(*stream.Transaction) error {
	return func(tx *stream.Transaction) error {
		if !tx.Idle {
			to <- tx.Position
		}
		return nil
	}
}

func TestASourceWithoutATransactionOfTheCheckpointIsRefused(t *testing.T) {
	m, other := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	for _, server := range []*testenv.MariaDB{m, other} { // both have the same numbers
		server.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "INSERT INTO d.t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (2)")
	}
	s := open(t, m)
	for _, id := range []string{"0-1-2", "0-1-3", "0-1-4"} {
		if err := s.HasTransaction(t.Context(), id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		refused(t, open(t, other).HasTransaction(t.Context(), id), "the server does not have GTID "+id+", which was read before: this is another server, or its log was reset")
	}
	refused(t, s.HasTransaction(t.Context(), "0-1-99"), "position 99 is after the end of the log")
	awaitNoDump(t, m)
	m.Exec("PURGE BINARY LOGS TO 'binlog.000002'")
	if err := s.HasTransaction(t.Context(), "0-1-2"); !errors.Is(err, stream.ErrPurged) {
		t.Error(err)
	}
}

// What failed at the source is in the log if it had an effect.
func TestAStatementThatFailedIsReadAsWhatItDid(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "CREATE TABLE d.u (id INT)")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db := m.Open("")
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE OR REPLACE TABLE d.t (id SERIAL, CHECK (id > 0), PRIMARY KEY (id))"); err == nil {
		t.Fatal("it has not failed")
	}
	all := collect(t, s, head)
	if d := all[0].DDL; len(all) != 1 || d == nil || d.Kind != stream.DropTable || !d.IfExists || d.Replaces || d.Text() != "DROP TABLE IF EXISTS `d`.`t`" {
		t.Errorf("%+v", d)
	}
	if tables, _, err := s.Tables(t.Context()); err != nil || fmt.Sprint(tables) != "[d.u]" {
		t.Error(tables, err)
	}
}

// CREATE OR REPLACE … SELECT drops a table before its query fails. The server logs that within a transaction that it rolls back.
func TestATableThatWasNotReplacedIsDropped(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	db := m.Open("")
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE OR REPLACE TABLE d.t (PRIMARY KEY (id)) SELECT 1 AS id UNION ALL SELECT 1"); err == nil {
		t.Fatal("it has not failed")
	}
	all := collect(t, s, head)
	if len(all) != 1 || all[0].DDL == nil || describeDDL(all[0].DDL) != "drop d.t" || !all[0].DDL.IfExists || len(all[0].Rows) > 0 {
		t.Errorf("%+v", all)
	}
}

// The server marks a CREATE OR REPLACE that has dropped a table as it marks one that used a temporary table.
func TestATableIsReplacedByOneLikeAnother(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT)", "CREATE TABLE d.b (n INT)")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.Exec("USE d", "CREATE OR REPLACE TABLE b LIKE a", "CREATE OR REPLACE TABLE b (x INT)",
		"SET binlog_format = MIXED", "CREATE TEMPORARY TABLE IF NOT EXISTS a (other INT)", "CREATE OR REPLACE TABLE b LIKE a")
	other := m.Open("d") // whose session knows nothing of it
	defer other.Close()
	if _, err := other.Exec("CREATE OR REPLACE TABLE b LIKE a"); err != nil {
		t.Fatal(err)
	}
	m.Exec("USE d", "SET binlog_format = MIXED", "CREATE TEMPORARY TABLE a (other INT)", "DROP TEMPORARY TABLE a", "CREATE OR REPLACE TABLE b LIKE a", "SET binlog_format = ROW")
	var found []string
	for _, tx := range collect(t, s, head) {
		if tx.DDL != nil && tx.DDL.Kind == stream.CreateTable {
			found = append(found, fmt.Sprintf("%s %t", describeDDL(tx.DDL), tx.DDL.Differs != ""))
		}
	}
	if want := "[create d.b reads d.a false create d.b false create d.b reads d.a true create d.b reads d.a false create d.b reads d.a false]"; fmt.Sprint(found) != want {
		t.Errorf("got %s, want %s", found, want)
	}
}

// A reader that has just connected has seen no transaction yet.
func TestAnotherDomainIsRefusedFromTheFirstTransactionOn(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d")
	s := open(t, m)
	connected := false
	err := s.Read(t.Context(), 1, func(tx *stream.Transaction) error {
		if !tx.Idle {
			t.Errorf("%s is visited", tx.ID)
		}
		if !connected {
			m.Exec("SET gtid_domain_id = 7, gtid_seq_no = 100; CREATE TABLE d.t (id INT)")
		}
		connected = true
		return nil
	})
	refused(t, err, "GTID 7-1-100 is of another replication domain than GTID 0-1-1 before it")
}

func TestAnIdleSourceSaysThatThereIsNothing(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)")
	began := time.Now()
	err := open(t, m).Read(t.Context(), 1, func(tx *stream.Transaction) error {
		switch {
		case !tx.Idle:
			return nil
		case tx.Position != 2 || tx.At.Before(began) || tx.DDL != nil || len(tx.Rows) > 0:
			t.Errorf("%+v", tx)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		t.Error(err)
	}
}

func TestALostConnectionSkipsAndRepeatsNothing(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(2000))")
	w := newWire(t, m.Address)
	s := openAt(t, m, w.address)
	head, _ := s.Head(t.Context())
	const last = 600
	go func() {
		db := m.Open("d")
		defer db.Close()
		for i := 1; i <= last; i++ {
			if _, err := db.Exec("INSERT INTO t VALUES (?, REPEAT('x', 2000))", i); err != nil {
				t.Error(err)
			}
		}
	}()
	next, cuts := head+1, 0
	err := s.Read(t.Context(), head, func(tx *stream.Transaction) error {
		if tx.Idle {
			return nil
		}
		if tx.Position != next {
			return fmt.Errorf("position %d came instead of %d", tx.Position, next)
		}
		if id := tx.Rows[0].Changes[0].After[0]; id != int64(next-head) {
			return fmt.Errorf("row %v came at %d", id, tx.Position)
		}
		next++
		if next%100 == 0 {
			w.cut(m.Address)
			cuts++
		}
		if next == head+last+1 {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || cuts < 5 {
		t.Fatal(err, cuts)
	}
}

func TestReadsEndAndLeaveNothingBehind(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "INSERT INTO d.t VALUES (1)")
	s, err := Open(Options{Address: m.Address, User: m.User, Password: m.Password, ServerID: 50})
	if err != nil {
		t.Fatal(err)
	}
	// What visit returns is returned.
	boom := errors.New("boom")
	if err := s.Read(t.Context(), 0, func(*stream.Transaction) error { return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
	// Several reads at once do not end each other, though they have one server id to begin with.
	ctx, cancel := context.WithCancel(t.Context())
	var reads sync.WaitGroup
	seen := make(chan stream.Position, 1000)
	for range 5 {
		reads.Go(func() {
			err := s.Read(ctx, 2, tell(seen))
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for range 5 {
		<-seen
	}
	m.Exec("INSERT INTO d.t VALUES (2)")
	for range 5 {
		if at := <-seen; at != 4 {
			t.Errorf("position %d was visited", at)
		}
	}
	started := time.Now()
	cancel()
	reads.Wait()
	if took := time.Since(started); took > time.Second {
		t.Errorf("reads took %v to end", took)
	}
	s.Close()
	awaitNoDump(t, m)
}

// awaitNoDump waits until the server sends its log to nobody. It notices that a reader has disconnected when it next sends something.
func awaitNoDump(t *testing.T, m *testenv.MariaDB) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); m.Value("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump'") != "0"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the server still sends its log to nobody")
		}
	}
}

func TestADeadServerIsWaitedForAndACancelledReadEnds(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)")
	s := open(t, m)
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan stream.Position, 10), make(chan error, 1)
	go func() {
		ended <- s.Read(ctx, 2, tell(seen))
	}()
	m.Exec("INSERT INTO d.t VALUES (1)")
	<-seen
	m.Kill()
	m.Start()
	m.Exec("INSERT INTO d.t VALUES (2)")
	if at := <-seen; at != 4 {
		t.Errorf("position %d came", at)
	}
	m.Stop()
	time.Sleep(100 * time.Millisecond)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestCompressedLogsAndTwoPhaseAltersAreRead(t *testing.T) {
	m := testenv.StartMariaDB(t, "--log-bin-compress=ON", "--log-bin-compress-min-len=10", "--binlog-alter-two-phase=ON")
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v TEXT)", "INSERT INTO d.t VALUES (1, REPEAT('abc', 1000))", "UPDATE d.t SET v = 'x'", "ALTER TABLE d.t ADD COLUMN w INT", "INSERT INTO d.t VALUES (2, 'y', 3)", "DELETE FROM d.t")
	var alters, rows int
	for _, tx := range collect(t, open(t, m), 0) {
		if tx.DDL != nil && tx.DDL.Kind == stream.AlterTable {
			alters++
			if !strings.HasSuffix(tx.DDL.Statement, "ALTER TABLE d.t ADD COLUMN w INT") {
				t.Error(tx.DDL.Statement)
			}
		}
		for _, r := range tx.Rows {
			rows += len(r.Changes)
		}
	}
	if alters != 1 || rows != 5 {
		t.Errorf("%d alters and %d rows", alters, rows)
	}
}

func TestCascadesAreNamed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.p (id INT PRIMARY KEY)", "CREATE TABLE d.c (id INT, CONSTRAINT f FOREIGN KEY (id) REFERENCES d.p (id) ON DELETE CASCADE)", "CREATE TABLE d.v (id INT) WITH SYSTEM VERSIONING")
	found, err := open(t, m).PartlyLogged(t.Context())
	if err != nil || len(found) != 2 || !strings.HasPrefix(found[0], "d.c: foreign key f changes rows by cascade") || !strings.HasPrefix(found[1], "d.v: it is system versioned") {
		t.Error(found, err)
	}
}
