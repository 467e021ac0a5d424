package sqlsink

import (
	"context"
	"slices"
	"sync"

	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

var _ stream.Together = (*Sink)(nil)

// together is a part and its batch.
type together struct {
	*batch
	done func(error)
}

// WriteTogether implements stream.Together. It tries one transaction for all parts that can share one. If that fails for whatever reason,
// or if it is not known whether it was committed, each of them is written alone: the position of its table shows whether it is
// written already.
func (s *Sink) WriteTogether(ctx context.Context, parts []stream.Part) {
	var shared, alone []together
	for _, p := range parts {
		b, err := p.Writer.(*writer).batch(p.Rows, p.To)
		if b == nil || err != nil {
			p.Done(err)
			continue
		}
		if t := (together{b, p.Done}); b.shares(ctx) {
			shared = append(shared, t)
		} else {
			alone = append(alone, t)
		}
	}
	slices.SortFunc(shared, func(a, b together) int { return compareKeys(a.writer, b.writer) })
	for len(shared) > 0 {
		n := s.fitting(shared)
		if n == 1 || !s.share(ctx, shared[:n]) {
			alone = append(alone, shared[:n]...)
		}
		shared = shared[n:]
	}
	var wg sync.WaitGroup
	for i, t := range alone {
		if i == len(alone)-1 {
			t.done(t.write(ctx))
			break
		}
		wg.Go(func() { t.done(t.write(ctx)) }) // one that waits for a lock must not hold up the others
	}
	wg.Wait()
}

// compareKeys orders tables as the primary key of the progress table does.
func compareKeys(a, b *writer) int {
	return stream.CompareIdentities(a.table.Since(a.since), b.table.Since(b.since))
}

// shares makes the statements of the batch and reports whether they can be in a transaction with others. An error is not lost: the batch
// is then written alone, which returns it.
func (b *batch) shares(ctx context.Context) bool {
	if _, err := b.writer.sink.prepare(ctx); err != nil {
		return false
	}
	return b.prepare(ctx) == nil && !slices.ContainsFunc(b.statements, func(st statement) bool { return st.rows != 0 })
}

// fitting is how many of the next batches fit in one message; at least one.
func (s *Sink) fitting(list []together) int {
	length, limit := 0, s.limit()
	for i, t := range list {
		length += progressLength
		if t.group != nil {
			length += rowevent.StatementLength([]rowevent.Group{*t.group})
		}
		for _, st := range t.statements {
			length += len(st.text) + 1
		}
		if i > 0 && length > limit {
			return i
		}
	}
	return len(list)
}

// progressLength bounds the length of the statement that moves a position: the names of a changefeed and of a table, quoted, and numbers.
const progressLength = 2*(changefeedLength+256+256) + 512

// share writes batches in one transaction and returns whether it is committed.
func (s *Sink) share(ctx context.Context, list []together) bool {
	batches := make([]*batch, len(list))
	for i, t := range list {
		batches[i] = t.batch
	}
	done, err := s.applyAtOnce(ctx, batches)
	if !done || err != nil {
		return false
	}
	s.note(nil)
	for _, t := range list {
		t.applied()
		t.done(nil)
	}
	return true
}
