package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Rows of a table that is the same at the source and at the sink are forwarded as they were logged:
//
//	BEGIN; UPDATE progress … (the same fence, and the variables below); DELETE …; INSERT … of other tables; BINLOG '…'
//	SHOW SESSION STATUS LIKE 'Executed_triggers'
//	COMMIT
//
// There is one BINLOG statement for all tables of a transaction. It is the last of its message, because its answer does not say that others
// follow. COMMIT is sent only after every statement has succeeded: one that fails leaves the transaction open. A batch that cannot be
// forwarded is written as text, which finds the cause.

// forwardCondition makes the fence match no row while the server would ignore rows that are missing or exist already, or would execute
// triggers. Both are set for the whole server, by anybody, at any time.
const forwardCondition = " AND @@GLOBAL.slave_exec_mode = 'STRICT' AND @@GLOBAL.slave_run_triggers_for_rbr = 'NO'"

// logged are changes as they were logged by MariaDB.
type logged interface {
	Logged() (*rowevent.Table, []rowevent.Event)
}

// Forwarded is how many row changes were forwarded.
func (s *Sink) Forwarded() int64 { return s.forwarded.Load() }

// probeForward is why nothing can be forwarded to the server.
func (s *Sink) probeForward(ctx context.Context) (textReason, error) {
	var mode, triggers string
	if err := s.db.QueryRowContext(ctx, "SELECT @@GLOBAL.slave_exec_mode, @@GLOBAL.slave_run_triggers_for_rbr").Scan(&mode, &triggers); err != nil {
		return textReason{}, err
	}
	if mode != "STRICT" || triggers != "NO" {
		return textReason{reasonServer, fmt.Sprintf("slave_exec_mode is %s and slave_run_triggers_for_rbr is %s; SET GLOBAL slave_exec_mode=STRICT, slave_run_triggers_for_rbr=NO", mode, triggers)}, nil
	}
	_, err := s.db.ExecContext(ctx, rowevent.Format())
	var e *mysql.MySQLError
	switch {
	case err == nil:
		return textReason{}, nil
	case errors.As(err, &e) && e.Number == codeNeedPrivilege:
		return textReason{reasonPrivilege, fmt.Sprintf("run GRANT BINLOG REPLAY ON *.* TO '%s' at the sink", s.options.User)}, nil
	case transient(err) || !errors.As(err, &e):
		return textReason{}, err
	}
	return textReason{reasonServer, fmt.Sprintf("the server refuses BINLOG: %v", err)}, nil
}

// collations are the numbers of collations by name.
func (s *Sink) collations(ctx context.Context) (map[string]uint64, error) {
	numbers := map[string]uint64{}
	queries := []string{"SELECT COLLATION_NAME, ID FROM information_schema.COLLATIONS WHERE ID IS NOT NULL"}
	var newer bool // servers from 10.10 on number collations without a character set of their own elsewhere
	if err := s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema' AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID')").Scan(&newer); err != nil {
		return nil, err
	}
	if newer {
		queries = append(queries, "SELECT FULL_COLLATION_NAME, ID FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY WHERE ID IS NOT NULL")
	}
	for _, query := range queries {
		rows, err := s.db.QueryContext(ctx, query)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var number uint64
			if err := rows.Scan(&name, &number); err != nil {
				return nil, err
			}
			numbers[name] = number
		}
		if err := rows.Err(); err != nil {
			return nil, err
		}
	}
	return numbers, nil
}

// describeForward reads what forwarding depends on.
func (s *Sink) describeForward(ctx context.Context, table stream.Table, collations map[string]uint64) (*sinkTable, error) {
	t := &sinkTable{}
	err := s.db.QueryRowContext(ctx, "SELECT TABLE_TYPE, COALESCE(ENGINE, '') FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", table.Schema, table.Name).Scan(&t.kind, &t.engine)
	if errors.Is(err, sql.ErrNoRows) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, `SELECT COLUMN_NAME, LOWER(DATA_TYPE), COLUMN_TYPE, IS_NULLABLE = 'YES', COALESCE(GENERATION_EXPRESSION, '') <> '', COALESCE(CHARACTER_OCTET_LENGTH, 0),
		COALESCE(NUMERIC_PRECISION, 0), COALESCE(NUMERIC_SCALE, 0), COALESCE(DATETIME_PRECISION, 0), COALESCE(CHARACTER_SET_NAME, ''), COALESCE(COLLATION_NAME, '')
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION`, table.Schema, table.Name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var c sinkColumn
		var collation string
		if err := rows.Scan(&c.name, &c.dataType, &c.columnType, &c.nullable, &c.generated, &c.octets, &c.precision, &c.scale, &c.fractional, &c.charset, &collation); err != nil {
			return nil, err
		}
		c.collation = collations[collation]
		t.columns = append(t.columns, c)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return t, s.forwardKey(ctx, table, t)
}

// forwardKey reads the primary key, and whether there are hashes.
func (s *Sink) forwardKey(ctx context.Context, table stream.Table, t *sinkTable) error {
	rows, err := s.db.QueryContext(ctx, `SELECT INDEX_NAME = 'PRIMARY', COALESCE(COLUMN_NAME, ''), SUB_PART IS NULL, INDEX_TYPE = 'HASH' FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY INDEX_NAME, SEQ_IN_INDEX`, table.Schema, table.Name)
	if err != nil {
		return err
	}
	defer rows.Close()
	whole := true
	for rows.Next() {
		var primary, all, hash bool
		var column string
		if err := rows.Scan(&primary, &column, &all, &hash); err != nil {
			return err
		}
		t.hashes = t.hashes || hash
		if primary {
			t.key, whole = append(t.key, column), whole && all
		}
	}
	if !whole {
		t.key = nil
	}
	return rows.Err()
}

// eligible is why rows of a schema are not forwarded; it is read again whenever rows have another schema, which they have after DDL.
func (w *writer) eligible(ctx context.Context, schema *stream.Schema, source *rowevent.Table) (textReason, error) {
	v, err := w.sink.prepare(ctx)
	if err != nil || v.text.code != "" {
		return v.textOr(), err
	}
	if w.checked == schema {
		return w.text, nil
	}
	t, err := w.sink.describeForward(ctx, w.table, v.collations)
	if err != nil {
		return textReason{}, err
	}
	w.checked, w.text = schema, ineligible(source, t)
	return w.text, nil
}

// textOr is why nothing is forwarded to a server, also if it is not known.
func (v *server) textOr() textReason {
	if v == nil {
		return textReason{}
	}
	return v.text
}

// forward makes the batch one that is forwarded, if it can be. It has to be whole and of one schema; everything else is text.
func (b *batch) forward(ctx context.Context) (bool, error) {
	w := b.writer
	if !w.sink.options.Forward || b.asText || len(b.rows) == 0 {
		return false, nil
	}
	why, err := b.whyText(ctx)
	if err != nil {
		return false, err
	}
	if why.code != "" {
		w.sink.logText(w.table, why)
		return false, nil
	}
	group := rowevent.Group{At: b.rows[0].At}
	changes := 0
	for _, r := range b.rows {
		table, events := r.Raw.(logged).Logged()
		group.Table, group.Events = table, append(group.Events, events...)
		changes += len(r.Changes)
	}
	if group.Changes() != changes {
		return false, fmt.Errorf("table %s: %d changes were read, and their events have %d", w.table, changes, group.Changes())
	}
	if rowevent.StatementLength([]rowevent.Group{group})+progressLength > w.sink.limit() {
		return false, nil // text comes in several statements
	}
	b.group, b.changes = &group, changes
	return true, nil
}

// whyText is why the batch is written as text.
func (b *batch) whyText(ctx context.Context) (textReason, error) {
	w, schema := b.writer, b.rows[0].Schema
	var table *rowevent.Table
	if w.copying != nil {
		return textReason{reasonCopy, "its initial copy is not finished"}, nil
	}
	if w.omits != nil {
		return textReason{reasonLeftOut, "columns or rows of it are left out"}, nil
	}
	for _, r := range b.rows {
		if r.Table != w.table {
			return textReason{reasonRouted, "its name at the source is " + r.Table.String()}, nil
		}
		raw, ok := r.Raw.(logged)
		if !ok || r.Total > 0 || r.Before > 0 || r.More {
			return textReason{reasonDecoded, "its rows come decoded: the log has no checksums or compressed events, the table has compressed or hidden columns, or the transaction is large or has savepoints"}, nil
		}
		of, _ := raw.Logged()
		if table == nil {
			table = of
		}
		if r.Schema != schema || of != table {
			return textReason{reasonDecoded, "its rows were read by several connections"}, nil
		}
	}
	return w.eligible(ctx, schema, table)
}

// toText makes the batch text after it could not be forwarded. If the server has refused the rows, those that follow are text too, until
// the table has another schema or owner; else the server may have other settings now, or the table another owner.
func (b *batch) toText() {
	s := b.writer.sink
	if b.refused != nil {
		b.writer.text = textReason{reasonFailed, b.refused.Error()}
		s.log.Warn("rows could not be forwarded; the table is written as text", "table", b.writer.table, "error", b.refused)
	} else {
		s.stale.Store(true)
	}
	b.group, b.made, b.asText = nil, false, true
}

// logText logs once for each reason that a table is written as text.
func (s *Sink) logText(table stream.Table, why textReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told[why.code] {
		return
	}
	if s.told == nil {
		s.told = map[string]bool{}
	}
	s.told[why.code] = true
	s.log.Info("a table is written as text and not forwarded; others for the same reason are not logged", "table", table, "reason", why.code, "detail", why.detail)
}

// groups are the events of the batches that are forwarded.
func groups(list []*batch) (all []rowevent.Group) {
	for _, b := range list {
		if b.group != nil {
			all = append(all, *b.group)
		}
	}
	return all
}
