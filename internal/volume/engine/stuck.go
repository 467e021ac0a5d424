package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/volume/block"
)

// underWay counts the calls for clients and the copies that a replica has not answered, by the period in which they began. Periods are half of
// Timing.Stuck long; a call that began two periods ago is stuck. Pings do not tell that: a node answers them though its disk hangs.
type underWay [4]atomic.Int64

func (u *underWay) begin(period int64) { u[period%int64(len(u))].Add(1) }

func (u *underWay) end(period int64) { u[period%int64(len(u))].Add(-1) }

// stuck reports whether a call has been under way since the period before the last one.
func (u *underWay) stuck(period int64) bool {
	return period >= 2 && u[(period-2)%int64(len(u))].Load() > 0
}

// counted is a replica of which and to which is copied. Copies hold ranges that writes of clients wait for, so they are counted as those are.
type counted struct {
	block.Replica
	calls  *underWay
	period *atomic.Int64
}

// countedMember is a member whose calls are counted.
func (e *Engine) countedMember(m *member) counted { return counted{m.Replica, &m.calls, &e.period} }

// countedTarget is a replica that is being built, whose calls are counted.
func (e *Engine) countedTarget(t *target) counted { return counted{t.Replica, &t.calls, &e.period} }

// begin counts a call until the function that it returns is called.
func (c counted) begin() (end func()) {
	period := c.period.Load()
	c.calls.begin(period)
	return func() { c.calls.end(period) }
}

// ReadAt implements block.Replica.
func (c counted) ReadAt(ctx context.Context, generation int64, p []byte, off int64) error {
	defer c.begin()()
	if l, ok := c.Replica.(*localReplica); ok {
		return l.readAside(ctx, generation, p, off)
	}
	return c.Replica.ReadAt(ctx, generation, p, off)
}

// Extents implements block.Replica.
func (c counted) Extents(ctx context.Context, generation int64, off, length int64) ([]block.Extent, error) {
	defer c.begin()()
	return c.Replica.Extents(ctx, generation, off, length)
}

// WriteAt implements block.Replica.
func (c counted) WriteAt(ctx context.Context, generation int64, p []byte, off int64, fua bool) error {
	defer c.begin()()
	return c.Replica.WriteAt(ctx, generation, p, off, fua)
}

// Zero implements block.Replica.
func (c counted) Zero(ctx context.Context, generation int64, off, length int64, z block.Zero) error {
	defer c.begin()()
	return c.Replica.Zero(ctx, generation, off, length, z)
}

// Flush implements block.Replica.
func (c counted) Flush(ctx context.Context, generation int64) error {
	defer c.begin()()
	return c.Replica.Flush(ctx, generation)
}

// Intent implements block.Replica.
func (c counted) Intent(ctx context.Context, generation int64) (block.Bitmap, error) {
	defer c.begin()()
	return c.Replica.Intent(ctx, generation)
}

// Clear implements block.Replica.
func (c counted) Clear(ctx context.Context, generation int64, chunks block.Bitmap) error {
	defer c.begin()()
	return c.Replica.Clear(ctx, generation, chunks)
}

// watchMembers ends the calls of members that do not answer while the engine opens, so that it goes on without them, until the function that it
// returns is called. Later the goroutine that changes the membership does that.
func (e *Engine) watchMembers(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() {
		for backoff.Sleep(ctx, tickEvery) == nil {
			e.giveUpStuck()
			for _, m := range e.view.Load().members {
				if m.failed.Load() {
					_ = m.Close() // whoever waits for it learns that
				}
			}
		}
	})
	return func() {
		cancel()
		group.Wait()
	}
}

// giveUpStuck gives up replicas whose disk does not answer, as long as a member is left whose disk does. If every disk is as slow, all of them are
// waited for.
func (e *Engine) giveUpStuck() {
	now := e.opts.Clock()
	if now < e.nextPeriod {
		return
	}
	e.nextPeriod = now + e.opts.Timing.Stuck/2
	period, v := e.period.Add(1), e.view.Load()
	cause := fmt.Errorf("%w: its disk has not answered for %s", block.ErrUnreachable, e.opts.Timing.Stuck/2)
	for _, t := range v.targets {
		if t.calls.stuck(period) {
			t.live(cause)
			_ = t.Close() // ends the calls that wait for it
		}
	}
	var stuck []*member
	for _, m := range v.members {
		if m.calls.stuck(period) {
			stuck = append(stuck, m)
		}
	}
	if len(stuck) == len(v.members) {
		return
	}
	for _, m := range stuck {
		e.giveUp(m, cause)
	}
}
