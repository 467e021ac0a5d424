package sqlsink

import (
	"testing"

	"github.com/go-mysql-org/go-mysql/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
)

// logged and stored are the same table at the source and at the sink.
func loggedTable() *rowevent.Table {
	return &rowevent.Table{Key: []int{0}, Columns: []rowevent.Column{
		{Name: "id", Type: mysql.MYSQL_TYPE_LONGLONG, Unsigned: true},
		{Name: "v", Type: mysql.MYSQL_TYPE_VARCHAR, Meta: 80, Nullable: true, Charset: "utf8mb4", Collation: 45},
		{Name: "e", Type: mysql.MYSQL_TYPE_STRING, Meta: uint16(mysql.MYSQL_TYPE_ENUM)<<8 | 1, Nullable: true, Charset: "latin1", Collation: 8, Members: []string{"a", "it's"}},
		{Name: "d", Type: mysql.MYSQL_TYPE_NEWDECIMAL, Meta: 10<<8 | 2, Nullable: true},
		{Name: "t", Type: mysql.MYSQL_TYPE_DATETIME2, Meta: 6, Nullable: true},
		{Name: "b", Type: mysql.MYSQL_TYPE_BLOB, Meta: 2, Nullable: true, Charset: "binary", Collation: 63},
	}}
}

func storedTable() *sinkTable {
	return &sinkTable{kind: "BASE TABLE", engine: "InnoDB", key: []string{"id"}, columns: []sinkColumn{
		{name: "id", dataType: "bigint", columnType: "bigint(20) unsigned", precision: 20},
		{name: "v", dataType: "varchar", columnType: "varchar(20)", nullable: true, octets: 80, charset: "utf8mb4", collation: 45},
		{name: "e", dataType: "enum", columnType: "enum('a','it''s')", nullable: true, octets: 4, charset: "latin1", collation: 8},
		{name: "d", dataType: "decimal", columnType: "decimal(10,2)", nullable: true, precision: 10, scale: 2},
		{name: "t", dataType: "datetime", columnType: "datetime(6)", nullable: true, fractional: 6},
		{name: "b", dataType: "blob", columnType: "blob", nullable: true, octets: 65535},
	}}
}

func TestATableIsForwardedOnlyIfItIsTheSame(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*rowevent.Table, *sinkTable)
		want   string
	}{
		{"the same", func(*rowevent.Table, *sinkTable) {}, ": "},
		{"a view", func(_ *rowevent.Table, s *sinkTable) { s.kind = "VIEW" }, "Engine: it is a view at the sink"},
		{"another engine", func(_ *rowevent.Table, s *sinkTable) { s.engine = "ROCKSDB" }, "Engine: its engine at the sink is ROCKSDB"},
		{"no key", func(l *rowevent.Table, _ *sinkTable) { l.Key = nil }, "NoPrimaryKey: it has no primary key of whole columns at the source"},
		{"another key", func(l *rowevent.Table, _ *sinkTable) { l.Key = []int{0, 1} }, "NoPrimaryKey: its primary key is (id, v) at the source and (id) at the sink"},
		{"the key in another order", func(l *rowevent.Table, s *sinkTable) { l.Key, s.key = []int{0, 1}, []string{"v", "id"} }, "NoPrimaryKey: its primary key is (id, v) at the source and (v, id) at the sink"},
		{"no key at the sink", func(_ *rowevent.Table, s *sinkTable) { s.key = nil }, "NoPrimaryKey: its primary key is (id) at the source and () at the sink"},
		{"hashes", func(_ *rowevent.Table, s *sinkTable) { s.hashes = true }, "ColumnsDiffer: a unique key at the sink has a column that the server does not show"},
		{"a column more", func(_ *rowevent.Table, s *sinkTable) { s.columns = append(s.columns, s.columns[0]) }, "ColumnsDiffer: it has 6 columns at the source and 7 at the sink"},
		{"another name", func(_ *rowevent.Table, s *sinkTable) { s.columns[1].name = "w" }, "ColumnsDiffer: column v of the source is in the place of column w at the sink"},
		{"generated", func(_ *rowevent.Table, s *sinkTable) { s.columns[1].generated = true }, "ColumnsDiffer: column v is generated at the sink"},
		{"signed", func(_ *rowevent.Table, s *sinkTable) { s.columns[0].columnType = "bigint(20)" }, "ColumnsDiffer: column id is bigint unsigned NOT NULL at the source and bigint NOT NULL at the sink"},
		{"shorter", func(_ *rowevent.Table, s *sinkTable) { s.columns[0].dataType = "int" }, "ColumnsDiffer: column id is bigint unsigned NOT NULL at the source and int unsigned NOT NULL at the sink"},
		{"NULL", func(_ *rowevent.Table, s *sinkTable) { s.columns[1].nullable = false }, "ColumnsDiffer: column v is varchar of 80 bytes in utf8mb4, collation 45 at the source and varchar of 80 bytes in utf8mb4, collation 45 NOT NULL at the sink"},
		{"longer", func(_ *rowevent.Table, s *sinkTable) { s.columns[1].octets = 400 }, "ColumnsDiffer: column v is varchar of 80 bytes in utf8mb4, collation 45 at the source and varchar of 400 bytes in utf8mb4, collation 45 at the sink"},
		{"another character set", func(_ *rowevent.Table, s *sinkTable) { s.columns[1].charset, s.columns[1].collation = "latin1", 8 }, "ColumnsDiffer: column v is varchar of 80 bytes in utf8mb4, collation 45 at the source and varchar of 80 bytes in latin1, collation 8 at the sink"},
		{"another collation", func(_ *rowevent.Table, s *sinkTable) { s.columns[1].collation = 46 }, "ColumnsDiffer: column v is varchar of 80 bytes in utf8mb4, collation 45 at the source and varchar of 80 bytes in utf8mb4, collation 46 at the sink"},
		{"an unknown collation", func(_ *rowevent.Table, s *sinkTable) { s.columns[1].collation = 0 }, "ColumnsDiffer: the type of column v is not forwarded (varchar(20))"},
		{"members in another order", func(_ *rowevent.Table, s *sinkTable) { s.columns[2].columnType = "enum('it''s','a')" }, "ColumnsDiffer: column e is enum('a','it''s') in latin1, collation 8 at the source and enum('it''s','a') in latin1, collation 8 at the sink"},
		{"members beyond ASCII", func(l *rowevent.Table, _ *sinkTable) { l.Columns[2].Members = []string{"ä"} }, "ColumnsDiffer: the type of column e is not forwarded (enum('a','it''s'))"},
		{"scale", func(_ *rowevent.Table, s *sinkTable) { s.columns[3].scale = 3 }, "ColumnsDiffer: column d is decimal(10,2) at the source and decimal(10,3) at the sink"},
		{"fraction", func(_ *rowevent.Table, s *sinkTable) { s.columns[4].fractional = 0 }, "ColumnsDiffer: column t is datetime(6) at the source and datetime(0) at the sink"},
		{"an old format", func(_ *rowevent.Table, s *sinkTable) { s.columns[4].columnType = "datetime(6) /* mariadb-5.3 */" }, "ColumnsDiffer: the type of column t is not forwarded (datetime(6) /* mariadb-5.3 */)"},
		{"text for bytes", func(_ *rowevent.Table, s *sinkTable) {
			s.columns[5].dataType, s.columns[5].charset, s.columns[5].collation = "text", "utf8mb4", 45
		}, "ColumnsDiffer: column b is text of 65535 bytes in binary, collation 63 at the source and text of 65535 bytes in utf8mb4, collation 45 at the sink"},
		{"a geometry", func(l *rowevent.Table, _ *sinkTable) { l.Columns[5].Type = mysql.MYSQL_TYPE_GEOMETRY }, "ColumnsDiffer: the type of column b is not forwarded (blob)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, s := loggedTable(), storedTable()
			c.change(l, s)
			if got := ineligible(l, s).String(); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
