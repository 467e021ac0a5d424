package dispatch

import (
	"context"
	"sync"
	"time"
)

// budget bounds the memory of changes that were read and not yet written on a node. Readers wait while it is used up.
type budget struct {
	mu    sync.Mutex
	limit int64
	used  int64
	free  chan struct{} // closed and replaced when something is given back
	// relieve is called periodically while all of it is used, to free memory of changes that cannot be written.
	relieve func()
}

func newBudget(limit int64, relieve func()) *budget {
	return &budget{limit: limit, free: make(chan struct{}), relieve: relieve}
}

// take adds to the memory in use, even beyond the limit, because what was read is in memory already.
func (b *budget) take(n int) {
	b.mu.Lock()
	b.used += int64(n)
	b.mu.Unlock()
}

// give returns memory.
func (b *budget) give(n int) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	full := b.used >= b.limit
	b.used -= int64(n)
	if full && b.used < b.limit {
		close(b.free)
		b.free = make(chan struct{})
	}
}

// wait returns true when memory is available, or false when ctx is cancelled.
func (b *budget) wait(ctx context.Context) bool {
	for ctx.Err() == nil {
		b.mu.Lock()
		full, free := b.used >= b.limit, b.free
		b.mu.Unlock()
		if !full {
			return true
		}
		timer := time.NewTimer(tendEvery)
		select {
		case <-ctx.Done():
		case <-free:
		case <-timer.C:
			b.relieve()
		}
		timer.Stop()
	}
	return false
}

// scarce reports whether more than half is in use: then changes that can be read again should be dropped.
func (b *budget) scarce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used > b.limit/2
}

// inUse is how much is used.
func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
