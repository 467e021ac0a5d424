package filesink

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// The kinds of lines beside those of changes.
const (
	kindDDL      = "ddl"
	kindPosition = "position" // nothing happened up to here
)

var kinds = map[stream.Kind]string{stream.Insert: "insert", stream.Update: "update", stream.Delete: "delete"}

// line is one line of a file.
type line struct {
	Position stream.Position `json:"position"`
	// Committed is when the source committed, by its own clock.
	Committed *time.Time `json:"committed,omitempty"`
	Schema    string     `json:"schema"`
	Table     string     `json:"table,omitempty"`
	Kind      string     `json:"kind"`
	// Change of Changes in the transaction.
	Change  int `json:"change"`
	Changes int `json:"changes"`
	// Before and After are the row, by the names of the columns.
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
	// DDL is what the statement does to the tables.
	DDL       stream.DDLKind `json:"definition,omitempty"`
	Tables    []stream.Table `json:"tables,omitempty"`
	Becomes   []stream.Table `json:"becomes,omitempty"`
	Statement string         `json:"statement,omitempty"`
}

// encode appends the line, with a line feed.
func (l *line) encode(b *bytes.Buffer) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	return e.Encode(l)
}

// encodeRows appends the lines of one transaction.
func encodeRows(b *bytes.Buffer, r *stream.Rows) error {
	if err := r.Decode(); err != nil {
		return err
	}
	at, total := r.At.UTC(), max(r.Total, r.Before+len(r.Changes))
	for i, c := range r.Changes {
		l := &line{
			Position: r.Position, Committed: &at, Schema: r.Table.Schema, Table: r.Table.Name, Kind: kinds[c.Kind], Change: r.Before + i + 1, Changes: total,
		}
		var err error
		if l.Before, err = encodeRow(r.Schema, c.Before); err == nil {
			l.After, err = encodeRow(r.Schema, c.After)
		}
		if err == nil {
			err = l.encode(b)
		}
		if err != nil {
			return fmt.Errorf("table %s at position %d: %w: %w", r.Table, r.Position, stream.ErrUnusable, err)
		}
	}
	return nil
}

// encodeRow encodes a row as an object with the columns in their order; nil for no row.
func encodeRow(s *stream.Schema, values []any) (json.RawMessage, error) {
	if values == nil {
		return nil, nil
	}
	if len(values) != len(s.Columns) {
		return nil, fmt.Errorf("a row has %d values, but the table has %d columns", len(values), len(s.Columns))
	}
	var b bytes.Buffer
	for i, v := range values {
		b.WriteByte("{,"[min(i, 1)])
		if err := encodeValue(&b, s.Columns[i].Name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := encodeValue(&b, v); err != nil {
			return nil, fmt.Errorf("column %s: %w", s.Columns[i].Name, err)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encodeValue encodes a value exactly: numbers with all their digits, and bytes, or text that is not UTF-8, as {"base64":"…"}. No other
// value is encoded as an object.
func encodeValue(b *bytes.Buffer, value any) error {
	switch v := value.(type) {
	case []byte:
		value = map[string]string{"base64": base64.StdEncoding.EncodeToString(v)}
	case string:
		if !utf8.ValidString(v) {
			return encodeValue(b, []byte(v))
		}
	}
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the line feed
	return nil
}
