package engine

import (
	"context"
	"sync"
)

// ranges lets writes and copies that overlap happen one after the other, in the order in which they came, so that all members apply them
// in the same order.
type ranges struct {
	mu    sync.Mutex
	held  []*span
	spare []*span
}

// span is a range that somebody holds or waits for.
type span struct {
	from, to int64
	done     chan struct{} // closed by unlock; made only when somebody waits for it
}

// lock waits until every range that overlaps and came before is unlocked.
func (r *ranges) lock(ctx context.Context, off, length int64) (*span, error) {
	r.mu.Lock()
	s := r.newSpan(off, off+length)
	var before []chan struct{}
	for _, h := range r.held {
		if h.from < s.to && s.from < h.to {
			if h.done == nil {
				h.done = make(chan struct{})
			}
			before = append(before, h.done)
		}
	}
	r.held = append(r.held, s)
	r.mu.Unlock()
	for _, done := range before {
		select {
		case <-done:
		case <-ctx.Done():
			r.unlock(s)
			return nil, context.Cause(ctx)
		}
	}
	return s, nil
}

func (r *ranges) newSpan(from, to int64) *span {
	if n := len(r.spare); n > 0 {
		s := r.spare[n-1]
		r.spare = r.spare[:n-1]
		s.from, s.to, s.done = from, to, nil
		return s
	}
	return &span{from: from, to: to}
}

func (r *ranges) unlock(s *span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, h := range r.held {
		if h == s {
			last := len(r.held) - 1
			r.held[i] = r.held[last]
			r.held[last] = nil
			r.held = r.held[:last]
			break
		}
	}
	if s.done != nil {
		close(s.done)
	}
	r.spare = append(r.spare, s)
}
