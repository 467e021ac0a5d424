package sqlsink

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// The checkpoint of the changefeed is in the progress table, too, as that of a table without a name. It is recorded there before
// anybody acknowledges it. So if it is lower than what was acknowledged, the sink went back: it was restored from a backup, or lost
// commits in a failover. The positions of tables cannot show that, because nothing is written for a table without changes.
//
// A server that crashes may lose its last commits and keep the checkpoint before them, while dispatchers believe that all they wrote is
// there. So the checkpoint also has the incarnation of the server, in the column counter: a number that every start of the server, and
// every other server, has anew. The checkpoint advances only in the incarnation that it was recorded in. The incarnation 0, which no server
// has, is recorded by an owner of a table that finds its writes lost: then everything is read again.
//
// Who becomes the owner of a table takes its position from the sink, and cannot tell whether it was later before. So nobody does, and no DDL
// is executed, until a maintainer has adopted the checkpoint in the incarnation that the server has: checkAdopted.
const ofCheckpoint = " WHERE feed = ? AND table_schema = '' AND table_name = '' AND since = 0"

const createIncarnation = `CREATE TABLE IF NOT EXISTS %s (id INT NOT NULL PRIMARY KEY, token BIGINT UNSIGNED NOT NULL)
	ENGINE=MEMORY COMMENT='empty after a restart, so that ebb notices one'`

// incarnationNow is the incarnation: a digest of a random number that the server forgets when it ends, and of what tells it from a server
// that has replicated that number.
func (s *Sink) incarnationNow() string {
	return "(SELECT CAST(CONV(LEFT(SHA2(CONCAT_WS('/', token, @@server_id, @@hostname, @@port), 256), 15), 16, 10) AS SIGNED) FROM " + s.incarnation + " WHERE id = 1)"
}

// Incarnation is the incarnation of the server.
func (s *Sink) Incarnation(ctx context.Context) (n int64, err error) {
	if _, err := s.prepare(ctx); err != nil {
		return 0, err
	}
	var token [8]byte
	if _, err := rand.Read(token[:]); err != nil {
		return 0, err
	}
	if _, err := s.db.ExecContext(ctx, "INSERT IGNORE INTO "+s.incarnation+" VALUES (1, ?)", binary.BigEndian.Uint64(token[:])>>1); err != nil {
		return 0, s.wrap("record that the server has started", err)
	}
	err = s.db.QueryRowContext(ctx, "SELECT "+s.incarnationNow()).Scan(&n)
	return n, s.wrap("read when the server has started", err)
}

// Checkpoint is the checkpoint that the sink has; nil if it has none.
func (s *Sink) Checkpoint(ctx context.Context) (*stream.Checkpoint, error) {
	if _, err := s.prepare(ctx); err != nil {
		return nil, err
	}
	c := &stream.Checkpoint{}
	err := s.db.QueryRowContext(ctx, "SELECT position, counter, gtid FROM "+s.progress+ofCheckpoint, s.options.Changefeed).Scan(&c.Position, &c.Incarnation, &c.Transaction)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return c, s.wrap("read the checkpoint", err)
}

// AdoptCheckpoint records the checkpoint at which the changefeed continues, which may be before the one that the sink has, and the
// incarnation in which it does. found is the checkpoint that the sink had when that was decided; nil if it had none. It returns
// ErrWentBack if the sink has another one now, or if the incarnation is over.
func (s *Sink) AdoptCheckpoint(ctx context.Context, found *stream.Checkpoint, c stream.Checkpoint) error {
	if _, err := s.prepare(ctx); err != nil {
		return err
	}
	if adopted, err := s.adopt(ctx, found, c); err != nil {
		return s.wrap("save the checkpoint", err)
	} else if !adopted {
		return fmt.Errorf("sink %s: its checkpoint changed after it was read: %w", s.options.Address, stream.ErrWentBack)
	}
	now, err := s.Incarnation(ctx)
	if err == nil && now != c.Incarnation {
		err = fmt.Errorf("sink %s was started again: %w", s.options.Address, stream.ErrWentBack)
	}
	return err
}

// adopt returns false if the sink does not have the checkpoint that was found.
func (s *Sink) adopt(ctx context.Context, found *stream.Checkpoint, c stream.Checkpoint) (bool, error) {
	if found == nil {
		_, err := s.db.ExecContext(ctx, "INSERT INTO "+s.progress+" (feed, table_schema, table_name, placement, counter, position, gtid) VALUES (?, '', '', 0, ?, ?, ?)",
			s.options.Changefeed, c.Incarnation, uint64(c.Position), c.Transaction)
		var e *mysql.MySQLError
		if errors.As(err, &e) && e.Number == codeDuplicate {
			return false, nil
		}
		return true, err
	}
	result, err := s.db.ExecContext(ctx, "UPDATE "+s.progress+" SET counter = ?, position = ?, gtid = ?"+ofCheckpoint+" AND position = ? AND counter = ?",
		c.Incarnation, uint64(c.Position), c.Transaction, s.options.Changefeed, uint64(found.Position), found.Incarnation)
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	return n == 1, err
}

// checkAdopted returns ErrWentBack unless a maintainer has adopted the checkpoint in the incarnation that the server has now. It keeps the
// checkpoint as it is until the transaction ends. Whoever needs locks of tables takes them first, as an owner does that sets it back.
func (s *Sink) checkAdopted(ctx context.Context, tx *sql.Tx) error {
	var adopted sql.NullBool // NULL if the server has been started and nobody has asked for its incarnation
	err := tx.QueryRowContext(ctx, "SELECT counter = "+s.incarnationNow()+" FROM "+s.progress+ofCheckpoint+" LOCK IN SHARE MODE", s.options.Changefeed).Scan(&adopted)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if !adopted.Bool {
		return fmt.Errorf("sink %s: it was started again or has lost commits, and its maintainer has not yet decided from where its tables are read: %w", s.options.Address, stream.ErrWentBack)
	}
	return nil
}

// SaveCheckpoint records a checkpoint after an earlier one. It returns ErrWentBack if the sink does not have that any more, or if the
// incarnation in which it was recorded is over.
func (s *Sink) SaveCheckpoint(ctx context.Context, before stream.Position, c stream.Checkpoint) error {
	if _, err := s.prepare(ctx); err != nil {
		return err
	}
	result, err := s.db.ExecContext(ctx, "UPDATE "+s.progress+" SET position = GREATEST(position, ?), gtid = ?"+ofCheckpoint+" AND position >= ? AND counter = ? AND counter = "+s.incarnationNow(),
		uint64(c.Position), c.Transaction, s.options.Changefeed, uint64(before), c.Incarnation)
	if err != nil {
		return s.wrap("save the checkpoint", err)
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("sink %s: it was started again, or its checkpoint is before %d, which was recorded: %w", s.options.Address, before, errors.Join(err, stream.ErrWentBack))
	}
	return nil
}
