package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/volume/block"
)

// member is a replica that has every acknowledged write.
type member struct {
	name  string
	local bool
	block.Replica

	// away are the replicas for which it has marked every chunk that they miss. It is used by the goroutine that changes the membership only.
	away []string

	calls  underWay
	heard  atomic.Int64  // when the last ping that was answered was sent
	failed atomic.Bool   // it is to be given up
	gone   chan struct{} // closed when the change that gave it up is recorded, or when it is reached again
	stop   context.CancelFunc

	mu    sync.Mutex
	cause error // why it failed first
}

func newMember(name string, r block.Replica, local bool, away []string) *member {
	return &member{name: name, Replica: r, local: local, away: away, gone: make(chan struct{})}
}

// waitFor is the member for an operation that nobody gives up, because there is no other member. It costs less.
func (m *member) waitFor() block.Replica {
	if l, ok := m.Replica.(*localReplica); ok {
		return l.Replica
	}
	return m.Replica
}

// fail notes that the member is to be given up, and returns whether nobody had noted that before.
func (m *member) fail(cause error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed.Load() {
		return false
	}
	m.cause = cause
	m.failed.Store(true)
	return true
}

// why the member failed.
func (m *member) why() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// answers reports whether the member has answered lately. One in this process always does.
func (m *member) answers(now time.Duration, limit time.Duration) bool {
	return m.local || now-time.Duration(m.heard.Load()) < limit
}

// heartbeat pings a member on another node until ctx ends. The time of an answer is when the ping was sent: the member knew no newer
// generation after that moment.
func (e *Engine) heartbeat(ctx context.Context, m *member) {
	for backoff.Sleep(ctx, e.opts.Timing.Heartbeat) == nil {
		sent, v := e.opts.Clock(), e.view.Load()
		limited, cancel := context.WithTimeout(ctx, e.opts.Timing.Unanswered)
		err := m.Ping(limited, v.generation)
		cancel()
		switch {
		case err == nil:
			m.heard.Store(int64(sent))
		case ctx.Err() != nil:
			return
		case errors.Is(err, block.ErrStale):
			_ = e.awaitChange(ctx, v) // it ends the engine if another one was meant
		default:
			e.giveUp(m, err)
			return
		}
	}
}
