package maintainer

import (
	"context"
	"fmt"
	"slices"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// decideFilter decides which filter is in effect: the one of the spec when the changefeed starts for the first time or was stopped, and
// else the one that it had. So a changed filter does not take effect during a move, for some tables and not for others.
func (m *Maintainer) decideFilter() (err error) {
	cf := m.Latest()
	text, had := cf.Spec.Filter, cf.Status.Filter
	m.filterBefore = nil
	switch {
	case had == nil:
	case !had.Stopped:
		text = had.Patterns
	case !slices.Equal(had.Patterns, text):
		before := stream.Filter(had.Patterns)
		m.filterBefore = &before
	}
	if m.filter, err = stream.ParseFilter(text); err != nil {
		return fmt.Errorf("%w: %w", stream.ErrUnusable, err)
	}
	return nil
}

// effectiveFilter is the filter for the status.
func (m *Maintainer) effectiveFilter() *v1alpha1.ChangefeedFilter {
	return &v1alpha1.ChangefeedFilter{Patterns: m.filter, Pending: !slices.Equal(m.filter, m.Latest().Spec.Filter)}
}

// positioner is a sink that knows the position of each table.
type positioner interface {
	// TablePosition is the position that a table is at; ok is false if it has none.
	TablePosition(ctx context.Context, t stream.Table) (at stream.Position, ok bool, err error)
	// RecordPosition is the statement that records one.
	RecordPosition(t stream.Table) string
}

// checkAdded returns ErrUnusable if the filter has added a table of the source that has rows which the sink may lack: the position of
// its copy must be recorded at the sink, and not be before the checkpoint.
func (m *Maintainer) checkAdded(ctx context.Context, sink stream.Sink, tables []stream.Table) error {
	p, ok := sink.(positioner)
	if !ok || m.filterBefore == nil {
		return nil
	}
	for _, t := range tables {
		if !m.filter.Allows(t) || m.filterBefore.Allows(t) {
			continue
		}
		at, known, err := p.TablePosition(ctx, t)
		switch {
		case err != nil:
			return err
		case !known:
			return fmt.Errorf("table %s was added by the filter, and the sink does not have its rows; copy it at position %d or later, record the position of the copy by %s at the sink, and resume; or create another changefeed for it: %w",
				t, m.checkpoint, p.RecordPosition(t), stream.ErrUnusable)
		case at < m.checkpoint:
			return fmt.Errorf("table %s was added by the filter, and is at position %d at the sink, which is before the checkpoint %d; copy it again, and record the position of the copy by %s at the sink: %w",
				t, at, m.checkpoint, p.RecordPosition(t), stream.ErrUnusable)
		}
	}
	return nil
}
