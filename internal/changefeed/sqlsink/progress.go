package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// state is the row of a table in the progress table.
type state struct {
	// since when the table has its name.
	since    stream.Position
	epoch    stream.Epoch
	position stream.Position
	// part is how many changes of a large transaction just after the position are there.
	part int
}

// Placements in the rows of tables that nobody may own.
const (
	// released is that of a table that was renamed out of the filter. It stays at the sink.
	released = -1
	// over is that of a table that was dropped or renamed, at the position in its row.
	over = -2
)

// isOver reports whether the newest row of a name shows that a table does not have the name any more.
func (st *state) isOver(since stream.Position) bool { return st != nil && st.holder().Past(since) }

// holder is the table that has the name of a row.
func (st *state) holder() stream.Holder {
	if st.epoch.Placement == over {
		return stream.Holder{Since: st.position, Over: true}
	}
	return stream.Holder{Since: st.since}
}

// partNow is the part that belongs to the position of a row. An earlier version moves the position and leaves part as it is.
const partNow = "IF(part_at = position, part, 0)"

// ofTable finds the row of a table, and ofName those of all tables of its name: there is one, because the next table of the name takes the place of
// the one before. That is all that anybody needs to know of an earlier one: whoever writes it late finds no row of it but a later one.
const (
	ofName  = " WHERE feed = ? AND table_schema = ? AND table_name = ?"
	ofTable = ofName + " AND since = ?"
)

const codeDuplicate = 1062

// Acquire makes an epoch the owner of a table. Reading the row for update waits for a transaction of the old owner to end; once the
// epoch is raised, the writes of that owner match no row.
func (s *Sink) Acquire(ctx context.Context, table stream.Identity, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	w, at, err := s.acquireTable(ctx, table, epoch, start)
	if err != nil {
		return nil, 0, err
	}
	return w, at, nil
}

func (s *Sink) acquireTable(ctx context.Context, table stream.Identity, epoch stream.Epoch, start stream.Position) (*writer, stream.Position, error) {
	var w *writer
	err := s.retry(ctx, "acquire table "+table.String(), func() error {
		if _, err := s.prepare(ctx); err != nil {
			return err
		}
		if err := s.refuseTable(ctx, s.db, table.Table, false); err != nil {
			return err
		}
		st, err := s.acquire(ctx, table, epoch, start)
		if err != nil {
			return err
		}
		w = s.writer(table.Table, st)
		w.copying, err = s.snapshotState(ctx, s.db, table.Table)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return w, w.position, nil
}

// writer is the writer of a table for the owner in its row.
func (s *Sink) writer(table stream.Table, st *state) *writer {
	return &writer{sink: s, table: table, since: st.since, epoch: st.epoch, position: st.position, part: st.part, acquired: st.position}
}

func (s *Sink) acquire(ctx context.Context, table stream.Identity, epoch stream.Epoch, start stream.Position) (*state, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	st, err := s.own(ctx, tx, table, epoch, start)
	if err != nil {
		return nil, err
	}
	if err := s.checkAdopted(ctx, tx); err != nil {
		return nil, err
	}
	return st, tx.Commit()
}

// own makes an epoch the owner of a table when a transaction ends, and returns its row as it is then. The caller calls checkAdopted before that.
func (s *Sink) own(ctx context.Context, tx *sql.Tx, table stream.Identity, epoch stream.Epoch, start stream.Position) (*state, error) {
	found, err := s.lock(ctx, tx, table.Table)
	if err != nil {
		return nil, err
	}
	if table.Since == stream.AnySince {
		if table.Since = 0; found != nil {
			table.Since = found.holder().Since
		}
	}
	switch {
	case found.isOver(table.Since):
		return nil, s.notOwner(table, epoch, found)
	case found == nil || found.since < table.Since:
		return s.begin(ctx, tx, found, table, epoch, start)
	case found.epoch.Placement == released:
		if err := s.refuseReleased(ctx, tx, table.Table); err != nil {
			return nil, err
		}
	case found.epoch.Placement > 0 && found.epoch.Counter == 0: // DDL has made the row
		if err := s.refuseShared(ctx, tx, table.Table); err != nil {
			return nil, err
		}
	}
	switch found.epoch.Compare(epoch) {
	case 1:
		return nil, s.notOwner(table, epoch, found)
	case -1:
		if err := s.raise(ctx, tx, table, epoch); err != nil {
			return nil, err
		}
	}
	found.epoch = epoch
	return found, nil
}

// begin makes the row of a table that has none, in the place of that of an earlier table of its name, if any. Everything up to the position of the
// earlier one is there: if that was dropped, the row was moved to the position of the DDL.
func (s *Sink) begin(ctx context.Context, tx *sql.Tx, earlier *state, table stream.Identity, epoch stream.Epoch, start stream.Position) (*state, error) {
	if err := s.refuseShared(ctx, tx, table.Table); err != nil {
		return nil, err
	}
	if earlier != nil {
		if earlier.epoch.Placement == released {
			if err := s.refuseReleased(ctx, tx, table.Table); err != nil {
				return nil, err
			}
		}
		start = max(start, earlier.position)
	}
	return &state{since: table.Since, epoch: epoch, position: start}, s.replace(ctx, tx, earlier, table, epoch, start)
}

// lock reads the row of the newest table of a name, and keeps rows of the name from changing until the transaction ends; nil if there is none.
func (s *Sink) lock(ctx context.Context, tx *sql.Tx, table stream.Table) (*state, error) {
	st := &state{}
	err := tx.QueryRowContext(ctx, "SELECT since, placement, counter, position, "+partNow+" FROM "+s.progress+ofName+" ORDER BY since DESC LIMIT 1 FOR UPDATE",
		s.options.Changefeed, table.Schema, table.Name).Scan(&st.since, &st.epoch.Placement, &st.epoch.Counter, &st.position, &st.part)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return st, err
}

// replace makes the row of a table, in the place of that of an earlier table of its name, if any.
func (s *Sink) replace(ctx context.Context, tx *sql.Tx, earlier *state, table stream.Identity, epoch stream.Epoch, position stream.Position) error {
	if earlier != nil {
		if _, err := tx.ExecContext(ctx, "DELETE FROM "+s.progress+ofName+" AND since < ?", s.options.Changefeed, table.Schema, table.Name, uint64(table.Since)); err != nil {
			return err
		}
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO "+s.progress+" (feed, table_schema, table_name, since, placement, counter, position) VALUES (?, ?, ?, ?, ?, ?, ?)",
		s.options.Changefeed, table.Schema, table.Name, uint64(table.Since), epoch.Placement, epoch.Counter, uint64(position))
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == codeDuplicate {
		return fmt.Errorf("the progress of table %s was created concurrently: %w", table, errConcurrent)
	}
	return err
}

func (s *Sink) raise(ctx context.Context, tx *sql.Tx, table stream.Identity, epoch stream.Epoch) error {
	result, err := tx.ExecContext(ctx, "UPDATE "+s.progress+" SET placement = ?, counter = ?"+ofTable+" AND (placement < ? OR placement = ? AND counter < ?)",
		epoch.Placement, epoch.Counter, s.options.Changefeed, table.Schema, table.Name, uint64(table.Since), epoch.Placement, epoch.Placement, epoch.Counter)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("the owner of table %s changed %d rows instead of one: %w", table, n, errors.Join(err, errConcurrent))
	}
	return nil
}

func (s *Sink) notOwner(table stream.Identity, mine stream.Epoch, found *state) error {
	switch {
	case found.isOver(table.Since):
		return fmt.Errorf("sink %s: the table that had the name %s since position %d does not have it any more: it was dropped or renamed, and epoch %s cannot write it: %w", s.options.Address, table, table.Since, mine, stream.ErrNotOwner)
	case found == nil || found.since < table.Since:
		return fmt.Errorf("sink %s: table %s has no owner any more, epoch %s was its owner: %w", s.options.Address, table, mine, stream.ErrNotOwner)
	}
	return fmt.Errorf("sink %s: table %s belongs to epoch %s at position %d, not to epoch %s: %w", s.options.Address, table, found.epoch, found.position, mine, stream.ErrNotOwner)
}
