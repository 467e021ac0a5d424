package sqlsink

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// kind is how literals of a column are written.
type kind uint8

const (
	kindPlain kind = iota
	kindDecimal
	// kindParsed columns take text that the server parses: inet4, inet6, uuid.
	kindParsed
	// kindForeignText is text in another character set than UTF-8.
	kindForeignText
	// kindPacked columns take the bytes of what the source describes as an address or a UUID: it has altered the column since.
	kindPacked
)

// column of a table at the sink.
type column struct {
	name      string
	kind      kind
	generated bool
	// typ is its type, and digits those of a decimal after its point, or of a second in a time.
	typ    string
	digits int
	// charset of text at the sink, and from that at the source, if values are bytes of another one that the server has to convert; empty if not.
	charset, from string
	// stored: it is generated and stored. zoned: it may also depend on the time zone of the session that writes a row. unsure: or on other
	// settings of it, as far as its expression shows that.
	stored, zoned, unsure bool
	// optional: a row can be inserted without a value for it. unique: it is of a unique key.
	optional, unique bool
	// exact: equality of values is not equality of bytes, so a comparison must be made binary.
	exact bool
	enum  bool
	// binary: it is of the type BINARY, as which the log has addresses and UUIDs, too.
	binary bool
	// geometry: an empty value, which INSERT IGNORE may have stored, can only be stored by leaving the column out.
	geometry bool
}

// tableInfo describes a table at the sink.
type tableInfo struct {
	columns map[string]*column
	// key are the names of the columns of the primary key, or of a unique key that cannot be NULL.
	key []string
	// uniques is how many unique keys there are.
	uniques int
	// sequence: it is one, a table with one row that an INSERT replaces.
	sequence bool
	// numbered: the default of a column names a sequence. While that does not exist, the server inserts no rows, whatever their values, but updates them.
	numbered bool
	// overlaps: its key may be one WITHOUT OVERLAPS, whose rows REPLACE cannot write.
	overlaps bool
}

// describe reads the columns and keys of a table from the sink.
func (s *Sink) describe(ctx context.Context, table stream.Table) (*tableInfo, error) {
	d := &tableInfo{columns: map[string]*column{}}
	rows, err := s.db.QueryContext(ctx, "SELECT COLUMN_NAME, LOWER(DATA_TYPE), COALESCE(DATETIME_PRECISION, NUMERIC_SCALE, 0), COALESCE(CHARACTER_SET_NAME, ''), COALESCE(GENERATION_EXPRESSION, ''), EXTRA LIKE '%STORED%', COALESCE(COLUMN_DEFAULT, '') REGEXP '(next|last)val[(]', IS_NULLABLE = 'YES' OR COLUMN_DEFAULT IS NOT NULL FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?",
		table.Schema, table.Name)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var zones timeZones
	for rows.Next() {
		var c column
		var charset, expression string
		var numbered bool
		if err := rows.Scan(&c.name, &c.typ, &c.digits, &charset, &expression, &c.stored, &numbered, &c.optional); err != nil {
			return nil, err
		}
		d.numbered = d.numbered || numbered
		c.generated = expression != ""
		c.classify(c.typ, charset)
		d.columns[c.name] = &c
		zones.add(&c, c.typ, expression)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	zones.find()
	if len(d.columns) == 0 {
		return nil, fmt.Errorf("sink %s: table %s does not exist, or user %q has no privilege on it; create it as it is at the source, or grant the privilege: %w", s.options.Address, table, s.options.User, stream.ErrUnusable)
	}
	if err := s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND TABLE_TYPE = 'SEQUENCE')", table.Schema, table.Name).Scan(&d.sequence); err != nil {
		return nil, err
	}
	if err := s.keys(ctx, d, table); err != nil {
		return nil, err
	}
	if len(d.key) < 3 { // a column, and the two of a period
		return d, nil
	}
	var ignored, definition string
	err = s.db.QueryRowContext(ctx, "SHOW CREATE TABLE "+full(table)).Scan(&ignored, &definition)
	d.overlaps = strings.Contains(definition, " WITHOUT OVERLAPS")
	return d, err
}

func (c *column) classify(typ, charset string) {
	c.enum, c.geometry, c.binary, c.charset = typ == "enum", isGeometry(typ), typ == "binary", charset
	switch {
	case typ == "decimal":
		c.kind = kindDecimal
	case isParsed(typ):
		c.kind = kindParsed
	case charset != "" && charset != "utf8mb4" && charset != "utf8mb3" && charset != "utf8" && charset != "ascii":
		c.kind, c.exact = kindForeignText, true
	case charset != "", isGeometry(typ):
		c.exact = true
	}
}

// differs reports whether the column has another character set than values with a collation, which are bytes: not those in UTF-8.
func (c *column) differs(collation string) bool {
	charset, _, _ := strings.Cut(collation, "_")
	switch charset {
	case "", "binary", "ascii", "utf8", "utf8mb3", "utf8mb4":
		return false
	}
	return c.charset != "" && c.charset != charset
}

// rounds is how the server would change values of a column of the source without an error; empty if it does not. Others that do not fit it refuses.
func (c *column) rounds(from *stream.Column) string {
	digits := func(what string) string {
		if c.digits >= from.Digits {
			return ""
		}
		return fmt.Sprintf("has %d digits of a %s there, and %d at the source", c.digits, what, from.Digits)
	}
	isTime := func(typ string) bool { return typ == "time" || typ == "datetime" || typ == "timestamp" }
	isInteger := func(typ string) bool {
		return typ == "int" || typ == "bigint" || typ == "smallint" || typ == "mediumint" || typ == "tinyint"
	}
	other := fmt.Sprintf("is %s there, and %s at the source", c.typ, from.Type)
	switch {
	case isTime(from.Type) && isTime(c.typ):
		return digits("second")
	case isTime(from.Type) && c.typ == "date":
		return other
	case from.Type == "decimal" && (c.typ == "decimal" || isInteger(c.typ)):
		return digits("fraction")
	case from.Type == "decimal" && (c.typ == "float" || c.typ == "double"),
		from.Type == "double" && (c.typ == "float" || c.typ == "decimal" || isInteger(c.typ)),
		from.Type == "float" && (c.typ == "decimal" || isInteger(c.typ)),
		from.Type == "bigint" && (c.typ == "float" || c.typ == "double"), from.Type == "int" && c.typ == "float":
		return other
	}
	return ""
}

// timeZones finds the generated columns of a table whose values depend on the time zone of the session: those of TIMESTAMPs, which the
// server converts, and what is generated of these.
type timeZones struct{ columns []zonedColumn }

type zonedColumn struct {
	*column
	expression        string
	timestamp, depend bool
}

func (z *timeZones) add(c *column, typ, expression string) {
	c.unsure = c.stored && unsureExpression.MatchString(expression)
	z.columns = append(z.columns, zonedColumn{column: c, expression: expression, timestamp: typ == "timestamp"})
}

// unsureExpression matches an expression that may depend on settings of the session besides its time zone: on how many digits a quotient has,
// on the flags of regular expressions, on which dates are allowed, and on the day.
var unsureExpression = regexp.MustCompile(`(?i) / |regexp|rlike| as (date|time|datetime)\b|str_to_date|timestamp\(`)

func (z *timeZones) find() {
	for i := range z.columns {
		c := &z.columns[i]
		c.expression = z.inAnyZone(c.expression)
		lower := strings.ToLower(c.expression)
		c.depend = c.timestamp || strings.Contains(lower, "unix_timestamp(") || strings.Contains(lower, "from_unixtime(")
	}
	for again := true; again; {
		again = false
		for i := range z.columns {
			c := &z.columns[i]
			if c.depend || !slices.ContainsFunc(z.columns, func(of zonedColumn) bool { return of.depend && strings.Contains(c.expression, name(of.name)) }) {
				continue
			}
			c.depend, again = true, true
		}
	}
	for _, c := range z.columns {
		c.zoned = c.depend && c.stored
		c.unsure = c.unsure || c.zoned
	}
}

// inAnyZone is an expression, as the server shows it, without what is the same of a TIMESTAMP in every time zone: whether it is NULL, and its
// number of seconds. A TIMESTAMP that is generated may be another one in another zone.
func (z *timeZones) inAnyZone(expression string) string {
	for _, c := range z.columns {
		if !c.timestamp || c.generated || !strings.Contains(expression, name(c.name)) {
			continue
		}
		of := regexp.QuoteMeta(name(c.name))
		same := regexp.MustCompile("(?i)" + of + " is (not )?null|" + of + " <=> null|nvl2\\(" + of + ",|(isnull|unix_timestamp)\\(" + of + "\\)")
		expression = same.ReplaceAllString(expression, " ")
	}
	return expression
}

// zoned is a column that may depend on the time zone of the session; nil if there is none.
func (d *tableInfo) zoned() *column {
	for _, c := range d.columns {
		if c.zoned {
			return c
		}
	}
	return nil
}

// isParsed reports whether values of a type are text that the server parses.
func isParsed(typ string) bool { return typ == "inet4" || typ == "inet6" || typ == "uuid" }

func isGeometry(typ string) bool {
	switch typ {
	case "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon", "geometrycollection", "geomcollection":
		return true
	}
	return false
}

// keys finds the key that identifies rows: the primary key, or the shortest unique key of whole columns that are not NULL.
func (s *Sink) keys(ctx context.Context, d *tableInfo, table stream.Table) error {
	rows, err := s.db.QueryContext(ctx, `SELECT INDEX_NAME, COALESCE(COLUMN_NAME, ''), COLUMN_NAME IS NOT NULL AND NULLABLE <> 'YES' AND (SUB_PART IS NULL OR INDEX_NAME = 'PRIMARY')
		FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND NON_UNIQUE = 0 ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX`, table.Schema, table.Name)
	if err != nil {
		return err
	}
	defer rows.Close()
	var names []string
	keys, usable := map[string][]string{}, map[string]bool{}
	for rows.Next() {
		var index, column string
		var ok bool
		if err := rows.Scan(&index, &column, &ok); err != nil {
			return err
		}
		if !slices.Contains(names, index) {
			names, usable[index] = append(names, index), true
		}
		c := d.columns[column]
		if c == nil || c.generated {
			ok = false
		}
		if c != nil {
			c.unique = true
		}
		keys[index], usable[index] = append(keys[index], column), usable[index] && ok
	}
	d.uniques = len(names)
	for _, n := range names {
		if usable[n] && (d.key == nil || len(keys[n]) < len(d.key)) {
			d.key = keys[n]
		}
		if d.key != nil && n == "PRIMARY" {
			break
		}
	}
	return rows.Err()
}
