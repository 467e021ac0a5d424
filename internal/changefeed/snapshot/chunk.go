package snapshot

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Cursor is the key of the last row that was copied.
type Cursor struct {
	// Key is the fingerprint of the key that the values are of.
	Key    string   `json:"key"`
	Values [][]byte `json:"values"`
}

// Equal reports whether two cursors are the same.
func (c *Cursor) Equal(o *Cursor) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.Key == o.Key && slices.EqualFunc(c.Values, o.Values, bytes.Equal)
}

// Encode is a cursor as it is stored.
func (c *Cursor) Encode() ([]byte, error) { return json.Marshal(c) }

// DecodeCursor is the reverse; of nothing it is nil.
func DecodeCursor(text []byte) (*Cursor, error) {
	if len(text) == 0 {
		return nil, nil
	}
	c := &Cursor{}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("the cursor of a snapshot cannot be read: %w", err)
	}
	return c, nil
}

// State is how far a table is copied, as the sink has recorded it.
type State struct {
	// Begun: the table has rows of a chunk. Before, its changes are dropped, and the first chunk removes what is there.
	Begun bool
	// Done: the table has all rows.
	Done bool
	// Cursor is where the next chunk begins; nil for the beginning.
	Cursor *Cursor
}

// Next is where the next chunk of a table begins, and whether it is the first: a table that has got another key begins again.
func (s State) Next(l *Layout) (after *Cursor, first bool) {
	if !s.Begun || s.Cursor == nil || len(l.Key) == 0 || s.Cursor.Key != l.Fingerprint() {
		return nil, true
	}
	return s.Cursor, false
}

// Follows reports whether a chunk may be written to a table in this state.
func (s State) Follows(c *Chunk) bool {
	return c.First || s.Begun && s.Cursor.Equal(c.After)
}

// Block is the rows of one INSERT.
type Block struct {
	// Columns are the names in parentheses, and Values what follows VALUES.
	Columns string
	Values  []byte
	// Loose: the server must not be strict, because there are values that no strict statement stores.
	Loose bool
}

// Chunk is rows of a table that follow each other.
type Chunk struct {
	Blocks []Block
	Rows   int
	// After is the cursor that it begins after, and Cursor the key of the last row; nil if there is no key.
	After  *Cursor
	Cursor *Cursor
	// First: what the table has must be removed before. Last: no row follows.
	First, Last bool
	Sequence    bool
}

// blockBytes is about how long the values of a block are.
const blockBytes = 512 << 10

// Builder collects rows into a chunk.
type Builder struct {
	layout  *Layout
	copied  []int
	forms   []form
	keys    []int // places of the key's values in a row
	width   int
	tested  []int    // places of the values that decide whether a row is left out
	values  [][]byte // these values of a row
	columns string
	chunk   *Chunk
	block   Block
	last    [][]byte
	bytes   int
}

// NewBuilder begins a chunk.
func NewBuilder(l *Layout) *Builder {
	read := l.read()
	b := &Builder{layout: l, copied: l.copied(), width: len(read), chunk: &Chunk{Sequence: l.Sequence}}
	for _, i := range l.Tested {
		b.tested = append(b.tested, slices.Index(read, i))
	}
	b.values = make([][]byte, len(b.tested))
	var names []string
	for n, i := range b.copied {
		b.forms = append(b.forms, l.Columns[i].form())
		names = append(names, quoteName(l.Columns[i].Name))
		for k, at := range l.Key {
			if at == i {
				for len(b.keys) <= k {
					b.keys = append(b.keys, 0)
				}
				b.keys[k] = n
			}
		}
	}
	b.columns = "(" + strings.Join(names, ",") + ")"
	return b
}

// Width is how many values a row has.
func (b *Builder) Width() int { return b.width }

// Bytes is how long the statements are so far.
func (b *Builder) Bytes() int { return b.bytes }

// Add adds a row, unless it is left out: the values that Select reads, nil for NULL. They are not kept.
func (b *Builder) Add(row [][]byte) error {
	if left, err := b.leaves(row); left || err != nil {
		b.pass(row)
		return err
	}
	row = row[:len(b.copied)]
	for i, f := range b.forms {
		if f == formGeometry && row[i] != nil && len(row[i]) == 0 {
			return b.addWithoutGeometry(row)
		}
	}
	if len(b.block.Values) > 0 {
		b.block.Values = append(b.block.Values, ',')
	}
	before := len(b.block.Values)
	values, loose, err := b.tuple(b.block.Values, row, false)
	if err != nil {
		return err
	}
	b.block.Values, b.block.Loose = values, b.block.Loose || loose
	b.bytes += len(values) - before
	if len(values) >= blockBytes {
		b.cut()
	}
	b.note(row)
	return nil
}

// leaves reports whether a row is left out.
func (b *Builder) leaves(row [][]byte) (bool, error) {
	if b.layout.Leaves == nil {
		return false, nil
	}
	for i, at := range b.tested {
		b.values[i] = row[at]
	}
	return b.layout.Leaves(b.values)
}

func (b *Builder) tuple(to []byte, row [][]byte, leaveOut bool) (_ []byte, loose bool, _ error) {
	to = append(to, '(')
	begun := false
	for i, value := range row {
		if leaveOut && b.forms[i] == formGeometry && value != nil && len(value) == 0 {
			continue
		}
		if begun {
			to = append(to, ',')
		}
		begun = true
		if value == nil {
			to = append(to, "NULL"...)
			continue
		}
		switch b.forms[i] {
		case formNumber, formDouble, formIndex:
			column := &b.layout.Columns[b.copied[i]]
			if !isNumber(value) {
				return nil, false, fmt.Errorf("table %s: column %s: %q is not a number", b.layout.Table, column.Name, value)
			}
			loose = loose || column.Type == "enum" && string(value) == "0"
			to = append(to, value...)
		case formParsed:
			to = appendQuoted(append(to, "_latin1"...), value)
		default:
			to = appendQuoted(to, value)
		}
	}
	return append(to, ')'), loose, nil
}

// addWithoutGeometry adds a row in a statement of its own that leaves empty geometries out, as the statement at the source did.
func (b *Builder) addWithoutGeometry(row [][]byte) error {
	b.cut()
	var names []string
	for i, at := range b.copied {
		if b.forms[i] != formGeometry || row[i] == nil || len(row[i]) > 0 {
			names = append(names, quoteName(b.layout.Columns[at].Name))
		}
	}
	values, _, err := b.tuple(nil, row, true)
	if err != nil {
		return err
	}
	b.bytes += len(values)
	b.chunk.Blocks = append(b.chunk.Blocks, Block{Columns: "(" + strings.Join(names, ",") + ")", Values: values, Loose: true})
	b.note(row)
	return nil
}

// note counts a row and keeps its key.
func (b *Builder) note(row [][]byte) {
	b.chunk.Rows++
	b.pass(row)
}

// pass keeps the key of a row.
func (b *Builder) pass(row [][]byte) {
	if b.last == nil {
		b.last = make([][]byte, len(b.keys))
	}
	for k, at := range b.keys {
		b.last[k] = append(b.last[k][:0], row[at]...)
	}
}

func (b *Builder) cut() {
	if len(b.block.Values) > 0 {
		b.block.Columns = b.columns
		b.chunk.Blocks = append(b.chunk.Blocks, b.block)
	}
	b.block = Block{}
}

// Done ends the chunk. Without rows, its cursor is the one that it began after.
func (b *Builder) Done(after *Cursor) *Chunk {
	b.cut()
	b.chunk.After, b.chunk.Cursor = after, after
	if b.last != nil && len(b.keys) > 0 {
		b.chunk.Cursor = &Cursor{Key: b.layout.Fingerprint(), Values: b.last}
	}
	return b.chunk
}
