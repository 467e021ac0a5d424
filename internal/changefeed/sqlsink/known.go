package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Known are the tables that this changefeed has written and that exist. A table that the source has renamed or dropped since is
// among them until that DDL is executed at the sink.
func (s *Sink) Known(ctx context.Context) ([]stream.Table, error) {
	if _, err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return s.list(ctx, "SELECT p.table_schema, p.table_name FROM "+s.progress+" p JOIN information_schema.tables t"+
		" ON t.table_schema = p.table_schema AND t.table_name = p.table_name WHERE p.feed = ? AND p.placement >= 0"+
		" UNION SELECT p.table_schema, p.table_name FROM "+s.snapshots+" p JOIN information_schema.tables t"+
		" ON t.table_schema = p.table_schema AND t.table_name = p.table_name WHERE p.changefeed = ? AND p.made", s.options.Changefeed, s.options.Changefeed)
}

// TablePosition is the position that the sink has recorded for a table; ok is false if there is none, or the table does not exist.
func (s *Sink) TablePosition(ctx context.Context, t stream.Table) (at stream.Position, ok bool, err error) {
	if _, err := s.prepare(ctx); err != nil {
		return 0, false, err
	}
	err = s.db.QueryRowContext(ctx, "SELECT p.position FROM "+s.progress+" p JOIN information_schema.tables t ON t.table_schema = p.table_schema AND t.table_name = p.table_name"+
		" WHERE p.feed = ? AND p.table_schema = ? AND p.table_name = ? AND p.placement >= 0 AND t.table_schema = ? AND t.table_name = ?",
		s.options.Changefeed, t.Schema, t.Name, t.Schema, t.Name).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return at, err == nil, s.wrap("read the position of table "+t.String(), err)
}

// AdvanceTo records a later position, and the transaction there, for the checkpoint and all tables: what comes before it is not written any
// more.
func (s *Sink) AdvanceTo(ctx context.Context, to stream.Position, transaction string) error {
	if _, err := s.prepare(ctx); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return s.wrap("record position "+transaction, err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, "UPDATE "+s.progress+" SET position = ?, part = 0 WHERE feed = ? AND position < ? AND placement >= 0 AND table_name <> ''",
		uint64(to), s.options.Changefeed, uint64(to)); err != nil {
		return s.wrap("record position "+transaction, err)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+s.progress+" SET position = ?, gtid = ?"+ofCheckpoint+" AND position < ?", uint64(to), transaction, s.options.Changefeed, uint64(to)); err != nil {
		return s.wrap("record position "+transaction, err)
	}
	return s.wrap("record position "+transaction, tx.Commit())
}

// RecordPosition is the statement that records the position of a table that was copied. POSITION stands for the number.
func (s *Sink) RecordPosition(t stream.Table) string {
	values := quote([]byte{}, s.options.Changefeed)
	values = quote(append(values, ", "...), t.Schema)
	values = quote(append(values, ", "...), t.Name)
	where := quote([]byte(" WHERE feed = "), s.options.Changefeed)
	where = quote(append(where, " AND table_schema = "...), t.Schema)
	where = quote(append(where, " AND table_name = "...), t.Name)
	return "REPLACE INTO " + s.progress + " (feed, table_schema, table_name, since, placement, counter, position) SELECT " + string(values) + ", COALESCE(MAX(since), 0), 0, 0, POSITION FROM " + s.progress + string(where)
}

// Holders are which tables have the names that tables of this changefeed have had.
func (s *Sink) Holders(ctx context.Context) (map[stream.Table]stream.Holder, error) {
	if _, err := s.prepare(ctx); err != nil {
		return nil, err
	}
	return s.holders(ctx, " WHERE feed = ? AND table_name <> ''", s.options.Changefeed)
}

// HoldersOf are which tables have some names.
func (s *Sink) HoldersOf(ctx context.Context, names []stream.Table) (map[stream.Table]stream.Holder, error) {
	if _, err := s.prepare(ctx); err != nil {
		return nil, err
	}
	all := map[stream.Table]stream.Holder{}
	for _, t := range names {
		one, err := s.holders(ctx, ofName, s.options.Changefeed, t.Schema, t.Name)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, one)
	}
	return all, nil
}

func (s *Sink) holders(ctx context.Context, where string, args ...any) (map[stream.Table]stream.Holder, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT table_schema, table_name, since, placement, position FROM "+s.progress+where+" ORDER BY since", args...)
	if err != nil {
		return nil, s.wrap("read which tables have their names", err)
	}
	defer rows.Close()
	all := map[stream.Table]stream.Holder{}
	for rows.Next() {
		var t stream.Table
		var st state
		if err := rows.Scan(&t.Schema, &t.Name, &st.since, &st.epoch.Placement, &st.position); err != nil {
			return nil, s.wrap("read which tables have their names", err)
		}
		all[t] = st.holder()
	}
	return all, s.wrap("read which tables have their names", rows.Err())
}

// list reads the names of tables.
func (s *Sink) list(ctx context.Context, query string, args ...any) ([]stream.Table, error) {
	return s.listBy(ctx, s.db, query, args...)
}

// querier is a pool or one session.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (s *Sink) listBy(ctx context.Context, by querier, query string, args ...any) ([]stream.Table, error) {
	rows, err := by.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, s.wrap("list tables", err)
	}
	defer rows.Close()
	var list []stream.Table
	for rows.Next() {
		var t stream.Table
		if err := rows.Scan(&t.Schema, &t.Name); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, rows.Err()
}

// DDLExecuted reports whether the DDL at a position has been executed.
func (s *Sink) DDLExecuted(ctx context.Context, position stream.Position) (bool, error) {
	_, done, err := s.ddlState(ctx, position)
	return done, err
}

// DDLBegun reports whether the DDL at a position may have been executed.
func (s *Sink) DDLBegun(ctx context.Context, position stream.Position) (bool, error) {
	begun, _, err := s.ddlState(ctx, position)
	return begun, err
}

func (s *Sink) ddlState(ctx context.Context, position stream.Position) (begun, done bool, err error) {
	if _, err := s.prepare(ctx); err != nil {
		return false, false, err
	}
	err = s.db.QueryRowContext(ctx, "SELECT done FROM "+s.intents+" WHERE changefeed = ? AND position = ?", s.options.Changefeed, uint64(position)).Scan(&done)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, nil
	}
	if err != nil {
		return false, false, fmt.Errorf("sink %s: read whether the DDL at position %d is executed: %w", s.options.Address, position, err)
	}
	return true, done, nil
}

// Present are all tables and sequences that exist, without those of the server and the sink's own.
func (s *Sink) Present(ctx context.Context) ([]stream.Table, error) {
	return s.list(ctx, "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type IN ('BASE TABLE', 'SEQUENCE', 'SYSTEM VERSIONED')"+
		" AND table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys')"+
		" AND NOT (table_schema = ? AND table_name IN ('progress', 'ddl', 'incarnation', 'snapshot'))", s.options.Schema)
}

// BaseTables are those of some tables that exist and are no sequences.
func (s *Sink) BaseTables(ctx context.Context, names []stream.Table) ([]stream.Table, error) {
	var all []stream.Table
	for _, t := range names {
		one, err := s.list(ctx, "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = ? AND table_name = ? AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')", t.Schema, t.Name)
		if err != nil {
			return nil, err
		}
		if len(one) > 0 {
			all = append(all, t)
		}
	}
	return all, nil
}
