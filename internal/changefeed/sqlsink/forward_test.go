package sqlsink_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// eachForm runs a test with rows written as text, and with rows forwarded.
func eachForm(t *testing.T, test func(t *testing.T, forward bool)) {
	t.Run("text", func(t *testing.T) { test(t, false) })
	t.Run("forwarded", func(t *testing.T) { test(t, true) })
}

// wasForwarded checks whether rows were forwarded.
func wasForwarded(t *testing.T, sink *sqlsink.Sink, want bool) {
	t.Helper()
	if n := sink.Forwarded(); n > 0 != want {
		t.Errorf("%d row changes were forwarded", n)
	}
}

// forwardingPipe forwards from one server to another.
func forwardingPipe(t *testing.T, a, b *testenv.MariaDB, batch int) (*pipe, *sqlsink.Sink) {
	t.Helper()
	sink := openSinkAs(t, b, true)
	return newPipe(openSourceAs(t, a, true), sink, stream.Epoch{Placement: 1}, batch), sink
}

func TestForwardedBatchesEndInTheSourcesState(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	makeWorkloadTables(a)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorkload(t, a, seed)
	p, sink := forwardingPipe(t, a, b, 1)
	for _, batch := range []int{1, 7, 50, 1000} {
		p.batch = batch
		before := sink.Forwarded()
		w.run(t, 400)
		p.sync(t)
		equal(t, a, b)
		if sink.Forwarded() == before {
			t.Errorf("nothing was forwarded in batches of %d transactions", batch)
		}
	}
}

// keyed are rows of a table that is forwarded.
const keyed = "CREATE TABLE w.keyed (id INT PRIMARY KEY, v VARCHAR(20), UNIQUE (v))"

func TestForwardedTypesArriveAsTheyAre(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	statements := []string{"CREATE DATABASE d CHARACTER SET utf8mb4"}
	forwarded := 0
	for n, s := range sampleTypes {
		statements = append(statements, fmt.Sprintf("CREATE TABLE d.t%d (id INT PRIMARY KEY, before_it BIGINT UNSIGNED, c %s, d %s, after_it INT)", n, s.typ, s.typ),
			fmt.Sprintf("INSERT INTO d.t%d VALUES (1, 5, %s, %s, -1), (2, NULL, %s, NULL, NULL), (3, 0, NULL, %s, 7)", n, s.low, s.high, s.high, s.low),
			fmt.Sprintf("UPDATE d.t%d SET c = %s, d = NULL, id = id + 10 WHERE id <> 2", n, s.high), fmt.Sprintf("DELETE FROM d.t%d WHERE id = 13", n))
		switch {
		case strings.Contains(s.typ, "ö"), strings.HasPrefix(s.typ, "INET"), strings.HasSuffix(s.typ, "COMPRESSED"), s.typ == "UUID", s.typ == "POINT", s.typ == "GEOMETRY":
		default:
			forwarded += 3 + 2 + 1
		}
	}
	a.Exec(statements...)
	p, sink := forwardingPipe(t, a, b, 100)
	p.sync(t)
	equal(t, a, b)
	if got := sink.Forwarded(); got != int64(forwarded) {
		t.Errorf("%d row changes were forwarded, want %d", got, forwarded)
	}
}

func TestForwardedEverythingThatATableMayHave(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec(append(everyType, "CREATE DATABASE w CHARACTER SET utf8mb4",
		// Foreign keys are not checked: tables are written one by one, in any order.
		"CREATE TABLE w.zparent (id INT PRIMARY KEY)", "CREATE TABLE w.achild (id INT PRIMARY KEY, of INT, FOREIGN KEY (of) REFERENCES w.zparent (id))",
		"BEGIN", "INSERT INTO w.zparent VALUES (1), (2)", "INSERT INTO w.achild VALUES (1, 1), (2, 2)", "COMMIT",
		// CHECK constraints were checked at the source, or not.
		"CREATE TABLE w.checked (id INT PRIMARY KEY, n INT CHECK (n > 0))", "SET check_constraint_checks=0", "INSERT INTO w.checked VALUES (1, -1)", "SET check_constraint_checks=1",
		// Zero is a value of an AUTO_INCREMENT column.
		"CREATE TABLE w.counted (id INT PRIMARY KEY AUTO_INCREMENT, v INT)", "SET sql_mode='NO_AUTO_VALUE_ON_ZERO'", "INSERT INTO w.counted VALUES (0, 1)", "SET sql_mode=DEFAULT", "INSERT INTO w.counted (v) VALUES (2), (3)",
		// Partitions, a key in another order than the columns, invisible columns, long names, times of their own.
		"CREATE TABLE w.parted (a INT, b INT, c INT INVISIBLE DEFAULT 3, PRIMARY KEY (b, a)) PARTITION BY HASH (a) PARTITIONS 3", "INSERT INTO w.parted (a, b) VALUES (1, 2), (2, 1), (3, 3)", "UPDATE w.parted SET a = a + 10",
		"CREATE TABLE w.`"+strings.Repeat("é", 64)+"` (`it's x` INT PRIMARY KEY)", "INSERT INTO w.`"+strings.Repeat("é", 64)+"` VALUES (1)",
		"CREATE TABLE w.timed (id INT PRIMARY KEY, at TIMESTAMP(6) DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6))", "INSERT INTO w.timed (id) VALUES (1), (2)", "UPDATE w.timed SET id = 3 WHERE id = 2",
		// A key of a part of a column, hidden hashes, generated columns, and no key are text.
		"CREATE TABLE w.prefixed (v VARCHAR(20), PRIMARY KEY (v(3)))", "INSERT INTO w.prefixed VALUES ('abcd')",
		"CREATE TABLE w.hashed (id INT PRIMARY KEY, v TEXT, UNIQUE (v))", "INSERT INTO w.hashed VALUES (1, 'long')", "UPDATE w.hashed SET id = 2",
		"CREATE TABLE w.made (id INT PRIMARY KEY, v INT AS (id + 1) STORED, w INT AS (id + 2) VIRTUAL)", "INSERT INTO w.made (id) VALUES (1)",
		"CREATE TABLE w.none (id INT)", "INSERT INTO w.none VALUES (1), (1)", "DELETE FROM w.none LIMIT 1",
	)...)
	p, sink := forwardingPipe(t, a, b, 3)
	p.sync(t)
	equal(t, a, b)
	if got := sink.Forwarded(); got != 2+2+1+1+2+3+3+1+2+1 {
		t.Errorf("%d row changes were forwarded", got)
	}
}

func TestAnAlteredTableIsCheckedAgain(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	p, sink := forwardingPipe(t, a, b, 100)
	step := func(forwarded int64, statements ...string) {
		t.Helper()
		before := sink.Forwarded()
		a.Exec(statements...)
		p.sync(t)
		equal(t, a, b)
		if got := sink.Forwarded() - before; got != forwarded {
			t.Errorf("after %s: %d row changes were forwarded, want %d", statements[0], got, forwarded)
		}
	}
	step(2, "CREATE DATABASE w", keyed, "INSERT INTO w.keyed VALUES (1, 'a'), (2, 'b')")
	step(3, "ALTER TABLE w.keyed ADD COLUMN n INT FIRST", "INSERT INTO w.keyed VALUES (1, 3, 'c')", "UPDATE w.keyed SET n = 2 WHERE id <> 3")
	step(0, "ALTER TABLE w.keyed DROP PRIMARY KEY", "INSERT INTO w.keyed VALUES (1, 4, 'd')")
	step(1, "ALTER TABLE w.keyed ADD PRIMARY KEY (id)", "INSERT INTO w.keyed VALUES (1, 5, 'e')")
	step(1, "TRUNCATE TABLE w.keyed", "INSERT INTO w.keyed VALUES (1, 5, 'e')")
	step(1, "RENAME TABLE w.keyed TO w.other", "DELETE FROM w.other")
	step(0, "ALTER TABLE w.other ADD COLUMN g INT AS (id + 1) STORED", "INSERT INTO w.other (id) VALUES (1)")
}

// A table that is the same except in the order of columns of one type must not be forwarded.
func TestATableWithAnotherOrderOfColumnsIsText(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY, y INT, x INT)")
	a.Exec("SET sql_log_bin=0", "CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY, x INT, y INT)", "SET sql_log_bin=1", "INSERT INTO w.t VALUES (1, 2, 3)")
	p, sink := forwardingPipe(t, a, b, 1)
	p.sync(t)
	if got := b.Value("SELECT CONCAT(x, y) FROM w.t"); got != "23" {
		t.Errorf("x and y are %s", got)
	}
	wasForwarded(t, sink, false)
}

// openSinkOf opens a forwarding sink with a user of its own, and the log of what it says.
func openSinkOf(t *testing.T, server *testenv.MariaDB, user, password string) (*sqlsink.Sink, *bytes.Buffer) {
	t.Helper()
	adopt(t, server)
	said := &bytes.Buffer{}
	s, err := sqlsink.Open(sqlsink.Options{Address: server.Address, User: user, Password: password, Changefeed: changefeed, Forward: true, Logger: slog.New(slog.NewTextHandler(said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, said
}

func TestWithoutThePrivilegeRowsAreText(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	b.Exec("CREATE USER writer IDENTIFIED BY 'p'", "GRANT ALL ON *.* TO writer", "REVOKE BINLOG REPLAY, SUPER ON *.* FROM writer")
	a.Exec("CREATE DATABASE w", keyed, "INSERT INTO w.keyed VALUES (1, 'a')")
	sink, said := openSinkOf(t, b, "writer", "p")
	newPipe(openSourceAs(t, a, true), sink, stream.Epoch{Placement: 1}, 1).sync(t)
	equal(t, a, b)
	wasForwarded(t, sink, false)
	if !strings.Contains(said.String(), "reason=MissingPrivilege") || !strings.Contains(said.String(), "run GRANT BINLOG REPLAY ON *.* TO 'writer' at the sink") {
		t.Error(said)
	}
}

// Rows need no privilege on their table, but the sink's own tables and DDL do.
func TestWithThePrivilegeRowsAreForwarded(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	b.Exec("CREATE USER writer IDENTIFIED BY 'p'", "GRANT ALL ON ebb.* TO writer", "GRANT BINLOG REPLAY, PROCESS ON *.* TO writer", "GRANT CREATE, SELECT ON w.* TO writer")
	a.Exec("CREATE DATABASE w", keyed, "INSERT INTO w.keyed VALUES (1, 'a')")
	sink, said := openSinkOf(t, b, "writer", "p")
	newPipe(openSourceAs(t, a, true), sink, stream.Epoch{Placement: 1}, 1).sync(t)
	equal(t, a, b)
	wasForwarded(t, sink, true)
	if strings.Contains(said.String(), "reason=") {
		t.Error(said)
	}
}

// The settings of a server may change at any time, and the fence reads them in the transaction of the rows.
func TestSettingsThatHideErrorsMakeRowsText(t *testing.T) {
	for _, setting := range []string{"slave_exec_mode=IDEMPOTENT", "slave_run_triggers_for_rbr=YES"} {
		t.Run(setting, func(t *testing.T) {
			a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
			a.Exec("CREATE DATABASE w", keyed, "INSERT INTO w.keyed VALUES (1, 'a')")
			sink, said := openSinkOf(t, b, b.User, b.Password)
			p := newPipe(openSourceAs(t, a, true), sink, stream.Epoch{Placement: 1}, 1)
			p.sync(t)
			wasForwarded(t, sink, true)
			before := sink.Forwarded()
			b.Exec("SET GLOBAL " + setting)
			defer b.Exec("SET GLOBAL slave_exec_mode=STRICT, slave_run_triggers_for_rbr=NO")
			for i := range 4 {
				a.Exec(fmt.Sprintf("INSERT INTO w.keyed VALUES (%d, '%d')", 10+i, i))
				p.sync(t)
			}
			equal(t, a, b)
			if n := sink.Forwarded() - before; n != 0 {
				t.Errorf("%d row changes were forwarded", n)
			}
			if !strings.Contains(said.String(), "reason=ServerSettings") {
				t.Error(said)
			}
		})
	}
}

// Rows that are not as they should be are refused by the server. Nothing of the transaction stays, and text says what it says without
// forwarding.
func TestRefusedRowsAreWrittenAsText(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", keyed, "CREATE TABLE w.also (id INT PRIMARY KEY)", "CREATE TABLE w.text (id INT)", "INSERT INTO w.keyed VALUES (1, 'a')", "INSERT INTO w.also VALUES (1)", "INSERT INTO w.text VALUES (1)")
	sink, said := openSinkOf(t, b, b.User, b.Password)
	p := newPipe(openSourceAs(t, a, true), sink, stream.Epoch{Placement: 1}, 1)
	p.sync(t)
	b.Exec("DELETE FROM w.keyed")
	before := sink.Forwarded()
	// One transaction over three tables, of which one cannot be forwarded, and which are written together; then changes of the others.
	a.Exec("BEGIN", "UPDATE w.keyed SET v = 'b'", "INSERT INTO w.also VALUES (2)", "INSERT INTO w.text VALUES (2)", "COMMIT", "INSERT INTO w.also VALUES (3)", "INSERT INTO w.keyed VALUES (2, 'c')")
	p.flushes = 1
	p.sync(t)
	equal(t, a, b)
	if !strings.Contains(said.String(), "rows could not be forwarded; the table is written as text") || !strings.Contains(said.String(), "table=w.keyed") || strings.Contains(said.String(), "table=w.also") {
		t.Error(said)
	}
	if n := sink.Forwarded() - before; n != 2 {
		t.Errorf("%d row changes were forwarded, want those of w.also", n)
	}
	// A row that exists already is an error, as without forwarding.
	b.Exec("INSERT INTO w.also VALUES (4)")
	a.Exec("INSERT INTO w.also VALUES (4)")
	head, _ := p.source.Head(t.Context())
	refused(t, p.copy(t.Context(), p.at, head), "a row that is new at the source exists at the sink already")
	if got := b.Value("SELECT COUNT(*) FROM w.also"); got != "4" {
		t.Errorf("w.also has %s rows", got)
	}
}

// collect reads rows of a table, as they were logged.
func collect(t *testing.T, source stream.Source, table string) (all []*stream.Rows) {
	t.Helper()
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = source.Read(t.Context(), 0, func(tx *stream.Transaction) error {
		for _, r := range tx.Rows {
			if r.Table.Name == table {
				all = append(all, r)
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
	return all
}

func TestAnOldOwnerForwardsNothing(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", keyed, "INSERT INTO w.keyed VALUES (1, 'a')", "INSERT INTO w.keyed VALUES (2, 'b')")
	b.Exec("CREATE DATABASE w", keyed)
	rows := collect(t, openSourceAs(t, a, true), "keyed")
	sink, ctx := openSinkAs(t, b, true), t.Context()
	table := rows[0].Table
	old, _, err := sink.Acquire(ctx, table.Since(0), stream.Epoch{Placement: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := old.Write(ctx, rows[:1], rows[0].Position); err != nil {
		t.Fatal(err)
	}
	fresh, at, err := sink.Acquire(ctx, table.Since(0), stream.Epoch{Placement: 2}, 0)
	if err != nil || at != rows[0].Position {
		t.Fatal(at, err)
	}
	if err := old.Write(ctx, rows[1:], rows[1].Position); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("an old owner wrote: %v", err)
	}
	if got := b.Value("SELECT COUNT(*) FROM w.keyed"); got != "1" {
		t.Errorf("%s rows", got)
	}
	// What is written again is skipped.
	if err := fresh.Write(ctx, rows, rows[1].Position); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Write(ctx, rows, rows[1].Position); err != nil {
		t.Fatal(err)
	}
	equal(t, a, b)
	wasForwarded(t, sink, true)
}

// A sink with a log of its own logs what is forwarded as its own transactions.
func TestForwardedRowsAreLoggedAsTheSinksOwn(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=77")
	a.Exec("CREATE DATABASE w", keyed)
	p, sink := forwardingPipe(t, a, b, 1)
	p.sync(t)
	a.Exec("INSERT INTO w.keyed VALUES (1, 'a')")
	p.sync(t)
	wasForwarded(t, sink, true)
	if got := b.Value("SELECT @@GLOBAL.gtid_binlog_pos"); !strings.HasPrefix(got, "0-77-") {
		t.Errorf("the sink is at GTID %s", got)
	}
	again := testenv.StartMariaDB(t)
	newPipe(openSourceAs(t, b, false), openSinkAs(t, again, false), stream.Epoch{Placement: 1}, 1)
	rows := collect(t, openSourceAs(t, b, false), "keyed")
	if len(rows) != 1 || len(rows[0].Changes) != 1 {
		t.Errorf("the sink logged %v", rows)
	}
}

func TestCompressedEventsAndLongBatchesAreText(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--max-allowed-packet=1M")
	p, sink := forwardingPipe(t, a, b, 5)
	a.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY, v TEXT)", "SET GLOBAL log_bin_compress=ON", "USE w", "INSERT INTO w.t SELECT seq, REPEAT('x', 500) FROM seq_1_to_10", "UPDATE w.t SET v = REPEAT('y', 300)", "DELETE FROM w.t WHERE id = 1")
	defer a.Exec("SET GLOBAL log_bin_compress=OFF")
	p.sync(t)
	equal(t, a, b)
	wasForwarded(t, sink, false)
	// In one transaction, some events of which are compressed.
	a.Exec("SET GLOBAL log_bin_compress=OFF")
	a.Exec("USE w", "INSERT INTO w.t VALUES (100, 'short')", "BEGIN", "INSERT INTO w.t SELECT seq, 'plain' FROM seq_200_to_205", "UPDATE w.t SET v = 'z'", "COMMIT")
	p.sync(t)
	equal(t, a, b)
	wasForwarded(t, sink, true)
	before := sink.Forwarded()
	// Longer than a message of the sink.
	a.Exec("USE w", "INSERT INTO w.t SELECT seq, REPEAT('l', 3000) FROM seq_1000_to_1400")
	p.sync(t)
	equal(t, a, b)
	if n := sink.Forwarded() - before; n != 0 {
		t.Errorf("%d row changes were forwarded", n)
	}
}

// A transaction that rolls back to a savepoint has rows in its log that do not count.
func TestRolledBackSavepointsAreNotForwarded(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", keyed, "CREATE TABLE w.tail (id INT PRIMARY KEY)", "CREATE DATABASE elsewhere", "CREATE TABLE elsewhere.plain (id INT PRIMARY KEY) ENGINE=MyISAM")
	p, _ := forwardingPipe(t, a, b, 1)
	p.sync(t)
	b.Exec("ALTER TABLE elsewhere.plain ENGINE=InnoDB")
	a.Exec("BEGIN", "INSERT INTO w.keyed VALUES (1, 'a')", "SAVEPOINT s", "INSERT INTO w.keyed VALUES (2, 'b')", "INSERT INTO w.tail VALUES (1)", "INSERT INTO elsewhere.plain VALUES (1)", "ROLLBACK TO s", "INSERT INTO w.keyed VALUES (3, 'c')", "COMMIT")
	p.sync(t)
	for _, table := range []string{"w.keyed", "w.tail"} {
		if x, y := a.Value("SELECT CONCAT(COUNT(*), ' ', COALESCE(SUM(id), 0)) FROM "+table), b.Value("SELECT CONCAT(COUNT(*), ' ', COALESCE(SUM(id), 0)) FROM "+table); x != y {
			t.Errorf("%s: %s at the source, %s at the sink", table, x, y)
		}
	}
}

// The server of the sink does not verify checksums, so the reader does.
func TestADamagedLogIsNotForwarded(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE w", keyed, "INSERT INTO w.keyed VALUES (1, 'undamaged')", "INSERT INTO w.keyed VALUES (2, 'to be damaged')", "FLUSH BINARY LOGS")
	files, err := filepath.Glob(filepath.Join(a.Data, "*.000001"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	a.Stop()
	// The value is in the statement that annotates the rows, too: the last one is that of the rows.
	at := bytes.LastIndex(data, []byte("to be damaged"))
	data[at] ^= 0x20
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	a.Start()
	p, _ := forwardingPipe(t, a, b, 1)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	refused(t, p.copy(ctx, 0, ^stream.Position(0)), "an event of the log has a wrong checksum")
	if got := b.Value("SELECT GROUP_CONCAT(v) FROM w.keyed"); got != "undamaged" {
		t.Errorf("the sink has %s", got)
	}
}

// Forwarding is switched on and off between batches, by other owners.
func TestSwitchingFormsLosesAndDoublesNothing(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	makeWorkloadTables(a)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorkload(t, a, seed)
	at := stream.Position(0)
	for round := range 6 {
		w.run(t, 100)
		p := newPipe(openSourceAs(t, a, round%2 == 0), openSinkAs(t, b, round%3 != 1), stream.Epoch{Placement: int64(round + 1)}, 20)
		p.at = at
		p.sync(t)
		at = p.at
		equal(t, a, b)
	}
}
