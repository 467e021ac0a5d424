package mariadb

import (
	"context"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlzone"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// assembler assembles events into transactions, for one connection.
//
//	GTID ── (table map ── rows …)… ── XID or COMMIT      a transaction of rows
//	GTID standalone ── query                             DDL
//	GTID ── query ── (table map ── rows …)… ── XID       CREATE TABLE … SELECT: DDL and rows
type assembler struct {
	source *Source
	parser *replication.BinlogParser
	tables *tableCache
	// wants reports whether the rows of a table are wanted.
	wants func(stream.Table) bool
	// unread are numbers of tables that nobody wanted when they were described.
	unread map[uint64]bool
	// numbered is how many descriptions the parser has.
	numbered uint64
	// fold: the server stores names of tables in lower case.
	fold bool
	// oldMode is that of the server, and zone the time zone of its machine, once it is needed.
	oldMode int
	zone    sqlzone.Zone
	// temporary are the temporary tables whose making is in the log: of sessions with another binlog_format than ROW.
	temporary map[temporaryTable]bool
	// newest is the transaction that was read last on the connection, or that the connection started after.
	newest gtid
	// trailer is how many bytes of a checksum are at the end of an event.
	trailer int
	// formatEvent is the last event that described the format of the log.
	formatEvent []byte

	open *group
	// last is the group of the last transaction, whose memory the next one uses.
	last group
}

// temporaryTable is one that only a session has.
type temporaryTable struct {
	session uint32
	stream.Table
}

// group is the transaction that is being read.
type group struct {
	id   gtid
	kind gtidKind
	tx   *stream.Transaction
	// byTable are the rows of each table within tx, where the number of a table may change.
	byTable map[stream.Table]*stream.Rows
	// marks are savepoints: how many changes each table had.
	marks map[string]map[stream.Table]int
	// prepared are the tables of an XA transaction that is prepared here and committed later.
	prepared []stream.Table
	// skip: it was visited before, and its events are not decoded.
	skip bool

	// bytes is the size of the rows in tx, and counted how many changes of each table there were.
	bytes   int
	counted map[stream.Table]int
	// counting: it is too large to be read at once, so that changes are only counted.
	counting bool
	// rollsBack: it rolls back to a savepoint.
	rollsBack bool
	// large: it is visited in parts. before is how many changes of each table were in earlier parts, and spoiled are tables whose rows
	// cannot be read.
	large   *largeTransaction
	before  map[stream.Table]int
	spoiled []stream.Table

	// decoded: its changes are decoded at once, because some may be rolled back.
	decoded bool

	// last is the table of the last event with rows, and runs how many runs there were.
	last stream.Table
	runs int
}

func (s *Source) newAssembler(ctx context.Context, wants func(stream.Table) bool) (*assembler, error) {
	fold, err := s.variable(ctx, "lower_case_table_names")
	if err != nil {
		return nil, err
	}
	collations, err := s.collations(ctx)
	if err != nil {
		return nil, err
	}
	oldMode, err := s.oldMode(ctx)
	if err != nil {
		return nil, err
	}
	return &assembler{source: s, parser: newParser(), tables: newTableCache(s, collations), wants: wants, unread: map[uint64]bool{}, temporary: map[temporaryTable]bool{}, fold: fold == "1", oldMode: oldMode}, nil
}

func newParser() *replication.BinlogParser {
	parser := replication.NewBinlogParser()
	parser.SetFlavor("mariadb")
	parser.SetTimestampStringLocation(time.UTC)
	return parser
}

// Types of events that the library has no name for.
const (
	eventIncident  = replication.EventType(26)
	eventXAPrepare = replication.EventType(38)
)

// event takes one event. When it completes a transaction, the transaction is visited and the cursor moves.
func (a *assembler) event(ctx context.Context, e *replication.BinlogEvent, at *cursor, visit func(*stream.Transaction) error) error {
	if !a.intact(e) {
		return a.failed(at, "an event of the log has a wrong checksum: the log is damaged; start again from a copy taken after it")
	}
	switch e.Header.EventType {
	case replication.FORMAT_DESCRIPTION_EVENT:
		return a.format(e, at)
	case replication.MARIADB_GTID_EVENT:
		return a.begin(e, at)
	case replication.HEARTBEAT_EVENT:
		return a.idle(at, visit)
	case eventIncident:
		return a.failed(at, "the log has an incident event: the server could not log some changes; start again from a copy taken after it")
	}
	if a.open == nil {
		return nil // between transactions there are only events about the log itself
	}
	done, err := a.inside(ctx, e, at)
	switch {
	case err != nil:
		return err
	case done:
		return a.finish(at, visit)
	case a.open.large != nil && a.open.bytes > a.source.options.LargeBytes/partsOfLarge:
		if err := visit(a.open.nextPart(true)); err != nil {
			return &finalError{err}
		}
	}
	return nil
}

// idle visits that there is nothing to read. The server sends a heartbeat when it has sent all of its log and nothing happens.
func (a *assembler) idle(at *cursor, visit func(*stream.Transaction) error) error {
	if a.open != nil || uint64(at.position) < a.newest.seq {
		return nil
	}
	if err := visit(&stream.Transaction{Position: at.position, At: time.Now(), Idle: true}); err != nil {
		return &finalError{err}
	}
	return nil
}

// format reads the format of the events that follow.
func (a *assembler) format(e *replication.BinlogEvent, at *cursor) error {
	parsed, err := a.parse(e)
	if err != nil {
		return a.failed(at, "%v", err)
	}
	trailer := 0
	if parsed.(*replication.FormatDescriptionEvent).ChecksumAlgorithm == replication.BINLOG_CHECKSUM_ALG_CRC32 {
		trailer = replication.BinlogChecksumLength
	}
	if trailer != a.trailer {
		a.tables.forgetAll() // shapes know how their events end
	}
	a.trailer, a.formatEvent = trailer, e.RawData
	return nil
}

// body is the content of an event, without its header and checksum.
func (a *assembler) body(e *replication.BinlogEvent) []byte {
	return e.RawData[replication.EventHeaderSize : len(e.RawData)-a.trailer]
}

// begin starts a transaction. A new one while one is open means that the server lost the rest of that one in a crash; a
// replica drops it, and so it is here.
func (a *assembler) begin(e *replication.BinlogEvent, at *cursor) error {
	id, kind, err := parseGTIDEvent(e.Header.ServerID, a.body(e))
	if err != nil {
		return a.failed(at, "%v", err)
	}
	if a.newest.seq > 0 && id.domain != a.newest.domain {
		return a.source.unusable("GTID %s is of another replication domain than GTID %s before it, and their transactions are not ordered; use one gtid_domain_id", id, a.newest)
	}
	if id.seq <= a.newest.seq {
		return a.failed(at, "GTID %s comes after GTID %s: sequence numbers must increase, because positions are compared by them; SET GLOBAL gtid_strict_mode=ON, and start again from a copy taken after it", id, a.newest)
	}
	if a.numbered >= a.source.shapes {
		if err := a.startOver(); err != nil {
			return a.failed(at, "%v", err)
		}
	}
	a.newest = id
	position := stream.Position(id.seq)
	a.last = group{id: id, kind: kind, skip: position <= at.position, byTable: emptied(a.last.byTable), counted: emptied(a.last.counted),
		large: at.large.of(id), tx: &stream.Transaction{Position: position, ID: id.String(), At: time.Unix(int64(e.Header.Timestamp), 0)}}
	a.open = &a.last
	return nil
}

// emptied is a map without its elements, or none if it had so many that making another costs less than clearing this one each time.
func emptied[M ~map[K]V, K comparable, V any](m M) M {
	const most = 64
	if len(m) > most {
		return nil
	}
	clear(m)
	return m
}

// inside takes an event of the open transaction and returns whether it is the last.
func (a *assembler) inside(ctx context.Context, e *replication.BinlogEvent, at *cursor) (done bool, err error) {
	switch e.Header.EventType {
	case replication.XID_EVENT:
		return true, nil
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT:
		return a.query(ctx, e, at)
	case replication.BEGIN_LOAD_QUERY_EVENT, replication.EXECUTE_LOAD_QUERY_EVENT:
		if e.Header.EventType == replication.EXECUTE_LOAD_QUERY_EVENT && !a.open.skip {
			a.unreadable(nil, "GTID %s is a LOAD DATA that was logged as a statement; set binlog_format=ROW in every session, and start again from a copy taken after it", a.open.id)
		}
		return false, nil
	case eventXAPrepare:
		return true, nil
	}
	if a.open.skip {
		return false, nil
	}
	switch e.Header.EventType {
	case replication.TABLE_MAP_EVENT:
		return false, a.tableMap(ctx, e, at)
	case replication.WRITE_ROWS_EVENTv1, replication.UPDATE_ROWS_EVENTv1, replication.DELETE_ROWS_EVENTv1,
		replication.WRITE_ROWS_EVENTv2, replication.UPDATE_ROWS_EVENTv2, replication.DELETE_ROWS_EVENTv2,
		replication.MARIADB_WRITE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_UPDATE_ROWS_COMPRESSED_EVENT_V1, replication.MARIADB_DELETE_ROWS_COMPRESSED_EVENT_V1:
		return false, a.rows(e, at)
	}
	return false, nil
}

// finish visits the open transaction.
func (a *assembler) finish(at *cursor, visit func(*stream.Transaction) error) error {
	g := a.open
	a.open = nil
	if g.skip {
		return nil
	}
	switch {
	case g.large != nil:
		g.tx = g.nextPart(false)
	case g.counting && !g.rollsBack:
		// A table that somebody wanted only after some of its rows is not counted whole: it is skipped again, and the subscriber makes
		// the transaction be read again.
		for _, table := range g.tx.Skipped {
			delete(g.counted, table)
		}
		totals := g.counted
		g.counted = nil
		return &largeTransaction{id: g.id, totals: totals}
	case g.counting:
		g.tx.DDL = a.unreadableRows(g.countedTables(), "GTID %s is a large transaction on table %s that rolls back to a savepoint, which is not supported; start again from a copy taken after it", g.id, g.countedTables()[0])
	}
	if len(g.prepared) > 0 {
		g.tx.Rows, g.tx.Skipped = nil, nil
		g.tx.DDL = a.unreadableRows(g.prepared, "GTID %s is an XA transaction on table %s that is prepared first and committed later, which cannot be replicated exactly; "+
			"use XA COMMIT ... ONE PHASE, and start again from a copy taken after it", g.id, g.prepared[0])
	}
	if err := visit(g.tx); err != nil {
		return &finalError{err}
	}
	id := g.id
	at.position, at.last, at.large = g.tx.Position, &id, nil
	return nil
}

// unreadableRows are changes of tables that cannot be replicated; of all tables if none is named.
func (a *assembler) unreadableRows(tables []stream.Table, format string, args ...any) *stream.DDL {
	return &stream.DDL{Kind: stream.UnreadableRows, Tables: tables, Statement: fmt.Sprintf("source %s: %s", a.source.options.Address, fmt.Sprintf(format, args...))}
}

// unreadable adds tables to those that the open transaction changes in a way that cannot be replicated; all tables if none is named. It
// stops these tables, and no others that are read on the same connection.
func (a *assembler) unreadable(tables []stream.Table, format string, args ...any) {
	g := a.open
	if g.tx.DDL == nil || g.tx.DDL.Kind != stream.UnreadableRows {
		g.tx.DDL = a.unreadableRows(tables, format, args...)
		return
	}
	if len(g.tx.DDL.Tables) > 0 { // none means all
		g.tx.DDL.Tables = slices.Concat(g.tx.DDL.Tables, tables)
		if len(tables) == 0 {
			g.tx.DDL.Tables = nil
		}
	}
}

// spoil replaces the rows of a table in the open transaction by the reason why they cannot be read.
func (a *assembler) spoil(table stream.Table, format string, args ...any) {
	rows := a.open.rowsOf(&tableShape{table: table})
	rows.Changes, rows.Bytes, rows.Raw = nil, 0, nil
	a.open.count(table, 1) // of a large transaction, tables without changes are left out
	rows.DDL = a.unreadableRows([]stream.Table{table}, "GTID %s, table %s: %s", a.open.id, table, fmt.Sprintf(format, args...))
}

// failed is an error that would occur again after reconnecting.
func (a *assembler) failed(at *cursor, format string, args ...any) error {
	return &finalError{fmt.Errorf("source %s: after position %d: %s: %w", a.source.options.Address, at.position, fmt.Sprintf(format, args...), stream.ErrUnusable)}
}

func (a *assembler) parse(e *replication.BinlogEvent) (replication.Event, error) {
	parsed, err := a.parser.Parse(e.RawData)
	if err != nil {
		return nil, err
	}
	return parsed.Event, nil
}

// query takes a statement: the end of a transaction, a savepoint, DDL, or a statement that should have been logged as rows.
func (a *assembler) query(ctx context.Context, e *replication.BinlogEvent, at *cursor) (done bool, err error) {
	parsed, err := a.parse(e)
	if err != nil {
		return false, a.failed(at, "GTID %s: %v", a.open.id, err)
	}
	q := parsed.(*replication.QueryEvent)
	text := string(q.Query)
	switch text {
	case "COMMIT":
		return true, nil
	case "ROLLBACK":
		a.open.tx.Rows, a.open.counting = nil, false
		return true, nil
	case "BEGIN":
		return false, nil
	}
	done = a.open.kind.standalone
	if a.open.skip {
		return done, nil
	}
	session := parseSession(q.StatusVars)
	st := newStatement(text, string(q.Schema), session, a.fold)
	switch {
	case st.empty():
		return done, nil
	case !done && a.open.savepoint(st):
		a.decodeOpen()
		return false, nil
	case st.peek().is("XA"):
		return done, nil
	case st.isDML() || !done && !a.open.kind.ddl && !a.open.drops(st):
		tables, err := a.source.changedBy(ctx, st)
		if err != nil {
			return false, err
		}
		a.unreadable(tables, "GTID %s is a statement that was logged instead of rows (%s): set binlog_format=ROW in every session, and start again from a copy taken after it", a.open.id, brief(text))
		return done, nil
	}
	return done, a.ddl(ctx, text, st, session, q.SlaveProxyID, q.ErrorCode, e.Header.Flags&replication.LOG_EVENT_THREAD_SPECIFIC_F != 0)
}

// drops reports whether a statement within a transaction drops a table that CREATE OR REPLACE … SELECT has dropped and not made again, because
// the query has failed. The server logs that as a transaction of its own, which ends with ROLLBACK.
func (g *group) drops(st *statement) bool {
	return len(g.tx.Rows) == 0 && len(g.tx.Skipped) == 0 && st.comes("DROP", "TABLE")
}

// ddl makes the open transaction one of DDL, executed in the session with a number. ofSession: it used something that only its session has.
func (a *assembler) ddl(ctx context.Context, text string, st *statement, session sessionContext, number uint32, failed uint16, ofSession bool) error {
	text, session, err := a.source.inUTF8(ctx, text, session)
	if err != nil {
		return err
	}
	if session, err = a.inZone(ctx, session); err != nil {
		return err
	}
	if session.converted {
		st = newStatement(text, st.schema, session, a.fold)
	}
	if t, ok := st.temporary(); ok {
		a.temporary[temporaryTable{number, t}] = true
	}
	for _, t := range st.dropsTemporary() { // the end of a session is logged as that, too
		delete(a.temporary, temporaryTable{number, t})
	}
	ddl := parseDDL(text, st)
	if ddl.Kind == stream.CreateTable && ddl.Replaces { // the server says so of all that have dropped a table
		ofSession = slices.ContainsFunc(ddl.Reads, func(t stream.Table) bool { return a.temporary[temporaryTable{number, t}] })
	}
	if session.converted && ddl.Differs == "" {
		ddl.Differs = st.introduced()
	}
	if failed != 0 {
		text = ddl.Failed()
	}
	if ofSession && ddl.NamesExisting() && ddl.Differs == "" {
		ddl.Differs = "it may be about a temporary table, which the sink does not have, and not about the table of that name; set binlog_format=ROW in every session"
	}
	if ddl.Differs == "" && generated(ddl, a.open.kind.standalone, ofSession) {
		ddl.Differs = st.lost()
	}
	a.tables.forget(ddl)
	if k := a.open.kind; k.startAlter || k.rollbackAlter {
		return nil
	}
	if names := ddl.Names(); len(names) > 0 && allSystem(names) || isSystem(ddl.Schema) && (ddl.Kind == stream.SetSchema || ddl.Kind == stream.DropSchema) {
		return nil
	}
	ddl.Prefix(session.prefix(a.open.tx.At, a.tables.collations, a.oldMode), text)
	a.setDDL(ddl)
	return nil
}

// setDDL sets the DDL of the open transaction. A transaction of rows, or of statements that were logged instead, may have more: statements about
// temporary tables, which carry no data. They must not take the place of a reason why something cannot be read.
func (a *assembler) setDDL(ddl *stream.DDL) {
	switch {
	case a.open.tx.DDL == nil:
		a.open.tx.DDL = ddl
	case ddl.Kind != stream.OtherDDL && a.open.tx.DDL.Kind == stream.OtherDDL:
		a.open.tx.DDL = ddl
	case ddl.Kind != stream.OtherDDL:
		a.unreadable(nil, "GTID %s has several statements that create, alter or drop tables, of which the last is %s; start again from a copy taken after it", a.open.id, brief(ddl.Text()))
	}
}

func allSystem(tables []stream.Table) bool {
	for _, t := range tables {
		if !isSystem(t.Schema) {
			return false
		}
	}
	return true
}

// brief is the beginning of a statement, for a message.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 80 {
		return text[:80] + "…"
	}
	return text
}

// tableMap takes the description of the table that the following rows refer to by number.
func (a *assembler) tableMap(ctx context.Context, e *replication.BinlogEvent, at *cursor) (err error) {
	body := a.body(e)
	if len(body) < tableIDLength {
		return a.failed(at, "GTID %s: the description of a table is too short", a.open.id)
	}
	number, shape := tableID(body), a.tables.byText[string(body[tableIDLength:])]
	if shape == nil || shape.bare && a.wants(shape.table) {
		if shape, err = a.newShape(ctx, e, at); err != nil {
			return err
		}
	}
	a.tables.ids[number] = shape
	if shape.ignored || shape.bare || !a.wants(shape.table) {
		a.unread[number] = true
	} else {
		delete(a.unread, number)
	}
	a.open.describe(shape)
	return nil
}

// describe records a table that a prepared XA transaction changes.
func (g *group) describe(shape *tableShape) {
	if g.kind.preparedXA && !shape.ignored && !slices.Contains(g.prepared, shape.table) {
		g.prepared = append(g.prepared, shape.table)
	}
}

// rows adds the rows of an event to the transaction.
func (a *assembler) rows(e *replication.BinlogEvent, at *cursor) error {
	body := a.body(e)
	if len(body) < tableIDLength {
		return a.failed(at, "GTID %s: an event with rows is too short", a.open.id)
	}
	number := tableID(body)
	shape := a.tables.byID(number)
	switch {
	case shape == nil:
		return a.failed(at, "GTID %s has rows of table number %d, which the log does not describe", a.open.id, number)
	case shape.ignored, a.open.kind.preparedXA:
		return nil
	case a.unread[number] || !a.wants(shape.table) || a.open.large != nil && a.open.large.totals[shape.table] == 0:
		if !slices.Contains(a.open.tx.Skipped, shape.table) {
			a.open.tx.Skipped = append(a.open.tx.Skipped, shape.table)
		}
		return nil
	}
	if slices.Contains(a.open.spoiled, shape.table) {
		return nil // they could not be read in an earlier part
	}
	rows := a.open.rowsOf(shape)
	if rows.DDL != nil {
		return nil // they could not be read before
	}
	changes, bytes := len(rows.Changes), rows.Bytes
	if a.takeRaw(e, shape, rows) {
		shape.changes = len(rows.Changes)
		a.open.account(rows, changes, bytes, a.source.options.LargeBytes)
		return nil
	}
	if err := rows.Decode(); err != nil { // what was kept comes before what is decoded now
		a.spoil(shape.table, "%v", err)
		return nil
	}
	rows.Raw = nil
	parsed, err := a.parseRows(e, shape)
	switch {
	case err != nil:
		a.spoil(shape.table, "%v", err)
	case shape.problem != "":
		a.spoil(shape.table, "%s", shape.problem)
	case rows.Schema != shape.schema && !reflect.DeepEqual(rows.Schema, shape.schema):
		a.spoil(shape.table, "its columns change within one transaction")
	default:
		event := parsed.(*replication.RowsEvent)
		a.open.beginRun(rows, event.Flags&noForeignKeyChecks != 0)
		if err := shape.decode(event, rows); err != nil {
			a.spoil(shape.table, "%v", err)
			return nil
		}
		shape.changes = len(rows.Changes)
		a.open.account(rows, changes, bytes, a.source.options.LargeBytes)
	}
	return nil
}

// noForeignKeyChecks is the flag of events with rows that were changed while the session did not check foreign keys.
const noForeignKeyChecks = 2

// beginRun records that changes of a table follow, unless they follow others of it in the same way.
func (g *group) beginRun(rows *stream.Rows, unchecked bool) {
	if n := len(rows.Runs); n > 0 && g.last == rows.Table && rows.Runs[n-1].Unchecked == unchecked {
		return
	}
	g.runs++
	g.last = rows.Table
	rows.Runs = append(rows.Runs, stream.Run{First: len(rows.Changes), Order: g.runs, Unchecked: unchecked})
}

// tableIDLength is how many bytes the number of a table takes, at the beginning of an event of rows.
const tableIDLength = 6

func tableID(body []byte) uint64 {
	return uint64(binary.LittleEndian.Uint32(body)) | uint64(binary.LittleEndian.Uint16(body[4:]))<<32
}

// rowsOf finds or makes the rows of a table in the transaction.
func (g *group) rowsOf(shape *tableShape) *stream.Rows {
	if rows := g.byTable[shape.table]; rows != nil {
		return rows
	}
	rows := &stream.Rows{Position: g.tx.Position, At: g.tx.At, Table: shape.table, Schema: shape.schema, Changes: make([]stream.Change, 0, min(shape.changes, expectedChanges))}
	if g.byTable == nil {
		g.byTable = map[stream.Table]*stream.Rows{}
	}
	g.byTable[shape.table] = rows
	g.tx.Rows = append(g.tx.Rows, rows)
	return rows
}
