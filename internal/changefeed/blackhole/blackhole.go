// Package blackhole is a sink that counts changes and discards them. It does not check owners: two may write at the same time.
package blackhole

import (
	"context"
	"sync/atomic"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Sink implements stream.Sink.
type Sink struct{ rows atomic.Int64 }

// New makes a sink.
func New() *Sink { return &Sink{} }

// Rows is how many row changes it got.
func (s *Sink) Rows() int64 { return s.rows.Load() }

// Check implements stream.Sink.
func (s *Sink) Check(context.Context) error { return nil }

// Acquire implements stream.Sink.
func (s *Sink) Acquire(_ context.Context, _ stream.Identity, _ stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	return (*writer)(s), start, nil
}

// ExecuteDDL implements stream.Sink.
func (s *Sink) ExecuteDDL(context.Context, stream.Position, *stream.DDL, stream.Epoch) error {
	return nil
}

// Close implements stream.Sink.
func (s *Sink) Close() error { return nil }

// writer is a writer of any table.
type writer Sink

// Write implements stream.Writer.
func (w *writer) Write(_ context.Context, rows []*stream.Rows, _ stream.Position) error {
	n := 0
	for _, r := range rows {
		n += len(r.Changes)
	}
	w.rows.Add(int64(n))
	return nil
}

// Close implements stream.Writer.
func (w *writer) Close() error { return nil }
