package sqlsink

import (
	"context"
	"database/sql/driver"
	"fmt"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlkeys"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// What a foreign key changes by cascade is not in the log of the source. The sink makes these changes itself, where they belong: tables
// that such keys join are written by one owner, in the order of the source and change by change, and changes that cascade are executed
// while foreign keys are checked. All progress rows of the group are updated in the transaction of the changes.

var _ stream.GroupSink = (*Sink)(nil)

// ForeignKeys implements stream.GroupSink.
func (s *Sink) ForeignKeys(ctx context.Context) ([]stream.ForeignKey, error) {
	keys, err := sqlkeys.Read(ctx, s.db)
	return keys, s.wrap("read the foreign keys", err)
}

// AcquireGroup implements stream.GroupSink.
func (s *Sink) AcquireGroup(ctx context.Context, tables []stream.Identity, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	w, at, err := s.acquireTables(ctx, tables, epoch, start)
	if err != nil {
		return nil, 0, err
	}
	return w, at, nil
}

func (s *Sink) acquireTables(ctx context.Context, tables []stream.Identity, epoch stream.Epoch, start stream.Position) (*groupWriter, stream.Position, error) {
	var w *groupWriter
	err := s.retry(ctx, "acquire table "+tables[0].String()+" and those that it is written with", func() error {
		if _, err := s.prepare(ctx); err != nil {
			return err
		}
		var err error
		w, err = s.acquireGroup(ctx, tables, epoch, start)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	at, _ := w.lowest()
	return w, at, nil
}

func (s *Sink) acquireGroup(ctx context.Context, tables []stream.Identity, epoch stream.Epoch, start stream.Position) (*groupWriter, error) {
	w := &groupWriter{sink: s, epoch: epoch, members: map[stream.Table]*writer{}}
	present, err := s.Present(ctx)
	if err != nil {
		return nil, err
	}
	since := map[stream.Table]stream.Position{}
	for _, id := range slices.SortedFunc(slices.Values(tables), stream.CompareIdentities) { // the same order everywhere, so that owners do not wait for each other
		t := id.Table
		if !slices.Contains(present, t) {
			continue
		}
		if err := s.refuseTable(ctx, s.db, t, true); err != nil {
			return nil, err
		}
		copying, err := s.snapshotState(ctx, s.db, t)
		if err != nil {
			return nil, err
		}
		if copying != nil {
			return nil, s.unusable("table %s was joined with others by a cascading foreign key before its initial copy was whole; drop the key or make it RESTRICT at the source, remove the changefeed and the tables that it has made, and create it again", t)
		}
		w.order, since[t] = append(w.order, t), id.Since
	}
	if len(w.order) == 0 {
		return nil, s.unusable("none of the tables %v exists, or user %q has no privilege on them; create them as they are at the source, or grant the privilege", tables, s.options.User)
	}
	if w.keys, err = s.ForeignKeys(ctx); err != nil {
		return nil, err
	}
	w.keys = slices.DeleteFunc(w.keys, func(k stream.ForeignKey) bool { return !k.Cascades() || !slices.Contains(w.order, k.Parent) })
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	for _, t := range w.order {
		st, err := s.own(ctx, tx, t.Since(since[t]), epoch, start)
		if err != nil {
			return nil, err
		}
		w.members[t] = s.writer(t, st)
	}
	if err := w.refuseParts(); err != nil {
		return nil, err
	}
	if err := s.checkAdopted(ctx, tx); err != nil {
		return nil, err
	}
	return w, tx.Commit()
}

// groupWriter writes tables that foreign keys join, for one owner.
type groupWriter struct {
	sink  *Sink
	epoch stream.Epoch
	// order are the tables, sorted, and members have their positions and shapes.
	order   []stream.Table
	members map[stream.Table]*writer
	// keys are the cascading keys that refer to one of the tables.
	keys []stream.ForeignKey
}

// Close implements stream.Writer.
func (w *groupWriter) Close() error { return nil }

// lowest is the lowest position among the tables, and the part of a large transaction after it.
func (w *groupWriter) lowest() (stream.Position, int) {
	low := w.members[w.order[0]]
	for _, t := range w.order[1:] {
		if m := w.members[t]; m.position < low.position {
			low = m
		}
	}
	return low.position, low.part
}

// refuseParts returns ErrUnusable if one table has a part of a large transaction that others at the same position do not have. Such a part
// counts changes of one table, and not those of the group.
func (w *groupWriter) refuseParts() error {
	at, part := w.lowest()
	for _, t := range w.order {
		if m := w.members[t]; m.position == at && m.part != part {
			return w.sink.unusable("table %s has %d changes of the large transaction after position %d, and table %s has %d: a foreign key joined them in the middle of it; remove the changefeed and both tables, and create it again",
				t, m.part, at, w.order[0], part)
		}
	}
	return nil
}

// Write writes merged rows and the positions of all tables in one transaction.
func (w *groupWriter) Write(ctx context.Context, rows []*stream.Rows, to stream.Position) error {
	part, asked := 0, len(rows) == 0
	for _, r := range rows {
		if r.To() > to {
			return fmt.Errorf("table %s: rows at position %d are after the end %d of their batch", w.order[0], r.Position, to)
		}
		if r.More && r.To() == to {
			part = max(part, r.Before+len(r.Changes))
		}
	}
	at, have := w.lowest()
	rows, err := stream.Unwritten(rows, at, have)
	if err != nil {
		return err
	}
	switch {
	case to < at:
		return fmt.Errorf("table %s is at position %d and cannot go back to %d", w.order[0], at, to)
	case to == at && asked: // to find out whether the tables are still at their positions
		part = have
	case to == at && part <= have:
		return nil
	}
	b := &groupBatch{writer: w, rows: rows, to: to, part: part}
	if err := w.sink.retry(ctx, "write table "+w.order[0].String()+" and those that it is written with", func() error { return b.apply(ctx) }); err != nil {
		return err
	}
	for _, m := range w.members {
		if m.position < to || m.position == to && m.part < part {
			m.position, m.part = to, part
		}
	}
	return nil
}

// further is a table that is past a position.
func (w *groupWriter) further(position stream.Position) *writer {
	for _, m := range w.members {
		if m.position > position {
			return m
		}
	}
	return nil
}

// fires reports whether a change of a table changes others by cascade.
func (w *groupWriter) fires(run *stream.Run, c *stream.Change) bool {
	if run.Unchecked {
		return false
	}
	return slices.ContainsFunc(w.keys, func(k stream.ForeignKey) bool {
		switch {
		case k.Parent != run.Table || c.Kind == stream.Insert:
			return false
		case c.Kind == stream.Delete:
			return k.OnDelete
		}
		return k.OnUpdate && slices.ContainsFunc(k.Referenced, func(name string) bool {
			i := slices.IndexFunc(run.Schema.Columns, func(col stream.Column) bool { return strings.EqualFold(col.Name, name) })
			return i < 0 || !sameValue(c.Before[i], c.After[i])
		})
	})
}

// sameValue reports whether two values of a column are the same.
func sameValue(a, b any) bool {
	x, err1 := appendKey(nil, a)
	y, err2 := appendKey(nil, b)
	if err1 != nil || err2 != nil {
		return a == nil && b == nil
	}
	return string(x) == string(y)
}

// groupBatch is one Write of a group.
type groupBatch struct {
	writer     *groupWriter
	rows       []*stream.Rows
	to         stream.Position
	part       int
	statements []ownStatement
	made       bool
	// unsure: a COMMIT was sent and not answered, so it may have been executed.
	unsure bool
	// fired: a trigger was executed. The session counts it until it ends.
	fired bool
}

// ownStatement is a statement and the table that it is about.
type ownStatement struct {
	statement
	table *writer
}

// apply tries the batch once.
func (b *groupBatch) apply(ctx context.Context) error {
	if _, err := b.writer.sink.prepare(ctx); err != nil {
		return err
	}
	if err := b.prepare(ctx); err != nil {
		return err
	}
	moved, err := b.attempt(ctx)
	// The session was given back: what follows takes another, and there may be only one.
	switch {
	case b.fired:
		return b.writer.sink.firedTrigger(ctx, b.writer.order[0])
	case err != nil || moved:
		return err
	}
	return b.disowned(ctx)
}

// attempt executes the batch in a session of its own. It returns false, and has written nothing, if a position did not match.
func (b *groupBatch) attempt(ctx context.Context) (moved bool, failed error) {
	limit := b.writer.sink.limit() // may wait for a session
	conn, err := b.writer.sink.db.Conn(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	b.fired = false
	err = conn.Raw(func(session any) error { // it must not return ErrBadConn unless the session is to be closed
		moved, failed = b.inSession(ctx, session, limit)
		if failed != nil || !moved {
			return b.rollBack(ctx, session)
		}
		return nil
	})
	if failed == nil && moved {
		failed = err
	}
	return moved, failed
}

func (b *groupBatch) rollBack(ctx context.Context, session any) error {
	if _, err := session.(driver.ExecerContext).ExecContext(ctx, "ROLLBACK", nil); err != nil || b.unsure || b.fired {
		return driver.ErrBadConn // the server rolls back when the session ends
	}
	return nil
}

// inSession executes the batch. It returns false, and has written nothing, if a position did not match.
func (b *groupBatch) inSession(ctx context.Context, session any, limit int) (moved bool, err error) {
	s, ok := session.(driver.ExecerContext)
	if !ok {
		return false, fmt.Errorf("cannot execute statements on a connection of type %T", session)
	}
	affected, err := executeAll(ctx, s, append([]string{"BEGIN"}, b.moves()...))
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(affected[1:], func(n int64) bool { return n != 1 }) {
		return false, nil
	}
	for list := range chunks(b.statements, limit) {
		texts := make([]string, len(list))
		for i, st := range list {
			texts[i] = st.text
		}
		affected, err := executeAll(ctx, s, texts)
		for i, n := range affected {
			if st := list[i]; st.rows != 0 && n != st.rows {
				return false, st.otherwise
			}
		}
		if err != nil {
			return false, (&batch{writer: list[min(len(affected), len(list)-1)].table}).explain(err)
		}
	}
	if b.fired, err = triggersFired(ctx, session); err != nil || b.fired {
		return false, err
	}
	if _, err := s.ExecContext(ctx, "COMMIT", nil); err != nil {
		b.unsure = true
		return false, err
	}
	return true, nil
}

// executeAll executes statements in one message, and returns how many rows each has affected. Those after one that fails are not executed,
// and not among the counts; nor may be those before it.
func executeAll(ctx context.Context, s driver.ExecerContext, texts []string) ([]int64, error) {
	result, err := s.ExecContext(ctx, strings.Join(texts, ";"), nil)
	if err != nil {
		return nil, err
	}
	counts, ok := result.(mysql.Result)
	if !ok || len(counts.AllRowsAffected()) != len(texts) {
		return nil, fmt.Errorf("the server did not answer %d statements", len(texts))
	}
	return counts.AllRowsAffected(), nil
}

// chunks splits statements into messages of limited length.
func chunks(list []ownStatement, limit int) func(yield func([]ownStatement) bool) {
	return func(yield func([]ownStatement) bool) {
		for len(list) > 0 {
			n, size := 0, 0
			for n < len(list) && (n == 0 || size+len(list[n].text) < limit && n < statementRows) {
				size += len(list[n].text) + 1
				n++
			}
			if !yield(list[:n]) {
				return
			}
			list = list[n:]
		}
	}
}

// moves set the position of every table, each of which must match one row.
func (b *groupBatch) moves() []string {
	var texts []string
	for _, t := range b.writer.order {
		m := b.writer.members[t]
		to, part := b.to, b.part
		if m.position > to || m.position == to && m.part > part {
			to, part = m.position, m.part // it is further already
		}
		texts = append(texts, string((&batch{writer: m, to: to, part: part}).appendMove(nil)))
	}
	return texts
}

// disowned is why a position did not match; nil if an earlier attempt has committed the batch.
func (b *groupBatch) disowned(ctx context.Context) error {
	w := b.writer
	tx, err := w.sink.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	found := map[stream.Table]*state{}
	done := b.unsure
	for _, t := range w.order {
		st, err := w.sink.lock(ctx, tx, t)
		if err != nil {
			return err
		}
		found[t] = st
		done = done && st != nil && st.since == w.members[t].since && st.epoch == w.epoch && (st.position > b.to || st.position == b.to && st.part >= b.part)
	}
	if done {
		return nil
	}
	for _, t := range w.order {
		m, st := w.members[t], found[t]
		if st != nil && st.since == m.since && st.epoch == w.epoch && st.position == m.position && st.part == m.part {
			continue
		}
		if err := m.goBack(ctx, tx, st); err != nil {
			return err
		}
		return w.sink.notOwner(t.Since(m.since), w.epoch, st)
	}
	return fmt.Errorf("the positions of table %s and those that it is written with changed: %w", w.order[0], errConcurrent)
}

// prepare makes the statements, once.
func (b *groupBatch) prepare(ctx context.Context) error {
	if b.made {
		return nil
	}
	b.statements = nil
	for _, rows := range b.rows {
		err := rows.EachRun(func(run *stream.Run, changes []stream.Change) error {
			m := b.writer.members[run.Table]
			if m == nil {
				return b.writer.sink.unusable("table %s does not exist, or user %q has no privilege on it; create it as it is at the source, or grant the privilege", run.Table, b.writer.sink.options.User)
			}
			if rows.Position <= m.position {
				return nil // it was written before the tables were joined
			}
			sh, err := m.shapeFor(ctx, run.Schema)
			if err != nil {
				return err
			}
			fires := false
			made, err := sh.inOrder(changes, func(c *stream.Change) bool {
				now := b.writer.fires(run, c)
				fires = fires || now
				return now
			})
			if further := b.writer.further(rows.Position); fires && further != nil {
				return b.writer.sink.unusable("a change of table %s at position %d changes rows of table %s by cascade, which is at position %d already: they were not copied or replicated together; remove the changefeed and both tables, and create it again",
					run.Table, rows.Position, further.table, further.position)
			}
			for _, st := range made {
				b.statements = append(b.statements, ownStatement{st, m})
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	b.made = true
	return nil
}

// inOrder makes statements for changes one by one. Only consecutive inserts share a statement. Those that check reports are executed while
// foreign keys are checked, so that they cascade.
func (s *shape) inOrder(changes []stream.Change, check func(*stream.Change) bool) ([]statement, error) {
	r := &inserts{shape: s, fresh: s.newList(s.insert, "")}
	for i := range changes {
		c := &changes[i]
		empty := s.geometries && c.After != nil && s.hasEmptyGeometry(c.After)
		if c.Before == nil && !empty {
			if err := r.insert(c.After); err != nil {
				return nil, err
			}
			continue
		}
		st, err := s.one(c, empty, check(c))
		if err := r.add(st, c.After, err); err != nil {
			return nil, err
		}
	}
	return r.done()
}

// one makes the statement of one change.
func (s *shape) one(c *stream.Change, empty, checked bool) (statement, error) {
	var st statement
	var err error
	switch {
	case empty && c.Before != nil:
		return statement{}, fmt.Errorf("table %s: a row is updated to an empty geometry, which no statement can store; give the column a value at the source: %w", s.table, stream.ErrUnusable)
	case empty:
		return s.insertWithoutGeometry(c.After)
	case len(s.key) == 0:
		st, err = s.change(c)
	default:
		st, err = s.changeByKey(c)
	}
	if checked {
		st.text = s.checked(st.text)
	}
	return st, err
}

// checked makes a statement check foreign keys.
func (s *shape) checked(text string) string {
	const set = "SET STATEMENT foreign_key_checks=1"
	if rest, ok := strings.CutPrefix(text, "SET STATEMENT "); ok {
		return set + "," + rest
	}
	return set + " FOR " + text
}

// changeByKey makes the statement that updates or deletes the row with a key.
func (s *shape) changeByKey(c *stream.Change) (statement, error) {
	text, loose, err := s.changeHead(c)
	if err != nil {
		return statement{}, err
	}
	text, err = s.appendKey(append(text, strings.TrimPrefix(s.deleteHead(), "DELETE FROM "+full(s.table))...), c.Before)
	return statement{text: s.mode(loose) + string(append(text, ')')), rows: 1, otherwise: missingRow(s.table, "")}, err
}
