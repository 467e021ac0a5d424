package mariadb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

var _ snapshot.Source = (*Source)(nil)

// snapshotTimeout bounds how long the server may take to send something while a table is being read.
const snapshotTimeout = 5 * time.Minute

// snapshotConfig are the settings of sessions that read tables: values are sent byte for byte, and times are in UTC. Changes of a table
// wait for the session, so it does not wait long for DDL, which may itself be waiting for others.
func snapshotConfig(of *mysql.Config) *mysql.Config {
	cfg := of.Clone()
	cfg.ReadTimeout = snapshotTimeout
	cfg.Params = sessionSettings()
	maps.Copy(cfg.Params, map[string]string{
		"time_zone": "'+00:00'", "sql_mode": "'NO_BACKSLASH_ESCAPES'", "character_set_results": "'binary'", "net_write_timeout": "600",
		"tx_isolation": "'REPEATABLE-READ'", "lock_wait_timeout": "1", "max_statement_time": "0", // the sink decides how long a statement takes
	})
	return cfg
}

// PlanSnapshot implements snapshot.Source.
func (s *Source) PlanSnapshot(ctx context.Context, f stream.Filter) (*snapshot.Plan, error) {
	var plan *snapshot.Plan
	_, at, err := s.tablesWith(ctx, func(ctx context.Context, by querier, tables []stream.Table) (string, error) {
		plan = &snapshot.Plan{}
		if err := s.planTables(ctx, by, f, tables, plan); err != nil {
			return "", err
		}
		if err := s.planSchemas(ctx, by, f, plan); err != nil {
			return "", err
		}
		var text strings.Builder
		for i := range plan.Tables {
			fmt.Fprintf(&text, "%q %q\n", plan.Tables[i].Table, withoutCounter(plan.Tables[i].Create))
		}
		fmt.Fprintf(&text, "%q", plan.Schemas)
		return text.String(), nil
	})
	if err != nil {
		return nil, err
	}
	plan.Position = at
	return plan, s.planOthers(ctx, f, plan)
}

// withoutCounter is a definition without the counter of AUTO_INCREMENT, which changes with the rows.
func withoutCounter(create string) string {
	before, rest, found := strings.Cut(create, " AUTO_INCREMENT=")
	if !found {
		return create
	}
	return before + strings.TrimLeft(rest, "0123456789")
}

// planTables reads the definitions of tables.
func (s *Source) planTables(ctx context.Context, by querier, f stream.Filter, tables []stream.Table, plan *snapshot.Plan) error {
	facts := map[stream.Table]snapshot.Definition{}
	if err := s.each(ctx, by, `SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, COALESCE(ENGINE, ''), COALESCE(TABLE_ROWS, 0), COALESCE(DATA_LENGTH, 0) FROM information_schema.TABLES WHERE TABLE_SCHEMA NOT IN `+systemSchemas, func(scan func(...any) error) error {
		var d snapshot.Definition
		var kind string
		if err := scan(&d.Table.Schema, &d.Table.Name, &kind, &d.Engine, &d.Rows, &d.Bytes); err != nil {
			return err
		}
		d.Sequence, d.Versioned = kind == "SEQUENCE", kind == "SYSTEM VERSIONED"
		facts[d.Table] = d
		return nil
	}); err != nil {
		return err
	}
	cascades := map[stream.Table]string{}
	if err := s.each(ctx, by, `SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
		WHERE DELETE_RULE IN ('CASCADE','SET NULL','SET DEFAULT') OR UPDATE_RULE IN ('CASCADE','SET NULL','SET DEFAULT')`, func(scan func(...any) error) error {
		var t stream.Table
		var key string
		err := scan(&t.Schema, &t.Name, &key)
		cascades[t] = key
		return err
	}); err != nil {
		return err
	}
	for _, t := range tables {
		if !f.Allows(t) {
			continue
		}
		d, listed := facts[t]
		if !listed {
			return fmt.Errorf("source %s: table %s: %w", s.options.Address, t, errSkipped)
		}
		d.Cascade = cascades[t]
		what := "TABLE "
		if d.Sequence {
			what = "SEQUENCE "
		}
		var ignored string
		if err := by.QueryRowContext(ctx, snapshot.ShowCreate+what+quotedTable(t)).Scan(&ignored, &d.Create); err != nil {
			return s.wrap("read the definition of table "+t.String(), err)
		}
		d.Create = snapshot.Executable(d.Create)
		d.Parsed = parseDDL(d.Create, newStatement(d.Create, t.Schema, sessionContext{}, false))
		l := &snapshot.Layout{Table: t}
		if err := s.layout(ctx, by, l); err != nil {
			return err
		}
		d.Layout, d.Keyed = l, len(l.Key) > 0
		plan.Tables = append(plan.Tables, d)
	}
	return nil
}

// Define returns the definitions of tables as they are now. Those that do not exist any more are left out.
func (s *Source) Define(ctx context.Context, tables []stream.Table) ([]snapshot.Definition, error) {
	plan := &snapshot.Plan{}
	err := s.planTables(ctx, s.db, nil, tables, plan)
	if code, ok := errorCode(err); !errors.Is(err, errSkipped) && !(ok && code == codeNoSuchTable) {
		return plan.Tables, err
	}
	if len(tables) == 1 {
		return nil, nil
	}
	half := len(tables) / 2
	first, err := s.Define(ctx, tables[:half])
	if err != nil {
		return nil, err
	}
	second, err := s.Define(ctx, tables[half:])
	return append(first, second...), err
}

// planSchemas are the schemas of tables that are copied, and those of which all tables are.
func (s *Source) planSchemas(ctx context.Context, by querier, f stream.Filter, plan *snapshot.Plan) error {
	used := map[string]bool{}
	for i := range plan.Tables {
		used[plan.Tables[i].Table.Schema] = true
	}
	return s.each(ctx, by, "SELECT SCHEMA_NAME, DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN "+systemSchemas+" ORDER BY 1", func(scan func(...any) error) error {
		var schema snapshot.Schema
		if err := scan(&schema.Name, &schema.Charset, &schema.Collation); err != nil {
			return err
		}
		if used[schema.Name] || f.AllowsSchema(schema.Name) {
			plan.Schemas = append(plan.Schemas, schema)
		}
		return nil
	})
}

// planOthers lists what is not copied.
func (s *Source) planOthers(ctx context.Context, f stream.Filter, plan *snapshot.Plan) error {
	return s.each(ctx, s.db, `SELECT 'view', TABLE_SCHEMA, TABLE_NAME FROM information_schema.VIEWS UNION ALL SELECT 'trigger', TRIGGER_SCHEMA, TRIGGER_NAME FROM information_schema.TRIGGERS
		UNION ALL SELECT LOWER(ROUTINE_TYPE), ROUTINE_SCHEMA, ROUTINE_NAME FROM information_schema.ROUTINES UNION ALL SELECT 'event', EVENT_SCHEMA, EVENT_NAME FROM information_schema.EVENTS ORDER BY 1, 2, 3`, func(scan func(...any) error) error {
		var kind string
		var t stream.Table
		if err := scan(&kind, &t.Schema, &t.Name); err != nil {
			return err
		}
		if slices.ContainsFunc(plan.Schemas, func(schema snapshot.Schema) bool { return schema.Name == t.Schema }) && (kind != "view" || f.Allows(t)) {
			plan.NotCopied = append(plan.NotCopied, kind+" "+t.String())
		}
		return nil
	})
}

// each calls visit for every row of a query.
func (s *Source) each(ctx context.Context, by querier, query string, visit func(scan func(...any) error) error, args ...any) error {
	rows, err := by.QueryContext(ctx, query, args...)
	if err != nil {
		return s.wrap("read definitions", err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := visit(rows.Scan); err != nil {
			return s.wrap("read definitions", err)
		}
	}
	return s.wrap("read definitions", rows.Err())
}

func quotedTable(t stream.Table) string {
	return "`" + strings.ReplaceAll(t.Schema, "`", "``") + "`.`" + strings.ReplaceAll(t.Name, "`", "``") + "`"
}

// layout reads the columns of a table and finds its key: the primary key, or the shortest unique key of whole columns that are neither NULL
// nor generated.
func (s *Source) layout(ctx context.Context, by querier, l *snapshot.Layout) error {
	places := map[string]int{}
	if err := s.each(ctx, by, `SELECT COLUMN_NAME, LOWER(DATA_TYPE), COLUMN_TYPE, COALESCE(CHARACTER_SET_NAME, ''), COALESCE(COLLATION_NAME, ''), COALESCE(GENERATION_EXPRESSION, '') <> ''
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION`, func(scan func(...any) error) error {
		var c snapshot.Column
		if err := scan(&c.Name, &c.Type, &c.FullType, &c.Charset, &c.Collation, &c.Generated); err != nil {
			return err
		}
		places[c.Name] = len(l.Columns)
		l.Columns = append(l.Columns, c)
		return nil
	}, l.Table.Schema, l.Table.Name); err != nil {
		return err
	}
	keys, usable := map[string][]int{}, map[string]bool{}
	var names []string
	if err := s.each(ctx, by, `SELECT INDEX_NAME, COALESCE(COLUMN_NAME, ''), COLUMN_NAME IS NOT NULL AND NULLABLE <> 'YES' AND SUB_PART IS NULL AND INDEX_TYPE = 'BTREE' AND IGNORED <> 'YES'
		FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND NON_UNIQUE = 0 ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX`, func(scan func(...any) error) error {
		var index, column string
		var ok bool
		if err := scan(&index, &column, &ok); err != nil {
			return err
		}
		if !slices.Contains(names, index) {
			names, usable[index] = append(names, index), true
		}
		at, known := places[column]
		if !known || l.Columns[at].Generated || isPadded(&l.Columns[at]) {
			ok = false
		}
		keys[index], usable[index] = append(keys[index], at), usable[index] && ok
		return nil
	}, l.Table.Schema, l.Table.Name); err != nil {
		return err
	}
	for _, n := range names {
		if usable[n] && (l.Key == nil || len(keys[n]) < len(l.Key)) {
			l.Key, l.KeyName = keys[n], n
		}
		if n == "PRIMARY" && l.Key != nil {
			break
		}
	}
	overlaps, err := s.forbidsOverlaps(ctx, by, l)
	if overlaps {
		l.Key, l.KeyName = nil, ""
	}
	return err
}

// forbidsOverlaps reports whether the key is one WITHOUT OVERLAPS, which ends with the columns of a period. The rows of such a table cannot
// be written by REPLACE, so it is copied whole.
func (s *Source) forbidsOverlaps(ctx context.Context, by querier, l *snapshot.Layout) (bool, error) {
	if n := len(l.Key); n < 3 || l.Columns[l.Key[n-1]].Type != l.Columns[l.Key[n-2]].Type {
		return false, nil
	}
	var ignored, definition string
	if err := by.QueryRowContext(ctx, snapshot.ShowCreate+"TABLE "+quotedTable(l.Table)).Scan(&ignored, &definition); err != nil {
		return false, s.wrap("read the definition of table "+l.Table.String(), err)
	}
	return strings.Contains(definition, " WITHOUT OVERLAPS"), nil
}

// isPadded reports whether spaces at the end of a column's values count in the order of a key, and are not in the values that are read.
func isPadded(c *snapshot.Column) bool {
	return c.Type == "char" && strings.Contains(c.Collation, "nopad")
}

// snapshotSession is a transaction with a snapshot.
type snapshotSession struct {
	source   *Source
	conn     *sql.Conn
	position stream.Position
}

// OpenSnapshot implements snapshot.Source.
func (s *Source) OpenSnapshot(ctx context.Context) (snapshot.Session, error) {
	conn, err := s.copies.Conn(ctx)
	if err != nil {
		return nil, s.wrap("connect", err)
	}
	session := &snapshotSession{source: s, conn: conn}
	if session.position, err = session.begin(ctx); err != nil {
		session.Close()
		return nil, err
	}
	return session, nil
}

// easyTries is how often a snapshot is taken in the hope that it is at the end of the log.
const easyTries = 3

// begin takes a snapshot and finds out its position. The server says where in the log the snapshot is. To translate that into a GTID it
// reads the file of the log from its beginning, so that is avoided if possible: if the snapshot is at the end of the log, and no
// transaction was logged meanwhile, its GTID is the last one. The end of the log is not read while a transaction is being written to it.
func (c *snapshotSession) begin(ctx context.Context) (stream.Position, error) {
	for tries := 1; ; tries++ {
		before, err := c.source.logStateBy(ctx, c.conn)
		if err != nil {
			return 0, err
		}
		if _, err := c.conn.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"); err != nil {
			return 0, c.source.wrap("take a snapshot", err)
		}
		var file, offset string
		if err := c.source.each(ctx, c.conn, "SHOW SESSION STATUS LIKE 'binlog_snapshot_%'", func(scan func(...any) error) error {
			var name, value string
			err := scan(&name, &value)
			switch strings.ToLower(name) {
			case "binlog_snapshot_file":
				file = value
			case "binlog_snapshot_position":
				offset = value
			}
			return err
		}); err != nil {
			return 0, err
		}
		if file == "" || offset == "" {
			return 0, c.source.unusable("the server does not say at which position of its log a snapshot is; use MariaDB 10.6 or newer with --log-bin")
		}
		endFile, endOffset, err := c.end(ctx)
		if err != nil {
			return 0, err
		}
		after, err := c.source.logStateBy(ctx, c.conn)
		if err != nil {
			return 0, err
		}
		if before.head == after.head && file == endFile && offset == endOffset {
			return stream.Position(after.head.seq), nil
		}
		if tries < easyTries {
			continue
		}
		var text sql.NullString
		if err := c.conn.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS(?, "+offset+")", file).Scan(&text); err != nil {
			return 0, c.source.wrap("read the GTID of a snapshot", err)
		}
		list, err := parseGTIDs(text.String)
		if err != nil {
			return 0, err
		}
		at, _ := ofDomain(list, after.head.domain)
		return stream.Position(at.seq), nil
	}
}

// end is the end of the log.
func (c *snapshotSession) end(ctx context.Context) (file, offset string, err error) {
	rows, err := c.conn.QueryContext(ctx, "SHOW MASTER STATUS")
	if err != nil {
		return "", "", c.source.wrap("read the end of the log", err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", "", err
	}
	into := make([]any, len(columns))
	for i := range into {
		into[i] = new(sql.NullString)
	}
	if len(into) >= 2 {
		into[0], into[1] = &file, &offset
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return "", "", err
		}
	}
	return file, offset, rows.Err()
}

// Position implements snapshot.Session.
func (c *snapshotSession) Position() stream.Position { return c.position }

// Describe implements snapshot.Session. The first query locks the definition until the transaction ends. DDL is in the log before it
// unlocks the definition, so all DDL that came between the snapshot and the lock is in the log up to head.
func (c *snapshotSession) Describe(ctx context.Context, t stream.Table) (*snapshot.Layout, stream.Position, error) {
	l := &snapshot.Layout{Table: t}
	rows, err := c.conn.QueryContext(ctx, "SELECT 1 FROM "+quotedTable(t)+" LIMIT 0")
	if err != nil {
		return nil, 0, c.explain(t, err)
	}
	rows.Close()
	if err := c.source.each(ctx, c.conn, "SELECT TABLE_TYPE = 'SEQUENCE', COALESCE(AVG_ROW_LENGTH, 0) FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", func(scan func(...any) error) error {
		return scan(&l.Sequence, &l.RowBytes)
	}, t.Schema, t.Name); err != nil {
		return nil, 0, err
	}
	if err := c.source.layout(ctx, c.conn, l); err != nil {
		return nil, 0, err
	}
	state, err := c.source.logStateBy(ctx, c.conn)
	if err != nil {
		return nil, 0, err
	}
	return l, max(c.position, stream.Position(state.head.seq)), nil
}

// codeTableChanged: the table was altered after the snapshot was taken.
const codeTableChanged = 1412

func (c *snapshotSession) explain(t stream.Table, err error) error {
	switch code, ok := errorCode(err); {
	case ok && (code == codeTableChanged || code == codeNoSuchTable):
		return fmt.Errorf("table %s: %w (%w)", t, snapshot.ErrChanged, err)
	case ok && code == codeLockWait:
		return fmt.Errorf("source %s: table %s is locked by DDL or LOCK TABLES, see SHOW PROCESSLIST there; retrying: %w", c.source.options.Address, t, err)
	}
	return c.source.wrap("read table "+t.String(), err)
}

// Read implements snapshot.Session.
func (c *snapshotSession) Read(ctx context.Context, l *snapshot.Layout, after *snapshot.Cursor, rows, bytes int, visit func(*snapshot.Chunk) error) error {
	query, err := l.Select(after, rows)
	if err != nil {
		return err
	}
	var failed error // it must not be returned by the function: that could make the connection be used again
	err = c.conn.Raw(func(session any) error {
		failed = c.read(ctx, session, query, l, after, rows, bytes, visit)
		return nil
	})
	return errors.Join(err, failed)
}

func (c *snapshotSession) read(ctx context.Context, session any, query string, l *snapshot.Layout, after *snapshot.Cursor, limit, bytes int, visit func(*snapshot.Chunk) error) error {
	q, ok := session.(driver.QueryerContext)
	if !ok {
		return fmt.Errorf("cannot query a connection of type %T", session)
	}
	rows, err := q.QueryContext(ctx, query, nil)
	if err != nil {
		return c.explain(l.Table, err)
	}
	defer rows.Close()
	b := snapshot.NewBuilder(l)
	values, texts, scratch := make([]driver.Value, b.Width()), make([][]byte, b.Width()), make([][]byte, b.Width())
	first := after == nil
	done := func(last bool) error {
		chunk := b.Done(after)
		chunk.First, chunk.Last = first, last
		first = false
		return visit(chunk)
	}
	for n := 0; ; n++ {
		if err := rows.Next(values); errors.Is(err, io.EOF) {
			return done(len(l.Key) == 0 || n < limit)
		} else if err != nil {
			return c.explain(l.Table, err)
		}
		for i, v := range values {
			if texts[i], scratch[i] = text(v, scratch[i]); texts[i] == nil && v != nil {
				return fmt.Errorf("table %s: a value of type %T was read", l.Table, v)
			}
		}
		if err := b.Add(texts); err != nil {
			return err
		}
		if b.Bytes() < bytes {
			continue
		}
		if err := done(false); err != nil || len(l.Key) > 0 {
			return err
		}
		b = snapshot.NewBuilder(l)
	}
}

// text is a value as text, which may be in a buffer; nil for NULL. The driver parses some numbers.
func text(v driver.Value, buffer []byte) (value, used []byte) {
	switch v := v.(type) {
	case []byte:
		return v, buffer
	case int64:
		buffer = strconv.AppendInt(buffer[:0], v, 10)
	case uint64:
		buffer = strconv.AppendUint(buffer[:0], v, 10)
	case float64:
		buffer = strconv.AppendFloat(buffer[:0], v, 'e', -1, 64)
	default:
		return nil, buffer
	}
	return buffer, buffer
}

// Close implements snapshot.Session. The session is closed with its transaction, which may be in any state.
func (c *snapshotSession) Close() {
	_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = c.conn.Close()
}
