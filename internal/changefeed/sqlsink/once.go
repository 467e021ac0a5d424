package sqlsink

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// applyAtOnce sends everything but the COMMIT as one message, and so waits for the server twice rather than for each statement.
// If anything fails it is rolled back, and the batch is applied statement by statement, which finds the cause.
func (b *batch) applyAtOnce(ctx context.Context) (done bool, err error) {
	text, ok := b.message()
	if !ok {
		return false, nil
	}
	conn, err := b.writer.sink.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	err = conn.Raw(func(c any) error {
		session, ok := c.(driver.ExecerContext)
		if !ok {
			return fmt.Errorf("cannot execute statements on a connection of type %T", c)
		}
		result, err := session.ExecContext(ctx, text, nil)
		if err == nil && b.moved(result) {
			var failed error
			if len(b.statements) > 0 {
				b.fired, failed = triggersFired(ctx, c)
			}
			if failed != nil || b.fired {
				return driver.ErrBadConn // the server rolls back when the session ends
			}
			if _, err := session.ExecContext(ctx, "COMMIT", nil); err != nil {
				b.unsure = true
				return err
			}
			done = true
			return nil
		}
		if _, failed := session.ExecContext(ctx, "ROLLBACK", nil); failed != nil {
			return driver.ErrBadConn // the server rolls back when the session ends
		}
		if err != nil && transient(err) {
			return err
		}
		return nil
	})
	if b.fired {
		return false, b.writer.sink.firedTrigger(ctx, b.writer.table)
	}
	return done, err
}

// triggersFired reports whether a trigger was executed in a session. Sessions that write rows execute nothing else, so that there must
// not be any. The transaction locks the table against CREATE TRIGGER until it ends.
func triggersFired(ctx context.Context, session any) (bool, error) {
	q, ok := session.(driver.QueryerContext)
	if !ok {
		return false, fmt.Errorf("cannot query a connection of type %T", session)
	}
	rows, err := q.QueryContext(ctx, "SHOW SESSION STATUS LIKE 'Executed_triggers'", nil)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	values := make([]driver.Value, len(rows.Columns()))
	if err := rows.Next(values); err != nil {
		return false, fmt.Errorf("the server has no status Executed_triggers: %w", err)
	}
	count, _ := values[len(values)-1].([]byte)
	return string(count) != "0", nil
}

// moved reports whether the position was set and all other statements were executed.
func (b *batch) moved(result driver.Result) bool {
	counts, ok := result.(mysql.Result)
	if !ok {
		return false
	}
	affected := counts.AllRowsAffected() // the first is of BEGIN, the second of moving the position
	return len(affected) == 2+len(b.statements) && affected[1] == 1
}

// message is the batch up to its COMMIT, unless it is too long, or has statements whose affected rows have to be checked.
func (b *batch) message() (string, bool) {
	var text strings.Builder
	text.WriteString("BEGIN;")
	text.WriteString(b.moveText())
	for _, st := range b.statements {
		if st.rows != 0 || text.Len()+len(st.text) > b.writer.sink.limit() {
			return "", false
		}
		text.WriteByte(';')
		text.WriteString(st.text)
	}
	return text.String(), true
}

// limit is how long a message may be.
func (s *Sink) limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return 0
	}
	return s.server.packet / 2
}
