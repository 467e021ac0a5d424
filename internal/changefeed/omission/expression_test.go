package omission_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.EndMariaDB()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// tested are columns of every type that is compared, with values of theirs and literals for them.
var tested = []struct {
	name, definition string
	values, literals []string
	ordered          bool
}{
	{"ti", "TINYINT", []string{"-128", "-1", "0", "1", "127"}, []string{"-129", "-1", "0", "1", "0.5", "127", "128", "1.0", "-.5"}, true},
	{"tu", "TINYINT UNSIGNED", []string{"0", "1", "127", "255"}, []string{"-1", "0", "127.0", "255", "256", "254.5"}, true},
	{"si", "SMALLINT", []string{"-32768", "7"}, []string{"-32768", "7", "07", "6.99"}, true},
	{"mi", "MEDIUMINT UNSIGNED", []string{"0", "16777215"}, []string{"16777215", "16777216", "-0"}, true},
	{"i4", "INT", []string{"-2147483648", "0", "2147483647"}, []string{"2147483647", "2147483647.5", "-2147483648", "2147483648"}, true},
	{"bi", "BIGINT", []string{"-9223372036854775808", "-1", "0", "9223372036854775807"}, []string{"-9223372036854775808", "9223372036854775807", "9223372036854775808", "18446744073709551615", "-1", "9223372036854775806.5", "-99999999999999999999"}, true},
	{"bu", "BIGINT UNSIGNED", []string{"0", "9223372036854775808", "18446744073709551615"}, []string{"-1", "0", "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "18446744073709551614.5"}, true},
	{"de", "DECIMAL(20,4)", []string{"-1.5", "0", "0.0001", "1.5", "9999999999999999.9999"}, []string{"1.5", "1.50000", "-1.5", "0.0001", "0", "0.00009999", "9999999999999999.9999", "10000000000000000"}, true},
	{"d0", "DECIMAL(30,0) UNSIGNED", []string{"0", "999999999999999999999999999999"}, []string{"999999999999999999999999999999", "0", "99999999999999999999999999999.5"}, true},
	{"da", "DATE", []string{"'0000-00-00'", "'2020-00-00'", "'2020-02-29'", "'9999-12-31'"}, []string{"'2020-02-29'", "'2020-01-01'", "'2020-03-01'", "'9999-12-31'", "'0001-01-01'"}, true},
	{"dt", "DATETIME", []string{"'2020-02-29 00:00:00'", "'2020-02-29 23:59:59'", "'0000-00-00 00:00:00'"}, []string{"'2020-02-29'", "'2020-02-29 23:59:59'", "'2020-02-29 23:59:59.0'", "'2020-02-29 23:59:58.999999'", "'2020-02-29 23:59:59.5'"}, true},
	{"d6", "DATETIME(6)", []string{"'2020-02-29 23:59:59.000001'", "'2020-02-29 00:00:00'", "'2020-02-29 23:59:59.5'"}, []string{"'2020-02-29'", "'2020-02-29 23:59:59.5'", "'2020-02-29 23:59:59.500001'", "'2020-02-29 23:59:59.000001'", "'2020-02-29 23:59:59'"}, true},
	{"d3", "DATETIME(3)", []string{"'2020-02-29 23:59:59.123'"}, []string{"'2020-02-29 23:59:59.123'", "'2020-02-29 23:59:59.1231'", "'2020-02-29 23:59:59.12'"}, true},
	{"vb", "VARBINARY(20)", []string{"''", "'a'", "'a '", "'A'", "X'00ff'"}, []string{"''", "'a'", "'a '", "X'61'", "X'00ff'", "X'00FF00'"}, false},
	{"bn", "BINARY(3)", []string{"''", "'a'", "X'610000'", "'abc'"}, []string{"'a'", "X'610000'", "'abc'", "''", "X'000000'"}, false},
	{"bl", "BLOB", []string{"''", "'a'", "'a '"}, []string{"''", "'a'", "'a '"}, false},
	{"vc", "VARCHAR(20) COLLATE utf8mb4_bin", []string{"''", "' '", "'a'", "'a '", "'A'", "'ä'", "'it''s'", "'a\t'"}, []string{"''", "'a'", "'a  '", "'A'", "'it''s'", "' a'"}, false},
	{"vn", "VARCHAR(20) COLLATE utf8mb4_nopad_bin", []string{"''", "' '", "'a'", "'a '", "'A'"}, []string{"''", "'a'", "'a '", "'A'", "' '"}, false},
	{"ch", "CHAR(5) CHARACTER SET latin1 COLLATE latin1_bin", []string{"''", "'a'", "'a '", "'ä'", "'A'"}, []string{"''", "'a'", "'a '", "'A'"}, false},
	{"tx", "TEXT CHARACTER SET ascii COLLATE ascii_bin", []string{"''", "'a'", "'a '"}, []string{"''", "'a'", "'a '"}, false},
	{"t3", "VARCHAR(5) CHARACTER SET utf8mb3 COLLATE utf8mb3_bin", []string{"'a'", "'ß'"}, []string{"'a'", "'ss'"}, false},
}

// drawExpression draws an expression over these columns.
func drawExpression(t *rapid.T, depth int) string {
	if depth > 0 {
		switch rapid.IntRange(0, 5).Draw(t, "form") {
		case 0:
			return drawExpression(t, depth-1) + " AND " + drawExpression(t, depth-1)
		case 1:
			return drawExpression(t, depth-1) + " or " + drawExpression(t, depth-1)
		case 2:
			return "NOT " + drawExpression(t, depth-1)
		case 3:
			return "(" + drawExpression(t, depth-1) + ")"
		}
	}
	c := tested[rapid.IntRange(0, len(tested)-1).Draw(t, "column")]
	name := c.name
	if rapid.Bool().Draw(t, "quotes") {
		name = "`" + strings.ToUpper(name) + "`"
	}
	literal := rapid.SampledFrom(c.literals)
	switch rapid.IntRange(0, 5).Draw(t, "condition") {
	case 0:
		return name + rapid.SampledFrom([]string{" IS NULL", " is not null"}).Draw(t, "null")
	case 1, 2:
		list := rapid.SliceOfN(literal, 1, 4).Draw(t, "list")
		return name + rapid.SampledFrom([]string{" IN (", " NOT IN ("}).Draw(t, "in") + strings.Join(list, ", ") + ")"
	}
	operators := []string{"=", "<>", " != "}
	if c.ordered {
		operators = append(operators, "<", " <= ", ">", ">=")
	}
	return name + rapid.SampledFrom(operators).Draw(t, "operator") + literal.Draw(t, "literal")
}

// logged are the rows of a table as the log has them.
func logged(t *testing.T, server *testenv.MariaDB, table stream.Table) (*stream.Schema, [][]any) {
	t.Helper()
	source, err := mariadb.Open(mariadb.Options{Address: server.Address, User: server.User, Password: server.Password})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var schema *stream.Schema
	var rows [][]any
	enough := errors.New("enough")
	err = source.Read(t.Context(), 0, func(tx *stream.Transaction) error {
		for _, r := range tx.Rows {
			if r.Table != table {
				continue
			}
			schema = r.Schema
			for _, c := range r.Changes {
				rows = append(rows, c.After)
			}
		}
		if tx.Position >= head {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	return schema, rows
}

// columnsOf are the columns of a schema.
func columnsOf(schema *stream.Schema) (list []omission.Column) {
	for _, c := range schema.Columns {
		list = append(list, omission.Column{Name: c.Name, Type: c.Type, Collation: c.Collation, Generated: c.Generated})
	}
	return list
}

// Whatever the expression and the row, changes and the initial copy agree with the server about it.
func TestAnExpressionMeansWhatItMeansToTheServer(t *testing.T) {
	server := testenv.StartMariaDB(t)
	definition, names, longest := "n INT PRIMARY KEY", []string{"n"}, 0
	for _, c := range tested {
		definition, names, longest = definition+", "+c.name+" "+c.definition, append(names, c.name), max(longest, len(c.values))
	}
	server.Exec("CREATE DATABASE d", "CREATE TABLE d.t ("+definition+") CHARACTER SET utf8mb4", "SET sql_mode='ALLOW_INVALID_DATES'")
	for n := range longest + 1 { // and one of NULLs
		row := []string{fmt.Sprint(n)}
		for i, c := range tested {
			value := "NULL"
			if n < longest && (n < len(c.values) || (n+i)%3 > 0) {
				value = c.values[n%len(c.values)]
			}
			row = append(row, value)
		}
		server.Exec("SET NAMES utf8mb4", "SET sql_mode=''", "INSERT INTO d.t VALUES ("+strings.Join(row, ", ")+")")
	}
	table := stream.Table{Schema: "d", Name: "t"}
	schema, rows := logged(t, server, table)
	if len(rows) != longest+1 {
		t.Fatalf("%d rows were logged, not %d", len(rows), longest+1)
	}
	db := server.Open("d")
	defer db.Close()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	texts := textRows(t, conn, "SET NAMES binary", "SELECT "+strings.Join(names, ", ")+" FROM t ORDER BY n", len(names))
	if _, err := conn.ExecContext(t.Context(), "SET NAMES utf8mb4"); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(r *rapid.T) {
		text := drawExpression(r, 3)
		m, err := omission.Parse([]omission.Rule{{Match: "d.t", Rows: text}})
		if err != nil {
			r.Fatal(err)
		}
		test, err := m.Of(table).Test(columnsOf(schema), schema.Key)
		if err != nil {
			r.Fatal(err)
		}
		answers := textRows(r, conn, "", "SELECT COALESCE("+text+", 0) FROM t ORDER BY n", 1)
		for i := range rows {
			want := string(answers[i][0]) == "1"
			decoded, err1 := test.Leaves(func(at int) any { return rows[i][at] })
			copied, err2 := test.Leaves(func(at int) any { return texts[i][at] })
			if err1 != nil || err2 != nil || decoded != want || copied != want {
				r.Fatalf("%s\nrow %q: the server says %v, and the test %v for a change (%v), %v for the initial copy (%v)", text, texts[i], want, decoded, err1, copied, err2)
			}
		}
	})
}

// textRows are the rows of a query as the server sends them.
func textRows(t interface{ Fatal(...any) }, conn *sql.Conn, set, query string, width int) (all [][][]byte) {
	ctx := context.Background()
	if set != "" {
		if _, err := conn.ExecContext(ctx, set); err != nil {
			t.Fatal(err)
		}
	}
	found, err := conn.QueryContext(ctx, query)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	for found.Next() {
		row, into := make([][]byte, width), make([]any, width)
		for i := range row {
			into[i] = &row[i]
		}
		if err := found.Scan(into...); err != nil {
			t.Fatal(err)
		}
		all = append(all, row)
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
