package maintainer

import (
	"context"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// A table is its name, and since when it has that name: one that is dropped and created again is another table. The maintainer knows one table of
// each name, and every order and every report says which it is about, so that what comes late of an earlier table concerns nobody.
//
// Since when a table has its name is recorded by the sink together with the DDL that gave it. So a maintainer that reads DDL again which was executed
// already takes it from there: the name may have been given again since.

// holder is a sink that knows which tables have their names. To others all tables of a name are one, and have it since 0.
type holder interface {
	// Holders are those that have the names that tables of the changefeed have had.
	Holders(ctx context.Context) (map[stream.Table]stream.Holder, error)
	// HoldersOf are those that have some names.
	HoldersOf(ctx context.Context, names []stream.Table) (map[stream.Table]stream.Holder, error)
}

// holders are which tables have the names that tables of the changefeed have had; none if the sink does not know.
func holders(ctx context.Context, sink stream.Sink) (map[stream.Table]stream.Holder, error) {
	if h, ok := sink.(holder); ok {
		return h.Holders(ctx)
	}
	return nil, nil
}

// holdersOf are which tables have some names.
func holdersOf(ctx context.Context, sink stream.Sink, names []stream.Table) (map[stream.Table]stream.Holder, error) {
	if h, ok := sink.(holder); ok {
		return h.HoldersOf(ctx, names)
	}
	return nil, nil
}

// holdersAfter are which tables have the names of those that exist after a DDL. DDL that was not executed at the sink is not recorded there:
// then a table has the name since the DDL if that gave it, and else since before.
func holdersAfter(ctx context.Context, sink stream.Sink, names []stream.Table, t *stream.Transaction, executed bool, before map[stream.Table]stream.Holder) (map[stream.Table]stream.Holder, error) {
	h, ok := sink.(holder)
	switch {
	case !ok:
		return nil, nil
	case executed:
		return h.HoldersOf(ctx, names)
	}
	after := map[stream.Table]stream.Holder{}
	for _, name := range names {
		after[name] = before[name]
	}
	for _, name := range t.DDL.Gives() {
		after[name] = stream.Holder{Since: t.Position}
	}
	return after, nil
}

// holdersKnown are which tables have some names, as far as these tables are known.
func (m *Maintainer) holdersKnown(names []stream.Table) map[stream.Table]stream.Holder {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := map[stream.Table]stream.Holder{}
	for _, name := range names {
		if _, t := m.find(name); t != nil {
			known[name] = stream.Holder{Since: t.identity(name).Since}
		}
	}
	return known
}

// identity is a table of an entry: the one that it is of, or a member of its group.
func (t *table) identity(name stream.Table) stream.Identity {
	if len(t.members) > 0 {
		return name.Since(t.named[name])
	}
	return name.Since(t.has)
}

// identities are the tables of a group; none of a single table.
func (t *table) identities() []stream.Identity {
	var list []stream.Identity
	for _, name := range t.members {
		list = append(list, t.identity(name))
	}
	return list
}

// is reports whether an entry is of a table, and not of another one of the same name.
func (t *table) is(id stream.Identity) bool { return t.identity(id.Table) == id }

// reported is the entry that a report about a table is about; nil if that table is not known, but perhaps another one of its name. The caller holds
// the lock.
func (m *Maintainer) reported(id stream.Identity) *table {
	if t := m.tables[id.Table]; t != nil && t.is(id) {
		return t
	}
	return nil
}

// newTable is a single table that has its name since a position, and of which everything up to another is at the sink. What DDL before that did to
// the name is none of its business.
func newTable(since, floor stream.Position) *table {
	return &table{has: since, from: since, floor: floor}
}
