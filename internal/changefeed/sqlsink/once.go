package sqlsink

import (
	"context"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
)

// Statements around a transaction of several tables. A table that somebody has locked must not hold up the others for long: the
// transaction fails, and the tables are written one by one.
const (
	waitBriefly   = "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1;"
	waitAsUsually = ";SET SESSION innodb_lock_wait_timeout = DEFAULT, lock_wait_timeout = DEFAULT"
)

// applyAtOnce sends everything but the COMMIT as one message, and so waits for the server twice rather than for each statement. The
// batches are of different tables, in the order of their keys in the progress table, and are written in one transaction.
// If anything fails it is rolled back, and each batch is applied statement by statement, which finds the cause.
func (s *Sink) applyAtOnce(ctx context.Context, list []*batch) (done bool, err error) {
	text, ok := s.message(list)
	if !ok {
		return false, nil
	}
	commit, rollback := "COMMIT", "ROLLBACK"
	if len(list) > 1 {
		commit, rollback = commit+waitAsUsually, rollback+waitAsUsually
	}
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	fired := false
	err = conn.Raw(func(c any) error {
		session, ok := c.(driver.ExecerContext)
		if !ok {
			return fmt.Errorf("cannot execute statements on a connection of type %T", c)
		}
		result, err := session.ExecContext(ctx, text, nil)
		if err == nil && moved(list, result) {
			var failed error
			if hasStatements(list) {
				fired, failed = triggersFired(ctx, c)
			}
			if failed != nil || fired {
				return driver.ErrBadConn // the server rolls back when the session ends
			}
			if _, err := session.ExecContext(ctx, commit, nil); err != nil {
				for _, b := range list {
					b.unsure = true
				}
				if len(list) > 1 {
					return driver.ErrBadConn // the session may still wait briefly
				}
				return err
			}
			done = true
			return nil
		}
		if _, failed := session.ExecContext(ctx, rollback, nil); failed != nil {
			return driver.ErrBadConn // the server rolls back when the session ends
		}
		if err != nil && transient(err) {
			return err
		}
		for _, b := range list {
			b.refused = err
		}
		return nil
	})
	if fired && len(list) == 1 {
		list[0].fired = true
		return false, s.firedTrigger(ctx, list[0].writer.table)
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

func hasStatements(list []*batch) bool {
	for _, b := range list {
		if len(b.statements) > 0 || b.group != nil {
			return true
		}
	}
	return false
}

// moved reports whether the position of every table was set and all other statements were executed.
func moved(list []*batch, result driver.Result) bool {
	counts, ok := result.(mysql.Result)
	if !ok {
		return false
	}
	first, all := 1, 1+len(list) // the first is of BEGIN, those after it of moving the positions
	if len(list) > 1 {
		first, all = first+1, all+1 // the first is of waitBriefly
	}
	for _, b := range list {
		all += len(b.statements)
	}
	if len(groups(list)) > 0 {
		all++ // BINLOG
	}
	affected := counts.AllRowsAffected()
	if len(affected) != all {
		return false
	}
	for i := range list {
		if affected[first+i] != 1 {
			return false
		}
	}
	return true
}

// message is a transaction up to its COMMIT, unless it is too long, or has statements whose affected rows have to be checked. It
// locks the positions of all tables before any row, so that two transactions of the same tables wait for each other rather than deadlock.
func (s *Sink) message(list []*batch) (string, bool) {
	moves := make([]byte, 0, moveLength*len(list))
	for _, b := range list {
		moves = b.appendMove(append(moves, ';'))
	}
	length := len(waitBriefly) + len("BEGIN") + len(moves)
	for _, b := range list {
		for _, st := range b.statements {
			if st.rows != 0 {
				return "", false
			}
			length += 1 + len(st.text)
		}
	}
	forwarded := groups(list)
	if len(forwarded) > 0 {
		length += 1 + rowevent.StatementLength(forwarded)
	}
	if length > s.limit() {
		return "", false
	}
	var text strings.Builder
	text.Grow(length)
	if len(list) > 1 {
		text.WriteString(waitBriefly)
	}
	text.WriteString("BEGIN")
	text.Write(moves)
	for _, b := range list {
		for _, st := range b.statements {
			text.WriteByte(';')
			text.WriteString(st.text)
		}
	}
	if len(forwarded) > 0 {
		text.WriteByte(';')
		rowevent.WriteStatement(&text, forwarded)
	}
	return text.String(), true
}

// moveLength is about how long the statement is that moves a position.
const moveLength = 384

// limit is how long a message may be.
func (s *Sink) limit() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return 0
	}
	return s.server.packet / 2
}
