package filesink

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// writer writes one table for one owner.
type writer struct {
	*journal
	table stream.Table
}

var _ stream.Writer = (*writer)(nil)

// Close implements stream.Writer. No file is open between writes, because there may be very many tables.
func (w *writer) Close() error { return nil }

// Write writes rows and the position. A batch that does not fit into one file is written to several, each with complete transactions;
// if one of them fails, those before it are not written again.
func (w *writer) Write(_ context.Context, rows []*stream.Rows, to stream.Position) error {
	if n := len(rows); n > 0 && rows[n-1].To() > to {
		return fmt.Errorf("table %s: rows at position %d are after the end %d of their batch", w.table, rows[n-1].Position, to)
	}
	rows, err := stream.Unwritten(rows, w.position, w.part)
	if err != nil {
		return err
	}
	if to < w.position {
		return fmt.Errorf("table %s is at position %d and cannot go back to %d", w.table, w.position, to)
	}
	var pending bytes.Buffer
	at, part := w.position, 0
	for _, r := range rows {
		var one bytes.Buffer
		if err := encodeRows(&one, r); err != nil {
			return err
		}
		if pending.Len() > 0 && r.Before == 0 && w.size+int64(pending.Len()+one.Len()) > w.sink.options.MaxBytes {
			if err := w.append(pending.Bytes(), at, part); err != nil {
				return err
			}
			pending.Reset()
		}
		pending.Write(one.Bytes())
		if one.Len() > 0 {
			at, part = r.To(), 0
			if r.More {
				part = r.Before + len(r.Changes)
			}
		}
	}
	if at < to {
		l := &line{Position: to, Schema: w.table.Schema, Table: w.table.Name, Kind: kindPosition, Change: 1, Changes: 1}
		if err := l.encode(&pending); err != nil {
			return err
		}
	}
	if pending.Len() == 0 {
		return nil
	}
	return w.append(pending.Bytes(), to, part)
}
