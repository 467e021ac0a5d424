package omission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// DDL is a DDL without the columns that are left out; nothing of its statement may be left then. It returns ErrUnusable, with the
// statement, if it is not certain what the statement does to what is left out.
func (m *Map) DDL(d *stream.DDL) (*stream.DDL, error) {
	if d.Text() == "" || len(d.Tables) == 0 {
		return d, nil
	}
	switch d.Kind {
	case stream.CreateTable, stream.AlterTable, stream.RenameTable:
	default:
		return d, nil
	}
	if one, other, mixes := m.mixes(d); mixes {
		return nil, d.Stops(fmt.Sprintf("columns or rows are left out of table %s or of table %s, and not the same of both", one, other))
	}
	o := m.Of(d.Tables[0])
	if o == nil || len(d.Reads) > 0 || d.Kind == stream.RenameTable && !d.Alters {
		return d, nil
	}
	to, why := o.without(d)
	if why != "" {
		return nil, d.Stops(why)
	}
	return to, nil
}

// mixes are two tables of which one gets rows or columns of the other, and of which not the same is left out.
func (m *Map) mixes(d *stream.DDL) (one, other stream.Table, mixes bool) {
	one = d.Tables[0]
	others := slices.Concat(d.Reads, d.Makes, d.Removes, d.Tables[1:])
	if d.Kind == stream.RenameTable {
		others = nil
	}
	for _, other := range others {
		if !m.same(one, other) {
			return one, other, true
		}
	}
	for i, to := range d.Becomes {
		if !m.same(d.Tables[i], to) {
			return d.Tables[i], to, true
		}
	}
	return one, one, false
}

// without is a CREATE or ALTER of the table without what is left out, or why there is none.
func (t *Table) without(d *stream.DDL) (*stream.DDL, string) {
	if d.Clauses == nil {
		return nil, fmt.Sprintf("columns or rows are left out of table %s, and it is not known which columns it is about", t.Table)
	}
	if c, why := t.mentioned(d.Rest); why != "" {
		return nil, why
	} else if c != "" {
		return nil, fmt.Sprintf("column %s is left out, and the table is partitioned by it", c)
	}
	if d.Ignores && t.Rows() {
		return nil, fmt.Sprintf("rows of table %s are left out, and which rows IGNORE removes may depend on them", t.Table)
	}
	keep := make([]bool, len(d.Clauses))
	columns := false
	for i := range d.Clauses {
		stays, why := t.keeps(d, &d.Clauses[i])
		if why != "" {
			return nil, why
		}
		keep[i] = stays
		columns = columns || stays && d.Clauses[i].Kind == stream.ColumnClause
	}
	creates := d.Kind == stream.CreateTable && len(d.Clauses) > 0
	if creates && !columns {
		return nil, fmt.Sprintf("all columns of table %s are left out", t.Table)
	}
	if creates {
		if c := t.lacks(d); c != "" {
			return nil, fmt.Sprintf("rows of table %s are left out by column %s, which it does not have", t.Table, c)
		}
	}
	return t.rewrite(d, keep), ""
}

// lacks is a column that decides whether rows are left out and that a table is created without; empty if there is none.
func (t *Table) lacks(d *stream.DDL) string {
	for _, name := range t.decidingColumns() {
		if !slices.ContainsFunc(d.Clauses, func(c stream.Clause) bool { return c.Kind == stream.ColumnClause && strings.EqualFold(c.Column, name) }) {
			return name
		}
	}
	return ""
}

// keeps reports whether a clause is executed at the sink, or why that is not certain.
func (t *Table) keeps(d *stream.DDL, c *stream.Clause) (stays bool, why string) {
	if d.Kind != stream.CreateTable {
		if why := t.decides(c); why != "" {
			return false, why
		}
	}
	if len(t.columns) == 0 {
		return true, ""
	}
	mentioned, why := t.mentioned(c.Mentions)
	if why != "" {
		return false, why
	}
	switch c.Kind {
	case stream.ColumnClause:
		return t.keepsColumn(c, mentioned)
	case stream.KeyClause, stream.UniqueClause:
		return t.keepsKey(c)
	case stream.DropKeyClause:
		return true, ""
	}
	if mentioned != "" {
		return false, fmt.Sprintf("column %s is left out, and a constraint, a partition or another clause is about it", mentioned)
	}
	return true, ""
}

// decides is why a clause may change whether rows are left out, or may do something else to other rows because some are.
func (t *Table) decides(c *stream.Clause) string {
	if !t.Rows() {
		return ""
	}
	if c.Numbers {
		return fmt.Sprintf("rows of table %s are left out, and it numbers the others", t.Table)
	}
	for _, name := range t.decidingColumns() {
		for _, each := range c.Columns { // of a primary key that is added: NULL may become another value
			if same, sure := sameName(name, each); c.Kind == stream.UniqueClause && (same || !sure) {
				return fmt.Sprintf("rows of table %s are left out by column %s, which it may change", t.Table, name)
			}
		}
		for _, each := range []string{c.Column, c.Becomes} {
			if same, sure := sameName(name, each); c.Kind == stream.ColumnClause && (same || !sure) {
				return fmt.Sprintf("rows of table %s are left out by column %s, which it may change", t.Table, name)
			}
		}
	}
	if c.Converts && slices.ContainsFunc(t.rows, func(e *Expression) bool { return e.comparesText() }) {
		return fmt.Sprintf("rows of table %s are left out by columns of text, and it may convert them", t.Table)
	}
	return ""
}

func (t *Table) keepsColumn(c *stream.Clause, mentioned string) (stays bool, why string) {
	out, why := t.mentioned([]string{c.Column})
	if why != "" {
		return false, why
	}
	becomes := out
	if c.Becomes != "" {
		if becomes, why = t.mentioned([]string{c.Becomes}); why != "" {
			return false, why
		}
	}
	switch {
	case out == "" && becomes != "":
		return false, fmt.Sprintf("column %s becomes %s, which is left out", c.Column, c.Becomes)
	case out != "" && becomes == "":
		return false, fmt.Sprintf("column %s is left out and becomes %s, which is not, and the sink does not have its values", c.Column, c.Becomes)
	case out != "" && c.Constraint != "":
		return false, fmt.Sprintf("column %s is left out, and is defined with %s", c.Column, c.Constraint)
	case out != "":
		return false, ""
	case mentioned != "":
		return false, fmt.Sprintf("column %s is left out, and the definition or the place of column %s depends on it", mentioned, c.Column)
	}
	return true, ""
}

// keepsKey leaves out a key with a column that is left out. The server gives a key without a name that of its first column, which other
// such keys must not get at the sink.
func (t *Table) keepsKey(c *stream.Clause) (stays bool, why string) {
	mentioned, why := t.mentioned(c.Columns)
	switch {
	case why != "" || mentioned == "":
		return why == "", why
	case c.Kind == stream.UniqueClause:
		return false, fmt.Sprintf("column %s is left out, and is a column of a primary or unique key", mentioned)
	case c.Key == "" && !t.Column(c.Columns[0]):
		return false, fmt.Sprintf("column %s is left out, and is a column of a key that has no name; give the key a name", mentioned)
	}
	return false, ""
}

// mentioned is the first of some names that is a column which is left out, or why that is not certain.
func (t *Table) mentioned(names []string) (column, why string) {
	for _, name := range names {
		for _, c := range t.columns {
			same, sure := sameName(c, name)
			switch {
			case !sure:
				return "", fmt.Sprintf("column %s is left out, and it is not certain whether the server takes %s for the same name", c, name)
			case same:
				return c, ""
			}
		}
	}
	return "", ""
}

// sameName reports whether a name is that of a column, which is of ASCII characters. To the server, some letters beyond ASCII are the same
// as ASCII letters.
func sameName(column, name string) (same, sure bool) {
	letters := []rune(name)
	if len(letters) != len(column) {
		return false, true
	}
	sure = true
	for i, r := range letters {
		switch {
		case r >= 0x80:
			sure = false
		case !strings.EqualFold(string(r), column[i:i+1]):
			return false, true
		}
	}
	return sure, sure
}

// rewrite is a DDL with some of its clauses. IF EXISTS is added where a key is dropped that may have been left out.
func (t *Table) rewrite(d *stream.DDL, keep []bool) *stream.DDL {
	adds := func(c *stream.Clause) bool { return len(t.columns) > 0 && c.IfExistsAt > 0 }
	changed := slices.Contains(keep, false)
	for i := range d.Clauses {
		changed = changed || adds(&d.Clauses[i])
	}
	switch {
	case !changed:
		return d
	case !slices.Contains(keep, true):
		return d.Without()
	}
	e := &editor{from: d}
	e.copy(0, d.Clauses[0].From)
	for i, first := 0, true; i < len(keep); i++ {
		c := &d.Clauses[i]
		if !keep[i] {
			continue
		}
		if !first {
			e.copy(d.Clauses[i-1].To, c.From) // the comma before it
		}
		first = false
		if adds(c) {
			e.copy(c.From, c.IfExistsAt)
			e.text.WriteString("IF EXISTS ")
			e.copy(c.IfExistsAt, c.To)
			continue
		}
		e.copy(c.From, c.To)
	}
	e.copy(d.Clauses[len(keep)-1].To, len(d.Statement))
	to := *d
	to.Statement, to.Spots, to.Clauses, to.Rest = e.text.String(), e.spots, nil, nil
	return &to
}

// editor makes a statement of pieces of another.
type editor struct {
	from  *stream.DDL
	text  strings.Builder
	spots []stream.Spot
}

// copy copies a piece, and where it names tables.
func (e *editor) copy(from, to int) {
	by := e.text.Len() - from
	for _, s := range e.from.Spots {
		if from <= s.From && s.To <= to {
			s.From, s.To = s.From+by, s.To+by
			e.spots = append(e.spots, s)
		}
	}
	e.text.WriteString(e.from.Statement[from:to])
}
