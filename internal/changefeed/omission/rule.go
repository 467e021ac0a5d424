package omission

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Rule is what of the tables that match a pattern is left out.
type Rule struct {
	// Match is schema.table with the wildcards * and ?.
	Match string
	// Columns that are left out.
	Columns []string
	// Rows is an expression; rows for which it is true are left out. Empty for none.
	Rows string
}

// Map are rules, of which all that match a table apply to it.
type Map struct{ rules []rule }

// rule is a Rule that was parsed.
type rule struct {
	Rule
	match stream.Filter // one pattern
	rows  *Expression
}

// columnName matches the names of columns that can be left out. The server takes some letters beyond ASCII for the same.
var columnName = regexp.MustCompile(`^[A-Za-z0-9_$]{1,64}$`)

// Parse parses rules.
func Parse(rules []Rule) (*Map, error) {
	m := &Map{}
	for i, r := range rules {
		parsed, err := r.parse()
		if err != nil {
			return nil, fmt.Errorf("leave out %d (%s): %w", i+1, r.Match, err)
		}
		m.rules = append(m.rules, parsed)
	}
	return m, nil
}

func (r Rule) parse() (p rule, err error) {
	p.Rule = r
	if strings.HasPrefix(r.Match, "!") {
		return p, fmt.Errorf("it matches tables, and does not exclude them; use the filter for that")
	}
	if p.match, err = stream.ParseFilter([]string{r.Match}); err != nil {
		return p, err
	}
	if len(r.Columns) == 0 && r.Rows == "" {
		return p, fmt.Errorf("it leaves nothing out: set columns or rows, or remove it")
	}
	for _, c := range r.Columns {
		if !columnName.MatchString(c) {
			return p, fmt.Errorf("column %q: only names of ASCII letters, digits, _ and $ can be left out", c)
		}
	}
	if r.Rows != "" {
		p.rows, err = ParseExpression(r.Rows)
	}
	return p, err
}

// Folded returns ErrUnusable if a pattern of a rule has upper case, for servers that have the names of tables in lower case: it would leave nothing
// out.
func (m *Map) Folded() error {
	for i := range m.rules {
		if err := m.rules[i].match.Folded(); err != nil {
			return fmt.Errorf("leave out %d: %w", i+1, err)
		}
	}
	return nil
}

// exact reports whether a rule is about one table, and not about those that match a pattern.
func (r *rule) exact() bool { return !strings.ContainsAny(r.Match, "*?") }

// Of is what is left out of a table; nil if nothing is.
func (m *Map) Of(t stream.Table) *Table {
	if m == nil {
		return nil
	}
	o := &Table{Table: t}
	for i := range m.rules {
		r := &m.rules[i]
		if !r.match.Allows(t) {
			continue
		}
		for _, c := range r.Columns {
			if c = strings.ToLower(c); !slices.Contains(o.columns, c) {
				o.columns = append(o.columns, c)
			}
		}
		if r.rows != nil && !slices.ContainsFunc(o.rows, func(e *Expression) bool { return e.text == r.rows.text }) {
			o.rows = append(o.rows, r.rows)
		}
	}
	if len(o.columns) == 0 && len(o.rows) == 0 {
		return nil
	}
	slices.Sort(o.columns)
	slices.SortFunc(o.rows, func(a, b *Expression) int { return strings.Compare(a.text, b.text) })
	return o
}

// same reports whether the same is left out of two tables.
func (m *Map) same(a, b stream.Table) bool {
	x, y := m.Of(a), m.Of(b)
	if x == nil || y == nil {
		return x == y
	}
	return slices.Equal(x.columns, y.columns) && slices.EqualFunc(x.rows, y.rows, func(e, f *Expression) bool { return e.text == f.text })
}

// Table is what is left out of one table.
type Table struct {
	Table stream.Table
	// columns that are left out, in lower case and sorted, and rows the expressions for rows that are.
	columns []string
	rows    []*Expression
}

// Column reports whether a column is left out.
func (t *Table) Column(name string) bool {
	return t != nil && slices.ContainsFunc(t.columns, func(c string) bool { return strings.EqualFold(c, name) })
}

// Columns are the columns that are left out.
func (t *Table) Columns() []string {
	if t == nil {
		return nil
	}
	return t.columns
}

// Rows reports whether rows are left out.
func (t *Table) Rows() bool { return t != nil && len(t.rows) > 0 }

// decidingColumns are the columns that decide whether a row is left out.
func (t *Table) decidingColumns() (names []string) {
	for _, e := range t.rows {
		for _, c := range e.columns {
			if !slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, c) }) {
				names = append(names, c)
			}
		}
	}
	return names
}
