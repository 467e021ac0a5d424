package mariadb

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// refused checks that an error says that the source is unusable, in some words.
func refused(t *testing.T, err error, words string) {
	t.Helper()
	if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), words) {
		t.Errorf("got %v\nwant … %s …", err, words)
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d")
	s := open(t, m)
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ set, reset, words string }{
		{"SET GLOBAL binlog_format=STATEMENT", "SET GLOBAL binlog_format=ROW", "binlog_format is STATEMENT: statements are logged instead of rows; set binlog_format=ROW"},
		{"SET GLOBAL binlog_row_image=MINIMAL", "SET GLOBAL binlog_row_image=FULL", "binlog_row_image is MINIMAL: rows are logged without all their columns; set binlog_row_image=FULL"},
		{"SET GLOBAL binlog_row_metadata=NO_LOG", "SET GLOBAL binlog_row_metadata=FULL", "binlog_row_metadata is NO_LOG: the names and types of columns are not logged; SET GLOBAL binlog_row_metadata=FULL"},
		{"SET gtid_domain_id=7; CREATE DATABASE other", "DO 0", "the log has several replication domains"},
	} {
		m.Exec(c.set)
		refused(t, s.Check(t.Context()), c.words)
		m.Exec(c.reset)
	}
	_, err := s.Head(t.Context())
	refused(t, err, "use one gtid_domain_id")
	refused(t, s.Read(t.Context(), 0, nil), "use one gtid_domain_id")
	m.Restart("--binlog-ignore-db=elsewhere")
	m.Exec("RESET MASTER")
	refused(t, s.Check(t.Context()), "binlog_ignore_db is elsewhere: the log lacks changes of schemas")
	m.Restart("--skip-log-bin")
	refused(t, s.Check(t.Context()), "log_bin is OFF: the server has no binary log; start it with --log-bin")
}

// What a replica replicates is not in its log unless it is told so.
func TestAReplicaThatDoesNotLogWhatItReplicatesIsRefused(t *testing.T) {
	m, r := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	r.Exec("CREATE DATABASE own", fmt.Sprintf("CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='%s', MASTER_PASSWORD='%s'", m.Port(), m.User, m.Password))
	s := open(t, r)
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.Exec("START SLAVE")
	refused(t, s.Check(t.Context()), "log_slave_updates is OFF, and it is a replica: what it replicates is not in its log; start the server with --log-slave-updates")
	r.Restart("--log-slave-updates")
	r.Exec("START SLAVE")
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMissingPrivilegesAreNamed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT)", "CREATE USER poor IDENTIFIED BY 'p'")
	// The server looks at privileges when a session begins.
	session := func() *Source {
		s, err := Open(Options{Address: m.Address, User: "poor", Password: "p"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	const remedy = "run GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO 'poor'"
	refused(t, session().Check(t.Context()), "user \"poor\" lacks a privilege to list binary logs; "+remedy)
	m.Exec("GRANT BINLOG MONITOR ON *.* TO poor")
	refused(t, session().Check(t.Context()), "user \"poor\" lacks a privilege to register as a replica; "+remedy)
	refused(t, session().Read(t.Context(), 0, nil), remedy)
	m.Exec("GRANT REPLICATION SLAVE ON *.* TO poor")
	refused(t, session().Check(t.Context()), "has no SELECT privilege on any table; "+remedy)
	m.Exec("GRANT SELECT ON d.* TO poor")
	s := session()
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if tables, at, err := s.Tables(t.Context()); err != nil || len(tables) != 1 || at != 6 {
		t.Error(tables, at, err)
	}
	wrong, err := Open(Options{Address: m.Address, User: "poor", Password: "wrong"})
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	refused(t, wrong.Check(t.Context()), "access is denied for user \"poor\"; check the password")
	_, err = Open(Options{Address: "nowhere"})
	refused(t, err, `source address "nowhere" is not of the form host:port`)
}

// Other tables are read on the same connection, for other changefeeds.
func TestALogThatLacksChangesStopsOnlyTheTablesConcerned(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)", "CREATE TABLE d.u (id INT PRIMARY KEY)", "CREATE TABLE d.fires (id INT PRIMARY KEY)", "CREATE VIEW d.seen AS SELECT * FROM d.u",
		"CREATE TRIGGER d.fire AFTER INSERT ON d.fires FOR EACH ROW INSERT INTO d.u VALUES (NEW.id)", "CREATE FUNCTION d.writes() RETURNS INT DETERMINISTIC BEGIN INSERT INTO d.u VALUES (77); RETURN 1; END")
	s := open(t, m)
	const statement = "SET binlog_format=STATEMENT; "
	for _, c := range []struct{ statements, words, tables string }{
		{statement + "INSERT INTO d.fires VALUES (1); SET binlog_format=ROW", "(INSERT INTO d.fires VALUES (1))", "[]"},
		{statement + "INSERT INTO d.seen VALUES (1000); SET binlog_format=ROW", "(INSERT INTO d.seen", "[]"},
		{statement + "UPDATE d.t SET v = d.writes(); SET binlog_format=ROW", "(UPDATE d.t SET v =", "[]"},
		{statement + "UPDATE d.t JOIN d.u USING (id) SET v = 5; SET binlog_format=ROW", "(UPDATE d.t JOIN", "[]"},
		{statement + "USE d; BEGIN; UPDATE t SET v = ABS(5); DELETE FROM u WHERE id = 4; COMMIT; SET binlog_format=ROW", "(UPDATE t SET v = ABS(5))", "[d.t d.u]"},
		{"SET binlog_format=STATEMENT; INSERT INTO d.t VALUES (1, 1); SET binlog_format=ROW", "is a statement that was logged instead of rows (INSERT INTO d.t VALUES (1, 1)): set binlog_format=ROW in every session", "[d.t]"},
		{"SET binlog_row_image=MINIMAL; INSERT INTO d.t VALUES (2, 1); UPDATE d.t SET v = 2 WHERE id = 2; SET binlog_row_image=FULL", "table d.t: a row is logged without all its columns; set binlog_row_image=FULL in every session", "[d.t]"},
		{"SET GLOBAL binlog_row_metadata=MINIMAL; FLUSH TABLES; INSERT INTO d.t VALUES (3, 1); SET GLOBAL binlog_row_metadata=FULL", "table d.t: its columns are logged without names", "[d.t]"},
	} {
		head, err := s.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m.Exec(c.statements)
		m.Exec("INSERT INTO d.u SELECT MAX(id) + 1 FROM d.u")
		all := collect(t, s, head)
		var found []*stream.DDL
		for _, tx := range all {
			if tx.DDL != nil && tx.DDL.Kind != stream.OtherDDL {
				found = append(found, tx.DDL)
			}
			for _, rows := range tx.Rows {
				if rows.DDL != nil {
					found = append(found, rows.DDL)
				}
			}
		}
		if len(found) != 1 || found[0].Kind != stream.UnreadableRows || fmt.Sprint(found[0].Tables) != c.tables || !strings.Contains(found[0].Statement, c.words) {
			t.Errorf("%s: %d, %+v", c.statements, len(found), found)
		}
		if last := all[len(all)-1]; len(last.Rows) != 1 || last.Rows[0].Table.Name != "u" || len(last.Rows[0].Changes) != 1 {
			t.Errorf("%s: %+v", c.statements, last)
		}
	}
}

// The server shows triggers and stored functions only to those who have privileges on them. What a user does not see may be there.
func TestAStatementMayDoWhatTheUserDoesNotSee(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)", "CREATE TABLE d.u (id INT PRIMARY KEY)", "CREATE TABLE d.fires (id INT PRIMARY KEY)",
		"CREATE TRIGGER d.fire AFTER INSERT ON d.fires FOR EACH ROW INSERT INTO d.u VALUES (NEW.id)", "CREATE FUNCTION d.writes() RETURNS INT DETERMINISTIC BEGIN INSERT INTO d.u VALUES (77); RETURN 1; END",
		"CREATE USER poor IDENTIFIED BY 'p'", "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO poor", "GRANT SELECT ON d.* TO poor")
	s, err := Open(Options{Address: m.Address, User: "poor", Password: "p", Raw: rawAll})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct{ grant, statement, tables string }{
		{"", "INSERT INTO d.fires VALUES (1)", "[]"},
		{"", "INSERT INTO d.t VALUES (1, 1)", "[]"},
		{"GRANT TRIGGER ON d.t TO poor", "INSERT INTO d.t VALUES (2, 1)", "[d.t]"},
		{"", "INSERT INTO d.fires VALUES (2)", "[]"},
		{"GRANT TRIGGER ON `d`.* TO poor", "INSERT INTO d.fires VALUES (3)", "[]"},
		{"", "DELETE FROM d.u WHERE id = 3", "[d.u]"},
		{"", "UPDATE d.t SET v = d.writes() WHERE id = 1", "[]"},
		{"", "UPDATE d.t SET v = ABS(5) WHERE id IN (1, 2) AND (v IS NULL OR (v > 0))", "[d.t]"},
		{"", "UPDATE d.t SET v = 0 * CRC32 (5)", "[]"},
		{"", "UPDATE d.t SET v = BENCHMARK(1, 1)", "[]"},
		{"GRANT SELECT, TRIGGER ON *.* TO poor", "UPDATE d.t SET v = BENCHMARK(2, 1)", "[d.t]"},
	} {
		if c.grant != "" {
			m.Exec(c.grant)
			s.db.SetMaxIdleConns(0) // sessions keep the privileges that they began with
			s.db.SetMaxIdleConns(1)
		}
		head, err := s.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m.Exec("SET binlog_format=STATEMENT; " + c.statement)
		var found []string
		for _, tx := range collect(t, s, head) {
			if tx.DDL != nil && tx.DDL.Unexecutable() {
				found = append(found, fmt.Sprint(tx.DDL.Tables))
			}
		}
		if fmt.Sprint(found) != "["+c.tables+"]" {
			t.Errorf("%s, %s: %v, want %s", c.grant, c.statement, found, c.tables)
		}
	}
}

// A transaction that is logged as statements may also have statements about temporary tables, which are DDL that carries no data.
func TestATemporaryTableHidesNoStatement(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "CREATE TABLE d.u (id INT PRIMARY KEY)")
	s := open(t, m)
	for statements, tables := range map[string]string{
		"BEGIN; INSERT INTO d.t VALUES (1); CREATE TEMPORARY TABLE d.tmp (id INT); COMMIT":                                     "[d.t]",
		"BEGIN; CREATE TEMPORARY TABLE d.tmp (id INT); INSERT INTO d.t VALUES (2); DROP TEMPORARY TABLE d.tmp; COMMIT":         "[d.t]",
		"BEGIN; INSERT INTO d.t VALUES (3); CREATE TEMPORARY TABLE d.tmp AS SELECT 1; INSERT INTO d.u VALUES (3); COMMIT":      "[d.t d.u]",
		"XA START 'x'; INSERT INTO d.t VALUES (4); CREATE TEMPORARY TABLE d.tmp (id INT); XA END 'x'; XA COMMIT 'x' ONE PHASE": "[d.t]",
		"BEGIN; CREATE TEMPORARY TABLE d.tmp (id INT); ANALYZE INSERT INTO d.t VALUES (5); COMMIT":                             "[]",
	} {
		head, err := s.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m.Exec("SET binlog_format=STATEMENT; " + statements)
		var found []string
		for _, tx := range collect(t, s, head) {
			if tx.DDL != nil && tx.DDL.Unexecutable() {
				found = append(found, fmt.Sprint(tx.DDL.Tables))
			}
		}
		if fmt.Sprint(found) != "["+tables+"]" {
			t.Errorf("%s: %v", statements, found)
		}
	}
}

// Only changefeeds of the tables that an XA transaction changes must stop.
func TestAPreparedXATransactionNamesItsTables(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "CREATE TABLE d.u (id INT PRIMARY KEY)")
	s := open(t, m)
	head, err := s.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m.Exec("XA START 'x'; INSERT INTO d.t VALUES (4); INSERT INTO d.u VALUES (4); XA END 'x'; XA PREPARE 'x'; XA COMMIT 'x'", "INSERT INTO d.t VALUES (5)")
	all := collect(t, s, head)
	d := all[0].DDL
	if d == nil || d.Kind != stream.UnreadableRows || fmt.Sprint(d.Tables) != "[d.t d.u]" || !strings.Contains(d.Statement, "is an XA transaction on table d.t that is prepared first and committed later") {
		t.Fatalf("%+v", all[0])
	}
	for _, tx := range all[:len(all)-1] {
		if len(tx.Rows) > 0 {
			t.Errorf("%+v", tx)
		}
	}
	if last := all[len(all)-1]; len(last.Rows) != 1 {
		t.Errorf("%+v", last)
	}
}

func TestSequenceNumbersThatDoNotIncreaseEndARead(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "SET GLOBAL gtid_strict_mode=OFF", "SET gtid_seq_no=100", "INSERT INTO d.t VALUES (1)", "SET gtid_seq_no=50", "INSERT INTO d.t VALUES (2)")
	s := open(t, m)
	for from, words := range map[stream.Position]string{
		2:   "GTID 0-1-50 comes after GTID 0-1-100: sequence numbers must increase",
		100: "position 100 is after the end of the log, GTID 0-1-50",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		err := s.Read(ctx, from, func(*stream.Transaction) error { return nil })
		cancel()
		refused(t, err, words)
	}
}
