package stream

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// ForeignKey is a foreign key of a table.
type ForeignKey struct {
	Name          string
	Child, Parent Table
	// Columns of the child, and those of the parent that they refer to.
	Columns, Referenced []string
	// OnDelete and OnUpdate: a delete, or an update of the columns that it refers to, changes rows of the child (CASCADE, SET NULL).
	// The log of the source does not have these changes.
	OnDelete, OnUpdate bool
}

// Cascades reports whether changes of the parent change rows of the child.
func (k *ForeignKey) Cascades() bool { return k.OnDelete || k.OnUpdate }

// CascadeGroups are the tables whose changes must be written in the order of the source, one by one: those that cascading foreign keys join,
// and those whose foreign keys are checked when such a key changes rows. Each group is sorted, and the groups are, too. A group may
// have one table, which refers to itself, and tables that do not exist: a key may refer to a table that is created later.
//
// A key that does not cascade is checked when the rows that it refers to are deleted or updated, when a cascade changes its own
// columns, and when an update of its table cascades: that may write its rows anew. Keys that are never checked join nothing: the rows
// that they are about may be written at different times.
func CascadeGroups(keys []ForeignKey) [][]Table {
	sets := disjoint{}
	cascading, updated := map[Table]bool{}, map[Table]bool{}
	for _, k := range keys {
		if k.Cascades() {
			sets.join(k.Child, k.Parent)
			cascading[k.Child], cascading[k.Parent] = true, true
			updated[k.Parent] = updated[k.Parent] || k.OnUpdate
		}
	}
	for _, k := range keys {
		if cascading[k.Parent] || updated[k.Child] || changedByCascade(keys, &k) {
			sets.join(k.Child, k.Parent)
		}
	}
	return sets.groups()
}

// KeyedGroups are the tables that foreign keys join, whether they cascade or not. DDL that adds, drops or renames one of the tables of such
// a group may change which of them must be written together, and none of the others.
func KeyedGroups(keys []ForeignKey) [][]Table {
	sets := disjoint{}
	for _, k := range keys {
		sets.join(k.Child, k.Parent)
	}
	return sets.groups()
}

// changedByCascade reports whether a cascade may change the columns of a foreign key.
func changedByCascade(keys []ForeignKey, k *ForeignKey) bool {
	return slices.ContainsFunc(keys, func(other ForeignKey) bool {
		return other.Child == k.Child && other.Cascades() && slices.ContainsFunc(other.Columns, func(c string) bool { return containsName(k.Columns, c) })
	})
}

// containsName reports whether a column is in a list. The case of names of columns makes no difference.
func containsName(list []string, name string) bool {
	return slices.ContainsFunc(list, func(each string) bool { return strings.EqualFold(each, name) })
}

// LackingCascades are those of the cascading keys of a source inside a filter that a sink does not have. The log of the source
// does not have the changes that they make, so nothing would make them at the sink.
func (f Filter) LackingCascades(source, sink []ForeignKey) []ForeignKey {
	var list []ForeignKey
	for _, k := range source {
		if k.Cascades() && f.Allows(k.Child) && f.Allows(k.Parent) && !slices.ContainsFunc(sink, k.does) {
			list = append(list, k)
		}
	}
	return list
}

// does reports whether another key makes all changes that this one makes.
func (k *ForeignKey) does(o ForeignKey) bool {
	return o.Child == k.Child && o.Parent == k.Parent && slices.EqualFunc(o.Columns, k.Columns, strings.EqualFold) && slices.EqualFunc(o.Referenced, k.Referenced, strings.EqualFold) &&
		(o.OnDelete || !k.OnDelete) && (o.OnUpdate || !k.OnUpdate)
}

// ReleasedCascade returns ErrUnusable if a rename takes tables out of the filter of which a cascading key joins one with one that stays: the
// changes that the key makes inside depend on what is outside from then on.
func (d *DDL) ReleasedCascade(releases []Table, keys []ForeignKey) error {
	for _, k := range keys {
		if k.Cascades() && slices.Contains(releases, k.Child) != slices.Contains(releases, k.Parent) {
			return d.Stops(fmt.Sprintf("foreign key %s changes rows by cascade, and of table %s and table %s one leaves the filter; drop the key first, or rename both", k.Name, k.Child, k.Parent))
		}
	}
	return nil
}

// OutsideCascade returns ErrUnusable if a cascading foreign key joins a table inside a filter and one outside: the changes that it makes
// inside depend on what is outside.
func (f Filter) OutsideCascade(keys []ForeignKey) error {
	for _, k := range keys {
		if k.Cascades() && f.Allows(k.Child) != f.Allows(k.Parent) {
			return outsideCascade(k.Name, k.Child, k.Parent)
		}
	}
	return nil
}

func outsideCascade(name string, child, parent Table) error {
	return fmt.Errorf("foreign key %s of table %s changes rows by cascade, and refers to table %s, and only one of the tables is inside the filter; "+
		"include both or none, or make the key RESTRICT: %w", name, child, parent, ErrUnusable)
}

// disjoint are disjoint sets of tables: each table leads to another of its set, or to itself.
type disjoint map[Table]Table

func (d disjoint) root(t Table) Table {
	up, ok := d[t]
	if !ok || up == t {
		d[t] = t
		return t
	}
	root := d.root(up)
	d[t] = root
	return root
}

func (d disjoint) join(a, b Table) { d[d.root(a)] = d.root(b) }

func (d disjoint) groups() [][]Table {
	byRoot := map[Table][]Table{}
	for t := range d {
		byRoot[d.root(t)] = append(byRoot[d.root(t)], t)
	}
	var list [][]Table
	for _, group := range byRoot {
		slices.SortFunc(group, CompareTables)
		list = append(list, group)
	}
	slices.SortFunc(list, func(a, b []Table) int { return CompareTables(a[0], b[0]) })
	return list
}

// CompareTables orders tables by schema, then by name.
func CompareTables(a, b Table) int {
	return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
}

// CompareIdentities orders tables by schema, then by name, then by since when they have it.
func CompareIdentities(a, b Identity) int {
	return cmp.Or(CompareTables(a.Table, b.Table), cmp.Compare(a.Since, b.Since))
}
