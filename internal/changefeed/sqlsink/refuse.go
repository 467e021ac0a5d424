package sqlsink

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// refuseTable returns ErrUnusable for a table whose rows could differ from those of the source in silence:
//
//   - triggers at the sink change rows that are replicated anyway;
//   - an engine without transactions keeps rows of a batch whose position was not recorded, and those of a fenced owner;
//   - rows that a foreign key changes by cascade are not in the log of the source, so that such tables must be written together;
//   - a table with system versioning keeps rows that were changed, with the times of its own server.
//
// A table that does not exist is not refused: DDL may create it.
func (s *Sink) refuseTable(ctx context.Context, by reader, table stream.Table, together bool) error {
	var engine, kind string
	var transactions bool
	var trigger, cascade sql.NullString
	err := by.QueryRowContext(ctx, `SELECT t.TABLE_TYPE, COALESCE(t.ENGINE, ''), COALESCE(e.TRANSACTIONS = 'YES', FALSE),
		(SELECT MIN(TRIGGER_NAME) FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ?),
		(SELECT MIN(CONSTRAINT_NAME) FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = ? AND TABLE_NAME = ?
			AND (DELETE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT')))
		FROM information_schema.TABLES t LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE WHERE t.TABLE_SCHEMA = ? AND t.TABLE_NAME = ?`,
		table.Schema, table.Name, table.Schema, table.Name, table.Schema, table.Name).Scan(&kind, &engine, &transactions, &trigger, &cascade)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case trigger.Valid:
		return s.unusable("table %s has trigger %s, which would change rows that are replicated anyway; DROP TRIGGER %s.%s at the sink, or exclude the table by the filter",
			table, trigger.String, name(table.Schema), name(trigger.String))
	case !transactions && engine != "":
		return s.unusable("table %s has the engine %s, which has no transactions, so that its rows could be written twice; ALTER TABLE %s ENGINE=InnoDB at the source and at the sink, or exclude the table by the filter",
			table, engine, full(table))
	case kind == "SYSTEM VERSIONED":
		return s.unusable("table %s has system versioning, and the history of its rows cannot be written; ALTER TABLE %s DROP SYSTEM VERSIONING at the source and at the sink, or exclude the table by the filter", table, full(table))
	case cascade.Valid && !together:
		return s.unusable("table %s has foreign key %s, which changes rows by cascade, and was added at the sink by somebody else; pause and resume the changefeed, so that the tables are written together", table, cascade.String)
	}
	return nil
}

// firedTrigger is the error of a write that has executed a trigger, and was rolled back.
func (s *Sink) firedTrigger(ctx context.Context, table stream.Table) error {
	if err := s.refuseTable(ctx, s.db, table, true); err != nil {
		return err
	}
	return s.unusable("a trigger was executed when table %s was written, which would change rows that are replicated anyway; DROP TRIGGER at the sink", table)
}

// refuseShared returns ErrUnusable if another changefeed writes the table. One of the same name is an earlier one that was removed: a node of it
// that was frozen then may still want to write, and is refused from now on.
func (s *Sink) refuseShared(ctx context.Context, tx *sql.Tx, table stream.Table) error {
	var found string
	var other bool
	of := feedName(s.options.Changefeed) + "/"
	err := tx.QueryRowContext(ctx, "SELECT feed, LEFT(feed, ?) <> ? AS other FROM "+s.progress+" WHERE table_schema = ? AND table_name = ? AND feed <> ? AND (placement >= 0 OR LEFT(feed, ?) <> ?) ORDER BY other DESC LIMIT 1",
		len(of), of, table.Schema, table.Name, s.options.Changefeed, len(of), of).Scan(&found, &other)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	case other:
		return s.unusable("table %s is written by changefeed %s, and two would overwrite each other's rows; exclude the table from one of them by its filter; "+
			"if that changefeed was removed, DELETE FROM %s WHERE feed = '%s'", table, feedName(found), s.progress, found)
	}
	_, err = tx.ExecContext(ctx, "UPDATE "+s.progress+" SET placement = ?, counter = 0 WHERE table_schema = ? AND table_name = ? AND feed <> ? AND placement >= 0", over, table.Schema, table.Name, s.options.Changefeed)
	return err
}

// LowerCaseTableNames is how the server compares the names of tables.
func (s *Sink) LowerCaseTableNames(ctx context.Context) (string, error) {
	var value string
	err := s.db.QueryRowContext(ctx, "SELECT @@GLOBAL.lower_case_table_names").Scan(&value)
	return value, s.wrap("read lower_case_table_names", err)
}
