package sqlhistory

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// columnType is a type of a column and values for it, extremes included.
type columnType struct {
	form   Form
	decl   string
	values []string
	// key: it can be part of a key as a whole. blob: it has no DEFAULT and needs a prefix in a key.
	key, blob bool
	// spatial columns have indexes of their own.
	spatial bool
}

func integers(name string, bits uint) []columnType {
	top := uint64(1) << (bits - 1)
	signed := []string{fmt.Sprintf("-%d", top), "-1", "0", "1", fmt.Sprint(top - 1)}
	unsigned := []string{"0", "1", fmt.Sprint(top - 1), fmt.Sprint(top), fmt.Sprint(top - 1 + top)}
	return []columnType{
		{form: Form("type: " + name), decl: name, values: signed, key: true},
		{form: Form("type: " + name + " unsigned"), decl: name + " UNSIGNED", values: unsigned, key: true},
	}
}

// columnTypes are all types of columns but those of text.
func columnTypes() []columnType {
	blob := []string{"''", "x'00'", "x'FF00FE'", "'text'", "x'27225C0A0D1A00'", "REPEAT(x'C3', 300)"}
	blobShort := []string{"''", "x'00'", "x'FF00FE'", "'text'", "x'27225C0A0D1A00'"}
	var list []columnType
	for _, i := range []struct {
		name string
		bits uint
	}{{"tinyint", 8}, {"smallint", 16}, {"mediumint", 24}, {"int", 32}, {"bigint", 64}} {
		list = append(list, integers(i.name, i.bits)...)
	}
	list = append(list,
		columnType{form: "type: int zerofill", decl: "INT(7) ZEROFILL", values: []string{"0", "42", "4294967295"}, key: true},
		columnType{form: "type: boolean", decl: "BOOLEAN", values: []string{"TRUE", "FALSE", "127", "-128"}, key: true},
		columnType{form: "type: decimal", decl: "DECIMAL(65,30)", values: []string{"0", "-0.000000000000000000000000000001", "99999999999999999999999999999999999.999999999999999999999999999999", "-12345.678"}, key: true},
		columnType{form: "type: decimal", decl: "DECIMAL(10,2)", values: []string{"0", "-99999999.99", "99999999.99", "0.01"}, key: true},
		columnType{form: "type: decimal unsigned", decl: "DECIMAL(5,5) UNSIGNED ZEROFILL", values: []string{"0", "0.99999", "0.00001"}, key: true},
		columnType{form: "type: float", decl: "FLOAT", values: []string{"0", "-3.402823466e38", "3.402823466e38", "1.17549e-38", "0.1", "16777217", "1e-7"}, key: true},
		columnType{form: "type: float unsigned", decl: "FLOAT(10,3) UNSIGNED", values: []string{"0", "123.456", "9999999"}, key: true},
		columnType{form: "type: double", decl: "DOUBLE", values: []string{"0", "-1.7976931348623157e308", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1", "9007199254740993", "-0e0"}, key: true},
		columnType{form: "type: bit", decl: "BIT(1)", values: []string{"b'0'", "b'1'"}, key: true},
		columnType{form: "type: bit", decl: "BIT(13)", values: []string{"b'0'", "b'1000000000001'", "8191"}, key: true},
		columnType{form: "type: bit", decl: "BIT(64)", values: []string{"0", "18446744073709551615", "9223372036854775808"}, key: true},
		columnType{form: "type: year", decl: "YEAR", values: []string{"0", "1901", "2155", "'2026'"}, key: true},
		columnType{form: "type: date", decl: "DATE", values: []string{"'1000-01-01'", "'9999-12-31'", "'2026-02-28'"}, key: true},
		columnType{form: "type: time", decl: "TIME", values: []string{"'-838:59:59'", "'838:59:59'", "'00:00:00'", "'12:34:56'"}, key: true},
		columnType{form: "type: time fraction", decl: "TIME(6)", values: []string{"'-838:59:59.999999'", "'838:59:59.999999'", "'-00:00:00.000001'", "'12:34:56.7'"}, key: true},
		columnType{form: "type: time fraction", decl: "TIME(3)", values: []string{"'-00:00:00.001'", "'12:34:56.789'"}, key: true},
		columnType{form: "type: datetime", decl: "DATETIME", values: []string{"'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'2026-03-29 02:30:00'"}, key: true},
		columnType{form: "type: datetime fraction", decl: "DATETIME(6)", values: []string{"'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"}, key: true},
		columnType{form: "type: datetime fraction", decl: "DATETIME(1)", values: []string{"'2026-01-01 00:00:00.9'"}, key: true},
		columnType{form: "type: timestamp", decl: "TIMESTAMP NULL", values: []string{"'1970-01-01 12:00:01'", "'2038-01-19 00:14:07'", "'2026-03-29 02:30:00'"}, key: true},
		columnType{form: "type: timestamp fraction", decl: "TIMESTAMP(6) NULL", values: []string{"'1970-01-02 00:00:01.000001'", "'2038-01-18 03:14:07.999999'"}, key: true},
		columnType{form: "type: timestamp fraction", decl: "TIMESTAMP(2) NULL", values: []string{"'2026-01-01 00:00:00.99'"}, key: true},
		columnType{form: "type: binary", decl: "BINARY(8)", values: blobShort, key: true},
		columnType{form: "type: binary", decl: "BINARY(255)", values: []string{"''", "x'00'", "REPEAT(x'FF', 255)"}},
		columnType{form: "type: varbinary", decl: "VARBINARY(16)", values: blobShort, key: true},
		columnType{form: "type: varbinary", decl: "VARBINARY(400)", values: blob},
		columnType{form: "type: tinyblob", decl: "TINYBLOB", values: blobShort, blob: true},
		columnType{form: "type: blob", decl: "BLOB", values: blob, blob: true},
		columnType{form: "type: mediumblob", decl: "MEDIUMBLOB", values: append(blob, "REPEAT('m', 70000)"), blob: true},
		columnType{form: "type: longblob", decl: "LONGBLOB", values: append(blob, "REPEAT(x'0027', 50000)"), blob: true},
		columnType{form: "type: compressed", decl: "BLOB COMPRESSED", values: blob},
		columnType{form: "type: compressed", decl: "VARCHAR(500) COMPRESSED", values: []string{"''", "REPEAT('c', 500)", "'short'"}},
		columnType{form: "type: enum", decl: "ENUM('', 'a', 'B', 'it''s', 'ü,;')", values: []string{"''", "'a'", "'B'", "'it''s'", "5"}, key: true},
		columnType{form: "type: set", decl: "SET('x', 'y', 'z', 'ä')", values: []string{"''", "'x'", "'x,z'", "15", "'ä'"}, key: true},
		columnType{form: "type: json", decl: "JSON", values: []string{`'{"a": [1, 2.5, null, "ü"]}'`, "'null'", "'[]'"}, blob: true},
		columnType{form: "type: inet4", decl: "INET4", values: []string{"'0.0.0.0'", "'255.255.255.255'", "'10.1.2.3'"}, key: true},
		columnType{form: "type: inet6", decl: "INET6", values: []string{"'::'", "'ffff::1'", "'::ffff:1.2.3.4'"}, key: true},
		columnType{form: "type: uuid", decl: "UUID", values: []string{"'00000000-0000-0000-0000-000000000000'", "'123e4567-e89b-12d3-a456-426655440000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"}, key: true},
		columnType{form: "type: point", decl: "POINT", values: []string{"POINT(0, 0)", "POINT(-1.5, 1e300)"}, spatial: true},
		columnType{form: "type: geometry", decl: "GEOMETRY", values: []string{"ST_GeomFromText('LINESTRING(0 0, 1 1, 2 4)')", "ST_GeomFromText('POLYGON((0 0, 1 0, 1 1, 0 0))')", "ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))', 4326)"}, spatial: true},
		columnType{form: "type: linestring", decl: "LINESTRING", values: []string{"ST_GeomFromText('LINESTRING(0 0, 1 1, 2 4)')"}, spatial: true},
	)
	return list
}

// charsets are character sets and words that each of them has.
var charsets = []struct {
	name  string
	words []string
}{
	{"latin1", []string{"'é'", "'ÿß'", "'plain'"}},
	{"latin2", []string{"'łź'", "'plain'"}},
	{"ascii", []string{"'plain'", "'~ '"}},
	{"utf8mb3", []string{"'ü'", "'日本'", "'plain'"}},
	{"utf8mb4", []string{"'😀ü'", "'日本'", "'plain'"}},
	{"ucs2", []string{"'ü'", "'日本'", "'plain'"}},
	{"utf16", []string{"'😀ü'", "'日本'"}},
	{"utf16le", []string{"'😀ü'", "'日本'"}},
	{"utf32", []string{"'😀ü'", "'plain'"}},
	{"cp1251", []string{"'Привет'", "'plain'"}},
	{"koi8r", []string{"'Привет'", "'plain'"}},
	{"greek", []string{"'αβγ'", "'plain'"}},
	{"hebrew", []string{"'שלום'", "'plain'"}},
	{"sjis", []string{"'日本'", "'ソ'", "'plain'"}},
	{"cp932", []string{"'日本'", "'表'"}},
	{"ujis", []string{"'日本'", "'plain'"}},
	{"gbk", []string{"'中文'", "'plain'"}},
	{"big5", []string{"'中文'", "'功'"}},
	{"euckr", []string{"'한국'", "'plain'"}},
	{"tis620", []string{"'ไทย'", "'plain'"}},
	{"binary", []string{"x'00FF'", "'plain'"}},
}

// textual are the forms of types that have a character set.
var textual = []struct {
	form      Form
	decl      string
	key, blob bool
}{
	{"type: char", "CHAR(12)", true, false},
	{"type: char", "CHAR(120)", false, false},
	{"type: varchar", "VARCHAR(20)", true, false},
	{"type: varchar", "VARCHAR(300)", false, false},
	{"type: tinytext", "TINYTEXT", false, true},
	{"type: text", "TEXT", false, true},
	{"type: mediumtext", "MEDIUMTEXT", false, true},
	{"type: longtext", "LONGTEXT", false, true},
}

// textType is a type of text in some character set.
func (g *Generator) textType() (columnType, bool) {
	t, c := pick(g.r, textual), pick(g.r, charsets)
	if !g.use(t.form) || !g.use(Form("charset: "+c.name)) {
		return columnType{}, false
	}
	values := append([]string{"''", "' '", `'it''s'`}, c.words...)
	decl := t.decl + " CHARACTER SET " + c.name
	if t.decl == "VARCHAR(20)" && g.r.IntN(3) == 0 && g.use("column: collation") {
		decl = t.decl + " COLLATE " + c.name + "_bin"
		if c.name == "binary" {
			decl = t.decl + " COLLATE binary"
		}
	}
	if t.blob && t.decl != "TINYTEXT" && c.name != "binary" {
		values = append(values, "REPEAT("+c.words[0]+", 3000)")
	}
	return columnType{form: t.form, decl: decl, values: values, key: t.key && c.name != "utf32", blob: t.blob}, true
}

// typeOf is a type that passes a test.
func (g *Generator) typeOf(fits func(columnType) bool) columnType {
	for range 30 {
		used := len(g.used)
		if g.r.IntN(3) == 0 {
			if t, ok := g.textType(); ok && fits(t) {
				return t
			}
		} else if t := pick(g.r, g.types); fits(t) && g.use(t.form) {
			return t
		}
		g.used = g.used[:used]
	}
	return columnType{decl: "INT", values: []string{"-2147483648", "0", "2147483647"}, key: true}
}

// value is a literal of a type.
func (g *Generator) value(t columnType) string { return pick(g.r, t.values) }

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// quoteName writes a name with backquotes.
func quoteName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }
