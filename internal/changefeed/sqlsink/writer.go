package sqlsink

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// writer writes one table for one owner.
type writer struct {
	sink  *Sink
	table stream.Table
	// since when the table has its name.
	since    stream.Position
	epoch    stream.Epoch
	position stream.Position
	// part is how many changes of a large transaction just after the position are written.
	part int
	// acquired is the position at which it became the owner.
	acquired stream.Position
	// copying is how far the table is copied; nil if it is not being copied.
	copying *snapshot.State
	// omits is what is left out of the table; nil if nothing is.
	omits *omission.Table

	// shape is for rows of its schema. If rows have another schema, the table may have been altered.
	shape atomic.Pointer[shape]
	// inTurn: a sequence that a default of the table names was missing at the sink, or may not be used.
	inTurn atomic.Bool
	// ahead are statements that were made for the rows of a later write; nil if there are none.
	ahead atomic.Pointer[prepared]
	// text is why rows of the schema checked are not forwarded.
	checked *stream.Schema
	text    textReason
}

var _ stream.Writer = (*writer)(nil)

// Close implements stream.Writer. The owner stays the same, so there is nothing to do.
func (w *writer) Close() error { return nil }

// Write writes rows and the position in one transaction. It skips rows up to the position that the table is at already.
func (w *writer) Write(ctx context.Context, rows []*stream.Rows, to stream.Position) error {
	b, err := w.batch(rows, to)
	if b == nil || err != nil {
		return err
	}
	return b.write(ctx)
}

// batch is what a write of rows has to do; nil if everything is written already. Without rows there is always something to do: to find out
// whether the table is still at its position.
func (w *writer) batch(rows []*stream.Rows, to stream.Position) (*batch, error) {
	part, asked := 0, len(rows) == 0
	if n := len(rows); n > 0 {
		last := rows[n-1]
		if last.To() > to {
			return nil, fmt.Errorf("table %s: rows at position %d are after the end %d of their batch", w.table, last.Position, to)
		}
	}
	for _, r := range rows { // the last may be read again and begin before others
		if r.More && r.To() == to {
			part = max(part, r.Before+len(r.Changes))
		}
	}
	rows, err := stream.Unwritten(rows, w.position, w.part)
	if err != nil {
		return nil, err
	}
	if w.dropped() {
		rows = nil
	}
	switch {
	case to < w.position:
		return nil, fmt.Errorf("table %s is at position %d and cannot go back to %d", w.table, w.position, to)
	case to == w.position && asked:
		part = w.part
	case to == w.position && part <= w.part:
		return nil, nil
	}
	return &batch{writer: w, rows: slices.DeleteFunc(rows, func(r *stream.Rows) bool { return len(r.Changes) == 0 }), to: to, part: part}, nil
}

// write applies the batch, and tries again after errors that may pass.
func (b *batch) write(ctx context.Context) error {
	if err := b.writer.sink.retry(ctx, "write table "+b.writer.table.String(), func() error { return b.apply(ctx) }); err != nil {
		return err
	}
	b.applied()
	return nil
}

// applied records that the batch is at the sink.
func (b *batch) applied() {
	b.writer.position, b.writer.part = b.to, b.part
	if b.group != nil {
		b.writer.sink.forwarded.Add(int64(b.changes))
	}
}

// batch is one Write.
type batch struct {
	writer *writer
	rows   []*stream.Rows
	to     stream.Position
	// part is how many changes of a large transaction just after that are in the batch or before it.
	part int
	// statements, once they are made.
	statements []statement
	made       bool
	// fired: a trigger was executed.
	fired bool
	// unsure: a COMMIT was sent and not answered, so it may have been executed.
	unsure bool
	// group is what is forwarded instead of statements, of so many changes; nil for text.
	group   *rowevent.Group
	changes int
	// asText: it could not be forwarded. refused is why, if the server said so.
	asText  bool
	refused error
}

// apply tries the batch once.
func (b *batch) apply(ctx context.Context) error {
	if _, err := b.writer.sink.prepare(ctx); err != nil {
		return err
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if done, err := b.writer.sink.applyAtOnce(ctx, []*batch{b}); done || err != nil {
		return err
	}
	if b.group != nil {
		b.toText()
		return b.apply(ctx)
	}
	err := b.inSteps(ctx)
	if b.lacksSequence(err) {
		b.writer.inTurn.Store(true)
		b.made = false
		return b.apply(ctx)
	}
	return err
}

// lacksSequence reports whether the batch failed because a sequence is missing, and can be applied without inserting rows that are at the sink
// already. While the table is copied that is not known of any row.
func (b *batch) lacksSequence(err error) bool {
	w, sh := b.writer, b.writer.shape.Load()
	var e *mysql.MySQLError
	return errors.As(err, &e) && (e.Number == codeNoSuchTable || e.Number == codeNoTablePrivilege) && sh != nil && sh.numbered && w.copying == nil && !w.inTurn.Load()
}

// inSteps executes the statements of the batch one after another.
func (b *batch) inSteps(ctx context.Context) error {
	conn, err := b.writer.sink.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if moved, err := b.move(ctx, tx); err != nil || !moved {
		return err
	}
	for _, st := range b.statements {
		if err := b.execute(ctx, tx, st); err != nil {
			return err
		}
	}
	var failed error // it must not be ErrBadConn that Raw returns: that would wait for the transaction to end
	if err := conn.Raw(func(session any) error {
		b.fired, failed = triggersFired(ctx, session)
		return nil
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if b.fired {
		_ = tx.Rollback()                                          // the server does it when the session ends
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // the session counts the trigger until it ends
		return b.writer.sink.firedTrigger(ctx, b.writer.table)
	}
	if err := tx.Commit(); err != nil {
		b.unsure = true
		return err
	}
	return nil
}

// move sets the position to the end of the batch, if the epoch is still the owner and the table is at the position that the owner
// expects. It returns false if an earlier attempt has committed the batch.
func (b *batch) move(ctx context.Context, tx *sql.Tx) (bool, error) {
	w := b.writer
	result, err := tx.ExecContext(ctx, string(b.appendMove(nil)))
	if err != nil {
		return false, err
	}
	n, err := result.RowsAffected()
	if err != nil || n == 1 {
		return n == 1, err
	}
	found, err := w.sink.lock(ctx, tx, w.table)
	if err != nil {
		return false, err
	}
	if b.unsure && found != nil && found.since == w.since && found.epoch == w.epoch && found.position == b.to && found.part == b.part {
		return false, nil
	}
	if err := w.goBack(ctx, tx, found); err != nil {
		return false, err
	}
	return false, w.sink.notOwner(w.table.Since(w.since), w.epoch, found)
}

// goBack sets the checkpoint that is recorded at the sink back to the position that the sink has of the table, if that is earlier than
// what this owner has written: the sink has lost commits. So everything is read again from there, also if the checkpoint was earlier. The position of the table alone would not
// lead to that, because a table without changes is behind the checkpoint, too.
//
// A server that was started again, or another one, has kept all that was written before the checkpoint that it has, however long ago the
// table was written last. So then the checkpoint stays as it is; it is not adopted in that incarnation.
func (w *writer) goBack(ctx context.Context, tx *sql.Tx, found *state) error {
	if found.isOver(w.since) {
		return nil // another table has the name, or none
	}
	at := w.acquired
	if found != nil && found.since < w.since {
		found = nil
	}
	if found != nil {
		at = found.position
		if found.epoch.Compare(w.epoch) > 0 {
			return nil // another owner
		}
	}
	if at > w.position || at == w.position && (found == nil || found.part >= w.part) {
		return nil
	}
	now := w.sink.incarnationNow()
	// Assignments are made in order. 0 was set by an owner of another table.
	if _, err := tx.ExecContext(ctx, "UPDATE "+w.sink.progress+" SET position = IF(counter = 0 OR counter = "+now+", LEAST(position, ?), position), counter = IF(counter = "+now+", 0, counter)"+ofCheckpoint,
		uint64(at), w.sink.options.Changefeed); err != nil {
		return err
	}
	w.sink.log.Warn("the sink went back", "table", w.table, "position", at, "written", w.position)
	return tx.Commit()
}

// appendMove appends the statement that sets the position.
func (b *batch) appendMove(text []byte) []byte {
	w := b.writer
	text = append(append(append(text, "UPDATE "...), w.sink.progress...), " SET position = "...)
	text = strconv.AppendUint(text, uint64(b.to), 10)
	text = strconv.AppendInt(append(text, ", part = "...), int64(b.part), 10)
	text = strconv.AppendUint(append(text, ", part_at = "...), uint64(b.to), 10)
	text = quote(append(text, " WHERE feed = "...), w.sink.options.Changefeed)
	text = quote(append(text, " AND table_schema = "...), w.table.Schema)
	text = quote(append(text, " AND table_name = "...), w.table.Name)
	text = strconv.AppendUint(append(text, " AND since = "...), uint64(w.since), 10)
	text = strconv.AppendInt(append(text, " AND placement = "...), w.epoch.Placement, 10)
	text = strconv.AppendInt(append(text, " AND counter = "...), w.epoch.Counter, 10)
	text = strconv.AppendUint(append(text, " AND position = "...), uint64(w.position), 10)
	text = strconv.AppendInt(append(text, " AND "+partNow+" = "...), int64(w.part), 10)
	if b.group != nil {
		text = append(text, forwardCondition...)
	}
	return text
}

func (b *batch) execute(ctx context.Context, tx *sql.Tx, st statement) error {
	result, err := tx.ExecContext(ctx, st.text)
	if err != nil {
		return b.explain(err)
	}
	if st.rows == 0 {
		return nil
	}
	if n, err := result.RowsAffected(); err != nil || n == st.rows {
		return err
	}
	return st.otherwise
}

// Codes of errors that differences between the tables of source and sink cause.
const (
	codeUnknownColumn    = 1054
	codeNoTablePrivilege = 1142
	codeNoSuchTable      = 1146
	codePacketTooBig     = 1153
	codeOutOfRange       = 1264
	codeTooLong          = 1406
)

// explain adds what to do to an error that retrying cannot resolve.
func (b *batch) explain(err error) error {
	if transient(err) {
		return err
	}
	if refused := b.writer.sink.refusal("write table "+b.writer.table.String(), err); refused != nil {
		return refused
	}
	remedy := "make the table equal to that of the source"
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		switch e.Number {
		case codeDuplicate:
			remedy = "a row that is new at the source exists at the sink already; something else writes to the sink, or the initial copy was taken at another position"
		case codeUnknownColumn, codeNoSuchTable:
			remedy = "its columns differ from those at the source, or the sequence of a default is missing; make it as it was at the source"
		case codeOutOfRange, codeTooLong:
			remedy = "a value does not fit; make the column as it is at the source, or VIRTUAL if it is generated, since the sink does not cut what is generated as a session without strict mode does"
		case codePacketTooBig:
			remedy = "a row is longer than max_allowed_packet of the sink; increase that"
		}
	}
	return fmt.Errorf("sink %s: table %s: %s: %w (%w)", b.writer.sink.options.Address, b.writer.table, remedy, stream.ErrUnusable, err)
}

// prepare makes the statements of the batch, once. Rows of one schema follow each other; what comes after another schema
// is written after it.
func (b *batch) prepare(ctx context.Context) error {
	if b.made {
		return nil
	}
	b.statements = nil
	if forward, err := b.forward(ctx); err != nil || forward {
		b.made = forward
		return err
	}
	if p := b.writer.ahead.Swap(nil); p != nil && p.shape == b.writer.shape.Load() && p.inTurn == b.writer.inTurn.Load() && slices.Equal(p.rows, b.rows) {
		b.statements, b.made = p.statements, true
		return nil
	}
	for _, r := range b.rows {
		if err := r.Decode(); err != nil {
			return err
		}
	}
	for rest := b.rows; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(r *stream.Rows) bool {
			return r.Schema != rest[0].Schema && !slices.Equal(r.Schema.Columns, rest[0].Schema.Columns)
		})
		if n < 0 {
			n = len(rest)
		}
		sh, err := b.writer.shapeFor(ctx, rest[n-1].Schema)
		if err != nil {
			return err
		}
		made, err := sh.statements(rest[:n], b.writer.inTurn.Load())
		if err != nil {
			return err
		}
		b.statements, rest = append(b.statements, made...), rest[n:]
	}
	b.made = true
	return nil
}

// shapeFor reads the table again whenever rows have another schema.
func (w *writer) shapeFor(ctx context.Context, schema *stream.Schema) (*shape, error) {
	if known := w.shape.Load(); known != nil && known.schema == schema {
		return known, nil
	}
	v, err := w.sink.prepare(ctx)
	if err != nil {
		return nil, err
	}
	d, err := w.sink.describe(ctx, w.table)
	if err != nil {
		return nil, err
	}
	sh, err := newShape(w.table, schema, d, v, w.omits)
	if err != nil {
		return nil, err
	}
	w.shape.Store(sh)
	return sh, nil
}

// prepared are the statements for rows, all of the schema of one shape.
type prepared struct {
	shape      *shape
	inTurn     bool
	rows       []*stream.Rows
	statements []statement
}

var _ stream.AheadWriter = (*writer)(nil)

// Forget implements stream.AheadWriter.
func (w *writer) Forget() { w.ahead.Store(nil) }

// Prepare implements stream.AheadWriter. It makes the statements of rows that are written as text and have the same schema as those before
// them; an error is found again by Write.
func (w *writer) Prepare(rows []*stream.Rows) {
	sh := w.shape.Load()
	if sh == nil || w.sink.options.Forward {
		return
	}
	rows = slices.DeleteFunc(slices.Clone(rows), func(r *stream.Rows) bool { return len(r.Changes) == 0 })
	for _, r := range rows {
		if r.Schema != sh.schema || r.Decode() != nil {
			return
		}
	}
	inTurn := w.inTurn.Load()
	if made, err := sh.statements(rows, inTurn); err == nil {
		w.ahead.Store(&prepared{shape: sh, inTurn: inTurn, rows: rows, statements: made})
	}
}
