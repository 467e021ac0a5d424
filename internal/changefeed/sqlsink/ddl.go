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

	"github.com/ebb-dev/ebb/internal/changefeed/sqlzone"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// ExecuteDDL executes DDL exactly once. DDL cannot share a transaction with the record of its execution, so there are several steps,
// and a process may fail after any of them:
//
//	GET_LOCK of every name ──▶ intent, with a digest of the tables before ──▶ the statement ──▶ done
//
// The next owner takes the locks, which proves that the session of the previous owner has ended: a statement that waits in the
// session of a dead owner could still run at any later time. Then the digest shows whether the statement ran: if the tables are
// unchanged it is run; if they have changed it has been. Statements that may run twice, because no change passes them before they
// are done, are run again: TRUNCATE, DROP, CREATE OR REPLACE.
//
// In the end the tables that it created or renamed have rows of their own in the progress, and those of tables that do not have their names
// any more are over, so that whoever writes an earlier table of such a name late writes nothing.
//
// A schema is dropped table by table, only those inside the filter, and then itself if it is empty and wholly inside.
//
// DDL of views, triggers, events, routines and users is not executed: triggers and events would repeat changes that are replicated
// anyway, and the others are not data.
func (s *Sink) ExecuteDDL(ctx context.Context, position stream.Position, ddl *stream.DDL, epoch stream.Epoch) error {
	text := ddl.Text()
	switch ddl.Kind {
	case stream.OtherDDL:
		return nil
	case stream.UnknownDDL, stream.UnreadableRows:
		return s.unusable("the statement at position %d cannot be executed: %s", position, brief(text))
	}
	d := &ddlExecution{sink: s, position: position, ddl: ddl, epoch: epoch, text: text}
	return s.retry(ctx, fmt.Sprintf("execute the DDL at position %d (%s)", position, brief(text)), func() error {
		if _, err := s.prepare(ctx); err != nil {
			return err
		}
		return d.try(ctx)
	})
}

// ddlExecution is the execution of one DDL.
type ddlExecution struct {
	sink     *Sink
	position stream.Position
	ddl      *stream.DDL
	epoch    stream.Epoch
	text     string

	conn *sql.Conn
	// repeated: an earlier attempt, of this process or another, may have executed the statement.
	repeated bool
}

// try takes the steps in one session. The session is closed afterwards, because it has locks and settings of the source.
func (d *ddlExecution) try(ctx context.Context) error {
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
	if err := d.refuseReleased(ctx); err != nil {
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

// lock takes the locks of all names that are concerned, always in the same order, so that two executions cannot wait for each other.
func (d *ddlExecution) lock(ctx context.Context) error {
	// The server ends a session whose client has died, and releases its locks, so many seconds after its last statement.
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
			d.sink.log.Info("waiting for the session of a previous owner to release its lock", "position", d.position, "statement", brief(d.text))
		}
	}
	return nil
}

// locks are the names of the locks. They are digests because their length is limited.
func (d *ddlExecution) locks() []string {
	var locks []string
	for _, t := range d.ddl.Names() {
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

// step is the next step.
type step int

const (
	nothing step = iota // it is done
	execute
	finish // it was executed, which has to be recorded
)

// intend records the intent, or finds out how far an earlier attempt came.
func (d *ddlExecution) intend(ctx context.Context) (step, error) {
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
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nothing, err
	}
	// The tables may lack changes before the statement.
	if err := d.sink.checkAdopted(ctx, tx); err != nil {
		return nothing, err
	}
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if _, err := tx.ExecContext(ctx, "INSERT INTO "+d.sink.intents+" (changefeed, position, placement, counter, digest, done, statement) VALUES (?, ?, ?, ?, ?, FALSE, ?)",
			d.sink.options.Changefeed, uint64(d.position), d.epoch.Placement, d.epoch.Counter, digest, d.ddl.Statement); err != nil {
			return nothing, err
		}
		return execute, tx.Commit()
	case done:
		return nothing, nil
	case found.Compare(d.epoch) > 0:
		return nothing, fmt.Errorf("sink %s: the DDL at position %d was taken over by epoch %s from epoch %s: %w", d.sink.options.Address, d.position, found, d.epoch, stream.ErrNotOwner)
	}
	d.repeated = true
	if _, err := tx.ExecContext(ctx, "UPDATE "+d.sink.intents+" SET placement = ?, counter = ? WHERE changefeed = ? AND position = ?",
		d.epoch.Placement, d.epoch.Counter, d.sink.options.Changefeed, uint64(d.position)); err != nil {
		return nothing, err
	}
	if digest == before || d.repeatable() {
		return execute, tx.Commit()
	}
	return finish, tx.Commit()
}

// repeatable reports whether the statement may run twice.
func (d *ddlExecution) repeatable() bool {
	switch d.ddl.Kind {
	case stream.TruncateTable, stream.DropTable, stream.DropSchema:
		return true
	}
	return d.ddl.Replaces
}

// execute runs the statement with the session settings that it had at the source.
func (d *ddlExecution) execute(ctx context.Context) error {
	text := d.text
	if d.repeated && d.ddl.Kind == stream.DropTable {
		text = d.ddl.DropText(d.ddl.Tables, true) // some of them may be dropped already
	}
	if err := d.emptyCopied(ctx); err != nil {
		return err
	}
	if err := d.refuseUnordered(ctx); err != nil {
		return err
	}
	if err := d.imitate(ctx); err != nil {
		return err
	}
	var err error
	switch {
	case d.ddl.Kind == stream.DropSchema:
		err = d.dropSchema(ctx)
	case text != "":
		_, err = d.conn.ExecContext(ctx, text)
		if refusedByForeignKey(err) {
			err = d.executeUnchecked(ctx)
		}
	}
	switch {
	case d.ddl.Kind == stream.SetSchema && alreadyDone(err): // one that has tables outside the filter is not dropped
		err = d.setSchema(ctx)
	}
	if refused := d.triggerInTheWay(ctx, err); refused != nil {
		return refused
	}
	if err != nil && !transient(err) && ctx.Err() == nil {
		if refused := d.sink.refusal(fmt.Sprintf("execute the DDL at position %d (%s)", d.position, brief(d.text)), err); refused != nil {
			return refused
		}
		return fmt.Errorf("sink %s: the DDL at position %d fails; make the tables at the sink equal to those that the source had before it, or execute it by hand and leave it out with ebb changefeed skip: %s: %w (%w)",
			d.sink.options.Address, d.position, brief(d.text), stream.ErrUnusable, err)
	}
	return err
}

// refuseUnordered returns ErrUnusable if the effect of a statement on several rows depends on their order, and no key of the table gives them one:
// the source has them in the order in which they were inserted, and the sink in the order in which their transactions were committed.
func (d *ddlExecution) refuseUnordered(ctx context.Context) error {
	if len(d.ddl.ByOrder) == 0 || d.text == "" { // nothing is executed of one that is skipped
		return nil
	}
	t := d.ddl.Tables[0]
	var ordered bool
	if err := d.conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND NON_UNIQUE = 0
		GROUP BY INDEX_NAME HAVING MAX(NULLABLE = 'YES' OR SUB_PART IS NOT NULL AND INDEX_NAME <> 'PRIMARY') = 0)`, t.Schema, t.Name).Scan(&ordered); err != nil || ordered {
		return err
	}
	for _, column := range d.ddl.ByOrder {
		query := "SELECT 1 FROM " + full(t)
		if column != "" {
			query += " WHERE " + name(column) + " IS NULL OR " + name(column) + " = 0"
		}
		var rows int
		err := d.conn.QueryRowContext(ctx, "SELECT COUNT(*) FROM ("+query+" LIMIT 2) some").Scan(&rows)
		var e *mysql.MySQLError
		switch {
		case errors.As(err, &e) && slices.Contains([]uint16{codeUnknownColumn, codeNoSuchTable, codeUnknownSchema}, e.Number):
			return nil // the statement itself says so
		case err != nil:
			return err
		case rows > 1:
			return d.ddl.Stops(fmt.Sprintf("table %s has no key, and which row gets which number, or is kept, depends on the order of the rows, which may be another at the sink; "+
				"to give such a table numbers, add the column without AUTO_INCREMENT, set it by UPDATE, and make it the key then", t))
		}
	}
	return nil
}

// codeTriggerSchema: a table with a trigger cannot be renamed into another schema.
const codeTriggerSchema = 1435

// triggerInTheWay names the trigger at the sink because of which a statement has failed, if that is why.
func (d *ddlExecution) triggerInTheWay(ctx context.Context, err error) error {
	var e *mysql.MySQLError
	if !errors.As(err, &e) || e.Number != codeTriggerSchema {
		return nil
	}
	if err := d.setBack(ctx); err != nil {
		return err
	}
	for _, t := range d.ddl.Tables {
		if err := d.sink.refuseTable(ctx, d.conn, t, true); err != nil { // there may be no other session than this
			return err
		}
	}
	return nil
}

// executeUnchecked executes a statement that the source could execute while it checked foreign keys, and the sink cannot: tables that
// keys refer to may be outside the filter, or their rows be written later.
func (d *ddlExecution) executeUnchecked(ctx context.Context) error {
	if _, err := d.conn.ExecContext(ctx, "SET foreign_key_checks=0"); err != nil {
		return err
	}
	text := d.text
	if d.ddl.Kind == stream.DropTable {
		text = d.ddl.DropText(d.ddl.Tables, true) // some of them may be dropped already
	}
	_, err := d.conn.ExecContext(ctx, text)
	return err
}

// refusedByForeignKey reports whether a statement fails only because foreign keys are checked.
func refusedByForeignKey(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1005, 1025, 1215, 1216, 1217, 1451, 1452, 1701, 1822, 1824, 1825, 1826, 1830, 1832, 1833, 1834, 1846}, e.Number)
}

var createsSchema = regexp.MustCompile("(?is)^CREATE\\s+(?:DATABASE|SCHEMA)\\s+(?:`(?:[^`]|``)+`|\\w+)")

// setSchema gives a schema that exists the defaults that CREATE DATABASE would give it.
func (d *ddlExecution) setSchema(ctx context.Context) error {
	var collation string
	if err := d.conn.QueryRowContext(ctx, "SELECT @@collation_server").Scan(&collation); err != nil {
		return err
	}
	if _, err := d.conn.ExecContext(ctx, "ALTER DATABASE "+name(d.ddl.Schema)+" COLLATE "+collation); err != nil {
		return err
	}
	options := strings.TrimSpace(d.text[len(createsSchema.FindString(d.text)):])
	if options == d.text || options == "" {
		return nil
	}
	_, err := d.conn.ExecContext(ctx, "ALTER DATABASE "+name(d.ddl.Schema)+" "+options)
	return err
}

// dropSchema drops the tables and sequences of a schema that are inside the filter, and the schema if nothing is left in it and all of
// it is inside.
func (d *ddlExecution) dropSchema(ctx context.Context) error {
	if err := d.setBack(ctx); err != nil {
		return err
	}
	for _, schema := range d.ddl.DropSchemas() {
		if err := d.dropFrom(ctx, schema); err != nil {
			return err
		}
	}
	return nil
}

// dropFrom drops what a schema at the sink has of the one that is dropped.
func (d *ddlExecution) dropFrom(ctx context.Context, schema string) error {
	left, err := d.sink.listBy(ctx, d.conn, "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = ? AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE')", schema)
	if err != nil {
		return err
	}
	left = slices.DeleteFunc(left, func(t stream.Table) bool { return !d.ddl.DropsTable(t) })
	if len(left) > 0 {
		if _, err := d.conn.ExecContext(ctx, "DROP TABLE IF EXISTS "+stream.QuotedNames(left)); err != nil {
			return err
		}
	}
	if !d.ddl.DropsWhole(schema) {
		return nil
	}
	var used bool
	if err := d.conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.tables WHERE table_schema = ?) OR EXISTS (SELECT 1 FROM information_schema.routines WHERE routine_schema = ?)
		OR EXISTS (SELECT 1 FROM information_schema.events WHERE event_schema = ?)`, schema, schema, schema).Scan(&used); err != nil || used {
		return err
	}
	_, err = d.conn.ExecContext(ctx, "DROP DATABASE IF EXISTS "+name(schema))
	return err
}

// alreadyDone reports whether a schema that was to be created exists, or one that was to be dropped does not.
func alreadyDone(err error) bool {
	var e *mysql.MySQLError
	return errors.As(err, &e) && slices.Contains([]uint16{1007, 1008}, e.Number)
}

// codeUnknownSchema: the schema does not exist.
const codeUnknownSchema = 1049

// imitate sets the session as it was at the source, and its default schema if that exists.
func (d *ddlExecution) imitate(ctx context.Context) error {
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
	if err := d.sameZone(ctx); err != nil {
		return err
	}
	// What the source accepted is accepted, however strict its session was about options of tables.
	set := "innodb_strict_mode=0"
	if more := settings(d.ddl.Statement); more != "" {
		set += ", " + more
	}
	_, err := d.conn.ExecContext(ctx, "SET "+set)
	return err
}

// zoneDigest matches the digest of the time zone of the source's machine in the comment of a statement.
var zoneDigest = regexp.MustCompile(`^` + regexp.QuoteMeta(stream.SessionMark) + `[^*]*` + stream.ZoneDigest + `'([0-9a-f]+)'`)

// sameZone returns ErrUnusable if the statement depends on the time zone of the source's machine, and the one of the sink's is another.
func (d *ddlExecution) sameZone(ctx context.Context) error {
	found := zoneDigest.FindStringSubmatch(d.ddl.Statement)
	if found == nil || d.text == "" {
		return nil
	}
	zone, err := sqlzone.Read(ctx, d.conn)
	if err != nil || zone.Digest == found[1] {
		return err
	}
	return d.ddl.Stops("its effect depends on the time zone of the source's machine (time_zone=SYSTEM), and the sink's machine has another; give both machines the same, or SET GLOBAL time_zone at the source to one by its name or offset")
}

// finish records that the DDL is executed, and sets the progress of the names that it creates, drops or renames.
func (d *ddlExecution) finish(ctx context.Context) error {
	if err := d.setBack(ctx); err != nil {
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
		return fmt.Errorf("sink %s: the DDL at position %d was taken over from epoch %s: %w", d.sink.options.Address, d.position, d.epoch, errors.Join(err, stream.ErrNotOwner))
	}
	if err := d.movePositions(ctx, tx); err != nil {
		return err
	}
	if err := d.moveSnapshots(ctx, tx); err != nil {
		return err
	}
	if err := d.sink.checkAdopted(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// setBack sets the session back, which has the settings of the source.
func (d *ddlExecution) setBack(ctx context.Context) error {
	if _, err := d.conn.ExecContext(ctx, "SET NAMES binary"); err != nil {
		return err
	}
	_, err := d.conn.ExecContext(ctx, "SET sql_mode='"+sqlMode+"', time_zone='+00:00', foreign_key_checks=0")
	return err
}

// movePositions sets the progress of tables that the statement names to its position, so that whoever reads the log again from an earlier one
// does not change them. What it gives a name is another table from then on, and what it takes a name from is over: their owners write
// nothing any more. A table that was created may have rows of the same position (CREATE TABLE ... SELECT), so it starts just before.
func (d *ddlExecution) movePositions(ctx context.Context, tx *sql.Tx) error {
	switch d.ddl.Kind {
	case stream.SetSchema:
		return nil
	case stream.DropSchema:
		if err := d.moveAll(ctx, tx, d.ddl.Waits); err != nil {
			return err
		}
		return d.endSchema(ctx, tx)
	case stream.AlterTable, stream.TruncateTable:
		if d.ddl.Alone() {
			return nil // its dispatcher does that
		}
	}
	gives, at := d.ddl.Gives(), d.position
	if d.ddl.Kind == stream.CreateTable {
		at--
	}
	// In the order of the key, as everybody locks rows.
	names := slices.Concat(d.ddl.Names(), d.ddl.Waits)
	slices.SortFunc(names, stream.CompareTables)
	for _, t := range slices.Compact(names) {
		var err error
		switch {
		case slices.Contains(gives, t):
			err = d.give(ctx, tx, t, at)
		case slices.Contains(d.ddl.Releases, t):
			err = d.release(ctx, tx, t)
		case slices.Contains(d.ddl.Takes(), t):
			err = d.end(ctx, tx, "table_schema = ? AND table_name = ?", t.Schema, t.Name)
		default:
			err = d.move(ctx, tx, t)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// give makes the row of a table that has its name since the statement, in the place of that of the table that had the name before. A position that
// is later already was recorded by hand. The owner that is recorded is older than all that will be given the table, and newer than those of earlier
// maintainers.
func (d *ddlExecution) give(ctx context.Context, tx *sql.Tx, t stream.Table, at stream.Position) error {
	earlier, err := d.sink.lock(ctx, tx, t)
	if err != nil || earlier != nil && earlier.since >= d.position {
		return err
	}
	if earlier != nil {
		at = max(at, earlier.position)
	}
	return d.sink.replace(ctx, tx, earlier, t.Since(d.position), stream.Epoch{Placement: d.epoch.Placement}, at)
}

// release records that a table left the filter.
func (d *ddlExecution) release(ctx context.Context, tx *sql.Tx, t stream.Table) error {
	found, err := d.sink.lock(ctx, tx, t)
	switch {
	case err != nil:
		return err
	case found == nil:
		return d.sink.replace(ctx, tx, nil, t.Since(0), stream.Epoch{Placement: released}, d.position)
	case found.since >= d.position:
		return nil
	}
	_, err = tx.ExecContext(ctx, "UPDATE "+d.sink.progress+" SET placement = ?, counter = 0, position = ?, part = 0"+ofTable, released, uint64(d.position), d.sink.options.Changefeed, t.Schema, t.Name, uint64(found.since))
	return err
}

// end records that tables do not have their names any more.
func (d *ddlExecution) end(ctx context.Context, tx *sql.Tx, where string, args ...any) error {
	_, err := tx.ExecContext(ctx, "UPDATE "+d.sink.progress+" SET placement = ?, counter = 0, position = GREATEST(position, ?), part = 0 WHERE feed = ? AND placement >= 0 AND table_name <> '' AND since < ? AND "+where,
		append([]any{over, uint64(d.position), d.sink.options.Changefeed, uint64(d.position)}, args...)...)
	return err
}

// endSchema records that the tables of a schema were dropped.
func (d *ddlExecution) endSchema(ctx context.Context, tx *sql.Tx) error {
	if d.ddl.Drops == nil {
		return d.end(ctx, tx, "table_schema = ?", d.ddl.Schema)
	}
	dropped, err := d.dropped(ctx, tx, d.sink.progress+" WHERE feed = ?")
	if err != nil {
		return err
	}
	for _, t := range dropped {
		if err := d.end(ctx, tx, "table_schema = ? AND table_name = ?", t.Schema, t.Name); err != nil {
			return err
		}
	}
	return nil
}

// dropped are the tables in one of the sink's own tables that the statement drops with their schema.
func (d *ddlExecution) dropped(ctx context.Context, tx *sql.Tx, from string) ([]stream.Table, error) {
	var all []stream.Table
	for _, schema := range d.ddl.DropSchemas() {
		list, err := d.sink.listBy(ctx, tx, "SELECT table_schema, table_name FROM "+from+" AND table_schema = ? AND table_name <> ''", d.sink.options.Changefeed, schema)
		if err != nil {
			return nil, err
		}
		all = append(all, slices.DeleteFunc(list, func(t stream.Table) bool { return !d.ddl.DropsTable(t) })...)
	}
	return all, nil
}

// moveAll moves tables that stay.
func (d *ddlExecution) moveAll(ctx context.Context, tx *sql.Tx, tables []stream.Table) error {
	for _, t := range tables {
		if err := d.move(ctx, tx, t); err != nil {
			return err
		}
	}
	return nil
}

// move moves a table that stays.
func (d *ddlExecution) move(ctx context.Context, tx *sql.Tx, t stream.Table) error {
	_, err := tx.ExecContext(ctx, "UPDATE "+d.sink.progress+" SET position = ?, part = 0"+ofName+" AND placement >= 0 AND position < ?",
		uint64(d.position), d.sink.options.Changefeed, t.Schema, t.Name, uint64(d.position))
	return err
}

// refuseReleased returns ErrUnusable if the statement gives a table a name that a released one has: its rows would be mixed with those
// that stay, or these be dropped.
func (d *ddlExecution) refuseReleased(ctx context.Context) error {
	for _, t := range d.given() {
		if err := d.sink.refuseReleased(ctx, d.conn, t); err != nil {
			return err
		}
	}
	return nil
}

// given are the names that the statement gives to tables.
func (d *ddlExecution) given() []stream.Table {
	if d.ddl.Kind == stream.CreateTable {
		return d.ddl.Tables
	}
	return slices.Concat(d.ddl.Becomes, d.ddl.Makes)
}

// refuseReleased returns ErrUnusable if a table was released and still exists.
func (s *Sink) refuseReleased(ctx context.Context, by querier, t stream.Table) error {
	left, err := s.listBy(ctx, by, "SELECT p.table_schema, p.table_name FROM "+s.progress+" p JOIN information_schema.tables t ON t.table_schema = p.table_schema AND t.table_name = p.table_name"+
		" WHERE p.feed = ? AND p.table_schema = ? AND p.table_name = ? AND p.placement = ? AND t.table_schema = ? AND t.table_name = ?", s.options.Changefeed, t.Schema, t.Name, released, t.Schema, t.Name)
	if err == nil && len(left) > 0 {
		err = s.unusable("table %s was renamed out of the filter and stays at the sink; rename or drop it at the sink, so that the source's new table of this name can be created", t)
	}
	return err
}

// digest is a digest of SHOW CREATE of everything that the statement concerns.
func (d *ddlExecution) digest(ctx context.Context) (string, error) {
	h := sha256.New()
	for _, t := range d.ddl.Names() {
		text, err := d.column(ctx, "SHOW CREATE TABLE "+full(t))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q is %q\n", t, autoIncrement.ReplaceAllString(text, ""))
		if d.ddl.Kind == stream.RenameTable {
			id, err := d.tableID(ctx, t)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "with number %s\n", id)
		}
	}
	if len(d.ddl.Names()) == 0 {
		text, err := d.column(ctx, "SHOW CREATE DATABASE "+name(d.ddl.Schema))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q is %q\n", d.ddl.Schema, text)
	}
	if d.ddl.Kind == stream.AlterTable && len(d.ddl.Tables) == 2 { // EXCHANGE PARTITION, after which SHOW CREATE of both is as before
		sum, err := d.column(ctx, "CHECKSUM TABLE "+full(d.ddl.Tables[1]))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "with %s\n", sum)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// tableID is the number of a table in InnoDB, which shows that two equal tables have changed places. It is empty if the user lacks the
// privilege PROCESS.
func (d *ddlExecution) tableID(ctx context.Context, t stream.Table) (string, error) {
	id, err := d.column(ctx, fmt.Sprintf("SELECT MAX(TABLE_ID) FROM information_schema.INNODB_SYS_TABLES WHERE NAME = CONVERT(CONCAT(CAST(CONVERT(_utf8mb4 X'%x' USING filename) AS BINARY), '/', CAST(CONVERT(_utf8mb4 X'%x' USING filename) AS BINARY)) USING utf8mb3)", t.Schema, t.Name))
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == codeNeedPrivilege {
		return "", nil
	}
	return id, err
}

// codeNeedPrivilege: the user lacks a privilege.
const codeNeedPrivilege = 1227

// autoIncrement changes with the rows.
var autoIncrement = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// column is the second column of a result; empty if the table or schema does not exist.
func (d *ddlExecution) column(ctx context.Context, query string) (string, error) {
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

// settable matches the assignments that are allowed in that comment.
var settable = regexp.MustCompile(`^character_set_client=[a-z0-9]+$|^(?:sql_mode|collation_connection|collation_server|timestamp|explicit_defaults_for_timestamp|foreign_key_checks|sql_if_exists|auto_increment_increment|auto_increment_offset|lc_time_names)=\d+(?:\.\d+)?$|^time_zone='[A-Za-z0-9_/+:-]+'$|^old_mode=\d+$`)

// settings are the assignments in the comment of a statement. Anything else is ignored, because the statement comes from another
// system.
func settings(statement string) string {
	rest, ok := strings.CutPrefix(statement, stream.SessionMark)
	if !ok {
		return ""
	}
	inside, _, _ := strings.Cut(rest, "*/")
	var set []string
	recent := ""
	for assignment := range strings.SplitSeq(inside, ",") {
		switch assignment = strings.TrimSpace(assignment); {
		case !settable.MatchString(assignment):
		case strings.HasPrefix(assignment, "old_mode="): // earlier servers do not know its values
			recent = " /*M!100601 , " + assignment + " */"
		default:
			set = append(set, assignment)
		}
	}
	if len(set) == 0 {
		return ""
	}
	return strings.Join(set, ", ") + recent
}

// brief is the beginning of a statement, for a message.
func brief(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 80 {
		return text[:80] + "…"
	}
	return text
}
