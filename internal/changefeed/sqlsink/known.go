package sqlsink

import (
	"context"
	"fmt"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Known are the tables that this changefeed has written and that are there. A table that the source has renamed or dropped
// since is among them until its definition has come to the sink.
func (s *Sink) Known(ctx context.Context) ([]stream.Table, error) {
	if _, err := s.prepare(ctx); err != nil {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, "SELECT p.table_schema, p.table_name FROM "+s.progress+" p JOIN information_schema.tables t"+
		" ON t.table_schema = p.table_schema AND t.table_name = p.table_name WHERE p.changefeed = ?", s.options.Changefeed)
	if err != nil {
		return nil, fmt.Errorf("sink %s: list the tables that were written: %w", s.options.Address, err)
	}
	defer rows.Close()
	var list []stream.Table
	for rows.Next() {
		var t stream.Table
		if err := rows.Scan(&t.Schema, &t.Name); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	return list, rows.Err()
}
