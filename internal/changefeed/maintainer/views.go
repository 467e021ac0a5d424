package maintainer

import (
	"context"
	"fmt"
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// The log does not show whether a name is that of a table, a view or a sequence.

// tableFinder is a sink that knows which of some names are tables, and no sequences.
type tableFinder interface {
	BaseTables(ctx context.Context, names []stream.Table) ([]stream.Table, error)
}

// withoutTables is a DROP SEQUENCE IF EXISTS without the tables that it names, which stay; they wait for it, because it may drop sequences that they
// use. Anything else is as it was. The sink has a table of such a name as long as DDL before the DROP is not executed there, and afterwards, too.
func withoutTables(ctx context.Context, sink stream.Sink, t *stream.Transaction) (*stream.Transaction, error) {
	finder, ok := sink.(tableFinder)
	if !ok || !t.DDL.Sequences || !t.DDL.IfExists {
		return t, nil
	}
	stay, err := finder.BaseTables(ctx, t.DDL.Tables)
	if err != nil || len(stay) == 0 {
		return t, err
	}
	part, ddl := *t, *t.DDL
	part.DDL, ddl.Reads = &ddl, stay
	ddl.Tables = slices.DeleteFunc(slices.Clone(ddl.Tables), func(name stream.Table) bool { return slices.Contains(stay, name) })
	return &part, nil
}

// ddlBeginner is a sink that knows whether DDL may have been executed.
type ddlBeginner interface {
	DDLBegun(ctx context.Context, position stream.Position) (bool, error)
}

// renamesViews reports whether a rename is one of views, which are not replicated: none of its tables is known. Once it may have been
// executed, its tables are not known by these names any more. It refuses a rename of tables and views in one statement.
func (m *Maintainer) renamesViews(ctx context.Context, sink stream.Sink, d *stream.DDL, at stream.Position) (bool, error) {
	if d.Kind != stream.RenameTable || len(d.Releases) > 0 {
		return false, nil
	}
	m.mu.Lock()
	unknown := slices.DeleteFunc(slices.Clone(d.Tables), func(name stream.Table) bool { return m.known(name) || m.missing[name] })
	m.mu.Unlock()
	if len(unknown) == 0 {
		return false, nil
	}
	if s, ok := sink.(ddlBeginner); ok {
		if begun, err := s.DDLBegun(ctx, at); begun || err != nil {
			return false, err
		}
	}
	switch {
	case len(unknown) == len(d.Tables):
		return true, nil
	case d.IfExists:
		return false, nil
	}
	return false, &refusedError{fmt.Errorf("position %d: statement %q: it renames tables, and %s, which is not known as a table; rename views in a statement of their own: %w", at, d.Text(), unknown[0], stream.ErrUnusable)}
}
