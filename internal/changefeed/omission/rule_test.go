package omission_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestRulesThatCannotBeFollowedAreRefused(t *testing.T) {
	for _, c := range []struct {
		rule omission.Rule
		want string
	}{
		{omission.Rule{Match: "a.b", Columns: []string{"x"}, Rows: "y = 1"}, ""},
		{omission.Rule{Match: "a.b"}, "leave out 1 (a.b): it leaves nothing out: set columns or rows, or remove it"},
		{omission.Rule{Match: "!a.b", Rows: "y = 1"}, "leave out 1 (!a.b): it matches tables, and does not exclude them; use the filter for that"},
		{omission.Rule{Match: "a", Rows: "y = 1"}, `leave out 1 (a): filter "a" is not of the form schema.table`},
		{omission.Rule{Match: "a.b", Columns: []string{"ä"}}, `leave out 1 (a.b): column "ä": only names of ASCII letters, digits, _ and $ can be left out`},
		{omission.Rule{Match: "a.b", Rows: "y == 1"}, `leave out 1 (a.b): rows "y == 1": a number or a text in single quotes is expected instead of "="`},
	} {
		_, err := omission.Parse([]omission.Rule{c.rule})
		if got := errorText(err); got != c.want {
			t.Errorf("%+v\n got %s\nwant %s", c.rule, got, c.want)
		}
	}
}

func TestARuleThatMatchesNoNameInLowerCaseIsRefused(t *testing.T) {
	for match, want := range map[string]string{
		"shop.users": "",
		"shop.Users": `leave out 1: filter "shop.Users" has upper case, and the servers have names of tables in lower case (lower_case_table_names), so that none would match: write it in lower case: `,
	} {
		m, err := omission.Parse([]omission.Rule{{Match: match, Columns: []string{"Password"}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Folded(); (got == nil) != (want == "") || got != nil && (!errors.Is(got, stream.ErrUnusable) || !strings.HasPrefix(got.Error(), want)) {
			t.Errorf("%s: %v", match, got)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestExpressionsThatAreNotCertainAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                               `a column is expected instead of "the end"; a comparison is of a column with a literal`,
		"a":                              `after column a, one of = <> < <= > >= IN, NOT IN, IS NULL and IS NOT NULL is expected instead of "the end"`,
		"a = b":                          `a number or a text in single quotes is expected instead of "b"`,
		"1 = a":                          `a column is expected instead of "1"; a comparison is of a column with a literal`,
		"a = NULL":                       "a comparison with NULL is never true; use IS NULL or IS NOT NULL",
		"a IN (1, NULL)":                 "a comparison with NULL is never true; use IS NULL or IS NOT NULL",
		"a <=> 1":                        `a number or a text in single quotes is expected instead of ">"`,
		"a LIKE 'x%'":                    `after column a, one of = <> < <= > >= IN, NOT IN, IS NULL and IS NOT NULL is expected instead of "LIKE"`,
		"a + 1 = 2":                      `"+" is not supported`,
		"f(a) = 1":                       `after column f, one of = <> < <= > >= IN, NOT IN, IS NULL and IS NOT NULL is expected instead of "("`,
		"a = 1e5":                        `"1e" is not a number; exponents are not supported`,
		"a = 1.":                         `"1." is not a number`,
		"a = --1":                        `"-" is not a number`,
		"a = '\\''":                      "only printable ASCII characters without a backslash can be in quotes; use X'...' for other bytes",
		"a = 'x":                         "a quote ' is not closed",
		"a = X'abc'":                     "X'abc' is not hexadecimal",
		"(a = 1":                         `a bracket is not closed before "the end"`,
		"a = 1)":                         `")" is not expected`,
		"a = 1 b = 2":                    `"b" is not expected`,
		"a = 1; DROP TABLE b":            `";" is not supported`,
		"a IN ()":                        `a number or a text in single quotes is expected instead of ")"`,
		"a IN (1 2)":                     `in the list of column a, a comma or a bracket is expected instead of "2"`,
		"NOT":                            `a column is expected instead of "the end"; a comparison is of a column with a literal`,
		"`ä` = 1":                        "only printable ASCII characters without a backslash can be in quotes; use X'...' for other bytes",
		"a = " + strings.Repeat("1", 31): "a number has more than 30 digits",
		"a = \"x\"":                      `"\"" is not supported`,
		"a && b":                         `"&" is not supported`,
	} {
		_, err := omission.ParseExpression(text)
		if err == nil || !strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestAComparisonThatTheServerMayMakeInAnotherWayIsRefused(t *testing.T) {
	for _, c := range []struct {
		column omission.Column
		rows   string
		want   string
	}{
		{omission.Column{Type: "int"}, "a = '1'", "it is a number (int); compare it with a number"},
		{omission.Column{Type: "double"}, "a = 1", "columns of type double are not compared"},
		{omission.Column{Type: "timestamp"}, "a = '2020-01-01'", "columns of type timestamp are not compared"},
		{omission.Column{Type: "enum", Collation: "utf8mb4_bin"}, "a = 'x'", "columns of type enum are not compared"},
		{omission.Column{Type: "year"}, "a = 99", "columns of type year are not compared"},
		{omission.Column{Type: "date"}, "a > 20200101", "it is a date; compare it with text of the form '2026-01-31'"},
		{omission.Column{Type: "date"}, "a > '2020-1-1'", "it is a date; compare it with text of the form '2026-01-31'"},
		{omission.Column{Type: "date"}, "a > '2020-02-30'", "it is a date; compare it with text of the form '2026-01-31'"},
		{omission.Column{Type: "date"}, "a > '2020-02-29 10:00:00'", "it is a date; compare it with text of the form '2026-01-31'"},
		{omission.Column{Type: "datetime"}, "a > '2020-02-29T10:00:00'", "it is a datetime; compare it with text of the form '2026-01-31' or '2026-01-31 23:59:59.5'"},
		{omission.Column{Type: "datetime"}, "a > '2020-02-29 10:00:00.1234567'", "it is a datetime; compare it with"},
		{omission.Column{Type: "datetime"}, "a > '0000-00-00'", "it is a datetime; compare it with"},
		{omission.Column{Type: "varchar", Collation: "utf8mb4_general_ci"}, "a = 'x'", "its collation is utf8mb4_general_ci, by which different texts may be equal"},
		{omission.Column{Type: "varchar", Collation: "sjis_bin"}, "a = 'x'", "its collation is sjis_bin"},
		{omission.Column{Type: "varchar"}, "a = 'x'", "its collation is , by which"},
		{omission.Column{Type: "char", Collation: "utf8mb4_nopad_bin"}, "a = 'x'", "its collation is utf8mb4_nopad_bin"},
		{omission.Column{Type: "varchar", Collation: "utf8mb4_bin"}, "a < 'x'", "< is for numbers and dates; use =, <> or IN"},
		{omission.Column{Type: "varchar", Collation: "utf8mb4_bin"}, "a = 1", "it is text (varchar); compare it with a text in single quotes"},
		{omission.Column{Type: "varbinary"}, "a = 1", "it has bytes (varbinary); compare it with X'...' or a text"},
		{omission.Column{Type: "int", Generated: true}, "a = 1", "column a is generated; use the columns that it is made of"},
		{omission.Column{Type: "double"}, "a IS NULL", ""},
	} {
		m, err := omission.Parse([]omission.Rule{{Match: "s.t", Rows: c.rows}})
		if err != nil {
			t.Fatal(err)
		}
		c.column.Name = "a"
		_, err = m.Of(stream.Table{Schema: "s", Name: "t"}).Test([]omission.Column{c.column}, nil)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s of %+v\n got %v\nwant %s", c.rows, c.column, err, c.want)
		}
	}
}

func TestWhatCannotBeLeftOutOfATableIsRefused(t *testing.T) {
	server := testenv.StartMariaDB(t)
	server.Exec("CREATE DATABASE d", "CREATE TABLE d.p (id INT PRIMARY KEY)",
		"CREATE TABLE d.t (id INT PRIMARY KEY, plain INT, indexed INT, uni INT UNIQUE, ref INT, made INT AS (basis + 1), basis INT, checked INT, name VARCHAR(9), KEY (indexed), FOREIGN KEY (ref) REFERENCES d.p (id), CONSTRAINT c CHECK (checked > 0))",
		"CREATE TABLE d.parts (id INT, region INT NOT NULL, v INT) PARTITION BY HASH (region)", "CREATE TABLE d.only (secret INT)", "CREATE SEQUENCE d.q")
	source, err := mariadb.Open(mariadb.Options{Address: server.Address, User: server.User, Password: server.Password})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	tables, _, err := source.Tables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	definitions, err := source.Define(t.Context(), append(tables, stream.Table{Schema: "d", Name: "gone"}))
	if err != nil || len(definitions) != 5 {
		t.Fatalf("%d definitions, %v", len(definitions), err)
	}
	for _, c := range []struct {
		rule omission.Rule
		want string
	}{
		{omission.Rule{Match: "d.t", Columns: []string{"plain", "indexed", "NAME"}}, ""},
		{omission.Rule{Match: "d.t", Columns: []string{"made"}, Rows: "id > 5 AND made IS NOT NULL"}, "column made is generated"},
		{omission.Rule{Match: "d.t", Columns: []string{"basis", "made"}, Rows: "id > 5"}, ""},
		{omission.Rule{Match: "d.*", Columns: []string{"plan"}}, ""},
		{omission.Rule{Match: "d.t", Columns: []string{"plan"}}, "table d.t: it has no column plan; correct the name, or use a pattern for a column that will be added"},
		{omission.Rule{Match: "d.t", Columns: []string{"id"}}, "table d.t: column id is left out, and is a column of a primary or unique key"},
		{omission.Rule{Match: "d.t", Columns: []string{"uni"}}, "table d.t: column uni is left out, and is a column of a primary or unique key"},
		{omission.Rule{Match: "d.t", Columns: []string{"ref"}}, "table d.t: column ref is left out, and a constraint, a partition or another clause is about it"},
		{omission.Rule{Match: "d.t", Columns: []string{"basis"}}, "table d.t: column basis is left out, and the definition or the place of column made depends on it"},
		{omission.Rule{Match: "d.t", Columns: []string{"checked"}}, "table d.t: column checked is left out, and a constraint, a partition or another clause is about it"},
		{omission.Rule{Match: "d.parts", Columns: []string{"region"}}, "table d.parts: column region is left out, and the table is partitioned by it"},
		{omission.Rule{Match: "d.only", Columns: []string{"secret"}}, "table d.only: all columns of table d.only are left out"},
		{omission.Rule{Match: "d.parts", Rows: "region = 7"}, ""},
		{omission.Rule{Match: "d.*", Rows: "region = 7"}, "which it does not have"},
		{omission.Rule{Match: "d.t", Rows: "name = 'x'"}, `rows "name = 'x'": column name: its collation is`},
	} {
		m, err := omission.Parse([]omission.Rule{c.rule})
		if err != nil {
			t.Fatal(err)
		}
		var refused error
		for i := range definitions {
			refused = errors.Join(refused, m.Admit(&definitions[i]))
		}
		if c.want == "" && refused != nil || c.want != "" && (!errors.Is(refused, stream.ErrUnusable) || !strings.Contains(refused.Error(), c.want)) {
			t.Errorf("%+v\n got %v\nwant %s", c.rule, refused, c.want)
		}
	}
}

func TestAChangeMovesARowAcrossTheBorder(t *testing.T) {
	m, err := omission.Parse([]omission.Rule{{Match: "s.t", Rows: "k = 7"}, {Match: "s.*", Rows: "f = 'x'"}})
	if err != nil {
		t.Fatal(err)
	}
	test, err := m.Of(stream.Table{Schema: "s", Name: "t"}).Test([]omission.Column{{Name: "k", Type: "int"}, {Name: "f", Type: "varbinary"}}, []int{0})
	if err != nil {
		t.Fatal(err)
	}
	row := func(k int64, f string) []any { return []any{k, []byte(f)} }
	for _, c := range []struct {
		change stream.Change
		want   stream.Kind // 0 for nothing
	}{
		{stream.Change{Kind: stream.Insert, After: row(1, "a")}, stream.Insert},
		{stream.Change{Kind: stream.Insert, After: row(7, "a")}, 0},
		{stream.Change{Kind: stream.Insert, After: []any{nil, nil}}, stream.Insert},
		{stream.Change{Kind: stream.Delete, Before: row(1, "x")}, 0},
		{stream.Change{Kind: stream.Delete, Before: row(1, "a")}, stream.Delete},
		{stream.Change{Kind: stream.Update, Before: row(1, "a"), After: row(2, "a")}, stream.Update},
		{stream.Change{Kind: stream.Update, Before: row(1, "a"), After: row(7, "a")}, stream.Delete},
		{stream.Change{Kind: stream.Update, Before: row(7, "a"), After: row(1, "a")}, stream.Insert},
		{stream.Change{Kind: stream.Update, Before: row(7, "x"), After: row(1, "x")}, 0},
	} {
		got, err := test.Changes([]stream.Change{c.change})
		if err != nil || len(got) > 1 || len(got) == 1 && got[0].Kind != c.want || len(got) == 0 && c.want != 0 {
			t.Errorf("%+v became %+v, %v", c.change, got, err)
		}
		if len(got) == 1 && ((got[0].Before == nil) != (c.want == stream.Insert) || (got[0].After == nil) != (c.want == stream.Delete)) {
			t.Errorf("%+v became %+v", c.change, got)
		}
	}
	_, err = test.Changes([]stream.Change{{Kind: stream.Update, Before: row(1, "a"), After: row(1, "b")}})
	if !errors.Is(err, stream.ErrUnusable) || !strings.Contains(err.Error(), "table s.t: column f of a row has changed") {
		t.Error(err)
	}
}
