package stream

import "slices"

// Run are consecutive changes of one table in the order of the source.
type Run struct {
	// First is the index of its first change. In rows of one table it counts from the beginning of these rows; in merged rows from the
	// beginning of the transaction.
	First int
	// Order of the run among those of all tables of the transaction.
	Order int
	// Unchecked: the source did not check foreign keys, so that nothing cascaded.
	Unchecked bool
	// Table and Schema are set in merged rows only.
	Table  Table
	Schema *Schema
}

// Merge merges what a transaction changed in the tables of a group into rows of one of them, the leader, with all changes in the order of
// the source. It returns nil if nothing was changed. Rows that cannot be read make the merged ones so.
func (t *Transaction) Merge(leader Table, group []Table) *Rows {
	merged := &Rows{Position: t.Position, At: t.At, Table: leader}
	for _, table := range group {
		merged.Before += t.Earlier[table]
	}
	type part struct {
		*Run
		rows *Rows
		to   int
	}
	var parts []part
	found := false
	for _, rows := range t.Rows {
		if !slices.Contains(group, rows.Table) {
			continue
		}
		found = true
		if rows.DDL != nil {
			return &Rows{Position: t.Position, At: t.At, Table: leader, DDL: rows.DDL}
		}
		if err := rows.Decode(); err != nil {
			return &Rows{Position: t.Position, At: t.At, Table: leader, DDL: &DDL{Kind: UnreadableRows, Tables: []Table{rows.Table}, Statement: err.Error()}}
		}
		merged.Bytes += rows.Bytes
		runs := rows.Runs
		if len(runs) == 0 {
			runs = []Run{{}}
		}
		for i := range runs {
			to := len(rows.Changes)
			if i+1 < len(runs) {
				to = runs[i+1].First
			}
			parts = append(parts, part{&runs[i], rows, to})
		}
	}
	if !found {
		return nil
	}
	slices.SortStableFunc(parts, func(a, b part) int { return a.Order - b.Order })
	for _, p := range parts {
		merged.Runs = append(merged.Runs, Run{First: merged.Before + len(merged.Changes), Order: p.Order, Unchecked: p.Unchecked, Table: p.rows.Table, Schema: p.rows.Schema})
		merged.Changes = append(merged.Changes, p.rows.Changes[p.First:p.to]...)
	}
	merged.More = t.More
	return merged
}

// EachRun calls do with every run of merged rows and its changes. Those that Unwritten has left out are not among them.
func (r *Rows) EachRun(do func(run *Run, changes []Change) error) error {
	for i := range r.Runs {
		from, to := r.Runs[i].First-r.Before, len(r.Changes)
		if i+1 < len(r.Runs) {
			to = r.Runs[i+1].First - r.Before
		}
		if from, to = max(from, 0), max(to, 0); from < to {
			if err := do(&r.Runs[i], r.Changes[from:to]); err != nil {
				return err
			}
		}
	}
	return nil
}
