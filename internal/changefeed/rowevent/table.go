package rowevent

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// Column is a column as the log describes it.
type Column struct {
	Name string
	// Type and Meta are those of the log, where enums and sets are strings whose Meta has the real type.
	Type     byte
	Meta     uint16
	Unsigned bool
	Nullable bool
	// Collation is the number of the collation of text, and Charset its character set; 0 and empty if it has none.
	Collation uint64
	Charset   string
	// Members of an enum or a set.
	Members []string
}

// Table is a table as the log describes it at a position. It does not change.
type Table struct {
	Columns []Column
	// Key are the columns of the primary key; none if there is no primary key, or one of parts of columns.
	Key []int
	// description is the body of the table map after the number of the table, up to what only readers need.
	description []byte
}

// The types of events with rows. MariaDB logs no others, except compressed ones.
const (
	WriteRows  = 23
	UpdateRows = 24
	DeleteRows = 25
)

// NewTable makes a table of its columns, its key and the body of its table map after the number of the table.
func NewTable(columns []Column, key []int, body []byte) (*Table, error) {
	end, err := descriptionEnd(body)
	if err != nil {
		return nil, err
	}
	t := &Table{Columns: columns, Key: key, description: bytes.Clone(body[:end])}
	// Of the flags, only the one that says how long bit columns are is about the table.
	t.description[0], t.description[1] = body[0]&bitLengthExact, 0
	return t, nil
}

const bitLengthExact = 1

var errShort = errors.New("an event is too short")

// descriptionEnd is where a table map has its columns, their types and whether they may be NULL, and has only names and the like left.
func descriptionEnd(body []byte) (int, error) {
	c := &cursor{data: body}
	c.skip(2)                 // flags
	c.skip(int(c.byte()) + 1) // schema
	c.skip(int(c.byte()) + 1) // table
	columns := c.number()
	c.skip(columns)
	c.skip(c.number())
	c.skip((columns + 7) / 8)
	if c.short {
		return 0, errShort
	}
	return c.at, nil
}

// Event are rows of one table, as they were logged by one event.
type Event struct {
	// Type is WriteRows, UpdateRows or DeleteRows.
	Type byte
	// Changes is how many rows it writes, updates or deletes.
	Changes int
	// body is the event after its flags, and head how long the part before the rows is: which columns they have.
	body []byte
	head int
}

// Bytes is the size of the rows.
func (e Event) Bytes() int { return len(e.body) }

// ErrPartial: rows are logged without all their columns.
var ErrPartial = errors.New("rows are logged without all their columns")

// Parse reads an event from its body after the flags, and counts its rows. The rows must end where the event does. The body is kept.
func (t *Table) Parse(typ byte, body []byte) (Event, error) {
	images := 1
	if typ == UpdateRows {
		images = 2
	}
	c := &cursor{data: body}
	if columns := c.number(); columns != len(t.Columns) {
		return Event{}, fmt.Errorf("an event has %d columns, and its table %d", columns, len(t.Columns))
	}
	for range images {
		if !allSet(c.take((len(t.Columns)+7)/8), len(t.Columns)) && !c.short {
			return Event{}, ErrPartial
		}
	}
	e := Event{Type: typ, body: body, head: c.at}
	for !c.short && c.at < len(body) {
		for range images {
			t.skipRow(c)
		}
		e.Changes++
	}
	if c.unknown != 0 {
		return Event{}, fmt.Errorf("a column has type %d, whose length is not known", c.unknown)
	}
	if c.short {
		return Event{}, errShort
	}
	return e, nil
}

// allSet reports whether the first n bits are set.
func allSet(bits []byte, n int) bool {
	for i := range n {
		if i/8 >= len(bits) || bits[i/8]&(1<<(i%8)) == 0 {
			return false
		}
	}
	return true
}

// skipRow moves past one image of a row: which columns are NULL, and the values of the others.
func (t *Table) skipRow(c *cursor) {
	nulls := c.take((len(t.Columns) + 7) / 8)
	if c.short {
		return
	}
	for i := range t.Columns {
		if nulls[i/8]&(1<<(i%8)) == 0 {
			t.Columns[i].skip(c)
		}
	}
}

// skip moves past a value.
func (col *Column) skip(c *cursor) {
	switch typ, length := col.real(); typ {
	case mysql.MYSQL_TYPE_TINY, mysql.MYSQL_TYPE_YEAR:
		c.skip(1)
	case mysql.MYSQL_TYPE_SHORT:
		c.skip(2)
	case mysql.MYSQL_TYPE_INT24, mysql.MYSQL_TYPE_DATE, mysql.MYSQL_TYPE_NEWDATE:
		c.skip(3)
	case mysql.MYSQL_TYPE_LONG, mysql.MYSQL_TYPE_FLOAT:
		c.skip(4)
	case mysql.MYSQL_TYPE_LONGLONG, mysql.MYSQL_TYPE_DOUBLE:
		c.skip(8)
	case mysql.MYSQL_TYPE_TIME2:
		c.skip(3 + fraction(col.Meta))
	case mysql.MYSQL_TYPE_TIMESTAMP2:
		c.skip(4 + fraction(col.Meta))
	case mysql.MYSQL_TYPE_DATETIME2:
		c.skip(5 + fraction(col.Meta))
	case mysql.MYSQL_TYPE_NEWDECIMAL:
		c.skip(decimalLength(int(col.Meta>>8), int(col.Meta&0xff)))
	case mysql.MYSQL_TYPE_BIT:
		c.skip((col.bits() + 7) / 8)
	case mysql.MYSQL_TYPE_ENUM, mysql.MYSQL_TYPE_SET:
		c.skip(length)
	case mysql.MYSQL_TYPE_STRING, mysql.MYSQL_TYPE_VARCHAR, mysql.MYSQL_TYPE_VAR_STRING:
		if length > 255 {
			c.skip(c.little(2))
		} else {
			c.skip(c.little(1))
		}
	case mysql.MYSQL_TYPE_BLOB:
		c.skip(c.little(int(col.Meta)))
	default:
		c.unknown = typ
		c.at = len(c.data)
	}
}

// real is the type of a column behind the string that the log has for it, and its length in bytes if it is one.
func (col *Column) real() (typ byte, length int) {
	if col.Type != mysql.MYSQL_TYPE_STRING {
		return col.Type, int(col.Meta)
	}
	high, low := byte(col.Meta>>8), int(col.Meta&0xff)
	switch {
	case high == mysql.MYSQL_TYPE_ENUM, high == mysql.MYSQL_TYPE_SET:
		return high, low
	case high&0x30 != 0x30: // two bits of a length above 255, inverted
		return high | 0x30, low | int((high&0x30)^0x30)<<4
	}
	return high, low
}

// bits is the length of a bit column.
func (col *Column) bits() int { return int(col.Meta>>8)*8 + int(col.Meta&0xff) }

// fraction is how many bytes digits of a second take.
func fraction(digits uint16) int { return int(digits+1) / 2 }

// decimalLength is how many bytes a decimal takes: nine digits in four bytes, and fewer in as many as they need, on each side of the point.
func decimalLength(precision, scale int) int {
	rest := [10]int{0, 1, 1, 2, 2, 3, 3, 4, 4, 4}
	whole := precision - scale
	if whole < 0 || scale < 0 {
		return 0
	}
	return whole/9*4 + rest[whole%9] + scale/9*4 + rest[scale%9]
}

// cursor reads bytes. Once something is missing it is short, and reads nothing.
type cursor struct {
	data  []byte
	at    int
	short bool
	// unknown is the type of a value whose length is not known.
	unknown byte
}

func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.data)-c.at {
		c.short = true
	}
	if c.short {
		return nil
	}
	c.at += n
	return c.data[c.at-n : c.at]
}

func (c *cursor) skip(n int) { c.take(n) }

func (c *cursor) byte() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

// little is a number of n bytes, the lowest first.
func (c *cursor) little(n int) (v int) {
	for i, b := range c.take(n) {
		v |= int(b) << (8 * i)
	}
	return v
}

// number is one whose first byte says how long it is.
func (c *cursor) number() int {
	switch first := c.byte(); first {
	case 0xfc:
		return c.little(2)
	case 0xfd:
		return c.little(3)
	case 0xfe:
		return c.little(8)
	case 0xfb, 0xff:
		c.short = true
		return 0
	default:
		return int(first)
	}
}
