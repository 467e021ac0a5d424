package sqlsink

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

var (
	_ snapshot.Sink   = (*Sink)(nil)
	_ snapshot.Writer = (*writer)(nil)
)

// createSnapshots has a row for every table of the plan, and one without names for the plan itself.
const createSnapshots = `CREATE TABLE IF NOT EXISTS %s (
	changefeed VARBINARY(512) NOT NULL,
	table_schema VARBINARY(256) NOT NULL,
	table_name VARBINARY(256) NOT NULL,
	position BIGINT UNSIGNED NOT NULL COMMENT 'at which the tables were as they are planned',
	made BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'the table was created at the sink',
	begun BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'rows are there; before, changes are dropped',
	done BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'all rows are there',
	last_key LONGBLOB COMMENT 'the key of the last row that is there',
	row_count BIGINT NOT NULL DEFAULT 0,
	estimate BIGINT NOT NULL DEFAULT 0,
	definition LONGBLOB NOT NULL,
	PRIMARY KEY (changefeed, table_schema, table_name)
) ENGINE=InnoDB COMMENT='initial copy of each table; written by ebb'`

// SnapshotPosition implements snapshot.Sink.
func (s *Sink) SnapshotPosition(ctx context.Context) (at stream.Position, ok bool, err error) {
	if _, err := s.prepare(ctx); err != nil {
		return 0, false, err
	}
	err = s.db.QueryRowContext(ctx, "SELECT position FROM "+s.snapshots+" WHERE changefeed = ? AND table_schema = '' AND table_name = ''", s.options.Changefeed).Scan(&at)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return at, err == nil, s.wrap("read the plan of the snapshot", err)
}

// SaveSnapshotPlan implements snapshot.Sink. What is refused is refused before anything is created.
func (s *Sink) SaveSnapshotPlan(ctx context.Context, p *snapshot.Plan) error {
	if _, err := s.prepare(ctx); err != nil {
		return err
	}
	present, err := s.Present(ctx)
	if err != nil {
		return err
	}
	exists := map[stream.Table]bool{}
	for _, t := range present {
		exists[t] = true
	}
	for i := range p.Tables {
		if exists[p.Tables[i].Table] {
			if err := s.refuseTarget(ctx, s.db, p.Tables[i].Table, p.Tables[i].Create); err != nil {
				return err
			}
		}
	}
	for _, schema := range p.Schemas {
		if err := s.refuseSchema(ctx, schema); err != nil {
			return err
		}
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return s.wrap("save the plan of the snapshot", err)
	}
	defer tx.Rollback()
	insert := func(t stream.Table, estimate int64, text string) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO "+s.snapshots+" (changefeed, table_schema, table_name, position, estimate, definition) VALUES (?, ?, ?, ?, ?, ?)",
			s.options.Changefeed, t.Schema, t.Name, uint64(p.Position), estimate, text)
		return s.wrap("save the plan of the snapshot", err)
	}
	var schemas []string
	for _, schema := range p.Schemas {
		schemas = append(schemas, "CREATE DATABASE IF NOT EXISTS "+name(schema.Name)+" CHARACTER SET "+schema.Charset+" COLLATE "+schema.Collation)
	}
	if err := insert(stream.Table{}, 0, strings.Join(schemas, ";")); err != nil {
		return err
	}
	for i := range p.Tables {
		if err := insert(p.Tables[i].Table, p.Tables[i].Rows, p.Tables[i].Create); err != nil {
			return err
		}
	}
	return s.wrap("save the plan of the snapshot", tx.Commit())
}

// refuseTarget returns ErrUnusable if a table that exists has rows, or is not as it is at the source.
func (s *Sink) refuseTarget(ctx context.Context, by reader, t stream.Table, create string) error {
	var rows bool
	if err := by.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+full(t)+")").Scan(&rows); err != nil {
		return s.wrap("read table "+t.String(), err)
	}
	what, definition := "TABLE ", ""
	if strings.HasPrefix(create, "CREATE SEQUENCE ") {
		what, rows = "SEQUENCE ", false
	}
	if rows {
		return s.unusable("table %s has rows at the sink, and a snapshot is copied to empty tables only; DROP TABLE %s there, exclude the table by the filter, or create the changefeed without a snapshot", t, full(t))
	}
	var ignored string
	err := by.QueryRowContext(ctx, snapshot.ShowCreate+what+full(t)).Scan(&ignored, &definition)
	var e *mysql.MySQLError
	if err != nil && !errors.As(err, &e) {
		return s.wrap("read the definition of table "+t.String(), err)
	}
	if err != nil || autoIncrement.ReplaceAllString(snapshot.Executable(definition), "") != autoIncrement.ReplaceAllString(create, "") {
		return s.unusable("table %s exists at the sink and is not as it is at the source; DROP TABLE %s there, so that the snapshot makes it", t, full(t))
	}
	return nil
}

// reader is a pool, a session or a transaction.
type reader interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// refuseSchema returns ErrUnusable if a schema has other defaults at the sink: tables that are created later would have them.
func (s *Sink) refuseSchema(ctx context.Context, schema snapshot.Schema) error {
	var collation string
	err := s.db.QueryRowContext(ctx, "SELECT DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = ?", schema.Name).Scan(&collation)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return s.wrap("read the schemas", err)
	case collation != schema.Collation:
		return s.unusable("database %s has the default collation %s at the sink, and %s at the source; ALTER DATABASE %s CHARACTER SET %s COLLATE %s at the sink", schema.Name, collation, schema.Collation, name(schema.Name), schema.Charset, schema.Collation)
	}
	return nil
}

// MakeSnapshotTables implements snapshot.Sink. A lock proves that the session of an earlier maintainer has ended, which could otherwise
// create a table again later that DDL of the source has dropped meanwhile.
func (s *Sink) MakeSnapshotTables(ctx context.Context, f stream.Filter) error {
	return s.makeSnapshotTables(ctx, f.Allows)
}

// makeSnapshotTables makes the tables of the plan that are wanted, by the names that they have at the sink.
func (s *Sink) makeSnapshotTables(ctx context.Context, wanted func(stream.Table) bool) error {
	if _, err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.forgetOutside(ctx, wanted); err != nil {
		return err
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.wrap("connect", err)
	}
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // it has a lock and other settings
		conn.Close()
	}()
	// Schemas first, then sequences: defaults of tables may refer to them.
	missing, err := s.listBy(ctx, conn, "SELECT table_schema, table_name FROM "+s.snapshots+" WHERE changefeed = ? AND NOT made ORDER BY table_name <> '', definition NOT LIKE 'CREATE SEQUENCE %', table_schema, table_name", s.options.Changefeed)
	if err != nil || len(missing) == 0 {
		return err
	}
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = 10"); err != nil {
		return s.wrap("create tables", err)
	}
	for {
		var got sql.NullInt64
		if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 2)", lockName("snapshot of "+s.options.Changefeed)).Scan(&got); err != nil {
			return s.wrap("lock the snapshot", err)
		}
		if got.Int64 == 1 {
			break
		}
	}
	for _, t := range missing {
		if err := s.makeTable(ctx, conn, t); err != nil {
			return err
		}
	}
	return nil
}

// forgetOutside removes from the plan what is not wanted any more and not copied yet.
func (s *Sink) forgetOutside(ctx context.Context, wanted func(stream.Table) bool) error {
	planned, err := s.list(ctx, "SELECT table_schema, table_name FROM "+s.snapshots+" WHERE changefeed = ? AND table_name <> '' AND NOT done", s.options.Changefeed)
	if err != nil {
		return err
	}
	for _, t := range planned {
		if wanted(t) {
			continue
		}
		if _, err := s.db.ExecContext(ctx, "DELETE FROM "+s.snapshots+" WHERE changefeed = ? AND table_schema = ? AND table_name = ? AND NOT done", s.options.Changefeed, t.Schema, t.Name); err != nil {
			return s.wrap("remove table "+t.String()+" from the plan of the snapshot", err)
		}
	}
	return nil
}

// definitionModes are the settings with which a definition is executed: not strict, so that defaults that the source has are accepted, and
// with backslashes that escape, because every server shows strings so. A server also shows everything about a column with a timestamp, so
// nothing is added to it.
const definitionModes = "sql_mode='NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES', foreign_key_checks=0, innodb_strict_mode=0 /*M!100804 , explicit_defaults_for_timestamp=1 */"

// makeTable makes one table of the plan, or the schemas if it has no name.
func (s *Sink) makeTable(ctx context.Context, conn *sql.Conn, t stream.Table) error {
	var create string
	err := conn.QueryRowContext(ctx, "SELECT definition FROM "+s.snapshots+" WHERE changefeed = ? AND table_schema = ? AND table_name = ? AND NOT made", s.options.Changefeed, t.Schema, t.Name).Scan(&create)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // another session has made it
	}
	if err != nil {
		return s.wrap("read the plan of the snapshot", err)
	}
	if t.Name != "" {
		if _, err := conn.ExecContext(ctx, "USE "+name(t.Schema)); err != nil {
			return s.wrap("use database "+t.Schema, err)
		}
	}
	if create != "" {
		if _, err := conn.ExecContext(ctx, "SET NAMES utf8mb4"); err != nil {
			return s.wrap("create tables", err)
		}
		if _, err := conn.ExecContext(ctx, "SET "+definitionModes); err != nil {
			return s.wrap("create tables", err)
		}
		_, err = conn.ExecContext(ctx, create)
		var e *mysql.MySQLError
		switch {
		case errors.As(err, &e) && e.Number == codeTableExists:
			err = s.refuseTarget(ctx, conn, t, create)
		case err != nil && !transient(err) && ctx.Err() == nil:
			err = s.unusable("table %s cannot be created as it is at the source; create it by hand, or exclude it by the filter: %s (%v)", t, brief(create), err)
		}
		if err != nil {
			return err
		}
	}
	if _, err := conn.ExecContext(ctx, "SET NAMES binary"); err != nil {
		return s.wrap("create tables", err)
	}
	_, err = conn.ExecContext(ctx, "UPDATE "+s.snapshots+" SET made = TRUE WHERE changefeed = ? AND table_schema = ? AND table_name = ?", s.options.Changefeed, t.Schema, t.Name)
	return s.wrap("record that table "+t.String()+" is created", err)
}

const codeTableExists = 1050

// SnapshotProgress implements snapshot.Sink.
func (s *Sink) SnapshotProgress(ctx context.Context) (p snapshot.Progress, err error) {
	if _, err := s.prepare(ctx); err != nil {
		return p, err
	}
	err = s.db.QueryRowContext(ctx, "SELECT COUNT(*), COALESCE(SUM(done), 0), COALESCE(SUM(row_count), 0), COALESCE(SUM(IF(done, row_count, GREATEST(estimate, row_count))), 0) FROM "+s.snapshots+
		" WHERE changefeed = ? AND table_name <> ''", s.options.Changefeed).Scan(&p.Tables, &p.TablesDone, &p.Rows, &p.Estimate)
	return p, s.wrap("read the progress of the snapshot", err)
}

// snapshotState is how far a table is copied; nil if it is not being copied.
func (s *Sink) snapshotState(ctx context.Context, by reader, t stream.Table) (*snapshot.State, error) {
	state := &snapshot.State{}
	var last []byte
	err := by.QueryRowContext(ctx, "SELECT begun, last_key FROM "+s.snapshots+" WHERE changefeed = ? AND table_schema = ? AND table_name = ? AND NOT done", s.options.Changefeed, t.Schema, t.Name).Scan(&state.Begun, &last)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	state.Cursor, err = snapshot.DecodeCursor(last)
	return state, err
}

// Snapshot implements snapshot.Writer.
func (w *writer) Snapshot() *snapshot.State { return w.copying }

// Copies implements snapshot.Writer.
func (w *writer) Copies(l *snapshot.Layout) (*snapshot.Layout, error) { return w.omits.Layout(l) }

// WriteChunk implements snapshot.Writer.
func (w *writer) WriteChunk(ctx context.Context, parts iter.Seq2[*snapshot.Chunk, error], to stream.Position) error {
	s := w.sink
	if w.copying == nil {
		return fmt.Errorf("table %s is not being copied", w.table)
	}
	if !w.copying.Begun {
		d, err := s.describe(ctx, w.table)
		if err != nil {
			return err
		}
		if c := d.zoned(); c != nil {
			return s.unusable("table %s cannot be copied: column %s is generated and stored, and depends on the time zone of the session that wrote a row; make the column VIRTUAL at the source, or exclude the table by the filter", w.table, c.name)
		}
	}
	if to < w.position || to == w.position && w.part > 0 {
		return fmt.Errorf("table %s is at position %d, part %d: %w at %d", w.table, w.position, w.part, snapshot.ErrBehind, to)
	}
	b := &batch{writer: w, to: to}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if moved, err := b.move(ctx, tx); err != nil {
		return err
	} else if !moved {
		return fmt.Errorf("table %s: the position was not moved", w.table)
	}
	var last *snapshot.Chunk
	rows := 0
	for chunk, err := range parts {
		if err != nil {
			return err
		}
		if last == nil && !w.copying.Follows(chunk) {
			return fmt.Errorf("table %s: its copy begins again: %w", w.table, snapshot.ErrChanged)
		}
		if chunk.First && !chunk.Sequence {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+full(w.table)); err != nil {
				return b.explain(err)
			}
			rows = 0
		}
		for i := range chunk.Blocks {
			if err := w.insertBlock(ctx, tx, chunk, &chunk.Blocks[i]); err != nil {
				return b.explain(err)
			}
		}
		rows += chunk.Rows
		first := last == nil && chunk.First || last != nil && last.First
		last = &snapshot.Chunk{Cursor: chunk.Cursor, Last: chunk.Last, First: first}
	}
	if last == nil {
		return fmt.Errorf("table %s: a chunk without parts", w.table)
	}
	if err := w.record(ctx, tx, last, rows); err != nil {
		return err
	}
	fired, failed := false, error(nil)
	if err := conn.Raw(func(session any) error {
		fired, failed = triggersFired(ctx, session)
		return nil
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	if fired {
		_ = tx.Rollback()
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		return s.firedTrigger(ctx, w.table)
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	w.position, w.part = to, 0
	if w.copying = (&snapshot.State{Begun: true, Cursor: last.Cursor}); last.Last {
		w.copying = nil
	}
	return nil
}

// insertBlock writes one statement. A row that the table has already was written by a change, and is the same.
func (w *writer) insertBlock(ctx context.Context, tx *sql.Tx, chunk *snapshot.Chunk, b *snapshot.Block) error {
	verb := "REPLACE INTO "
	if chunk.Sequence || chunk.First {
		verb = "INSERT INTO "
	}
	text := make([]byte, 0, len(b.Values)+len(b.Columns)+256)
	if b.Loose {
		text = append(text, looseMode...)
	}
	text = append(append(text, verb...), full(w.table)...)
	text = append(append(text, ' '), b.Columns...)
	text = append(append(text, " VALUES "...), b.Values...)
	_, err := tx.ExecContext(ctx, string(text))
	return err
}

// record records the cursor.
func (w *writer) record(ctx context.Context, tx *sql.Tx, c *snapshot.Chunk, rows int) error {
	var key []byte
	if c.Cursor != nil {
		var err error
		if key, err = c.Cursor.Encode(); err != nil {
			return err
		}
	}
	count, where := "row_count + ?", " AND begun"
	if c.First {
		count, where = "?", ""
	}
	result, err := tx.ExecContext(ctx, "UPDATE "+w.sink.snapshots+" SET begun = TRUE, done = ?, last_key = ?, row_count = "+count+" WHERE changefeed = ? AND table_schema = ? AND table_name = ? AND NOT done"+where,
		c.Last, key, rows, w.sink.options.Changefeed, w.table.Schema, w.table.Name)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("table %s: the cursor of its snapshot is not at the sink any more: %w", w.table, errors.Join(err, stream.ErrNotOwner))
	}
	return nil
}

// dropped reports whether changes of a table are dropped, because the first chunk will have them.
func (w *writer) dropped() bool { return w.copying != nil && !w.copying.Begun }

// emptyCopied removes what was copied of tables that are about to be altered, which begin again: a statement may fail on a part of the
// rows, or on rows that were not changed since. It may be repeated. TRUNCATE would make another table of it, as if the statement had been
// executed.
func (d *ddlExecution) emptyCopied(ctx context.Context) error {
	if !d.alters() {
		return nil
	}
	for _, t := range slices.Concat(d.ddl.Tables, d.ddl.Removes) {
		state, err := d.sink.snapshotState(ctx, d.conn, t)
		if err != nil {
			return err
		}
		for state != nil {
			result, err := d.conn.ExecContext(ctx, "SET STATEMENT foreign_key_checks=0 FOR DELETE FROM "+full(t)+" LIMIT 10000")
			if hasNoRows(err) {
				break
			}
			if err != nil {
				return err
			}
			if n, err := result.RowsAffected(); err != nil || n == 0 {
				state = nil
			}
		}
	}
	return nil
}

// alters reports whether the statement alters tables, which may be renamed by it, too.
func (d *ddlExecution) alters() bool {
	return d.ddl.Kind == stream.AlterTable || d.ddl.Kind == stream.RenameTable && d.ddl.Alters
}

// hasNoRows reports whether rows cannot be deleted, because there is no table or it is a sequence.
func hasNoRows(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && (e.Number == 1031 || e.Number == 1146)
}

// moveSnapshots changes what is recorded about the snapshots of tables that a DDL makes, alters, renames or removes. A table that is
// altered begins again: what the statement does to rows may depend on rows that are not there yet. So do all that an exchange of partitions
// concerns, if one is being copied.
func (d *ddlExecution) moveSnapshots(ctx context.Context, tx *sql.Tx) error {
	if d.ddl.Kind == stream.DropSchema && d.ddl.Drops == nil {
		_, err := tx.ExecContext(ctx, "DELETE FROM "+d.sink.snapshots+" WHERE changefeed = ? AND table_schema = ? AND table_name <> ''", d.sink.options.Changefeed, d.ddl.Schema)
		return err
	}
	const of = " WHERE changefeed = ? AND table_schema = ? AND table_name = ?"
	forget := func(tables []stream.Table) error {
		for _, t := range tables {
			if _, err := tx.ExecContext(ctx, "DELETE FROM "+d.sink.snapshots+of, d.sink.options.Changefeed, t.Schema, t.Name); err != nil {
				return err
			}
		}
		return nil
	}
	switch d.ddl.Kind {
	case stream.DropSchema:
		dropped, err := d.dropped(ctx, tx, d.sink.snapshots+" WHERE changefeed = ?")
		if err != nil {
			return err
		}
		return forget(dropped)
	case stream.CreateTable:
		if !d.ddl.Replaces {
			return nil // if there is a table of that name, IF NOT EXISTS has left it as it is
		}
		return forget(d.ddl.Tables)
	case stream.DropTable:
		return forget(d.ddl.Tables)
	case stream.RenameTable:
		if err := forget(d.ddl.Releases); err != nil {
			return err
		}
		if err := d.renameSnapshots(ctx, tx); err != nil || !d.alters() {
			return err
		}
		for _, t := range d.ddl.Becomes {
			if _, err := tx.ExecContext(ctx, "UPDATE "+d.sink.snapshots+" SET begun = FALSE, last_key = NULL, row_count = 0"+of+" AND NOT done", d.sink.options.Changefeed, t.Schema, t.Name); err != nil {
				return err
			}
		}
		return nil
	case stream.AlterTable:
		copying := false
		concerned := slices.Concat(d.ddl.Tables, d.ddl.Makes, d.ddl.Removes)
		for _, t := range concerned {
			state, err := d.sink.snapshotState(ctx, tx, t)
			if err != nil {
				return err
			}
			copying = copying || state != nil
		}
		if err := forget(d.ddl.Removes); err != nil || !copying {
			return err
		}
		for _, t := range slices.Concat(d.ddl.Tables, d.ddl.Makes) {
			if _, err := tx.ExecContext(ctx, "INSERT INTO "+d.sink.snapshots+" (changefeed, table_schema, table_name, position, made, definition) VALUES (?, ?, ?, ?, TRUE, '')"+
				" ON DUPLICATE KEY UPDATE begun = FALSE, done = FALSE, last_key = NULL, row_count = 0", d.sink.options.Changefeed, t.Schema, t.Name, uint64(d.position)); err != nil {
				return err
			}
		}
	}
	return nil
}

// renameSnapshots gives the snapshots of tables their new names. Names may be exchanged, so they go through others.
func (d *ddlExecution) renameSnapshots(ctx context.Context, tx *sql.Tx) error {
	rename := func(from, to stream.Table) error {
		_, err := tx.ExecContext(ctx, "UPDATE "+d.sink.snapshots+" SET table_schema = ?, table_name = ? WHERE changefeed = ? AND table_schema = ? AND table_name = ?",
			to.Schema, to.Name, d.sink.options.Changefeed, from.Schema, from.Name)
		return err
	}
	aside := func(i int) stream.Table { return stream.Table{Schema: "", Name: fmt.Sprintf("renamed %d", i)} }
	n := min(len(d.ddl.Tables), len(d.ddl.Becomes))
	for i := range n {
		if err := rename(d.ddl.Tables[i], aside(i)); err != nil {
			return err
		}
	}
	for i := range n {
		if err := rename(aside(i), d.ddl.Becomes[i]); err != nil {
			return err
		}
	}
	return nil
}
