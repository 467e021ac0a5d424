package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// state is the row of a table in the progress table.
type state struct {
	epoch    stream.Epoch
	position stream.Position
	// part is how many changes of a large transaction just after the position are there.
	part int
}

// partNow is the part that belongs to the position of a row. An earlier version moves the position and leaves part as it is.
const partNow = "IF(part_at = position, part, 0)"

const codeDuplicate = 1062

// Acquire makes an epoch the owner of a table. Reading the row for update waits for a transaction of the old owner to end; once the
// epoch is raised, the writes of that owner match no row.
func (s *Sink) Acquire(ctx context.Context, table stream.Table, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	w, at, err := s.acquireTable(ctx, table, epoch, start)
	if err != nil {
		return nil, 0, err
	}
	return w, at, nil
}

func (s *Sink) acquireTable(ctx context.Context, table stream.Table, epoch stream.Epoch, start stream.Position) (*writer, stream.Position, error) {
	var position stream.Position
	var part int
	var copying *snapshot.State
	err := s.retry(ctx, "acquire table "+table.String(), func() error {
		if _, err := s.prepare(ctx); err != nil {
			return err
		}
		if err := s.refuseTable(ctx, s.db, table, false); err != nil {
			return err
		}
		var err error
		if position, part, err = s.acquire(ctx, table, epoch, start); err != nil {
			return err
		}
		copying, err = s.snapshotState(ctx, s.db, table)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return &writer{sink: s, table: table, epoch: epoch, position: position, part: part, acquired: position, copying: copying}, position, nil
}

func (s *Sink) acquire(ctx context.Context, table stream.Table, epoch stream.Epoch, start stream.Position) (at stream.Position, part int, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, 0, err
	}
	defer tx.Rollback()
	if at, part, err = s.own(ctx, tx, table, epoch, start); err != nil {
		return 0, 0, err
	}
	if err := s.checkAdopted(ctx, tx); err != nil {
		return 0, 0, err
	}
	return at, part, tx.Commit()
}

// own makes an epoch the owner of a table when a transaction ends. The caller calls checkAdopted before that.
func (s *Sink) own(ctx context.Context, tx *sql.Tx, table stream.Table, epoch stream.Epoch, start stream.Position) (at stream.Position, part int, err error) {
	found, err := s.lock(ctx, tx, table)
	if err != nil {
		return 0, 0, err
	}
	if found == nil {
		if err := s.refuseShared(ctx, tx, table); err != nil {
			return 0, 0, err
		}
		return start, 0, s.insert(ctx, tx, table, epoch, start)
	}
	if found.epoch.Placement == released {
		if err := s.refuseReleased(ctx, tx, table); err != nil {
			return 0, 0, err
		}
	}
	switch found.epoch.Compare(epoch) {
	case 1:
		return 0, 0, s.notOwner(table, epoch, found)
	case -1:
		if err := s.raise(ctx, tx, table, epoch); err != nil {
			return 0, 0, err
		}
	}
	return found.position, found.part, nil
}

// lock reads the row of a table and keeps it from changing until the transaction ends; nil if there is none.
func (s *Sink) lock(ctx context.Context, tx *sql.Tx, table stream.Table) (*state, error) {
	st := &state{}
	err := tx.QueryRowContext(ctx, "SELECT placement, counter, position, "+partNow+" FROM "+s.progress+" WHERE changefeed = ? AND table_schema = ? AND table_name = ? FOR UPDATE",
		s.options.Changefeed, table.Schema, table.Name).Scan(&st.epoch.Placement, &st.epoch.Counter, &st.position, &st.part)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return st, err
}

func (s *Sink) insert(ctx context.Context, tx *sql.Tx, table stream.Table, epoch stream.Epoch, position stream.Position) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO "+s.progress+" (changefeed, table_schema, table_name, placement, counter, position) VALUES (?, ?, ?, ?, ?, ?)",
		s.options.Changefeed, table.Schema, table.Name, epoch.Placement, epoch.Counter, uint64(position))
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == codeDuplicate {
		return fmt.Errorf("the progress of table %s was created concurrently: %w", table, errConcurrent)
	}
	return err
}

func (s *Sink) raise(ctx context.Context, tx *sql.Tx, table stream.Table, epoch stream.Epoch) error {
	result, err := tx.ExecContext(ctx, "UPDATE "+s.progress+" SET placement = ?, counter = ? WHERE changefeed = ? AND table_schema = ? AND table_name = ? AND (placement < ? OR placement = ? AND counter < ?)",
		epoch.Placement, epoch.Counter, s.options.Changefeed, table.Schema, table.Name, epoch.Placement, epoch.Placement, epoch.Counter)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("the owner of table %s changed %d rows instead of one: %w", table, n, errors.Join(err, errConcurrent))
	}
	return nil
}

func (s *Sink) notOwner(table stream.Table, mine stream.Epoch, found *state) error {
	if found == nil {
		return fmt.Errorf("sink %s: table %s has no owner any more, epoch %s was its owner: %w", s.options.Address, table, mine, stream.ErrNotOwner)
	}
	return fmt.Errorf("sink %s: table %s belongs to epoch %s at position %d, not to epoch %s: %w", s.options.Address, table, found.epoch, found.position, mine, stream.ErrNotOwner)
}
