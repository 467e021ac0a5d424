package route

import (
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// DDL is a DDL with the names that tables have at the sink; nil if nothing is to be executed there. It returns ErrUnusable, with the
// statement, if it is not certain which words of the statement are such names.
//
// A schema that is created or altered is so at the sink if all of its tables are in one schema there, and no others. Other schemas at the
// sink are for whoever set up the routes to create.
func (m *Map) DDL(d *stream.DDL, f stream.Filter) (*stream.DDL, error) {
	switch d.Kind {
	case stream.OtherDDL, stream.UnknownDDL, stream.UnreadableRows, stream.ReplaceSchema:
		return d, nil
	case stream.SetSchema:
		return m.setSchema(d, f), nil
	case stream.DropSchema:
		return m.dropSchema(d), nil
	}
	to := m.tables(d)
	if slices.Equal(to.Names(), d.Names()) && m.sameSpots(d) {
		return to, nil // the statement is the same
	}
	if d.KeyIfExists && slices.ContainsFunc(d.Tables, func(t stream.Table) bool { return m.Target(t).Name != t.Name }) {
		return nil, d.Stops("it drops a constraint IF EXISTS, and the name that the server gave the constraint may depend on the name of the table, which is another at the sink")
	}
	if err := m.rewrite(d, to, ""); err != nil {
		return nil, err
	}
	return to, nil
}

// tables is a copy of a DDL with the names of tables at the sink, and the statement as it was.
func (m *Map) tables(d *stream.DDL) *stream.DDL {
	to := *d
	for _, list := range []*[]stream.Table{&to.Tables, &to.Becomes, &to.Reads, &to.Makes, &to.Removes, &to.References, &to.Cascades, &to.Releases, &to.Waits} {
		*list = m.Targets(*list)
	}
	return &to
}

// sameSpots reports whether everything that a statement names has the same name at the sink.
func (m *Map) sameSpots(d *stream.DDL) bool {
	return !slices.ContainsFunc(d.Spots, func(s stream.Spot) bool { return m.Target(s.Table) != s.Table })
}

// rewrite sets the statement of to, which is d with the names of tables at the sink. A name without a schema stays one if its table is in
// a schema at the sink that is in use there.
func (m *Map) rewrite(d, to *stream.DDL, in string) error {
	switch {
	case d.Statement == "" || d.Text() == "":
		return nil
	case d.Doubt != "":
		return d.Stops("tables have other names at the sink, and " + d.Doubt)
	case len(d.Spots) == 0 && d.Kind == stream.DropTable:
		to.Rewrite(d.DropText(to.Tables, d.IfExists))
		return nil
	case len(d.Spots) == 0 && d.Kind == stream.RenameTable && !d.Alters:
		text, ok := stream.RenameText(to.Tables, to.Becomes, d.IfExists)
		if !ok {
			return d.Stops("tables have other names at the sink, and it renames them in a circle")
		}
		to.Rewrite(text)
		return nil
	case len(d.Spots) == 0:
		return d.Stops("tables have other names at the sink, and it is not known where it names them")
	}
	to.Statement, to.Spots = m.replace(d, in), nil
	return nil
}

// replace is the statement of a DDL with other names.
func (m *Map) replace(d *stream.DDL, in string) string {
	var b strings.Builder
	at := 0
	for _, s := range d.Spots {
		b.WriteString(d.Statement[at:s.From])
		t := m.Target(s.Table)
		switch {
		case !s.Qualified && t.Schema == in:
			b.WriteString(quoted(t.Name))
		default:
			b.WriteString(quoted(t.Schema) + "." + quoted(t.Name))
		}
		at = s.To
	}
	b.WriteString(d.Statement[at:])
	return b.String()
}

func quoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// setSchema creates or alters the one schema at the sink that has all tables of a schema.
func (m *Map) setSchema(d *stream.DDL, f stream.Filter) *stream.DDL {
	all := m.schemas(d.Schema)
	own := slices.Contains(all, d.Schema) && !m.shared(d.Schema, d.Schema, f)
	switch {
	case own:
		return d
	case len(all) != 1 || m.shared(all[0], d.Schema, f):
		return nil
	}
	to := *d
	to.Schema, to.Spots = all[0], nil
	if len(d.Spots) == 1 { // without a name it is about the schema that is in use
		to.Statement = d.Statement[:d.Spots[0].From] + quoted(all[0]) + d.Statement[d.Spots[0].To:]
	}
	return &to
}

// dropSchema drops what the sink has of a schema.
func (m *Map) dropSchema(d *stream.DDL) *stream.DDL {
	to, schema, f := *d, d.Schema, d.Filter
	to.Waits = m.Targets(d.Waits)
	to.Drops = &stream.Drops{
		Schemas: m.schemas(schema),
		Owns: func(t stream.Table) bool {
			s, ok := m.Source(t, f)
			return ok && s.Schema == schema
		},
		Whole: func(name string) bool {
			return f.AllowsSchema(schema) && slices.Contains(m.schemas(schema), name) && !m.shared(name, schema, f)
		},
	}
	return &to
}
