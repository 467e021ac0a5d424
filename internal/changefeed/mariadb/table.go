package mariadb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// tableShape is a table as the log describes it at a position.
type tableShape struct {
	table  stream.Table
	schema *stream.Schema
	values []func(any) (any, error)
	// ignored: it is a system table.
	ignored bool
	// bare: nobody wanted its rows, and only its name was read.
	bare bool
	// problem is why its rows cannot be read.
	problem string
	// hidden is how many columns at the end of a row only the server sees: hashes of long unique keys.
	hidden int
	// raw keeps rows as they were logged; nil if they are decoded when they are read.
	raw *rawTable
	// number under which the parser has the description.
	number uint64
	// changes and events are how many the last transaction with rows of the table had: the next one probably has as many.
	changes, events int
}

// expectedChanges and expectedEvents bound how many changes and events there is room for before they come.
const expectedChanges, expectedEvents = 16, 8

// tableCache has the shapes of tables, by the bytes of their descriptions without the table's number. The log repeats the description
// before every statement; parsing it each time would cost more than the rows.
type tableCache struct {
	source     *Source
	collations map[uint64]collation
	byText     map[string]*tableShape
	ids        map[uint64]*tableShape
}

// cachedShapes is after how many descriptions all of them are forgotten.
const cachedShapes = 20000

func newTableCache(s *Source, collations map[uint64]collation) *tableCache {
	c := &tableCache{source: s, collations: collations}
	c.forgetAll()
	return c
}

func (c *tableCache) forgetAll() {
	c.byText, c.ids = map[string]*tableShape{}, map[uint64]*tableShape{}
}

// forget drops the shapes of the tables that a DDL names, since a part of them was read from the live server. DDL that names no table
// may concern all of them.
func (c *tableCache) forget(d *stream.DDL) {
	named := d.Names()
	if len(named) == 0 {
		c.forgetAll()
		return
	}
	maps.DeleteFunc(c.byText, func(_ string, shape *tableShape) bool {
		return slices.ContainsFunc(named, func(t stream.Table) bool {
			return strings.EqualFold(t.Schema, shape.table.Schema) && strings.EqualFold(t.Name, shape.table.Name)
		})
	})
}

func (c *tableCache) byID(id uint64) *tableShape { return c.ids[id] }

// newShape parses the description of a table, under a number of its own: that of the log may be another one's later.
func (a *assembler) newShape(ctx context.Context, e *replication.BinlogEvent, at *cursor) (*tableShape, error) {
	own := *e
	own.RawData = bytes.Clone(e.RawData)
	text := string(a.body(&own)[tableIDLength:])
	compressed := uncompressedTypes(a.body(&own))
	a.numbered++
	setTableID(own.RawData, a.numbered)
	parsed, err := a.parse(&own)
	if err != nil {
		return nil, a.failed(at, "GTID %s: %v", a.open.id, err)
	}
	m := parsed.(*replication.TableMapEvent)
	shape, err := a.tables.shape(ctx, m, compressed, a.wants)
	if err != nil {
		return nil, err
	}
	shape.number = a.numbered
	a.keepRaw(shape, m, &own, compressed)
	a.tables.byText[text] = shape
	return shape, nil
}

// setTableID sets the number of the table in an event.
func setTableID(event []byte, number uint64) {
	for i := range tableIDLength {
		event[replication.EventHeaderSize+i] = byte(number >> (8 * i))
	}
}

// startOver forgets all tables, between transactions. The parser cannot forget one.
func (a *assembler) startOver() error {
	a.tables.forgetAll()
	a.parser, a.numbered = newParser(), 0
	_, err := a.parser.Parse(a.formatEvent)
	return err
}

func (c *tableCache) shape(ctx context.Context, m *replication.TableMapEvent, compressed []int, wants func(stream.Table) bool) (*tableShape, error) {
	t := &tableShape{table: stream.Table{Schema: string(m.Schema), Name: string(m.Table)}, schema: &stream.Schema{}}
	names := m.ColumnNameString()
	switch {
	case isSystem(t.table.Schema):
		t.ignored = true
		return t, nil
	case !wants(t.table):
		t.bare = true
		return t, nil
	case len(names) == 0:
		t.problem = "its columns are logged without names; SET GLOBAL binlog_row_metadata=FULL, and start again from a copy taken after that"
		return t, nil
	}
	shown := names
	facts, err := c.source.facts(ctx, t.table, names, len(m.PrimaryKey) == 0)
	for hashless := withoutHashes(names); err == nil && len(facts.types) == 0 && len(hashless) < len(shown); { // a column may have such a name
		shown = shown[:len(shown)-1]
		facts, err = c.source.facts(ctx, t.table, shown, len(m.PrimaryKey) == 0)
	}
	if err != nil {
		return nil, err
	}
	t.hidden = len(names) - len(shown)
	c.columns(t, m, shown, facts, compressed)
	for _, i := range m.PrimaryKey {
		t.schema.Key = append(t.schema.Key, int(i))
	}
	if len(t.schema.Key) == 0 {
		t.schema.Key = facts.key
	}
	return t, nil
}

// columns describes the columns and how their values are read.
func (c *tableCache) columns(t *tableShape, m *replication.TableMapEvent, names []string, facts *facts, compressed []int) {
	unsigned, texts, members := unsignedColumns(m), m.CollationMap(), m.EnumSetCollationMap()
	enums, sets := m.EnumStrValueMap(), m.SetStrValueMap()
	for i, name := range names {
		col := column{code: realType(m, i), meta: m.ColumnMeta[i], unsigned: unsigned[i], members: enums[i], live: facts.types[name], compressed: slices.Contains(compressed, i)}
		if col.code == mysql.MYSQL_TYPE_SET {
			col.members = sets[i]
		}
		var text collation
		if id, ok := texts[i]; ok {
			text = c.collations[id]
		} else if id, ok := members[i]; ok {
			text = c.collations[id]
		}
		col.charset, col.unclear = text.charset, unclearMembers(col.members, col.code == mysql.MYSQL_TYPE_SET, strings.HasSuffix(text.name, "_bin"))
		typ, value := col.describe()
		if value == nil {
			t.problem = fmt.Sprintf("column %s has %s", name, typ)
			return
		}
		t.schema.Columns = append(t.schema.Columns, stream.Column{Name: name, Type: typ, Unsigned: col.unsigned, Collation: text.name, Digits: col.digits(), Generated: facts.generated[name]})
		t.values = append(t.values, value)
	}
}

// unsignedColumns are the columns without a sign. The log has a bit for each column that is a number, the first in the highest bit of
// the first byte. To MariaDB a YEAR is a number, which the library does not know.
func unsignedColumns(m *replication.TableMapEvent) []bool {
	unsigned, numbers := make([]bool, m.ColumnCount), 0
	for i := range unsigned {
		if !m.IsNumericColumn(i) && m.ColumnType[i] != mysql.MYSQL_TYPE_YEAR {
			continue
		}
		if at := numbers / 8; at < len(m.SignednessBitmap) {
			unsigned[i] = m.SignednessBitmap[at]&(0x80>>(numbers%8)) != 0
		}
		numbers++
	}
	return unsigned
}

// withoutHashes are the columns of a table without the hashes of long unique keys, which the server adds at the end and does not show.
func withoutHashes(names []string) []string {
	n := len(names)
	for n > 0 && hashColumn.MatchString(names[n-1]) {
		n--
	}
	return names[:n]
}

var hashColumn = regexp.MustCompile(`^DB_ROW_HASH_\d+$`)

// realType is the type of a column. The log has enums and sets as strings.
func realType(m *replication.TableMapEvent, i int) byte {
	switch {
	case m.IsEnumColumn(i):
		return mysql.MYSQL_TYPE_ENUM
	case m.IsSetColumn(i):
		return mysql.MYSQL_TYPE_SET
	}
	return m.ColumnType[i]
}

var errPartialRow = errors.New("a row is logged without all its columns; set binlog_row_image=FULL in every session, and start again from a copy taken after that")

// decode appends the changes of an event.
func (t *tableShape) decode(e *replication.RowsEvent, into *stream.Rows) error {
	kind, step := stream.Insert, 1
	switch e.Type() {
	case replication.EnumRowsEventTypeUpdate:
		kind, step = stream.Update, 2
	case replication.EnumRowsEventTypeDelete:
		kind = stream.Delete
	}
	for i, row := range e.Rows {
		if len(e.SkippedColumns[i]) > 0 || len(row) != len(t.values)+t.hidden {
			return errPartialRow
		}
		row = row[:len(t.values)]
		e.Rows[i] = row
		for j, v := range row {
			if v == nil {
				continue
			}
			value, err := t.values[j](v)
			if err != nil {
				return fmt.Errorf("column %s: %w", t.schema.Columns[j].Name, err)
			}
			row[j] = value
			into.Bytes += sizeOf(value)
		}
		into.Bytes += 16*len(row) + 64/step
	}
	into.Changes = slices.Grow(into.Changes, len(e.Rows)/step)
	for i := 0; i+step <= len(e.Rows); i += step {
		change := stream.Change{Kind: kind}
		switch kind {
		case stream.Insert:
			change.After = e.Rows[i]
		case stream.Delete:
			change.Before = e.Rows[i]
		default:
			change.Before, change.After = e.Rows[i], e.Rows[i+1]
		}
		into.Changes = append(into.Changes, change)
	}
	return nil
}

// sizeOf is the approximate size of a value in memory.
func sizeOf(v any) int {
	switch v := v.(type) {
	case string:
		return 16 + len(v)
	case []byte:
		return 24 + len(v)
	}
	return 8
}
