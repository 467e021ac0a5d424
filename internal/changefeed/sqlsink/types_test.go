package sqlsink_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// everyType is a table with every type that MariaDB has, at its edges.
var everyType = []string{
	"CREATE DATABASE d CHARACTER SET utf8mb4",
	`CREATE TABLE d.every (
		id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
		i1 TINYINT, u1 TINYINT UNSIGNED, i2 SMALLINT, u2 SMALLINT UNSIGNED, i3 MEDIUMINT, u3 MEDIUMINT UNSIGNED,
		i4 INT, u4 INT UNSIGNED, i8 BIGINT, u8 BIGINT UNSIGNED, z INT(8) ZEROFILL,
		d1 DECIMAL(65,30), d2 DECIMAL(10,0), d3 DECIMAL(5,5) UNSIGNED, d4 DECIMAL(18,9),
		f1 FLOAT, f2 DOUBLE, f3 FLOAT(7,2), f4 DOUBLE UNSIGNED,
		b1 BIT(1), b7 BIT(7), b64 BIT(64),
		da DATE, t0 TIME, t2 TIME(2), t3 TIME(3), t6 TIME(6), dt0 DATETIME, dt1 DATETIME(1), dt4 DATETIME(4), dt6 DATETIME(6),
		ts0 TIMESTAMP NULL, ts3 TIMESTAMP(3) NULL, ts6 TIMESTAMP(6) NULL, y YEAR,
		c CHAR(10), c300 CHAR(255) CHARACTER SET utf8mb4, v VARCHAR(50), v300 VARCHAR(300), cl VARCHAR(20) CHARACTER SET latin1, cu VARCHAR(20) CHARACTER SET ucs2,
		cs VARCHAR(20) CHARACTER SET sjis, ck VARCHAR(20) CHARACTER SET koi8r COLLATE koi8r_bin, c3 VARCHAR(20) CHARACTER SET utf8mb3, ca CHAR(5) CHARACTER SET ascii, c14 VARCHAR(9) CHARACTER SET utf8mb4 COLLATE uca1400_german2_as_cs,
		bi BINARY(8), vb VARBINARY(300), tb TINYBLOB, bl BLOB, mb MEDIUMBLOB, lb LONGBLOB, tt TINYTEXT, tx TEXT, mt MEDIUMTEXT CHARACTER SET latin1, lt LONGTEXT,
		e ENUM('', 'a', 'ä''b', 'c'), el ENUM('x', 'ü') CHARACTER SET latin1, s SET('one', 'zwö', 'three'), s64 SET('a0','a1','a2','a3','a4','a5','a6','a7','a8','a9','b0','b1','b2','b3','b4','b5','b6','b7','b8','b9',
			'c0','c1','c2','c3','c4','c5','c6','c7','c8','c9','d0','d1','d2','d3','d4','d5','d6','d7','d8','d9','e0','e1','e2','e3','e4','e5','e6','e7','e8','e9','f0','f1','f2','f3','f4','f5','f6','f7','f8','f9','g0','g1','g2','g3'),
		j JSON, g GEOMETRY, p POINT, ls LINESTRING, pg POLYGON, mp MULTIPOINT, gc GEOMETRYCOLLECTION,
		ip4 INET4, ip6 INET6, uu UUID,
		tc TEXT COMPRESSED, bc BLOB COMPRESSED, vc VARCHAR(1000) COMPRESSED, vbc VARBINARY(100) COMPRESSED,
		gv INT AS (i4 + 1) VIRTUAL, gs VARCHAR(60) AS (CONCAT(v, '!')) STORED, inv INT INVISIBLE DEFAULT 7
	)`,
	"INSERT INTO d.every (id) VALUES (0)", // nothing but NULLs
	`INSERT INTO d.every SET id = 18446744073709551615, i1 = -128, u1 = 255, i2 = -32768, u2 = 65535, i3 = -8388608, u3 = 16777215, i4 = -2147483648, u4 = 4294967295,
		i8 = -9223372036854775808, u8 = 18446744073709551615, z = 42,
		d1 = -12345678901234567890123456789012345.123456789012345678901234567891, d2 = -9999999999, d3 = 0.00001, d4 = -0.000000001,
		f1 = 0.1, f2 = 1.7976931348623157e308, f3 = 12345.67, f4 = 2.2250738585072014e-308, b1 = 1, b7 = 127, b64 = 18446744073709551615,
		da = '9999-12-31', t0 = '-838:59:59', t2 = '-00:00:00.01', t3 = '838:59:59.000', t6 = '-12:34:56.000001', dt0 = '9999-12-31 23:59:59', dt1 = '1000-01-01 00:00:00.1', dt4 = '2024-02-29 12:00:00.0001', dt6 = '0001-01-01 00:00:00.000001',
		ts0 = '2038-01-19 03:14:07', ts3 = '1970-01-01 00:00:01.001', ts6 = '2024-03-31 01:30:00.999999', y = 2155,
		c = 'trail  ', c300 = REPEAT('ä', 255), v = 'it''s \\ "q"\0\n', v300 = REPEAT('€', 300), cl = 'äöü€', cu = 'ucs2 ü', cs = '表示', ck = 'Привет', c3 = 'ümlaut', ca = 'abc', c14 = 'Straße',
		bi = X'0102000000', vb = X'00FF27225C0A0D1A', tb = X'', bl = X'DEADBEEF00', mb = REPEAT(X'00', 70000), lb = X'27', tt = '', tx = 'text 😀', mt = 'latin ß', lt = REPEAT('long ', 20000),
		e = 'ä''b', el = 'ü', s = 'one,zwö', s64 = 'a0,g3',
		j = '{"a": [1, null, "ü"]}', g = ST_GeomFromText('POINT(1 2)', 4326), p = POINT(-1.5, 1e300), ls = ST_GeomFromText('LINESTRING(0 0,1 1)'), pg = ST_GeomFromText('POLYGON((0 0,1 0,1 1,0 0))'),
		mp = ST_GeomFromText('MULTIPOINT(0 0,1 1)'), gc = ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))'),
		ip4 = '1.2.3.0', ip6 = '2001:db8::', uu = '123e4567-e89b-12d3-a456-426655440000',
		tc = REPEAT('compress me ', 100), bc = REPEAT(X'00FF', 200), vc = REPEAT('ä', 500), vbc = 'x', inv = 9`,
	`INSERT INTO d.every SET id = 1, e = '', el = 'x', s = '', s64 = '', f1 = -0.0, f2 = 3.14, f3 = -0.01, d1 = 0, d2 = 0, d3 = 0, d4 = 1.5, da = '2024-01-01', t0 = '00:00:00', t2 = '-01:00:00.50', t3 = '00:00:00.001', t6 = '00:00:00', ts6 = '1970-01-01 00:00:01.000000',
		y = 1901, tc = '', bc = '', vc = '', vbc = '', uu = 'ffffffff-ffff-7fff-bfff-ffffffffffff', ip6 = '::ffff:1.2.3.4', ip4 = '0.0.0.0', b1 = 0, b7 = 0, b64 = 1`,
	`INSERT INTO d.every SET id = 2, uu = 'c53a9b2e-5d1c-4f57-9a5b-0a1b2c3d4e5f', ip6 = '::', y = 2000, f2 = -1e-300, f1 = 16777217, dt6 = '2024-10-27 02:30:00.5'`,
	// What a strict server would not take, but may have.
	"SET sql_mode='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'",
	`INSERT INTO d.every SET id = 3, da = '0000-00-00', dt0 = '0000-00-00 00:00:00', ts0 = '0000-00-00 00:00:00', ts6 = '0000-00-00', dt6 = '2023-02-31 00:00:00.5', y = 0, e = 'none', el = 'none', dt1 = '2024-00-00 00:00:00.1'`,
	"SET sql_mode=DEFAULT",
	"UPDATE d.every SET i1 = 5, v = 'changed', j = NULL, g = NULL WHERE id = 18446744073709551615",
	"UPDATE d.every SET id = 77 WHERE id = 2",
	"INSERT INTO d.every (id, v) VALUES (4, 'gone')",
	"DELETE FROM d.every WHERE id = 4",
}

func TestEveryTypeArrivesAsItIs(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec(append(everyType,
		// Without a key rows are found by all they hold.
		"CREATE TABLE d.nokey LIKE d.every", "ALTER TABLE d.nokey DROP PRIMARY KEY",
		"SET sql_mode='ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO'", "INSERT INTO d.nokey (id,v,tc,g,p,f1,f2,d1,e,el,s,ip6,uu,j,t2,ts6,b64,cl,cu,cs,bi,vb) SELECT id,v,tc,g,p,f1,f2,d1,e,el,s,ip6,uu,j,t2,ts6,b64,cl,cu,cs,bi,vb FROM d.every",
		"INSERT INTO d.nokey (id, v) VALUES (1, 'twice'), (1, 'twice'), (1, 'TWICE')",
		"UPDATE d.nokey SET i4 = 5",
		"DELETE FROM d.nokey WHERE v = 'twice' LIMIT 2",
		"UPDATE d.nokey SET v = 'other' WHERE id = 77")...)
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 100)
	p.sync(t)
	equal(t, a, b)
}

// sampleTypes are types with values at their edges.
var sampleTypes = []struct{ typ, low, high string }{
	{"TINYINT", "-128", "127"}, {"TINYINT UNSIGNED", "0", "255"}, {"BOOLEAN", "0", "1"}, {"SMALLINT", "-32768", "32767"}, {"SMALLINT UNSIGNED", "0", "65535"},
	{"MEDIUMINT", "-8388608", "8388607"}, {"MEDIUMINT UNSIGNED", "0", "16777215"}, {"INT", "-2147483648", "2147483647"}, {"INT UNSIGNED", "0", "4294967295"}, {"INT ZEROFILL", "0", "42"},
	{"BIGINT", "-9223372036854775808", "9223372036854775807"}, {"BIGINT UNSIGNED", "0", "18446744073709551615"},
	{"DECIMAL(20,5)", "-99999.99999", "99999.99999"}, {"DECIMAL(5,2) UNSIGNED", "0", "999.99"}, {"FLOAT", "-1.5", "1.5"}, {"FLOAT UNSIGNED", "0", "2.5"}, {"DOUBLE", "-1e300", "1e300"}, {"DOUBLE UNSIGNED", "0", "1e300"},
	{"BIT(1)", "0", "1"}, {"BIT(33)", "0", "8589934591"}, {"YEAR", "1901", "2155"}, {"DATE", "'1000-01-01'", "'9999-12-31'"}, {"TIME", "'-838:59:59'", "'838:59:59'"}, {"TIME(3)", "'-1:00:00.001'", "'23:59:59.999'"},
	{"DATETIME", "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59'"}, {"DATETIME(6)", "'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"}, {"TIMESTAMP NULL", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'"}, {"TIMESTAMP(6) NULL", "'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"},
	{"CHAR(5)", "''", "'abcde'"}, {"CHAR(5) CHARACTER SET latin1", "''", "'äöü'"}, {"VARCHAR(300)", "''", "REPEAT('€', 300)"}, {"VARCHAR(9) CHARACTER SET ucs2", "''", "'ü'"}, {"BINARY(4)", "''", "'\\0a\\0'"}, {"VARBINARY(9)", "''", "'\\0a\\0'"},
	{"TINYTEXT", "''", "'x'"}, {"TEXT", "''", "REPEAT('ä', 1000)"}, {"LONGTEXT CHARACTER SET latin1", "''", "'ä'"}, {"TINYBLOB", "''", "'\\0'"}, {"BLOB", "''", "'\\0'"}, {"LONGBLOB", "''", "'\\0'"}, {"JSON", "'null'", "'{}'"},
	{"ENUM('a','ö')", "'a'", "'ö'"}, {"ENUM('a','ö') CHARACTER SET latin1", "'a'", "'ö'"}, {"SET('a','ö','c')", "''", "'a,ö,c'"}, {"POINT", "POINT(-1,-1)", "POINT(1,1)"}, {"GEOMETRY", "POINT(0,0)", "POINT(1,1)"},
	{"INET4", "'0.0.0.0'", "'255.255.255.255'"}, {"INET6", "'::'", "'ffff::ffff'"}, {"UUID", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"}, {"TEXT COMPRESSED", "''", "REPEAT('ä', 1000)"},
}

// The log describes the signs, the character sets and the members of all columns together: each type is put before and after others,
// with signed and unsigned numbers between.
func TestEveryTypeStandsBesideEveryOther(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	statements := []string{"CREATE DATABASE d CHARACTER SET utf8mb4"}
	random := rand.New(rand.NewPCG(1, 1))
	for n := range 12 {
		columns, low, high, nulls := "id INT PRIMARY KEY", "1", "2", "3"
		for i, k := range random.Perm(len(sampleTypes)) {
			s := sampleTypes[k]
			columns += fmt.Sprintf(", c%d %s", i, s.typ)
			low, high, nulls = low+", "+s.low, high+", "+s.high, nulls+", NULL"
			switch random.IntN(3) {
			case 0:
				columns += fmt.Sprintf(", s%d INT", i)
				low, high, nulls = low+", -1", high+", -2147483648", nulls+", -5"
			case 1:
				columns += fmt.Sprintf(", u%d BIGINT UNSIGNED", i)
				low, high, nulls = low+", 0", high+", 18446744073709551615", nulls+", NULL"
			}
		}
		statements = append(statements, fmt.Sprintf("CREATE TABLE d.t%d (%s)", n, columns), fmt.Sprintf("INSERT INTO d.t%d VALUES (%s)", n, low), fmt.Sprintf("INSERT INTO d.t%d VALUES (%s), (%s)", n, high, nulls),
			fmt.Sprintf("UPDATE d.t%d SET id = 7 WHERE id = 3", n))
	}
	a.Exec(append(statements, "SET sql_mode='NO_AUTO_VALUE_ON_ZERO'")...)
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 100)
	p.sync(t)
	equal(t, a, b)
}

// Whether a TIMESTAMP is NULL, and how many seconds it is, does not depend on the time zone.
func TestAStoredColumnThatIsTheSameInEveryTimeZoneIsReplicated(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d", "USE d", "CREATE TABLE t (email VARCHAR(20) NOT NULL, deleted_at TIMESTAMP NULL, active TINYINT AS (IF(deleted_at IS NULL, 1, NULL)) STORED, s BIGINT AS (COALESCE(UNIX_TIMESTAMP(deleted_at), 0)) STORED, "+
		"x VARCHAR(60) AS (CASE WHEN ISNULL(deleted_at) THEN email WHEN deleted_at IS NOT NULL THEN 'gone' ELSE NVL2(deleted_at, 'a', 'b') END) STORED, e BOOL AS (deleted_at <=> NULL) STORED, UNIQUE (email, active))",
		"SET time_zone = '+05:00'", "INSERT INTO t (email, deleted_at) VALUES ('a', NULL), ('a', '2026-01-15 23:30:00')")
	copyStill(t, a, b, 10)
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 2}, 10)
	p.at = head(t, p.source)
	a.Exec("USE d", "SET time_zone = '+07:00'", "UPDATE t SET deleted_at = '2026-01-16 01:00:00' WHERE active", "INSERT INTO t (email, deleted_at) VALUES ('a', NULL), ('b', '2026-01-16 01:00:00')", "SET time_zone = DEFAULT")
	p.sync(t)
	equal(t, a, b)
}

// A stored column may be computed in the time zone of the session, which is not in the log.
func TestAStoredColumnThatDependsOnTheTimeZoneIsVerified(t *testing.T) {
	for name, columns := range map[string]string{
		"a key": "id INT PRIMARY KEY, ts TIMESTAMP, h INT AS (HOUR(ts)) STORED", "no key": "id INT, ts TIMESTAMP, h VARCHAR(30) AS (ts) STORED",
		"whether another is NULL": "id INT PRIMARY KEY, ts TIMESTAMP, d DATETIME AS (IF(HOUR(ts) > 9, ts, NULL)) VIRTUAL, h INT AS (d IS NULL) STORED",
		"through another":         "id INT PRIMARY KEY, u INT UNIQUE, ts TIMESTAMP, d DATETIME AS (ts) VIRTUAL, h INT AS (HOUR(d)) STORED", "of a time": "id INT PRIMARY KEY, ts DATETIME, h BIGINT AS (UNIX_TIMESTAMP(ts)) STORED",
	} {
		t.Run(name, func(t *testing.T) {
			a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
			a.Exec("CREATE DATABASE d", "USE d", "SET time_zone = '+00:00'", "CREATE TABLE t ("+columns+")",
				"INSERT INTO t (id, ts) VALUES (1, '2026-01-15 12:00:00'), (2, NULL), (3, '2026-01-15 23:30:00')", "UPDATE t SET ts = '2026-01-16 01:00:00' WHERE id = 3", "UPDATE t SET id = 7 WHERE id = 1", "DELETE FROM t WHERE id = 2")
			p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 10)
			p.sync(t)
			equal(t, a, b)
			before := b.Value("SELECT COUNT(*) FROM d.t")
			a.Exec("USE d", "SET time_zone = '+00:00'", "INSERT INTO t (id, ts) VALUES (11, '2026-01-15 12:00:00')", "SET time_zone = '+05:00'", "INSERT INTO t (id, ts) VALUES (12, '2026-01-15 12:00:00')", "SET time_zone = DEFAULT")
			head, err := p.source.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = p.copy(t.Context(), p.at, head)
			if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "table d.t: column h is generated and stored, and would have another value at the sink") {
				t.Error(err)
			}
			if after := b.Value("SELECT COUNT(*) FROM d.t"); after != before {
				t.Errorf("the sink has %s rows, and had %s", after, before)
			}
		})
	}
}

// What a stored column is computed from may also be settings of the session, of the server, and the day.
func TestAStoredColumnThatTheSinkComputesInAnotherWayIsRefused(t *testing.T) {
	for name, c := range map[string]struct{ columns, session, row string }{
		"the digits of a quotient":                   {"id INT PRIMARY KEY, n DECIMAL(10,0), g DECIMAL(20,12) AS (n / 7) STORED", "div_precision_increment = 12", "(2, 1)"},
		"the digits of a quotient, without a key":    {"id INT, n DECIMAL(10,0), g DECIMAL(20,12) AS (n / 7) STORED", "div_precision_increment = 12", "(2, 1)"},
		"how a regular expression is read":           {"id INT PRIMARY KEY, n VARCHAR(9), g INT AS (n REGEXP 'a.b') STORED, u INT UNIQUE", "default_regex_flags = 'DOTALL'", "(2, 'a\nb')"},
		"which dates are allowed":                    {"id INT PRIMARY KEY, n VARCHAR(20), g DATE AS (CAST(n AS DATE)) STORED", "sql_mode = ''", "(2, '2026-02-31')"},
		"the day on which it was computed":           {"id INT PRIMARY KEY, n TIME, g DATETIME AS (CAST(n AS DATETIME)) STORED", "timestamp = 1700000000", "(2, '10:00:00')"},
		"the day on which it was computed, as a key": {"id INT PRIMARY KEY, n TIME, g DATETIME AS (CAST(n AS DATETIME)) STORED, UNIQUE (g)", "timestamp = 1700000000", "(2, '10:00:00')"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
			a.Exec("CREATE DATABASE d", "USE d", "CREATE TABLE t ("+c.columns+")", "INSERT INTO t (id, n) VALUES (1, NULL)", "UPDATE t SET id = 3")
			p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 10)
			p.sync(t)
			equal(t, a, b)
			a.Exec("USE d", "FLUSH TABLES", "SET SESSION "+c.session, "INSERT INTO t (id, n) VALUES "+c.row) // how it is computed may depend on who opened the table first
			err := p.copy(t.Context(), p.at, head(t, p.source))
			if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "table d.t: column g is generated and stored, and would have another value at the sink") {
				t.Error(err)
			}
			if rows := b.Value("SELECT COUNT(*) FROM d.t"); rows != "1" {
				t.Errorf("the sink has %s rows", rows)
			}
		})
	}
}

// The log has addresses and UUIDs as bytes of fixed length, and what they are is read from the source, which may have altered the table since.
func TestAColumnThatBecomesAnAddressLaterHasItsBytes(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d", "USE d", "CREATE TABLE t (k BINARY(16) PRIMARY KEY, i4 BINARY(4), i6 BINARY(16), u UUID)", "CREATE TABLE none (u BINARY(16), n INT)",
		"INSERT INTO t VALUES (X'123E4567E89B12D3A456426655440000', X'01020327', X'00000000000000000000000000000001', '01890a5d-ac96-774b-bcce-b302099a8057'), (X'550E8400E29B41D4A716446655440000', NULL, X'00000000000000000000FFFF01020304', NULL)",
		"INSERT INTO none VALUES (X'123E4567E89B12D3A456426655440000', 1), (X'550E8400E29B41D4A716446655440000', 2)", "DELETE FROM none WHERE n = 1", "UPDATE none SET n = 3",
		"UPDATE t SET i4 = X'09090909' WHERE i4 IS NULL", "DELETE FROM t WHERE i4 = X'01020327'", "ALTER TABLE t MODIFY k UUID, MODIFY i4 INET4, MODIFY i6 INET6, MODIFY u BINARY(16)", "ALTER TABLE none MODIFY u UUID",
		"INSERT INTO t VALUES ('123e4567-e89b-12d3-a456-426655440000', '1.2.3.4', '::1', 'u')")
	for _, batch := range []int{1, 3} {
		p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: int64(batch)}, batch)
		p.sync(t)
		equal(t, a, b)
	}
}

// A server that is not strict allows members of enums and sets that their names do not tell from others.
func TestMembersWithTheSameNameArriveAsTheyAre(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d CHARACTER SET utf8mb4", "SET sql_mode=''", "CREATE TABLE d.t (id INT PRIMARY KEY, e ENUM('x', 'x', 'y', 'X'), f ENUM('', 'z'), g ENUM('a', 'A') COLLATE utf8mb4_bin, s SET('', 'a', 'b'), r SET('a', 'a', 'b', 'A'))",
		"CREATE TABLE d.n LIKE d.t", "ALTER TABLE d.n DROP PRIMARY KEY")
	for _, table := range []string{"d.t", "d.n"} {
		a.Exec("SET sql_mode=''", "INSERT INTO "+table+" VALUES (1, 1, 0, 1, 0, 1), (2, 2, 1, 2, 1, 2), (3, 3, 2, 0, 2, 4), (4, 4, 0, 1, 3, 7), (5, 0, 0, 2, 7, 15), (6, NULL, NULL, NULL, NULL, NULL)",
			"UPDATE "+table+" SET e = 2, r = 10 WHERE id = 3", "DELETE FROM "+table+" WHERE id = 4", "UPDATE "+table+" SET id = 7 WHERE id = 2")
	}
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 3)
	p.sync(t)
	for _, table := range []string{"d.t", "d.n"} {
		query := "SELECT GROUP_CONCAT(CONCAT_WS('/', id, e + 0, f + 0, g + 0, s + 0, r + 0) ORDER BY id) FROM " + table
		if x, y := a.Value(query), b.Value(query); x != y {
			t.Errorf("%s: the source has\n%s\nthe sink\n%s", table, x, y)
		}
	}
}

// A table at the sink that somebody else has made may have other character sets than the one of the source. Text is converted, or refused.
func TestTextOfAnotherCharacterSetIsConverted(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	// The bytes of each text are another text in the character set of the sink.
	columns := []struct{ here, there, text string }{
		{"cp1251", "latin1", "é"}, {"latin1", "cp1251", "§"}, {"cp1251", "koi8r", "Привет"}, {"koi8r", "utf8mb4", "Привет"}, {"latin1", "utf8mb4", "Ã©"}, {"ucs2", "utf8mb4", "ab"}, {"utf16", "utf16le", "ab"},
		{"sjis", "utf8mb4", "表示"}, {"latin1", "latin2", "é"}, {"utf8mb4", "latin1", "é"}, {"gbk", "big5", "中文"},
	}
	for _, m := range []*testenv.MariaDB{a, b} {
		var keyed, keyless string
		for i, c := range columns {
			charset := c.here
			if m == b {
				charset = c.there
			}
			if c.here == "cp1251" && c.there == "latin1" {
				c.text = "x"
			}
			keyed += fmt.Sprintf(", c%d VARCHAR(20) CHARACTER SET %s", i, charset)
			keyless += fmt.Sprintf(", c%d VARCHAR(20) CHARACTER SET %s, e%d ENUM('none', '%s') CHARACTER SET %s", i, charset, i, c.text, charset)
		}
		m.Exec("CREATE DATABASE d CHARACTER SET utf8mb4", "CREATE TABLE d.t (k VARCHAR(20) CHARACTER SET "+map[bool]string{true: "koi8r", false: "cp1251"}[m == a]+" PRIMARY KEY"+keyed+")", "CREATE TABLE d.n (id INT"+keyless+")")
	}
	p := newPipe(openSource(t, a), openSink(t, b), stream.Epoch{Placement: 1}, 100)
	p.at = head(t, p.source)
	keyed, keyless, show := "", "", "SELECT CONCAT_WS('|', (SELECT GROUP_CONCAT(k, '/'"
	for i, c := range columns {
		if i == 0 {
			c.text = "x"
		}
		keyed += ", '" + c.text + "'"
		keyless += ", '" + c.text + "', '" + c.text + "'"
		show += fmt.Sprintf(", CONVERT(c%d USING utf8mb4), '/'", i)
	}
	show += " ORDER BY CONVERT(k USING utf8mb4)) FROM d.t), (SELECT GROUP_CONCAT(id, '/'"
	for i := range columns {
		show += fmt.Sprintf(", CONVERT(c%d USING utf8mb4), '/', CONVERT(e%d USING utf8mb4), '/'", i, i)
	}
	show += " ORDER BY id) FROM d.n))"
	a.Exec("SET NAMES utf8mb4", "INSERT INTO d.t VALUES ('Привет'"+keyed+"), ('мир'"+keyed+"), ('да'"+keyed+")", "INSERT INTO d.n VALUES (1"+keyless+"), (1"+keyless+"), (2"+keyless+"), (3"+keyless+")")
	p.sync(t)
	a.Exec("UPDATE d.t SET k = 'нет' WHERE k = 'да'", "DELETE FROM d.t WHERE k = 'мир'", "UPDATE d.n SET id = 4 WHERE id = 1 LIMIT 1", "DELETE FROM d.n WHERE id = 2")
	p.sync(t)
	if x, y := a.Value(show), b.Value(show); x != y {
		t.Errorf("the source has\n%s\nthe sink\n%s", x, y)
	}
	a.Exec("INSERT INTO d.t (k, c0) VALUES ('да', 'Ж')")
	err := p.copy(t.Context(), p.at, head(t, p.source))
	refused(t, err, "make the table equal to that of the source")
}
