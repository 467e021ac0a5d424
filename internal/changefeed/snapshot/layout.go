package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Column of a table, as information_schema describes it.
type Column struct {
	Name string
	// Type is DATA_TYPE in lower case, and FullType is COLUMN_TYPE.
	Type, FullType string
	// Charset and Collation of text; empty for anything else.
	Charset, Collation string
	// Generated columns are not copied, and those that are LeftOut neither.
	Generated, LeftOut bool
}

// Layout is how a table is read.
type Layout struct {
	Table   stream.Table
	Columns []Column
	// Key are the indexes, in Columns, of a key whose columns are whole and not NULL, and KeyName is its name; empty if there is none.
	Key     []int
	KeyName string
	// Sequence: it is a sequence, which has one row.
	Sequence bool
	// RowBytes is about how long a row is; 0 if that is not known.
	RowBytes int64
	// Leaves reports whether a row is left out, by the values of the columns that are Tested, nil for NULL; nil if none is.
	Leaves func(values [][]byte) (bool, error)
	Tested []int
}

// form is how values of a column are read and written.
type form uint8

const (
	// formBytes are read byte for byte, and written in quotes.
	formBytes form = iota
	// formNumber are read as they are, and written without quotes.
	formNumber
	// formDouble are read as doubles: the text of a float, or of a double with a fixed number of digits, is not exact.
	formDouble
	// formIndex are read as numbers: a member of an enum may have no name.
	formIndex
	// formParsed are text that the server parses.
	formParsed
	// formGeometry may be empty, which no statement can write.
	formGeometry
)

func (c *Column) form() form {
	switch c.Type {
	case "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "year":
		return formNumber
	case "float", "double":
		return formDouble
	case "enum", "set", "bit":
		return formIndex
	case "inet4", "inet6", "uuid":
		return formParsed
	case "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection":
		return formGeometry
	}
	return formBytes
}

// expression reads a column.
func (c *Column) expression() string {
	switch c.form() {
	case formDouble:
		return "CAST(" + quoteName(c.Name) + " AS DOUBLE)"
	case formIndex:
		return "CAST(" + quoteName(c.Name) + " AS UNSIGNED)"
	}
	return quoteName(c.Name)
}

// comparand is what of a column is compared with a value of a cursor. An enum is in the order of its members, but is compared with text by
// their names.
func (c *Column) comparand() string {
	if c.form() == formIndex && c.Type != "bit" {
		return c.expression()
	}
	return quoteName(c.Name)
}

// bound is a value of a cursor as a literal that is compared like a value of the column.
func (c *Column) bound(value []byte) (string, error) {
	switch c.form() {
	case formNumber, formDouble, formIndex:
		if !isNumber(value) {
			return "", fmt.Errorf("column %s: %q is not a number", c.Name, value)
		}
		return string(value), nil
	}
	if c.Charset != "" {
		return fmt.Sprintf("_%s X'%X' COLLATE %s", c.Charset, value, c.Collation), nil
	}
	switch c.Type {
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		return fmt.Sprintf("X'%X'", value), nil
	}
	return string(appendQuoted(append([]byte{}, "_latin1"...), value)), nil
}

// copied are the indexes of the columns that are copied.
func (l *Layout) copied() []int {
	var list []int
	for i := range l.Columns {
		if !l.Columns[i].Generated && !l.Columns[i].LeftOut {
			list = append(list, i)
		}
	}
	return list
}

// read are the indexes of the columns that are read: first those that are copied, then those that only decide whether a row is left out.
func (l *Layout) read() []int {
	list := l.copied()
	for _, i := range l.Tested {
		if !slices.Contains(list, i) {
			list = append(list, i)
		}
	}
	return list
}

// Fingerprint of the key. A cursor is valid only for the key that it was made for.
func (l *Layout) Fingerprint() string {
	h := sha256.New()
	for _, i := range l.Key {
		c := &l.Columns[i]
		fmt.Fprintf(h, "%q %q %q\n", c.Name, c.FullType, c.Collation)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Select reads at most limit rows after a cursor in the order of the key, or all rows if there is no key.
func (l *Layout) Select(after *Cursor, limit int) (string, error) {
	var b strings.Builder
	b.WriteString("SELECT ")
	for n, i := range l.read() {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(l.Columns[i].expression())
	}
	b.WriteString(" FROM " + quoteName(l.Table.Schema) + "." + quoteName(l.Table.Name))
	if len(l.Key) == 0 {
		return b.String(), nil
	}
	b.WriteString(" FORCE INDEX (" + quoteName(l.KeyName) + ")")
	if after != nil {
		where, err := l.after(after)
		if err != nil {
			return "", err
		}
		b.WriteString(" WHERE " + where)
	}
	b.WriteString(" ORDER BY ")
	for n, i := range l.Key {
		if n > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quoteName(l.Columns[i].Name))
	}
	b.WriteString(" LIMIT " + strconv.Itoa(limit))
	return b.String(), nil
}

// after is the condition that a row comes after a cursor: a > x OR (a = x AND (b > y OR (b = y AND ...))). The server reads such
// ranges of an index, but not those of (a, b) > (x, y).
func (l *Layout) after(c *Cursor) (string, error) {
	if len(c.Values) != len(l.Key) {
		return "", fmt.Errorf("table %s: the cursor has %d values, and the key %d columns", l.Table, len(c.Values), len(l.Key))
	}
	text := ""
	for n := len(l.Key) - 1; n >= 0; n-- {
		column := &l.Columns[l.Key[n]]
		bound, err := column.bound(c.Values[n])
		if err != nil {
			return "", err
		}
		greater := column.comparand() + " > " + bound
		if text == "" {
			text = greater
			continue
		}
		text = greater + " OR (" + column.comparand() + " = " + bound + " AND (" + text + "))"
	}
	return text, nil
}

func quoteName(text string) string { return "`" + strings.ReplaceAll(text, "`", "``") + "`" }

// appendQuoted appends a string for a session with NO_BACKSLASH_ESCAPES.
func appendQuoted(to, text []byte) []byte {
	to = append(to, '\'')
	for _, b := range text {
		if b == '\'' {
			to = append(to, '\'')
		}
		to = append(to, b)
	}
	return append(to, '\'')
}

// isNumber keeps anything but a number out of a statement, since it is written without quotes.
func isNumber(text []byte) bool {
	digits := false
	for _, b := range text {
		switch {
		case '0' <= b && b <= '9':
			digits = true
		case b == '.', b == '-', b == '+', digits && (b == 'e' || b == 'E'):
		default:
			return false
		}
	}
	return digits
}
