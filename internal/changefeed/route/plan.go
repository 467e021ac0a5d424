package route

import (
	"fmt"
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Plan is the plan of an initial copy with the names that schemas and tables have at the sink.
func (m *Map) Plan(p *snapshot.Plan, f stream.Filter) (*snapshot.Plan, error) {
	to := *p
	to.Tables, to.Schemas = slices.Clone(p.Tables), nil
	used := map[string][]string{} // of each schema of the source, those at the sink
	for i := range to.Tables {
		d := &to.Tables[i]
		if err := m.Check(d.Table, f); err != nil {
			return nil, err
		}
		target := m.Target(d.Table)
		used[d.Table.Schema] = append(used[d.Table.Schema], target.Schema)
		create, err := m.create(d, target)
		if err != nil {
			return nil, err
		}
		d.Table, d.Create = target, create
	}
	for _, s := range p.Schemas {
		names := used[s.Name]
		if all := m.schemas(s.Name); len(all) == 1 {
			names = append(names, all[0])
		}
		for _, name := range names {
			i := slices.IndexFunc(to.Schemas, func(o snapshot.Schema) bool { return o.Name == name })
			switch {
			case i < 0:
				to.Schemas = append(to.Schemas, snapshot.Schema{Name: name, Charset: s.Charset, Collation: s.Collation})
			case to.Schemas[i].Collation != s.Collation:
				return nil, fmt.Errorf("routing: schema %s at the sink has tables of several schemas, which have the default collations %s and %s at the source, so that new tables would differ; give these schemas the same: %w", name, to.Schemas[i].Collation, s.Collation, stream.ErrUnusable)
			}
		}
	}
	return &to, nil
}

// create is the statement that makes a table at the sink.
func (m *Map) create(d *snapshot.Definition, target stream.Table) (string, error) {
	switch {
	case d.Parsed == nil && target == d.Table:
		return d.Create, nil
	case d.Parsed == nil || d.Parsed.Kind != stream.CreateTable:
		return "", fmt.Errorf("routing: table %s would be %s at the sink, and it is not known where its definition names tables; exclude it by the filter, or leave its name: %w", d.Table, target, stream.ErrUnusable)
	case m.sameSpots(d.Parsed):
		return d.Create, nil
	}
	to := *d.Parsed
	if err := m.rewrite(d.Parsed, &to, target.Schema); err != nil {
		return "", err
	}
	return to.Statement, nil
}
