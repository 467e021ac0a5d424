package mariadb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// required are the variables without which the log lacks what is needed.
var required = []struct{ variable, value, why string }{
	{"log_bin", "1", "the server has no binary log; start it with --log-bin"},
	{"binlog_format", "ROW", "statements are logged instead of rows; set binlog_format=ROW and restart, so that every session has it"},
	{"binlog_row_image", "FULL", "rows are logged without all their columns; set binlog_row_image=FULL and restart, so that every session has it"},
	{"binlog_row_metadata", "FULL", "the names and types of columns are not logged; SET GLOBAL binlog_row_metadata=FULL"},
}

// oldestMajor and oldestMinor are the oldest version that is supported.
const oldestMajor, oldestMinor = 10, 6

// Check implements stream.Source.
func (s *Source) Check(ctx context.Context) error {
	if err := s.checkVersion(ctx); err != nil {
		return err
	}
	for _, r := range required {
		value, err := s.variable(ctx, r.variable)
		if err != nil {
			return err
		}
		if value != r.value {
			return s.unusable("%s is %s: %s", r.variable, shown(value), r.why)
		}
	}
	if _, err := s.logState(ctx); err != nil {
		return err
	}
	if err := s.checkPrivileges(ctx); err != nil {
		return err
	}
	return s.checkWholeLog(ctx)
}

// checkWholeLog refuses a server that leaves schemas out of its log: those that are named, and for DDL also what sessions execute that have one
// of them as their default.
func (s *Source) checkWholeLog(ctx context.Context) error {
	var file, position, only, without string
	if err := s.db.QueryRowContext(ctx, "SHOW MASTER STATUS").Scan(&file, &position, &only, &without); err != nil {
		return s.wrap("read the status of the log", err)
	}
	for _, f := range []struct{ option, schemas string }{{"binlog_do_db", only}, {"binlog_ignore_db", without}} {
		if f.schemas != "" {
			return s.unusable("%s is %s: the log lacks changes of schemas, and DDL of sessions by their default schema; "+
				"remove %s from the configuration of the server and restart it, start again from a copy taken after that, and exclude tables by the filter instead", f.option, f.schemas, f.option)
		}
	}
	return s.checkReplicated(ctx)
}

// checkReplicated refuses a replica, or a node of a cluster, whose log lacks what other servers execute.
func (s *Source) checkReplicated(ctx context.Context) error {
	if logs, err := s.variable(ctx, "log_slave_updates"); err != nil || logs == "1" {
		return err
	}
	for _, c := range []struct{ query, harmless, what string }{
		{"SHOW GLOBAL STATUS LIKE 'Slaves_running'", "0", "it is a replica: what it replicates"},
		{"SHOW GLOBAL VARIABLES LIKE 'wsrep_on'", "OFF", "it is a node of a cluster: what other nodes execute"},
	} {
		var name, value string
		err := s.db.QueryRowContext(ctx, c.query).Scan(&name, &value)
		switch {
		case errors.Is(err, sql.ErrNoRows) || err == nil && value == c.harmless:
		case err != nil:
			return s.wrap("find out whether the server is a replica", err)
		default:
			return s.unusable("log_slave_updates is OFF, and %s is not in its log; start the server with --log-slave-updates and start again from a copy taken after that, or use the server that it replicates from", c.what)
		}
	}
	return nil
}

// shown is a value as people write it.
func shown(value string) string {
	switch value {
	case "0":
		return "OFF"
	case "":
		return "empty"
	}
	return value
}

func (s *Source) variable(ctx context.Context, name string) (string, error) {
	var value sql.NullString
	if err := s.db.QueryRowContext(ctx, "SELECT @@GLOBAL."+name).Scan(&value); err != nil {
		return "", s.wrap("read "+name, err)
	}
	return value.String, nil
}

// LowerCaseTableNames is how the server compares the names of tables.
func (s *Source) LowerCaseTableNames(ctx context.Context) (string, error) {
	return s.variable(ctx, "lower_case_table_names")
}

func (s *Source) checkVersion(ctx context.Context) error {
	var version string
	if err := s.db.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return s.wrap("read the version", err)
	}
	if problem := versionProblem(version); problem != "" {
		return s.unusable("%s", problem)
	}
	return nil
}

// versionProblem is why a version is not supported; empty if it is.
func versionProblem(version string) string {
	if !strings.Contains(strings.ToLower(version), "mariadb") {
		return fmt.Sprintf("version %s is not MariaDB, and GTIDs of MySQL are not totally ordered; use MariaDB %d.%d or newer as the source", version, oldestMajor, oldestMinor)
	}
	numbers := strings.SplitN(version, ".", 3)
	// Old replication clients made MariaDB put 5.5.5- before its version.
	if strings.HasPrefix(version, "5.5.5-") {
		numbers = strings.SplitN(version[len("5.5.5-"):], ".", 3)
	}
	if len(numbers) < 2 {
		return fmt.Sprintf("version %q cannot be parsed; MariaDB %d.%d or newer is required", version, oldestMajor, oldestMinor)
	}
	major, err1 := strconv.Atoi(numbers[0])
	minor, err2 := strconv.Atoi(numbers[1])
	if err := errors.Join(err1, err2); err != nil || major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Sprintf("version %s is too old; MariaDB %d.%d or newer is required", version, oldestMajor, oldestMinor)
	}
	return ""
}

// checkPrivileges does what a read will do: it lists the files of the log, registers as a replica, and reads information_schema.
func (s *Source) checkPrivileges(ctx context.Context) error {
	if _, err := s.oldest(ctx); err != nil {
		return err
	}
	if err := s.tryDump(ctx); err != nil {
		return err
	}
	var sees bool
	if err := s.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'SELECT')
		OR EXISTS (SELECT 1 FROM information_schema.SCHEMA_PRIVILEGES WHERE PRIVILEGE_TYPE = 'SELECT')
		OR EXISTS (SELECT 1 FROM information_schema.TABLE_PRIVILEGES WHERE PRIVILEGE_TYPE = 'SELECT')
		OR EXISTS (SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA NOT IN `+systemSchemas+`)`).Scan(&sees); err != nil {
		return s.wrap("read the privileges", err)
	}
	if !sees {
		return s.unusable("user %q has no SELECT privilege on any table; %s", s.options.User, s.grant())
	}
	return nil
}
