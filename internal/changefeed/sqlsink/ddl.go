package sqlsink

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// ExecuteDDL executes a definition once. It cannot share a transaction with its progress, so it is done in steps, any of which
// may be the last that a process takes:
//
//	GET_LOCK of every name ──▶ intent, with a digest of how it was before ──▶ the statement ──▶ done
//
// Whoever comes next takes the locks, which proves that the session of the one before is gone: a statement that waits
// in a dead owner's session could run at any later time. Then the digest tells whether the statement ran: unchanged, it is
// run; changed, it is done. Statements that may as well run twice, because nothing passes the barrier before they are
// done, are simply run again: TRUNCATE, DROP, CREATE OR REPLACE.
//
// When it is done, the progress of tables that it made, dropped or renamed is brought to its position, so that who
// acquires such a name later does not start in the life of an earlier table of that name.
//
// Of definitions that concern no table only schemas and sequences are executed. Views, triggers, events, routines and
// users are not: triggers and events would change rows that arrive anyway, the others are no data.
func (s *Sink) ExecuteDDL(ctx context.Context, position stream.Position, ddl *stream.DDL, epoch stream.Epoch) error {
	text := body(ddl.Statement)
	if ddl.Kind == stream.OtherDDL && !isExecutedOther(text) {
		return nil
	}
	d := &definer{sink: s, position: position, ddl: ddl, epoch: epoch, text: text}
	return s.again(ctx, fmt.Sprintf("execute the definition at position %d (%s)", position, brief(text)), func() error {
		if _, err := s.prepare(ctx); err != nil {
			return err
		}
		return d.try(ctx)
	})
}

// definer is one definition that is to be executed.
type definer struct {
	sink     *Sink
	position stream.Position
	ddl      *stream.DDL
	epoch    stream.Epoch
	text     string

	conn *sql.Conn
	// again: an earlier attempt, of this process or another, may have executed the statement.
	again bool
}

// try goes through the steps in one session, which does not outlive them: it holds locks and strange settings.
func (d *definer) try(ctx context.Context) error {
	conn, err := d.sink.db.Conn(ctx)
	if err != nil {
		return err
	}
	d.conn = conn
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		conn.Close()
	}()
	if err := d.lock(ctx); err != nil {
		return err
	}
	run, err := d.intend(ctx)
	if err != nil || run == nothing {
		return err
	}
	if run == execute {
		if err := d.execute(ctx); err != nil {
			return err
		}
	}
	return d.finish(ctx)
}

// lock takes the lock of every name that is concerned, in one order, so that two definitions cannot wait for each other.
func (d *definer) lock(ctx context.Context) error {
	// A session whose client has vanished gives its locks up this soon after its statement.
	if _, err := d.conn.ExecContext(ctx, "SET SESSION wait_timeout = 10"); err != nil {
		return err
	}
	for _, lock := range d.locks() {
		for {
			var got sql.NullInt64
			if err := d.conn.QueryRowContext(ctx, "SELECT GET_LOCK(?, 2)", lock).Scan(&got); err != nil {
				return err
			}
			if got.Int64 == 1 {
				break
			}
			d.sink.log.Info("waiting for the session of another owner to end", "position", d.position, "statement", brief(d.text))
		}
	}
	return nil
}

// locks are the names of the locks: short, whatever the tables are called.
func (d *definer) locks() []string {
	var locks []string
	for _, t := range slices.Concat(d.ddl.Tables, d.ddl.Becomes) {
		locks = append(locks, lockName(t.String()))
	}
	if len(locks) == 0 {
		locks = append(locks, lockName(d.ddl.Schema))
	}
	slices.Sort(locks)
	return slices.Compact(locks)
}

func lockName(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "ebb:" + hex.EncodeToString(sum[:20])
}

// step is what is left to do.
type step int

const (
	nothing step = iota // it is done
	execute
	finish // it was executed, which only has to be noted
)

// intend notes the intent, or finds out how far an earlier one came.
func (d *definer) intend(ctx context.Context) (step, error) {
	digest, err := d.digest(ctx)
	if err != nil {
		return nothing, err
	}
	tx, err := d.conn.BeginTx(ctx, nil)
	if err != nil {
		return nothing, err
	}
	defer tx.Rollback()
	var found stream.Epoch
	var before string
	var done bool
	err = tx.QueryRowContext(ctx, "SELECT placement, counter, digest, done FROM "+d.sink.intents+" WHERE changefeed = ? AND position = ? FOR UPDATE",
		d.sink.options.Changefeed, uint64(d.position)).Scan(&found.Placement, &found.Counter, &before, &done)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+d.sink.intents+" (changefeed, position, placement, counter, digest, done, statement) VALUES (?, ?, ?, ?, ?, FALSE, ?)",
			d.sink.options.Changefeed, uint64(d.position), d.epoch.Placement, d.epoch.Counter, digest, d.ddl.Statement); err != nil {
			return nothing, err
		}
		return execute, tx.Commit()
	case err != nil:
		return nothing, err
	case done:
		return nothing, nil
	case found.Compare(d.epoch) > 0:
		return nothing, fmt.Errorf("sink %s: the definition at position %d was taken over by epoch %s from epoch %s: %w", d.sink.options.Address, d.position, found, d.epoch, stream.ErrNotOwner)
	}
	d.again = true
	if _, err := tx.ExecContext(ctx, "UPDATE "+d.sink.intents+" SET placement = ?, counter = ? WHERE changefeed = ? AND position = ?",
		d.epoch.Placement, d.epoch.Counter, d.sink.options.Changefeed, uint64(d.position)); err != nil {
		return nothing, err
	}
	if digest == before || d.repeatable() {
		return execute, tx.Commit()
	}
	return finish, tx.Commit()
}

var orReplace = regexp.MustCompile(`(?is)^\s*CREATE\s+OR\s+REPLACE\b`)

// repeatable says that the statement may run twice.
func (d *definer) repeatable() bool {
	switch d.ddl.Kind {
	case stream.TruncateTable, stream.DropTable:
		return true
	case stream.OtherDDL:
		return dropsSchema.MatchString(d.text)
	}
	return orReplace.MatchString(d.text)
}

// execute runs the statement in a session that is like the one at the source.
func (d *definer) execute(ctx context.Context) error {
	text := d.text
	if d.again && d.ddl.Kind == stream.DropTable {
		text = dropIfThere(d.ddl.Tables) // some of them may be gone
	}
	if err := d.imitate(ctx); err != nil {
		return err
	}
	_, err := d.conn.ExecContext(ctx, text)
	if d.again && d.ddl.Kind == stream.OtherDDL && alreadySo(err) {
		return nil
	}
	if err != nil && !transient(err) && ctx.Err() == nil {
		return fmt.Errorf("sink %s: the definition at position %d fails at the sink; make the sink's tables equal to the source's before it, or execute it by hand and mark it done in %s: %s: %w (%w)",
			d.sink.options.Address, d.position, d.sink.intents, brief(d.text), stream.ErrUnusable, err)
	}
	return err
}

func dropIfThere(tables []stream.Table) string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = full(t)
	}
	return "DROP TABLE IF EXISTS " + strings.Join(names, ", ")
}

// alreadySo: a schema or sequence that was to be made is there, or one that was to be dropped is not.
func alreadySo(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1007, 1008, 1050, 1051, 4091}, e.Number)
}

// codeUnknownSchema: there is no such schema.
const codeUnknownSchema = 1049

// imitate sets the session as it was at the source, and goes to the schema in which names are meant if there is one.
func (d *definer) imitate(ctx context.Context) error {
	if d.ddl.Schema != "" {
		_, err := d.conn.ExecContext(ctx, "USE "+name(d.ddl.Schema))
		var e *mysql.MySQLError
		if err != nil && !(errors.As(err, &e) && e.Number == codeUnknownSchema) {
			return err
		}
	}
	if _, err := d.conn.ExecContext(ctx, "SET NAMES utf8mb4"); err != nil {
		return err
	}
	set := settings(d.ddl.Statement)
	if set == "" {
		return nil
	}
	_, err := d.conn.ExecContext(ctx, "SET "+set)
	return err
}

// finish notes that it is done, and moves the progress of names that begin or end with it.
func (d *definer) finish(ctx context.Context) error {
	// The statement's session is set up like the source's; this is ours again.
	if _, err := d.conn.ExecContext(ctx, "SET NAMES binary"); err != nil {
		return err
	}
	if _, err := d.conn.ExecContext(ctx, "SET sql_mode='"+sqlMode+"', time_zone='+00:00'"); err != nil {
		return err
	}
	tx, err := d.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	result, err := tx.ExecContext(ctx, "UPDATE "+d.sink.intents+" SET done = TRUE WHERE changefeed = ? AND position = ? AND placement = ? AND counter = ?",
		d.sink.options.Changefeed, uint64(d.position), d.epoch.Placement, d.epoch.Counter)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("sink %s: the definition at position %d was taken over from epoch %s: %w", d.sink.options.Address, d.position, d.epoch, errors.Join(err, stream.ErrNotOwner))
	}
	if err := d.movePositions(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// movePositions brings names to where their present life begins or their last one ends. What was just made may come with
// rows of the same position, so it starts just before.
func (d *definer) movePositions(ctx context.Context, tx *sql.Tx) error {
	where, to := "", uint64(d.position)
	args := []any{}
	switch {
	case d.ddl.Kind == stream.CreateTable:
		to--
		fallthrough
	case d.ddl.Kind == stream.DropTable, d.ddl.Kind == stream.RenameTable:
		for _, t := range slices.Concat(d.ddl.Tables, d.ddl.Becomes) {
			where += " OR table_schema = ? AND table_name = ?"
			args = append(args, t.Schema, t.Name)
		}
	case dropsSchema.MatchString(d.text):
		where, args = " OR table_schema = ?", []any{d.ddl.Schema}
	default:
		return nil
	}
	_, err := tx.ExecContext(ctx, "UPDATE "+d.sink.progress+" SET position = ? WHERE changefeed = ? AND position < ? AND (FALSE"+where+")",
		append([]any{to, d.sink.options.Changefeed, to}, args...)...)
	return err
}

// digest is of how everything that the statement concerns is defined now.
func (d *definer) digest(ctx context.Context) (string, error) {
	h := sha256.New()
	for _, t := range slices.Concat(d.ddl.Tables, d.ddl.Becomes) {
		text, err := d.defined(ctx, "SHOW CREATE TABLE "+full(t))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q is %q\n", t, autoIncrement.ReplaceAllString(text, ""))
	}
	if len(d.ddl.Tables) == 0 {
		text, err := d.defined(ctx, "SHOW CREATE DATABASE "+name(d.ddl.Schema))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q is %q\n", d.ddl.Schema, text)
	}
	if exchanges.MatchString(d.text) && len(d.ddl.Tables) == 2 {
		sum, err := d.defined(ctx, "CHECKSUM TABLE "+full(d.ddl.Tables[1]))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "with %s\n", sum)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// autoIncrement follows the rows, not the definition.
var autoIncrement = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// exchanges swaps the rows of a partition and a table, which leaves both definitions as they were.
var exchanges = regexp.MustCompile(`(?is)\bEXCHANGE\s+PARTITION\b`)

// defined is the second column of an answer; empty if what is asked for does not exist.
func (d *definer) defined(ctx context.Context, query string) (string, error) {
	rows, err := d.conn.QueryContext(ctx, query)
	var e *mysql.MySQLError
	if errors.As(err, &e) && (e.Number == codeNoSuchTable || e.Number == codeUnknownSchema) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return "", err
	}
	values := make([]sql.NullString, len(columns))
	into := make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return "", err
		}
	}
	return values[min(1, len(values)-1)].String, rows.Err()
}

// sessionMark opens the comment in which a source says under which settings a statement was executed.
const sessionMark = "/*ebb "

// settable are the variables that a statement may bring with it, with what their values look like.
var settable = regexp.MustCompile(`^(?:sql_mode|character_set_client|collation_connection|collation_server|timestamp|explicit_defaults_for_timestamp)=\d+$|^time_zone='[A-Za-z0-9_/+:-]+'$`)

// settings are the assignments that a statement brings with it. Anything else in their place is left out: the statement
// comes from another system.
func settings(statement string) string {
	rest, ok := strings.CutPrefix(statement, sessionMark)
	if !ok {
		return ""
	}
	inside, _, _ := strings.Cut(rest, "*/")
	var set []string
	for assignment := range strings.SplitSeq(inside, ",") {
		if assignment = strings.TrimSpace(assignment); settable.MatchString(assignment) {
			set = append(set, assignment)
		}
	}
	return strings.Join(set, ", ")
}

// body is the statement without that comment, and without others before its first word.
func body(statement string) string {
	for {
		statement = strings.TrimSpace(statement)
		if !strings.HasPrefix(statement, "/*") || strings.HasPrefix(statement, "/*!") || strings.HasPrefix(statement, "/*M!") {
			return statement
		}
		_, after, found := strings.Cut(statement, "*/")
		if !found {
			return statement
		}
		statement = after
	}
}

var (
	dropsSchema   = regexp.MustCompile(`(?is)^\s*DROP\s+(DATABASE|SCHEMA)\b`)
	executedOther = regexp.MustCompile(`(?is)^\s*(CREATE(\s+OR\s+REPLACE)?|ALTER|DROP)\s+(DATABASE|SCHEMA|SEQUENCE)\b`)
)

func isExecutedOther(text string) bool { return executedOther.MatchString(text) }

// brief is the beginning of a statement, for a message.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 80 {
		return text[:80] + "…"
	}
	return text
}
