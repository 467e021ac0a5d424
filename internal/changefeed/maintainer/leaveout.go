package maintainer

import (
	"context"
	"fmt"
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// definer is a source that knows how its tables are defined.
type definer interface {
	// Define returns the definitions of tables that exist.
	Define(ctx context.Context, tables []stream.Table) ([]snapshot.Definition, error)
}

// checkLeaveOut returns ErrUnusable, before the changefeed begins, if it cannot leave out of a table what it should. Later, DDL and rows are
// checked as they arrive, because the tables of the source may be ahead of those of the sink.
func (m *Maintainer) checkLeaveOut(ctx context.Context, source stream.Source) error {
	cf := m.Latest()
	if len(cf.Spec.LeaveOut) == 0 || cf.Status.StartPosition != nil {
		return nil
	}
	omits, err := omission.Parse(LeaveOut(cf.Spec.LeaveOut))
	if err != nil {
		return fmt.Errorf("%w: %w", stream.ErrUnusable, err)
	}
	from, ok := source.(definer)
	if !ok {
		return fmt.Errorf("spec.leaveOut: nothing can be left out of the tables of this source: %w", stream.ErrUnusable)
	}
	tables, _, err := source.Tables(ctx)
	if err != nil {
		return err
	}
	tables = slices.DeleteFunc(slices.Clone(tables), func(t stream.Table) bool { return !m.filter.Allows(t) || omits.Of(t) == nil })
	list, err := from.Define(ctx, tables)
	if err != nil {
		return err
	}
	for i := range list {
		if err := omits.Admit(&list[i]); err != nil {
			return err
		}
	}
	return nil
}
