package maintainer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Tables that cascading foreign keys join are written by one dispatcher (stream.CascadeGroups). The keys are those that the sink has: DDL
// that adds or drops one is executed there when all tables of the groups that it concerns have reached it, so that the keys at the sink
// are those of the source at that position.

// foreignKeys are the foreign keys of a sink; none if it does not execute them.
func foreignKeys(ctx context.Context, sink stream.Sink) ([]stream.ForeignKey, error) {
	if s, ok := sink.(stream.GroupSink); ok {
		return s.ForeignKeys(ctx)
	}
	return nil, nil
}

// keyed is a source that knows its foreign keys.
type keyed interface {
	ForeignKeys(ctx context.Context) ([]stream.ForeignKey, error)
}

// sourceKeys are the foreign keys that a source has now; none if the sink does not execute them. It returns ErrUnusable if a cascading one
// joins tables inside and outside the filter.
func sourceKeys(ctx context.Context, source stream.Source, sink stream.Sink, f stream.Filter) ([]stream.ForeignKey, error) {
	k, ok := source.(keyed)
	if _, executes := sink.(stream.GroupSink); !ok || !executes {
		return nil, nil
	}
	keys, err := k.ForeignKeys(ctx)
	if err != nil {
		return nil, err
	}
	return keys, f.OutsideCascade(keys)
}

// lacking are cascading keys that the source had and the sink did not. Either DDL up to a position adds them, or the sink was created without
// them. Then the changes that they make would be lost.
type lacking struct {
	keys  []stream.ForeignKey
	until stream.Position
	since time.Time
	// sure is set if all DDL that can have added them is at that position or before it.
	sure bool
}

// keysSettle is longer than a key can be in the dictionary of a server before the DDL that added it is in the log.
const keysSettle = 2 * time.Second

// noteLacking records the cascading keys that the sink lacks. The table trigger checks them after all DDL that can add them; without a table
// trigger there is no such DDL.
func (m *Maintainer) noteLacking(ctx context.Context, source stream.Source, keys []stream.ForeignKey) error {
	m.lacking = lacking{keys: keys, since: time.Now()}
	if len(keys) == 0 {
		return nil
	}
	if m.ddlDone == nil {
		return refuseLacking(keys[0])
	}
	head, err := source.Head(ctx)
	m.lacking.until = head
	return err
}

// checkLacking refuses a sink that still lacks keys after all DDL that can have added them. It is called in the order of the log.
func (m *Maintainer) checkLacking(ctx context.Context, source stream.Source, sink stream.Sink, f stream.Filter, at stream.Position) error {
	l := &m.lacking
	if len(l.keys) == 0 || at < l.until || time.Since(l.since) < keysSettle {
		return nil
	}
	have, err := sourceKeys(ctx, source, sink, f)
	if err != nil {
		return err
	}
	keys, err := foreignKeys(ctx, sink)
	if err != nil {
		return err
	}
	l.keys = slices.DeleteFunc(f.LackingCascades(have, keys), func(k stream.ForeignKey) bool {
		return !slices.ContainsFunc(l.keys, func(o stream.ForeignKey) bool { return o.Child == k.Child && o.Name == k.Name })
	})
	switch {
	case len(l.keys) == 0:
		return nil
	case l.sure:
		return &refusedError{refuseLacking(l.keys[0])}
	}
	l.sure = true
	l.until, err = source.Head(ctx)
	return err
}

func refuseLacking(k stream.ForeignKey) error {
	return fmt.Errorf("foreign key %s of table %s to table %s changes rows by cascade at the source, and the sink does not have it, so that these changes would be lost; "+
		"make the tables at the sink as they are at the source, from a new copy, or drop the key at the source: %w", k.Name, k.Child, k.Parent, stream.ErrUnusable)
}

// names are the tables that a dispatcher writes.
func (t *table) names(leader stream.Table) []stream.Table {
	if len(t.members) > 0 {
		return t.members
	}
	return []stream.Table{leader}
}

// find is the entry of a table, which may be that of its group, and the table that the entry is of; nil if there is none. The caller holds
// the lock.
func (m *Maintainer) find(name stream.Table) (stream.Table, *table) {
	if leader, ok := m.grouped[name]; ok {
		return leader, m.tables[leader]
	}
	return name, m.tables[name]
}

// known reports whether a table is replicated, alone or in a group. The caller holds the lock.
func (m *Maintainer) known(name stream.Table) bool {
	_, t := m.find(name)
	return t != nil
}

// notPast are those of some entries that may not have passed a DDL. It is for DDL that is not executed at the sink, and therefore not recorded
// there.
func (m *Maintainer) notPast(leaders []stream.Table, t *stream.Transaction) []stream.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(leaders, func(name stream.Table) bool { e := m.tables[name]; return e != nil && e.past(t.Position) })
}

// past reports whether a table is known to have passed a position. Its dispatcher may have begun after that position: the sink has recorded the
// position of the table, and the checkpoint at which the maintainer began may be older.
func (t *table) past(at stream.Position) bool {
	return t.floor >= at || t.phase == TableRunning && t.reached >= at
}

// forget removes an entry. The caller holds the lock.
func (m *Maintainer) forget(leader stream.Table) {
	if t := m.tables[leader]; t != nil {
		for _, name := range t.names(leader) {
			delete(m.grouped, name)
			delete(m.keyed, name)
		}
		for _, name := range t.watches { // those that exist are forgotten, too, or the tables that it is joined with do not change
			if !m.known(name) {
				delete(m.keyed, name)
			}
		}
	}
	delete(m.tables, leader)
}

// keptOf are the tables of some entries that a DDL neither ends nor names: foreign keys join them with tables that it names. It also reports whether there are foreign keys.
func (m *Maintainer) keptOf(leaders []stream.Table, d *stream.DDL) (kept []stream.Table, grouped bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := d.After()
	for _, leader := range leaders {
		t := m.tables[leader]
		if t == nil {
			continue
		}
		grouped = grouped || len(t.members) > 0 || len(t.watches) > 0
		for _, name := range t.names(leader) {
			if t.exists(name) && !d.Ends(name) && !slices.Contains(after, name) {
				kept = append(kept, name)
			}
		}
	}
	return kept, grouped
}

// exists reports whether a table of the entry exists: a key may refer to one that does not.
func (t *table) exists(name stream.Table) bool { return !slices.Contains(t.absent, name) }

// enter adds tables, those that keys join as groups. It returns ErrUnusable if a group is partly outside the filter. The caller holds the
// lock.
func (m *Maintainer) enter(fresh map[stream.Table]*table, keys []stream.ForeignKey, f stream.Filter) error {
	for _, group := range stream.KeyedGroups(keys) {
		if slices.ContainsFunc(group, func(name stream.Table) bool { return fresh[name] != nil }) {
			for _, name := range group {
				m.keyed[name] = group
			}
		}
	}
	for _, group := range stream.CascadeGroups(keys) {
		if !slices.ContainsFunc(group, func(name stream.Table) bool { return fresh[name] != nil }) {
			continue
		}
		of := slices.DeleteFunc(slices.Clone(keys), func(k stream.ForeignKey) bool { return !slices.Contains(group, k.Child) })
		if err := f.OutsideCascade(of); err != nil {
			return &refusedError{err}
		}
		all := &table{named: map[stream.Table]stream.Position{}}
		for _, name := range group {
			t := fresh[name]
			switch {
			case !f.Allows(name) || t == nil && m.known(name):
				continue
			case t == nil:
				all.absent = append(all.absent, name)
			case len(all.members) == len(all.absent):
				all.floor, all.from = t.floor, t.from
			default:
				all.floor, all.from = min(all.floor, t.floor), max(all.from, t.from)
			}
			all.named[name] = stream.AnySince // the sink may have it all the same
			if t != nil {
				all.named[name] = t.has
			}
			all.members = append(all.members, name)
			delete(fresh, name)
		}
		all.watches = slices.DeleteFunc(slices.Clone(m.keyed[all.members[0]]), func(name stream.Table) bool { return slices.Contains(all.members, name) })
		leader := all.members[slices.IndexFunc(all.members, all.exists)]
		m.tables[leader] = all
		for _, name := range all.members {
			m.grouped[name] = leader
		}
	}
	for name, t := range fresh {
		t.watches = slices.DeleteFunc(slices.Clone(m.keyed[name]), func(other stream.Table) bool { return other == name })
		m.tables[name] = t
	}
	return nil
}
