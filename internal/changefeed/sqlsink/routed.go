package sqlsink

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// routed is a sink at which tables have other names, or not all of their columns and rows. Whoever uses it speaks of tables by the names that
// they have at the source, and of all that they have there; the sink below it has the names at the sink, and what is not left out.
type routed struct {
	*Sink
	routes *route.Map
	omits  *omission.Map
	filter stream.Filter
}

var (
	_ stream.Sink      = (*routed)(nil)
	_ stream.GroupSink = (*routed)(nil)
	_ stream.Together  = (*routed)(nil)
	_ snapshot.Sink    = (*routed)(nil)
)

// Route makes a sink at which the tables inside a filter have other names, and lack what is left out.
func Route(s *Sink, routes *route.Map, omits *omission.Map, filter stream.Filter) stream.Sink {
	return &routed{Sink: s, routes: routes, omits: omits, filter: filter}
}

// Check implements stream.Sink.
func (s *routed) Check(ctx context.Context) error {
	if err := s.Sink.Check(ctx); err != nil {
		return err
	}
	folds, err := s.LowerCaseTableNames(ctx)
	if err != nil || folds == "0" {
		return err
	}
	return errors.Join(s.routes.Folded(), s.omits.Folded())
}

// Admit returns ErrUnusable if a table cannot have the name at the sink that it is given.
func (s *routed) Admit(t stream.Table) error { return s.routes.Check(t, s.filter) }

// Acquire implements stream.Sink. Rows of one table do not name it.
func (s *routed) Acquire(ctx context.Context, table stream.Identity, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	if err := s.routes.Check(table.Table, s.filter); err != nil {
		return nil, 0, err
	}
	w, at, err := s.acquireTable(ctx, s.target(table), epoch, start)
	if err != nil {
		return nil, 0, err
	}
	w.omits = s.omits.Of(table.Table)
	return w, at, nil
}

// target is the table at the sink that a table at the source is.
func (s *routed) target(t stream.Identity) stream.Identity {
	return s.routes.Target(t.Table).Since(t.Since)
}

// AcquireGroup implements stream.GroupSink.
func (s *routed) AcquireGroup(ctx context.Context, tables []stream.Identity, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	targets := make([]stream.Identity, len(tables))
	for i, t := range tables {
		targets[i] = s.target(t)
		if err := s.routes.Check(t.Table, s.filter); err != nil {
			return nil, 0, err
		}
		if s.omits.Of(t.Table).Rows() {
			return nil, 0, s.unusable("leave out: rows of table %s are left out, and foreign keys that cascade join it with others, so that rows may be changed that are not in the log; drop the keys or make them RESTRICT, or leave out no rows", t)
		}
	}
	w, at, err := s.acquireTables(ctx, targets, epoch, start)
	if err != nil {
		return nil, 0, err
	}
	for _, t := range tables {
		if m := w.members[s.routes.Target(t.Table)]; m != nil {
			m.omits = s.omits.Of(t.Table)
		}
	}
	return &routedGroup{w, s.routes}, at, nil
}

// routedGroup writes merged rows, every run of which names a table.
type routedGroup struct {
	stream.Writer
	routes *route.Map
}

// Write implements stream.Writer.
func (w *routedGroup) Write(ctx context.Context, rows []*stream.Rows, to stream.Position) error {
	named := make([]*stream.Rows, len(rows))
	for i, r := range rows {
		each := *r
		each.Runs = slices.Clone(r.Runs)
		for j := range each.Runs {
			each.Runs[j].Table = w.routes.Target(each.Runs[j].Table)
		}
		named[i] = &each
	}
	return w.Writer.Write(ctx, named, to)
}

// ExecuteDDL implements stream.Sink.
func (s *routed) ExecuteDDL(ctx context.Context, position stream.Position, ddl *stream.DDL, epoch stream.Epoch) error {
	for _, t := range ddl.After() {
		if s.filter.Allows(t) {
			if err := s.routes.Check(t, s.filter); err != nil {
				return fmt.Errorf("position %d: %w", position, err)
			}
		}
	}
	to, err := s.omits.DDL(ddl)
	if err == nil {
		to, err = s.routes.DDL(to, s.filter)
	}
	if err != nil {
		return fmt.Errorf("position %d: %w", position, err)
	}
	if to == nil {
		return nil
	}
	return s.Sink.ExecuteDDL(ctx, position, to, epoch)
}

// sources are the names at the source of tables at the sink. Tables that have none are left out: they are not of this changefeed.
func (s *routed) sources(tables []stream.Table, err error) ([]stream.Table, error) {
	var list []stream.Table
	for _, t := range tables {
		if from, ok := s.routes.Source(t, s.filter); ok {
			list = append(list, from)
		}
	}
	return list, err
}

// Known are the tables that this changefeed has written and that exist.
func (s *routed) Known(ctx context.Context) ([]stream.Table, error) {
	return s.sources(s.Sink.Known(ctx))
}

// Present are all tables that exist and that this changefeed may write.
func (s *routed) Present(ctx context.Context) ([]stream.Table, error) {
	return s.sources(s.Sink.Present(ctx))
}

// BaseTables are those of some tables that exist and are no sequences.
func (s *routed) BaseTables(ctx context.Context, names []stream.Table) ([]stream.Table, error) {
	return s.sources(s.Sink.BaseTables(ctx, s.routes.Targets(names)))
}

// Holders are which tables have the names that tables of this changefeed have had.
func (s *routed) Holders(ctx context.Context) (map[stream.Table]stream.Holder, error) {
	all, err := s.Sink.Holders(ctx)
	named := map[stream.Table]stream.Holder{}
	for t, h := range all {
		if from, ok := s.routes.Source(t, s.filter); ok {
			named[from] = h
		}
	}
	return named, err
}

// HoldersOf are which tables have some names.
func (s *routed) HoldersOf(ctx context.Context, names []stream.Table) (map[stream.Table]stream.Holder, error) {
	all, err := s.Sink.HoldersOf(ctx, s.routes.Targets(names))
	named := map[stream.Table]stream.Holder{}
	for _, t := range names {
		if h, ok := all[s.routes.Target(t)]; ok {
			named[t] = h
		}
	}
	return named, err
}

// TablePosition is the position that the sink has recorded for a table.
func (s *routed) TablePosition(ctx context.Context, t stream.Table) (at stream.Position, ok bool, err error) {
	return s.Sink.TablePosition(ctx, s.routes.Target(t))
}

// RecordPosition is the statement that records the position of a table that was copied.
func (s *routed) RecordPosition(t stream.Table) string {
	return s.Sink.RecordPosition(s.routes.Target(t))
}

// ForeignKeys implements stream.GroupSink. Keys between a table of this changefeed and another are left out, unless they cascade.
func (s *routed) ForeignKeys(ctx context.Context) ([]stream.ForeignKey, error) {
	keys, err := s.Sink.ForeignKeys(ctx)
	if err != nil {
		return nil, err
	}
	var list []stream.ForeignKey
	for _, k := range keys {
		child, in := s.routes.Source(k.Child, s.filter)
		parent, also := s.routes.Source(k.Parent, s.filter)
		switch {
		case in && also:
			k.Child, k.Parent = child, parent
			list = append(list, k)
		case in != also && k.Cascades():
			return nil, s.unusable("foreign key %s of table %s changes rows by cascade, and refers to table %s, and only one of them is a table of this changefeed; drop the key, or make it RESTRICT", k.Name, k.Child, k.Parent)
		}
	}
	return list, nil
}

// SaveSnapshotPlan implements snapshot.Sink.
func (s *routed) SaveSnapshotPlan(ctx context.Context, p *snapshot.Plan) error {
	to, err := s.omits.Plan(p)
	if err == nil {
		to, err = s.routes.Plan(to, s.filter)
	}
	if err != nil {
		return err
	}
	return s.Sink.SaveSnapshotPlan(ctx, to)
}

// MakeSnapshotTables implements snapshot.Sink.
func (s *routed) MakeSnapshotTables(ctx context.Context, f stream.Filter) error {
	return s.makeSnapshotTables(ctx, func(t stream.Table) bool {
		_, ok := s.routes.Source(t, f)
		return ok
	})
}
