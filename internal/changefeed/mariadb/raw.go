package mariadb

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// rawTable keeps the rows of a table as they were logged, and decodes them when somebody asks for their values. It has a parser of its
// own, because that of the connection has moved on by then.
type rawTable struct {
	*rowevent.Table
	shape *tableShape
	// number of the table in the description that the parser has. Later descriptions may have others.
	number uint64

	mu     sync.Mutex
	parser *replication.BinlogParser
}

// rawRows are changes of one table in one transaction as they were logged. It implements stream.Raw.
type rawRows struct {
	table  *rawTable
	events []rowevent.Event
	whole  [][]byte // the events with their headers
	once   sync.Once
	err    error
}

var _ stream.Raw = (*rawRows)(nil)

// intact reports whether an event of a transaction has the checksum that it should have. The server of a sink does not check events that
// are forwarded to it. Events between transactions are about the log itself: the server makes some of them up, and none is kept.
func (a *assembler) intact(e *replication.BinlogEvent) bool {
	switch e.Header.EventType {
	case replication.FORMAT_DESCRIPTION_EVENT, replication.HEARTBEAT_EVENT, replication.ROTATE_EVENT:
		return true
	}
	if a.trailer == 0 || a.open == nil && e.Header.EventType != replication.MARIADB_GTID_EVENT {
		return true
	}
	end := len(e.RawData) - a.trailer
	return end >= replication.EventHeaderSize && crc32.ChecksumIEEE(e.RawData[:end]) == binary.LittleEndian.Uint32(e.RawData[end:])
}

// keepRaw makes a new shape keep rows as they were logged, if they can be: not without checksums, with compressed columns, or with columns
// that the server does not show.
func (a *assembler) keepRaw(shape *tableShape, m *replication.TableMapEvent, e *replication.BinlogEvent, compressed []int) {
	if !a.source.options.Raw || a.trailer == 0 || shape.raw != nil || shape.ignored || shape.bare || shape.problem != "" || shape.hidden > 0 || len(compressed) > 0 {
		return
	}
	table, err := rowevent.NewTable(a.rawColumns(m), rawKey(m), a.body(e)[tableIDLength:])
	if err != nil {
		return
	}
	r := &rawTable{Table: table, shape: shape, number: m.TableID, parser: newParser()}
	for _, event := range [][]byte{a.formatEvent, e.RawData} {
		if _, err := r.parser.Parse(event); err != nil {
			return
		}
	}
	shape.raw = r
}

// rawColumns are the columns of a table in the words of the log.
func (a *assembler) rawColumns(m *replication.TableMapEvent) []rowevent.Column {
	names, unsigned, texts, members := m.ColumnNameString(), unsignedColumns(m), m.CollationMap(), m.EnumSetCollationMap()
	enums, sets := m.EnumStrValueMap(), m.SetStrValueMap()
	columns := make([]rowevent.Column, m.ColumnCount)
	for i := range columns {
		c := rowevent.Column{Name: names[i], Type: m.ColumnType[i], Meta: m.ColumnMeta[i], Unsigned: unsigned[i], Members: enums[i]}
		c.Nullable = m.NullBitmap[i/8]&(1<<(i%8)) != 0
		if c.Members == nil {
			c.Members = sets[i]
		}
		if c.Collation = texts[i]; c.Collation == 0 {
			c.Collation = members[i]
		}
		c.Charset = a.tables.collations[c.Collation].charset
		columns[i] = c
	}
	return columns
}

// rawKey is the primary key, unless it is of parts of columns.
func rawKey(m *replication.TableMapEvent) (key []int) {
	for i, column := range m.PrimaryKey {
		if i < len(m.PrimaryKeyPrefix) && m.PrimaryKeyPrefix[i] != 0 {
			return nil
		}
		key = append(key, int(column))
	}
	return key
}

// takeRaw adds the rows of an event without decoding them. It returns false if they have to be decoded now: in parts of a large
// transaction and in one with savepoints they may be cut, compressed events are not forwarded, and what follows decoded rows is decoded.
func (a *assembler) takeRaw(e *replication.BinlogEvent, shape *tableShape, rows *stream.Rows) bool {
	if shape.raw == nil || shape.problem != "" || a.open.decoded || a.open.large != nil || rows.Schema != shape.schema || rows.Raw == nil && len(rows.Changes) > 0 {
		return false
	}
	kind := stream.Insert
	switch e.Header.EventType {
	case replication.WRITE_ROWS_EVENTv1:
	case replication.UPDATE_ROWS_EVENTv1:
		kind = stream.Update
	case replication.DELETE_ROWS_EVENTv1:
		kind = stream.Delete
	default:
		return false
	}
	body := a.body(e)
	const flags = tableIDLength
	if len(body) < flags+2 {
		return false
	}
	event, err := shape.raw.Parse(byte(e.Header.EventType), body[flags+2:])
	if err != nil {
		return false // decoding says why
	}
	raw, _ := rows.Raw.(*rawRows)
	if raw == nil {
		expected := min(shape.events, expectedEvents)
		raw = &rawRows{table: shape.raw, events: make([]rowevent.Event, 0, expected), whole: make([][]byte, 0, expected)}
		rows.Raw = raw
	}
	a.open.beginRun(rows, binary.LittleEndian.Uint16(body[flags:])&noForeignKeyChecks != 0)
	raw.events, raw.whole = append(raw.events, event), append(raw.whole, e.RawData)
	shape.events = len(raw.events)
	for range event.Changes {
		rows.Changes = append(rows.Changes, stream.Change{Kind: kind})
	}
	images := event.Changes
	if kind == stream.Update {
		images *= 2
	}
	rows.Bytes += event.Bytes() + images*(24*len(shape.raw.Columns)+64)
	return true
}

// decodeOpen decodes what is kept of the open transaction, and what follows.
func (a *assembler) decodeOpen() {
	a.open.decoded = true
	for _, rows := range a.open.tx.Rows {
		if err := rows.Decode(); err != nil {
			a.spoil(rows.Table, "%v", err)
		}
		rows.Raw = nil
	}
}

// parseRows parses an event with rows of a table.
func (a *assembler) parseRows(e *replication.BinlogEvent, shape *tableShape) (replication.Event, error) {
	if shape.raw == nil {
		return parseAs(a.parser, shape.number, e.RawData)
	}
	return shape.raw.parse(e.RawData)
}

// parseAs parses a whole event with rows of the table that a parser has under a number. It changes the event: the parser forgets all tables
// at the end of a statement.
func parseAs(parser *replication.BinlogParser, number uint64, event []byte) (replication.Event, error) {
	const flags = replication.EventHeaderSize + tableIDLength
	if len(event) < flags+2 {
		return nil, fmt.Errorf("an event with rows is too short")
	}
	setTableID(event, number)
	event[flags] &^= endOfStatement
	parsed, err := parser.Parse(event)
	if err != nil {
		return nil, err
	}
	return parsed.Event, nil
}

// parse parses a whole event with rows of the table.
func (r *rawTable) parse(event []byte) (replication.Event, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return parseAs(r.parser, r.number, event)
}

// endOfStatement is the flag of the last event of a statement.
const endOfStatement = 1

// Logged returns the table and the events in order. They must not be changed.
func (r *rawRows) Logged() (*rowevent.Table, []rowevent.Event) { return r.table.Table, r.events }

// Decode implements stream.Raw.
func (r *rawRows) Decode(into []stream.Change) error {
	r.once.Do(func() { r.err = r.decode(into) })
	return r.err
}

func (r *rawRows) decode(into []stream.Change) error {
	decoded := &stream.Rows{}
	for _, event := range r.whole {
		parsed, err := r.table.parse(event)
		if err != nil {
			return r.unreadable(err)
		}
		if err := r.table.shape.decode(parsed.(*replication.RowsEvent), decoded); err != nil {
			return r.unreadable(err)
		}
	}
	if len(decoded.Changes) != len(into) {
		return r.unreadable(fmt.Errorf("%d changes were counted, and %d decoded", len(into), len(decoded.Changes)))
	}
	copy(into, decoded.Changes)
	return nil
}

func (r *rawRows) unreadable(err error) error {
	return fmt.Errorf("table %s cannot be decoded: %w (%w)", r.table.shape.table, err, stream.ErrUnusable)
}
