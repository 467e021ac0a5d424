package engine

import (
	"fmt"
	"sync/atomic"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// underWay counts the writes and flushes of clients that a replica has not answered, by the period in which they began. Periods are half of
// Timing.Stuck long; a call that began two periods ago is stuck. Pings do not tell that: a node answers them though its disk hangs.
type underWay [4]atomic.Int64

func (u *underWay) begin(period int64) { u[period%int64(len(u))].Add(1) }

func (u *underWay) end(period int64) { u[period%int64(len(u))].Add(-1) }

// stuck reports whether a call has been under way since the period before the last one.
func (u *underWay) stuck(period int64) bool {
	return period >= 2 && u[(period-2)%int64(len(u))].Load() > 0
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
