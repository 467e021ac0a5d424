package omission

import (
	"bytes"
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Column is what a comparison with a column depends on.
type Column struct {
	Name string
	// Type in lower case, for instance "bigint".
	Type string
	// Collation of text; empty for anything else.
	Collation string
	Generated bool
}

// Test decides which rows of a table are left out, while it has certain columns.
type Test struct {
	table stream.Table
	text  string
	// names of the columns.
	names []string
	// columns are the indexes of the columns that decide, and fixed those of them that must not change.
	columns, fixed []int
	leaves         func(row func(int) any) (truth, error)
}

// truth is a truth value of SQL.
type truth uint8

const (
	isFalse truth = iota
	unknown
	isTrue
)

// Test makes the test for rows with certain columns, of which some are the key; nil if no rows are left out. It returns ErrUnusable if it
// is not certain that the test says what the server would.
func (t *Table) Test(columns []Column, key []int) (*Test, error) {
	if !t.Rows() {
		return nil, nil
	}
	test := &Test{table: t.Table}
	var parts []func(func(int) any) (truth, error)
	var texts []string
	for _, c := range columns {
		test.names = append(test.names, c.Name)
	}
	for _, e := range t.rows {
		b := &binder{columns: columns}
		part, err := b.bind(e.root)
		if err != nil {
			return nil, fmt.Errorf("leave out: table %s: rows %q: %w: %w", t.Table, e, err, stream.ErrUnusable)
		}
		parts, texts = append(parts, part), append(texts, e.text)
		for _, i := range b.used {
			if !slices.Contains(test.columns, i) {
				test.columns = append(test.columns, i)
			}
		}
	}
	slices.Sort(test.columns)
	for _, i := range test.columns {
		if !slices.Contains(key, i) {
			test.fixed = append(test.fixed, i)
		}
	}
	test.text, test.leaves = strings.Join(texts, " OR "), either(parts)
	return test, nil
}

// Columns are the indexes of the columns that decide.
func (t *Test) Columns() []int { return t.columns }

// Leaves reports whether a row is left out. Values are as in a stream.Change, or as the server sends them as text.
func (t *Test) Leaves(row func(column int) any) (bool, error) {
	found, err := t.leaves(row)
	if err != nil {
		err = fmt.Errorf("leave out: table %s: rows %q: %w: %w", t.table, t.text, err, stream.ErrUnusable)
	}
	return found == isTrue, err
}

// Changes are what changes do to the rows that are not left out. It returns ErrUnusable if a column has changed that must not.
func (t *Test) Changes(changes []stream.Change) ([]stream.Change, error) {
	var left []stream.Change
	for i := range changes {
		c := changes[i]
		before, err := t.keeps(c.Before)
		if err != nil {
			return nil, err
		}
		after, err := t.keeps(c.After)
		if err != nil {
			return nil, err
		}
		if err := t.refuseChange(&c); err != nil {
			return nil, err
		}
		switch {
		case before && after, before && c.After == nil, after && c.Before == nil:
			left = append(left, c)
		case before:
			left = append(left, stream.Change{Kind: stream.Delete, Before: c.Before})
		case after:
			left = append(left, stream.Change{Kind: stream.Insert, After: c.After})
		}
	}
	return left, nil
}

// keeps reports whether there is a row and it is not left out.
func (t *Test) keeps(row []any) (bool, error) {
	if row == nil {
		return false, nil
	}
	leaves, err := t.Leaves(func(i int) any { return row[i] })
	return !leaves, err
}

// refuseChange returns ErrUnusable if an update changes a column that decides and is not of the key.
func (t *Test) refuseChange(c *stream.Change) error {
	if c.Before == nil || c.After == nil {
		return nil
	}
	for _, i := range t.fixed {
		if !same(c.Before[i], c.After[i]) {
			return fmt.Errorf("leave out: table %s: column %s of a row has changed, and rows are left out by it (%s); only columns of the key may change; create another changefeed with an expression on columns that do not change: %w",
				t.table, t.names[i], t.text, stream.ErrUnusable)
		}
	}
	return nil
}

// same reports whether two values of a column are the same, byte for byte.
func same(a, b any) bool {
	x, ok1 := a.([]byte)
	y, ok2 := b.([]byte)
	if ok1 || ok2 {
		return ok1 && ok2 && bytes.Equal(x, y)
	}
	return a == b
}

// either is a condition that is true if one of several is.
func either(parts []func(func(int) any) (truth, error)) func(func(int) any) (truth, error) {
	return func(row func(int) any) (truth, error) {
		found := isFalse
		for _, each := range parts {
			v, err := each(row)
			if err != nil {
				return unknown, err
			}
			found = max(found, v)
		}
		return found, nil
	}
}

// binder makes functions of nodes.
type binder struct {
	columns []Column
	used    []int
}

func (b *binder) bind(n node) (func(func(int) any) (truth, error), error) {
	switch n := n.(type) {
	case *anyOf:
		parts, err := b.bindAll(n.of)
		return either(parts), err
	case *allOf:
		parts, err := b.bindAll(n.of)
		return func(row func(int) any) (truth, error) {
			found := isTrue
			for _, each := range parts {
				v, err := each(row)
				if err != nil {
					return unknown, err
				}
				found = min(found, v)
			}
			return found, nil
		}, err
	case *negation:
		of, err := b.bind(n.of)
		return func(row func(int) any) (truth, error) {
			v, err := of(row)
			return isTrue - v, err
		}, err
	case *isNull:
		i, err := b.column(n.column)
		return func(row func(int) any) (truth, error) {
			if isNil(row(i)) {
				return isTrue, nil
			}
			return isFalse, nil
		}, err
	case *comparison:
		return b.comparison(n)
	}
	return nil, fmt.Errorf("a node of type %T is not known", n)
}

func (b *binder) bindAll(list []node) (parts []func(func(int) any) (truth, error), err error) {
	for _, n := range list {
		part, err := b.bind(n)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

// isNil reports whether a value is NULL, decoded or as text.
func isNil(v any) bool {
	text, ok := v.([]byte)
	return v == nil || ok && text == nil
}

// column is the index of a column.
func (b *binder) column(name string) (int, error) {
	i := slices.IndexFunc(b.columns, func(c Column) bool { return strings.EqualFold(c.Name, name) })
	switch {
	case i < 0:
		return 0, fmt.Errorf("the table has no column %s; use a column that it has, or a pattern that matches fewer tables", name)
	case b.columns[i].Generated:
		return 0, fmt.Errorf("column %s is generated; use the columns that it is made of", name)
	}
	b.used = append(b.used, i)
	return i, nil
}

func (b *binder) comparison(n *comparison) (func(func(int) any) (truth, error), error) {
	i, err := b.column(n.column)
	if err != nil {
		return nil, err
	}
	var compare []func(any) (int, error)
	for _, l := range n.with {
		each, err := b.columns[i].compare(l, n.operator)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", b.columns[i].Name, err)
		}
		compare = append(compare, each)
	}
	holds := map[string]func(int) bool{
		"=": func(c int) bool { return c == 0 }, "<>": func(c int) bool { return c != 0 }, "<": func(c int) bool { return c < 0 },
		"<=": func(c int) bool { return c <= 0 }, ">": func(c int) bool { return c > 0 }, ">=": func(c int) bool { return c >= 0 },
	}[n.operator]
	return func(row func(int) any) (truth, error) {
		v := row(i)
		if isNil(v) {
			return unknown, nil
		}
		for _, each := range compare {
			c, err := each(v)
			if err != nil {
				return unknown, fmt.Errorf("column %s: %w", b.columns[i].Name, err)
			}
			if holds(c) {
				return isTrue, nil
			}
		}
		return isFalse, nil
	}, nil
}

// compare makes the function that compares a value of the column, which is not NULL, with a literal. It returns an error where the server
// may compare in another way.
func (c *Column) compare(l literal, operator string) (func(any) (int, error), error) {
	switch c.Type {
	case "tinyint", "smallint", "mediumint", "int", "bigint", "decimal":
		if l.kind != numberLiteral {
			return nil, fmt.Errorf("it is a number (%s); compare it with a number", c.Type)
		}
		return compareNumber(l.number), nil
	case "date", "datetime":
		return c.compareTime(l)
	case "binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob":
		if l.kind == numberLiteral {
			return nil, fmt.Errorf("it has bytes (%s); compare it with X'...' or a text", c.Type)
		}
		return func(v any) (int, error) { return compareBytes(v, l.text, false) }, unordered(operator)
	case "char", "varchar", "tinytext", "text", "mediumtext", "longtext":
		pads, err := c.pads()
		if err != nil {
			return nil, err
		}
		if l.kind != textLiteral {
			return nil, fmt.Errorf("it is text (%s); compare it with a text in single quotes", c.Type)
		}
		return func(v any) (int, error) { return compareBytes(v, l.text, pads) }, unordered(operator)
	}
	return nil, fmt.Errorf("columns of type %s are not compared; use IS NULL, or a column of integers, decimals, dates, bytes, or text with a binary collation", c.Type)
}

// unordered refuses to compare by order.
func unordered(operator string) error {
	if operator == "=" || operator == "<>" {
		return nil
	}
	return fmt.Errorf("%s is for numbers and dates; use =, <> or IN", operator)
}

// pads reports whether spaces at the end of text do not count. Only collations by which the bytes decide are known.
func (c *Column) pads() (bool, error) {
	charset, rest, _ := strings.Cut(c.Collation, "_")
	known := slices.Contains([]string{"utf8mb4", "utf8mb3", "utf8", "ascii", "latin1"}, charset)
	switch {
	case known && rest == "bin":
		return true, nil
	case known && rest == "nopad_bin" && c.Type != "char": // the server fills it up with spaces, which count then
		return false, nil
	}
	return false, fmt.Errorf("its collation is %s, by which different texts may be equal; use a column with a collation such as utf8mb4_bin, or of another type", c.Collation)
}

func compareNumber(with *big.Rat) func(any) (int, error) {
	small, isSmall := int64(0), with.IsInt() && with.Num().IsInt64()
	if isSmall {
		small = with.Num().Int64()
	}
	return func(v any) (int, error) {
		if n, ok := v.(int64); ok && isSmall {
			return cmp.Compare(n, small), nil
		}
		n, err := exact(v)
		if err != nil {
			return 0, err
		}
		return n.Cmp(with), nil
	}
}

// exact is a value as a number.
func exact(v any) (*big.Rat, error) {
	switch v := v.(type) {
	case int64:
		return new(big.Rat).SetInt64(v), nil
	case uint64:
		return new(big.Rat).SetUint64(v), nil
	}
	text, ok := textOf(v)
	if ok {
		if n, ok := new(big.Rat).SetString(text); ok {
			return n, nil
		}
	}
	return nil, fmt.Errorf("the value %v of type %T is not a number", v, v)
}

// textOf is a value that is text or bytes.
func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	}
	return "", false
}

// compareBytes is 0 if a value is a text.
func compareBytes(v any, text string, pads bool) (int, error) {
	value, ok := textOf(v)
	if !ok {
		return 0, fmt.Errorf("a value of type %T is not text", v)
	}
	if pads {
		value, text = strings.TrimRight(value, " "), strings.TrimRight(text, " ")
	}
	return strings.Compare(value, text), nil
}

// The forms of a time in an expression. All parts of a value have a fixed number of digits, so that text is in the order of time.
const (
	dateForm  = "2006-01-02"
	timeForm  = "2006-01-02 15:04:05"
	wholeTime = "0000-00-00 00:00:00.000000"
)

func (c *Column) compareTime(l literal) (func(any) (int, error), error) {
	forms, want := []string{dateForm}, "'2026-01-31'"
	if c.Type == "datetime" {
		forms, want = append(forms, timeForm), want+" or '2026-01-31 23:59:59.5'"
	}
	valid := l.kind == textLiteral && slices.ContainsFunc(forms, func(form string) bool {
		at, err := time.Parse(form, l.text) // a fraction may follow the seconds
		return err == nil && at.Year() > 0 && len(l.text) >= len(form) && len(l.text) <= len(wholeTime) && (form == timeForm || len(l.text) == len(form)) && !strings.Contains(l.text, ",")
	})
	if !valid {
		return nil, fmt.Errorf("it is a %s; compare it with text of the form %s", c.Type, want)
	}
	with := fill(l.text)
	return func(v any) (int, error) {
		text, ok := textOf(v)
		if !ok || len(text) < len(dateForm) || len(text) > len(wholeTime) {
			return 0, fmt.Errorf("the value %v of type %T is not a %s", v, v, c.Type)
		}
		return strings.Compare(fill(text), with), nil
	}, nil
}

// fill adds what a time lacks at its end.
func fill(text string) string { return text + wholeTime[len(text):] }
