package lease_test

import (
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

// process is one node process. It decides with the real HeldEpoch, LossDetector, Take, Renew, Release and Fence.
type process struct {
	w    *world
	slot *slot
	id   string
	dead []string

	alive   bool
	frozen  bool
	waiting []func() // what comes once it is thawed

	held     *lease.HeldEpoch // nil: out, wants in
	epoch    int64            // of the last held epoch
	truly    lease.Instant    // when the renewal it counts on was sent: kept for the referee
	detector *lease.LossDetector
	believed lease.Instant       // up to when renewals were reported to the loss detector: for those who report some that never were
	door     *lease.LossDetector // of its own name, while it is out
	stopping bool                // the work of this held epoch is being stopped
	stopped  bool                // and none is left
	leaving  bool
	releases int
	marking  bool
	attached bool // it has looked for what the process before it left running

	attempt // the renewal or take that is under way
}

// step is a place in the middle of a step, where a freeze hurts most.
type step int

const (
	beforeSend step = iota // decided, not yet sent
	afterSend              // the answer is on its way
	beforeShim             // the answer was counted, the shim does not know yet
	beforeMark             // the mark was decided on the live Lease, not yet sent
)

// do runs something in the process: at once, when it is thawed, or never.
func (p *process) do(f func()) {
	switch {
	case p == nil || !p.alive:
	case p.frozen:
		p.waiting = append(p.waiting, f)
	default:
		f()
	}
}

// timer does f after d on the machine's clock.
func (p *process) timer(d time.Duration, f func()) {
	p.w.after(p.slot.machine.lasts(d), func() { p.do(f) })
}

// step goes on with f after a moment in which the process may be frozen.
func (p *process) step(where step, f func()) {
	if d, ok := p.slot.ambush[where]; ok {
		delete(p.slot.ambush, where)
		p.freeze(d)
	}
	p.w.after(p.w.upTo(2*time.Millisecond), func() { p.do(f) })
}

func (p *process) freeze(d time.Duration) {
	if p.frozen || !p.alive || p.w.healed {
		return
	}
	p.frozen = true
	p.w.after(d, p.thaw)
}

// thaw goes on with everything that came meanwhile, timers and messages in any order.
func (p *process) thaw() {
	if !p.frozen {
		return
	}
	p.frozen = false
	waiting := p.waiting
	p.waiting = nil
	p.w.noise.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	for _, f := range waiting {
		p.do(f)
	}
}

func (p *process) clock() lease.Instant { return p.slot.machine.clock() }

func (p *process) holding() bool {
	return p.held != nil && p.held.StandingAt(p.clock()) == lease.Holding
}

// beat is the loop of a process.
func (p *process) beat() {
	p.timer(beat, p.beat)
	if p.held != nil && !p.holding() {
		p.fence()
	}
	if !p.trying && p.clock() >= p.next && !p.stopping && !p.leaving {
		p.try()
	}
	if p.w.broken.ownFailures || p.w.broken.keptDetector && p.held == nil {
		p.believe(p.clock())
	}
	p.observe()
}

// fence stops the work of a held epoch that is in doubt and, when it is dead, lets the process rejoin.
func (p *process) fence() {
	h := p.held
	if !p.stopping {
		p.stopping = true
		if !p.w.broken.keptDetector {
			p.detector = nil
		}
		p.timer(p.w.upTo(timing.Dead-timing.Fence), func() { p.stopWork(h) })
	}
	if p.stopped || h.StandingAt(p.clock()) == lease.Expired || p.w.broken.earlyRejoin {
		p.out()
	}
}

// stopWork stops what the process runs. It comes after out when the process was frozen in between; then the shim has
// done it already.
func (p *process) stopWork(h *lease.HeldEpoch) {
	if p.held != h {
		return
	}
	p.slot.shim.stop()
	p.stopped = true
}

// out ends a held epoch whose work is dead.
func (p *process) out() {
	p.w.referee.Count("epoch ended")
	epoch := p.held.Number()
	p.held, p.last, p.stopping, p.stopped, p.trying = nil, nil, false, false, false
	p.knock()
	if p.leaving {
		p.release(epoch)
	}
}

// knock begins to wait for the next epoch.
func (p *process) knock() {
	p.next = p.clock()
	p.door = lease.NewLossDetector(timing, p.next)
}

// leave ends the epoch in order: first the work, then the lease, then the process.
func (p *process) leave() {
	if p.held == nil || p.leaving {
		return
	}
	p.leaving = true
	if p.w.broken.earlyRelease {
		p.release(p.held.Number())
	}
	p.held.MarkInDoubt()
}

// tell passes the deadline of a renewal that was counted on to the shim. The gate is what the process has in memory:
// nothing starts in a held epoch that is being stopped. The clock is the shim's business.
func (p *process) tell(h *lease.HeldEpoch) {
	_, deadline := h.Deadline()
	left := deadline.Sub(p.clock())
	p.step(beforeShim, func() {
		if p.held != h || p.stopping {
			return
		}
		if p.w.broken.relativeDeadline {
			deadline = p.clock().Add(left)
		}
		// The first epoch of a process finds what the process before it left running.
		shim, first := p.slot.shim, !p.attached
		p.attached = true
		if shim.mayRun() && (first || shim.epoch == h.Number()) {
			if first {
				p.w.referee.Count("re-attached")
			}
			shim.tell(h.Number(), deadline)
			return
		}
		p.slot.begin(h.Number(), deadline)
	})
}
