package omission

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Plan is the plan of an initial copy without the columns that are left out.
func (m *Map) Plan(p *snapshot.Plan) (*snapshot.Plan, error) {
	to := *p
	to.Tables = slices.Clone(p.Tables)
	for i := range to.Tables {
		d := &to.Tables[i]
		o := m.Of(d.Table)
		if o == nil || d.Sequence {
			continue
		}
		if err := o.admit(d); err != nil {
			return nil, err
		}
		parsed, why := o.without(d.Parsed)
		if why != "" {
			return nil, o.refuse(why)
		}
		d.Parsed, d.Create = parsed, parsed.Statement
	}
	return &to, nil
}

// Admit returns ErrUnusable if what is to be left out of a table cannot be, as the table is now. A rule for one table must name columns
// that it has.
func (m *Map) Admit(d *snapshot.Definition) error {
	o := m.Of(d.Table)
	if o == nil || d.Sequence {
		return nil
	}
	for i := range m.rules {
		if r := &m.rules[i]; r.exact() && r.match.Allows(d.Table) {
			for _, name := range r.Columns {
				if d.Layout != nil && !slices.ContainsFunc(d.Layout.Columns, func(c snapshot.Column) bool { return strings.EqualFold(c.Name, name) }) {
					return o.refuse(fmt.Sprintf("it has no column %s; correct the name, or use a pattern for a column that will be added", name))
				}
			}
		}
	}
	return o.admit(d)
}

func (t *Table) admit(d *snapshot.Definition) error {
	if d.Parsed == nil || d.Parsed.Kind != stream.CreateTable {
		return t.refuse("its definition is not known")
	}
	if _, why := t.without(d.Parsed); why != "" {
		return t.refuse(why)
	}
	if d.Layout == nil {
		return nil
	}
	_, err := t.Test(layoutColumns(d.Layout), d.Layout.Key)
	return err
}

func (t *Table) refuse(why string) error {
	return fmt.Errorf("leave out: table %s: %s; change spec.leaveOut, or the table at the source, or exclude the table by the filter: %w", t.Table, why, stream.ErrUnusable)
}

// Layout is how a table is read by an initial copy, without what is left out.
func (t *Table) Layout(l *snapshot.Layout) (*snapshot.Layout, error) {
	if t == nil || l.Sequence {
		return l, nil
	}
	to := *l
	to.Columns = slices.Clone(l.Columns)
	for i := range to.Columns {
		c := &to.Columns[i]
		if c.LeftOut = t.Column(c.Name); c.LeftOut && slices.Contains(l.Key, i) {
			return nil, t.refuse(fmt.Sprintf("column %s is left out, and is a column of its key", c.Name))
		}
	}
	test, err := t.Test(layoutColumns(l), l.Key)
	if err != nil || test == nil {
		return &to, err
	}
	to.Tested = test.Columns()
	to.Leaves = func(values [][]byte) (bool, error) {
		return test.Leaves(func(column int) any { return values[slices.Index(to.Tested, column)] })
	}
	return &to, nil
}

func layoutColumns(l *snapshot.Layout) []Column {
	list := make([]Column, len(l.Columns))
	for i, c := range l.Columns {
		list[i] = Column{Name: c.Name, Type: c.Type, Collation: c.Collation, Generated: c.Generated}
	}
	return list
}

// SchemaTest is the test for rows with a schema; nil if no rows are left out.
func (t *Table) SchemaTest(s *stream.Schema) (*Test, error) {
	if !t.Rows() {
		return nil, nil
	}
	list := make([]Column, len(s.Columns))
	for i, c := range s.Columns {
		list[i] = Column{Name: c.Name, Type: c.Type, Collation: c.Collation, Generated: c.Generated}
	}
	return t.Test(list, s.Key)
}
