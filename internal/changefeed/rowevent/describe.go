package rowevent

import (
	"fmt"
	"strings"

	"github.com/go-mysql-org/go-mysql/mysql"
)

// Describe describes how values of a column are stored, so that two columns with the same description store the same bytes for the same
// value. It is empty for types whose rows are not forwarded.
func (col *Column) Describe() string {
	text := col.describeType()
	if text == "" {
		return ""
	}
	if !col.Nullable {
		text += " NOT NULL"
	}
	return text
}

var numberNames = map[byte]string{
	mysql.MYSQL_TYPE_TINY: "tinyint", mysql.MYSQL_TYPE_SHORT: "smallint", mysql.MYSQL_TYPE_INT24: "mediumint", mysql.MYSQL_TYPE_LONG: "int",
	mysql.MYSQL_TYPE_LONGLONG: "bigint", mysql.MYSQL_TYPE_FLOAT: "float", mysql.MYSQL_TYPE_DOUBLE: "double",
}

var timeNames = map[byte]string{mysql.MYSQL_TYPE_TIME2: "time", mysql.MYSQL_TYPE_DATETIME2: "datetime", mysql.MYSQL_TYPE_TIMESTAMP2: "timestamp"}

func (col *Column) describeType() string {
	typ, length := col.real()
	if number := numberNames[typ]; number != "" {
		return Number(number, col.Unsigned)
	}
	if name := timeNames[typ]; name != "" {
		return Time(name, int(col.Meta))
	}
	switch typ {
	case mysql.MYSQL_TYPE_NEWDECIMAL:
		return Number(fmt.Sprintf("decimal(%d,%d)", col.Meta>>8, col.Meta&0xff), col.Unsigned)
	case mysql.MYSQL_TYPE_YEAR:
		return "year"
	case mysql.MYSQL_TYPE_DATE, mysql.MYSQL_TYPE_NEWDATE:
		return "date"
	case mysql.MYSQL_TYPE_BIT:
		return fmt.Sprintf("bit(%d)", col.bits())
	case mysql.MYSQL_TYPE_STRING:
		return Text("char", length, col.Charset, col.Collation)
	case mysql.MYSQL_TYPE_VARCHAR:
		return Text("varchar", length, col.Charset, col.Collation)
	case mysql.MYSQL_TYPE_BLOB:
		return Text("text", BlobLengths[col.Meta], col.Charset, col.Collation)
	case mysql.MYSQL_TYPE_ENUM:
		return Members("enum", col.Members, col.Charset, col.Collation)
	case mysql.MYSQL_TYPE_SET:
		return Members("set", col.Members, col.Charset, col.Collation)
	}
	return ""
}

// BlobLengths are the lengths of text and blobs by how many bytes their length takes.
var BlobLengths = map[uint16]int{1: 1<<8 - 1, 2: 1<<16 - 1, 3: 1<<24 - 1, 4: 1<<32 - 1}

// Number describes a number.
func Number(name string, unsigned bool) string {
	if unsigned {
		return name + " unsigned"
	}
	return name
}

// Time describes a time with digits of a second.
func Time(name string, digits int) string { return fmt.Sprintf("%s(%d)", name, digits) }

// BinaryCollation is the collation of bytes.
const BinaryCollation = 63

// Text describes text of so many bytes in a collation. Bytes are text in the binary one. It is empty if the collation is not known.
func Text(name string, length int, charset string, collation uint64) string {
	if collation == BinaryCollation {
		charset = "binary"
	}
	if collation == 0 || charset == "" {
		return ""
	}
	return fmt.Sprintf("%s of %d bytes in %s, collation %d", name, length, charset, collation)
}

// Members describes an enum or a set. It is empty if members are not in ASCII, because servers show them in another character set than
// that of the column.
func Members(name string, members []string, charset string, collation uint64) string {
	quoted := make([]string, len(members))
	for i, m := range members {
		for _, b := range []byte(m) {
			if b < ' ' || b > '~' || b == '\\' {
				return ""
			}
		}
		quoted[i] = "'" + strings.ReplaceAll(m, "'", "''") + "'"
	}
	return MembersText(fmt.Sprintf("%s(%s)", name, strings.Join(quoted, ",")), charset, collation)
}

// MembersText describes an enum or a set as a server shows its type.
func MembersText(typ, charset string, collation uint64) string {
	if collation == 0 || charset == "" {
		return ""
	}
	return fmt.Sprintf("%s in %s, collation %d", typ, charset, collation)
}
