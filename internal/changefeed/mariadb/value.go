package mariadb

import (
	"bytes"
	"compress/flate"
	"compress/zlib"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// column is what the decoding of a column's values depends on.
type column struct {
	code     byte // of the type
	meta     uint16
	unsigned bool
	charset  string
	members  []string
	// unclear are the members whose names do not tell them from others; nil if there are none.
	unclear []bool
	// live is the type in information_schema, if it is known.
	live string
	// compressed values are inflated.
	compressed bool
}

// describe returns the name of the column's type and the function that decodes its values. If there is no function, the name says what
// is wrong.
func (c column) describe() (string, func(any) (any, error)) {
	switch c.code {
	case mysql.MYSQL_TYPE_TINY:
		return "tinyint", c.integer(8)
	case mysql.MYSQL_TYPE_SHORT:
		return "smallint", c.integer(16)
	case mysql.MYSQL_TYPE_INT24:
		return "mediumint", c.integer(24)
	case mysql.MYSQL_TYPE_LONG:
		return "int", c.integer(32)
	case mysql.MYSQL_TYPE_LONGLONG:
		return "bigint", c.integer(64)
	case mysql.MYSQL_TYPE_YEAR:
		return "year", func(v any) (any, error) { return int64(v.(int)), nil }
	case mysql.MYSQL_TYPE_BIT:
		return "bit", func(v any) (any, error) { return uint64(v.(int64)), nil }
	case mysql.MYSQL_TYPE_NEWDECIMAL:
		return "decimal", asIs
	case mysql.MYSQL_TYPE_FLOAT:
		return "float", asIs
	case mysql.MYSQL_TYPE_DOUBLE:
		return "double", asIs
	case mysql.MYSQL_TYPE_DATE, mysql.MYSQL_TYPE_NEWDATE:
		return "date", asIs
	case mysql.MYSQL_TYPE_TIME2:
		return "time", asIs
	case mysql.MYSQL_TYPE_DATETIME2:
		return "datetime", asIs
	case mysql.MYSQL_TYPE_TIMESTAMP2:
		return "timestamp", timestamp
	case mysql.MYSQL_TYPE_TIMESTAMP, mysql.MYSQL_TYPE_DATETIME, mysql.MYSQL_TYPE_TIME:
		return "the temporal format of before MariaDB 10.1, which the log does not describe; run ALTER TABLE … FORCE with mysql56_temporal_format=ON", nil
	case mysql.MYSQL_TYPE_ENUM:
		return "enum", c.enum
	case mysql.MYSQL_TYPE_SET:
		return "set", c.set
	case mysql.MYSQL_TYPE_GEOMETRY:
		if c.live != "" {
			return c.live, asIs
		}
		return "geometry", asIs
	}
	return c.describeString()
}

// describeString is describe for everything that is a string to the log.
func (c column) describeString() (string, func(any) (any, error)) {
	binary := c.charset == "binary"
	switch c.code {
	case mysql.MYSQL_TYPE_BLOB:
		kind := "text"
		if binary {
			kind = "blob"
		}
		size := map[uint16]string{1: "tiny", 2: "", 3: "medium", 4: "long"}[c.meta]
		return size + kind, c.text
	case mysql.MYSQL_TYPE_VARCHAR, mysql.MYSQL_TYPE_VAR_STRING:
		if binary {
			return "varbinary", c.text
		}
		return "varchar", c.text
	case mysql.MYSQL_TYPE_STRING:
		switch {
		case !binary:
			return "char", c.text
		case c.live == "inet4", c.live == "inet6":
			return c.live, c.inet
		case c.live == "uuid":
			return c.live, c.uuid
		}
		return "binary", c.fixed
	}
	return fmt.Sprintf("the unsupported type %d", c.code), nil
}

// digits of a decimal after its point, or of a second in a time.
func (c column) digits() int {
	switch c.code {
	case mysql.MYSQL_TYPE_NEWDECIMAL:
		return int(c.meta & 0xff)
	case mysql.MYSQL_TYPE_TIME2, mysql.MYSQL_TYPE_DATETIME2, mysql.MYSQL_TYPE_TIMESTAMP2:
		return int(c.meta)
	}
	return 0
}

func asIs(v any) (any, error) { return v, nil }

// integer converts a number, which the library decodes as signed.
func (c column) integer(bits int) func(any) (any, error) {
	mask := uint64(1)<<(bits-1)<<1 - 1
	return func(v any) (any, error) {
		var n int64
		switch of := v.(type) {
		case int8:
			n = int64(of)
		case int16:
			n = int64(of)
		case int32:
			n = int64(of)
		case int64:
			if !c.unsigned {
				return v, nil // without a copy
			}
			n = of
		default:
			return nil, fmt.Errorf("cannot decode a number of type %T", v)
		}
		if c.unsigned {
			return uint64(n) & mask, nil
		}
		return n, nil
	}
}

// timestamp corrects what the library takes for a zero time: the first second of 1970, with a fraction.
func timestamp(v any) (any, error) {
	text := v.(string)
	if fraction, ok := strings.CutPrefix(text, "0000-00-00 00:00:00."); ok && strings.Trim(fraction, "0") != "" {
		return "1970-01-01 00:00:00." + fraction, nil
	}
	return v, nil
}

// stringOf is text as text or as bytes, by its character set.
func (c column) stringOf(text string) any {
	if isUTF8(c.charset) {
		return text
	}
	return []byte(text)
}

func (c column) enum(v any) (any, error) {
	n := v.(int64)
	if n == 0 {
		return int64(0), nil // what a server stores for a value that is no member; "" may be one
	}
	if n < 0 || n > int64(len(c.members)) {
		return nil, fmt.Errorf("the log has no name for member %d of the enum; SET GLOBAL binlog_row_metadata=FULL", n)
	}
	if c.unclear != nil && c.unclear[n-1] {
		return n, nil
	}
	return c.stringOf(c.members[n-1]), nil
}

// unclearMembers are the members of an enum or a set that no text stands for: it is that of an earlier member, too, which a server that is not
// strict allows, or of no member of a set. nil if there are none. Names are the same if they differ in case only, unless the collation is binary.
func unclearMembers(members []string, set, binary bool) (unclear []bool) {
	seen := make(map[string]bool, len(members))
	for i, m := range members {
		if !binary && utf8.ValidString(m) {
			m = strings.ToLower(m)
		}
		if seen[m] || set && m == "" {
			if unclear == nil {
				unclear = make([]bool, len(members))
			}
			unclear[i] = true
		}
		seen[m] = true
	}
	return unclear
}

func (c column) set(v any) (any, error) {
	var names []string
	for i, bits := 0, uint64(v.(int64)); bits != 0; i, bits = i+1, bits>>1 {
		if bits&1 == 0 {
			continue
		}
		if i >= len(c.members) {
			return nil, fmt.Errorf("the log has no name for member %d of the set; SET GLOBAL binlog_row_metadata=FULL", i+1)
		}
		if c.unclear != nil && c.unclear[i] {
			return uint64(v.(int64)), nil
		}
		names = append(names, c.members[i])
	}
	return c.stringOf(strings.Join(names, c.comma())), nil
}

// comma is a comma in the character set of the column.
func (c column) comma() string {
	switch c.charset {
	case "ucs2", "utf16":
		return "\x00,"
	case "utf16le":
		return ",\x00"
	case "utf32":
		return "\x00\x00\x00,"
	}
	return ","
}

func (c column) text(v any) (any, error) {
	var data []byte
	switch of := v.(type) {
	case string:
		if !c.compressed && isUTF8(c.charset) {
			return v, nil // without a copy
		}
		data = []byte(of)
	case []byte:
		data = of
	}
	if c.compressed {
		var err error
		if data, err = inflate(data); err != nil {
			return nil, err
		}
	}
	if isUTF8(c.charset) {
		return string(data), nil
	}
	return data, nil
}

// fixed pads a binary of fixed length with the zeros at its end, which the log may leave out.
func (c column) fixed(v any) (any, error) {
	data := []byte(v.(string))
	if missing := c.length() - len(data); missing > 0 {
		data = append(data, make([]byte, missing)...)
	}
	return data, nil
}

// length of a string of fixed length. Its upper bits hide, inverted, in the byte of the type.
func (c column) length() int {
	high := c.meta >> 8
	return int(c.meta&0xff | (high&0x30^0x30)<<4)
}

func (c column) inet(v any) (any, error) {
	data, _ := c.fixed(v)
	address, ok := netip.AddrFromSlice(data.([]byte))
	if !ok {
		return nil, fmt.Errorf("an IP address of %d bytes is invalid", len(data.([]byte)))
	}
	return address.String(), nil
}

func (c column) uuid(v any) (any, error) {
	data, _ := c.fixed(v)
	b := data.([]byte)
	if len(b) != 16 {
		return nil, fmt.Errorf("a UUID of %d bytes is invalid", len(b))
	}
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], nil
}

// The log has types of its own for compressed columns, which the library does not know. They are described and laid out
// like the plain ones, only that the bytes are compressed.
const (
	typeBlobCompressed    = 140
	typeVarcharCompressed = 141
)

// uncompressedTypes replaces these types by the plain ones in a description, and returns the columns that had them.
func uncompressedTypes(description []byte) []int {
	r := &reader{data: description}
	r.take(6 + 2) // number of the table, flags
	r.take(int(r.byte()) + 1)
	r.take(int(r.byte()) + 1)
	if r.short || r.left() == 0 {
		return nil
	}
	count, _, n := mysql.LengthEncodedInt(r.data[r.at:])
	r.take(n)
	types := r.take(int(count))
	if r.short {
		return nil
	}
	var columns []int
	for i, t := range types {
		switch t {
		case typeBlobCompressed:
			types[i] = mysql.MYSQL_TYPE_BLOB
		case typeVarcharCompressed:
			types[i] = mysql.MYSQL_TYPE_VARCHAR
		default:
			continue
		}
		columns = append(columns, i)
	}
	return columns
}

// inflate decompresses a value: a byte with the method and a width, the length of the value in that many bytes, and the compressed
// value.
func inflate(data []byte) ([]byte, error) {
	if len(data) == 0 {
		return data, nil
	}
	how, rest := data[0], data[1:]
	if how == 0 {
		return rest, nil
	}
	width := int(how & 7)
	if how>>4 != 8 || width > 4 || width > len(rest) {
		return nil, errors.New("unknown compression method")
	}
	length := 0
	for _, b := range rest[:width] {
		length = length<<8 | int(b)
	}
	var from io.ReadCloser
	if how&8 != 0 {
		from = flate.NewReader(bytes.NewReader(rest[width:]))
	} else {
		var err error
		if from, err = zlib.NewReader(bytes.NewReader(rest[width:])); err != nil {
			return nil, fmt.Errorf("inflate: %w", err)
		}
	}
	defer from.Close()
	out := make([]byte, length)
	if _, err := io.ReadFull(from, out); err != nil {
		return nil, fmt.Errorf("inflate: %w", err)
	}
	return out, nil
}
