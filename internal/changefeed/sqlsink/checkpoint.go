package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// The checkpoint of the changefeed is in the progress table, too, as that of a table without a name. It is recorded there before
// anybody acknowledges it. So if it is lower than what was acknowledged, the sink went back: it was restored from a backup, or lost
// commits in a failover. The positions of tables cannot show that, because nothing is written for a table without changes.
const ofCheckpoint = " WHERE changefeed = ? AND table_schema = '' AND table_name = ''"

// Checkpoint is the checkpoint that the sink has; ok is false if it has none.
func (s *Sink) Checkpoint(ctx context.Context) (position stream.Position, ok bool, err error) {
	if _, err := s.prepare(ctx); err != nil {
		return 0, false, err
	}
	err = s.db.QueryRowContext(ctx, "SELECT position FROM "+s.progress+ofCheckpoint, s.options.Changefeed).Scan(&position)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, false, nil
	}
	return position, err == nil, s.wrap("read the checkpoint", err)
}

// SaveCheckpoint records a checkpoint after an earlier one, which is 0 if the sink has none. It returns ErrWentBack if the sink does not
// have that any more.
func (s *Sink) SaveCheckpoint(ctx context.Context, before, position stream.Position) error {
	if _, err := s.prepare(ctx); err != nil {
		return err
	}
	if before == 0 {
		_, err := s.db.ExecContext(ctx, "INSERT INTO "+s.progress+" (changefeed, table_schema, table_name, placement, counter, position) VALUES (?, '', '', 0, 0, ?) ON DUPLICATE KEY UPDATE position = GREATEST(position, VALUES(position))",
			s.options.Changefeed, uint64(position))
		return s.wrap("save the checkpoint", err)
	}
	result, err := s.db.ExecContext(ctx, "UPDATE "+s.progress+" SET position = GREATEST(position, ?)"+ofCheckpoint+" AND position >= ?", uint64(position), s.options.Changefeed, uint64(before))
	if err != nil {
		return s.wrap("save the checkpoint", err)
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("sink %s: its checkpoint is before %d, which was recorded: %w", s.options.Address, before, errors.Join(err, stream.ErrWentBack))
	}
	return nil
}
