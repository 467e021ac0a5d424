package sqlsink

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// statement is one to be executed within a batch.
type statement struct {
	text string
	// rows is how many rows it must match; 0 if that does not matter.
	rows int64
	// otherwise is why it may match fewer.
	otherwise error
}

// shape is how rows of a schema are written into a table of the sink.
type shape struct {
	table  stream.Table
	schema *stream.Schema
	// columns are those that are written, indexes where their values are in a row.
	columns []*column
	indexes []int
	// key are the places of the key's values in a row; keyColumns describes them.
	key        []int
	keyColumns []*column
	// alone: the key is the only unique one, and a row can be replaced where it is.
	alone bool
	// sequence: its only row is replaced by each insert. numbered: while a sequence is missing, no row can be inserted or replaced.
	sequence, numbered bool
	// geometries: there are columns that may have empty values.
	geometries bool
	// computed are columns that the server of the sink computes and stores, and computedIndexes where a row has the values that the source
	// computed. They may depend on settings of the session there, which are not in the log.
	computed        []*column
	computedIndexes []int
	// limits of one statement.
	maxBytes, maxRows int

	insert, replace string // up to VALUES
	// test decides which rows are left out; nil if none are.
	test *omission.Test
}

const (
	statementBytes = 1 << 20
	statementRows  = 1000
)

// newShape matches a schema with what the sink has.
func newShape(table stream.Table, schema *stream.Schema, d *tableInfo, v *server, omits *omission.Table) (*shape, error) {
	if d.sequence {
		omits = nil
	}
	if err := refuseOmission(table, schema, d, omits); err != nil {
		return nil, err
	}
	test, err := omits.SchemaTest(schema)
	if err != nil {
		return nil, err
	}
	s := &shape{test: test, table: table, schema: schema, alone: d.uniques == 1 && !d.overlaps, sequence: d.sequence, numbered: d.numbered, maxBytes: max(1024, min(statementBytes, v.packet/2)), maxRows: statementRows}
	places := map[string]int{}
	list := []byte(" " + full(table) + " (")
	for i, c := range schema.Columns {
		at := d.columns[c.Name]
		switch {
		case omits.Column(c.Name), at == nil && c.Generated:
			continue
		case at == nil:
			return nil, fmt.Errorf("table %s has no column %s at the sink; alter it to be as it is at the source: %w", table, c.Name, stream.ErrUnusable)
		case at.generated:
			if at.unsure || at.stored && len(d.key) > 0 { // without a key it takes a search of the whole table
				s.computed, s.computedIndexes = append(s.computed, at), append(s.computedIndexes, i)
			}
			continue
		case at.rounds(&c) != "":
			return nil, fmt.Errorf("table %s: column %s %s, so that values would be rounded; alter it at the sink to be as it is at the source: %w", table, c.Name, at.rounds(&c), stream.ErrUnusable)
		case at.binary && isParsed(c.Type):
			packed := *at
			packed.kind = kindPacked
			at, d.columns[c.Name] = &packed, &packed
		case at.differs(c.Collation):
			converted := *at
			converted.from, _, _ = strings.Cut(c.Collation, "_")
			at, d.columns[c.Name] = &converted, &converted
		}
		if len(s.columns) > 0 {
			list = append(list, ',')
		}
		list = append(list, name(c.Name)...)
		places[c.Name] = i
		s.columns, s.indexes = append(s.columns, at), append(s.indexes, i)
		s.geometries = s.geometries || at.geometry
	}
	list = append(list, ") VALUES "...)
	s.insert, s.replace = "INSERT INTO"+string(list), "REPLACE INTO"+string(list)
	for _, k := range d.key {
		i, ok := places[k]
		if !ok { // without a column of the key at the source, the key does not identify its rows
			s.key, s.keyColumns = nil, nil
			break
		}
		s.key, s.keyColumns = append(s.key, i), append(s.keyColumns, d.columns[k])
	}
	return s, nil
}

// refuseOmission returns ErrUnusable if a column cannot be left out: it is of the key by which rows are found, or the sink has it and needs
// a value for it.
func refuseOmission(table stream.Table, schema *stream.Schema, d *tableInfo, omits *omission.Table) error {
	for _, i := range schema.Key {
		if name := schema.Columns[i].Name; omits.Column(name) {
			return fmt.Errorf("leave out: table %s: column %s is of its key, by which rows are found; remove the column from spec.leaveOut of another changefeed: %w", table, name, stream.ErrUnusable)
		}
	}
	for name, c := range d.columns {
		switch {
		case !omits.Column(name):
		case c.unique:
			return fmt.Errorf("leave out: table %s: column %s is of a unique key at the sink; drop the column at the sink: %w", table, name, stream.ErrUnusable)
		case !c.optional && !c.generated:
			return fmt.Errorf("leave out: table %s: column %s has no default at the sink and cannot be NULL; drop the column at the sink, or give it a default: %w", table, name, stream.ErrUnusable)
		}
	}
	return nil
}

// kept are rows without those that are left out.
func (s *shape) kept(batch []*stream.Rows) ([]*stream.Rows, error) {
	if s.test == nil {
		return batch, nil
	}
	list := make([]*stream.Rows, len(batch))
	for i, rows := range batch {
		changes, err := s.test.Changes(rows.Changes)
		if err != nil {
			return nil, err
		}
		list[i] = &stream.Rows{Position: rows.Position, Table: rows.Table, Schema: rows.Schema, Changes: changes}
	}
	return list, nil
}

// statements are the statements that apply a batch. inTurn: a sequence of the table is missing.
func (s *shape) statements(batch []*stream.Rows, inTurn bool) ([]statement, error) {
	batch, err := s.kept(batch)
	if err != nil {
		return nil, err
	}
	if s.sequence {
		return s.lastValue(batch)
	}
	if len(s.key) == 0 {
		return s.oneByOne(batch)
	}
	if s.numbered && inTurn {
		return s.inTurn(batch)
	}
	fates, err := fold(batch, s.key)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", s.table, err)
	}
	return s.merged(fates)
}

// lastValue sets a sequence to its last row. A sequence does not roll back, so the statement has to be executed after the owner was
// checked: its rows are counted, which keeps it out of a message with other statements.
func (s *shape) lastValue(batch []*stream.Rows) ([]statement, error) {
	var row []any
	for _, rows := range batch {
		for i := range rows.Changes {
			row = rows.Changes[i].After
		}
	}
	if row == nil {
		return nil, nil
	}
	text, err := s.appendRow([]byte(s.insert), row)
	return []statement{{text: string(text), rows: 1, otherwise: missingRow(s.table, "")}}, err
}

// missingRow is why a statement matches fewer rows than at the source.
func missingRow(table stream.Table, has string) error {
	return fmt.Errorf("table %s%s: a row that was changed at the source is not at the sink; something else writes to the sink, or the initial copy was not equal: %w", table, has, stream.ErrUnusable)
}

// merged deletes before it inserts. A row that stays is replaced where it is if its key is the only unique one; otherwise
// its new image might have a unique value that another row of the batch still has, and so it is deleted and inserted.
func (s *shape) merged(fates []*fate) ([]statement, error) {
	gone, fresh, changed := s.newList(s.deleteHead(), ")"), s.newList(s.insert, ""), s.newList(s.replace, "")
	var odd []statement
	for _, f := range fates {
		stays := f.before != nil && f.after != nil && s.alone
		if f.before != nil && !stays {
			if err := gone.add(f.before, s.appendKey); err != nil {
				return nil, err
			}
		}
		into := fresh
		if stays {
			into = changed
		}
		switch {
		case f.after == nil:
		case s.hasEmptyGeometry(f.after):
			if stays {
				if err := gone.add(f.before, s.appendKey); err != nil {
					return nil, err
				}
			}
			st, err := s.insertWithoutGeometry(f.after)
			if err != nil {
				return nil, err
			}
			odd = append(odd, st)
		default:
			if err := into.add(f.after, s.appendRow); err != nil {
				return nil, err
			}
		}
	}
	verified, err := s.verified(fates)
	return slices.Concat(gone.done(), changed.done(), fresh.done(), odd, verified), err
}

// verified are statements that match all rows that there are after others, with the values that the source has computed for them.
func (s *shape) verified(fates []*fate) ([]statement, error) {
	if len(s.computed) == 0 {
		return nil, nil
	}
	var rows [][]any
	for _, f := range fates {
		if f.after != nil {
			rows = append(rows, f.after)
		}
	}
	var all []statement
	for part := range slices.Chunk(rows, verifiedRows) {
		st, err := s.verify(part...)
		if err != nil {
			return nil, err
		}
		all = append(all, st)
	}
	return all, nil
}

// verifiedRows is how many rows one statement verifies.
const verifiedRows = 100

// verify makes the statement that matches rows with the values that the source has computed for them. It changes nothing.
func (s *shape) verify(rows ...[]any) (statement, error) {
	text := []byte("UPDATE " + full(s.table) + " SET " + name(s.columns[0].name) + " = " + name(s.columns[0].name) + " WHERE ")
	for i, row := range rows {
		if i > 0 {
			text = append(text, " OR "...)
		}
		text = append(text, '(')
		columns, indexes := s.keyColumns, s.key
		if len(s.key) == 0 {
			columns, indexes = s.columns, s.indexes
		}
		for j, c := range slices.Concat(columns, s.computed) {
			if j > 0 {
				text = append(text, " AND "...)
			}
			at := slices.Concat(indexes, s.computedIndexes)[j]
			var err error
			if text, err = c.equals(text, row[at]); err != nil {
				return statement{}, err
			}
		}
		text = append(text, ')')
	}
	if len(s.key) == 0 { // equal rows have equal values
		text = append(text, " LIMIT 1"...)
	}
	return statement{text: string(text), rows: int64(len(rows)), otherwise: s.computedOtherwise()}, nil
}

// computedOtherwise is the error of rows for which the sink computes other values than the source did.
func (s *shape) computedOtherwise() error {
	for _, c := range s.computed {
		if c.zoned {
			return fmt.Errorf("table %s: column %s is generated and stored, and would have another value at the sink: it depends on the time zone of the session, which is +00:00 there and was another at the source; "+
				"make the column VIRTUAL, or generate it from columns that are no TIMESTAMP: %w", s.table, c.name, stream.ErrUnusable)
		}
	}
	names := make([]string, len(s.computed))
	for i, c := range s.computed {
		names[i] = c.name
	}
	return fmt.Errorf("table %s: column %s is generated and stored, and would have another value at the sink: it depends on settings of the session or the server that are others there, or on the day; "+
		"make the column VIRTUAL: %w", s.table, strings.Join(names, " or "), stream.ErrUnusable)
}

// hasEmptyGeometry reports whether a row has a geometry of no bytes. INSERT IGNORE stores that for a column without a value, but no
// statement accepts it as a value.
func (s *shape) hasEmptyGeometry(row []any) bool {
	if !s.geometries {
		return false
	}
	for i, c := range s.columns {
		if c.geometry && isEmpty(row[s.indexes[i]]) {
			return true
		}
	}
	return false
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case []byte:
		return len(v) == 0
	case string:
		return v == ""
	}
	return false
}

// insertWithoutGeometry inserts a row as its statement at the source did: without a value for an empty geometry, and not in strict mode.
func (s *shape) insertWithoutGeometry(row []any) (statement, error) {
	names, values := []byte("INSERT INTO "+full(s.table)+" ("), []byte(") VALUES (")
	first := true
	var err error
	for i, c := range s.columns {
		value := row[s.indexes[i]]
		if c.geometry && isEmpty(value) {
			continue
		}
		if !first {
			names, values = append(names, ','), append(values, ',')
		}
		first = false
		names = append(names, name(c.name)...)
		if values, err = c.literal(values, value); err != nil {
			return statement{}, err
		}
	}
	return statement{text: s.mode(true) + string(names) + string(values) + ")"}, nil
}

func (s *shape) deleteHead() string {
	head := []byte("DELETE FROM " + full(s.table) + " WHERE ")
	if len(s.key) == 1 {
		return string(append(head, name(s.keyColumns[0].name)+" IN ("...))
	}
	head = append(head, '(')
	for i, c := range s.keyColumns {
		if i > 0 {
			head = append(head, ',')
		}
		head = append(head, name(c.name)...)
	}
	return string(append(head, ") IN ("...))
}

// appendKey appends the key of a row for a list of keys.
func (s *shape) appendKey(to []byte, row []any) ([]byte, error) {
	if len(s.key) == 1 {
		return s.keyColumns[0].literal(to, row[s.key[0]])
	}
	return appendTuple(to, row, s.key, s.keyColumns)
}

func (s *shape) appendRow(to []byte, row []any) ([]byte, error) {
	return appendTuple(to, row, s.indexes, s.columns)
}

func appendTuple(to []byte, row []any, indexes []int, columns []*column) ([]byte, error) {
	to = append(to, '(')
	var err error
	for i, at := range indexes {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = columns[i].literal(to, row[at]); err != nil {
			return nil, err
		}
	}
	return append(to, ')'), nil
}

// list collects rows into statements of limited length.
type list struct {
	shape      *shape
	head, tail string
	text       []byte
	buffer     *[]byte // which the text uses
	rows       int
	loose      bool
	made       []statement
}

func (s *shape) newList(head, tail string) *list { return &list{shape: s, head: head, tail: tail} }

func (l *list) add(row []any, appendRow func([]byte, []any) ([]byte, error)) error {
	if l.buffer == nil {
		l.buffer = texts.Get().(*[]byte)
		l.text = *l.buffer
	}
	if l.rows == 0 {
		l.text = append(l.text[:0], l.head...)
	} else {
		l.text = append(l.text, ',')
	}
	var err error
	if l.text, err = appendRow(l.text, row); err != nil {
		return err
	}
	l.rows++
	l.loose = l.loose || l.shape.hasNoMember(row)
	if len(l.text) >= l.shape.maxBytes || l.rows >= l.shape.maxRows {
		l.flush()
	}
	return nil
}

func (l *list) flush() {
	if l.rows == 0 {
		return
	}
	l.made = append(l.made, statement{text: l.shape.mode(l.loose) + string(l.text) + l.tail})
	l.rows, l.loose = 0, false
}

func (l *list) done() []statement {
	l.flush()
	if l.buffer != nil && cap(l.text) <= 2*statementBytes {
		*l.buffer = l.text
		texts.Put(l.buffer)
	}
	l.text, l.buffer = nil, nil
	return l.made
}

// texts are buffers in which statements were made. Growing a new one each time would take as long as filling it.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// hasNoMember reports whether a row has an enum with a value that is none of its members, which the log has as a number. A strict
// server refuses one, but may have stored one while it was not strict.
func (s *shape) hasNoMember(row []any) bool {
	for i, c := range s.columns {
		if !c.enum {
			continue
		}
		if _, number := row[s.indexes[i]].(int64); number {
			return true
		}
	}
	return false
}

// mode begins a statement that must not be executed in strict mode.
func (s *shape) mode(loose bool) string {
	if !loose {
		return ""
	}
	return looseMode
}

const looseMode = "SET STATEMENT sql_mode='NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_BACKSLASH_ESCAPES' FOR "

// oneByOne makes the statements for a table without a key. Only consecutive inserts share a statement.
func (s *shape) oneByOne(batch []*stream.Rows) ([]statement, error) {
	r := &inserts{shape: s, fresh: s.newList(s.insert, "")}
	for _, rows := range batch {
		for i := range rows.Changes {
			c := &rows.Changes[i]
			if s.geometries && c.After != nil && s.hasEmptyGeometry(c.After) {
				if c.Before != nil {
					return nil, fmt.Errorf("table %s: a row of a table without a key is updated to an empty geometry, which no statement can store; give the table a primary key at the source and at the sink: %w", s.table, stream.ErrUnusable)
				}
				st, err := s.insertWithoutGeometry(c.After)
				if err := r.add(st, c.After, err); err != nil {
					return nil, err
				}
				continue
			}
			if c.Before == nil {
				if err := r.insert(c.After); err != nil {
					return nil, err
				}
				continue
			}
			st, err := s.change(c)
			if err := r.add(st, c.After, err); err != nil {
				return nil, err
			}
		}
	}
	return r.done()
}

// inserts collects statements in the order of changes, in which consecutive inserts share a statement. Rows are verified before the next
// change of them.
type inserts struct {
	*shape
	fresh *list
	rows  [][]any
	all   []statement
}

// insert adds a row to the statement of inserts that is being made.
func (r *inserts) insert(row []any) error {
	if len(r.computed) > 0 {
		r.rows = append(r.rows, row)
	}
	return r.fresh.add(row, r.appendRow)
}

// add adds a statement after the inserts so far, and the row that there is after it, if any; err is why the statement could not be made.
func (r *inserts) add(st statement, after []any, err error) error {
	if err != nil {
		return err
	}
	if err := r.flush(); err != nil {
		return err
	}
	r.all = append(r.all, st)
	if after != nil && len(r.computed) > 0 {
		r.rows = append(r.rows, after)
	}
	return nil
}

func (r *inserts) flush() error {
	r.all, r.fresh.made = append(r.all, r.fresh.done()...), nil
	for _, row := range r.rows {
		st, err := r.verify(row)
		if err != nil {
			return err
		}
		r.all = append(r.all, st)
	}
	r.rows = nil
	return nil
}

func (r *inserts) done() ([]statement, error) {
	err := r.flush()
	return r.all, err
}

// inTurn makes a statement for each change, and one for inserts that follow each other. Only rows that are at the sink can be changed so.
func (s *shape) inTurn(batch []*stream.Rows) (all []statement, err error) {
	for _, rows := range batch {
		made, err := s.inOrder(rows.Changes, func(*stream.Change) bool { return false })
		if err != nil {
			return nil, err
		}
		all = append(all, made...)
	}
	return all, nil
}

// changeHead begins the statement that updates or deletes a row, up to its condition. It is loose if a value is no member of its type.
func (s *shape) changeHead(c *stream.Change) (text []byte, loose bool, err error) {
	if c.After == nil {
		return []byte("DELETE FROM " + full(s.table)), false, nil
	}
	text = []byte("UPDATE " + full(s.table) + " SET ")
	for i, col := range s.columns {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, name(col.name)...), '=')
		if text, err = col.literal(text, c.After[s.indexes[i]]); err != nil {
			return nil, false, err
		}
	}
	return text, s.hasNoMember(c.After), nil
}

// change makes the statement that updates or deletes one row, matched by all its columns. Which one of several equal rows it is makes
// no difference.
func (s *shape) change(c *stream.Change) (statement, error) {
	text, loose, err := s.changeHead(c)
	if err != nil {
		return statement{}, err
	}
	text = append(text, " WHERE "...)
	for i, col := range s.columns {
		if i > 0 {
			text = append(text, " AND "...)
		}
		if text, err = col.equals(text, c.Before[s.indexes[i]]); err != nil {
			return statement{}, err
		}
	}
	return statement{text: s.mode(loose) + string(append(text, " LIMIT 1"...)), rows: 1, otherwise: missingRow(s.table, " has no key")}, nil
}

// equals appends a condition that only exactly the same value meets.
func (c *column) equals(to []byte, value any) ([]byte, error) {
	if value == nil {
		return append(append(to, name(c.name)...), " IS NULL"...), nil
	}
	_, text := value.(string)
	_, index := value.(int64)
	_, bits := value.(uint64)
	if data, ok := value.([]byte); ok && c.from != "" {
		to = append(append(append(to, "CAST("...), name(c.name)...), " AS BINARY) <=> CAST(CONVERT("...)
		return append(append(append(c.bytes(to, data), " USING "...), c.charset...), ") AS BINARY)"...), nil
	}
	if c.exact && !index && !bits && !(text && c.kind == kindForeignText) {
		to = append(append(append(to, "CAST("...), name(c.name)...), " AS BINARY)"...)
	} else {
		to = append(to, name(c.name)...)
	}
	return c.literal(append(to, " <=> "...), value)
}
