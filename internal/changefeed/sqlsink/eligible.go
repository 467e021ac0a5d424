package sqlsink

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
)

// textReason is why rows are written as text and not forwarded; empty if they are forwarded.
type textReason struct{ code, detail string }

// The codes. They are in the log of nodes and in the documentation.
const (
	reasonPrivilege = "MissingPrivilege" // the user may not execute BINLOG
	reasonServer    = "ServerSettings"   // the server would not apply rows strictly, or would execute triggers
	reasonDecoded   = "Decoded"          // the rows came decoded
	reasonCopy      = "InitialCopy"      // the table is being copied
	reasonRouted    = "Routed"           // the table has another name at the source, which is in its events
	reasonLeftOut   = "LeftOut"          // columns or rows of the table are left out
	reasonKey       = "NoPrimaryKey"
	reasonEngine    = "Engine"
	reasonColumns   = "ColumnsDiffer"
	reasonFailed    = "Failed" // the server refused rows that were forwarded
)

func (r textReason) String() string { return r.code + ": " + r.detail }

// sinkTable is a table of the sink, as far as forwarding depends on it.
type sinkTable struct {
	kind, engine string
	columns      []sinkColumn
	// key are the columns of the primary key; none if there is no primary key, or one of parts of columns.
	key []string
	// hashes: it has a unique key that is kept by a column that the server does not show.
	hashes bool
}

// sinkColumn is a column in the words of information_schema.
type sinkColumn struct {
	name, dataType, columnType           string
	nullable, generated                  bool
	octets, precision, scale, fractional int
	charset                              string
	// collation is the number of the collation; 0 if there is none, or it is not known.
	collation uint64
}

// ineligible is why rows of a table cannot be forwarded; empty if they can. The server takes values by the place of their column and stores
// their bytes as they are, so every column must be the same; and it finds rows by the primary key, without comparing the rest.
func ineligible(source *rowevent.Table, sink *sinkTable) textReason {
	switch {
	case sink.kind != "BASE TABLE":
		return textReason{reasonEngine, fmt.Sprintf("it is a %s at the sink", strings.ToLower(sink.kind))}
	case sink.engine != "InnoDB":
		return textReason{reasonEngine, fmt.Sprintf("its engine at the sink is %s", sink.engine)}
	case len(source.Key) == 0:
		return textReason{reasonKey, "it has no primary key of whole columns at the source"}
	case sink.hashes:
		return textReason{reasonColumns, "a unique key at the sink has a column that the server does not show"}
	case len(source.Columns) != len(sink.columns):
		return textReason{reasonColumns, fmt.Sprintf("it has %d columns at the source and %d at the sink", len(source.Columns), len(sink.columns))}
	}
	key := make([]string, len(source.Key))
	for i, column := range source.Key {
		key[i] = source.Columns[column].Name
	}
	if !slices.Equal(key, sink.key) {
		return textReason{reasonKey, fmt.Sprintf("its primary key is (%s) at the source and (%s) at the sink", strings.Join(key, ", "), strings.Join(sink.key, ", "))}
	}
	for i := range source.Columns {
		if why := differs(&source.Columns[i], &sink.columns[i]); why != "" {
			return textReason{reasonColumns, why}
		}
	}
	return textReason{}
}

// differs is how a column at the sink differs from the one at the source; empty if it does not.
func differs(source *rowevent.Column, sink *sinkColumn) string {
	here, there := source.Describe(), sink.describe()
	switch {
	case source.Name != sink.name:
		return fmt.Sprintf("column %s of the source is in the place of column %s at the sink", source.Name, sink.name)
	case sink.generated:
		return fmt.Sprintf("column %s is generated at the sink", sink.name)
	case here == "" || there == "":
		return fmt.Sprintf("the type of column %s is not forwarded (%s)", sink.name, sink.columnType)
	case here != there:
		return fmt.Sprintf("column %s is %s at the source and %s at the sink", sink.name, here, there)
	}
	return ""
}

// describe is what rowevent.Column.Describe is for a column of the source.
func (c *sinkColumn) describe() string {
	text := c.describeType()
	if text == "" {
		return ""
	}
	if !c.nullable {
		text += " NOT NULL"
	}
	return text
}

func (c *sinkColumn) describeType() string {
	unsigned := strings.Contains(c.columnType, " unsigned")
	if strings.Contains(c.columnType, "/*") { // a format of times of earlier versions, or compression
		return ""
	}
	switch c.dataType {
	case "tinyint", "smallint", "mediumint", "int", "bigint", "float", "double":
		return rowevent.Number(c.dataType, unsigned)
	case "decimal":
		return rowevent.Number(fmt.Sprintf("decimal(%d,%d)", c.precision, c.scale), unsigned)
	case "year", "date":
		return c.dataType
	case "time", "datetime", "timestamp":
		return rowevent.Time(c.dataType, c.fractional)
	case "bit":
		return fmt.Sprintf("bit(%d)", c.precision)
	case "char", "varchar":
		return rowevent.Text(c.dataType, c.octets, c.charset, c.collation)
	case "binary", "varbinary":
		return rowevent.Text(map[string]string{"binary": "char", "varbinary": "varchar"}[c.dataType], c.octets, "binary", rowevent.BinaryCollation)
	case "tinytext", "text", "mediumtext", "longtext":
		return rowevent.Text("text", c.octets, c.charset, c.collation)
	case "tinyblob", "blob", "mediumblob", "longblob":
		return rowevent.Text("text", c.octets, "binary", rowevent.BinaryCollation)
	case "enum", "set":
		return rowevent.MembersText(c.columnType, c.charset, c.collation)
	}
	return ""
}
